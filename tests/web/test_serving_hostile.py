"""No request ends the server or touches another: hostile inputs while requests are held that then complete."""

import json

import pytest
import trio
from tests.web.hostile import HOSTILE
from tests.web.serving_harness import HEALTH, QUICK, Running, eventually, running

from genrm_trio.web.serving import ServingLimits


async def still_fine(server: Running) -> None:
    async with await server.connect() as client:
        assert await client.ask(HEALTH, "GET") == (200, b'{"status":"ok"}')


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_request_ends_only_its_own_connection(name: str) -> None:
    async with running(QUICK) as server:
        held = await server.hold(3)
        await server.talk(HOSTILE[name])
        await still_fine(server)
        assert server.held.waiting == 3
        server.held.release.set()
        for client in held:
            assert await client.answer() == (200, b"released")
            await client.stream.aclose()
        assert server.server.counts.guarded == 0


async def test_each_hostile_request_is_cut_at_every_byte() -> None:
    """A client that leaves in the middle: also an end that resets instead of closing."""
    async with running(QUICK) as server:
        for data in HOSTILE.values():
            for at in range(0, min(len(data), 160), 7):
                client = await server.connect()
                await client.send(data[:at])
                await client.stream.aclose()
        await still_fine(server)
        assert server.server.counts.guarded == 0


CHUNKED = b"POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"


def encoded(value: bytes) -> bytes:
    """A request whose body says how it is encoded."""
    return b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\nContent-Encoding: " + value + b"\r\n\r\nhi"


EXPECTED = {
    "websocket upgrade with a byte behind it": b"HTTP/1.1 404",
    "websocket upgrade": b"HTTP/1.1 200",
    "CONNECT": b"HTTP/1.1 405",
    "length and encoding": b"HTTP/1.1 400",
    "two lengths": b"HTTP/1.1 400",
    "absurd length": b"HTTP/1.1 400",
    "long length": b"HTTP/1.1 413",
    "long header": b"HTTP/1.1 431",
    "unknown encoding": b"HTTP/1.1 501",
    "HTTP/2 preface": b"HTTP/1.1 505",
    "h2c upgrade": b"HTTP/1.1 200",
    "half a head": b"HTTP/1.1 408",
    "half a body": b"HTTP/1.1 408",
    "nothing": b"",
    "binary garbage": b"HTTP/1.1 400",
    "crash in a handler": b"HTTP/1.1 500",
}


@pytest.mark.parametrize("name", EXPECTED)
async def test_the_answer_to_a_hostile_request(name: str) -> None:
    async with running(QUICK) as server:
        answer = await server.talk(HOSTILE[name])
        assert answer[: len(EXPECTED[name]) or None] == EXPECTED[name]


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"GARBAGE\r\n\r\n", "not HTTP/1.1: illegal request line"),
        (b"GET / HTTP/1.1\r\nHost: t\r\nno colon\r\n\r\n", "not HTTP/1.1: illegal header line"),
        (CHUNKED + b"zz\r\n", "not HTTP/1.1: illegal chunk header"),
        (CHUNKED + b"1\r\na'\n", "not HTTP/1.1: malformed chunk footer"),
        (b"GET / HTTP/1.1\r\n\r\n", "not HTTP/1.1: Missing mandatory Host: header"),
        (HOSTILE["long header"], "the request's head is longer than limits.max_header_bytes, 65536"),
    ],
)
async def test_the_text_says_what_is_wrong_and_repeats_no_bytes(sent: bytes, text: str) -> None:
    async with running(QUICK) as server:
        answer = await server.talk(sent)
    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {"detail": text, "code": "invalid_request"}


@pytest.mark.parametrize("value", [b"gzip", b"Br", b"identity, gzip", b"identity\r\nContent-Encoding: zstd"])
async def test_a_compressed_body_is_refused_as_such(value: bytes) -> None:
    async with running(QUICK) as server:
        answer = await server.talk(encoded(value))
    assert answer.startswith(b"HTTP/1.1 415")
    assert b"accept-encoding: identity" in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "invalid_request"


async def test_a_body_that_says_that_it_is_plain_is_taken() -> None:
    async with running(QUICK) as server, await server.connect() as client:
        for value in (b"identity", b"", b"IDENTITY"):
            assert await client.ask(encoded(value)) == (200, b"hi")
        assert await client.ask(b"GET /health HTTP/1.1\r\nHost: t\r\nContent-Encoding: gzip\r\n\r\n", "GET") == (
            200,
            b'{"status":"ok"}',
        )


async def test_a_crash_in_a_handler_is_a_json_string() -> None:
    async with running() as server, await server.connect() as client:
        status, _ = await client.ask(b"POST /crash HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n")
        assert status == 500


async def test_a_slow_sender_is_cut_and_others_are_not() -> None:
    async with running(QUICK) as server, await server.connect() as slow:
        await slow.send(b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\n\r\na")
        await still_fine(server)
        assert (await slow.answer())[0] == 408
        assert await slow.rest() == b""


async def test_a_body_that_trickles_is_cut_by_its_total_time() -> None:
    async with running(QUICK, body_timeout_s=0.5) as server, await server.connect() as slow:
        await slow.send(b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 1000\r\n\r\n")
        async with trio.open_nursery() as nursery:

            async def trickle() -> None:
                while True:
                    await slow.send(b"a")
                    await trio.sleep(0.05)

            nursery.start_soon(trickle)
            assert (await slow.answer())[0] == 408
            nursery.cancel_scope.cancel()


async def test_a_client_that_never_reads_is_cut() -> None:
    async with running(QUICK) as server, await server.connect() as client:
        await client.send(b"POST /big HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n")
        await eventually(lambda: server.server.answering_count == 1)
        await eventually(lambda: not server.server.connections)
        await still_fine(server)


async def test_a_client_that_reads_slowly_gets_everything() -> None:
    async with running() as server, await server.connect() as client:
        await client.send(b"POST /big HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        status, body = await client.answer()
        assert (status, len(body)) == (200, 50_000_000)


async def test_the_default_bounds_suit_the_clients() -> None:
    limits = ServingLimits()
    assert limits.keep_alive_s > 15
    assert limits.max_request_bytes == 67108864
    assert limits.shutdown_grace_s == 5
