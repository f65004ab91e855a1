"""The whole application behind the guarded server, over in-memory connections, so that time may be virtual."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import h11
import trio
import trio.testing
from tests.support.judges import ScriptedJudge
from tests.support.points import Parking
from tests.support.scene import policy
from tests.web.bodies import as_json, verify

from genrm_trio.checkpoints.store import Store
from genrm_trio.core.identity import EpisodeId
from genrm_trio.runtime.bell import Bell
from genrm_trio.runtime.control import Control
from genrm_trio.runtime.server import Policy, Server
from genrm_trio.web.app import WebApp
from genrm_trio.web.policy import WebPolicy
from genrm_trio.web.serving import Server as HttpServer
from genrm_trio.web.serving import ServingLimits

SECRET = "a secret of the tests"
CONTROL_TOKEN = "controllers only"


@dataclass(frozen=True)
class Answer:
    """One HTTP answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> Any:
        return self.json["code"]

    @property
    def cookie(self) -> str:
        """The session cookie that came with it, as a client sends it back."""
        return self.headers["set-cookie"].partition(";")[0]


class Connection:
    """A client's connection that is kept."""

    def __init__(self, stream: trio.abc.HalfCloseableStream) -> None:
        self.stream = stream
        self.http = h11.Connection(h11.CLIENT)

    async def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> None:
        if self.http.our_state is not h11.IDLE:
            self.http.start_next_cycle()
        all_headers = {"host": "t", "content-length": str(len(body)), **headers}
        encoded = [(name.encode("ascii"), value.encode("latin-1")) for name, value in all_headers.items()]
        head = h11.Request(method=method, target=path, headers=encoded)
        data = self.http.send(head) + self.http.send(h11.Data(data=body)) + self.http.send(h11.EndOfMessage())
        await self.stream.send_all(data)

    async def receive(self) -> Answer:
        head: h11.Response | None = None
        body = bytearray()
        while not isinstance(event := self.http.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                self.http.receive_data(bytes(await self.stream.receive_some(65536)))
            elif isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
        assert head is not None, "an answer has a head"
        return Answer(head.status_code, {k.decode(): v.decode() for k, v in head.headers}, bytes(body))


@dataclass
class Request:
    """A request under way."""

    connection: Connection
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    answer: Answer | None = None

    @property
    def got(self) -> Answer:
        assert self.answer is not None, "no answer yet"
        return self.answer


class Site:
    """A running application and its clients."""

    def __init__(self, server: Server, http: HttpServer, judge: ScriptedJudge, nursery: trio.Nursery) -> None:
        self.server = server
        self.http = http
        self.judge = judge
        self._nursery = nursery
        self._bell = Bell()
        self._heard = Bell()
        server.registry.trace = lambda _event: self._heard.ring()

    def connect(self) -> Connection:
        ours, theirs = trio.testing.memory_stream_pair()
        self._nursery.start_soon(self.http.handle, theirs)
        return Connection(ours)

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = b"",
        *,
        cookie: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Ask on a connection of its own."""
        request = self.begin(method, path, body, cookie=cookie, headers=headers)
        return await self.answered(request)

    def begin(
        self,
        method: str,
        path: str,
        body: Any = b"",
        *,
        cookie: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Request:
        """Start a request and go on; a dict is sent as JSON."""
        request = Request(self.connect())
        raw = body if isinstance(body, bytes) else as_json(body)
        sent = {**({"cookie": cookie} if cookie is not None else {}), **(headers or {})}
        self._nursery.start_soon(self._run, request, method, path, raw, sent)
        return request

    async def _run(self, request: Request, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> None:
        with request.scope:
            await request.connection.send(method, path, body, headers)
            request.answer = await request.connection.receive()
            self._bell.ring()
        await request.connection.stream.aclose()

    async def answered(self, request: Request) -> Answer:
        await self._bell.until(lambda: request.answer is not None)
        return request.got

    def member(self, index: int, *, path: str = "/verify", cookie: str | None = None, **fields: Any) -> Request:
        """Start the `/verify` of one member; its answer's text is a number, so that the judge can score it."""
        return self.begin("POST", path, verify(index, **fields), cookie=cookie)

    async def waiting(self, count: int) -> None:
        """Wait until so many verifications wait for their outcome."""
        await self._heard.until(lambda: len(self.server.registry.waiters) == count)

    async def seeded(self, rollout: str = "0-0") -> str:
        """Seed a session under the rollout's prefix; returns its cookie."""
        answer = await self.ask("POST", f"/ng-rollout/{rollout}/seed_session", {})
        assert answer.status == 200
        return answer.cookie

    def bound_to(self, episode: EpisodeId) -> list[str]:
        return [s.session_id for s in self.server.registry.sessions if s.episode == episode]


@asynccontextmanager
async def site(
    rules: Policy | None = None,
    judge: ScriptedJudge | None = None,
    *,
    limits: ServingLimits | None = None,
    points: Parking | None = None,
    await_restore: bool = False,
    store: Store | None = None,
    **changes: Any,
) -> AsyncIterator[Site]:
    """The application, running; with a control plane when there is a store. `changes` are fields of its WebPolicy."""
    judge = judge or ScriptedJudge()
    server = Server(rules or policy(), judge, points=points, await_restore=await_restore)
    control = Control(server, store, instance="genrm_compare") if store is not None else None
    told = {"checkpoints": True, "control_auth_token": CONTROL_TOKEN, **changes}
    app = WebApp(server, WebPolicy("genrm_compare", SECRET, **told), control=control)
    http = app.http_server(limits or ServingLimits())
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        if control is not None:
            await nursery.start(control.run)
        yield Site(server, http, judge, nursery)
        server.shut_down()
        nursery.cancel_scope.cancel()
    assert http.counts.guarded == 0
