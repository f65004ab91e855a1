"""The other data routes' bodies: seeds, closes, `/compare` and `/aggregate_metrics` (contract 3, 8 and 9)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, InstanceOf, StrictInt, StrictStr, ValidationError

from genrm_trio.core.identity import CAPTURE_KEY, MAX_ATTEMPT, EpisodeId
from genrm_trio.judging.digest import MAX_DEPTH
from genrm_trio.judging.text import AnswerText
from genrm_trio.web.errors import InvalidBody, Problem, TooLarge
from genrm_trio.web.wire.answers import read_answer
from genrm_trio.web.wire.fields import MAX_INTEGER_DIGITS, MAX_NAME_CHARS, FieldReader, too_long
from genrm_trio.web.wire.strict import (
    Body,
    Raw,
    brief,
    decode,
    decode_finite,
    entries,
    has_more_entries,
    members,
    missing,
    nested_deeper,
    not_an_object,
    read_object,
)

SEED_FIELDS = frozenset({"resources_session_id", "episode_id", "task_id", "task_data"})
"""A seed with exactly these members may be a typed one (contract 3.2)."""
_CANNOT_HOLD = frozenset({"string_unicode", "less_than_equal"})
"""Mistakes of a value that is of the right kind: a text with a lone surrogate, an attempt beyond the largest."""


class _Exact(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EpisodeBody(_Exact):
    """An episode as JSON (contract 2)."""

    rollout_id: StrictStr
    attempt: StrictInt = Field(default=0, ge=0, le=MAX_ATTEMPT)

    def read(self) -> EpisodeId:
        """The episode; raises ValueError when its rollout id cannot stand in a capture key."""
        if not CAPTURE_KEY.fullmatch(self.rollout_id):
            raise ValueError(f"rollout_id {self.rollout_id[:80]!r} must match {CAPTURE_KEY.pattern}")
        return EpisodeId(self.rollout_id, self.attempt)


class _TaskBody(_Exact):
    """Nothing of it is kept, so its texts may have anything in them."""

    taskset: InstanceOf[str]
    task_id: InstanceOf[str]


class _SeedBody(_Exact):
    resources_session_id: StrictStr = Field(min_length=1)
    episode_id: EpisodeBody
    task_id: _TaskBody
    task_data: dict[str, Any]


class _CloseBody(_Exact):
    resources_session_id: StrictStr
    episode_id: EpisodeBody


@dataclass(frozen=True, slots=True)
class Seed:
    """A seed: untyped ones name nothing, typed ones their session and episode."""

    session_id: str | None = None
    episode: EpisodeId | None = None

    @property
    def typed(self) -> bool:
        """Whether an environment server made it."""
        return self.session_id is not None


@dataclass(frozen=True, slots=True)
class Close:
    """A close; it acts on the cookie's session, and these are only echoed."""

    session_id: str
    episode: EpisodeId


@dataclass(frozen=True, slots=True)
class Compare:
    """A `/compare`: the conversation as decoded items, and the texts of each response in request order."""

    conversation: list[Any]
    answers: tuple[AnswerText, ...]
    principle: str | None
    rubric_ids: tuple[int, ...] | None


def read_seed(body: Body) -> Seed:
    """Read a seed: any JSON object. What is not exactly of a typed seed's shape is an untyped one.

    Raises InvalidBody, also for a seed of that shape with a session or an episode that cannot be held: taken for an
    untyped one it would get a session that its client never learns of.
    """
    found = read_object(body)
    if found.keys() != SEED_FIELDS or not _is_object(found["task_data"]):
        return Seed()
    try:
        task = {"task_id": decode(found["task_id"]), "task_data": {}}
        session_id, episode_id = decode(found["resources_session_id"]), _decode_episode(found["episode_id"])
    except InvalidBody:  # no text and no attempt
        return Seed()
    try:
        seed = _SeedBody.model_validate({"resources_session_id": session_id, "episode_id": episode_id, **task})
        episode = seed.episode_id.read()
    except ValidationError as error:
        if {entry["type"] for entry in error.errors(include_url=False)} <= _CANNOT_HOLD:
            raise InvalidBody(*problems_of(error)) from None
        return Seed()
    except ValueError:
        return Seed()
    if len(seed.resources_session_id) > MAX_NAME_CHARS:
        raise InvalidBody(too_long(("body", "resources_session_id"), seed.resources_session_id))
    if len(episode.rollout_id) > MAX_NAME_CHARS:
        raise InvalidBody(too_long(("body", "episode_id", "rollout_id"), episode.rollout_id))
    return Seed(seed.resources_session_id, episode)


def _decode_episode(raw: Raw) -> Any:
    """An episode, right or wrong; an attempt that Python does not convert counts as the first that is too large."""
    inside = members(raw)
    if inside is None:
        return decode(raw)
    return {name: MAX_ATTEMPT + 1 if _has_too_many_digits(value) else decode(value) for name, value in inside.items()}


def _has_too_many_digits(raw: Raw) -> bool:
    return len(raw) > MAX_INTEGER_DIGITS and bytes(raw).isdigit()


def read_close(body: Body) -> Close:
    """Read a close; raises InvalidBody."""
    found = read_object(body)
    value = {name: _decode_episode(raw) if name == "episode_id" else decode(raw) for name, raw in found.items()}
    try:
        close = _CloseBody.model_validate(value)
    except ValidationError as error:
        raise InvalidBody(*problems_of(error)) from None
    try:
        return Close(close.resources_session_id, close.episode_id.read())
    except ValueError as error:
        loc = ("body", "episode_id", "rollout_id")
        raise InvalidBody(Problem("value_error", loc, str(error), close.episode_id.rollout_id)) from None


def problems_of(error: ValidationError, *, loc: tuple[str | int, ...] = ("body",)) -> list[Problem]:
    """Pydantic's mistakes as ours."""
    entries = error.errors(include_url=False, include_context=False)
    return [Problem(e["type"], (*loc, *e["loc"]), e["msg"], e["input"]) for e in entries]


class TooManyEntries(TooLarge):
    """A list has more entries than it may have; they were not read."""


def read_compare(body: Body, most: int) -> Compare:
    """Read a `/compare` body; raises InvalidBody, and TooManyEntries beyond `most` responses."""
    reader = FieldReader(read_object(body))
    conversation = _conversation(reader)
    answers = _answers(reader, most)
    principle = reader.text("principle")
    rubric_ids = reader.integers("expected_rubric_ids")
    reader.check()
    return Compare(conversation, answers, principle, rubric_ids)


def read_aggregate(body: Body, most: int) -> list[dict[str, Any]]:
    """Read the rows of `/aggregate_metrics`: of each its numbers, those of its usage, and its agent.

    Nothing else in a row is decoded. Raises InvalidBody, and TooLarge beyond `most` rows and numbers together.
    """
    reader = FieldReader(read_object(body))
    rows = []
    left = most
    for at, raw in enumerate(_entries(reader, "verify_responses", most)):
        if reader.full:
            break
        loc = ("body", "verify_responses", at)
        inside = members(raw)
        if inside is None:
            reader.problems.append(not_an_object(loc, brief(raw)))
            continue
        row = _numbers(inside)
        response = members(inside["response"]) if "response" in inside else None
        usage = members(response["usage"]) if response and "usage" in response else None
        numbers = _numbers(usage or {})
        left -= 1 + len(row) + len(numbers)
        if left < 0:
            raise TooLarge(f"verify_responses has more than limits.max_aggregate_numbers, {most}, rows and numbers")
        if numbers:
            row["response"] = {"usage": numbers}
        if _is_object(inside.get("agent_ref", _NULL)):
            row["agent_ref"] = _shallow(inside["agent_ref"], (*loc, "agent_ref"))
        rows.append(row)
    reader.check()
    return rows


_NULL = memoryview(b"null")


def _numbers(inside: Mapping[str, Raw]) -> dict[str, Any]:
    """The members that are numbers or booleans."""
    return {name: decode(raw) for name, raw in inside.items() if raw[0] in _NUMBER_STARTS}


_NUMBER_STARTS = b"-0123456789tf"


def _shallow(raw: Raw, loc: tuple[str | int, ...]) -> Any:
    """A value that goes back to the client through an encoder, which takes less than any depth and any number."""
    if nested_deeper(raw, MAX_DEPTH):
        raise InvalidBody(Problem("too_deep", loc, f"Input should not be nested deeper than {MAX_DEPTH}"))
    try:
        return decode_finite(raw)
    except InvalidBody as error:
        raise InvalidBody(*(replace(problem, loc=loc) for problem in error.problems)) from None


def _entries(reader: FieldReader, name: str, most: int) -> list[Raw]:
    """The entries of a required list, as raw text; empty when it is wrong. Raises TooManyEntries unread."""
    raw = reader.members.get(name)
    if raw is None:
        reader.problems.append(missing(("body", name)))
        return []
    if bytes(raw[:1]) != b"[":
        reader.note("list_type", name, "Input should be a valid list", brief(raw))
        return []
    if has_more_entries(raw, most):
        raise TooManyEntries(f"{name} has more than {most} entries")
    return list(entries(raw))


def _is_object(raw: Raw) -> bool:
    return bytes(raw[:1]) == b"{"


def _list(reader: FieldReader, name: str) -> list[Any]:
    """A required list, decoded; empty when it is wrong."""
    raw = reader.members.get(name)
    if raw is None:
        reader.problems.append(missing(("body", name)))
        return []
    value = reader.value(name)
    if isinstance(value, list):
        return value
    reader.note("list_type", name, "Input should be a valid list", value)
    return []


def _conversation(reader: FieldReader) -> list[Any]:
    turns = _list(reader, "conversation_history")
    reader.add(_turn_problems(turns))
    return turns


def _turn_problems(turns: list[Any]) -> Iterator[Problem]:
    for at, turn in enumerate(turns):
        loc = ("body", "conversation_history", at)
        if not isinstance(turn, dict):
            yield not_an_object(loc, turn)
            continue
        for name, value in turn.items():
            if not isinstance(value, str):
                yield Problem("string_type", (*loc, name), "Input should be a valid string", value)


def _answers(reader: FieldReader, most: int) -> tuple[AnswerText, ...]:
    """The texts of the responses; their token arrays are never decoded."""
    answers = []
    for at, response in enumerate(_entries(reader, "response_objs", most)):
        if reader.full:
            break
        inside = members(response)
        if inside is None:
            reader.problems.append(not_an_object(("body", "response_objs", at), brief(response)))
            continue
        answers.append(read_answer(inside.get("output")))
    return tuple(answers)
