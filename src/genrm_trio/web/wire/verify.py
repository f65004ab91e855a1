"""`/verify`: a body that may hold megabytes of tokens is checked without making objects of them, and echoed as bytes.

Read here: which fields there are and of what kind (contract 4 and 5.1), and the texts that are judged. Not here:
whether the coordinates fit the server's configuration; that depends on its settings.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from genrm_trio.core.outcome import JSON
from genrm_trio.judging.text import AnswerText, read_output
from genrm_trio.web.errors import Pieces, Problem, to_json
from genrm_trio.web.wire.answers import read_answer, read_parts
from genrm_trio.web.wire.fields import FieldReader
from genrm_trio.web.wire.strict import (
    Body,
    Raw,
    brief,
    each_entry,
    is_null,
    members,
    missing,
    not_an_object,
    read_object,
    spells,
    without_surrogates,
)

ALIASES = {
    "_ng_task_index": "task_index",
    "_ng_group_id": "group_id",
    "_ng_group_attempt": "group_attempt",
    "_ng_rollout_index": "rollout_index",
}
"""The fields that come under two names; the first one wins and is the only one on the wire back."""

CREATE_PARAMETERS = frozenset(
    {
        *("background", "include", "input", "instructions", "max_output_tokens", "max_tool_calls", "metadata", "model"),
        *("parallel_tool_calls", "previous_response_id", "prompt", "reasoning", "service_tier", "store", "temperature"),
        *("text", "tool_choice", "tools", "top_logprobs", "top_p", "truncation", "user", "stream"),
    }
)
"""The fields of `responses_create_params`; any other is refused unless it is null (contract 4)."""

MAX_FAILURE_REASON = 2000
"""Characters of `failure_reason` in the masked row (contract 6)."""

TOKEN_FIELDS = (
    *(f"genrm_{kind}_tokens_per_comparison_{form}" for kind in ("input", "output") for form in ("mean", "p50", "p95")),
    "genrm_output_tokens_total_per_group",
    "genrm_max_output_tokens_hit_rate_per_group",
)
"""The eight token fields of a success reply (contract 5.6)."""

RESULT_DEFAULTS: Mapping[str, JSON] = {
    "reward_score_raw": None,
    "reward_rubric_aggregate_valid": None,
    "reward_overall_score_raw": None,
    "reward_overall_score": None,
    "reward_length_adjustment": 0.0,
    "genrm_parse_failure_rate_per_group": 0.0,
    "genrm_rubric_parse_failure_rate_per_group": 0.0,
    **dict.fromkeys(TOKEN_FIELDS),
}
"""What a success reply carries beside `reward` when the stored result says nothing of it."""

SUCCESS_ONLY = frozenset({"reasoning_text", "answer_text", *RESULT_DEFAULTS})
"""What must not appear in a masked row (contract 6)."""


@dataclass(frozen=True, slots=True)
class Echo:
    """What of a request goes back to its client, as received: kept while the request is held, and nothing else is.

    members: every member of the body by its wire name, aliases resolved, as raw JSON.
    """

    members: Mapping[str, Raw | bytes]
    answer: AnswerText

    def success(self, fields: Mapping[str, JSON]) -> Pieces:
        """The success reply (contract 5.6) in pieces: the echo, this member's texts and its stored numbers."""
        own: dict[str, JSON] = {
            "mask_sample": False,
            "failure_kind": None,
            "failure_reason": None,
            "reasoning_text": self.answer.reasoning,
            "answer_text": self.answer.answer,
            **RESULT_DEFAULTS,
            **fields,
        }
        names = ("responses_create_params", "response", "_ng_group_id", "_ng_group_attempt", "_ng_rollout_index")
        return _spliced({name: self.members[name] for name in names}, own)

    def masked(self, text: str) -> Pieces:
        """The row of a judge failure (contract 6) in pieces: the whole request, marked as masked."""
        reason = text[:MAX_FAILURE_REASON]
        own: dict[str, JSON] = {
            "reward": 0.0,
            "mask_sample": True,
            "failure_kind": "judge_failed",
            "failure_reason": reason,
            "_ng_failure_class": "judge_failed",
            "_ng_failure_judge_error": reason,
        }
        dropped = SUCCESS_ONLY | own.keys() | {"instance_config"} | set(ALIASES.values())
        kept = {name: raw for name, raw in self.members.items() if name not in dropped}
        return _spliced({**kept, "instance_config": self._instance_config()}, own)

    def _instance_config(self) -> bytes:
        given = self.members.get("instance_config")
        inside = members(memoryview(given)) if given is not None else None
        kept = {name: raw for name, raw in (inside or {}).items() if name != "mask_sample"}
        return b"".join(_spliced(kept, {"mask_sample": True}))


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """One `/verify` body that is right in itself.

    response: its raw JSON. prompt: the decoded `responses_create_params.input`. baseline: what stands under
    `responses_create_params.metadata.baseline_response`, None when nothing does. attempt_given: whether the
    group attempt was there, or 0 was taken.
    """

    echo: Echo
    response: Raw
    prompt: Any
    baseline: Any
    principle: str | None
    rubric_ids: tuple[int, ...] | None
    task_index: int | None
    group_id: str | None
    group_attempt: int
    attempt_given: bool
    rollout_index: int | None
    prompt_id: str | None

    @property
    def answer(self) -> AnswerText:
        """The texts of the response."""
        return self.echo.answer


def read_verify(body: Body) -> VerifyRequest:
    """Read a `/verify` body; raises InvalidBody with every mistake in it."""
    found = read_object(body)
    reader = FieldReader(found)
    prompt, baseline = _read_params(reader)
    answer = _read_response(reader)
    principle = reader.text("principle")
    rubric_ids = reader.integers("expected_rubric_ids")
    task_index = reader.integer("_ng_task_index", "task_index")
    group_id = reader.name("_ng_group_id", "group_id")
    if group_id == "":
        reader.note("string_too_short", reader.pick("_ng_group_id", "group_id")[0], "A group id is never empty", "")
    attempt = reader.integer("_ng_group_attempt", "group_attempt")
    if attempt is not None and attempt < 0:
        name = reader.pick("_ng_group_attempt", "group_attempt")[0]
        reader.note("greater_than_equal", name, "Input should be greater than or equal to 0", attempt)
    rollout_index = reader.integer("_ng_rollout_index", "rollout_index")
    prompt_id = reader.name("prompt_id")
    reader.check()
    declared: dict[str, JSON] = {
        "principle": principle,
        "expected_rubric_ids": list(rubric_ids) if rubric_ids is not None else None,
        "_ng_task_index": task_index,
        "_ng_group_id": group_id,
        "_ng_group_attempt": attempt or 0,
        "_ng_rollout_index": rollout_index,
        "prompt_id": prompt_id,
    }
    wire: dict[str, Raw | bytes] = {name: raw for name, raw in found.items() if name not in ALIASES.values()}
    wire |= {name: to_json(value) for name, value in declared.items()}
    return VerifyRequest(
        echo=Echo(wire, answer),
        response=found["response"],
        prompt=prompt,
        baseline=baseline,
        principle=principle,
        rubric_ids=rubric_ids,
        task_index=task_index,
        group_id=group_id,
        group_attempt=attempt or 0,
        attempt_given=attempt is not None,
        rollout_index=rollout_index,
        prompt_id=prompt_id,
    )


def _spliced(raw: Mapping[str, Raw | bytes], own: Mapping[str, JSON]) -> Pieces:
    """The pieces of one JSON object: members as received, then ours; the caller sees to it that no name is twice."""
    parts: list[Raw | bytes] = []
    for name, value in raw.items():
        parts += [b"," if parts else b"{", to_json(name), b":", value]
    ours = to_json(own)
    parts.append(b"," + ours[1:] if parts else ours)
    return parts


# -- responses_create_params -------------------------------------------------------------------------------


def _read_params(reader: FieldReader) -> tuple[Any, Any]:
    """The prompt and the baseline of the request's `responses_create_params`."""
    inside = _required_object(reader, "responses_create_params")
    if inside is None:
        return None, None
    params = FieldReader(inside, ("body", "responses_create_params"))
    extra = ((name, raw) for name, raw in inside.items() if name not in CREATE_PARAMETERS and not is_null(raw))
    text = "Extra inputs are not permitted"
    params.add(Problem("extra_forbidden", (*params.loc, name), text, brief(raw)) for name, raw in extra)
    if not is_null(inside.get("stream")) and not spells(inside["stream"], b"false"):
        params.note("literal_error", "stream", "Input should be false", brief(inside["stream"]))
    prompt = None
    if is_null(inside.get("input")):
        params.problems.append(missing(("body", "responses_create_params", "input")))
    else:
        prompt = params.value("input")
        params.add(_prompt_problems((*params.loc, "input"), prompt))
    baseline = None
    if not is_null(inside.get("metadata")):
        metadata = members(inside["metadata"])
        if metadata is None:
            params.note("dict_type", "metadata", "Input should be an object", brief(inside["metadata"]))
        elif "baseline_response" in metadata:
            baseline = FieldReader(metadata, (*params.loc, "metadata")).value("baseline_response")
    reader.add(params.problems)
    return prompt, baseline


def _prompt_problems(loc: tuple[str | int, ...], prompt: object) -> Iterator[Problem]:
    if isinstance(prompt, str):
        return
    if not isinstance(prompt, list):
        yield Problem("string_type", loc, "Input should be a string or a list of items", prompt)
        return
    for at, item in enumerate(prompt):
        if not isinstance(item, dict):
            yield not_an_object((*loc, at), item)
        elif item.get("type") is None and (item.get("role") is None or item.get("content") is None):
            yield missing((*loc, at, "type"), item)


def _required_object(reader: FieldReader, name: str) -> dict[str, Raw] | None:
    raw = reader.members.get(name)
    if raw is None:
        reader.problems.append(missing(("body", name)))
        return None
    inside = members(raw)
    if inside is None:
        reader.problems.append(not_an_object(("body", name), brief(raw)))
    return inside


# -- response ----------------------------------------------------------------------------------------------


_ABSENT = msgspec.Raw()


class _Item(msgspec.Struct):
    type: str
    summary: msgspec.Raw = _ABSENT
    content: msgspec.Raw = _ABSENT


class _Response(msgspec.Struct):
    """What the contract requires of a response. Members that are not named here are checked and skipped."""

    id: str
    created_at: float
    model: str
    object: Literal["response"]
    output: list[_Item]
    parallel_tool_calls: bool
    tool_choice: str | dict[str, Any]
    tools: list[Any]


_RESPONSE = msgspec.json.Decoder(_Response)


def _read_response(reader: FieldReader) -> AnswerText:
    """Check the response and read its texts; one pass, unless something is wrong or unusual."""
    raw = reader.members.get("response")
    if raw is not None:
        try:
            items = _RESPONSE.decode(raw).output
        except (msgspec.DecodeError, RecursionError):
            return _read_response_slowly(reader)
        return read_output([_chosen(item) for item in items])
    reader.problems.append(missing(("body", "response")))
    return AnswerText("", "")


def _chosen(item: _Item) -> dict[str, object]:
    summary, content = memoryview(item.summary), memoryview(item.content)
    return {"type": item.type, "summary": read_parts(summary), "content": read_parts(content)}


def _read_response_slowly(reader: FieldReader) -> AnswerText:
    """The same with every mistake named, and with what only the standard library reads."""
    nothing = AnswerText("", "")
    inside = _required_object(reader, "response")
    if inside is None:
        return nothing
    response = FieldReader(inside, ("body", "response"))
    for name, (starts, wanted) in _REQUIRED.items():
        if is_null(inside.get(name)):
            response.problems.append(missing(("body", "response", name)))
        elif inside[name][0] not in starts:
            response.note("type_error", name, f"Input should be {wanted}", brief(inside[name]))
        elif name == "object" and (value := brief(inside[name])) != "response":
            response.note("literal_error", name, "Input should be 'response'", value)
        elif name == "output":
            response.add(_item_problems(inside[name]))
    reader.add(response.problems)
    return nothing if response.problems else read_answer(inside["output"])


_REQUIRED: Mapping[str, tuple[bytes, str]] = {
    "id": (b'"', "a string"),
    "created_at": (b"-0123456789", "a number"),
    "model": (b'"', "a string"),
    "object": (b'"', "'response'"),
    "output": (b"[", "a list"),
    "parallel_tool_calls": (b"tf", "true or false"),
    "tool_choice": (b'"{', "a string or an object"),
    "tools": (b"[", "a list"),
}
"""What a value's text may start with, and what that is called."""


def _item_problems(output: Raw) -> Iterator[Problem]:
    with suppress(msgspec.DecodeError, RecursionError):  # when some item is wrong
        _TYPED.decode(without_surrogates(output))
        return
    for at, raw in enumerate(each_entry(output)):
        loc = ("body", "response", "output", at)
        inside = members(raw)
        if inside is None:
            yield not_an_object(loc, brief(raw))
        elif "type" not in inside or inside["type"][0] != _QUOTE:
            yield missing((*loc, "type"), brief(raw))


class _Typed(msgspec.Struct):
    type: str


_TYPED = msgspec.json.Decoder(list[_Typed])
_QUOTE = b'"'[0]
