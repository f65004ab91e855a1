"""The loop's budget, pauses and deadlines (contract 7.5, 14.2, 14.9), in virtual time over a scripted transport.

Each test states when calls come, how many there are, and how the comparison ends.
"""

import random
from email.utils import formatdate

import pytest
import trio
from tests.support.fake_judge import answer, verdict_text
from tests.support.judging_kit import ASK, GOOD, Kept, Scripted, Step, ask, judge_of, says, ticket
from trio.testing import MockClock

from genrm_trio.judging.faults import NoReply, ReplyCut
from genrm_trio.judging.judge import JudgeError, Usage
from genrm_trio.judging.slots import Slots
from genrm_trio.judging.transport import LONGEST_SLEEP_S, HttpJudge

INCOMPLETE = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
NO_VERDICT = "I like both."


async def fails(judge: HttpJudge) -> str:
    with pytest.raises(JudgeError) as caught:
        await judge.compare(ASK, ticket())
    assert str(caught.value) == caught.value.text
    return caught.value.text


async def test_a_good_answer_needs_one_call(autojump_clock: MockClock) -> None:
    wire = Scripted(says())
    answered = await judge_of(wire).compare(ASK, ticket())
    assert answered.overall is not None
    assert (answered.overall.score_1, answered.overall.score_2, answered.overall.ranking) == (4.0, 2.0, 2.0)
    assert (answered.text, answered.attempts, answered.rubric) == (GOOD, 1, None)
    assert answered.usage == Usage(100.0, 20.0, False)
    assert len(wire.times) == 1


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 599])
async def test_retryable_statuses_use_the_budget_with_growing_sleeps(status: int, autojump_clock: MockClock) -> None:
    wire = Scripted(Step(status, {"detail": "later"}))
    text = await fails(judge_of(wire))
    assert wire.gaps == [0.2, 0.4, 0.8]
    assert f"status={status} HTTPStatusError" in text
    assert "later" in text
    assert text.startswith("judge /v1/responses pair=(0, 1) ")
    assert "deadline=1800.0s" in text


@pytest.mark.parametrize("retries", [0, -1])
async def test_there_is_always_one_attempt(retries: int, autojump_clock: MockClock) -> None:
    wire = Scripted(Step(500, {}))
    await fails(judge_of(wire, retries=retries))
    assert len(wire.times) == 1


async def test_sleeps_are_capped_and_jittered(autojump_clock: MockClock) -> None:
    wire = Scripted(Step(500, {}))
    await fails(judge_of(wire, retries=12))
    assert max(wire.gaps) == LONGEST_SLEEP_S
    jittered = Scripted(Step(500, {}))
    await fails(judge_of(jittered, retries=12, rng=random.Random(7)))
    assert all(0 <= drawn <= top for drawn, top in zip(jittered.gaps, wire.gaps, strict=True))
    assert len(set(jittered.gaps)) == 12


@pytest.mark.parametrize("status", [300, 302, 400, 401, 403, 404, 405, 409, 413, 418, 422])
async def test_other_statuses_are_a_judge_failure_at_once(status: int, autojump_clock: MockClock) -> None:
    wire = Scripted(Step(status, {"detail": "no"}))
    text = await fails(judge_of(wire))
    assert len(wire.times) == 1
    assert f"status={status}" in text


@pytest.mark.parametrize("body", [b"", b"<html>502 Bad Gateway</html>", b"{'a': 1}", b"{", b"[" * 50_000])
async def test_a_body_that_is_not_json_is_a_judge_failure_at_once(body: bytes, autojump_clock: MockClock) -> None:
    wire = Scripted(Step(200, body))
    text = await fails(judge_of(wire))
    assert len(wire.times) == 1
    assert "JSONDecodeError" in text
    assert len(text) < 2500


@pytest.mark.parametrize("body", [[], "text", 3, None, [answer(GOOD)]])
async def test_json_that_is_no_object_is_an_unusable_answer(body: object, autojump_clock: MockClock) -> None:
    wire = Scripted(Step(200, body))
    assert "no completed answer after 4 attempts" in await fails(judge_of(wire))
    assert len(wire.times) == 4


async def test_unusable_to_the_end_is_a_judge_failure_with_a_remark(autojump_clock: MockClock) -> None:
    wire = Scripted(says(GOOD, **INCOMPLETE), says("   "), says(GOOD, **INCOMPLETE))
    text = await fails(judge_of(wire))
    assert "no completed answer after 4 attempts" in text
    assert "3 of them ended at max_output_tokens" in text


async def test_no_remark_when_no_attempt_hit_the_limit(autojump_clock: MockClock) -> None:
    text = await fails(judge_of(Scripted(says("", status="failed"))))
    assert "max_output_tokens" not in text.split("; reply:")[0]


@pytest.mark.parametrize("last", [says(NO_VERDICT), says(""), says(GOOD, status="incomplete")])
async def test_once_usable_then_unparseable_is_the_pairs_failure(last: Step, autojump_clock: MockClock) -> None:
    wire = Scripted(says(NO_VERDICT), last)
    answered = await judge_of(wire).compare(ASK, ticket())
    assert (answered.overall, answered.rubric, answered.text, answered.attempts) == (None, None, NO_VERDICT, 4)
    assert answered.usage == Usage(400.0, 80.0, False)


async def test_a_last_attempt_that_fails_by_http_is_a_judge_failure_even_so(autojump_clock: MockClock) -> None:
    wire = Scripted(says(NO_VERDICT), says(NO_VERDICT), says(NO_VERDICT), Step(500, {}))
    assert "status=500" in await fails(judge_of(wire))


async def test_a_verdict_may_come_at_the_last_attempt(autojump_clock: MockClock) -> None:
    wire = Scripted(Step(500, {}), says(NO_VERDICT), says(GOOD, **INCOMPLETE), says())
    answered = await judge_of(wire).compare(ASK, ticket())
    assert answered.overall is not None
    assert answered.attempts == 4
    assert answered.usage == Usage(300.0, 60.0, True), "summed over attempts, those without usage add nothing"


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        {"input_tokens": 5},
        {"input_tokens": "5", "output_tokens": 1},
        {"input_tokens": True, "output_tokens": 1},
    ],
)
async def test_usage_counts_when_both_are_real_numbers(usage: object, autojump_clock: MockClock) -> None:
    answered = await judge_of(Scripted(says(usage=usage))).compare(ASK, ticket())
    assert answered.usage is None
    named = {"prompt_tokens": 7, "completion_tokens": 2.5}
    answered = await judge_of(Scripted(says(usage=named))).compare(ASK, ticket())
    assert answered.usage == Usage(7.0, 2.5, False)


# --- Retry-After


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_waits_that_long_and_uses_no_budget(status: int, autojump_clock: MockClock) -> None:
    told = Step(status, {}, {"Retry-After": "7"})
    wire = Scripted(*[told] * 20, Step(500, {}), Step(500, {}), Step(500, {}), says())
    answered = await judge_of(wire).compare(ASK, ticket())
    assert answered.overall is not None
    assert wire.gaps == [7.0] * 20 + [0.2, 0.4, 0.8]


async def test_retry_after_as_a_date(autojump_clock: MockClock) -> None:
    by_own_clock = Step(429, {}, {"Retry-After": formatdate(1030.0, usegmt=True)})
    by_its_clock = Step(
        503, {}, {"Retry-After": formatdate(9050.0, usegmt=True), "Date": formatdate(9045.0, usegmt=True)}
    )
    past = Step(503, {}, {"Retry-After": formatdate(1.0, usegmt=True)})
    wire = Scripted(by_own_clock, by_its_clock, past, says())
    await judge_of(wire, wall=lambda: 1000.0).compare(ASK, ticket())
    assert wire.gaps == [30.0, 5.0, 0.5]


async def test_retry_after_zero_does_not_spin(autojump_clock: MockClock) -> None:
    wire = Scripted(Step(429, {}, {"Retry-After": "0"}))
    with trio.fail_after(10):
        await fails(judge_of(wire))
    assert wire.gaps == [0.5] * 19, "the 20th wait would end at the deadline"


@pytest.mark.parametrize(
    "value", ["soon", "-5", "", "1e3", "9\u0665", "Wed, 99 Foo 2026 00:00:00 GMT", "1" + " " * 3 + "2"]
)
async def test_an_unreadable_retry_after_is_none(value: str, autojump_clock: MockClock) -> None:
    wire = Scripted(Step(503, {}, {"Retry-After": value}))
    await fails(judge_of(wire))
    assert wire.gaps == [0.2, 0.4, 0.8]


@pytest.mark.parametrize("told", ["60", "99999999999999999999", "9" * 5000])
async def test_a_wait_that_would_pass_the_evaluation_deadline_fails_at_once(
    told: str, autojump_clock: MockClock
) -> None:
    wire = Scripted(Step(429, {"detail": "busy"}, {"Retry-After": told}))
    began = trio.current_time()
    with trio.fail_after(60):
        text = await fails(judge_of(wire))
    assert trio.current_time() == began
    assert "evaluation deadline" in text
    assert "status=429" in text


async def test_told_waits_end_without_a_deadline_too(autojump_clock: MockClock) -> None:
    wire = Scripted(Step(429, {}, {"Retry-After": "3600"}))
    await fails(judge_of(wire))
    assert len(wire.times) == 25


async def test_other_statuses_do_not_look_at_retry_after(autojump_clock: MockClock) -> None:
    wire = Scripted(Step(500, {}, {"Retry-After": "60"}))
    await fails(judge_of(wire))
    assert wire.gaps == [0.2, 0.4, 0.8]


# --- free retries


@pytest.mark.parametrize("error", [NoReply("reset"), __import__("httpx2").ConnectError("refused")])
async def test_connection_faults_are_retried_until_the_calls_timeout(error: NoReply, autojump_clock: MockClock) -> None:
    wire = Scripted(Step(error=error))
    began = trio.current_time()
    text = await fails(judge_of(wire, timeout_s=30.0))
    assert trio.current_time() - began == pytest.approx(30.0)
    assert set(wire.gaps) == {0.5}
    assert len(wire.times) == 60
    assert "TimeoutError: no complete reply within 30.0 s" in text
    assert "deadline=30.0s" in text
    assert type(error).__name__ in text


async def test_connection_faults_use_no_budget(autojump_clock: MockClock) -> None:
    wire = Scripted(*[Step(error=NoReply("reset"))] * 50, says())
    answered = await judge_of(wire, retries=0).compare(ASK, ticket())
    assert answered.attempts == 1


async def test_a_judge_behind_a_checkpoint_is_retried_alike(autojump_clock: MockClock) -> None:
    closed = Step(409, {"error": {"code": "admission_closed", "detail": "checkpoint"}})
    wire = Scripted(*[closed] * 9, says())
    await judge_of(wire, retries=0).compare(ASK, ticket())
    assert set(wire.gaps) == {0.5}
    assert "status=409" in await fails(judge_of(Scripted(Step(409, {"error": {"code": "stale_attempt"}}))))


async def test_an_interrupted_body_uses_the_budget(autojump_clock: MockClock) -> None:
    wire = Scripted(Step(error=ReplyCut("reset")))
    assert "ReplyCut" in await fails(judge_of(wire))
    assert wire.gaps == [0.2, 0.4, 0.8]


async def test_the_timeout_covers_one_call_not_the_comparison(autojump_clock: MockClock) -> None:
    slow = Step(500, {}, after_s=9.0)
    wire = Scripted(slow, slow, slow, Step(body=answer(GOOD), after_s=9.0))
    assert (await judge_of(wire, timeout_s=10.0).compare(ASK, ticket())).overall is not None


async def test_a_timeout_is_a_judge_failure_at_once(autojump_clock: MockClock) -> None:
    kept = Kept()
    wire = Scripted(Step(body=answer(GOOD), after_s=11.0))
    text = await fails(judge_of(wire, timeout_s=10.0, observer=kept))
    assert "TimeoutError" in text
    assert len(wire.times) == 1
    assert wire.in_flight == 0
    assert [(call.kind, call.seconds) for call in kept.calls] == [("timeout", 10.0)]


async def test_many_calls_in_an_outage_keep_to_a_rate(autojump_clock: MockClock) -> None:
    wire = Scripted(Step(error=NoReply("down")))
    judge, slots = judge_of(wire, timeout_s=10.0), Slots(256)

    async def one() -> None:
        with pytest.raises(JudgeError):
            await judge.compare(ASK, slots.ticket())

    async with trio.open_nursery() as nursery:
        for _ in range(2048):
            nursery.start_soon(one)
    assert 2048 * 2 < len(wire.times) < 2048 * 10.0 / (2048 / 512) * 1.6


# --- slots


async def test_a_sleeping_retry_holds_no_slot(autojump_clock: MockClock) -> None:
    slots = Slots(1)
    for steps in ([Step(500, {})], [Step(error=NoReply("x"))], [Step(429, {}, {"Retry-After": "9"})]):
        judge = judge_of(Scripted(*steps), timeout_s=3.0)
        async with trio.open_nursery() as nursery:

            async def stubborn(judge: HttpJudge = judge) -> None:
                with pytest.raises(JudgeError), trio.fail_after(20):
                    await judge.compare(ASK, slots.ticket())

            nursery.start_soon(stubborn)
            await trio.testing.wait_all_tasks_blocked()
            assert slots.in_use == 0
        assert slots.in_use == 0


async def test_waiting_for_a_slot_does_not_count_against_the_calls_timeout(autojump_clock: MockClock) -> None:
    slots = Slots(1)
    judge = judge_of(Scripted(Step(body=answer(GOOD), after_s=9.0)), timeout_s=10.0)
    results = []

    async def one() -> None:
        results.append(await judge.compare(ASK, slots.ticket()))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(one)
    assert len(results) == 5


async def test_the_deadline_that_starts_at_the_first_slot_binds_told_waits(autojump_clock: MockClock) -> None:
    with trio.CancelScope() as scope:

        def start() -> None:
            scope.deadline = trio.current_time() + 100

        judge = judge_of(Scripted(Step(429, {}, {"Retry-After": "40"})))
        began = trio.current_time()
        with pytest.raises(JudgeError, match="evaluation deadline"):
            await judge.compare(ASK, Slots(1).ticket(on_first=start))
        assert trio.current_time() - began == 80
    assert not scope.cancelled_caught


# --- what observers see


async def test_each_fault_is_told_and_the_cohorts_first_marked(autojump_clock: MockClock) -> None:
    kept = Kept()
    judge = judge_of(Scripted(Step(500, {}), says(NO_VERDICT), Step(500, {}), says()), observer=kept)
    place = ticket(label="group g")
    await judge.compare(ask(pair=(3, 4), judge_index=1), place)
    assert [(f.kind, f.action, f.first) for f in kept.faults] == [
        ("server_error", "retry", True),
        ("unparseable", "failure_of_this_pair", True),
        ("server_error", "retry", False),
    ]
    assert {(f.cohort, f.pair, f.judge_index, f.endpoint) for f in kept.faults} == {
        ("group g", (3, 4), 1, "judge-0:8000")
    }
    assert [call.kind for call in kept.calls] == ["server_error", "answered", "server_error", "answered"]
    other = ticket(label="group h")
    judge_2 = judge_of(Scripted(Step(500, {}), says()), observer=kept)
    await judge_2.compare(ASK, other)
    assert kept.faults[-1].first, "another cohort's first"


# --- rubric mode


RUBRIC = '{"overall": {"score_1": 5, "score_2": 1, "ranking": 1}, "rubric_evaluations": [%s]}'
ENTRY = '{"rubric_id": %d, "score_1": 2, "score_2": 4, "ranking": 5}'


async def test_in_rubric_mode_the_rubric_decides(autojump_clock: MockClock) -> None:
    whole = RUBRIC % ", ".join(ENTRY % n for n in (1, 2))
    wire = Scripted(says(RUBRIC % ENTRY % 1), says(verdict_text(3, 3, 3)), says(whole))
    answered = await judge_of(wire).compare(ask(rubric_ids=(1, 2)), ticket())
    assert answered.attempts == 3
    assert answered.rubric is not None
    assert answered.rubric.score_2 == 4.0
    assert answered.overall is not None
    assert answered.overall.score_1 == 5.0


async def test_without_a_valid_rubric_the_overall_stays_as_a_diagnostic(autojump_clock: MockClock) -> None:
    answered = await judge_of(Scripted(says())).compare(ask(rubric_ids=(1,)), ticket())
    assert answered.rubric is None
    assert answered.overall is not None
    assert answered.attempts == 4
