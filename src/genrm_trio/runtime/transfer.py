"""A checkpoint's content on its way out of the registry and back: in slices, so that the event loop goes on.

Nothing here decides whether or when; that is `control`. Nothing here waits for anything but its turn.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Any, TypeVar

import trio

from genrm_trio.checkpoints.errors import CheckpointStateError
from genrm_trio.checkpoints.phases import Scope
from genrm_trio.checkpoints.records import Record
from genrm_trio.core.identity import EpisodeId
from genrm_trio.core.outcome import JSON
from genrm_trio.core.record import Rebuild, StateRefused
from genrm_trio.runtime.server import Server

T = TypeVar("T")

SLICE = 64
"""Sessions dealt with between two checkpoints of the event loop: a few milliseconds of work at most."""

SORT_SLICE = 1024
"""Texts sorted or merged between two checkpoints of the event loop."""


@dataclass(frozen=True, slots=True, eq=False)
class Exported:
    """What one checkpoint exported, taken once and never changed. Both by session id.

    left_out: sessions that the export did not answer for, because they ended meanwhile.
    """

    episodes: dict[str, EpisodeId]
    states: dict[str, JSON]
    left_out: Sequence[str]

    def __iter__(self) -> Iterator[Record]:
        """The records in the order of the states; made one by one, in whatever thread writes them."""
        for session_id, state in self.states.items():
            yield Record(self.episodes[session_id], session_id, state)

    async def keys(self) -> list[str]:
        """The capture keys of the records' episodes, each once, sorted."""
        return await sorted_keys(self.episodes[i] for i in self.states)


async def export(server: Server, scope: Scope, checkpoint_id: str) -> Exported:
    """Export the open sessions of the episodes in scope; admission is closed, so none opens meanwhile."""
    episodes: dict[str, EpisodeId] = {}
    for part in slices(list(server.registry.sessions)):
        episodes |= {s.session_id: s.episode for s in part if scope is None or s.episode in scope}
        await trio.lowlevel.checkpoint()
    states = await server.export_session_states(episodes.keys(), checkpoint_id=checkpoint_id)
    left_out = [i for i in episodes if i not in states] if len(states) < len(episodes) else []
    return Exported(episodes, states, left_out)


async def rebuild_aside(server: Server, records: list[Record]) -> Rebuild:
    """Validate the records and build the state that they come to, aside.

    Empties `records`, last to first: to let go of them all at once would take as long as many slices. Raises
    CheckpointStateError, also when they are more sessions than may be open.
    """
    most = server.policy.limits.max_sessions
    if len(records) > most:
        raise CheckpointStateError(f"{len(records)} sessions are asked for, limits.max_sessions is {most}")
    rebuild = Rebuild(server.policy.limits, server.now())
    records.reverse()
    while records:
        for record in reversed(records[-SLICE:]):
            try:
                rebuild.add(record.episode, record.session_id, record.state)
            except StateRefused as refused:
                raise CheckpointStateError(str(refused)) from refused
        del records[-SLICE:]
        await trio.lowlevel.checkpoint()
    return rebuild


async def let_go(items: list[Any] | dict[str, Any]) -> None:
    """Empty a large collection that nobody else uses, in slices, for the same reason."""
    while items:
        if isinstance(items, list):
            del items[-SLICE:]
        else:
            for key in list(islice(items, SLICE)):
                del items[key]
        await trio.lowlevel.checkpoint()


async def sorted_keys(episodes: Iterable[EpisodeId]) -> list[str]:
    """The capture keys of the episodes, each once, sorted."""
    return await in_order(episode.key for episode in episodes)


async def in_order(texts: Iterable[str]) -> list[str]:
    """These texts, each once, sorted, in slices.

    Not in a thread: one that computes makes the event loop wait its turn for the interpreter, again and again.
    """
    each = iter(texts)
    parts: list[list[str]] = []
    while part := sorted(islice(each, SORT_SLICE)):
        parts.append(part)
        await trio.lowlevel.checkpoint()
    merged = merge(*parts)
    found: dict[str, None] = {}
    while some := list(islice(merged, SORT_SLICE)):
        found.update(dict.fromkeys(some))
        await trio.lowlevel.checkpoint()
    return list(found)


def slices(items: Sequence[T], size: int = SLICE) -> Iterable[Sequence[T]]:
    """The items in parts of this size."""
    return (items[start : start + size] for start in range(0, len(items), size))
