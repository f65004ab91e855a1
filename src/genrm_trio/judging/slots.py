"""Who may call the judge now: a bound on calls in flight, given in the order in which cohorts became complete.

One `Slots` serves all cohorts, one `Ticket` one cohort (contract 14.9). Nothing here knows what a call is.
A slot changes hands in one synchronous step, so a cancelled waiter can neither keep nor lose one.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from types import TracebackType
from typing import Any

import trio

Rank = tuple[int, int]


class Slots:
    """At most `limit` holders at once; when one leaves, the waiter of the best ranked ticket enters."""

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"a limit of {limit} would never let a call through")
        self.limit = limit
        self._in_use = 0  # 0 <= _in_use <= limit; below limit only when nobody waits
        self._waiting = 0  # the sum of all tickets' waiters
        self._made = 0
        self._queue: list[tuple[Rank, Ticket]] = []  # a heap; an entry counts while it is its ticket's `_entry`

    @property
    def in_use(self) -> int:
        """How many slots are held."""
        return self._in_use

    @property
    def waiting(self) -> int:
        """How many tasks wait for a slot."""
        return self._waiting

    def ticket(self, *, label: str = "", on_first: Callable[[], None] | None = None, early: bool = False) -> "Ticket":
        """Make a cohort's ticket; the order of making is the order of granting.

        `label` names the cohort in logs. `on_first` is called when the ticket gets its first slot: there the
        evaluation deadline starts. An `early` ticket is one of a cohort that is still collecting (contract
        14.16): it comes after all others until `Ticket.complete`.
        """
        return Ticket(self, self._next_rank(early), label, on_first)

    def _next_rank(self, early: bool) -> Rank:
        self._made += 1
        return (int(early), self._made)

    def _enqueue(self, ticket: "Ticket") -> None:
        """Give a ticket that has waiters its one entry in the queue."""
        if ticket._waiters and ticket._entry != ticket._rank:
            ticket._entry = ticket._rank
            heappush(self._queue, (ticket._rank, ticket))

    async def _acquire(self, ticket: "Ticket") -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._in_use < self.limit:
            self._in_use += 1
            ticket._tell_granted(trio.lowlevel.current_task())
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        task = trio.lowlevel.current_task()
        ticket._waiters[task] = None
        self._waiting += 1
        self._enqueue(ticket)

        def leave(_raise_cancel: Any) -> trio.lowlevel.Abort:
            del ticket._waiters[task]
            self._waiting -= 1
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(leave)

    def _release(self) -> None:
        """Hand the slot to the next waiter, in this very step, or free it."""
        while self._queue:
            rank, ticket = self._queue[0]
            if ticket._entry != rank or not ticket._waiters:
                heappop(self._queue)
                if ticket._entry == rank:
                    ticket._entry = None
                continue
            task = next(iter(ticket._waiters))
            del ticket._waiters[task]
            self._waiting -= 1
            trio.lowlevel.reschedule(task)
            ticket._tell_granted(task)
            return
        self._in_use -= 1


class Ticket:
    """One cohort's place in the order, and what is remembered once per cohort."""

    def __init__(self, slots: Slots, rank: Rank, label: str = "", on_first: Callable[[], None] | None = None) -> None:
        self.label = label
        self._slots = slots
        self._rank = rank
        self._entry: Rank | None = None  # the rank under which this ticket stands in the queue
        self._waiters: dict[trio.lowlevel.Task, None] = {}  # in order of arrival
        self._on_first = on_first
        self._seen: set[str] = set()
        self.deadline = trio.CancelScope()
        """The evaluation's: whoever runs the cohort's comparisons enters it and sets its deadline."""
        self.on_grant: Callable[[trio.lowlevel.Task], None] | None = None
        """Called with the task that was given a slot, in the step in which it was given; must not raise."""

    @property
    def limit(self) -> int:
        """How many slots there are, for all tickets together."""
        return self._slots.limit

    def slot(self) -> "Hold":
        """Return a context manager that waits for a slot, and gives it back at its end."""
        return Hold(self)

    def complete(self) -> None:
        """The cohort of an early ticket has all its members: it takes its place after those before it."""
        if self._rank[0]:
            self._rank = self._slots._next_rank(early=False)
            self._slots._enqueue(self)

    def first(self, kind: str) -> bool:
        """Tell whether `kind` is new to this cohort, and remember it."""
        if kind in self._seen:
            return False
        self._seen.add(kind)
        return True

    def _tell_granted(self, task: trio.lowlevel.Task) -> None:
        if self.on_grant is not None:
            self.on_grant(task)

    async def _enter(self) -> None:
        await self._slots._acquire(self)
        if self._on_first is not None:
            started, self._on_first = self._on_first, None
            try:
                started()
            except BaseException:
                self._slots._release()
                raise


class Hold:
    """One wait for a slot and its use."""

    __slots__ = ("_ticket",)

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket

    async def __aenter__(self) -> None:
        await self._ticket._enter()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ticket._slots._release()
