"""The ways in which a cohort of the soak ends, each as its clients see it, and what each of them must be told."""

import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio
from tests.soak.wire import UNJUDGEABLE, Client, Reply
from tests.support.gym import CONTROL, response_object
from tests.support.server_process import CONTROL_TOKEN

SIZE: Final = 4
NEVER: Final = 4e9
TEXT: Final = "an answer of some length. " * 20
CLOSE_FOLLOWS: Final = b"x-ng-close-follows: 1\r\n"
TOKEN: Final = f"authorization: Bearer {CONTROL_TOKEN}\r\n".encode()
LATEST_HANG_UP_S: Final = 0.05
REFUSED: Final = {409, 503}


def verify_body(group: str, index: int, attempt: int = 0, text: str = TEXT) -> bytes:
    body = {
        "responses_create_params": {"input": [{"role": "user", "content": f"prompt of {group}"}]},
        "response": response_object(f"{text}{index}"),
        "_ng_group_id": group,
        "_ng_group_attempt": attempt,
        "_ng_rollout_index": index,
    }
    return json.dumps(body).encode()


@dataclass
class Rollout:
    """A member with a session of its own. `key`: that of its episode."""

    group: str
    index: int
    text: str = TEXT
    attempt: int = 0
    cookie: bytes = b""

    @property
    def key(self) -> str:
        return f"{self.group}-{self.index}" + (f"-a{self.attempt}" if self.attempt else "")

    @property
    def headers(self) -> bytes:
        return b"cookie: " + self.cookie + b"\r\n"


@dataclass
class Crowd:
    """All clients of one server process: what they count, and the one who controls."""

    client: Client
    random: random.Random
    name: str
    verifies: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    control_lock: trio.Lock = field(default_factory=trio.Lock)
    _cohorts: int = 0
    _checkpoints: int = 0

    def group(self) -> str:
        self._cohorts += 1
        return f"{self.name}-{self._cohorts}"

    async def verify(self, body: bytes, rollout: Rollout | None = None, headers: bytes = b"") -> Reply:
        self.verifies += 1
        path = "/verify" if rollout is None else f"/ng-rollout/{rollout.key}/verify"
        return await self.client.ask("POST", path, body, headers + (rollout.headers if rollout else b""))

    async def seed(self, rollout: Rollout) -> None:
        reply = await self.client.ask("POST", f"/ng-rollout/{rollout.key}/seed_session", b"{}")
        assert reply.status == 200, reply
        rollout.cookie = reply.cookie

    async def close(self, rollout: Rollout) -> None:
        episode = {"rollout_id": f"{rollout.group}-{rollout.index}", "attempt": rollout.attempt}
        body = json.dumps({"resources_session_id": "any", "episode_id": episode}).encode()
        reply = await self.client.ask("POST", f"/ng-rollout/{rollout.key}/close_session", body, rollout.headers)
        assert reply.status == 200, reply

    async def control(self, call: str, checkpoint_id: str, **more: Any) -> Any:
        body = json.dumps({"checkpoint_id": checkpoint_id, "deadline_ts": NEVER, **more}).encode()
        reply = await self.client.ask("POST", f"{CONTROL}/{call}", body, TOKEN)
        assert reply.status == 200, (call, reply)
        return reply.json

    def checkpoint_id(self) -> str:
        self._checkpoints += 1
        return f"{self.name}-ck-{self._checkpoints}"

    async def checkpoint(self, folder: Path) -> None:
        """Prepare, commit and resume, whatever else goes on."""
        async with self.control_lock:
            checkpoint_id = self.checkpoint_id()
            prepared = await self.control("prepare", checkpoint_id)
            assert prepared["phase"] == "prepared", prepared
            await self.control("commit", checkpoint_id, checkpoint_dir=str(folder))
            await self.control("resume", checkpoint_id)
            self.endings["checkpoint"] += 1


async def together(*tasks: Callable[[], Awaitable[Reply]]) -> list[Reply]:
    """Run requests at once; returns their replies in order."""
    replies: dict[int, Reply] = {}

    async def one(number: int) -> None:
        replies[number] = await tasks[number]()

    async with trio.open_nursery() as nursery:
        for number in range(len(tasks)):
            nursery.start_soon(one, number)
    return [replies[number] for number in range(len(tasks))]


def told(replies: list[Reply], *, masked: bool = False) -> None:
    """Each got its reward, or each the masked row."""
    for reply in replies:
        assert reply.status == 200, reply
        assert reply.json["mask_sample"] is masked, reply


def refused(replies: list[Reply], *codes: str) -> None:
    """Each got a refusal with one of these codes."""
    for reply in replies:
        body = reply.json
        assert reply.status in REFUSED, reply
        assert body.get("error", body)["code"] in codes, reply


async def completed(crowd: Crowd) -> None:
    """All members come, and one of them asks again."""
    group = crowd.group()
    bodies = [verify_body(group, index) for index in range(SIZE)]
    told(await together(*(partial(crowd.verify, body) for body in bodies)))
    told([await crowd.verify(crowd.random.choice(bodies))])


async def with_sessions(crowd: Crowd, text: str = TEXT) -> list[Rollout]:
    """All members come, each with a session, which stays open until it is closed."""
    group = crowd.group()
    rollouts = [Rollout(group, index, text) for index in range(SIZE)]
    for rollout in rollouts:
        await crowd.seed(rollout)
    replies = await together(*(partial(_verify_open, crowd, rollout) for rollout in rollouts))
    told(replies, masked=text != TEXT)
    return rollouts


async def _verify_open(crowd: Crowd, rollout: Rollout) -> Reply:
    return await crowd.verify(verify_body(rollout.group, rollout.index, text=rollout.text), rollout, CLOSE_FOLLOWS)


async def closed(crowd: Crowd) -> None:
    """Sessions that are closed, as environment servers do."""
    for rollout in await with_sessions(crowd):
        await crowd.close(rollout)


async def failed(crowd: Crowd) -> None:
    """The judge fails the cohort."""
    group = crowd.group()
    bodies = [verify_body(group, index, text=UNJUDGEABLE.decode()) for index in range(SIZE)]
    told(await together(*(partial(crowd.verify, body) for body in bodies)), masked=True)


async def uncollected(crowd: Crowd) -> None:
    """One member never comes."""
    group = crowd.group()
    asks = [partial(crowd.verify, verify_body(group, index)) for index in range(SIZE - 1)]
    refused(await together(*asks), "collection_timeout")


async def superseded(crowd: Crowd) -> None:
    """Half a cohort waits when the group's next attempt comes."""
    group = crowd.group()
    old = [partial(crowd.verify, verify_body(group, index)) for index in range(SIZE // 2)]
    new = [partial(crowd.verify, verify_body(group, index, attempt=1)) for index in range(SIZE)]
    replies = await together(*old, *new)
    refused(replies[: len(old)], "superseded")
    told(replies[len(old) :])


async def disconnected(crowd: Crowd) -> None:
    """Two hang up at some moment, and come back."""
    group = crowd.group()
    bodies = [verify_body(group, index) for index in range(SIZE)]
    for body in bodies[:2]:
        with trio.move_on_after(crowd.random.uniform(0, LATEST_HANG_UP_S)):
            await crowd.verify(body)
    told(await together(*(partial(crowd.verify, body) for body in bodies)))


async def retired(crowd: Crowd) -> None:
    """Half a cohort is retired; another half of it waits on, and starts over with the rest."""
    group = crowd.group()
    going = [Rollout(group, index) for index in range(SIZE // 2)]
    for rollout in going:
        await crowd.seed(rollout)

    async def retire() -> Reply:
        async with crowd.control_lock:
            checkpoint_id = crowd.checkpoint_id()
            await crowd.control("retire", checkpoint_id, episode_ids=[rollout.key for rollout in going])
        return Reply(b"", b"")

    asks = [partial(_verify_open, crowd, rollout) for rollout in going]
    refused((await together(*asks, retire))[:-1], "stale_attempt")
    again = [Rollout(group, rollout.index, attempt=1) for rollout in going]
    for rollout in again:
        await crowd.seed(rollout)
    rest = [partial(crowd.verify, verify_body(group, index)) for index in range(SIZE // 2, SIZE)]
    told(await together(*(partial(_verify_open, crowd, rollout) for rollout in again), *rest))
    for rollout in again:
        await crowd.close(rollout)
    async with crowd.control_lock:
        rollouts = [f"{rollout.group}-{rollout.index}" for rollout in going]
        await crowd.control("forget", crowd.checkpoint_id(), rollout_ids=rollouts)


ENDINGS: Final[dict[str, tuple[Callable[[Crowd], Awaitable[None]], int]]] = {
    "completed": (completed, 45),
    "closed": (closed, 12),
    "failed": (failed, 12),
    "uncollected": (uncollected, 4),
    "superseded": (superseded, 10),
    "disconnected": (disconnected, 10),
    "retired": (retired, 7),
}
"""By name: how it goes, and how often among a hundred."""


async def play_until(crowd: Crowd, verifies: int, width: int) -> None:
    """Let cohorts end in one way or another, so many at a time, until so many verifies were sent in all."""
    names, weights = list(ENDINGS), [weight for _, weight in ENDINGS.values()]

    async def play(name: str) -> None:
        await ENDINGS[name][0](crowd)
        crowd.endings[name] += 1

    async def worker() -> None:
        while crowd.verifies < verifies:
            (name,) = crowd.random.choices(names, weights)
            if name == "uncollected":  # it takes its time, in which others go on
                nursery.start_soon(play, name)
            else:
                await play(name)

    async with trio.open_nursery() as nursery:
        for _ in range(width):
            nursery.start_soon(worker)
