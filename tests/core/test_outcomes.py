"""How cohorts end, and what their members hear: contract 5.4 as far as it is synchronous, 5.5, 6 and 6.2."""

import pytest
from tests.core.play import Play, key_of

from genrm_trio.core.cohort import TRANSITIONS, NotEnabled, Phase
from genrm_trio.core.outcome import CohortFailed, JudgeFailed, Rewarded

UNGROUPED = f"{'ab' * 32}::group_attempt::0"


def test_the_collection_deadline_fails_the_cohort_and_counts_what_came() -> None:
    play = Play(3)
    asks = [play.join(0), play.join(0), play.join(2)]
    left = play.join(2)
    play.leave(left)
    play.registry.expire_collection(play.now, key_of())
    for ask in asks:
        assert ask.code == "collection_timeout"
        assert "did not collect 3 unique rollout indices" in ask.text
        assert "2 of 3" in ask.text
    assert left.answer is None
    assert play.registry.cohorts[key_of()].terminal_at == play.now


def test_the_collection_deadline_runs_without_anyone_waiting() -> None:
    play = Play()
    play.leave(play.verify(0))
    play.registry.expire_collection(play.now, key_of())
    assert play.verify(0).code == "collection_timeout"
    assert play.verify(1).code == "collection_timeout"


@pytest.mark.parametrize("phase", [Phase.EVALUATING, Phase.HELD, Phase.COMPLETED, Phase.FAILED])
def test_the_collection_deadline_is_for_collecting_cohorts_only(phase: Phase) -> None:
    play = Play()
    play.fill()
    if phase is not Phase.EVALUATING:
        play.judge_fails() if phase is Phase.FAILED else play.judge()
    if phase in {Phase.COMPLETED, Phase.FAILED}:
        play.publish()
    assert play.registry.cohorts[key_of()].phase is phase
    with pytest.raises(NotEnabled):
        play.registry.expire_collection(play.now, key_of())


def test_a_step_that_the_table_does_not_have_changes_nothing() -> None:
    play = Play()
    play.join(0)
    for action in (
        play.judge,
        play.judge_fails,
        play.publish,
        lambda: play.registry.expire(play.now, key_of()),
        lambda: play.registry.judge_failed(play.now, "no such cohort", "x"),
        lambda: play.registry.expire_watermark(play.now, "g"),
        lambda: play.registry.expire_watermark(play.now, "unknown"),
    ):
        seen = len(play.events)
        with pytest.raises(NotEnabled):
            action()
        assert len(play.events) == seen
        assert play.registry.cohorts[key_of()].phase is Phase.COLLECTING


def test_the_table_of_phases_ends_where_a_cohort_ends() -> None:
    assert {phase for phase, _ in TRANSITIONS} == {Phase.COLLECTING, Phase.EVALUATING, Phase.HELD}
    assert set(TRANSITIONS.values()) == set(Phase) - {Phase.COLLECTING}


def test_a_verdict_waits_in_held_until_it_is_published_to_all_at_once() -> None:
    play = Play()
    asks = play.fill()
    play.judge()
    assert all(ask.waits for ask in asks)
    assert play.registry.cohorts[key_of()].phase is Phase.HELD
    assert play.publish()
    assert [ask.reward for ask in asks] == [1.0, 1.01]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_wrong_number_of_rewards_is_refused_before_anything_changes(count: int) -> None:
    play = Play()
    play.fill()
    with pytest.raises(ValueError, match="results for 2 members"):
        play.registry.judged(play.now, key_of(), [Rewarded({"reward": 1.0})] * count)
    assert play.registry.cohorts[key_of()].phase is Phase.EVALUATING


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), None, "1", True, 10**400])
def test_a_reward_that_is_no_finite_number_is_refused_before_anything_changes(value: float) -> None:
    play = Play()
    play.fill()
    with pytest.raises(ValueError, match="finite"):
        play.registry.judged(play.now, key_of(), [Rewarded({"reward": 1.0}), Rewarded({"reward": value})])
    with pytest.raises(ValueError, match="reward_score_raw"):
        play.registry.judged(
            play.now, key_of(), [Rewarded({"reward": 1.0}), Rewarded({"reward": 1.0, "reward_score_raw": float("nan")})]
        )
    play.registry.fail(play.now, key_of(), "evaluation_failed", "the error's type and text")
    assert play.verify(0).code == "evaluation_failed"


def test_a_judge_failure_is_one_text_for_all_members_and_stays() -> None:
    play = Play()
    asks = play.fill()
    play.judge_fails(text="evaluation deadline")
    assert all(ask.waits for ask in asks)
    play.publish()
    assert [ask.answer for ask in asks] == [JudgeFailed("evaluation deadline")] * 2
    assert play.verify(1).answer == JudgeFailed("evaluation deadline")


@pytest.mark.parametrize("reached", [Phase.COLLECTING, Phase.EVALUATING, Phase.HELD])
def test_an_unexpected_error_fails_an_active_cohort_at_once(reached: Phase) -> None:
    play = Play()
    asks = [play.join(0)] if reached is Phase.COLLECTING else play.fill()
    if reached is Phase.HELD:
        play.judge()
    play.registry.fail(play.now, key_of(), "evaluation_failed", "ZeroDivisionError: division by zero")
    expected = CohortFailed("evaluation_failed", "ZeroDivisionError: division by zero")
    assert [ask.answer for ask in asks] == [expected] * len(asks)
    assert play.verify(0, answer="another").answer == expected


def test_a_group_recovers_from_a_failure_only_by_a_higher_attempt() -> None:
    play = Play()
    play.join(0)
    play.registry.expire_collection(play.now, key_of())
    assert play.join(0).code == "collection_timeout"
    asks = [play.join(i, attempt=1) for i in (0, 1)]
    play.finish(attempt=1)
    assert [ask.reward for ask in asks] == [1.0, 1.01]


def test_without_a_group_id_the_failure_says_what_helps_and_stays() -> None:
    for fails in ("expire", "judge", "error"):
        play = Play()
        asks = [play.verify(0, group=None)]
        if fails != "expire":
            asks.append(play.verify(1, group=None))
        if fails == "judge":
            play.judge_fails(key=UNGROUPED)
            play.publish(key=UNGROUPED)
        elif fails == "error":
            play.registry.fail(play.now, UNGROUPED, "evaluation_failed", "boom")
        else:
            play.registry.expire_collection(play.now, UNGROUPED)
        for ask in [*asks, play.verify(0, group=None, answer="another")]:
            assert "fresh _ng_group_id" in ask.text
        assert play.retained == {UNGROUPED}


def test_with_a_group_id_the_failure_does_not_speak_of_fresh_ids() -> None:
    play = Play()
    ask = play.join(0)
    play.registry.expire_collection(play.now, key_of())
    assert "fresh" not in ask.text


# -- disconnects: contract 5.5 -------------------------------------------------------------------------


def test_a_disconnect_takes_the_waiter_and_leaves_the_member() -> None:
    play = Play()
    first = play.join(0)
    play.leave(first)
    assert not play.registry.waiters
    assert play.registry.member(key_of(), 0) is not None
    again = play.join(0)
    play.join(1)
    play.finish()
    assert again.reward == 1.0
    assert first.answer is None


def test_the_evaluation_runs_to_its_end_when_everybody_left() -> None:
    play = Play()
    for ask in play.fill():
        play.leave(ask)
    play.finish()
    assert [play.verify(i).reward for i in (1, 0)] == [1.01, 1.0]


def test_leaving_twice_or_after_the_answer_is_harmless() -> None:
    play = Play()
    first, second = play.fill()
    play.leave(first)
    play.leave(first)
    play.finish()
    play.leave(second)
    play.registry.leave(play.now, 10**9)
    assert [e.reply for e in play.events if e.name == "Leave"] == [True, False, False, False]


# -- tombstones: contract 6.1 --------------------------------------------------------------------------


def test_a_finished_cohort_keeps_no_bodies_and_no_waiters() -> None:
    play = Play()
    for group, ends in (("a", play.judge), ("b", play.judge_fails)):
        play.fill(group)
        ends(group)
        assert [m.payload for m in play.registry.cohorts[key_of(group)].by_index] == [None, None]
        play.publish(group)
    play.join(0, group="c")
    play.registry.expire_collection(play.now, key_of("c"))
    for cohort in play.registry.cohorts.values():
        assert all(member.payload is None for member in cohort.members.values())
        assert not cohort.waiters


def test_a_completed_cohort_without_a_group_id_goes_at_publish() -> None:
    play = Play()
    asks = [play.verify(i, group=None) for i in (0, 1)]
    play.judge(key=UNGROUPED)
    play.publish(key=UNGROUPED)
    assert [ask.reward for ask in asks] == [1.0, 1.01]
    assert not play.retained
    assert not play.registry.terminal
    again = play.verify(0, group=None, answer="another")
    assert again.waits, "the same task can be judged again"


# -- shutdown: contract 6.2 ----------------------------------------------------------------------------


def test_shutdown_answers_every_waiter_and_leaves_nothing() -> None:
    play = Play()
    collecting = play.join(0, group="collecting")
    evaluating = play.fill("evaluating")
    held = play.fill("held")
    play.judge("held")
    play.done("done")
    ungrouped = play.verify(0, group=None)
    play.registry.end_session(play.now, "s-done-0", "close")
    play.close()
    play.save()
    assert play.seed("late", "x-1") == "bound"
    late = play.verify(0, group="done", session="late")
    assert late.waits
    play.registry.shut_down(play.now)
    for ask in [collecting, *evaluating, *held, ungrouped, late]:
        assert ask.code == "shutting_down"
        assert "shutting down" in ask.text
    assert not play.registry.sessions.closed
    assert play.seed("s", "r") == "shutting_down"
    assert play.verify(0).code == "shutting_down"
    assert play.registry.restore_refused() is not None


def test_after_a_shutdown_what_still_runs_finds_nothing() -> None:
    play = Play()
    (ask, _) = play.fill()
    play.registry.shut_down(play.now)
    play.leave(ask)
    assert play.registry.end_session(play.now, "s-g-0", "close") == "unknown"
    assert play.registry.end_session(play.now, "s-g-0", "verify") == "unknown"
    play.prune(10.0**9)
    for action in (play.judge_fails, play.publish):
        with pytest.raises(NotEnabled):
            action()
    play.registry.shut_down(play.now)
    assert not play.retained


def test_what_the_listener_hears() -> None:
    play = Play()
    play.fill()
    play.finish()
    play.registry.end_session(play.now, "s-g-0", "close")
    play.registry.end_session(play.now, "s-g-1", "close")
    play.prune(10.0**6)
    phases = [change.removeprefix(f"{key_of()} ") for change in play.changes]
    assert phases == ["collecting", "evaluating", "held", "completed", "completed"]
    assert play.changes[0].startswith(key_of())
