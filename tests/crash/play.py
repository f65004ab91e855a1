"""Plays a schedule on the real server process: each step tries what it says, and nothing when nobody is there for it.

The end is the same for all schedules: everybody finishes, and nothing may be left.
"""

import shutil
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import trio
from tests.crash.checker import AT_ONCE_S, Violation, cohort_of
from tests.crash.schedule import COMEBACKS, CONDUCTS, Schedule, Step
from tests.crash.world import Saved, World
from tests.support.gym import Controller, Rollout
from tests.support.peer import Dropped
from tests.support.server_process import CONTROL_TOKEN, Servers, servers, settings_for
from tests.support.verdicts import AnswerMark, CohortJudge, Conduct

COLLECTION_S: Final = 10.0
LEASE_GRACE_S: Final = 0.15
END_S: Final = 30.0
LOOK_AGAIN_S: Final = 0.005
SETTLE_S: Final = 0.3


@dataclass(frozen=True)
class Played:
    """What a run came to: how much it showed, and what was done."""

    seed: int
    told: int
    replays: int
    crashes: int
    restores: int
    judge_calls: int
    log: tuple[str, ...]


class Play:
    """One run.

    checkpoint: the id of the open one, with its phase as far as we know. captured: the players in it. saved: the last
    one that is whole, with its folder.
    """

    def __init__(self, schedule: Schedule, folder: Path, house: Servers, judge: CohortJudge, world: World) -> None:
        self.schedule = schedule
        self.folder = folder
        self.house = house
        self.judge = judge
        self.world = world
        self.checkpoint = ""
        self.phase = "idle"
        self.captured: Saved | None = None
        self.committed: Path | None = None
        self.saved: tuple[Saved, Path] | None = None
        self.crashes = self.restores = self._ids = 0
        self.retired: set[str] = set()
        judge.watch = world.checker.judged

    @property
    def controller(self) -> Controller:
        assert self.house.running is not None, "a server runs"
        return Controller(self.house.running.peer, CONTROL_TOKEN)

    async def metrics(self) -> dict[str, float]:
        assert self.house.running is not None, "a server runs"
        return await self.house.running.metrics()

    async def _tells(self, ask: Callable[[], Awaitable[Any]], condition: Callable[[Any], bool]) -> None:
        """Ask the server again and again until what it tells meets a condition."""
        with trio.move_on_after(AT_ONCE_S):
            while True:
                told = await ask()
                if condition(told):
                    return
                await trio.sleep(LOOK_AGAIN_S)
        raise Violation(f"the server never told what was waited for, at last {told}")

    def _new_id(self, prefix: str) -> str:
        self._ids += 1
        return f"{prefix}{self._ids}"

    async def run(self) -> None:
        """Every step, then the end."""
        steps: dict[str, Callable[[Step], Coroutine[Any, Any, None]]] = {
            "begin": self._begin,
            "begin group": self._begin_group,
            "verify": self._verify,
            "verify group": self._verify_group,
            "settle": self._settle,
            "hang up": self._hang_up,
            "reconnect": self._reconnect,
            "twice": self._twice,
            "record": self._record,
            "judge": self._judge,
            "release": self._release,
            "retire": self._retire,
            "capture": self._capture,
            "prepare": self._prepare,
            "commit": self._commit,
            "resume": self._resume,
            "expire": self._expire,
            "kill in commit": self._kill_in_commit,
            "kill": self._kill,
        }
        for step in self.schedule.steps:
            await trio.sleep(step.pause_ms / 1000)
            self.world.raise_broken()
            await steps[step.kind](step)
        await self._finish()

    # -- rollouts --------------------------------------------------------------------------------------

    async def _begin(self, step: Step) -> None:
        ready = self.world.those("input")
        if ready and not self.world.frozen:
            self.world.seed(step.choose(ready))

    async def _verify(self, step: Step) -> None:
        ready = self.world.those("seeded")
        if ready and not self.world.frozen:
            self.world.verify(step.choose(ready))

    async def _begin_group(self, step: Step) -> None:
        """A whole group begins, and its seeds are waited for unless admission is closed."""
        ready = self.world.those("input")
        if not ready or self.world.frozen:
            return
        group = step.choose(ready).group
        for player in ready:
            if player.group == group:
                self.world.seed(player)
        if not self.world.closed:
            await self.world.until(lambda: not self.world.those("seeding"), "a seed is answered", AT_ONCE_S)

    async def _verify_group(self, step: Step) -> None:
        ready = self.world.those("seeded")
        if ready and not self.world.frozen:
            group = step.choose(ready).group
            for player in ready:
                if player.group == group:
                    self.world.verify(player)

    async def _settle(self, step: Step) -> None:
        """Give outcomes that nothing holds up the time to come; whether they do is seen at the end."""
        with trio.move_on_after(SETTLE_S):
            if self.world.closed:
                await self.judge.until(lambda: not self.judge.server.in_flight and self._all_judged())
                await self._tells(self.metrics, lambda metrics: not metrics['cohorts{phase="evaluating"}'])
            while not self.world.closed and any(self._expects(p.group) for p in self.world.those("verifying")):
                await self.world.changed()

    def _expects(self, group: str) -> bool:
        """Whether nothing that we know of holds up this group's outcome."""
        mates = self.world.mates(group)
        whole = all(mate.submitted and mate.mark.attempt == mates[0].mark.attempt for mate in mates)
        return whole and self.judge.conduct[group].hold is None

    def _all_judged(self) -> bool:
        """Whether the judge was asked about each group that is whole."""
        asked = {cohort_of(first) for first, _ in self.judge.asked} | self.world.checker.history.settled
        waiting = [p for p in self.world.those("verifying") if self._expects(p.group)]
        return all(cohort_of(player.mark) in asked for player in waiting)

    async def _hang_up(self, step: Step) -> None:
        waiting = self.world.those("verifying")
        if waiting and not self.world.frozen:
            self.world.hang_up(step.evenly(waiting))

    async def _reconnect(self, step: Step) -> None:
        """A connection breaks, and the client sends the same again: that a captured rollout does, too."""
        waiting = self.world.those("verifying")
        if waiting:
            player = step.evenly(waiting)
            self.world.hang_up(player)
            self.world.verify(player)

    async def _twice(self, step: Step) -> None:
        waiting = self.world.those("verifying")
        if waiting and not self.world.frozen:
            self.world.verify(step.evenly(waiting))

    async def _record(self, step: Step) -> None:
        told = [player for player in self.world.those("told") if not player.verifies]
        if told and not self.world.frozen:
            self.world.close(step.evenly(told))

    async def _judge(self, step: Step) -> None:
        """From now on the judge treats a group otherwise."""
        group = step.evenly(sorted({player.group for player in self.world.players}))
        conduct = CONDUCTS[step.number // 100 % len(CONDUCTS)]
        self._release_group(group)
        manner: dict[str, Conduct] = {
            "reward": Conduct(),
            "fail": Conduct("fail"),
            "slow": Conduct(delay_s=0.02),
            "held": Conduct(hold=trio.Event()),
        }
        self.judge.conduct[group] = manner[conduct]

    async def _release(self, step: Step) -> None:
        held = sorted(group for group, conduct in self.judge.conduct.items() if conduct.hold is not None)
        if held:
            self._release_group(step.evenly(held))

    def _release_group(self, group: str) -> None:
        hold = self.judge.conduct[group].hold
        if hold is not None:
            hold.set()
        self.judge.conduct[group].hold = None

    async def _retire(self, step: Step) -> None:
        """The controller drops one rollout while training goes on; it starts over."""
        running = self.world.those("verifying") or self.world.those("seeded", "told")
        if not running or self.phase != "idle" or self.world.frozen:
            return
        player = step.evenly(running)
        rollout = player.rollout
        self.world.note(f"retire {rollout.key}")
        self.world.checker.disturb(cohort_of(rollout.mark))
        player.life += 1
        await self.controller.retire(self._new_id("x"), [rollout.key])
        self.retired.add(rollout.rollout_id)
        await self.world.until(lambda: not player.verifies, "a retire ends the waits of its session", AT_ONCE_S)
        for asked, reply in self.world.late:
            if asked is rollout:
                self.world.checker.retired(rollout.mark, reply)
        self.world.lost(player, regenerate=step.number % 3 > 0)
        if step.number % 2:
            await self._forget()

    async def _forget(self) -> None:
        if self.retired:
            await self.controller.forget(self._new_id("f"), sorted(self.retired))
            self.retired.clear()

    # -- checkpoints -----------------------------------------------------------------------------------

    async def _capture(self, step: Step) -> None:
        """The callers are captured: in a checkpoint that is open, or right before it opens."""
        if self.captured is None and self.phase in ("idle", "prepared", "committed"):
            self.captured = self.world.capture()
            self.world.note("captured")
            self._whole()

    async def _prepare(self, step: Step) -> None:
        if self.phase == "idle":
            self.checkpoint = self._new_id("c")
            self.world.closed = True
            self.world.note(f"prepare {self.checkpoint}")
            await self.controller.prepare(self.checkpoint)
            self.phase = "prepared"
            asked = {cohort_of(first) for first, _ in self.judge.asked}
            self.world.checker.begun = asked | self.world.perhaps_restored

    async def _commit(self, step: Step) -> None:
        if self.phase != "prepared":
            return
        evaluating = (await self.metrics())['cohorts{phase="evaluating"}']
        held = set() if evaluating else self.world.held(self.judge.asked_all)
        folder = self.folder / self.checkpoint
        scope = self.captured.keys if self.captured is not None and step.number % 2 else None
        self.world.note(f"commit {self.checkpoint} held={sorted(held)} scope={scope}")
        await self.controller.commit(self.checkpoint, folder, scope)
        self.phase, self.committed = "committed", folder
        self.world.checker.history.settled |= held
        self._whole()

    def _whole(self) -> None:
        """A checkpoint is whole once the server has committed and the players are captured."""
        if self.captured is None or self.committed is None:
            return
        self.captured.history = self.world.checker.history.copy()
        self.saved = self.captured, self.committed

    async def _resume(self, step: Step) -> None:
        self.world.checker.begun = None
        if self.phase != "idle":
            self.world.note(f"resume {self.checkpoint}")
            await self.controller.resume(self.checkpoint)
        self._opened()

    def _opened(self) -> None:
        self.phase, self.captured, self.committed = "idle", None, None
        self.world.frozen = self.world.closed = False
        self.world.checker.begun = None

    async def _expire(self, step: Step) -> None:
        """The controller is gone: the lease opens admission. Its deadline is short in this schedule's prepare."""
        if self.phase != "prepared":
            return
        await self._resume(step)
        self.checkpoint, self.world.closed = self._new_id("c"), True
        self.world.note(f"prepare {self.checkpoint} and leave it to its lease")
        body = await self.controller.call("prepare", self.checkpoint, deadline_s=0.1)
        assert body["phase"] in ("prepared", "preparing"), body
        await self._tells(self.controller.status, lambda status: status["phase"] == "idle")
        late = await self.controller.reply("commit", self.checkpoint, checkpoint_dir=str(self.folder / "late"))
        if (late.status, late.code) != (409, "stale_checkpoint"):
            raise Violation(f"a commit after the lease got {late.status} {late.body[:300]!r}")
        self._opened()

    # -- crashes ---------------------------------------------------------------------------------------

    async def _kill_in_commit(self, step: Step) -> None:
        """The server dies while it writes; who asked for the commit got no reply, so there is none."""
        if self.phase == "prepared":
            folder = self.folder / self.checkpoint

            async def commit() -> None:
                with suppress(Dropped):  # that is what a kill looks like
                    await self.controller.once("commit", self.checkpoint, checkpoint_dir=str(folder))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(commit)
                await trio.sleep((step.number % 10) / 1000)
                await self._crash(step)
                nursery.cancel_scope.cancel()
        else:
            await self._crash(step)

    async def _kill(self, step: Step) -> None:
        await self._crash(step)

    async def _crash(self, step: Step) -> None:
        """Kill the server and all of training, start again, restore what was saved."""
        comeback = COMEBACKS[step.number // 10 % len(COMEBACKS)]
        self.crashes += 1
        self.retired.clear()
        waits = comeback == "awaited"
        ghosts = [p for p in self.world.players if p.verifies and self._is_ghost(p.rollout)] if waits else []
        self.world.note(f"kill -9, comeback: {comeback}, ghosts: {[p.rollout.key for p in ghosts]}")
        assert self.house.running is not None, "a server runs"
        port = self.house.running.port
        await self.house.running.kill()
        self.judge.crashed()
        going_on = await self.world.crash(ghosts)
        self._opened()
        self.world.peer = (await self.house.start(*(["--await-restore"] if waits else []), port=port)).peer
        regenerate = step.number % 4 > 0
        if self.saved is None:
            self.world.from_scratch(regenerate)
            if waits:
                await self.controller.resume(self._new_id("r"))
        else:
            await self._restore(*self.saved, comeback, regenerate)
        await self._ghosts_end(going_on)

    def _is_ghost(self, rollout: Rollout) -> bool:
        """Whether this rollout will be restored under a later attempt, so that its old requests are stale."""
        if self.saved is None:
            return False
        return any(s.rollout.key == rollout.key and s.state in ("seeded", "verifying") for s in self.saved[0].players)

    async def _ghosts_end(self, rollouts: list[Rollout]) -> None:
        """Requests from before the crash are refused once admission is open."""
        late = self.world.late
        await self.world.until(lambda: len(late) >= len(rollouts), "stale requests are refused", AT_ONCE_S)
        for rollout, reply in late:
            self.world.checker.ghost(rollout.mark, reply)

    async def _restore(self, saved: Saved, folder: Path, comeback: str, regenerate: bool) -> None:
        self.restores += 1
        if comeback == "damaged first":
            await self._damaged(saved, folder)
        if comeback == "killed again":
            await self._killed_in_restore(saved, folder)
        name = self._new_id("r")
        self.world.note(f"restore {folder.name} as {name}")
        restored = set((await self.controller.restore(name, folder, saved.keys))["restored"])
        if not saved.certain <= restored:
            raise Violation(f"not restored: {sorted(saved.certain - restored)}")
        if comeback == "start over":
            await self._start_over(name, saved, restored, regenerate)
        else:
            await self.controller.resume(name)
            self.world.go_on(saved, regenerate)

    async def _start_over(self, name: str, saved: Saved, restored: set[str], regenerate: bool) -> None:
        """The restore failed elsewhere: every next attempt is retired under its id (contract 10.7)."""
        if restored:
            await self.controller.retire(name, sorted(restored))
            self.retired |= {s.rollout.rollout_id for s in saved.players if s.rollout.next_key in restored}
        await self.controller.resume(name)
        self.world.start_over(saved, regenerate)

    async def _damaged(self, saved: Saved, folder: Path) -> None:
        """A damaged copy is refused, and leaves the server as it was."""
        copied = self.folder / f"{folder.name}-damaged-{self.crashes}"
        shutil.copytree(folder, copied)
        (part,) = copied.glob("gym/resources/*")
        damaged = max(part.iterdir(), key=lambda path: path.stat().st_size)
        content = bytearray(damaged.read_bytes())
        content[len(content) // 2] ^= 1
        damaged.write_bytes(content)
        reply = await self.controller.reply(
            "restore", self._new_id("r"), checkpoint_dir=str(copied), episode_ids=saved.keys
        )
        if (reply.status, reply.code) != (422, "invalid_checkpoint_state"):
            raise Violation(f"a damaged checkpoint got {reply.status} {reply.body[:300]!r}")
        status = await self.controller.status()
        if status["phase"] != "idle" or status["report"]["counts"]["sessions"]:
            raise Violation(f"a refused restore left something: {status}")

    async def _killed_in_restore(self, saved: Saved, folder: Path) -> None:
        """The server dies in the middle of a restore, too."""
        assert self.house.running is not None, "a server runs"

        async def restore() -> None:
            with suppress(Dropped):  # that is what a kill looks like
                await self.controller.once("restore", "dies", checkpoint_dir=str(folder), episode_ids=saved.keys)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(restore)
            await trio.sleep(LOOK_AGAIN_S)
            port = self.house.running.port
            await self.house.running.kill()
            self.world.peer = (await self.house.start(port=port)).peer
            nursery.cancel_scope.cancel()

    # -- the end ---------------------------------------------------------------------------------------

    async def _finish(self) -> None:
        """Open admission, let the judge reward everybody, and play every rollout to its close."""
        await self._resume(Step("resume", 0, 0))
        self.world.note("the end begins")
        for group in list(self.judge.conduct):
            self._release_group(group)
            self.judge.conduct[group] = Conduct()
        with trio.move_on_after(END_S):
            while any(player.state != "closed" for player in self.world.players) or self.world.broken:
                self._push()
                await self.world.changed()
            await self._nothing_left()
            return
        await self.world.until(lambda: False, "everybody finishes", 0)

    def _push(self) -> None:
        """Let everybody do the next thing."""
        self.world.raise_broken()
        for player in self.world.those("input"):
            self.world.seed(player)
        for player in self.world.those("seeded"):
            self.world.verify(player)
        for player in self.world.those("told"):
            if not player.verifies:
                self.world.close(player)

    async def _nothing_left(self) -> None:
        """One more verification holds age and count; then only what the cap allows is there."""
        await self.world.idle()
        await self._forget()
        probe = Rollout(self.world.peer, AnswerMark("probe", 0, 0))
        await probe.seed()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(probe.verify)
            await self._tells(self.metrics, lambda metrics: metrics["waiting_verifies"] == 1)
            await self.controller.retire("probe", [probe.key])
        await self.controller.forget("probe", [probe.rollout_id])
        self.world.checker.left_over(await self.metrics(), self.schedule.settings["max_terminal_cohorts"])
        status = await self.controller.status()
        if status["retired_rollouts"] or status["retired_sessions"] or status["report"]["counts"]["inflight"]:
            raise Violation(f"left over at the end: {status}")


async def play(schedule: Schedule, folder: Path, socket: Path | None) -> Played:
    """Play one schedule in this folder; raises Violation, to whose notes the log of the run is added."""
    judge = CohortJudge()
    logs: list[list[str]] = []
    try:
        async with judge.server.running():
            settings = settings_for(
                judge.url,
                schedule.size,
                checkpoint={"lease_grace_seconds": LEASE_GRACE_S},
                cohort_collection_timeout_s=COLLECTION_S,
                **schedule.settings,
            )
            async with servers(folder, settings, socket) as house, trio.open_nursery() as nursery:
                world = World(schedule.size, schedule.groups, (await house.start()).peer, nursery)
                logs.append(world.log)
                run = Play(schedule, folder, house, judge, world)
                await run.run()
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise _first(group, logs) from group
    checker = world.checker
    counts = checker.told_count, checker.replays, run.crashes, run.restores, judge.calls
    return Played(schedule.seed, *counts, tuple(world.log))


def _first(group: BaseExceptionGroup[BaseException], logs: list[list[str]]) -> BaseException:
    """The first error of a run, a violation if there is one, with the log of the run."""
    leaves = [leaf for leaf in _leaves(group) if not isinstance(leaf, trio.Cancelled)]
    error = next((leaf for leaf in leaves if isinstance(leaf, Violation)), leaves[0] if leaves else group)
    for log in logs:
        error.add_note("\n".join(log))
    return error


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
