"""`--trace FILE`: every action of the core as one line, in order, for `genrm-trio trace check`.

A line is a JSON object: `event` is the action's name, then `args` and `reply`. The first line is `Init`, with what a
check has to know of the server. Writing is buffered; `flush` is called now and then by a task, and at the end.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import msgspec
import structlog
import trio

from genrm_trio.core.outcome import JSON
from genrm_trio.core.state import Limits
from genrm_trio.core.trace import Event
from genrm_trio.ops.complaints import StartupError

BUFFER_BYTES: Final = 1 << 20
FLUSH_EVERY_S: Final = 1.0

log = structlog.get_logger()


def trace_line(event: Event) -> bytes:
    """Return an event as its line. Lone surrogates and integers of any size, which clients may send, are kept."""
    fields = {"event": event.name, "args": event.args, "reply": event.reply}
    try:
        return msgspec.json.encode(fields) + b"\n"
    except (UnicodeEncodeError, OverflowError):  # rare, and several times slower
        return json.dumps(fields, separators=(",", ":")).encode("ascii") + b"\n"


class TraceFile:
    """Takes events, and writes them to an open file. A file that fails is given up, and the log says so.

    lost: events that came after the last flush of a file that was given up; some of those before it may be in the file.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.lost = 0
        self._file = file
        self._given_up = False
        self._unflushed = 0

    def begin(self, limits: Limits) -> None:
        """Write the first line."""
        bounds: dict[str, JSON] = {
            "cohort_size": limits.cohort_size,
            "max_terminal_cohorts": limits.max_terminal_cohorts,
        }
        self(Event("Init", bounds, None))

    def __call__(self, event: Event) -> None:
        """Write one event; the hook of the Registry."""
        if self._given_up:
            self.lost += 1
            return
        self._unflushed += 1
        with self._giving_up():
            self._file.write(trace_line(event))

    def flush(self) -> None:
        """Hand to the system what was written so far."""
        if not self._given_up:
            with self._giving_up():
                self._file.flush()
                self._unflushed = 0

    def close(self) -> None:
        """Write the rest and close the file."""
        with self._giving_up():
            self._file.close()

    @contextmanager
    def _giving_up(self) -> Iterator[None]:
        """On an error of the file, say so once and write no more."""
        try:
            yield
        except OSError as error:
            if not self._given_up:
                self.lost = self._unflushed
                log.warning("trace_given_up", text=f"{type(error).__name__}: {error.strerror}")
            self._given_up = True

    async def keep_flushed(self) -> None:
        """Flush now and then, for ever: a trace that is looked at while the server runs is not far behind."""
        while True:
            await trio.sleep(FLUSH_EVERY_S)
            self.flush()


@contextmanager
def traced(path: Path | None) -> Iterator[TraceFile | None]:
    """Open the trace file, if one is wanted; raises StartupError when it cannot be."""
    if path is None:
        yield None
        return
    try:
        file = path.open("wb", buffering=BUFFER_BYTES)
    except OSError as error:
        raise StartupError(f"--trace {path}: {error.strerror}") from error
    trace = TraceFile(file)
    try:
        yield trace
    finally:
        trace.close()
