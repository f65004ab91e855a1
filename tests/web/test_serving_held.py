"""Held requests: no time limit touches them, a client that leaves ends them, one that only stopped writing does not."""

import socket
import struct

import pytest
import trio
from tests.web.serving_harness import HEALTH, HELD, QUICK, running


async def test_no_read_timeout_cuts_a_held_request() -> None:
    async with running(keep_alive_s=0.05, header_timeout_s=0.05, body_stall_s=0.05, body_timeout_s=0.05) as server:
        (client,) = await server.hold(1)
        await trio.sleep(0.4)
        assert server.held.waiting == 1
        server.held.release.set()
        assert await client.answer() == (200, b"released")
        await client.stream.aclose()


async def test_a_closed_connection_cancels_its_request_at_once() -> None:
    async with running() as server:
        kept, left = await server.hold(2)
        await left.stream.aclose()
        await server.held.until(left=1)
        server.held.release.set()
        assert await kept.answer() == (200, b"released")
        await kept.stream.aclose()


async def test_a_reset_connection_cancels_its_request() -> None:
    async with running() as server:
        (client,) = await server.hold(1)
        client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await client.stream.aclose()
        await server.held.until(left=1)


async def test_a_half_closed_client_still_gets_its_answer() -> None:
    async with running() as server:
        (client,) = await server.hold(1)
        await client.stream.send_eof()
        await trio.sleep(0.4)
        assert server.held.waiting == 1
        server.held.release.set()
        assert await client.answer() == (200, b"released")
        assert await client.rest() == b""
        await client.stream.aclose()


async def test_a_half_closed_client_that_closes_later_cancels_its_request() -> None:
    async with running() as server:
        (client,) = await server.hold(1)
        await client.stream.send_eof()
        await trio.sleep(0.2)
        assert server.held.left == 0
        await client.stream.aclose()
        await server.held.until(left=1)


async def test_the_end_of_an_http_1_0_client_is_its_end() -> None:
    async with running() as server, await server.connect() as client:
        await client.send(b"POST /held HTTP/1.0\r\nContent-Length: 2\r\n\r\nhi")
        await server.held.until(waiting=1)
        await client.stream.send_eof()
        await server.held.until(left=1)


@pytest.mark.parametrize("behind", [HEALTH, HELD * 10, b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 9\r\n\r\n"])
async def test_a_pipelined_request_does_not_hide_the_first_ones_disconnect(behind: bytes) -> None:
    async with running() as server, await server.connect() as client:
        await client.send(HELD + behind)
        await server.held.until(waiting=1)
        await client.stream.aclose()
        await server.held.until(left=1)


async def test_more_pipelined_bytes_than_are_read_ahead_do_not_hide_it_either() -> None:
    async with running(QUICK, max_pipelined_bytes=1000) as server, await server.connect() as client:
        await client.send(HELD)
        await server.held.until(waiting=1)
        async with trio.open_nursery() as nursery:

            async def flood() -> None:
                with trio.move_on_after(0.3):
                    while True:
                        await client.send(HEALTH * 1000)

            nursery.start_soon(flood)
        assert server.held.left == 0
        await client.stream.aclose()
        await server.held.until(left=1)


async def test_more_pipelined_bytes_than_are_read_ahead_end_the_connection_after_the_answer() -> None:
    async with running(QUICK, max_pipelined_bytes=1000) as server, await server.connect() as client:
        await client.send(HELD)
        await server.held.until(waiting=1)
        await client.send(HEALTH * 10_000)
        server.held.release.set()
        answer = await client.rest()
        assert answer.count(b"HTTP/1.1 200") == 1
        assert b"connection: close" in answer.lower()
        assert answer.endswith(b"released")


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with running() as server, await server.connect() as client:
        echo = b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nfirst"
        last = b"GET /health HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"
        await client.send(HELD + echo + last)
        await server.held.until(waiting=1)
        server.held.release.set()
        answer = await client.rest()
        assert answer.count(b"HTTP/1.1 200") == 3
        assert answer.index(b"released") < answer.index(b"first") < answer.index(b'{"status":"ok"}')


async def test_two_hundred_held_requests_complete_while_others_leave() -> None:
    async with running() as server:
        clients = await server.hold(200)
        for client in clients[::2]:
            await client.stream.aclose()
        await server.held.until(left=100)
        server.held.release.set()
        for client in clients[1::2]:
            assert await client.answer() == (200, b"released")
            await client.stream.aclose()
