"""A control plane over a running server without HTTP, with its store in memory and a wall clock that Trio drives."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
import trio.testing
from tests.support.judges import ScriptedJudge
from tests.support.scene import Scene, scene

from genrm_trio.checkpoints.calls import (
    CommitCall,
    ForgetCall,
    PrepareCall,
    RenewCall,
    RestoreCall,
    ResumeCall,
    RetireCall,
)
from genrm_trio.checkpoints.errors import ControlRefused
from genrm_trio.checkpoints.phases import LeaseRules, Reply
from genrm_trio.checkpoints.store import MemoryStore, Store
from genrm_trio.core.identity import EpisodeId
from genrm_trio.runtime.bell import Bell
from genrm_trio.runtime.control import Control
from genrm_trio.runtime.gate import Closing, Kind
from genrm_trio.runtime.server import Policy

INSTANCE = "genrm_compare"
WALL = 1_700_000_000.0
RULES = LeaseRules(max_deadline_s=1000.0, grace_s=600.0)


def wall() -> float:
    return WALL + trio.current_time()


@dataclass
class Asked:
    """One call under way: its reply or what it raised, once it ended."""

    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    reply: Reply | None = None
    error: Exception | None = None
    ended: bool = False

    @property
    def code(self) -> str:
        assert isinstance(self.error, ControlRefused), f"not refused: {self.reply or self.error}"
        return self.error.code


class Plane:
    """The controller's calls, each allowing `within` seconds; started with `start`, or awaited."""

    def __init__(self, s: Scene, control: Control, nursery: trio.Nursery) -> None:
        self.s = s
        self.control = control
        self._nursery = nursery
        self._bell = Bell()

    @property
    def phase(self) -> str:
        return str(self.control.status()["phase"])

    def is_open(self) -> bool:
        return self.s.server.registry.admission.open

    def _common(self, checkpoint_id: str, within: float) -> dict[str, Any]:
        return {"checkpoint_id": checkpoint_id, "deadline_ts": wall() + within}

    async def prepare(self, name: str = "ck", *, within: float = 100.0) -> Reply:
        return await self.control.prepare(PrepareCall(**self._common(name, within)))

    async def renew(self, name: str = "ck", *, within: float = 100.0) -> Reply:
        return await self.control.renew(RenewCall(**self._common(name, within)))

    async def resume(self, name: str = "ck", *, within: float = 100.0) -> Reply:
        return await self.control.resume(ResumeCall(**self._common(name, within)))

    async def commit(self, name: str = "ck", directory: str = "d", *, within: float = 100.0, **more: Any) -> Reply:
        return await self.control.commit(CommitCall(**self._common(name, within), checkpoint_dir=directory, **more))

    async def restore(
        self, episodes: list[str], name: str = "re", directory: str = "d", *, within: float = 100.0
    ) -> Reply:
        body = {**self._common(name, within), "checkpoint_dir": directory, "episode_ids": episodes}
        return await self.control.restore(RestoreCall.model_validate(body))

    async def retire(self, episodes: list[str], name: str = "ck", *, within: float = 100.0) -> Reply:
        return await self.control.retire(
            RetireCall.model_validate({**self._common(name, within), "episode_ids": episodes})
        )

    async def forget(self, rollouts: list[str], name: str = "ck", *, within: float = 100.0) -> Reply:
        return await self.control.forget(ForgetCall(**self._common(name, within), rollout_ids=rollouts))

    def start(self, call: Callable[[], Awaitable[Reply]]) -> Asked:
        """Make a call in a task of its own."""
        asked = Asked()
        self._nursery.start_soon(self._run, asked, call)
        return asked

    async def _run(self, asked: Asked, call: Callable[[], Awaitable[Reply]]) -> None:
        try:
            with asked.scope:
                asked.reply = await call()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            asked.error = error
        finally:
            asked.ended = True
            self._bell.ring()

    async def ended(self, *calls: Asked) -> None:
        await self._bell.until(lambda: all(asked.ended for asked in calls))

    async def refused(self, call: Awaitable[Reply]) -> str:
        """The code that a call is refused with."""
        with pytest.raises(ControlRefused) as caught:
            await call
        assert caught.value.detail
        return caught.value.code

    def request(self, kind: Kind, session: str | None, key: str | None) -> trio.Event:
        """A data request that has passed the gate and runs until the returned event is set."""
        leave = trio.Event()
        self._nursery.start_soon(self._request, kind, session, key, leave)
        return leave

    async def _request(self, kind: Kind, session: str | None, key: str | None, leave: trio.Event) -> None:
        episode = EpisodeId(key, 0) if key is not None else None
        with suppress(Closing):
            async with self.s.server.gate.enter(kind, session, episode):
                await leave.wait()

    async def finished_group(self, group: str = "g", *, size: int = 2) -> list[str]:
        """A cohort whose members all have their reward, by sessions that stay open; returns their capture keys."""
        for index in range(size):
            self.s.seed(f"{group}-s{index}", f"{group}-r{index}")
        rollouts = [self.s.verify(i, group=group, session=f"{group}-s{i}") for i in range(size)]
        await self.s.ended(*rollouts)
        assert [rollout.reward for rollout in rollouts] == [float(i + 1) for i in range(size)]
        return [f"{group}-r{index}" for index in range(size)]


@asynccontextmanager
async def plane(
    store: Store | None = None, rules: Policy | None = None, judge: ScriptedJudge | None = None, **more: object
) -> AsyncIterator[Plane]:
    """A running server with its control plane."""
    async with scene(rules, judge, **more) as s, trio.open_nursery() as nursery:
        control = Control(s.server, store or MemoryStore(INSTANCE), instance=INSTANCE, rules=RULES, wall=wall)
        await nursery.start(control.run)
        yield Plane(s, control, nursery)
        nursery.cancel_scope.cancel()


def memory_store(**more: Any) -> MemoryStore:
    return MemoryStore(INSTANCE, **more)


async def settled() -> None:
    """Wait until every task waits for something."""
    await trio.testing.wait_all_tasks_blocked()
