"""Every kind of odd text and JSON in every place of a request, on the real process: refused, or carried unchanged.

Carried through the judge's wire, the digest, a checkpoint, a crash, and the log.
"""

import json
import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final, TypeVar

import trio
from tests.fuzz.kit import EVIL_TEXTS, nested, places, replaced
from tests.support.fake_judge import Call, FakeJudge, Reply, verdict_text
from tests.support.gym import CLOSE_FOLLOWS, Controller
from tests.support.judges import ScriptedJudge
from tests.support.peer import Peer
from tests.support.peer import Reply as Told
from tests.support.scene import policy
from tests.support.server_process import CONTROL_TOKEN, ServerProcess, Servers, servers, settings_for
from tests.web.app_harness import site
from tests.web.bodies import response, verify

from genrm_trio.judging.text import scrub
from genrm_trio.judging.verdict import Verdict

T = TypeVar("T")
WITHIN_S: Final = 120.0
SENTINEL: Final = "put the value here"
KEYED: Final = "a key of the client's own"
REWARD: Final = "4.25"


def escaped(text: str) -> bytes:
    return json.dumps(text).encode()


VALUES: Final[dict[str, bytes]] = {
    **{f"{name}, escaped": escaped(text) for name, text in EVIL_TEXTS.items() if name != "long"},
    "four-byte emoji as it is": '"\U0001f600\U0010ffff"'.encode(),
    "NUL as it is": b'"a\x00b"',
    "invalid UTF-8": b'"a\xff\xfeb"',
    "a surrogate in UTF-8": b'"\xed\xa0\x80"',
    "duplicate keys": b'{"a": 1, "a": {"b": [], "b": 2}}',
    "a huge integer": b"9" * 400,
    "an integer that Python does not convert": b"-" + b"9" * 5000,
    "beyond every double": b"1e999",
    "NaN": b"NaN",
    "minus infinity": b"-Infinity",
    "odd keys": b'{"\\ud800": 1, "\\u0000": 2, "\xf0\x9f\x98\x80": 3, "": 4}',
    "deep": nested(60).encode(),
    "too deep": nested(100_000).encode(),
}
OUTPUT: Final = ("response", "output")
GROUP: Final = ("_ng_group_id",)
PLACES: Final[list[tuple[Any, ...]]] = [
    ("responses_create_params", "input", 0, "content"),
    ("responses_create_params", "input", 0, "role"),
    (*OUTPUT, 0, "summary", 0, "text"),
    (*OUTPUT, 1, "content", 0, "text"),
    (*OUTPUT, 1, "prompt_token_ids", 1),
    (*OUTPUT, 1, "generation_log_probs", 0),
    ("response", "id"),
    ("response", "model"),
    ("response", "created_at"),
    ("response", "tools"),
    ("response", "tool_choice"),
    ("principle",),
    ("prompt_id",),
    GROUP,
    ("_ng_group_attempt",),
    ("_ng_task_index",),
    ("_ng_rollout_index",),
    (KEYED, "x"),
]
LOGGED: Final = frozenset(
    {"four-byte emoji as it is", "four-byte emoji, escaped", "NUL, escaped", "lone surrogate, escaped"}
)
"""What a group may be called at least, so that the log has to tell it."""
UNSPEAKABLE: Final = frozenset({"beyond every double", "an integer that Python does not convert"})
"""What Python's own JSON does not spell again."""
INVALID: Final = frozenset(
    {"NUL as it is", "invalid UTF-8", "a surrogate in UTF-8", "NaN", "minus infinity", "too deep"}
)
"""What is no JSON, or nested beyond reading: refused wherever it stands."""


CALL: Final = {"checkpoint_id": "odd", "deadline_ts": 1e10}
CONTROL_PATH: Final = "/ng-control/v1/checkpoint/"
SINGLE: Final[dict[str, tuple[dict[str, Any], list[tuple[Any, ...]]]]] = {
    "/seed_session": (
        {
            "resources_session_id": "s",
            "episode_id": {"rollout_id": "typed", "attempt": 0},
            "task_id": {"taskset": "t", "task_id": "i"},
            "task_data": {},
        },
        [
            ("resources_session_id",),
            ("episode_id", "rollout_id"),
            ("episode_id", "attempt"),
            ("task_id", "taskset"),
            ("task_data",),
        ],
    ),
    "/compare": (
        {
            "conversation_history": [{"role": "user", "content": "q"}],
            "response_objs": [response(text="a"), response(text="b")],
            "principle": "p",
        },
        [
            ("principle",),
            ("conversation_history", 0, "content"),
            ("response_objs", 0, *OUTPUT[1:], 1, "content", 0, "text"),
        ],
    ),
    f"{CONTROL_PATH}prepare": (CALL, [("checkpoint_id",), ("deadline_ts",)]),
    f"{CONTROL_PATH}commit": ({**CALL, "checkpoint_dir": "d"}, [("checkpoint_dir",)]),
    f"{CONTROL_PATH}restore": ({**CALL, "checkpoint_dir": "d", "episode_ids": []}, [("checkpoint_dir",)]),
    f"{CONTROL_PATH}retire": ({**CALL, "episode_ids": ["odd"]}, [("episode_ids", 0)]),
    f"{CONTROL_PATH}forget": ({**CALL, "rollout_ids": ["odd"]}, [("rollout_ids", 0)]),
}
"""Requests that are answered by themselves: right bodies by path, and the places that matter."""


def spelled_out(right: Any, place: tuple[Any, ...], name: str) -> bytes:
    """A body with a value in it."""
    text = json.dumps(replaced(right, place, SENTINEL)).replace(f'"{SENTINEL}"', "\0")
    return text.encode().replace(b"\0", VALUES[name])


def members(group: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Right bodies of a cohort of two, which differ in their index."""
    more = {"principle": "be fair", "prompt_id": "p", KEYED: {"x": "y"}, "_ng_task_index": 1}
    first, second = (verify(index, group, **more) for index in range(2))
    return first, second


@dataclass
class Case:
    """One value at one place of a cohort's requests, and what came of it."""

    name: str
    place: tuple[Any, ...]
    number: int
    told: list[Told] = field(default_factory=list)
    cookie: str = ""

    @property
    def group(self) -> str:
        return f"group {self.number}"

    @property
    def rollout(self) -> str:
        return f"r{self.number}"

    def body(self, index: int) -> bytes:
        """The request with the value in it; at the place of a group's name, numbered so that groups stay apart."""
        return spelled_out(members(self.group)[index], self.place, self.name)

    @property
    def accepted(self) -> bool:
        return all(told.status == 200 for told in self.told)

    async def play(self, peer: Peer) -> None:
        """Seed a session for the first member, and send both."""
        seeded = await peer.ask("POST", f"/ng-rollout/{self.rollout}/seed_session", {})
        self.cookie = (seeded.header("set-cookie") or "").partition(";")[0]
        told: dict[int, Told] = {}

        async def send(index: int) -> None:
            headers = {"cookie": self.cookie, **CLOSE_FOLLOWS} if index == 0 else {}
            prefix = f"/ng-rollout/{self.rollout}" if index == 0 else ""
            told[index] = await peer.ask("POST", f"{prefix}/verify", self.body(index), headers)

        async with trio.open_nursery() as nursery:
            for index in range(2):
                nursery.start_soon(send, index)
        self.told = [told[index] for index in range(2)]

    def check(self) -> None:
        """Both members were told the same, and what they sent was not changed."""
        statuses = [told.status for told in self.told]
        assert statuses in ([200, 200], [422, 422]), (self, statuses)
        if self.name in INVALID:
            assert statuses == [422, 422], self
        for index, told in enumerate(self.told):
            body = spelled(told.body)
            if told.status == 422:
                assert body["code"] == "invalid_request", self
                continue
            sent = spelled(self.body(index))
            assert body["reward"] == REWARD, self
            for name in ("response", "responses_create_params"):
                assert body[name] == sent[name], self

    async def replay(self, peer: Peer) -> None:
        """After a restore the first member gets its reward at once, also when its answer is spelled in another way."""
        again = await peer.ask("POST", f"/ng-rollout/{self.rollout}-a1/verify", self.body(0), {"cookie": self.cookie})
        assert again.status == 200, (self, again.body[:300])
        assert spelled(again.body)["reward"] == REWARD
        if self.name not in UNSPEAKABLE:
            other = json.dumps(json.loads(self.body(0)), indent=1).encode()
            again = await peer.ask("POST", "/verify", other)
            assert again.status == 200, (self, again.body[:300])


@dataclass
class Single:
    """One value at one place of a request that is answered by itself."""

    name: str
    path: str
    place: tuple[Any, ...]

    async def play(self, peer: Peer) -> None:
        """Send it, and see that the right one of a refusal and an answer comes."""
        headers = {"authorization": f"Bearer {CONTROL_TOKEN}"} if self.path.startswith(CONTROL_PATH) else {}
        told = await peer.ask("POST", self.path, spelled_out(SINGLE[self.path][0], self.place, self.name), headers)
        body = told.json
        if self.name in INVALID:
            assert (told.status, body["code"]) == (422, "invalid_request"), (self, body)
        elif self.path == "/seed_session":
            self._check_seed(told.status, body)
        elif self.path == "/compare":
            answers = self.place[0] == "response_objs"  # of which only texts are read
            assert told.status == (200 if answers or isinstance(self._value, str) else 422), (self, body)
        else:
            assert told.status in {200, 409, 422}, (self, body)

    @property
    def _value(self) -> Any:
        """What Python reads; every integer is large."""
        return json.loads(VALUES[self.name], parse_int=lambda digits: -(10**18) if "-" in digits else 10**18)

    def _check_seed(self, status: int, body: Any) -> None:
        """Typed, when it has the shape of one; then nothing in it that cannot be held makes it an untyped one."""
        value, session_id = self._value, "s"
        match self.place[0]:
            case "resources_session_id":
                typed, session_id = isinstance(value, str) and value != "", value
                held = not typed or scrub(value) == value
            case "episode_id":
                typed = self.place[1] == "attempt" and type(value) is int and value >= 0
                held = not typed
            case _:
                typed, held = isinstance(value, dict if self.place == ("task_data",) else str), True
        if not held:
            assert status == 422, self
            assert [problem["loc"] for problem in body["detail"]] == [["body", *self.place]], self
        else:
            reply = {"resources_session_id": session_id, "resources_tools": None, "sandbox_access": None}
            assert (status, body) == (200, reply if typed else {}), self


def spelled(data: bytes) -> Any:
    """JSON as it is spelled: numbers as texts."""
    return json.loads(data, parse_int=str, parse_float=str)


def cases() -> list[Case]:
    """Every value in every place that matters; with `GENRM_TRIO_FUZZ`, in every place there is."""
    right = members("g")[0]
    chosen = [path for path in places(right) if path] if "GENRM_TRIO_FUZZ" in os.environ else PLACES
    return [Case(name, place, number) for number, (name, place) in enumerate(product(VALUES, chosen))]


def says(call: Call) -> Reply:
    call.raw.decode("utf-8")
    return Reply(text=verdict_text(4.25, 4.25, 3))


async def all_at(cases: Iterable[T], step: Callable[[T], Awaitable[None]], width: int = 8) -> None:
    """Take one step for every case, so many at once."""
    left = iter(cases)

    async def worker() -> None:
        for case in left:
            await step(case)

    async with trio.open_nursery() as nursery:
        for _ in range(width):
            nursery.start_soon(worker)


async def crash(house: Servers, folder: Path, kept: list[Case]) -> Peer:
    """Commit, kill, restore into a fresh process and resume; returns the way to it."""
    assert house.running is not None
    controller = Controller(house.running.peer, CONTROL_TOKEN, deadline_s=60)
    await controller.prepare("ck")
    await controller.commit("ck", folder)
    fresh = await house.restart()
    controller = Controller(fresh.peer, CONTROL_TOKEN, deadline_s=60)
    restored = await controller.restore("re", folder, [case.rollout for case in kept])
    assert len(restored["restored"]) == len(kept)
    await controller.resume("re")
    return fresh.peer


def check_judge(judge: FakeJudge) -> None:
    """The judge was sent every text as it came, lone surrogates aside (contract 4), and a blank one as `None`."""
    shown = {text for call in judge.calls for text in call.answers}
    for name, text in EVIL_TEXTS.items():
        if f"{name}, escaped" in VALUES:
            assert (scrub(text) if text.strip() else "None") in shown, name


async def check_groups(server: ServerProcess, accepted: list[Case]) -> None:
    """Its log comes to have the groups' names as they came, surrogates aside."""
    named = {case.name: scrub(json.loads(VALUES[case.name])) for case in accepted if case.place == GROUP}
    assert named.keys() >= LOGGED
    for name, group in named.items():
        try:
            await server.logged("cohort_ended", partial(tells_of, f"group_id::{group}::group_attempt::0"))
        except trio.TooSlowError as error:
            error.add_note(f"{name} is not in the log")
            raise


def tells_of(cohort: str, lines: list[dict[str, Any]]) -> bool:
    return any(line["cohort"] == cohort for line in lines)


def check_logs(folder: Path) -> None:
    """Every line of every log is a JSON object in UTF-8."""
    raw = [line for log in folder.glob("*.log") for line in log.read_bytes().split(b"\n") if line]
    assert raw
    assert all(isinstance(json.loads(line.decode("utf-8")), dict) for line in raw)


async def test_odd_values_in_every_place(tmp_path: Path) -> None:
    tried = cases()
    async with FakeJudge(says).running() as judge:
        settings = settings_for(judge.url, debug_logging=True, use_principle=True)
        async with servers(tmp_path, settings) as house:
            with trio.fail_after(WITHIN_S):
                peer = (await house.start()).peer
                await all_at(tried, lambda case: case.play(peer))
                for case in tried:
                    case.check()
                singles = [
                    Single(name, path, at) for path, (_, places) in SINGLE.items() for name in VALUES for at in places
                ]
                await all_at(singles, lambda single: single.play(peer))
                accepted = [case for case in tried if case.accepted]
                calls = len(judge.calls)
                assert house.running is not None
                await check_groups(house.running, accepted)
                peer = await crash(house, tmp_path / "saved", accepted)
                await all_at(accepted, lambda case: case.replay(peer))
                assert len(judge.calls) == calls
    for name in VALUES.keys() - INVALID:
        assert any(case.name == name for case in accepted), f"nothing takes {name}, so nothing was carried"
    check_judge(judge)
    check_logs(tmp_path)


async def test_odd_values_as_a_baseline() -> None:
    """In process: it comes to the judge as it came."""
    judge = ScriptedJudge(lambda _ask: Verdict(3.0, 3.0, 3.5))
    async with site(policy(1, limits={"fixed_baseline": True}), judge) as server:
        for number, name in enumerate(VALUES):
            right = verify(0, f"group {number}")
            right["responses_create_params"] = {"input": "x", "metadata": {"baseline_response": "b"}}
            body = spelled_out(right, ("responses_create_params", "metadata", "baseline_response"), name)
            told = await server.ask("POST", "/verify", body)
            value = None if name in INVALID else json.loads(VALUES[name], parse_int=len)
            if isinstance(value, str) and value.strip():
                assert told.status == 200, name
                assert value in {judge.asks[-1].response_1, judge.asks[-1].response_2}, name
            else:
                assert (told.status, told.code) == (422, "invalid_request"), name
