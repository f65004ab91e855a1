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

    def rebuilt(self, more: Iterable[Record] = ()) -> Rebuild:
        """What a restore of these records installs, and of some more. Raises StateRefused."""
        rebuild = Rebuild(self._limits, 0.0)
        for session, episode, state in [*self._records, *more]:
            rebuild.add(episode, session, json.loads(json.dumps(state)))
        return rebuild

    def refused(self, reason: str, registry: Registry) -> None:
        """See that a restore is refused for this reason."""
        if reason != "not empty":
            self._refused_damaged(reason)
        elif registry.restore_refused() is None:
            raise Divergence("a process that holds something would take a restore")

    def _refused_damaged(self, reason: str) -> None:
        """Damage it in this way; sessions without an outcome are damaged otherwise."""
        session, episode, state = next((one for one in self._records if one[2]), self._records[0])
        changed: dict[str, Any] = dict(state) if isinstance(state, dict) else {}
        if not changed:
            changed["unknown"] = 1
        elif reason == "unknown scheme":
            changed["response_digest_scheme"] = "unknown"
        else:
            changed["response_digest"] = "another"
        try:
            self.rebuilt([(f"{session}.more", episode, changed)])
        except StateRefused:
            return
        raise Divergence(f"a file with the damaged record {changed} is not refused")
