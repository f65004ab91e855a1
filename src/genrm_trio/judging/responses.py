"""The backend `responses`: a GenRM behind `/v1/responses`, the two answers in `metadata` (contract 7.5).

Only what is sent and how a reply is read; the loop around it is `transport`.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from genrm_trio.judging.endpoint import Endpoint
from genrm_trio.judging.faults import Fault, Kind
from genrm_trio.judging.judge import Ask
from genrm_trio.judging.text import read_output, scrub, shown
from genrm_trio.judging.transport import Question, Said

MAX_TOKENS_REASON: Final = "max_output_tokens"


class Responses:
    """Speaks the Responses API.

    `params` are the fields of `genrm_responses_create_params` that were set; `input` and `metadata` in them are
    replaced for each comparison. Raises ValueError for parameters with which a reply would not be one JSON object.
    """

    path = "/v1/responses"

    def __init__(self, params: Mapping[str, Any]) -> None:
        refuse_streams(params)
        self._params = dict(params)
        msgspec.json.encode(self._params)  # fails now rather than at the first cohort

    def write(self, ask: Ask, endpoint: Endpoint) -> Question:
        """Return the body: the history as `input`, the answers and the principle as `metadata`."""
        metadata = {"response_1": scrub(ask.response_1), "response_2": scrub(ask.response_2)}
        if ask.principle is not None:
            metadata["principle"] = scrub(ask.principle)
        history = [
            {"role": scrub(turn.role), "content": scrub(turn.content), "type": "message"} for turn in ask.conversation
        ]
        body = {**self._params, "input": history, "metadata": metadata}
        if endpoint.model is not None:
            body["model"] = endpoint.model
        return Question(msgspec.json.encode(body))

    def read(self, reply: Mapping[str, Any]) -> Said:
        """Read a Response object; usable when it is completed, or says nothing about that, and has text."""
        status, output = reply.get("status"), reply.get("output")
        details = reply.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        tokens = tokens_of(reply)
        if status and status != "completed":
            words = f"status {shown(status)}" + (f", reason {shown(reason)}" if reason else "")
            hit_max = status == "incomplete" and reason == MAX_TOKENS_REASON
            return Said(fault=unusable(Kind.INCOMPLETE, words), tokens=tokens, hit_max=hit_max)
        text = scrub(read_output(output).answer)
        if text.strip():
            return Said(text, tokens=tokens)
        return Said(fault=_why_no_text(output), tokens=tokens)

    def refused(self, question: Question, fault: Fault) -> frozenset[str]:
        """Nothing in this body is optional."""
        return frozenset()


def refuse_streams(params: Mapping[str, Any]) -> None:
    """Raise ValueError when the parameters ask for a stream or a background run."""
    for name in ("stream", "background"):
        if params.get(name):
            raise ValueError(f"genrm_responses_create_params.{name} must be off: the judge's reply is read whole")


def unusable(kind: Kind, words: str) -> Fault:
    """Return the fault of a reply that is no usable answer."""
    return Fault(kind, "UnusableAnswer", words)


def tokens_of(reply: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return input and output tokens of a reply; None unless both are real numbers (contract 7.5)."""
    usage = reply.get("usage")
    if not isinstance(usage, dict):
        return None
    counts = [_first_number(usage, names) for names in _TOKEN_NAMES]
    if counts[0] is None or counts[1] is None:
        return None
    return counts[0], counts[1]


_TOKEN_NAMES: Final = (("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens"))


def _first_number(usage: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    for name in names:
        value = usage.get(name)
        if value is None:
            continue
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**53:
            return float(value)
        return None
    return None


def _why_no_text(output: object) -> Fault:
    """Name what stands where text should be."""
    items = [item for item in output if isinstance(item, dict)] if isinstance(output, list) else []
    parts = [
        part
        for item in items
        if isinstance(item.get("content"), list)
        for part in item["content"]
        if isinstance(part, dict)
    ]
    types = {kind for item in items if isinstance(kind := item.get("type"), str)}
    if any(part.get("type") == "refusal" for part in parts):
        return unusable(Kind.REFUSAL, "a refusal instead of text")
    if any(kind.endswith("_call") for kind in types):
        return unusable(Kind.TOOL_CALL, "a tool call instead of text")
    if "reasoning" in types:
        return unusable(Kind.REASONING_ONLY, "text in the reasoning only")
    return unusable(Kind.NO_TEXT, "no text in the answer")
