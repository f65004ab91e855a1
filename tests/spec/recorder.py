"""Random afternoons of the running server, recorded: the real application over in-memory connections, virtual time.

Clients seed, verify, hang up, ask twice, come without cookie or prefix, give another answer, close or forget to. The
judge is slow, wrong, broken or silent. A controller takes checkpoints, retires, lets its lease run out; processes die,
and fresh ones restore. What the core emits meanwhile is one trace for each process. A seed repeats an afternoon.
"""

import io
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import h11
import trio
import trio.testing
from tests.support.cuts import run_in_order
from tests.support.plane import INSTANCE, RULES, wall
from tests.support.scene import policy
from tests.web.app_harness import CONTROL_TOKEN, SECRET, Answer, Connection
from tests.web.bodies import as_json, response, verify

from genrm_trio.checkpoints.memory import MemoryFolder
from genrm_trio.checkpoints.store import MemoryStore
from genrm_trio.core.trace import Event
from genrm_trio.judging.judge import Answered, Ask, JudgeError
from genrm_trio.judging.slots import Ticket
from genrm_trio.judging.verdict import Verdict
from genrm_trio.ops.tla.traces import Bounds, Recorded
from genrm_trio.ops.tracing import TraceFile
from genrm_trio.runtime.bell import Bell
from genrm_trio.runtime.control import Control
from genrm_trio.runtime.server import Server
from genrm_trio.web.app import WebApp
from genrm_trio.web.policy import WebPolicy
from genrm_trio.web.serving import Server as HttpServer
from genrm_trio.web.serving import ServingLimits

BOUNDS: Final = Bounds(cohort_size=2, max_terminal_cohorts=2)
HOURS: Final = 300.0
CONTROL: Final = "/ng-control/v1/checkpoint/"
LIMITS: Final[dict[str, object]] = {
    "max_terminal_cohorts": BOUNDS.max_terminal_cohorts,
    "cohort_result_ttl_s": 60.0,
    "session_idle_ttl_s": 90.0,
    "max_held_members": 7,
}
SERVED: Final = policy(BOUNDS.cohort_size, limits=LIMITS, evaluation_timeout_s=20.0)


class MoodyJudge:
    """Thinks of each answer what its number is; now and then fails, breaks, or says nothing for ever."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    async def compare(self, ask: Ask, slot: Ticket) -> Answered:
        async with slot.slot():
            await trio.sleep(self._chance.choice((0.0, 0.5, 3.0, 8.0)))
            mood = self._chance.random()
            if mood < 0.04:
                await trio.sleep_forever()
        if mood < 0.10:
            raise JudgeError("the judge is dead")
        if mood < 0.13:
            raise ZeroDivisionError("a defect in the judge")
        first, second = float(ask.response_1), float(ask.response_2)
        return Answered(Verdict(first, second, 1.0 if first > second else 6.0), None, None, "")

    async def aclose(self) -> None:
        """Nothing to give back."""


@dataclass
class Group:
    """A group of rollouts; the attempt that its members are at is theirs together. `name` None: it has no group id."""

    name: str | None
    attempt: int = 0


@dataclass
class Client:
    """One rollout: its place in its group, its episode, its session's cookie, and its answer."""

    group: Group
    index: int
    rollout: str
    episode: int = 0
    answer: int = 1
    cookie: str | None = None
    done: bool = False

    @property
    def key(self) -> str:
        return f"{self.rollout}-a{self.episode}" if self.episode else self.rollout

    def start_over(self) -> None:
        """From the input on: the next episode attempt, a new session, another answer."""
        self.episode, self.answer, self.cookie = self.episode + 1, self.answer + 1, None


@dataclass
class Process:
    """One life of the server, as its clients reach it."""

    server: Server
    http: HttpServer
    nursery: trio.Nursery


class Afternoon:
    """One of them. `traces` has one trace file for each process, in their order."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.traces: list[io.BytesIO] = []
        self.judge = MoodyJudge(self.chance)
        names = ("a", "b", "c", None)[: self.chance.randint(2, 4)]
        self.clients = [
            Client(group, index, f"r{n}-{index}")
            for n, group in enumerate(Group(name) for name in names)
            for index in range(BOUNDS.cohort_size)
        ]
        self.process: Process | None = None
        self.restored: set[str] = set()
        self._folders: dict[str, MemoryFolder] = {}
        self._bell = Bell()
        self._checkpoints = 0

    async def run(self) -> None:
        with trio.move_on_after(HOURS):
            async with trio.open_nursery() as nursery:
                for client in self.clients:
                    nursery.start_soon(self._live, client)
                saved: tuple[str, list[str]] | None = None
                while True:
                    async with self._running():
                        if saved is not None:
                            await self._restore(*saved)
                        saved = await self._control_until_crash() or saved

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        """A process, until the block ends: then it is killed, or shuts down."""
        store = MemoryStore(INSTANCE)
        store.folders = self._folders
        async with trio.open_nursery() as nursery:
            server = Server(SERVED, self.judge, await_restore=bool(self.traces))
            control = Control(server, store, instance=INSTANCE, rules=RULES, wall=wall)
            web = WebPolicy(INSTANCE, SECRET, checkpoints=True, control_auth_token=CONTROL_TOKEN)
            http = WebApp(server, web, control=control).http_server(ServingLimits())
            self.process = Process(server, http, nursery)
            self.traces.append(io.BytesIO())
            server.registry.trace = file = TraceFile(self.traces[-1])
            file.begin(SERVED.limits)
            await nursery.start(server.run)
            await nursery.start(control.run)
            self._bell.ring()
            try:
                yield
            finally:
                self.process = None
                if self.chance.random() < 0.5:
                    server.registry.trace = None
                nursery.cancel_scope.cancel()

    async def _ask(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Answer | None:
        """One request on a connection of its own; None when it was cut."""
        process = self.process
        if process is None:
            await self._bell.heard()
            return None
        ours, theirs = trio.testing.memory_stream_pair()
        process.nursery.start_soon(process.http.handle, theirs)
        connection = Connection(ours)
        try:
            await connection.send("POST", path, as_json(body), headers or {})
            return await connection.receive()
        except (h11.RemoteProtocolError, trio.BrokenResourceError):
            return None
        finally:
            await trio.aclose_forcefully(ours)

    # -- clients ---------------------------------------------------------------------------------------

    async def _live(self, client: Client) -> None:
        """Rollout after rollout, each with what a client may do right or wrong."""
        while True:
            await trio.sleep(self.chance.choice((0.0, 0.3, 2.0, 7.0, 25.0)))
            if client.cookie is None and self.chance.random() < 0.95:
                await self._seed(client)
            if self.chance.random() < 0.1:
                await self._tool(client)
            answer = await self._verify(client)
            if answer is not None:
                await self._react(client, answer)

    def _prefix(self, client: Client) -> str:
        return f"/ng-rollout/{client.key}" if self.chance.random() < 0.95 else ""

    def _cookie(self, client: Client) -> dict[str, str]:
        return {"cookie": client.cookie} if client.cookie is not None and self.chance.random() < 0.95 else {}

    async def _seed(self, client: Client) -> None:
        body: dict[str, Any] = {}
        if self.chance.random() < 0.3:
            task = {"taskset": "t", "task_id": "1"}
            episode = {"rollout_id": client.rollout, "attempt": client.episode}
            body = {"resources_session_id": f"s-{client.key}", "episode_id": episode, "task_id": task, "task_data": {}}
        path = f"{self._prefix(client)}/seed_session"
        for _ in range(self.chance.choice((1, 1, 1, 2))):
            answer = await self._ask(path, body)
            if answer is not None and answer.status == 200:
                client.cookie = answer.cookie
            elif answer is not None and answer.status == 409:
                client.start_over()

    async def _tool(self, client: Client) -> None:
        await self._ask(f"/ng-rollout/{client.key}/sandbox_access", {}, self._cookie(client))

    async def _verify(self, client: Client) -> Answer | None:
        """A `/verify`, perhaps with a second one beside it; perhaps the client hangs up."""
        text = f"{client.answer + client.index / 10}"
        body = verify(
            client.index,
            client.group.name if client.group.name is not None else ...,  # type: ignore[arg-type]  # leaves it out
            response=response(text=text, reasoning=""),
            _ng_group_attempt=client.group.attempt,
            **({"prompt_id": "p"} if client.group.name is None else {}),
        )
        path = f"{self._prefix(client)}/verify"
        headers = self._cookie(client) | ({"x-ng-close-follows": "1"} if self.chance.random() < 0.7 else {})
        patience = self.chance.choice((0.5, 5.0, 60.0, 200.0, 200.0))
        answer: Answer | None = None

        async def twin() -> None:
            with trio.move_on_after(patience / 2):
                await self._ask(path, body, headers)

        async with trio.open_nursery() as nursery:
            if self.chance.random() < 0.15:
                nursery.start_soon(twin)
            with trio.move_on_after(patience):
                answer = await self._ask(path, body, headers)
        return answer

    async def _react(self, client: Client, answer: Answer) -> None:
        if answer.status == 200:
            if self.chance.random() < 0.8:
                body = {"resources_session_id": f"s-{client.key}", "episode_id": _episode(client)}
                await self._ask(f"{self._prefix(client)}/close_session", body, self._cookie(client))
            if self.chance.random() < 0.7:
                client.start_over()
                client.group.attempt += self.chance.random() < 0.6
            return
        body = answer.json
        code = body["error"]["code"] if "error" in body else body["code"]
        if code == "stale_attempt":
            client.start_over()
        elif code == "superseded":
            client.group.attempt = max(client.group.attempt, body.get("latest_attempt") or 0)
        elif code in {"different_response", "slot_closed"} or self.chance.random() < 0.5:
            client.group.attempt += 1

    # -- the controller --------------------------------------------------------------------------------

    async def _control(self, call: str, name: str, *, within: float = 30.0, **body: Any) -> Answer | None:
        asked = {"checkpoint_id": name, "deadline_ts": wall() + within, **body}
        return await self._ask(CONTROL + call, asked, {"authorization": f"Bearer {CONTROL_TOKEN}"})

    async def _control_until_crash(self) -> tuple[str, list[str]] | None:
        """What a controller does, until the process dies; the folder and the episodes of the last commit."""
        saved = None
        while True:
            await trio.sleep(self.chance.choice((1.0, 6.0, 20.0, 40.0)))
            name = self._new_name()
            match self.chance.choices(("checkpoint", "retire", "forget", "crash"), (6, 3, 1, 1))[0]:
                case "checkpoint":
                    saved = await self._checkpoint(name) or saved
                    if saved is not None and self.chance.random() < 0.35:
                        return saved
                case "retire":
                    await self._control("retire", name, episode_ids=self._some_keys())
                case "forget":
                    await self._control("forget", name, rollout_ids=[self.chance.choice(self.clients).rollout])
                case "crash":
                    return saved

    def _new_name(self) -> str:
        self._checkpoints += 1
        return f"ck{self._checkpoints}"

    def _some_keys(self) -> list[str]:
        return [client.key for client in self.chance.sample(self.clients, self.chance.randint(1, 2))]

    async def _checkpoint(self, name: str) -> tuple[str, list[str]] | None:
        """Prepare, perhaps commit, perhaps resume: a lease may run out as well, or the process die meanwhile."""
        saved = None
        await self._control("prepare", name, within=self.chance.choice((0.5, 10.0)))
        await trio.sleep(self.chance.choice((0.0, 2.0, 30.0)))
        if self.chance.random() < 0.2:
            await self._control("retire", name, episode_ids=self._some_keys())
        if self.chance.random() < 0.8:
            scope = self._some_keys() if self.chance.random() < 0.2 else None
            answer = await self._control("commit", name, checkpoint_dir=name, episode_ids=scope)
            if answer is not None and answer.status == 200:
                saved = (name, answer.json["episode_ids"])
        await trio.sleep(self.chance.choice((0.0, 3.0, 15.0)))
        if saved is not None and self.chance.random() < 0.5:
            return saved
        if self.chance.random() < 0.9:
            await self._control("resume", name)
        return saved

    async def _restore(self, folder: str, keys: list[str]) -> None:
        """Restore what was committed; now and then it fails elsewhere, or the file is damaged."""
        name = self._new_name()
        broken = self.chance.random() < 0.15
        if broken:
            self._damage(folder)
        answer = await self._control("restore", name, checkpoint_dir=folder, episode_ids=keys)
        if broken:
            self._damage(folder)
        if answer is not None and answer.status == 200:
            going_on = set(answer.json["restored"])
            for client in self.clients:
                client.episode += 1
                if client.key not in going_on:
                    client.start_over()
            if self.chance.random() < 0.25:
                await self._control("retire", name, episode_ids=answer.json["restored"])
            await trio.sleep(self.chance.choice((0.0, 5.0)))
        await self._control("resume", name)

    def _damage(self, folder: str) -> None:
        """Change the first state's scheme in the file; or put it back."""
        for blobs in self._folders.values():
            for file, blob in blobs.blobs.items():
                if file.startswith("records"):
                    blob.data[:1] = bytes([blob.data[0] ^ 1]) if blob.data else b""


def _episode(client: Client) -> dict[str, Any]:
    return {"rollout_id": client.rollout, "attempt": client.episode}


def record(seed: int) -> list[list[Event]]:
    """The traces of one afternoon's processes."""
    afternoon = Afternoon(seed)
    run_in_order(afternoon.run, seed=seed)
    return [list(Recorded(io.BytesIO(trace.getvalue()))) for trace in afternoon.traces]
