"""Example rows: one prompt with the recorded answers of several models, and a request made of each.

Reads the shipped file or one like it; the README beside that file says what its fields mean.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from genrm_trio.ops.complaints import StartupError


class RowAnswer(msgspec.Struct, frozen=True):
    """One model's answer, and the score that GPT-4 gave it."""

    model: str
    text: str
    gpt4_score: float


class Row(msgspec.Struct, frozen=True):
    """One prompt with all its answers."""

    question_id: str
    prompt: str
    answers: tuple[RowAnswer, ...]


def read_rows(path: Path) -> tuple[Row, ...]:
    """Return a file's rows. Raises StartupError, which names the line, when one cannot be read."""
    decoder = msgspec.json.Decoder(Row)
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            rows.append(decoder.decode(line))
        except msgspec.DecodeError as error:
            raise StartupError(f"{path}, line {number}: {error}") from error
    return tuple(rows)


def verify_body(row: Row, index: int, *, group: str, attempt: int = 0) -> dict[str, object]:
    """Return the `/verify` body (contract 5.1) of a rollout whose policy gave the row's answer `index`."""
    answer = row.answers[index]
    return {
        "responses_create_params": {"input": [{"role": "user", "content": row.prompt}]},
        "response": response_object(f"{group}-{index}", answer.model, answer.text),
        "_ng_group_id": group,
        "_ng_group_attempt": attempt,
        "_ng_rollout_index": index,
    }


def response_object(identifier: str, model: str, text: str) -> dict[str, object]:
    """Return a Responses object with one message (contract 4)."""
    content: Sequence[object] = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"id": f"msg-{identifier}", "type": "message", "role": "assistant", "status": "completed"}
    return {
        "id": f"resp-{identifier}",
        "created_at": 0,
        "model": model,
        "object": "response",
        "output": [{**message, "content": content}],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
