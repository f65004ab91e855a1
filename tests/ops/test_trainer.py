"""The demo's trainer against a server that is played: what it sends, and what it does not put up with."""

import json
from collections import Counter
from collections.abc import Callable

import httpx2
import pytest
import trio
from trio.testing import MockClock

from genrm_trio.ops.agreement import Agreement, agreement, mean_agreement
from genrm_trio.ops.complaints import leaves
from genrm_trio.ops.rows import Row, RowAnswer, read_rows, verify_body
from genrm_trio.ops.sources import example_rows
from genrm_trio.ops.trainer import PlayedCohort, PlayError, Progress, play

ROW = Row("g", "p", tuple(RowAnswer(f"m{n}", f"answer {n}", n) for n in range(5)))
URL = "http://server"


class PlayedServer:
    """Holds verifications until all five members are there; the reward of a member is ten times its index."""

    def __init__(self, reward: Callable[[int, int], dict[str, object]] | None = None) -> None:
        self.reward = reward or (lambda index, nth: {"reward": index * 10})
        self.complete = trio.Event()
        self.members: set[int] = set()
        self.verified: Counter[int] = Counter()
        self.paths: list[str] = []
        self.order: list[int] = []

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.paths.append(request.url.path)
        if request.url.path.endswith("/seed_session"):
            return httpx2.Response(200, json={}, headers={"set-cookie": "s_session=1; Path=/"})
        assert request.headers["cookie"] == "s_session=1"
        body = json.loads(request.content)
        index = body["_ng_rollout_index"]
        assert body == verify_body(ROW, index, group="g")
        self.order.append(index)
        self.members.add(index)
        if len(self.members) == len(ROW.answers):
            self.complete.set()
        await self.complete.wait()
        self.verified[index] += 1
        return httpx2.Response(200, json=self.reward(index, self.verified[index]))


async def played(server: PlayedServer, seed: int = 0, heard: list[Progress] | None = None) -> PlayedCohort:
    heard = [] if heard is None else heard
    transport = httpx2.MockTransport(server)
    (cohort,) = await play(URL, [ROW], seed=seed, listener=heard.append, transport=transport)
    return cohort


async def test_a_cohort_is_played_with_a_second_post_and_a_lost_connection(autojump_clock: MockClock) -> None:
    server, heard = PlayedServer(), list[Progress]()
    cohort = await played(server, heard=heard)
    assert list(cohort.rewards) == [0, 10, 20, 30, 40]
    assert sorted(server.verified.values()) == [1, 1, 1, 1, 2], "one member was answered twice"
    assert len(server.order) == 7, "and one posted again after its connection was lost"
    assert Counter(event.what for event in heard) == {"sent": 6, "dropped": 1, "rewarded": 6}
    assert {path.rpartition("/")[0] for path in server.paths} == {f"/ng-rollout/g-{n}" for n in range(5)}


async def test_the_schedule_is_random_and_comes_back_with_its_seed(autojump_clock: MockClock) -> None:
    orders = []
    for seed in (1, 1, 2, 3):
        server = PlayedServer()
        await played(server, seed)
        orders.append(tuple(server.order))
    assert orders[0] == orders[1]
    assert len(set(orders)) == 3


@pytest.mark.parametrize(
    ("reward", "fragment"),
    [
        (lambda index, nth: {"reward": nth}, "got two rewards"),
        (lambda index, nth: {"reward": 0.0, "mask_sample": True, "failure_reason": "no verdict"}, "no verdict"),
        (lambda index, nth: {}, "got no reward"),
        (lambda index, nth: [], "answered 200"),
    ],
)
async def test_anything_but_one_reward_is_an_error(
    reward: Callable[[int, int], dict[str, object]], fragment: str, autojump_clock: MockClock
) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await played(PlayedServer(reward))
    (error,) = [e for e in leaves(caught.value) if isinstance(e, PlayError)][:1]
    assert fragment in str(error)


def test_the_shipped_rows_are_whole() -> None:
    rows = read_rows(example_rows())
    assert len(rows) == 8
    for row in rows:
        assert len(row.answers) == 15
        assert len({answer.gpt4_score for answer in row.answers}) >= 4


def test_rank_correlations() -> None:
    same = agreement([1, 2, 3], [10, 20, 30])
    assert same.kendall == pytest.approx(1)
    assert same.spearman == pytest.approx(1)
    assert agreement([3, 2, 1], [10, 20, 30]).kendall == pytest.approx(-1)
    assert agreement([1, 1, 2], [1, 2, 3]).kendall == pytest.approx(0.8165, abs=1e-4)
    flat = agreement([1, 1, 1], [1, 2, 3])
    assert flat.kendall != flat.kendall
    assert mean_agreement([Agreement(1, 1), Agreement(0, 0.5), flat]) == Agreement(0.5, 0.75)
