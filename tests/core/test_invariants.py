"""Each invariant says something: it is broken on a state, or on a step, that is broken by hand in just that way.

The spec pins the predicates to its own; this guards them against holding of everything.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.core.play import Play, key_of

from genrm_trio.core.cohort import Cohort, Phase
from genrm_trio.core.identity import EpisodeId, group_cohort_id
from genrm_trio.core.invariants import STATE_INVARIANTS, STRUCTURE, broken
from genrm_trio.core.outcome import CohortFailed, JudgeFailed, Rewarded
from genrm_trio.core.registry import Registry
from genrm_trio.core.sessions import Session
from genrm_trio.core.snapshot import MemberView, SessionView, Snapshot, snapshot
from genrm_trio.core.step_invariants import STEP_INVARIANTS
from genrm_trio.core.trace import Event

DONE, COLLECTING, OTHER = key_of("done"), key_of("collecting"), key_of("other")


def scene() -> Play:
    """A finished group, one that collects, one without a group id that collects, and an idle watermark."""
    play = Play(cohort_result_ttl_s=10.0)
    play.fill_without_sessions("idle")
    play.finish("idle")
    play.now += 5.0
    play.verify(0, group="idle")
    play.prune(5.0)
    play.done("done")
    play.join(0, group="collecting")
    play.verify(0, group=None)
    return play


def ungrouped(registry: Registry) -> Cohort:
    return next(cohort for cohort in registry.cohorts.values() if cohort.id.group is None)


def fresh_session(registry: Registry) -> Session:
    session = Session("hand made", EpisodeId("r"), 10.0**6)
    registry.sessions.add(session)
    return session


def two_active(r: Registry) -> None:
    cohort = Cohort(group_cohort_id("collecting", 1), 2, "p", 0.0)
    r.cohorts[cohort.id.key] = r.groups["collecting"].cohorts[cohort.id.key] = cohort


def set_watermark(r: Registry, group: str, attempt: int) -> None:
    r.groups[group].watermark.attempt = attempt


def complete_ungrouped(r: Registry) -> None:
    ungrouped(r).phase = Phase.COMPLETED


def leave_a_session(r: Registry) -> None:
    r.closed = True


def two_terminal(r: Registry) -> None:
    r.cohorts[DONE].terminal_at = 10.0**6
    cohort = ungrouped(r)
    cohort.phase, cohort.failure = Phase.FAILED, CohortFailed("collection_timeout", "x")
    r.terminal[cohort.id.key] = None


def pending_without_backer(r: Registry) -> None:
    r.cohorts[DONE].members[0].pending = True
    del r.cohorts[DONE].sessions["s-done-0"]


BROKEN_STATES: list[tuple[str, Callable[[Registry], Any]]] = [
    ("terminal_listed", lambda r: r.terminal.pop(DONE)),
    ("terminal_listed", lambda r: r.terminal.update({COLLECTING: None})),
    ("one_active_attempt", two_active),
    ("active_has_watermark", lambda r: set_watermark(r, "collecting", 1)),
    ("watermark_kept", lambda r: set_watermark(r, "done", -1)),
    ("watermark_kept", lambda r: r.groups.pop("done")),
    ("watermark_released", lambda r: setattr(r.groups["idle"].watermark, "installed", True)),
    ("no_leak", lambda r: setattr(fresh_session(r), "member", ("gone", 0))),
    ("no_leak", lambda r: r.cohorts[DONE].sessions.update({"gone": 0})),
    ("no_leak", pending_without_backer),
    ("no_leak", lambda r: r.idle.clear()),
    ("no_leak", lambda r: r.idle.append((99, "done"))),
    ("retire_frees", lambda r: r.cohorts[COLLECTING].members.clear()),
    ("siblings_agree", lambda r: setattr(r.cohorts[DONE].members[1], "result", None)),
    ("siblings_agree", lambda r: setattr(r.cohorts[DONE], "failure", JudgeFailed("x"))),
    ("siblings_agree", lambda r: setattr(r.cohorts[COLLECTING], "failure", JudgeFailed("x"))),
    ("siblings_agree", lambda r: setattr(r.cohorts[COLLECTING].members[0], "result", Rewarded({"reward": 1.0}))),
    ("siblings_agree", lambda r: setattr(r.cohorts[DONE], "phase", Phase.FAILED)),
    ("ungrouped_gone", complete_ungrouped),
    ("ungrouped_gone", lambda r: ungrouped(r).sessions.update({"s-done-0": 0})),
    ("ungrouped_gone", lambda r: setattr(fresh_session(r), "member", (ungrouped(r).id.key, 0))),
    ("ungrouped_gone", lambda r: r.groups.update({ungrouped(r).id.key: r.groups["idle"]})),
    ("closed_is_empty", leave_a_session),
    ("closed_stays_closed", lambda r: r.sessions.closed.update({"s-done-0": 0.0})),
    ("session_records_match", lambda r: r.cohorts[DONE].sessions.update({"s-done-0": 1})),
    ("session_records_match", lambda r: r.cohorts[DONE].members.pop(1)),
    ("waiters_match", lambda r: r.waiters.clear()),
    ("waiters_match", lambda r: r.cohorts[COLLECTING].waiters.update({77: 0})),
    ("waiters_match", lambda r: fresh_session(r).waiters.add(77)),
    ("waiters_match", lambda r: r.cohorts[COLLECTING].members.clear()),
    ("terminal_waiters_are_late", lambda r: r.cohorts[DONE].waiters.update({77: 0})),
    ("groups_match", lambda r: r.groups["done"].cohorts.clear()),
    ("groups_match", lambda r: r.groups["idle"].cohorts.update({"x": ungrouped(r)})),
    ("idle_exact", lambda r: r.idle.append((99, "x"))),
    ("held_exact", lambda r: setattr(r, "held", 0)),
    ("terminal_ordered", two_terminal),
    ("slots_bounded", lambda r: r.cohorts[COLLECTING].members.update({2: r.cohorts[COLLECTING].members[0]})),
    ("slots_bounded", lambda r: setattr(r.cohorts[COLLECTING], "phase", Phase.EVALUATING)),
    ("slots_bounded", lambda r: setattr(r.cohorts[COLLECTING].members[0], "index", 1)),
    ("tombstones_compact", lambda r: setattr(r.cohorts[DONE].members[0], "payload", "body")),
    ("pending_is_decided", lambda r: setattr(r.cohorts[COLLECTING].members[0], "pending", True)),
    ("sessions_consistent", lambda r: r.sessions.refused.update({"s-done-0": "r"})),
    ("sessions_consistent", lambda r: setattr(fresh_session(r), "late", True)),
    ("sessions_consistent", lambda r: setattr(fresh_session(r), "ending", True)),
    ("sessions_consistent", lambda r: setattr(fresh_session(r), "last_used", 0.0)),
    ("sessions_consistent", lambda r: r.sessions._by_rollout["done-0"].pop("s-done-0")),
]


def test_the_scene_is_sound() -> None:
    assert broken(scene().registry) == {}


@pytest.mark.parametrize(("name", "breaks"), BROKEN_STATES, ids=[f"{i}-{n}" for i, (n, _) in enumerate(BROKEN_STATES)])
def test_an_invariant_of_the_state_sees_what_breaks_it(name: str, breaks: Callable[[Registry], Any]) -> None:
    registry = scene().registry
    breaks(registry)
    assert name in broken(registry)


def test_every_invariant_of_the_state_is_broken_by_something() -> None:
    assert {name for name, _ in BROKEN_STATES} == STATE_INVARIANTS.keys() | STRUCTURE.keys()


# -- steps ---------------------------------------------------------------------------------------------


def event(name: str, reply: Any = None, **args: Any) -> Event:
    return Event(name, args, reply)


def submitted(key: str, reply: Any, *, index: int = 0, evicted: tuple[str, ...] = ()) -> Event:
    return event("Submit", {"reply": reply, "evicted": list(evicted), "superseded": []}, cohort=key, index=index)


class Before:
    """The scene with a second finished group and three sessions of the collecting one, as a snapshot to change."""

    def __init__(self) -> None:
        play = scene()
        play.fill_without_sessions("other")
        play.finish("other")
        play.fill("held")
        play.judge("held")
        self.open = snapshot(play.registry)
        play.close()
        self.closed = snapshot(play.registry)

    def without(self, key: str) -> Snapshot:
        cohorts = {k: c for k, c in self.open.cohorts.items() if k != key}
        return replace(self.open, cohorts=cohorts, terminal=tuple(k for k in self.open.terminal if k != key))

    def without_member(self, key: str, index: int, base: Snapshot | None = None) -> Snapshot:
        base = base or self.open
        cohort = base.cohorts[key]
        fewer = replace(cohort, members={i: m for i, m in cohort.members.items() if i != index})
        return replace(base, cohorts={**base.cohorts, key: fewer})

    def without_sessions(self, *gone: str, base: Snapshot | None = None) -> Snapshot:
        base = base or self.open
        return replace(base, sessions={s: view for s, view in base.sessions.items() if s not in gone})

    def capped(self, cap: int) -> Snapshot:
        return replace(self.open, cap=cap)

    def judged_at(self, key: str) -> Snapshot:
        cohort = replace(self.closed.cohorts[key], phase=Phase.COMPLETED)
        return replace(self.closed, cohorts={**self.closed.cohorts, key: cohort})


B = Before()
HELD = key_of("held")
RETIRE = event("Retire", {"ended": ["s-collecting-0"], "answered": []}, episodes=["collecting-0"])
RETIRED = B.without_sessions("s-collecting-0")
MARKS = B.open.marks
STATE = {
    "group_id": "done",
    "group_attempt": 0,
    "newest_attempt": 0,
    "response_digest": "answer 0",
    "response_digest_scheme": "genrm-trio-1",
    "result": {"reward": 2.0},
}
RESTORE = event("Restore", None, states=[{"session": "s-done-0", "episode": "done-0", "state": STATE}])
EMPTY = replace(B.closed, cohorts={}, terminal=(), marks={}, sessions={}, waiters={})


def installed(**changed: Any) -> Snapshot:
    """What the restore of one record should give, with the session or its member changed."""
    session = SessionView("done-0", 1, False, False, False, (DONE, 0), frozenset())
    member = MemberView("answer 0", "genrm-trio-1", Rewarded({"reward": 2.0}), True)
    of_session = {name: value for name, value in changed.items() if name in SessionView.__dataclass_fields__}
    of_member = {name: value for name, value in changed.items() if name not in of_session}
    cohort = replace(
        B.closed.cohorts[DONE],
        members={0: replace(member, **of_member)},
        sessions={"s-done-0": 0},
    )
    return replace(
        EMPTY,
        cohorts={DONE: cohort},
        terminal=(DONE,),
        marks={"done": MARKS["done"]},
        sessions={"s-done-0": replace(session, **of_session)},
    )


BROKEN_STEPS: list[tuple[str, Snapshot, Event, Snapshot]] = [
    ("no_outcome_while_closed", B.closed, event("Judged", None, cohort=HELD), B.judged_at(HELD)),
    (
        "no_outcome_while_closed",
        B.closed,
        event("Publish", {"published": True, "answered": [1]}, cohort="no group"),
        B.closed,
    ),
    ("no_outcome_while_closed", B.closed, submitted(HELD, {"told": {"reward": 1.0}}), B.closed),
    ("no_outcome_while_closed", B.closed, submitted(HELD, {"told": "judge_failed"}), B.closed),
    ("cap_respected", B.capped(1), submitted(COLLECTING, {"waits": True}, evicted=(DONE,)), B.capped(1)),
    ("cap_respected", B.capped(0), submitted(COLLECTING, {"waits": True}), B.capped(0)),
    ("cap_respected", B.capped(0), submitted(COLLECTING, {"waits": True}, evicted=(OTHER,)), B.capped(0)),
    ("needed_never_dropped", B.open, event("Expire", None, cohort=DONE), B.without(DONE)),
    ("needed_never_dropped", B.open, RETIRE, replace(B.without(DONE), sessions=RETIRED.sessions)),
    (
        "watermark_monotone",
        B.open,
        event("ExpireWatermark", None, group="done"),
        replace(B.open, marks={name: mark for name, mark in MARKS.items() if name != "done"}),
    ),
    (
        "watermark_monotone",
        B.open,
        submitted(COLLECTING, {"waits": True}),
        replace(B.open, marks={**MARKS, "done": replace(MARKS["done"], attempt=-1)}),
    ),
    (
        "watermark_monotone",
        B.open,
        RETIRE,
        replace(
            B.open,
            cohorts={},
            marks={name: mark for name, mark in MARKS.items() if name != "collecting"},
        ),
    ),
    (
        "no_stale_attempt_publishes",
        replace(B.open, marks={**MARKS, "held": replace(MARKS["held"], attempt=1)}),
        event("Publish", {"published": True, "answered": []}, cohort=HELD),
        B.open,
    ),
    (
        "no_stale_attempt_publishes",
        replace(B.open, marks={}),
        event("Publish", {"published": True, "answered": []}, cohort=HELD),
        B.open,
    ),
    ("no_false_conflict", B.open, submitted(COLLECTING, {"refused": "different_response"}, index=1), B.open),
    ("no_false_conflict", B.open, submitted("new", {"refused": "different_response"}), B.open),
    ("no_false_conflict", B.open, submitted(COLLECTING, {"refused": "slot_closed"}, index=1), B.open),
    ("no_false_conflict", B.open, submitted(DONE, {"refused": "slot_closed"}), B.open),
    ("no_false_conflict", B.open, submitted("new", {"refused": "slot_closed"}), B.open),
    ("retire_never_waits_for_cohort", B.open, RETIRE, B.open),
    ("retire_never_waits_for_cohort", B.open, RETIRE, RETIRED),
    (
        "no_foreign_free",
        B.open,
        event("Retire", {}, episodes=["nobody"]),
        B.without_member(COLLECTING, 0),
    ),
    ("replayed_survives_retire", B.open, RETIRE, B.without_member(DONE, 0, RETIRED)),
    ("replayed_survives_retire", B.open, RETIRE, B.without_member(HELD, 0, RETIRED)),
    ("replayed_survives_retire", B.open, event("DeleteRestored", [], sessions=[]), B.without_member(COLLECTING, 0)),
    (
        "replayed_survives_retire",
        B.open,
        RETIRE,
        replace(
            RETIRED,
            cohorts={**B.open.cohorts, HELD: replace(B.open.cohorts[HELD], phase=Phase.FAILED)},
        ),
    ),
    ("all_or_nothing_restore", EMPTY, event("RefuseRestore", None, reason="x"), installed()),
    ("all_or_nothing_restore", B.closed, RESTORE, installed()),
    ("all_or_nothing_restore", EMPTY, RESTORE, EMPTY),
    ("all_or_nothing_restore", EMPTY, RESTORE, installed(attempt=0)),
    ("all_or_nothing_restore", EMPTY, RESTORE, installed(claimed=True)),
    ("all_or_nothing_restore", EMPTY, RESTORE, installed(member=None)),
    ("all_or_nothing_restore", EMPTY, RESTORE, installed(pending=False)),
    ("all_or_nothing_restore", EMPTY, RESTORE, installed(digest="answer 1")),
    ("all_or_nothing_restore", EMPTY, RESTORE, installed(result=Rewarded({"reward": 2.01}))),
    (
        "all_or_nothing_restore",
        EMPTY,
        event("Restore", None, states=[{"session": "s-done-0", "episode": "done-0", "state": {}}]),
        installed(),
    ),
    (
        "watermark_survives_restore",
        B.closed,
        event("Export", {"states": {"s-done-0": {**STATE, "newest_attempt": 1}}}, group="done"),
        B.closed,
    ),
    (
        "watermark_survives_restore",
        EMPTY,
        RESTORE,
        replace(installed(), marks={}),
    ),
]


def test_the_restore_of_one_record_is_sound() -> None:
    found = {name: holds(EMPTY, RESTORE, installed()) for name, holds in STEP_INVARIANTS.items()}
    assert not any(found.values()), found


@pytest.mark.parametrize(
    ("name", "before", "step", "after"), BROKEN_STEPS, ids=[f"{i}-{row[0]}" for i, row in enumerate(BROKEN_STEPS)]
)
def test_an_invariant_of_steps_sees_what_breaks_it(name: str, before: Snapshot, step: Event, after: Snapshot) -> None:
    assert STEP_INVARIANTS[name](before, step, after) is not None


def test_every_invariant_of_steps_is_broken_by_something() -> None:
    assert {row[0] for row in BROKEN_STEPS} == STEP_INVARIANTS.keys()


def test_doing_nothing_breaks_no_invariant_of_steps() -> None:
    for state in (B.open, B.closed):
        for name in ("Leave", "Seed", "UseSession", "RefuseRestore", "Forget"):
            for invariant, holds in STEP_INVARIANTS.items():
                assert holds(state, event(name, None), state) is None, invariant
