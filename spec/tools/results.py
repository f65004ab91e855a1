"""What the configurations came to last time, in results.json; a change fails until it is recorded.

Recorded are distinct states, depth and which kinds of event occur: what is the same on every machine.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from spec.tools.tlc import SPEC, Run

FILE = SPEC / "results.json"


@dataclass(frozen=True, slots=True)
class Result:
    """One configuration's numbers. `taken`: the kinds of event met, as Model.tla labels them; none for liveness."""

    states: int
    depth: int
    taken: tuple[str, ...]


def of(run: Run) -> Result:
    """The part of a run that is recorded."""
    return Result(run.states, run.depth, run.taken)


def recorded() -> dict[str, Result]:
    """What results.json says, by configuration."""
    if not FILE.is_file():
        return {}
    rows = json.loads(FILE.read_text())["configurations"]
    return {name: Result(row["states"], row["depth"], tuple(row["taken"])) for name, row in rows.items()}


def record(results: Mapping[str, Result]) -> None:
    """Write these over what was recorded; other configurations stay."""
    merged = {**recorded(), **results}
    rows = {name: asdict(merged[name]) for name in sorted(merged)}
    everywhere = {label.split(":")[0] for result in merged.values() for label in result.taken}
    document = {"uncovered": sorted(set(actions()) - everywhere), "configurations": rows}
    FILE.write_text(json.dumps(document, indent=1) + "\n")


def actions() -> tuple[str, ...]:
    """The actions of the spec: the disjuncts of Next."""
    text = (SPEC / "GenrmTrio.tla").read_text()
    following = text[text.index("\nNext ==") :]
    body = following[: following.index("\nSpec ==")]
    return tuple(re.findall(r"^    \\/ (?:.*: )?(\w+)(?:\(.*\))?$", body, re.MULTILINE))


def difference(name: str, found: Result) -> str | None:
    """How a result differs from the recorded one, or None."""
    known = recorded().get(name)
    if known is None:
        return "not recorded"
    if known == found:
        return None
    parts = [
        f"{field} {getattr(found, field)}, recorded {getattr(known, field)}"
        for field in ("states", "depth")
        if getattr(known, field) != getattr(found, field)
    ]
    lost, new = sorted(set(known.taken) - set(found.taken)), sorted(set(found.taken) - set(known.taken))
    if lost:
        parts.append(f"no longer met: {', '.join(lost)}")
    if new:
        parts.append(f"new: {', '.join(new)}")
    return "; ".join(parts)
