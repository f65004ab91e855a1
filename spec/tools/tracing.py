"""Traces of the running server, recorded and checked by TLC; and, to see that the check is sharp, corrupted ones."""

import time
from collections.abc import Iterator

from spec.tools.replaying import Row
from tests.spec.recorder import BOUNDS, record

from genrm_trio.core.trace import Event
from genrm_trio.ops.tla.traces import check


def recorded(count: int) -> list[list[Event]]:
    """At least so many traces, of as many afternoons as it takes."""
    traces: list[list[Event]] = []
    seed = 0
    while len(traces) < count:
        traces += record(seed)
        seed += 1
    return traces


def checked(count: int) -> list[Row]:
    """Record and check at least so many traces."""
    return list(_rows(count))


def _rows(count: int) -> Iterator[Row]:
    started = time.perf_counter()
    traces = recorded(count)
    events = sum(map(len, traces))
    yield f"{len(traces)} traces recorded", f"{events:,} events", events, time.perf_counter() - started, None
    started = time.perf_counter()
    found = check(traces, BOUNDS)
    wrong = [
        f"trace {number}, event {one.followed + 1}: {one.impossible or one.broken}"
        for number, one in enumerate(found)
        if not one.accepted
    ]
    outcome = f"{sum(one.accepted for one in found)} of {len(traces)} are behaviours of the spec"
    yield "traces checked", outcome, events, time.perf_counter() - started, wrong[0] if wrong else None
