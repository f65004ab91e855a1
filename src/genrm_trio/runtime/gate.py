"""Admission of data requests: who waits while a checkpoint is open, who is refused, and what is in flight.

The truth about admission is the Registry's; the gate only waits for it and counts what has passed (contract 11.1).
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Literal

import trio

from genrm_trio.core.identity import EpisodeId
from genrm_trio.core.registry import Registry
from genrm_trio.runtime.bell import Bell
from genrm_trio.runtime.points import Points
from genrm_trio.runtime.turnstile import Turnstile

Kind = Literal["verify", "seed", "close", "tool", "plain"]
"""`tool` is any other call of an episode; `plain` are the calls that belong to no episode (`/compare` and its like)."""


class Stale(Exception):
    """The request's session or attempt is retired or over: 409 `stale_attempt`, after its wait."""


class Closing(Exception):
    """The server is shutting down: 503."""


@dataclass(frozen=True, slots=True, eq=False)
class Passage:
    """One data request that passed the gate and has not finished. `scope` ends it at shutdown."""

    kind: Kind
    session: str | None
    episode: EpisodeId | None
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    @property
    def blocks(self) -> bool:
        """Whether a prepare waits for it: seeds, closes and tool calls inside an episode."""
        return self.episode is not None and self.kind in {"seed", "close", "tool"}


class Gate:
    """Lets data requests pass in the order in which admission allows it.

    awaits_restore: none was resumed yet after `--await-restore`; `/verify` waits too.
    bell: rung whenever admission, the gate or what is in flight changed.
    turnstile: by which those go on who waited for admission, or for their answer.
    """

    def __init__(self, registry: Registry, now: Callable[[], float], points: Points, *, await_restore: bool) -> None:
        self._registry = registry
        self._now = now
        self._points = points
        self._passages: dict[Passage, None] = {}
        self._busy: Counter[str] = Counter()
        self._waiting: dict[object, Callable[[], None]] = {}
        self.bell = Bell()
        self.turnstile = Turnstile()
        self._at_doors: dict[trio.Event, None] = {}
        self.awaits_restore = await_restore

    @property
    def waiting(self) -> int:
        """How many requests wait to pass, for a resume or for a checkpoint to end."""
        return len(self._waiting)

    @asynccontextmanager
    async def enter(
        self,
        kind: Kind,
        session: str | None,
        episode: EpisodeId | None,
        *,
        at_shutdown: Callable[[], None] = lambda: None,
    ) -> AsyncIterator[Passage]:
        """Hold the request until admission lets it pass, then count it until the block ends, cancelled or not.

        Raises Stale when its session or attempt is refused after the wait (never for a close; for a `/verify` the
        core answers), and Closing when the server shuts down: also in the middle of the block, which is cancelled
        then. A `/verify` is not, as the core answers it.

        at_shutdown: called in the step in which the server shuts down, if the request waits then.
        """
        waiter = object()
        self._waiting[waiter] = at_shutdown
        try:
            while not self._passes(kind):
                await self.doors()
                await self._points.reach("admitted", kind)
        finally:
            del self._waiting[waiter]
        if self._registry.closed:
            raise Closing("the server is shutting down")
        self._check(kind, session, episode)
        passage = Passage(kind, session, episode)
        with self._counted(passage), passage.scope:
            yield passage
        if passage.scope.cancelled_caught:
            raise Closing("the server is shutting down")

    def tell(self) -> None:
        """The registry shut down: tell whoever waits."""
        for tell in self._waiting.values():
            tell()

    def close(self) -> None:
        """The registry shut down: whoever waits is refused, and whatever runs is ended, so that it has its answer."""
        for passage in self._passages:
            if passage.kind != "verify":
                passage.scope.cancel()
        self.bell.ring()
        self.open_doors()

    async def doors(self) -> None:
        """Wait until admission opens or the gate closes; it may have changed again when the caller runs on.

        Apart from the bell: thousands may wait here, and whoever is in flight is no business of theirs.
        """
        event = trio.Event()
        self._at_doors[event] = None
        try:
            await event.wait()
        finally:
            self._at_doors.pop(event, None)
            self.turnstile.through(event)

    def open_doors(self) -> None:
        """Let those go on who wait at the doors."""
        waiting, self._at_doors = self._at_doors, {}
        for event in waiting:
            self.turnstile.let(event)

    def _passes(self, kind: Kind) -> bool:
        if self._registry.closed:
            return True
        if self.awaits_restore:
            return False
        return kind == "verify" or self._registry.admission.open

    def _check(self, kind: Kind, session: str | None, episode: EpisodeId | None) -> None:
        if kind in {"verify", "close"}:
            return
        if kind == "tool" and session is not None:
            self._registry.use_session(self._now(), session, episode)
        stale = self._registry.sessions.stale(session, episode)
        if stale is not None:
            raise Stale(stale)

    @contextmanager
    def _counted(self, passage: Passage) -> Iterator[None]:
        self._passages[passage] = None
        if passage.session is not None:
            self._busy[passage.session] += 1
        try:
            yield
        finally:
            del self._passages[passage]
            if passage.session is not None:
                self._busy[passage.session] -= 1
                if not self._busy[passage.session]:
                    del self._busy[passage.session]
            self.bell.ring()

    @property
    def busy(self) -> Collection[str]:
        """The sessions that some running request carries; they do not idle out."""
        return self._busy.keys()

    @property
    def running(self) -> int:
        """All data requests that passed and have not finished, `/verify` included."""
        return len(self._passages)

    @property
    def blockers(self) -> list[str]:
        """The capture keys of the requests that a prepare waits for, in the order they passed, each once."""
        return list(dict.fromkeys(p.episode.key for p in self._passages if p.blocks and p.episode is not None))

    @property
    def inflight(self) -> int:
        """How many requests a prepare waits for."""
        return sum(passage.blocks for passage in self._passages)

    def of_rollouts(self, newest: Mapping[str, int], sessions: Collection[str]) -> int:
        """How many running requests but verifications belong to these sessions, or to attempts up to the newest ones.

        `newest` has the newest attempt of each rollout that is asked about.
        """

        def belongs(passage: Passage) -> bool:
            if passage.kind == "verify":
                return False
            episode = passage.episode
            named = episode is not None and episode.attempt <= newest.get(episode.rollout_id, -1)
            return named or passage.session in sessions

        return sum(belongs(passage) for passage in self._passages)
