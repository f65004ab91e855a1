"""Who is who: episodes and their capture keys, groups, attempts and cohort keys.

Only parsing, formatting and comparing lives here. A rollout's *episode attempt* (it crashed and runs
again) and a group's *group attempt* (the group was asked anew) are different numbers and never mixed.
"""

import re
from dataclasses import dataclass

CAPTURE_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
MAX_ATTEMPT = 10**18 - 1
"""The largest attempt that an episode can have. Every episode up to it has a key that can be read again."""
MAX_PREFIX_ATTEMPT = 10**17
"""The largest attempt that a request can name itself.

Sessions are bound by requests, and each restore takes one attempt more: so whatever a commit names can be restored, and
that again, for longer than anybody will.
"""
_ATTEMPT_SUFFIX = re.compile(r"-a([1-9][0-9]*)", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class EpisodeId:
    """One try of one rollout.

    `rollout_id` must not itself end in `-a<positive N>`, or its key would name another episode;
    `attempt` counts from 0. Raises ValueError otherwise.
    """

    rollout_id: str
    attempt: int = 0

    def __post_init__(self) -> None:
        if _split_attempt(self.rollout_id)[1]:
            raise ValueError(f"rollout_id {self.rollout_id!r} must not end in '-a<positive number>'")
        if self.attempt < 0:
            raise ValueError(f"attempt must be 0 or more, not {self.attempt}")
        if self.attempt > MAX_ATTEMPT:
            raise ValueError(f"attempt must be at most {MAX_ATTEMPT}")

    @property
    def key(self) -> str:
        """The capture key that names this episode in a path (contract 2)."""
        return f"{self.rollout_id}-a{self.attempt}" if self.attempt else self.rollout_id

    @property
    def next(self) -> "EpisodeId":
        """The episode that a restart of this rollout runs as."""
        return EpisodeId(self.rollout_id, self.attempt + 1)


def _split_attempt(key: str) -> tuple[str, int]:
    head, mark, digits = key.rpartition("-a")
    if mark and head and _ATTEMPT_SUFFIX.fullmatch(mark + digits):
        return head, int(digits) if len(digits) <= len(str(MAX_ATTEMPT)) else MAX_ATTEMPT + 1
    return key, 0


def parse_capture_key(key: str) -> EpisodeId:
    """Read a capture key: `r` is attempt 0 of `r`, `r-a2` attempt 2; `r-a0` and `r-a01` are ids of their own.

    Raises ValueError when the text is not in the grammar of contract 2, or names a rollout id that is not allowed.
    """
    if not CAPTURE_KEY.fullmatch(key):
        raise ValueError(f"capture key {key[:80]!r} must match {CAPTURE_KEY.pattern}")
    return EpisodeId(*_split_attempt(key))


@dataclass(frozen=True, slots=True)
class CohortId:
    """Names one cohort. `group` is None for a cohort without a group id; `attempt` is the group attempt.

    `key` is the text of contract 5.3; two cohorts are the same if and only if their keys are equal.
    """

    key: str
    group: str | None
    attempt: int


def group_cohort_id(group: str, attempt: int, suffix: str = "") -> CohortId:
    """The cohort of an attempt of a group; `suffix` carries the baseline and rubric parts of contract 5.3."""
    return CohortId(f"group_id::{group}::group_attempt::{attempt}{suffix}", group, attempt)


def ungrouped_cohort_id(
    prompt_digest: str,
    attempt: int,
    *,
    task_index: int | None = None,
    prompt_id: str | None = None,
    suffix: str = "",
) -> CohortId:
    """The cohort of a request without a group id: by task index, else by prompt id, else by the prompt alone.

    `prompt_digest` is shown without the suffix that `suffix` repeats at the key's end.
    """
    if task_index is not None:
        head = f"task_idx::{task_index}::{prompt_digest}"
    elif prompt_id is not None:
        head = f"prompt_id::{prompt_id}::{prompt_digest}"
    else:
        head = prompt_digest
    return CohortId(f"{head}::group_attempt::{attempt}{suffix}", None, attempt)


def cohort_key_suffix(*, baseline_sha256: str | None = None, rubric_ids: tuple[int, ...] | None = None) -> str:
    """What both the cohort key and the prompt digest gain in `fixed_baseline` and in rubric mode (contract 5.3)."""
    baseline = f":{baseline_sha256}" if baseline_sha256 is not None else ""
    rubrics = f":rubrics:{','.join(str(i) for i in rubric_ids)}" if rubric_ids is not None else ""
    return baseline + rubrics
