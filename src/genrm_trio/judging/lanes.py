"""Connections to one judge endpoint: an httpx2 transport that loses no slot when calls are cancelled.

A pool that scans and assigns connections can strand one when a call is cancelled between two of its steps. Here a
call owns its connection from start to end: it is idle and kept, or it is closed, and nothing waits for another.
The bound on calls in flight is `slots`, before this file. Also seen only here: whether a lost connection was
lost before the reply's first byte.
"""

import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import Any, Final, cast

import httpcore2
import httpx2
import trio

from genrm_trio.judging.faults import NoReply, ReplyCut, ReplyTooLarge
from genrm_trio.judging.framing import Framing, TooMuchFraming

CONNECT_TIMEOUT_S: Final = 10.0
"""A connection that is not there by then counts as unreachable: a dead host must not cost a call's timeout."""
KEEPALIVE_S: Final = 4.0
"""How long an idle connection is kept; below the 5 s after which common model servers close theirs."""
CLOSE_TIMEOUT_S: Final = 1.0
"""How long closing a connection may take."""
CHUNKS_A_TURN: Final = 64
"""Chunks that are read between two turns of the event loop."""
PEER_PROBE_S: Final = (60, 15, 4)
"""A silent peer is probed after 60 s, every 15 s, and given up after 4 probes: a dead host ends a call early."""

Connect = Callable[[str, int], Awaitable[trio.abc.Stream]]


async def open_stream(host: str, port: int) -> trio.abc.Stream:
    """Connect to `host`, and let the kernel find out when the peer's machine is gone. Raises OSError."""
    stream = await trio.open_tcp_stream(host, port)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in zip(("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT"), PEER_PROBE_S, strict=True):
        option = getattr(socket, name, None)  # absent on some systems
        if option is not None:
            stream.setsockopt(socket.IPPROTO_TCP, option, value)
    return stream


class Lanes(httpx2.AsyncBaseTransport):
    """An httpx2 transport for one origin, with as many connections as there are calls in flight.

    Raises `faults.NoReply` and `faults.ReplyCut` for lost connections, httpx2's errors for the rest, and imposes
    no timeout but CONNECT_TIMEOUT_S.
    """

    def __init__(self, *, ssl_context: ssl.SSLContext | None = None, connect: Connect = open_stream) -> None:
        self._ssl_context = ssl_context
        self._connect = connect
        self._idle: list[_Lane] = []  # the last one was used last
        self._open = 0
        self._closed = False

    @property
    def open(self) -> int:
        """How many connections carry a call now."""
        return self._open

    @property
    def idle(self) -> int:
        """How many connections are kept for the next call."""
        return len(self._idle)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; the connection is given back when the response is closed."""
        url = httpcore2.URL(
            scheme=request.url.raw_scheme,
            host=request.url.raw_host,
            port=request.url.port,
            target=request.url.raw_path,
        )
        lane = await self._take(url.origin)
        self._open += 1
        try:
            response = await lane.send(request, url)
        except BaseException:
            await self._give_back(lane, keep=False)
            raise
        return httpx2.Response(
            status_code=response.status, headers=response.headers, stream=_Body(self, lane, response)
        )

    async def aclose(self) -> None:
        """Close the idle connections; those in use close when their call ends."""
        self._closed = True
        idle, self._idle = self._idle, []
        for lane in idle:
            await lane.aclose()

    async def _take(self, origin: httpcore2.Origin) -> "_Lane":
        while self._idle:
            lane = self._idle.pop()
            if lane.fresh(origin):
                return lane
            await lane.aclose()
        if origin.scheme == b"https" and self._ssl_context is None:
            self._ssl_context = httpx2.create_ssl_context()
        return _Lane(origin, self._ssl_context, self._connect)

    async def _give_back(self, lane: "_Lane", *, keep: bool) -> None:
        """Keep a connection whose exchange is over, close any other, and one that has been idle for too long."""
        self._open -= 1
        if lane.reusable and keep and not self._closed:
            self._idle.append(lane)
        else:
            await lane.aclose()
        if self._idle and self._idle[0].expired:
            await self._idle.pop(0).aclose()


class _Lane:
    """One connection, used by one call at a time."""

    def __init__(self, origin: httpcore2.Origin, context: ssl.SSLContext | None, connect: Connect) -> None:
        self._traffic = _Traffic()
        self._connection = httpcore2.AsyncHTTPConnection(
            origin,
            ssl_context=context,
            keepalive_expiry=KEEPALIVE_S,
            network_backend=_Backend(connect, self._traffic),
        )

    @property
    def reusable(self) -> bool:
        """Whether the reply is over and nothing came behind it, which the next call would be given as its own."""
        return self._traffic.framing.ended and self._connection.is_idle() and not self._connection.is_closed()

    @property
    def expired(self) -> bool:
        return self._connection.has_expired()

    def fresh(self, origin: httpcore2.Origin) -> bool:
        """Tell whether the next request for `origin` may go here."""
        return self._connection.can_handle_request(origin) and self.reusable and not self.expired

    async def send(self, request: httpx2.Request, url: httpcore2.URL) -> httpcore2.Response:
        self._traffic.begin()
        stream = cast("httpx2.AsyncByteStream", request.stream)
        core = httpcore2.Request(request.method, url, headers=request.headers.raw, content=stream)
        try:
            return await self._connection.handle_async_request(core)
        except Exception as error:
            raise self.translate(error) from error

    def translate(self, error: Exception) -> Exception:
        """Return httpx2's name, or ours, for an error of httpcore2; any other error as it is."""
        match error:
            case httpcore2.ConnectTimeout():
                return httpx2.ConnectTimeout(str(error))
            case httpcore2.ConnectError():
                return httpx2.ConnectError(str(error))
            case TooMuchFraming():
                return ReplyTooLarge(str(error))
            case httpcore2.NetworkError() | httpcore2.RemoteProtocolError() if self._traffic.lost:
                return (ReplyCut if self._traffic.received else NoReply)(str(error))
            case httpcore2.RemoteProtocolError():
                return httpx2.RemoteProtocolError(str(error))
            case httpcore2.ProtocolError() | httpcore2.UnsupportedProtocol():
                return httpx2.LocalProtocolError(str(error))
            case httpcore2.NetworkError():
                return httpx2.ReadError(str(error))
            case _:
                return error

    async def aclose(self) -> None:
        with trio.move_on_after(CLOSE_TIMEOUT_S, shield=True):
            await self._connection.aclose()
            await self._traffic.aclose()


class _Body(httpx2.AsyncByteStream):
    """A reply's body; its end gives the connection back."""

    def __init__(self, lanes: Lanes, lane: _Lane, response: httpcore2.Response) -> None:
        self._lanes = lanes
        self._lane: _Lane | None = lane
        self._stream = cast("AsyncIterable[bytes]", response.stream)
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        lane = self._lane
        assert lane is not None, "read after close"
        parts = cast("AsyncGenerator[bytes, None]", aiter(self._stream))
        try:
            async with aclosing(parts):
                count = 0
                async for part in parts:
                    yield part
                    count += 1
                    if count % CHUNKS_A_TURN == 0:
                        await trio.lowlevel.checkpoint()
        except (httpcore2.NetworkError, httpcore2.ProtocolError) as error:
            raise lane.translate(error) from error

    async def aclose(self) -> None:
        lane, self._lane = self._lane, None
        if lane is not None:
            with trio.move_on_after(CLOSE_TIMEOUT_S, shield=True):
                await self._response.aclose()
            # Behind an error a late reply may still come, from a proxy that gave up waiting for it.
            await self._lanes._give_back(lane, keep=self._response.status < 300)


class _Traffic:
    """What crossed a connection since the current request began, and the stream it crosses."""

    def __init__(self) -> None:
        self.received = 0  # bytes
        self.lost = False  # the peer closed or reset the connection
        self.framing = Framing()
        self.stream: trio.abc.Stream | None = None

    def begin(self) -> None:
        self.received, self.lost, self.framing = 0, False, Framing()

    async def aclose(self) -> None:
        """Close the stream, also when a cancelled call left it half set up. Idempotent."""
        if self.stream is not None:
            await self.stream.aclose()


class _Backend(httpcore2.AsyncNetworkBackend):
    """Connects, and notes the connection in a `_Traffic` before anything else can fail."""

    def __init__(self, connect: Connect, traffic: _Traffic) -> None:
        self._connect = connect
        self._traffic = traffic

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  the base class's signature
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        with trio.move_on_after(CONNECT_TIMEOUT_S):
            try:
                self._traffic.stream = await self._connect(host, port)
            except OSError as error:
                raise httpcore2.ConnectError(str(error)) from error
            return _Stream(self._traffic.stream, self._traffic)
        raise httpcore2.ConnectTimeout(f"no connection within {CONNECT_TIMEOUT_S} s")


class _Stream(httpcore2.AsyncNetworkStream):
    """A connection's bytes, counted."""

    def __init__(self, stream: trio.abc.Stream, traffic: _Traffic) -> None:
        self._stream = stream
        self._traffic = traffic

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109  as above
        framing = self._traffic.framing
        try:
            data = bytes(await self._stream.receive_some(min(max_bytes, framing.most)))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._traffic.lost = True
            raise httpcore2.ReadError(str(error)) from error
        self._traffic.received += len(data)
        self._traffic.lost = not data
        framing.feed(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109  as above
        try:
            await self._stream.send_all(buffer)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise httpcore2.WriteError(str(error)) from error

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  as above
    ) -> httpcore2.AsyncNetworkStream:
        secure = trio.SSLStream(self._stream, ssl_context, server_hostname=server_hostname, https_compatible=True)
        with trio.move_on_after(CONNECT_TIMEOUT_S):
            try:
                await secure.do_handshake()
            except trio.BrokenResourceError as error:
                raise httpcore2.ConnectError(str(error.__cause__ or error)) from error
            self._traffic.stream = secure
            return _Stream(secure, self._traffic)
        raise httpcore2.ConnectTimeout(f"no TLS connection within {CONNECT_TIMEOUT_S} s")

    def get_extra_info(self, info: str) -> Any:
        """Answer what an idle connection is asked: whether the peer has closed it. HTTP/2 is not spoken."""
        stream: Any = self._stream
        if info == "is_readable":
            while isinstance(stream, trio.SSLStream):
                stream = stream.transport_stream
            sock = getattr(stream, "socket", None)
            return sock is not None and sock.is_readable()
        return None
