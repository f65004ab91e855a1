"""One configuration's graph, tied to the code: deterministic, every edge replayed, Python's invariants true on it."""

import time
from collections.abc import Hashable, Iterator
from functools import partial

import trio
from spec.tools import configs, walks
from spec.tools.codes import Constants
from spec.tools.core_target import core_target
from spec.tools.graph import Graph, dump
from spec.tools.replay import Divergence, Fresh, Replayed, replay, way
from spec.tools.trio_target import trio_target
from spec.tools.walks import Walk
from tests.spec.witness import Invariants, Witness, Wrong
from trio.testing import MockClock

Row = tuple[str, str, int, float, str | None]
"""What was checked, how it came out, how many states (or edges), seconds, and what is wrong."""


def checked(name: str) -> list[Row]:
    """Dump and replay one configuration."""
    return list(_rows(name))


def _rows(name: str) -> Iterator[Row]:
    started = time.perf_counter()
    graph = dump(configs.load(name))
    ambiguous = graph.ambiguous()
    wrong = f"not deterministic: {ambiguous[0]}" if ambiguous else None
    yield f"graph {name}", "deterministic", len(graph.states), time.perf_counter() - started, wrong
    constants, initial = Constants.of(configs.load(name)), graph.states[0]
    every = walks.covering(graph)
    yield _held(f"invariants {name} in Python", graph, every, constants)
    yield _replayed(f"replay {name} on the core", graph, every, lambda: core_target(constants, initial))
    yield _replayed(f"replay {name} on Trio", graph, every, lambda: trio_target(constants, initial))


def seen_by_server(graph: Graph, number: int) -> Hashable:
    """What of an edge the server can see: two that differ only in what callers or the world know are alike."""
    edge = graph.edges[number]
    before, after = graph.states[edge.source], graph.states[edge.target]
    return id(before.core), before.task, edge.event, id(after.core), after.task


def seen_by_core(graph: Graph, number: int) -> Hashable:
    """What of an edge the core can see, which has no tasks."""
    edge = graph.edges[number]
    return id(graph.states[edge.source].core), edge.event, id(graph.states[edge.target].core)


def run(graph: Graph, led: list[Walk], fresh: Fresh) -> Replayed:
    """Lead code along walks, in a time that stands still. Raises Divergence."""
    return trio.run(partial(replay, graph, led, fresh), clock=MockClock())


def _replayed(what: str, graph: Graph, led: list[Walk], fresh: Fresh) -> Row:
    started = time.perf_counter()
    try:
        done = run(graph, led, fresh)
    except (Divergence, ExceptionGroup) as error:
        divergence = error
        while isinstance(divergence, ExceptionGroup):  # on Trio it comes out of a nursery
            divergence = divergence.exceptions[0]
        if not isinstance(divergence, Divergence):
            raise
        return what, "", 0, time.perf_counter() - started, str(divergence)
    wrong = None if done.edges == len(graph.edges) else "not all"
    text = f"{done.edges:,} of {len(graph.edges):,} edges, {done.steps:,} steps"
    return what, text, done.edges, done.seconds, wrong


def violated(graph: Graph, led: list[Walk], constants: Constants) -> str | None:
    """What the first state or step along these walks is at which one of Python's invariants is false, or None."""
    invariants = Invariants(constants)
    if wrong := invariants.state(graph.states[0].core).wrong:
        return f"in state 0 {_told(wrong)}"
    for walk in led:
        witness = Witness(invariants, graph.states[0])
        for position, number in enumerate(walk):
            edge = graph.edges[number]
            event, before, after = graph.events[edge.event], graph.states[edge.source], graph.states[edge.target]
            if wrong := witness.step(event, before, after):
                where = f"in state {edge.target}, by edge {number} from state {edge.source}"
                return f"{where}, {_told(wrong)}\nafter\n{way(graph, walk[: position + 1])}"
    return None


def _told(wrong: Wrong) -> str:
    return "; ".join(f"{name} is false: {text}" for name, text in wrong.items())


def _held(what: str, graph: Graph, led: list[Walk], constants: Constants) -> Row:
    started = time.perf_counter()
    wrong = violated(graph, led, constants)
    text = f"true on {len(graph.states):,} states and {len(graph.edges):,} edges"
    return what, text, len(graph.states), time.perf_counter() - started, wrong
