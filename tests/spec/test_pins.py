"""Python's invariants are pinned to their TLA+ twins: true along a graph, false where a mutant breaks the twin.

The counterexamples are recorded (spec/counterexamples.json), so that no model checker is needed here.
"""

import re
from collections.abc import Mapping
from functools import cache

import pytest
from spec.tools import configs, kit, mutants, replaying
from spec.tools.codes import Codes, Constants
from spec.tools.graph import Graph
from spec.tools.inflation import Inflation
from spec.tools.projection import projected
from spec.tools.replaying import violated
from tests.core.clients import CLIENT_INVARIANTS, CLIENT_STATE_INVARIANTS, Clients, Seen
from tests.spec import small
from tests.spec.witness import Invariants, Witness, Wrong

from genrm_trio.core.invariants import STATE_INVARIANTS, STEP_INVARIANTS
from genrm_trio.core.registry import Registry
from genrm_trio.core.snapshot import Snapshot
from genrm_trio.core.state import State
from genrm_trio.core.trace import Event, method_name
from genrm_trio.ops.tla.events import spec_event
from genrm_trio.ops.tla.values import Map, write

ELSEWHERE = {
    # The spec compares a restore with the watermarks at the export, Python already every exported state.
    ("WatermarkNotExported", "WatermarkSurvivesRestore"): ("watermark_survives_restore", "Export"),
    # In the spec callers are captured apart from the export; the record of clients takes both for one, and so does not
    # wait for the crash: nobody may be told what the open checkpoint does not hold.
    ("NoHold", "RecordedImpliesRecoverable"): ("recorded_implies_recoverable", "Publish"),
    ("JudgeFailureNotHeld", "RecordedImpliesRecoverable"): ("recorded_implies_recoverable", "Publish"),
    ("LateToldAtOnce", "ReplayNeverStalls"): ("recorded_implies_recoverable", "Submit"),
    # The state alone does not show who needs a cohort once its sessions are forgotten; that they are, it does.
    ("RestoreForgetsSessions", "NeededNeverDropped"): ("all_or_nothing_restore", "Restore"),
}
"""Counterexamples that Python finds before their last step, or by another name: by which, after which event."""
UNSEEN = {
    # A caller that was captured before its session is retired goes on after the crash; to the record a retired one is
    # gone. That a retire waits for the checkpoint is the control plane's, and tested there.
    ("RetireDuringCommit", "ReplayNeverStalls"),
    # So does one that was captured before it wrote its outcome down and left its session; to the record capture and
    # export are one, and a session that was left is nobody's. The stateful test finds it by the state of its sessions.
    ("IdleWhileClosed", "ReplayNeverStalls"),
}


@cache
def recorded() -> list[kit.Counterexample]:
    return kit.recorded()


def names_of(one: kit.Counterexample) -> str:
    return f"{one.mutant}-{one.invariant}"


def seen(one: kit.Counterexample) -> list[Wrong]:
    """What Python's invariants say after each step of a counterexample."""
    witness = Witness(Invariants(Constants.of(configs.load(one.configuration))), one.steps[0][1])
    steps = zip(one.steps, one.steps[1:], strict=False)
    return [witness.step(event, before, after) for (_, before), (event, after) in steps]


@pytest.mark.parametrize("one", recorded(), ids=names_of)
def test_where_a_mutant_breaks_an_invariant_its_twin_is_false(one: kit.Counterexample) -> None:
    row, wrong = (one.mutant, one.invariant), seen(one)
    if row in UNSEEN:
        assert not any(wrong)
        return
    name, event = ELSEWHERE.get(row, (method_name(one.invariant), one.steps[-1][0].name))
    found = {step[0].name for step, broken in zip(one.steps[1:], wrong, strict=True) if name in broken}
    assert event in found
    if row not in ELSEWHERE:
        assert name in wrong[-1]


def test_what_is_found_elsewhere_is_not_found_where_the_spec_finds_it() -> None:
    for one in recorded():
        if (one.mutant, one.invariant) in ELSEWHERE:
            assert method_name(one.invariant) not in seen(one)[-1]


def test_every_safety_row_of_the_kill_table_has_its_counterexample() -> None:
    rows = [(row.mutant, row.invariant, row.configuration) for row in kit.safety_rows()]
    assert [(one.mutant, one.invariant, one.configuration) for one in recorded()] == rows


def test_along_a_graph_nothing_is_wrong() -> None:
    assert violated(small.graph(), small.walks(), small.constants()) is None


def empty(state: State) -> str | None:
    return "a session is open" if len(state.sessions) else None


def nothing_ends(_before: Snapshot, event: Event, _after: Snapshot) -> str | None:
    return "it ended" if event.name == "ExpireSession" else None


def nobody_hears(_record: Clients, seen: Seen) -> str | None:
    return "somebody heard" if seen.answer is not None else None


def nobody_was_told(record: Clients, _registry: Registry) -> str | None:
    return "somebody was told" if record.told else None


@pytest.mark.parametrize(
    ("invariants", "name", "wrong", "told"),
    [
        (STATE_INVARIANTS, "no_leak", empty, r"^in state 0 no_leak is false: a session is open$"),
        (STEP_INVARIANTS, "cap_respected", nothing_ends, r"(?s)^in state \d+, by edge \d+ .*ExpireSession[^\n]*$"),
        (CLIENT_INVARIANTS, "own_outcome", nobody_hears, "own_outcome is false: somebody heard\nafter\n  0 "),
        (CLIENT_STATE_INVARIANTS, "keep_needed", nobody_was_told, "keep_needed is false: somebody was told\nafter\n"),
    ],
)
def test_an_invariant_that_is_false_along_a_graph_is_found(
    invariants: Mapping[str, object], name: str, wrong: object, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(invariants, name, wrong)
    found = violated(small.graph(), small.walks(), small.constants())
    assert found is not None
    assert re.search(told, found)


def test_a_check_of_a_graph_reports_what_is_false(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, config = small.graph(), small.config()
    monkeypatch.setattr(configs, "load", lambda _name: config)
    monkeypatch.setattr(replaying, "dump", lambda _config: graph)
    monkeypatch.setattr(replaying, "_replayed", lambda what, *_: (what, "", 0, 0.0, None))
    monkeypatch.setitem(STATE_INVARIANTS, "no_leak", empty)
    rows = {what: wrong for what, _, _, _, wrong in replaying.checked("small")}
    assert rows["invariants small in Python"] == "in state 0 no_leak is false: a session is open"


def test_a_divergence_is_told_in_the_table_wherever_it_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, config = small.graph(), small.config()
    monkeypatch.setattr(configs, "load", lambda _name: config)
    monkeypatch.setattr(replaying, "dump", lambda _config: graph)
    monkeypatch.setattr(Registry, "needed", lambda _self, _cohort: False)
    rows = {what: wrong for what, _, _, _, wrong in replaying.checked("small")}
    for where in ("the core", "Trio"):
        assert "the spec has" in (rows[f"replay small on {where}"] or "")


def test_inflation_is_the_inverse_of_projection() -> None:
    graph = small.graph()
    inflation = Inflation(Codes(small.constants()))
    for core in cores(graph):
        assert projected(inflation.registry(core), inflation.codes) == core


def cores(graph: Graph) -> list[Map]:
    return list({state.core: None for state in graph.states})


def test_an_event_of_the_spec_becomes_the_cores_and_is_read_back() -> None:
    """But for what the core's event does not tell: results, which judge failure, and episodes of an export."""
    graph = small.graph()
    inflation = Inflation(Codes(small.constants()))
    plain = {"Submit", "Leave", "Seed", "UseSession", "EndSession", "Expire", "ExpireWatermark", "ExpireSession"}
    for event in graph.events:
        if event.name in plain and '"judge"' not in write(event.reply):
            assert spec_event(inflation.event(event), inflation.codes) == (event.name, event.args, event.reply)


def test_counterexamples_are_written_as_they_are_read() -> None:
    assert kit.document(recorded()) == kit.FILE.read_text()


def test_rows_without_a_single_last_step_are_those_of_liveness() -> None:
    assert {row.invariant for row in mutants.table()} - {row.invariant for row in kit.safety_rows()} == mutants.LIVENESS
