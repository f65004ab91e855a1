"""Sessions as the core keeps them: seeds, claims, what ends them, and what is remembered: contract 3 and 11.4."""

import pytest
from tests.core.play import Play, key_of

from genrm_trio.core.cohort import NotEnabled
from genrm_trio.core.identity import EpisodeId


def session_of(play: Play, session_id: str = "s") -> tuple[str, bool, bool]:
    session = play.registry.sessions.get(session_id)
    assert session is not None
    return session.episode.key, session.claimed, session.typed


def test_a_prefixed_seed_binds_and_repeats_without_effect() -> None:
    play = Play()
    assert play.seed("s", "r-a2") == "bound"
    assert play.seed("s", "r-a2") == "bound"
    assert len(play.registry.sessions) == 1
    assert session_of(play) == ("r-a2", True, False)


@pytest.mark.parametrize(("episode", "binds"), [(None, True), ("r", False), (None, False)])
def test_a_seed_without_prefix_or_success_binds_nothing(episode: str | None, binds: bool) -> None:
    play = Play()
    assert play.seed("s", episode, binds=binds) == "unbound"
    assert not len(play.registry.sessions)


def test_a_second_seed_binds_the_session_anew_and_keeps_its_member() -> None:
    play = Play()
    play.join(0)
    assert play.seed("s-g-0", "other-a1") == "bound"
    assert session_of(play, "s-g-0") == ("other-a1", True, False)
    assert play.registry.sessions.bound_to(EpisodeId("g-0", 9)) == []
    assert [s.session_id for s in play.registry.sessions.bound_to(EpisodeId("other", 1))] == ["s-g-0"]
    session = play.registry.sessions.get("s-g-0")
    assert session is not None
    assert session.member == (key_of(), 0)


def test_a_typed_seed_is_remembered_as_typed() -> None:
    play = Play()
    play.seed("s", "r", typed=True)
    play.seed("s", "r")
    assert session_of(play) == ("r", True, True)


def test_a_request_under_an_earlier_attempt_is_stale_and_claims_nothing() -> None:
    play = Play()
    play.seed("s", "r-a2")
    session = play.registry.sessions.get("s")
    assert session is not None
    session.claimed = False
    assert play.seed("s", "r-a1") == "stale_attempt"
    assert not play.registry.use_session(play.now, "s", EpisodeId("r", 1))
    assert play.verify(0, session="s", episode="r").code == "stale_attempt"
    assert session_of(play) == ("r-a2", False, False)
    assert play.registry.use_session(play.now, "s", EpisodeId("r", 3))
    assert not session.claimed, "a later attempt is not the one it is bound to"
    assert play.registry.use_session(play.now, "s", EpisodeId("r", 2))
    assert session.claimed


@pytest.mark.parametrize("claims", ["seed", "verify", "other", "other without prefix", "refused verify"])
def test_a_restored_session_is_claimed_by_any_request_under_its_attempt(claims: str) -> None:
    play = Play()
    play.done()
    play.close()
    fresh = play.crash(play.save())
    assert session_of(fresh, "s-g-0") == ("g-0-a1", False, False)
    if claims == "seed":
        fresh.seed("s-g-0", "g-0-a1")
    elif claims == "verify":
        fresh.verify(0, session="s-g-0", episode="g-0-a1")
    elif claims == "refused verify":
        assert fresh.verify(0, answer="x", session="s-g-0", episode="g-0-a1").code == "different_response"
    else:
        fresh.registry.use_session(fresh.now, "s-g-0", EpisodeId("g-0", 1) if claims == "other" else None)
    assert session_of(fresh, "s-g-0") == ("g-0-a1", True, False)
    assert session_of(fresh, "s-g-1") == ("g-1-a1", False, False)


def test_a_closed_session_is_gone_and_its_id_binds_nothing_for_a_while() -> None:
    play = Play(session_idle_ttl_s=100.0)
    play.seed("s", "r")
    assert play.registry.end_session(play.now, "s", "close") == "ended"
    assert play.registry.end_session(play.now, "s", "close") == "unknown", "closing is never refused"
    assert play.seed("s", "r") == "closed"
    assert not len(play.registry.sessions)
    play.prune(99.0)
    assert play.seed("s", "r-a1") == "closed"
    play.prune(1.0)
    assert play.seed("s", "r") == "bound"


def test_a_session_that_ended_by_its_verify_reply_can_be_opened_again() -> None:
    play = Play()
    play.seed("s", "r")
    assert play.registry.end_session(play.now, "s", "verify") == "ended"
    assert play.seed("s", "r") == "bound"


def test_closed_ids_are_remembered_up_to_a_bound() -> None:
    play = Play(max_sessions=2)
    for session in ("a", "b", "c"):
        play.registry.end_session(play.now, session, "close")
    assert [play.seed(session, "r") for session in ("a", "b", "c")] == ["bound", "closed", "closed"]


def test_the_number_of_open_sessions_is_bounded() -> None:
    play = Play(max_sessions=2)
    assert [play.seed(session, "r") for session in ("a", "b", "c", "a")] == ["bound", "bound", "too_busy", "bound"]


def test_a_verify_reply_while_closed_ends_its_session_only_when_admission_opens() -> None:
    play = Play()
    play.done()
    play.close()
    assert play.registry.end_session(play.now, "s-g-0", "verify") == "later"
    saved = play.states(play.save())
    assert saved["s-g-0"]["result"] == {"reward": 1.0}, "the checkpoint still has it"
    play.open()
    assert [s.session_id for s in play.registry.sessions] == ["s-g-1"]
    assert play.events[-1].reply == {"answered": [], "ended": ["s-g-0"]}


def test_a_seed_after_that_reply_keeps_the_session() -> None:
    play = Play()
    play.seed("s", "r")
    play.close()
    play.registry.end_session(play.now, "s", "verify")
    play.seed("s", "r")
    play.open()
    assert "s" in play.registry.sessions


def test_a_session_ends_when_nobody_used_it_for_its_life() -> None:
    play = Play(session_idle_ttl_s=100.0)
    play.join(0, group="waits")
    play.leave(play.join(0, group="g"))
    play.seed("used", "u")
    play.now += 50.0
    play.registry.use_session(play.now, "used", None)
    play.prune(50.0)
    open_now = {s.session_id for s in play.registry.sessions}
    assert open_now == {"s-waits-0", "used"}, "one waits, one was used"
    assert play.seed("s-g-0", "g-0") == "bound", "its id is not remembered"


def test_no_session_idles_out_while_admission_is_closed() -> None:
    """Found by TLC: a caller saved as told would be missing in the checkpoint, and its replay meet a closed slot."""
    play = Play(session_idle_ttl_s=100.0)
    play.done("g")
    play.close()
    play.prune(1000.0)
    with pytest.raises(NotEnabled):
        play.registry.expire_session(play.now, "s-g-0")
    assert len(play.registry.sessions) == 2
    play.open()
    play.prune()
    assert len(play.registry.sessions) == 0, "ages ran on meanwhile"


def test_a_session_counts_its_idle_time_from_its_answer() -> None:
    play = Play(session_idle_ttl_s=100.0)
    play.fill("g")
    play.now += 1000.0
    play.finish("g")
    play.prune(99.0)
    assert len(play.registry.sessions) == 2
    play.prune(1.0)
    assert len(play.registry.sessions) == 0


def test_a_session_that_waits_or_is_unknown_cannot_be_expired() -> None:
    play = Play()
    play.join(0)
    for session in ("s-g-0", "unknown"):
        with pytest.raises(NotEnabled):
            play.registry.expire_session(play.now, session)


def test_busy_sessions_are_left_alone_and_null_turns_the_rule_off() -> None:
    play = Play(session_idle_ttl_s=100.0)
    play.seed("a", "r")
    play.seed("b", "q")
    play.now += 1000.0
    play.registry.prune(play.now, busy={"a"})
    assert [s.session_id for s in play.registry.sessions] == ["a"]
    forever = Play(session_idle_ttl_s=None)
    forever.seed("a", "r")
    forever.registry.end_session(forever.now, "b", "close")
    forever.prune(10.0**9)
    assert "a" in forever.registry.sessions
    assert forever.seed("b", "r") == "closed"


def test_a_restored_session_counts_its_idle_time_from_the_restore() -> None:
    play = Play(session_idle_ttl_s=100.0)
    play.done()
    play.now += 90.0
    play.close()
    fresh = play.crash(play.save())
    fresh.open()
    fresh.prune(99.0)
    assert len(fresh.registry.sessions) == 2
    fresh.prune(1.0)
    assert not len(fresh.registry.sessions)


# -- which member a session backs ----------------------------------------------------------------------


def test_a_session_backs_the_member_of_its_latest_verify_only() -> None:
    play = Play()
    play.seed("s", "r")
    play.verify(0, group="a", session="s")
    play.verify(1, group="b", session="s")
    assert play.registry.cohorts[key_of("a")].sessions == {}
    assert play.registry.cohorts[key_of("b")].sessions == {"s": 1}
    play.verify(1, group="a", session="s")
    play.verify(0, group="a", session="s")
    assert play.registry.cohorts[key_of("a")].sessions == {"s": 0}


def test_a_refused_verify_moves_no_record() -> None:
    play = Play()
    play.join(0)
    play.done("full")
    play.verify(0, group="full", answer="another", session="s-g-0")
    play.verify(0, prompt="ef" * 32, session="s-g-0")
    session = play.registry.sessions.get("s-g-0")
    assert session is not None
    assert session.member == (key_of(), 0)


def test_both_paths_of_a_verify_record_the_member() -> None:
    play = Play()
    play.verify(0)
    play.verify(1)
    for index in (0, 1):
        play.seed(f"s{index}", f"r{index}")
    play.verify(0, session="s0")
    assert play.registry.cohorts[key_of()].sessions == {"s0": 0}, "a member that waits"
    play.finish()
    play.verify(1, session="s1")
    assert play.registry.cohorts[key_of()].sessions == {"s0": 0, "s1": 1}, "a member that is told at once"


def test_without_a_group_id_and_for_unknown_sessions_nothing_is_recorded() -> None:
    play = Play()
    play.seed("s", "r")
    play.verify(0, group=None, session="s")
    play.verify(0, session="unknown")
    assert all(not cohort.sessions for cohort in play.registry.cohorts.values())
    session = play.registry.sessions.get("s")
    assert session is not None
    assert session.member is None


def test_the_end_of_a_session_leaves_its_waiting_request_waiting() -> None:
    play = Play()
    ask, _ = play.fill()
    play.registry.end_session(play.now, "s-g-0", "close")
    assert ask.waits
    play.finish()
    assert ask.reward == 1.0


def test_a_request_that_waits_outlives_the_deletion_of_the_session_it_came_with() -> None:
    """A later attempt than the restored one does not claim it, so the deletion takes the session."""
    play = Play()
    play.done()
    play.close()
    fresh = play.crash(play.save())
    fresh.open()
    ask = fresh.verify(0, group="new", session="s-g-0", episode="g-0-a5")
    assert ask.waits
    assert set(fresh.delete_restored()) == {"s-g-0", "s-g-1"}
    assert ask.waits
    fresh.verify(1, group="new")
    fresh.finish("new")
    assert ask.reward == fresh.calls


@pytest.mark.parametrize("by", ["verify", "close"])
def test_an_attempt_that_a_session_left_behind_ends_nothing(by: str) -> None:
    """A late reply, or the repeated close of an attempt that crashed, is not the new attempt's."""
    play = Play()
    play.seed("s", "r")
    play.seed("s", "r-a1")
    ends = play.registry.end_session
    assert ends(play.now, "s", by, EpisodeId("r", 0)) == "stale"  # type: ignore[arg-type]
    assert session_of(play)[0] == "r-a1"
    assert play.seed("s", "r-a1") == "bound", "its id is not remembered as closed"
    assert ends(play.now, "s", by, EpisodeId("r", 1)) == "ended"  # type: ignore[arg-type]
