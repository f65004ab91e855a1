"""What is always true of the state.

Each predicate returns None, or a text of what is wrong. STATE_INVARIANTS carries the spec's names in snake_case;
STRUCTURE holds the bookkeeping, which the spec does not have. Steps are judged in `step_invariants`. What only
clients can see (who was told what) is in neither: the stateful test keeps its own record of that.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from genrm_trio.core.cohort import ACTIVE, TERMINAL, Phase
from genrm_trio.core.outcome import CohortFailed
from genrm_trio.core.state import State
from genrm_trio.core.step_invariants import STEP_INVARIANTS, broken_step

__all__ = ["STATE_INVARIANTS", "STEP_INVARIANTS", "STRUCTURE", "StateInvariant", "broken", "broken_step"]

StateInvariant: TypeAlias = Callable[[State], str | None]


def _first(wrong: Iterator[str]) -> str | None:
    return next(wrong, None)


# -- the spec's state invariants -----------------------------------------------------------------------


def terminal_listed(state: State) -> str | None:
    """Guards eviction: a cohort missing from the list is never evicted, a stale entry evicts a live one."""
    terminal = {key for key, cohort in state.cohorts.items() if cohort.phase in TERMINAL}
    return None if terminal == set(state.terminal) else f"terminal are {terminal}, listed {list(state.terminal)}"


def one_active_attempt(state: State) -> str | None:
    """Guards supersession: two attempts of one group are never judged side by side."""

    def wrong() -> Iterator[str]:
        for name, group in state.groups.items():
            active = [key for key, cohort in group.cohorts.items() if cohort.phase in ACTIVE]
            if len(active) > 1:
                yield f"group {name!r} has the active cohorts {active}"

    return _first(wrong())


def active_has_watermark(state: State) -> str | None:
    """Guards the stale check: what still collects or is judged is the newest attempt that was seen."""

    def wrong() -> Iterator[str]:
        for key, cohort in state.cohorts.items():
            if cohort.id.group is None or cohort.phase in TERMINAL:
                continue
            newest = state.latest_attempt(cohort.id.group)
            if newest != cohort.id.attempt:
                yield f"{key!r} is active, the newest attempt of its group is {newest}"

    return _first(wrong())


def watermark_kept(state: State) -> str | None:
    """Guards stale detection: while a cohort can be replayed, an older attempt is known to be older."""

    def wrong() -> Iterator[str]:
        for key, cohort in state.cohorts.items():
            if cohort.id.group is None:
                continue
            newest = state.latest_attempt(cohort.id.group)
            if newest is None or newest < cohort.id.attempt:
                yield f"{key!r} is retained, the watermark of its group is {newest}"

    return _first(wrong())


def watermark_released(state: State) -> str | None:
    """Guards re-forming: after its restored members are dropped a group starts over with the same attempt."""

    def wrong() -> Iterator[str]:
        for name, group in state.groups.items():
            if group.watermark.installed and not any(c.id.group == name for c in state.cohorts.values()):
                yield f"group {name!r} keeps the watermark of a restore that left nothing else"

    return _first(wrong())


def no_leak(state: State) -> str | None:
    """Guards memory: every session record, pending mark and watermark has an owner that ends it."""

    def wrong() -> Iterator[str]:
        for session in state.sessions:
            if session.member is not None and session.member[0] not in state.cohorts:
                yield f"session {session.session_id!r} backs a member of {session.member[0]!r}, which is gone"
            elif session.member is not None and state.cohorts[session.member[0]].id.group is None:
                yield f"session {session.session_id!r} backs a member of {session.member[0]!r}, which has no group id"
        for key, cohort in state.cohorts.items():
            for session_id in cohort.sessions:
                if session_id not in state.sessions:
                    yield f"{key!r} has a record of session {session_id!r}, which is not open"
            for index, member in cohort.members.items():
                if member.pending and not any(cohort.backers(index)):
                    yield f"member {index} of {key!r} is pending and nobody backs it"
        listed = {name for _, name in state.idle}
        for name, group in state.groups.items():
            if bool(group.cohorts) == (name in listed):
                yield f"the watermark of group {name!r} has {len(group.cohorts)} cohorts and idle is {name in listed}"

    return _first(wrong())


def retire_frees(state: State) -> str | None:
    """Guards starting over: a cohort without members would make newcomers wait for nobody."""
    empty = [key for key, cohort in state.cohorts.items() if not cohort.members]
    return f"cohorts without members: {empty}" if empty else None


def siblings_agree(state: State) -> str | None:
    """Guards the group's verdict: all members have a reward, or all share one failure, or none has anything."""

    def wrong() -> Iterator[str]:
        for key, cohort in state.cohorts.items():
            rewarded = {index for index, member in cohort.members.items() if member.result is not None}
            if cohort.failure is not None and rewarded:
                yield f"{key!r} failed, and members {rewarded} have a result"
            judged = cohort.phase in {Phase.HELD, Phase.COMPLETED}
            if judged and cohort.failure is None and rewarded != set(cohort.members):
                yield f"{key!r} is {cohort.phase}, and only members {rewarded} have a result"
            if cohort.phase in {Phase.COLLECTING, Phase.EVALUATING} and (rewarded or cohort.failure is not None):
                yield f"{key!r} is {cohort.phase} and has an outcome already"
            if (cohort.phase is Phase.FAILED) != (cohort.phase in TERMINAL and cohort.failure is not None):
                yield f"{key!r} is {cohort.phase} with failure {cohort.failure!r}"

    return _first(wrong())


def ungrouped_gone(state: State) -> str | None:
    """Guards judging anew: without a group id nothing is remembered of a completed cohort."""

    def wrong() -> Iterator[str]:
        for key, cohort in state.cohorts.items():
            if cohort.id.group is not None:
                continue
            if cohort.phase is Phase.COMPLETED:
                yield f"{key!r} is completed and still here"
            if cohort.sessions or any(session.member == (key, i) for session in state.sessions for i in cohort.members):
                yield f"{key!r} has session records"
            if key in state.groups:
                yield f"{key!r} has a watermark"

    return _first(wrong())


def closed_is_empty(state: State) -> str | None:
    """Guards shutdown: nobody waits for a server that is gone, and nothing is left to export."""
    if not state.closed:
        return None
    left = {
        "cohorts": len(state.cohorts),
        "terminal": len(state.terminal),
        "watermarks": len(state.groups),
        "idle": len(state.idle),
        "sessions": len(state.sessions),
        "waiters": len(state.waiters),
        "held": state.held,
        "closed ids": len(state.sessions.closed),
        "retired": len(state.sessions.retired),
        "refused": len(state.sessions.refused),
    }
    found = {what: count for what, count in left.items() if count}
    return f"left after shutdown: {found}" if found else None


def closed_stays_closed(state: State) -> str | None:
    """Guards a close: its session backs nothing any more, whoever seeds its id again."""
    both = [session.session_id for session in state.sessions if session.session_id in state.sessions.closed]
    return f"open and remembered as closed: {both}" if both else None


STATE_INVARIANTS: Mapping[str, StateInvariant] = {
    f.__name__: f
    for f in (
        terminal_listed,
        one_active_attempt,
        active_has_watermark,
        watermark_kept,
        watermark_released,
        no_leak,
        retire_frees,
        siblings_agree,
        ungrouped_gone,
        closed_is_empty,
        closed_stays_closed,
    )
}
"""The spec's state invariants that the state alone decides, by name."""


# -- the bookkeeping -----------------------------------------------------------------------------------


def session_records_match(state: State) -> str | None:
    """A session's record and its cohort's list of sessions say the same, both ways."""
    by_session = {s.session_id: s.member for s in state.sessions if s.member is not None}
    by_cohort = {s: (key, i) for key, cohort in state.cohorts.items() for s, i in cohort.sessions.items()}
    if by_session != by_cohort:
        return f"sessions say {by_session}, cohorts say {by_cohort}"
    taken = [(key, i) for key, i in by_session.values() if i not in state.cohorts[key].members]
    return f"records of slots that are free: {taken}" if taken else None


def waiters_match(state: State) -> str | None:
    """The state's, the cohorts' and the sessions' waiters are the same, and each waits for a taken slot."""

    def wrong() -> Iterator[str]:
        by_state = {number: waiter.cohort for number, waiter in state.waiters.items()}
        by_cohort = {w: key for key, cohort in state.cohorts.items() for w in cohort.waiters}
        if by_state != by_cohort:
            yield f"the state says {by_state}, the cohorts say {by_cohort}"
        carried = {(w, waiter.session) for w, waiter in state.waiters.items() if waiter.session is not None}
        by_session = {(w, session.session_id) for session in state.sessions for w in session.waiters}
        if carried != by_session:
            yield f"the waiters say {carried}, the sessions say {by_session}"
        for key, cohort in state.cohorts.items():
            free = [w for w, index in cohort.waiters.items() if index not in cohort.members]
            if free:
                yield f"waiters {free} of {key!r} wait for a slot that is free"

    return _first(wrong())


def terminal_waiters_are_late(state: State) -> str | None:
    """Only requests whose session's record came after the export wait for what is decided already."""

    def wrong() -> Iterator[str]:
        for key in state.terminal:
            cohort = state.cohorts[key]
            if cohort.waiters and (state.admission.open or state.admission.exported is None):
                yield f"{cohort.waiters} wait for {key!r}, which is decided, and no export is open"
            if cohort.waiters and isinstance(cohort.failure, CohortFailed):
                yield f"{cohort.waiters} wait for {key!r}, which failed without a verdict"

    return _first(wrong())


def groups_match(state: State) -> str | None:
    """A group's cohorts are exactly the retained ones that carry its name."""
    by_group = {(name, key) for name, group in state.groups.items() for key in group.cohorts}
    retained = {(c.id.group, key) for key, c in state.cohorts.items() if c.id.group is not None}
    return None if by_group == retained else f"groups have {by_group}, retained are {retained}"


def idle_exact(state: State) -> str | None:
    """The idle list is exactly the groups without a cohort, least recently used first."""
    expected = sorted((g.watermark.used, name) for name, g in state.groups.items() if not g.cohorts)
    if state.idle != expected:
        return f"idle is {state.idle}, expected {expected}"
    last_used = [state.groups[name].watermark.last_used for _, name in state.idle]
    return None if last_used == sorted(last_used) else f"idle is not in the order of last use: {last_used}"


def held_exact(state: State) -> str | None:
    """The reserved places are those of the active cohorts."""
    expected = sum(cohort.size for cohort in state.cohorts.values() if cohort.active)
    return None if state.held == expected else f"{state.held} places are reserved, {expected} are held"


def terminal_ordered(state: State) -> str | None:
    """The eviction list is in the order in which cohorts became terminal."""
    times = [state.cohorts[key].terminal_at for key in state.terminal if key in state.cohorts]
    return None if times == sorted(times) else f"out of order: {times}"


def slots_bounded(state: State) -> str | None:
    """Slots are 0..N-1; a collecting cohort has room, one that is judged was full unless it was restored."""

    def wrong() -> Iterator[str]:
        for key, cohort in state.cohorts.items():
            if not set(cohort.members) <= set(range(cohort.size)):
                yield f"{key!r} has the slots {sorted(cohort.members)}"
            if any(index != member.index for index, member in cohort.members.items()):
                yield f"{key!r} has a member under another index"
            full = len(cohort.members) == cohort.size
            if (cohort.phase is Phase.COLLECTING and full) or (
                cohort.phase in {Phase.EVALUATING, Phase.HELD} and not full
            ):
                yield f"{key!r} is {cohort.phase} with {len(cohort.members)} of {cohort.size} members"

    return _first(wrong())


def tombstones_compact(state: State) -> str | None:
    """From the verdict on no body is kept."""

    def wrong() -> Iterator[str]:
        for key, cohort in state.cohorts.items():
            bodies = [i for i, member in cohort.members.items() if member.payload is not None]
            if bodies and cohort.phase not in {Phase.COLLECTING, Phase.EVALUATING}:
                yield f"{key!r} is {cohort.phase} and keeps the bodies of {bodies}"

    return _first(wrong())


def pending_is_decided(state: State) -> str | None:
    """A pending member has its outcome: only a restore makes members pending."""
    pending = [
        (key, index)
        for key, cohort in state.cohorts.items()
        for index, member in cohort.members.items()
        if member.pending and cohort.active
    ]
    return f"pending members of active cohorts: {pending}" if pending else None


def sessions_consistent(state: State) -> str | None:
    """Open sessions are in the order of last use; none is refused; late ones back a member, after an export."""

    def wrong() -> Iterator[str]:
        times = [session.last_used for session in state.sessions]
        if times != sorted(times):
            yield f"sessions are not in the order of last use: {times}"
        for session in state.sessions:
            if session.session_id in state.sessions.refused:
                yield f"session {session.session_id!r} is open and refused"
            if session.late and (session.member is None or state.admission.exported is None):
                yield f"session {session.session_id!r} is late without a record or an export"
            if session not in state.sessions.bound_to(session.episode):
                yield f"session {session.session_id!r} is not listed under its rollout"
            if session.ending and state.admission.open:
                yield f"session {session.session_id!r} should have ended when admission opened"

    return _first(wrong())


STRUCTURE: Mapping[str, StateInvariant] = {
    f.__name__: f
    for f in (
        session_records_match,
        waiters_match,
        terminal_waiters_are_late,
        groups_match,
        idle_exact,
        held_exact,
        terminal_ordered,
        slots_bounded,
        tombstones_compact,
        pending_is_decided,
        sessions_consistent,
    )
}
"""What holds of the bookkeeping beside the spec's invariants."""


def broken(state: State) -> dict[str, str]:
    """Every invariant of a state that does not hold, with what is wrong."""
    found = {name: holds(state) for name, holds in (*STATE_INVARIANTS.items(), *STRUCTURE.items())}
    return {name: text for name, text in found.items() if text is not None}
