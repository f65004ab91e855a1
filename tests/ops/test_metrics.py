"""Metrics and observers: every event is counted under its name, and states are read when asked for."""

from collections import Counter

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs
from trio.testing import MockClock

from genrm_trio.core.cohort import Cohort, Phase
from genrm_trio.core.identity import CohortId
from genrm_trio.core.outcome import Answer, CohortFailed, JudgeFailed, Refused, Rewarded
from genrm_trio.judging.judge import CallSeen, FaultSeen
from genrm_trio.ops.metrics import Metrics, Reading
from genrm_trio.ops.observers import LAG_EVERY_S, CohortWatch, JudgeWatch, outcome_name, watch_loop


def samples(metrics: Metrics) -> dict[str, float]:
    """Return every sample of an exposition by `name{label=value,...}`."""
    found = {}
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            found[f"{sample.name.removeprefix('genrm_trio_')}{{{labels}}}"] = sample.value
    return found


def cohort(phase: Phase, failure: JudgeFailed | CohortFailed | None = None) -> Cohort:
    return Cohort(
        CohortId("group_id::g::group_attempt::0", "g", 0), 2, "p", created_at=0.0, phase=phase, failure=failure
    )


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        (Rewarded({"reward": 1.0}), "rewarded"),
        (JudgeFailed("no"), "judge_failed"),
        (CohortFailed("collection_timeout", "late"), "collection_timeout"),
        (Refused("different_response", "other"), "different_response"),
    ],
)
def test_every_verify_is_counted_by_its_outcome(answer: Answer, name: str) -> None:
    metrics = Metrics()
    watch = CohortWatch(metrics)
    watch.verified(answer)
    watch.verified(answer)
    assert outcome_name(answer) == name
    assert samples(metrics)[f"verifies_total{{outcome={name}}}"] == 2


def test_a_cohorts_life_is_counted_and_logged() -> None:
    metrics = Metrics()
    watch = CohortWatch(metrics)
    with capture_logs() as lines:
        watch.cohort_started("k")
        watch.cohort_ended(cohort(Phase.COMPLETED), 12.0)
        watch.cohort_ended(cohort(Phase.FAILED, CohortFailed("superseded", "by attempt 2")), 1.0)
        watch.cohort_ended(cohort(Phase.COLLECTING), 1.0)
        watch.disconnected("k")
        watch.cohort_crashed("k", ValueError("x"))
    counted = samples(metrics)
    assert counted["cohorts_started_total{}"] == 1
    assert counted["cohorts_ended_total{outcome=rewarded}"] == 1
    assert counted["cohorts_ended_total{outcome=superseded}"] == 1
    assert counted["cohorts_ended_total{outcome=dropped}"] == 1
    assert counted["cohort_seconds_sum{}"] == 13
    assert counted["verify_disconnects_total{}"] == 1
    failed = next(line for line in lines if line.get("outcome") == "superseded")
    assert failed["text"] == "by attempt 2"
    assert failed["log_level"] == "warning"
    assert isinstance(lines[-1]["exc_info"], ValueError)


def test_judge_calls_and_faults_are_counted_and_the_first_is_logged() -> None:
    metrics = Metrics()
    watch = JudgeWatch(metrics)
    with capture_logs() as lines:
        watch.on_call(CallSeen("judge:1", "answered", 2.0, 200))
        for first in (True, False):
            watch.on_fault(FaultSeen("timeout", "permanent", first, "k", "judge:1", (0, 1), 0, "no reply"))
    counted = samples(metrics)
    assert counted["judge_calls_total{kind=answered}"] == 1
    assert counted["judge_call_seconds_sum{}"] == 2
    assert counted["judge_faults_total{action=permanent,kind=timeout}"] == 2
    assert counted["judge_faults_total{action=retry_without_budget,kind=refused}"] == 0, "known kinds start at nought"
    assert [line["kind"] for line in lines] == ["timeout"]


def reading(**fields: object) -> Reading:
    values: dict[str, object] = {
        "cohorts": Counter({Phase.COLLECTING: 3}),
        "held_members": 48,
        "waiting_verifies": 40,
        "open_sessions": 41,
        "groups": 5,
        "admission_open": False,
        "calls_in_flight": 2,
        "calls_waiting": 1,
        "running_requests": 42,
    }
    return Reading(**(values | fields))  # type: ignore[arg-type]  # names and types are spelled above


def test_states_are_read_when_asked_for() -> None:
    metrics = Metrics()
    now = [reading()]
    metrics.read_from(lambda: now[0])
    shown = samples(metrics)
    assert shown["cohorts{phase=collecting}"] == 3
    assert shown["cohorts{phase=held}"] == 0
    assert shown["held_members{}"] == 48
    assert shown["admission_open{}"] == 0
    assert not any(name.startswith(("checkpoint_phase", "judge_endpoint")) for name in shown)
    now[0] = reading(checkpoint_phase="prepared", resting=[("judge:1", True), ("judge:2", False)])
    shown = samples(metrics)
    assert shown["checkpoint_phase{phase=prepared}"] == 1
    assert shown["checkpoint_phase{phase=idle}"] == 0
    assert shown["judge_endpoint_resting{endpoint=judge:1}"] == 1


async def test_the_loops_lag_is_measured(nursery: trio.Nursery, mock_clock: MockClock) -> None:
    metrics = Metrics()
    nursery.start_soon(watch_loop, metrics)
    await trio.testing.wait_all_tasks_blocked()
    with capture_logs() as lines:
        mock_clock.jump(LAG_EVERY_S + 3.0)
        await trio.testing.wait_all_tasks_blocked()
    assert samples(metrics)["event_loop_lag_seconds_sum{}"] == 3.0
    assert lines[0]["seconds"] == 3.0
