"""`/verify` over HTTP: success and masked rows, the checks in their order, disconnects, and what ends a session."""

import json
from dataclasses import replace
from typing import Any

import pytest
import trio
from tests.support.judges import ScriptedJudge, failing
from tests.support.scene import policy
from tests.web.app_harness import Answer, Site, site
from tests.web.bodies import as_json, response, verify

from genrm_trio.core.identity import EpisodeId
from genrm_trio.judging.scoring import ScoringRules
from genrm_trio.web.wire.verify import SUCCESS_ONLY, TOKEN_FIELDS


def numbered(index: int) -> dict[str, Any]:
    return response(text=str(index + 1))


async def play(s: Site, size: int = 2, **fields: Any) -> list[Answer]:
    requests = [s.member(index, response=numbered(index), **fields) for index in range(size)]
    return [await s.answered(request) for request in requests]


async def test_a_cohort_over_http() -> None:
    async with site() as s:
        first, second = await play(s)
        assert (first.status, second.status) == (200, 200)
        assert first.json["reward"] < second.json["reward"]
        row = first.json
        assert (row["mask_sample"], row["failure_kind"], row["failure_reason"]) == (False, None, None)
        assert (row["_ng_group_id"], row["_ng_group_attempt"], row["_ng_rollout_index"]) == ("g", 0, 0)
        assert (row["answer_text"], row["reasoning_text"]) == ("1", "two and two")
        assert row["response"] == numbered(0)
        assert row.keys() == {
            *("responses_create_params", "response", "reward", "mask_sample", "failure_kind", "failure_reason"),
            *("_ng_group_id", "_ng_group_attempt", "_ng_rollout_index", *SUCCESS_ONLY),
        }
        assert [row[name] for name in TOKEN_FIELDS] == [None] * 8


async def test_a_retry_is_told_the_stored_result_without_a_judge() -> None:
    async with site() as s:
        first, _ = await play(s)
        calls = len(s.judge.asks)
        again = await s.answered(s.member(0, response=numbered(0)))
        assert again.json == first.json
        redump = json.dumps(verify(0, response=numbered(0)), indent=3).encode()
        again = await s.ask("POST", "/verify", redump)
        assert again.json == first.json
        assert len(s.judge.asks) == calls
        changed = await s.answered(s.member(0, response=response(text="1", extra=1)))
        assert (changed.status, changed.code) == (409, "different_response")


async def test_a_large_body_takes_the_same_way() -> None:
    big = [1] * 200_000
    async with site() as s:
        bodies = []
        for index in range(2):
            answer = numbered(index)
            answer["output"][1]["prompt_token_ids"] = big
            bodies.append(verify(index, response=answer))
        requests = [s.begin("POST", "/verify", body) for body in bodies]
        first, _ = [await s.answered(request) for request in requests]
        assert first.status == 200
        again = await s.ask("POST", "/verify", bodies[0])
        assert again.json == first.json


async def test_a_judge_failure_is_a_masked_row_and_sticks() -> None:
    async with site(judge=failing()) as s:
        extras: dict[str, Any] = {"agent_ref": {"name": "a"}, "_ng_rollout_id": "0-0", "task_index": 3}
        first, second = await play(s, **extras)
        for answer in (first, second):
            row = answer.json
            assert answer.status == 200
            assert (row["reward"], row["mask_sample"], row["failure_kind"]) == (0.0, True, "judge_failed")
            assert row["_ng_failure_class"] == "judge_failed"
            assert "the judge is dead" in row["failure_reason"]
            assert (row["agent_ref"], row["_ng_rollout_id"], row["_ng_task_index"]) == ({"name": "a"}, "0-0", 3)
            assert not row.keys() & SUCCESS_ONLY
            assert "task_index" not in row
        calls = len(s.judge.asks)
        other = await s.answered(s.member(0, response=response(text="another")))
        assert other.json["failure_reason"] == first.json["failure_reason"]
        assert len(s.judge.asks) == calls


async def test_the_collection_timeout_is_a_503(autojump_clock: trio.abc.Clock) -> None:
    async with site() as s:
        answer = await s.answered(s.member(0))
        assert (answer.status, answer.code) == (503, "collection_timeout")
        assert "did not collect 2 unique rollout indices" in answer.json["detail"]


async def test_superseded_attempts() -> None:
    async with site() as s:
        old = s.member(0)
        await s.waiting(1)
        new = [s.member(index, response=numbered(index), _ng_group_attempt=1) for index in range(2)]
        answer = await s.answered(old)
        assert (answer.status, answer.code, answer.json["latest_attempt"]) == (503, "superseded", 1)
        assert [(await s.answered(request)).status for request in new] == [200, 200]
        stale = await s.answered(s.member(0))
        assert (stale.status, stale.code, stale.json["latest_attempt"]) == (409, "superseded", 1)
        assert "superseded by attempt 1" in stale.json["detail"]


async def test_refusals_of_a_group() -> None:
    async with site() as s:
        held = s.member(0)
        await s.waiting(1)
        other = await s.answered(s.member(1, principle="another"))
        assert (other.status, other.code) == (409, "inconsistent_prompt")
        assert "inconsistent prompt" in other.json["detail"]
        different = await s.answered(s.member(0, response=response(text="5")))
        assert (different.status, different.code) == (409, "different_response")
        assert held.answer is None


async def test_coordinates() -> None:
    async with site() as s:
        for index in (None, -1, 2, 10**30):
            answer = await s.answered(s.member(index))  # type: ignore[arg-type]  # wrong on purpose
            assert (answer.status, answer.code) == (422, "invalid_request")
            assert "_ng_rollout_index" in answer.json["detail"]
            assert "0 to 1" in answer.json["detail"]
        answer = await s.answered(s.member("0"))  # type: ignore[arg-type]  # wrong on purpose
        assert answer.status == 422
        assert answer.json["detail"][0]["loc"] == ["body", "_ng_rollout_index"]


async def test_broken_bodies() -> None:
    async with site() as s:
        for body, loc in ((b"", ["body"]), (b"[]", ["body"]), (b'{"a":NaN}', ["body", 5]), (b"\xff", ["body", 0])):
            answer = await s.ask("POST", "/verify", body)
            assert (answer.status, answer.code) == (422, "invalid_request")
            assert answer.json["detail"][0]["loc"] == loc
        deep = as_json(verify()).replace(b'"id":"r"', b'"id":"r","x":' + b"[" * 300 + b"]" * 300)
        answer = await s.ask("POST", "/verify", deep)
        assert answer.status == 422
        assert answer.json["detail"][0]["loc"] == ["body", "response"]
        assert "deeper than 128" in answer.json["detail"][0]["msg"]
        for value in (b"1e999", b"7" * 5000, b"[" * 300 + b"]" * 300):
            odd = as_json(verify()).replace(b'"2+2?"', b'[{"type":"input_text","n":' + value + b"}]")
            answer = await s.ask("POST", "/verify", odd)
            assert answer.status == 422
            assert answer.json["detail"][0]["loc"] == ["body", "responses_create_params", "input"]
            assert answer.json["detail"][0]["type"] != "json_invalid"
        assert not s.server.registry.cohorts


async def test_a_rollout_alone_gets_the_default_score_at_once() -> None:
    async with site(policy(1, scoring=ScoringRules(default_score=2.5))) as s:
        cookie = await s.seeded()
        answer = await s.ask("POST", "/verify", verify(None, None), cookie=cookie)
        row = answer.json
        assert answer.status == 200
        assert [row[f"reward{name}"] for name in ("", "_score_raw", "_overall_score", "_overall_score_raw")] == [
            2.5
        ] * 4
        assert (row["reward_length_adjustment"], row["reward_rubric_aggregate_valid"]) == (0, None)
        assert not s.judge.asks
        assert not len(s.server.registry.sessions)


async def test_rubric_mode_needs_ids() -> None:
    rules = policy(limits={"rubrics": True}, scoring=ScoringRules(score_source="rubric_mean"))
    async with site(rules) as s:
        choices: tuple[list[int] | None, ...] = (None, [])
        for ids in choices:
            answer = await s.answered(s.member(None, expected_rubric_ids=ids))  # type: ignore[arg-type]  # on purpose
            assert (answer.status, answer.code) == (422, "invalid_request")
            assert "expected_rubric_ids" in answer.json["detail"]


async def test_a_fixed_baseline_needs_its_text() -> None:
    async with site(policy(1, limits={"fixed_baseline": True})) as s:
        for metadata in (None, {}, {"baseline_response": " \n"}, {"baseline_response": 7}):
            asked = verify(0, responses_create_params={"input": "x", "metadata": metadata})
            answer = await s.ask("POST", "/verify", asked)
            assert (answer.status, answer.code) == (422, "invalid_request")
            assert "baseline_response" in answer.json["detail"]
        asked = verify(0, responses_create_params={"input": "x", "metadata": {"baseline_response": "2"}})
        answer = await s.ask("POST", "/verify", {**asked, "response": numbered(0)})
        assert answer.status == 200
        assert [(ask.response_1, ask.response_2) for ask in s.judge.asks] in ([("1", "2")], [("2", "1")])


async def test_a_disconnect_leaves_the_member_and_a_retry_attaches_again() -> None:
    async with site() as s:
        first = s.member(0, response=numbered(0))
        await s.waiting(1)
        first.scope.cancel()
        await s.waiting(0)
        again = s.member(0, response=numbered(0))
        await s.waiting(1)
        other = s.member(1, response=numbered(1))
        assert [(await s.answered(request)).status for request in (again, other)] == [200, 200]


async def test_what_is_told_to_a_legacy_cohort() -> None:
    async with site() as s:
        first, second = await play(s, group=None, task_index=4)
        assert (first.status, second.status) == (200, 200)
        assert first.json["_ng_group_id"] is None
        assert not s.server.registry.cohorts


async def test_a_bound_on_held_members_is_a_503_with_retry_after() -> None:
    async with site(policy(limits={"max_held_members": 2}), retry_after_s=7) as s:
        held = s.member(0)
        await s.waiting(1)
        refused = await s.answered(s.member(0, group="h"))
        assert (refused.status, refused.code, refused.headers["retry-after"]) == (503, "too_busy", "7")
        assert held.answer is None


async def test_shutdown_answers_everybody() -> None:
    async with site() as s:
        held = [s.member(0, group=str(n)) for n in range(5)]
        await s.waiting(5)
        s.server.shut_down()
        for request in held:
            answer = await s.answered(request)
            assert (answer.status, answer.code) == (503, "shutting_down")
            assert answer.cookie, "every answer carries the session"
            assert answer.headers["connection"] == "close"
        late = await s.answered(s.member(0))
        assert (late.status, late.code) == (503, "shutting_down")
        assert (await s.ask("GET", "/readyz")).status == 503
        assert (await s.ask("GET", "/livez")).status == 200


# -- sessions ----------------------------------------------------------------------------------------------


async def cohort_of_two(s: Site, cookie: str, path: str = "/ng-rollout/0-0/verify", **more: Any) -> Answer:
    requests = [
        s.begin("POST", path, verify(0, response=numbered(0)), cookie=cookie, **more),
        s.member(1, response=numbered(1)),
    ]
    first, _ = [await s.answered(request) for request in requests]
    return first


async def test_a_2xx_verify_ends_its_session() -> None:
    async with site() as s:
        cookie = await s.seeded()
        assert len(s.server.registry.sessions) == 1
        assert (await cohort_of_two(s, cookie)).status == 200
        await s._heard.until(lambda: not len(s.server.registry.sessions))


async def test_a_masked_row_ends_its_session_too() -> None:
    async with site(judge=failing()) as s:
        cookie = await s.seeded()
        assert (await cohort_of_two(s, cookie)).status == 200
        await s._heard.until(lambda: not len(s.server.registry.sessions))


async def test_a_refused_verify_does_not() -> None:
    async with site() as s:
        cookie = await s.seeded()
        answer = await s.ask("POST", "/ng-rollout/0-0/verify", verify(7), cookie=cookie)
        assert answer.status == 422
        assert len(s.server.registry.sessions) == 1


@pytest.mark.parametrize(("value", "stays"), [("1", True), ("yes", True), ("0", False), ("false", False), ("", False)])
async def test_the_close_follows_header(value: str, stays: bool) -> None:
    async with site(close_follows_header="x-follows") as s:
        cookie = await s.seeded()
        assert (await cohort_of_two(s, cookie, headers={"X-Follows": value})).status == 200
        await trio.testing.wait_all_tasks_blocked()
        assert len(s.server.registry.sessions) == int(stays)


async def test_a_session_whose_reply_was_never_written_stays_open() -> None:
    async with site() as s:
        cookie = await s.seeded()
        first = s.begin("POST", "/ng-rollout/0-0/verify", verify(0, response=numbered(0)), cookie=cookie)
        await s.waiting(1)
        first.scope.cancel()
        await s.waiting(0)
        assert (await s.answered(s.begin("POST", "/verify", verify(1, response=numbered(1))))).status == 200
        assert len(s.server.registry.sessions) == 1


async def test_a_retired_attempt_is_refused_in_the_shape_of_admission() -> None:
    async with site() as s:
        cookie = await s.seeded()
        held = s.begin("POST", "/ng-rollout/0-0/verify", verify(0), cookie=cookie)
        await s.waiting(1)
        s.server.registry.retire(s.server.now(), [EpisodeId("0-0")])
        answer = await s.answered(held)
        assert (answer.status, answer.json["error"]["code"]) == (409, "stale_attempt")
        again = await s.ask("POST", "/ng-rollout/0-0/verify", verify(0), cookie=cookie)
        assert (again.status, again.json["error"]["code"]) == (409, "stale_attempt")


async def test_the_judge_is_asked_without_the_members_prefix() -> None:
    judge = ScriptedJudge()
    rules = policy(use_principle=True, default_principle="be fair")
    async with site(replace(rules), judge) as s:
        await play(s, path="/ng-rollout/0-0/verify")
        assert {ask.principle for ask in judge.asks} == {"be fair"}


async def test_a_rollout_that_stands_alone_is_refused_when_stale_and_claims_its_session_else() -> None:
    async with site(policy(1)) as s:
        cookie = await s.seeded()
        session = next(iter(s.server.registry.sessions))
        session.claimed, session.typed = False, True
        assert (await s.ask("POST", "/ng-rollout/0-0/verify", verify(0), cookie=cookie)).status == 200
        assert session.claimed
        s.server.registry.retire(s.server.now(), [EpisodeId("0-0")])
        answer = await s.ask("POST", "/ng-rollout/0-0/verify", verify(0), cookie=cookie)
        assert (answer.status, answer.json["error"]["code"]) == (409, "stale_attempt")


async def test_what_an_earlier_attempt_still_sends_does_not_end_the_session_of_the_next() -> None:
    async with site() as s:
        cookie = await s.seeded()
        late = s.begin("POST", "/ng-rollout/0-0/verify", verify(0, response=numbered(0)), cookie=cookie)
        await s.waiting(1)
        assert (await s.ask("POST", "/ng-rollout/0-0-a1/seed_session", {}, cookie=cookie)).status == 200
        assert (await s.ask("POST", "/ng-rollout/0-0/verify", verify(1, response=numbered(1)))).status == 200
        assert (await s.answered(late)).status == 200
        close = {"resources_session_id": "s", "episode_id": {"rollout_id": "0-0"}}
        assert (await s.ask("POST", "/ng-rollout/0-0/close_session", close, cookie=cookie)).status == 200
        assert [session.episode.key for session in s.server.registry.sessions] == ["0-0-a1"]
