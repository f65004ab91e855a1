"""Every route, code, header and error shape of contract chapters 1 to 9, with and without prefix, on the real process.

One table of exchanges, all played against one server in order; each row says what it expects of the whole reply.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio
from tests.e2e.stage import AT_ONCE_S, Stage, stage
from tests.e2e.test_restarts import is_refused
from tests.support.gym import CONTROL, response_object, row, verify_body
from tests.support.peer import Reply
from tests.support.verdicts import AnswerMark

COOKIE = "genrm_compare_session"
GETS = ("/", "/health", "/healthz", "/livez", "/readyz")
MARK = AnswerMark("g", 0, 0)


@dataclass
class Exchange:
    """One request and what its reply must be. `json` None: any body; `has`: fragments of it."""

    method: str
    path: str
    status: int
    json: Any = None
    body: Any = None
    code: str | None = None
    has: tuple[str, ...] = ()
    loc: list[Any] | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.method} {self.path} {str(self.body)[:60]} -> {self.status}"


def changed(**changes: Any) -> dict[str, Any]:
    """A right `/verify` body with changes; a value of `...` removes the field."""
    return {name: value for name, value in {**verify_body(MARK), **changes}.items() if value is not ...}


def typed(**changes: Any) -> dict[str, Any]:
    body = {
        "resources_session_id": "env-1",
        "episode_id": {"rollout_id": "0-3", "attempt": 0},
        "task_id": {"taskset": "t", "task_id": "1"},
        "task_data": {},
    }
    return {**body, **changes}


def reading() -> Iterator[Exchange]:
    """Routes that only read, and what the router refuses."""
    for path in GETS:
        yield Exchange("GET", path, 200, {"status": "ok"})
        yield Exchange("POST", path, 405, {"detail": "Method Not Allowed"}, {}, headers={"allow": "GET, HEAD"})
    yield Exchange("GET", "/reverify_mode", 200, "unsupported")
    for path in ("/verify", "/seed_session", "/close_session", "/compare", "/aggregate_metrics"):
        yield Exchange("GET", path, 405, {"detail": "Method Not Allowed"}, headers={"allow": "POST"})
    for path in ("/nothing", "/ng-rollout/", "/ng-rollout/-x/verify", "/verify/", "//health", "//verify"):
        yield Exchange("GET", path, 404, {"detail": "Not Found"})
    yield Exchange("POST", "/a_tool", 404, {"detail": "Not Found"}, {"argument": 1})
    yield Exchange("POST", "/sandbox_access", 404, body={}, has=("detail",))


def bodies() -> Iterator[Exchange]:
    """Bodies that are refused for their shape: 422, with the place."""
    for path in ("/verify", "/seed_session", "/close_session", "/compare", "/aggregate_metrics"):
        yield Exchange("POST", path, 422, code="invalid_request", loc=["body"])
        for broken in (b'{"a": NaN}', b'{"a": 1', b'{"a": "\xff"}'):
            yield Exchange("POST", path, 422, body=broken, code="invalid_request", has=("json_invalid",))
        yield Exchange("POST", path, 422, body=[], code="invalid_request", loc=["body"])
    yield Exchange("POST", "/close_session", 422, body={}, loc=["body", "resources_session_id"])
    yield Exchange("POST", "/verify", 422, body=changed(response=...), loc=["body", "response"])
    yield Exchange("POST", "/verify", 422, body=changed(responses_create_params=...), has=("responses_create_params",))
    extra = {"input": "x", "unknown": 1}
    yield Exchange("POST", "/verify", 422, body=changed(responses_create_params=extra), has=("extra_forbidden",))
    for name in ("_ng_rollout_index", "_ng_group_attempt", "_ng_task_index"):
        for value in (True, 1.0, "1"):
            yield Exchange("POST", "/verify", 422, body=changed(**{name: value}), loc=["body", name])
    yield Exchange("POST", "/verify", 422, body=changed(_ng_group_attempt=-1), loc=["body", "_ng_group_attempt"])
    yield Exchange("POST", "/verify", 422, body=changed(_ng_group_id=""), loc=["body", "_ng_group_id"])
    for index in (..., None, -1, 2):
        wrong = changed(_ng_rollout_index=index)
        yield Exchange("POST", "/verify", 422, body=wrong, code="invalid_request", has=("_ng_rollout_index", "0 to 1"))


def sessions() -> Iterator[Exchange]:
    """Seeds and closes; what binds is seen elsewhere."""
    replay = {"x-ng-checkpoint-verify": "replay"}
    yield Exchange("POST", "/seed_session", 200, {}, {}, headers=replay)
    yield Exchange("POST", "/seed_session", 200, {}, row(MARK), headers=replay)
    yield Exchange("POST", "/seed_session", 200, {}, typed(more=1), headers=replay)
    reply = {"resources_session_id": "env-1", "resources_tools": None, "sandbox_access": None}
    yield Exchange("POST", "/ng-rollout/0-3/seed_session", 200, reply, typed(), headers=replay)
    yield Exchange("POST", "/ng-rollout/0-4/seed_session", 422, body=typed(), has=("episode_id",), headers=replay)
    close = {"resources_session_id": "never-seen", "episode_id": {"rollout_id": "r"}}
    yield Exchange("POST", "/close_session", 200, {"resources_session_id": "never-seen"}, close)
    yield Exchange("POST", "/close_session", 422, body={**close, "more": 1}, has=("more",))


def comparing() -> Iterator[Exchange]:
    """`/compare` and `/aggregate_metrics`."""
    history = [{"role": "user", "content": "q"}]
    nothing: dict[str, Any] = {"rewards": [], "comparison_results": None, "metrics": None}
    asked = {"conversation_history": history, "response_objs": []}
    yield Exchange("POST", "/compare", 200, nothing, asked)
    one = {**asked, "response_objs": [response_object("alone")]}
    yield Exchange("POST", "/compare", 200, {**nothing, "rewards": [3.0]}, one)
    marks = [AnswerMark("compare", 0, index) for index in (0, 1)]
    both = {**asked, "response_objs": [response_object(mark.text) for mark in marks]}
    rewards = '"rewards":[' + ",".join(str(mark.worth) for mark in marks) + "]"
    yield Exchange("POST", "/compare", 200, body=both, has=(rewards, '"judge_idx":0', '"tiebreak_usage_rate":0.0'))
    failing = {**asked, "response_objs": [response_object(AnswerMark("failing", 0, i).text) for i in (0, 1)]}
    yield Exchange("POST", "/compare", 503, body=failing, code="judge_failed", has=("judge /v1/responses pair=",))
    empty: dict[str, Any] = {"group_level_metrics": [], "agent_metrics": {}, "key_metrics": {}}
    yield Exchange("POST", "/aggregate_metrics", 200, empty, {"verify_responses": []})
    rows = [{"_ng_task_index": 0, "_ng_rollout_index": index, "reward": float(index)} for index in (0, 1)]
    yield Exchange("POST", "/aggregate_metrics", 200, body={"verify_responses": rows}, has=('"mean/reward":0.5',))
    twice = {"verify_responses": [rows[0], rows[0]]}
    yield Exchange("POST", "/aggregate_metrics", 500, body=twice, has=("two rows",))


def check(exchange: Exchange, reply: Reply) -> None:
    """The reply is what the row says; and its cookie, its media type and the shape of its error are right."""
    said = f"{exchange}: {reply.status} {reply.body[:500]!r}"
    assert reply.status == exchange.status, said
    body = reply.json
    assert reply.header("content-type") == "application/json", said
    if exchange.json is not None:
        assert body == exchange.json, said
    for fragment in exchange.has:
        assert fragment in reply.body.decode(), said
    if exchange.code is not None:
        assert body["code"] == exchange.code, said
    for name, value in exchange.headers.items():
        assert reply.header(name) == value, said
    if exchange.loc is not None:
        assert exchange.loc in [entry["loc"] for entry in body["detail"]], said
    if reply.status == 422 and isinstance(body["detail"], list):
        assert all({"type", "loc", "msg"} <= entry.keys() and entry["loc"][0] == "body" for entry in body["detail"])
    if reply.status == 500:
        assert isinstance(body, str), said
    else:
        assert COOKIE in reply.cookies, said
        assert reply.header("vary") == "Cookie", said


async def test_the_table_of_routes_with_and_without_prefix(tmp_path: Path) -> None:
    table = [*reading(), *bodies(), *sessions(), *comparing()]
    async with stage(tmp_path) as play:
        play.judge.conduct["failing"].manner = "fail"
        for exchange in table:
            prefixes = ("",) if exchange.path.startswith(("/ng-rollout/", "//")) else ("", "/ng-rollout/t-1-a2")
            for prefix in prefixes:
                play.judge.asked.clear()
                reply = await play.server.peer.ask(exchange.method, prefix + exchange.path, exchange.body)
                check(exchange, reply)
        assert play.judge.calls == 8, "two of each of the two compares"


async def test_a_cookie_is_kept_and_a_foreign_one_ignored(tmp_path: Path) -> None:
    async with stage(tmp_path) as play:
        first = (await play.server.peer.ask("GET", "/")).cookies[COOKIE]
        same = await play.server.peer.ask("GET", "/nothing", headers={"cookie": f"agent=x; {COOKIE}={first}; b=y"})
        assert same.cookies[COOKIE].split(".")[0] == first.split(".")[0]
        attributes = same.header("set-cookie")
        assert attributes is not None
        assert attributes.endswith("; path=/; Max-Age=1209600; httponly; samesite=lax")
        for foreign in (first[:-2], f"{first}x", "nonsense", ""):
            other = await play.server.peer.ask("GET", "/", headers={"cookie": f"{COOKIE}={foreign}"})
            assert other.cookies[COOKIE].split(".")[0] != first.split(".")[0]


async def test_replies_to_a_cohort_echo_each_request_byte_for_byte(tmp_path: Path) -> None:
    async with stage(tmp_path) as play:
        odd = (
            b'{"zeta": 123456789012345678901234567890, "id": "r", "created_at": 1.50, "model": "m",'
            b' "object":"response", "output": [ {"type":"message","role":"assistant","content":'
            b' [{"type":"output_text","text":"%s \\ud800","annotations":[]}]} ],'
            b' "parallel_tool_calls":true,"tool_choice":"auto","tools":[] }'
        )
        params = b'{"input":  "q", "temperature": 1.0e0}'
        bodies = [
            b'{"responses_create_params": %s, "response": %s, "group_id": "g", "rollout_index": %d, "row": {"a": 1}}'
            % (params, odd % AnswerMark("g", 0, index).text.encode(), index)
            for index in (0, 1)
        ]
        replies: dict[int, Reply] = {}

        async def verify(index: int) -> None:
            replies[index] = await play.server.peer.ask("POST", "/verify", bodies[index])

        async with trio.open_nursery() as nursery:
            for index in (0, 1):
                nursery.start_soon(verify, index)
        for index, reply in replies.items():
            mark = AnswerMark("g", 0, index)
            assert odd % mark.text.encode() in reply.body
            assert params in reply.body
            told = reply.json
            assert (told["reward"], told["_ng_rollout_index"], told["_ng_group_id"]) == (mark.worth, index, "g")
            assert (told["mask_sample"], told["failure_kind"], told["failure_reason"]) == (False, None, None)
            assert told["answer_text"].startswith(mark.text)
            assert told["genrm_input_tokens_per_comparison_mean"] == 100
            assert "row" not in told
        echoed = await play.server.peer.ask("POST", "/verify", json.dumps(replies[0].json).encode())
        assert echoed.json["reward"] == replies[0].json["reward"], "our own echo is the same answer"


async def test_masked_rows_and_failed_cohorts(tmp_path: Path) -> None:
    async with stage(tmp_path, cohort_collection_timeout_s=0.3) as play:
        play.judge.conduct["masked"].manner = "fail"
        pending = play.verify_all([play.rollout("masked", index) for index in (0, 1)])
        for index, each in enumerate(pending):
            row_ = (await each.answer()).json
            assert (row_["reward"], row_["mask_sample"], row_["failure_kind"]) == (0.0, True, "judge_failed")
            assert row_["instance_config"] == {"mask_sample": True}
            assert row_["agent_ref"] == {"type": "responses_api_agents", "name": "simple_agent"}
            assert row_["_ng_failure_judge_error"] == row_["failure_reason"]
            assert row_["_ng_rollout_index"] == index
            assert not {"reward_score_raw", "answer_text", "group_id"} & row_.keys()
        alone = await play.verify(play.rollout("late", 0)).answer()
        is_refused(alone, 503, "collection_timeout")
        assert "did not collect 2 unique rollout indices" in alone.json["detail"]
        again = await play.verify(play.rollout("late", 1, draft=3)).answer(within=AT_ONCE_S)
        is_refused(again, 503, "collection_timeout")


async def test_conflicts_supersession_and_disconnects(tmp_path: Path) -> None:
    async with stage(tmp_path) as play:
        hold = play.judge.hold("g")
        first = play.verify(play.rollout("g", 0))
        await play.waiting(1)
        is_refused(await play.rollout("g", 0, draft=1).verify(), 409, "different_response")
        body = {**verify_body(AnswerMark("g", 5, 1)), "principle": "another"}
        prompt = await play.server.peer.ask("POST", "/verify", body)
        is_refused(prompt, 409, "inconsistent_prompt")
        await first.hang_up()
        await play.waiting(0)
        again = play.verify(play.rollout("g", 0))
        mate = play.verify(play.rollout("g", 1))
        await play.judge.until(lambda: play.judge.server.in_flight == 2)
        newer = play.verify(play.rollout("g", 0, group_attempt=2))
        for superseded in (again, mate):
            reply = await superseded.answer(within=AT_ONCE_S)
            is_refused(reply, 503, "superseded")
            assert reply.json["latest_attempt"] == 2
        stale = await play.rollout("g", 1, group_attempt=1).verify()
        is_refused(stale, 409, "superseded")
        assert "superseded by attempt 2" in stale.json["detail"]
        hold.set()
        await play.verify(play.rollout("g", 1, group_attempt=2)).told()
        await newer.told()


async def test_without_checkpoints_there_is_no_control_plane(tmp_path: Path) -> None:
    async with stage(tmp_path, checkpoint={"enabled": False}) as play:
        for method, path, body in (("GET", "status", None), ("POST", "prepare", {}), ("POST", "resume", b"{")):
            reply = await play.server.peer.ask(method, f"{CONTROL}/{path}", body)
            assert (reply.status, reply.json) == (404, {"detail": "Not Found"})
        seed = await play.rollout("g", 0).seed()
        assert seed.header("x-ng-checkpoint-verify") is None


async def test_data_routes_can_ask_for_a_token_and_bodies_are_bounded(tmp_path: Path) -> None:
    async with stage(tmp_path, data_auth_token="data-token", max_request_bytes=1000) as play:
        peer = play.server.peer
        for path in ("/verify", "/seed_session", "/compare", "/close_session", "/aggregate_metrics", "/a_tool"):
            for headers in ({}, {"authorization": "Bearer wrong"}):
                is_refused(await peer.ask("POST", path, b"{nonsense", headers), 401, "unauthorized")
        token = {"authorization": "Bearer data-token"}
        assert (await peer.ask("POST", "/seed_session", {}, token)).status == 200
        assert (await peer.ask("GET", "/health")).status == 200
        large = await peer.ask("POST", "/seed_session", {"text": "x" * 1000}, token)
        is_refused(large, 413, "too_large")
        assert large.header("connection") == "close"


async def test_held_requests_get_their_503_at_the_end(tmp_path: Path) -> None:
    async with stage(tmp_path) as play:
        play.judge.hold("g")
        held = [*play.verify_all([play.rollout("g", 0), play.rollout("g", 1)]), play.verify(play.rollout("h", 0))]
        await play.judge.until(lambda: play.judge.server.in_flight == 2)
        await play.waiting(3)
        await ended(play, held)


async def ended(play: Stage, held: list[Any]) -> None:
    """SIGTERM: exit code 0, and every held request has its answer."""
    assert await play.server.terminate() == 0
    for each in held:
        is_refused(await each.answer(within=AT_ONCE_S), 503, "shutting_down")
