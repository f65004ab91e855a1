"""Admission of data requests: who waits, who passes, who is refused, and what holds up a prepare."""

from contextlib import AbstractAsyncContextManager

import pytest
import trio
import trio.testing
from tests.support.scene import Scene, policy, scene

from genrm_trio.checkpoints.calls import RetireCall
from genrm_trio.core.identity import EpisodeId
from genrm_trio.runtime.gate import Closing, Gate, Kind, Passage, Stale

R0 = EpisodeId("r", 0)


class Caller:
    """A request at the gate: waits, passes, is inside, or was refused."""

    def __init__(self, nursery: trio.Nursery, gate: Gate, kind: Kind, episode: EpisodeId | None = R0) -> None:
        self._inside = False
        self.refused: type[Exception] | None = None
        self.leave = trio.Event()
        nursery.start_soon(self._call, gate.enter(kind, "s", episode))

    def inside(self) -> bool:
        return self._inside

    async def _call(self, passing: AbstractAsyncContextManager[Passage]) -> None:
        try:
            async with passing:
                self._inside = True
                await self.leave.wait()
        except (Stale, Closing) as refusal:
            self.refused = type(refusal)


async def _call(s: Scene, nursery: trio.Nursery, kind: Kind, episode: EpisodeId | None = R0) -> Caller:
    caller = Caller(nursery, s.server.gate, kind, episode)
    await trio.testing.wait_all_tasks_blocked()
    return caller


@pytest.mark.parametrize("kind", ["seed", "close", "tool", "plain"])
async def test_a_request_waits_while_closed_and_counts_only_once_it_passed(
    kind: Kind, autojump_clock: trio.abc.Clock
) -> None:
    async with scene() as s, trio.open_nursery() as nursery:
        s.server.close_admission()
        caller = await _call(s, nursery, kind)
        assert not caller.inside()
        assert (s.server.gate.running, s.server.gate.waiting) == (0, 1)
        s.server.open_admission(resumed=True)
        await trio.testing.wait_all_tasks_blocked()
        assert caller.inside()
        assert s.server.gate.waiting == 0
        assert s.server.gate.blockers == ([] if kind == "plain" else ["r"])
        caller.leave.set()
        await trio.testing.wait_all_tasks_blocked()
        assert s.server.gate.running == 0


async def test_a_waiting_request_stays_out_when_admission_recloses_before_it_woke(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with scene() as s, trio.open_nursery() as nursery:
        s.points.block("admitted")
        s.server.close_admission()
        caller = await _call(s, nursery, "seed")
        s.server.open_admission(resumed=True)
        await s.points.parked("admitted")
        s.server.close_admission()
        s.points.release("admitted")
        await trio.testing.wait_all_tasks_blocked()
        assert not caller.inside()
        s.server.open_admission(resumed=True)
        await trio.testing.wait_all_tasks_blocked()
        assert caller.inside()
        caller.leave.set()


async def test_a_verify_passes_at_once_and_holds_up_nothing(autojump_clock: trio.abc.Clock) -> None:
    async with scene() as s, trio.open_nursery() as nursery:
        s.server.close_admission()
        caller = await _call(s, nursery, "verify")
        assert caller.inside()
        assert s.server.gate.inflight == 0
        assert s.server.gate.running == 1
        caller.leave.set()


async def test_every_request_waits_for_a_restore(autojump_clock: trio.abc.Clock) -> None:
    async with scene(await_restore=True) as s, trio.open_nursery() as nursery:
        kinds: list[Kind] = ["verify", "seed", "close", "plain"]
        callers = [await _call(s, nursery, kind) for kind in kinds]
        assert not any(c.inside() for c in callers)
        assert s.server.gate.running == 0, "what waits does not refuse the restore"
        assert s.server.gate.waiting == 4
        s.server.open_admission(resumed=True)
        await trio.testing.wait_all_tasks_blocked()
        assert all(c.inside() for c in callers)
        for caller in callers:
            caller.leave.set()


async def test_a_client_that_leaves_the_gate_is_not_counted_any_more(autojump_clock: trio.abc.Clock) -> None:
    async with scene() as s, trio.open_nursery() as nursery:
        s.server.close_admission()
        await _call(s, nursery, "plain")
        assert s.server.gate.waiting == 1
        nursery.cancel_scope.cancel()
    assert s.server.gate.waiting == 0


async def test_a_retired_rollout_is_refused_after_its_wait_but_may_close(autojump_clock: trio.abc.Clock) -> None:
    async with scene() as s, trio.open_nursery() as nursery:
        s.seed("s", "r")
        s.server.close_admission()
        kinds: list[Kind] = ["seed", "tool", "close"]
        callers = [await _call(s, nursery, kind) for kind in kinds]
        s.server.registry.retire(s.server.now(), [R0])
        s.server.open_admission(resumed=True)
        await trio.testing.wait_all_tasks_blocked()
        assert [c.refused for c in callers] == [Stale, Stale, None]
        assert callers[2].inside()
        callers[2].leave.set()


async def test_what_waits_is_refused_when_the_server_shuts_down(autojump_clock: trio.abc.Clock) -> None:
    async with scene() as s, trio.open_nursery() as nursery:
        s.server.close_admission()
        caller = await _call(s, nursery, "seed")
        s.server.shut_down()
        await trio.testing.wait_all_tasks_blocked()
        assert caller.refused is Closing


async def test_who_waits_is_told_in_the_step_of_the_shutdown(autojump_clock: trio.abc.Clock) -> None:
    """Before any task runs: thousands may wait, and the time for all of them is short."""
    told: list[str] = []

    async def enter(gate: Gate) -> None:
        with pytest.raises(Closing):
            async with gate.enter("seed", "s", R0, at_shutdown=lambda: told.append("waited")):
                pass

    async with scene() as s, trio.open_nursery() as nursery:
        async with s.server.gate.enter("seed", "s", R0, at_shutdown=lambda: told.append("passed")):
            pass
        s.server.close_admission()
        nursery.start_soon(enter, s.server.gate)
        await trio.testing.wait_all_tasks_blocked()
        s.server.shut_down()
        assert told == ["waited"]


async def test_a_request_that_finishes_wakes_nobody_who_waits_for_the_doors(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each would cost the more the more wait."""
    looks: list[Kind] = []
    passes = Gate._passes

    def counted(gate: Gate, kind: Kind) -> bool:
        looks.append(kind)
        return passes(gate, kind)

    monkeypatch.setattr(Gate, "_passes", counted)
    async with scene() as s, trio.open_nursery() as nursery:
        s.server.close_admission()
        waiting = await _call(s, nursery, "seed")
        passing = await _call(s, nursery, "verify")
        passing.leave.set()
        await trio.testing.wait_all_tasks_blocked()
        assert s.server.gate.running == 0
        assert looks == ["seed", "verify"]
        s.server.open_admission(resumed=True)
        waiting.leave.set()


@pytest.mark.parametrize("kind", ["seed", "close", "tool", "plain"])
async def test_what_runs_is_ended_when_the_server_shuts_down(kind: Kind, autojump_clock: trio.abc.Clock) -> None:
    """A `/verify` is not: the core answers it in the same step."""
    async with scene() as s, trio.open_nursery() as nursery:
        caller, held = await _call(s, nursery, kind), await _call(s, nursery, "verify")
        s.server.shut_down()
        await trio.testing.wait_all_tasks_blocked()
        assert caller.refused is Closing
        assert held.refused is None
        assert s.server.gate.running == 1
        held.leave.set()


async def test_a_cancelled_request_leaves_no_count(autojump_clock: trio.abc.Clock) -> None:
    async with scene() as s:
        async with trio.open_nursery() as nursery:
            await _call(s, nursery, "seed")
            assert s.server.gate.inflight == 1
            nursery.cancel_scope.cancel()
        assert s.server.gate.running == 0
        assert not s.server.gate.busy


async def test_a_session_with_a_running_request_does_not_idle_out(autojump_clock: trio.abc.Clock) -> None:
    async with scene(policy(limits={"session_idle_ttl_s": 600.0})) as s, trio.open_nursery() as nursery:
        s.seed("s", "r")
        s.seed("idle", "r2")
        caller = await _call(s, nursery, "tool")
        await trio.sleep(700)
        assert "idle" not in s.server.registry.sessions
        assert "s" in s.server.registry.sessions
        caller.leave.set()


async def test_the_requests_of_all_retired_attempts_count_in_whatever_order_they_are_named(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with scene() as s, trio.open_nursery() as nursery:
        caller = await _call(s, nursery, "seed", EpisodeId("r", 1))
        for retired in ([R0, EpisodeId("r", 2)], [EpisodeId("r", 2), R0]):
            call = RetireCall(checkpoint_id="c", deadline_ts=0.0, episode_ids=retired)
            assert s.server.gate.of_rollouts(call.newest, ()) == 1
        caller.leave.set()
