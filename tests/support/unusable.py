"""Replies of a judge that were completed with 200 and hold no answer, in both dialects, each with its kind of fault.

Each has a verdict in it wherever one can stand, so that whoever reads the wrong place has a score to show for it.
"""

from collections.abc import Mapping
from typing import Any, Final

from tests.support.fake_judge import answer, verdict_text

CHAT: Final = "/v1/chat/completions"
VERDICT: Final = verdict_text(4.0, 2.0, 2.0)

Unusable = Mapping[str, tuple[str, Any]]


def completion(content: Any = VERDICT, finish: str | None = "stop", **message: Any) -> Any:
    """A chat completion whose message has this content and these other members."""
    choice = {"finish_reason": finish, "message": {"role": "assistant", "content": content, **message}}
    return answer("", CHAT, choices=[choice])


def _output(*items: Any) -> Any:
    return answer("", output=list(items))


def _reasoning(place: str, kind: str) -> Any:
    return _output({"type": "reasoning", place: [{"type": kind, "text": VERDICT}]})


_LENGTH: Final[Mapping[str, Any]] = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}

RESPONSES_UNUSABLE: Final[Unusable] = {
    "null content": ("no_text", _output({"type": "message", "content": None})),
    "tool call": ("tool_call", _output({"type": "function_call", "name": "f", "arguments": VERDICT})),
    "refusal": ("refusal", _output({"type": "message", "content": [{"type": "refusal", "refusal": VERDICT}]})),
    "verdict in the summary": ("reasoning_only", _reasoning("summary", "summary_text")),
    "verdict in the reasoning": ("reasoning_only", _reasoning("content", "reasoning_text")),
    "max_output_tokens": ("incomplete", answer(VERDICT, **_LENGTH)),
}
CHAT_UNUSABLE: Final[Unusable] = {
    "null content": ("no_text", completion(None)),
    "tool call": ("tool_call", completion(None, "tool_calls", tool_calls=[{"id": "1", "arguments": VERDICT}])),
    "tool call beside text": ("tool_call", completion(VERDICT, "tool_calls", tool_calls=[{"id": "1"}])),
    "refusal": ("refusal", completion(None, refusal=VERDICT)),
    "refusal as a part": ("refusal", completion([{"type": "refusal", "refusal": VERDICT}])),
    "verdict in reasoning_content": ("reasoning_only", completion(None, reasoning_content=VERDICT)),
    "verdict in reasoning": ("reasoning_only", completion("", reasoning=VERDICT)),
    "max_output_tokens": ("incomplete", completion(VERDICT, "length")),
}
