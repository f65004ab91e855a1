"""Runs each mutant of mutants.json with only its named check, and requires TLC to refute it."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from spec.tools import configs, tlc
from spec.tools.tlc import SPEC
from tests.mutants.table import part_of

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


def reduced(part: str | None = None) -> list[Row]:
    """The rows of the reduced run: those of its configurations, and a part of the others, such as `1/6`."""
    rows = table()
    others = [row for row in rows if row.configuration not in configs.REDUCED]
    also = part_of(others, part) if part is not None else ()
    return [row for row in rows if row.configuration in configs.REDUCED or row in also]


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


def run(mutant: str, checks: Iterable[str], configuration: str, most: int | None = None) -> tlc.Run:
    """Look for a counterexample to some checks in a configuration with one broken rule.

    most: of distinct states; there the search ends as if there were no more. A broken rule may have many times as many.
    """
    states = state_invariants()
    lines = [f"{'INVARIANT' if check in states else 'PROPERTY'} {check}" for check in checks]
    text = configs.load(configuration).with_mutant(mutant, "\n".join(lines)).text
    if most is None:
        return tlc.run(text, short=True, timeout_s=900)
    module = MODULE_OF_BOUND.format(most=most)
    return tlc.run(f"{text}CONSTRAINT Bound\n", "Bound", extra={"Bound.tla": module}, short=True, timeout_s=900)


MODULE_OF_BOUND: Final = """---- MODULE Bound ----
EXTENDS Model, TLC
Bound == TLCGet("distinct") <= {most} \\/ TLCSet("exit", TRUE)
====
"""
"""Ends a search at some number of distinct states; with one worker these are always the same."""


def refute(row: Row) -> Kill:
    """Run one row with its check alone."""
    found = run(row.mutant, (row.invariant,), row.configuration)
    # TLC does not name a broken liveness property.
    named = found.broken == ("temporal" if row.invariant in LIVENESS else row.invariant)
    return Kill(row, found.code != tlc.OK and named, found)
