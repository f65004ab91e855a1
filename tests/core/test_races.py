"""Two things that happen at one moment, in both orders: the first decides, and nothing is lost or doubled."""

from collections.abc import Callable
from itertools import permutations

import pytest
from tests.core.play import Ask, Play, key_of

from genrm_trio.core.cohort import NotEnabled, Phase
from genrm_trio.core.outcome import JSON, JudgeFailed

States = dict[str, dict[str, JSON]]


def not_enabled(action: Callable[[], object]) -> None:
    """What the runtime does with an action that comes too late: nothing."""
    with pytest.raises(NotEnabled):
        action()


def test_the_last_arrival_and_the_collection_deadline() -> None:
    play = Play()
    asks = [play.join(0), play.join(1)]
    not_enabled(lambda: play.registry.expire_collection(play.now, key_of()))
    play.finish()
    assert [ask.reward for ask in asks] == [1.0, 1.01]

    play = Play()
    first = play.join(0)
    play.registry.expire_collection(play.now, key_of())
    assert play.join(1).answer == first.answer
    assert first.code == "collection_timeout"


def test_the_verdict_and_the_evaluation_deadline() -> None:
    play = Play()
    asks = play.fill()
    play.judge()
    not_enabled(lambda: play.judge_fails(text="evaluation deadline"))
    play.publish()
    assert [ask.reward for ask in asks] == [1.0, 1.01]

    play = Play()
    asks = play.fill()
    play.judge_fails(text="evaluation deadline")
    not_enabled(play.judge)
    play.publish()
    assert [ask.answer for ask in asks] == [JudgeFailed("evaluation deadline")] * 2


@pytest.mark.parametrize("reward", [True, False], ids=["reward", "judge failure"])
@pytest.mark.parametrize("leaves", ["before judged", "before publish", "after publish"])
def test_a_disconnect_and_the_publish(reward: bool, leaves: str) -> None:
    play = Play()
    gone, stays = play.fill()
    if leaves == "before judged":
        play.leave(gone)
    if reward:
        play.judge()
    else:
        play.judge_fails()
    if leaves == "before publish":
        play.leave(gone)
    play.publish()
    play.leave(gone)
    told_gone = leaves == "after publish"
    assert (gone.answer is not None) == told_gone
    again = play.join(0)
    assert stays.answer is not None
    if reward:
        assert again.reward == 1.0
        assert stays.reward == 1.01
    else:
        assert again.answer == stays.answer
    assert not play.registry.waiters


def test_a_disconnect_and_the_last_arrival() -> None:
    for leave_first in (True, False):
        play = Play()
        first = play.join(0)
        if leave_first:
            play.leave(first)
        second = play.join(1)
        play.leave(first)
        play.finish()
        assert second.reward == 1.01
        assert first.answer is None


@pytest.mark.parametrize("phase", [Phase.EVALUATING, Phase.HELD, Phase.COMPLETED])
def test_supersession_and_judging(phase: Phase) -> None:
    play = Play()
    old = play.fill()
    if phase is not Phase.EVALUATING:
        play.judge()
    if phase is Phase.COMPLETED:
        play.publish()
    new = play.fill(attempt=1)
    if phase is Phase.COMPLETED:
        assert [ask.reward for ask in old] == [1.0, 1.01]
    else:
        assert {ask.code for ask in old} == {"superseded"}
        not_enabled(play.judge)
        not_enabled(play.judge_fails)
        not_enabled(play.publish)
    rewards = play.finish(attempt=1)
    assert [ask.reward for ask in new] == rewards


def test_supersession_and_the_collection_deadline() -> None:
    play = Play()
    old = play.join(0)
    play.join(0, attempt=1)
    not_enabled(lambda: play.registry.expire_collection(play.now, key_of()))
    assert old.code == "superseded"

    play = Play()
    old = play.join(0)
    play.registry.expire_collection(play.now, key_of())
    new = play.join(0, attempt=1)
    assert (old.code, new.waits) == ("collection_timeout", True)


def test_a_stray_member_of_the_old_attempt_on_either_side_of_the_new() -> None:
    for order in permutations((0, 1)):
        play = Play()
        asks = {attempt: play.join(0, attempt=attempt) for attempt in order}
        assert asks[0].code == "superseded"
        assert asks[1].waits


@pytest.mark.parametrize("reward", [True, False], ids=["reward", "judge failure"])
def test_a_retire_and_the_publish(reward: bool) -> None:
    for retire_first in (True, False):
        play = Play()
        gone, stays = play.fill()
        if reward:
            play.judge()
        else:
            play.judge_fails()
        if retire_first:
            play.retire("g-0")
        play.publish()
        play.retire("g-0")
        assert (gone.code == "stale_attempt") == retire_first
        assert stays.answer is not None
        assert play.verify(1).answer == stays.answer


def test_a_retire_and_the_last_arrival() -> None:
    play = Play()
    first = play.join(0)
    play.retire("g-0")
    second = play.join(1)
    assert play.registry.collecting(key_of())
    again = play.verify(0, answer="anew", session="new", episode="g-0-a1")
    play.finish()
    assert (first.code, again.reward, second.reward) == ("stale_attempt", 1.0, 1.01)

    play = Play()
    first, second = play.fill()
    play.retire("g-0")
    assert play.verify(0, answer="anew").code == "different_response", "what is being judged stays"
    play.finish()
    assert (first.code, second.reward) == ("stale_attempt", 1.01)


def test_a_retire_and_the_collection_deadline() -> None:
    play = Play()
    ask = play.join(0)
    play.retire("g-0")
    not_enabled(lambda: play.registry.expire_collection(play.now, key_of()))
    assert ask.code == "stale_attempt"

    play = Play()
    ask = play.join(0)
    play.registry.expire_collection(play.now, key_of())
    play.retire("g-0")
    assert ask.code == "collection_timeout"
    assert play.verify(0, answer="anew").code == "collection_timeout"


def test_two_equal_requests_and_a_disconnect_of_one() -> None:
    for leaving in (0, 1):
        play = Play()
        asks = [play.join(0), play.join(0)]
        play.leave(asks[leaving])
        play.join(1)
        play.finish()
        assert asks[1 - leaving].reward == 1.0
        assert asks[leaving].answer is None


def test_an_eviction_and_a_replay() -> None:
    play = Play(cohort_result_ttl_s=10.0)
    play.fill_without_sessions()
    play.finish()
    play.now += 10.0
    assert play.verify(0).reward == 1.0, "the replay ran before the age was looked at"
    play.prune()
    assert play.verify(0).waits
    assert play.registry.latest_attempt("g") == 0


# -- around a checkpoint -------------------------------------------------------------------------------


def story(steps: tuple[str, ...]) -> tuple[list[Ask], States]:
    """Close, export, judge and a late second session, in the given order; then resume."""
    play = Play()
    asks = play.fill()
    play.seed("second", "q")
    saved: States = {}
    judged = False
    for step in steps:
        if step == "close":
            play.close()
        elif step == "export":
            saved = play.states(play.save())
        elif step == "judge":
            play.judge()
            judged = True
        else:
            asks.append(play.verify(1, session="second", episode="q"))
    assert judged
    assert not play.publish()
    assert all(ask.waits for ask in asks)
    play.open()
    play.publish()
    return asks, saved


@pytest.mark.parametrize(
    "steps",
    [s for s in permutations(("close", "export", "judge", "second")) if s.index("close") < s.index("export")],
    ids="-".join,
)
def test_records_exports_and_verdicts_in_every_order(steps: tuple[str, ...]) -> None:
    asks, saved = story(steps)
    assert [ask.reward for ask in asks] == [1.0, 1.01, 1.01]
    exported = {session: state.get("result") for session, state in saved.items()}
    known = steps.index("judge") < steps.index("export")
    early = steps.index("second") < steps.index("export")
    assert exported == {
        "s-g-0": {"reward": 1.0} if known else None,
        "s-g-1": {"reward": 1.01} if known else None,
        "second": {"reward": 1.01} if known and early else None,
    }


@pytest.mark.parametrize(
    "steps",
    [
        s
        for s in permutations(("close", "export", "open", "second"))
        if s.index("close") < s.index("export") < s.index("open")
    ],
    ids="-".join,
)
def test_a_second_session_of_a_finished_cohort_in_every_order(steps: tuple[str, ...]) -> None:
    """It is told at once, except between export and resume; whoever is told before a resume is exported."""
    play = Play()
    play.done()
    play.seed("second", "q")
    saved: States = {}
    ask = None
    for step in steps:
        if step == "close":
            play.close()
        elif step == "open":
            play.open()
        elif step == "export":
            saved = play.states(play.save())
        else:
            ask = play.verify(0, session="second", episode="q")
            between = steps.index("export") < steps.index("second") < steps.index("open")
            assert ask.waits == between
    assert ask is not None
    assert ask.reward == 1.0
    early = steps.index("second") < steps.index("export")
    assert saved["second"] == (saved["s-g-0"] if early else {})


def test_the_end_of_a_session_and_the_close_of_admission() -> None:
    for end_first in (True, False):
        play = Play()
        play.done()
        if end_first:
            assert play.registry.end_session(play.now, "s-g-0", "verify") == "ended"
        play.close()
        if not end_first:
            assert play.registry.end_session(play.now, "s-g-0", "verify") == "later"
        assert ("s-g-0" in play.states(play.save())) == (not end_first)
        play.open()
        assert "s-g-0" not in play.registry.sessions


def test_a_shutdown_on_either_side_of_the_publish() -> None:
    for down_first in (True, False):
        play = Play()
        asks = play.fill()
        play.judge()
        if down_first:
            play.registry.shut_down(play.now)
            not_enabled(play.publish)
        else:
            play.publish()
            play.registry.shut_down(play.now)
        assert [ask.code for ask in asks] == (["shutting_down"] * 2 if down_first else [None, None])
        assert not play.retained
