"""The bound on held members never splits a cohort: contract 14.15."""

from tests.core.play import Play, key_of


def test_the_first_member_takes_the_places_of_all_or_is_refused() -> None:
    play = Play(3, max_held_members=7)
    assert play.join(0, group="a").waits
    assert play.join(0, group="b").waits
    ask = play.join(0, group="c")
    assert ask.code == "too_busy"
    assert "6 of at most 7" in ask.text
    assert "c" not in play.registry.groups
    for group in ("a", "b"):
        for index in (1, 2):
            assert play.join(index, group=group).waits, "a member of a cohort that exists is never refused"
    play.finish("a")
    assert play.join(0, group="c").waits, "a finished cohort gives its places back"


def test_places_come_back_however_a_cohort_ends() -> None:
    play = Play(2, max_held_members=2)
    play.join(0, group="a")
    play.registry.expire_collection(play.now, key_of("a"))
    play.join(0, group="b")
    play.registry.fail(play.now, key_of("b"), "evaluation_failed", "x")
    play.join(0, group="c")
    play.retire("c-0")
    play.fill("d")
    play.judge_fails("d")
    assert play.join(0, group="e").code == "too_busy", "a held outcome still holds"
    play.publish("d")
    assert play.join(0, group="e").waits


def test_a_request_that_joins_what_is_over_needs_no_place() -> None:
    play = Play(2, max_held_members=2)
    play.done("a")
    play.join(0, group="b")
    assert play.verify(0, group="a").reward == 1.0
    assert play.verify(0, group="b", answer="x").code == "different_response"


def test_a_superseding_attempt_takes_over_the_places() -> None:
    play = Play(2, max_held_members=2)
    old = play.join(0)
    assert play.join(0, attempt=1).waits
    assert old.code == "superseded"
    assert play.registry.held == 2


def test_a_superseding_attempt_that_finds_no_place_supersedes_nothing() -> None:
    play = Play(2, max_held_members=2)
    play.done("g")
    waiting = play.join(0, group="h")
    ask = play.verify(0, group="g", attempt=1)
    assert ask.code == "too_busy"
    assert play.registry.latest_attempt("g") == 0
    assert waiting.waits


def test_stale_and_inconsistent_requests_hear_that_first() -> None:
    play = Play(2, max_held_members=2)
    play.done("g", attempt=1)
    play.join(0, group="h")
    assert play.verify(0, group="g", attempt=0).code == "superseded"
    assert play.verify(0, group="g", attempt=2, prompt="ef" * 32).code == "inconsistent_prompt"


def test_without_a_bound_nobody_is_refused() -> None:
    play = Play(2)
    assert all(play.join(0, group=f"g{number}").waits for number in range(50))
    assert play.registry.held == 100
