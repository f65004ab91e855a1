"""`make spec` for one mutant: it is refuted, and its counterexample is told event by event."""

import io

import pytest
from rich.console import Console
from spec.tools import check
from spec.tools.graph import Event, told

from genrm_trio.ops.tla.values import record


def test_one_mutant_tells_the_events_of_its_counterexample() -> None:
    console = Console(file=io.StringIO(), record=True, width=140)
    one = check.Check(console, depth="full", record=False)
    one.mutant("ClosedSeedBinds")
    assert not one.report.wrong
    lines = console.export_text().splitlines()
    start = lines.index("ClosedSeedBinds -> ClosedStaysClosed in P:")
    names = [line.split()[0] for line in lines[start + 1 :] if line.startswith("    ")]
    assert names[0] == "Init"
    assert "EndSession" in names
    assert names[-1] == "Seed"


def test_an_unknown_mutant_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        check.main(["--mutant", "Nothing"])
    assert "ClosedSeedBinds" in capsys.readouterr().err


def test_events_are_told_without_what_is_empty() -> None:
    assert told(Event("CloseAdmission", (), ())) == "CloseAdmission"
    assert told(Event("Commit", record(k=("g", 0)), False)) == 'Commit [k |-> <<"g", 0>>] -> FALSE'
