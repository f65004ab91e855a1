"""Schedules as data, and the player that leads a running server along one, under a virtual clock.

A schedule is a list of steps, each a name and a number, so that Hypothesis draws it, shrinks it, and prints what is
left. The player adds nothing by chance: the order in which Trio runs tasks is part of the schedule.
"""

from dataclasses import dataclass, replace
from typing import Final
from unittest import mock

import trio
import trio.testing
from tests.core.story import Caller
from tests.runtime.watching import MOODS, SIZE, Asked, Judge, Watch, Watched
from tests.support.cuts import run_in_order
from tests.support.scene import PROMPT, policy

from genrm_trio.core.cohort import Answer as AnswerId
from genrm_trio.core.identity import group_cohort_id, ungrouped_cohort_id
from genrm_trio.core.outcome import Answer, JudgeFailed, Refused, Rewarded
from genrm_trio.judging.scoring import ScoringRules
from genrm_trio.judging.text import AnswerText, Turn
from genrm_trio.runtime import server as runtime
from genrm_trio.runtime.bell import Bell
from genrm_trio.runtime.evaluation import Contender
from genrm_trio.runtime.gate import Closing

SECONDS: Final = (0.0, 1.0, 9.0, 31.0, 61.0, 500.0)
ENOUGH: Final = 300.0
"""Virtual seconds in which every deadline of a schedule has passed, one after the other."""
STEPS: Final = (
    *("verify_all", "verify_all", "verify", "verify", "retry", "retry", "verify_unbound", "hang_up"),
    *("turn", "turn", "settle", "advance", "judge", "close_admission", "commit", "blink", "open_admission"),
    *("seed_all", "seed_all", "close_session", "start_over", "newer_attempt", "retire", "shut_down"),
)
"""What may happen, as often as it is drawn. The number of a step says of whom, how long or which."""

LIMITS: Final[dict[str, object]] = {
    "max_terminal_cohorts": 2,
    "cohort_result_ttl_s": 50.0,
    "session_idle_ttl_s": 400.0,
}

Step = tuple[str, int]


@dataclass(frozen=True)
class Schedule:
    """What happens, and in which order Trio runs what can run.

    early: pairs are judged as they arrive. pauses: the turns for which a task that woke lets others run.
    """

    steps: list[Step]
    order: int = 0
    early: bool = False
    pauses: int = 0


class Pauses:
    """At each named point of the runtime the others go first, so that what was true may not be any more."""

    def __init__(self, turns: int) -> None:
        self._turns = turns

    async def reach(self, _name: str, _key: str, /) -> None:
        for _ in range(self._turns):
            await trio.lowlevel.checkpoint()


class Player:
    """Leads one server along a schedule. `wrong` is empty when all is well."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.rollouts = [
            Caller(f"{group or 'u'}-{index}", group, index, "typed")
            for group in ("a", "b", None)
            for index in range(SIZE)
        ]
        self.asked: list[Asked] = []
        self.judging = Judge()
        rules = policy(
            SIZE,
            limits=LIMITS,
            scoring=ScoringRules(score_range=(0.0, 1e6)),
            max_concurrency=2,
            judge_start="as_pairs_arrive" if schedule.early else "all_members",
        )
        self.server = Watched(rules, self.judging, points=Pauses(schedule.pauses))
        self.watch = Watch(self.server, self.judging)
        self._bell = Bell()

    @property
    def open(self) -> bool:
        return self.server.registry.admission.open and not self.server.registry.closed

    def _one(self, number: int) -> Caller:
        return self.rollouts[number % len(self.rollouts)]

    def _mates(self, number: int) -> list[Caller]:
        return [one for one in self.rollouts if one.group == self._one(number).group]

    async def play(self) -> list[str]:
        """All of the schedule, then whatever its requests still wait for; returns what is wrong."""
        with mock.patch.object(runtime, "EXPORT_SLICE", 1):
            async with trio.open_nursery() as self._nursery:
                await self._nursery.start(self.server.run)
                for name, number in self.schedule.steps:
                    await getattr(self, name)(number)
                    if self.watch.wrong:
                        break
                else:
                    await self._finish()
                self._nursery.cancel_scope.cancel()
        return self.watch.wrong

    async def _finish(self) -> None:
        self.judging.mood = MOODS[0]
        await self.open_admission(0)
        with trio.move_on_after(ENOUGH):
            await self._bell.until(lambda: all(asked.ended for asked in self.asked))
        left = [asked.sent.cohort.key for asked in self.asked if not asked.ended]
        self.watch.check({"every_wait_ends": f"requests of {left} have no answer" if left else None}, "at the end")
        self.server.shut_down()
        self._compare()

    def _compare(self) -> None:
        """What requests were told is what the core told them, and the same for the same answer in the same cohort."""
        outcomes: dict[object, Answer] = {}
        for asked in self.asked:
            said = self.watch.told.get(asked.waiter or 0, asked.answer)
            sent, answer = asked.sent, asked.answer
            where = (sent.cohort.key, asked.life, sent.index, sent.answer.raw)
            if answer is None:
                continue  # it hung up
            if answer != said:
                self.watch.wrong.append(f"its own answer: {where} was told {answer}, the core said {said}")
            if isinstance(answer, Rewarded | JudgeFailed) and outcomes.setdefault(where, answer) != answer:
                self.watch.wrong.append(f"one outcome: {where} was told {outcomes[where]}, then {answer}")

    # -- requests --------------------------------------------------------------------------------------

    async def verify(self, number: int) -> None:
        self._send(self._verification(self._one(number)))

    async def verify_all(self, number: int) -> None:
        """All members of a group, one after the other."""
        for one in self._mates(number):
            await self.verify(self.rollouts.index(one))

    async def verify_unbound(self, number: int) -> None:
        """Without cookie and prefix."""
        self._send(replace(self._verification(self._one(number)), session=None, episode=None))

    async def retry(self, number: int) -> None:
        """A request that was sent before, as it was then."""
        if self.asked:
            self._send(self.asked[number % len(self.asked)].sent)

    def _verification(self, one: Caller) -> runtime.Verification:
        grouped = one.group is not None
        cohort = group_cohort_id(one.group or "", one.attempt) if grouped else ungrouped_cohort_id(PROMPT, one.attempt)
        text = f"{cohort.key} {one.index} {one.answer}"
        contender = Contender((Turn("user", "prompt"),), AnswerText("", text))
        answer = AnswerId({"genrm-trio-1": text}, text)
        episode = one.episode_id if one.session is not None else None
        return runtime.Verification(cohort, one.index, PROMPT, answer, contender, one.session, episode)

    def _send(self, sent: runtime.Verification) -> None:
        asked = Asked(sent)
        self.asked.append(asked)
        self._nursery.start_soon(self._ask, asked)

    async def _ask(self, asked: Asked) -> None:
        sent = asked.sent
        try:
            with asked.scope:
                async with self.server.gate.enter("verify", sent.session, sent.episode):
                    self.watch.asking = asked  # the core is asked in this very step
                    asked.answer = await self.server.verify(sent)
        except Closing:
            asked.answer = Refused("shutting_down", "")
        finally:
            asked.ended = True
            self._bell.ring()

    async def hang_up(self, number: int) -> None:
        waiting = [asked for asked in self.asked if not asked.ended]
        if waiting:
            waiting[number % len(waiting)].scope.cancel()

    async def start_over(self, number: int) -> None:
        """From the input on, with another answer."""
        self._one(number).start_over()

    async def newer_attempt(self, number: int) -> None:
        """The next group attempt, of all members."""
        for one in self._mates(number):
            one.attempt, one.answer = one.attempt + 1, one.answer + 1

    # -- sessions --------------------------------------------------------------------------------------

    async def seed_all(self, number: int) -> None:
        """The members of a group. The gate lets seeds and closes pass while admission is open only."""
        for one in self._mates(number) if self.open else []:
            if one.session is None:
                one.seeds += 1
                one.session = f"{one.episode_id.key}.{one.seeds}"
            reply = self.server.seed(one.session, one.episode_id, binds=True, typed=True)
            if reply in {"closed", "stale_attempt"}:
                one.start_over()

    async def close_session(self, number: int) -> None:
        one = self._one(number)
        if self.open and one.session is not None:
            self.server.end_session(one.session, "close", one.episode_id)
            one.session = None

    # -- time, the judge and the controller ------------------------------------------------------------

    async def turn(self, number: int) -> None:
        """Let everybody run on for one to three turns of the event loop, whoever comes first."""
        for _ in range(number % 3 + 1):
            await trio.lowlevel.checkpoint()

    async def settle(self, _number: int) -> None:
        """Let everybody run on until all wait."""
        await trio.testing.wait_all_tasks_blocked()

    async def advance(self, number: int) -> None:
        await trio.sleep(SECONDS[number % len(SECONDS)])

    async def judge(self, number: int) -> None:
        """From the next call on."""
        self.judging.mood = MOODS[number % len(MOODS)]

    async def close_admission(self, _number: int) -> None:
        if self.open:
            self.server.close_admission()

    async def open_admission(self, _number: int) -> None:
        if not self.server.registry.closed and not self.open:
            self.watch.opens()
            self.server.open_admission(resumed=True)

    async def blink(self, number: int) -> None:
        """A group asks while admission is closed. It opens and closes again, before who was woken looked twice."""
        await self.close_admission(number)
        await self.verify_all(number)
        await self.settle(number)
        await self.open_admission(number)
        await self.turn(number)
        await self.close_admission(number)
        await self.settle(number)

    async def commit(self, _number: int) -> None:
        """Export every open session, once in a checkpoint. Others run on between the groups."""
        server = self.server
        if server.registry.closed or self.open or self.watch.record.exported is not None:
            return
        sessions = [session.session_id for session in server.registry.sessions]
        await server.export_session_states(sessions, checkpoint_id="ck")

    async def retire(self, number: int) -> None:
        """One rollout's attempt, while no checkpoint is open."""
        one = self._one(number)
        if self.open:
            self.watch.retires(one.episode_id)
            self.server.registry.retire(self.server.now(), [one.episode_id])
            one.start_over()

    async def shut_down(self, number: int) -> None:
        """One of these steps in eight is meant, so that most schedules go on."""
        if number % 8 == 7:
            self.server.shut_down()


def play(schedule: Schedule) -> list[str]:
    """What is wrong when a server is led along a schedule."""
    return run_in_order(Player(schedule).play, seed=schedule.order)
