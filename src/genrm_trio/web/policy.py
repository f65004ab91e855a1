"""What the web room is configured with, besides the bounds of the server and the runtime's own policy."""

from dataclasses import dataclass

INLINE_BYTES = 256 * 1024
"""Bodies up to this size are read on the event loop; a thread for them would cost more than it saves."""

READING_THREADS = 1
"""Large bodies that are read and digested at once: the interpreter runs one at a time anyway."""


@dataclass(frozen=True, slots=True)
class WebPolicy:
    """Settings of the HTTP surface (contract 3 and 13).

    name: the server's configured name, the start of its cookie's name. session_secret: signs the cookie.
    data_auth_token: bearer token that POST data routes require; None for none. checkpoints: seeds announce
    `replay`. control_auth_token: bearer token of the control plane. max_aggregate_numbers: rows of one
    `/aggregate_metrics`, and the numbers in them, together. max_json_values: texts, objects and arrays of any body.
    retry_after_s: in the `Retry-After` header at a bound.
    """

    name: str
    session_secret: str
    close_follows_header: str = "x-ng-close-follows"
    data_auth_token: str | None = None
    checkpoints: bool = False
    control_auth_token: str | None = None
    max_aggregate_numbers: int = 2_097_152
    max_json_values: int = 4_194_304
    retry_after_s: int = 1
