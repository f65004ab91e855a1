"""Request bodies for tests: right ones, to be changed where a test wants them wrong."""

import json
from typing import Any

PARAMS: dict[str, Any] = {"input": [{"role": "user", "content": "2+2?"}], "parallel_tool_calls": True}


def response(text: str = "4", reasoning: str = "two and two", **changes: Any) -> dict[str, Any]:
    """A response with one reasoning and one message item."""
    return {
        "id": "r",
        "created_at": 1.5,
        "model": "m",
        "object": "response",
        "output": [
            {"type": "reasoning", "id": "x", "summary": [{"type": "summary_text", "text": reasoning}]},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": text, "annotations": []}],
                "prompt_token_ids": [1, 2, 3],
                "generation_log_probs": [-0.5, -1e-7],
            },
        ],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        **changes,
    }


def verify(index: int | None = 0, group: str | None = "g", **changes: Any) -> dict[str, Any]:
    """A `/verify` body as a dict; a value of `...` removes the field."""
    body = {
        "responses_create_params": PARAMS,
        "response": response(),
        "_ng_group_id": group,
        "_ng_group_attempt": 0,
        "_ng_rollout_index": index,
        **changes,
    }
    return {name: value for name, value in body.items() if value is not ...}


def as_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
