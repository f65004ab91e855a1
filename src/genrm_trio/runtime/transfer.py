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

INLINE_KEYS = 1024
"""Keys up to which sorting is done on the event loop."""

SORT_SLICE = 4096
"""Keys sorted at a stretch in a thread, which holds up all others meanwhile."""


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
        return await sorted_keys((self.episodes[i] for i in self.states), len(self.states))


async def export(server: Server, scope: Scope, checkpoint_id: str) -> Exported:
    """Export the open sessions of the episodes in scope; admission is closed, so none opens meanwhile."""
    episodes: dict[str, EpisodeId] = {}
    for part in _slices(list(server.registry.sessions)):
        episodes |= {s.session_id: s.episode for s in part if scope is None or s.episode in scope}
        await trio.lowlevel.checkpoint()
    states = await server.export_session_states(episodes.keys(), checkpoint_id=checkpoint_id)
    left_out = [i for i in episodes if i not in states] if len(states) < len(episodes) else []
    return Exported(episodes, states, left_out)


async def rebuild_aside(server: Server, records: list[Record]) -> Rebuild:
    """Validate the records and build the state that they come to, aside.

    Empties `records`, last to first: to let go of them all at once would take as long as many slices. Raises
    CheckpointStateError.
    """
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


async def sorted_keys(episodes: Iterable[EpisodeId], count: int) -> list[str]:
    """The capture keys of `count` episodes, each once, sorted; many of them in a thread."""
    if count <= INLINE_KEYS:
        return sorted({episode.key for episode in episodes})
    return await trio.to_thread.run_sync(_merged_keys, episodes)


def _merged_keys(episodes: Iterable[EpisodeId]) -> list[str]:
    """Sorted in parts, for sorting at one go would keep every other thread waiting."""
    keys = [episode.key for episode in episodes]
    parts = [sorted(part) for part in _slices(keys, SORT_SLICE)]
    return list(dict.fromkeys(merge(*parts)))


def _slices(items: Sequence[T], size: int = SLICE) -> Iterable[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
