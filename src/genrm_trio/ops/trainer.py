"""A trainer in small: plays whole cohorts against a server over HTTP, as an RL framework's agents do.

Each rollout seeds a session, then posts its answer and waits. In each cohort the order of arrival is random, one
rollout posts twice, and one loses its connection while it waits and posts again: all of that must change nothing.
"""

import random
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import httpx2
import trio

from genrm_trio.ops.complaints import OperationFailed
from genrm_trio.ops.rows import Row, verify_body

SPREAD_S: Final = 0.5
"""Rollouts of a cohort arrive within this time."""
DROP_AFTER_S: Final = 0.2
"""How long the rollout that loses its connection waits before it does."""


class PlayError(OperationFailed):
    """The server did something that a trainer cannot use; the text says what."""


@dataclass(frozen=True, slots=True)
class Reward:
    """What one rollout was told."""

    index: int
    value: float


@dataclass(frozen=True, slots=True)
class PlayedCohort:
    """One cohort with the reward of each of its rollouts, in the order of their index."""

    row: Row
    rewards: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """Something happened to a rollout of cohort `group`: it was `sent`, `dropped` or `rewarded`."""

    group: str
    index: int
    what: str


Listener = Callable[[Progress], None]


async def play(
    url: str,
    rows: Sequence[Row],
    *,
    seed: int,
    listener: Listener,
    transport: httpx2.AsyncBaseTransport | None = None,
) -> tuple[PlayedCohort, ...]:
    """Play one cohort for each row, all at the same time; `transport` stands in for the network.

    Raises PlayError when a rollout gets anything but a reward, or two for one answer that differ.
    """
    options: dict[str, Any] = {"verify": ssl.create_default_context(), "transport": transport, "trust_env": False}
    client = partial(httpx2.AsyncClient, timeout=httpx2.Timeout(30.0, read=None), **options)
    played: dict[str, PlayedCohort] = {}

    async def one(row: Row) -> None:
        chance = random.Random(f"{seed} {row.question_id}")  # noqa: S311 - it makes a schedule
        played[row.question_id] = await _Cohort(url, row, chance, client, listener).play()

    async with trio.open_nursery() as nursery:
        for row in rows:
            nursery.start_soon(one, row)
    return tuple(played[row.question_id] for row in rows)


class _Cohort:
    """One cohort's schedule and what came of it."""

    def __init__(
        self,
        url: str,
        row: Row,
        chance: random.Random,
        client: Callable[[], httpx2.AsyncClient],
        listener: Listener,
    ) -> None:
        self._url = url
        self._row = row
        self._client = client
        self._listener = listener
        self._rewards: dict[int, float] = {}
        self._again = trio.Event()
        count = len(row.answers)
        order = chance.sample(range(count), count)
        self._twice, self._dropping, *_, self._last = order
        self._delay = {index: chance.uniform(0, SPREAD_S) for index in order}

    async def play(self) -> PlayedCohort:
        """Let every rollout arrive, and wait until each has its reward."""
        async with trio.open_nursery() as nursery:
            for index in range(len(self._row.answers)):
                nursery.start_soon(self._rollout, index)
            nursery.start_soon(self._rollout, self._twice)
        return PlayedCohort(self._row, tuple(self._rewards[index] for index in range(len(self._row.answers))))

    async def _rollout(self, index: int) -> None:
        """Seed a session, post the answer, keep the reward."""
        await trio.sleep(self._delay[index])
        prefix = f"{self._url}/ng-rollout/{self._row.question_id}-{index}"
        async with self._client() as client:
            await self._post(client, f"{prefix}/seed_session", {})
            if index == self._last:
                await self._again.wait()
            if index == self._dropping:
                await self._lose_connection(client, prefix)
            self._tell(index, "sent")
            body = verify_body(self._row, index, group=self._row.question_id)
            self._keep(index, await self._post(client, f"{prefix}/verify", body))

    async def _lose_connection(self, client: httpx2.AsyncClient, prefix: str) -> None:
        """Post, wait a little, and hang up: the member must stay, and the next post find it."""
        body = verify_body(self._row, self._dropping, group=self._row.question_id)
        with trio.move_on_after(DROP_AFTER_S) as waiting:
            await self._post(client, f"{prefix}/verify", body)
        if not waiting.cancelled_caught:
            raise PlayError(f"rollout {self._dropping} was answered before its cohort was complete")
        self._tell(self._dropping, "dropped")
        self._again.set()

    async def _post(self, client: httpx2.AsyncClient, url: str, body: Mapping[str, object]) -> Mapping[str, object]:
        """Post as JSON, and accept nothing but a 200 with an object."""
        reply = await client.post(url, json=body)
        decoded = reply.json() if reply.status_code == httpx2.codes.OK else None
        if not isinstance(decoded, dict):
            raise PlayError(f"{url} answered {reply.status_code}: {reply.text[:300]}")
        return decoded

    def _keep(self, index: int, reply: Mapping[str, object]) -> None:
        """Take the reward out of a verify reply; a second one for the same answer must be equal."""
        reward = reply.get("reward")
        if reply.get("mask_sample") or not isinstance(reward, int | float):
            raise PlayError(f"rollout {index} got no reward: {reply.get('failure_reason')}")
        if self._rewards.setdefault(index, float(reward)) != float(reward):
            raise PlayError(f"rollout {index} got two rewards: {self._rewards[index]} and {reward}")
        self._tell(index, "rewarded")

    def _tell(self, index: int, what: str) -> None:
        self._listener(Progress(self._row.question_id, index, what))
