"""The application: which handler answers which route, who may ask, who has to wait, and what an error becomes.

Layers as in contract 1, outermost first: the server cancels on disconnect; Front takes the prefix and the cookie;
Quart routes; then come the bearer token, admission, and the handler under a guard. Lifespan and `app.nursery` of
Quart-Trio are not used: nothing may run where its crash is swallowed.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, cast

import trio
from hypercorn.typing import ASGIReceiveEvent, HTTPScope
from quart import Response, request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound

from genrm_trio.runtime.control import Control
from genrm_trio.runtime.gate import Closing, Kind, Stale
from genrm_trio.runtime.server import Server
from genrm_trio.web import errors
from genrm_trio.web.control_routes import ControlRoutes
from genrm_trio.web.cookies import SessionCookies
from genrm_trio.web.errors import InvalidBody, LargeReply, Pieces, Reply, TooLarge
from genrm_trio.web.policy import WebPolicy
from genrm_trio.web.prefix import split_prefix
from genrm_trio.web.reports import report
from genrm_trio.web.requests import Reading
from genrm_trio.web.routes import DataRoutes, ok
from genrm_trio.web.serving import Server as HttpServer
from genrm_trio.web.serving import ServingLimits, serve
from genrm_trio.web.serving.exchange import Application
from genrm_trio.web.serving.server import Served
from genrm_trio.web.tokens import bearer_is, unauthorized
from genrm_trio.web.visits import VISIT, Front, Handler, Visit

HEALTH_PATHS = ("/", "/health", "/healthz", "/livez", "/readyz")
CONTROL_PATH = "/ng-control/"
SLICE_BYTES = 128 * 1024
READING_METHODS = frozenset({"GET", "HEAD"})


class WebApp:
    """The ASGI application of one runtime server.

    `control` is the control plane when checkpoints are on; without it those routes are 404. `metrics` gives the
    exposition and its media type for `GET /metrics`; without it there is no such route.
    """

    def __init__(
        self,
        server: Server,
        policy: WebPolicy,
        *,
        control: Control | None = None,
        metrics: Callable[[], tuple[bytes, str]] | None = None,
    ) -> None:
        self._server = server
        self._policy = policy
        self._metrics = metrics
        reading = Reading(policy.max_json_values)
        self._data = DataRoutes(server, policy, reading)
        self._control = None
        if control is not None:
            assert policy.control_auth_token, "start-up refuses checkpoints without a token"
            self._control = ControlRoutes(control, policy.control_auth_token, reading)
        self.draining = False
        self._paths: set[str] = set()
        self._quart = _bare_quart()
        self._add_routes()
        self._front = Front(cast("Application", self._quart), SessionCookies(policy.name, policy.session_secret))

    async def __call__(
        self,
        scope: HTTPScope,
        receive: Callable[[], Awaitable[ASGIReceiveEvent]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        """Serve one request."""
        await self._front(scope, receive, send)

    @staticmethod
    def essential(method: str, path: bytes) -> bool:
        """What is served at the connection bound and while draining: requests that only read, and control calls."""
        return method in READING_METHODS or split_prefix(path)[1].startswith(CONTROL_PATH.encode("ascii"))

    # -- routes ----------------------------------------------------------------------------------------

    def _add_routes(self) -> None:
        data: dict[str, tuple[Kind, Handler]] = {
            "/verify": ("verify", self._data.verify),
            "/seed_session": ("seed", self._data.seed_session),
            "/close_session": ("close", self._data.close_session),
            "/compare": ("plain", self._data.compare),
            "/aggregate_metrics": ("plain", self._data.aggregate),
            "/sandbox_access": ("tool", self._data.sandbox_access),
        }
        for path, (kind, handler) in data.items():
            self._add("POST", path, self._admitted(kind, handler))
        for path in HEALTH_PATHS:
            self._add("GET", path, self._ready if path == "/readyz" else self._health)
        self._add("GET", "/reverify_mode", self._data.reverify_mode)
        if self._control is not None:
            for (method, path), handler in self._control.routes().items():
                self._add(method, path, handler)
        if self._metrics is not None:
            self._paths.add("/metrics")
            self._quart.add_url_rule("/metrics", "GET /metrics", self._metrics_view, methods=["GET"])
        self._quart.register_error_handler(HTTPException, self._http_error)

    def _add(self, method: str, path: str, handler: Handler) -> None:
        async def view() -> Response:
            if request.scope["path"] != path:  # the router takes any number of slashes for one
                raise NotFound
            return await _guarded(handler)

        self._paths.add(path)
        self._quart.add_url_rule(path, f"{method} {path}", view, methods=[method])

    async def _health(self, visit: Visit) -> Reply:
        return ok(b'{"status":"ok"}')

    async def _ready(self, visit: Visit) -> Reply:
        if self.draining or self._server.registry.closed:
            return Reply(503, b'{"status":"draining"}')
        return await self._health(visit)

    async def _metrics_view(self) -> Response:
        assert self._metrics is not None, "the route exists only with metrics"
        body, media_type = self._metrics()
        return Response(body, content_type=media_type)

    async def _http_error(self, error: Exception) -> Response:
        """What the router refuses. A POST to an unknown path is a tool call, which waits and counts like one."""
        assert isinstance(error, HTTPException), "registered for these"
        if isinstance(error, MethodNotAllowed) and request.scope["path"] in self._paths:
            reply = errors.method_not_allowed(sorted(error.valid_methods or ()))
        elif error.code in {404, 405}:  # a 405 for a path that is only nearly one of ours is a 404
            reply = errors.not_found()
        else:
            reply = Reply(error.code or 500, errors.to_json({"detail": error.name}))

        async def refuse(visit: Visit) -> Reply:
            return reply

        is_tool = reply.status == 404 and request.method not in READING_METHODS
        if is_tool and not request.path.startswith(CONTROL_PATH):
            return await _guarded(self._admitted("tool", refuse))
        return await _guarded(refuse)

    # -- who may ask -----------------------------------------------------------------------------------

    def _admitted(self, kind: Kind, handler: Handler) -> Handler:
        """A data route: the token first, then admission, then the handler."""

        async def enter(visit: Visit) -> Reply | LargeReply:
            if not bearer_is(self._policy.data_auth_token):
                return unauthorized()
            last_word = partial(visit.last_word, errors.shutting_down())
            try:
                async with self._server.gate.enter(kind, visit.session_id, visit.episode, at_shutdown=last_word):
                    return await handler(visit)
            except Stale as stale:
                return errors.control("stale_attempt", str(stale))
            except Closing:
                return errors.shutting_down()

        return enter

    # -- running ---------------------------------------------------------------------------------------

    def http_server(self, limits: ServingLimits, *, on_served: Callable[[Served], None] | None = None) -> HttpServer:
        """The HTTP server that serves this application within these bounds."""
        return HttpServer(self, limits, essential=self.essential, on_served=on_served, hands_over=True)

    async def serve(
        self,
        http: HttpServer,
        listeners: list[trio.SocketListener],
        *,
        shutdown_trigger: Callable[[], Awaitable[object]],
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until `shutdown_trigger` returns; then held requests get their 503, and all ends within the grace.

        The runtime server must be running, and goes on running until this returns.
        """

        async def release() -> None:
            self.draining = True
            self._server.shut_down()

        await serve(http, listeners, shutdown_trigger=shutdown_trigger, release=release, task_status=task_status)


async def _guarded(handler: Handler) -> Response:
    """Run a handler; whatever it raises becomes this request's answer and nobody else's trouble."""
    visit: Visit = request.scope[VISIT]  # type: ignore[literal-required]  # our own key in the ASGI scope
    try:
        reply: Reply | LargeReply = await handler(visit)
    except InvalidBody as error:
        reply = errors.of_invalid(error)
    except TooLarge as error:
        reply = errors.detail(413, "too_large", str(error))
    except Exception as error:  # noqa: BLE001 - it is logged whole and told to the client (contract 1.2)
        report("request_failed", error, path=request.path)
        reply = errors.unhandled(error)
    if isinstance(reply, Reply):
        return Response(reply.body, reply.status, {**reply.headers, **visit.headers})
    length = sum(len(piece) for piece in reply.pieces)
    headers = {**errors.JSON_HEADERS, "content-length": str(length), **visit.headers}
    return Response(_sliced(reply.pieces), 200, headers)


async def _sliced(pieces: Pieces) -> AsyncIterator[bytes]:
    """A reply in slices, so that one of many megabytes is never copied whole and others get their turn."""
    pending = bytearray()
    for piece in pieces:
        for at in range(0, len(piece), SLICE_BYTES):
            pending += piece[at : at + SLICE_BYTES]
            if len(pending) >= SLICE_BYTES:
                yield bytes(pending)
                pending.clear()
    yield bytes(pending)


def _bare_quart() -> QuartTrio:
    """Quart with nothing of its own in the way: no static files, redirects, automatic methods, or bounds."""
    app = QuartTrio("genrm_trio", static_folder=None)
    app.config.update(
        MAX_CONTENT_LENGTH=None,
        BODY_TIMEOUT=None,
        RESPONSE_TIMEOUT=None,
        PROVIDE_AUTOMATIC_OPTIONS=False,
        TRAP_HTTP_EXCEPTIONS=False,
        PROPAGATE_EXCEPTIONS=False,
    )
    app.url_map.merge_slashes = False
    return app
