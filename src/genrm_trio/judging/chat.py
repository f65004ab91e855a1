"""The backend `chat`: chat completions, for GenRM chat templates or for any instruct model.

Without a template the comparison is sent as the special roles `response_1`, `response_2` and `principle`, which
GenRM chat templates know. With one it is a prompt, and the verdict's form is asked for as a JSON schema until
the endpoint refuses that by name. Only what is sent and how a reply is read; the loop is `transport`.
"""

from collections.abc import Mapping
from typing import Any, Final

import jinja2
import msgspec

from genrm_trio.judging.endpoint import Endpoint
from genrm_trio.judging.faults import Fault, Kind
from genrm_trio.judging.judge import Ask, JudgeError
from genrm_trio.judging.responses import refuse_streams, tokens_of, unusable
from genrm_trio.judging.template import JudgeTemplate
from genrm_trio.judging.text import scrub, shown
from genrm_trio.judging.transport import Question, Said

RESPONSE_FORMAT: Final = "response_format"
MAX_TOKENS: Final = "max_tokens"

_SAME_NAME: Final = ("temperature", "top_p", "user", "store", "service_tier", "model")
_REPLACED: Final = ("input", "metadata", "tool_choice", "parallel_tool_calls", "instructions", "max_output_tokens")
_UNFINISHED: Final = ("content_filter", "error", "abort", "cancelled")
_NAMES_OF_FORMAT: Final = ("response_format", "json_schema", "json schema", "guided", "structured output")


class Chat:
    """Speaks chat completions.

    `params` are the set fields of `genrm_responses_create_params`, translated: `max_output_tokens` becomes
    `max_tokens` (`max_completion_tokens` where the endpoint refuses that name), `instructions` a first system
    message, `reasoning.effort` `reasoning_effort`. Raises ValueError for a field that has no counterpart.
    `schema` asks for the verdict as JSON schema; it needs a template, as a GenRM has its own form.
    """

    path = "/v1/chat/completions"

    def __init__(
        self, params: Mapping[str, Any], template: JudgeTemplate | None = None, *, schema: bool = True
    ) -> None:
        refuse_streams(params)
        self._template = template
        self._schema = schema and template is not None
        self._instructions = params.get("instructions")
        self._max_tokens = params.get("max_output_tokens")
        self._params = _translate(params)
        msgspec.json.encode([self._params, self._instructions, self._max_tokens])  # fails now rather than later

    def write(self, ask: Ask, endpoint: Endpoint) -> Question:
        """Return the body for an endpoint, without what it has refused."""
        body: dict[str, Any] = {**self._params, "messages": self._messages(ask)}
        features = set()
        if endpoint.model is not None:
            body["model"] = endpoint.model
        if self._max_tokens is not None:
            if MAX_TOKENS in endpoint.refused:
                body["max_completion_tokens"] = self._max_tokens
            else:
                body[MAX_TOKENS] = self._max_tokens
                features.add(MAX_TOKENS)
        if self._schema and RESPONSE_FORMAT not in endpoint.refused:
            body[RESPONSE_FORMAT] = _RUBRIC_FORMAT if ask.rubric_ids is not None else _VERDICT_FORMAT
            features.add(RESPONSE_FORMAT)
        return Question(msgspec.json.encode(body), frozenset(features))

    def _messages(self, ask: Ask) -> list[dict[str, str]]:
        first = [{"role": "system", "content": self._instructions}] if self._instructions else []
        if self._template is not None:
            try:
                rendered = self._template.messages(
                    ask.conversation, ask.response_1, ask.response_2, ask.principle, ask.rubric_ids
                )
            except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
                raise JudgeError(f"judge template: {type(error).__name__}: {str(error)[:1000]}") from error
            return first + rendered
        turns = [(turn.role, turn.content) for turn in ask.conversation]
        turns += [("response_1", ask.response_1), ("response_2", ask.response_2)]
        if ask.principle is not None:
            turns.append(("principle", ask.principle))
        return first + [{"role": scrub(role), "content": scrub(content)} for role, content in turns]

    def read(self, reply: Mapping[str, Any]) -> Said:
        """Read a chat completion: the first choice's text, when it was finished."""
        tokens = tokens_of(reply)
        choices = reply.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        message = choice.get("message") if isinstance(choice, dict) else None
        if not isinstance(choice, dict) or not isinstance(message, dict):
            return Said(fault=unusable(Kind.NOT_OBJECT, "no choice with a message"), tokens=tokens)
        finish = choice.get("finish_reason")
        if finish == "length":
            words = "finish_reason 'length': max_output_tokens reached"
            return Said(fault=unusable(Kind.INCOMPLETE, words), tokens=tokens, hit_max=True)
        if finish in _UNFINISHED:
            return Said(fault=unusable(Kind.INCOMPLETE, f"finish_reason {shown(finish)}"), tokens=tokens)
        text = scrub(_text_of(message.get("content")))
        if text.strip() and finish not in ("tool_calls", "function_call"):
            return Said(text, tokens=tokens)
        return Said(fault=_why_no_text(message), tokens=tokens)

    def refused(self, question: Question, fault: Fault) -> frozenset[str]:
        """Return the optional features that a 400 or 422 names."""
        if fault.kind is not Kind.BAD_REQUEST:
            return frozenset()
        said = f"{fault.detail} {fault.body}".lower()
        found = set()
        if any(name in said for name in _NAMES_OF_FORMAT):
            found.add(RESPONSE_FORMAT)
        if MAX_TOKENS in said and "max_completion_tokens" in said:
            found.add(MAX_TOKENS)
        return question.features & found


def _translate(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters under chat completions' names; what is empty or replaced is left out."""
    translated: dict[str, Any] = {}
    for name, value in params.items():
        if name in _REPLACED or value is None or value is False or value in ([], {}, ""):
            continue
        if name in _SAME_NAME:
            translated[name] = value
        elif name == "reasoning" and isinstance(value, dict) and set(value) == {"effort"}:
            translated["reasoning_effort"] = value["effort"]
        elif name == "top_logprobs":
            translated |= {"logprobs": True, "top_logprobs": value}
        else:
            raise ValueError(f"genrm_responses_create_params.{name} has no counterpart for judge.backend 'chat'")
    return translated


def _text_of(content: object) -> str:
    """Return a message's text: a string, or the texts of its parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = [part for part in content if isinstance(part, dict) and part.get("type") in ("text", "output_text")]
    return "".join(part["text"] for part in parts if isinstance(part.get("text"), str))


def _why_no_text(message: Mapping[str, Any]) -> Fault:
    """Name what stands where text should be."""
    parts = message.get("content") if isinstance(message.get("content"), list) else []
    if message.get("refusal") or any(isinstance(p, dict) and p.get("type") == "refusal" for p in parts or []):
        return unusable(Kind.REFUSAL, "a refusal instead of text")
    if message.get("tool_calls") or message.get("function_call"):
        return unusable(Kind.TOOL_CALL, "a tool call instead of text")
    if message.get("reasoning_content") or message.get("reasoning"):
        return unusable(Kind.REASONING_ONLY, "text in the reasoning only")
    return unusable(Kind.NO_TEXT, "no text in the answer")


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _format(name: str, properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": name, "strict": True, "schema": _object(properties)}}


# Ranges are left to the reading rules: many engines refuse a schema with bounds on numbers. The analysis stands
# first, so that a model without a reasoning channel thinks before it scores.
_SCORES: Final = {name: {"type": "number"} for name in ("score_1", "score_2", "ranking")}
_ANALYSIS: Final = {"analysis": {"type": "string"}}
_VERDICT_FORMAT: Final = _format("verdict", {**_ANALYSIS, **_SCORES})
_RUBRIC: Final = {"type": "array", "items": _object({"rubric_id": {"type": "integer"}, **_SCORES})}
_RUBRIC_FORMAT: Final = _format(
    "rubric_verdict", {**_ANALYSIS, "rubric_evaluations": _RUBRIC, "overall": _object(_SCORES)}
)
