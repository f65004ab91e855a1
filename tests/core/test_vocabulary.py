"""One vocabulary: core actions, their events, the Registry's methods and the stateful test's rules."""

import inspect

import pytest
from tests.core.play import Play

from genrm_trio.core.identity import EpisodeId
from genrm_trio.core.registry import Registry
from genrm_trio.core.trace import ACTIONS, action_name, method_name

READINGS = {"prune", "export_plan", "restore_refused"}
"""Public methods of the Registry that are no actions: a sweep of several, and readings."""


def test_names_of_actions_and_methods_are_each_others_inverse() -> None:
    for action in ACTIONS:
        assert action_name(method_name(action)) == action
    assert method_name("ExpireCollection") == "expire_collection"


def test_the_registry_has_a_method_for_each_action_and_no_other() -> None:
    own = {name for name, _ in inspect.getmembers(Registry, inspect.isfunction) if name in vars(Registry)}
    public = {name for name in own if not name.startswith("_")}
    assert public - READINGS == {method_name(action) for action in ACTIONS}


def every_action(play: Play) -> None:
    """Take each action once, in an order in which its guard holds."""
    registry = play.registry
    play.done("done")
    play.leave(play.join(0, group="left"))
    registry.expire_collection(play.now, "group_id::left::group_attempt::0")
    play.fill("failed")
    registry.fail(play.now, "group_id::failed::group_attempt::0", "evaluation_failed", "x")
    play.fill("masked")
    play.judge_fails("masked")
    registry.use_session(play.now, "s-done-0", EpisodeId("done-0"))
    for index in (0, 1):
        registry.end_session(play.now, f"s-done-{index}", "close")
    registry.expire(play.now, "group_id::done::group_attempt::0")
    registry.expire_watermark(play.now, "done")
    registry.expire_session(play.now, "s-left-0")
    play.retire("masked-0")
    registry.forget(play.now, ["masked-0"])
    play.close()
    saved = play.save()
    registry.refuse_restore(play.now, "it holds something")
    play.open()
    fresh = play.crash(saved)
    fresh.delete_restored()
    fresh.registry.shut_down(fresh.now)
    play.events += fresh.events


def test_every_action_emits_one_event_under_its_name() -> None:
    play = Play()
    every_action(play)
    assert {event.name for event in play.events} == set(ACTIONS)


@pytest.mark.parametrize("heard", [True, False], ids=["heard", "unheard"])
def test_an_event_that_nobody_hears_costs_nothing_and_changes_nothing(heard: bool) -> None:
    play = Play()
    if not heard:
        play.registry.trace = None
    asks = play.done()
    play.close()
    assert [ask.reward for ask in asks] == [1.0, 1.01]
    assert set(play.states(play.save())) == {"s-g-0", "s-g-1"}
    assert bool(play.events) == heard
