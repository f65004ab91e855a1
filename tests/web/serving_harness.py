"""A small Quart-Trio application behind the real guarded server on loopback, and raw clients to talk to it."""

import resource
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import h11
import trio
from quart import Response, request
from quart_trio import QuartTrio

from genrm_trio.web.serving import Server, ServingLimits, listen, serve

QUICK = ServingLimits(
    keep_alive_s=0.5,
    header_timeout_s=0.5,
    body_stall_s=0.3,
    body_timeout_s=2.0,
    write_stall_s=0.5,
    linger_s=0.3,
    refused_body_drain_s=2.0,
    half_close_probe_s=0.1,
    shutdown_grace_s=2.0,
    shutdown_reserve_s=0.2,
)
"""Bounds short enough that a test waits for them."""

PATIENT = replace(
    QUICK, keep_alive_s=60.0, header_timeout_s=60.0, body_stall_s=60.0, body_timeout_s=60.0, write_stall_s=60.0
)
"""The same, but no client is cut for being slow: its bytes come from this process, which may stand still meanwhile."""

PATIENCE_S = 30.0
"""How long a test waits for what must happen; other work on the machine may make it slow."""

HELD = b"POST /held HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\nhi"
HEALTH = b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n"


@dataclass
class Held:
    """What the application knows of its held requests."""

    release: trio.Event = field(default_factory=trio.Event)
    waiting: int = 0
    left: int = 0
    bodies: list[bytes] = field(default_factory=list)
    _changed: trio.Event = field(default_factory=trio.Event)

    def changed(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def until(self, *, waiting: int | None = None, left: int | None = None) -> None:
        with trio.fail_after(PATIENCE_S):
            while (waiting is not None and self.waiting != waiting) or (left is not None and self.left != left):
                await self._changed.wait()


def small_app(held: Held) -> QuartTrio:
    app = QuartTrio("small")
    app.config.update(MAX_CONTENT_LENGTH=None, BODY_TIMEOUT=None, RESPONSE_TIMEOUT=None)

    @app.get("/health")
    async def health() -> Response:
        return Response(b'{"status":"ok"}', content_type="application/json")

    @app.post("/echo")
    async def echo() -> Response:
        data = await request.get_data(cache=False, as_text=False, parse_form_data=False)
        assert isinstance(data, bytes)
        return Response(data, content_type="application/octet-stream")

    @app.post("/big")
    async def big() -> Response:
        return Response(b"x" * 50_000_000)

    @app.post("/held")
    async def hold() -> Response:
        data = await request.get_data(cache=False, as_text=False, parse_form_data=False)
        assert isinstance(data, bytes)
        held.waiting += 1
        held.changed()
        try:
            await held.release.wait()
        except trio.Cancelled:
            held.left += 1
            raise
        finally:
            held.waiting -= 1
            held.changed()
        held.bodies.append(data)
        return Response(b"released")

    @app.post("/crash")
    async def crash() -> Response:
        raise ValueError("inside")

    return app


@dataclass
class Running:
    """A server that runs, and how to end it."""

    server: Server
    held: Held
    port: int
    shutdown: trio.Event
    ended: trio.Event
    clients: list["Client"] = field(default_factory=list)

    async def connect(self) -> "Client":
        """A new connection; it is closed at the end of the test, if not before."""
        client = Client(await trio.open_tcp_stream("127.0.0.1", self.port))
        self.clients.append(client)
        return client

    async def talk(self, data: bytes) -> bytes:
        """Send on a connection of its own, read until the server closes it."""
        async with await self.connect() as client:
            await client.send(data)
            return await client.rest()

    async def hold(self, count: int) -> list["Client"]:
        clients: list[Client] = []
        for _ in range(count):
            clients.append(await self.connect())
            await clients[-1].send(HELD)
        await self.held.until(waiting=count)
        return clients


class Client:
    """A raw socket that knows how to read one HTTP answer."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.http = h11.Connection(h11.CLIENT)

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *args: object) -> None:
        await self.stream.aclose()

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def rest(self) -> bytes:
        """Everything until the server closes; a reset ends it too."""
        received = b""
        with trio.fail_after(PATIENCE_S):
            while True:
                try:
                    data = await self.stream.receive_some(65536)
                except trio.BrokenResourceError:
                    return received
                if not data:
                    return received
                received += data

    async def answer(self, method: str = "POST") -> tuple[int, bytes]:
        """Read one answer from the wire: status and body. Interim answers are skipped."""
        parser = h11.Connection(h11.CLIENT)
        parser.send(h11.Request(method=method, target="/", headers=[("host", "t")]))
        parser.send(h11.EndOfMessage())
        status, body = 0, bytearray()
        with trio.fail_after(PATIENCE_S):
            while True:
                event = parser.next_event()
                if event is h11.NEED_DATA:
                    parser.receive_data(await self.stream.receive_some(65536))
                elif isinstance(event, h11.Response):
                    status = event.status_code
                elif isinstance(event, h11.Data):
                    body += event.data
                elif isinstance(event, h11.EndOfMessage):
                    return status, bytes(body)

    async def ask(self, data: bytes, method: str = "POST") -> tuple[int, bytes]:
        await self.send(data)
        return await self.answer(method)


@asynccontextmanager
async def running(limits: ServingLimits = PATIENT, **changes: object) -> AsyncIterator[Running]:
    """The small application on a free port. At the end the server is shut down and must have ended by itself."""
    limits = replace(limits, **changes)  # type: ignore[arg-type]  # the fields' names are checked by replace
    held = Held()
    server = Server(small_app(held), limits)
    shutdown, ended = trio.Event(), trio.Event()

    async def release() -> None:
        held.release.set()

    async def run(task_status: trio.TaskStatus[int]) -> None:
        listeners, url = await listen("127.0.0.1", 0, limits)
        async with trio.open_nursery() as inner:

            async def serve_it(task_status: trio.TaskStatus[None]) -> None:
                await serve(
                    server,
                    listeners,
                    shutdown_trigger=shutdown.wait,
                    release=release,
                    task_status=task_status,
                )

            await inner.start(serve_it)
            task_status.started(int(url.rpartition(":")[2]))
        ended.set()

    async with trio.open_nursery() as nursery:
        port = await nursery.start(run)
        serving = Running(server, held, port, shutdown, ended)
        try:
            yield serving
        finally:
            for client in serving.clients:
                await trio.aclose_forcefully(client.stream)
        shutdown.set()


async def eventually(predicate: Callable[[], bool]) -> None:
    """Wait for something that has no event of its own."""
    with trio.fail_after(PATIENCE_S):
        while not predicate():  # noqa: ASYNC110 - the server tells nobody
            await trio.sleep(0.005)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else -1


def lower_descriptor_limit(limit: int) -> tuple[int, int]:
    """Set the soft limit; returns what was in force."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    return before
