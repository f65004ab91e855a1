"""How refusals, failures and mistakes look on the wire: one table of status and body shapes (contract 1.2, 14.11).

Two shapes are never mixed: `{"detail", "code"}` for genrm clients and `{"error": {"code", "detail"}}` for
controllers and admission. Only shapes live here; who refuses what, and when, is decided elsewhere.
"""

import json
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from genrm_trio.core.outcome import JSON, CohortFailed, Refused

MAX_ECHOED_INPUT = 1000
"""Characters of an offending value that a validation error repeats."""

MAX_PROBLEMS = 100
"""Mistakes that one validation error lists."""

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)

JSON_HEADERS = {"content-type": "application/json"}

REFUSAL_STATUS: Mapping[str, int] = {
    "superseded": 409,
    "inconsistent_prompt": 409,
    "different_response": 409,
    "slot_closed": 409,
    "stale_attempt": 409,
    "too_busy": 503,
    "shutting_down": 503,
}
"""Status of a request that is refused on its own (contract 5.2). A failed cohort is always 503 (contract 6)."""

ADMISSION_CODES = frozenset({"stale_attempt"})
"""Refusals that admission makes, and that so have the control plane's shape."""

CONTROL_STATUS: Mapping[str, int] = {
    "unauthorized": 401,
    "invalid_checkpoint_state": 422,
    "checkpoint_error": 409,
    "stale_checkpoint": 409,
    "checkpoint_conflict": 409,
    "invalid_phase": 409,
    "deadline_exceeded": 409,
    "stale_attempt": 409,
    "retire_incomplete": 409,
}
"""Status of each code of the control plane (contract 10.6)."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole HTTP answer: status, body and headers besides the length."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=lambda: dict(JSON_HEADERS))


Pieces: TypeAlias = Sequence[bytes | memoryview]
"""A large body in parts that are never joined."""


@dataclass(frozen=True, slots=True)
class LargeReply:
    """A success whose body is sent in its parts."""

    pieces: Pieces


@dataclass(frozen=True, slots=True)
class Problem:
    """One entry of a validation error: its type, where it is, what is wrong and the value that is."""

    type: str
    loc: tuple[str | int, ...]
    msg: str
    input: object = None


class TooLarge(Exception):
    """A request that asks for more than a bound allows: 413 with the text, which names both."""


class InvalidBody(Exception):
    """A request body that the contract refuses with 422; carries at least one problem, and little of the body."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__(problems[0].msg)
        self.problems = tuple(replace(p, input=_shortened(p.input)) for p in problems[:MAX_PROBLEMS])


def to_json(value: object) -> bytes:
    """Compact JSON in ASCII, so lone surrogates stay the escapes they came as.

    Raises ValueError on NaN and infinities, which JSON cannot carry.
    """
    return _ENCODER.encode(value).encode("ascii")


def detail(
    status: int,
    code: str,
    text: str,
    *,
    latest_attempt: int | None = None,
    retry_after_s: int | None = None,
) -> Reply:
    """An explicit refusal of genrm: `detail` for people, `code` for programs."""
    body: dict[str, JSON] = {"detail": text, "code": code}
    if latest_attempt is not None:
        body["latest_attempt"] = latest_attempt
    headers = dict(JSON_HEADERS)
    if retry_after_s is not None:
        headers["retry-after"] = str(retry_after_s)
    return Reply(status, to_json(body), headers)


def control(code: str, text: str, *, status: int | None = None) -> Reply:
    """A refusal of the control plane or of admission; the status is the code's unless given."""
    return Reply(status or CONTROL_STATUS[code], to_json({"error": {"code": code, "detail": text}}))


def of_refusal(refused: Refused, retry_after_s: int) -> Reply:
    """The answer to a request that was refused while its cohort stays as it was.

    `retry_after_s` is what `Retry-After` says when a bound was reached.
    """
    if refused.code in ADMISSION_CODES:
        return control(refused.code, refused.text)
    return detail(
        REFUSAL_STATUS[refused.code],
        refused.code,
        refused.text,
        latest_attempt=refused.latest_attempt,
        retry_after_s=retry_after_s if refused.code == "too_busy" else None,
    )


def of_cohort_failure(failed: CohortFailed) -> Reply:
    """The answer to a waiter of a cohort that ended without a verdict: 503 (contract 6)."""
    return detail(503, failed.code, failed.text, latest_attempt=failed.latest_attempt)


def of_invalid(error: InvalidBody) -> Reply:
    """The list shape of a validation error, with the code beside it."""
    entries: list[dict[str, object]] = [
        {"type": p.type, "loc": list(p.loc), "msg": p.msg, "input": p.input} for p in error.problems
    ]
    return Reply(422, to_json({"detail": entries, "code": "invalid_request"}))


def compressed() -> Reply:
    """A body in an encoding of its own (contract 14.21)."""
    reply = detail(
        415, "invalid_request", "the request's body must not be compressed: no Content-Encoding but identity"
    )
    return Reply(reply.status, reply.body, {**reply.headers, "accept-encoding": "identity"})


def unhandled(error: BaseException) -> Reply:
    """What any other exception in a handler becomes: a JSON string of its representation."""
    return Reply(500, to_json(repr(error)))


def cancelled() -> Reply:
    """What a request becomes that was cancelled inside the application while its client is still there."""
    return Reply(500, to_json("Request was cancelled"))


def shutting_down() -> Reply:
    """What everybody is told who waits or comes when the server ends."""
    return detail(503, "shutting_down", "the server is shutting down")


def not_found() -> Reply:
    """No such route."""
    return Reply(404, to_json({"detail": "Not Found"}))


def method_not_allowed(allowed: Sequence[str]) -> Reply:
    """The route exists, for other methods."""
    return Reply(405, to_json({"detail": "Method Not Allowed"}), {**JSON_HEADERS, "allow": ", ".join(allowed)})


def _shortened(value: object) -> object:
    """The value itself when it is small JSON, else what it begins with or is: an error never repeats a whole body."""
    if _is_small(value):
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            return repr(type(value))
        return value
    if isinstance(value, str):
        return value[:MAX_ECHOED_INPUT] + "..."
    size = f" of {len(value)} entries" if isinstance(value, Sized) else ""
    return f"<{type(value).__name__}{size}, too large to repeat>"


def _is_small(value: object) -> bool:
    """Whether a decoded value has little text; looks at no more of it than that."""
    left = MAX_ECHOED_INPUT
    todo = [value]
    while todo and left >= 0:
        found = todo.pop()
        left -= 4
        if isinstance(found, str):
            left -= len(found)
        elif isinstance(found, int):
            left -= found.bit_length() // 3
        elif isinstance(found, Mapping):
            left -= 4 * len(found)
            todo += [part for pair in found.items() for part in pair] if left >= 0 else []
        elif isinstance(found, Sequence):
            left -= 4 * len(found)
            todo += found if left >= 0 else []
    return left >= 0
