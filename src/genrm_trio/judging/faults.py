"""Everything that can go wrong with a judge call, classed in one table (contract 7.5 and 14.9).

A `Fault` says what happened, `RULES` what follows from it. Nothing here waits, retries or talks to a network:
`transport` acts on what this file says.
"""

import errno
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any, Final

import httpx2

from genrm_trio.judging.text import shown

ADMISSION_CLOSED: Final = "admission_closed"


class NoReply(httpx2.ReadError):
    """The connection was lost before the first byte of the reply."""


class ReplyCut(httpx2.ReadError):
    """The connection was lost within the reply: an interrupted body."""


class ReplyTooLarge(httpx2.TransportError):
    """The reply is larger than `max_reply_bytes`, or what frames it is larger than any judge needs."""


class Action(StrEnum):
    """What a fault leads to."""

    RETRY = "retry"
    """Sleep, then try again; uses the budget."""
    RETRY_FREE = "retry_without_budget"
    """Try again every 0.5 s until the call's timeout."""
    WAIT = "wait_as_told"
    """Wait as long as `Retry-After` says; uses no budget, and must end before the evaluation deadline."""
    PERMANENT = "permanent"
    """A judge failure at once."""
    PAIR = "failure_of_this_pair"
    """As RETRY, but at the end of the budget the pair has no verdict rather than the judge an error."""
    WITHOUT = "again_without_it"
    """Ask the same endpoint at once without the feature, from then on; uses no budget."""


class Kind(StrEnum):
    """What happened."""

    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    DNS = "dns"
    NO_REPLY = "no_reply"
    ADMISSION = ADMISSION_CLOSED
    THROTTLED = "throttled"
    RATE_LIMITED = "rate_limited"
    UNAVAILABLE = "unavailable"
    REQUEST_TIMEOUT = "request_timeout"
    SERVER_ERROR = "server_error"
    CUT = "cut"
    UNPARSEABLE = "unparseable"
    INCOMPLETE = "incomplete"
    NO_TEXT = "no_text"
    REASONING_ONLY = "reasoning_only"
    TOOL_CALL = "tool_call"
    REFUSAL = "refusal"
    NOT_OBJECT = "not_object"
    ERROR_INSIDE = "error_inside"
    FEATURE = "feature_refused"
    TIMEOUT = "timeout"
    BAD_REQUEST = "bad_request"
    CONTEXT_LENGTH = "context_length"
    UNAUTHORIZED = "unauthorized"
    NOT_FOUND = "not_found"
    HTTP_ERROR = "http_error"
    NOT_JSON = "not_json"
    TOO_LARGE = "too_large"
    PROTOCOL = "protocol"
    TLS = "tls"


@dataclass(frozen=True, slots=True)
class Rule:
    """What follows from a kind of fault.

    `endpoint` tells that it speaks against the endpoint rather than the request, so a panel turns to another
    one; after a PERMANENT fault of that sort a panel asks another endpoint before it gives up.
    """

    action: Action
    endpoint: bool
    meaning: str


RULES: Final[Mapping[Kind, Rule]] = {
    Kind.REFUSED: Rule(Action.RETRY_FREE, True, "nothing listens there"),
    Kind.UNREACHABLE: Rule(Action.RETRY_FREE, True, "no route, or no connection in time"),
    Kind.DNS: Rule(Action.RETRY_FREE, True, "the host's name does not resolve"),
    Kind.NO_REPLY: Rule(Action.RETRY_FREE, True, "the connection was lost before the reply's first byte"),
    Kind.ADMISSION: Rule(Action.RETRY_FREE, True, "the judge is behind a checkpoint of its own"),
    Kind.THROTTLED: Rule(Action.WAIT, True, "429 or 503 with Retry-After"),
    Kind.RATE_LIMITED: Rule(Action.RETRY, True, "429 without Retry-After"),
    Kind.UNAVAILABLE: Rule(Action.RETRY, True, "503 without Retry-After"),
    Kind.REQUEST_TIMEOUT: Rule(Action.RETRY, True, "408"),
    Kind.SERVER_ERROR: Rule(Action.RETRY, True, "any other 5xx"),
    Kind.CUT: Rule(Action.RETRY, True, "the connection was lost within the reply"),
    Kind.UNPARSEABLE: Rule(Action.PAIR, False, "an answer, but no verdict in it"),
    Kind.INCOMPLETE: Rule(Action.PAIR, False, "the answer was not completed"),
    Kind.NO_TEXT: Rule(Action.PAIR, False, "a completed answer without text"),
    Kind.REASONING_ONLY: Rule(Action.PAIR, False, "text only where the reasoning goes"),
    Kind.TOOL_CALL: Rule(Action.PAIR, False, "a tool call instead of text"),
    Kind.REFUSAL: Rule(Action.PAIR, False, "a refusal instead of text"),
    Kind.NOT_OBJECT: Rule(Action.PAIR, False, "JSON, but not an object of the expected form"),
    Kind.ERROR_INSIDE: Rule(Action.PAIR, False, "a 200 with an error inside that names no known class"),
    Kind.FEATURE: Rule(Action.WITHOUT, False, "400 or 422 that names an optional feature of the request"),
    Kind.TIMEOUT: Rule(Action.PERMANENT, True, "no reply in time"),
    Kind.BAD_REQUEST: Rule(Action.PERMANENT, False, "400, 413 or 422"),
    Kind.CONTEXT_LENGTH: Rule(Action.PERMANENT, False, "the comparison does not fit the model's context"),
    Kind.UNAUTHORIZED: Rule(Action.PERMANENT, True, "401 or 403"),
    Kind.NOT_FOUND: Rule(Action.PERMANENT, True, "404 or 405: wrong address or model"),
    Kind.HTTP_ERROR: Rule(Action.PERMANENT, True, "any other status"),
    Kind.NOT_JSON: Rule(Action.PERMANENT, True, "a body that is not JSON: HTML, or nothing"),
    Kind.TOO_LARGE: Rule(Action.PERMANENT, False, "a reply beyond max_reply_bytes, or of absurdly many parts"),
    Kind.PROTOCOL: Rule(Action.PERMANENT, True, "bytes that are not HTTP"),
    Kind.TLS: Rule(Action.PERMANENT, True, "no TLS connection: certificate or protocol"),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that went wrong.

    `error` is the class name for the error text, `detail` its words, `body` the start of the reply, `status` the
    reply's status if there was one, `retry_after` seconds. None of the texts is scrubbed or cut yet.
    """

    kind: Kind
    error: str
    detail: str
    status: int | None = None
    body: str = ""
    retry_after: float | None = None

    @property
    def rule(self) -> Rule:
        """What follows from it."""
        return RULES[self.kind]

    @property
    def action(self) -> Action:
        """What to do about it."""
        return RULES[self.kind].action


def from_exception(error: httpx2.HTTPError) -> Fault:
    """Class what a transport raised."""
    return Fault(_kind_of(error), type(error).__name__, str(error))


def _kind_of(error: httpx2.HTTPError) -> Kind:
    match error:
        case NoReply():
            return Kind.NO_REPLY
        case ReplyCut():
            return Kind.CUT
        case ReplyTooLarge():
            return Kind.TOO_LARGE
        case httpx2.ConnectTimeout():
            return Kind.UNREACHABLE
        case httpx2.TimeoutException():
            return Kind.TIMEOUT
        case httpx2.ConnectError():
            return _why_not_connected(error)
        case httpx2.NetworkError():
            return Kind.NO_REPLY
        case httpx2.DecodingError():
            return Kind.NOT_JSON
        case _:
            return Kind.PROTOCOL


def _why_not_connected(error: BaseException) -> Kind:
    found = list(_causes(error))
    if any(isinstance(e, ssl.SSLEOFError | ssl.SSLZeroReturnError) for e in found):
        return Kind.NO_REPLY
    if any(isinstance(e, ssl.SSLError) for e in found):
        return Kind.TLS
    if any(isinstance(e, socket.gaierror) for e in found):
        return Kind.DNS
    if any(isinstance(e, OSError) and e.errno == errno.ECONNREFUSED for e in found):
        return Kind.REFUSED
    return Kind.UNREACHABLE


def _causes(error: BaseException, depth: int = 8) -> Iterator[BaseException]:
    """Yield an error, what it was raised from and the members of groups, at most `depth` levels down."""
    yield error
    if depth == 0:
        return
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from _causes(member, depth - 1)
    below = error.__cause__ or error.__context__
    if below is not None:
        yield from _causes(below, depth - 1)


def timed_out(within: str, last: Fault | None = None) -> Fault:
    """The call's time is over, `within` says which; `last` is the fault it was retrying, if any."""
    reason = f"; last: {last.error}: {last.detail}" if last else ""
    body, status = (last.body, last.status) if last else ("", None)
    detail = f"no complete reply {within}{reason}"
    return Fault(Kind.TIMEOUT, "TimeoutError", detail, status, body)


def from_status(status: int, headers: Mapping[str, str], body: str, now: float) -> Fault:
    """Class a reply with a status other than 2xx; `now` is Unix time, for a `Retry-After` that is a date."""
    return _fault_of_status(status, status, headers, body, f"the judge answered {status}", now)


def from_error_object(reply: Mapping[str, Any], headers: Mapping[str, str], body: str, now: float) -> Fault | None:
    """Class the error inside a 200 (contract 14.9); None when the reply is not an error object.

    Servers nest it under `error`, or send it bare with `"object": "error"`; codes are numbers or names.
    """
    inside = reply if reply.get("object") == "error" else reply.get("error")
    if not inside:
        return None
    fields: Mapping[str, Any] = inside if isinstance(inside, dict) else {"message": inside}
    message = fields.get("message") or fields.get("code") or fields.get("type") or ""
    detail = f"error inside a 200: {message if isinstance(message, str) else shown(message)}"
    status = _status_inside(fields)
    if status is None:
        return Fault(Kind.ERROR_INSIDE, "HTTPStatusError", detail, 200, body)
    return _fault_of_status(status, 200, headers, body, detail, now)


def _fault_of_status(meant: int, status: int, headers: Mapping[str, str], body: str, detail: str, now: float) -> Fault:
    """Class by the status that is `meant`; the text keeps the one on the wire."""
    wait = retry_after(headers, now) if meant in (429, 503) else None
    if wait is not None:
        return Fault(Kind.THROTTLED, "HTTPStatusError", f"{detail}, Retry-After {wait:g} s", status, body, wait)
    return Fault(_kind_of_status(meant, body), "HTTPStatusError", detail, status, body)


_STATUSES: Final[Mapping[int, Kind]] = {
    400: Kind.BAD_REQUEST,
    401: Kind.UNAUTHORIZED,
    403: Kind.UNAUTHORIZED,
    404: Kind.NOT_FOUND,
    405: Kind.NOT_FOUND,
    408: Kind.REQUEST_TIMEOUT,
    413: Kind.BAD_REQUEST,
    422: Kind.BAD_REQUEST,
    429: Kind.RATE_LIMITED,
    503: Kind.UNAVAILABLE,
}
_CONTEXT = re.compile(r"context_length_exceeded|context length|context window", re.IGNORECASE)
_ADMISSION = re.compile(r'"code"\s*:\s*"' + ADMISSION_CLOSED + '"')


def _kind_of_status(status: int, body: str) -> Kind:
    if status == 409 and _ADMISSION.search(body):
        return Kind.ADMISSION
    if status in (400, 413, 422) and _CONTEXT.search(body):
        return Kind.CONTEXT_LENGTH
    if status >= 500:
        return _STATUSES.get(status, Kind.SERVER_ERROR)
    return _STATUSES.get(status, Kind.HTTP_ERROR)


_NAMED: Final[Mapping[int, tuple[str, ...]]] = {
    400: ("badrequest", "invalidrequest", "invalidprompt", "contextlengthexceeded", "unprocessableentity"),
    401: ("invalidapikey", "authentication", "invalidauthentication", "unauthorized"),
    403: ("permission", "permissiondenied", "forbidden", "insufficientquota"),
    404: ("notfound", "modelnotfound"),
    408: ("timeout", "requesttimeout"),
    429: ("ratelimit", "ratelimitexceeded", "toomanyrequests"),
    500: ("server", "internal", "internalserver", "api", "badgateway"),
    503: ("overloaded", "engineoverloaded", "serviceunavailable", "unavailable"),
}
_BY_NAME: Final = {name: status for status, names in _NAMED.items() for name in names}


def _status_inside(fields: Mapping[str, Any]) -> int | None:
    """Return the HTTP status that an error object means; None when nothing in it is known."""
    for key in ("code", "status", "status_code"):
        value = fields.get(key)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) == 3:
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and 400 <= value <= 599:
            return value
    for key in ("code", "type"):
        value = fields.get(key)
        if isinstance(value, str):
            name = re.sub(r"[^a-z]", "", value.lower()[:64]).removesuffix("error")
            if name in _BY_NAME:
                return _BY_NAME[name]
    return None


_SECONDS = re.compile(r"[0-9]+(?:\.[0-9]+)?", re.ASCII)


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds that `Retry-After` asks to wait, 0 or more; None when it is missing or unreadable.

    A date counts from the reply's own `Date` when it has one, so that clocks need not agree, else from `now`.
    """
    text = headers.get("retry-after", "").strip()
    if _SECONDS.fullmatch(text):
        return float(text)
    then = _unix_time(text)
    if then is None:
        return None
    sent = _unix_time(headers.get("date", "").strip())
    return max(0.0, then - (now if sent is None else sent))


def _unix_time(text: str) -> float | None:
    if not text or len(text) > 64:
        return None
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None
