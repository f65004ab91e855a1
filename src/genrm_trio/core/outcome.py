"""What a verification can end with: an outcome of its cohort, or a refusal of this one request.

Values only. How they look on the wire (status, body) is the web room's table.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"

RefusalCode = Literal[
    "superseded",
    "inconsistent_prompt",
    "different_response",
    "slot_closed",
    "too_busy",
    "shutting_down",
    "stale_attempt",
]
FailureCode = Literal["superseded", "collection_timeout", "evaluation_failed", "shutting_down"]


RESULT_FIELDS = frozenset(
    {
        "reward",
        "reward_score_raw",
        "reward_rubric_aggregate_valid",
        "reward_overall_score_raw",
        "reward_overall_score",
        "reward_length_adjustment",
        "genrm_parse_failure_rate_per_group",
        "genrm_rubric_parse_failure_rate_per_group",
        "genrm_input_tokens_per_comparison_mean",
        "genrm_input_tokens_per_comparison_p50",
        "genrm_input_tokens_per_comparison_p95",
        "genrm_output_tokens_per_comparison_mean",
        "genrm_output_tokens_per_comparison_p50",
        "genrm_output_tokens_per_comparison_p95",
        "genrm_output_tokens_total_per_group",
        "genrm_max_output_tokens_hit_rate_per_group",
    }
)
"""The numbers that a completed member's result stores, by their wire names (contract 5.6)."""


def unfit_field(fields: Mapping[str, JSON]) -> str | None:
    """The first field of a result that is not a finite number, or None. Only the reward must be there and not null."""
    for name in ("reward", *fields):
        value = fields.get(name)
        if not (_is_finite(value) or (value is None and name != "reward")):
            return name
    return None


def _is_finite(value: JSON) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


@dataclass(frozen=True, slots=True)
class Rewarded:
    """One member's own result: the stored numbers of contract 5.6, `reward` among them, by their wire names."""

    fields: Mapping[str, JSON]


@dataclass(frozen=True, slots=True)
class JudgeFailed:
    """The judge failed the whole cohort; every member gets the masked row with this text (contract 6)."""

    text: str


@dataclass(frozen=True, slots=True)
class CohortFailed:
    """The cohort ended without a verdict (contract 6, kind cohort). `latest_attempt` is set when superseded."""

    code: FailureCode
    text: str
    latest_attempt: int | None = None


Outcome: TypeAlias = Rewarded | JudgeFailed | CohortFailed


@dataclass(frozen=True, slots=True)
class Refused:
    """This request is refused; the cohort, if there is one, is as it was. `latest_attempt` is set when superseded."""

    code: RefusalCode
    text: str
    latest_attempt: int | None = None


@dataclass(frozen=True, slots=True)
class Waits:
    """The request is a waiter now; its answer comes by a later action.

    `cohort` is the cohort's key. `started` says that this member is the first of a new cohort.
    """

    cohort: str
    started: bool


@dataclass(frozen=True, slots=True)
class Told:
    """The request has its answer at once: a stored outcome."""

    outcome: Outcome


SubmitReply: TypeAlias = Waits | Told | Refused
Answer: TypeAlias = Outcome | Refused
