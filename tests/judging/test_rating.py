"""Ratings: what wins, ties and the shape of the comparison graph do to scores."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genrm_trio.judging.pairs import pairs
from genrm_trio.judging.rating import (
    METHODS,
    Rated,
    Scale,
    ScoringFailed,
    comparison_graph_connected,
    load_method,
    rate,
)
from genrm_trio.judging.verdict import Verdict

SCALE = Scale(1.0, 5.0, 3.0)
WIN, LOSS, TIE = Verdict(4.0, 2.0, 2.0), Verdict(2.0, 4.0, 5.0), Verdict(3.0, 3.0, 1.0)

load_method("bradley_terry")


def game(*results: tuple[int, int, Verdict]) -> list[Rated]:
    return [Rated(*result) for result in results]


def test_a_win_rate_is_laid_over_the_score_range() -> None:
    rated = game((0, 1, WIN), (0, 2, TIE), (1, 2, LOSS))
    assert rate("win_rate", rated, 4, SCALE) == [4.0, 1.0, 4.0, 3.0]
    assert rate("win_rate", rated, 4, Scale(0.0, 1.0, -1.0)) == [0.75, 0.0, 0.75, -1.0]


def test_a_tie_is_one_whatever_its_ranking() -> None:
    for method in ("win_rate", "bradley_terry"):
        for ranking in (1.0, 3.5, 6.0):
            assert rate(method, game((0, 1, Verdict(2.0, 2.0, ranking))), 2, SCALE) == pytest.approx([3.0, 3.0])


def test_the_tiebreaker_moves_equal_scores_apart() -> None:
    assert rate("simple_tiebreaker", game((0, 1, TIE), (1, 0, WIN)), 3, SCALE) == [3.75, 2.25, 3.0]


def test_bradley_terry_maximises_the_likelihood_under_a_standard_normal_prior() -> None:
    rated = game((0, 1, WIN), (0, 1, WIN), (1, 2, WIN), (2, 0, TIE), (1, 2, LOSS))
    scores = rate("bradley_terry", rated, 3, SCALE)
    strengths = [-math.log(4.0 / (score - 1.0) - 1.0) for score in scores]
    assert sum(strengths) == pytest.approx(0.0, abs=1e-4)
    slope = [-strength for strength in strengths]
    for comparison in rated:
        i, j = comparison.i, comparison.j
        share = 1.0 if comparison.verdict == WIN else 0.0 if comparison.verdict == LOSS else 0.5
        expected = 1.0 / (1.0 + math.exp(strengths[j] - strengths[i]))
        slope[i] += share - expected
        slope[j] -= share - expected
    assert slope == pytest.approx([0.0, 0.0, 0.0], abs=1e-4)


def test_bradley_terry_orders_a_chain_and_keeps_the_unbeaten_finite() -> None:
    scores = rate("bradley_terry", game(*((i, j, WIN) for i, j in pairs("all_pairs", 6))), 6, SCALE)
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == 6
    assert all(1.0 < score < 5.0 for score in scores)


VERDICTS = st.sampled_from([WIN, LOSS, TIE])


@given(st.lists(VERDICTS, min_size=6, max_size=6), st.permutations(range(4)), st.sampled_from(sorted(METHODS)))
def test_names_and_sides_do_not_matter(verdicts: Sequence[Verdict], order: Sequence[int], method: str) -> None:
    met = list(zip(pairs("all_pairs", 4), verdicts, strict=True))
    scores = rate(method, game(*((i, j, v) for (i, j), v in met)), 4, SCALE)
    renamed = rate(method, game(*((order[j], order[i], v.flipped()) for (i, j), v in met)), 4, SCALE)
    assert [renamed[order[k]] for k in range(4)] == pytest.approx(scores, abs=1e-3)


def test_bradley_terry_refuses_parts_that_never_met() -> None:
    with pytest.raises(ScoringFailed, match="do not link all 4 answers"):
        rate("bradley_terry", game((0, 1, WIN), (2, 3, WIN)), 4, SCALE)
    with pytest.raises(ScoringFailed, match="the 0 comparisons"):
        rate("bradley_terry", [], 2, SCALE)


def test_an_unknown_method_is_an_error() -> None:
    with pytest.raises(ValueError, match="aggregator_method 'elo'"):
        rate("elo", [], 2, SCALE)


@pytest.mark.parametrize("strategy", ["circular", "all_pairs"])
def test_every_strategy_links_all_members(strategy: str) -> None:
    assert all(comparison_graph_connected(pairs(strategy, n), n) for n in range(2, 20))


@given(st.integers(1, 8), st.data())
def test_a_graph_is_connected_exactly_when_a_walk_reaches_all(n: int, data: st.DataObject) -> None:
    edges = data.draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=10))
    reached, frontier = {0}, [0]
    while frontier:
        at = frontier.pop()
        for one, other in (*edges, *((b, a) for a, b in edges)):
            if one == at and other not in reached:
                reached.add(other)
                frontier.append(other)
    assert comparison_graph_connected(edges, n) == (len(reached) == n)
