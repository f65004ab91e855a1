"""One request and its answer: Hypercorn's HTTPStream speaks ASGI to the application, h11 frames the answer.

The application gets the whole body at once, by message or, when it asks for that, without a copy. It never gets a
disconnect message: when the client leaves, the task that runs it is cancelled. So nothing can end a request after
its last body part was handed over.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, cast

import h11
import trio
from hypercorn.config import Config
from hypercorn.protocol import events
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import (
    AppWrapper,
    ASGIReceiveEvent,
    ASGISendEvent,
    ConnectionState,
    HTTPScope,
    Scope,
)

from genrm_trio.web import errors
from genrm_trio.web.reports import report
from genrm_trio.web.serving.peer import Outgoing, Peer, PeerGone

BODY = "genrm_trio.body"
"""The key of the ASGI scope under which an application that asks for it finds a function that hands it the body."""

LAST_WORD = "genrm_trio.last_word"
"""The key of the ASGI scope under which an application finds `Exchange.last_word`."""

STREAM_ID = 1
FLUSH_BYTES = 64 * 1024


class Application(Protocol):
    """An ASGI application; only `http` scopes are ever given to it."""

    def __call__(
        self,
        scope: HTTPScope,
        receive: Callable[[], Awaitable[ASGIReceiveEvent]],
        send: Callable[[Any], Awaitable[None]],
        /,
    ) -> Awaitable[None]:
        """Answer one request."""


def hypercorn_config() -> Config:
    """Hypercorn's part of the settings: a date in each answer, and no logger of its own."""
    config = Config()
    config.include_server_header = False
    config.errorlog = None
    config.accesslog = None
    return config


class Exchange:
    """Runs the application for one request and writes its answer.

    started: the head of the answer was given by the application. complete: all of it was handed to the socket.
    scope: cancel it when the client is gone. until_started: cancelled when the answer starts.
    on_last_word: called when the kernel has a whole answer of `last_word`.
    """

    def __init__(
        self,
        peer: Peer,
        config: Config,
        *,
        close_after: Callable[[], bool],
        hands_over: bool = False,
        on_last_word: Callable[[], None] = lambda: None,
    ) -> None:
        self.peer = peer
        self.config = config
        self.hands_over = hands_over
        self.close_after = close_after
        self.on_last_word = on_last_word
        self.status = 0
        self.started = False
        self.complete = False
        self.scope = trio.CancelScope()
        self.until_started = trio.CancelScope()
        self._asgi_scope: HTTPScope
        self._asgi_send: Callable[[ASGISendEvent | None], Awaitable[None]]
        self._messages: deque[ASGIReceiveEvent] = deque()
        self._pending = bytearray()
        self._said_last = False

    async def run(
        self, app: Application, request: h11.Request, target: bytes, take_body: Callable[[], bytearray]
    ) -> None:
        """Answer the request. Returns when the application has ended or was cancelled; raises nothing of it."""
        with self.scope:
            await self._open(request, target, take_body)
            try:
                await app(self._asgi_scope, self._receive, self._asgi_send)
            except* Exception as group:  # noqa: BLE001 - whatever it is, it is this request's alone
                await self._failed(group)
            if not self.started:
                await self._answer(errors.cancelled())
            if self._said_last and self._pending:
                await self._flush()
                self.complete = True

    # -- towards the application -----------------------------------------------------------------------

    async def _open(self, request: h11.Request, target: bytes, take_body: Callable[[], bytearray]) -> None:
        client, server = self.peer.addresses()
        stream = HTTPStream(
            _no_wrapper, self.config, WorkerContext(None), self, False, client, server, self._send, STREAM_ID
        )
        await stream.handle(
            events.Request(
                stream_id=STREAM_ID,
                headers=list(request.headers),
                http_version=request.http_version.decode("ascii"),
                method=request.method.decode("ascii"),
                raw_path=target,
                state=ConnectionState({}),
            )
        )
        if self.hands_over:
            added = {BODY: take_body, LAST_WORD: self.last_word}
            self._asgi_scope = cast("HTTPScope", {**self._asgi_scope, **added})
        else:
            await stream.handle(events.Body(stream_id=STREAM_ID, data=bytes(take_body())))
        await stream.handle(events.EndBody(stream_id=STREAM_ID))

    async def _receive(self) -> ASGIReceiveEvent:
        if not self._messages:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        return self._messages.popleft()

    async def _failed(self, group: BaseExceptionGroup[Exception]) -> None:
        error = _only(group)
        report("request_failed_outside_handler", error, path=self._asgi_scope["path"])
        if not self.started:
            await self._answer(errors.unhandled(error))

    # -- Hypercorn's task group, as its stream sees it -------------------------------------------------

    async def spawn_app(
        self,
        app: AppWrapper,
        config: Config,
        scope: Scope,
        send: Callable[[ASGISendEvent | None], Awaitable[None]],
    ) -> Callable[[ASGIReceiveEvent], Awaitable[None]]:
        """Take the scope and the send function; the application runs in the connection's own task."""
        assert scope["type"] == "http", "only HTTP streams are made here"
        self._asgi_scope, self._asgi_send = scope, send
        return self._put

    async def _put(self, message: ASGIReceiveEvent) -> None:
        self._messages.append(message)

    def spawn(self, func: Callable[..., Any], *args: Any) -> None:
        """HTTP streams spawn nothing."""
        raise AssertionError("an HTTP stream spawned a task")

    async def __aenter__(self) -> "Exchange":
        return self

    async def __aexit__(self, *args: object) -> None:
        return

    # -- towards the client ----------------------------------------------------------------------------

    def last_word(self, reply: errors.Reply) -> None:
        """Answer and end the connection, in this step, with as much of it as the kernel takes in it.

        For an application that ends and has thousands to tell so: what it says of this request later is dropped. Does
        nothing once the answer has started.
        """
        if self.started:
            return
        self.started = self._said_last = True
        self.status = reply.status
        if self.peer.closed_writing:  # or nothing will be written that is no answer
            self.until_started.cancel()
        self._pending += _whole(reply, self.config)
        del self._pending[: self.peer.write_now(bytes(self._pending))]
        if not self._pending:
            self.complete = True
            self.on_last_word()

    async def _send(self, event: events.Event) -> None:
        if self._said_last:
            return
        match event:
            case events.Response(status_code=status, headers=headers) if status >= 200:
                self._start(status, headers)
            case events.Body(data=data):
                await self._queue(h11.Data(data=data))
            case events.EndBody():
                await self._queue(h11.EndOfMessage())
                await self._flush()
                self.complete = True
            case _:  # StreamClosed: the connection decides what comes next; interim responses are not needed
                pass

    def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        if self.started:
            raise RuntimeError("the application started a second answer")
        self.started = True
        self.status = status
        self.until_started.cancel()
        headers = [*headers, *self.config.response_headers("h11")]
        if self.close_after():
            headers.append((b"connection", b"close"))
        self._pending += self.peer.http.send(h11.Response(status_code=status, headers=headers))

    async def _queue(self, event: Outgoing) -> None:
        self._pending += self.peer.http.send(event)
        if len(self._pending) >= FLUSH_BYTES:
            await self._flush()

    async def _flush(self) -> None:
        data = bytes(self._pending)
        self._pending.clear()
        try:
            await self.peer.write(data)
        except PeerGone:
            self.scope.cancel()
            await trio.lowlevel.checkpoint()
            raise

    async def _answer(self, reply: errors.Reply) -> None:
        """Give an answer that is not the application's."""
        headers = [(name.encode("ascii"), value.encode("ascii")) for name, value in reply.headers.items()]
        self._start(reply.status, [*headers, (b"content-length", b"%d" % len(reply.body))])
        if self._asgi_scope["method"] != "HEAD":
            await self._queue(h11.Data(data=reply.body))
        await self._send(events.EndBody(stream_id=STREAM_ID))


def _whole(reply: errors.Reply, config: Config) -> bytes:
    """A whole answer that ends its connection, whose parser is asked nothing any more."""
    own = [(name.encode("ascii"), value.encode("ascii")) for name, value in reply.headers.items()]
    own += [(b"content-length", b"%d" % len(reply.body)), *config.response_headers("h11"), (b"connection", b"close")]
    head = b"".join(b"%s: %s\r\n" % line for line in own)
    return b"HTTP/1.1 %d \r\n%s\r\n%s" % (reply.status, head, reply.body)


def _only(error: Exception | BaseExceptionGroup[Exception]) -> Exception:
    """The one error inside groups that hold nothing else, else the group."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    assert isinstance(error, Exception), "a group of exceptions is an exception"
    return error


async def _no_wrapper(
    scope: Scope,
    receive: Callable[[], Awaitable[ASGIReceiveEvent]],
    send: Callable[[Any], Awaitable[None]],
    sync_spawn: Callable[..., Any],
    call_soon: Callable[..., Any],
) -> None:
    """Stands where Hypercorn would have the application started by its task group."""
    raise AssertionError("the application is run by the exchange")
