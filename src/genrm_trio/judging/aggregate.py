"""Statistics over many finished rollouts, as a collector asks for them after its run (contract 9).

A pure function of the rows. Nothing here knows cohorts: the rows come from outside and may be of any run.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from genrm_trio.core.outcome import JSON
from genrm_trio.judging.figures import mean

TASK = "_ng_task_index"
ROLLOUT = "_ng_rollout_index"

_LARGEST = 1e150  # no metric is larger, and its square is still a double

Row = Mapping[str, object]
Columns = dict[str, int | float]


class DuplicateRollout(ValueError):
    """Two rows claim to be the same rollout of the same task."""


def aggregate_metrics(rows: Sequence[Row]) -> dict[str, JSON]:
    """Return `group_level_metrics`, `agent_metrics` and `key_metrics` of the rows; three empties without rows.

    A column is a top-level number or boolean, or a number of `response.usage`; names with a leading underscore are
    private and left out. Statistics are over the rows that have the column: `std` is the sample deviation, 0 when it is
    undefined. Rows without a task index count for the agent only. Raises DuplicateRollout.
    """
    columns = [_columns(row) for row in rows]
    agent = _statistics(columns)
    groups: dict[int, list[int]] = {}
    for at, row in enumerate(rows):
        if (task := _index(row, TASK)) is not None:
            groups.setdefault(task, []).append(at)
    return {
        "group_level_metrics": [
            _group(task, [rows[at] for at in members], [columns[at] for at in members])
            for task, members in sorted(groups.items())
        ],
        "agent_metrics": agent,
        "key_metrics": {name: value for name, value in agent.items() if name.startswith("mean/")},
    }


def _group(task: int, rows: Sequence[Row], columns: Sequence[Columns]) -> JSON:
    """Return the statistics of one task. How many rollouts were expected is not told, so as many as came."""
    return {
        TASK: task,
        **_statistics(columns),
        "sample": _sample(rows[0]),
        "num_rollouts": len(rows),
        "expected_num_rollouts": len(rows),
        "missing_num_rollouts": 0,
        "reward_profile_completion_pct": 100.0,
        "rollout_infos": _rollout_infos(task, rows, columns),
    }


def _sample(row: Row) -> JSON:
    agent = row.get("agent_ref")
    sample: dict[str, JSON] = {}
    if isinstance(agent, dict):
        sample["agent_ref"] = agent
    return sample


def _rollout_infos(task: int, rows: Sequence[Row], columns: Sequence[Columns]) -> list[JSON]:
    infos: dict[int, JSON] = {}
    for row, own in zip(rows, columns, strict=True):
        rollout = _index(row, ROLLOUT)
        if rollout is None:
            continue
        if rollout in infos:
            raise DuplicateRollout(f"two rows have {TASK}={task} and {ROLLOUT}={rollout}")
        infos[rollout] = {"rollout_id": f"{task}:{rollout}", TASK: task, ROLLOUT: rollout, **own}
    return list(infos.values())


def _columns(row: Row) -> Columns:
    """Return a row's numbers by column, booleans as 0 or 1; the row's own win over those of its usage."""
    response = row.get("response")
    usage = response.get("usage") if isinstance(response, dict) else None
    columns: Columns = {}
    for name, value in (*row.items(), *(usage.items() if isinstance(usage, dict) else ())):
        if isinstance(value, int | float) and abs(value) < _LARGEST and not name.startswith("_"):
            columns.setdefault(name, int(value) if isinstance(value, bool) else value)
    return columns


def _statistics(columns: Sequence[Columns]) -> dict[str, JSON]:
    values: dict[str, list[float]] = {}
    for row in columns:
        for name, value in row.items():
            values.setdefault(name, []).append(float(value))
    return {
        f"{statistic}/{name}": compute(own)
        for statistic, compute in _STATISTICS.items()
        for name, own in values.items()
    }


def _sample_deviation(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    middle = mean(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))


def _index(row: Row, name: str) -> int | None:
    value = row.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


_STATISTICS: dict[str, Callable[[list[float]], float]] = {
    "mean": mean,
    "max": max,
    "min": min,
    "median": median,
    "std": _sample_deviation,
}
