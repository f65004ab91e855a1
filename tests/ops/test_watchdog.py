"""A stuck event loop: `/livez` does not answer, the log says where it stands, and afterwards all goes on."""

import signal
import sys
import threading
from pathlib import Path

import pytest
import trio
from tests.support.fake_judge import FakeJudge
from tests.support.server_process import ServerProcess, servers, settings_for

from genrm_trio.ops.watchdog import LOOKS, Watchdog

STUCK_S = 1.0
PROBE_S = 0.5
STICKY = """
import pathlib, signal, sys, time
from genrm_trio.ops.cli import main
release = pathlib.Path(__file__).with_name("release")
def stand_still(*_):
    while not release.exists():
        time.sleep(0.01)
signal.signal(signal.SIGUSR1, stand_still)
main()
"""
"""The command, whose event loop stands still after a signal until a file is there."""


async def lives(server: ServerProcess) -> bool:
    """What a probe with a time-out finds."""
    with trio.move_on_after(PROBE_S):
        return (await server.peer.ask("GET", "/livez")).status == 200
    return False


def interpreter(folder: Path) -> str:
    """What stands in for the interpreter and runs the sticky command instead of the command."""
    sticky, script = folder / "sticky.py", folder / "python"
    sticky.write_text(STICKY)
    script.write_text(f"#!/bin/sh\nshift 2\nexec '{sys.executable}' '{sticky}' \"$@\"\n")
    script.chmod(0o755)
    return str(script)


async def test_a_stuck_loop_fails_the_probe_and_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", interpreter(tmp_path))
    async with FakeJudge().running() as judge:
        settings = settings_for(judge.url, limits={"loop_stuck_s": STUCK_S})
        async with servers(tmp_path, settings) as house:
            server = await house.start()
            assert await lives(server)
            server.child.signal(signal.SIGUSR1)
            told = (await server.logged("event_loop_stuck"))[0]
            assert "stand_still" in told["where"]
            assert not await lives(server)
            await trio.Path(tmp_path / "release").touch()
            await server.logged("event_loop_runs_again")
            with trio.fail_after(20):
                while not await lives(server):
                    pass
            assert (await server.metrics())["event_loop_stuck_total"] == 1
            assert await server.terminate() == 0


def test_each_standstill_is_told_once() -> None:
    stuck: list[str] = []
    again: list[float] = []
    dog = Watchdog(1000.0, stuck.append, again.append)
    for told in (1, 2):
        for _ in range(2 * LOOKS):
            dog.look()
        assert len(stuck) == told
        dog.beat()
        dog.beat()
        assert len(again) == told
    assert "test_each_standstill" in stuck[0]


def test_a_few_missed_looks_are_not_told() -> None:
    told: list[object] = []
    dog = Watchdog(1000.0, told.append, told.append)
    for _ in range(5):
        for _ in range(LOOKS - 1):
            dog.look()
        dog.beat()
    assert not told


def test_it_looks_from_a_thread_of_its_own_until_the_end() -> None:
    stuck = threading.Event()
    dog = Watchdog(0.08, lambda _where: stuck.set())
    with dog.watching():
        assert stuck.wait(20)
    assert all(thread.name != "watchdog" for thread in threading.enumerate())
