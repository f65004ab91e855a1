"""The life of one cohort: collect, judge, hold, publish.

One task per cohort reads from top to bottom; its scopes' ends are reported to the core as actions. Nobody waits
for it: members wait for their own answer, which the core hands out.
"""

from typing import TYPE_CHECKING

import trio

from genrm_trio.core.cohort import Cohort, Phase
from genrm_trio.core.outcome import Rewarded
from genrm_trio.judging.judge import JudgeError
from genrm_trio.runtime.bell import Bell
from genrm_trio.runtime.evaluation import Contender, Evaluation, contender_of

if TYPE_CHECKING:
    from genrm_trio.runtime.server import Server

ERROR_TEXT_LIMIT = 1000
"""Characters of an unexpected error's text that a failure carries (contract 5.4)."""


class Life:
    """One cohort's task. `changed` is told by the core whenever the cohort's phase or members changed.

    _scope: cancelled when the cohort ended elsewhere: superseded, dropped, shut down.
    _collection: the collection deadline, which no later member moves.
    _ticket: its place among cohorts that want judge slots, taken in the step in which it became complete. Its
        evaluation deadline is infinite until the first call gets a slot or, when pairs are judged as they
        arrive, until the last member came.
    """

    def __init__(self, server: "Server", cohort: Cohort) -> None:
        self._server = server
        self._cohort = cohort
        self._key = cohort.id.key
        self._bell = Bell()
        self._scope = trio.CancelScope()
        self._collection = trio.CancelScope()
        self._early = server.policy.judge_start == "as_pairs_arrive"
        on_first = None if self._early else self._start_deadline
        self._ticket = server.slots.ticket(label=self._key, on_first=on_first, early=True)
        self._evaluation: Evaluation | None = None

    @property
    def _lives(self) -> bool:
        return self._cohort.active and self._server.registry.cohorts.get(self._key) is self._cohort

    @property
    def _complete(self) -> bool:
        return self._cohort.phase is not Phase.COLLECTING

    def changed(self) -> None:
        """Look again, in the very step of the change: who is complete first is served first."""
        if not self._lives:
            self._scope.cancel()
        elif self._cohort.phase is Phase.EVALUATING:
            self._ticket.complete()
            if self._early:
                self._start_deadline()
        if self._evaluation is not None and (self._early or self._complete):
            self._evaluation.advance()
        self._bell.ring()

    def _start_deadline(self) -> None:
        self._ticket.deadline.deadline = trio.current_time() + self._server.policy.evaluation_timeout_s

    async def live(self) -> None:
        """From the first member to the published outcome; ends early when the cohort ended elsewhere."""
        registry = self._server.registry
        try:
            with self._scope:
                verdict = await self._verdict()
                await self._server.points.reach("judged", self._key)
                if self._lives:
                    self._report(verdict)
                while self._lives:
                    while not registry.admission.open:
                        await self._server.gate.doors()
                    await self._server.points.reach("hold", self._key)
                    if self._lives:
                        registry.publish(self._server.now(), self._key)
        except* Exception as group:  # noqa: BLE001 - whatever broke, only this cohort fails, with the error's text
            self._crashed(_first_leaf(group))  # what stays is a cancellation from outside that came with it
        finally:
            self._fail(f"evaluation of cohort {self._key!r} was cancelled")

    async def _verdict(self) -> list[Rewarded] | JudgeError:
        """Collect the members, then run their comparisons: all of them, or until one fails or the deadline passes."""
        verdict: list[Rewarded] | JudgeError | None = None
        with self._ticket.deadline:
            async with trio.open_nursery() as comparisons:
                self._evaluation = self._server.evaluation(self._key, self._ticket, self._contender, comparisons)
                try:
                    self.changed()
                    await self._collect()
                    verdict = await self._evaluation.verdict()
                    comparisons.cancel_scope.cancel()
                finally:
                    self._evaluation.end()
                    self._evaluation = None
        if verdict is None:
            timeout = self._server.policy.evaluation_timeout_s
            return JudgeError(f"the evaluation deadline of {timeout:g} s passed for cohort {self._key!r}")
        return verdict

    def _contender(self, index: int) -> Contender | None:
        return contender_of(self._cohort.members.get(index))

    async def _collect(self) -> None:
        """Wait for the N-th member, at most until the collection deadline.

        On expiry the cohort fails, and this life's scope is cancelled by that.
        """
        self._collection.deadline = self._cohort.created_at + self._server.policy.collection_timeout_s
        with self._collection:
            await self._bell.until(lambda: self._complete)
        await self._server.points.reach("collected", self._key)
        if self._lives and not self._complete:
            self._server.registry.expire_collection(self._server.now(), self._key)

    def _report(self, verdict: list[Rewarded] | JudgeError) -> None:
        if isinstance(verdict, JudgeError):
            self._server.registry.judge_failed(self._server.now(), self._key, verdict.text)
        else:
            self._server.registry.judged(self._server.now(), self._key, verdict)

    def _crashed(self, error: Exception) -> None:
        self._server.observer.cohort_crashed(self._key, error)
        described = f"{type(error).__name__}: {_words(error)[:ERROR_TEXT_LIMIT]}"
        self._fail(f"evaluation of cohort {self._key!r} failed: {described}")

    def _fail(self, text: str) -> None:
        if self._lives:
            self._server.registry.fail(self._server.now(), self._key, "evaluation_failed", text)


def _words(error: Exception) -> str:
    try:
        return str(error)
    except Exception as other:  # noqa: BLE001 - an error that cannot be told fails its cohort like any other
        return f"an error that raised {type(other).__name__} when it was told"


def _first_leaf(group: BaseExceptionGroup[Exception]) -> Exception:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, Exception), "a group of exceptions holds exceptions"
    return found
