"""What the spec's values are called in code, for code that is led along the spec's graph; and back.

A session `<<g, i, n>>` is called "g.i.n", a rollout `<<g, i>>` "g.i", an answer by its number, a reward by a number of
its own. Waiters have whatever number the code gives them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spec.tools.configs import Config

from genrm_trio.core.cohort import Answer
from genrm_trio.core.identity import CohortId, EpisodeId, group_cohort_id, parse_capture_key, ungrouped_cohort_id
from genrm_trio.core.outcome import CohortFailed, JudgeFailed, Outcome, Refused, Rewarded, Waits
from genrm_trio.core.state import Limits
from genrm_trio.ops.tla.values import Value, parse

PROMPT = "0" * 64
SCHEME = "genrm-trio-1"
AGE_S = 60.0
"""How old whatever goes by age has to be."""

Key = tuple[str, int]
"""A cohort in the spec: its group and its group attempt."""


@dataclass(frozen=True)
class Constants:
    """What a configuration sets, as far as code depends on it."""

    size: int
    cap: int
    ungrouped: frozenset[str]
    max_waiters: int

    @staticmethod
    def of(config: Config) -> "Constants":
        def read(name: str) -> Any:
            return parse(config.constant(name))

        return Constants(read("N"), read("Cap"), read("Ungrouped"), read("MaxWaiters"))

    @property
    def limits(self) -> Limits:
        """The same for the core: sessions count, and nothing goes by age unless an event says so."""
        return Limits(
            self.size,
            max_terminal_cohorts=self.cap,
            cohort_result_ttl_s=AGE_S,
            session_idle_ttl_s=AGE_S,
            record_sessions=True,
        )


class Codes:
    """The names, both ways. Learns the numbers of waiters, and which failure a judge's text stands for.

    waiters: the code's number of a waiting request, and the spec's name for it. rewards: the spec's outcomes by number.
    """

    def __init__(self, constants: Constants) -> None:
        self.constants = constants
        self.waiters: dict[int, Value] = {}
        self.rewards: list[Value] = []
        self._numbers: dict[Value, int] = {}
        self._failures: dict[str, Value] = {}
        self._by_cohort: dict[Value, Value] = {}
        self._cohorts: dict[str, Key] = {}

    # -- from the spec to the code ---------------------------------------------------------------------

    def session_id(self, session: Value) -> str:
        assert isinstance(session, tuple), "a session is a sequence"
        return ".".join(str(part) for part in session)

    def episode_id(self, episode: Value) -> EpisodeId:
        assert isinstance(episode, tuple), "an episode is a rollout and its attempt"
        rollout, attempt = episode
        assert isinstance(attempt, int), "an attempt is a number"
        return EpisodeId(self.session_id(rollout), attempt)

    def cohort_id(self, key: Key) -> CohortId:
        group, attempt = key
        if group in self.constants.ungrouped:
            made = ungrouped_cohort_id(PROMPT, attempt, prompt_id=group)
        else:
            made = group_cohort_id(group, attempt)
        self._cohorts[made.key] = key
        return made

    def digests(self, answer: int) -> Answer:
        return Answer({SCHEME: str(answer)})

    def reward_number(self, outcome: Value) -> float:
        """The number that stands for a reward."""
        if outcome not in self._numbers:
            self._numbers[outcome] = len(self.rewards)
            self.rewards.append(outcome)
        return float(self._numbers[outcome])

    def judge_text(self, key: Key, failure: Value) -> str:
        """A text for a judge failure; a cohort without a group id gives it an ending of its own."""
        text = f"no verdict {self.reward_number(failure):g}"
        self.learn_failure(key, failure, text)
        return text

    def learn_failure(self, key: Key, failure: Value, text: str) -> None:
        """This is what a cohort's judge failure is in the spec, and what it says in code."""
        self._failures[text] = failure
        self._by_cohort[key] = failure

    # -- from the code to the spec (ops.tla.events.Names) ----------------------------------------------

    def session(self, session_id: str) -> Value:
        group, index, number = session_id.split(".")
        return group, int(index), int(number)

    def rollout(self, rollout_id: str) -> Value:
        group, index = rollout_id.split(".")
        return group, int(index)

    def episode(self, key: str) -> Value:
        episode = parse_capture_key(key)
        return self.rollout(episode.rollout_id), episode.attempt

    def waiter(self, number: int) -> Value:
        return self.waiters[number]

    def group(self, name: str) -> Value:
        return name

    def cohort(self, key: str) -> Key:
        return self._cohorts[key]

    def answer(self, digest: str) -> int:
        return int(digest)

    def reward(self, fields: Mapping[str, Any]) -> Value:
        return self.rewards[int(fields["reward"])]

    def saved_cohort(self, group: str, attempt: int) -> Key:
        return group, attempt

    def judge_failure(self, cohort: Value, text: str | None) -> Value:
        if text is None:
            return self._by_cohort[cohort]
        found = re.match(r"[^;]*", text)
        assert found is not None, "a text may be empty"
        return self._failures[found[0]]

    def outcome(self, outcome: Outcome) -> Value:
        """An outcome that somebody was told."""
        match outcome:
            case Rewarded(fields):
                return self.reward(fields)
            case JudgeFailed(text):
                return self.judge_failure((), text)
            case CohortFailed(code):
                return "cohort", code

    def reply(self, reply: Outcome | Refused | Waits | None) -> Value:
        """What a request was answered at once, None when it waits."""
        match reply:
            case None | Waits():
                return ("waits",)
            case Refused(code):
                return "refused", code
            case outcome:
                return "told", self.outcome(outcome)
