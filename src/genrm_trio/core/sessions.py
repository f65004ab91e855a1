"""Sessions: which are open, to which episode each is bound, and which member each backs.

The table and its small changes live here; when they happen is the Registry's business. A session is in the
table if and only if it is open: bound, and not ended, closed, retired or idle beyond its time.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from genrm_trio.core.identity import EpisodeId


@dataclass(slots=True)
class Session:
    """One open session.

    member: the cohort key and rollout index it backs, those of its latest `/verify`; None before, and for
        members of cohorts without a group id.
    late: that record was made after the export of the checkpoint that is open now.
    restored, claimed: installed by a restore; and used since under the attempt it is bound to. A session that
        was not restored counts as claimed.
    typed: made by a typed seed, so it stays open after its verify reply.
    ending: its verify reply went out while admission was closed; it ends when admission opens.
    waiters: the waiting requests that carry it.
    """

    session_id: str
    episode: EpisodeId
    last_used: float
    typed: bool = False
    restored: bool = False
    claimed: bool = True
    ending: bool = False
    late: bool = False
    member: tuple[str, int] | None = None
    waiters: set[int] = field(default_factory=set)


class SessionTable:
    """All open sessions in the order of their last use, and the ids and attempts that are refused.

    retired: for each rollout id the newest retired attempt; that and earlier attempts are refused.
    refused: the ids of retired sessions, with the rollout id they belonged to.
    closed: ids ended by a close, with the time; a seed of one binds nothing.
    """

    def __init__(self, max_remembered: int) -> None:
        self._max_remembered = max_remembered
        self._open: OrderedDict[str, Session] = OrderedDict()
        self._by_rollout: dict[str, dict[str, None]] = {}
        self.retired: dict[str, int] = {}
        self.refused: dict[str, str] = {}
        self._refused_of: dict[str, list[str]] = {}
        self.closed: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._open

    def __iter__(self) -> Iterator[Session]:
        return iter(self._open.values())

    def get(self, session_id: str | None) -> Session | None:
        """The open session of this id, or None."""
        return self._open.get(session_id) if session_id is not None else None

    def add(self, session: Session) -> None:
        """Open a session as the one used last."""
        self._open[session.session_id] = session
        self._by_rollout.setdefault(session.episode.rollout_id, {})[session.session_id] = None

    def remove(self, session: Session) -> None:
        """End a session; its record must have ended before."""
        assert session.member is None, "a record ends before its session does"
        del self._open[session.session_id]
        self._leave_rollout(session)

    def bind(self, session: Session, episode: EpisodeId) -> None:
        """Bind an open session to another episode."""
        self._leave_rollout(session)
        session.episode = episode
        self._by_rollout.setdefault(episode.rollout_id, {})[session.session_id] = None

    def _leave_rollout(self, session: Session) -> None:
        mates = self._by_rollout[session.episode.rollout_id]
        del mates[session.session_id]
        if not mates:
            del self._by_rollout[session.episode.rollout_id]

    def use(self, session: Session, now: float, episode: EpisodeId | None) -> None:
        """Note that a request used it; under the attempt it is bound to (or under none) that claims it."""
        self.touch(session, now)
        if episode is None or episode == session.episode:
            session.claimed = True

    def touch(self, session: Session, now: float) -> None:
        """Count the session's idle time from now."""
        session.last_used = now
        self._open.move_to_end(session.session_id)

    def bound_to(self, episode: EpisodeId) -> list[Session]:
        """The open sessions of this rollout bound to this or an earlier attempt, in the order they were bound."""
        mates = (self._open[i] for i in self._by_rollout.get(episode.rollout_id, ()))
        return [s for s in mates if s.episode.attempt <= episode.attempt]

    def is_retired(self, session_id: str | None, episode: EpisodeId | None) -> str | None:
        """Why a request is refused because its session or its attempt was retired, or None."""
        if session_id in self.refused:
            return f"the session's rollout {self.refused[session_id]!r} was retired"
        if episode is not None and episode.attempt <= self.retired.get(episode.rollout_id, -1):
            return f"attempt {episode.attempt} of rollout {episode.rollout_id!r} was retired"
        return None

    def is_over(self, session_id: str | None, episode: EpisodeId | None) -> str | None:
        """Why a request comes from an attempt that its session left behind, or None (contract 11.4)."""
        session = self.get(session_id)
        if session is None or episode is None or session.episode.rollout_id != episode.rollout_id:
            return None
        if episode.attempt < session.episode.attempt:
            return (
                f"attempt {episode.attempt} of rollout {episode.rollout_id!r} is over: "
                f"its session belongs to attempt {session.episode.attempt}"
            )
        return None

    def stale(self, session_id: str | None, episode: EpisodeId | None) -> str | None:
        """Why a request of this session under this episode is refused as stale, or None (contract 11.1, 11.4)."""
        return self.is_retired(session_id, episode) or self.is_over(session_id, episode)

    def retire(self, episode: EpisodeId) -> None:
        """Refuse this and earlier attempts of the rollout from now on."""
        self.retired[episode.rollout_id] = max(episode.attempt, self.retired.get(episode.rollout_id, 0))

    def refuse(self, session_id: str, rollout_id: str) -> None:
        """Refuse this session of a retired rollout from now on."""
        self.refused[session_id] = rollout_id
        self._refused_of.setdefault(rollout_id, []).append(session_id)

    def forget(self, rollout_ids: Iterable[str]) -> None:
        """Drop the marks of retired rollouts and the refused session ids that belong to them."""
        for rollout_id in rollout_ids:
            self.retired.pop(rollout_id, None)
            for session_id in self._refused_of.pop(rollout_id, ()):
                del self.refused[session_id]

    def remember_closed(self, session_id: str, now: float) -> None:
        """Remember that this id was closed; beyond the bound the oldest is forgotten."""
        self.closed[session_id] = now
        self.closed.move_to_end(session_id)
        while len(self.closed) > self._max_remembered:
            self.closed.popitem(last=False)

    def forget_closed(self, before: float) -> None:
        """Forget the ids closed at or before this time."""
        while self.closed and next(iter(self.closed.values())) <= before:
            self.closed.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        self._open.clear()
        self._by_rollout.clear()
        self.retired.clear()
        self.refused.clear()
        self._refused_of.clear()
        self.closed.clear()

    def adopt(self, other: "SessionTable") -> None:
        """Take over the open sessions of a table that was built aside; this one must have none open.

        An id among them that was closed or retired before is open again: its caller goes on from before that.
        """
        assert not self._open, "a restore meets no open session"
        self._open = other._open
        self._by_rollout = other._by_rollout
        for session_id in [closed for closed in self.closed if closed in self._open]:
            del self.closed[session_id]
        for session_id in [refused for refused in self.refused if refused in self._open]:
            rollout_id = self.refused.pop(session_id)
            self._refused_of[rollout_id].remove(session_id)
            if not self._refused_of[rollout_id]:
                del self._refused_of[rollout_id]
