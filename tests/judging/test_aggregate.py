"""Statistics over rows from outside: which columns there are, and that odd rows do no harm."""

import json
import math
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.tables import aggregate_metrics

from genrm_trio.judging.aggregate import DuplicateRollout


def row(task: Any, rollout: Any, **columns: Any) -> dict[str, Any]:
    return {"_ng_task_index": task, "_ng_rollout_index": rollout, **columns}


def test_private_columns_texts_and_nulls_are_no_columns() -> None:
    metrics: Any = aggregate_metrics(
        [row(0, 0, reward=1, _ng_group_attempt=2, _ng_attempt_index=1, _x=1.0, text="t", none=None, many=[1])]
    )
    assert metrics["agent_metrics"] == {
        "mean/reward": 1.0,
        "max/reward": 1.0,
        "min/reward": 1.0,
        "median/reward": 1.0,
        "std/reward": 0.0,
    }
    assert metrics["key_metrics"] == {"mean/reward": 1.0}
    [group] = metrics["group_level_metrics"]
    assert group["rollout_infos"] == [{"rollout_id": "0:0", "_ng_task_index": 0, "_ng_rollout_index": 0, "reward": 1}]
    assert group["sample"] == {}


def test_a_column_counts_the_rows_that_have_it() -> None:
    metrics: Any = aggregate_metrics([row(0, 0, a=1.0), row(0, 1, b=4), row(0, 2, a=2.0, b=True), row(0, 3, b=1)])
    assert metrics["agent_metrics"]["mean/a"] == 1.5
    assert metrics["agent_metrics"]["mean/b"] == 2.0
    assert metrics["agent_metrics"]["median/b"] == 1.0
    assert metrics["agent_metrics"]["std/b"] == pytest.approx(math.sqrt(3))


def test_the_numbers_of_the_usage_are_columns_behind_the_row_s_own() -> None:
    usage = {"input_tokens": 3, "total": 7, "details": {"cached": 1}, "_private": 1}
    metrics: Any = aggregate_metrics([row(0, 0, total=9, response={"usage": usage, "other": 5})])
    assert metrics["key_metrics"] == {"mean/total": 9.0, "mean/input_tokens": 3.0}


def test_groups_come_in_order_of_their_task() -> None:
    metrics: Any = aggregate_metrics([row(7, 0, a=1), row(2, 0, a=2), row(7, 1, a=3)])
    assert [g["_ng_task_index"] for g in metrics["group_level_metrics"]] == [2, 7]
    assert [g["num_rollouts"] for g in metrics["group_level_metrics"]] == [1, 2]


def test_rows_that_name_no_task_or_rollout_still_count() -> None:
    metrics: Any = aggregate_metrics([row(None, 0, a=1), row(0, None, a=3), row(True, 0, a=5)])
    assert metrics["agent_metrics"]["mean/a"] == 3.0
    [group] = metrics["group_level_metrics"]
    assert (group["num_rollouts"], group["rollout_infos"]) == (1, [])


def test_the_same_rollout_twice_is_an_error() -> None:
    aggregate_metrics([row(0, 1, a=1), row(1, 1, a=1)])
    with pytest.raises(DuplicateRollout, match="_ng_task_index=0 and _ng_rollout_index=1"):
        aggregate_metrics([row(0, 1, a=1), row(0, 1, a=2)])


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
ROWS = st.dictionaries(
    st.sampled_from(["_ng_task_index", "reward", "a", "response", "agent_ref"]),
    VALUES | st.integers(-(10**400), 10**400) | st.dictionaries(st.sampled_from(["usage", "a"]), VALUES),
)


@given(st.lists(ROWS, max_size=6))
def test_any_rows_give_json(rows: list[dict[str, Any]]) -> None:
    metrics: Any = aggregate_metrics(rows)
    statistics = {**metrics["agent_metrics"], **metrics["key_metrics"]}
    assert all(isinstance(value, float) and math.isfinite(value) for value in statistics.values())
    for group in metrics["group_level_metrics"]:
        json.dumps({k: v for k, v in group.items() if k != "sample"}, allow_nan=False)


@given(st.lists(st.floats(-1e140, 1e140), min_size=1, max_size=20))
def test_statistics_keep_their_order(values: list[float]) -> None:
    metrics: Any = aggregate_metrics([row(0, k, a=value) for k, value in enumerate(values)])
    found = metrics["agent_metrics"]
    assert found["min/a"] <= found["median/a"] <= found["max/a"]
    assert found["min/a"] - 1e125 <= found["mean/a"] <= found["max/a"] + 1e125
    assert found["std/a"] >= 0.0


@pytest.mark.parametrize("count", [3, 4, 10, 11])
def test_many_values_are_sorted_in_runs(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genrm_trio.judging.aggregate._AT_ONCE", 3)
    values = [float((7 * n) % 13) for n in range(count)]
    metrics: Any = aggregate_metrics([row(0, n, a=value) for n, value in enumerate(values)])
    assert metrics["agent_metrics"]["median/a"] == median(values)
    assert metrics["agent_metrics"]["mean/a"] == math.fsum(values) / count
