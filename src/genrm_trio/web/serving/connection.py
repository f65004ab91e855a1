"""One connection from its first byte to its end, as a coroutine that reads from top to bottom.

Read a head, read a body, have it answered while watching that the client stays, and so on until either side is
done. Every wait has a bound from `ServingLimits`, but for one: a complete request may be held for ever.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol
from urllib.parse import urlsplit

import h11
import trio
from hypercorn.config import Config

from genrm_trio.web import errors
from genrm_trio.web.serving.exchange import Application, Exchange
from genrm_trio.web.serving.limits import ServingLimits
from genrm_trio.web.serving.peer import FRAMED_BYTES, RECEIVE_BYTES, Peer, PeerGone

CHUNKS_A_TURN = 64
"""Pieces of a body that are parsed before other tasks have their turn."""

LONGEST_FRAME = 1024
"""Bytes that a chunk's size line, or the trailers, may have when they are not complete yet. The parser's time for a bad
line grows with the square of its length.
"""


SHOWN_BYTES = re.compile(r""":? (?:bytearray\()?b['"].*""", re.DOTALL)
"""Where an error of the parser begins to repeat what it was given, in Python's notation."""


class Host(Protocol):
    """What a connection needs of its server."""

    app: Application
    limits: ServingLimits
    config: Config
    essential: Callable[[str, bytes], bool]
    hands_over: bool
    draining: bool

    def idles(self, connection: "Connection", *, idle: bool) -> None:
        """The connection begins or ends to wait for the first byte of a request."""

    def answering(self, connection: "Connection") -> None:
        """An exchange began: the server owes an answer."""

    def answered(self, connection: "Connection", exchange: Exchange, method: str, path: bytes) -> None:
        """The exchange ended, however it did."""

    def said_last(self, connection: "Connection") -> None:
        """The client has its whole answer, though the exchange goes on."""

    def rejected(self, reply: errors.Reply) -> None:
        """A request was answered without the application."""


class Rejected(Exception):
    """This request is answered by the server itself and the connection ends.

    `rest` is how many bytes of its body may be read and dropped, so that the client comes to read the answer.
    """

    def __init__(self, reply: errors.Reply, *, rest: int = 0) -> None:
        super().__init__(reply.status)
        self.reply = reply
        self.rest = rest


def malformed(status: int, text: str, *, rest: int = 0) -> Rejected:
    """A rejection of something that is not a request we can read."""
    return Rejected(errors.detail(status, "invalid_request", text), rest=rest)


class Connection:
    """A client's connection. `overflow` ones are above the bound: one answer, and 503 unless it is essential."""

    def __init__(self, host: Host, stream: trio.abc.HalfCloseableStream, *, overflow: bool) -> None:
        self.host = host
        self.limits = host.limits
        self.peer = Peer(stream, host.limits)
        self.overflow = overflow
        self._interruptible: trio.CancelScope | None = None
        self._head_only = False
        self._head_bytes = 0
        self._body = bytearray()

    async def run(self) -> None:
        """Serve requests until the connection is done. The caller closes the stream."""
        self.peer.watch_host()
        try:
            while await self._one_request():
                self.peer.http.start_next_cycle()
        except PeerGone:
            return

    def interrupt(self) -> None:
        """Stop waiting for a request, or, when the server drains, for the rest of one that will be refused anyway."""
        if self._interruptible is not None:
            self._interruptible.cancel()

    async def _one_request(self) -> bool:
        """Answer one request; returns whether the connection may carry another."""
        try:
            request = await self._read_head()
            if request is None:
                return False
            target = self._check(request)
            self._body = await self._read_body(request, target)
        except Rejected as rejected:
            await self._reject(rejected)
            return False
        complete = await self._answer(request, target)
        if not complete:
            return False
        states = (self.peer.http.our_state, self.peer.http.their_state)
        if states == (h11.DONE, h11.DONE) and not self._last:
            return True
        await self.peer.linger(self.limits.max_request_bytes, self.limits.linger_s)
        return False

    @property
    def _last(self) -> bool:
        return self.overflow or self.host.draining or self.peer.overrun

    # -- reading a request -----------------------------------------------------------------------------

    async def _read_head(self) -> h11.Request | None:
        """The next request's head, or None when the connection is over without one."""
        self._head_only = False
        if not self.peer.read_ahead and not self.peer.closed_writing:
            idle = min(self.limits.keep_alive_s, self.limits.linger_s) if self._last else self.limits.keep_alive_s
            with self._wait(idle) as scope:
                self.host.idles(self, idle=True)
                try:
                    await self.peer.receive()
                finally:
                    self.host.idles(self, idle=False)
            if scope.cancelled_caught:
                return None
        with self._wait(self.limits.header_timeout_s) as scope:
            lines, size = self.peer.unparsed.count(b"\n"), len(self.peer.unparsed)
            while (event := self._next_event()) is h11.NEED_DATA:
                if lines > self.limits.max_header_fields:  # all of them of this head; before they cost anything
                    raise self._too_many_fields()
                data = await self.peer.receive()
                lines, size = lines + data.count(b"\n"), size + len(data)
        if scope.cancelled_caught:
            raise self._shutting_down() if self.host.draining else malformed(408, "the request's head took too long")
        if isinstance(event, h11.ConnectionClosed):
            return None
        assert isinstance(event, h11.Request), "a head is the first thing that a client can send"
        self._head_only = event.method == b"HEAD"
        self._head_bytes = size - len(self.peer.unparsed)
        return event

    def _check(self, request: h11.Request) -> bytes:
        """The path and query that are routed. Raises Rejected for what is not served at all, or not now."""
        headers = dict(request.headers)
        has_body = b"content-length" in headers or b"transfer-encoding" in headers
        rest = self._droppable(0) if has_body else 0
        if self._head_bytes > self.limits.max_header_bytes:  # the parser minds those of an unfinished head only
            raise self._head_too_long(rest=rest)
        if len(request.headers) > self.limits.max_header_fields:
            raise self._too_many_fields(rest=rest)
        if request.http_version not in {b"1.0", b"1.1"}:
            raise malformed(505, "this server speaks HTTP/1.1", rest=rest)
        if request.method == b"CONNECT" or request.method != request.method.upper():
            # Methods are case-sensitive (RFC 9110, 9.1). h11 keeps to that and the framework does not, so that a `head`
            # would be given no body by one and be owed one by the other.
            raise Rejected(errors.method_not_allowed(["GET", "HEAD", "POST"]), rest=rest)
        if b"content-length" in headers and b"transfer-encoding" in headers:
            raise malformed(400, "Content-Length and Transfer-Encoding exclude each other", rest=rest)
        target = _origin_form(request.target)
        if target is None:
            raise malformed(400, "the request target must be a path", rest=rest)
        if not self.host.essential(request.method.decode("ascii"), target.partition(b"?")[0]):
            if self.host.draining:
                raise self._shutting_down(rest=rest)
            if self.overflow:
                raise Rejected(self._too_busy(), rest=rest)
        if has_body and _is_compressed(request):
            raise Rejected(errors.compressed(), rest=rest)
        if int(headers.get(b"content-length", b"0")) > self.limits.max_request_bytes:
            raise Rejected(self._too_large(), rest=rest)
        return target

    async def _read_body(self, request: h11.Request, target: bytes) -> bytearray:
        """The whole body, within the bounds of size and time."""
        body = bytearray()
        length = int(dict(request.headers).get(b"content-length", b"0"))  # 0 for a chunked one
        if self.peer.http.they_are_waiting_for_100_continue:
            await self.peer.send(h11.InformationalResponse(status_code=100, headers=[]))
        got, pieces = len(self.peer.unparsed), 0
        essential = self.host.essential(request.method.decode("ascii"), target.partition(b"?")[0])
        with self._wait(self.limits.body_timeout_s, interruptible=not essential) as total:
            while not isinstance(event := self._next_event(), h11.EndOfMessage):
                if isinstance(event, h11.Data):
                    body += event.data
                    pieces += 1
                    if pieces % CHUNKS_A_TURN == 0:
                        await trio.lowlevel.checkpoint()
                    if len(body) > self.limits.max_request_bytes:
                        raise Rejected(self._too_large(), rest=self._droppable(got))
                    continue
                assert event is h11.NEED_DATA, "a body is data until its end"
                if not length:
                    self._check_framing(got, len(body))
                with trio.move_on_after(self.limits.body_stall_s) as stall:
                    # Of a plain body not a byte more than belongs to it: what follows is a head, and those go slowly.
                    most = min(RECEIVE_BYTES, length - len(body)) if length else FRAMED_BYTES
                    got += len(await self.peer.receive(most))
                if stall.cancelled_caught:
                    break
            else:
                return body
        if total.cancelled_caught and self.host.draining:
            raise self._shutting_down(rest=self._droppable(got))
        raise malformed(408, "the request's body took too long", rest=self._droppable(got))

    def _check_framing(self, got: int, data: int) -> None:
        """Refuse a chunked body of which more than the bound is not data; everything that came is parsed."""
        unparsed = len(self.peer.unparsed)
        if got - data - unparsed > self.limits.max_framing_bytes:
            text = (
                f"the chunks of the request's body take more than {self.limits.max_framing_bytes} bytes beside its data"
            )
            raise Rejected(errors.detail(413, "too_large", text), rest=self._droppable(got))
        if unparsed > LONGEST_FRAME:
            text = f"a chunk's size and extensions, or the trailers, are longer than {LONGEST_FRAME} bytes"
            raise malformed(431, text, rest=self._droppable(got))

    def _next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        try:
            return self.peer.http.next_event()
        except h11.RemoteProtocolError as error:
            if error.error_status_hint == 431:
                raise self._head_too_long() from error
            raise malformed(error.error_status_hint, f"not HTTP/1.1: {SHOWN_BYTES.sub('', str(error))}") from error

    @contextmanager
    def _wait(self, seconds: float, *, interruptible: bool = True) -> Iterator[trio.CancelScope]:
        """A wait for the client that ends after `seconds`, or when the server starts to drain."""
        with trio.move_on_after(seconds) as scope:
            self._interruptible = scope if interruptible else None
            try:
                yield scope
            finally:
                self._interruptible = None

    def _droppable(self, already_read: int) -> int:
        """How much more of a refused body is read and dropped: up to twice the bound together."""
        return 2 * self.limits.max_request_bytes - already_read

    # -- answers of the server itself ------------------------------------------------------------------

    def _shutting_down(self, *, rest: int = 0) -> Rejected:
        return Rejected(errors.detail(503, "shutting_down", "the server is shutting down"), rest=rest)

    def _too_busy(self) -> errors.Reply:
        text = f"all {self.limits.max_connections} connections are in use"
        return errors.detail(503, "too_busy", text, retry_after_s=self.limits.retry_after_s)

    def _too_large(self) -> errors.Reply:
        text = f"the request's body is larger than {self.limits.max_request_bytes} bytes"
        return errors.detail(413, "too_large", text)

    def _too_many_fields(self, *, rest: int = 0) -> Rejected:
        return malformed(431, f"the request's head has more than {self.limits.max_header_fields} lines", rest=rest)

    def _head_too_long(self, *, rest: int = 0) -> Rejected:
        text = f"the request's head is longer than limits.max_header_bytes, {self.limits.max_header_bytes}"
        return malformed(431, text, rest=rest)

    async def _reject(self, rejected: Rejected) -> None:
        """Answer, then read on for a while so that the client gets to read the answer."""
        if self.peer.http.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            return
        reply = rejected.reply
        self.host.rejected(reply)
        headers = [(name, value) for name, value in reply.headers.items()]
        headers += [("content-length", str(len(reply.body))), ("connection", "close")]
        head = h11.Response(status_code=reply.status, headers=headers)
        answer = self.peer.http.send(head)
        if not self._head_only:
            answer += self.peer.http.send(h11.Data(data=reply.body))
        await self.peer.write(answer + self.peer.http.send(h11.EndOfMessage()))
        if rejected.rest:
            await self.peer.linger(rejected.rest, self.limits.refused_body_drain_s)
        else:
            await self.peer.linger(self.limits.max_request_bytes, self.limits.linger_s)

    # -- answers of the application --------------------------------------------------------------------

    def _take_body(self) -> bytearray:
        """The body, once: while a request is held, only the application decides what of it stays in memory."""
        body, self._body = self._body, bytearray()
        return body

    async def _answer(self, request: h11.Request, target: bytes) -> bool:
        """Have the application answer; returns whether the whole answer was handed to the socket."""
        exchange = Exchange(
            self.peer,
            self.host.config,
            close_after=lambda: self._last,
            hands_over=self.host.hands_over,
            on_last_word=lambda: self.host.said_last(self),
        )
        self.host.answering(self)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch, exchange, request.http_version)
                await exchange.run(self.host.app, request, target, self._take_body)
                nursery.cancel_scope.cancel()
        finally:
            self.host.answered(self, exchange, request.method.decode("ascii"), target.partition(b"?")[0])
        return exchange.complete

    async def _watch(self, exchange: Exchange, http_version: bytes) -> None:
        """Cancel the exchange when its client leaves before the answer starts.

        A client that only closed its writing side still wants its answer. A client that closed altogether looks
        the same until it is sent something, so it is sent an interim response, at once and then every
        `half_close_probe_s`. HTTP/1.0 knows no interim responses: there the end of the bytes is the end.
        """
        with exchange.until_started:
            try:
                await self._until_half_closed()
                if http_version != b"1.0" and not exchange.started:
                    await self._until_unreachable()
            except PeerGone:
                pass
            exchange.scope.cancel()

    async def _until_unreachable(self) -> None:
        while True:
            if not await self.peer.probe():
                return
            await trio.sleep(self.limits.half_close_probe_s)

    async def _until_half_closed(self) -> None:
        while not self.peer.closed_writing:
            await self.peer.read_on()


def _is_compressed(request: h11.Request) -> bool:
    """Whether a request says that its body is in another form than the plain one."""
    named = [
        part.strip().lower()
        for name, value in request.headers
        if name == b"content-encoding"
        for part in value.split(b",")
    ]
    return not {b"", b"identity"}.issuperset(named)


def _origin_form(target: bytes) -> bytes | None:
    """Path and query of a request target: an absolute URI is reduced to them, anything else is no path."""
    if target.startswith(b"/"):
        return target
    if target.lower().startswith((b"http://", b"https://")):
        try:
            parts = urlsplit(target)
        except ValueError:
            return None
        return (parts.path or b"/") + (b"?" + parts.query if parts.query else b"")
    return None
