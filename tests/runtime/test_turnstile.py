"""Tasks that wake together go on a few at a time, and nobody who is cancelled keeps others from it."""

import trio
import trio.testing
from tests.support.scene import policy, scene

from genrm_trio.core.outcome import Answer
from genrm_trio.runtime.observer import Observer
from genrm_trio.runtime.turnstile import AT_ONCE, Turnstile


class Line:
    """Numbered tasks that wait for a turnstile, and who of them went on."""

    def __init__(self, nursery: trio.Nursery, count: int, at_once: int) -> None:
        self.turnstile = Turnstile(at_once)
        self.events = [trio.Event() for _ in range(count)]
        self.scopes = [trio.CancelScope() for _ in range(count)]
        self.went: list[int] = []
        for number in range(count):
            nursery.start_soon(self._wait, number)

    async def _wait(self, number: int) -> None:
        with self.scopes[number]:
            try:
                await self.events[number].wait()
                self.went.append(number)
            finally:
                self.turnstile.through(self.events[number])

    def let(self) -> None:
        for event in self.events:
            self.turnstile.let(event)


class Rounds:
    """What a counter grew by between two turns of this task, at most."""

    def __init__(self) -> None:
        self.worst = 0

    async def watch(self, went: list[int]) -> None:
        before = len(went)
        while True:
            await trio.lowlevel.checkpoint()
            self.worst, before = max(self.worst, len(went) - before), len(went)


async def test_a_few_go_on_in_each_pass_in_order() -> None:
    rounds = Rounds()
    async with trio.open_nursery() as nursery:
        line = Line(nursery, 500, at_once=8)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(rounds.watch, line.went)
        line.let()
        while len(line.went) < 500:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    # Two passes may lie between two turns of the watch, which runs at any place in each.
    assert 0 < rounds.worst <= 16
    groups = [sorted(line.went[at : at + 8]) for at in range(0, 500, 8)]
    assert groups == [list(range(at, min(at + 8, 500))) for at in range(0, 500, 8)]


async def test_who_is_cancelled_in_the_line_or_just_awake_keeps_nobody() -> None:
    async with trio.open_nursery() as nursery:
        line = Line(nursery, 9, at_once=2)
        await trio.testing.wait_all_tasks_blocked()
        line.let()
        for number in (0, 1, 2, 5, 8):  # the first two are awake
            line.scopes[number].cancel()
    assert sorted(line.went) in ([0, 1, 3, 4, 6, 7], [3, 4, 6, 7])


async def test_the_whole_line_can_be_let_at_once() -> None:
    async with trio.open_nursery() as nursery:
        line = Line(nursery, 9, at_once=2)
        await trio.testing.wait_all_tasks_blocked()
        line.let()
        line.turnstile.let_all()
        assert all(event.is_set() for event in line.events)
    assert len(line.went) == 9


async def test_thousands_who_have_their_outcome_at_a_resume_take_it_a_few_at_a_time(
    autojump_clock: trio.abc.Clock,
) -> None:
    """Waiting requests, and those that wait to be let in."""
    size, cohorts, entering = 2, 600, 300
    went: list[int] = []
    rounds = Rounds()

    class Watch(Observer):
        def verified(self, answer: Answer) -> None:
            went.append(0)

    async with scene(policy(size), observer=Watch()) as s, trio.open_nursery() as nursery:

        async def enter() -> None:
            async with s.server.gate.enter("plain", None, None):
                went.append(1)

        s.server.close_admission()
        for number in range(cohorts):
            for index in range(size):
                s.verify(index, group=str(number))
        for _ in range(entering):
            nursery.start_soon(enter)
        await trio.testing.wait_all_tasks_blocked()
        assert not went
        nursery.start_soon(rounds.watch, went)
        s.server.open_admission(resumed=True)
        with trio.fail_after(1):
            while len(went) < size * cohorts + entering:
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert 0 < rounds.worst <= 2 * AT_ONCE
