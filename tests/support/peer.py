"""An HTTP client that behaves as NeMo Gym's does: kept connections, no timeout, failed connections tried again.

Small and bare, on h11 and Trio: a test may hang up on a request by cancelling it. Nothing of the product is imported.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import h11
import trio

RETRY_S: Final = 0.5
"""How long NeMo Gym's client waits before it sends a request again whose connection failed."""
LARGEST_READ: Final = 65536


class Dropped(Exception):
    """The connection failed before the whole reply was there: refused, reset, or closed."""


@dataclass(frozen=True)
class Reply:
    """One HTTP reply. `headers` has lower-case names, in the order in which they came."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        """The last value of a header, or None."""
        return next((value for key, value in reversed(self.headers) if key == name.lower()), None)

    @property
    def cookies(self) -> dict[str, str]:
        """The cookies that the reply sets, without their attributes."""
        pairs = (value.partition(";")[0].partition("=") for key, value in self.headers if key == "set-cookie")
        return {name: value for name, _, value in pairs}

    @property
    def code(self) -> str | None:
        """The code of a refusal, whichever of the two shapes it has; None for anything else."""
        body = self.json
        if not isinstance(body, dict):
            return None
        found = body["error"].get("code") if isinstance(body.get("error"), dict) else body.get("code")
        return found if isinstance(found, str) else None


class Peer:
    """One server as its clients see it: an address that may come back after a crash.

    Keeps connections that are idle for the next request, as an HTTP client's pool does.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        parts = urlsplit(url)
        assert parts.hostname is not None, f"no host in {url!r}"
        assert parts.port is not None, f"no port in {url!r}"
        self.host, self.port = parts.hostname, parts.port
        self._idle: list[_Connection] = []

    async def ask(
        self, method: str, target: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Send one request and return its reply; raises Dropped.

        body: bytes as they are, None for none, anything else as JSON. Cancelling this hangs up.
        """
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        sent = {"host": f"{self.host}:{self.port}", "content-length": str(len(data))}
        if body is not None:
            sent["content-type"] = "application/json"
        connection = self._idle.pop() if self._idle else await self._connect()
        reply = None
        try:
            reply = await connection.exchange(method, target, {**sent, **(headers or {})}, data)
        finally:
            if reply is not None and connection.reusable:
                self._idle.append(connection)
            else:
                connection.close()
        return reply

    async def insist(
        self, method: str, target: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Send one request again and again, with the same body, until some reply came."""
        while True:
            try:
                return await self.ask(method, target, body, headers)
            except Dropped:
                await trio.sleep(RETRY_S)

    async def _connect(self) -> "_Connection":
        try:
            return _Connection(await trio.open_tcp_stream(self.host, self.port))
        except OSError as error:
            raise Dropped(f"no connection: {error}") from error

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()


class _Connection:
    """One connection, one request at a time."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT)

    @property
    def reusable(self) -> bool:
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    def close(self) -> None:
        self._stream.socket.close()

    async def exchange(self, method: str, target: str, headers: Mapping[str, str], data: bytes) -> Reply:
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        encoded = [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers.items()]
        head = self._http.send(h11.Request(method=method, target=target, headers=encoded)) or b""
        rest = (self._http.send(h11.Data(data=data)) or b"") + (self._http.send(h11.EndOfMessage()) or b"")
        with _dropped():
            await self._stream.send_all(head + rest)
            return await self._receive()

    async def _receive(self) -> Reply:
        found: h11.Response | None = None
        parts = bytearray()
        while not isinstance(event := self._http.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                self._http.receive_data(bytes(await self._stream.receive_some(LARGEST_READ)))
            elif isinstance(event, h11.Response):
                found = event
            elif isinstance(event, h11.Data):
                parts += event.data
            elif isinstance(event, h11.ConnectionClosed):
                raise Dropped("closed before the reply")
        assert found is not None, "a message has a head"
        headers = tuple((name.decode("ascii"), value.decode("latin-1")) for name, value in found.headers)
        return Reply(found.status_code, headers, bytes(parts))


@contextmanager
def _dropped() -> Iterator[None]:
    """Name every way in which a connection fails alike."""
    try:
        yield
    except (trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError) as error:
        raise Dropped(repr(error)) from error
