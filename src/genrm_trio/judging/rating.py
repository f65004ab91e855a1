"""From the comparisons of a cohort to one score a member: the setting `aggregator_method` (contract 7.7).

Every method publishes on the scale of the judge's scores, so that bonuses, penalties and `default_score` mean the same
under each:

    simple_tiebreaker   the mean of a member's scores; equal scores of a pair are moved apart by its ranking
    win_rate            low + (high - low) * (wins + ties / 2) / comparisons
    bradley_terry       low + (high - low) / (1 + exp(-strength)), the chance to win against a member of strength 0

`low` and `high` are the score range. A member wins a comparison with the higher score; equal scores are a tie, half a
win for each, whatever the ranking says. Strengths are the most probable ones under a standard normal prior, which
keeps an unbeaten member finite; they sum to 0. A member without comparisons gets `default_score`.

Pure, but for the import of `choix` when it is first needed.
"""

import importlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from genrm_trio.judging.figures import mean
from genrm_trio.judging.verdict import Verdict

Method = Literal["simple_tiebreaker", "win_rate", "bradley_terry"]


class ScoringFailed(Exception):
    """The comparisons of a cohort give no scores; a failure of the judge, whose text clients are shown."""


@dataclass(frozen=True, slots=True)
class Rated:
    """One comparison that counts: `verdict.score_1` is the score of `i`, `score_2` that of `j`."""

    i: int
    j: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Scale:
    """Where scores lie: the score range, ends included, and what a member without comparisons gets."""

    low: float
    high: float
    default: float

    def at(self, share: float) -> float:
        """Return the score that stands for a share from 0 to 1."""
        return self.low + (self.high - self.low) * share


def rate(method: str, rated: Sequence[Rated], n: int, scale: Scale) -> list[float]:
    """Return the score of each of `n` members.

    Raises ValueError for an unknown method, and ScoringFailed when `bradley_terry` meets a graph in two parts.
    """
    if method not in METHODS:
        raise ValueError(f"aggregator_method {method!r} is not one of {', '.join(METHODS)}")
    return METHODS[method](rated, n, scale)


def load_method(method: str) -> None:
    """Import what a method needs, which takes seconds for `bradley_terry`; else its first cohort waits for it."""
    if method == "bradley_terry":
        _fit()


def comparison_graph_connected(pairs: Iterable[tuple[int, int]], n: int) -> bool:
    """Tell whether the pairs link all of `n` members; `bradley_terry` cannot order parts that never met."""
    parent = list(range(n))

    def root(member: int) -> int:
        while parent[member] != member:
            parent[member] = parent[parent[member]]
            member = parent[member]
        return member

    parts = n
    for i, j in pairs:
        one, other = root(i), root(j)
        parts -= one != other
        parent[one] = other
    return parts <= 1


def _simple_tiebreaker(rated: Sequence[Rated], n: int, scale: Scale) -> list[float]:
    scores: list[list[float]] = [[] for _ in range(n)]
    for comparison in rated:
        score_i, score_j = comparison.verdict.untied()
        scores[comparison.i].append(score_i)
        scores[comparison.j].append(score_j)
    return [mean(own) if own else scale.default for own in scores]


def _win_rate(rated: Sequence[Rated], n: int, scale: Scale) -> list[float]:
    wins: list[list[float]] = [[] for _ in range(n)]
    for comparison in rated:
        share = _share(comparison.verdict)
        wins[comparison.i].append(share)
        wins[comparison.j].append(1.0 - share)
    return [scale.at(mean(own)) if own else scale.default for own in wins]


def _bradley_terry(rated: Sequence[Rated], n: int, scale: Scale) -> list[float]:
    if not comparison_graph_connected([(comparison.i, comparison.j) for comparison in rated], n):
        raise ScoringFailed(
            f"bradley_terry cannot order the cohort: the {len(rated)} comparisons with a usable verdict "
            f"do not link all {n} answers"
        )
    # The fit knows wins only. Each comparison becomes two, won twice or once by each; so the prior, too, counts double:
    # its weight of 1 on the squared strengths is a standard normal one.
    won = [pair for comparison in rated for pair in _two_wins(comparison)]
    strengths = [float(strength) for strength in _fit()(n, won, alpha=1.0)]
    return [scale.at(1.0 / (1.0 + math.exp(-strength))) for strength in strengths]


def _two_wins(comparison: Rated) -> list[tuple[int, int]]:
    i, j = comparison.i, comparison.j
    share = _share(comparison.verdict)
    return [(i, j) if share > 0.0 else (j, i), (i, j) if share == 1.0 else (j, i)]


def _share(verdict: Verdict) -> float:
    """Return how much of a win a comparison is for its first answer: 0, 1/2 or 1."""
    return ((verdict.score_1 > verdict.score_2) - (verdict.score_1 < verdict.score_2) + 1) / 2


def _fit() -> Callable[..., Iterable[float]]:
    fit: Callable[..., Iterable[float]] = importlib.import_module("choix").opt_pairwise
    return fit


METHODS: Mapping[str, Callable[[Sequence[Rated], int, Scale], list[float]]] = {
    "simple_tiebreaker": _simple_tiebreaker,
    "win_rate": _win_rate,
    "bradley_terry": _bradley_terry,
}
"""The methods by their names in the configuration."""
