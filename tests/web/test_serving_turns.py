"""What costs much to parse is parsed a little at a time: counted is what the parser gets between turns of others."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import chain, repeat

import h11
import pytest
import trio
from tests.support.fed import Fed
from tests.web.serving_harness import HEALTH, HELD, PATIENCE_S, QUICK, Client, Running, running

from genrm_trio.web.serving.connection import CHUNKS_A_TURN, LONGEST_FRAME
from genrm_trio.web.serving.peer import FRAMED_BYTES

CHUNKED = b"POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
HEAD = b"GET /health HTTP/1.1\r\nHost: t\r\n"

COSTLY: dict[str, tuple[int, bytes, bytes]] = {
    "tiny chunks": (413, CHUNKED, b"1\r\n \r\n" * 1000),
    "long sizes of tiny chunks": (413, CHUNKED, b"00000000000000000001\r\n \r\n" * 200),
    "extensions of tiny chunks": (413, CHUNKED, (b"1;" + b"a" * 500 + b"\r\n \r\n") * 20),
    "one extension": (431, CHUNKED + b"1;", b" " * 10_000),
    "one size": (431, CHUNKED, b"0" * 10_000),
    "trailers": (431, CHUNKED + b"0\r\n", b"a:\r\n" * 1000),
    "header fields": (431, HEAD, b"a:\r\n" * 1000),
    "folded header fields": (431, HEAD + b"a: b\r\n", b" c\r\n" * 1000),
    "header fields behind a request": (431, HEALTH + HEAD, b"a:\r\n" * 1000),
    "header fields behind a body": (431, HELD.replace(b"/held", b"/echo") + HEAD, b"a:\r\n" * 1000),
}
"""By what it is: the status that ends it, how it begins, and what then is repeated for ever."""


@asynccontextmanager
async def watched(fed: Fed) -> AsyncIterator[Running]:
    limits = replace(QUICK, max_framing_bytes=50_000, header_timeout_s=PATIENCE_S)
    async with running(limits) as server, trio.open_nursery() as nursery:
        nursery.start_soon(fed.watch)
        yield server
        nursery.cancel_scope.cancel()


async def flood(client: Client, start: bytes, again: bytes) -> None:
    """Send without end, until the server closes."""
    try:
        for part in chain([start], repeat(again)):
            await client.send(part)
    except trio.BrokenResourceError:
        return


@pytest.mark.parametrize("name", COSTLY)
async def test_what_costs_much_is_refused_and_read_a_little_at_a_time(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = Fed(monkeypatch, h11.SERVER)
    status, start, again = COSTLY[name]
    async with watched(fed) as server, await server.connect() as client, trio.open_nursery() as nursery:
        nursery.start_soon(flood, client, start, again)
        received = await client.rest()
        told, _, body = received.rpartition(b"HTTP/1.1 ")[2].partition(b"\r\n\r\n")
        assert int(told[:3]) == status
        assert json.loads(body)["code"] == ("too_large" if status == 413 else "invalid_request")
        nursery.cancel_scope.cancel()
    # Twice: another task may have a turn at the end of one round of all tasks, and one at the start of the next.
    assert 0 < fed.worst <= FRAMED_BYTES * 2
    assert fed.most_events <= (CHUNKS_A_TURN + 2) * 2


async def test_a_long_line_that_is_bad_never_reaches_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser would try every split of the spaces: the time for them grows with the square of their number."""
    fed = Fed(monkeypatch, h11.SERVER)
    async with watched(fed) as server, await server.connect() as client:
        await client.send(CHUNKED + b"1;" + b" " * (LONGEST_FRAME + 20 * FRAMED_BYTES) + b"\nX\r\n")
        assert (await client.answer())[0] == 431
    assert fed.worst <= FRAMED_BYTES * 2


async def test_requests_in_a_row_are_read_a_little_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that came while the one before them was held."""
    fed = Fed(monkeypatch, h11.SERVER)
    async with watched(fed) as server, await server.connect() as client:
        await client.send(HELD + HEALTH * 1500)
        await server.held.until(waiting=1)
        server.held.release.set()
        received = b""
        with trio.fail_after(PATIENCE_S):
            while received.count(b"HTTP/1.1 200") < 1501:
                received += await client.stream.receive_some(65536)
    assert fed.worst <= FRAMED_BYTES * 2


async def test_an_honest_chunked_body_arrives_whole() -> None:
    data = bytes(range(256)) * 4000
    pieces = [data[at : at + 700] for at in range(0, len(data), 700)]
    body = b"".join(b"%x;name=value\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\nX-Sum: 1\r\n\r\n"
    async with running() as server, await server.connect() as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.send, CHUNKED + body + HEALTH)
        assert await client.answer() == (200, data)


async def test_as_many_header_fields_as_the_bound_allows() -> None:
    async with running(QUICK, max_header_fields=10) as server:
        for count, status in ((9, 200), (10, 431)):  # and the host
            async with await server.connect() as client:
                assert (await client.ask(HEAD + b"a: b\r\n" * count + b"\r\n", "GET"))[0] == status
