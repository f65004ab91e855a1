"""The soak: generations of one server, each killed and restored by the next, and what it held at quiet moments.

In each generation memory and descriptors are read after a warm-up and at the end, when every client has its answer.
"""

import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio
from tests.soak.endings import Crowd, Rollout, play_until, told, verify_body, with_sessions
from tests.soak.wire import UNJUDGEABLE, Client, judge
from tests.support.server_process import ServerProcess, servers, settings_for

WARM_UP: Final = 0.4
"""The part of a generation that comes before the first reading."""
WIDTH: Final = 12
JUDGE_CALLS: Final = 16
SAVED_COHORTS: Final = 25
CHECKPOINTS: Final = 3
"""In each generation, besides the one that the next is restored from."""
GROWTH_MB: Final = 12.0
"""How much more than after the warm-up counts as flat: garbage in reference cycles lies until the next full collection,
which comes when a quarter of what was alive at the last one has been made anew."""
GROWTH_OBJECTS: Final = 500
GROWTH_BYTES: Final = 1_000_000
"""The same of what is alive after a full collection, in which garbage has no part. Ids of closed sessions grow up to a
bound.
"""
SPARE_DESCRIPTORS: Final = JUDGE_CALLS + 2
"""Kept connections to the judge, and our own."""
QUIET_S: Final = 30.0
EMPTY: Final = ("waiting_verifies", "held_members", "open_sessions", "judge_calls_in_flight", "judge_calls_waiting")
SETTINGS: Final = {
    "cohort_collection_timeout_s": 6.0,
    "cohort_result_ttl_s": 60.0,
    "max_terminal_cohorts": 64,
    "session_idle_ttl_s": 600.0,
    "limits": {"max_sessions": 1000},
}


@dataclass(frozen=True)
class Held:
    """What a process holds at a quiet moment: resident memory, open descriptors, and what is alive, with its bytes."""

    memory_mb: float
    descriptors: int
    objects: int
    bytes: int

    @staticmethod
    async def by(server: ServerProcess) -> "Held":
        """Read it; the memory first, as counting takes some, and descriptors when every task waits."""
        proc = Path(f"/proc/{server.child.pid}")
        (resident,) = (line for line in (proc / "status").read_text().splitlines() if line.startswith("VmRSS"))
        number = server.child.said.count("\n")
        server.child.signal(signal.SIGUSR1)
        with trio.fail_after(QUIET_S):
            objects, size = (await server.child.line(number)).split()[1:]
        descriptors = len(list((proc / "fd").iterdir()))
        return Held(int(resident.split()[1]) / 1024, descriptors, int(objects), int(size))


@dataclass
class Generation:
    """What one process went through. `seconds`: for its verifies."""

    number: int
    verifies: int
    seconds: float
    idle: Held
    warm: Held
    end: Held

    @property
    def wrong(self) -> Iterator[str]:
        """What is not flat."""
        if self.end.memory_mb > self.warm.memory_mb + GROWTH_MB:
            yield f"generation {self.number}: memory grew by {self.end.memory_mb - self.warm.memory_mb:.1f} MB"
        if (more := self.end.objects - self.warm.objects) > GROWTH_OBJECTS:
            yield f"generation {self.number}: {more} more objects are alive"
        if (more := self.end.bytes - self.warm.bytes) > GROWTH_BYTES:
            yield f"generation {self.number}: what is alive has {more} more bytes"
        for held in (self.warm, self.end):
            if held.descriptors > self.idle.descriptors + SPARE_DESCRIPTORS:
                yield f"generation {self.number}: {held.descriptors} descriptors, {self.idle.descriptors} when idle"


@dataclass
class Soak:
    """All generations, and how many cohorts ended in each way."""

    generations: list[Generation] = field(default_factory=list)
    endings: Counter[str] = field(default_factory=Counter)

    @property
    def verifies(self) -> int:
        return sum(generation.verifies for generation in self.generations)

    @property
    def wrong(self) -> list[str]:
        found = [text for generation in self.generations for text in generation.wrong]
        ends = [generation.end.memory_mb for generation in self.generations]
        if ends and ends[-1] > ends[0] + GROWTH_MB:
            found.append(f"the last generation ended with {ends[-1] - ends[0]:.1f} MB more than the first")
        return found


async def soak(folder: Path, verifies: int, generations: int, seed: int, **environment: str) -> Soak:
    """Play them all; a client that is told anything unexpected is an error.

    environment: added to that of the server.
    """
    found = Soak()
    chance = random.Random(seed)
    async with judge() as url:
        settings = {**settings_for(url, 4, judge={"max_concurrency": JUDGE_CALLS}), **SETTINGS}
        async with servers(folder, settings, module="tests.soak.counted", environment=environment) as house:
            saved: list[Rollout] = []
            for number in range(generations):
                server = await house.start()
                crowd = Crowd(Client(server.port), random.Random(chance.random()), f"g{number}")
                idle = await Held.by(server)
                await _restore(crowd, folder / f"saved-{number}", saved)
                share = verifies // generations
                found.generations.append(await _generation(number, server, crowd, idle, share, folder))
                saved = await _save(crowd, folder / f"saved-{number + 1}")
                found.endings += crowd.endings
                crowd.client.close()
                await server.kill()
                server.log.unlink()
    return found


async def _generation(
    number: int, server: ServerProcess, crowd: Crowd, idle: Held, verifies: int, folder: Path
) -> Generation:
    began = time.monotonic()
    await play_until(crowd, int(verifies * WARM_UP), WIDTH)
    warm = await _quiet(server, crowd)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_checkpoints, crowd, verifies, folder / "passing")
        await play_until(crowd, verifies, WIDTH)
    end = await _quiet(server, crowd)
    return Generation(number + 1, crowd.verifies, time.monotonic() - began, idle, warm, end)


async def _checkpoints(crowd: Crowd, verifies: int, folder: Path) -> None:
    """Take some while the clients go on, evenly spread over the verifies that are left."""
    begin = crowd.verifies
    for part in range(CHECKPOINTS):
        while crowd.verifies < begin + (verifies - begin) * part // CHECKPOINTS:  # noqa: ASYNC110 - each request moves it
            await trio.sleep(0.1)
        await crowd.checkpoint(folder)
        await trio.to_thread.run_sync(shutil.rmtree, folder)


async def _quiet(server: ServerProcess, crowd: Crowd) -> Held:
    """Wait until nothing is under way, and read what the process holds then."""
    crowd.client.close()
    server.peer.close()  # idle since the last reading, so the server may be about to close it
    with trio.fail_after(QUIET_S):
        while True:
            states = await server.metrics()
            if states["connections"] <= 1 and not any(states[name] for name in EMPTY):
                return await Held.by(server)
            await trio.sleep(0.1)


async def _save(crowd: Crowd, folder: Path) -> list[Rollout]:
    """Finish cohorts whose members have not recorded their outcome yet, and commit them."""
    rollouts = []
    for number in range(SAVED_COHORTS):
        rollouts += await with_sessions(crowd, *([UNJUDGEABLE.decode()] if number % 5 == 0 else []))
    checkpoint_id = crowd.checkpoint_id()
    await crowd.control("prepare", checkpoint_id)
    await crowd.control("commit", checkpoint_id, checkpoint_dir=str(folder))
    return rollouts


async def _restore(crowd: Crowd, folder: Path, saved: list[Rollout]) -> None:
    """Restore them into this process; each member replays, gets what it had, and closes."""
    if not saved:
        return
    checkpoint_id = crowd.checkpoint_id()
    keys = [rollout.key for rollout in saved]
    await crowd.control("restore", checkpoint_id, checkpoint_dir=str(folder), episode_ids=keys)
    await crowd.control("resume", checkpoint_id)
    for rollout in saved:
        rollout.attempt += 1
        reply = await crowd.verify(verify_body(rollout.group, rollout.index, text=rollout.text), rollout)
        told([reply], masked=rollout.text == UNJUDGEABLE.decode())
        crowd.endings["restored member"] += 1
