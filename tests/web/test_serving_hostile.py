"""No request ends the server or touches another: hostile inputs while requests are held that then complete."""

import pytest
import trio
from tests.web.serving_harness import HEALTH, QUICK, Running, eventually, running

from genrm_trio.web.serving import ServingLimits

BIG = 10**30

HOSTILE: dict[str, bytes] = {
    "websocket upgrade with a byte behind it": (
        b"GET / HTTP/1.1\r\nHost: t\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\nX"
    ),
    "websocket upgrade": (
        b"GET /health HTTP/1.1\r\nHost: t\r\nUpgrade: websocket\r\nConnection: Upgrade, close\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ),
    "CONNECT": b"CONNECT host:443 HTTP/1.1\r\nHost: host:443\r\n\r\n\x16\x03\x01",
    "length and encoding": (
        b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
    "two lengths": b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nhello",
    "absurd length": b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\nx" % BIG,
    "long length": b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999999999999999\r\n\r\nx",
    "negative length": b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: -1\r\n\r\n",
    "length with a plus": b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: +1\r\n\r\nx",
    "chunk size of a planet": (
        b"POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFFFFFFF\r\n"
    ),
    "bad chunk": b"POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "endless chunk extension": (
        b"POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"a" * 200_000
    ),
    "unknown encoding": b"POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "long header": b"GET /health HTTP/1.1\r\nHost: t\r\nX: " + b"a" * 400_000 + b"\r\n\r\n",
    "many headers": b"GET /health HTTP/1.1\r\nHost: t\r\n" + b"X: a\r\n" * 60_000 + b"\r\n",
    "long target": b"GET /" + b"a" * 400_000 + b" HTTP/1.1\r\nHost: t\r\n\r\n",
    "binary garbage": bytes(range(256)) * 40,
    "TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64,
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    "h2c upgrade": (
        b"GET /health HTTP/1.1\r\nHost: t\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        b"HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    ),
    "HTTP/0.9": b"GET /health\r\n",
    "HTTP/3.7": b"GET /health HTTP/3.7\r\nHost: t\r\n\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "NUL in a header": b"GET /health HTTP/1.1\r\nHost: t\r\nX: a\x00b\r\n\r\n",
    "bytes above ASCII in the target": b"GET /\xff\xfe HTTP/1.1\r\nHost: t\r\n\r\n",
    "escaped garbage in the target": b"GET /%ff%00%zz HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n",
    "no path": b"GET ?x HTTP/1.1\r\nHost: t\r\n\r\n",
    "star": b"OPTIONS * HTTP/1.1\r\nHost: t\r\n\r\n",
    "absolute target": b"GET http://[::bad/health HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n",
    "header folding": b"GET /health HTTP/1.1\r\nHost: t\r\nX: a\r\n  b\r\nConnection: close\r\n\r\n",
    "space before colon": b"GET /health HTTP/1.1\r\nHost : t\r\n\r\n",
    "half a head": b"GET /health HTT",
    "half a body": b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 100\r\n\r\nhalf",
    "nothing": b"",
    "empty lines": b"\r\n\r\n\r\n",
    "form": (
        b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Type: multipart/form-data; boundary=\r\nConnection: close\r\n"
        b"Content-Length: 6\r\n\r\n--\r\n--"
    ),
    "method of the moon": b"M\xc3\x96\xc3\x96N /health HTTP/1.1\r\nHost: t\r\n\r\n",
    "crash in a handler": b"POST /crash HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
    "pipelined garbage": HEALTH + b"\x00\x01\x02\r\n\r\n",
}


async def still_fine(server: Running) -> None:
    async with await server.connect() as client:
        assert await client.ask(HEALTH, "GET") == (200, b'{"status":"ok"}')


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_request_ends_only_its_own_connection(name: str) -> None:
    async with running() as server:
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
    async with running() as server:
        for data in HOSTILE.values():
            for at in range(0, min(len(data), 160), 7):
                client = await server.connect()
                await client.send(data[:at])
                await client.stream.aclose()
        await still_fine(server)
        assert server.server.counts.guarded == 0


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
    async with running() as server:
        answer = await server.talk(HOSTILE[name])
        assert answer[: len(EXPECTED[name]) or None] == EXPECTED[name]


async def test_a_crash_in_a_handler_is_a_json_string() -> None:
    async with running() as server, await server.connect() as client:
        status, _ = await client.ask(b"POST /crash HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n")
        assert status == 500


async def test_a_slow_sender_is_cut_and_others_are_not() -> None:
    async with running() as server, await server.connect() as slow:
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
    async with running() as server, await server.connect() as client:
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
