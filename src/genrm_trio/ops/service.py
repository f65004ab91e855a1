"""`serve`: puts the rooms together as one process, from the first log line to the exit code.

Everything runs in nurseries that are opened here, so an unexpected error in one of the server's own tasks ends
the process with a non-zero code instead of leaving half a server behind.
"""

import errno
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final

import structlog
import trio

from genrm_trio.judging.judge import Judge
from genrm_trio.judging.panel import SeatHealth
from genrm_trio.judging.transport import HttpJudge
from genrm_trio.ops import assembly, logs, outputs
from genrm_trio.ops.complaints import StartupError, leaves
from genrm_trio.ops.housekeeping import keep_swept
from genrm_trio.ops.metrics import CONTENT_TYPE, Metrics, Reading
from genrm_trio.ops.observers import (
    CohortWatch,
    JudgeWatch,
    RequestWatch,
    checkpoint_trouble,
    loop_watchdog,
    watch_loop,
)
from genrm_trio.ops.refusals import judge_never_asked
from genrm_trio.ops.settings import Settings, secrets_of
from genrm_trio.ops.sources import Loaded
from genrm_trio.ops.tracing import TraceFile, traced
from genrm_trio.runtime.control import Control
from genrm_trio.runtime.server import Server
from genrm_trio.web.app import WebApp
from genrm_trio.web.serving import Server as HttpServer
from genrm_trio.web.serving import listen, raise_descriptor_limit

CRASHED: Final = 1
HEARD_S: Final = 1.0
"""Seconds until the log says that standard output has not taken its line."""
LAST_MOMENT_S: Final = 0.25
"""How long before the end of the grace the process is ended by force, but no more than LAST_PART of it: the thread that
does it may have to wait for the interpreter, and the system closes thousands of connections."""
LAST_PART: Final = 0.05

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Options:
    """What `serve` is told besides its settings."""

    ready_file: Path | None = None
    record: Path | None = None
    trace: Path | None = None
    await_restore: bool = False


def serve(loaded: Loaded, options: Options) -> int:
    """Serve until a signal; returns the exit code.

    Raises:
        StartupError: an option, an address or a file cannot be used.
    """
    settings = loaded.settings
    logs.configure(debug=settings.debug_logging, secrets=secrets_of(settings), max_line=settings.limits.max_log_line)
    _check_options(settings, options)
    _clear_ready_file(options.ready_file)
    settings = _within_descriptors(settings)
    log.info("starting", configuration=loaded.origin, name=settings.name, judge=settings.judge.backend)
    if warning := judge_never_asked(settings):
        log.warning("judge_never_asked", text=warning)
    with traced(options.trace) as trace:
        try:
            trio.run(partial(_serve, settings, options, trace))
        except Exception as error:
            for leaf in leaves(error):
                if isinstance(leaf, StartupError):
                    raise leaf from None
            log.critical("server_failed", exc_info=error)
            return CRASHED
    log.info("stopped")
    return 0


def _check_options(settings: Settings, options: Options) -> None:
    """Refuse options that the settings leave without a meaning."""
    if options.await_restore and not settings.checkpoint.enabled:
        raise StartupError("--await-restore waits for a controller's restore, but checkpoint.enabled is false")
    if options.record is not None and settings.judge.backend == "recorded":
        raise StartupError("--record keeps what a live judge says, but judge.backend is recorded")


def _clear_ready_file(path: Path | None) -> None:
    """Remove the file of the run before; refuse a place where ours cannot be, and what no run before has made."""
    if path is None:
        return
    try:
        if path.exists() and not path.is_file():
            raise StartupError(f"--ready-file {path}: there is something else than a file")
        path.unlink(missing_ok=True)
        if not path.parent.is_dir():
            raise StartupError(f"--ready-file {path}: {os.strerror(errno.ENOENT)}")
    except OSError as error:
        raise StartupError(f"--ready-file {path}: {error.strerror}") from None


def _within_descriptors(settings: Settings) -> Settings:
    """Raise the limit of open files as far as it goes; where that is not far enough, lower the bounds and say so.

    A bound that the limit does not cover would be a stall: whose connection is not accepted can be told nothing.
    """
    wanted = assembly.sockets(settings)
    limit = raise_descriptor_limit(wanted.needed)
    if limit >= wanted.needed:
        return settings
    lowered = assembly.within_descriptors(settings, limit)
    log.warning(
        "descriptor_limit_low",
        text=f"limit of open files is {limit}, the configured bounds need {wanted.needed}: {assembly.raising(wanted)}, "
        "or lower max_connections; until then the bounds in force are those of this line",
        max_connections=lowered.max_connections,
        refusal_connections=lowered.limits.refusal_connections,
        max_held_members=lowered.max_held_members,
    )
    return lowered


@dataclass(frozen=True, slots=True)
class House:
    """All that runs: the runtime, the control plane when checkpoints are on, and what HTTP reaches them by."""

    server: Server
    control: Control | None
    app: WebApp
    http: HttpServer
    seats: Callable[[], Sequence[SeatHealth]]
    trace: TraceFile | None

    @property
    def quiet(self) -> bool:
        """Whether no request is under way or waits."""
        return self.server.gate.running == 0 and not self.server.registry.waiters

    def reading(self) -> Reading:
        """Read the states of everything for the metrics."""
        registry = self.server.registry
        return Reading(
            cohorts=Counter(cohort.phase for cohort in registry.cohorts.values()),
            held_members=registry.held,
            waiting_verifies=len(registry.waiters),
            open_sessions=len(registry.sessions),
            groups=len(registry.groups),
            admission_open=registry.admission.open,
            calls_in_flight=self.server.slots.in_use,
            calls_waiting=self.server.slots.waiting,
            running_requests=self.server.gate.running,
            awaits_restore=self.server.gate.awaits_restore,
            waiting_requests=self.server.gate.waiting,
            connections=len(self.http.connections),
            checkpoint_phase=self.control.phases.visible_phase.value if self.control is not None else None,
            resting=[(seat.endpoint, seat.resting) for seat in self.seats()],
            log_lines_lost=outputs.lost(),
            trace_events_lost=self.trace.lost if self.trace is not None else 0,
        )


async def _serve(settings: Settings, options: Options, trace: TraceFile | None) -> None:
    """Build everything, serve, and give everything back."""
    metrics = Metrics()
    watch = JudgeWatch(metrics)
    live = assembly.make_judge(settings, watch)
    judge = live if options.record is None else assembly.recorded_to(options.record, live, watch)
    seats = live.panel.health if isinstance(live, HttpJudge) else tuple
    try:
        house = _build(settings, options, judge, seats, metrics, trace)
        await _run(house, settings, options, metrics)
    finally:
        with trio.CancelScope(shield=True):
            await _close(judge)


async def _close(judge: Judge) -> None:
    """Close the judge. A recording that lacks its end is no reason to tell a supervisor that serving failed."""
    try:
        await judge.aclose()
    except OSError as error:
        log.warning("recording_incomplete", text=f"{type(error).__name__}: {error.strerror}")


def _build(
    settings: Settings,
    options: Options,
    judge: Judge,
    seats: Callable[[], Sequence[SeatHealth]],
    metrics: Metrics,
    trace: TraceFile | None,
) -> House:
    """Put the rooms together; nothing runs yet."""
    watch, hold, policy = CohortWatch(metrics), options.await_restore, assembly.policy(settings)
    if trace is not None:
        trace.begin(policy.limits)
    server = Server(policy, judge, observer=watch, trace=trace, await_restore=hold)
    control = assembly.control(settings, server, checkpoint_trouble) if settings.checkpoint.enabled else None
    app = WebApp(
        server,
        assembly.web_policy(settings),
        control=control,
        metrics=lambda: (metrics.exposition(), CONTENT_TYPE),
    )
    http = app.http_server(assembly.serving_limits(settings), on_served=RequestWatch(metrics))
    house = House(server, control, app, http, seats, trace)
    metrics.read_from(house.reading)
    return house


async def _run(house: House, settings: Settings, options: Options, metrics: Metrics) -> None:
    """Serve from the first request to the last answer."""
    try:
        listeners, url = await listen(settings.host, settings.port, house.http.limits)
    except (OSError, ValueError) as error:  # a name that cannot be encoded is a ValueError
        where = f"{settings.host} port {settings.port}"
        raise StartupError(f"cannot listen on {where}: {getattr(error, 'strerror', None) or error}") from None
    dog = loop_watchdog(metrics, settings.limits.loop_stuck_s)
    with _stop_signals(settings.shutdown_grace_s) as stop, dog.watching():
        async with trio.open_nursery() as background:
            await background.start(house.server.run)
            if house.control is not None:
                await background.start(house.control.run)
            background.start_soon(watch_loop, metrics, dog.beat)
            background.start_soon(keep_swept, lambda: house.quiet)
            if house.trace is not None:
                background.start_soon(house.trace.keep_flushed)
            async with trio.open_nursery() as front, _closed_at_the_end(listeners):
                with _ready_file(options.ready_file, url):
                    await front.start(partial(house.app.serve, house.http, listeners, shutdown_trigger=stop.wait))
                background.start_soon(_announce, url, house.server.gate.awaits_restore)
            background.cancel_scope.cancel()


@asynccontextmanager
async def _closed_at_the_end(listeners: Sequence[trio.SocketListener]) -> AsyncIterator[None]:
    """Close them if the block fails; else whoever they were handed to does."""
    try:
        yield
    except BaseException:
        for listener in listeners:
            await trio.aclose_forcefully(listener)
        raise


async def _announce(url: str, waits: bool) -> None:
    """Say that requests are accepted, with the one line that contract 13 asks for; say too when nobody takes it.

    `waits`: none will be answered until a controller restores or resumes.
    """
    log.info("serving", url=url)
    if waits:
        log.warning(
            "awaiting_restore", text="data requests wait until a controller sends resume, with a restore or not"
        )
    out, line = sys.stdout, f"genrm-trio serves at {url}\n"
    if not isinstance(out, outputs.Unfailing):  # whoever runs this without the command line has a stream of their own
        out.write(line)
        out.flush()
        return
    lost = out.lost
    out.write(line)
    passed = out.passed()
    await trio.sleep(HEARD_S)
    if not passed.is_set():
        log.warning("announcement_waits", text="standard output has no room for the line with the URL")
    elif out.lost > lost:
        log.warning("announcement_lost", text="the line with the URL could not be written to standard output")


@contextmanager
def _ready_file(path: Path | None, url: str) -> Iterator[None]:
    """Have the file that a supervisor waits for appear at the end of the block, never half written.

    It is written before the block, so that a full disk is a failed start and not the end of a server with requests.
    """
    if path is None:
        yield
        return
    partial_file = path.with_name(f".{path.name}.{os.getpid()}")
    with _option_refused(path):
        partial_file.write_text(url, encoding="utf-8")
    yield
    with _option_refused(path):
        partial_file.replace(path)


@contextmanager
def _option_refused(path: Path) -> Iterator[None]:
    """Say which option names the file that failed."""
    try:
        yield
    except OSError as error:
        raise StartupError(f"--ready-file {path}: {error.strerror}") from None


@contextmanager
def _stop_signals(grace_s: float) -> Iterator[trio.Event]:
    """Turn the first SIGTERM or SIGINT into an event; a second one ends the process at once, by the system's hand.

    A second one within the moment until the first is seen is taken for the first; a third is not.
    Whatever is stuck then, a thread or the loop itself: at the end of the grace the process is gone.
    """
    stop = trio.Event()
    token = trio.lowlevel.current_trio_token()
    before: dict[signal.Signals, Callable[[int, FrameType | None], object] | int | None] = {}

    def first(number: int, _frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_DFL)
        end = threading.Timer(grace_s - min(LAST_MOMENT_S, grace_s * LAST_PART), os._exit, [0])
        end.daemon = True
        end.start()
        token.run_sync_soon(stop.set)
        token.run_sync_soon(partial(log.info, "stopping", signal=signal.Signals(number).name, grace_s=grace_s))

    for each in (signal.SIGTERM, signal.SIGINT):
        before[each] = signal.signal(each, first)
    try:
        yield stop
    finally:
        if not stop.is_set():
            for each, handler in before.items():
                signal.signal(each, handler)
