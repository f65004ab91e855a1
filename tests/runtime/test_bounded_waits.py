"""Every wait ends: the liveness of the formal model as waits that are bounded in virtual time.

A test that waits for what never comes fails after a stated time, also when a defect would let it wait for ever.
"""

import trio
import trio.testing
from tests.support.judges import ScriptedJudge, failing
from tests.support.scene import Scene, policy, scene

from genrm_trio.core.cohort import Phase
from genrm_trio.core.identity import EpisodeId
from genrm_trio.core.outcome import CohortFailed, JudgeFailed, Refused

KEY = "group_id::g::group_attempt::0"


async def test_a_lonely_member_waits_for_the_collection_deadline_and_no_longer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with scene(policy(collection_timeout_s=30.0)) as s:
        lonely = s.verify(0)
        with trio.fail_after(31):
            await s.ended(lonely)
        assert isinstance(lonely.answer, CohortFailed)
        assert trio.current_time() >= 30


async def test_a_silent_judge_is_waited_for_until_the_evaluation_deadline(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with scene(policy(evaluation_timeout_s=60.0), ScriptedJudge(is_open=False)) as s:
        rollouts = [s.verify(i) for i in range(2)]
        with trio.fail_after(61):
            await s.ended(*rollouts)
        assert all(isinstance(rollout.answer, JudgeFailed) for rollout in rollouts)


async def test_a_superseded_attempt_waits_no_longer(autojump_clock: trio.testing.MockClock) -> None:
    async with scene(judge=ScriptedJudge(is_open=False)) as s:
        old = [s.verify(i) for i in range(2)]
        await s.phase(KEY, Phase.EVALUATING)
        s.verify(0, attempt=1)
        with trio.fail_after(1):
            await s.ended(*old)


async def held(s: Scene) -> None:
    await s.phase(KEY, Phase.HELD)
    await trio.testing.wait_all_tasks_blocked()


async def test_what_is_held_is_published_when_admission_opens(autojump_clock: trio.testing.MockClock) -> None:
    for judge in (ScriptedJudge(), failing()):
        async with scene(judge=judge) as s:
            s.server.close_admission()
            rollouts = [s.verify(i) for i in range(2)]
            await held(s)
            s.server.open_admission(resumed=True)
            with trio.fail_after(1):
                await s.ended(*rollouts)


async def test_a_retire_ends_what_its_sessions_wait_for(autojump_clock: trio.testing.MockClock) -> None:
    async with scene(policy(collection_timeout_s=10**6)) as s:
        s.seed("s0", "r0")
        rollout = s.verify(0, session="s0")
        await s.waiting(1)
        s.server.registry.retire(s.server.now(), [EpisodeId("r0")])
        with trio.fail_after(1):
            await s.ended(rollout)
        assert isinstance(rollout.answer, Refused)


async def test_a_request_that_left_is_no_longer_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    async with scene() as s:
        gone, stays = s.verify(0), s.verify(0)
        await s.waiting(2)
        gone.scope.cancel()
        with trio.fail_after(1):
            await s.waiting(1)
            s.verify(1)
            await s.ended(gone, stays)
        assert gone.answer is None


async def test_memory_drains_when_nobody_comes_any_more(autojump_clock: trio.testing.MockClock) -> None:
    """Nobody verifies: the sweep alone ends idle sessions, then their cohorts, then the watermarks."""
    limits: dict[str, object] = {"cohort_result_ttl_s": 100.0, "session_idle_ttl_s": 1000.0}
    async with scene(policy(limits=limits)) as s:
        for index in range(2):
            s.seed(f"s{index}", f"r{index}")
        rollouts = [s.verify(i, session=f"s{i}") for i in range(2)]
        lonely = s.verify(0, group="other")
        await s.ended(*rollouts, lonely)
        registry = s.server.registry
        await trio.sleep(500)
        assert set(registry.cohorts) == {KEY}, "its sessions are open"
        await trio.sleep(600)
        assert not registry.cohorts
        assert not registry.groups
        assert not len(registry.sessions)


LIVENESS = {
    "EveryWaitEnds": (
        test_a_lonely_member_waits_for_the_collection_deadline_and_no_longer,
        test_a_silent_judge_is_waited_for_until_the_evaluation_deadline,
        test_a_superseded_attempt_waits_no_longer,
        test_a_retire_ends_what_its_sessions_wait_for,
        test_a_request_that_left_is_no_longer_waited_for,
    ),
    "HeldPublishes": (test_what_is_held_is_published_when_admission_opens,),
    "MemoryDrains": (test_memory_drains_when_nobody_comes_any_more,),
}
"""The tests that bound each of the spec's properties of liveness."""
