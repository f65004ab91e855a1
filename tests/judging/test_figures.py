"""Means, deviations and percentiles: what they are for any finite numbers."""

import math
import statistics
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genrm_trio.judging.figures import deviation, mean, percentile

LARGEST = sys.float_info.max
numbers = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30)
usual = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30)


@given(numbers)
def test_a_mean_lies_between_the_least_and_the_largest(values: list[float]) -> None:
    assert min(values) <= mean(values) <= max(values) or mean(values) == pytest.approx(min(values))


@given(numbers)
def test_a_deviation_is_finite_and_at_most_half_the_range(values: list[float]) -> None:
    half = max(values) / 2 - min(values) / 2
    assert 0.0 <= deviation(values) <= max(half * (1 + 1e-9), max(map(abs, values)) * 1e-12)


@given(usual)
def test_usual_numbers_have_the_usual_figures(values: list[float]) -> None:
    assert mean(values) == pytest.approx(statistics.fmean(values))
    assert deviation(values) == pytest.approx(statistics.pstdev(values), abs=1e-6)


@pytest.mark.parametrize(
    ("values", "middle", "spread"),
    [
        ([LARGEST, LARGEST, LARGEST], LARGEST, 0.0),
        ([LARGEST, -LARGEST], 0.0, LARGEST),
        ([LARGEST, LARGEST, -LARGEST, -LARGEST], 0.0, LARGEST),
        ([1.0e160, 3.0e160], 2.0e160, 1.0e160),
        ([LARGEST, 0.0], LARGEST / 2, LARGEST / 2),
    ],
)
def test_figures_of_numbers_whose_sums_or_squares_overflow(values: list[float], middle: float, spread: float) -> None:
    assert mean(values) == pytest.approx(middle)
    assert deviation(values) == pytest.approx(spread)


def test_a_mean_is_rounded_once() -> None:
    assert mean([0.1] * 10) == 0.1


def test_what_is_not_finite_stays_so() -> None:
    assert math.isnan(mean([1.0, math.nan]))
    assert mean([1.0, math.inf]) == math.inf


@given(usual, st.floats(0, 1))
def test_a_percentile_lies_between_its_neighbours(values: list[float], share: float) -> None:
    at = (len(values) - 1) * share
    ordered = sorted(values)
    assert ordered[math.floor(at)] - 1e-9 <= percentile(values, share) <= ordered[math.ceil(at)] + 1e-9
