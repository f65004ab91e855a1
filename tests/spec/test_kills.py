"""The recorded result of leading broken code along the graphs: every mutant was led, and what is not found says why."""

import pytest
from spec.tools import kills, mutants
from spec.tools.kills import AROUND, CORE
from tests.mutants.reasons import NOT_REPLAYED
from tests.mutants.table import MUTANTS


def explained() -> list[str]:
    return [name for names in NOT_REPLAYED.values() for name in names]


def found() -> set[str]:
    return {name for name, how in kills.recorded().items() if how is not None}


def test_every_mutant_of_the_source_was_led_along_the_graphs() -> None:
    assert list(kills.recorded()) == [mutant.name for mutant in MUTANTS]


def test_what_finds_a_mutant_is_something_it_is_led_along() -> None:
    for mutant in MUTANTS:
        how = kills.recorded()[mutant.name]
        assert how is None or how in {f"{led} {graph}" for led, graph, _ in kills.stages(mutant)}
    assert {led for led, _, _ in AROUND} == {"trio"}
    assert {led for led, _, _ in CORE} == {"core", "trio"}


@pytest.mark.parametrize(("found_by", "told"), [(None, []), ("core Q: an edge", ["core Q: an edge"])])
def test_a_copy_that_finds_nothing_says_nothing(
    found_by: str | None, told: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kills, "lead", lambda _folder, _mutant: found_by)
    assert kills.main(["--lead", "graphs", "--only", MUTANTS[0].name]) == 0
    assert capsys.readouterr().out.splitlines() == told


def test_what_no_graph_finds_says_why() -> None:
    assert len(set(explained())) == len(explained())
    assert set(explained()) == {mutant.name for mutant in MUTANTS} - found()


def test_replay_finds_every_broken_rule_of_the_spec_but_the_one_that_is_none_of_the_state() -> None:
    """A reason in NOT_REPLAYED is for what the spec does not speak of; that a retire waits is the control plane's."""
    assert {row.mutant for row in mutants.table()} - found() == {"RetireDuringCommit"}
