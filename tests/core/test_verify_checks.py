"""The checks of one `/verify`, the sixth to the fourteenth, in their order: contract 5.2.

The order matters for what the caller sees, so each check is also met by a request that a later check would refuse.
"""

from tests.core.play import PROMPT, SCHEME, Play, key_of

from genrm_trio.core.cohort import Phase
from genrm_trio.core.identity import group_cohort_id
from genrm_trio.core.outcome import CohortFailed, JudgeFailed, Waits

OTHER = "ef" * 32


def test_1_a_server_that_closes_refuses_first_of_all() -> None:
    play = Play()
    play.done()
    play.registry.shut_down(play.now)
    ask = play.verify(0, prompt=OTHER)
    assert ask.code == "shutting_down"
    assert "shutting down" in ask.text
    assert not play.retained


def test_6_another_prompt_is_refused_and_names_the_group() -> None:
    play = Play()
    play.done()
    ask = play.verify(0, prompt=OTHER)
    assert ask.code == "inconsistent_prompt"
    assert "inconsistent prompt" in ask.text
    assert "'g'" in ask.text


def test_6_comes_before_supersession_in_both_directions() -> None:
    play = Play()
    waiting = play.join(0, attempt=1)
    for attempt in (0, 2):
        assert play.verify(0, attempt=attempt, prompt=OTHER).code == "inconsistent_prompt"
    assert waiting.waits, "an attempt with another prompt supersedes nothing"
    assert play.registry.latest_attempt("g") == 1


def test_6_remembers_the_prompt_while_the_watermark_is_there() -> None:
    play = Play(cohort_result_ttl_s=10.0, record_sessions=False)
    play.fill_without_sessions()
    play.finish()
    play.now += 5.0
    assert play.verify(0, prompt=OTHER).code == "inconsistent_prompt"
    play.prune(5.0)
    assert not play.registry.groups, "a refused request does not refresh the watermark"
    assert play.verify(0, prompt=OTHER).waits


def test_7_an_older_attempt_is_refused_and_told_the_newest() -> None:
    play = Play()
    play.join(0, attempt=3)
    ask = play.verify(1, attempt=1)
    assert ask.code == "superseded"
    assert "superseded by attempt 3" in ask.text
    assert "'g'" in ask.text
    assert "attempt 1" in ask.text
    assert getattr(ask.answer, "latest_attempt", None) == 3


def test_7_comes_before_everything_about_the_cohort() -> None:
    play = Play()
    first = play.done(attempt=0)
    play.join(0, attempt=1)
    assert play.verify(0, attempt=0).code == "superseded", "a completed older attempt replays no more"
    assert play.verify(0, attempt=0, answer="another").code == "superseded"
    assert first[0].reward


def test_8_a_higher_attempt_fails_every_active_older_one() -> None:
    for reached in (Phase.COLLECTING, Phase.EVALUATING, Phase.HELD):
        play = Play()
        asks = [play.join(0)] if reached is Phase.COLLECTING else play.fill()
        if reached is Phase.HELD:
            play.judge()
        assert play.registry.cohorts[key_of()].phase is reached
        newer = play.join(0, attempt=2)
        assert newer.waits
        for ask in asks:
            assert ask.code == "superseded"
            assert "superseded by attempt 2" in ask.text
            assert isinstance(ask.answer, CohortFailed)
            assert ask.answer.latest_attempt == 2
        assert play.registry.latest_attempt("g") == 2
        assert play.events[-1].reply == {"reply": {"waits": True}, "evicted": [], "superseded": [key_of()]}


def test_8_leaves_finished_attempts_and_other_groups_alone() -> None:
    play = Play()
    play.done("g", attempt=0)
    other = play.join(0, group="h")
    play.join(0, attempt=1)
    assert play.registry.cohorts[key_of()].phase is Phase.COMPLETED
    assert other.waits


def test_8_may_skip_attempts_and_reach_any_number() -> None:
    play = Play()
    assert play.join(0, attempt=2**70).waits
    assert play.verify(1, attempt=2**70 - 1).code == "superseded"


def test_9_the_cohorts_own_prompt_is_compared_too() -> None:
    play = Play()
    cohort = group_cohort_id("x", 0)
    ungrouped = type(cohort)("task_idx::1::d::group_attempt::0", None, 0)
    play.verify(0, cohort=ungrouped)
    ask = play.verify(1, cohort=ungrouped, prompt=OTHER)
    assert ask.code == "inconsistent_prompt"
    assert repr(ungrouped.key) in ask.text


def test_10_a_failed_cohort_repeats_its_failure_before_the_answer_is_compared() -> None:
    for index, answer in ((0, None), (0, "another"), (1, "never seen")):
        play = Play()
        first = play.join(0)
        play.registry.expire_collection(play.now, key_of())
        again = play.verify(index, answer=answer)
        assert again.answer == first.answer
        assert again.code == "collection_timeout"


def test_10_a_judge_failure_repeats_too() -> None:
    play = Play()
    asks = play.fill()
    play.judge_fails(text="the judge is gone")
    play.publish()
    for answer in (None, "another"):
        assert play.verify(0, answer=answer).answer == JudgeFailed("the judge is gone")
    assert [ask.answer for ask in asks] == [JudgeFailed("the judge is gone")] * 2


def test_11_a_taken_slot_refuses_another_answer_in_every_phase() -> None:
    play = Play()
    play.join(0)
    assert_conflict(play)
    play.join(1)
    assert_conflict(play)
    play.judge()
    assert_conflict(play)
    play.publish()
    assert_conflict(play)


def assert_conflict(play: Play) -> None:
    ask = play.verify(0, answer="another")
    assert ask.code == "different_response"
    assert "already has a different response" in ask.text
    assert "rollout_index=0" in ask.text
    assert repr(key_of()) in ask.text


def test_11_holds_when_nobody_waits() -> None:
    play = Play()
    play.leave(play.verify(0))
    assert play.verify(0, answer="another").code == "different_response"


def test_12_the_same_answer_waits_with_the_others_and_is_told_the_same() -> None:
    play = Play()
    first = play.join(0)
    twice = play.join(0)
    play.join(1)
    thrice = play.join(0)
    assert first.reply == Waits(key_of(), started=True)
    assert twice.reply == thrice.reply == Waits(key_of(), started=False)
    play.judge()
    held = play.join(0)
    assert held.waits
    play.publish()
    assert first.reward == twice.reward == thrice.reward == held.reward == 1.0
    assert len(play.registry.cohorts[key_of()].members) == 2


def test_12_a_completed_cohort_tells_each_member_its_own_result_at_once() -> None:
    play = Play(3)
    first = play.done()
    again = [play.verify(index) for index in (2, 0, 1)]
    assert [ask.reward for ask in again] == [1.02, 1.0, 1.01]
    assert [ask.reward for ask in first] == [1.0, 1.01, 1.02]
    assert play.calls == 1


def test_12_answers_are_compared_under_the_scheme_of_the_member() -> None:
    play = Play()
    play.verify(0, digests={"json-ascii-sha256": "old"})
    assert play.verify(0, digests={SCHEME: "new", "json-ascii-sha256": "old"}).waits
    assert play.verify(0, digests={SCHEME: "old"}).code == "different_response", "digests of two schemes never compare"


def test_12_equal_bytes_are_equal_answers_and_other_bytes_prove_nothing() -> None:
    play = Play()
    play.verify(0, answer="digest", raw="bytes")
    assert play.verify(0, answer="digest", raw="other bytes").waits
    assert play.verify(0, digests={"unknown": "x"}, raw="bytes").waits
    assert play.verify(0, answer="another", raw="").code == "different_response"


def test_13_a_free_slot_of_a_restored_cohort_is_closed() -> None:
    play = Play(3)
    play.done()
    play.registry.end_session(play.now, "s-g-1", "verify")
    play.close()
    fresh = play.crash(play.save())
    ask = fresh.verify(1)
    assert ask.code == "slot_closed"
    assert "already completed" in ask.text
    assert "rollout_index=1 cannot be added" in ask.text


def test_13_says_whether_it_evaluates_or_is_over() -> None:
    """A live cohort that is full has no free slot, so this asks for one that only the fourth check would refuse."""
    play = Play()
    play.fill()
    ask = play.verify(2)
    assert ask.code == "slot_closed"
    assert "already evaluating" in ask.text
    assert "rollout_index=2 cannot be added" in ask.text
    play.judge()
    assert "already evaluating" in play.verify(2).text, "held outcomes are not known outside"
    play.publish()
    assert "already completed" in play.verify(2).text


def test_14_members_are_added_and_the_last_one_starts_the_evaluation() -> None:
    play = Play(3)
    asks = [play.join(2), play.join(0)]
    assert play.registry.collecting(key_of())
    asks.append(play.join(1))
    assert [ask.reply for ask in asks] == [
        Waits(key_of(), started=True),
        Waits(key_of(), started=False),
        Waits(key_of(), started=False),
    ]
    cohort = play.registry.cohorts[key_of()]
    assert cohort.phase is Phase.EVALUATING
    assert [member.payload for member in cohort.by_index] == ["body 0", "body 1", "body 2"]
    assert play.finish() == [1.0, 1.01, 1.02], "members are ordered by index, whatever the arrival order"
    assert [ask.reward for ask in asks] == [1.02, 1.0, 1.01]


def test_14_a_group_of_one_is_complete_with_its_first_member() -> None:
    play = Play(1)
    ask = play.join(0)
    assert ask.reply == Waits(key_of(), started=True)
    assert play.registry.cohorts[key_of()].phase is Phase.EVALUATING
    play.finish()
    assert ask.reward == 1.0


def test_the_same_prompt_without_a_group_is_one_cohort_by_key() -> None:
    play = Play()
    first, second = play.verify(0, group=None), play.verify(1, group=None)
    assert len(play.retained) == 1
    assert not play.registry.groups
    assert play.verify(0, group=None, attempt=1).waits, "without a group id an attempt is only part of the key"
    assert len(play.retained) == 2
    assert first.waits
    assert second.waits


def test_the_stale_check_comes_before_every_other() -> None:
    play = Play()
    play.seed("s", "r-a1")
    ask = play.verify(0, session="s", episode="r", prompt=PROMPT)
    assert ask.code == "stale_attempt"
    assert not play.retained
