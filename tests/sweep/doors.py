"""How the clients of a sweep reach the server: the runtime's own methods, or the application behind its HTTP server.

Both say the same things in the same words, so that one scenario and its checks serve for both.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import h11
import trio
import trio.testing
from tests.support.cuts import Cuts
from tests.support.plane import wall
from tests.web.app_harness import CONTROL_TOKEN, SECRET, Answer, Connection
from tests.web.bodies import as_json, response, verify

from genrm_trio.checkpoints.calls import Call, CommitCall, PrepareCall, RestoreCall, ResumeCall, RetireCall
from genrm_trio.checkpoints.errors import ControlRefused
from genrm_trio.core.cohort import Answer as AnswerId
from genrm_trio.core.identity import group_cohort_id, parse_capture_key
from genrm_trio.core.outcome import CohortFailed, JudgeFailed, Refused, Rewarded
from genrm_trio.judging.judge import JudgeError
from genrm_trio.judging.text import AnswerText, Turn
from genrm_trio.runtime.bell import Bell
from genrm_trio.runtime.control import Control
from genrm_trio.runtime.evaluation import Contender
from genrm_trio.runtime.gate import Closing, Stale
from genrm_trio.runtime.server import Server, Verification
from genrm_trio.web.app import WebApp
from genrm_trio.web.policy import WebPolicy
from genrm_trio.web.serving import Server as HttpServer
from genrm_trio.web.serving import ServingLimits

CONTROL = "/ng-control/v1/checkpoint/"
PROMPT = "0" * 64
CALLS: Mapping[str, type[Call]] = {
    "prepare": PrepareCall,
    "commit": CommitCall,
    "resume": ResumeCall,
    "restore": RestoreCall,
    "retire": RetireCall,
}


@dataclass(frozen=True)
class Said:
    """What a client was told: `reward`, `masked` or `ok`, else the code of the refusal; `cut` when it hung up.

    `dropped`: the connection ended without an answer.
    """

    word: str
    reward: float | None = None
    body: Mapping[str, Any] | None = None


CUT = Said("cut")


@dataclass(frozen=True)
class Post:
    """A `/verify`: whose answer it is, and the session and episode it is sent under. The answer's text is a number."""

    group: str
    attempt: int
    index: int
    text: str
    session: str
    key: str


class Door(Protocol):
    """One server as its clients reach it."""

    async def seed(self, session: str, key: str) -> Said: ...

    async def verify(self, post: Post) -> Said: ...

    async def close(self, session: str, key: str) -> Said: ...

    async def compare(self, texts: list[str]) -> Said: ...

    async def control(self, name: str, **body: Any) -> Said: ...

    async def end(self) -> None:
        """The server is going, and every waiter has its answer: end the requests that still run."""


class RuntimeDoor:
    """Calls the runtime, as the web room does."""

    def __init__(self, server: Server, control: Control, cuts: Cuts) -> None:
        self._server = server
        self._control = control
        self._cuts = cuts
        self._running: set[trio.CancelScope] = set()
        self._bell = Bell()

    @contextmanager
    def _request(self, kind: str, label: str) -> Iterator[None]:
        with self._cuts.watched(kind, label), trio.CancelScope() as scope:
            self._running.add(scope)
            try:
                yield
            finally:
                self._running.remove(scope)
                self._bell.ring()

    async def end(self) -> None:
        for scope in self._running:
            scope.cancel()
        await self._bell.until(lambda: not self._running)

    async def seed(self, session: str, key: str) -> Said:
        episode = parse_capture_key(key)
        said = CUT
        with self._request("request", f"seed {key}"):
            try:
                async with self._server.gate.enter("seed", session, episode):
                    await trio.sleep(0.2)
                    reply = self._server.seed(session, episode, binds=True, typed=True)
                    said = Said("ok" if reply in {"bound", "closed"} else reply)
            except Stale:
                said = Said("stale_attempt")
            except Closing:
                said = Said("shutting_down")
        return said

    async def verify(self, post: Post) -> Said:
        said = CUT
        with self._request("request", f"verify {post.key}"):
            try:
                async with self._server.gate.enter("verify", post.session, parse_capture_key(post.key)):
                    answer = await self._server.verify(_asked(post))
                    match answer:
                        case Rewarded(fields=fields):
                            said = Said("reward", fields["reward"])  # type: ignore[arg-type]  # a reward is a number
                        case JudgeFailed():
                            said = Said("masked")
                        case CohortFailed(code=code) | Refused(code=code):
                            said = Said(code)
            except Closing:
                said = Said("shutting_down")
        return said

    async def close(self, session: str, key: str) -> Said:
        said = CUT
        with self._request("request", f"close {key}"):
            try:
                async with self._server.gate.enter("close", session, parse_capture_key(key)):
                    await trio.lowlevel.checkpoint()
                    self._server.end_session(session, "close")
                    said = Said("ok")
            except Closing:
                said = Said("shutting_down")
        return said

    async def compare(self, texts: list[str]) -> Said:
        said = CUT
        with self._request("request", "compare"):
            try:
                async with self._server.gate.enter("plain", None, None):
                    await self._server.compare([_contender(text) for text in texts])
                    said = Said("ok")
            except JudgeError:
                said = Said("judge_failed")
            except Closing:
                said = Said("shutting_down")
            except Exception:  # noqa: BLE001 - the web room's guard makes a 500 of whatever the judge raises
                said = Said("500")
        return said

    async def control(self, name: str, **body: Any) -> Said:
        said = CUT
        with self._request("control", name):
            call = CALLS[name].model_validate(body)
            try:
                said = Said("ok", body=await getattr(self._control, name)(call))
            except ControlRefused as refused:
                said = Said("shutting_down" if refused.status == 503 else refused.code)
        return said


def _contender(text: str) -> Contender:
    return Contender((Turn("user", "prompt"),), AnswerText("", text))


def _asked(post: Post) -> Verification:
    return Verification(
        cohort=group_cohort_id(post.group, post.attempt),
        index=post.index,
        prompt=PROMPT,
        answer=AnswerId({"genrm-trio-1": post.text}, post.text),
        contender=_contender(post.text),
        session=post.session,
        episode=parse_capture_key(post.key),
    )


class WebDoor:
    """Asks the application over in-memory connections, each request on one of its own.

    nursery: where the server's side of the connections runs. cookies: by session id; a client keeps them over crashes.
    """

    def __init__(
        self, server: Server, control: Control, cuts: Cuts, nursery: trio.Nursery, cookies: dict[str, str]
    ) -> None:
        policy = WebPolicy("genrm_compare", SECRET, checkpoints=True, control_auth_token=CONTROL_TOKEN)
        self.http: HttpServer = WebApp(server, policy, control=control).http_server(ServingLimits())
        self._cuts = cuts
        self._nursery = nursery
        self._cookies = cookies

    async def seed(self, session: str, key: str) -> Said:
        task = {"taskset": "t", "task_id": "1"}
        body = {"resources_session_id": session, "episode_id": _episode(key), "task_id": task, "task_data": {}}
        answer = await self._ask(f"/ng-rollout/{key}/seed_session", body)
        if isinstance(answer, Answer) and answer.status == 200:
            self._cookies[session] = answer.cookie
        return _said(answer)

    async def verify(self, post: Post) -> Said:
        answer = response(text=post.text, reasoning="")
        body = verify(post.index, post.group, response=answer, _ng_group_attempt=post.attempt)
        return _said(await self._ask(f"/ng-rollout/{post.key}/verify", body, cookie=self._cookies.get(post.session)))

    async def close(self, session: str, key: str) -> Said:
        body = {"resources_session_id": session, "episode_id": _episode(key)}
        return _said(await self._ask(f"/ng-rollout/{key}/close_session", body, cookie=self._cookies.get(session)))

    async def compare(self, texts: list[str]) -> Said:
        objects = [response(text=text, reasoning="") for text in texts]
        return _said(await self._ask("/compare", {"conversation_history": [], "response_objs": objects}))

    async def control(self, name: str, **body: Any) -> Said:
        return _said(await self._ask(CONTROL + name, body, authorization=f"Bearer {CONTROL_TOKEN}"))

    async def end(self) -> None:
        """Connections end with the server's nursery."""

    async def _ask(self, path: str, body: Any, **headers: str | None) -> Answer | Said:
        ours, theirs = trio.testing.memory_stream_pair()
        sent = {name: value for name, value in headers.items() if value is not None}
        with trio.CancelScope() as client:
            self._nursery.start_soon(self._serve, theirs, "control" if path.startswith(CONTROL) else "request", client)
            try:
                connection = Connection(ours)
                await connection.send("POST", path, as_json(body), sent)
                return await connection.receive()
            except (h11.RemoteProtocolError, trio.BrokenResourceError):
                return Said("dropped")
            finally:
                await trio.aclose_forcefully(ours)
        return CUT

    async def _serve(self, stream: trio.abc.HalfCloseableStream, kind: str, client: trio.CancelScope) -> None:
        with self._cuts.watched(kind, "connection", cancels=client):
            await self.http.handle(stream)


def _episode(key: str) -> dict[str, Any]:
    episode = parse_capture_key(key)
    return {"rollout_id": episode.rollout_id, "attempt": episode.attempt}


def _said(answer: Answer | Said) -> Said:
    if isinstance(answer, Said):
        return answer
    body = answer.json
    if answer.status == 200:
        if "mask_sample" in body:
            return Said("masked") if body["mask_sample"] else Said("reward", body["reward"])
        return Said("ok", body=body)
    if not isinstance(body, dict):
        return Said(str(answer.status))
    if isinstance(body.get("error"), dict):
        return Said("shutting_down" if answer.status == 503 else body["error"]["code"])
    return Said(body["code"])


def deadline(seconds: float) -> float:
    """A control call's deadline so many seconds from now."""
    return wall() + seconds
