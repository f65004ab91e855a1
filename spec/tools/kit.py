"""The kit for ports: walks along every edge of a graph, traces of this server, counterexamples of the mutants; as JSON.

    python -m spec.tools.kit walks Q FILE        every edge of a configuration
    python -m spec.tools.kit traces N FOLDER     at least N traces of this server, as `serve --trace` writes them
    python -m spec.tools.kit counterexamples     counterexamples.json anew, by running TLC on each mutant

docs/kit.md says what the files hold, and how a port is led along them.
"""

import json
import logging
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from spec.tools import configs, mutants, tracing, walks
from spec.tools.codes import Constants
from spec.tools.graph import Event, Graph, State, counterexample, dump
from spec.tools.tlc import SPEC
from tests.spec.recorder import SERVED

from genrm_trio.core.trace import ACTIONS
from genrm_trio.ops.tla.values import Map, Value, function
from genrm_trio.ops.tracing import TraceFile

FILE = SPEC / "counterexamples.json"


# -- values --------------------------------------------------------------------------------------------

FUNCTIONS = frozenset(("cohort", "session", "record", "waiting", "retired", "refused"))
"""Those parts of the server's state that are functions, also when they are empty."""
SEQUENCES = frozenset(("term", "marks"))
"""Those that are sequences."""


def encoded(value: Value) -> Any:
    """A value as JSON. What is empty, and one value in the spec, is null: it stands for nothing, as a rule."""
    match value:
        case ():
            return None
        case tuple():
            return [encoded(part) for part in value]
        case frozenset():
            return {"#set": sorted((encoded(part) for part in value), key=json.dumps)}
        case Map():
            if all(isinstance(key, str) for key in value):
                return {str(key): encoded(part) for key, part in sorted(value.items())}
            pairs = [[encoded(key), encoded(part)] for key, part in value.items()]
            return {"#map": sorted(pairs, key=json.dumps)}
        case _:
            return value


def decoded(value: Any) -> Value:
    """The value that JSON stands for."""
    match value:
        case None:
            return ()
        case list():
            return tuple(decoded(part) for part in value)
        case {"#set": parts}:
            return frozenset(decoded(part) for part in parts)
        case {"#map": pairs}:
            return function((decoded(key), decoded(part)) for key, part in pairs)
        case dict():
            return function((key, decoded(part)) for key, part in value.items())
        case bool() | int() | str():
            return value
    raise ValueError(f"no value of the kit: {value!r}")


def _function(value: Value) -> Any:
    return encoded(value) or {"#map": []}


def _sequence(value: Value) -> Any:
    return encoded(value) or []


def encoded_core(core: Map) -> dict[str, Any]:
    """The server's state as JSON."""
    forms = dict.fromkeys(FUNCTIONS, _function) | dict.fromkeys(SEQUENCES, _sequence)
    return {name: forms.get(name, encoded)(core[name]) for name in sorted(map(str, core))}


def encoded_event(event: Event) -> list[Any]:
    """An event as JSON."""
    args, reply = encoded(event.args), encoded(event.reply)
    if event.name == "Restore":
        args |= {"states": _function(event.arg("states")), "order": _sequence(event.arg("order"))}
    if event.name == "Export":
        reply = _function(event.reply)
    return [event.name, args, reply]


def _constants(constants: Constants) -> dict[str, Any]:
    return {
        "cohort_size": constants.size,
        "max_terminal_cohorts": constants.cap,
        "ungrouped": sorted(constants.ungrouped),
        "max_waiters": constants.max_waiters,
    }


# -- walks ---------------------------------------------------------------------------------------------


def walks_of(name: str, graph: Graph) -> dict[str, Any]:
    """The walks of a configuration: each is a list of [number of an event, number of the state after it].

    Steps that the server has no part in are left out, but for the crash that ends a process.
    """
    seen: dict[Map, int] = {}
    cores = [seen.setdefault(state.core, len(seen)) for state in graph.states]
    found = []
    for walk in walks.covering(graph):
        edges = [graph.edges[number] for number in walk]
        steps = [edge for edge in edges if graph.events[edge.event].name in {*ACTIONS, "Crash"}]
        found.append([[edge.event, cores[edge.target]] for edge in steps])
    return {
        "configuration": name,
        "constants": _constants(Constants.of(configs.load(name))),
        "events": [encoded_event(event) for event in graph.events],
        "states": [encoded_core(core) for core in seen],
        "walks": found,
    }


# -- traces --------------------------------------------------------------------------------------------


def write_traces(count: int, folder: Path) -> int:
    """Record at least so many traces of this server, each into a file of its own; returns how many there are."""
    folder.mkdir(parents=True, exist_ok=True)
    traces = tracing.recorded(count)
    for number, events in enumerate(traces, 1):
        with (folder / f"trace-{number:04}.jsonl").open("wb") as file:
            trace = TraceFile(file)
            trace.begin(SERVED.limits)
            for event in events:
                trace(event)
    return len(traces)


# -- counterexamples -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counterexample:
    """How a broken rule breaks an invariant: the steps, the last of which does it, with the states they lead to."""

    mutant: str
    invariant: str
    configuration: str
    steps: tuple[tuple[Event, State], ...]


def counterexamples(rows: Iterable[mutants.Row]) -> list[Counterexample]:
    """Run TLC on these rows."""
    found = []
    for row in rows:
        steps = counterexample(mutants.refute(row).run.output)
        found.append(Counterexample(row.mutant, row.invariant, row.configuration, tuple(steps)))
    return found


def safety_rows() -> list[mutants.Row]:
    """The rows whose counterexample ends with one step."""
    return [row for row in mutants.table() if row.invariant not in mutants.LIVENESS]


def document(found: Iterable[Counterexample]) -> str:
    """The text of counterexamples.json: one line for each, so that changes can be read.

    Of the callers and the world only what the pins of Python's invariants look at is kept; each state is told by what
    differs from the one before.
    """
    lines = [json.dumps(_line(one), separators=(",", ":")) for one in found]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def _line(one: Counterexample) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    before: Mapping[str, Any] = {}
    for event, state in one.steps:
        now = {f"core.{name}": part for name, part in encoded_core(state.core).items()}
        now |= {"caller": encoded(state.caller)}
        parts.append(
            {"event": encoded_event(event), **{name: part for name, part in now.items() if before.get(name) != part}}
        )
        before = now
    return {
        "mutant": one.mutant,
        "invariant": one.invariant,
        "configuration": one.configuration,
        "constants": _constants(Constants.of(configs.load(one.configuration))),
        "steps": parts,
    }


def recorded() -> list[Counterexample]:
    """What counterexamples.json holds."""
    return [_counterexample(line) for line in json.loads(FILE.read_text())]


def _counterexample(line: Mapping[str, Any]) -> Counterexample:
    now: dict[str, Any] = {}
    steps = []
    for step in line["steps"]:
        now |= {name: decoded(part) for name, part in step.items() if name != "event"}
        core = Map((name.removeprefix("core."), part) for name, part in now.items() if name.startswith("core."))
        name, args, reply = step["event"]
        steps.append((Event(name, decoded(args), decoded(reply)), State(core, now["caller"], (), Map())))
    return Counterexample(line["mutant"], line["invariant"], line["configuration"], tuple(steps))


def main(arguments: list[str]) -> int:
    """Write what the arguments ask for."""
    match arguments:
        case ["walks", name, file]:
            Path(file).write_text(json.dumps(walks_of(name, dump(configs.load(name))), separators=(",", ":")) + "\n")
        case ["traces", count, folder]:
            # Traced servers are refused and aborted all the time, which they rightly log.
            structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
            print(f"{write_traces(int(count), Path(folder))} traces")
        case ["counterexamples"]:
            FILE.write_text(document(counterexamples(safety_rows())))
        case _:
            print(__doc__)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
