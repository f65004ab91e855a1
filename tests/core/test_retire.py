"""Retired, deleted and forgotten: what goes, what stays, and that groups re-form: contract 10.3, 11.5, 11.7, 14.12."""

import pytest
from tests.core.play import Ask, Play, key_of

from genrm_trio.core.cohort import Phase
from genrm_trio.core.identity import EpisodeId
from genrm_trio.core.outcome import JudgeFailed


def restored(size: int = 2, *, reward: bool = True, twins: bool = False) -> Play:
    """A process that restored one finished group; with twins, a second session `t<i>` backs each member."""
    play = Play(size)
    play.fill()
    if reward:
        play.judge()
    else:
        play.judge_fails()
    play.publish()
    if twins:
        for index in range(size):
            play.seed(f"t{index}", f"u{index}")
            play.verify(index, session=f"t{index}")
    play.close()
    return play.crash(play.save())


def replay(play: Play, index: int, session: str | None = None) -> Ask:
    return play.verify(index, session=session or f"s-g-{index}", episode=None if session else f"g-{index}-a1")


BOTH = pytest.mark.parametrize("reward", [True, False], ids=["reward", "judge failure"])


# -- marks ---------------------------------------------------------------------------------------------


def test_a_retire_refuses_this_and_earlier_attempts_from_then_on() -> None:
    play = Play()
    play.seed("s", "r-a2")
    assert play.retire("r-a2") == ["s"]
    assert play.retire("r-a2") == [], "it is idempotent"
    for attempt, expected in ((0, "stale_attempt"), (2, "stale_attempt"), (3, "bound")):
        assert play.seed(f"new{attempt}", EpisodeId("r", attempt).key) == expected
    assert play.verify(0, episode="r-a1").code == "stale_attempt"
    assert play.verify(0, session="s").code == "stale_attempt", "the session's id is refused, prefix or not"
    assert not play.registry.use_session(play.now, "s", None)
    assert play.seed("s", "q") == "stale_attempt"


def test_retiring_an_earlier_attempt_takes_nothing_back() -> None:
    play = Play()
    play.retire("r-a5")
    play.retire("r-a1")
    assert play.seed("s", "r-a5") == "stale_attempt"
    play.seed("later", "r-a6")
    assert play.retire("r-a5") == [], "a later attempt's session lives on"
    assert "later" in play.registry.sessions


def test_attempt_zero_is_retired_too() -> None:
    play = Play()
    play.retire("r")
    assert play.seed("s", "r") == "stale_attempt"
    assert play.seed("s", "r-a1") == "bound"


def test_forget_drops_the_marks_and_the_refused_ids_of_its_rollouts_only() -> None:
    play = Play()
    play.seed("s", "r")
    play.seed("t", "q")
    play.retire("r", "q")
    play.registry.forget(play.now, ["r", "unknown"])
    assert play.seed("s", "r") == "bound"
    assert play.seed("t", "q") == "stale_attempt"
    assert play.seed("other", "q") == "stale_attempt"


def test_closing_a_retired_session_is_never_refused() -> None:
    play = Play()
    play.seed("s", "r")
    play.retire("r")
    assert play.registry.end_session(play.now, "s", "close") == "unknown"


# -- a live retire: contract 14.12 ---------------------------------------------------------------------


def test_a_live_retire_answers_what_waits_and_frees_a_collecting_slot() -> None:
    play = Play()
    asks = [play.join(0), play.join(0), play.join(1, group="other")]
    assert play.retire("g-0") == ["s-g-0"]
    for ask in asks[:2]:
        assert ask.code == "stale_attempt"
    assert asks[2].waits
    assert key_of() not in play.retained, "a cohort left without members is dropped"
    assert play.registry.latest_attempt("g") == 0, "the group's watermark stays"
    again = play.verify(0, answer="from the input", session="new", episode="g-0-a1")
    other = play.join(1)
    play.finish()
    assert (again.reward, other.reward) == (1.0, 1.01)


def test_the_other_members_of_the_cohort_stay() -> None:
    play = Play(3)
    play.join(0)
    other = play.join(1)
    play.retire("g-0")
    assert sorted(play.registry.cohorts[key_of()].members) == [1]
    assert other.waits
    assert play.verify(0, answer="anew").waits
    assert play.changes[-2] == f"{key_of()} collecting", "the runtime hears that a slot was freed"


def test_a_retire_of_a_disconnected_rollout_frees_its_slot_too() -> None:
    play = Play(3)
    play.leave(play.join(0))
    play.join(1)
    play.retire("g-0")
    assert play.verify(0, answer="anew").waits


@pytest.mark.parametrize("holder", ["waiter", "session", "waiter with session"])
def test_a_slot_that_somebody_else_holds_stays(holder: str) -> None:
    play = Play()
    play.join(0)
    if holder == "waiter":
        other = play.verify(0)
    else:
        play.seed("second", "q")
        other = play.verify(0, session="second")
        if holder == "session":
            play.leave(other)
    play.retire("g-0")
    assert play.verify(0, answer="anew").code == "different_response"
    assert other.waits == (holder != "session")
    play.retire("q")
    if holder != "waiter":
        assert key_of() not in play.retained, "with the last holder it goes"


def test_retiring_both_holders_at_once_frees_the_slot() -> None:
    play = Play()
    play.join(0)
    play.seed("second", "q")
    play.verify(0, session="second")
    play.retire("g-0", "q")
    assert key_of() not in play.retained


def test_without_a_group_id_no_slot_is_freed() -> None:
    play = Play()
    play.seed("s", "r")
    ask = play.verify(0, group=None, session="s")
    play.retire("r")
    assert ask.code == "stale_attempt"
    assert play.verify(0, group=None, answer="anew").code == "different_response"


@pytest.mark.parametrize("phase", [Phase.EVALUATING, Phase.HELD, Phase.COMPLETED, Phase.FAILED])
def test_in_a_judged_or_finished_cohort_the_answer_stays(phase: Phase) -> None:
    play = Play()
    asks = play.fill()
    if phase is not Phase.EVALUATING:
        play.judge_fails() if phase is Phase.FAILED else play.judge()
    if phase in {Phase.COMPLETED, Phase.FAILED}:
        play.publish()
    play.retire("g-0")
    assert play.registry.cohorts[key_of()].phase is phase
    assert play.registry.member(key_of(), 0) is not None
    if phase in {Phase.EVALUATING, Phase.HELD}:
        assert asks[0].code == "stale_attempt"
        assert asks[1].waits
        if phase is Phase.EVALUATING:
            play.judge()
        play.publish()
        assert asks[1].reward == 1.01
        assert play.verify(0, answer="anew").code == "different_response"


def test_a_retire_ends_the_waits_of_slots_that_its_session_has_moved_on_from() -> None:
    play = Play()
    play.seed("s", "r")
    asks = [play.verify(0, group=group, session="s") for group in ("a", "b")]
    play.retire("r")
    assert [ask.code for ask in asks] == ["stale_attempt"] * 2
    assert not play.retained


def test_a_retire_of_several_lists_what_ended_and_who_was_answered() -> None:
    play = Play()
    first, second = play.join(0, group="a"), play.join(1, group="b")
    play.retire("b-1", "unknown-a7", "a-0")
    assert play.events[-1].reply == {"ended": ["s-b-1", "s-a-0"], "answered": [second.waiter, first.waiter]}


# -- restored state: contract 11.5 ---------------------------------------------------------------------


@BOTH
def test_a_failed_restore_leaves_groups_that_re_form_with_the_same_attempt(reward: bool) -> None:
    fresh = restored(reward=reward)
    fresh.retire("g-0-a1", "g-1-a1")
    assert not fresh.retained
    assert not fresh.registry.groups, "the watermark that only the restore installed goes as well"
    assert not len(fresh.registry.sessions)
    fresh.open()
    asks = [fresh.verify(i, answer=f"anew {i}", session=f"n{i}", episode=EpisodeId(f"g-{i}", 2).key) for i in (0, 1)]
    fresh.finish()
    assert [ask.reward for ask in asks] == [fresh.calls, fresh.calls + 0.01]


@BOTH
def test_only_the_last_restored_session_of_a_member_takes_it_along(reward: bool) -> None:
    fresh = restored(reward=reward, twins=True)
    fresh.retire("g-0-a1")
    assert fresh.registry.member(key_of(), 0) is not None
    fresh.retire("u0-a1")
    assert fresh.registry.member(key_of(), 0) is None
    assert fresh.registry.member(key_of(), 1) is not None


@BOTH
def test_a_member_that_replayed_stays(reward: bool) -> None:
    fresh = restored(reward=reward, twins=True)
    told = replay(fresh, 0)
    fresh.retire("g-0-a1", "u0-a1", "g-1-a1", "u1-a1")
    assert sorted(fresh.registry.cohorts[key_of()].members) == [0]
    assert fresh.verify(0).answer == told.answer
    assert fresh.registry.latest_attempt("g") == 0


def test_a_replay_by_anyone_counts_for_the_member() -> None:
    fresh = restored(twins=True)
    fresh.verify(0)
    fresh.retire("g-0-a1", "u0-a1")
    assert fresh.registry.member(key_of(), 0) is not None


def test_a_request_that_was_refused_is_no_replay() -> None:
    fresh = restored()
    assert fresh.verify(0, answer="x", session="s-g-0", episode="g-0-a1").code == "different_response"
    fresh.retire("g-0-a1")
    assert fresh.registry.member(key_of(), 0) is None


def test_a_conflict_with_continued_members_is_known_and_accepted() -> None:
    fresh = restored()
    replay(fresh, 1)
    fresh.retire("g-0-a1")
    assert fresh.verify(0, answer="anew").code == "slot_closed"


def test_a_watermark_that_live_traffic_used_stays() -> None:
    fresh = restored()
    assert fresh.verify(0, attempt=0, answer="x").code == "different_response", "it passed the stale check"
    fresh.retire("g-0-a1", "g-1-a1")
    assert not fresh.retained
    assert fresh.registry.latest_attempt("g") == 0


def test_a_watermark_stays_with_the_other_restored_attempt() -> None:
    play = Play()
    play.done(attempt=0)
    for index in (0, 1):
        play.seed(f"t{index}", f"u{index}")
        play.verify(index, attempt=1, session=f"t{index}")
    play.finish(attempt=1)
    play.close()
    fresh = play.crash(play.save())
    fresh.retire("u0-a1", "u1-a1")
    assert fresh.retained == {key_of()}
    assert fresh.registry.latest_attempt("g") == 1
    fresh.retire("g-0-a1", "g-1-a1")
    assert not fresh.registry.groups


def test_eviction_leaves_a_watermark_and_a_retire_has_nothing_left_to_take() -> None:
    play = Play(cohort_result_ttl_s=10.0)
    play.done()
    play.close()
    fresh = play.crash(play.save())
    fresh.open()
    for session in ("s-g-0", "s-g-1"):
        fresh.registry.end_session(fresh.now, session, "close")
    fresh.registry.expire(fresh.now, key_of())
    assert fresh.registry.latest_attempt("g") == 0
    fresh.retire("g-0-a1")
    assert fresh.registry.latest_attempt("g") == 0


@pytest.mark.parametrize("ends", ["close", "verify", "idle", "moves on"])
def test_a_pending_member_whose_session_ends_otherwise_is_an_ordinary_one(ends: str) -> None:
    fresh = restored()
    fresh.open()
    if ends == "idle":
        fresh.registry.expire_session(fresh.now, "s-g-0")
    elif ends == "moves on":
        assert fresh.verify(0, group="h", session="s-g-0", episode="g-0-a1").waits
    else:
        fresh.registry.end_session(fresh.now, "s-g-0", "close" if ends == "close" else "verify")
    fresh.retire("g-0-a1")
    member = fresh.registry.member(key_of(), 0)
    assert member is not None
    assert not member.pending


def test_a_late_record_holds_a_restored_member_that_nobody_was_told() -> None:
    fresh = restored()
    fresh.open()
    fresh.seed("late", "r")
    fresh.close()
    fresh.save()
    fresh.leave(fresh.verify(0, session="late"))
    fresh.open()
    fresh.retire("g-0-a1")
    assert fresh.registry.member(key_of(), 0) is not None, "an open session backs it"
    assert fresh.verify(0, session="late").reward == 1.0


def test_a_member_that_was_told_late_stays() -> None:
    fresh = restored()
    fresh.open()
    fresh.seed("late", "r")
    fresh.close()
    fresh.save()
    told = fresh.verify(0, session="late")
    fresh.open()
    assert told.reward == 1.0
    fresh.registry.end_session(fresh.now, "late", "close")
    fresh.retire("g-0-a1")
    assert fresh.verify(0).reward == 1.0


# -- delete_restored -----------------------------------------------------------------------------------


def test_what_a_commit_leaves_out_of_its_scope_goes_unless_it_was_claimed() -> None:
    fresh = restored(3)
    replay(fresh, 1)
    fresh.registry.use_session(fresh.now, "s-g-2", None)
    fresh.seed("live", "l")
    assert fresh.delete_restored() == ["s-g-0"]
    assert sorted(fresh.registry.cohorts[key_of()].members) == [1, 2]
    assert "live" in fresh.registry.sessions
    assert fresh.seed("s-g-0", "g-0-a1") == "bound", "nothing is refused later"


def test_what_is_not_named_stays() -> None:
    fresh = restored()
    assert fresh.delete_restored("s-g-1", "unknown") == ["s-g-1"]
    assert sorted(fresh.registry.cohorts[key_of()].members) == [0]


@BOTH
def test_deleted_groups_re_form(reward: bool) -> None:
    fresh = restored(reward=reward)
    fresh.delete_restored()
    assert not fresh.retained
    assert not fresh.registry.groups
    fresh.open()
    asks = [fresh.verify(i, answer=f"anew {i}") for i in (0, 1)]
    fresh.finish()
    assert [ask.reward for ask in asks] == [fresh.calls, fresh.calls + 0.01]


def test_a_claimed_session_that_has_not_replayed_keeps_its_member_from_a_deletion_but_not_from_a_retire() -> None:
    fresh = restored(reward=False)
    fresh.registry.use_session(fresh.now, "s-g-0", EpisodeId("g-0", 1))
    fresh.delete_restored()
    assert sorted(fresh.registry.cohorts[key_of()].members) == [0]
    assert not isinstance(fresh.registry.cohorts[key_of()].members[0].result, JudgeFailed)
    fresh.retire("g-0-a1")
    assert not fresh.retained


# -- no leaks: contract 11.7 ---------------------------------------------------------------------------


def test_every_way_that_a_cohort_goes_takes_exactly_its_records() -> None:
    play = Play(max_terminal_cohorts=1, cohort_result_ttl_s=10.0)
    for group in ("a", "b", "c"):
        play.done(group)
    for group in ("a", "b", "c"):
        for index in (0, 1):
            session = play.registry.sessions.get(f"s-{group}-{index}")
            assert session is not None
            assert session.member == (key_of(group), index)
    play.retire("a-0", "a-1")
    play.join(0, group="d")
    assert play.retained == {key_of("b"), key_of("c"), key_of("d")}
    members = {s.session_id: s.member for s in play.registry.sessions}
    assert members == {
        **{f"s-{group}-{index}": (key_of(group), index) for group in ("b", "c") for index in (0, 1)},
        "s-d-0": (key_of("d"), 0),
    }


# -- waits without an open session ---------------------------------------------------------------------


def test_a_retire_ends_a_wait_that_came_before_any_session_was_open() -> None:
    """A client re-sends its request into a fresh process, which knows no session of it."""
    play = Play()
    zombie = play.verify(0, answer="old", session="s", episode="r")
    assert zombie.waits
    play.retire("r")
    assert zombie.code == "stale_attempt"
    assert play.verify(0, answer="new", session="s2", episode="r-a1").waits, "its slot is free again"


def test_a_retire_ends_a_wait_whose_session_was_bound_only_later() -> None:
    play = Play()
    early = play.verify(0, session="s")
    assert play.seed("s", "r") == "bound"
    play.retire("r")
    assert early.code == "stale_attempt"


def test_a_retire_ends_a_wait_whose_session_was_closed_meanwhile() -> None:
    play = Play()
    ask = play.join(0)
    play.registry.end_session(play.now, "s-g-0", "close")
    play.retire("g-0")
    assert ask.code == "stale_attempt"


def test_a_retire_leaves_waits_of_other_rollouts_and_of_later_attempts_alone() -> None:
    play = Play(size=3)
    play.verify(0, session="s", episode="r-a1")
    play.verify(1, session="t", episode="q")
    play.retire("r")
    assert len(play.registry.waiters) == 2
