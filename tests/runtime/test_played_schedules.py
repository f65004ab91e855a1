"""Drawn schedules on the running server: the core's invariants hold after each action, and every request is answered.

`GENRM_TRIO_FUZZ` is the number of schedules; without it every run plays the same few.
"""

from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st
from tests.fuzz.kit import fuzz
from tests.runtime.playing import STEPS, Player, Schedule, play

from genrm_trio.core.outcome import Answer
from genrm_trio.runtime.server import Server

part = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 7)), max_size=12)
long = st.tuples(*[part] * 6).map(lambda parts: [*chain(*parts)])  # one list alone is short as a rule
schedules = st.builds(Schedule, long, order=st.integers(0, 3), early=st.booleans(), pauses=st.integers(0, 3))


@fuzz
@given(schedules)
def test_no_schedule_breaks_the_server(schedule: Schedule) -> None:
    assert not play(schedule)


def test_every_step_is_one_that_the_player_can_take() -> None:
    assert all(callable(getattr(Player, name)) for name in STEPS)


# -- what it would find --------------------------------------------------------------------------------


def tells_the_answer_before(right: Callable[[Server, int, Answer], None]) -> Callable[[Server, int, Answer], None]:
    """A member is told what the one before it was to be told."""
    last: list[Answer] = []

    def answered(self: Server, waiter: int, answer: Answer) -> None:
        last.append(answer)
        right(self, waiter, last[-2] if len(last) > 1 else answer)
        del last[:-1]

    return answered


def wakes_nobody(_right: object) -> Callable[..., None]:
    """Admission opens, and nobody who waits for it is told."""

    def open_admission(self: Server, *, resumed: bool) -> None:
        self.registry.open_admission(self.now())

    return open_admission


@pytest.mark.parametrize(
    ("method", "defect", "found", "most"),
    [
        ("answered", tells_the_answer_before, "its own answer", 2),
        ("open_admission", wakes_nobody, "every_wait_ends", 4),
    ],
)
def test_a_defect_is_found_and_its_schedule_shrunk(
    method: str, defect: Callable[[Any], Any], found: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Server, method, defect(getattr(Server, method)))
    brief = settings(fuzz, max_examples=200, derandomize=True)
    breaks = find(st.builds(Schedule, part), lambda one: bool(play(one)), settings=brief)
    assert len(breaks.steps) <= most
    assert any(text.startswith(found) for text in play(breaks))
