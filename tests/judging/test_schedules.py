"""Whatever a judge does, a comparison ends: drawn replies, faults and cancellations in virtual time.

Each property holds for every schedule: bounded in attempts and time, slots given back, finite verdicts, clean texts.
"""

import math
import random
from dataclasses import astuple
from typing import Any

import httpx2
import trio
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fake_judge import answer
from tests.support.judging_kit import ASK, GOOD, Kept, Scripted, Step, endpoints, judge_of
from trio.testing import MockClock

from genrm_trio.judging.chat import Chat
from genrm_trio.judging.faults import NoReply, ReplyCut
from genrm_trio.judging.judge import Answered, JudgeError
from genrm_trio.judging.responses import Responses
from genrm_trio.judging.slots import Slots
from genrm_trio.judging.verdict import VerdictRules

KEY = "sk-Key-that-must-not-show"
TIMEOUT_S, DEADLINE_S, RETRIES = 20.0, 200.0, 3

texts = st.sampled_from([GOOD, "", " ", "no verdict", '{"score_1": NaN}', "{" * 500, f"{KEY} {GOOD}", "\ud800" + GOOD])
bodies = st.one_of(
    st.builds(answer, texts),
    st.builds(answer, texts, status=st.sampled_from(["completed", "incomplete", "failed", None])),
    st.binary(max_size=60),
    st.sampled_from([[], {}, {"error": {"code": 429}}, {"error": {"code": "x"}}, {"error": KEY}, b"", b"<html>"]),
)
steps = st.one_of(
    st.builds(Step, st.just(200), bodies, after_s=st.floats(0, 30)),
    st.builds(
        Step,
        st.sampled_from([302, 400, 401, 404, 408, 409, 429, 500, 503]),
        st.sampled_from([{}, {"error": {"code": "admission_closed"}}, {"detail": KEY}]),
        st.sampled_from([{}, {}, {"Retry-After": "0"}, {"Retry-After": "7"}, {"Retry-After": "x"}]),
        after_s=st.floats(0, 5),
    ),
    st.builds(
        Step,
        error=st.sampled_from(
            [NoReply(KEY), ReplyCut("cut"), httpx2.ConnectError("no"), httpx2.RemoteProtocolError("?")]
        ),
        after_s=st.floats(0, 5),
    ),
)
schedules = st.lists(st.lists(steps, min_size=1, max_size=12), min_size=1, max_size=3)


def run(scripts: list[list[Step]], seed: int, *, chat: bool, cancel_at: float, comparisons: int = 3) -> dict[str, Any]:
    """Make comparisons over a panel with one slot; return what became of them."""
    wires = [Scripted(*script) for script in scripts]
    kept, slots = Kept(), Slots(1)
    ends: list[Answered | Exception] = []

    async def main() -> float:
        judge = judge_of(
            *endpoints(*wires, api_key=KEY),
            dialect=Chat({}) if chat else Responses({}),
            observer=kept,
            rng=random.Random(seed),
            timeout_s=TIMEOUT_S,
            retries=RETRIES,
        )

        async def one() -> None:
            try:
                with trio.fail_after(DEADLINE_S):
                    ends.append(await judge.compare(ASK, slots.ticket()))
            except (JudgeError, trio.TooSlowError) as error:
                ends.append(error)

        with trio.move_on_after(cancel_at):
            async with trio.open_nursery() as nursery:
                for _ in range(comparisons):
                    nursery.start_soon(one)
        return trio.current_time()

    took = trio.run(main, clock=MockClock(autojump_threshold=0))
    return {"ends": ends, "took": took, "kept": kept, "slots": slots, "wires": wires}


@given(schedules, st.integers(), st.booleans())
def test_every_comparison_ends(scripts: list[list[Step]], seed: int, chat: bool) -> None:
    seen = run(scripts, seed, chat=chat, cancel_at=math.inf)
    assert len(seen["ends"]) == 3
    assert seen["took"] <= DEADLINE_S
    assert (seen["slots"].in_use, seen["slots"].waiting) == (0, 0)
    for end in seen["ends"]:
        if isinstance(end, Answered):
            assert 1 <= end.attempts <= RETRIES + 1
            assert end.overall is None or all(map(math.isfinite, astuple(end.overall)))
            assert end.overall is not None or end.attempts == RETRIES + 1, "a pair fails when the budget is spent"
        elif isinstance(end, JudgeError):
            end.text.encode("utf-8")
            assert KEY not in end.text
            assert len(end.text) < 3000
    assert all(KEY not in fault.text for fault in seen["kept"].faults)
    firsts = [fault.kind for fault in seen["kept"].faults if fault.first]
    assert len(firsts) <= 3 * len(set(firsts)), "at most once a cohort"


@given(schedules, st.integers(), st.floats(0, 60))
def test_a_cancellation_at_any_time_leaves_nothing(scripts: list[list[Step]], seed: int, cancel_at: float) -> None:
    seen = run(scripts, seed, chat=False, cancel_at=cancel_at)
    assert (seen["slots"].in_use, seen["slots"].waiting) == (0, 0)
    assert all(wire.in_flight == 0 for wire in seen["wires"])
    assert seen["took"] <= max(cancel_at, 0) + 1e-6


@given(schedules, st.integers())
def test_a_seed_replays_a_run(scripts: list[list[Step]], seed: int) -> None:
    """One comparison alone: of several, the scheduler chooses who draws first."""
    one, two = (run(scripts, seed, chat=False, cancel_at=math.inf, comparisons=1) for _ in range(2))
    assert [wire.times for wire in one["wires"]] == [wire.times for wire in two["wires"]]


def test_the_default_rules_are_strict() -> None:
    assert VerdictRules().mode == "strict"
