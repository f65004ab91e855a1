"""A cohort's value: its phase, members, waiters and verdict, and the table of its phases.

Only the value and small readings live here; the actions that change it are the Registry's.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from genrm_trio.core.identity import CohortId
from genrm_trio.core.outcome import CohortFailed, JudgeFailed, Outcome, Rewarded


class Phase(StrEnum):
    """Where a cohort is in its life. `held` is judged but not yet published."""

    COLLECTING = "collecting"
    EVALUATING = "evaluating"
    HELD = "held"
    COMPLETED = "completed"
    FAILED = "failed"


TRANSITIONS: Mapping[tuple[Phase, str], Phase] = {
    (Phase.COLLECTING, "last member"): Phase.EVALUATING,
    (Phase.COLLECTING, "expire_collection"): Phase.FAILED,
    (Phase.EVALUATING, "judged"): Phase.HELD,
    (Phase.EVALUATING, "judge_failed"): Phase.HELD,
    (Phase.HELD, "publish rewards"): Phase.COMPLETED,
    (Phase.HELD, "publish judge failure"): Phase.FAILED,
    (Phase.COLLECTING, "fail"): Phase.FAILED,
    (Phase.EVALUATING, "fail"): Phase.FAILED,
    (Phase.HELD, "fail"): Phase.FAILED,
    (Phase.COLLECTING, "superseded"): Phase.FAILED,
    (Phase.EVALUATING, "superseded"): Phase.FAILED,
    (Phase.HELD, "superseded"): Phase.FAILED,
}
"""Every step of a cohort's phase; a step that is not here is a defect. The state diagram is made from it."""

ACTIVE = frozenset({Phase.COLLECTING, Phase.EVALUATING, Phase.HELD})
TERMINAL = frozenset({Phase.COMPLETED, Phase.FAILED})


@dataclass(frozen=True, slots=True)
class Answer:
    """What identifies one answer of a rollout.

    `digests` maps scheme names to the digest under that scheme. `raw` is a digest of the bytes as received,
    a short cut that proves equality but not difference; empty when unknown, as after a restore.
    """

    digests: Mapping[str, str]
    raw: str = ""


@dataclass(slots=True)
class Member:
    """One slot that is taken.

    digest, scheme: the answer's identity; the comparison is done under the scheme it was saved with.
    payload: what the judge needs, opaque here; None from the verdict on, so that tombstones hold no bodies.
    result: set by the verdict; only told once the cohort is completed.
    pending: restored, and no `/verify` was answered with the restored outcome yet. Some restored session backs it.
    """

    index: int
    digest: str
    scheme: str
    raw: str = ""
    payload: object = None
    result: Rewarded | None = None
    pending: bool = False

    def holds(self, answer: Answer) -> bool:
        """Whether `answer` is the answer that holds this slot."""
        if self.raw and self.raw == answer.raw:
            return True
        return answer.digests.get(self.scheme) == self.digest


@dataclass(slots=True)
class Cohort:
    """All that is known of one cohort.

    members: by rollout index, at most `size` of them; never empty while the cohort is retained.
    waiters: each waiting request's number, with the rollout index it asked for. Empty once terminal, but for
        requests that wait for admission to open (contract 11.2).
    sessions: every open session that backs a member, with that member's index; exactly the sessions whose
        record names this cohort.
    failure: why it failed; in phase `held` the judge failure that waits to be published.
    terminal_at: when it became completed or failed; its age counts from there.
    """

    id: CohortId
    size: int
    prompt: str
    created_at: float
    phase: Phase = Phase.COLLECTING
    members: dict[int, Member] = field(default_factory=dict)
    waiters: dict[int, int] = field(default_factory=dict)
    sessions: dict[str, int] = field(default_factory=dict)
    failure: JudgeFailed | CohortFailed | None = None
    terminal_at: float = 0.0

    @property
    def active(self) -> bool:
        """Whether it still awaits its outcome."""
        return self.phase in ACTIVE

    @property
    def by_index(self) -> list[Member]:
        """The members in the order of their rollout index."""
        return [self.members[i] for i in sorted(self.members)]

    def step(self, name: str) -> None:
        """Move to the next phase; raises NotEnabled when the table has no such step."""
        try:
            self.phase = TRANSITIONS[self.phase, name]
        except KeyError:
            raise NotEnabled(f"cohort {self.id.key!r} is {self.phase}: no step {name!r}") from None

    def told(self, index: int) -> Outcome:
        """The stored outcome of a member of a terminal cohort."""
        if self.failure is not None:
            return self.failure
        result = self.members[index].result
        assert result is not None, "a completed cohort has a result for each member"
        return result

    def backers(self, index: int) -> Iterator[str]:
        """The open sessions that back this member."""
        return (session for session, backed in self.sessions.items() if backed == index)

    def held_by(self, index: int) -> bool:
        """Whether a waiter or an open session holds this member."""
        return index in self.waiters.values() or index in self.sessions.values()


class NotEnabled(Exception):
    """An action was called whose guard does not hold: a defect of the caller, not of a client."""
