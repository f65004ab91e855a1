"""Accepts connections within bounds, guards each one, and drains them when the process is to end.

One task per connection in a nursery that the caller owns; an error in one is logged and ends that connection
alone. Errors in the server's own tasks are raised to the caller.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

from genrm_trio.web import errors
from genrm_trio.web.reports import report
from genrm_trio.web.serving.connection import Connection
from genrm_trio.web.serving.exchange import Application, Exchange, hypercorn_config
from genrm_trio.web.serving.limits import ServingLimits, reads_only

LEAST_IDLE_S = 1.0
"""How long a connection waits for a request before it may have to make room: one that is new is about to send it."""
TURN_AWAY_S = 1.0
"""How long a connection above every bound may take to accept its one answer."""


@dataclass(frozen=True, slots=True)
class Served:
    """One finished exchange, for logs and metrics. `status` is 0 when the client left before its answer began."""

    method: str
    path: bytes
    status: int
    complete: bool
    seconds: float


@dataclass(slots=True)
class Counts:
    """What happened since the start. made_room: idle connections that were closed for others at the bound."""

    accepted: int = 0
    rejected: int = 0
    turned_away: int = 0
    made_room: int = 0
    guarded: int = 0


class Server:
    """Serves one ASGI application. `connections` are open, `answering` the ones whose request is being answered."""

    def __init__(
        self,
        app: Application,
        limits: ServingLimits,
        *,
        essential: Callable[[str, bytes], bool] = reads_only,
        on_served: Callable[[Served], None] | None = None,
        hands_over: bool = False,
    ) -> None:
        """Make a server that does not listen yet.

        `essential(method, path)` says what is served even at the connection bound and while draining. With
        `hands_over` the application takes bodies out of its scope, under `exchange.BODY`, and gets no body message.
        """
        self.app = app
        self.limits = limits
        self.essential = essential
        self.on_served = on_served
        self.hands_over = hands_over
        self.config = hypercorn_config()
        self.draining = False
        self.connections: set[Connection] = set()
        self.counts = Counts()
        self._idle: dict[Connection, float] = {}
        self._answering: dict[Connection, float] = {}
        self._owed: set[Connection] = set()
        self._changed = trio.Event()

    # -- connections -----------------------------------------------------------------------------------

    async def handle(self, stream: trio.abc.HalfCloseableStream) -> None:
        """Serve one connection and close it. Raises nothing that comes of the connection or its requests."""
        self.counts.accepted += 1
        try:
            try:
                await self._serve(stream)
            finally:
                await trio.aclose_forcefully(stream)
        except* Exception as group:  # noqa: BLE001 - whatever it is, it is this connection's alone
            self._guarded(group)

    def _guarded(self, group: BaseExceptionGroup[Exception]) -> None:
        self.counts.guarded += 1
        report("connection_failed", group)

    async def _serve(self, stream: trio.abc.HalfCloseableStream) -> None:
        if len(self.connections) >= self.limits.max_connections:
            self._make_room()
        open_now = len(self.connections)
        if open_now >= self.limits.max_connections + self.limits.refusal_connections:
            await self._turn_away(stream)
            return
        connection = Connection(self, stream, overflow=open_now >= self.limits.max_connections)
        self.connections.add(connection)
        try:
            await connection.run()
        finally:
            self.connections.discard(connection)
            self._notify()

    def _make_room(self) -> None:
        """Close the connection that has waited longest for a request, if one has waited for a while and none has come.

        Idle clients take no room from a member of a cohort that exists, which is never refused (contract 14.15).
        """
        latest = trio.current_time() - LEAST_IDLE_S
        for connection, since in self._idle.items():
            if since > latest:
                return
            if not connection.peer.has_bytes:
                del self._idle[connection]
                self.connections.remove(connection)
                connection.interrupt()
                self.counts.made_room += 1
                return

    async def _turn_away(self, stream: trio.abc.HalfCloseableStream) -> None:
        self.counts.turned_away += 1
        reply = errors.detail(503, "too_busy", "no connection is free", retry_after_s=self.limits.retry_after_s)
        head = "".join(f"{name}: {value}\r\n" for name, value in reply.headers.items())
        head = f"HTTP/1.1 503 \r\n{head}content-length: {len(reply.body)}\r\nconnection: close\r\n\r\n"
        with trio.move_on_after(TURN_AWAY_S):
            try:
                await stream.send_all(head.encode("ascii") + reply.body)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return

    # -- what connections report -----------------------------------------------------------------------

    @property
    def answering_count(self) -> int:
        """Requests that are being answered, held ones included."""
        return len(self._answering)

    def idles(self, connection: Connection, *, idle: bool) -> None:
        """The connection begins or ends to wait for the first byte of a request."""
        if idle and not connection.overflow:
            self._idle[connection] = trio.current_time()
        elif not idle:
            self._idle.pop(connection, None)
            self.connections.add(connection)  # when it was to make room and its request came in the same moment

    def answering(self, connection: Connection) -> None:
        """An exchange began: the server owes an answer."""
        self._answering[connection] = trio.current_time()

    def answered(self, connection: Connection, exchange: Exchange, method: str, path: bytes) -> None:
        """The exchange ended, however it did."""
        began = self._answering.pop(connection)
        self._owed.discard(connection)
        self._notify()
        if self.on_served is not None:
            seconds = trio.current_time() - began
            self.on_served(Served(method, path, exchange.status, exchange.complete, seconds))

    def said_last(self, connection: Connection) -> None:
        """The client has its whole answer, though the exchange goes on: the end need not wait for it."""
        self._owed.discard(connection)
        if not self._owed:
            self._notify()

    def rejected(self, reply: errors.Reply) -> None:
        """A request was answered without the application."""
        self.counts.rejected += 1

    # -- the end ---------------------------------------------------------------------------------------

    def start_draining(self) -> None:
        """From now on each answer ends its connection, and only essential requests reach the application."""
        self.draining = True
        self._owed = set(self._answering)
        for connection in list(self.connections):
            connection.interrupt()

    async def answers_given(self) -> None:
        """Wait until every exchange that ran when draining began has ended."""
        while self._owed:
            await self._changed.wait()

    async def connections_ended(self) -> None:
        """Wait until no connection is open."""
        while self.connections:
            await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


async def listen(host: str, port: int, limits: ServingLimits) -> tuple[list[trio.SocketListener], str]:
    """Open the listening sockets, port 0 for any free one; returns them and the server's URL.

    Raises OSError when the address cannot be had.
    """
    listeners = await trio.open_tcp_listeners(port, host=host, backlog=limits.backlog)
    name, number = listeners[0].socket.getsockname()[:2]
    return list(listeners), f"http://[{name}]:{number}" if ":" in name else f"http://{name}:{number}"


async def serve(
    server: Server,
    listeners: list[trio.SocketListener],
    *,
    shutdown_trigger: Callable[[], Awaitable[object]],
    release: Callable[[], Awaitable[object]],
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `shutdown_trigger` returns, then end within `shutdown_grace_s` whatever clients do.

    The order at the end: new requests are refused; `release` lets held requests have their answers (it is the
    runtime's shutdown); when those are written, the listeners close; what is left is cut. `release` is cut too
    when it outlives the grace. Errors of `shutdown_trigger`, `release` or the listeners are raised.
    """
    limits = server.limits
    async with trio.open_nursery() as connections:
        accepting = trio.CancelScope()

        async def accept() -> None:
            with accepting:
                await trio.serve_listeners(server.handle, listeners, handler_nursery=connections)

        connections.start_soon(accept)
        task_status.started()
        await shutdown_trigger()
        deadline = trio.current_time() + max(limits.shutdown_grace_s - limits.shutdown_reserve_s, 0)
        server.start_draining()
        with trio.move_on_at(deadline):
            await release()
            await server.answers_given()
            accepting.cancel()
            with trio.move_on_after(limits.shutdown_reserve_s):
                await server.connections_ended()
        connections.cancel_scope.cancel()
