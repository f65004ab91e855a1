"""Runs each mutant of mutants.json with only its named check, and requires TLC to refute it."""

import json
import re
from dataclasses import dataclass

from spec.tools import configs, tlc
from spec.tools.tlc import SPEC

LIVENESS = frozenset({"EveryWaitEnds", "HeldPublishes", "MemoryDrains"})


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the kill table: a broken rule and the check that must catch it."""

    mutant: str
    invariant: str
    configuration: str
    behaviour: str


@dataclass(frozen=True, slots=True)
class Kill:
    """What came of one row. `killed` is false when TLC found nothing, or something else."""

    row: Row
    killed: bool
    run: tlc.Run


def table() -> list[Row]:
    """The rows of mutants.json."""
    return [Row(**row) for row in json.loads((SPEC / "mutants.json").read_text())]


def state_invariants() -> frozenset[str]:
    """The checks that are about one state; the others are about steps, or liveness."""
    text = (SPEC / "Properties.tla").read_text()
    defined = set(re.findall(r"^([A-Z]\w+) ==", text, re.MULTILINE))
    listed = {name for config in configs.all_names() for name in configs.load(config).names("INVARIANTS")}
    return frozenset(defined & listed)


def step_invariants() -> frozenset[str]:
    """The checks that are about one transition."""
    text = (SPEC / "Properties.tla").read_text()
    return frozenset(re.findall(r"^([A-Z]\w+) == \[\]\[", text, re.MULTILINE))


def refute(row: Row, configuration: str | None = None, timeout_s: float = 600) -> Kill:
    """Run one row; its own configuration, or another one."""
    config = configs.load(configuration or row.configuration)
    keyword = "INVARIANT" if row.invariant in state_invariants() else "PROPERTY"
    text = config.with_mutant(row.mutant, keyword, row.invariant).text
    run = tlc.run(text, short=True, timeout_s=timeout_s)
    expected = tlc.INVARIANT if keyword == "INVARIANT" else tlc.PROPERTY
    # TLC reports a broken step property as an invariant; a broken liveness property by its own code.
    named = row.invariant in LIVENESS or run.broken == row.invariant
    killed = run.code in (expected, tlc.INVARIANT) and named
    return Kill(row, killed, run)


def refuted_in(row: Row, configuration: str) -> bool:
    """Whether a row's check finds its mutant in another configuration, in reasonable time."""
    try:
        return refute(row, configuration, timeout_s=300).killed
    except tlc.TlcError:
        return False
