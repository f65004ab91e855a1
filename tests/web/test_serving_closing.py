"""Connections close when they should, refusals can be read, and no descriptor stays behind."""

import json

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from tests.web.serving_harness import (
    HEALTH,
    HELD,
    PATIENCE_S,
    QUICK,
    Running,
    eventually,
    lower_descriptor_limit,
    open_descriptors,
    running,
)

from genrm_trio.web.serving import Sockets, raise_descriptor_limit
from genrm_trio.web.serving.descriptors import LEAST_SPARE_DESCRIPTORS, REFUSALS_SHARE


async def ended(server: Running) -> None:
    with trio.fail_after(PATIENCE_S):
        await server.server.connections_ended()


CLOSING = {
    "connection: close": b"GET /health HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n",
    "HTTP/1.0": b"GET /health HTTP/1.0\r\n\r\n",
    "HTTP/1.0 that asks for more": b"GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    "413": b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999999\r\n\r\n",
    "408": b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 9\r\n\r\nhalf",
    "400": b"what\r\n\r\n",
    "idle": HEALTH,
    "never used": b"",
}


@pytest.mark.parametrize("name", CLOSING)
async def test_the_server_closes(name: str) -> None:
    async with running(QUICK) as server, await server.connect() as client:
        await client.send(CLOSING[name])
        await client.rest()
        await client.stream.aclose()
        await ended(server)


async def test_a_thousand_closing_requests_leave_no_descriptor() -> None:
    async with running(QUICK, body_stall_s=0.05, keep_alive_s=0.05, linger_s=0.05) as server:
        await server.talk(CLOSING["400"])
        await ended(server)
        base = open_descriptors()
        limit = trio.CapacityLimiter(50)

        async def one(data: bytes) -> None:
            async with limit:
                await server.talk(data)

        async with trio.open_nursery() as nursery:
            for at in range(1000):
                nursery.start_soon(one, list(CLOSING.values())[at % len(CLOSING)])
        await ended(server)
        assert open_descriptors() == base


async def test_a_connection_carries_many_requests() -> None:
    async with running() as server, await server.connect() as client:
        for _ in range(1200):
            assert (await client.ask(HEALTH, "GET"))[0] == 200
        assert server.server.counts.accepted == 1


async def test_a_body_beyond_the_bound_is_a_413_that_can_be_read() -> None:
    async with running(QUICK, max_request_bytes=1_000_000) as server, await server.connect() as client:
        await client.send(b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 1900000\r\n\r\n")
        await client.send(b"x" * 1_900_000)
        status, body = await client.answer()
        assert status == 413
        assert json.loads(body)["code"] == "too_large"
        assert await client.rest() == b""


async def test_a_chunked_body_beyond_the_bound_is_a_413_that_can_be_read() -> None:
    async with running(QUICK, max_request_bytes=1_000_000) as server, await server.connect() as client:
        await client.send(b"POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(18):
            await client.send(b"186a0\r\n" + b"x" * 100_000 + b"\r\n")
        await client.send(b"0\r\n\r\n")
        assert (await client.answer())[0] == 413
        assert await client.rest() == b""


async def test_a_body_at_the_bound_is_served() -> None:
    async with running(QUICK, max_request_bytes=1_000_000) as server, await server.connect() as client:
        head = b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 1000000\r\n\r\n"
        status, body = await client.ask(head + b"x" * 1_000_000)
        assert (status, len(body)) == (200, 1_000_000)


async def test_a_client_that_goes_on_for_ever_after_its_413_is_cut() -> None:
    async with running(QUICK, max_request_bytes=100_000) as server, await server.connect() as client:
        await client.send(b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999999\r\n\r\n")
        assert (await client.answer())[0] == 413
        with trio.fail_after(PATIENCE_S), pytest.raises(trio.BrokenResourceError):
            await client.send(b"x" * 50_000_000)


async def test_a_refused_body_that_never_comes_is_waited_for_only_so_long() -> None:
    async with running(QUICK, refused_body_drain_s=0.2) as server, await server.connect() as client:
        await client.send(b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999999\r\n\r\n")
        await ended(server)


async def test_expect_100_continue() -> None:
    async with running(QUICK, max_request_bytes=100) as server:
        head = b"POST /echo HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: "
        async with await server.connect() as client:
            await client.send(head + b"5\r\n\r\n")
            assert (await client.stream.receive_some(1000)).startswith(b"HTTP/1.1 100")
            assert await client.ask(b"hello") == (200, b"hello")
        async with await server.connect() as client:
            await client.send(head + b"101\r\n\r\n")
            assert (await client.stream.receive_some(1000)).startswith(b"HTTP/1.1 413")


async def test_beyond_the_connection_bound_the_answer_is_503_with_retry_after() -> None:
    async with running(QUICK, max_connections=3, refusal_connections=2, retry_after_s=7) as server:
        held = await server.hold(3)
        answer = await server.talk(HELD)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 7\r\n" in answer.lower()
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "too_busy"
        assert (await server.talk(HEALTH)).startswith(b"HTTP/1.1 200")
        idle = [await server.connect(), await server.connect()]
        await eventually(lambda: len(server.server.connections) == 5)
        turned_away = await server.connect()
        assert (await turned_away.rest()).startswith(b"HTTP/1.1 503")
        server.held.release.set()
        for client in held:
            assert await client.answer() == (200, b"released")
        for client in [*held, *idle, turned_away]:
            await client.stream.aclose()
        await ended(server)


@pytest.fixture
def soon_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a connection that waits for a request make room as soon as it does."""
    monkeypatch.setattr("genrm_trio.web.serving.server.LEAST_IDLE_S", 0.0)


@pytest.mark.usefixtures("soon_idle")
async def test_at_the_connection_bound_the_longest_idle_one_makes_room() -> None:
    """Idle clients keep nobody out; who has a request under way stays."""
    async with running(max_connections=4, refusal_connections=2) as server:
        (held,) = await server.hold(1)
        asked, never, last = await server.connect(), await server.connect(), await server.connect()
        await eventually(lambda: len(server.server.connections) == 4)
        assert (await asked.ask(HEALTH, "GET"))[0] == 200
        newcomer = await server.connect()
        assert await never.rest() == b"", "it waited longest: the first one asked for something since"
        assert (await newcomer.ask(HEALTH, "GET"))[0] == 200
        await newcomer.send(HELD)
        await server.held.until(waiting=2)
        next_one = await server.connect()
        assert await last.rest() == b""
        for client in (next_one, asked):
            assert (await client.ask(HEALTH, "GET"))[0] == 200
        assert server.server.counts.made_room == 2
        server.held.release.set()
        for client in (held, newcomer):
            assert await client.answer() == (200, b"released")


async def test_at_the_connection_bound_a_new_connection_need_not_make_room() -> None:
    async with running(max_connections=1, refusal_connections=2) as server, await server.connect() as client:
        await eventually(lambda: len(server.server.connections) == 1)
        assert (await (await server.connect()).ask(HELD))[0] == 503
        assert (await client.ask(HEALTH, "GET"))[0] == 200


@pytest.mark.usefixtures("soon_idle")
async def test_at_the_connection_bound_a_request_that_has_come_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes are there and its task has not run yet."""
    async with running(max_connections=1, refusal_connections=2) as server, await server.connect() as client:
        await eventually(lambda: len(server.server.connections) == 1)
        monkeypatch.setattr("genrm_trio.web.serving.peer.Peer.has_bytes", property(lambda _peer: True))
        assert (await (await server.connect()).ask(HELD))[0] == 503
        assert (await client.ask(HEALTH, "GET"))[0] == 200


@pytest.mark.usefixtures("soon_idle")
async def test_who_was_to_make_room_and_has_a_request_counts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes were taken in the very step before, so that nothing can be cut any more."""
    async with running(max_connections=1, refusal_connections=2) as server, await server.connect() as client:
        await eventually(lambda: len(server.server.connections) == 1)
        monkeypatch.setattr("genrm_trio.web.serving.connection.Connection.interrupt", lambda _connection: None)
        newcomer = await server.connect()
        await newcomer.send(HELD)
        await server.held.until(waiting=1)
        await client.send(HELD)
        await server.held.until(waiting=2)
        assert len(server.server.connections) == 2
        assert (await (await server.connect()).ask(HELD))[0] == 503


async def test_a_head_request_gets_no_body() -> None:
    async with running() as server:
        head = b"HEAD /health HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"
        assert (await server.talk(head)).endswith(b"\r\n\r\n")
        refused = b"HEAD /health HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999999\r\n\r\n"
        answer = await server.talk(refused)
        assert answer.startswith(b"HTTP/1.1 413")
        assert answer.endswith(b"\r\n\r\n")


def test_the_descriptor_limit_is_raised_as_far_as_it_goes() -> None:
    soft, _ = lower_descriptor_limit(256)
    try:
        assert raise_descriptor_limit(1324) >= 1324
        assert 1324 <= raise_descriptor_limit(1 << 40) < 1 << 40
    finally:
        lower_descriptor_limit(soft)


def test_all_that_is_needed_leaves_every_bound_as_it_is() -> None:
    wanted = Sockets(connections=33024, refusals=512, calls=256)
    assert wanted.needed == 33024 + 512 + 256 + 512
    assert wanted.within(wanted.needed) == wanted


@given(st.integers(1, 40_000), st.integers(0, 600), st.integers(0, 300), st.integers(0, 41_000))
def test_what_a_low_limit_leaves_fits_into_it(connections: int, refusals: int, calls: int, limit: int) -> None:
    wanted = Sockets(connections, refusals, calls)
    left = wanted.within(limit)
    assert (left.calls, left.refusals <= refusals, left.connections <= connections) == (calls, True, True)
    assert left.connections + left.refusals <= max(0, limit - calls - LEAST_SPARE_DESCRIPTORS)
    if refusals and left.connections >= REFUSALS_SHARE:
        assert left.refusals > 0, "nobody could read that there are too many"
    for count in (1, connections):
        least = wanted.least(count)
        assert wanted.within(least).connections >= count
        assert wanted.within(least - 2).connections < count
