"""Export, crash and restore: every member gets its own outcome again, at once, unjudged.

Contract 11.3, 11.4, 14.7, 14.8 and 14.13.
"""

import json
from itertools import permutations

import pytest
from tests.core.play import PROMPT, SCHEME, Ask, Play, key_of, rebuilt

from genrm_trio.core.cohort import NotEnabled
from genrm_trio.core.identity import EpisodeId
from genrm_trio.core.outcome import JSON, JudgeFailed
from genrm_trio.core.record import Rebuild, StateRefused

BOTH = pytest.mark.parametrize("reward", [True, False], ids=["reward", "judge failure"])


def outcome_for_all(play: Play, group: str = "g", *, reward: bool, attempt: int = 0, publish: bool = True) -> list[Ask]:
    asks = play.fill(group, attempt=attempt)
    if reward:
        play.judge(group, attempt=attempt)
    else:
        play.judge_fails(group, attempt=attempt, text=f"no judge for {group}")
    if publish:
        play.publish(group, attempt=attempt)
    return asks


def replay(play: Play, index: int, *, cycle: int = 1, group: str = "g", attempt: int = 0) -> Ask:
    """The verify that the restored session of a member sends again under its next episode attempt."""
    return play.verify(
        index, group=group, attempt=attempt, session=f"s-{group}-{index}", episode=f"{group}-{index}-a{cycle}"
    )


# -- export --------------------------------------------------------------------------------------------


def test_the_state_of_a_session_is_its_own_outcome_and_nothing_else() -> None:
    play = Play(3)
    play.done()
    play.join(0, attempt=4)
    play.seed("twin", "t")
    play.registry.end_session(play.now, "s-g-1", "close")
    play.close()
    states = play.states(play.save())
    assert list(states["s-g-2"].items()) == [
        ("group_id", "g"),
        ("group_attempt", 0),
        ("newest_attempt", 4),
        ("rollout_index", 2),
        ("prompt_digest", PROMPT),
        ("response_digest", "answer 2"),
        ("response_digest_scheme", SCHEME),
        ("result", {"reward": 1.02}),
    ]
    assert states["s-g-0"] == {}, "its latest verify has no outcome yet"
    assert states["twin"] == {}
    assert set(states) == {"s-g-0", "s-g-2", "twin"}


def test_the_state_of_a_judge_failure() -> None:
    play = Play()
    outcome_for_all(play, reward=False)
    play.close()
    state = play.states(play.save())["s-g-1"]
    assert (state["failure"], state["failure_kind"], state["rollout_index"]) == ("no judge for g", "judge", 1)
    assert "result" not in state


@pytest.mark.parametrize("ends", ["collection", "error", "superseded", "collecting", "evaluating"])
def test_what_callers_do_not_record_is_not_exported(ends: str) -> None:
    play = Play()
    play.join(0)
    if ends != "collecting":
        play.join(1)
    if ends == "error":
        play.registry.fail(play.now, key_of(), "evaluation_failed", "boom")
    elif ends == "superseded":
        play.judge()
        play.verify(0, attempt=1)
    elif ends == "collection":
        play = Play()
        play.join(0)
        play.registry.expire_collection(play.now, key_of())
    play.close()
    assert set(map(str, play.states(play.save()).values())) == {"{}"}


def test_without_a_group_id_nothing_is_exported() -> None:
    play = Play()
    for index in (0, 1):
        play.seed(f"s{index}", f"r{index}")
        play.verify(index, group=None, session=f"s{index}")
    play.judge_fails(key=next(iter(play.retained)))
    play.publish(key=next(iter(play.retained)))
    play.close()
    assert play.states(play.save()) == {"s0": {}, "s1": {}}


@BOTH
def test_a_held_outcome_is_exported_and_found_after_the_crash(reward: bool) -> None:
    play = Play()
    asks = play.fill()
    play.close()
    if reward:
        play.judge()
    else:
        play.judge_fails()
    assert not play.publish()
    fresh = play.crash(play.save())
    again = [replay(fresh, index) for index in (0, 1)]
    assert [ask.answer for ask in asks] == [None, None]
    play.open()
    play.publish()
    assert [ask.answer for ask in again] == [ask.answer for ask in asks], "a crash judges nothing twice"
    assert not any(e.name == "Judged" for e in fresh.events)


def test_one_group_is_exported_in_one_step_with_all_its_cohorts() -> None:
    play = Play()
    play.done(attempt=0)
    play.seed("other", "o")
    for index in (0, 1):
        play.seed(f"t{index}", f"u{index}")
        play.verify(index, attempt=1, session=f"t{index}")
    play.finish(attempt=1)
    play.close()
    assert play.registry.export_plan() == ["g"]
    states = play.registry.export(play.now, "g")
    assert set(states) == {"s-g-0", "s-g-1", "t0", "t1"}
    assert play.registry.export(play.now, "g") == {}, "nobody is exported twice"
    assert play.registry.export(play.now, None, ["other", "t0", "gone"]) == {"other": {}}
    assert play.registry.export(play.now, "unknown") == {}


def test_the_plan_is_in_the_order_of_eviction() -> None:
    play = Play()
    for group in ("d", "c", "b", "a"):
        play.fill(group)
    for group in ("b", "d"):
        play.finish(group)
    play.fill_without_sessions("nobody")
    play.finish("nobody")
    play.finish("a")
    play.close()
    assert play.registry.export_plan() == ["b", "d", "a", "c"]
    fresh = play.crash(play.save())
    assert list(fresh.registry.terminal) == [key_of("b"), key_of("d"), key_of("a")]


def test_a_session_that_finds_a_cohort_after_its_group_was_exported_is_left_over_empty() -> None:
    play = Play()
    play.done()
    play.seed("late", "r")
    play.close()
    saved = dict(play.registry.export(play.now, "g"))
    assert play.verify(0, session="late").waits
    saved |= play.registry.export(play.now, None, ["late"])
    assert saved["late"] == {}
    assert set(saved) == {"s-g-0", "s-g-1", "late"}


# -- restore and replay --------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_every_member_gets_its_own_outcome_again_at_once(reward: bool, order: tuple[int, ...]) -> None:
    play = Play(3)
    first = outcome_for_all(play, reward=reward)
    play.close()
    fresh = play.crash(play.save())
    for index in order:
        assert replay(fresh, index).answer == first[index].answer
    assert not any(e.name in {"Judged", "JudgeFailed"} for e in fresh.events)
    assert not any(member.pending for member in fresh.registry.cohorts[key_of()].members.values())


@BOTH
@pytest.mark.parametrize("between", [(), (0,), (0, 1)], ids=["nobody", "one", "both"])
def test_replay_works_after_two_cycles_whoever_replayed_in_between(reward: bool, between: tuple[int, ...]) -> None:
    play = Play()
    first = outcome_for_all(play, reward=reward)
    play.close()
    once = play.crash(play.save())
    for index in between:
        assert replay(once, index).answer == first[index].answer
    once.open()
    once.close()
    twice = once.crash(once.save())
    assert [replay(twice, index, cycle=2).answer for index in (0, 1)] == [ask.answer for ask in first]
    assert replay(twice, 0, cycle=1).code == "stale_attempt"


@BOTH
def test_siblings_that_closed_before_the_export_are_not_needed_for_a_replay(reward: bool) -> None:
    """The keep fault: cap 1, two finished groups of two, member 0 of each closed, export, restore, replay both."""
    play = Play(max_terminal_cohorts=1, cohort_result_ttl_s=0.01)
    first = {group: outcome_for_all(play, group, reward=reward) for group in ("a", "b")}
    for group in ("a", "b"):
        play.registry.end_session(play.now, f"s-{group}-0", "close")
        play.prune(1.0)
    play.close()
    fresh = play.crash(play.save())
    fresh.open()
    fresh.prune(1.0)
    for group in ("b", "a"):
        assert replay(fresh, 1, group=group).answer == first[group][1].answer
    for group in ("a", "b"):
        fresh.registry.end_session(fresh.now, f"s-{group}-1", "close")
    fresh.prune(1.0)
    assert not fresh.retained
    assert not fresh.registry.groups


def test_a_member_that_was_restored_alone_leaves_its_siblings_slots_closed() -> None:
    play = Play()
    play.done()
    play.registry.end_session(play.now, "s-g-0", "close")
    play.close()
    fresh = play.crash(play.save())
    assert fresh.verify(0).code == "slot_closed"
    assert replay(fresh, 1).reward == 1.01


def test_a_judge_failure_meets_members_that_the_file_does_not_hold() -> None:
    play = Play()
    outcome_for_all(play, reward=False)
    play.registry.end_session(play.now, "s-g-0", "close")
    play.close()
    fresh = play.crash(play.save())
    fresh.open()
    fresh.seed("anew", "n")
    told = fresh.verify(0, answer="from the input", session="anew")
    assert told.answer == JudgeFailed("no judge for g")
    fresh.close()
    again = fresh.crash(fresh.save())
    assert again.verify(0, answer="from the input", session="anew", episode="n-a1").answer == told.answer


def test_the_comparison_is_done_under_the_scheme_that_was_saved() -> None:
    play = Play()
    for index in (0, 1):
        play.seed(f"s{index}", f"r{index}")
        play.verify(index, digests={"json-ascii-sha256": f"old {index}"}, session=f"s{index}")
    play.finish()
    play.close()
    fresh = play.crash(play.save())
    both = {SCHEME: "new", "json-ascii-sha256": "old 0"}
    assert fresh.verify(0, digests=both).reward == 1.0
    assert fresh.verify(0, digests={SCHEME: "new", "json-ascii-sha256": "x"}).code == "different_response"
    fresh.open()
    fresh.close()
    assert fresh.states(fresh.save())["s0"]["response_digest_scheme"] == "json-ascii-sha256"


def test_raw_bytes_are_no_short_cut_after_a_restore() -> None:
    play = Play()
    play.seed("s0", "r0")
    play.verify(0, raw="bytes", session="s0")
    play.verify(1, raw="bytes")
    play.finish()
    play.close()
    fresh = play.crash(play.save())
    assert fresh.verify(0, digests={SCHEME: "answer 0"}, raw="bytes").reward == 1.0
    assert fresh.verify(0, digests={SCHEME: "x"}, raw="bytes").code == "different_response"
    assert fresh.verify(0, digests={SCHEME: "x"}, raw="").code == "different_response"


# -- watermarks: contract 14.13 ------------------------------------------------------------------------


def test_a_superseded_attempt_stays_superseded_after_a_restore() -> None:
    play = Play()
    play.done(attempt=0)
    play.verify(0, attempt=3)
    play.close()
    fresh = play.crash(play.save())
    assert replay(fresh, 0).code == "superseded", "as without the crash"
    assert fresh.verify(0, attempt=2).code == "superseded"
    assert fresh.verify(0, attempt=3).waits


def test_two_attempts_of_one_group_can_be_restored_together() -> None:
    play = Play()
    play.done(attempt=0)
    for index in (0, 1):
        play.seed(f"t{index}", f"u{index}")
        play.verify(index, attempt=1, session=f"t{index}")
    play.finish(attempt=1)
    play.close()
    fresh = play.crash(play.save())
    assert fresh.retained == {key_of(attempt=0), key_of(attempt=1)}
    assert fresh.verify(1, attempt=1, session="t1", episode="u1-a1").reward == 2.01
    assert replay(fresh, 0).code == "superseded"


def test_a_group_without_an_exported_outcome_exports_no_watermark() -> None:
    play = Play()
    play.join(0, attempt=1)
    play.close()
    fresh = play.crash(play.save())
    assert not fresh.registry.groups
    assert fresh.verify(0, attempt=0).waits


def test_another_prompt_is_still_refused_after_a_restore() -> None:
    play = Play()
    play.done()
    play.close()
    fresh = play.crash(play.save())
    assert fresh.verify(0, prompt="ef" * 32).code == "inconsistent_prompt"


# -- ages and orders -----------------------------------------------------------------------------------


def test_ages_start_at_the_restore() -> None:
    play = Play(cohort_result_ttl_s=10.0)
    play.done()
    play.now += 9.0
    play.close()
    saved = play.save()
    fresh = Play(limits=play.registry.limits)
    fresh.now = 5000.0
    fresh.close()
    fresh.registry.restore(fresh.now, rebuilt(saved, fresh.registry.limits, fresh.now))
    fresh.open()
    for session in ("s-g-0", "s-g-1"):
        fresh.registry.end_session(fresh.now, session, "close")
    fresh.prune(9.0)
    assert fresh.retained
    fresh.prune(1.0)
    assert not fresh.retained
    assert not fresh.registry.groups


def test_the_eviction_and_watermark_orders_are_the_files() -> None:
    play = Play()
    for group in ("c", "a", "b"):
        play.done(group)
    play.close()
    fresh = play.crash(play.save())
    fresh.open()
    for group in ("a", "b", "c"):
        for index in (0, 1):
            fresh.registry.end_session(fresh.now, f"s-{group}-{index}", "close")
    for key in list(fresh.registry.terminal):
        fresh.registry.expire(fresh.now, key)
    assert [name for _, name in fresh.registry.idle] == ["c", "a", "b"]


# -- refused restores ----------------------------------------------------------------------------------


def test_a_restore_needs_an_empty_process_and_says_what_is_there() -> None:
    with_session, with_cohort, with_watermark = Play(), Play(), Play(cohort_result_ttl_s=1.0)
    with_session.seed("s", "r")
    with_cohort.verify(0, group=None)
    with_watermark.fill_without_sessions()
    with_watermark.finish()
    with_watermark.now += 0.5
    with_watermark.verify(0)
    with_watermark.prune(0.5)
    for play, fragment in (
        (with_session, "1 open sessions"),
        (with_cohort, "1 cohorts"),
        (with_watermark, "1 watermarks"),
    ):
        assert fragment in str(play.registry.restore_refused())
        play.close()
        with pytest.raises(NotEnabled):
            play.registry.restore(play.now, Rebuild(play.registry.limits, play.now))
        play.registry.refuse_restore(play.now, fragment)
        play.open()
    assert Play().registry.restore_refused() is None


def test_a_restore_needs_admission_to_be_closed() -> None:
    play = Play()
    with pytest.raises(NotEnabled):
        play.registry.restore(play.now, Rebuild(play.registry.limits, play.now))


def test_a_record_that_does_not_fit_refuses_the_whole_file() -> None:
    play = Play(3)
    play.done()
    play.close()
    records: list[dict[str, JSON]] = json.loads(play.save())
    smaller = Play(2)
    with pytest.raises(StateRefused, match="rollout_index 2"):
        rebuilt(json.dumps(records), smaller.registry.limits)
    assert smaller.registry.restore_refused() is None


def test_what_was_retired_and_closed_before_stays_so_over_a_restore() -> None:
    play = Play()
    play.done()
    play.close()
    saved = play.save()
    fresh = Play(limits=play.registry.limits)
    fresh.retire("other-a3")
    fresh.registry.end_session(fresh.now, "closed", "close")
    fresh.close()
    fresh.registry.restore(fresh.now, rebuilt(saved, fresh.registry.limits, fresh.now))
    assert fresh.seed("x", "other-a3") == "stale_attempt"
    assert fresh.seed("closed", "q") == "closed"
    assert fresh.registry.sessions.bound_to(EpisodeId("g-0", 1))


def test_a_session_that_was_closed_in_the_fresh_process_is_open_again_after_the_restore() -> None:
    """A leftover request of the crashed caller closed it; the restored caller goes on from before that."""
    play = Play()
    first = play.done()
    play.close()
    saved = play.save()
    fresh = Play(limits=play.registry.limits)
    fresh.registry.end_session(fresh.now, "s-g-0", "close")
    fresh.close()
    fresh.registry.restore(fresh.now, rebuilt(saved, fresh.registry.limits, fresh.now))
    assert replay(fresh, 0).answer == first[0].answer
    assert fresh.registry.end_session(fresh.now, "s-g-0", "close") == "ended"
    assert fresh.seed("s-g-0", "g-0-a1") == "closed"


def test_an_export_that_starts_over_after_a_failure_leaves_nobody_out() -> None:
    play = Play()
    play.done()
    play.close()
    assert len(play.registry.export(play.now, "g")) == 2
    assert play.registry.export(play.now, "g") == {}
    again = play.registry.export(play.now, "g", anew=True)
    assert {state["result"]["reward"] for state in again.values()} == {1.0, 1.01}  # type: ignore[call-overload,index]
