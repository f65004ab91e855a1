"""Random schedules of a training run that crashes, as plain data made from a seed.

A schedule says what is tried and in which order; whom it is about is settled when it is played, by the number that
each step carries. So a schedule is the same for the same seed, whatever the machine does.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

Kind = Literal[
    "begin",
    "begin group",
    "verify",
    "verify group",
    "settle",
    "hang up",
    "reconnect",
    "twice",
    "record",
    "judge",
    "release",
    "retire",
    "capture",
    "prepare",
    "commit",
    "resume",
    "expire",
    "kill in commit",
    "kill",
]
Conduct = Literal["reward", "fail", "slow", "held"]
Comeback = Literal["plain", "awaited", "damaged first", "killed again", "start over"]

ACTIVITY: Final[dict[Kind, float]] = {
    "begin": 2,
    "begin group": 2.5,
    "verify": 3,
    "verify group": 3,
    "settle": 1.5,
    "hang up": 0.7,
    "reconnect": 0.7,
    "twice": 0.7,
    "record": 2,
    "judge": 2,
    "release": 1,
    "retire": 0.8,
}
"""What rollouts, the judge and a controller that drops a rollout do, and how often."""
CONDUCTS: Final[tuple[Conduct, ...]] = ("reward", "reward", "fail", "slow", "held")
COMEBACKS: Final[tuple[Comeback, ...]] = ("plain", "plain", "awaited", "damaged first", "killed again", "start over")


@dataclass(frozen=True)
class Step:
    """One thing that is tried. `number` chooses whom it is about; `pause_ms` passes before it."""

    kind: Kind
    number: int
    pause_ms: int

    def choose(self, among: Sequence[Any]) -> Any:
        """One of these, the first more often than the last, so that groups fill up."""
        return among[min(self.number % len(among), self.number // 1000 % len(among))]

    def evenly(self, among: Sequence[Any]) -> Any:
        """One of these."""
        return among[self.number % len(among)]


@dataclass(frozen=True)
class Schedule:
    """One run: groups of `size` rollouts, settings of the server, and the steps."""

    seed: int
    size: int
    groups: int
    settings: dict[str, Any]
    steps: tuple[Step, ...]


def make(seed: int) -> Schedule:
    """The schedule of a seed."""
    chance = random.Random(seed)
    steps: list[Step] = []
    for _ in range(chance.choice((1, 2, 2, 3))):
        steps += _cycle(chance)
    settings = {
        "max_terminal_cohorts": chance.choice((1, 2, 100)),
        "cohort_result_ttl_s": chance.choice((None, 0.02, 3600.0)),
        "cohort_evaluation_timeout_s": chance.choice((20.0, 20.0, 0.5)),
        "judge_start": chance.choice(("all_members", "as_pairs_arrive")),
    }
    return Schedule(seed, chance.choice((2, 2, 3)), chance.choice((2, 3, 4)), settings, tuple(steps))


def _cycle(chance: random.Random) -> list[Step]:
    """Some training, perhaps an aborted checkpoint, a checkpoint, perhaps more training, a crash."""
    kinds = _activity(chance, 8, 20)
    if chance.random() < 0.35:
        kinds += ["prepare", *_activity(chance, 0, 5), chance.choice(("resume", "resume", "expire"))]
        kinds += _activity(chance, 0, 8)
    order: Sequence[Kind] = chance.choice(
        (("capture", "prepare", "commit"), ("prepare", "capture", "commit"), ("prepare", "commit", "capture"))
    )
    for kind in order:
        kinds += [*_activity(chance, 0, 4), kind]
        if kind == "prepare" and chance.random() < 0.5:
            kinds += ["verify group", "settle"]
    if chance.random() < 0.15:
        kinds[-1] = "kill in commit"
    elif chance.random() < 0.5:
        kinds += ["resume", *_activity(chance, 0, 10), "kill"]
    else:
        kinds += [*_activity(chance, 0, 3), "kill"]
    return [Step(kind, chance.randrange(10**6), chance.choice((0, 0, 0, 1, 2, 5, 15))) for kind in kinds]


def _activity(chance: random.Random, least: int, most: int) -> list[Kind]:
    return chance.choices(list(ACTIVITY), list(ACTIVITY.values()), k=chance.randint(least, most))
