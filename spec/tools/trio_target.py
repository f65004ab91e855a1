"""The runtime, led along the spec's graph: real requests, real cohort lives, a judge that says what the spec says.

Time stands still. A deadline passes when the spec says so, by the life's own scope; a life that holds an outcome stops
at its named point until the spec lets it publish. What only time makes due is asked of the Registry itself.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio
import trio.testing
from spec.tools.checkpoint import Checkpoint
from spec.tools.codes import PROMPT, Codes, Constants
from spec.tools.core_target import with_episodes
from spec.tools.graph import Event, State
from spec.tools.projection import due, projected
from spec.tools.replay import Divergence, Taken

from genrm_trio.core.cohort import Phase
from genrm_trio.core.identity import EpisodeId
from genrm_trio.core.outcome import Answer
from genrm_trio.core.trace import ACTIONS, method_name
from genrm_trio.core.trace import Event as CodeEvent
from genrm_trio.judging.judge import Answered, Ask, JudgeError
from genrm_trio.judging.scoring import ScoringRules
from genrm_trio.judging.slots import Ticket
from genrm_trio.judging.text import AnswerText, Turn
from genrm_trio.judging.verdict import Verdict
from genrm_trio.ops.tla.events import SpecEvent, spec_event
from genrm_trio.ops.tla.values import Map, Value, pairs_of, record
from genrm_trio.runtime.bell import Bell
from genrm_trio.runtime.evaluation import Contender
from genrm_trio.runtime.gate import Stale
from genrm_trio.runtime.life import Life
from genrm_trio.runtime.server import Policy, Server, Verification

DEADLINE_S = 60.0
TO_BE_JUDGED = {Phase.COLLECTING, Phase.EVALUATING}


class LedJudge:
    """Says nothing until it is told what to say of a cohort: each index's score, or an error."""

    def __init__(self) -> None:
        self._said: dict[str, dict[int, float] | Exception] = {}
        self._bell = Bell()

    async def compare(self, ask: Ask, slot: Ticket) -> Answered:
        key = ask.conversation[0].content
        async with slot.slot():
            await self._bell.until(lambda: key in self._said)
        said = self._said[key]
        if isinstance(said, Exception):
            raise said
        first, second = said[int(ask.response_1)], said[int(ask.response_2)]
        return Answered(Verdict(first, second, 1.0 if first > second else 6.0), None, None, "")

    async def aclose(self) -> None:
        """Nothing to give back."""

    async def say(self, key: str, said: dict[int, float] | Exception) -> None:
        """Answer the calls of this cohort, and only those that wait now."""
        self._said[key] = said
        self._bell.ring()
        await trio.testing.wait_all_tasks_blocked()
        del self._said[key]


class Hold:
    """The named point behind the wait for open admission: a life stops here until it is let through, once."""

    def __init__(self) -> None:
        self.stopped: dict[str, trio.Event] = {}

    async def reach(self, name: str, key: str, /) -> None:
        if name != "hold":
            return
        self.stopped[key] = trio.Event()
        try:
            await self.stopped[key].wait()
        finally:
            del self.stopped[key]

    def let_through(self, key: str) -> None:
        self.stopped[key].set()


@dataclass
class Request:
    """A `/verify` under way."""

    waiter: Value
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    number: int | None = None
    answer: Answer | None = None


class Process:
    """One life of the server, with its requests. `events` are those since the last look."""

    def __init__(self, constants: Constants) -> None:
        self.judge = LedJudge()
        self.hold = Hold()
        self.events: list[CodeEvent] = []
        self.requests: list[Request] = []
        policy = Policy(constants.limits, ScoringRules(), evaluation_timeout_s=DEADLINE_S, pair_order="fixed")
        self.server = Server(policy, self.judge, trace=self._hear, points=self.hold)
        self._nursery: trio.Nursery | None = None

    def _hear(self, event: CodeEvent) -> None:
        self.events.append(event)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as self._nursery:
            await self._nursery.start(self.server.run)
            task_status.started()

    def die(self) -> None:
        """The process is gone: nobody hears what its tasks do on their way out."""
        assert self._nursery is not None, "a process runs"
        self.server.registry.trace = None
        self._nursery.cancel_scope.cancel()

    def verify(self, asked: Verification, waiter: Value) -> Request:
        assert self._nursery is not None, "a process runs"
        request = Request(waiter)
        self.requests.append(request)
        self._nursery.start_soon(self._verify, asked, request)
        return request

    async def _verify(self, asked: Verification, request: Request) -> None:
        with request.scope:
            if self.server.registry.closed:
                request.answer = await self.server.verify(asked)
                return
            async with self.server.gate.enter("verify", asked.session, asked.episode):
                request.answer = await self.server.verify(asked)


class TrioTarget:
    """A running server. For each action it has a method of the Registry's name, which returns what came back."""

    def __init__(self, constants: Constants, nursery: trio.Nursery) -> None:
        self.codes = Codes(constants)
        self.checkpoint = Checkpoint(constants.limits)
        self._nursery = nursery
        self._process = Process(constants)

    @property
    def _server(self) -> Server:
        return self._process.server

    async def start(self, initial: State) -> None:
        """Run in the spec's initial state."""
        await self._nursery.start(self._process.run)
        for session, opened in pairs_of(initial.core["session"]):
            await self.seed(record(session=session, episode=opened["ep"]))

    def die(self) -> None:
        """The process is gone."""
        self._process.die()

    # -- replay.Target ---------------------------------------------------------------------------------

    async def take(self, event: Event) -> Taken:
        self._process.events.clear()
        if event.name == "Crash":
            self.die()
            self._process = Process(self.codes.constants)
            await self._nursery.start(self._process.run)
        step = getattr(self, method_name(event.name), None)
        if step is None:
            return Taken(None, {})
        episodes = {s.session_id: s.episode for s in self._server.registry.sessions}
        returned: Value | None = await step(event.args)
        await trio.testing.wait_all_tasks_blocked()
        self._check_tasks()
        return Taken(self._heard(event, episodes), self._answers(), returned)

    def core(self) -> Map:
        return projected(self._server.registry, self.codes)

    def due(self) -> dict[str, list[Value]]:
        return due(self._server.registry, self.codes)

    def _heard(self, event: Event, episodes: dict[str, EpisodeId]) -> SpecEvent | None:
        heard = [with_episodes(spec_event(one, self.codes), self.codes, episodes) for one in self._process.events]
        if event.name not in ACTIONS:
            return None
        if len(heard) != 1:
            raise Divergence(f"{event} came to the events {heard}")
        return heard[0]

    def _answers(self) -> dict[int, Answer]:
        """Who was told what since the last look."""
        requests = self._process.requests
        self._process.requests = [request for request in requests if request.answer is None]
        return {r.number: r.answer for r in requests if r.answer is not None and r.number is not None}

    def _check_tasks(self) -> None:
        """Every active cohort has its life, every waiter its request, every body is still to be judged; nothing else
        is left."""
        registry = self._server.registry
        active = {key for key, cohort in registry.cohorts.items() if cohort.active}
        lives = set(self._server._lives)
        if lives != active:
            raise Divergence(f"{lives} live, {active} are active")
        waiting = {r.number for r in self._process.requests if r.answer is None and not r.scope.cancel_called}
        if waiting != set(registry.waiters):
            raise Divergence(f"the requests {waiting} wait, the core has the waiters {set(registry.waiters)}")
        for key, cohort in registry.cohorts.items():
            kept = {index for index, member in cohort.members.items() if member.payload is not None}
            if kept != (set(cohort.members) if cohort.phase in TO_BE_JUDGED else set()):
                raise Divergence(f"{key} is {cohort.phase} and keeps the bodies of {kept}")

    def _life(self, a: Map) -> Life:
        return self._server._lives[self._key(a)]

    def _key(self, a: Map) -> str:
        return self.codes.cohort_id(a["cohort"]).key

    # -- verification ----------------------------------------------------------------------------------

    async def submit(self, a: Map) -> Value:
        text = str(a["index"])
        asked = Verification(
            cohort=self.codes.cohort_id(a["cohort"]),
            index=a["index"],
            prompt=PROMPT,
            answer=self.codes.digests(a["answer"]),
            contender=Contender((Turn("user", self._key(a)),), AnswerText("", text)),
            session=self.codes.session_id(a["session"]) if a["session"] else None,
            episode=self.codes.episode_id(a["episode"]) if a["episode"] else None,
        )
        request = self._process.verify(asked, a["waiter"])
        await trio.testing.wait_all_tasks_blocked()
        number = self._process.events[0].args["waiter"]
        assert isinstance(number, int), "a waiter is a number"
        request.number = number
        self.codes.waiters[number] = a["waiter"]
        return self.codes.reply(request.answer)

    async def leave(self, a: Map) -> None:
        (request,) = (r for r in self._process.requests if r.waiter == a["waiter"])
        self._process.requests.remove(request)
        request.scope.cancel()

    # -- a cohort's life -------------------------------------------------------------------------------

    async def expire_collection(self, a: Map) -> None:
        self._life(a)._collection.deadline = trio.current_time()

    async def judged(self, a: Map) -> None:
        scores = {index: self.codes.reward_number(result) for index, result in pairs_of(a["results"])}
        await self._process.judge.say(self._key(a), scores)

    async def judge_failed(self, a: Map) -> None:
        """By the judge's error, or by the deadline, in turn."""
        key, failure = a["cohort"], a["failure"]
        if failure[1] % 2:
            await self._process.judge.say(self._key(a), JudgeError(self.codes.judge_text(key, failure)))
        else:
            self.codes.learn_failure(
                key, failure, f"the evaluation deadline of {DEADLINE_S:g} s passed for cohort {self._key(a)!r}"
            )
            self._life(a)._ticket.deadline.deadline = trio.current_time()

    async def wake(self, a: Map) -> None:
        if self._key(a) not in self._process.hold.stopped:
            raise Divergence(f"the life of {self._key(a)} was not woken")

    async def publish(self, a: Map) -> None:
        """A life whose publish was refused waits already where the spec has it look once more."""
        key = self._key(a)
        if key in self._process.hold.stopped:
            self._process.hold.let_through(key)
        elif self._server.registry.admission.open:
            raise Divergence(f"the life of {key} does not look, and admission is open")
        else:
            self._server.registry.publish(self._server.now(), key)

    async def recheck(self, a: Map) -> None:
        key = self._key(a)
        if key in self._process.hold.stopped:
            self._process.hold.let_through(key)
            await trio.testing.wait_all_tasks_blocked()
        if key in self._process.hold.stopped:
            raise Divergence(f"the life of {key} does not wait while admission is closed")

    async def fail(self, a: Map) -> None:
        await self._process.judge.say(self._key(a), RuntimeError("broken"))

    # -- retention -------------------------------------------------------------------------------------

    async def expire(self, a: Map) -> None:
        self._server.registry.expire(self._server.now(), self._key(a))

    async def expire_watermark(self, a: Map) -> None:
        self._server.registry.expire_watermark(self._server.now(), a["group"])

    async def expire_session(self, a: Map) -> None:
        self._server.registry.expire_session(self._server.now(), self.codes.session_id(a["session"]))

    # -- sessions --------------------------------------------------------------------------------------

    async def seed(self, a: Map) -> Value:
        episode = self.codes.episode_id(a["episode"])
        return self._server.seed(self.codes.session_id(a["session"]), episode, binds=True, typed=False)

    async def use_session(self, a: Map) -> Value:
        """A tool call, which the gate refuses when it is stale. After the shutdown the gate lets nobody in."""
        session, episode = self.codes.session_id(a["session"]), self.codes.episode_id(a["episode"])
        if self._server.registry.closed:
            return self._server.use_session(session, episode) is None
        try:
            async with self._server.gate.enter("tool", session, episode):
                return True
        except Stale:
            return False

    async def end_session(self, a: Map) -> Value:
        episode = self.codes.episode_id(a["episode"])
        return self._server.end_session(self.codes.session_id(a["session"]), a["by"], episode)

    # -- admission and checkpoints ---------------------------------------------------------------------

    async def close_admission(self, _: Value) -> None:
        self._server.close_admission()

    async def open_admission(self, _: Value) -> None:
        self._server.open_admission(resumed=True)
        self.checkpoint.clear()

    async def export(self, a: Map) -> None:
        registry, now = self._server.registry, self._server.now()
        episodes = {session.session_id: session.episode for session in registry.sessions}
        rest = [self.codes.session_id(session) for session in a["rest"]]
        group = a["group"][0] if a["group"] else None
        states = registry.export(now, group, rest, anew=a["anew"])
        self.checkpoint.add(states, episodes)

    async def restore(self, _: Map) -> None:
        self._server.registry.restore(self._server.now(), self.checkpoint.rebuilt())
        self.checkpoint.clear()

    async def refuse_restore(self, a: Map) -> None:
        self.checkpoint.refused(a["reason"], self._server.registry)
        self._server.registry.refuse_restore(self._server.now(), a["reason"])

    # -- retires ---------------------------------------------------------------------------------------

    async def retire(self, a: Map) -> None:
        episodes = sorted(self.codes.episode_id(episode) for episode in a["episodes"])
        self._server.registry.retire(self._server.now(), episodes)

    async def delete_restored(self, a: Map) -> None:
        sessions = sorted(map(self.codes.session_id, a["sessions"]))
        self._server.registry.delete_restored(self._server.now(), sessions)
        self.checkpoint.clear()

    async def forget(self, a: Map) -> None:
        rollouts = [self.codes.session_id(rollout) for rollout in a["rollouts"]]
        self._server.registry.forget(self._server.now(), rollouts)

    async def shut_down(self, _: Value) -> None:
        self._server.shut_down()


@asynccontextmanager
async def trio_target(constants: Constants, initial: State) -> AsyncIterator[TrioTarget]:
    """A running server in the initial state."""
    async with trio.open_nursery() as nursery:
        target = TrioTarget(constants, nursery)
        await target.start(initial)
        yield target
        target.die()
        nursery.cancel_scope.cancel()
