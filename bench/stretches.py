"""`python -m bench.stretches`: how long the event loop is away while the control plane works on 65,536 members.

Every call of contract 10 is made on one server with cohorts of 16, on a real disk. A stretch is the lesser of the time
that passed and of the process's own processor time, so that others on the machine do not count.
"""

import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import trio
from rich.console import Console
from rich.table import Table
from tests.runtime.test_control_load import INSTANCE, MEMBERS, SIZE, content
from tests.support.judges import ScriptedJudge
from tests.support.scene import policy
from tests.support.stretches import Stretches

from genrm_trio.checkpoints.calls import CommitCall, ForgetCall, PrepareCall, RestoreCall, ResumeCall, RetireCall
from genrm_trio.checkpoints.store import FileStore
from genrm_trio.core.identity import EpisodeId
from genrm_trio.runtime.control import Control
from genrm_trio.runtime.server import Server

ROUNDS: Final = 3
WITHIN_S: Final = 300.0
BOUND_S: Final = 0.05
"""What a commit and a restore may take at a stretch."""


class Calls:
    """One server with its control plane, and the worst stretch of each call to it."""

    def __init__(self, control: Control, folder: Path, stretches: Stretches, worst: dict[str, list[float]]) -> None:
        self._control = control
        self._folder = folder
        self._stretches = stretches
        self._worst = worst
        self._number = 0

    async def timed(self, name: str, call: Callable[[], Awaitable[Any]]) -> None:
        """Make a call and note its worst stretch."""
        await self._stretches.start()
        await call()
        await trio.sleep(0.01)
        self._worst.setdefault(name, []).append(self._stretches.take())

    async def restore(self, keys: list[EpisodeId]) -> None:
        """Restore and resume."""
        named: dict[str, Any] = self._named()
        call = RestoreCall(**named, checkpoint_dir=str(self._folder / "saved"), episode_ids=keys)
        await self.timed("restore", lambda: self._control.restore(call))
        await self.timed("resume after a restore", lambda: self._control.resume(ResumeCall(**named)))

    async def commit(self, name: str, scope: list[EpisodeId] | None) -> None:
        """Prepare, commit and resume."""
        named: dict[str, Any] = self._named()
        await self._control.prepare(PrepareCall(**named))
        folder = str(self._folder / named["checkpoint_id"])
        call = CommitCall(**named, checkpoint_dir=folder, episode_ids=scope)
        await self.timed(name, lambda: self._control.commit(call))
        await self.timed(f"resume after {name}", lambda: self._control.resume(ResumeCall(**named)))

    async def retire(self, keys: list[EpisodeId]) -> None:
        """Retire rollouts and forget them."""
        named: dict[str, Any] = self._named()
        call = RetireCall(**named, episode_ids=keys)
        await self.timed(f"a retire of {len(keys):,} rollouts", lambda: self._control.retire(call))
        forget = ForgetCall(**named, rollout_ids=[key.rollout_id for key in keys])
        await self.timed(f"a forget of {len(keys):,} rollouts", lambda: self._control.forget(forget))

    def _named(self) -> dict[str, Any]:
        self._number += 1
        return {"checkpoint_id": f"c{self._number}-{time.time_ns()}", "deadline_ts": time.time() + WITHIN_S}


async def one_round(folder: Path, worst: dict[str, list[float]], *, scoped: bool) -> None:
    """Make the calls in a fresh server; `scoped` leaves all but one restored rollout out of the commit."""
    keys = [EpisodeId(f"{n // SIZE}-{n % SIZE}") for n in range(MEMBERS)]
    again = [EpisodeId(key.rollout_id, 1) for key in keys]
    server = Server(policy(SIZE), ScriptedJudge())
    control = Control(server, FileStore(INSTANCE), instance=INSTANCE)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        await nursery.start(control.run)
        stretches = Stretches()
        nursery.start_soon(stretches.watch)
        calls = Calls(control, folder, stretches, worst)
        await calls.restore(keys)
        if scoped:
            await calls.commit("a commit of one, that deletes the others", again[:1])
        else:
            await calls.commit("a commit of all", None)
            await calls.retire(again[: MEMBERS // 16])
            await calls.retire(again[MEMBERS // 16 :])
        nursery.cancel_scope.cancel()


async def main() -> int:
    """Measure and print; the exit code is 1 when a commit of all or a restore is over its bound."""
    worst: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="stretches-") as name:
        folder = Path(name)
        await FileStore(INSTANCE).write(str(folder / "saved"), checkpoint_id="ck", records=content())
        for _ in range(ROUNDS):
            await one_round(folder, worst, scoped=False)
            await one_round(folder, worst, scoped=True)
    table = Table("call", "worst stretch, ms", "of rounds", title=f"the event loop away, {MEMBERS:,} members")
    for call, found in worst.items():
        table.add_row(call, f"{1000 * max(found):.1f}", str(len(found)))
    Console(width=110).print(table)
    return int(max(*worst["restore"], *worst["a commit of all"]) > BOUND_S)


if __name__ == "__main__":
    raise SystemExit(trio.run(main))
