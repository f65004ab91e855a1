"""Metrics for Prometheus, in the project's own words: cohorts, members, verifies, judge calls, checkpoints.

Counters are moved by the observers; everything that is a state is read from the running server when somebody
asks, so an idle server does nothing for its metrics. Labels are fixed sets or configured endpoints, never ids.
"""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from genrm_trio.core.cohort import Phase
from genrm_trio.judging.faults import RULES

PREFIX: Final = "genrm_trio"
CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
COHORT_BUCKETS: Final = (0.1, 0.5, 1, 5, 15, 60, 180, 600, 1800, 3600, 14400)
CALL_BUCKETS: Final = (0.05, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 180, 600, 1800)
LAG_BUCKETS: Final = (0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 1, 5)


@dataclass(frozen=True, slots=True)
class Reading:
    """The states of a running server at one moment.

    cohorts: how many are in each phase. held_members: places reserved by active cohorts. calls_in_flight,
    calls_waiting: judge slots. awaits_restore: data requests wait until a restore was resumed, though admission
    is open. waiting_requests: data requests that wait for that or for admission. checkpoint_phase: None when
    checkpoints are off. resting: judge endpoints by label, whether each rests after faults. log_lines_lost,
    trace_events_lost: what could not be written.
    """

    cohorts: Tally[Phase]
    held_members: int
    waiting_verifies: int
    open_sessions: int
    groups: int
    admission_open: bool
    calls_in_flight: int
    calls_waiting: int
    running_requests: int
    awaits_restore: bool = False
    waiting_requests: int = 0
    connections: int = 0
    checkpoint_phase: str | None = None
    resting: Sequence[tuple[str, bool]] = ()
    log_lines_lost: int = 0
    trace_events_lost: int = 0


class Metrics:
    """All metrics of one process, on a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.verifies = self._counter("verifies", "Verifications answered, by outcome or refusal code.", "outcome")
        self.requests = self._counter("requests", "Answered requests; status 0: the client left.", "route", "status")
        self.disconnects = self._counter("verify_disconnects", "Waiting verifications whose client went away.")
        self.cohorts_started = self._counter("cohorts_started", "Cohorts opened by a first member.")
        self.cohorts_ended = self._counter("cohorts_ended", "Cohorts that became terminal, by outcome.", "outcome")
        self.cohort_seconds = self._histogram(
            "cohort_seconds", "From a cohort's first member to its outcome.", COHORT_BUCKETS
        )
        self.judge_calls = self._counter("judge_calls", "Exchanges with the judge, by how they ended.", "kind")
        self.judge_call_seconds = self._histogram("judge_call_seconds", "Time of one exchange.", CALL_BUCKETS)
        self.judge_faults = self._counter("judge_faults", "Faults, by kind and action.", "kind", "action")
        self.loop_lag = self._histogram(
            "event_loop_lag_seconds", "How late a task that asked for a moment was woken.", LAG_BUCKETS
        )
        self.loop_stuck = self._counter("event_loop_stuck", "Times that the event loop ran no task for `loop_stuck_s`.")
        for kind, rule in RULES.items():
            self.judge_faults.labels(kind.value, rule.action.value)
        ProcessCollector(registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{PREFIX}_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"{PREFIX}_{name}", text, buckets=buckets, registry=self.registry)

    def read_from(self, source: Callable[[], Reading]) -> None:
        """Report the states of this server too, read anew at each exposition."""
        self.registry.register(_States(source))

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text form, whose media type is CONTENT_TYPE."""
        return generate_latest(self.registry)


class _States(Collector):
    """Gauges and counters made of one reading."""

    def __init__(self, source: Callable[[], Reading]) -> None:
        self._source = source

    def describe(self) -> Iterable[Metric]:
        """Name nothing in advance: at registration there may be no server yet."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Read the server and yield what they are."""
        reading = self._source()
        yield _by_label("cohorts", "Cohorts retained, by phase.", "phase", [(p, reading.cohorts[p]) for p in Phase])
        yield _gauge("held_members", "Places reserved by active cohorts, N each.", reading.held_members)
        yield _gauge("waiting_verifies", "Verifications that wait for an outcome.", reading.waiting_verifies)
        yield _gauge("open_sessions", "Sessions bound and not ended.", reading.open_sessions)
        yield _gauge("groups", "Groups with a watermark.", reading.groups)
        yield _gauge("admission_open", "1 while admission is open.", reading.admission_open)
        yield _gauge("awaiting_restore", "1 while data requests wait for a restore.", reading.awaits_restore)
        yield _gauge("waiting_requests", "Data requests that wait to be let in.", reading.waiting_requests)
        yield _gauge("running_requests", "Data requests that passed admission.", reading.running_requests)
        yield _gauge("connections", "Open connections.", reading.connections)
        yield _gauge("judge_calls_in_flight", "Judge slots held.", reading.calls_in_flight)
        yield _gauge("judge_calls_waiting", "Comparisons that wait for a judge slot.", reading.calls_waiting)
        yield _total("log_lines_lost", "Lines of the log that could not be written.", reading.log_lines_lost)
        yield _total("trace_events_lost", "Events that the trace file lacks.", reading.trace_events_lost)
        if reading.checkpoint_phase is not None:
            phases = ("idle", "preparing", "prepared", "committed", "restored")
            states = [(phase, phase == reading.checkpoint_phase) for phase in phases]
            yield _by_label("checkpoint_phase", "1 for the phase of the control plane.", "phase", states)
        if reading.resting:
            text = "1 while an endpoint rests after faults."
            yield _by_label("judge_endpoint_resting", text, "endpoint", reading.resting)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, value=float(value))


def _total(name: str, text: str, value: int) -> Metric:
    return CounterMetricFamily(f"{PREFIX}_{name}", text, value=float(value))


def _by_label(name: str, text: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    family = GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=[label])
    for of, value in values:
        family.add_metric([of], float(value))
    return family
