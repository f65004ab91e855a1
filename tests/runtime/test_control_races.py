"""Calls of a controller that overtake each other, or come again in a process that went on."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
from tests.support.plane import Plane, memory_store, plane, settled
from trio.abc import Clock

from genrm_trio.checkpoints.errors import ControlRefused
from genrm_trio.checkpoints.steps import Stage
from genrm_trio.checkpoints.store import MemoryStore
from genrm_trio.core.trace import Event


class Publishing:
    """A store whose first manifest is published when it is let go, and not before."""

    def __init__(self) -> None:
        self.reached = trio.Event()
        self.let_go = trio.Event()
        self.store = memory_store(between=self._between)

    async def _between(self, stage: Stage) -> None:
        if stage is Stage.PUBLISHING and not self.let_go.is_set():
            self.reached.set()
            await self.let_go.wait()


async def soon(condition: Callable[[], bool]) -> None:
    """Let others go on until this holds; fails when it never does."""
    for _ in range(1000):
        if condition():
            return
        await trio.lowlevel.checkpoint()
    pytest.fail("it never came")


async def saved(*checkpoints: tuple[str, str]) -> MemoryStore:
    """Checkpoints of a session each, by id and rollout, in a folder of the checkpoint's id; each holds those before."""
    store = memory_store()
    async with plane(store) as p:
        for name, rollout in checkpoints:
            p.s.seed(f"s-{name}", rollout)
            await p.prepare(name)
            await p.commit(name, name)
            await p.resume(name)
    return store


async def given_up(p: Plane, name: str, folder: str) -> None:
    """A restore that failed elsewhere: its next attempts are retired."""
    await p.restore(["r"], name, folder)
    await p.retire(["r-a1"], name)
    await p.resume(name)


async def test_sessions_that_were_restored_and_retired_twice_are_forgotten(autojump_clock: Clock) -> None:
    async with plane(await saved(("one", "r"), ("two", "r"))) as p:
        await given_up(p, "re1", "one")
        await given_up(p, "re2", "two")
        assert p.control.status()["retired_sessions"] == 2
        assert await p.forget(["r"], "f") == {"forgotten": ["r"]}
        assert p.control.status()["retired_sessions"] == 0
        assert [p.s.seed(session, "r", 5) for session in ("s-one", "s-two")] == ["bound"] * 2


async def test_a_session_that_was_retired_here_and_is_restored_is_open_again(autojump_clock: Clock) -> None:
    async with plane(await saved(("one", "r"))) as p:
        p.s.seed("s-one", "r")
        await p.retire(["r"], "x")
        await p.restore(["r"], "re", "one")
        await p.resume("re")
        assert p.s.seed("s-one", "r", 1) == "bound"
        assert p.control.status()["retired_sessions"] == 0


@pytest.mark.parametrize("seeded", [False, True])
async def test_a_commit_that_is_aborted_before_it_began_exports_nothing(seeded: bool, autojump_clock: Clock) -> None:
    async with plane() as p:
        if seeded:
            p.s.seed("s", "r")
        await p.prepare()
        run, resumed = p.control._run_work, trio.Event()

        async def later(*work: Any) -> None:
            await resumed.wait()
            await run(*work)

        p.control._run_work = later  # type: ignore[assignment]  # as if the scheduler had the resume go first
        commit = p.start(p.commit)
        await soon(lambda: p.control._work is not None)
        assert (await p.resume())["phase"] == "idle"
        resumed.set()
        with trio.fail_after(60):
            await p.ended(commit)
        assert isinstance(commit.error, ControlRefused)
        assert commit.error.code == "stale_checkpoint"


async def test_a_late_resume_stops_no_commit_of_the_next_checkpoint(autojump_clock: Clock) -> None:
    publishing = Publishing()
    async with plane(publishing.store) as p:
        p.s.seed("s", "r")
        await p.prepare()
        p.start(p.commit)
        await publishing.reached.wait()
        first, second = p.start(p.resume), p.start(p.resume)
        await settled()
        woken: list[str] = []
        hold = trio.Event()

        async def reach(name: str, key: str) -> None:
            if name == "stopped":
                woken.append(key)
                if len(woken) == 2:
                    await hold.wait()

        p.s.server.points.reach = reach  # type: ignore[method-assign]  # holds the second of the two
        publishing.let_go.set()
        await settled()
        assert (first.ended, second.ended) in {(True, False), (False, True)}
        await p.prepare("next")
        commit = p.start(lambda: p.commit("next", "e"))
        await soon(lambda: p.control._work is not None)
        hold.set()
        with trio.fail_after(60):
            await p.ended(first, second, commit)
        assert commit.reply is not None
        assert commit.reply["phase"] == p.phase == "committed"


async def test_a_resume_that_gives_up_says_that_it_stopped_the_commit(autojump_clock: Clock) -> None:
    publishing = Publishing()
    async with plane(publishing.store) as p:
        p.s.seed("s", "r")
        await p.prepare()
        commit = p.start(p.commit)
        await publishing.reached.wait()
        with pytest.raises(ControlRefused) as resume:
            await p.resume(within=5)
        publishing.let_go.set()
        assert "a commit that is called again writes it again" in str(resume.value)
        await p.ended(commit)
        assert "stopped the commit" in str(commit.error)
        assert (await p.commit())["phase"] == "committed"


@pytest.mark.parametrize("call", ["retire", "forget"])
async def test_what_waited_for_a_restore_does_nothing_after_the_shutdown(call: str, autojump_clock: Clock) -> None:
    async with plane(await saved(("one", "r"))) as p:
        events: list[str] = []

        def note(event: Event) -> None:
            events.append(event.name)

        p.s.server.registry.trace = note
        restore = p.start(lambda: p.restore(["r"], "re", "one"))
        await soon(lambda: p.control._work is not None)
        waiting = p.start(lambda: p.retire(["r-a1"], "re") if call == "retire" else p.forget(["r"], "re"))
        await trio.lowlevel.checkpoint()
        p.s.server.shut_down()
        with trio.fail_after(60):
            await p.ended(restore, waiting)
        assert isinstance(waiting.error, ControlRefused)
        assert waiting.error.status == 503
        assert events == ["ShutDown"]
