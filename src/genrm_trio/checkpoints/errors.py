"""What checkpoints refuse, as exceptions. How they look on the wire is the web room's table (contract 1.2)."""

from typing import Literal, TypeAlias

ControlCode: TypeAlias = Literal[
    "checkpoint_error",
    "stale_checkpoint",
    "checkpoint_conflict",
    "invalid_phase",
    "deadline_exceeded",
    "stale_attempt",
    "retire_incomplete",
    "unauthorized",
    "invalid_checkpoint_state",
]
"""Every `error.code` of contract 10.6."""


class ControlRefused(Exception):
    """A control call is refused; nothing changed. `status` and `code` as in contract 10.6, `detail` for people."""

    def __init__(self, status: int, code: ControlCode, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail


class CheckpointStateError(ControlRefused):
    """A checkpoint's files cannot be written, read or installed: 422 `invalid_checkpoint_state`.

    The text names the file, and the line and field where there is one.
    """

    def __init__(self, detail: str) -> None:
        super().__init__(422, "invalid_checkpoint_state", detail)


def conflict(code: ControlCode, detail: str) -> ControlRefused:
    """A refusal with status 409, the status of all codes of contract 10.6 but two."""
    return ControlRefused(409, code, detail)
