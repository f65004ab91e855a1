"""The real server process under attack and load: what is held meanwhile completes, and the end is in time."""

import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
import trio
from tests.support.failing_connections import DEFECTS
from tests.support.fake_judge import Call, FakeJudge, Reply, better_of
from tests.support.gym import Controller
from tests.support.peer import Dropped, Peer
from tests.support.server_process import CONTROL_TOKEN, ServerProcess, servers, settings_for
from tests.web.bodies import as_json, response, verify
from tests.web.hostile import HOSTILE

PROBE = Path(__file__).parent.parent / "support" / "health_probe.py"
HEALTHY_S = 0.1
"""How long `/health` may take, whatever else goes on."""


@asynccontextmanager
async def process(
    folder: Path, judge: FakeJudge | None = None, /, size: int = 2, **changes: Any
) -> AsyncIterator[ServerProcess]:
    async with (
        (judge or FakeJudge()).running() as running,
        servers(folder, settings_for(running.url, size, **changes)) as house,
    ):
        yield await house.start()


def member(index: int, group: str = "g") -> dict[str, Any]:
    return verify(index, group, response=response(text=f"quality={index + 1}"))


class Held:
    """Members that wait in the server, each on a connection of its own."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.replies: list[int] = []

    async def run(self, body: Any) -> None:
        await self.ask("/verify", body)

    async def ask(self, path: str, body: Any) -> None:
        self.replies.append((await self.peer.ask("POST", path, body)).status)


async def until_waiting(server: ServerProcess, count: int) -> None:
    """Wait until so many requests wait, for their cohort or to be let in."""
    await server.until(lambda read: read["waiting_verifies"] + read["waiting_requests"] == count)


def descriptors(server: ServerProcess) -> int:
    return len(list(Path(f"/proc/{server.child.pid}/fd").iterdir()))


async def attack(server: ServerProcess, data: bytes) -> None:
    """Send, read until the server closes or a moment has passed, and leave."""
    stream = await trio.open_tcp_stream("127.0.0.1", server.port)
    async with stream:
        with trio.move_on_after(0.2):
            try:
                await stream.send_all(data)
                while await stream.receive_some(65536):
                    pass
            except trio.BrokenResourceError:
                return


async def test_hostile_requests_touch_no_held_cohort(tmp_path: Path) -> None:
    async with process(tmp_path) as server, trio.open_nursery() as nursery:
        held = Held(server.peer)
        for group in range(8):
            nursery.start_soon(held.run, member(0, str(group)))
        await until_waiting(server, 8)
        base = descriptors(server)
        async with trio.open_nursery() as attackers:
            for data in HOSTILE.values():
                attackers.start_soon(attack, server, data)
                attackers.start_soon(attack, server, data[: len(data) // 2])
                attackers.start_soon(attack, server, data * 2)
        await until_waiting(server, 8)
        assert (await server.peer.ask("GET", "/health")).status == 200
        with trio.fail_after(10):
            while descriptors(server) > base + 2:  # noqa: ASYNC110 - another process
                await trio.sleep(0.05)
        for group in range(8):
            nursery.start_soon(held.run, member(1, str(group)))
    assert held.replies == [200] * 16


async def test_a_defect_at_a_connection_ends_that_one_alone_and_each_kind_is_logged_once(tmp_path: Path) -> None:
    async with (
        FakeJudge().running() as judge,
        servers(tmp_path, settings_for(judge.url), module="tests.support.failing_connections") as house,
    ):
        server = await house.start()
        held = Held(server.peer)
        async with trio.open_nursery() as nursery:
            for group in range(4):
                nursery.start_soon(held.run, member(0, str(group)))
            await until_waiting(server, 4)
            for path in (*DEFECTS, *DEFECTS):
                with pytest.raises(Dropped):
                    await server.peer.ask("GET", path)
            await until_waiting(server, 4)
            for group in range(4):
                nursery.start_soon(held.run, member(1, str(group)))
        assert held.replies == [200] * 8
        assert await server.terminate() == 0
        logged = [line["error"] for line in await server.logged("connection_failed")]
        assert len(logged) == len(DEFECTS), logged
        for defect, error in zip(DEFECTS.values(), logged, strict=True):
            assert repr(defect()) in error


@asynccontextmanager
async def probed(server: ServerProcess) -> AsyncIterator[list[float]]:
    """Ask for the server's health from another process while the block runs; the list then has the latencies."""
    latencies: list[float] = []
    command = [sys.executable, str(PROBE), str(server.port), str(server.child.pid)]
    async with trio.open_nursery() as nursery:
        probe = await nursery.start(partial(trio.run_process, command, stdin=PIPE, stdout=PIPE))
        assert await probe.stdout.receive_some() == b"ready\n"
        yield latencies
        await probe.stdin.aclose()
        told = b"".join([part async for part in probe.stdout])
        latencies += json.loads(told)


def large_bodies(count: int, megabytes: int) -> list[bytes]:
    """Bodies of the members of one cohort; only their index and their text differ."""
    answer = response(text="quality=TEXT")
    answer["output"][1]["prompt_token_ids"] = [100_000] * (megabytes * 150_000)
    template = as_json(verify(0, response=answer))
    return [
        template.replace(b"quality=TEXT", b"quality=%d" % (1 + index % 5)).replace(
            b'"_ng_rollout_index":0', b'"_ng_rollout_index":%d' % index
        )
        for index in range(count)
    ]


async def test_health_answers_while_sixteen_members_of_eight_megabytes_arrive(tmp_path: Path) -> None:
    bodies = large_bodies(16, 8)
    async with process(tmp_path, size=16) as server:
        held = Held(server.peer)
        async with probed(server) as latencies, trio.open_nursery() as arriving:
            for body in bodies:
                arriving.start_soon(held.run, body)
    assert held.replies == [200] * 16
    assert len(latencies) > 20
    assert max(latencies) < HEALTHY_S


async def test_health_answers_while_the_judge_says_megabytes_of_braces(tmp_path: Path) -> None:
    judge = FakeJudge(lambda _call: Reply(text="{" * 1_000_000))
    changes = {"genrm_parse_retries": 0, "on_unparseable_verdict": "default_scores"}
    async with process(tmp_path, judge, size=16, **changes) as server:
        held = Held(server.peer)
        async with probed(server) as latencies, trio.open_nursery() as arriving:
            for index in range(16):
                arriving.start_soon(held.run, member(index))
    assert held.replies == [200] * 16
    assert len(latencies) > 20
    assert max(latencies) < HEALTHY_S


UNREAD = 1500
"""Replies of `/metrics`, of which a client that never reads has the sockets full long before the last."""


async def until_stuck(server: ServerProcess) -> None:
    """Wait until the server writes no more to the client that never reads: only we have replies."""
    before, name = 0.0, 'requests_total{route="/metrics",status="200"}'
    with trio.fail_after(20):
        while (count := (await server.metrics()).get(name, 0.0)) != before + 1:
            before = count
            await trio.sleep(0.1)
    assert count < UNREAD


@pytest.mark.parametrize("checkpoint", ["no checkpoint", "an open checkpoint"])
async def test_sigterm_answers_every_held_request_whatever_others_do(checkpoint: str, tmp_path: Path) -> None:
    never = trio.Event()

    def stuck(call: Call) -> Reply:
        return Reply(text="late", hold=never) if "quality=9" in call.raw.decode() else better_of(call)

    async with process(tmp_path, FakeJudge(stuck), shutdown_grace_s=3.0) as server, trio.open_nursery() as nursery:
        held = Held(server.peer)
        for group in range(20):
            nursery.start_soon(held.run, member(0, str(group)))
        for index in range(2):
            judged = verify(index, "judged", response=response(text="quality=9"))
            nursery.start_soon(held.run, judged)
        await until_waiting(server, 22)
        idle = await trio.open_tcp_stream("127.0.0.1", server.port)
        half = await trio.open_tcp_stream("127.0.0.1", server.port)
        await half.send_all(b"POST /verify HTTP/1.1\r\nHost: t\r\nContent-Length: 100\r\n\r\nhalf")
        unread = await trio.open_tcp_stream("127.0.0.1", server.port)
        await unread.send_all(b"GET /metrics HTTP/1.1\r\nHost: t\r\n\r\n" * UNREAD)
        await until_stuck(server)
        if checkpoint != "no checkpoint":
            await Controller(server.peer, CONTROL_TOKEN).once("prepare", "ck", deadline_s=0.1)
            nursery.start_soon(held.run, member(0, "at the gate"))
            nursery.start_soon(held.ask, "/seed_session", {})
            await until_waiting(server, 24)
        began = time.monotonic()
        assert await server.terminate() == 0
        assert time.monotonic() - began < 5.0  # the grace, and what a busy machine adds
        for stream in (idle, half, unread):
            await stream.aclose()
    assert held.replies == [503] * (22 if checkpoint == "no checkpoint" else 24)


async def test_sigterm_ends_a_compare_and_a_table_at_once(tmp_path: Path) -> None:
    """Their clients have an answer instead of a closed connection, after which they would send again for ever."""
    never = trio.Event()
    judge = FakeJudge(lambda _call: Reply(text="late", hold=never))
    statuses: list[int] = []
    async with process(tmp_path, judge, shutdown_grace_s=60.0) as server, trio.open_nursery() as nursery:

        async def ask(path: str, body: bytes) -> None:
            statuses.append((await server.peer.ask("POST", path, body)).status)

        two = as_json({"conversation_history": [], "response_objs": [response(text="a"), response(text="b")]})
        rows = as_json({"verify_responses": [{f"c{n}": 1, "_ng_task_index": n} for n in range(200_000)]})
        nursery.start_soon(ask, "/compare", two)
        nursery.start_soon(ask, "/aggregate_metrics", rows)
        await server.until(lambda read: (read["judge_calls_in_flight"], read["running_requests"]) == (2, 2))
        assert await server.terminate() == 0
    assert statuses == [503, 503]
