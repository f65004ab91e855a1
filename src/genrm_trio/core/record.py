"""A session's exported state: writing it, reading it back, and building a whole state aside from many of them.

What is not known is refused: unknown fields, digest schemes, results. `Rebuild` is filled record by record, so
that a caller can do it in slices; nothing of it is seen before the Registry puts it in place.
"""

import re

from genrm_trio.core.cohort import Cohort, Member, Phase
from genrm_trio.core.identity import MAX_ATTEMPT, EpisodeId, group_cohort_id
from genrm_trio.core.outcome import JSON, RESULT_FIELDS, CohortFailed, JudgeFailed, Rewarded, unfit_field
from genrm_trio.core.sessions import Session
from genrm_trio.core.state import Group, Limits, State, Watermark

DIGEST_SCHEMES = frozenset({"genrm-trio-1", "json-ascii-sha256"})
"""The schemes under which an answer's digest may have been saved (contract 7.2, 14.8)."""

_PROMPT = re.compile(
    r"(?P<prompt>[0-9a-f]{64})(?P<suffix>(?P<baseline>:[0-9a-f]{64})?(?P<rubrics>:rubrics:-?[0-9]+(?:,-?[0-9]+)*)?)"
)
_COMMON = (
    "group_id",
    "group_attempt",
    "newest_attempt",
    "rollout_index",
    "prompt_digest",
    "response_digest",
    "response_digest_scheme",
)
_REWARDED = frozenset({*_COMMON, "result"})
_JUDGE_FAILED = frozenset({*_COMMON, "failure", "failure_kind"})


class StateRefused(Exception):
    """A record cannot be restored; the text names the session and the field. Nothing is installed."""


def session_state(cohort: Cohort, index: int, mark: Watermark) -> JSON:
    """The state of an open session that backs this member: its own outcome, or empty when there is none to keep.

    There is one when the cohort is completed, judge-failed, or judged and held (contract 11.3, 14.7).
    """
    if cohort.active and cohort.phase is not Phase.HELD:
        return {}
    if isinstance(cohort.failure, CohortFailed):
        return {}
    member = cohort.members[index]
    state: dict[str, JSON] = {
        "group_id": cohort.id.group,
        "group_attempt": cohort.id.attempt,
        "newest_attempt": mark.attempt,
        "rollout_index": index,
        "prompt_digest": cohort.prompt,
        "response_digest": member.digest,
        "response_digest_scheme": member.scheme,
    }
    if cohort.failure is not None:
        return state | {"failure_kind": "judge", "failure": cohort.failure.text}
    assert member.result is not None, "a judged member has its result"
    return state | {"result": dict(member.result.fields)}


class Rebuild:
    """A state built aside from the records of a checkpoint.

    Ages and last use start at `now`; the order of eviction and of watermarks is that of the records. Sessions
    are bound to the next attempt of their episode and count as unclaimed.
    """

    def __init__(self, limits: Limits, now: float) -> None:
        self.state = State(limits)
        self.source: list[JSON] = []
        self._now = now
        self._seen: set[str] = set()

    def add(self, episode: EpisodeId, session_id: str, state: JSON) -> None:
        """Take one record. Raises StateRefused when it is unknown, damaged, or disagrees with an earlier one."""
        if session_id in self._seen:
            raise StateRefused(f"session {session_id!r} occurs twice")
        if episode.attempt >= MAX_ATTEMPT:
            raise StateRefused(f"session {session_id!r}: attempt {episode.attempt} has no next one")
        self._seen.add(session_id)
        session = Session(session_id, episode.next, self._now, restored=True, claimed=False)
        try:
            if state != {}:
                self._back(session, state)
        except _Bad as bad:
            raise StateRefused(f"session {session_id!r}: {bad}") from None
        self.state.sessions.add(session)
        self.source.append({"session": session_id, "episode": episode.key, "state": state})

    def _back(self, session: Session, state: JSON) -> None:
        saved = _parse(state, self.state.limits)
        group = self._group(saved)
        cohort = group.cohorts.get(saved.cohort_key)
        if cohort is None:
            cohort = self._cohort(group, saved)
        elif cohort.failure != saved.failure:
            raise _Bad("its cohort's outcome differs from that of another session")
        member = saved.member()
        known = cohort.members.setdefault(saved.index, member)
        if known is not member and known != member:
            raise _Bad(f"rollout_index {saved.index} of group {saved.group!r} differs from another session's")
        cohort.sessions[session.session_id] = saved.index
        session.member = (cohort.id.key, saved.index)

    def _group(self, saved: "_Saved") -> Group:
        group = self.state.groups.get(saved.group)
        if group is None:
            mark = Watermark(saved.newest, saved.prompt, self._now, len(self.state.groups) + 1, installed=True)
            group = self.state.groups[saved.group] = Group(mark)
            self.state._uses = mark.used
        if group.watermark.prompt != saved.prompt:
            raise _Bad(f"prompt_digest differs from another session's of group {saved.group!r}")
        if group.watermark.attempt != saved.newest:
            raise _Bad(f"newest_attempt differs from another session's of group {saved.group!r}")
        return group

    def _cohort(self, group: Group, saved: "_Saved") -> Cohort:
        cohort_id = group_cohort_id(saved.group, saved.attempt, saved.suffix)
        cohort = Cohort(cohort_id, self.state.limits.cohort_size, saved.prompt, self._now)
        cohort.phase = Phase.COMPLETED if saved.failure is None else Phase.FAILED
        cohort.failure = saved.failure
        cohort.terminal_at = self._now
        group.cohorts[cohort_id.key] = cohort
        self.state.cohorts[cohort_id.key] = cohort
        self.state.terminal[cohort_id.key] = None
        return cohort


class _Bad(Exception):
    """One field of a state is wrong."""


class _Saved:
    """A parsed state that carries an outcome."""

    def __init__(self, fields: dict[str, JSON], limits: Limits) -> None:
        self.group = _text(fields, "group_id")
        self.attempt = _count(fields, "group_attempt")
        self.newest = _count(fields, "newest_attempt")
        self.index = _count(fields, "rollout_index")
        self.prompt = _text(fields, "prompt_digest")
        self.digest = _text(fields, "response_digest")
        self.scheme = _text(fields, "response_digest_scheme")
        self.result = _result(fields["result"]) if "result" in fields else None
        self.failure = JudgeFailed(_text(fields, "failure", empty=True)) if "failure" in fields else None
        if self.newest < self.attempt:
            raise _Bad(f"newest_attempt {self.newest} is below group_attempt {self.attempt}")
        if self.index >= limits.cohort_size:
            raise _Bad(f"rollout_index {self.index} is not below num_rollouts_per_prompt {limits.cohort_size}")
        if self.scheme not in DIGEST_SCHEMES:
            raise _Bad(f"response_digest_scheme {self.scheme!r} is unknown; known are {sorted(DIGEST_SCHEMES)}")
        if fields.get("failure_kind", "judge") != "judge":
            raise _Bad(f"failure_kind {fields['failure_kind']!r} is unknown; known is 'judge'")
        self.suffix = _suffix(self.prompt, limits)

    @property
    def cohort_key(self) -> str:
        return group_cohort_id(self.group, self.attempt, self.suffix).key

    def member(self) -> Member:
        return Member(self.index, self.digest, self.scheme, result=self.result, pending=True)


def _parse(state: JSON, limits: Limits) -> _Saved:
    if not isinstance(state, dict):
        raise _Bad("state must be an object")
    expected = _JUDGE_FAILED if "failure" in state else _REWARDED
    unknown, missing = sorted(set(state) - expected), sorted(expected - set(state))
    if unknown:
        raise _Bad(f"unknown field {unknown[0]!r}")
    if missing:
        raise _Bad(f"field {missing[0]!r} is missing")
    return _Saved(state, limits)


def _text(fields: dict[str, JSON], name: str, *, empty: bool = False) -> str:
    value = fields[name]
    if not isinstance(value, str) or not (value or empty):
        raise _Bad(f"{name} must be {'a' if empty else 'a non-empty'} string")
    return value


def _count(fields: dict[str, JSON], name: str) -> int:
    value = fields[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _Bad(f"{name} must be an integer of 0 or more")
    return value


def _result(value: JSON) -> Rewarded:
    if not isinstance(value, dict):
        raise _Bad("result must be an object")
    unknown = sorted(set(value) - RESULT_FIELDS)
    if unknown:
        raise _Bad(f"result has the unknown field {unknown[0]!r}")
    unfit = unfit_field(value)
    if unfit is not None:
        raise _Bad(f"result field {unfit!r} must be a finite number")
    return Rewarded(value)


def _suffix(prompt: str, limits: Limits) -> str:
    found = _PROMPT.fullmatch(prompt)
    if found is None:
        raise _Bad("prompt_digest is not a sha256 in hex with the known suffixes")
    if (found["baseline"] is not None) != limits.fixed_baseline:
        raise _Bad("prompt_digest does not fit the configured comparison_mode")
    if (found["rubrics"] is not None) != limits.rubrics:
        raise _Bad("prompt_digest does not fit the configured score_source")
    return found["suffix"]
