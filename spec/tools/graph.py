"""The complete labelled graph of a configuration, read from the edges that TLC prints.

A state is four values: the server, the callers, the tasks that hold an outcome, the world. Each is kept once, however
many states share it. An edge is a state, an event with its arguments and reply, and the next state.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from spec.tools import tlc
from spec.tools.configs import Config

from genrm_trio.ops.tla.values import Map, Value, elements, parse, write

PARTS = ("core", "caller", "task", "world")
"""What the spec's View is made of, in its order."""


@dataclass(frozen=True, slots=True)
class Event:
    """One action of the spec: its name, its arguments, its reply."""

    name: str
    args: Value
    reply: Value

    def arg(self, name: str) -> Any:
        """One argument."""
        assert isinstance(self.args, Map), f"{self.name} has no arguments"
        return self.args[name]

    def __str__(self) -> str:
        return f"{self.name}{self.args} -> {self.reply}"


@dataclass(frozen=True, slots=True)
class State:
    """One state of the spec."""

    core: Map
    caller: Any
    task: Any
    world: Map


@dataclass(frozen=True, slots=True)
class Edge:
    """One transition; source, event and target are numbers of the graph."""

    source: int
    event: int
    target: int


@dataclass
class Graph:
    """All states that a configuration reaches. State 0 is the initial one.

    leaving: for each state the numbers of the edges that leave it.
    """

    states: list[State] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    leaving: list[list[int]] = field(default_factory=list)

    def ambiguous(self) -> list[str]:
        """Where the spec is not deterministic: one state, one action with its arguments, two results."""
        found: dict[tuple[int, str, Value], Edge] = {}
        wrong = []
        for edge in self.edges:
            event = self.events[edge.event]
            first = found.setdefault((edge.source, event.name, event.args), edge)
            if (first.event, first.target) != (edge.event, edge.target):
                wrong.append(f"in state {edge.source}: {event} or {self.events[first.event]}")
        return wrong


class Reader:
    """Builds a graph line by line. TLC prints equal values in more than one way, so values decide, not texts."""

    def __init__(self) -> None:
        self.graph = Graph()
        self._by_text: dict[str, int] = {}
        self._by_value: dict[tuple[int, ...], int] = {}
        self._parts: list[tuple[dict[str, int], dict[Value, int], list[Value]]] = [({}, {}, []) for _ in PARTS]
        self._events: dict[str, int] = {}
        self._event_values: dict[Event, int] = {}
        self._seen: set[Edge] = set()
        self._last = ""

    def take(self, line: str) -> None:
        """Read one edge: `<<view, event, view>>`."""
        source, event, target = self._pieces(line)
        edge = Edge(self._state(source), self._event(event), self._state(target))
        if edge not in self._seen:
            self._seen.add(edge)
            self.graph.leaving[edge.source].append(len(self.graph.edges))
            self.graph.edges.append(edge)

    def _pieces(self, line: str) -> tuple[str, str, str]:
        """The three texts. All edges of one state come one after the other, so its text is rarely looked for."""
        if not (self._last and line.startswith(self._last, 2)):
            self._last = next(elements(line))
        at = 2 + len(self._last) + 2
        event = next(elements(line, at))
        return self._last, event, line[at + len(event) + 2 : -2]

    def _state(self, text: str) -> int:
        known = self._by_text.get(text)
        if known is not None:
            return known
        parts = [self._part(which, part) for which, part in enumerate(elements(text))]
        key = tuple(parts)
        number = self._by_value.get(key)
        if number is None:
            number = self._by_value[key] = len(self.graph.states)
            values = [self._parts[which][2][part] for which, part in enumerate(parts)]
            self.graph.states.append(state_of(values))
            self.graph.leaving.append([])
        self._by_text[text] = number
        return number

    def _part(self, which: int, text: str) -> int:
        by_text, by_value, values = self._parts[which]
        number = by_text.get(text)
        if number is None:
            value = parse(text)
            number = by_value.get(value)
            if number is None:
                number = by_value[value] = len(values)
                values.append(value)
            by_text[text] = number
        return number

    def _event(self, text: str) -> int:
        number = self._events.get(text)
        if number is None:
            event = event_of(parse(text))
            number = self._event_values.setdefault(event, len(self.graph.events))
            if number == len(self.graph.events):
                self.graph.events.append(event)
            self._events[text] = number
        return number


def event_of(value: Value) -> Event:
    """An event as the spec's variable `ev` has it."""
    assert isinstance(value, tuple), f"no event: {value!r}"
    name, args, reply = value
    assert isinstance(name, str), f"no event's name: {name!r}"
    return Event(name, args, reply)


def state_of(values: Iterable[Value]) -> State:
    """A state from the elements of the spec's View."""
    core, caller, task, world = values
    assert isinstance(core, Map), "the server's state is a record"
    assert isinstance(world, Map), "the world's state is a record"
    return State(core, caller, task, world)


def read(lines: Iterable[str]) -> Graph:
    """The graph that these edges make."""
    reader = Reader()
    for line in lines:
        reader.take(line.rstrip("\n"))
    return reader.graph


def dump(config: Config) -> Graph:
    """Run TLC on a configuration and read its whole graph."""
    reader = Reader()
    tlc.run(config.with_edges().text, on_edge=reader.take)
    return reader.graph


def told(event: Event) -> str:
    """An event in the spec's own notation, without what is empty."""
    args, reply = (write(value) if value != () else "" for value in (event.args, event.reply))
    return f"{event.name}{args and f' {args}'}{reply and f' -> {reply}'}"


# -- counterexamples -----------------------------------------------------------------------------------

_STATE = re.compile(r"^(?:STATE|State) \d+:.*\n((?:.+\n)+)", re.MULTILINE)
_VARIABLE = re.compile(r"^(?:/\\ )?(\w+) = ", re.MULTILINE)


def counterexample(output: str) -> list[tuple[Event, State]]:
    """The behaviour that TLC reports for a broken invariant: each state with the event that led to it."""
    found = []
    for state in _STATE.finditer(output):
        pieces = _VARIABLE.split(state[1])
        values = {name: parse(text) for name, text in zip(pieces[1::2], pieces[2::2], strict=True)}
        found.append((event_of(values["ev"]), state_of(values[part] for part in PARTS)))
    return found
