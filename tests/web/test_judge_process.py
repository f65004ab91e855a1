"""The real server process beside judges that fail: what its clients are told, what it counts and what it logs."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from tests.support.fake_judge import Call, FakeJudge, Reply, better_of
from tests.support.server_process import ServerProcess, forks, servers, settings_for
from tests.support.unusable import CHAT_UNUSABLE, RESPONSES_UNUSABLE, VERDICT, Unusable
from tests.web.bodies import PARAMS, response, verify

RETRIES: Final = 1
BUDGET: Final = RETRIES + 1
COMPARISONS: Final = 2
"""Of a cohort of two: each of the two is shown first once."""
TIMEOUT_S: Final = 2.0
"""Short for what waits for it, and long enough for a right reply on a machine that is busy."""
FREE_RETRIES: Final = 4
"""As many calls as fit into the timeout, half a second apart, with none at its end."""
COUNT_OF_LOST: Final = 'judge_faults_total{action="retry_without_budget",kind="no_reply"}'


@dataclass(frozen=True)
class Case:
    """A fault.

    reply: what the judge sends. kinds: what is counted. calls: how many a comparison makes at most. says: a part of the
    failure's text.
    """

    reply: Reply
    kinds: frozenset[str]
    calls: int
    says: str


def case(kind: str, reply: Reply, calls: int, says: str) -> Case:
    return Case(reply, frozenset({kind}), calls, says)


def storm(status: int, kind: str) -> Case:
    return case(kind, Reply(status, body={"detail": "busy"}), BUDGET, f"the judge answered {status}")


def told_to_wait(status: int) -> Case:
    reply = Reply(status, body={}, headers={"Retry-After": "3600"})
    return case("throttled", reply, 1, "waiting would pass the evaluation deadline")


def cut(fault: Any) -> Case:
    return case("cut", Reply(text=VERDICT, fault=fault), BUDGET, "ReplyCut")


def unusable(replies: Unusable) -> dict[str, Case]:
    says = f"no completed answer after {BUDGET} attempts"
    return {name: case(kind, Reply(body=body), BUDGET, says) for name, (kind, body) in replies.items()}


TOO_LONG: Final = {"error": {"message": "This model's maximum context length is 4096 tokens.", "code": 400}}
FAULTS: Final[Mapping[str, Mapping[str, Case]]] = {
    "responses": {
        "reset before the reply": Case(
            Reply(fault="reset_before"), frozenset({"no_reply", "timeout"}), FREE_RETRIES, "no complete reply within"
        ),
        "silence": case("timeout", Reply(fault="silence"), 1, "no complete reply within"),
        "reset in the head": cut("reset_in_head"),
        "reset in the body": cut("reset_in_body"),
        "closed in the body": cut("close_in_body"),
        "429": storm(429, "rate_limited"),
        "503": storm(503, "unavailable"),
        "429 with Retry-After": told_to_wait(429),
        "503 with Retry-After": told_to_wait(503),
        "error inside": case("error_inside", Reply(body={"error": "off"}), BUDGET, "error inside a 200: off"),
        "502 inside": case("server_error", Reply(body={"error": {"code": 502}}), BUDGET, "error inside a 200: 502"),
        "HTML": case("not_json", Reply(body=f"<html>{VERDICT}</html>".encode()), 1, "JSONDecodeError"),
        "empty": case("not_json", Reply(body=b""), 1, "JSONDecodeError"),
        "context length": case("context_length", Reply(400, body=TOO_LONG), 1, "maximum context length is 4096"),
        "no verdict": case("unparseable", Reply(text="both are fine"), BUDGET, "no verdict can be read in 2 of 2"),
        **unusable(RESPONSES_UNUSABLE),
    },
    "chat": unusable(CHAT_UNUSABLE),
}
"""What goes wrong on the way is the same for both backends; where the words of a reply stand is not."""


def prompt_of(call: Call) -> str:
    """The prompt of a comparison, in either dialect."""
    body = call.body
    found: str = (body.get("input") or body["messages"])[0]["content"]
    return found


def member(index: int, group: str, prompt: str) -> dict[str, Any]:
    params = {**PARAMS, "input": [{"role": "user", "content": prompt}]}
    answer = response(text=f"quality={index + 1}")
    return verify(index, group, response=answer, responses_create_params=params)


async def cohort(server: ServerProcess, group: str, prompt: str = "a right one") -> list[dict[str, Any]]:
    """The rows of a cohort's members."""
    rows: list[dict[str, Any]] = [{}] * COMPARISONS

    async def run(index: int) -> None:
        reply = await server.peer.ask("POST", "/verify", member(index, group, prompt))
        assert reply.status == 200, reply
        rows[index] = reply.json

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            for index in range(COMPARISONS):
                nursery.start_soon(run, index)
    return rows


def check_masked(rows: list[dict[str, Any]], group: str, prompt: str, says: str) -> None:
    """Each member has the masked row of contract 6, with one text, and no score anywhere."""
    text = rows[0]["failure_reason"]
    assert says in text
    left_out = dict.fromkeys(["principle", "expected_rubric_ids", "_ng_task_index", "prompt_id"])
    overlay = {
        "reward": 0.0,
        "mask_sample": True,
        "failure_kind": "judge_failed",
        "failure_reason": text,
        "instance_config": {"mask_sample": True},
        "_ng_failure_class": "judge_failed",
        "_ng_failure_judge_error": text,
    }
    assert rows == [{**left_out, **member(index, group, prompt), **overlay} for index in range(COMPARISONS)]


def check_judged(rows: list[dict[str, Any]]) -> None:
    assert [(row["mask_sample"], row["failure_reason"]) for row in rows] == [(False, None)] * COMPARISONS
    assert rows[0]["reward"] < rows[1]["reward"]


async def faults(server: ServerProcess) -> Counter[str]:
    """How many faults of each kind were counted."""
    counts: Counter[str] = Counter()
    for name, value in (await server.metrics()).items():
        if name.startswith("judge_faults_total{"):
            counts[name.partition('kind="')[2].partition('"')[0]] += int(value)
    return counts


class Start:
    """Starts a server in the folder of a test, forked from one program, so that a test need not wait for imports."""

    def __init__(self, folder: Path, socket: Path) -> None:
        self.folder = folder
        self.socket = socket

    @asynccontextmanager
    async def __call__(self, judge: Mapping[str, Any], **changes: Any) -> AsyncIterator[ServerProcess]:
        short = {"genrm_parse_retries": RETRIES, "judge_request_timeout_s": TIMEOUT_S}
        async with servers(self.folder, settings_for("", judge=judge, **(short | changes)), self.socket) as house:
            yield await house.start()


@pytest.fixture(scope="module")
def socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with forks(tmp_path_factory.mktemp("judges")) as path:
        yield path


@pytest.fixture
def start(tmp_path: Path, socket: Path) -> Start:
    return Start(tmp_path, socket)


@pytest.mark.parametrize("backend", list(FAULTS))
async def test_a_fault_of_the_judge_masks_its_cohort_and_no_other(backend: str, start: Start) -> None:
    """Fault after fault: masked rows, its kind counted, few calls, one line a kind; and the next cohort is judged."""
    cases = FAULTS[backend]

    def script(call: Call) -> Reply:
        fault = cases.get(prompt_of(call))
        return better_of(call) if fault is None else fault.reply

    judge = FakeJudge(script)
    first: dict[str, str] = {}  # the group that met a kind first
    async with judge.running(), start({"base_url": judge.url, "backend": backend}) as server:
        for name, fault in cases.items():
            before = await faults(server)
            check_masked(await cohort(server, name, name), name, name, fault.says)
            moved = await faults(server) - before
            assert moved.keys() == fault.kinds, name
            for kind in fault.kinds:
                first.setdefault(kind, name)
            lines = await server.logged("judge_fault", lambda lines: len(lines) >= len(first))
            logged = {line["kind"]: line["cohort"] for line in lines}
            assert logged == {kind: f"group_id::{group}::group_attempt::0" for kind, group in first.items()}
            assert len(lines) == len(logged), "one line a kind"
            asked = sum(prompt_of(call) == name for call in judge.calls)
            assert asked <= COMPARISONS * fault.calls, name
            check_judged(await cohort(server, f"after {name}"))


async def test_a_feature_that_the_endpoint_refuses_is_counted_and_logged(start: Start, tmp_path: Path) -> None:
    """The cohort is judged without it, and the endpoint does not rest."""

    def script(call: Call) -> Reply:
        if "response_format" in call.body:
            return Reply(400, body={"error": {"message": "response_format is not supported", "code": 400}})
        return Reply(text=VERDICT)

    template = tmp_path / "judge.jinja"
    template.write_text("{{ response_1 }} {{ response_2 }}")
    judge = FakeJudge(script)
    asked = {"backend": "chat", "template": str(template), "max_concurrency": 1}
    async with judge.running(), start({"base_url": judge.url, **asked}) as server:
        for group in ("first", "second"):
            assert [row["mask_sample"] for row in await cohort(server, group)] == [False] * COMPARISONS
        read = await server.metrics()
        assert read['judge_calls_total{kind="feature_refused"}'] == 1
        assert read['judge_calls_total{kind="answered"}'] == 2 * COMPARISONS
        assert read['judge_faults_total{action="again_without_it",kind="feature_refused"}'] == 1
        assert not read[f'judge_endpoint_resting{{endpoint="127.0.0.1:{judge.port}"}}']
        assert len(judge.calls) == 2 * COMPARISONS + 1
        (line,) = await server.logged("judge_fault")
        assert (line["kind"], line["action"]) == ("feature_refused", "again_without_it")
        assert "this endpoint is asked without response_format from now on" in line["text"]


async def test_addresses_without_a_judge(start: Start) -> None:
    """No such name, no route, nobody there: masked rows; and once somebody listens at one of them, rewards.

    The name's network interface does not exist, so no resolver is asked. A broadcast address takes no connection.
    """
    judge = FakeJudge()
    async with judge.running():
        pass  # its port is known, and closed now
    panel = [{"base_url": url} for url in ("http://[fe80::1%nosuch]:9", "http://127.255.255.255:9", judge.url)]
    async with start({"base_url": None, "panel": panel}) as server:
        check_masked(await cohort(server, "g", "p"), "g", "p", "no complete reply within")
        kinds = {"dns", "unreachable", "refused", "timeout"}
        assert {kind for kind, count in (await faults(server)).items() if count} == kinds
        lines = await server.logged("judge_fault", lambda lines: len(lines) >= len(kinds))
        assert sorted(line["kind"] for line in lines) == sorted(kinds)
        rests = f'judge_endpoint_resting{{endpoint="127.0.0.1:{judge.port}"}}'
        async with judge.running():
            await server.until(lambda read: not read[rests])
            check_judged(await cohort(server, "after"))


async def test_a_panel_shares_by_weight_and_outlives_an_endpoint(start: Start) -> None:
    """With forty calls in flight each endpoint has its weight's share; what a lost one had is asked of the other."""
    cohorts, weights = 20, {"light": 1, "heavy": 3}
    arrived: Counter[str] = Counter()
    all_there, go_on, heavy_lives = trio.Event(), trio.Event(), trio.CancelScope()

    def script(name: str, call: Call) -> Reply:
        arrived[name] += 1
        if arrived.total() == cohorts * COMPARISONS:
            all_there.set()
        return replace(better_of(call), hold=go_on)

    judges = {name: FakeJudge(partial(script, name)) for name in weights}

    async def serve_heavy(task_status: trio.TaskStatus[int]) -> None:
        with heavy_lives:
            await judges["heavy"].serve(task_status=task_status)

    async def play(server: ServerProcess, group: str) -> None:
        check_judged(await cohort(server, group))

    async with judges["light"].running(), trio.open_nursery() as nursery:
        await nursery.start(serve_heavy)
        panel = [{"base_url": judges[name].url, "weight": weight} for name, weight in weights.items()]
        plain = {"genrm_parse_retries": 0, "judge_request_timeout_s": 20.0}
        async with start({"base_url": None, "panel": panel}, **plain) as server:
            async with trio.open_nursery() as first:
                for n in range(cohorts):
                    first.start_soon(play, server, f"first {n}")
                with trio.fail_after(20):
                    await all_there.wait()
                assert arrived == {"light": 10, "heavy": 30}
                heavy_lives.cancel()
                await server.until(lambda read: read[COUNT_OF_LOST] == 30)
                go_on.set()
            async with trio.open_nursery() as second:
                for n in range(cohorts):
                    second.start_soon(play, server, f"second {n}")
            assert arrived == {"light": 2 * cohorts * COMPARISONS, "heavy": 30}
            counted = await faults(server)
            assert {kind for kind, count in counted.items() if count} <= {"no_reply", "refused"}
