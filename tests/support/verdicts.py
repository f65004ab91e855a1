"""A judge for whole cohorts: what it says tells whose answer was judged, and in which judging.

An answer's text names its group, attempt, index, draft and worth. A reward is that worth plus a thousandth for each
earlier judging of the cohort, so a sibling's reward and a second judging both show in the number.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

import trio
from tests.support.fake_judge import Call, FakeJudge, Reply, verdict_text

EPOCH: Final = 0.001
"""What each earlier judging of a cohort adds to its rewards."""
_ANSWER = re.compile(
    r"group=(?P<group>\S+) attempt=(?P<attempt>\d+) index=(?P<index>\d+) draft=(?P<draft>\d+) worth=(?P<worth>[0-9.]+)"
)

Manner = Literal["reward", "fail"]


@dataclass(frozen=True, order=True)
class AnswerMark:
    """Which answer a text is: `draft` counts the answers that one rollout gave anew."""

    group: str
    attempt: int
    index: int
    draft: int = 0

    @property
    def worth(self) -> float:
        """What the judge thinks of it: from 1 to 5, and no two answers of one cohort are worth the same."""
        return round(1.05 + 0.4 * (self.index % 9) + 0.02 * (self.draft % 15), 2)

    @property
    def text(self) -> str:
        return (
            f"group={self.group} attempt={self.attempt} index={self.index} draft={self.draft} "
            f"worth={self.worth:.2f} \u2014 the answer itself"
        )


def read_mark(text: str) -> AnswerMark:
    """The answer that a text names."""
    found = _ANSWER.search(text)
    assert found is not None, f"not an answer of these tests: {text[:200]!r}"
    return AnswerMark(found["group"], int(found["attempt"]), int(found["index"]), int(found["draft"]))


def epoch_of(reward: float, mark: AnswerMark) -> int | None:
    """In which judging of its cohort an answer got this reward, from 0; None when it is not this answer's reward."""
    epoch = round((reward - mark.worth) / EPOCH)
    return epoch if 0 <= epoch < 20 and abs(mark.worth + epoch * EPOCH - reward) < EPOCH / 100 else None


@dataclass
class Conduct:
    """How one cohort is judged. `hold`: calls wait until it is set; `delay_s`: then so much longer."""

    manner: Manner = "reward"
    delay_s: float = 0.0
    hold: trio.Event | None = None


@dataclass
class CohortJudge:
    """The judge of a test. It outlives the servers that are killed.

    conduct: by group; whoever is not there gets rewards at once. asked: how often each ordered pair was asked for
    since the last crash. judgings: for each (group, attempt) how many judgings began before it. watch: hears of each
    pair that is asked for, and the how manieth time it is.
    """

    conduct: defaultdict[str, Conduct] = field(default_factory=lambda: defaultdict(Conduct))
    asked: Counter[tuple[AnswerMark, AnswerMark]] = field(default_factory=Counter)
    judgings: Counter[tuple[str, int]] = field(default_factory=Counter)
    watch: Callable[[AnswerMark, AnswerMark, int], None] | None = None

    def __post_init__(self) -> None:
        self.server = FakeJudge(self._script)

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def calls(self) -> int:
        """How many comparisons were asked for, ever."""
        return len(self.server.calls)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on what was asked holds."""
        await self.server.until(condition)

    def calls_about(self, group: str) -> int:
        """How many comparisons of this group were asked for, ever."""
        return sum(read_mark(call.answers[0]).group == group for call in self.server.calls)

    def asked_all(self, group: str, attempt: int, size: int) -> bool:
        """Whether each pair of a circular cohort was asked for since the last crash."""
        pairs = {(a.index, b.index) for a, b in self.asked if (a.group, a.attempt) == (group, attempt)}
        return len({frozenset(pair) if size > 2 else pair for pair in pairs}) == size

    def crashed(self) -> None:
        """The server is dead: whatever it asks from now on belongs to a new judging."""
        begun: Counter[tuple[str, int]] = Counter()
        for (first, _), count in self.asked.items():
            begun[first.group, first.attempt] = max(begun[first.group, first.attempt], count)
        self.judgings.update(begun)
        self.asked.clear()

    def hold(self, group: str) -> trio.Event:
        """Let the calls of a group wait until the event is set."""
        event = self.conduct[group].hold = trio.Event()
        return event

    def _script(self, call: Call) -> Reply:
        pair = read_mark(call.answers[0]), read_mark(call.answers[1])
        conduct = self.conduct[pair[0].group]
        self.asked[pair] += 1
        if self.watch is not None:
            self.watch(*pair, self.asked[pair])
        return Reply(**self._says(pair, conduct.manner), delay_s=conduct.delay_s, hold=conduct.hold)  # type: ignore[arg-type]  # members of a Reply

    def _says(self, pair: tuple[AnswerMark, AnswerMark], manner: Manner) -> dict[str, object]:
        epoch = self._epoch(pair[0])
        if manner == "fail":
            return {"status": 400, "body": {"error": {"message": f"no verdict on {pair[0].group}, judging {epoch}"}}}
        first, second = (round(mark.worth + epoch * EPOCH, 3) for mark in pair)
        return {"text": verdict_text(first, second, 1 if first > second else 6)}

    def _epoch(self, of: AnswerMark) -> int:
        """How many judgings of this cohort there were before this one, whose asks its most asked pair had as well."""
        counts = [n for (a, _), n in self.asked.items() if (a.group, a.attempt) == (of.group, of.attempt)]
        return self.judgings[of.group, of.attempt] + max(counts) - 1
