"""Mutants in more configurations than the kill table names: where else do their checks refute them?

A part of `make spec-deep`, kept in refuted.json. A configuration in which a broken rule is never asked for is the same
as with the rule kept, so nothing is run there. Left out are Y and P2, which are large, Z, which has no end, the
configurations for liveness (L, L2, L3), and the checks of liveness: what they are for, mutants.json says. A run ends
at MOST distinct states; a check that holds up to there may still break beyond.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spec.tools import configs, mutants, tlc
from spec.tools.mutants import Row
from spec.tools.tlc import SPEC

FILE = SPEC / "refuted.json"
MOST = 300_000
"""Distinct states of one run. The largest configuration has 71,447; some mutants have no end in it."""
PLACES = tuple(name for name in configs.FAST if name not in configs.LIVE)

Refuted = Mapping[str, list[str]]
"""By mutant and check, as `named` writes them, the configurations in which TLC refutes it."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A mutant with all of its checks, in one configuration."""

    mutant: str
    invariants: tuple[str, ...]
    place: str


def named(mutant: str, invariant: str) -> str:
    """What a row of the kill table is called."""
    return f"{mutant} -> {invariant}"


def asked(place: str) -> frozenset[str]:
    """The rules that TLC asks for somewhere in a configuration, whichever way its checks are written."""
    run = tlc.run(f"{configs.load(place).without_checks().text}CONSTANT Mutant <- Asked\n", short=True)
    return frozenset(re.findall(r'^"ASKED (\w+)"$', run.output, re.MULTILINE))


def trials(rows: Iterable[Row], place: str, rules: frozenset[str]) -> list[Trial]:
    """What is to be run in a configuration that asks for these rules."""
    checks: dict[str, list[str]] = {}
    for row in rows:
        if row.invariant not in mutants.LIVENESS and row.mutant in rules:
            checks.setdefault(row.mutant, []).append(row.invariant)
    return [Trial(mutant, tuple(invariants), place) for mutant, invariants in checks.items()]


def refuted(trial: Trial) -> list[str]:
    """Those of a trial's checks that refute its mutant, each of them alone; together first, when none of them may."""
    if len(trial.invariants) > 1 and mutants.run(trial.mutant, trial.invariants, trial.place, MOST).code == tlc.OK:
        return []
    ends = {check: mutants.run(trial.mutant, (check,), trial.place, MOST) for check in trial.invariants}
    return [named(trial.mutant, check) for check, end in ends.items() if end.broken == check]


def table(rows: Iterable[Row], found: Iterable[tuple[str, str]]) -> Refuted:
    """Bring what was found, each a row's name and a configuration, into the order of the kill table."""
    places: dict[str, set[str]] = {}
    for name, place in found:
        places.setdefault(name, set()).add(place)
    names = [named(row.mutant, row.invariant) for row in rows if row.invariant not in mutants.LIVENESS]
    return {name: sorted(places.get(name, ())) for name in names}


def recorded() -> Refuted:
    """What refuted.json says."""
    read: dict[str, list[str]] = json.loads(FILE.read_text()) if FILE.is_file() else {}
    return read


def record(found: Refuted) -> None:
    """Write refuted.json."""
    lines = [f"{json.dumps(name)}: {json.dumps(places)}" for name, places in found.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
