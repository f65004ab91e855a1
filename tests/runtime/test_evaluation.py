"""Large evaluations: comparisons are started as slots are given, in the order of cohorts, with little work each."""

import trio
import trio.testing
from tests.support.judges import ScriptedJudge
from tests.support.scene import policy

from genrm_trio.judging.judge import Answered, Ask
from genrm_trio.judging.pairs import plan
from genrm_trio.judging.slots import Slots, Ticket
from genrm_trio.judging.text import AnswerText, Turn
from genrm_trio.judging.verdict import Verdict
from genrm_trio.runtime.evaluation import WINDOW, Comparing, Contender, evaluate

SLOTS = 4


def contenders(count: int) -> dict[int, Contender]:
    turns = (Turn("user", "q"),)
    return {index: Contender(turns, AnswerText("", str(index % 7))) for index in range(count)}


def tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


class Hasty:
    """A judge whose slots change hands in every step of the event loop; notes who was given them."""

    def __init__(self) -> None:
        self.granted: list[str] = []
        self.most_tasks = 0

    async def compare(self, ask: Ask, slot: Ticket) -> Answered:
        async with slot.slot():
            self.granted.append(slot.label)
            self.most_tasks = max(self.most_tasks, tasks())
        return Answered(Verdict(1.0, 2.0, 4.0), None, None, "")

    async def aclose(self) -> None:
        """Nothing is open."""


async def judged(judge: Hasty | ScriptedJudge, ticket: Ticket, count: int) -> None:
    rules = policy()
    comparing = Comparing(judge, rules.scoring, rules.principle)
    await evaluate(comparing, plan("circular", count), contenders(count), ticket)


async def test_no_more_tasks_are_started_than_have_use_for_the_slots() -> None:
    judge = ScriptedJudge(is_open=False)
    slots = Slots(SLOTS)
    before = tasks()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(judged, judge, slots.ticket(), 5000)
        await trio.testing.wait_all_tasks_blocked()
        assert len(judge.asks) == SLOTS
        assert slots.waiting == WINDOW * SLOTS
        assert tasks() - before == 1 + SLOTS + WINDOW * SLOTS
        judge.open()
    assert len(judge.asks) == 5000
    assert tasks() == before
    assert (slots.in_use, slots.waiting) == (0, 0)


async def test_a_cohort_of_a_later_turn_gets_no_slot_before_the_first_is_through() -> None:
    """What a slot starts stands in the queue before the slots that wait already are used up."""
    judge, slots = Hasty(), Slots(SLOTS)
    before = tasks()
    first, second = slots.ticket(label="first"), slots.ticket(label="second")
    async with trio.open_nursery() as nursery, first.slot(), first.slot(), first.slot(), first.slot():
        nursery.start_soon(judged, judge, first, 400)
        nursery.start_soon(judged, judge, second, 400)
        await trio.testing.wait_all_tasks_blocked()
    assert judge.granted == ["first"] * 400 + ["second"] * 400
    assert judge.most_tasks - before <= 2 * (1 + (1 + 2 * WINDOW) * SLOTS)


async def test_a_cancelled_evaluation_starts_nothing_more() -> None:
    judge, slots = ScriptedJudge(is_open=False), Slots(SLOTS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(judged, judge, slots.ticket(), 5000)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert (len(judge.asks), judge.cancelled) == (SLOTS, SLOTS)
    assert (slots.in_use, slots.waiting) == (0, 0)


async def test_the_work_for_one_comparison_does_not_grow_with_their_number() -> None:
    """Counted are the looks at contenders, of which each comparison takes a few."""

    class Counting(dict[int, Contender]):
        looks = 0

        def get(self, index: int, default: object = None) -> Contender | None:  # type: ignore[override]
            self.looks += 1
            return super().get(index)

    rules = policy()
    for count in (100, 2000):
        counting = Counting(contenders(count))
        comparing = Comparing(Hasty(), rules.scoring, rules.principle)
        await evaluate(comparing, plan("circular", count), counting, Slots(SLOTS).ticket())
        assert counting.looks <= 8 * count
