"""A panel spreads load by weight, survives the loss of an endpoint, and is an ordinary judge when it has one.

Choice in virtual time over scripted transports; one loss on real sockets.
"""

from collections.abc import Sequence
from typing import Any

import httpx2
import pytest
import trio
from tests.support.fake_judge import FakeJudge, Reply, answer
from tests.support.judging_kit import ASK, GOOD, Kept, Scripted, Step, endpoints, judge_of, says, ticket
from trio.testing import MockClock

from genrm_trio.judging.endpoint import Address, Endpoint
from genrm_trio.judging.faults import Fault, Kind, NoReply
from genrm_trio.judging.judge import JudgeError
from genrm_trio.judging.panel import FIRST_REST_S, LONGEST_PATIENCE_S, LONGEST_REST_S, Panel
from genrm_trio.judging.slots import Slots
from genrm_trio.judging.transport import HttpJudge

SLOW = Step(body=answer(GOOD), after_s=1.0)
DOWN = Step(error=NoReply("down"))


def weighted(weights: Sequence[float], transport: httpx2.AsyncBaseTransport) -> list[Endpoint]:
    return [Endpoint(Address(f"http://j{n}", weight=weight), transport) for n, weight in enumerate(weights)]


async def many(judge: HttpJudge, n: int, limit: int = 64) -> None:
    slots = Slots(limit)
    async with trio.open_nursery() as nursery:
        for _ in range(n):
            nursery.start_soon(judge.compare, ASK, slots.ticket())


async def test_load_is_spread_by_weight(autojump_clock: MockClock) -> None:
    wire = Scripted(SLOW)
    judge = judge_of(*weighted([1.0, 3.0], wire))
    await many(judge, 400, limit=40)
    served = [seat.served for seat in judge.panel.health()]
    assert sum(served) == 400
    assert served[1] == pytest.approx(300, abs=15)


async def test_calls_one_by_one_are_spread_too(autojump_clock: MockClock) -> None:
    judge = judge_of(*weighted([1.0, 1.0, 2.0], Scripted(says())))
    for _ in range(40):
        await judge.compare(ASK, ticket())
    assert [seat.served for seat in judge.panel.health()] == [10, 10, 20]


async def test_a_lost_endpoint_costs_no_time_and_no_budget(autojump_clock: MockClock) -> None:
    down, up = Scripted(DOWN), Scripted(says())
    judge = judge_of(*endpoints(down, up), retries=0)
    for _ in range(20):
        assert (await judge.compare(ASK, ticket())).overall is not None
    assert trio.current_time() == 0
    assert len(down.times) == 1, "it rests after its first fault"
    assert [seat.resting for seat in judge.panel.health()] == [True, False]


async def test_when_all_are_down_one_after_the_other_is_tried(autojump_clock: MockClock) -> None:
    down = [Scripted(DOWN), Scripted(*[DOWN] * 9, says())]
    judge = judge_of(*endpoints(*down), retries=0)
    assert (await judge.compare(ASK, ticket())).overall is not None
    assert trio.current_time() <= 10.0
    assert abs(len(down[0].times) - len(down[1].times)) <= 1
    judge = judge_of(*endpoints(Scripted(DOWN), Scripted(DOWN)), timeout_s=5.0)
    began = trio.current_time()
    with pytest.raises(JudgeError, match="TimeoutError"):
        await judge.compare(ASK, ticket())
    assert trio.current_time() - began == pytest.approx(5.0)


async def test_an_endpoint_that_came_back_is_used_again(autojump_clock: MockClock) -> None:
    flaky, steady = Scripted(DOWN, says()), Scripted(says())
    judge = judge_of(*endpoints(flaky, steady))
    for _ in range(10):
        await judge.compare(ASK, ticket())
        await trio.sleep(1)
    assert len(flaky.times) > 3
    assert judge.panel.health()[0].faults_in_a_row == 0


async def test_a_failed_endpoint_is_tried_by_one_call_first(autojump_clock: MockClock) -> None:
    hanging, steady = Scripted(DOWN, Step(body=answer(GOOD), after_s=100.0)), Scripted(SLOW)
    judge = judge_of(*endpoints(hanging, steady))
    await judge.compare(ASK, ticket())
    await trio.sleep(FIRST_REST_S)
    await many(judge, 50)
    assert len(hanging.times) == 2


async def test_rests_grow_and_end(autojump_clock: MockClock) -> None:
    one, two = endpoints(Scripted(says()), Scripted(says()))
    panel = Panel([one, two])
    fault = Fault(Kind.REFUSED, "ConnectError", "x")
    for expected in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_REST_S, LONGEST_REST_S):
        panel.report(one, fault, 0.1)
        panel.report(one, fault, 0.1)  # those in flight at the same time count once
        assert panel.pick() is two
        assert panel.ready_in(besides=two) == pytest.approx(expected)
        await trio.sleep(expected)
        assert panel.ready_in(besides=two) == 0
    panel.report(one, None, 0.1)
    assert panel.health()[0].faults_in_a_row == 0


async def test_throttled_endpoints_let_others_go_first(autojump_clock: MockClock) -> None:
    busy, free = Scripted(Step(429, {}, {"Retry-After": "60"}), says()), Scripted(says())
    judge = judge_of(*endpoints(busy, free), retries=0)
    for _ in range(10):
        await judge.compare(ASK, ticket())
    assert (trio.current_time(), len(busy.times)) == (0, 1)
    await trio.sleep(60)
    await many(judge, 4)
    assert len(busy.times) > 1


async def test_all_throttled_waits_for_the_first_to_be_ready(autojump_clock: MockClock) -> None:
    long = Scripted(Step(429, {}, {"Retry-After": "60"}), says())
    short = Scripted(Step(503, {}, {"Retry-After": "5"}), says())
    judge = judge_of(*endpoints(long, short), retries=0)
    await judge.compare(ASK, ticket())
    assert trio.current_time() == 5


PATIENT = Step(503, {}, {"Retry-After": "3600"})
BROKEN = Step(500, {})


@pytest.mark.parametrize("lost", [DOWN, BROKEN], ids=["free retries", "budgeted retries"])
async def test_a_throttled_endpoint_has_its_turn_when_the_others_are_lost(
    lost: Step, autojump_clock: MockClock
) -> None:
    """It asked for an hour and is well again before that: nobody else can tell."""
    once, other = Scripted(PATIENT, says()), Scripted(says(), says(), lost)
    judge = judge_of(*endpoints(once, other), timeout_s=5.0)
    for _ in range(5):
        assert (await judge.compare(ASK, ticket())).overall is not None
    assert len(other.times) <= 4
    assert trio.current_time() < 5
    assert judge.panel.health()[0].resting is False, "it answered, so its patience is over"


async def test_without_retries_a_lost_endpoint_fails_one_call_beside_a_throttled_one(
    autojump_clock: MockClock,
) -> None:
    once, other = Scripted(PATIENT, says()), Scripted(says(), BROKEN)
    judge = judge_of(*endpoints(once, other), retries=0)
    await judge.compare(ASK, ticket())
    with pytest.raises(JudgeError, match="status=500"):
        await judge.compare(ASK, ticket())
    for _ in range(10):
        assert (await judge.compare(ASK, ticket())).overall is not None
    assert len(other.times) == 2, "the one that answers serves all while the other rests"


@pytest.mark.parametrize("lost", [DOWN, BROKEN], ids=["free retries", "budgeted retries"])
@pytest.mark.parametrize("well", range(3))
async def test_each_of_three_is_tried_whatever_became_of_the_others(
    well: int, lost: Step, autojump_clock: MockClock
) -> None:
    """The first was throttled and then lost, the second was throttled, the third is lost: whoever answers is found."""
    scripts = [[PATIENT, lost], [PATIENT, lost], [says(), lost]]
    scripts[well][-1] = says()
    three = endpoints(*(Scripted(*script) for script in scripts))
    judge = judge_of(*three, timeout_s=30.0)
    await judge.compare(ASK, ticket())
    judge.panel.report(three[0], Fault(Kind.REFUSED, "ConnectError", "x"), 0.1)
    for _ in range(3):
        assert (await judge.compare(ASK, ticket())).overall is not None


async def test_patience_is_bounded_and_ends_with_an_answer_to_a_later_call(autojump_clock: MockClock) -> None:
    one, two = endpoints(Scripted(says()), Scripted(says()))
    panel = Panel([one, two])
    await trio.sleep(10)
    for asked in (float("inf"), 1e300, LONGEST_PATIENCE_S + 1):
        panel.report(one, Fault(Kind.THROTTLED, "HTTPStatusError", "x", retry_after=asked), 0.1)
        assert panel.ready_in(besides=two) == LONGEST_PATIENCE_S
    await trio.sleep(1)
    panel.report(one, None, 2.0)
    assert panel.health()[0].resting, "the answered call was under way when the patience was asked for"
    panel.report(one, None, 0.5)
    assert not panel.health()[0].resting


@pytest.mark.parametrize("step", [Step(401, {}), Step(404, {}), Step(200, b"<html>"), Step(302, {})])
async def test_a_misconfigured_endpoint_is_left_for_another(step: Step, autojump_clock: MockClock) -> None:
    kept = Kept()
    judge = judge_of(*endpoints(Scripted(step), Scripted(says())), retries=0, observer=kept)
    for _ in range(5):
        assert (await judge.compare(ASK, ticket())).attempts == 1
    assert len(kept.faults) == 1
    both = judge_of(*endpoints(Scripted(step), Scripted(step)))
    with pytest.raises(JudgeError):
        await both.compare(ASK, ticket())


@pytest.mark.parametrize("step", [Step(400, {}), Step(422, {})])
async def test_a_bad_request_is_bad_everywhere(step: Step, autojump_clock: MockClock) -> None:
    wires = [Scripted(step), Scripted(says())]
    judge = judge_of(*endpoints(*wires))
    with pytest.raises(JudgeError):
        await judge.compare(ASK, ticket())
    assert len(wires[1].times) == 0


async def test_a_retry_goes_to_another_endpoint(autojump_clock: MockClock) -> None:
    bad, good = Scripted(Step(500, {})), Scripted(says())
    judge = judge_of(*endpoints(bad, good), retries=1)
    for _ in range(5):
        await judge.compare(ASK, ticket())
    assert len(bad.times) <= 2


def test_a_panel_refuses_what_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="needs an endpoint"):
        Panel([])
    with pytest.raises(ValueError, match="twice"):
        Panel([Endpoint(Address("http://j")), Endpoint(Address("http://j/v1"))])
    Panel([Endpoint(Address("http://j", model="a")), Endpoint(Address("http://j", model="b"))])


async def test_one_of_two_servers_goes_while_cohorts_are_judged() -> None:
    """Real sockets: calls in flight at the lost server are asked again at the other one, none fails."""
    first, second = FakeJudge(), FakeJudge()
    hold = trio.Event()
    first.script = lambda _call: Reply(text=GOOD, hold=hold)
    async with second.running():
        lost = trio.CancelScope()
        async with trio.open_nursery() as nursery:

            async def serve(task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
                with lost:
                    await first.serve(task_status=task_status)

            await nursery.start(serve)
            judge, slots = judge_of(first.url, second.url, retries=0), Slots(16)
            results: list[Any] = []

            async def one() -> None:
                results.append(await judge.compare(ASK, slots.ticket()))

            for _ in range(40):
                nursery.start_soon(one)
            await first.until(lambda: first.in_flight > 5)
            lost.cancel()
        assert len(results) == 40
        assert all(result.attempts == 1 for result in results)
        await judge.aclose()
