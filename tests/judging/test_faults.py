"""The table of faults: it is total, and each way a fault is told apart has its row here.

Pure; what the loop does with a class is in `test_budget`, real sockets are in `test_transport_faults`.
"""

import errno
import socket
import ssl
from email.utils import formatdate
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genrm_trio.judging import faults
from genrm_trio.judging.faults import RULES, Action, Kind, NoReply, ReplyCut, ReplyTooLarge


def caused(error: Exception, *below: BaseException) -> Exception:
    top: BaseException = error
    for cause in below:
        top.__cause__ = cause
        top = cause
    return error


def test_every_kind_has_a_rule() -> None:
    assert set(RULES) == set(Kind)
    assert {rule.action for rule in RULES.values()} == set(Action)
    assert all(rule.meaning for rule in RULES.values())


REFUSED = OSError(errno.ECONNREFUSED, "refused")
EXCEPTIONS: list[tuple[Any, Kind]] = [
    (NoReply("x"), Kind.NO_REPLY),
    (ReplyCut("x"), Kind.CUT),
    (ReplyTooLarge("x"), Kind.TOO_LARGE),
    (caused(httpx2.ConnectError("x"), REFUSED), Kind.REFUSED),
    (caused(httpx2.ConnectError("x"), OSError("all failed"), ExceptionGroup("", [REFUSED])), Kind.REFUSED),
    (caused(httpx2.ConnectError("x"), OSError(errno.EHOSTUNREACH, "no route")), Kind.UNREACHABLE),
    (caused(httpx2.ConnectError("x"), socket.gaierror(socket.EAI_AGAIN, "later")), Kind.DNS),
    (caused(httpx2.ConnectError("x"), ssl.SSLCertVerificationError("expired")), Kind.TLS),
    (caused(httpx2.ConnectError("x"), ssl.SSLEOFError("eof")), Kind.NO_REPLY),
    (httpx2.ConnectError("x"), Kind.UNREACHABLE),
    (httpx2.ConnectTimeout("x"), Kind.UNREACHABLE),
    (httpx2.ReadTimeout("x"), Kind.TIMEOUT),
    (httpx2.ReadError("x"), Kind.NO_REPLY),
    (httpx2.WriteError("x"), Kind.NO_REPLY),
    (httpx2.RemoteProtocolError("x"), Kind.PROTOCOL),
    (httpx2.LocalProtocolError("x"), Kind.PROTOCOL),
    (httpx2.DecodingError("x"), Kind.NOT_JSON),
    (httpx2.UnsupportedProtocol("x"), Kind.PROTOCOL),
]


@pytest.mark.parametrize(("error", "kind"), EXCEPTIONS)
def test_exceptions(error: httpx2.HTTPError, kind: Kind) -> None:
    fault = faults.from_exception(error)
    assert fault.kind is kind
    assert fault.error == type(error).__name__


def test_causes_in_a_circle_end() -> None:
    error = httpx2.ConnectError("x")
    error.__cause__ = ValueError("y")
    error.__cause__.__cause__ = error
    assert faults.from_exception(error).kind is Kind.UNREACHABLE


@given(st.integers(300, 599), st.text(max_size=40), st.sampled_from(["", "3", "soon"]))
def test_every_status_has_a_class(status: int, body: str, told: str) -> None:
    fault = faults.from_status(status, {"retry-after": told} if told else {}, body, 0.0)
    if status in (429, 503):
        assert fault.action is (Action.WAIT if told == "3" else Action.RETRY)
    elif status == 408 or status >= 500:
        assert fault.action is Action.RETRY
    else:
        assert fault.action is Action.PERMANENT


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(["code", "type", "status", "message", "status_code"])


@given(
    st.fixed_dictionaries({}, optional={"object": JSON | st.just("error"), "error": st.dictionaries(KEYS, JSON) | JSON})
)
def test_any_reply_can_be_looked_at_for_an_error(reply: dict[str, Any]) -> None:
    fault = faults.from_error_object(reply, {}, "", 0.0)
    if fault is None:
        assert not reply.get("error")
    else:
        assert RULES[fault.kind].action is not Action.RETRY_FREE


def test_an_error_inside_with_a_retry_after_waits() -> None:
    fault = faults.from_error_object({"error": {"code": 429}}, {"retry-after": "4"}, "", 0.0)
    assert fault is not None
    assert (fault.kind, fault.retry_after, fault.status) == (Kind.THROTTLED, 4.0, 200)


@given(st.text(max_size=80))
def test_any_retry_after_is_a_wait_or_nothing(text: str) -> None:
    wait = faults.retry_after({"retry-after": text}, 0.0)
    assert wait is None or wait >= 0.0


@given(st.integers(0, 2**31), st.integers(0, 10**6))
def test_a_date_is_as_far_away_as_it_says(now: int, seconds: int) -> None:
    told = formatdate(now + seconds, usegmt=True)
    assert faults.retry_after({"retry-after": told}, now) == seconds
    skewed = {"retry-after": told, "date": formatdate(now, usegmt=True)}
    assert faults.retry_after(skewed, now + 5000.0) == seconds


def test_the_operators_table_is_this_one() -> None:
    text = (Path(__file__).parent.parent.parent / "docs" / "judges.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert rows == [
        f"| `{kind}` | {rule.meaning} | `{rule.action}` | {'yes' if rule.endpoint else 'no'} |"
        for kind, rule in RULES.items()
    ]
