"""How well the rewards of a cohort recover another judge's order of the same answers.

Two usual rank correlations, from -1 (reversed) over 0 (unrelated) to 1 (the same order).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True, slots=True)
class Agreement:
    """Kendall's tau-b and Spearman's rho; NaN when one side has no order at all."""

    kendall: float
    spearman: float


def agreement(rewards: Sequence[float], scores: Sequence[float]) -> Agreement:
    """Return the rank correlations of two equally long sequences; ties count as in tau-b and in mean ranks."""
    from scipy import stats  # noqa: PLC0415 - half a second that only this command needs

    if len(set(rewards)) < 2 or len(set(scores)) < 2:
        return Agreement(math.nan, math.nan)
    return Agreement(
        float(stats.kendalltau(rewards, scores).statistic), float(stats.spearmanr(rewards, scores).statistic)
    )


def mean_agreement(agreements: Sequence[Agreement]) -> Agreement:
    """Return the means over cohorts, those without an order left out."""
    kendall = [one.kendall for one in agreements if not math.isnan(one.kendall)]
    spearman = [one.spearman for one in agreements if not math.isnan(one.spearman)]
    return Agreement(fmean(kendall) if kendall else math.nan, fmean(spearman) if spearman else math.nan)
