"""The checkpoint that a led server wrote last, and the ways to damage it."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from spec.tools.replay import Divergence

from genrm_trio.core.identity import EpisodeId
from genrm_trio.core.outcome import JSON
from genrm_trio.core.record import Rebuild, StateRefused
from genrm_trio.core.registry import Registry
from genrm_trio.core.state import Limits

Record = tuple[str, EpisodeId, JSON]


class Checkpoint:
    """Its records, in the order of export."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._records: list[Record] = []

    def add(self, states: Mapping[str, JSON], episodes: Mapping[str, EpisodeId]) -> None:
        """These sessions were exported."""
        self._records += [(session, episodes[session], state) for session, state in states.items()]

    def clear(self) -> None:
        """It is over."""
        self._records.clear()

    def rebuilt(self) -> Rebuild:
        """What a restore of these records installs. Raises StateRefused."""
        return self._rebuilt(self._records)

    def _rebuilt(self, records: Iterable[Record]) -> Rebuild:
        rebuild = Rebuild(self._limits, 0.0)
        for session, episode, state in records:
            rebuild.add(episode, session, json.loads(json.dumps(state)))
        return rebuild

    def refused(self, reason: str, registry: Registry) -> None:
        """See that a restore is refused for this reason."""
        if reason != "not empty":
            self._refused_damaged(reason)
        elif registry.restore_refused() is None:
            raise Divergence("a process that holds something would take a restore")

    def _refused_damaged(self, reason: str) -> None:
        for records in self._damaged(reason):
            try:
                self._rebuilt(records)
            except StateRefused:
                continue
            raise Divergence(f"a damaged file is not refused: {records}")

    def _damaged(self, reason: str) -> list[list[Record]]:
        """The files that a reason stands for; sessions without an outcome are damaged otherwise."""
        damaged = next((one for one in self._records if one[2]), self._records[0])
        session, episode, state = damaged
        others = [one for one in self._records if one is not damaged]
        kept: dict[str, Any] = dict(state) if isinstance(state, dict) else {}
        if not kept:
            return [[*others, (session, episode, {"unknown": 1})]]
        if reason == "unknown scheme":
            return [[*others, (session, episode, kept | {"response_digest_scheme": "unknown"})]]
        differs = (f"{session}.more", episode, kept | {"response_digest": "another"})
        return [[*self._records, differs], [*self._records, damaged]]
