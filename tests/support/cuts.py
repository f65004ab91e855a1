"""Cancels a run at its n-th step: for the n-th step of tasks of one kind, while they wait there or as they wake.

A task's step ends where it waits. Cancelled `waiting`, the wait itself is given up; cancelled `waking`, the wait
succeeded and the cancellation comes with the next one: the two ends that cleaning up has to get right. The order
in which Trio runs tasks is drawn from a seed, so that the n-th step is the same step in every run.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Literal, TypeVar
from weakref import WeakKeyDictionary

import trio
from trio._core import _run as scheduler
from trio.lowlevel import Task
from trio.testing import MockClock

Moment = Literal["waiting", "waking"]
T = TypeVar("T")


class Cuts(trio.abc.Instrument):
    """Watches the scopes of a run and cancels one of them, once.

    kind: whose steps are counted; "everything" counts the steps of every task, and cancels the scope that is
    watched under that kind. at: which step, from 1; 0 for none. steps: how many were counted. cut: the label of
    the scope that was cancelled.
    """

    def __init__(self, kind: str = "", at: int = 0, moment: Moment = "waiting") -> None:
        self.kind = kind
        self.at = at
        self.moment = moment
        self.steps = 0
        self.cut: str | None = None
        self._watched: dict[Task, tuple[str, str, trio.CancelScope]] = {}
        self._owners: WeakKeyDictionary[Task, Task] = WeakKeyDictionary()

    @contextmanager
    def watched(self, kind: str, label: str, cancels: trio.CancelScope | None = None) -> Iterator[trio.CancelScope]:
        """A scope that may be cut: the steps of this task, and of the tasks under it, are of this kind meanwhile.

        cancels: the scope to cancel instead of this one, such as the client's of a connection that is served here.
        """
        task = trio.lowlevel.current_task()
        outer = self._watched.get(task)
        with trio.CancelScope() as scope:
            self._watched[task] = (kind, label, cancels or scope)
            try:
                yield scope
            finally:
                if outer is None:
                    del self._watched[task]
                else:
                    self._watched[task] = outer

    def before_task_step(self, task: Task) -> None:
        if self.moment == "waking":
            self._count(task)

    def after_task_step(self, task: Task) -> None:
        if self.moment == "waiting":
            self._count(task)

    def _count(self, task: Task) -> None:
        found = self._scope(task)
        if found is None:
            return
        self.steps += 1
        if self.steps == self.at:
            _, self.cut, scope = found
            scope.cancel()

    def _scope(self, task: Task) -> tuple[str, str, trio.CancelScope] | None:
        if self.kind == "everything":
            return next((watched for watched in self._watched.values() if watched[0] == "everything"), None)
        found = self._watched.get(self._owner(task))
        return found if found is not None and found[0] == self.kind else None

    def _owner(self, task: Task) -> Task:
        """The nearest task from this one upwards that is watched; itself when none is."""
        at: Task | None = task
        while at is not None and at not in self._watched:
            known = self._owners.get(at)
            if known is not None and known in self._watched:
                return known
            at = at.parent_nursery.parent_task if at.parent_nursery is not None else None
        if at is None:
            return task
        if at is not task:
            self._owners[task] = at
        return at


def run_in_order(main: Callable[[], Awaitable[T]], *, seed: int = 0, instruments: tuple[Cuts, ...] = ()) -> T:
    """Run under virtual time, with the order of tasks drawn from the seed."""
    before = scheduler._ALLOW_DETERMINISTIC_SCHEDULING
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]  # what Trio's plugin for Hypothesis sets
    scheduler._r.seed(seed)
    try:
        return trio.run(main, clock=MockClock(autojump_threshold=0), instruments=instruments)
    finally:
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = before  # type: ignore[misc]  # as it was
