"""Slots: the bound holds, cohorts are served in order, and no cancellation keeps or loses a slot.

All under virtual time, with schedules that hypothesis draws.
"""

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from genrm_trio.judging.slots import Slots, Ticket


async def test_slots_go_to_the_oldest_ticket_first() -> None:
    slots = Slots(1)
    tickets = [slots.ticket(label=str(n)) for n in range(3)]
    order: list[str] = []

    async def work(ticket: Ticket) -> None:
        async with ticket.slot():
            order.append(ticket.label)
            await trio.testing.wait_all_tasks_blocked()

    async with trio.open_nursery() as nursery, tickets[2].slot():
        for ticket in (tickets[2], tickets[1], tickets[0], tickets[1], tickets[0]):
            nursery.start_soon(work, ticket)
            await trio.testing.wait_all_tasks_blocked()
        assert slots.waiting == 5
    assert order == ["0", "0", "1", "1", "2"]
    assert (slots.in_use, slots.waiting) == (0, 0)


async def test_an_early_ticket_comes_last_until_its_cohort_is_complete() -> None:
    slots = Slots(1)
    early, late = slots.ticket(label="early", early=True), slots.ticket(label="late")
    order: list[str] = []

    async def work(ticket: Ticket) -> None:
        async with ticket.slot():
            order.append(ticket.label)

    async def queue_up(*, complete: bool) -> None:
        async with trio.open_nursery() as nursery, late.slot():
            for ticket in (early, late, early):
                nursery.start_soon(work, ticket)
                await trio.testing.wait_all_tasks_blocked()
            if complete:
                early.complete()
                nursery.start_soon(work, slots.ticket(label="newest"))
                await trio.testing.wait_all_tasks_blocked()

    await queue_up(complete=False)
    assert order == ["late", "early", "early"]
    order.clear()
    await queue_up(complete=True)
    assert order == ["late", "early", "early", "newest"]
    early.complete()  # a second time changes nothing


async def test_on_first_is_called_once_when_the_slot_is_there() -> None:
    slots = Slots(1)
    began: list[int] = []
    ticket = slots.ticket(on_first=lambda: began.append(slots.in_use))
    async with slots.ticket().slot(), trio.open_nursery() as nursery:

        async def work() -> None:
            async with ticket.slot():
                pass

        nursery.start_soon(work)
        await trio.testing.wait_all_tasks_blocked()
        assert began == []
        nursery.cancel_scope.cancel()
    for _ in range(2):
        await work()
    assert began == [1]


async def test_an_error_in_on_first_gives_the_slot_back() -> None:
    slots = Slots(1)

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        async with slots.ticket(on_first=fail).slot():
            raise AssertionError("must not run")
    assert slots.in_use == 0


async def test_a_body_that_raises_gives_the_slot_back() -> None:
    slots = Slots(1)
    with pytest.raises(KeyError):
        async with slots.ticket().slot():
            raise KeyError
    assert slots.in_use == 0


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="limit of 0"):
        Slots(0)


def test_a_ticket_remembers_what_it_has_seen() -> None:
    ticket = Slots(1).ticket()
    assert [ticket.first(kind) for kind in ("a", "b", "a")] == [True, True, False]


async def test_a_grant_and_a_cancel_in_the_same_step_lose_nothing() -> None:
    """Cancelled right after the grant, in the step that granted: the waiter has the slot and gives it back."""
    slots = Slots(1)
    for order in ("grant first", "cancel first"):
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()

            async def work(scope: trio.CancelScope = scope) -> None:
                with scope:
                    async with slots.ticket().slot():
                        await trio.sleep_forever()

            hold = slots.ticket().slot()
            await hold.__aenter__()
            nursery.start_soon(work)
            await trio.testing.wait_all_tasks_blocked()
            if order == "cancel first":
                scope.cancel()
            await hold.__aexit__(None, None, None)
            scope.cancel()
        assert (slots.in_use, slots.waiting) == (0, 0), order


Plan = list[tuple[int, int, int, int]]
PLANS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6), st.integers(0, 4), st.integers(0, 9)), max_size=40)


@given(plan=PLANS, limit=st.integers(1, 4), cut=st.integers(0, 12))
def test_no_schedule_of_cancels_leaks_a_slot(plan: Plan, limit: int, cut: int) -> None:
    """Each task: its ticket, when it starts, how long it holds, when it is cancelled, all in virtual seconds."""

    async def main() -> None:
        slots = Slots(limit)
        tickets = [slots.ticket() for _ in range(5)]
        holders = 0

        async def work(ticket: int, start: int, hold: int, patience: int) -> None:
            nonlocal holders
            await trio.sleep(start)
            with trio.move_on_after(patience):
                async with tickets[ticket].slot():
                    holders += 1
                    try:
                        assert holders <= limit
                        assert slots.in_use <= limit
                        await trio.sleep(hold)
                    finally:
                        holders -= 1

        with trio.move_on_after(cut):
            async with trio.open_nursery() as nursery:
                for row in plan:
                    nursery.start_soon(work, *row)
        assert (slots.in_use, slots.waiting, holders) == (0, 0, 0)
        await all_at_once(slots, limit)

    run(main)


async def all_at_once(slots: Slots, limit: int) -> None:
    """Every slot can still be had."""
    reached = trio.Event()

    async def hold() -> None:
        async with slots.ticket().slot():
            if slots.in_use == limit:
                reached.set()
            await reached.wait()

    with trio.fail_after(1):
        async with trio.open_nursery() as nursery:
            for _ in range(limit):
                nursery.start_soon(hold)


def run(main: Callable[[], Any]) -> None:
    """Run under a fresh virtual clock, as each drawn example needs its own."""
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
