"""Means, deviations and percentiles that stay finite wherever the true figure is a double.

A lenient verdict may say any finite number, so sums and squares of scores can be beyond every double although their
mean and their deviation are not.
"""

import math
import statistics
from collections.abc import Sequence

LARGE = 1e150
"""Numbers up to this have squares that can be added."""


def mean(values: Sequence[float]) -> float:
    """Return the mean, rounded once so that no order of the values matters; finite for finite values."""
    try:
        return math.fsum(values) / len(values)
    except OverflowError:  # the sum is beyond every double; fractions are slow and hold any sum
        return statistics.mean(values)


def deviation(values: Sequence[float]) -> float:
    """Return the population deviation, the root of the mean squared distance from the mean (contract 7.7)."""
    largest = max(map(abs, values))
    scale = largest if largest > LARGE else 1.0
    middle = mean(values) / scale
    offsets = [value / scale - middle for value in values]
    return scale * math.sqrt(mean([offset * offset for offset in offsets]))


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value at (n - 1) * share of the sorted values, interpolated linearly (contract 7.10)."""
    ordered = sorted(values)
    at = (len(ordered) - 1) * share
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)
