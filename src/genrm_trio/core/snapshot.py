"""The state as a plain value at one moment, so that two moments can be compared.

Only copying and reading lives here; the invariants of steps judge pairs of these.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from genrm_trio.core.cohort import TERMINAL, Phase
from genrm_trio.core.identity import EpisodeId
from genrm_trio.core.outcome import CohortFailed, JudgeFailed, Rewarded
from genrm_trio.core.state import State


@dataclass(frozen=True, slots=True)
class MemberView:
    """One taken slot: whose answer holds it, what it got, and whether it is restored and not replayed."""

    digest: str
    scheme: str
    result: Rewarded | None
    pending: bool


@dataclass(frozen=True, slots=True)
class CohortView:
    """One cohort. waiters: waiter to rollout index. sessions: session id to rollout index."""

    group: str | None
    attempt: int
    phase: Phase
    members: Mapping[int, MemberView]
    waiters: Mapping[int, int]
    sessions: Mapping[str, int]
    failure: JudgeFailed | CohortFailed | None

    @property
    def terminal(self) -> bool:
        """Whether it is completed or failed."""
        return self.phase in TERMINAL

    @property
    def judged(self) -> bool:
        """Whether it is completed or judge-failed, which is what callers record."""
        return self.terminal and not isinstance(self.failure, CohortFailed)


@dataclass(frozen=True, slots=True)
class MarkView:
    """A group's watermark."""

    attempt: int
    installed: bool


@dataclass(frozen=True, slots=True)
class SessionView:
    """One open session; `rollout` and `attempt` are those of its episode."""

    rollout: str
    attempt: int
    claimed: bool
    ending: bool
    late: bool
    member: tuple[str, int] | None
    waiters: frozenset[int]


@dataclass(frozen=True, slots=True)
class WaiterView:
    """One waiting request: what it waits for, the open session that it carries, and who asked."""

    cohort: str
    session: str | None
    asked: str | None
    episode: EpisodeId | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All of the state that invariants speak of: `terminal` in the order of eviction, `marks` in that of last use."""

    cohorts: Mapping[str, CohortView]
    terminal: tuple[str, ...]
    marks: Mapping[str, MarkView]
    sessions: Mapping[str, SessionView]
    waiters: Mapping[int, WaiterView]
    open: bool
    exported: frozenset[str] | None
    closed: bool
    cap: int

    def group_cohorts(self, group: str) -> dict[str, CohortView]:
        """The retained cohorts of a group."""
        return {key: cohort for key, cohort in self.cohorts.items() if cohort.group == group}

    def backed(self, key: str) -> list[str]:
        """The open sessions whose record names this cohort."""
        return [s for s, view in self.sessions.items() if view.member is not None and view.member[0] == key]

    def needed(self, key: str) -> bool:
        """Whether an open session backs a member of this cohort, or a request waits for it."""
        return bool(self.backed(key)) or any(waiter.cohort == key for waiter in self.waiters.values())


def snapshot(state: State) -> Snapshot:
    """Copy the state as it is now."""
    exported = state.admission.exported
    return Snapshot(
        cohorts={
            key: CohortView(
                cohort.id.group,
                cohort.id.attempt,
                cohort.phase,
                {i: MemberView(m.digest, m.scheme, m.result, m.pending) for i, m in cohort.members.items()},
                dict(cohort.waiters),
                dict(cohort.sessions),
                cohort.failure,
            )
            for key, cohort in state.cohorts.items()
        },
        terminal=tuple(state.terminal),
        marks={
            name: MarkView(group.watermark.attempt, group.watermark.installed)
            for name, group in sorted(state.groups.items(), key=lambda one: one[1].watermark.used)
        },
        sessions={
            s.session_id: SessionView(
                s.episode.rollout_id, s.episode.attempt, s.claimed, s.ending, s.late, s.member, frozenset(s.waiters)
            )
            for s in state.sessions
        },
        waiters={n: WaiterView(w.cohort, w.session, w.asked, w.episode) for n, w in state.waiters.items()},
        open=state.admission.open,
        exported=None if exported is None else frozenset(exported),
        closed=state.closed,
        cap=state.limits.max_terminal_cohorts,
    )
