"""What is always true of a step: of a state, the event of one action, and the state after it.

Each predicate returns None, or a text of what is wrong; STEP_INVARIANTS carries the spec's names in snake_case.
Those that need to know what clients were told are in the stateful test.
"""

from collections.abc import Callable, Container, Iterator, Mapping
from typing import TypeAlias

from genrm_trio.core.cohort import Phase
from genrm_trio.core.identity import EpisodeId, parse_capture_key
from genrm_trio.core.outcome import JSON
from genrm_trio.core.record import DIGEST_SCHEMES
from genrm_trio.core.snapshot import CohortView, MemberView, SessionView, Snapshot
from genrm_trio.core.trace import Event

StepInvariant: TypeAlias = Callable[[Snapshot, Event, Snapshot], str | None]


def _told(event: Event) -> bool:
    """Whether a Submit was told a reward or a judge failure at once."""
    if event.name != "Submit" or not isinstance(event.reply, dict):
        return False
    reply = event.reply["reply"]
    return isinstance(reply, dict) and ("told" in reply) and _is_outcome(reply["told"])


def _is_outcome(told: JSON) -> bool:
    return isinstance(told, dict) or told == "judge_failed"


def _listed(event: Event, name: str) -> set[JSON]:
    if not isinstance(event.reply, dict):
        return set()
    listed = event.reply.get(name)
    return set(listed) if isinstance(listed, list) else set()


def no_outcome_while_closed(before: Snapshot, event: Event, after: Snapshot) -> str | None:
    """Guards the checkpoint: a reward told after the export would be lost by the crash and judged anew."""
    if before.open or event.name in {"OpenAdmission", "Restore"}:
        return None
    for key, cohort in before.cohorts.items():
        now = after.cohorts.get(key)
        if not cohort.terminal and now is not None and now.judged:
            return f"{key!r} was {cohort.phase} and is {now.phase} while admission is closed"
    if event.name == "Publish" and event.reply != {"published": False, "answered": []}:
        return f"{event.args['cohort']!r} was published while admission is closed"
    if _told(event) and not _submitted(before, event, terminal=True):
        return f"an undecided outcome of {event.args['cohort']!r} was told while admission is closed"
    return None


def _submitted(before: Snapshot, event: Event, *, terminal: bool) -> CohortView | None:
    """The cohort that a Submit met, unless it was evicted first."""
    key = event.args["cohort"]
    cohort = before.cohorts.get(key) if isinstance(key, str) else None
    if cohort is None or key in _listed(event, "evicted"):
        return None
    return cohort if cohort.terminal or not terminal else None


def cap_respected(before: Snapshot, event: Event, after: Snapshot) -> str | None:
    """Guards memory: of the oldest beyond the cap only those go that nobody needs, and all of those.

    Of the watermarks beyond it those go that were used least recently and whose group has nothing retained.
    """
    if event.name != "Submit" or before.closed or _refusal(event) == "stale_attempt":
        return None
    beyond = before.terminal[: max(len(before.terminal) - before.cap, 0)]
    expected = {key for key in beyond if not before.needed(key)}
    evicted = _listed(event, "evicted")
    if evicted != expected or (expected & set(after.cohorts)) - {event.args["cohort"]}:
        return f"evicted {evicted}, but beyond the cap of {before.cap} nobody needs {expected}"
    asked = after.cohorts.get(str(event.args["cohort"]))
    own = asked.group if asked is not None else event.args.get("group")
    idle = [name for name in before.marks if not before.group_cohorts(name).keys() - evicted]
    surplus = max(len(before.marks) - before.cap, 0)
    kept = [name for name in idle if name in after.marks and name != own]
    wanted = [name for name in idle[surplus:] if name != own]
    return None if kept == wanted else f"of the idle watermarks {idle} those of {kept} were kept, not of {wanted}"


def _refusal(event: Event) -> JSON:
    reply = event.reply.get("reply") if isinstance(event.reply, dict) else None
    return reply.get("refused") if isinstance(reply, dict) else None


def needed_never_dropped(before: Snapshot, event: Event, after: Snapshot) -> str | None:
    """Guards replay: a finished cohort stays while the session of one of its members is open."""
    if event.name == "ShutDown":
        return None
    for session_id, session in before.sessions.items():
        if session.member is None or session_id not in after.sessions or session.member[0] in after.cohorts:
            continue
        return f"{session.member[0]!r} was dropped under the open session {session_id!r}"
    return None


def watermark_monotone(before: Snapshot, event: Event, after: Snapshot) -> str | None:
    """Guards stale detection: a watermark falls only when no cohort of its group is retained.

    By a retire or a deletion only one goes that a restore installed and nobody used since.
    """
    if event.name == "ShutDown":
        return None
    for name, mark in before.marks.items():
        now = after.marks.get(name)
        if now is not None and now.attempt >= mark.attempt:
            continue
        left = set(after.group_cohorts(name)) if now is None else set(before.group_cohorts(name))
        if left - _listed(event, "evicted"):
            return f"the watermark of {name!r} fell from {mark.attempt} while {left} is retained"
        if event.name in {"Retire", "DeleteRestored"} and not mark.installed:
            return f"the watermark of {name!r} was used, and {event.name} took it"
    return None


def no_stale_attempt_publishes(before: Snapshot, event: Event, after: Snapshot) -> str | None:
    """Guards supersession: only the newest attempt of a group is ever published."""
    if event.name != "Publish" or not isinstance(event.reply, dict) or not event.reply["published"]:
        return None
    cohort = before.cohorts[str(event.args["cohort"])]
    if cohort.group is None:
        return None
    newest = before.marks[cohort.group].attempt if cohort.group in before.marks else None
    if newest != cohort.attempt:
        return f"attempt {cohort.attempt} of {cohort.group!r} was published, the newest is {newest}"
    return None


def no_false_conflict(before: Snapshot, event: Event, after: Snapshot) -> str | None:
    """Guards starting over: a conflict needs a member that holds the slot, or a cohort that is full or over."""
    code = _refusal(event) if event.name == "Submit" else None
    if code not in {"different_response", "slot_closed"}:
        return None
    cohort = _submitted(before, event, terminal=False)
    held = cohort is not None and event.args["index"] in cohort.members
    if code == "different_response" and not held:
        return f"index {event.args['index']} of {event.args['cohort']!r} is free, and the answer conflicts"
    if code == "slot_closed" and (held or cohort is None or cohort.phase is Phase.COLLECTING):
        return f"{event.args['cohort']!r} collects, or the slot is taken, and the slot is said to be closed"
    return None


def _retired_by(event: Event, episode: EpisodeId | None) -> bool:
    """Whether a Retire names this attempt of the rollout, or a later one."""
    listed = event.args["episodes"]
    named = [parse_capture_key(str(key)) for key in listed] if isinstance(listed, list) else []
    return episode is not None and any(
        one.rollout_id == episode.rollout_id and episode.attempt <= one.attempt for one in named
    )


def _retired(before: Snapshot, event: Event) -> dict[str, SessionView]:
    """The sessions that a Retire names."""
    return {
        session_id: session
        for session_id, session in before.sessions.items()
        if _retired_by(event, EpisodeId(session.rollout, session.attempt))
    }


def _retired_waiters(before: Snapshot, event: Event) -> set[int]:
    """The waits that a Retire ends: those of its sessions, and those that came under its attempts."""
    gone = _retired(before, event)
    return {
        number
        for number, waiter in before.waiters.items()
        if waiter.session in gone or waiter.asked in gone or _retired_by(event, waiter.episode)
    }


def retire_never_waits_for_cohort(before: Snapshot, event: Event, after: Snapshot) -> str | None:
    """Guards the retire's end: it answers what waits for a cohort, and never waits for the cohort itself."""
    if event.name != "Retire":
        return None
    left = _retired(before, event).keys() & after.sessions.keys()
    waiting = _retired_waiters(before, event) & after.waiters.keys()
    return f"retired, and yet {set(left)} are open and {waiting} wait" if left or waiting else None


def _holders(cohort: CohortView, index: int, sessions: Container[str], waiters: Container[int]) -> set[str | int]:
    """The sessions and waiters that hold a slot, without those that go."""
    holding: set[str | int] = {s for s, i in cohort.sessions.items() if i == index and s not in sessions}
    return holding | {w for w, i in cohort.waiters.items() if i == index and w not in waiters}


def _freed(before: Snapshot, after: Snapshot) -> Iterator[tuple[str, CohortView, int, MemberView]]:
    """The members that a step removed."""
    for key, cohort in before.cohorts.items():
        now = after.cohorts.get(key)
        for index, member in cohort.members.items():
            if now is None or index not in now.members:
                yield key, cohort, index, member


def no_foreign_free(before: Snapshot, event: Event, after: Snapshot) -> str | None:
    """Guards second holders: a retire never takes a slot that another waiter or open session holds."""
    if event.name != "Retire":
        return None
    sessions, waiters = _retired(before, event), _retired_waiters(before, event)
    for key, cohort, index, _ in _freed(before, after):
        holders = _holders(cohort, index, sessions, waiters)
        if holders:
            return f"slot {index} of {key!r} was freed, though {holders} hold it"
    return None


def replayed_survives_retire(before: Snapshot, event: Event, after: Snapshot) -> str | None:
    """Guards siblings: of others, and of what is decided and was told, a retire or deletion takes nothing."""
    if event.name not in {"Retire", "DeleteRestored"}:
        return None
    gone = {s: view for s, view in before.sessions.items() if s not in after.sessions}
    waits = _retired_waiters(before, event) if event.name == "Retire" else set()
    for key, cohort, index, member in _freed(before, after):
        if cohort.group is None or not (member.pending or cohort.phase is Phase.COLLECTING):
            return f"member {index} of {key!r} went, and it neither collects nor is pending"
        theirs = any(cohort.sessions.get(s) == index for s in gone)
        theirs |= any(cohort.waiters.get(w) == index for view in gone.values() for w in view.waiters)
        theirs |= any(cohort.waiters.get(w) == index for w in waits)
        if not theirs:
            return f"member {index} of {key!r} went, and nobody who went held it"
    for key, cohort in before.cohorts.items():
        now = after.cohorts.get(key)
        if now is not None and (now.phase, now.failure) != (cohort.phase, cohort.failure):
            return f"{key!r} changed from {cohort.phase} to {now.phase}"
    return None


def all_or_nothing_restore(before: Snapshot, event: Event, after: Snapshot) -> str | None:
    """Guards restores: a refused one changes nothing, another one installs every record as it was saved."""
    if event.name == "RefuseRestore":
        return None if before == after else "a refused restore changed the state"
    if event.name != "Restore":
        return None
    if before.cohorts or before.sessions or before.marks:
        return "a restore met a process that holds state"
    states = event.args["states"]
    assert isinstance(states, list), "the event lists the records"
    if len(after.sessions) != len(states):
        return f"{len(states)} records, {len(after.sessions)} sessions"
    return next((text for record in states if (text := _misplaced(record, after)) is not None), None)


def _misplaced(record: JSON, after: Snapshot) -> str | None:
    """What of a restored record is not found in the state, or None."""
    assert isinstance(record, dict), "a record is an object"
    episode, state = parse_capture_key(str(record["episode"])), record["state"]
    session = after.sessions.get(str(record["session"]))
    if session is None or (session.rollout, session.attempt) != (episode.rollout_id, episode.attempt + 1):
        return f"session {record['session']!r} is missing, or not bound to the next attempt of {episode.key!r}"
    if session.claimed:
        return f"session {record['session']!r} counts as claimed"
    if state == {}:
        return None if session.member is None else f"session {record['session']!r} backs a member, its state is empty"
    assert isinstance(state, dict), "a state is an object"
    cohort = after.cohorts.get(session.member[0]) if session.member is not None else None
    member = cohort.members.get(session.member[1]) if cohort is not None and session.member is not None else None
    if cohort is None or member is None or not member.pending:
        return f"session {record['session']!r} backs no pending member"
    found = (cohort.group, cohort.attempt, member.digest, member.scheme, cohort.judged)
    saved = (state["group_id"], state["group_attempt"], state["response_digest"], state["response_digest_scheme"], True)
    if found != saved or member.scheme not in DIGEST_SCHEMES:
        return f"session {record['session']!r} was saved as {saved}, restored as {found}"
    told = dict(member.result.fields) if member.result is not None else None
    text = cohort.failure.text if cohort.failure is not None else None
    if (told, text) != (state.get("result"), state.get("failure")):
        return f"the outcome of session {record['session']!r} is not the saved one"
    return None


def watermark_survives_restore(before: Snapshot, event: Event, after: Snapshot) -> str | None:
    """Guards supersession over a crash: the newest attempt is exported with every outcome, and restored."""
    if event.name == "Export":
        states = event.reply["states"] if isinstance(event.reply, dict) else None
        listed = list(states.values()) if isinstance(states, dict) else []
        marks = before.marks
    elif event.name == "Restore" and isinstance(event.args["states"], list):
        listed = [record["state"] for record in event.args["states"] if isinstance(record, dict)]
        marks = after.marks
    else:
        return None
    for state in listed:
        if not isinstance(state, dict) or not state:
            continue
        mark = marks.get(str(state["group_id"]))
        if mark is None or mark.attempt != state["newest_attempt"]:
            return f"newest attempt {state['newest_attempt']} was saved, the watermark is {mark}"
    return None


STEP_INVARIANTS: Mapping[str, StepInvariant] = {
    f.__name__: f
    for f in (
        no_outcome_while_closed,
        cap_respected,
        needed_never_dropped,
        watermark_monotone,
        no_stale_attempt_publishes,
        no_false_conflict,
        retire_never_waits_for_cohort,
        no_foreign_free,
        replayed_survives_retire,
        all_or_nothing_restore,
        watermark_survives_restore,
    )
}
"""The spec's step invariants, as far as two states and the event between them decide them, by name."""


def broken_step(before: Snapshot, event: Event, after: Snapshot) -> dict[str, str]:
    """Every invariant of a step that does not hold, with what is wrong."""
    found = {name: holds(before, event, after) for name, holds in STEP_INVARIANTS.items()}
    return {name: text for name, text in found.items() if text is not None}
