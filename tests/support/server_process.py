"""The real server as a process of its own: started from a configuration file, killed, and started again.

Each process is started by us and ended by its id, at the latest when the test's block ends. Its log and its
settings stay in the folder that the test owns.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any, Final, Protocol

import trio
import yaml
from tests.support.peer import Peer

ROOT: Final = Path(__file__).resolve().parents[2]
START_S: Final = 30.0
END_S: Final = 15.0
WAIT_S: Final = 20.0
LOG_SHOWN: Final = 4000
CONTROL_TOKEN: Final = "control-token-of-the-tests"
SECRET: Final = "session-secret-of-the-tests"

Settings = Mapping[str, Any]


def settings_for(judge_url: str, size: int = 2, **changes: Any) -> dict[str, Any]:
    """Settings of a server with checkpoints on, whose judge is at this address, with short retries.

    Changes of `judge` and `checkpoint` are made inside those sections.
    """
    judge = {"base_url": judge_url, **changes.pop("judge", {})}
    checkpoint = {"enabled": True, "control_auth_token": CONTROL_TOKEN, **changes.pop("checkpoint", {})}
    return {
        "num_rollouts_per_prompt": size,
        "session_secret": SECRET,
        "judge": judge,
        "checkpoint": checkpoint,
        "cohort_collection_timeout_s": 30.0,
        "cohort_evaluation_timeout_s": 30.0,
        "judge_request_timeout_s": 20.0,
        "genrm_parse_retry_sleep_s": 0.01,
        **changes,
    }


class Child:
    """One process that was started: what it said on its standard output, and whether it ended."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.said = ""
        self.code: int | None = None
        self._bell = trio.Event()

    def heard(self, *, said: str = "", code: int | None = None) -> None:
        """Note what came of it."""
        self.said += said
        self.code = code if code is not None else self.code
        self._bell.set()
        self._bell = trio.Event()

    async def line(self, number: int = 0) -> str:
        """A line of its output, the first one by default; empty when it ended without it."""
        while self.said.count("\n") <= number and self.code is None:
            await self._bell.wait()
        return [*self.said.split("\n"), *[""] * number][number]

    async def wait(self) -> int:
        """Wait until it ended; returns the exit code, negative for a signal."""
        while self.code is None:
            await self._bell.wait()
        return self.code

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it ended."""
        if self.code is None:
            os.kill(self.pid, number)


class Launcher(Protocol):
    """A way to start `genrm-trio` with arguments."""

    async def launch(self, arguments: list[str], log: Path) -> Child:
        """Start it; what it writes to its standard error goes to `log`."""


class Commands:
    """Starts the command itself, with an interpreter of its own; `module` is the program that runs it."""

    def __init__(
        self, nursery: trio.Nursery, module: str = "genrm_trio", environment: Mapping[str, str] | None = None
    ) -> None:
        self._nursery = nursery
        self._module = module
        self._environment = dict(environment or {})

    async def launch(self, arguments: list[str], log: Path) -> Child:
        """Start it; what it writes to its standard error goes to `log`."""
        child: Child = await self._nursery.start(self._run, arguments, log)
        return child

    async def _run(self, arguments: list[str], log: Path, task_status: trio.TaskStatus[Child]) -> None:
        command = [sys.executable, "-m", self._module, *arguments]
        environment = clean_environment() | self._environment
        with log.open("wb") as errors:
            process = await trio.lowlevel.open_process(
                command, env=environment, stdin=DEVNULL, stdout=PIPE, stderr=errors
            )
        child = Child(process.pid)
        task_status.started(child)
        try:
            assert process.stdout is not None, "its standard output is a pipe"
            async for part in process.stdout:
                child.heard(said=part.decode())
            child.heard(code=await process.wait())
        finally:
            if process.returncode is None:
                process.kill()
            with trio.CancelScope(shield=True):
                child.heard(code=await process.wait())


class Forked:
    """Has children forked by the program in `forks`, over one connection to it."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._children: dict[int, Child] = {}
        self._started: list[Child] = []
        self._bell = trio.Event()

    async def launch(self, arguments: list[str], log: Path) -> Child:
        """Start it; what it writes to its standard error goes to `log`."""
        asked = {"argv": ["genrm-trio", *arguments], "log": str(log)}
        await self._stream.send_all(json.dumps(asked).encode() + b"\n")
        while not self._started:
            await self._bell.wait()
        return self._started.pop(0)

    async def aclose(self) -> None:
        """Close the connection; children that still run are killed."""
        await self._stream.aclose()

    async def hear(self) -> None:
        """Take in what is told of the children, until the connection closes."""
        unread = b""
        with suppress(trio.ClosedResourceError):  # by ourselves, at the end
            async for data in self._stream:
                *lines, unread = (unread + data).split(b"\n")
                for line in lines:
                    self._note(json.loads(line))

    def _note(self, told: dict[str, Any]) -> None:
        if "started" in told:
            child = self._children[told["started"]] = Child(told["started"])
            self._started.append(child)
            self._bell.set()
            self._bell = trio.Event()
            return
        self._children[told["pid"]].heard(said=told.get("said", ""), code=told.get("exited"))


@contextmanager
def forks(folder: Path, source: Path | None = None) -> Iterator[Path]:
    """Run the program in `forks`; yields the path of its socket. It ends with the block, and so do its children.

    source: the folder from which the product is imported, when it is another one.
    """
    path = folder / "forks"
    command = [sys.executable, "-m", "tests.support.forks", str(path)]
    environment = clean_environment() | ({"PYTHONPATH": str(source)} if source is not None else {})
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, env=environment, cwd=ROOT) as program:
        assert program.stdout is not None, "its standard output is a pipe"
        assert program.stdin is not None, "its standard input is a pipe"
        try:
            assert program.stdout.readline() == b"ready\n", "the program that forks servers did not start"
            yield path
        finally:
            program.stdin.close()
            program.wait(END_S)


def clean_environment() -> dict[str, str]:
    """Our environment without what would change the server's settings."""
    return {k: v for k, v in os.environ.items() if not k.upper().startswith(("GENRM_TRIO_", "NEMO_GYM_"))}


class ServerProcess:
    """One `genrm-trio serve` that accepts requests."""

    def __init__(self, child: Child, url: str, log: Path) -> None:
        self.child = child
        self.url = url
        self.log = log
        self.peer = Peer(url)

    @property
    def port(self) -> int:
        return self.peer.port

    async def kill(self) -> None:
        """`kill -9`: nothing of the process runs after that."""
        self.child.signal(signal.SIGKILL)
        with trio.fail_after(END_S):
            await self.child.wait()
        self.peer.close()

    async def terminate(self) -> int:
        """SIGTERM; returns the exit code."""
        self.child.signal(signal.SIGTERM)
        with trio.fail_after(END_S):
            return await self.child.wait()

    async def metrics(self) -> dict[str, float]:
        """The server's gauges and counters, by name with labels and without the project's prefix."""
        reply = await self.peer.ask("GET", "/metrics")
        assert reply.status == 200, f"no metrics: {reply.status} {reply.body[:200]!r}"
        return dict(_samples(reply.body.decode()))

    async def until(self, condition: Callable[[dict[str, float]], bool]) -> None:
        """Wait until a condition on the metrics holds."""
        with trio.fail_after(WAIT_S):
            while not condition(await self.metrics()):  # noqa: ASYNC110 - another process
                await trio.sleep(0.02)

    async def logged(self, event: str, fits: Callable[[list[dict[str, Any]]], object] = len) -> list[dict[str, Any]]:
        """The lines of the log that tell of this event, once they fit; without a condition, once there is one.

        A thread of the server writes its log, so that a line may come after an answer that was given later.
        """
        with trio.fail_after(WAIT_S):
            while True:
                whole = self.log.read_bytes().rpartition(b"\n")[0].splitlines()
                lines = [line for line in map(json.loads, whole) if line["event"] == event]
                if fits(lines):
                    return lines
                await trio.sleep(0.02)

    def last_words(self) -> str:
        """The end of the log."""
        return self.log.read_text(errors="replace")[-LOG_SHOWN:]


def _samples(text: str) -> Iterator[tuple[str, float]]:
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            yield name.removeprefix("genrm_trio_"), float(value)


class Servers:
    """Starts server processes one after the other in one folder, so that each finds what the one before left."""

    def __init__(self, launcher: Launcher, folder: Path, settings: Settings) -> None:
        self._launcher = launcher
        self.folder = folder
        self.settings = settings
        self.started = 0
        self.running: ServerProcess | None = None
        self._peers: list[Peer] = []

    async def start(self, *options: str, port: int = 0, **changes: Any) -> ServerProcess:
        """Start one and wait until it accepts requests; `changes` are settings that differ this time."""
        self.started += 1
        config, log = self.folder / f"config-{self.started}.yaml", self.folder / f"server-{self.started}.log"
        config.write_text(yaml.safe_dump({**self.settings, **changes}))
        arguments = ["serve", "--config", str(config), "--port", str(port), *options]
        with trio.fail_after(START_S):
            child = await self._launcher.launch(arguments, log)
            line = await child.line()
        if not line:
            raise AssertionError(f"the server did not start:\n{log.read_text(errors='replace')[-LOG_SHOWN:]}")
        self.running = ServerProcess(child, line.split()[-1], log)
        self._peers.append(self.running.peer)
        return self.running

    async def restart(self, *options: str, **changes: Any) -> ServerProcess:
        """Kill the running one with signal 9 and start a fresh one at the same address."""
        assert self.running is not None, "one was started"
        port = self.running.port
        await self.running.kill()
        return await self.start(*options, port=port, **changes)

    def close(self) -> None:
        """Close every idle connection that was kept."""
        for peer in self._peers:
            peer.close()


@asynccontextmanager
async def servers(
    folder: Path,
    settings: Settings,
    socket: Path | None = None,
    module: str = "genrm_trio",
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Servers]:
    """The server processes of one test; none is left when the block ends.

    socket: that of the program that forks them; without it each is a command with an interpreter of its own, run by
    `module` and with this added to its environment.
    """
    async with trio.open_nursery() as nursery:
        launcher: Launcher = Commands(nursery, module, environment)
        if socket is not None:
            launcher = forked = Forked(await trio.open_unix_socket(socket))
            nursery.start_soon(forked.hear)
        house = Servers(launcher, folder, settings)
        try:
            yield house
        except BaseException as error:
            if house.running is not None and not isinstance(error, trio.Cancelled):
                error.add_note(f"the server's last words:\n{house.running.last_words()}")
            raise
        finally:
            house.close()
            if isinstance(launcher, Forked):
                with trio.CancelScope(shield=True):
                    await launcher.aclose()
            nursery.cancel_scope.cancel()  # by which a command ends, too
