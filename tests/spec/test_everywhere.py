"""Where each mutant is refuted: what is run where, and what comes of it."""

from spec.tools import everywhere, mutants, tlc
from spec.tools.everywhere import Trial, named

ROWS = [row for row in mutants.table() if row.invariant not in mutants.LIVENESS]


def test_a_configuration_tells_which_rules_it_asks_for() -> None:
    rules = everywhere.asked("L")
    assert {"NoCollectTimeout", "NoRecheck"} <= rules
    assert rules.isdisjoint({"RetireDropsCohort", "AgreementUnchecked", "UngroupedRecorded"})
    assert rules <= {row.mutant for row in mutants.table()}


def test_a_mutant_is_run_with_all_of_its_checks_where_its_rule_is_asked_for() -> None:
    rows = [row for row in mutants.table() if row.mutant in {"NoHold", "TtlNever", "NoSupersede"}]
    assert everywhere.trials(rows, "Q", frozenset({"NoHold", "TtlNever"})) == [
        Trial("NoHold", ("NoOutcomeWhileClosed", "RecordedImpliesRecoverable"), "Q")
    ]


def test_a_trial_names_the_checks_that_refute_it_alone() -> None:
    assert everywhere.refuted(Trial("WatermarksUncapped", ("CapRespected", "TerminalListed"), "C")) == [
        "WatermarksUncapped -> CapRespected"
    ]
    assert everywhere.refuted(Trial("WatermarkOrder", ("WatermarkKept", "TerminalListed"), "C")) == []


def test_a_search_ends_at_its_bound() -> None:
    whole = mutants.run("WatermarkOrder", ("TerminalListed",), "C")
    cut = mutants.run("WatermarkOrder", ("TerminalListed",), "C", 500)
    assert (whole.code, cut.code) == (tlc.OK, tlc.OK)
    assert 500 < cut.states < 550 < whole.states
    assert mutants.run("WatermarksUncapped", ("CapRespected",), "C", 3000).broken == "CapRespected"


def test_what_was_found_comes_in_the_order_of_the_kill_table() -> None:
    found = everywhere.table(ROWS, [(named("NoHold", "NoOutcomeWhileClosed"), "Q")] * 2)
    assert list(found) == [named(row.mutant, row.invariant) for row in ROWS]
    assert found["NoHold -> NoOutcomeWhileClosed"] == ["Q"]
    assert found["TermListStale -> TerminalListed"] == []


def test_the_recorded_table_holds_every_row_and_each_is_refuted_where_the_kill_table_says() -> None:
    recorded = everywhere.recorded()
    assert list(recorded) == [named(row.mutant, row.invariant) for row in ROWS]
    for row in ROWS:
        assert row.configuration in recorded[named(row.mutant, row.invariant)]
    assert {place for places in recorded.values() for place in places} <= set(everywhere.PLACES)
