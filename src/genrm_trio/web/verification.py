"""From a right `/verify` body to what the runtime is asked: checks two to five of contract 5.2, keys and digests.

Which answer came in is settled here as well. Its digest is computed at most once, and not at all for a retry that
repeats the very bytes of the answer that holds the slot.
"""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

from genrm_trio.core.cohort import Answer as AnswerId
from genrm_trio.core.identity import CohortId, cohort_key_suffix, group_cohort_id, ungrouped_cohort_id
from genrm_trio.core.outcome import JSON
from genrm_trio.judging.digest import SCHEME, DigestError, baseline_digest, prompt_digest, response_digest
from genrm_trio.judging.text import conversation
from genrm_trio.runtime.evaluation import Contender
from genrm_trio.runtime.server import Policy
from genrm_trio.web.errors import InvalidBody, Problem, Reply, detail
from genrm_trio.web.wire import Body, Echo, VerifyRequest, read_verify


@dataclass(frozen=True, slots=True)
class Identified:
    """A `/verify` with its coordinates.

    prompt: the prompt digest with its suffixes. raw: a digest of the response's bytes. response: those bytes.
    attempt_omitted: a group id came without its attempt, which was taken as 0.
    """

    cohort: CohortId
    index: int
    prompt: str
    raw: str
    response: memoryview
    contender: Contender
    attempt_omitted: bool
    echo: Echo


class VerifyReader:
    """Reads `/verify` bodies under one policy. `read` is pure and may run in a thread."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    @property
    def alone(self) -> bool:
        """Whether every rollout stands alone and gets the default score without a judge (contract 5.2, third)."""
        return not self._policy.limits.fixed_baseline and self._policy.limits.cohort_size <= 1

    def read(self, body: Body) -> Identified | Echo | Reply:
        """Read and check one body: where it belongs, only its echo when it stands alone, or its refusal.

        Raises InvalidBody.
        """
        asked = read_verify(body)
        if self._policy.limits.rubrics and not asked.rubric_ids:
            return _mistake("expected_rubric_ids must be a non-empty list of integers in rubric mode")
        if self.alone:
            return asked.echo
        size = self._policy.limits.cohort_size
        if asked.rollout_index is None or not 0 <= asked.rollout_index < size:
            given = "is missing" if asked.rollout_index is None else f"is {_shown(asked.rollout_index)}"
            return _mistake(f"_ng_rollout_index {given}; it must be an integer from 0 to {size - 1}")
        if self._policy.limits.fixed_baseline and not _is_text(asked.baseline):
            return _mistake(
                "responses_create_params.metadata.baseline_response must be a non-blank string in fixed_baseline mode"
            )
        try:
            return self._identified(asked, asked.rollout_index)
        except DigestError as error:
            loc = ("body", "responses_create_params", "input")  # the other texts of a digest always have one
            raise InvalidBody(Problem("value_error", loc, str(error))) from None

    def _identified(self, asked: VerifyRequest, index: int) -> Identified:
        rubric_ids = asked.rubric_ids if self._policy.limits.rubrics else None
        baseline = asked.baseline if self._policy.limits.fixed_baseline else None
        suffix = cohort_key_suffix(
            baseline_sha256=None if baseline is None else baseline_digest(baseline), rubric_ids=rubric_ids
        )
        plain = prompt_digest(asked.prompt, asked.principle)
        return Identified(
            cohort=_cohort_id(asked, plain, suffix),
            index=index,
            prompt=plain + suffix,
            raw=sha256(asked.response).hexdigest(),
            response=asked.response,
            contender=Contender(conversation(asked.prompt), asked.answer, asked.principle, rubric_ids, baseline),
            attempt_omitted=asked.group_id is not None and not asked.attempt_given,
            echo=asked.echo,
        )


def default_fields(policy: Policy) -> dict[str, JSON]:
    """The stored numbers of a rollout that stands alone (contract 5.2, third)."""
    score = policy.scoring.default_score
    return {
        "reward": score,
        "reward_score_raw": score,
        "reward_rubric_aggregate_valid": score if policy.limits.rubrics else None,
        "reward_overall_score_raw": score,
        "reward_overall_score": score,
        "reward_length_adjustment": 0.0,
    }


def answer_id(asked: Identified, known: AnswerId | None, digests: dict[str, str]) -> AnswerId | None:
    """What identifies the answer beside the one that holds its slot now; None while a digest is missing."""
    if known is not None and known.raw == asked.raw:
        return known
    if needed_schemes(known) <= digests.keys():
        return AnswerId(digests, asked.raw)
    return None


def needed_schemes(known: AnswerId | None) -> set[str]:
    """The digests to have: our own scheme's, and that of the answer to compare with."""
    return {SCHEME, *(known.digests if known is not None else ())}


def digest_under(schemes: set[str]) -> Callable[[memoryview], dict[str, str]]:
    """A function that digests a response under these schemes; it raises InvalidBody, and may run in a thread."""

    def digest(response: memoryview) -> dict[str, str]:
        raw = bytes(response)
        try:
            return {scheme: response_digest(raw, scheme) for scheme in sorted(schemes)}
        except DigestError as error:
            raise InvalidBody(Problem("value_error", ("body", "response"), str(error))) from None

    return digest


def _cohort_id(asked: VerifyRequest, plain_prompt: str, suffix: str) -> CohortId:
    if asked.group_id is not None:
        return group_cohort_id(asked.group_id, asked.group_attempt, suffix)
    return ungrouped_cohort_id(
        plain_prompt,
        asked.group_attempt,
        task_index=asked.task_index,
        prompt_id=asked.prompt_id,
        suffix=suffix,
    )


def _mistake(text: str) -> Reply:
    return detail(422, "invalid_request", text)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _shown(value: int) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
