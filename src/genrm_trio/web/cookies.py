"""The session cookie: which session a request belongs to, signed so that a fresh process knows it again (contract 3.1).

It also says whether a typed seed made the session, which has to survive a crash and which no checkpoint holds. A
cookie that is missing, old, foreign or tampered with is no error: the request gets a fresh session. What a
session is bound to, and when it ends, is the core's.
"""

import json
import re
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from itsdangerous import BadSignature, TimestampSigner
from itsdangerous.encoding import base64_decode, base64_encode

COOKIE_LIFE_S = 14 * 24 * 3600
"""How long a cookie is good for after it was last sent."""

_TOKEN = re.compile(r"[^A-Za-z0-9!#$%&'*+.^_`|~-]")


def fresh_session_id() -> str:
    """A session id that nobody has."""
    return str(uuid.uuid4())


@dataclass(frozen=True, slots=True)
class SessionName:
    """A session's id, and whether a typed seed made it: then its verify reply does not end it (contract 3.4)."""

    session_id: str
    typed: bool = False


class _Signer(TimestampSigner):
    """Signs with a clock that tests can set. Typed sessions are signed apart, so that the value's form is one."""

    def __init__(self, secret: str, clock: Callable[[], float], *, typed: bool) -> None:
        super().__init__(secret, salt="genrm-trio.session.typed" if typed else "genrm-trio.session")
        self._clock = clock

    def get_timestamp(self) -> int:
        return int(self._clock())


class SessionCookies:
    """Reads and writes the session cookie of one server.

    `name` is the server's configured name, `secret` the signing key, `clock` wall-clock seconds. The signature is
    HMAC-SHA1 over the payload and the time of signing.
    """

    def __init__(self, name: str, secret: str, *, clock: Callable[[], float] = time.time) -> None:
        self.cookie_name = _TOKEN.sub("_", name) + "_session"
        self._signers = {typed: _Signer(secret, clock, typed=typed) for typed in (False, True)}
        self._clock = clock

    def read(self, cookie_headers: Iterable[str]) -> SessionName | None:
        """The session of the first cookie of our name that verifies, or None; other cookies are ignored."""
        for header in cookie_headers:
            for pair in header.split(";"):
                name, _, value = pair.strip().partition("=")
                if name != self.cookie_name:
                    continue
                for typed in self._signers:
                    session_id = self._verified(value.strip().strip('"'), typed=typed)
                    if session_id is not None:
                        return SessionName(session_id, typed)
        return None

    def set_cookie(self, session: SessionName) -> str:
        """The `Set-Cookie` header that carries the session, with the time moved to now."""
        payload = base64_encode(json.dumps({"session_id": session.session_id}))
        value = self._signers[session.typed].sign(payload).decode("ascii")
        return f"{self.cookie_name}={value}; path=/; Max-Age={COOKIE_LIFE_S}; httponly; samesite=lax"

    def _verified(self, value: str, *, typed: bool) -> str | None:
        """The session id of a signed value, or None.

        A time of signing ahead of our clock is accepted: after a crash the clock of another machine counts.
        """
        try:
            payload, signed_at = self._signers[typed].unsign(value.encode("utf-8", "replace"), return_timestamp=True)
            data = json.loads(base64_decode(payload))
        except (BadSignature, ValueError, OverflowError):  # a signature, its time, base64 or JSON that is not ours
            return None
        if self._clock() - signed_at.timestamp() > COOKIE_LIFE_S:
            return None
        session = data.get("session_id") if isinstance(data, dict) else None
        return session if isinstance(session, str) and session else None
