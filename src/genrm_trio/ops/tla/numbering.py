"""The spec's names for things of one recorded trace: numbers, in the order in which they are first met.

What a client made up (ids, texts, digests) never becomes part of a module; only which of them are equal does.
"""

import json
from collections.abc import Mapping
from typing import Any

from genrm_trio.core.identity import group_cohort_id, parse_capture_key
from genrm_trio.core.trace import Event
from genrm_trio.ops.tla.values import Value


class Numbering:
    """Names for the events of one trace (events.Names). `learn` comes before each event.

    ungrouped: the names of cohorts without a group id, each of which is a group of its own.
    """

    def __init__(self) -> None:
        self.ungrouped: set[str] = set()
        self._numbers: dict[str, dict[str, int]] = {}
        self._cohorts: dict[str, Value] = {}

    def _number(self, kind: str, name: str) -> int:
        known = self._numbers.setdefault(kind, {})
        return known.setdefault(name, len(known) + 1)

    def learn(self, event: Event) -> None:
        """Cohorts are named by the verifications and restores that bring them."""
        args: Mapping[str, Any] = event.args
        if event.name == "Submit":
            self._cohorts.setdefault(args["cohort"], self._cohort(args["cohort"], args["group"], args["attempt"]))
        elif event.name == "Restore":
            for saved in args["states"]:
                state = saved["state"]
                if state:
                    # The prompt's digest carries the suffixes that the key has, too (contract 5.3).
                    key = group_cohort_id(state["group_id"], state["group_attempt"], state["prompt_digest"][64:]).key
                    self._cohorts[key] = self.saved_cohort(state["group_id"], state["group_attempt"])

    def _cohort(self, key: str, group: str | None, attempt: int) -> Value:
        if group is not None:
            return self.saved_cohort(group, attempt)
        name = f"u{self._number('ungrouped', key)}"
        self.ungrouped.add(name)
        return name, attempt

    # -- events.Names ----------------------------------------------------------------------------------

    def session(self, session_id: str) -> Value:
        """A sequence, so that TLC can compare it with the empty one."""
        return (self._number("session", session_id),)

    def rollout(self, rollout_id: str) -> Value:
        """A number."""
        return self._number("rollout", rollout_id)

    def episode(self, key: str) -> Value:
        """A rollout and its attempt."""
        episode = parse_capture_key(key)
        return self.rollout(episode.rollout_id), episode.attempt

    def waiter(self, number: int) -> Value:
        """The server's own number."""
        return number

    def group(self, name: str) -> Value:
        """Told apart from those without a group id."""
        return f"g{self._number('group', name)}"

    def cohort(self, key: str) -> Value:
        """As learnt; one that was never met has a name that the spec has never met either."""
        return self._cohorts.get(key) or (f"x{self._number('unknown', key)}", 0)

    def saved_cohort(self, group: str, attempt: int) -> Value:
        """A group and its attempt."""
        return self.group(group), attempt

    def answer(self, digest: str) -> int:
        """A number."""
        return self._number("answer", digest)

    def reward(self, fields: Mapping[str, Any]) -> Value:
        """Equal results have equal numbers."""
        return "reward", self._number("result", json.dumps(fields, sort_keys=True))

    def judge_failure(self, cohort: Value, text: str | None) -> Value:
        """A cohort has one at most, and events do not tell its text."""
        return "judge", cohort
