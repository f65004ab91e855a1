"""Which answers are compared, in which order, how often (contract 7.6, 7.11 and 14.3).

A plan is a tuple of comparisons, made before the first judge call. Nothing here knows answers, judges or scores.
"""

from dataclasses import dataclass
from hashlib import sha256
from itertools import combinations
from typing import Literal

Strategy = Literal["circular", "all_pairs"]
Order = Literal["balanced", "both", "fixed"]


@dataclass(frozen=True, slots=True)
class Planned:
    """One comparison to ask for.

    `i` and `j` are the members its result counts for: `score_1` is that of `i`. The judge sees `first` before `second`,
    which are the same two; when it sees `j` first, its verdict has to be flipped to become the result. `judge_index`
    counts the passes from 0.
    """

    i: int
    j: int
    judge_index: int
    first: int
    second: int

    @property
    def flipped(self) -> bool:
        """Whether the judge sees `j` first."""
        return self.first != self.i


def pairs(strategy: str, n: int) -> tuple[tuple[int, int], ...]:
    """Return the pairs of `n` members that one judge pass compares (contract 7.6).

    `circular` is each member with its next one round the ring, so two members make two pairs; `all_pairs` is each
    member with every later one. Raises ValueError for another strategy and below two members.
    """
    if n < 2:
        raise ValueError(f"a comparison needs at least 2 answers, not {n}")
    if strategy == "circular":
        return tuple((i, (i + 1) % n) for i in range(n))
    if strategy == "all_pairs":
        return tuple(combinations(range(n), 2))
    raise ValueError(f"comparison_strategy {strategy!r} is not one of circular, all_pairs")


def comparisons(strategy: str, n: int, judges: int, order: str) -> int:
    """Return how many comparisons `plan` makes of `n` members, without making them; 0 below two members."""
    pairs_asked = n if strategy == "circular" else all_pairs(n)
    return pairs_asked * judges * (2 if order == "both" else 1) if n >= 2 else 0


def all_pairs(n: int) -> int:
    """Return how many pairs `n` members make."""
    return n * (n - 1) // 2


def plan(strategy: Strategy, n: int, judges: int = 1, order: Order = "balanced") -> tuple[Planned, ...]:
    """Return every comparison of a cohort of `n` members, one judge pass after the other (contract 7.6, 14.3).

    `order` tells who is seen first. `fixed`: `i`. `balanced`: `i` in `circular`, where each member is first once; in
    `all_pairs` the lower index if and only if i + j + judge_index is odd. `both`: each pair is asked in both orders, as
    two comparisons. Raises ValueError for anything else.
    """
    if judges < 1:
        raise ValueError(f"num_judges_per_comparison must be at least 1, not {judges}")
    if order not in ("balanced", "both", "fixed"):
        raise ValueError(f"pair_order {order!r} is not one of balanced, both, fixed")
    asked = pairs(strategy, n)
    balanced = order == "balanced" and strategy == "all_pairs"
    return tuple(
        Planned(i, j, judge, *((j, i) if flipped else (i, j)))
        for judge in range(judges)
        for i, j in asked
        for flipped in ((False, True) if order == "both" else (balanced and (i + j + judge) % 2 == 0,))
    )


def baseline_plan(cohort_key: str, n: int, judges: int = 1) -> tuple[Planned, ...]:
    """Return every comparison of `n` members with the baseline, which counts as member `n` (contract 7.11).

    `cohort_key` carries the baseline and rubric suffixes. A member is seen first if and only if the sha256 of
    "<cohort key>:<position>", as an integer, plus the judge's index is even. Raises ValueError without a member or
    a judge.
    """
    if n < 1 or judges < 1:
        raise ValueError(f"a comparison needs at least 1 member and 1 judge, not {n} and {judges}")
    sides = [sha256(f"{cohort_key}:{i}".encode("utf-8", "surrogatepass")).digest()[-1] for i in range(n)]
    return tuple(
        Planned(i, n, judge, *((i, n) if (sides[i] + judge) % 2 == 0 else (n, i)))
        for judge in range(judges)
        for i in range(n)
    )
