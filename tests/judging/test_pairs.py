"""Plans: who meets whom, how often, and that no position is favoured."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genrm_trio.judging.pairs import Order, Planned, Strategy, baseline_plan, comparisons, pairs, plan

STRATEGIES = st.sampled_from(["circular", "all_pairs"])
SIZES = st.integers(2, 24)
JUDGES = st.integers(1, 3)


@given(STRATEGIES, SIZES, JUDGES, st.sampled_from(["balanced", "both", "fixed"]))
def test_every_order_asks_for_the_same_pairs(strategy: Strategy, n: int, judges: int, order: Order) -> None:
    planned = plan(strategy, n, judges, order)
    times = 2 if order == "both" else 1
    met = Counter((p.i, p.j, p.judge_index) for p in planned)
    assert met == Counter({(i, j, judge): times for i, j in pairs(strategy, n) for judge in range(judges)})
    assert [p.judge_index for p in planned] == sorted(p.judge_index for p in planned)
    assert all({p.first, p.second} == {p.i, p.j} and p.flipped == (p.first == p.j) for p in planned)
    assert len(set(planned)) == len(planned)


@given(SIZES, JUDGES)
def test_balanced_all_pairs_puts_the_lower_index_first_when_the_sum_is_odd(n: int, judges: int) -> None:
    for p in plan("all_pairs", n, judges, "balanced"):
        assert (p.first == min(p.i, p.j)) == ((p.i + p.j + p.judge_index) % 2 == 1)
        assert p.i < p.j


@given(SIZES)
def test_balanced_favours_no_position(n: int) -> None:
    for strategy in ("circular", "all_pairs"):
        firsts = Counter(p.first for p in plan(strategy, n, 1, "balanced"))
        counts = [firsts[k] for k in range(n)]
        assert max(counts) - min(counts) <= 1


@given(STRATEGIES, SIZES)
def test_both_shows_each_pair_in_both_orders(strategy: Strategy, n: int) -> None:
    seen = Counter((p.i, p.j, p.first) for p in plan(strategy, n, 1, "both"))
    assert seen == Counter({(i, j, first): 1 for i, j in pairs(strategy, n) for first in (i, j)})


def test_fixed_and_circular_flip_nothing() -> None:
    assert not any(p.flipped for p in (*plan("all_pairs", 5, 2, "fixed"), *plan("circular", 5, 2, "balanced")))


@given(st.text(), st.integers(1, 16), JUDGES)
def test_the_baseline_is_seen_by_every_member_and_swaps_with_the_judge(key: str, n: int, judges: int) -> None:
    planned = baseline_plan(key, n, judges)
    assert [(p.i, p.j, p.judge_index) for p in planned] == [(i, n, judge) for judge in range(judges) for i in range(n)]
    first = {(p.i, p.judge_index): p.first == p.i for p in planned}
    assert all(first[i, judge] != first[i, judge + 1] for i in range(n) for judge in range(judges - 1))


def test_planned_names_who_is_seen_first() -> None:
    assert not Planned(0, 1, 0, 0, 1).flipped
    assert Planned(0, 1, 0, 1, 0).flipped


@pytest.mark.parametrize(
    "given",
    [
        {"strategy": "ring", "n": 3},
        {"strategy": "circular", "n": 1},
        {"strategy": "circular", "n": 3, "judges": 0},
        {"strategy": "circular", "n": 3, "order": "random"},
    ],
)
def test_a_wrong_plan_is_an_error(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"comparison|pair_order"):
        plan(**given)


def test_a_baseline_without_members_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least 1 member"):
        baseline_plan("key", 0)


@pytest.mark.parametrize("strategy", ["circular", "all_pairs"])
@pytest.mark.parametrize("order", ["balanced", "both", "fixed"])
def test_comparisons_are_counted_without_being_made(strategy: Strategy, order: Order) -> None:
    for n in range(2, 12):
        for judges in (1, 3):
            assert comparisons(strategy, n, judges, order) == len(plan(strategy, n, judges, order))
    assert [comparisons(strategy, n, 1, order) for n in (0, 1)] == [0, 0]
