"""The session cookie: its form, and that nothing but our own signature within its life is believed."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genrm_trio.web.cookies import COOKIE_LIFE_S, SessionCookies, SessionName, fresh_session_id

SESSION = SessionName("s")


class Clock:
    def __init__(self) -> None:
        self.now = 1_750_000_000.0

    def __call__(self) -> float:
        return self.now


def cookies(secret: str = "s" * 20, clock: Clock | None = None, name: str = "genrm_compare") -> SessionCookies:
    return SessionCookies(name, secret, clock=clock or Clock())


def value_of(header: str) -> str:
    return header.partition("=")[2].partition(";")[0]


def pair_of(header: str) -> str:
    return header.partition(";")[0]


def test_the_form_of_the_cookie() -> None:
    header = cookies().set_cookie(SessionName("abc"))
    assert header.startswith("genrm_compare_session=")
    assert header.endswith("; path=/; Max-Age=1209600; httponly; samesite=lax")
    payload, stamp, signature = value_of(header).split(".")
    padded = [part + "=" * (-len(part) % 4) for part in (payload, stamp, signature)]
    assert json.loads(base64.urlsafe_b64decode(padded[0])) == {"session_id": "abc"}
    assert int.from_bytes(base64.urlsafe_b64decode(padded[1])) == 1_750_000_000
    assert len(base64.urlsafe_b64decode(padded[2])) == 20


def test_the_name_is_a_cookie_name_whatever_the_server_is_called() -> None:
    assert cookies(name="my server;=").cookie_name == "my_server___session"


@given(st.text(min_size=1))
def test_a_session_comes_back(session_id: str) -> None:
    jar = cookies()
    for typed in (False, True):
        back = jar.read([pair_of(jar.set_cookie(SessionName(session_id, typed)))])
        assert back == SessionName(json.loads(json.dumps(session_id)), typed)


def test_the_time_moves_and_the_session_stays() -> None:
    clock = Clock()
    jar = cookies(clock=clock)
    first = jar.set_cookie(SESSION)
    clock.now += 1000
    assert jar.set_cookie(SESSION) != first
    assert jar.read([pair_of(first)]) == SESSION


def test_an_expired_cookie_is_ignored() -> None:
    clock = Clock()
    jar = cookies(clock=clock)
    header = pair_of(jar.set_cookie(SESSION))
    clock.now += COOKIE_LIFE_S
    assert jar.read([header]) == SESSION
    clock.now += 1
    assert jar.read([header]) is None


def test_a_cookie_signed_by_a_clock_ahead_of_ours_is_believed() -> None:
    clock = Clock()
    header = pair_of(cookies(clock=clock).set_cookie(SESSION))
    clock.now -= 3600
    assert cookies(clock=clock).read([header]) == SESSION


def test_another_secret_is_not_believed() -> None:
    assert cookies("one").read([pair_of(cookies("two").set_cookie(SESSION))]) is None


def test_tampering_is_noticed() -> None:
    jar = cookies()
    name, _, value = pair_of(jar.set_cookie(SESSION)).partition("=")
    for at in range(len(value) - 1):  # the last character carries bits that base64 drops
        changed = value[:at] + ("A" if value[at] != "A" else "B") + value[at + 1 :]
        assert jar.read([f"{name}={changed}"]) is None


@pytest.mark.parametrize("value", ["", ".", "..", "a.b.c", "\ud800", "=", '"', "a" * 100_000, "é.ü.ö"])
def test_garbage_is_ignored(value: str) -> None:
    jar = cookies()
    assert jar.read([f"{jar.cookie_name}={value}"]) is None


def test_a_signed_payload_that_is_no_session_is_ignored() -> None:
    jar = cookies()
    for payload in (b"[]", b'{"session_id":7}', b'{"session_id":""}', b"{", b"\xff"):
        signed = jar._signers[False].sign(base64.urlsafe_b64encode(payload).rstrip(b"=")).decode()
        assert jar.read([f"{jar.cookie_name}={signed}"]) is None


def test_other_cookies_are_ignored() -> None:
    jar = cookies()
    ours = pair_of(jar.set_cookie(SESSION))
    assert jar.read(["agent=1; " + ours + "; other"]) == SESSION
    assert jar.read(["agent=1", f"{jar.cookie_name}=broken; {ours}"]) == SESSION
    assert jar.read([ours.replace("=", '="', 1) + '"']) == SESSION
    assert jar.read([]) is None


def test_fresh_sessions_differ() -> None:
    assert fresh_session_id() != fresh_session_id()
