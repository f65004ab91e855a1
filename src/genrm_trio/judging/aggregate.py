"""Statistics over many finished rollouts, as a collector asks for them after its run (contract 9).

A pure function of the rows. Nothing here knows cohorts: the rows come from outside and may be of any run.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from statistics import median

from genrm_trio.core.outcome import JSON
from genrm_trio.judging.figures import mean

TASK = "_ng_task_index"
ROLLOUT = "_ng_rollout_index"

_LARGEST = 1e150  # no metric is larger, and its square is still a double

_AT_ONCE = 32768  # values that are sorted or added in one go, which holds up every other thread

Row = Mapping[str, object]
Columns = dict[str, int | float]


class DuplicateRollout(ValueError):
    """Two rows claim to be the same rollout of the same task."""


class Aggregate:
    """`group_level_metrics`, `agent_metrics` and `key_metrics` of rows, for a caller who writes each before the next.

    A column is a top-level number or boolean, or a number of `response.usage`; names with a leading underscore are
    private and left out. Statistics are over the rows that have the column: `std` is the sample deviation, 0 when it is
    undefined. Rows without a task index count for the agent only. Without rows all three are empty.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self._columns = [_columns(row) for row in rows]

    def groups(self) -> Iterator[JSON]:
        """Each of `group_level_metrics`. Raises DuplicateRollout."""
        groups: dict[int, list[int]] = {}
        for at, row in enumerate(self._rows):
            if (task := _index(row, TASK)) is not None:
                groups.setdefault(task, []).append(at)
        for task in sorted(groups):
            members = groups[task]
            yield _group(task, [self._rows[at] for at in members], [self._columns[at] for at in members])

    def agent(self) -> dict[str, JSON]:
        """`agent_metrics` and `key_metrics`."""
        agent = _statistics(self._columns)
        return {
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


def _mean(values: Sequence[float]) -> float:
    """Return the mean; a column has no sum beyond every double. Of many values others get their turn meanwhile."""
    return mean(values) if len(values) <= _AT_ONCE else math.fsum(value for value in values) / len(values)


def _median(values: Sequence[float]) -> float:
    """Return the median; many values are sorted in runs, since other threads wait while a list is sorted."""
    if len(values) <= _AT_ONCE:
        return median(values)
    runs = [sorted(values[at : at + _AT_ONCE]) for at in range(0, len(values), _AT_ONCE)]
    middle = (len(values) - 1) // 2
    low, *high = islice(merge(*runs), middle, middle + 2 - len(values) % 2)
    return (low + high[0]) / 2 if high else low


def _sample_deviation(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    middle = _mean(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))


def _index(row: Row, name: str) -> int | None:
    value = row.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


_STATISTICS: dict[str, Callable[[list[float]], float]] = {
    "mean": _mean,
    "max": max,
    "min": min,
    "median": _median,
    "std": _sample_deviation,
}
