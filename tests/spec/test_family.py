"""The family of spec files agrees with itself: rules, mutants, checks and configurations name each other."""

import re

import pytest
from spec.tools import configs, mutants, results
from spec.tools.tlc import SPEC, Run

SAFETY = [name for name in configs.all_names() if name not in configs.LIVE]


def defined_checks() -> set[str]:
    """Every check that some configuration makes."""
    return {check for name in configs.all_names() for check in _checks(name)}


def _checks(name: str) -> set[str]:
    config = configs.load(name)
    return {*config.names("INVARIANTS"), *config.names("PROPERTIES")}


def test_every_rule_that_can_be_broken_is_in_the_kill_table() -> None:
    switched = set(re.findall(r'Mutant\("(\w+)"\)', (SPEC / "GenrmTrio.tla").read_text()))
    assert switched == {row.mutant for row in mutants.table()}


def test_every_check_has_a_mutant_that_it_catches() -> None:
    assert {row.invariant for row in mutants.table()} == defined_checks()


def test_every_step_and_liveness_property_is_checked_somewhere() -> None:
    assert mutants.step_invariants() | mutants.LIVENESS <= defined_checks()


@pytest.mark.parametrize("name", SAFETY)
def test_every_safety_configuration_checks_everything(name: str) -> None:
    assert _checks(name) == mutants.state_invariants() | mutants.step_invariants()


@pytest.mark.parametrize("row", mutants.table(), ids=lambda row: f"{row.mutant}-{row.invariant}")
def test_a_row_names_what_there_is(row: mutants.Row) -> None:
    assert row.configuration in configs.all_names()
    assert row.invariant in _checks(row.configuration)
    assert row.behaviour


def test_every_configuration_is_run_by_some_target() -> None:
    assert set(configs.all_names()) == {*configs.FAST, *configs.DEEP, "Z"}
    assert set(configs.REDUCED) | set(configs.REPLAYED) <= set(configs.FAST)


def test_a_mutant_runs_with_nothing_but_its_own_check() -> None:
    config = configs.load("Q").with_mutant("NoHold", "PROPERTY NoOutcomeWhileClosed")
    assert 'Mutants = {"NoHold"}' in config.text
    assert re.findall(r"^(?:INVARIANT|PROPERT).*$", config.text, re.MULTILINE) == ["PROPERTY NoOutcomeWhileClosed"]


def test_the_readme_tells_the_recorded_numbers_of_states() -> None:
    told = re.findall(r"^\| (\w+) \| .* \| ([\d,]+) \|$", (SPEC / "README.md").read_text(), re.MULTILINE)
    assert dict(told) == {name: f"{result.states:,}" for name, result in results.recorded().items()}


def test_results_that_change_are_told_apart() -> None:
    recorded = results.recorded()
    assert set(recorded) >= {*configs.FAST}
    known = recorded["Q"]
    assert results.difference("Q", known) is None
    changed = results.Result(known.states + 1, known.depth, (*known.taken[1:], "Submit: something"))
    text = results.difference("Q", changed)
    assert text is not None
    assert "states" in text
    assert f"no longer met: {known.taken[0]}" in text
    assert "new: Submit: something" in text
    assert results.difference("nowhere", known) == "not recorded"


def test_what_is_recorded_is_what_every_machine_finds() -> None:
    run = Run(code=0, generated=9, states=5, depth=3, seconds=1.5, broken=None, taken=("Leave",))
    assert results.of(run) == results.Result(5, 3, ("Leave",))
