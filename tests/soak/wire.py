"""HTTP as lean as it gets, for a client that must be faster than the server, and a judge on the same terms.

Only what this server sends is read: a status line, headers, a content length. What breaks that is an error.
"""

import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import trio
from tests.support.fake_judge import answer, verdict_text

READ_BYTES: Final = 65536
KEEP_IDLE_S: Final = 15.0
"""As NeMo Gym's client; the server keeps them for longer."""
LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
COOKIE: Final = re.compile(rb"\r\nset-cookie: *([^;\r]+)", re.IGNORECASE)
UNJUDGEABLE: Final = b"unjudgeable"


class Dropped(Exception):
    """The connection ended before the reply was there."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply: its head and its body."""

    head: bytes
    body: bytes

    @property
    def status(self) -> int:
        return int(self.head[9:12])

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def cookie(self) -> bytes:
        found = COOKIE.search(self.head)
        assert found is not None, "a reply in the session layer sets its cookie"
        return found[1]


async def read_message(stream: trio.SocketStream, unread: bytearray) -> Reply | None:
    """Read one message; None at an end of the stream before its first byte. What follows it stays in `unread`."""
    while (end := unread.find(b"\r\n\r\n")) < 0:
        part = await stream.receive_some(READ_BYTES)
        if not part:
            if unread:
                raise Dropped
            return None
        unread += part
    head = bytes(unread[:end])
    length = LENGTH.search(head)
    assert length is not None, head
    whole = end + 4 + int(length[1])
    while len(unread) < whole:
        part = await stream.receive_some(READ_BYTES)
        if not part:
            raise Dropped
        unread += part
    body = bytes(unread[end + 4 : whole])
    del unread[:whole]
    return Reply(head, body)


class Client:
    """Requests over connections that are kept."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[float, trio.SocketStream]] = []

    async def ask(self, method: str, path: str, body: bytes = b"", headers: bytes = b"") -> Reply:
        """Send one request and return its reply. Cancelling this hangs up.

        headers: whole lines, each with its end. Raises Dropped.
        """
        head = f"{method} {path} HTTP/1.1\r\nhost: soak\r\ncontent-length: {len(body)}\r\n".encode()
        stream = self._kept() or await trio.open_tcp_stream("127.0.0.1", self._port)
        reply = None
        try:
            await stream.send_all(head + headers + b"\r\n" + body)
            reply = await read_message(stream, bytearray())
        except trio.BrokenResourceError as error:
            raise Dropped from error
        finally:
            if reply is not None:
                self._idle.append((trio.current_time(), stream))
            else:
                stream.socket.close()
        if reply is None:
            raise Dropped
        return reply

    def _kept(self) -> trio.SocketStream | None:
        """The connection that was used last; those that were idle for too long are closed."""
        while self._idle and self._idle[0][0] < trio.current_time() - KEEP_IDLE_S:
            self._idle.pop(0)[1].socket.close()
        return self._idle.pop()[1] if self._idle else None

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop()[1].socket.close()


def _message(status: str, body: object) -> bytes:
    data = json.dumps(body).encode()
    return f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data


VERDICT: Final = _message("200 OK", answer(verdict_text(4, 2, 2)))
REFUSAL: Final = _message("400 Bad Request", {"error": {"message": "such a text is not judged", "code": "bad_request"}})


async def _judge(stream: trio.SocketStream) -> None:
    """Answer whatever comes over one connection."""
    unread = bytearray()
    with suppress(trio.BrokenResourceError, Dropped):  # a server that was killed
        async with stream:
            while (request := await read_message(stream, unread)) is not None:
                await stream.send_all(REFUSAL if UNJUDGEABLE in request.body else VERDICT)


@asynccontextmanager
async def judge() -> AsyncIterator[str]:
    """A judge that prefers whatever comes first and refuses the unjudgeable; yields its address."""
    async with trio.open_nursery() as nursery:
        serve: Callable[..., Any] = partial(trio.serve_tcp, _judge, 0, host="127.0.0.1", handler_nursery=nursery)
        listeners = await nursery.start(serve)
        yield f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()
