"""The Registry's state as the value that the spec's variable `core` has, and what it says is due."""

from collections.abc import Callable, Iterable
from typing import Any

from spec.tools.codes import AGE_S, Codes
from spec.tools.replay import Divergence

from genrm_trio.core.cohort import Cohort, NotEnabled
from genrm_trio.core.registry import Registry
from genrm_trio.ops.tla.values import Map, Value, function, record


def projected(registry: Registry, codes: Codes) -> Map:
    """The whole state, whatever the spec knows of it. Raises Divergence when the count of places is not that of it."""
    held = sum(cohort.size for cohort in registry.cohorts.values() if cohort.active)
    if held != registry.held:
        raise Divergence(f"active cohorts have {held} places, {registry.held} are counted")
    exported = registry.admission.exported
    groups = sorted(registry.groups.items(), key=lambda named: named[1].watermark.used)
    return record(
        cohort=function((codes.cohort(key), _cohort(cohort, codes)) for key, cohort in registry.cohorts.items()),
        term=tuple(codes.cohort(key) for key in registry.terminal),
        marks=tuple(
            record(g=codes.group(name), a=group.watermark.attempt, installed=group.watermark.installed)
            for name, group in groups
        ),
        session=function(
            (
                codes.session(session.session_id),
                record(ep=codes.episode(session.episode.key), claimed=session.claimed, ending=session.ending),
            )
            for session in registry.sessions
        ),
        record=function(
            (
                codes.session(session.session_id),
                record(k=codes.cohort(session.member[0]), i=session.member[1], late=session.late),
            )
            for session in registry.sessions
            if session.member is not None
        ),
        waiting=function((codes.waiter(number), _waiter(registry, number, codes)) for number in registry.waiters),
        open=registry.admission.open,
        exporting=exported is not None,
        exported=frozenset(map(codes.session, exported or ())),
        retired=function((codes.rollout(name), attempt) for name, attempt in registry.sessions.retired.items()),
        refused=function(
            (codes.session(session), codes.rollout(name)) for session, name in registry.sessions.refused.items()
        ),
        shut=frozenset(map(codes.session, registry.sessions.closed)),
        down=registry.closed,
    )


def due(registry: Registry, codes: Codes) -> dict[str, list[Value]]:
    """What goes by age if nobody does anything more: by action, in the order in which it goes.

    Time stood still at 0, so everything is as old as it must be at the very same moment. Raises Divergence when the
    code lets go what is not due.
    """
    cohorts, groups = registry.due_cohorts(AGE_S), registry.due_watermarks(AGE_S)
    sessions = registry.due_sessions(AGE_S)
    _refuses(registry.expire, set(registry.cohorts) - set(cohorts))
    _refuses(registry.expire_watermark, set(registry.groups) - set(groups))
    _refuses(registry.expire_session, {session.session_id for session in registry.sessions} - set(sessions))
    return {
        "Expire": [codes.cohort(key) for key in cohorts],
        "ExpireWatermark": [codes.group(name) for name in groups],
        "ExpireSession": [codes.session(session) for session in sessions],
    }


def _refuses(action: Callable[[float, str], Any], undue: Iterable[str]) -> None:
    for name in undue:
        try:
            action(AGE_S, name)
        except NotEnabled:
            continue
        raise Divergence(f"{action.__name__} of {name}, which is not due, was possible")


def _cohort(cohort: Cohort, codes: Codes) -> Value:
    slots = range(cohort.size)
    members = cohort.members
    results = {i: member.result for i, member in members.items() if member.result is not None}
    return record(
        phase=cohort.phase.value,
        ans=function((i, codes.answer(members[i].digest) if i in members else 0) for i in slots),
        out=function((i, codes.reward(results[i].fields) if i in results else ()) for i in slots),
        fail=codes.outcome(cohort.failure) if cohort.failure is not None else (),
        pending=frozenset(i for i, member in members.items() if member.pending),
    )


def _waiter(registry: Registry, number: int, codes: Codes) -> Value:
    waiter = registry.waiters[number]
    index = registry.cohorts[waiter.cohort].waiters[number]
    session = codes.session(waiter.session) if waiter.session is not None else ()
    return record(
        k=codes.cohort(waiter.cohort),
        i=index,
        s=session,
        asked=codes.session(waiter.asked) if waiter.asked is not None else (),
        ep=codes.episode(waiter.episode.key) if waiter.episode is not None else (),
    )
