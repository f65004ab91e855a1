"""What must hold of all that clients saw, whatever happened in between. Knows no server, only replies and the judge.

Facts are outcomes that some rollout was told and that the surviving history holds. A crash takes the history back
to what was captured and committed, and the facts with it.
"""

from dataclasses import dataclass, field
from typing import Final

from tests.support.gym import Outcome
from tests.support.peer import Reply
from tests.support.verdicts import AnswerMark, epoch_of

AT_ONCE_S: Final = 4.0
"""A replay takes milliseconds; a stall takes the collection timeout, which is longer than this."""

CohortName = tuple[str, int]
"""A group and its attempt."""


class Violation(AssertionError):
    """A promise was broken; the text says which, and by what."""


@dataclass
class History:
    """What clients saw.

    facts: what was told, by answer. settled: cohorts whose outcome some client was told, or was committed: they are
    not judged again. disturbed: cohorts of which a rollout was retired or started over. sent: the answers sent.
    """

    facts: dict[AnswerMark, Outcome] = field(default_factory=dict)
    settled: set[CohortName] = field(default_factory=set)
    disturbed: set[CohortName] = field(default_factory=set)
    sent: set[AnswerMark] = field(default_factory=set)

    def copy(self) -> "History":
        return History(dict(self.facts), set(self.settled), set(self.disturbed), set(self.sent))


@dataclass
class Checker:
    """The rules, and what they are held against.

    history: what the surviving history holds. sent_ever: all answers that were sent, in lost histories, too.
    carried: cohorts that were settled when the last crash was over. begun: while admission is surely closed, the
    cohorts that the judge had been asked about when it closed.
    """

    history: History = field(default_factory=History)
    sent_ever: set[AnswerMark] = field(default_factory=set)
    carried: set[CohortName] = field(default_factory=set)
    begun: set[CohortName] | None = None
    told_count: int = 0
    replays: int = 0

    # -- what happens ----------------------------------------------------------------------------------

    def sent(self, mark: AnswerMark) -> None:
        """A client sent this answer."""
        self.history.sent.add(mark)
        self.sent_ever.add(mark)

    def judged(self, first: AnswerMark, second: AnswerMark, times: int) -> None:
        """The judge was asked about two answers, so many times since the last crash.

        A first time may be a straggler of a judging that has failed meanwhile, unless the outcome is from before.
        """
        cohort = cohort_of(first)
        if cohort in self.history.settled and (times > 1 or cohort in self.carried):
            raise Violation(f"judged twice: the outcome of {cohort_of(first)} was there, now {first} and {second}")

    def knows(self, mark: AnswerMark) -> bool:
        """Whether the server has this answer's outcome, if the session that sent it is open.

        Of a disturbed cohort only those who were told can be sure: a retired answer may stand in their slot.
        """
        cohort = cohort_of(mark)
        return cohort in self.history.settled and (cohort not in self.history.disturbed or mark in self.history.facts)

    def told(self, mark: AnswerMark, outcome: Outcome, seconds: float, *, must_be_known: bool) -> None:
        """A client was told an outcome, after so long. `must_be_known`: the server had it when it was asked."""
        self.told_count += 1
        self.replays += must_be_known
        if self.begun is not None and cohort_of(mark) not in self.begun | self.history.settled:
            raise Violation(f"published while admission was closed: {mark} was told {outcome}")
        known = self.history.facts.setdefault(mark, outcome)
        if known != outcome:
            raise Violation(f"two outcomes for one answer: {mark} was told {known}, now {outcome}")
        if outcome.reward is not None and epoch_of(outcome.reward, mark) is None:
            raise Violation(f"not its own outcome: {mark} of worth {mark.worth} was told {outcome}")
        for mate, fact in self.history.facts.items():
            if cohort_of(mate) == cohort_of(mark) and verdict_of(mate, fact) != verdict_of(mark, outcome):
                raise Violation(f"siblings disagree: {mate} was told {fact}, {mark} {outcome}")
        if must_be_known and seconds > AT_ONCE_S:
            raise Violation(f"waited {seconds:.1f} s for an outcome that was there: {mark}")
        self.history.settled.add(cohort_of(mark))

    def refused(self, mark: AnswerMark, reply: Reply, *, must_be_known: bool) -> None:
        """A client got no outcome. Only what the history explains is no violation."""
        cohort = cohort_of(mark)
        explained = {
            (409, "different_response"): any(same_slot(mark, other) for other in self.history.sent - {mark}),
            (409, "slot_closed"): cohort in self.history.disturbed,
            (503, "collection_timeout"): cohort in self.history.disturbed,
        }
        if must_be_known or not explained.get((reply.status, reply.code or ""), False):
            why = " although its outcome was there" if must_be_known else ""
            raise Violation(f"refused{why}: {mark} got {reply.status} {reply.body[:300]!r}")

    def ghost(self, mark: AnswerMark, reply: Reply) -> None:
        """A request from before the crash came through after its rollout was restored."""
        if (reply.status, reply.code) != (409, "stale_attempt"):
            raise Violation(f"a request from before the crash got {reply.status} {reply.body[:300]!r}: {mark}")

    def retired(self, mark: AnswerMark, reply: Reply) -> None:
        """A request whose rollout was retired while it waited: it is refused, or its answer was under way."""
        if reply.status != 200 and (reply.status, reply.code) != (409, "stale_attempt"):
            self.refused(mark, reply, must_be_known=False)

    def disturb(self, cohort: CohortName) -> None:
        """A rollout of this cohort was retired or starts over: its slot may be free, gone, or stay as it was."""
        self.history.disturbed.add(cohort)
        self.history.settled.discard(cohort)

    def back_to(self, history: History) -> None:
        """After a crash the history is what it was at the checkpoint."""
        self.history = history.copy()
        self.carried = set(history.settled)

    def lost(self, mark: AnswerMark) -> None:
        """The rollout that sent this is no more, and what it was told went with it."""
        self.disturb(cohort_of(mark))
        for other in [other for other in self.history.facts if same_slot(mark, other)]:
            del self.history.facts[other]

    def slot_is_free(self, mark: AnswerMark) -> None:
        """Whoever held this member's slot was dropped with all that was restored of it."""
        self.history.sent = {other for other in self.history.sent if not same_slot(mark, other)}

    def next_draft(self, mark: AnswerMark) -> int:
        """A draft for this slot that was never sent."""
        return max((other.draft for other in self.sent_ever if same_slot(mark, other)), default=-1) + 1

    # -- the end ---------------------------------------------------------------------------------------

    def left_over(self, metrics: dict[str, float], cap: int) -> None:
        """At the end everybody is done: nothing may be held, open or kept beyond the cap, but the last one's group."""
        empty = ("open_sessions", "waiting_verifies", "held_members", "judge_calls_in_flight", "judge_calls_waiting")
        left = {name: metrics[name] for name in empty if metrics[name]}
        cohorts = {name: count for name, count in metrics.items() if name.startswith("cohorts{") and count}
        if left or sum(cohorts.values()) > cap or metrics["groups"] > cap + 1 or not metrics["admission_open"]:
            raise Violation(f"left over at the end: {left} {cohorts} groups={metrics['groups']} with a cap of {cap}")


def cohort_of(mark: AnswerMark) -> CohortName:
    """The cohort that an answer belongs to."""
    return mark.group, mark.attempt


def same_slot(mark: AnswerMark, other: AnswerMark) -> bool:
    """Whether two answers are of one member of one cohort."""
    return cohort_of(mark) == cohort_of(other) and mark.index == other.index


def verdict_of(mark: AnswerMark, outcome: Outcome) -> tuple[str, object]:
    """What all members of a cohort have in common: in which judging it was, and what kind of outcome."""
    if outcome.reward is not None:
        return "reward", epoch_of(outcome.reward, mark)
    return "failure", outcome.failure
