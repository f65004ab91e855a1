"""A stage for end-to-end tests: a judge, the real server process, a controller, and rollouts that talk over loopback.

What is waited for is a condition that the server or the judge tells of, never a time.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import trio
from tests.support.gym import Controller, Outcome, Rollout
from tests.support.peer import Reply
from tests.support.server_process import CONTROL_TOKEN, ServerProcess, Servers, servers, settings_for
from tests.support.verdicts import AnswerMark, CohortJudge

AT_ONCE_S: Final = 0.75
"""A replay is well under a second; the collection timeout of these tests is 30 s."""
SOON_S: Final = 10.0
LOOK_AGAIN_S: Final = 0.01

TOLD: Final = 'verifies_total{outcome="'


@dataclass
class Pending:
    """A `/verify` under way."""

    rollout: Rollout
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    reply: Reply | None = None
    _ended: trio.Event = field(default_factory=trio.Event)

    async def run(self, close_follows: bool) -> None:
        try:
            with self.scope:
                self.reply = await self.rollout.verify(close_follows=close_follows)
        finally:
            self._ended.set()

    @property
    def waits(self) -> bool:
        """Whether no reply came yet."""
        return self.reply is None

    async def hang_up(self) -> None:
        """Disconnect."""
        self.scope.cancel()
        await self._ended.wait()

    async def answer(self, within: float = SOON_S) -> Reply:
        with trio.fail_after(within):
            await self._ended.wait()
        assert self.reply is not None, "it was cancelled"
        return self.reply

    async def told(self, within: float = SOON_S) -> Outcome:
        """The outcome, which must come in time."""
        return Outcome.of(await self.answer(within))


class Stage:
    """One test's server with everybody around it. `folder` holds its checkpoints, too."""

    def __init__(self, judge: CohortJudge, house: Servers, nursery: trio.Nursery, folder: Path) -> None:
        self.judge = judge
        self.house = house
        self.folder = folder
        self._nursery = nursery

    @property
    def server(self) -> ServerProcess:
        assert self.house.running is not None, "a server was started"
        return self.house.running

    @property
    def controller(self) -> Controller:
        return Controller(self.server.peer, CONTROL_TOKEN)

    def start_soon(self, task: Callable[..., Any], *args: object) -> None:
        self._nursery.start_soon(task, *args)

    # -- rollouts --------------------------------------------------------------------------------------

    def rollout(self, group: str, index: int, *, draft: int = 0, group_attempt: int = 0, **more: Any) -> Rollout:
        """A rollout that has not begun."""
        return Rollout(self.server.peer, AnswerMark(group, group_attempt, index, draft), **more)

    async def seeded(self, group: str, size: int = 2, *, group_attempt: int = 0, **more: Any) -> list[Rollout]:
        """The rollouts of a group, each with its session."""
        rollouts = [self.rollout(group, index, group_attempt=group_attempt, **more) for index in range(size)]
        for rollout in rollouts:
            reply = await rollout.seed()
            assert reply.status == 200, reply
        return rollouts

    def verify(self, rollout: Rollout, *, close_follows: bool = True) -> Pending:
        """Start a `/verify`."""
        pending = Pending(rollout)
        self._nursery.start_soon(pending.run, close_follows)
        return pending

    def verify_all(self, rollouts: Sequence[Rollout]) -> list[Pending]:
        return [self.verify(rollout) for rollout in rollouts]

    async def judged(self, group: str, size: int = 2, **more: Any) -> tuple[list[Rollout], list[Outcome]]:
        """A whole group to the end: its rollouts, still open, and what each was told."""
        rollouts = await self.seeded(group, size, **more)
        return rollouts, [await pending.told() for pending in self.verify_all(rollouts)]

    # -- what the server tells -------------------------------------------------------------------------

    async def until(self, condition: Callable[[dict[str, float]], bool]) -> dict[str, float]:
        """Wait until a condition on the server's metrics holds; returns them."""
        with trio.fail_after(SOON_S):
            while True:
                metrics = await self.server.metrics()
                if condition(metrics):
                    return metrics
                await trio.sleep(LOOK_AGAIN_S)

    async def waiting(self, count: int) -> None:
        """Wait until so many verifications wait for their outcome."""
        await self.until(lambda metrics: metrics["waiting_verifies"] == count)

    async def cohorts(self, phase: str, count: int) -> None:
        """Wait until so many cohorts are in this phase."""
        await self.until(lambda metrics: metrics[f'cohorts{{phase="{phase}"}}'] == count)

    async def retained(self) -> int:
        """How many cohorts the server knows."""
        return sum(int(n) for name, n in (await self.server.metrics()).items() if name.startswith("cohorts{"))

    # -- checkpoints -----------------------------------------------------------------------------------

    async def checkpoint(self, name: str, keys: Sequence[str] | None = None) -> Path:
        """Prepare and commit; admission stays closed."""
        await self.controller.prepare(name)
        folder = self.folder / name
        await self.controller.commit(name, folder, keys)
        return folder

    async def crash_and_restore(
        self, folder: Path, rollouts: Sequence[Rollout], *options: str, **changes: Any
    ) -> list[Rollout]:
        """Kill the server, start a fresh one, restore these rollouts from the folder; returns them as they go on."""
        self.judge.crashed()
        server = await self.house.restart(*options, **changes)
        name = f"after-{folder.name}"
        reply = await self.controller.restore(name, folder, [rollout.key for rollout in rollouts])
        assert reply["restored"] == sorted(rollout.next_key for rollout in rollouts), reply
        await self.controller.resume(name)
        return [rollout.restored(server.peer) for rollout in rollouts]


async def close_all(rollouts: Sequence[Rollout]) -> None:
    """Every rollout has recorded what it was told."""
    for rollout in rollouts:
        reply = await rollout.close()
        assert reply.status == 200, reply


async def nothing_is_left(stage: Stage) -> None:
    """No session, no waiter, no place held, no call in flight."""
    await stage.until(
        lambda m: (
            not any(m[name] for name in ("open_sessions", "waiting_verifies", "held_members", "judge_calls_in_flight"))
        )
    )


@asynccontextmanager
async def stage(folder: Path, size: int = 2, *options: str, **changes: Any) -> AsyncIterator[Stage]:
    """A judge and one running server with these settings; at the end both are gone."""
    judge = CohortJudge()
    socket = folder.parent / "forks" if changes.pop("forked", True) else None
    async with judge.server.running(), servers(folder, settings_for(judge.url, size, **changes), socket) as house:
        await house.start(*options)
        async with trio.open_nursery() as nursery:
            yield Stage(judge, house, nursery, folder)
            nursery.cancel_scope.cancel()
