"""An endpoint that says nothing: at the settings as shipped it is told, and a panel does without it.

The call's timeout and the evaluation deadline are both 1800 s as shipped, so the deadline ends the call.
"""

from collections.abc import Sequence

import pytest
import trio
from tests.support.fake_judge import answer
from tests.support.judging_kit import ASK, GOOD, Kept, Scripted, Step, endpoints, judge_of, says, ticket
from tests.support.scene import Rollout, policy, scene
from trio.testing import MockClock

from genrm_trio.core.outcome import JudgeFailed
from genrm_trio.judging.judge import JudgeError
from genrm_trio.judging.panel import SILENCE_AGAIN_S, SILENCE_S, Panel
from genrm_trio.judging.transport import HttpJudge
from genrm_trio.ops.settings import Settings

SILENT = Step(after_s=1e9)
QUICK = Step(body=answer(GOOD), after_s=1.0)
SHIPPED = Settings.model_fields
CALL_S = SHIPPED["judge_request_timeout_s"].default
EVALUATION_S = SHIPPED["cohort_evaluation_timeout_s"].default


async def cohorts(judge: HttpJudge, count: int) -> list[tuple[Sequence[Rollout], float]]:
    """Play cohorts of two one after the other; return their rollouts, and how long each took in seconds."""
    played: list[tuple[Sequence[Rollout], float]] = []
    async with scene(policy(evaluation_timeout_s=EVALUATION_S), judge) as s:  # type: ignore[arg-type]
        for n in range(count):
            began = trio.current_time()
            rollouts = [s.verify(index, group=f"g{n}") for index in range(2)]
            await s.ended(*rollouts)
            played.append((rollouts, trio.current_time() - began))
    return played


async def test_silence_until_the_evaluation_deadline_is_classed_counted_and_told(autojump_clock: MockClock) -> None:
    kept = Kept()
    judge = judge_of(Scripted(SILENT), observer=kept, timeout_s=CALL_S)
    ((rollouts, seconds),) = await cohorts(judge, 1)
    assert seconds == EVALUATION_S
    assert all(isinstance(rollout.answer, JudgeFailed) for rollout in rollouts)
    assert [(call.kind, call.seconds) for call in kept.calls] == [("timeout", EVALUATION_S)] * 2
    assert [(fault.kind, fault.first) for fault in kept.faults] == [("timeout", True), ("timeout", False)]
    assert "no complete reply before the evaluation deadline" in kept.faults[0].text
    assert [seat.faults_in_a_row for seat in judge.panel.health()] == [1]


async def test_a_call_whose_cohort_ended_otherwise_says_nothing_of_its_endpoint(autojump_clock: MockClock) -> None:
    kept, wire = Kept(), Scripted(SILENT)
    judge = judge_of(wire, observer=kept, timeout_s=CALL_S)
    async with scene(policy(evaluation_timeout_s=EVALUATION_S), judge) as s:  # type: ignore[arg-type]
        old = [s.verify(index) for index in range(2)]
        with trio.move_on_after(EVALUATION_S / 2):
            await s.ended(*old)
        s.verify(0, attempt=1)
        await s.ended(*old)
    assert wire.in_flight == 0
    assert (kept.calls, kept.faults) == ([], [])
    assert [seat.faults_in_a_row for seat in judge.panel.health()] == [0]


async def test_a_panel_does_without_an_endpoint_that_never_spoke(autojump_clock: MockClock) -> None:
    kept = Kept()
    judge = judge_of(*endpoints(Scripted(SILENT), Scripted(QUICK)), observer=kept, timeout_s=CALL_S, retries=0)
    played = await cohorts(judge, 12)
    assert all(rollout.reward is not None for rollouts, _ in played for rollout in rollouts)
    assert played[0][1] == CALL_S / 2 + 1, "nobody knows yet how fast answers come"
    assert all(seconds <= SILENCE_AGAIN_S + 1 for _, seconds in played[1:])
    assert set(kept.kinds) == {"timeout"}
    assert len(kept.faults) == sum(1 for _, seconds in played if seconds > 1)


async def test_a_panel_does_without_an_endpoint_that_fell_silent(autojump_clock: MockClock) -> None:
    lost, other = Scripted(*[QUICK] * 3, SILENT), Scripted(QUICK)
    judge = judge_of(*endpoints(lost, other), timeout_s=CALL_S, retries=0)
    played = await cohorts(judge, 40)
    assert all(rollout.reward is not None for rollouts, _ in played for rollout in rollouts)
    slow = [seconds for _, seconds in played if seconds > 1]
    assert slow[0] == SILENCE_S + 1
    assert slow[1:] == [SILENCE_AGAIN_S + 1] * (len(slow) - 1)
    assert 3 <= len(slow) <= 8, "each rest is twice as long"


async def test_all_silent_is_a_judge_failure_within_the_calls_time(autojump_clock: MockClock) -> None:
    kept = Kept()
    judge = judge_of(*endpoints(Scripted(says(), SILENT), Scripted(says(), SILENT)), observer=kept, timeout_s=300.0)
    for _ in range(2):
        await judge.compare(ASK, ticket())
    began = trio.current_time()
    with pytest.raises(JudgeError, match="no complete reply within"):
        await judge.compare(ASK, ticket())
    assert trio.current_time() - began == 300
    assert {call.endpoint for call in kept.calls[2:]} == {seat.endpoint for seat in judge.panel.health()}


@pytest.mark.parametrize("known_s", [0.01, 1.0, 100.0])
async def test_answers_that_became_slow_are_waited_for(known_s: float, autojump_clock: MockClock) -> None:
    slow = Step(body=answer(GOOD), after_s=400.0)
    wires = [Scripted(Step(body=answer(GOOD), after_s=known_s), slow) for _ in range(2)]
    judge = judge_of(*endpoints(*wires), timeout_s=CALL_S, retries=0)
    for _ in range(2):
        await judge.compare(ASK, ticket())
    began = trio.current_time()
    assert (await judge.compare(ASK, ticket())).overall is not None
    assert trio.current_time() - began < CALL_S
    began = trio.current_time()
    assert (await judge.compare(ASK, ticket())).overall is not None
    assert trio.current_time() - began == 400, "now it is known that answers take so long"


async def test_a_panel_whose_answers_take_most_of_the_time_is_given_all_of_it(autojump_clock: MockClock) -> None:
    one, two = endpoints(Scripted(SILENT), Scripted(SILENT))
    panel = Panel([one, two])
    assert panel.patience(one, 100.0) == 50.0
    panel.report(two, None, 51.0)
    assert panel.patience(one, 100.0) == 100.0
