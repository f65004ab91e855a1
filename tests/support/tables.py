"""A reply of `/aggregate_metrics` as one value."""

from collections.abc import Sequence

from genrm_trio.core.outcome import JSON
from genrm_trio.judging.aggregate import Aggregate, Row


def aggregate_metrics(rows: Sequence[Row]) -> dict[str, JSON]:
    """The three parts together; raises DuplicateRollout."""
    table = Aggregate(rows)
    return {"group_level_metrics": list(table.groups()), **table.agent()}
