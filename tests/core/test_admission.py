"""Outcomes while admission is closed: what is held, what is not, and who is late: contract 11.1 and 11.2."""

import pytest
from tests.core.play import Play, key_of

from genrm_trio.core.cohort import NotEnabled, Phase
from genrm_trio.core.outcome import JudgeFailed


def judged(play: Play, *, reward: bool, group: str = "g") -> None:
    if reward:
        play.judge(group)
    else:
        play.judge_fails(group)


BOTH = pytest.mark.parametrize("reward", [True, False], ids=["reward", "judge failure"])


@BOTH
def test_an_outcome_waits_while_admission_is_closed(reward: bool) -> None:
    play = Play()
    asks = play.fill()
    play.close()
    judged(play, reward=reward)
    assert not play.publish()
    assert all(ask.waits for ask in asks)
    assert play.registry.cohorts[key_of()].phase is Phase.HELD
    play.open()
    assert play.publish()
    if reward:
        assert [ask.reward for ask in asks] == [1.0, 1.01]
    else:
        assert [ask.answer for ask in asks] == [JudgeFailed("no judge")] * 2
    assert not play.registry.waiters


@BOTH
def test_closed_is_checked_again_in_the_step_that_publishes(reward: bool) -> None:
    """Admission reopened, which woke the holder, and closed again before the holder ran."""
    play = Play()
    asks = play.fill()
    play.close()
    judged(play, reward=reward)
    play.open()
    play.close()
    assert not play.publish()
    assert all(ask.waits for ask in asks)
    assert [e.reply for e in play.events if e.name == "Publish"] == [{"published": False, "answered": []}]


def test_verify_passes_at_once_while_closed() -> None:
    play = Play()
    play.close()
    asks = play.fill_without_sessions()
    assert all(ask.waits for ask in asks)
    assert play.registry.cohorts[key_of()].phase is Phase.EVALUATING


def test_collection_timeout_supersession_errors_and_shutdown_are_not_held() -> None:
    play = Play()
    timed_out = play.join(0, group="a")
    superseded = play.fill("b")
    broken = play.fill("c")
    down = play.fill("d")
    play.close()
    play.judge("b")
    play.registry.expire_collection(play.now, key_of("a"))
    play.verify(0, group="b", attempt=1)
    play.registry.fail(play.now, key_of("c"), "evaluation_failed", "boom")
    assert timed_out.code == "collection_timeout"
    assert {ask.code for ask in superseded} == {"superseded"}
    assert {ask.code for ask in broken} == {"evaluation_failed"}
    play.registry.shut_down(play.now)
    assert {ask.code for ask in down} == {"shutting_down"}


@BOTH
def test_a_stored_outcome_is_told_at_once_while_closed(reward: bool) -> None:
    play = Play()
    first = play.fill()
    judged(play, reward=reward)
    play.publish()
    play.close()
    before = play.verify(0, session="s-g-0", episode="g-0")
    play.save()
    after = play.verify(0, session="s-g-0", episode="g-0")
    unbound = play.verify(1)
    assert before.answer == after.answer == first[0].answer
    assert unbound.answer == first[1].answer, "what no checkpoint knows cannot be told too early"


@BOTH
def test_a_session_recorded_after_the_export_waits_for_resume(reward: bool) -> None:
    play = Play()
    first = play.fill()
    judged(play, reward=reward)
    play.publish()
    play.seed("late", "r")
    play.close()
    play.save()
    asks = [play.verify(1, session="late", episode="r"), play.verify(1, session="late", episode="r")]
    assert all(ask.waits for ask in asks)
    play.open()
    assert [ask.answer for ask in asks] == [first[1].answer] * 2
    assert play.verify(1, session="late").answer == first[1].answer
    assert play.events[-2].reply == {"answered": [ask.waiter for ask in asks], "ended": []}


def test_between_close_and_export_nobody_is_late() -> None:
    play = Play()
    play.done()
    play.seed("early", "r")
    play.close()
    assert play.verify(0, session="early").reward == 1.0
    assert play.states(play.save())["early"]["result"] == {"reward": 1.0}


def test_a_late_session_stays_late_until_admission_opens() -> None:
    play = Play()
    play.done()
    play.seed("late", "r")
    play.close()
    play.save()
    play.leave(play.verify(0, session="late"))
    again = play.verify(0, session="late")
    assert again.waits, "a disconnect does not make it early"
    play.open()
    play.close()
    assert play.verify(0, session="late").reward == 1.0, "the next checkpoint has not been exported yet"


def test_a_late_request_keeps_its_cohort_when_its_session_ends() -> None:
    play = Play(cohort_result_ttl_s=1.0)
    play.done()
    play.seed("late", "r")
    play.close()
    play.save()
    ask = play.verify(0, session="late")
    for session in ("late", "s-g-0", "s-g-1"):
        play.registry.end_session(play.now, session, "close")
    play.prune(10.0)
    assert play.retained
    play.open()
    assert ask.reward == 1.0
    play.prune()
    assert not play.retained


def test_a_late_request_hears_a_failure_that_callers_do_not_record_at_once() -> None:
    play = Play()
    play.join(0)
    play.registry.expire_collection(play.now, key_of())
    play.seed("late", "r")
    play.close()
    play.save()
    assert play.verify(0, session="late").code == "collection_timeout"


def test_admission_closes_and_opens_in_turn() -> None:
    play = Play()
    with pytest.raises(NotEnabled):
        play.open()
    play.close()
    with pytest.raises(NotEnabled):
        play.close()
    play.open()
    with pytest.raises(NotEnabled):
        play.registry.export(play.now, None)
