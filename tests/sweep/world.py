"""One afternoon of a server, with everything in it that can go wrong at another moment each time.

Four groups of two: a disconnect with a retry, a supersession, outcomes held by a checkpoint, a live retire; `/compare`
at two moments; a checkpoint; a crash into a fresh process that restores it; replays; then one more cohort. The
clients do what clients do: they ask again what was cut, take a higher attempt after a failed cohort, and repeat
control calls. Faults are put in from outside; whatever they are, the afternoon ends, and the checks hold.
"""

import errno
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from unittest import mock

import trio
from tests.support.cuts import Cuts, Moment, run_in_order
from tests.support.plane import INSTANCE, RULES, wall
from tests.support.scene import policy
from tests.sweep.doors import CUT, Door, Post, RuntimeDoor, Said, WebDoor, deadline

from genrm_trio.checkpoints.faults import Killed
from genrm_trio.checkpoints.memory import MemoryFolder
from genrm_trio.checkpoints.steps import Stage
from genrm_trio.checkpoints.store import MemoryStore
from genrm_trio.core.invariants import broken, broken_step
from genrm_trio.core.snapshot import snapshot
from genrm_trio.core.trace import Event
from genrm_trio.judging.judge import Answered, Ask, JudgeError
from genrm_trio.judging.slots import Ticket
from genrm_trio.judging.verdict import Verdict
from genrm_trio.runtime import server as server_module
from genrm_trio.runtime.bell import Bell
from genrm_trio.runtime.control import Control
from genrm_trio.runtime.life import Life
from genrm_trio.runtime.server import Server

JudgeFault = Literal["judge error", "unexpected error", "hang"]
StoreFault = Literal["disk error", "killed", "slow"]
CHECKPOINT_AT: Final = 10.0
CRASH_AT: Final = 20.0
LONG_AFTER: Final = 600.0
MOST_ATTEMPTS: Final = 5
RETRY_S: Final = 0.5


RULES_OF_COHORTS = policy(2, limits={"cohort_result_ttl_s": 300.0, "session_idle_ttl_s": 400.0})


@dataclass(frozen=True)
class Fault:
    """What is put in: the n-th step of a kind of task cut, the n-th judge call or the n-th store call spoilt."""

    steps: str = ""
    moment: Moment = "waiting"
    judge: JudgeFault | None = None
    store: StoreFault | None = None
    at: int = 0


class SweptJudge:
    """Takes a second for each call, and gives each answer the number that it is; spoils its n-th call."""

    def __init__(self, fault: JudgeFault | None, at: int) -> None:
        self._fault = fault
        self._at = at
        self.calls = 0
        self.asked: Counter[str] = Counter()

    async def compare(self, ask: Ask, slot: Ticket) -> Answered:
        async with slot.slot():
            self.calls += 1
            spoilt = self._fault if self.calls == self._at else None
            self.asked.update({ask.response_1, ask.response_2})
            await trio.sleep(1.0)
            if spoilt == "hang":
                await trio.sleep_forever()
        if spoilt == "judge error":
            raise JudgeError("the judge is dead")
        if spoilt == "unexpected error":
            raise ZeroDivisionError("a defect in the judge")
        first, second = float(ask.response_1), float(ask.response_2)
        return Answered(Verdict(first, second, 1.0 if first > second else 6.0), None, None, "")

    async def aclose(self) -> None:
        """Nothing to give back."""


@dataclass
class Member:
    """One rollout of a group: when it asks, and how its session goes on."""

    group: "Group"
    index: int
    at: float
    hangs_up_at: float | None = None
    episode: int = 0
    session_number: int = 0
    seeded: bool = False

    @property
    def session(self) -> str:
        return f"s-{self.group.name}{self.index}-{self.session_number}"

    @property
    def rollout(self) -> str:
        return f"{self.group.name}{self.index}"

    @property
    def key(self) -> str:
        return f"{self.rollout}-a{self.episode}" if self.episode else self.rollout

    @property
    def text(self) -> str:
        """The answer, and the reward it gets: no two of an afternoon are equal."""
        return f"{1 + 'abcdex'.index(self.group.name) * 0.5 + self.group.attempt * 0.07 + self.index * 0.01:.2f}"


@dataclass
class Group:
    """A group and what its members were told under the attempt that ended well."""

    name: str
    members: list[Member] = field(default_factory=list)
    attempt: int = 0
    superseded_at: float | None = None
    told: dict[int, Said] = field(default_factory=dict)

    @staticmethod
    def of(name: str, *at: float, **more: Any) -> "Group":
        group = Group(name, **more)
        group.members = [Member(group, index, time) for index, time in enumerate(at)]
        return group


class World:
    """The server's generations, their clients and their controller."""

    def __init__(self, cuts: Cuts, fault: Fault, *, web: bool, watch_steps: bool) -> None:
        self.cuts = cuts
        self.judge = SweptJudge(fault.judge, fault.at)
        self.watch_steps = watch_steps
        self.wrong: list[str] = []
        self.events: Counter[str] = Counter()
        self.told: Counter[str] = Counter()
        self.store_calls = 0
        self.generation = 0
        self.door: Door | None = None
        self.groups = {
            "a": Group.of("a", 1.0, 3.0),
            "b": Group.of("b", 1.0, 2.5, superseded_at=2.0),
            "c": Group.of("c", 9.0, 9.5),
            "d": Group.of("d", 5.0, 7.0),
        }
        self.groups["a"].members[0].hangs_up_at = 1.5
        self.straggler = Group.of("x", 9.9).members[0]
        self._fault = fault
        self._web = web
        self._folders: dict[str, MemoryFolder] = {}
        self._cookies: dict[str, str] = {}
        self._committed: tuple[str, list[str]] | None = None
        self._told_at_commit: dict[str, dict[int, Said]] = {}
        self._killed_in: int | None = None
        self._bell = Bell()
        self._crash = trio.Event()
        self._over = False
        self.stages = 0

    # -- the server's generations ----------------------------------------------------------------------

    async def run(self) -> None:
        """The whole afternoon. Raises when anything of it hangs, or anything of the server crashes."""
        with trio.fail_after(LONG_AFTER * 5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._operate, name="operator")
                await self._people()
                self._over = True
                self._crash.set()

    async def _operate(self) -> None:
        while not self._over:
            self._crash = trio.Event()
            self.generation += 1
            server = self._server = Server(RULES_OF_COHORTS, self.judge, await_restore=self.generation > 1)
            self._listen(server)
            control = Control(server, self._store(self.generation), instance=INSTANCE, rules=RULES, wall=wall)
            try:
                with self.cuts.watched("everything", f"generation {self.generation}"):
                    await self._serve(server, control)
            except* Killed:
                self.events["killed"] += 1
            self._check_end(server)

    async def _serve(self, server: Server, control: Control) -> None:
        async with trio.open_nursery() as nursery:
            door: Door | None = None
            try:
                await nursery.start(server.run)
                await nursery.start(control.run)
                door = RuntimeDoor(server, control, self.cuts)
                if self._web:
                    door = WebDoor(server, control, self.cuts, nursery, self._cookies)
                nursery.start_soon(self._recover, door, name="recovery")
                await self._crash.wait()
            finally:
                self.door = None
                server.shut_down()
                nursery.cancel_scope.cancel()
                if door is not None:
                    with trio.CancelScope(shield=True):
                        await door.end()

    async def _recover(self, door: Door) -> None:
        """What the controller does with a fresh process; its clients have been asking it all the while."""
        self.door = door
        self._bell.ring()
        if self.generation == 1:
            return
        name = f"re{self.generation}"
        if self._committed is not None:
            folder, keys = self._committed
            body = {"checkpoint_dir": folder, "episode_ids": keys}
            await self._control_of(door, "restore", name, **body)
        await self._control_of(door, "resume", name)

    def _store(self, generation: int) -> MemoryStore:
        def before(_operation: str) -> None:
            self.store_calls += 1
            if self.store_calls == self._fault.at:
                if self._fault.store == "disk error":
                    raise OSError(errno.EIO, "the disk failed")
                if self._fault.store == "killed":
                    self._killed_in = generation
            if self._killed_in == generation:
                raise Killed

        store = MemoryStore(INSTANCE, before_call=before, between=self._between)
        store.folders = self._folders
        return store

    async def _between(self, stage: Stage) -> None:
        self.stages += 1
        if self._fault.store == "slow" and self.stages == self._fault.at:
            await trio.sleep(100.0)

    # -- checks ----------------------------------------------------------------------------------------

    def _listen(self, server: Server) -> None:
        registry = server.registry
        before = snapshot(registry) if self.watch_steps else None

        def heard(event: Event) -> None:
            nonlocal before
            self.events[event.name] += 1
            if self.watch_steps or self.cuts.cut is not None or self._fault.judge or self._fault.store:
                self._note(event.name, broken(registry))
            if before is not None:
                after = snapshot(registry)
                self._note(event.name, broken_step(before, event, after))
                before = after

        registry.trace = heard

    def _note(self, when: str, found: Mapping[str, str]) -> None:
        self.wrong += [f"after {when}: {name}: {text}" for name, text in found.items()]

    def _check_end(self, server: Server) -> None:
        """Nothing is left of a generation: no state, no slot, no passage, no task's bookkeeping."""
        self._note("the end", broken(server.registry))
        left = {
            "open registry": not server.registry.closed,
            "slots": server.slots.in_use,
            "slot waiters": server.slots.waiting,
            "lives": len(server._lives),
            "waiting requests": len(server._waiting),
        }
        self.wrong += [f"left at the end: {what} {count}" for what, count in left.items() if count]

    async def _check_drained(self) -> None:
        """While the server still runs: with the sessions closed and the ages over, its memory is empty."""
        server = self._server
        await trio.sleep(LONG_AFTER)
        registry = server.registry
        left = {
            "cohorts": len(registry.cohorts),
            "groups": len(registry.groups),
            "sessions": len(registry.sessions),
            "waiters": len(registry.waiters),
            "held places": registry.held,
            "closed ids": len(registry.sessions.closed),
            "running requests": server.gate.running,
            "busy sessions": len(server.gate.busy),
            "slots": server.slots.in_use + server.slots.waiting,
            "lives": len(server._lives),
        }
        self.wrong += [f"not drained: {what} {count}" for what, count in left.items() if count]

    # -- clients ---------------------------------------------------------------------------------------

    async def _people(self) -> None:
        async with trio.open_nursery() as nursery:
            for group in self.groups.values():
                nursery.start_soon(self._play, group, name=f"group {group.name}")
            nursery.start_soon(self._compare_at, 4.0, name="compare")
            nursery.start_soon(self._compare_at, 11.0, name="compare")
            nursery.start_soon(self._seed_at, 9.9, name="late seed")
            nursery.start_soon(self._control_all, name="controller")
        self._crash.set()
        async with trio.open_nursery() as nursery:
            for group in self.groups.values():
                nursery.start_soon(self._replay, group, name=f"replay {group.name}")
        last = self.groups["e"] = Group.of("e", trio.current_time() + 1, trio.current_time() + 2)
        await self._play(last)
        for member in [*(m for group in self.groups.values() for m in group.members), self.straggler]:
            await self._ask(lambda door, m=member: door.close(m.session, m.key))  # type: ignore[misc]
        await self._check_drained()

    async def _ask(self, call: Callable[[Door], Awaitable[Said]], until: float | None = None) -> Said:
        """One request as its client sends it: again when it was cut or dropped, or the server went away."""
        while True:
            await self._bell.until(lambda: self.door is not None)
            door = self.door
            assert door is not None, "waited for"
            said = CUT
            with trio.move_on_at(until if until is not None else float("inf")) as leaving:
                said = await call(door)
            if leaving.cancelled_caught:
                until = None
            elif said.word not in {"cut", "dropped", "shutting_down"}:
                return said
            await trio.sleep(RETRY_S)

    async def _seed(self, member: Member) -> None:
        while not member.seeded:
            said = await self._ask(lambda door: door.seed(member.session, member.key))
            if said.word == "stale_attempt":
                self._start_over(member)
            else:
                assert said.word == "ok", f"a seed of {member.key} was told {said}"
                member.seeded = True

    @staticmethod
    def _start_over(member: Member) -> None:
        member.episode += 1
        member.session_number += 1
        member.seeded = False

    async def _verify(self, member: Member) -> Said:
        while True:
            await self._seed(member)
            post = Post(member.group.name, member.group.attempt, member.index, member.text, member.session, member.key)
            leaves, member.hangs_up_at = member.hangs_up_at, None
            said = await self._ask(lambda door, p=post: door.verify(p), leaves)  # type: ignore[misc]
            if said.word != "stale_attempt":
                return said
            self._start_over(member)

    async def _play(self, group: Group) -> None:
        """The group from its first member to an outcome that all its members were told."""
        told: dict[int, Said] = {}

        for _ in range(MOST_ATTEMPTS):
            told = {}

            async def rollout(member: Member, told: dict[int, Said] = told) -> None:
                await trio.sleep_until(max(member.at, trio.current_time()))
                told[member.index] = await self._verify(member)

            with trio.move_on_at(group.superseded_at or float("inf")):
                async with trio.open_nursery() as nursery:
                    for member in group.members:
                        nursery.start_soon(rollout, member, name=f"rollout {member.rollout}")
            group.superseded_at = None
            if {said.word for said in told.values()} <= {"reward", "masked"} and len(told) == len(group.members):
                self._check_told(group, told)
                group.told = told
                return
            group.attempt += 1
        raise AssertionError(f"group {group.name} came to nothing in {MOST_ATTEMPTS} attempts: {told}")

    def _check_told(self, group: Group, told: Mapping[int, Said]) -> None:
        self.told.update(said.word for said in told.values())
        if len({said.word for said in told.values()}) > 1:
            self.wrong.append(f"siblings of {group.name} were told {told}")
        for member in group.members:
            said = told[member.index]
            if said.word == "reward" and abs((said.reward or 0) - float(member.text)) > 1e-9:
                self.wrong.append(f"{member.key} with the answer {member.text} was told {said}")

    async def _replay(self, group: Group) -> None:
        """After the crash each rollout goes on under its next attempt, with the same answer."""
        before = dict(group.told)
        saved = set(self._committed[1]) if self._committed is not None else set()
        kept = all(member.key in saved for member in group.members)
        asked = sum(self.judge.asked[member.text] for member in group.members)
        for member in group.members:
            member.episode += 1
            member.seeded = kept
        await self._play(group)
        if not kept or group.name not in self._told_at_commit:
            return
        if group.told != before:
            self.wrong.append(f"{group.name} was told {before}, and after the restore {group.told}")
        if sum(self.judge.asked[member.text] for member in group.members) != asked:
            self.wrong.append(f"{group.name} was judged again after the restore")

    async def _compare_at(self, time: float) -> None:
        await trio.sleep_until(time)
        said = await self._ask(lambda door: door.compare(["1.5", "2.5"]))
        assert said.word in {"ok", "judge_failed", "500"}, said

    async def _seed_at(self, time: float) -> None:
        """A seed that runs while the controller prepares."""
        await trio.sleep_until(time)
        await self._seed(self.straggler)

    # -- the controller --------------------------------------------------------------------------------

    async def _control(self, name: str, checkpoint_id: str, **body: Any) -> Said:
        await self._bell.until(lambda: self.door is not None)
        assert self.door is not None, "waited for"
        return await self._control_of(self.door, name, checkpoint_id, **body)

    async def _control_of(self, door: Door, name: str, checkpoint_id: str, **body: Any) -> Said:
        """A control call, repeated while it is cut, and a few times while it is refused for what may pass."""
        said = CUT
        for _ in range(6):
            if self.door is not door:
                return Said("shutting_down")
            said = await door.control(name, checkpoint_id=checkpoint_id, deadline_ts=deadline(10.0), **body)
            if said.word not in {"cut", "dropped", "deadline_exceeded", "invalid_checkpoint_state"}:
                return said
            await trio.sleep(RETRY_S)
        return said

    async def _control_all(self) -> None:
        await trio.sleep_until(6.0)
        await self._control("retire", "live", episode_ids=["d0"])
        for round_ in range(3):
            await trio.sleep_until(max(CHECKPOINT_AT, trio.current_time()))
            if await self._checkpoint(f"ck{round_}"):
                break
        await trio.sleep_until(max(CRASH_AT, trio.current_time()))

    async def _checkpoint(self, name: str) -> bool:
        """Prepare, commit, resume; tells whether it was committed."""
        prepared = await self._control("prepare", name)
        if prepared.word != "ok" or prepared.body is None or prepared.body["phase"] != "prepared":
            await self._control("resume", name)
            return False
        await trio.sleep(2.0)
        told = {group.name: dict(group.told) for group in self.groups.values() if group.told}
        said = await self._control("commit", name, checkpoint_dir=name)
        if said.word == "ok":
            assert said.body is not None, "a commit has a body"
            self._committed = (name, list(said.body["episode_ids"]))
            self._told_at_commit = told
        await trio.sleep(1.0)
        await self._control("resume", name)
        return said.word == "ok"


class _WatchedLife(Life):
    """A cohort's task that may be cut from outside, as by the end of its nursery."""

    cuts: Cuts

    async def live(self) -> None:
        with self.cuts.watched("cohort", self._key):
            await super().live()


def play(fault: Fault, *, web: bool = False, watch_steps: bool = False, seed: int = 0) -> World:
    """One afternoon with this fault in it; the world tells what was found wrong, and how far it counted."""
    cuts = Cuts(fault.steps, fault.at if fault.steps else 0, fault.moment)
    world = World(cuts, fault, web=web, watch_steps=watch_steps)
    watched = type("WatchedLife", (_WatchedLife,), {"cuts": cuts})
    with mock.patch.object(server_module, "Life", watched):
        run_in_order(world.run, seed=seed, instruments=(cuts,))
    return world
