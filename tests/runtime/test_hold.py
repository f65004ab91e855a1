"""The hold: outcomes wait while admission is closed, and are re-checked in the step that publishes.

Every test waits until an outcome is *inside* the hold before it reopens and recloses.
"""

import pytest
import trio
import trio.testing
from tests.support.judges import ScriptedJudge, failing
from tests.support.scene import Scene, policy, scene

from genrm_trio.core.cohort import Phase
from genrm_trio.core.outcome import CohortFailed, JudgeFailed

KEY = "group_id::g::group_attempt::0"

KINDS = pytest.mark.parametrize("kind", ["rewards", "judge failure", "evaluation deadline"])


def _judge(kind: str) -> ScriptedJudge:
    return failing() if kind == "judge failure" else ScriptedJudge(is_open=kind == "rewards")


async def _held(s: Scene) -> None:
    """Wait until the cohort's outcome is inside the hold."""
    await s.phase(KEY, Phase.HELD)
    await trio.testing.wait_all_tasks_blocked()


@KINDS
async def test_an_outcome_is_held_until_admission_opens(kind: str, autojump_clock: trio.abc.Clock) -> None:
    async with scene(judge=_judge(kind)) as s:
        s.server.close_admission()
        rollouts = [s.verify(i) for i in range(2)]
        await _held(s)
        await trio.sleep(1000)
        assert not any(r.ended for r in rollouts)
        s.server.open_admission(resumed=True)
        await s.ended(*rollouts)
        if kind == "rewards":
            assert [r.reward for r in rollouts] == [1.0, 2.0]
        else:
            assert isinstance(rollouts[0].answer, JudgeFailed)


@KINDS
async def test_admission_that_reopens_and_recloses_publishes_nothing(kind: str, autojump_clock: trio.abc.Clock) -> None:
    async with scene(judge=_judge(kind)) as s:
        s.points.block("hold")
        s.server.close_admission()
        rollouts = [s.verify(i) for i in range(2)]
        await _held(s)
        s.server.open_admission(resumed=True)
        await s.points.parked("hold")  # woken, and not yet re-checked
        s.server.close_admission()
        s.points.release("hold")
        await trio.testing.wait_all_tasks_blocked()
        assert s.server.registry.cohorts[KEY].phase is Phase.HELD
        assert not any(r.ended for r in rollouts)
        s.server.open_admission(resumed=True)
        await s.ended(*rollouts)


@KINDS
async def test_reopening_and_reclosing_in_one_step_publishes_nothing(kind: str, autojump_clock: trio.abc.Clock) -> None:
    async with scene(judge=_judge(kind)) as s:
        s.server.close_admission()
        rollouts = [s.verify(i) for i in range(2)]
        await _held(s)
        s.server.open_admission(resumed=True)
        s.server.close_admission()
        await trio.testing.wait_all_tasks_blocked()
        assert s.server.registry.cohorts[KEY].phase is Phase.HELD
        assert not any(r.ended for r in rollouts)
        s.server.open_admission(resumed=True)
        await s.ended(*rollouts)


async def test_a_shutdown_tells_those_who_wait_in_its_step_and_nobody_who_has_an_outcome(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with scene() as s:
        s.server.close_admission()
        judged = [s.verify(i) for i in range(2)]
        await s.phase(KEY, Phase.HELD)
        collecting = s.verify(0, group="collecting")
        await s.waiting(3)
        s.server.registry.open_admission(s.server.now())
        s.server.registry.publish(s.server.now(), KEY)
        s.server.shut_down()  # before a task of theirs runs
        assert [rollout.told for rollout in (*judged, collecting)] == [False, False, True]
        await s.ended(*judged, collecting)
        assert [rollout.reward for rollout in judged]
        assert isinstance(collecting.answer, CohortFailed)


async def test_what_is_not_held(autojump_clock: trio.abc.Clock) -> None:
    async with scene(policy(2), ScriptedJudge(lambda _ask: RuntimeError("broken"))) as s:
        s.server.close_admission()
        expired = s.verify(0, group="expired")
        await s.ended(expired)
        assert isinstance(expired.answer, CohortFailed)
        crashed = [s.verify(i, group="crashed") for i in range(2)]
        await s.ended(*crashed)
        superseded = s.verify(0, group="superseded")
        await s.waiting(1)
        newer = s.verify(0, group="superseded", attempt=1)
        await s.ended(superseded)
        s.server.shut_down()
        await s.ended(newer)


async def test_a_stored_outcome_is_told_at_once_while_closed(autojump_clock: trio.abc.Clock) -> None:
    async with scene() as s:
        s.seed("s0", "r0")
        rollouts = [s.verify(0, session="s0"), s.verify(1)]
        await s.ended(*rollouts)
        s.server.close_admission()
        again = s.verify(0, session="s0")
        await s.ended(again)
        assert again.reward == 1.0


async def test_a_record_made_after_the_export_waits_for_resume(autojump_clock: trio.abc.Clock) -> None:
    async with scene() as s:
        for name in ("s0", "s1"):
            s.seed(name, f"r-{name}")
        rollouts = [s.verify(0, session="s0"), s.verify(1)]
        await s.ended(*rollouts)
        s.server.close_admission()
        states = await s.server.export_session_states(["s0", "s1"], checkpoint_id="c")
        assert states["s0"]["result"]["reward"] == 1.0  # type: ignore[call-overload,index]
        assert states["s1"] == {}
        exported, late, unbound = s.verify(0, session="s0"), s.verify(1, session="s1"), s.verify(1)
        await s.ended(exported, unbound)
        await trio.testing.wait_all_tasks_blocked()
        assert (exported.reward, unbound.reward) == (1.0, 2.0)
        assert not late.ended
        s.server.open_admission(resumed=True)
        await s.ended(late)
        assert late.reward == 2.0


async def test_a_late_waiter_is_answered_though_its_session_moved_on(autojump_clock: trio.abc.Clock) -> None:
    async with scene() as s:
        s.seed("s1", "r1")
        rollouts = [s.verify(i) for i in range(2)]
        await s.ended(*rollouts)
        s.server.close_admission()
        await s.server.export_session_states(["s1"], checkpoint_id="c")
        late = s.verify(1, session="s1")
        await s.waiting(1)
        moved = s.verify(0, group="other", session="s1")
        await s.waiting(2)
        s.server.open_admission(resumed=True)
        await s.ended(late)
        assert late.reward == 2.0
        assert not moved.ended


async def test_the_hold_outlasts_the_evaluation_deadline(autojump_clock: trio.abc.Clock) -> None:
    async with scene() as s:
        s.server.close_admission()
        rollouts = [s.verify(i) for i in range(2)]
        await _held(s)
        await trio.sleep(3600)
        s.server.open_admission(resumed=True)
        await s.ended(*rollouts)
        assert [r.reward for r in rollouts] == [1.0, 2.0]


async def test_a_session_that_ends_by_its_reply_while_closed_ends_at_resume(autojump_clock: trio.abc.Clock) -> None:
    async with scene() as s:
        s.seed("s0", "r0", typed=False)
        rollouts = [s.verify(0, session="s0"), s.verify(1)]
        await s.ended(*rollouts)
        s.server.close_admission()
        s.server.end_session("s0", "verify")
        states = await s.server.export_session_states(["s0"], checkpoint_id="c")
        assert states["s0"]["result"]["reward"] == 1.0  # type: ignore[call-overload,index]
        s.server.open_admission(resumed=True)
        assert "s0" not in s.server.registry.sessions
