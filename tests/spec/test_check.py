"""`make spec` for one mutant: it is refuted, and its counterexample is told event by event."""

import io
import re

import pytest
from rich.console import Console
from spec.tools import check, configs, mutants
from spec.tools.graph import Event, told
from spec.tools.tlc import SPEC

from genrm_trio.ops.tla.values import record

CI = SPEC.parent / ".ci" / "run"


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
    check._show(console, one.report, 1.0)
    assert console.export_text().splitlines()[-1] == "1 as expected, 0 not, 1 s", "refuted is as it should be"


def test_an_unknown_mutant_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        check.main(["--mutant", "Nothing"])
    assert "ClosedSeedBinds" in capsys.readouterr().err


def test_events_are_told_without_what_is_empty() -> None:
    assert told(Event("CloseAdmission", (), ())) == "CloseAdmission"
    assert told(Event("Commit", record(k=("g", 0)), False)) == 'Commit [k |-> <<"g", 0>>] -> FALSE'


def ci_parts() -> int:
    """Into how many parts .ci/run divides what the reduced run leaves out; it takes another each day."""
    found = re.search(r'step spec-reduced PART="\$\(\(10#\$\(date \+%j\) % (\d+) \+ 1\)\)/\1"', CI.read_text())
    assert found is not None
    return int(found[1])


def test_the_reduced_runs_of_as_many_days_as_there_are_parts_refute_every_mutant() -> None:
    fast = [row for row in mutants.table() if row.configuration in configs.REDUCED]
    assert mutants.reduced() == fast
    parts = ci_parts()
    others = [row for n in range(parts) for row in mutants.reduced(f"{n + 1}/{parts}") if row not in fast]
    assert all(row in mutants.reduced(f"{n + 1}/{parts}") for n in range(parts) for row in fast)
    assert sorted(others, key=str) == sorted((row for row in mutants.table() if row not in fast), key=str)


def test_a_part_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="parts 1 to 6"):
        mutants.reduced("0/6")
