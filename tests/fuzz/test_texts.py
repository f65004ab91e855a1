"""Every kind of odd text and JSON in every place of a request, on the real process: refused, or carried unchanged.

Carried through the judge's wire, the digest, a checkpoint, a crash, and the log.
"""

import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final

import trio
from tests.fuzz.kit import EVIL_TEXTS, nested, places, replaced
from tests.support.fake_judge import Call, FakeJudge, Reply, verdict_text
from tests.support.gym import CLOSE_FOLLOWS, Controller
from tests.support.peer import Peer
from tests.support.peer import Reply as Told
from tests.support.server_process import CONTROL_TOKEN, ServerProcess, Servers, servers, settings_for
from tests.web.bodies import verify

from genrm_trio.judging.text import scrub

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
        right = members(self.group)[index]
        return (
            json.dumps(replaced(right, self.place, SENTINEL))
            .replace(f'"{SENTINEL}"', "\0")
            .encode()
            .replace(b"\0", VALUES[self.name])
        )

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


async def all_at(cases: list[Case], step: Callable[[Case], Awaitable[None]], width: int = 8) -> None:
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
