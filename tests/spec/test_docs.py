"""What is made from the spec and the code is up to date, and says what it should."""

from spec.tools import docs, results

from genrm_trio.checkpoints.phases import state_diagram
from genrm_trio.core.trace import ACTIONS


def test_the_documents_are_what_would_be_written() -> None:
    assert not docs.outdated(), "run python -m spec.tools.docs"


def test_the_map_has_a_row_for_each_action() -> None:
    rows = [line for line in docs.spec_map().splitlines() if line.startswith("| ")]
    first = {row.split(" | ")[0].removeprefix("| ") for row in rows}
    actions = {*ACTIONS, "Wake", "Recheck", "Crash"}
    assert actions <= set(results.actions())
    assert first >= {f'<a id="{action}"></a>{action}' for action in results.actions()}


def test_each_action_is_told_in_plain_words() -> None:
    for action in ACTIONS:
        assert len(docs.told_by_code(action)) > 20
    assert docs.told_by_spec("Leave") == "A disconnect. The member stays."


def test_rules_are_found_in_what_an_action_uses() -> None:
    defined = docs.definitions()
    assert "DigestIgnored" in docs.rules_of("Submit", defined)
    assert docs.rules_of("Seed", defined) == ["ClosedSeedBinds"]
    assert docs.rules_of("Forget", defined) == []


def test_the_diagrams_show_every_step() -> None:
    text = docs.diagrams()
    assert "held --> completed: publish rewards" in text
    assert state_diagram() in text
