"""The control plane over HTTP: the token first, bodies, refusals in their shape, and a crash that loses nothing."""

import time
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from tests.support.plane import memory_store
from tests.web.app_harness import CONTROL_TOKEN, Answer, Site, site
from tests.web.bodies import response, verify

from genrm_trio.web.control_routes import PREFIX
from genrm_trio.web.speaking import SLICE, spoken

BEARER = {"authorization": f"Bearer {CONTROL_TOKEN}"}


async def call(s: Site, name: str, checkpoint: str = "c1", **fields: Any) -> Answer:
    body = {"checkpoint_id": checkpoint, "deadline_ts": time.time() + 60, **fields}
    return await s.ask("POST", f"{PREFIX}/{name}", body, headers=BEARER)


async def status(s: Site) -> Any:
    answer = await s.ask("GET", f"{PREFIX}/status", headers=BEARER)
    assert answer.status == 200
    return answer.json


async def test_the_token_comes_before_the_body() -> None:
    async with site(store=memory_store()) as s:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {CONTROL_TOKEN}"}):
            for method, name in (("GET", "status"), ("POST", "prepare"), ("POST", "resume")):
                answer = await s.ask(method, f"{PREFIX}/{name}", b"no json", headers=headers)
                assert (answer.status, answer.json["error"]["code"]) == (401, "unauthorized")


async def test_each_call_is_logged_with_its_result() -> None:
    with capture_logs() as lines:
        async with site(store=memory_store()) as s:
            assert (await call(s, "prepare", deadline_ts=time.time() - 30)).json["phase"] == "preparing"
            assert (await call(s, "commit", "c2", checkpoint_dir="/d")).status == 409
            assert (await call(s, "resume")).status == 200
    told = [line for line in lines if line["event"].startswith("control_")]
    assert [(line["event"], line["call"], line["checkpoint_id"]) for line in told] == [
        ("control_deadline_past", "prepare", "c1"),
        ("control_call", "prepare", "c1"),
        ("control_refused", "commit", "c2"),
        ("control_call", "resume", "c1"),
    ]
    assert " lies 30 s in the past" in told[0]["text"]
    assert "Unix seconds" in told[0]["text"]
    assert [line.get("phase", line.get("code")) for line in told[1:]] == ["preparing", "checkpoint_conflict", "idle"]


async def test_calls_that_are_refused_before_they_are_read_are_logged_without_what_they_carried() -> None:
    with capture_logs() as lines:
        async with site(store=memory_store(), max_json_values=9) as s:
            for headers, body in (
                ({"authorization": "Bearer guessed"}, {"checkpoint_id": "c1"}),
                (BEARER, {"checkpoint_id": "c1", "stray": "guessed"}),
                (BEARER, {"checkpoint_id": ["guessed"] * 9}),
            ):
                await s.ask("POST", f"{PREFIX}/prepare", body, headers=headers)
            await s.ask("GET", f"{PREFIX}/status", headers={"authorization": "Bearer guessed"})
    told = [line for line in lines if line["event"] == "control_refused"]
    assert [(line["call"], line["status"], line["code"]) for line in told] == [
        ("prepare", 401, "unauthorized"),
        ("prepare", 422, "invalid_request"),
        ("prepare", 413, "too_large"),
        ("status", 401, "unauthorized"),
    ]
    assert len({line["once"] for line in told}) == 4, "each is written once in a while"
    assert "guessed" not in str(told)


async def test_status() -> None:
    async with site(store=memory_store()) as s:
        told = await status(s)
        assert (told["kind"], told["instance"], told["phase"], told["mode"]) == (
            "resources",
            "genrm_compare",
            "idle",
            "exported",
        )
        assert told["verify"] == told["verify_step_type"] == "replay"


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        (b"", ["body"]),
        (b"[]", ["body"]),
        (b'{"deadline_ts":NaN}', ["body", 15]),
        ({}, ["body", "checkpoint_id"]),
        ({"checkpoint_id": "c", "deadline_ts": "soon"}, ["body", "deadline_ts"]),
        ({"checkpoint_id": "c/d", "deadline_ts": 1.0}, ["body", "checkpoint_id"]),
        ({"checkpoint_id": "c", "deadline_ts": 1.0, "more": 1}, ["body", "more"]),
        ({"checkpoint_id": "\ud800", "deadline_ts": 1.0}, ["body", "checkpoint_id"]),
        ({"checkpoint_id": "c", "deadline_ts": 1.0, "\ud800": 1}, ["body"]),
        (b'{"checkpoint_id":"c","deadline_ts":1.0,"more":' + b"[" * 300 + b"]" * 300 + b"}", ["body", "more"]),
        (b'{"checkpoint_id":"c","deadline_ts":1.0,"more":' + b"[" * 5000 + b"]" * 5000 + b"}", ["body", 0]),
        (b'{"checkpoint_id":"c","deadline_ts":1.0,"more":"\\ud800",}', ["body", 55]),
    ],
)
async def test_bodies_are_checked(body: Any, loc: list[str | int]) -> None:
    async with site(store=memory_store()) as s:
        answer = await s.ask("POST", f"{PREFIX}/prepare", body, headers=BEARER)
        assert (answer.status, answer.code) == (422, "invalid_request")
        assert answer.json["detail"][0]["loc"] == loc
        assert (await status(s))["phase"] == "idle"


@pytest.mark.parametrize(
    ("name", "fields", "loc"),
    [
        ("commit", {"checkpoint_dir": "\ud800"}, ["body", "checkpoint_dir"]),
        ("restore", {"checkpoint_dir": "d\udfff", "episode_ids": ["r"]}, ["body", "checkpoint_dir"]),
        ("restore", {"checkpoint_dir": "d", "episode_ids": ["\ud800"]}, ["body", "episode_ids", 0]),
        ("forget", {"rollout_ids": ["r", "\ud800"]}, ["body", "rollout_ids", 1]),
    ],
)
async def test_a_lone_surrogate_is_json_and_names_nothing(name: str, fields: Any, loc: list[str | int]) -> None:
    async with site(store=memory_store()) as s:
        body = {"checkpoint_id": "c", "deadline_ts": 4e9, **fields}
        answer = await s.ask("POST", f"{PREFIX}/{name}", body, headers=BEARER)
        assert (answer.status, answer.code) == (422, "invalid_request")
        assert answer.json["detail"][0]["loc"] == loc
        assert answer.json["detail"][0]["type"] != "json_invalid"


async def test_refusals_have_the_shape_that_controllers_read() -> None:
    async with site(store=memory_store()) as s:
        answer = await call(s, "renew")
        assert (answer.status, answer.json["error"]["code"]) == (409, "invalid_phase")
        answer = await call(s, "restore", checkpoint_dir="nowhere", episode_ids=["r"])
        assert (answer.status, answer.json["error"]["code"]) == (422, "invalid_checkpoint_state")
        assert (await status(s))["phase"] == "idle"
        assert (await s.ask("GET", f"{PREFIX}/prepare", headers=BEARER)).status == 405


def numbered(index: int) -> dict[str, Any]:
    return verify(index, response=response(text=str(index + 1)))


async def play(s: Site, cookies: list[str], attempt: str = "") -> list[Answer]:
    """Both members verify under their prefix, with a close to follow."""
    follows = {"x-ng-close-follows": "1"}
    requests = [
        s.begin("POST", f"/ng-rollout/0-{i}{attempt}/verify", numbered(i), cookie=cookie, headers=follows)
        for i, cookie in enumerate(cookies)
    ]
    return [await s.answered(request) for request in requests]


async def test_a_crash_loses_no_outcome() -> None:
    store = memory_store()
    async with site(store=store) as s:
        cookies = [await s.seeded(f"0-{i}") for i in range(2)]
        told = await play(s, cookies)
        assert [answer.status for answer in told] == [200, 200]
        assert (await call(s, "prepare")).json["phase"] == "prepared"
        committed = await call(s, "commit", checkpoint_dir="d")
        assert (committed.status, committed.json["episode_ids"]) == (200, ["0-0", "0-1"])
    async with site(store=store, await_restore=True) as s:
        early = s.begin("POST", "/ng-rollout/0-0-a1/verify", numbered(0), cookie=cookies[0])
        restored = await call(s, "restore", checkpoint_dir="d", episode_ids=["0-0", {"rollout_id": "0-1"}])
        assert (restored.status, restored.json["restored"]) == (200, ["0-0-a1", "0-1-a1"])
        assert early.answer is None
        assert (await call(s, "resume")).json == {"phase": "idle", "idempotent": False}
        assert (await s.answered(early)).json == told[0].json
        assert [answer.json for answer in await play(s, cookies, "-a1")] == [answer.json for answer in told]
        assert not s.judge.asks
        stale = await s.ask("POST", "/ng-rollout/0-1/verify", numbered(1), cookie=cookies[1])
        assert (stale.status, stale.json["error"]["code"]) == (409, "stale_attempt")


async def test_a_typed_session_stays_open_after_its_replay_too() -> None:
    store = memory_store()
    task = {"task_id": {"taskset": "t", "task_id": "1"}, "task_data": {}}

    async def seeded(s: Site, index: int) -> str:
        body = {"resources_session_id": f"env-{index}", "episode_id": {"rollout_id": f"0-{index}"}, **task}
        return (await s.ask("POST", f"/ng-rollout/0-{index}/seed_session", body)).cookie

    async def verified(s: Site, cookies: list[str], attempt: str) -> list[Answer]:
        paths = [f"/ng-rollout/0-{i}{attempt}/verify" for i in range(2)]
        asked = [s.begin("POST", path, numbered(i), cookie=cookies[i]) for i, path in enumerate(paths)]
        return [await s.answered(request) for request in asked]

    async with site(store=store) as s:
        cookies = [await seeded(s, index) for index in range(2)]
        told = await verified(s, cookies, "")
        await call(s, "prepare")
        assert (await call(s, "commit", checkpoint_dir="0")).status == 200
    for cycle in range(2):
        async with site(store=store) as s:
            ids = [f"0-{i}" + (f"-a{cycle}" if cycle else "") for i in range(2)]
            restored = await call(s, "restore", f"r{cycle}", checkpoint_dir=str(cycle), episode_ids=ids)
            assert len(restored.json["restored"]) == 2
            await call(s, "resume", f"r{cycle}")
            again = await verified(s, cookies, f"-a{cycle + 1}")
            assert [answer.json for answer in again] == [answer.json for answer in told]
            cookies = [answer.cookie for answer in again]
            await call(s, "prepare", f"c{cycle}")
            assert (await call(s, "commit", f"c{cycle}", checkpoint_dir=str(cycle + 1))).status == 200


async def test_a_held_outcome_waits_for_resume() -> None:
    async with site(store=memory_store()) as s:
        cookies = [await s.seeded(f"0-{i}") for i in range(2)]
        await call(s, "prepare")
        requests = [
            s.begin("POST", f"/ng-rollout/0-{i}/verify", numbered(i), cookie=cookie) for i, cookie in enumerate(cookies)
        ]
        await s.judge.asked(2)
        await trio.testing.wait_all_tasks_blocked()
        assert all(request.answer is None for request in requests)
        await call(s, "resume")
        assert [(await s.answered(request)).status for request in requests] == [200, 200]


async def test_retire_and_forget() -> None:
    async with site(store=memory_store()) as s:
        cookie = await s.seeded("0-0")
        held = s.begin("POST", "/ng-rollout/0-0/verify", numbered(0), cookie=cookie)
        await s.waiting(1)
        answer = await call(s, "retire", episode_ids=["0-0"])
        assert (answer.status, answer.json) == (200, {"retired": ["0-0"]})
        assert (await s.answered(held)).json["error"]["code"] == "stale_attempt"
        assert (await call(s, "forget", rollout_ids=["0-0"])).json == {"forgotten": ["0-0"]}


async def test_after_shutdown_only_status_and_resume_answer() -> None:
    async with site(store=memory_store()) as s:
        s.server.shut_down()
        answer = await call(s, "prepare")
        assert (answer.status, answer.json["error"]["code"]) == (503, "checkpoint_error")
        assert "shutting down" in answer.json["error"]["detail"]
        assert (await call(s, "resume")).status == 200
        assert (await status(s))["phase"] == "idle"


async def test_a_long_reply_is_written_in_slices() -> None:
    keys = [f"r-{n}" for n in range(SLICE * 2 + 1)]
    said = await spoken({"phase": "committed", "none": [], "episode_ids": [*keys], "n": None})
    assert said == b'{"phase":"committed","none":[],"episode_ids":["' + '","'.join(keys).encode() + b'"],"n":null}'
