"""The comparisons of one set of answers: which are due, which ran, and the scores they come to.

Used by a cohort's life, and by `/compare` for answers that are no cohort. Nothing here knows about requests.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from genrm_trio.core.cohort import Member
from genrm_trio.core.outcome import Rewarded
from genrm_trio.judging.judge import Answered, Ask, Judge, JudgeError
from genrm_trio.judging.offload import in_thread, off_loop
from genrm_trio.judging.pairs import Planned
from genrm_trio.judging.scoring import CohortScores, Compared, ScoringFailed, ScoringRules, score_cohort
from genrm_trio.judging.slots import Ticket
from genrm_trio.judging.text import AnswerText, Turn
from genrm_trio.runtime.bell import Bell

WINDOW: Final = 2
"""Comparisons of one evaluation that wait for a slot, for each slot that there is."""
COMPARED_SIZE: Final = 64
"""What a comparison counts for, in characters of text, when scores are made of it."""


@dataclass(frozen=True, slots=True, eq=False)
class Contender:
    """What the judge needs of one answer: the conversation it answers, its text, and what to judge it by.

    principle: the request's own; whether and which one is sent is the policy's. baseline: set in `fixed_baseline`.
    """

    conversation: tuple[Turn, ...]
    answer: AnswerText
    principle: str | None = None
    rubric_ids: tuple[int, ...] | None = None
    baseline: str | None = None


def contender_of(member: Member | None) -> Contender | None:
    """The contender that a member brought, or None when the slot is free or its body is gone."""
    payload = member.payload if member is not None else None
    return payload if isinstance(payload, Contender) else None


@dataclass(frozen=True, slots=True)
class Comparing:
    """How comparisons are asked for. `principle` maps a request's principle to the one that is sent, or None."""

    judge: Judge
    rules: ScoringRules
    principle: Callable[[str | None], str | None]


class Evaluation:
    """The planned comparisons over contenders that may arrive, and leave, one by one.

    contender: reads who holds a slot now. In a plan with a baseline, index `size` is the baseline.

    Comparisons are started as judge slots are given: each slot given to one of them starts the next, so that a large
    plan is no more tasks than it has use for. WINDOW times as many as there are slots wait for one at any time. So no
    cohort of a later turn gets a slot while this one has a comparison left, even if every slot changes hands in each
    step of the event loop: what a slot starts stands in the queue one step later.
    """

    def __init__(
        self,
        comparing: Comparing,
        plan: Sequence[Planned],
        size: int,
        ticket: Ticket,
        contender: Callable[[int], Contender | None],
        nursery: trio.Nursery,
    ) -> None:
        self._comparing = comparing
        self._plan = plan
        self._size = size
        self._ticket = ticket
        self._contender = contender
        self._nursery = nursery
        self._seen: list[Contender | None] = [None] * size  # who stood where at the last look
        self._due: deque[int] = deque()  # positions in the plan to be started, if their members are there then
        self._runs: list[_Run | None] = [None] * len(plan)
        self._left = len(plan)  # positions without a result
        self._failed: dict[int, JudgeError] = {}  # those of the runs that failed, by position
        self._begun = False  # whether anything was started ever
        self._window = WINDOW * ticket.limit
        self._starting = 0  # started, but not yet run for the first time
        self._asking: set[trio.lowlevel.Task] = set()  # have run, but were not yet given a slot
        self._bell = Bell()
        ticket.on_grant = self._granted

    def advance(self) -> None:
        """Start each comparison whose members are there; drop each whose members are not those it was asked for."""
        now = [self._contender(index) for index in range(self._size)]
        moved = {index for index in range(self._size) if now[index] is not self._seen[index]}
        self._seen = now
        if len(moved) == self._size and not self._begun:
            self._due.extend(range(len(self._plan)))  # all at once, as in most cohorts: nothing to look for
        elif moved:
            for position, planned in enumerate(self._plan):
                if planned.i in moved or planned.j in moved:
                    self._drop(position)
                    self._due.append(position)
        self._start()
        self._bell.ring()

    def end(self) -> None:
        """Start nothing more. Its ticket lets go of it: each would keep the other and all texts until a collection."""
        self._due.clear()
        self._ticket.on_grant = None

    def _drop(self, position: int) -> None:
        run = self._runs[position]
        if run is None:
            return
        run.scope.cancel()
        self._runs[position] = None
        if run.result is not None:
            self._left += 1
            self._failed.pop(position, None)

    def _start(self) -> None:
        """Start what is due, until enough of it waits for a slot."""
        while self._due and self._starting + len(self._asking) < self._window:
            position = self._due.popleft()
            sides = self._sides(self._plan[position])
            if self._runs[position] is None and all(sides):
                run = self._runs[position] = _Run(position, sides)
                self._starting += 1
                self._begun = True
                self._nursery.start_soon(self._compare, run, name="compare")

    def _granted(self, task: trio.lowlevel.Task) -> None:
        if task in self._asking:
            self._asking.remove(task)
            self._start()

    def _sides(self, planned: Planned) -> tuple[Contender | None, Contender | None]:
        return self._side(planned.i, planned.j), self._side(planned.j, planned.i)

    def _side(self, index: int, other: int) -> Contender | None:
        """Who stands at this index; at the baseline's, the member it is compared with, whose baseline it is."""
        return self._contender(other if index == self._size else index)

    async def _compare(self, run: "_Run") -> None:
        task = trio.lowlevel.current_task()
        self._starting -= 1
        self._asking.add(task)
        planned = self._plan[run.position]
        result: Compared | JudgeError | None = None
        try:
            with run.scope:
                try:
                    result = _compared(
                        planned, await self._comparing.judge.compare(self._ask(planned, run), self._ticket)
                    )
                except JudgeError as error:
                    result = error.with_traceback(None)  # it leads back to this run, which keeps it
        finally:
            self._asking.discard(task)
        if result is not None and self._runs[run.position] is run:
            run.result = result
            self._left -= 1
            if isinstance(result, JudgeError):
                self._failed[run.position] = result
            self._bell.ring()
        self._start()

    def _ask(self, planned: Planned, run: "_Run") -> Ask:
        first, second = run.sides
        assert first is not None, "a comparison starts when both members are there"
        assert second is not None, "a comparison starts when both members are there"
        texts = {planned.i: first.answer.judge_text, planned.j: second.answer.judge_text}
        if planned.j == self._size:
            assert first.baseline is not None, "a plan with a baseline has contenders with one"
            texts[planned.j] = first.baseline
        leader = self._contender(0) or first
        return Ask(
            conversation=leader.conversation,
            response_1=texts[planned.first],
            response_2=texts[planned.second],
            principle=self._comparing.principle(leader.principle),
            rubric_ids=leader.rubric_ids,
            pair=(planned.i, planned.j),
            judge_index=planned.judge_index,
        )

    async def compared(self) -> list[Compared] | JudgeError:
        """Wait for all comparisons of the plan, in its order, or for the first that failed."""
        await self._bell.until(lambda: bool(self._failed) or not self._left)
        if self._failed:
            return self._failed[min(self._failed)]
        return [run.result for run in self._runs if run is not None and isinstance(run.result, Compared)]

    async def verdict(self) -> list[Rewarded] | JudgeError:
        """One result per slot, in their order, or the judge's failure."""
        compared = await self.compared()
        if isinstance(compared, JudgeError):
            return compared
        scores = await scored(self._comparing.rules, self._answers(), compared, baseline=self._with_baseline)
        return scores if isinstance(scores, JudgeError) else [Rewarded(fields) for fields in scores.members]

    @property
    def _with_baseline(self) -> bool:
        return any(planned.j == self._size for planned in self._plan)

    def _answers(self) -> list[AnswerText]:
        contenders = [self._contender(index) for index in range(self._size)]
        return [contender.answer for contender in contenders if contender is not None]


class _Run:
    """One comparison under way: for whom it was asked, and what came of it."""

    __slots__ = ("position", "result", "scope", "sides")

    def __init__(self, position: int, sides: tuple[Contender | None, Contender | None]) -> None:
        self.position = position  # in the plan
        self.sides = sides
        self.scope = trio.CancelScope()
        self.result: Compared | JudgeError | None = None


def _compared(planned: Planned, answered: Answered) -> Compared:
    """What was said, in the order of the pair: a flipped ask is flipped back (contract 14.3)."""
    overall, rubric = answered.overall, answered.rubric
    if planned.flipped:
        overall = overall.flipped() if overall is not None else None
        rubric = rubric.flipped() if rubric is not None else None
    return Compared(planned.i, planned.j, planned.judge_index, overall, rubric, answered.usage)


async def scored(
    rules: ScoringRules, answers: Sequence[AnswerText], compared: Sequence[Compared], *, baseline: bool
) -> CohortScores | JudgeError:
    """Score finished comparisons, in a thread when the answers are long or many, or a model has to be fitted."""

    def score() -> CohortScores | JudgeError:
        try:
            return score_cohort(rules, answers, compared, baseline=baseline)
        except ScoringFailed as failed:
            return JudgeError(str(failed))

    if rules.aggregator_method == "bradley_terry":
        return await in_thread(score)
    texts = sum(len(answer.reasoning) + len(answer.answer) for answer in answers)
    return await off_loop(texts + COMPARED_SIZE * len(compared), score)


async def evaluate(
    comparing: Comparing, plan: Sequence[Planned], contenders: Mapping[int, Contender], ticket: Ticket
) -> CohortScores | JudgeError:
    """Compare answers that are all there already, as `/compare` does."""
    compared: list[Compared] | JudgeError = []
    async with trio.open_nursery() as nursery:
        evaluation = Evaluation(comparing, plan, len(contenders), ticket, contenders.get, nursery)
        try:
            evaluation.advance()
            compared = await evaluation.compared()
            nursery.cancel_scope.cancel()
        finally:
            evaluation.end()
    if isinstance(compared, JudgeError):
        return compared
    answers = [contenders[index].answer for index in sorted(contenders)]
    return await scored(comparing.rules, answers, compared, baseline=False)
