"""Documents that are made from the spec and the code, so that they cannot fall behind: the spec map and the diagrams.

python -m spec.tools.docs            write them
python -m spec.tools.docs --check    exit 1 when one of them is not what would be written
"""

import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from spec.tools import kit, mutants, results
from spec.tools.tlc import SPEC
from tests.core.play import Play
from tests.core.test_vocabulary import every_action

from genrm_trio.checkpoints import phases
from genrm_trio.core.cohort import TERMINAL, TRANSITIONS, Phase
from genrm_trio.core.registry import Registry
from genrm_trio.core.trace import ACTIONS, Event, method_name

DOCS = SPEC.parent / "docs"

MAP_HEAD = """# From the spec to the code

Made by `python -m spec.tools.docs` from [the spec](../spec/GenrmTrio.tla), the Registry and the recorded
counterexamples; a test holds it up to date. One row per action, under the one name that it has everywhere: in the spec,
as the Registry's method, in events and traces, and as a rule of the stateful test. The row is the action's heading:
`spec-map.md#Submit` leads to it. The events are the server's; the spec's have the same names, and other shapes
(`src/genrm_trio/ops/tla/events.py` translates).

A *mutant* is a rule broken on purpose, under one name in the spec and in the source; an action's are those of its own
rules. *Breaks* are the invariants that a step of this action breaks in the counterexample of some mutant, which may be
one of an earlier step. [The formal model](../spec/README.md) tells the rest.
"""

DIAGRAMS_HEAD = """# State diagrams

Made by `python -m spec.tools.docs` from the tables that the code runs on; a test holds them up to date. How the parts
play together is in [architecture.md](architecture.md).
"""


# -- the spec's text -----------------------------------------------------------------------------------

_DEFINITION = re.compile(r"^(\w+)(?:\([^)\n]*\))? ==", re.MULTILINE)


def definitions() -> dict[str, str]:
    """The operators of the spec, each with its text, without comments."""
    text = "\n".join(_without_comments((SPEC / "GenrmTrio.tla").read_text().splitlines()))
    found = list(_DEFINITION.finditer(text))
    ends = [*(one.start() for one in found[1:]), len(text)]
    return {one[1]: text[one.end() : end] for one, end in zip(found, ends, strict=True)}


def _without_comments(lines: Iterable[str]) -> Iterator[str]:
    depth = 0
    for line in lines:
        depth += line.count("(*")
        if depth == 0:
            yield line.partition("\\*")[0]
        depth -= line.count("*)")


_BROKEN = re.compile(r'(?<!~ )Mutant\("\w+"\) THEN .*? ELSE', re.DOTALL)
"""What is done instead of a rule."""


def rules_of(action: str, defined: Mapping[str, str]) -> list[str]:
    """The mutants of an action: of its own rules, or of what it uses. What only a mutant uses does not count."""
    seen: set[str] = set()
    ahead = [action]
    while ahead:
        name = ahead.pop()
        if name not in seen:
            seen.add(name)
            ahead += [word for word in set(re.findall(r"\w+", _BROKEN.sub("", defined[name]))) if word in defined]
    return sorted({rule for name in seen for rule in re.findall(r'Mutant\("(\w+)"\)', defined[name])})


def told_by_spec(action: str) -> str:
    """The comment above an action of the spec, on one line."""
    lines = (SPEC / "GenrmTrio.tla").read_text().splitlines()
    at = next(n for n, line in enumerate(lines) if re.match(rf"{action}(\(.*\))? ==", line))
    comment: list[str] = []
    while lines[at - 1].startswith("\\* "):
        at -= 1
        comment.insert(0, lines[at].removeprefix("\\* "))
    return " ".join(comment)


# -- the map -------------------------------------------------------------------------------------------


def broken_by(action: str, found: Iterable[kit.Counterexample]) -> list[str]:
    """The invariants whose counterexample ends with this action."""
    return sorted({one.invariant for one in found if one.steps[-1][0].name == action})


def events() -> dict[str, Event]:
    """One event of each action, as the code emits it."""
    play = Play()
    every_action(play)
    return {event.name: event for event in play.events}


def _shape(event: Event) -> str:
    """An event's arguments, and its reply."""
    match event.reply:
        case dict():
            reply = ", ".join(event.reply)
        case bool():
            reply = "true or false"
        case str():
            reply = "a word"
        case list():
            reply = "a list"
        case _:
            reply = ""
    return f"`{event.name}({', '.join(event.args)})`" + (f" → {reply}" if reply else "")


def told_by_code(action: str) -> str:
    """What the Registry's method says it does, on one line."""
    doc = inspect.getdoc(getattr(Registry, method_name(action)))
    assert doc is not None, "a public method has a docstring"
    return " ".join(doc.split("\n\n", maxsplit=1)[0].split())


def _cells(names: Iterable[str]) -> str:
    return ", ".join(names) or "–"


def _heading(action: str) -> str:
    """An action's name as a place that links can name."""
    return f'<a id="{action}"></a>{action}'


def spec_map() -> str:
    """The text of docs/spec-map.md."""
    defined, emitted, recorded = definitions(), events(), kit.recorded()
    lines = [MAP_HEAD, "## Actions of the core", ""]
    lines += ["| action | method | event | breaks | mutants | what it does |", "| --- | --- | --- | --- | --- | --- |"]
    for action in ACTIONS:
        method = f"`{method_name(action)}`"
        cells = (_cells(broken_by(action, recorded)), _cells(rules_of(action, defined)), told_by_code(action))
        lines.append(f"| {_heading(action)} | {method} | {_shape(emitted[action])} | {' | '.join(cells)} |")
    lines += ["", "## Steps of the runtime and of the world", ""]
    lines += ["They emit no event, and a trace does not show them.", ""]
    lines += ["| step | breaks | mutants | what it does |", "| --- | --- | --- | --- |"]
    for action in results.actions():
        if action not in ACTIONS:
            cells = (_cells(broken_by(action, recorded)), _cells(rules_of(action, defined)), told_by_spec(action))
            lines.append(f"| {_heading(action)} | {' | '.join(cells)} |")
    lines += [
        "",
        "## The kill table",
        "",
        "| mutant | the rule that it breaks | caught by | in |",
        "| --- | --- | --- | --- |",
    ]
    for row in mutants.table():
        lines.append(f"| {row.mutant} | {row.behaviour} | {row.invariant} | {row.configuration} |")
    return "\n".join([*lines, ""])


# -- diagrams ------------------------------------------------------------------------------------------


def cohort_diagram() -> str:
    """The phases of a cohort as a Mermaid state diagram."""
    edges: dict[tuple[Phase, Phase], list[str]] = {}
    for (phase, step), target in TRANSITIONS.items():
        edges.setdefault((phase, target), []).append(step)
    lines = [f"    {source} --> {target}: {', '.join(steps)}" for (source, target), steps in edges.items()]
    ends = [f"    {phase} --> [*]" for phase in Phase if phase in TERMINAL]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {Phase.COLLECTING}: submit", *lines, *ends, ""])


def diagrams() -> str:
    """The text of docs/diagrams.md."""
    return "\n".join(
        [
            DIAGRAMS_HEAD,
            "## A cohort",
            "",
            "The labels are the steps of `core/cohort.py`; a step that is not here is a defect. A finished cohort goes",
            "by `expire`, by count in a `submit`, when its last member is a restored one that nobody asked for and a",
            "`retire` or `delete_restored` takes it, and without a group id as soon as its rewards are published. A",
            "collecting one whose last member a `retire` takes goes at once. A `shut_down` takes all.",
            "",
            f"```mermaid\n{cohort_diagram()}```",
            "",
            "## A checkpoint",
            "",
            "From `checkpoints/phases.py`: what the controller calls, and what the server reports of its own work.",
            "",
            f"```mermaid\n{phases.state_diagram()}```",
            "",
        ]
    )


def documents() -> dict[Path, str]:
    """Every document that is made here."""
    return {DOCS / "spec-map.md": spec_map(), DOCS / "diagrams.md": diagrams()}


def outdated() -> list[Path]:
    """The documents that are not what would be written."""
    return [path for path, text in documents().items() if not path.is_file() or path.read_text() != text]


def main(arguments: list[str]) -> int:
    """Write the documents, or check them."""
    if arguments == ["--check"]:
        found = outdated()
        for path in found:
            print(f"{path.relative_to(SPEC.parent)} is out of date: run python -m spec.tools.docs")
        return 1 if found else 0
    for path, text in documents().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
