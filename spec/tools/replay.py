"""Leads code along the spec's graph, and compares after every step: the event, the whole state, and what was told.

What was told is both: the reply that came back to whoever asked for the step, and what waiting requests heard by it.

What the code is, and how it is made to take a step, is a Target's business. Steps of the world (a caller writes its
outcome down, a rollout starts over) change nothing that the code could see.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from spec.tools.codes import Codes
from spec.tools.graph import Event, Graph, State
from spec.tools.walks import Walk

from genrm_trio.core.outcome import Answer, Refused
from genrm_trio.core.trace import ACTIONS
from genrm_trio.ops.tla.events import SpecEvent
from genrm_trio.ops.tla.values import Map, Value, pairs_of


class Divergence(AssertionError):
    """Code and spec do not agree; the text says in what, and by which steps one comes there."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a step of the code came to: its event, if it was an action of the core, and who was told what.

    returned: what came back to whoever asked for it, as the spec has the reply. The event tells what the core decided,
        and this what was made of it on the way out. Only for what is in ASKED.
    """

    event: SpecEvent | None
    answers: Mapping[int, Answer]
    returned: "Value | None" = None


class Target(Protocol):
    """Code that can be led."""

    codes: Codes

    async def take(self, event: Event) -> Taken:
        """Take this step."""

    def core(self) -> Map:
        """The state of its core."""

    def due(self) -> Mapping[str, Sequence[Value]]:
        """What time could make due: by action, in the order in which it goes."""


Fresh: TypeAlias = Callable[[], AbstractAsyncContextManager[Target]]
"""Makes a target in the spec's initial state, for one walk."""


@dataclass(frozen=True)
class Replayed:
    """What a replay came to."""

    edges: int
    walks: int
    steps: int
    seconds: float


async def replay(graph: Graph, walks: Iterable[Walk], fresh: Fresh) -> Replayed:
    """Lead a fresh target along each walk. Raises Divergence."""
    started = time.perf_counter()
    edges: set[int] = set()
    count = steps = 0
    for walk in walks:
        async with fresh() as target:
            await follow(graph, walk, target)
        edges.update(walk)
        count, steps = count + 1, steps + len(walk)
    return Replayed(len(edges), count, steps, time.perf_counter() - started)


async def follow(graph: Graph, walk: Walk, target: Target) -> None:
    """Lead a target along one walk."""
    if target.core() != graph.states[0].core:
        raise Divergence(f"the initial states differ: {difference(graph.states[0].core, target.core())}")
    for position, number in enumerate(walk):
        edge = graph.edges[number]
        event, before, after = graph.events[edge.event], graph.states[edge.source], graph.states[edge.target]
        taken = await target.take(event)
        wrong = compare(event, before, after, taken, target) or _due(graph, edge.target, target.due())
        if wrong is not None:
            raise Divergence(f"{wrong}\nafter\n{way(graph, walk[: position + 1])}")


def way(graph: Graph, walk: Walk) -> str:
    """The events of a walk, to be read."""
    return "\n".join(f"{n:3} {graph.events[graph.edges[number].event]}" for n, number in enumerate(walk))


def compare(event: Event, before: State, after: State, taken: Taken, target: Target) -> str | None:
    """What differs after a step, or None."""
    expected = (event.name, event.args, event.reply) if event.name in ACTIONS else None
    if taken.event != expected:
        return f"the spec says {expected}, the code says {taken.event}"
    core = target.core()
    if core != after.core:
        return f"the states differ: {difference(after.core, core)}"
    return _returned(event, taken) or _told(before, after, taken, target.codes)


QUIET = frozenset(("idle", "restored"))
"""Phases of the spec's world in which nothing is left out of its graph."""


def _due(graph: Graph, state: int, due: Mapping[str, Sequence[Value]]) -> str | None:
    """Whether the code says that goes by age what the spec lets go, and nothing else."""
    idle = _idle(graph.states[state])
    if set(due["ExpireSession"]) != idle:
        return f"ExpireSession: of the spec's sessions {idle} are idle, the code has {due['ExpireSession']}"
    if graph.states[state].world["phase"] not in QUIET:
        return None
    offered: dict[str, set[Value]] = {name: set() for name in due}
    for number in graph.leaving[state]:
        event = graph.events[graph.edges[number].event]
        if event.name in offered:
            offered[event.name] |= set(event.args.values()) if isinstance(event.args, Map) else set()
    for name in ("Expire", "ExpireWatermark"):
        if offered[name] != set(due[name][:1]):
            return f"{name}: the spec has {offered[name]}, the code {due[name]}"
    return None


def _idle(state: State) -> set[Value]:
    """The sessions that may end by their age: with admission open, and when no request waits with them."""
    if not state.core["open"]:
        return set()
    waiting = {waiter["s"] for _, waiter in pairs_of(state.core["waiting"])}
    return {session for session, _ in pairs_of(state.core["session"])} - waiting


ASKED = frozenset(("Submit", "Seed", "UseSession", "EndSession"))
"""Actions that a request asks for, which gets the reply."""


def _returned(event: Event, taken: Taken) -> str | None:
    """Whether the spec's reply came back to whoever asked. A Submit's tells of evictions besides, which none hears."""
    replied = event.reply["reply"] if event.name == "Submit" and isinstance(event.reply, Map) else event.reply
    if event.name not in ASKED or taken.returned == replied:
        return None
    return f"the spec replies {replied} to {event.name}, what came back is {taken.returned}"


def _told(before: State, after: State, taken: Taken, codes: Codes) -> str | None:
    """Whether callers heard what the spec says. Each is one rollout, and listens for what its latest answer is told."""
    waiting = dict(pairs_of(before.core["waiting"]))
    for number, answer in taken.answers.items():
        waiter: Any = codes.waiter(number)
        if waiter not in waiting:
            continue
        if isinstance(answer, Refused):
            if answer.code != "stale_attempt":
                return f"waiter {waiter} was refused: {answer}"
            continue
        slot, life = waiter[:2], (waiter[2] - 1) // codes.constants.max_waiters
        caller, told = before.caller[slot], codes.outcome(answer)
        listens = caller["st"] == "verify" and caller["ans"] - 1 == life and waiting[waiter]["k"][1] == caller["att"]
        heard = after.caller[slot]["told"]
        if listens and told != heard:
            return f"waiter {waiter} was told {told}, the spec says {heard}"
    return None


def difference(expected: Value, found: Value) -> str:
    """Where two values differ, as far in as possible."""
    if isinstance(expected, Map) and isinstance(found, Map) and set(expected) == set(found):
        parts = [f"{key}: {difference(expected[key], found[key])}" for key in expected if expected[key] != found[key]]
        return "; ".join(parts)
    return f"the spec has {expected!r}, the code {found!r}"
