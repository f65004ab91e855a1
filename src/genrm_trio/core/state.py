"""The state that the actions change, and its bookkeeping: who owns which entry, and where it ends.

Every entry has one owner and one place where it ends. A cohort owns its members, waiters and session records;
a group owns its watermark; the session table owns sessions. No action lives here, and nothing here emits.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from genrm_trio.core.cohort import Cohort, Member, Phase
from genrm_trio.core.identity import CohortId, EpisodeId
from genrm_trio.core.outcome import Answer as Reply
from genrm_trio.core.sessions import Session, SessionTable
from genrm_trio.core.trace import Hook


@dataclass(frozen=True, slots=True)
class Limits:
    """What the state is bounded by, and which variant of the contract it follows.

    cohort_size: N, members per cohort.
    max_terminal_cohorts: finished cohorts, and watermarks, kept although nobody needs them; needed ones may exceed it.
    cohort_result_ttl_s, session_idle_ttl_s: seconds; None turns the age rule off.
    max_held_members: places reserved by active cohorts, N each; None for no bound.
    max_sessions: open sessions, and closed ids remembered.
    record_sessions: checkpoints are on, so sessions are bound and back members.
    fixed_baseline, rubrics: which suffixes cohort keys carry (contract 5.3).
    """

    cohort_size: int
    max_terminal_cohorts: int = 4096
    cohort_result_ttl_s: float | None = 3600.0
    session_idle_ttl_s: float | None = 1209600.0
    max_held_members: int | None = None
    max_sessions: int = 1_000_000
    record_sessions: bool = False
    fixed_baseline: bool = False
    rubrics: bool = False


@dataclass(slots=True)
class Watermark:
    """The newest attempt of a group that was seen.

    used: its place in the order of use over all groups, larger is later. last_used: seconds.
    installed: set by a restore, and no `/verify` of the group has passed the stale check since; some cohort of
        the group is retained, and the mark goes with the last one if that goes by a retire or a deletion.
    """

    attempt: int
    prompt: str
    last_used: float
    used: int
    installed: bool = False


@dataclass(slots=True)
class Group:
    """A group's retained cohorts by key, and its watermark. While a cohort is retained there is a watermark."""

    watermark: Watermark
    cohorts: dict[str, Cohort] = field(default_factory=dict)


@dataclass(slots=True)
class Waiter:
    """A waiting request: whose outcome it waits for, and who asked.

    session: the open session that it carries, if any. asked, episode: the session id and the episode that it came
    with, also when no such session was open; a retire finds it by them.
    """

    cohort: str
    session: str | None
    asked: str | None = None
    episode: EpisodeId | None = None


@dataclass(slots=True)
class Admission:
    """Whether data requests other than `/verify` pass and outcomes are published.

    exported: the sessions already exported for the checkpoint that is open; None before its export began.
    """

    open: bool = True
    exported: set[str] | None = None


class Listener(Protocol):
    """Hears what the actions did, within the same synchronous step. Must not call back into the Registry."""

    def answered(self, waiter: int, answer: Reply, /) -> None:
        """This waiter has its answer and is gone from the state."""

    def changed(self, cohort: Cohort, /) -> None:
        """The cohort's phase or its members changed, or it was dropped."""


class State:
    """All state of one server.

    cohorts: by key. terminal: the keys of exactly the terminal ones, oldest first.
    groups: by group id; a group is here while it has a watermark.
    idle: the groups without a retained cohort, as (order of use, group), least recently used first.
    held: places reserved by active cohorts.
    """

    def __init__(self, limits: Limits, listener: Listener | None = None, trace: Hook | None = None) -> None:
        self.limits = limits
        self.listener = listener
        self.trace = trace
        self.cohorts: dict[str, Cohort] = {}
        self.terminal: OrderedDict[str, None] = OrderedDict()
        self.groups: dict[str, Group] = {}
        self.idle: list[tuple[int, str]] = []
        self.sessions = SessionTable(limits.max_sessions)
        self.waiters: dict[int, Waiter] = {}
        self.admission = Admission()
        self.held = 0
        self.closed = False
        self._uses = 0

    # -- waiters ---------------------------------------------------------------------------------------

    def _wait(self, number: int, waiter: Waiter, index: int) -> None:
        self.cohorts[waiter.cohort].waiters[number] = index
        self.waiters[number] = waiter
        session = self.sessions.get(waiter.session)
        if session is not None:
            session.waiters.add(number)

    def _remove_waiter(self, now: float, waiter: int) -> None:
        """End a wait. Its session was in use until now, so that it does not count as idle the moment it is told."""
        record = self.waiters.pop(waiter)
        del self.cohorts[record.cohort].waiters[waiter]
        session = self.sessions.get(record.session)
        if session is not None:
            session.waiters.discard(waiter)
            self.sessions.touch(session, now)

    def _answer(self, now: float, waiter: int, answer: Reply) -> None:
        self._remove_waiter(now, waiter)
        if self.listener is not None:
            self.listener.answered(waiter, answer)

    def _answer_all(self, now: float, cohort: Cohort) -> list[int]:
        """Tell every waiter of a terminal cohort its own outcome; returns their numbers."""
        waiters = list(cohort.waiters)
        for waiter in waiters:
            self._tell(now, cohort, waiter)
        return waiters

    def _tell(self, now: float, cohort: Cohort, waiter: int) -> None:
        """Tell one waiter of a terminal cohort its own outcome; a restored member has replayed by that."""
        index = cohort.waiters[waiter]
        cohort.members[index].pending = False
        self._answer(now, waiter, cohort.told(index))

    # -- session records -------------------------------------------------------------------------------

    def _record(self, session: Session | None, cohort: Cohort, index: int) -> None:
        """Let the session back this member, and only this one. Ungrouped cohorts record nothing."""
        if session is None or cohort.id.group is None or session.member == (cohort.id.key, index):
            return
        self._unrecord(session)
        session.member = (cohort.id.key, index)
        session.late = self.admission.exported is not None
        cohort.sessions[session.session_id] = index

    def _unrecord(self, session: Session) -> None:
        """End the session's record. A pending member that nobody backs any more becomes an ordinary one."""
        if session.member is None:
            return
        key, index = session.member
        session.member = None
        session.late = False
        cohort = self.cohorts[key]
        del cohort.sessions[session.session_id]
        member = cohort.members[index]
        if member.pending and not any(cohort.backers(index)):
            member.pending = False

    def _end(self, session: Session) -> None:
        """End an open session, its record first."""
        self._unrecord(session)
        for waiter in session.waiters:
            self.waiters[waiter].session = None
        self.sessions.remove(session)

    # -- cohorts and groups ----------------------------------------------------------------------------

    def _changed(self, cohort: Cohort) -> None:
        if self.listener is not None:
            self.listener.changed(cohort)

    def _add_cohort(self, now: float, cohort_id: CohortId, prompt: str) -> Cohort:
        cohort = Cohort(cohort_id, self.limits.cohort_size, prompt, created_at=now)
        self.cohorts[cohort_id.key] = cohort
        self.held += cohort.size
        if cohort_id.group is not None:
            group = self.groups[cohort_id.group]
            if not group.cohorts:
                self._leave_idle(cohort_id.group, group)
            group.cohorts[cohort_id.key] = cohort
        return cohort

    def _terminate(self, now: float, cohort: Cohort) -> None:
        """Enter a cohort that just became completed or failed among the terminal ones, without its bodies."""
        cohort.terminal_at = now
        self.terminal[cohort.id.key] = None
        self.held -= cohort.size
        for member in cohort.members.values():
            member.payload = None
        self._changed(cohort)

    def _drop_cohort(self, cohort: Cohort) -> None:
        """Remove a cohort and exactly its records. Its group's watermark stays."""
        assert not cohort.waiters, "a cohort is never dropped under a waiter"
        for session_id in cohort.sessions:
            session = self.sessions.get(session_id)
            assert session is not None, "a record's session is open"
            session.member = None
            session.late = False
        cohort.sessions.clear()
        del self.cohorts[cohort.id.key]
        if cohort.active:
            self.held -= cohort.size
        self.terminal.pop(cohort.id.key, None)
        if cohort.id.group is not None:
            group = self.groups[cohort.id.group]
            del group.cohorts[cohort.id.key]
            if not group.cohorts:
                insort(self.idle, (group.watermark.used, cohort.id.group))
        self._changed(cohort)

    def _evict(self, cohort: Cohort) -> None:
        """Remove a terminal cohort as age or count has it. A watermark that it leaves alone ends by age, too."""
        self._drop_cohort(cohort)
        if cohort.id.group is not None:
            self.groups[cohort.id.group].watermark.installed &= bool(self.groups[cohort.id.group].cohorts)

    def _leave_idle(self, name: str, group: Group) -> None:
        at = bisect_left(self.idle, (group.watermark.used, name))
        assert self.idle[at] == (group.watermark.used, name), "a group without cohorts is listed as idle"
        del self.idle[at]

    def _use_watermark(self, now: float, name: str, attempt: int, prompt: str) -> None:
        """Raise or refresh the group's watermark: a `/verify` of the group passed the stale check."""
        self._uses += 1
        group = self.groups.get(name)
        if group is None:
            self.groups[name] = Group(Watermark(attempt, prompt, now, self._uses))
            insort(self.idle, (self._uses, name))
            return
        if not group.cohorts:
            self._leave_idle(name, group)
        mark = group.watermark
        mark.attempt, mark.last_used, mark.used, mark.installed = attempt, now, self._uses, False
        if not group.cohorts:
            insort(self.idle, (mark.used, name))

    def _drop_watermark(self, name: str) -> None:
        """Remove the watermark of a group without cohorts, and so the group."""
        group = self.groups[name]
        assert not group.cohorts, "a retained cohort keeps its group's watermark"
        self._leave_idle(name, group)
        del self.groups[name]

    def _drop_member(self, cohort: Cohort, index: int) -> None:
        """Free a slot. A cohort left without members goes, and then a watermark that only its restore installed."""
        del cohort.members[index]
        if cohort.members:
            self._changed(cohort)
            return
        self._drop_cohort(cohort)
        name = cohort.id.group
        if name is not None and self.groups[name].watermark.installed and not self.groups[name].cohorts:
            self._drop_watermark(name)

    # -- retention -------------------------------------------------------------------------------------

    def needed(self, cohort: Cohort) -> bool:
        """Whether a terminal cohort must stay: a member session is open by the session table, or a request waits."""
        return bool(cohort.waiters) or any(session in self.sessions for session in cohort.sessions)

    def _prune_by_count(self) -> tuple[list[str], list[str]]:
        """Hold the cap: returns the cohort keys and the groups whose watermark went.

        Only the oldest cohorts beyond the cap are looked at, so the cost is what goes or is kept beyond it.
        """
        excess = len(self.terminal) - self.limits.max_terminal_cohorts
        oldest = [self.cohorts[key] for key in islice(self.terminal, max(excess, 0))]
        gone = [cohort for cohort in oldest if not self.needed(cohort)]
        for cohort in gone:
            self._evict(cohort)
        surplus = min(len(self.groups) - self.limits.max_terminal_cohorts, len(self.idle))
        names = [name for _, name in self.idle[: max(surplus, 0)]]
        for name in names:
            self._drop_watermark(name)
        return [cohort.id.key for cohort in gone], names

    def due_cohorts(self, now: float) -> list[str]:
        """The terminal cohorts whose age reached the ttl and that nobody needs, oldest first."""
        ttl = self.limits.cohort_result_ttl_s
        due: list[str] = []
        if ttl is None:
            return due
        for key in self.terminal:
            cohort = self.cohorts[key]
            if now - cohort.terminal_at < ttl:
                break
            if not self.needed(cohort):
                due.append(key)
        return due

    def due_watermarks(self, now: float) -> list[str]:
        """The groups without a retained cohort whose watermark was not used for the ttl, least recently used first."""
        ttl = self.limits.cohort_result_ttl_s
        due: list[str] = []
        if ttl is None:
            return due
        for _, name in self.idle:
            if now - self.groups[name].watermark.last_used < ttl:
                break
            due.append(name)
        return due

    def due_sessions(self, now: float) -> list[str]:
        """The open sessions that no request has used for the idle ttl and that none waits with.

        None while admission is closed: an idle session ends as if closed, and a close waits for resume. Otherwise a
        caller that was saved as told could miss in the checkpoint that is open.
        """
        ttl = self.limits.session_idle_ttl_s
        due: list[str] = []
        if ttl is None or not self.admission.open:
            return due
        for session in self.sessions:
            if now - session.last_used < ttl:
                break
            if not session.waiters:
                due.append(session.session_id)
        return due

    # -- readings --------------------------------------------------------------------------------------

    def latest_attempt(self, group: str) -> int | None:
        """The newest attempt seen of a group, or None when it is not known."""
        known = self.groups.get(group)
        return None if known is None else known.watermark.attempt

    def member(self, key: str, index: int) -> Member | None:
        """The member that holds a slot of a retained cohort, or None."""
        cohort = self.cohorts.get(key)
        return None if cohort is None else cohort.members.get(index)

    def collecting(self, key: str) -> bool:
        """Whether the cohort is retained and still waits for members."""
        cohort = self.cohorts.get(key)
        return cohort is not None and cohort.phase is Phase.COLLECTING
