"""The server without HTTP: the registry, the gate, the cohorts' lives and the nursery that owns them.

Each `/verify` is its caller's own task, which only waits; what must outlive a request runs in the root nursery.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count
from typing import Literal

import trio

from genrm_trio.core.cohort import Answer as AnswerId
from genrm_trio.core.cohort import Cohort
from genrm_trio.core.identity import CohortId, EpisodeId
from genrm_trio.core.outcome import JSON, Answer, Refused, Told
from genrm_trio.core.registry import EndedBy, Registry, SeedReply, Submission
from genrm_trio.core.state import Limits
from genrm_trio.core.trace import Hook
from genrm_trio.judging.judge import Judge, JudgeError
from genrm_trio.judging.offload import off_loop
from genrm_trio.judging.pairs import Planned, all_pairs, baseline_plan, comparisons, plan
from genrm_trio.judging.scoring import CohortScores, ScoringRules
from genrm_trio.judging.slots import Slots, Ticket
from genrm_trio.runtime.evaluation import COMPARED_SIZE, Comparing, Contender, Evaluation, evaluate
from genrm_trio.runtime.gate import Gate
from genrm_trio.runtime.life import Life
from genrm_trio.runtime.observer import Observer
from genrm_trio.runtime.points import NoPoints, Points

PRUNE_EVERY_S = 30.0
"""Seconds between sweeps of what age makes due, besides the one before each verification."""
EXPORT_SLICE = 256
"""Sessions exported between two checkpoints of the event loop."""


class TooManyComparisons(ValueError):
    """An evaluation would take more comparisons than `max_comparisons`; the text says how many."""

    def __init__(self, what: str, bound: int) -> None:
        super().__init__(f"{what}, but max_comparisons is {bound}")


@dataclass(frozen=True, slots=True)
class Policy:
    """How this server behaves; built once from the settings.

    Times are seconds. judges: comparisons per pair. max_concurrency: judge calls in flight, over all cohorts.
    max_comparisons: of one evaluation; start-up holds the cohorts to it.
    """

    limits: Limits
    scoring: ScoringRules
    collection_timeout_s: float = 1800.0
    evaluation_timeout_s: float = 1800.0
    strategy: Literal["circular", "all_pairs"] = "circular"
    pair_order: Literal["balanced", "both", "fixed"] = "balanced"
    judges: int = 1
    use_principle: bool = False
    default_principle: str = ""
    judge_start: Literal["all_members", "as_pairs_arrive"] = "all_members"
    max_concurrency: int = 256
    max_comparisons: int = 65536

    async def plan(self, answers: int) -> Sequence[Planned]:
        """Plan the comparisons of answers that are no cohort, in a thread when they are many.

        Raises TooManyComparisons, before anything is planned.
        """
        count = comparisons(self.strategy, answers, self.judges, self.pair_order)
        if count > self.max_comparisons:
            raise TooManyComparisons(f"{answers} entries take {count} comparisons", self.max_comparisons)
        if self.scoring.aggregator_method == "bradley_terry" and (pairs := all_pairs(answers)) > self.max_comparisons:
            raise TooManyComparisons(f"bradley_terry fits {pairs} pairs of {answers} entries", self.max_comparisons)
        make = partial(plan, self.strategy, answers, self.judges, self.pair_order)
        return await off_loop(COMPARED_SIZE * count, make)

    def principle(self, asked: str | None) -> str | None:
        """The principle to send: the request's when it has one, else the default; None when none is used."""
        return (asked or self.default_principle) if self.use_principle else None


@dataclass(frozen=True, slots=True)
class Verification:
    """One `/verify` that passed the checks on its own fields (contract 5.2, one to five).

    prompt: the prompt digest with its suffixes. session, episode: from its cookie and its path prefix.
    """

    cohort: CohortId
    index: int
    prompt: str
    answer: AnswerId
    contender: Contender
    session: str | None = None
    episode: EpisodeId | None = None


class _Waiting:
    """A request that waits for its answer. at_shutdown: tells its client that of a shutdown, without the request."""

    def __init__(self, at_shutdown: Callable[[], None]) -> None:
        self.done = trio.Event()
        self.answer: Answer | None = None
        self.at_shutdown = at_shutdown


class Server:
    """Holds cohorts until they are complete, has them judged, and tells every member its own outcome.

    `run` must be running for cohorts to live. The Registry calls back `answered` and `changed`, within its actions.
    """

    def __init__(
        self,
        policy: Policy,
        judge: Judge,
        *,
        observer: Observer | None = None,
        trace: Hook | None = None,
        points: Points | None = None,
        await_restore: bool = False,
    ) -> None:
        self.policy = policy
        self.judge = judge
        self.observer = observer or Observer()
        self.points: Points = points or NoPoints()
        self.registry = Registry(policy.limits, self, trace)
        self.gate = Gate(self.registry, self.now, self.points, await_restore=await_restore)
        self.slots = Slots(policy.max_concurrency)
        self._comparing = Comparing(judge, policy.scoring, policy.principle)
        self._numbers = count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._at_shutdown: list[Callable[[], None]] = []
        self._ended: list[Cohort] = []
        self._lives: dict[str, Life] = {}
        self._nursery: trio.Nursery | None = None

    def now(self) -> float:
        """Monotonic seconds of Trio's clock, which tests replace."""
        return trio.current_time()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the cohorts' lives until cancelled. An unexpected error of the server's own tasks comes out of here.

        However it ends, every waiter has its answer by then.
        """
        try:
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._sweep, name="sweep")
                task_status.started()
                try:
                    await trio.sleep_forever()
                finally:
                    self.shut_down()
                    self.gate.turnstile.let_all()
        finally:
            self._nursery = None

    async def _sweep(self) -> None:
        while True:
            await trio.sleep(PRUNE_EVERY_S)
            self.registry.prune(self.now(), self.gate.busy)

    def shut_down(self) -> None:
        """Answer every waiter 503 and clear all state, in this step. Other requests end or are refused."""
        if self.registry.closed:
            return
        cohorts, waiters = sum(cohort.active for cohort in self.registry.cohorts.values()), len(self._waiting)
        self.registry.shut_down(self.now())
        for tell in self._at_shutdown:  # before anything else that takes its time: the grace may be short
            tell()
        self._at_shutdown.clear()
        self.gate.tell()
        for cohort in self._ended:
            self._look_again(cohort)
        self._ended.clear()
        self.observer.shut_down(cohorts, waiters)
        self.gate.close()

    # -- what requests do ------------------------------------------------------------------------------

    def known_answer(self, key: str, index: int) -> AnswerId | None:
        """The answer that holds a slot: a short cut for exact retries, and the scheme to compare under."""
        member = self.registry.member(key, index)
        return AnswerId({member.scheme: member.digest}, member.raw) if member is not None else None

    async def verify(self, asked: Verification, *, at_shutdown: Callable[[], None] = lambda: None) -> Answer:
        """Take one `/verify` to its answer: its member's own outcome, or a refusal.

        A disconnect cancels the caller: its waiter goes, its member stays.
        at_shutdown: called in the step in which a shutdown answers it, and so long before its task runs again.
        """
        now = self.now()
        self.registry.prune(now, self.gate.busy)
        waiter = next(self._numbers)
        reply = self.registry.submit(now, self._submission(waiter, asked))
        if isinstance(reply, Refused):
            return self._verified(reply)
        if isinstance(reply, Told):
            return self._verified(reply.outcome)
        if reply.started:
            self._start_life(self.registry.cohorts[reply.cohort])
        waiting = self._waiting[waiter] = _Waiting(at_shutdown)
        try:
            await waiting.done.wait()
        finally:
            self.gate.turnstile.through(waiting.done)
            if self._waiting.pop(waiter, None) is not None:
                self.registry.leave(self.now(), waiter)
                self.observer.disconnected(reply.cohort)
        await self.points.reach("answered", reply.cohort)
        assert waiting.answer is not None, "a waiter is woken with its answer"
        return self._verified(waiting.answer)

    def _submission(self, waiter: int, asked: Verification) -> Submission:
        return Submission(
            waiter=waiter,
            cohort=asked.cohort,
            index=asked.index,
            prompt=asked.prompt,
            answer=asked.answer,
            session=asked.session,
            episode=asked.episode,
            payload=asked.contender,
        )

    def _verified(self, answer: Answer) -> Answer:
        self.observer.verified(answer)
        return answer

    async def compare(self, contenders: Sequence[Contender]) -> CohortScores:
        """Judge answers that are no cohort, at least two; raises JudgeError and TooManyComparisons."""
        planned = await self.policy.plan(len(contenders))
        ticket = self.slots.ticket(label="compare")
        ticket.deadline.deadline = trio.current_time() + self.policy.evaluation_timeout_s
        with ticket.deadline:
            scores = await evaluate(self._comparing, planned, dict(enumerate(contenders)), ticket)
            if isinstance(scores, JudgeError):
                raise scores
            return scores
        raise JudgeError(f"the evaluation deadline of {self.policy.evaluation_timeout_s:g} s passed")

    def seed(self, session_id: str, episode: EpisodeId | None, *, binds: bool, typed: bool) -> SeedReply:
        """Bind a session to its episode, or claim a restored one."""
        return self.registry.seed(self.now(), session_id, episode, binds=binds, typed=typed)

    def end_session(self, session_id: str, by: EndedBy, episode: EpisodeId | None = None) -> str:
        """A session ends by its 2xx verify reply, or by its close; not by those of an attempt that it left behind.

        Says which, in the Registry's words.
        """
        return self.registry.end_session(self.now(), session_id, by, episode)

    def use_session(self, session_id: str, episode: EpisodeId | None) -> str | None:
        """Count a request that needs no cohort as use of its session; returns why it is refused as stale, or None."""
        stale = self.registry.sessions.stale(session_id, episode)
        self.registry.use_session(self.now(), session_id, episode)
        return stale

    def session_is_typed(self, session_id: str) -> bool:
        """Whether the session was made by a typed seed, and so stays open after its verify reply."""
        session = self.registry.sessions.get(session_id)
        return session is not None and session.typed

    # -- cohorts ---------------------------------------------------------------------------------------

    def _start_life(self, cohort: Cohort) -> None:
        assert self._nursery is not None, "the server runs while it is asked"
        life = self._lives[cohort.id.key] = Life(self, cohort)
        self.observer.cohort_started(cohort.id.key)
        self._nursery.start_soon(life.live, name=f"cohort {cohort.id.key}")

    def evaluation(
        self, key: str, ticket: Ticket, contender: Callable[[int], Contender | None], nursery: trio.Nursery
    ) -> Evaluation:
        """The comparisons of one cohort, to be run in this nursery."""
        return Evaluation(self._comparing, self._plan(key), self.policy.limits.cohort_size, ticket, contender, nursery)

    def _plan(self, key: str) -> Sequence[Planned]:
        if self.policy.limits.fixed_baseline:
            return baseline_plan(key, self.policy.limits.cohort_size, self.policy.judges)
        return self._cohort_plan

    @cached_property
    def _cohort_plan(self) -> Sequence[Planned]:
        """The plan that all cohorts share."""
        size, judges = self.policy.limits.cohort_size, self.policy.judges
        return plan(self.policy.strategy, size, judges, self.policy.pair_order)

    def answered(self, waiter: int, answer: Answer, /) -> None:
        """The core has an answer for a waiting request."""
        waiting = self._waiting.pop(waiter)
        waiting.answer = answer
        if self.registry.closed:
            self._at_shutdown.append(waiting.at_shutdown)
        self.gate.turnstile.let(waiting.done)

    def changed(self, cohort: Cohort, /) -> None:
        """The core changed a cohort: its life looks again, and is forgotten once it is over."""
        if self.registry.closed:
            self._ended.append(cohort)
        else:
            self._look_again(cohort)

    def _look_again(self, cohort: Cohort) -> None:
        key = cohort.id.key
        life = self._lives.get(key)
        if life is None:
            return
        if not cohort.active or self.registry.cohorts.get(key) is not cohort:
            del self._lives[key]
            self.observer.cohort_ended(cohort, self.now() - cohort.created_at)
        life.changed()

    # -- admission and checkpoints ---------------------------------------------------------------------

    def close_admission(self) -> None:
        """From now on nothing is published, and data requests other than `/verify` wait."""
        self.registry.close_admission(self.now())
        self.gate.bell.ring()

    def open_admission(self, *, resumed: bool) -> None:
        """Let requests and held outcomes go on. No-op for what is open already.

        resumed: by a resume or by the lease, which also ends the wait for a restore; not by a call that failed.
        """
        if resumed:
            self.gate.awaits_restore = False
        if not self.registry.admission.open:
            self.registry.open_admission(self.now())
        self.gate.bell.ring()
        self.gate.open_doors()

    async def export_session_states(self, session_ids: Collection[str], *, checkpoint_id: str) -> dict[str, JSON]:
        """The states of these open sessions, for the checkpoint `checkpoint_id`, in the order of eviction.

        Pauses between groups, never within one. Sessions that are not open any more are left out.
        """
        wanted = dict.fromkeys(session_ids)
        states: dict[str, JSON] = {}
        since_pause = 0
        anew = True
        for group in self.registry.export_plan():
            exported = self.registry.export(self.now(), group, anew=anew)
            anew = False
            states |= {s: state for s, state in exported.items() if s in wanted}
            since_pause += len(exported) + 1
            if since_pause >= EXPORT_SLICE:
                since_pause = 0
                await trio.lowlevel.checkpoint()
                await self.points.reach("exporting", checkpoint_id)
        left_over = [session for session in wanted if session not in states]
        for start in range(0, max(len(left_over), 1), EXPORT_SLICE):
            part = left_over[start : start + EXPORT_SLICE]
            states |= self.registry.export(self.now(), None, part, anew=anew)
            anew = False
            await trio.lowlevel.checkpoint()
        return states
