"""A server without HTTP, and rollouts that verify their answers against it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import trio
import trio.testing
from tests.support.judges import ScriptedJudge
from tests.support.points import Parking

from genrm_trio.core.cohort import Answer as AnswerId
from genrm_trio.core.cohort import Phase
from genrm_trio.core.identity import EpisodeId, group_cohort_id, ungrouped_cohort_id
from genrm_trio.core.outcome import Answer, CohortFailed, JudgeFailed, Refused, Rewarded
from genrm_trio.core.state import Limits
from genrm_trio.judging.scoring import ScoringRules
from genrm_trio.judging.text import AnswerText, Turn
from genrm_trio.runtime.bell import Bell
from genrm_trio.runtime.evaluation import Contender
from genrm_trio.runtime.server import Policy, Server, Verification

PROMPT = "0" * 64


def policy(size: int = 2, *, limits: dict[str, object] | None = None, **changes: object) -> Policy:
    """A policy with short times, in which everything else is as by default."""
    base = Policy(
        limits=replace(Limits(cohort_size=size, record_sessions=True), **(limits or {})),  # type: ignore[arg-type]
        scoring=ScoringRules(),
        collection_timeout_s=30.0,
        evaluation_timeout_s=60.0,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


@dataclass
class Rollout:
    """One `/verify` under way: its scope, the answer once it is there, and whether its client heard of a shutdown."""

    name: str
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    answer: Answer | None = None
    ended: bool = False
    told: bool = False

    def tell(self) -> None:
        assert not self.told, "once"
        self.told = True

    @property
    def reward(self) -> float:
        assert isinstance(self.answer, Rewarded), f"{self.name} has no reward but {self.answer}"
        reward = self.answer.fields["reward"]
        assert isinstance(reward, float)
        return reward

    @property
    def failure(self) -> str:
        assert isinstance(self.answer, JudgeFailed | CohortFailed | Refused), f"{self.name}: {self.answer}"
        return self.answer.text


class Scene:
    """A running server, the rollouts that ask it, and the ways to stop and look."""

    def __init__(self, server: Server, judge: ScriptedJudge, points: Parking, nursery: trio.Nursery) -> None:
        self.server = server
        self.judge = judge
        self.points = points
        self._nursery = nursery
        self._bell = Bell()
        self._heard = Bell()
        server.registry.trace = lambda _event: self._heard.ring()

    def verify(
        self,
        index: int,
        text: str = "",
        *,
        group: str | None = "g",
        attempt: int = 0,
        session: str | None = None,
        prompt: str = PROMPT,
        **more: object,
    ) -> Rollout:
        """Start a `/verify`; the text is the answer, by default the index plus one."""
        text = text or str(index + 1)
        cohort = group_cohort_id(group, attempt) if group is not None else ungrouped_cohort_id(prompt, attempt)
        contender = Contender((Turn("user", "prompt"),), AnswerText("", text))
        asked = Verification(
            cohort,
            index,
            prompt,
            AnswerId({"genrm-trio-1": text}, text),
            contender,
            session,
            **more,  # type: ignore[arg-type]
        )
        rollout = Rollout(f"{group}/{attempt}/{index}")
        self._nursery.start_soon(self._run, rollout, asked)
        return rollout

    async def _run(self, rollout: Rollout, asked: Verification) -> None:
        try:
            with rollout.scope:
                rollout.answer = await self.server.verify(asked, at_shutdown=rollout.tell)
        finally:
            rollout.ended = True
            self._bell.ring()

    async def waiting(self, count: int) -> None:
        """Wait until so many requests wait for their answer."""
        await self._heard.until(lambda: len(self.server.registry.waiters) == count)

    async def phase(self, key: str, phase: Phase) -> None:
        """Wait until the cohort is in this phase."""

        def reached() -> bool:
            cohort = self.server.registry.cohorts.get(key)
            return cohort is not None and cohort.phase is phase

        await self._heard.until(reached)

    async def ended(self, *rollouts: Rollout) -> None:
        """Wait until these have their answers, or are gone."""
        await self._bell.until(lambda: all(rollout.ended for rollout in rollouts))

    def seed(self, session: str, rollout_id: str, attempt: int = 0, *, typed: bool = True) -> str:
        """Bind a session to an episode."""
        return self.server.seed(session, EpisodeId(rollout_id, attempt), binds=True, typed=typed)


@asynccontextmanager
async def scene(
    rules: Policy | None = None, judge: ScriptedJudge | None = None, **more: object
) -> AsyncIterator[Scene]:
    """A running server; at the end it is shut down, and nothing may be left."""
    judge = judge or ScriptedJudge()
    points = Parking()
    server = Server(rules or policy(), judge, points=points, **more)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        yield Scene(server, judge, points, nursery)
        server.shut_down()
        assert not server.registry.waiters
        assert not server.registry.cohorts
        nursery.cancel_scope.cancel()
