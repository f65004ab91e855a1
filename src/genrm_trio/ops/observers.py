"""What the running server tells, as lines of the log and as metrics.

The inner rooms call these methods on the event loop; they count, write a line and return.
"""

from collections.abc import Callable

import structlog
import trio

from genrm_trio.core.cohort import Cohort
from genrm_trio.core.outcome import Answer, CohortFailed, JudgeFailed, Refused
from genrm_trio.judging.judge import CallSeen, FaultSeen
from genrm_trio.ops.metrics import Metrics
from genrm_trio.ops.watchdog import Watchdog
from genrm_trio.runtime.observer import Observer
from genrm_trio.web.prefix import split_prefix
from genrm_trio.web.serving.server import Served

LAG_EVERY_S = 0.5
"""Seconds between two measurements of the event loop's lag."""
LAG_WORTH_A_LINE_S = 0.25

CONTROL_CALLS = frozenset({"status", "prepare", "renew", "retire", "forget", "commit", "restore", "resume"})
ROUTES = frozenset(
    {"/seed_session", "/verify", "/close_session", "/aggregate_metrics", "/reverify_mode", "/compare", "/metrics"}
    | {"/sandbox_access", "/", "/health", "/healthz", "/livez", "/readyz"}
    | {f"/ng-control/v1/checkpoint/{call}" for call in CONTROL_CALLS}
)
"""What a request is counted under (contract 1.1); every other path is `other`, so that labels stay few."""

log = structlog.get_logger()


def outcome_name(answer: Answer) -> str:
    """Return the label of an answer: `rewarded`, `judge_failed`, or the code of a failure or a refusal."""
    if isinstance(answer, JudgeFailed):
        return "judge_failed"
    if isinstance(answer, CohortFailed | Refused):
        return answer.code
    return "rewarded"


class CohortWatch(Observer):
    """Counts and logs the lives of cohorts and the answers of verifications."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def cohort_started(self, key: str) -> None:
        """Count it; the line is for debugging."""
        self._metrics.cohorts_started.inc()
        log.debug("cohort_started", cohort=key)

    def cohort_ended(self, cohort: Cohort, seconds: float) -> None:
        """Count it by outcome, and log it with its time: but at a shutdown, which may end thousands in one step."""
        if cohort.active:
            self._metrics.cohorts_ended.labels("dropped").inc()
            log.info("cohort_dropped", cohort=cohort.id.key, seconds=round(seconds, 3))
            return
        failure = cohort.failure
        outcome = "rewarded" if failure is None else outcome_name(failure)
        self._metrics.cohorts_ended.labels(outcome).inc()
        self._metrics.cohort_seconds.observe(seconds)
        if outcome == "shutting_down":
            return
        fields = {"cohort": cohort.id.key, "outcome": outcome, "members": len(cohort.members)}
        if failure is None:
            log.info("cohort_ended", **fields, seconds=round(seconds, 3))
        else:
            log.warning("cohort_ended", **fields, seconds=round(seconds, 3), text=failure.text)

    def cohort_crashed(self, key: str, error: Exception) -> None:
        """Log the error with its traceback: it is a defect of ours."""
        log.error("cohort_crashed", cohort=key, exc_info=error)

    def shut_down(self, cohorts: int, waiters: int) -> None:
        """Log what was under way."""
        log.warning("shut_down", cohorts=cohorts, waiters=waiters)

    def verified(self, answer: Answer) -> None:
        """Count it by outcome."""
        self._metrics.verifies.labels(outcome_name(answer)).inc()

    def disconnected(self, key: str) -> None:
        """Count it; the line is for debugging."""
        self._metrics.disconnects.inc()
        log.debug("verify_disconnected", cohort=key)


class JudgeWatch:
    """Counts judge calls and logs each kind of fault at a cohort's first, bounded in number."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def on_call(self, call: CallSeen) -> None:
        """Count one exchange and its time."""
        self._metrics.judge_calls.labels(call.kind).inc()
        self._metrics.judge_call_seconds.observe(call.seconds)

    def on_fault(self, fault: FaultSeen) -> None:
        """Count one fault; log it when its cohort has not met the kind before."""
        self._metrics.judge_faults.labels(fault.kind, fault.action).inc()
        if fault.first:
            log.warning(
                "judge_fault",
                once=f"{fault.endpoint} {fault.kind} {fault.features}",
                kind=fault.kind,
                action=fault.action,
                cohort=fault.cohort,
                endpoint=fault.endpoint,
                pair=fault.pair,
                judge_index=fault.judge_index,
                text=fault.text,
            )


class RequestWatch:
    """Counts answered requests by route and status."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def __call__(self, served: Served) -> None:
        """Count one exchange; status 0 is a client that left before its answer."""
        path = split_prefix(served.path)[1].decode("latin-1").partition("?")[0]
        self._metrics.requests.labels(path if path in ROUTES else "other", str(served.status)).inc()


def checkpoint_trouble(text: str) -> None:
    """Log what went wrong with a checkpoint and no call was told."""
    log.warning("checkpoint_trouble", text=text)


async def watch_loop(metrics: Metrics, beat: Callable[[], None] = lambda: None) -> None:
    """Measure for ever how late the event loop wakes a task, and call `beat` each time."""
    while True:
        due = trio.current_time() + LAG_EVERY_S
        await trio.sleep_until(due)
        lag = max(0.0, trio.current_time() - due)
        beat()
        metrics.loop_lag.observe(lag)
        if lag >= LAG_WORTH_A_LINE_S:
            log.warning("event_loop_lag", seconds=round(lag, 3), once="event_loop_lag")


def loop_watchdog(metrics: Metrics, stuck_s: float) -> Watchdog:
    """A watchdog that logs where the loop is stuck, and counts how often it was; `watch_loop` gives it its beats."""

    def stuck(where: str) -> None:
        metrics.loop_stuck.inc()
        log.error("event_loop_stuck", for_s=stuck_s, where=where)

    return Watchdog(stuck_s, stuck, lambda seconds: log.warning("event_loop_runs_again", seconds=round(seconds, 3)))
