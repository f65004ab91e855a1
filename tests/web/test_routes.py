"""The other routes: seeds and closes, compare and aggregate, health, refusals of the router, cookies everywhere."""

import threading
from typing import Any

import pytest
import trio
import trio.testing
from tests.support.judges import ScriptedJudge, failing
from tests.support.scene import policy
from tests.web.app_harness import site
from tests.web.bodies import response, verify

from genrm_trio.core.identity import EpisodeId
from genrm_trio.judging.scoring import ScoringRules
from genrm_trio.web.policy import INLINE_BYTES

R = EpisodeId("0-3")


def typed(session: str = "env-1", rollout: str = "0-3", **changes: Any) -> dict[str, Any]:
    return {
        "resources_session_id": session,
        "episode_id": {"rollout_id": rollout},
        "task_id": {"taskset": "t", "task_id": "1"},
        "task_data": {},
        **changes,
    }


# -- every answer ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        *(("GET", path, 200) for path in ("/", "/health", "/healthz", "/livez", "/readyz", "/reverify_mode")),
        ("HEAD", "/health", 200),
        ("GET", "/ng-rollout/0-3/health", 200),
        ("GET", "/nothing", 404),
        ("GET", "/ng-rollout/", 404),
        ("GET", "/ng-rollout/0-3", 404),
        ("GET", "/health/", 404),
        ("GET", "//health", 404),
        ("GET", "//verify", 404),
        ("POST", "//verify", 404),
        ("POST", "/some_tool", 404),
        ("POST", "/sandbox_access", 404),
        ("GET", "/ng-control/v1/checkpoint/status", 404),
        ("POST", "/ng-control/v1/checkpoint/prepare", 404),
        ("GET", "/metrics", 404),
        ("GET", "/verify", 405),
        ("PUT", "/verify", 405),
        ("OPTIONS", "/verify", 405),
        ("DELETE", "/health", 405),
        ("POST", "/verify", 422),
        ("POST", "/seed_session", 422),
    ],
)
async def test_status_body_and_cookie_of_every_answer(method: str, path: str, status: int) -> None:
    async with site() as s:
        answer = await s.ask(method, path)
        assert answer.status == status
        assert answer.headers["vary"] == "Cookie"
        assert answer.headers["set-cookie"].startswith("genrm_compare_session=")
        assert answer.headers["set-cookie"].endswith("; path=/; Max-Age=1209600; httponly; samesite=lax")
        if method != "HEAD":
            assert answer.headers["content-type"] == "application/json"
        if status == 404 and path != "/sandbox_access":
            assert answer.json == {"detail": "Not Found"}
        if status == 405:
            assert answer.json == {"detail": "Method Not Allowed"}
            assert answer.headers["allow"] == ("GET, HEAD" if path == "/health" else "POST")
        if path == "/reverify_mode":
            assert answer.json == "unsupported"
        elif status == 200 and method != "HEAD":
            assert answer.json == {"status": "ok"}


@pytest.mark.parametrize("method", ["get", "head", "Head", "hEAD", "post", "Options", "gET"])
@pytest.mark.parametrize("path", ["/health", "/verify", "/nothing"])
async def test_a_method_in_other_letters_is_another_method(method: str, path: str) -> None:
    """The answer to `head` has a body that both sides count alike, and the connection ends in order."""
    async with site() as s:
        answer = await s.ask(method, path)
        assert (answer.status, answer.json) == (405, {"detail": "Method Not Allowed"})
        assert answer.headers["allow"] == "GET, HEAD, POST"
        assert answer.headers["connection"] == "close"


@pytest.mark.parametrize(
    "host",
    [
        "a..b",
        ".",
        ".svc",
        "x" * 64,
        "x" * 5000 + ".t",
        "a b",
        "t:port",
        "[::",
        "\xff\xfe",
        "%00",
        "",
        "xn--\xfc.t",
        "@",
        "/",
    ],
)
async def test_no_name_of_a_host_changes_an_answer(host: str) -> None:
    async with site() as s:
        for method, path, status in [
            ("GET", "/health", 200),
            ("HEAD", "/health", 200),
            ("GET", "/ng-rollout/0-3/health", 200),
            ("POST", "/aggregate_metrics", 422),
            ("POST", "/verify", 422),
            ("GET", "/nothing", 404),
            ("PUT", "/verify", 405),
        ]:
            answer = await s.ask(method, path, headers={"host": host})
            assert answer.status == status


async def test_a_session_stays_the_same_and_other_cookies_do_not_matter() -> None:
    async with site() as s:
        first = await s.ask("POST", "/ng-rollout/0-3/seed_session", {})
        (session,) = s.bound_to(R)
        await s.ask("POST", "/ng-rollout/0-3/seed_session", {}, cookie=f"agent=1; {first.cookie}")
        assert s.bound_to(R) == [session]
        await s.ask("POST", "/ng-rollout/0-3/seed_session", {}, cookie=first.cookie[:-3] + "xxx")
        assert len(s.bound_to(R)) == 2


# -- seeds -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [{}, verify(), typed(extra=1)])
async def test_an_untyped_seed(body: dict[str, Any]) -> None:
    async with site() as s:
        answer = await s.ask("POST", "/ng-rollout/0-3/seed_session", body)
        assert (answer.status, answer.json) == (200, {})
        assert answer.headers["x-ng-checkpoint-verify"] == "replay"
        assert len(s.bound_to(R)) == 1


async def test_a_seed_without_a_prefix_binds_nothing() -> None:
    async with site() as s:
        assert (await s.ask("POST", "/seed_session", {})).status == 200
        assert (await s.ask("POST", "/seed_session", typed())).status == 200
        assert not len(s.server.registry.sessions)


async def test_a_typed_seed_names_its_session() -> None:
    async with site() as s:
        answer = await s.ask("POST", "/ng-rollout/0-3/seed_session", typed())
        assert answer.json == {"resources_session_id": "env-1", "resources_tools": None, "sandbox_access": None}
        again = await s.ask("POST", "/ng-rollout/0-3/seed_session", typed(), cookie=answer.cookie)
        assert (again.status, s.bound_to(R)) == (200, ["env-1"])
        close = {"resources_session_id": "other", "episode_id": {"rollout_id": "0-3"}}
        closed = await s.ask("POST", "/ng-rollout/0-3/close_session", close, cookie=answer.cookie)
        assert (closed.status, closed.json) == (200, {"resources_session_id": "other"})
        assert s.bound_to(R) == []
        late = await s.ask("POST", "/ng-rollout/0-3/seed_session", typed())
        assert (late.status, s.bound_to(R)) == (200, [])


async def test_a_typed_seed_under_another_prefix_is_refused() -> None:
    async with site() as s:
        answer = await s.ask("POST", "/ng-rollout/0-4/seed_session", typed())
        assert (answer.status, answer.json["detail"][0]["loc"]) == (422, ["body", "episode_id"])
        assert answer.headers["x-ng-checkpoint-verify"] == "replay"


async def test_a_bad_seed_still_announces_replay_and_none_does_without_checkpoints() -> None:
    async with site() as s:
        assert (await s.ask("POST", "/seed_session", b"x")).headers["x-ng-checkpoint-verify"] == "replay"
    async with site(checkpoints=False) as s:
        assert "x-ng-checkpoint-verify" not in (await s.ask("POST", "/seed_session", {})).headers


async def test_a_retired_attempt_cannot_seed() -> None:
    async with site() as s:
        s.server.registry.retire(s.server.now(), [R])
        for path, body in (("/ng-rollout/0-3/seed_session", {}), ("/seed_session", typed())):
            answer = await s.ask("POST", path, body)
            assert (answer.status, answer.json["error"]["code"]) == (409, "stale_attempt")
            assert "x-ng-checkpoint-verify" not in answer.headers


async def test_a_close_needs_its_body_and_not_its_session() -> None:
    async with site() as s:
        body = {"resources_session_id": "never", "episode_id": {"rollout_id": "r"}}
        assert (await s.ask("POST", "/close_session", body)).json == {"resources_session_id": "never"}
        for wrong in ({}, {**body, "more": 1}, {**body, "resources_session_id": 1}):
            assert (await s.ask("POST", "/close_session", wrong)).status == 422


# -- admission and tokens ----------------------------------------------------------------------------------


async def test_while_closed_posts_wait_and_the_rest_passes() -> None:
    async with site() as s:
        s.server.close_admission()
        waiting = [
            s.begin("POST", "/ng-rollout/0-3/seed_session", {}),
            s.begin("POST", "/some_tool", b""),
            s.begin("POST", "/compare", {"conversation_history": [], "response_objs": []}),
            s.begin("POST", "/aggregate_metrics", {"verify_responses": []}),
        ]
        held = s.member(0)
        await s.waiting(1)
        for path in ("/", "/readyz", "/nothing"):
            await s.ask("GET", path)
        await s.ask("POST", "/ng-control/v1/checkpoint/prepare", {})
        await trio.testing.wait_all_tasks_blocked()
        assert all(request.answer is None for request in [*waiting, held])
        s.server.open_admission(resumed=True)
        assert [(await s.answered(request)).status for request in waiting] == [200, 404, 200, 200]


async def test_data_routes_can_require_a_token() -> None:
    async with site(data_auth_token="open sesame") as s:
        for header in (None, "Bearer wrong", "Basic open sesame", "open sesame", "Bearer \xe4"):
            headers = {"authorization": header} if header is not None else {}
            answer = await s.ask("POST", "/verify", b"not even json", headers=headers)
            assert (answer.status, answer.code) == (401, "unauthorized")
        assert (await s.ask("POST", "/some_tool")).status == 401
        right = {"authorization": "Bearer open sesame"}
        assert (await s.ask("POST", "/seed_session", {}, headers=right)).status == 200
        assert (await s.ask("GET", "/health")).status == 200


# -- compare and aggregate ---------------------------------------------------------------------------------


def comparing(*texts: str, **changes: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": "q"}]
    return {"conversation_history": turns, "response_objs": [response(text=text) for text in texts], **changes}


async def test_compare() -> None:
    async with site() as s:
        answer = await s.ask("POST", "/compare", comparing("1", "2", "3"))
        assert answer.status == 200
        rewards = answer.json["rewards"]
        assert rewards == sorted(rewards)
        assert len(answer.json["comparison_results"]) == 3
        assert "mean_individual_score" in answer.json["metrics"]
        assert not s.server.registry.cohorts


async def test_compare_of_less_than_two() -> None:
    async with site(policy(scoring=ScoringRules(default_score=1.5))) as s:
        for texts, rewards in (((), []), (("1",), [1.5])):
            answer = await s.ask("POST", "/compare", comparing(*texts))
            assert answer.json == {"rewards": rewards, "comparison_results": None, "metrics": None}
        assert not s.judge.asks


async def test_compare_with_a_failing_judge() -> None:
    async with site(judge=failing()) as s:
        answer = await s.ask("POST", "/compare", comparing("1", "2"))
        assert (answer.status, answer.code) == (503, "judge_failed")
        assert "the judge is dead" in answer.json["detail"]


@pytest.mark.parametrize(
    ("strategy", "order", "judges", "most"),
    [("circular", "balanced", 1, 100), ("circular", "both", 2, 25), ("all_pairs", "fixed", 1, 14)],
)
async def test_compare_of_more_than_the_bound(strategy: str, order: str, judges: int, most: int) -> None:
    rules = policy(strategy=strategy, pair_order=order, judges=judges, max_comparisons=100)
    async with site(rules) as s:
        answer = await s.ask("POST", "/compare", comparing(*["1"] * (most + 1)))
        assert (answer.status, answer.code) == (422, "invalid_request")
        for named in ("response_objs", str(most + 1 if most < 100 else most), "max_comparisons is 100"):
            assert named in answer.json["detail"]
        assert not s.judge.asks
        assert (await s.ask("POST", "/compare", comparing(*["1"] * most))).status == 200


async def test_a_fit_of_more_pairs_than_the_bound() -> None:
    """`bradley_terry` keeps a matrix of all pairs, however few are compared."""
    rules = policy(scoring=ScoringRules(aggregator_method="bradley_terry"), max_comparisons=100)
    async with site(rules) as s:
        answer = await s.ask("POST", "/compare", comparing(*["1"] * 15))
        assert (answer.status, answer.code) == (422, "invalid_request")
        assert "bradley_terry fits 105 pairs" in answer.json["detail"]


async def test_a_hundred_thousand_empty_responses_start_nothing() -> None:
    async with site(policy(strategy="all_pairs")) as s:
        body = b'{"conversation_history":[],"response_objs":[' + b",".join([b"{}"] * 100_000) + b"]}"
        living = trio.lowlevel.current_statistics().tasks_living
        answer = await s.ask("POST", "/compare", body)
        assert answer.status == 422
        assert "response_objs has more than 65536 entries" in answer.json["detail"]
        assert trio.lowlevel.current_statistics().tasks_living - living < 10
        assert (await s.ask("POST", "/compare", comparing("1", "2"))).status == 200


async def test_compare_in_rubric_mode_needs_ids() -> None:
    rules = policy(limits={"rubrics": True}, scoring=ScoringRules(score_source="rubric_mean"))
    async with site(rules) as s:
        assert (await s.ask("POST", "/compare", comparing("1", "2"))).status == 422


async def test_aggregate_metrics() -> None:
    async with site() as s:
        empty = await s.ask("POST", "/aggregate_metrics", {"verify_responses": []})
        assert empty.json == {"group_level_metrics": [], "agent_metrics": {}, "key_metrics": {}}
        row = {"_ng_task_index": 0, "_ng_rollout_index": 0, "reward": 2.0}
        one = await s.ask("POST", "/aggregate_metrics", {"verify_responses": [row]})
        assert one.json["key_metrics"] == {"mean/reward": 2.0}
        twice = await s.ask("POST", "/aggregate_metrics", {"verify_responses": [row, row]})
        assert twice.status == 500
        assert twice.json.startswith("DuplicateRollout(")


async def test_aggregate_metrics_of_more_than_the_bound() -> None:
    async with site(max_aggregate_numbers=3) as s:
        rows = [{"_ng_task_index": 0, "reward": 2.0}]
        assert (await s.ask("POST", "/aggregate_metrics", {"verify_responses": rows})).status == 200
        answer = await s.ask("POST", "/aggregate_metrics", {"verify_responses": rows * 2})
        assert (answer.status, answer.code) == (413, "too_large")
        assert "max_aggregate_numbers, 3" in answer.json["detail"]
        assert (await s.ask("POST", "/health")).status == 405


async def test_a_body_of_more_values_than_the_bound_is_not_read() -> None:
    async with site(max_json_values=50) as s:
        for path in ("/verify", "/compare", "/aggregate_metrics", "/seed_session", "/close_session"):
            answer = await s.ask("POST", path, b'{"a":[' + b"{}," * 50 + b"{}]}")
            assert (answer.status, answer.code) == (413, "too_large"), path
            assert "limits.max_json_values, 50" in answer.json["detail"]
        assert (await s.ask("POST", "/seed_session", b'{"a":[' + b"{}," * 46 + b"{}]}")).status == 200
        assert (await s.ask("POST", "/seed_session", b'{"a":[' + b"0.5," * 500 + b'"[{"]}')).status == 200


NESTED = {
    "/aggregate_metrics agent": (
        "/aggregate_metrics",
        b'{"verify_responses":[{"_ng_task_index":0,"agent_ref":{"a":%s}}]}',
    ),
    "/aggregate_metrics row": ("/aggregate_metrics", b'{"verify_responses":[{"_ng_task_index":0,"x":%s}]}'),
    "/aggregate_metrics usage": ("/aggregate_metrics", b'{"verify_responses":[{"response":{"usage":%s}}]}'),
    "/aggregate_metrics rows": ("/aggregate_metrics", b'{"verify_responses":%s}'),
    "/compare response": ("/compare", b'{"conversation_history":[],"response_objs":[{"output":%s},{}]}'),
    "/compare turn": ("/compare", b'{"conversation_history":[%s],"response_objs":[]}'),
    "/compare principle": ("/compare", b'{"conversation_history":[],"response_objs":[],"principle":%s}'),
    "/seed_session": ("/seed_session", b'{"a":%s}'),
    "/close_session": ("/close_session", b'{"resources_session_id":%s}'),
    "/verify input": ("/verify", b'{"responses_create_params":{"input":%s},"_ng_rollout_index":0,"response":{}}'),
}


@pytest.mark.parametrize("where", NESTED)
async def test_no_depth_is_an_error_of_the_server(where: str) -> None:
    """What is read is written again by other means, on another stack: each takes a depth of its own."""
    path, body = NESTED[where]
    async with site(judge=failing()) as s:
        for depth in (1, 120, *range(126, 131), 190, 250, 330, 500, *range(900, 1000, 3), 1500, 200_000):
            for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
                answer = await s.ask("POST", path, body.replace(b"%s", opening * depth + b"1" + closing * depth))
                assert answer.status in {200, 422, 503}, (depth, answer.body[:200])


async def test_a_running_compare_is_answered_at_shutdown() -> None:
    judge = ScriptedJudge(is_open=False)
    async with site(judge=judge) as s:
        requests = [s.begin("POST", "/compare", comparing("1", "2", "3")) for _ in range(2)]
        await judge.asked(6)
        s.server.shut_down()
        for request in requests:
            answer = await s.answered(request)
            assert (answer.status, answer.code) == (503, "shutting_down")
        assert judge.cancelled == 6
        assert (s.server.slots.in_use, s.server.gate.running) == (0, 0)


async def test_a_reading_in_a_thread_is_answered_at_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread is left to end by itself."""
    begun, end = threading.Event(), threading.Event()

    def slow(_body: bytearray, most: int) -> list[bytes]:
        begun.set()
        end.wait()
        return []

    monkeypatch.setattr("genrm_trio.web.routes._aggregated", slow)
    try:
        async with site() as s:
            request = s.begin("POST", "/aggregate_metrics", b" " * INLINE_BYTES + b'{"verify_responses":[]}')
            await trio.to_thread.run_sync(begun.wait)
            s.server.shut_down()
            answer = await s.answered(request)
            assert (answer.status, answer.code) == (503, "shutting_down")
            assert s.server.gate.running == 0
    finally:
        end.set()
