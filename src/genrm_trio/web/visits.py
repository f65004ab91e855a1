"""The outer layers of every request: rollout prefix, session cookie, and what follows a reply (contract 1, 2, 3).

Plain ASGI around the application, so that every answer carries the cookie, 404 and 405 included.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

from hypercorn.typing import ASGIReceiveEvent, HTTPScope

from genrm_trio.core.identity import EpisodeId
from genrm_trio.web.cookies import SessionCookies, SessionName, fresh_session_id
from genrm_trio.web.errors import LargeReply, Reply
from genrm_trio.web.prefix import split_prefix
from genrm_trio.web.serving.exchange import LAST_WORD, Application

VISIT = "genrm_trio.visit"
"""The key of the ASGI scope under which a request's Visit is found."""


@dataclass(slots=True)
class Visit:
    """One request as the layers see it.

    episode: from the path prefix. session: from the cookie, or fresh; a typed seed sets its own. headers: added to
    whatever the reply is. after_reply: run once all of the reply was handed to the socket, and not when the
    client was gone before. last_word: gives this reply at once, in place of any later one, if that can be done.
    """

    episode: EpisodeId | None
    session: SessionName
    headers: dict[str, str] = field(default_factory=dict)
    after_reply: list[Callable[[], object]] = field(default_factory=list)
    last_word: Callable[[Reply], None] = lambda _reply: None

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self.session.session_id


Handler: TypeAlias = Callable[[Visit], Awaitable[Reply | LargeReply]]
"""Answers one request; what it raises is its guard's business."""


class Front:
    """Takes the prefix off, finds or mints the session, and puts the cookie on the answer."""

    def __init__(self, app: Application, cookies: SessionCookies) -> None:
        self.app = app
        self.cookies = cookies

    async def __call__(
        self,
        scope: HTTPScope,
        receive: Callable[[], Awaitable[ASGIReceiveEvent]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        """Serve one request."""
        headers = [value.decode("latin-1") for name, value in scope["headers"] if name == b"cookie"]
        episode, raw_path = split_prefix(scope["raw_path"])
        visit = Visit(episode, self.cookies.read(headers) or SessionName(fresh_session_id()))
        inner = cast("dict[str, Any]", scope) | {VISIT: visit, "headers": _for_the_framework(scope["headers"])}
        if episode is not None:
            taken = len(scope["raw_path"]) - len(raw_path)  # the prefix is plain ASCII without percent signs
            inner |= {"raw_path": raw_path, "path": scope["path"][taken:]}

        if give := inner.get(LAST_WORD):
            visit.last_word = lambda reply: give(self._with_session(reply, visit))

        async def send_with_session(message: Any) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode("ascii")) for name, value in self._session_headers(visit)]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                for follow in visit.after_reply:
                    follow()

        await self.app(cast("HTTPScope", inner), receive, send_with_session)

    def _session_headers(self, visit: Visit) -> list[tuple[str, str]]:
        return [("set-cookie", self.cookies.set_cookie(visit.session)), ("vary", "Cookie")]

    def _with_session(self, reply: Reply, visit: Visit) -> Reply:
        """The reply as it goes out."""
        return replace(reply, headers={**reply.headers, **visit.headers, **dict(self._session_headers(visit))})


def _for_the_framework(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """All headers but `Host`, which nothing here depends on: the router would fail at a name that is no host's."""
    return [(name, value) for name, value in headers if name != b"host"]
