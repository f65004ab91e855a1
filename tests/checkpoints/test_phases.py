"""The phase machine: the contract's table row by row, the order of checks, fencing, replies, lease."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from genrm_trio.checkpoints.errors import ControlRefused
from genrm_trio.checkpoints.phases import (
    MAX_RESUMED,
    TABLE,
    Arrival,
    LeaseRules,
    Phase,
    PhaseMachine,
    Reply,
    Step,
    arrive,
    state_diagram,
)
from genrm_trio.core.identity import EpisodeId

RULES = LeaseRules(max_deadline_s=1000.0, grace_s=600.0)
WALL = 1_700_000_000.0
DONE: Reply = {"phase": "done"}
REPORTS = (
    Step.READY,
    Step.PREPARE_RAISED,
    Step.WRITTEN,
    Step.INSTALLED,
    Step.RESTORE_FAILED,
    Step.LEASE_EXPIRED,
)
CALLS = tuple(step for step in Step if step not in REPORTS)


def at(now: float, within: float = 100.0) -> Arrival:
    """A call that arrives at `now` and allows `within` seconds."""
    return arrive(WALL + now + within, wall=WALL + now, now=now, rules=RULES)


def call(machine: PhaseMachine, step: Step, checkpoint_id: str = "ck", now: float = 0.0) -> object:
    """Make a call; returns what it returned."""
    match step:
        case Step.PREPARE:
            return machine.prepare(checkpoint_id, at(now))
        case Step.RENEW:
            return machine.renew(checkpoint_id, at(now))
        case Step.COMMIT:
            return machine.commit(checkpoint_id, "dir", None, at(now), blocked=None)
        case Step.RESTORE:
            return machine.restore(checkpoint_id, "dir", None, at(now))
        case Step.RESUME:
            return machine.resume(checkpoint_id, now)
        case _:
            return machine.retire(step, checkpoint_id, at(now))  # type: ignore[func-returns-value]  # to have one shape


def in_phase(phase: Phase, checkpoint_id: str = "ck") -> PhaseMachine:
    """A machine with this checkpoint in this phase."""
    machine = PhaseMachine()
    steps = {
        Phase.IDLE: [],
        Phase.PREPARING: [Step.PREPARE],
        Phase.PREPARED: [Step.PREPARE, Step.READY],
        Phase.COMMITTED: [Step.PREPARE, Step.READY, Step.COMMIT, Step.WRITTEN],
        Phase.RESTORING: [Step.RESTORE],
        Phase.RESTORED: [Step.RESTORE, Step.INSTALLED],
    }[phase]
    for step in steps:
        if step in CALLS:
            call(machine, step, checkpoint_id)
        else:
            report(machine, step, checkpoint_id)
    assert machine.phase is phase
    return machine


def report(machine: PhaseMachine, step: Step, checkpoint_id: str) -> None:
    match step:
        case Step.READY:
            machine.ready(checkpoint_id, DONE)
        case Step.WRITTEN:
            machine.written(checkpoint_id, DONE)
        case Step.INSTALLED:
            machine.installed(checkpoint_id, DONE)
        case Step.PREPARE_RAISED:
            machine.prepare_raised(checkpoint_id)
        case Step.RESTORE_FAILED:
            machine.restore_failed(checkpoint_id)
        case _:
            machine.lease_expired(10**6)


def refusal(machine: PhaseMachine, step: Step, checkpoint_id: str = "ck", now: float = 0.0) -> str:
    """The code a call is refused with; nothing changed then."""
    before = snapshot(machine)
    with pytest.raises(ControlRefused) as caught:
        call(machine, step, checkpoint_id, now)
    assert snapshot(machine) == before
    assert caught.value.status == 409
    return caught.value.code


def snapshot(machine: PhaseMachine) -> tuple[object, ...]:
    return machine.phase, machine.active_id, machine.lease, tuple(machine._resumed), str(machine._open)


# -- the table -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("step", CALLS)
def test_each_call_in_each_phase_does_what_the_table_says(phase: Phase, step: Step) -> None:
    machine = in_phase(phase)
    target = TABLE.get((phase, step))
    if target is None:
        assert refusal(machine, step) == "invalid_phase"
    else:
        call(machine, step)
        assert machine.phase is target


@pytest.mark.parametrize(
    ("step", "phases"),
    [
        (Step.PREPARE, "idle preparing prepared committed"),
        (Step.RENEW, "preparing prepared committed restoring restored"),
        (Step.COMMIT, "prepared committed"),
        (Step.RESTORE, "idle restoring restored"),
        (Step.RESUME, "idle preparing prepared committed restoring restored"),
        (Step.RETIRE, "idle restored"),
        (Step.FORGET, "idle restored"),
    ],
)
def test_the_table_allows_what_the_contract_allows(step: Step, phases: str) -> None:
    assert {phase for phase, possible in TABLE if possible is step} == set(phases.split())


def test_a_refusal_says_where_the_call_would_be_possible() -> None:
    with pytest.raises(ControlRefused, match="commit is possible in phase committed or prepared, not in idle"):
        call(PhaseMachine(), Step.COMMIT)


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.IDLE])
def test_every_open_phase_ends_by_resume_and_by_its_lease(phase: Phase) -> None:
    for step in (Step.RESUME, Step.LEASE_EXPIRED):
        machine = in_phase(phase)
        call(machine, step) if step is Step.RESUME else report(machine, step, "ck")
        assert (machine.phase, machine.active_id, machine.visible_lease) == (Phase.IDLE, None, None)
        assert machine.fenced("ck")


def test_a_running_restore_is_told_as_idle() -> None:
    machine = in_phase(Phase.RESTORING)
    assert (machine.visible_phase, machine.visible_id, machine.visible_lease) == (Phase.IDLE, None, None)
    machine.installed("ck", DONE)
    assert (machine.visible_phase, machine.visible_id) == (Phase.RESTORED, "ck")
    assert machine.visible_lease == WALL + 100 + 600


@pytest.mark.parametrize(
    ("phase", "step"), [(Phase.PREPARING, Step.PREPARE_RAISED), (Phase.RESTORING, Step.RESTORE_FAILED)]
)
def test_what_failed_leaves_no_trace(phase: Phase, step: Step) -> None:
    machine = in_phase(phase)
    report(machine, step, "ck")
    assert snapshot(machine) == snapshot(PhaseMachine())


def test_the_diagram_is_made_from_the_table() -> None:
    diagram = state_diagram()
    assert diagram.startswith("stateDiagram-v2\n    [*] --> idle\n")
    assert "    prepared --> committed: written\n" in diagram
    assert "    preparing --> idle: prepare raised, resume, lease expired\n" in diagram
    drawn = re.findall(r"(\w+) --> (\w+): (.+)", diagram)
    steps = {(source, step, target) for source, target, steps in drawn for step in steps.split(", ")}
    assert steps == {(phase, step, target) for (phase, step), target in TABLE.items() if phase is not target}


# -- the order of checks -------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [step for step in CALLS if step is not Step.RESUME])
def test_stale_comes_before_conflict_and_conflict_before_phase(step: Step) -> None:
    machine = PhaseMachine()
    machine.resume("old", 0.0)
    assert refusal(machine, step, "old") == "stale_checkpoint"
    machine.prepare("ck", at(0))
    assert refusal(machine, step, "old") == "stale_checkpoint"
    assert refusal(machine, step, "other") == "checkpoint_conflict"


def test_a_resume_of_another_id_is_a_conflict_but_a_repeated_one_is_not() -> None:
    machine = PhaseMachine()
    machine.resume("old", 0.0)
    machine.prepare("ck", at(0))
    assert refusal(machine, Step.RESUME, "other") == "checkpoint_conflict"
    assert machine.resume("old", 0.0) is True
    assert machine.active_id == "ck"


def test_resume_tells_whether_something_was_open() -> None:
    machine = in_phase(Phase.PREPARED)
    assert machine.resume("ck", 0.0) is False
    assert machine.resume("ck", 0.0) is True
    assert machine.resume("never open", 0.0) is True
    assert refusal(machine, Step.PREPARE, "never open") == "stale_checkpoint"


def test_the_last_resumed_ids_are_remembered_and_no_more() -> None:
    machine = PhaseMachine()
    for n in range(MAX_RESUMED + 1):
        machine.resume(f"ck-{n}", 0.0)
    assert not machine.fenced("ck-0")
    assert all(machine.fenced(f"ck-{n}") for n in range(1, MAX_RESUMED + 1))
    machine.resume("ck-1", 0.0)
    machine.resume("new", 0.0)
    assert machine.fenced("ck-1")
    assert not machine.fenced("ck-2")


# -- replies from memory -------------------------------------------------------------------------------


def test_a_finished_prepare_is_answered_from_memory() -> None:
    machine = PhaseMachine()
    assert machine.prepare("ck", at(0)) is None
    assert machine.prepare("ck", at(1)) is None
    machine.ready("ck", DONE)
    assert machine.prepare("ck", at(2)) == DONE
    machine.commit("ck", "dir", None, at(3), blocked=None)
    machine.written("ck", DONE)
    assert machine.prepare("ck", at(4)) == DONE
    assert machine.phase is Phase.COMMITTED


A, B = EpisodeId("a"), EpisodeId("b", 1)


@pytest.mark.parametrize("step", [Step.COMMIT, Step.RESTORE])
def test_a_repeat_is_joined_and_another_directory_or_scope_is_a_conflict(step: Step) -> None:
    machine = in_phase(Phase.PREPARED if step is Step.COMMIT else Phase.IDLE)

    def asked(directory: str, scope: frozenset[EpisodeId] | None, now: float = 0.0) -> object:
        if step is Step.COMMIT:
            return machine.commit("ck", directory, scope, at(now), blocked=None)
        return machine.restore("ck", directory, scope, at(now))

    first = asked("dir", frozenset([A, B]))
    for _ in range(2):
        assert asked("dir", frozenset([B, A]), 500.0) is first
        with pytest.raises(ControlRefused, match="checkpoint_dir") as caught:
            asked("other", frozenset([A, B]))
        assert caught.value.code == "checkpoint_conflict"
        assert "the first, which was 'dir'" in caught.value.detail
        assert "resume and take a new checkpoint_id" in caught.value.detail, "the first may have been a mistake"
        for scope in (None, frozenset([A]), frozenset[EpisodeId]()):
            with pytest.raises(ControlRefused, match="episode_ids") as caught:
                asked("dir", scope)
            assert caught.value.code == "checkpoint_conflict"
        if machine.phase in (Phase.PREPARED, Phase.RESTORING):
            report(machine, Step.WRITTEN if step is Step.COMMIT else Step.INSTALLED, "ck")
    assert getattr(first, "reply") == DONE  # noqa: B009


def test_replies_are_forgotten_at_resume() -> None:
    machine = in_phase(Phase.COMMITTED)
    machine.resume("ck", 0.0)
    assert machine.prepare("next", at(0)) is None
    machine.ready("next", DONE)
    assert machine.commit("next", "other dir", None, at(0), blocked=None).reply is None


def test_a_commit_that_begins_must_be_ready_and_in_time_but_a_repeat_need_not() -> None:
    machine = in_phase(Phase.PREPARED)
    with pytest.raises(ControlRefused, match=r"no longer ready: r-1") as caught:
        machine.commit("ck", "dir", None, at(0), blocked="r-1")
    assert caught.value.code == "invalid_phase"
    with pytest.raises(ControlRefused) as caught:
        machine.commit("ck", "dir", None, at(5, within=0), blocked=None)
    assert caught.value.code == "deadline_exceeded"
    transfer = machine.commit("ck", "other", None, at(0), blocked=None)
    assert machine.commit("ck", "other", None, at(5, within=-1), blocked="r-1") is transfer


def test_after_an_export_that_failed_a_commit_begins_anew() -> None:
    machine = in_phase(Phase.PREPARED)
    first = machine.commit("ck", "dir", None, at(0), blocked=None)
    machine.export_failed("ck")
    assert machine.commit("ck", "other", None, at(0), blocked=None) is not first


def test_a_late_restore_is_refused_and_leaves_no_trace() -> None:
    machine = PhaseMachine()
    with pytest.raises(ControlRefused) as caught:
        machine.restore("ck", "dir", None, at(5, within=-1))
    assert caught.value.code == "deadline_exceeded"
    assert snapshot(machine) == snapshot(PhaseMachine())


# -- lease ---------------------------------------------------------------------------------------------


def test_the_lease_ends_the_grace_after_the_deadline() -> None:
    machine = PhaseMachine()
    machine.prepare("ck", at(50, within=100))
    assert machine.visible_lease == WALL + 150 + 600
    assert not machine.lease_due(749.9)
    assert machine.lease_due(750.0)


def test_a_far_deadline_is_cut() -> None:
    arrival = arrive(1e300, wall=WALL, now=7.0, rules=RULES)
    assert (arrival.deadline, arrival.lease.until) == (1007.0, 1607.0)
    assert arrival.lease.expires_at == WALL + 1600


def test_a_passed_deadline_still_asks_for_a_lease() -> None:
    arrival = at(10, within=-3)
    assert arrival.late
    assert arrival.lease.until == 607.0


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.IDLE])
def test_any_call_of_the_open_checkpoint_raises_the_lease_and_none_lowers_it(phase: Phase) -> None:
    for step in CALLS:
        if step is Step.RESUME or (phase, step) not in TABLE:
            continue
        machine = in_phase(phase)
        call(machine, step, now=300)
        assert machine.lease is not None
        assert machine.lease.until == 1000
        call(machine, step, now=10)
        assert machine.lease.until == 1000


def test_a_refused_call_does_not_raise_the_lease() -> None:
    machine = in_phase(Phase.PREPARED)
    machine.commit("ck", "dir", None, at(0), blocked=None)
    lease = machine.lease
    with pytest.raises(ControlRefused):
        machine.commit("ck", "other", None, at(300), blocked=None)
    assert machine.lease == lease


def test_a_retire_while_nothing_is_open_takes_no_lease() -> None:
    machine = PhaseMachine()
    machine.retire(Step.RETIRE, "ck", at(0))
    assert (machine.active_id, machine.lease) == (None, None)


def test_from_the_moment_the_lease_passed_the_id_is_stale() -> None:
    machine = in_phase(Phase.PREPARED)
    assert refusal(machine, Step.RENEW, now=700.0) == "stale_checkpoint"
    assert refusal(machine, Step.COMMIT, now=700.0) == "stale_checkpoint"
    assert machine.resume("ck", 700.0) is True
    machine = in_phase(Phase.PREPARED)
    machine.lease_expired(700.0)
    assert refusal(machine, Step.PREPARE, now=701.0) == "stale_checkpoint"
    assert machine.resume("ck", 701.0) is True


@given(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(-1e9, 1e10),
    st.floats(0, 1e7),
)
def test_any_finite_deadline_gives_finite_times(deadline_ts: float, wall: float, now: float) -> None:
    arrival = arrive(deadline_ts, wall=wall, now=now, rules=RULES)
    assert arrival.deadline <= now + RULES.max_deadline_s
    assert arrival.lease.expires_at <= max(deadline_ts, wall + RULES.max_deadline_s) + RULES.grace_s


# -- any order of anything -----------------------------------------------------------------------------

IDS = ["a", "b", "c"]


class Controllers(RuleBasedStateMachine):
    """Several controllers call and the server reports, in any order, while time goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = PhaseMachine()
        self.now = 0.0
        self.fenced: set[str] = set()
        self.lease: tuple[str, float] | None = None

    @rule(seconds=st.floats(0, 900))
    def time_goes_on(self, seconds: float) -> None:
        self.now += seconds

    @rule(step=st.sampled_from(CALLS), name=st.sampled_from(IDS))
    def calls(self, step: Step, name: str) -> None:
        machine = self.machine
        before = snapshot(machine)
        active, phase = machine.active_id, machine.phase
        try:
            call(machine, step, name, self.now)
        except ControlRefused as error:
            assert snapshot(machine) == before
            self.refused(error.code, name, active)
            return
        assert name not in self.fenced or step is Step.RESUME
        if step is Step.RESUME:
            self.fenced.add(name)
            assert machine.active_id == (active if active != name else None)
        else:
            assert active in (None, name)
            assert machine.phase is TABLE[phase, step]

    def refused(self, code: str, name: str, active: str | None) -> None:
        if name in self.fenced:
            assert code == "stale_checkpoint"
        elif active not in (None, name):
            assert code == "checkpoint_conflict"
        else:
            assert code != "checkpoint_conflict"

    @rule(step=st.sampled_from(REPORTS))
    @precondition(lambda self: self.machine.active_id is not None)
    def reports(self, step: Step) -> None:
        machine = self.machine
        name = machine.active_id
        assert name is not None
        begun = machine._open is not None and machine._open.transfer is not None
        if (machine.phase, step) not in TABLE or (step in (Step.WRITTEN, Step.INSTALLED) and not begun):
            return
        if step is Step.LEASE_EXPIRED:
            if machine.lease_due(self.now):
                machine.lease_expired(self.now)
                self.fenced.add(name)
            return
        report(machine, step, name)

    @invariant()
    def what_is_idle_is_closed(self) -> None:
        assert (self.machine.phase is Phase.IDLE) == (self.machine.active_id is None)
        assert (self.machine.lease is None) == (self.machine.active_id is None)

    @invariant()
    def a_fenced_id_never_comes_back(self) -> None:
        assert self.machine.active_id not in self.fenced
        assert {name for name in IDS if self.machine.fenced(name)} == self.fenced

    @invariant()
    def the_lease_of_an_id_never_falls_while_it_is_open(self) -> None:
        lease, name = self.machine.lease, self.machine.active_id
        if lease is None or name is None:
            self.lease = None
            return
        if self.lease is not None and self.lease[0] == name:
            assert lease.until >= self.lease[1]
        self.lease = (name, lease.until)


TestControllers = Controllers.TestCase
