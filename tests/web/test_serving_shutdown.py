"""The end: held requests get their answer, everything else is closed, and it takes no longer than the grace."""

import json
import time

import trio
from tests.web.serving_harness import HEALTH, PATIENCE_S, QUICK, Running, eventually, running

SLACK_S = 2.0
"""What a busy machine may add."""


async def ends_in_time(server: Running) -> None:
    began = time.monotonic()
    server.shutdown.set()
    with trio.fail_after(PATIENCE_S):
        await server.ended.wait()
    assert time.monotonic() - began <= server.server.limits.shutdown_grace_s + SLACK_S


async def test_five_hundred_held_requests_all_get_their_answer() -> None:
    async with running(QUICK, shutdown_grace_s=PATIENCE_S) as server:
        clients = await server.hold(500)
        await ends_in_time(server)
        for client in clients:
            assert await client.answer() == (200, b"released")
            assert await client.rest() == b""
            await client.stream.aclose()


async def test_idle_and_half_sent_and_unread_connections_do_not_hold_it() -> None:
    async with running(QUICK, keep_alive_s=60, header_timeout_s=60, body_stall_s=60, write_stall_s=60) as server:
        idle = await server.connect()
        assert (await idle.ask(HEALTH, "GET"))[0] == 200
        half = await server.connect()
        await half.send(b"POST /echo HTT")
        body = await server.connect()
        await body.send(b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\nabc")
        (held,) = await server.hold(1)
        await ends_in_time(server)
        assert await idle.rest() == b""
        status, text = await body.answer()
        assert status == 503
        assert json.loads(text)["code"] == "shutting_down"
        assert await held.answer() == (200, b"released")
        for client in (idle, half, body, held):
            await client.stream.aclose()


async def test_a_client_that_never_reads_does_not_hold_it() -> None:
    async with running(QUICK, write_stall_s=60, shutdown_grace_s=1.0) as server:
        client = await server.connect()
        await client.send(b"POST /big HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n")
        await eventually(lambda: server.server.answering_count == 1)
        await ends_in_time(server)
        await client.stream.aclose()


async def test_while_draining_new_requests_are_refused_and_essential_ones_served() -> None:
    async with running(QUICK, keep_alive_s=60) as server:
        (held,) = await server.hold(1)
        server.server.start_draining()
        answer = await server.talk(b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 1\r\n\r\nx")
        assert answer.startswith(b"HTTP/1.1 503")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "shutting_down"
        assert (await server.talk(HEALTH)).startswith(b"HTTP/1.1 200")
        server.held.release.set()
        assert await held.answer() == (200, b"released")
        assert await held.rest() == b""
        await held.stream.aclose()
