"""One vocabulary: what the spec, the code, the tests and the tools name is the same, and is named alike."""

import inspect
import re

import pytest
from spec.tools import configs, mutants, results
from spec.tools.core_target import CoreTarget
from spec.tools.tlc import SPEC
from spec.tools.trio_target import TrioTarget
from tests.core.clients import CLIENT_INVARIANTS, CLIENT_STATE_INVARIANTS
from tests.core.story import STEPS, WORLD
from tests.core.test_machine import CoreMachine
from tests.core.test_vocabulary import READINGS
from tests.mutants.reasons import SOURCE_ONLY
from tests.mutants.table import MUTANTS
from tests.runtime.test_bounded_waits import LIVENESS

from genrm_trio.core.invariants import STATE_INVARIANTS, STEP_INVARIANTS
from genrm_trio.core.registry import Registry
from genrm_trio.core.trace import ACTIONS, method_name
from genrm_trio.ops.tla import events, traces

RUNTIME_STEPS = {"Wake", "Recheck"}
"""Steps of the spec that are named waits in the runtime."""
WORLD_STEPS = {"Record", "Capture", "Commit", "Crash", "Rerun"}
"""Steps of the spec that are outside the server."""


def snake(name: str) -> str:
    return method_name(name)


def spec_text(file: str) -> str:
    return (SPEC / file).read_text()


# -- actions -------------------------------------------------------------------------------------------


def test_the_specs_actions_are_those_of_the_core_the_runtime_and_the_world() -> None:
    assert set(results.actions()) == {*ACTIONS, *RUNTIME_STEPS, *WORLD_STEPS}


def test_the_specs_events_are_the_actions_of_the_core() -> None:
    named = set(re.findall(r'Act\((?:r|Do\w+\([^"]*\)), "(\w+)"', spec_text("GenrmTrio.tla")))
    assert named == set(ACTIONS)


def test_traces_know_every_action() -> None:
    assert set(re.findall(r'name = "(\w+)"', spec_text("Trace.tla"))) == set(ACTIONS)
    assert set(events._ACTIONS) == set(ACTIONS)


def test_the_registrys_methods_are_the_actions() -> None:
    own = {name for name, _ in inspect.getmembers(Registry, inspect.isfunction) if name in vars(Registry)}
    public = {name for name in own if not name.startswith("_")}
    assert public - READINGS == {method_name(action) for action in ACTIONS}


def test_the_stateful_tests_rules_are_the_actions() -> None:
    rules = {rule.function.__name__ for rule in CoreMachine.setup_state().rules}
    assert rules == set(STEPS) == {method_name(action) for action in (*ACTIONS, *WORLD)}
    assert WORLD - {"Tick"} <= WORLD_STEPS


@pytest.mark.parametrize("target", [CoreTarget, TrioTarget])
def test_led_code_has_a_method_for_each_action(target: type) -> None:
    wanted = {method_name(action) for action in ACTIONS}
    more = {method_name(step) for step in RUNTIME_STEPS} if target is TrioTarget else set()
    found = {name for name, _ in inspect.getmembers(target, inspect.isfunction) if not name.startswith("_")}
    assert wanted | more <= found
    assert found - wanted - more <= {"take", "core", "due", "start", "die", "answered", "changed"}


# -- invariants ----------------------------------------------------------------------------------------


def test_every_safety_property_of_the_spec_is_a_predicate_in_python_and_the_other_way_round() -> None:
    ours = {*STATE_INVARIANTS, *STEP_INVARIANTS, *CLIENT_INVARIANTS, *CLIENT_STATE_INVARIANTS}
    assert {snake(name) for name in mutants.state_invariants() | mutants.step_invariants()} == ours


def test_what_python_finds_in_the_servers_state_or_step_is_that_in_the_spec_too() -> None:
    assert set(STATE_INVARIANTS) <= {snake(name) for name in mutants.state_invariants()}
    assert set(STEP_INVARIANTS) <= {snake(name) for name in mutants.step_invariants()}


def test_along_traces_the_spec_holds_what_it_says_of_the_server_alone() -> None:
    clients = {"KeepNeeded", "OwnOutcome", "SiblingsAgree"}
    assert set(traces.INVARIANTS) == mutants.state_invariants() - clients


# -- mutants -------------------------------------------------------------------------------------------


def names_in_spec() -> set[str]:
    return {row.mutant for row in mutants.table()}


def names_in_source() -> set[str]:
    return {mutant.name for mutant in MUTANTS}


def test_every_mutant_of_the_spec_is_one_of_the_source() -> None:
    assert names_in_spec() <= names_in_source()


def test_every_other_mutant_of_the_source_says_why() -> None:
    told = [name for names in SOURCE_ONLY.values() for name in names]
    assert len(told) == len(set(told))
    assert set(told) == names_in_source() - names_in_spec()


def test_liveness_is_checked_by_tlc_and_by_waits_of_the_runtime_that_end() -> None:
    checked = {name for config in configs.all_names() for name in configs.load(config).names("PROPERTIES")}
    assert checked >= mutants.LIVENESS
    assert set(LIVENESS) == mutants.LIVENESS
