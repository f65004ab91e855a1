"""Whatever a controller sends, in whatever order, the contract answers it, and a resume opens everything again."""

from typing import Any

from hypothesis import currently_in_test_context, event, given
from hypothesis import strategies as st
from tests.fuzz.kit import bodies, fuzz, run, strict_json
from tests.fuzz.test_data_bodies import check_next_cohort, even_judge
from tests.support.plane import memory_store
from tests.web.app_harness import CONTROL_TOKEN, Answer, Site, site

from genrm_trio.core.invariants import broken
from genrm_trio.web.errors import CONTROL_STATUS

PREFIX = "/ng-control/v1/checkpoint/"
AUTHORIZED = {"authorization": f"Bearer {CONTROL_TOKEN}"}
NEVER = 4e9
IDS = ("ck", "other")
EPISODES = ["g-0", "g-1", {"rollout_id": "g-0", "attempt": 1}]
REFUSED = {409, 422}


def right(name: str, checkpoint_id: str, deadline: float = NEVER) -> dict[str, Any]:
    """The right body of a call."""
    common = {"checkpoint_id": checkpoint_id, "deadline_ts": deadline}
    more: dict[str, dict[str, Any]] = {
        "commit": {"checkpoint_dir": "d", "episode_ids": EPISODES, "stop": False},
        "restore": {"checkpoint_dir": "d", "episode_ids": EPISODES},
        "retire": {"episode_ids": EPISODES},
        "forget": {"rollout_ids": ["g-0", "g-1"]},
    }
    return common | more.get(name, {})


NAMES = ("prepare", "renew", "commit", "restore", "retire", "forget", "resume")


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, bytes]:
    """A control call: the right body, or one in which something is changed."""
    name = draw(st.sampled_from(NAMES))
    body = right(name, draw(st.sampled_from(IDS)), draw(st.sampled_from([NEVER, 1.0, 1e300])))
    return name, draw(bodies(body))


def check(name: str, answer: Answer) -> None:
    """A success of this call, or a refusal in the controllers' shape, or a validation error."""
    if currently_in_test_context():
        event(f"{name} {answer.status}")
    body = strict_json(answer.body)
    if answer.status == 200:
        return
    assert answer.status in REFUSED, f"{name}: {answer.status} {answer.body[:300]!r}"
    if "error" in body:
        assert set(body["error"]) == {"code", "detail"}
        assert answer.status == CONTROL_STATUS[body["error"]["code"]]
    else:
        assert body["code"] == "invalid_request"
        assert isinstance(body["detail"], list)


async def control(at: Site, name: str, body: Any) -> Answer:
    return await at.ask("POST", PREFIX + name, body, headers=AUTHORIZED)


async def open_again(at: Site) -> None:
    """What a controller does that lost its way: asks what is open, and resumes it."""
    status = strict_json((await at.ask("GET", PREFIX + "status", headers=AUTHORIZED)).body)
    assert status["phase"] in {"idle", "preparing", "prepared", "committed", "restored"}
    resumed = await control(at, "resume", right("resume", status["checkpoint_id"] or "last"))
    assert resumed.status == 200, resumed
    after = strict_json((await at.ask("GET", PREFIX + "status", headers=AUTHORIZED)).body)
    assert after["phase"] == "idle"
    assert at.server.registry.admission.open


@fuzz
@given(calls=st.lists(calls(), min_size=1, max_size=6))
def test_any_calls_in_any_order(calls: list[tuple[str, bytes]]) -> None:
    async def main() -> None:
        async with site(judge=even_judge(), store=memory_store()) as at:
            for index in range(2):
                await at.seeded(f"g-{index}")
            for name, body in calls:
                check(name, await control(at, name, body))
                assert not broken(at.server.registry)
            await open_again(at)
            await check_next_cohort(at)

    run(main)


@fuzz
@given(calls=st.lists(calls(), min_size=2, max_size=5))
def test_any_calls_at_once(calls: list[tuple[str, bytes]]) -> None:
    async def main() -> None:
        async with site(judge=even_judge(), store=memory_store()) as at:
            member = at.member(0, path="/ng-rollout/g-0/verify", cookie=await at.seeded("g-0"))
            sent = [(name, at.begin("POST", PREFIX + name, body, headers=AUTHORIZED)) for name, body in calls]
            for name, request in sent:
                check(name, await at.answered(request))
            await open_again(at)
            assert (await at.answered(member)).status in {409, 503}
            await check_next_cohort(at)
            assert not broken(at.server.registry)

    run(main)


@fuzz
@given(body=calls(), token=st.sampled_from(["", "Bearer", "Bearer wrong", "Basic \u00fc", CONTROL_TOKEN]))
def test_without_the_token_nothing_is_read(body: tuple[str, bytes], token: str) -> None:
    async def main() -> None:
        async with site(store=memory_store()) as at:
            answer = await at.ask("POST", PREFIX + body[0], body[1], headers={"authorization": token})
            assert answer.status == 401
            assert strict_json(answer.body)["error"]["code"] == "unauthorized"
            assert at.server.registry.admission.open

    run(main)
