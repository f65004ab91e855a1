"""Random stories on the core: every action in every order that its guards allow.

Hypothesis tells some and shrinks what breaks; a plain random walk tells ten times as many. GENRM_TRIO_STORIES and
GENRM_TRIO_WALKS set how many (of up to 60 and of 150 steps); the defaults fit a pull request.
"""

import os
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from tests.core.story import ONLY, SCENES, STEPS, WORLD, Broken, Step, Story, walk

from genrm_trio.core.trace import ACTIONS, method_name

STORIES = int(os.environ.get("GENRM_TRIO_STORIES", "200"))
WALKS = int(os.environ.get("GENRM_TRIO_WALKS", "400"))


def rule_of(step: Step) -> Any:
    """A step as Hypothesis takes it."""

    def take(self: "CoreMachine", **arguments: Any) -> None:
        getattr(self.story, step.name)(**arguments)

    take.__name__ = step.name
    strategies: dict[str, Any] = {name: st.sampled_from(values) for name, values in step.arguments.items()}
    taken: Any = rule(**strategies)
    limited: Any = precondition(lambda self: step.enabled(self.story))
    return limited(taken(take))


class CoreMachine(RuleBasedStateMachine):
    """One rule per step, under its name."""

    story: Story

    @initialize(scene=st.fixed_dictionaries({name: st.sampled_from(values) for name, values in SCENES.items()}))
    def begin(self, scene: dict[str, Any]) -> None:
        self.story = Story(**scene)

    def teardown(self) -> None:
        if hasattr(self, "story"):
            self.story.finish()


for _step in STEPS.values():
    setattr(CoreMachine, _step.name, rule_of(_step))


def test_there_is_one_rule_for_each_action() -> None:
    rules = {rule.function.__name__ for rule in CoreMachine.setup_state().rules}
    assert rules == {method_name(action) for action in (*ACTIONS, *WORLD)}


def test_no_story_breaks_an_invariant() -> None:
    run_state_machine_as_test(
        CoreMachine,
        settings=settings(
            max_examples=STORIES,
            stateful_step_count=60,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
            database=None,
            print_blob=True,
        ),
    )


def test_no_walk_breaks_an_invariant() -> None:
    """With GENRM_TRIO_ONLY a walk counts only when it breaks one of those invariants; what else breaks ends it."""
    for seed in range(WALKS):
        try:
            walk(seed, 150)
        except Exception as error:
            if not ONLY or isinstance(error, Broken):
                raise
