"""What a judge is asked, what it says, and how it fails: the protocol that every backend implements.

Only types live here. How verdicts are read is in `verdict`, who gets which slot in `slots`, how faults of a
network are classed in `faults`.
"""

from dataclasses import dataclass
from typing import Protocol

from genrm_trio.judging.slots import Ticket
from genrm_trio.judging.text import Turn, scrub
from genrm_trio.judging.verdict import Verdict


class JudgeError(Exception):
    """A comparison has no verdict and will get none (contract 6, kind `judge`).

    `text` is plain valid Unicode and carries no secret; it is shown to clients.
    """

    def __init__(self, text: str) -> None:
        self.text = scrub(text)
        super().__init__(self.text)


@dataclass(frozen=True, slots=True)
class Ask:
    """One comparison to make (contract 7.5).

    `conversation` is the history, `response_1` and `response_2` the two texts in the order in which the judge
    sees them, `principle` the effective one (None: none is sent), `rubric_ids` the expected ids in rubric mode
    (None outside it). `pair` and `judge_index` name the comparison in error texts.
    """

    conversation: tuple[Turn, ...]
    response_1: str
    response_2: str
    principle: str | None
    rubric_ids: tuple[int, ...] | None
    pair: tuple[int, int]
    judge_index: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one comparison, summed over its attempts (contract 7.5).

    `hit_max` tells that some attempt ended incomplete because it reached `max_output_tokens`.
    """

    input_tokens: float
    output_tokens: float
    hit_max: bool


@dataclass(frozen=True, slots=True)
class Answered:
    """What the judge said to one `Ask`, in the order of the ask: un-flipping is the caller's.

    `overall` and `rubric` are None when that part could not be read (`rubric` always outside rubric mode);
    what an unreadable verdict does is decided by the caller (contract 14.2). `usage` is None when no attempt
    reported any. `text` is the answer the verdicts were read from, "" when no attempt gave a usable one
    after an earlier one did not parse.
    """

    overall: Verdict | None
    rubric: Verdict | None
    usage: Usage | None
    text: str
    attempts: int = 1


class Judge(Protocol):
    """A judge that compares two answers."""

    async def compare(self, ask: Ask, slot: Ticket) -> Answered:
        """Make one comparison, holding a slot of `slot` during each call and no longer.

        Raises JudgeError when there is no verdict to be had. Bounded by the caller's deadline, which
        it reads with `trio.current_effective_deadline()`.
        """
        ...

    async def aclose(self) -> None:
        """Give back connections and files; idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class CallSeen:
    """One exchange with an endpoint that ended: `kind` is `answered` or the fault's kind, time in seconds."""

    endpoint: str
    kind: str
    seconds: float
    status: int | None


@dataclass(frozen=True, slots=True)
class FaultSeen:
    """One fault of a comparison; `first` tells that the cohort has not met this kind before, so log it.

    `action` is what the table in `faults` says about the kind, `cohort` the ticket's label, `text` scrubbed,
    bounded and without secrets. `features` names what of the request is refused, and counts as part of the kind.
    """

    kind: str
    action: str
    first: bool
    cohort: str
    endpoint: str
    pair: tuple[int, int]
    judge_index: int
    text: str
    features: str = ""


class Observer(Protocol):
    """Who counts calls and logs faults. Both methods are called on the event loop and must not block."""

    def on_call(self, call: CallSeen) -> None:
        """Count one exchange."""
        ...

    def on_fault(self, fault: FaultSeen) -> None:
        """Count one fault, and log it when it is the cohort's first of its kind."""
        ...


class Unobserved:
    """An observer that does nothing."""

    def on_call(self, call: CallSeen) -> None:
        """Do nothing."""

    def on_fault(self, fault: FaultSeen) -> None:
        """Do nothing."""
