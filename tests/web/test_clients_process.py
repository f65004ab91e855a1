"""Slow, half-closing, pipelining and leaving clients of the real process: each member has its outcome all the same.

All of them are clients of one server, and a cohort that was held before the first completes after the last.
"""

import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trio
from tests.support.server_process import ServerProcess
from tests.web.bodies import as_json
from tests.web.serving_harness import HEALTH, Client
from tests.web.test_process import Held, descriptors, member, process, until_waiting

WITHIN_S: Final = 60.0
STALL_S: Final = 2.0
"""Longer than a busy machine keeps an honest client of this test waiting between two parts of a body."""
READ_AHEAD: Final = 1000
LIMITS: Final = {
    "body_stall_s": STALL_S,
    "header_timeout_s": STALL_S,
    "half_close_probe_s": 0.2,
    "max_pipelined_bytes": READ_AHEAD,
}
PROBES: Final = 2
PARTS: Final = 12
LAST: Final = b"GET /health HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"


@asynccontextmanager
async def client_of(server: ServerProcess) -> AsyncIterator[Client]:
    """A connection of its own."""
    async with Client(await trio.open_tcp_stream("127.0.0.1", server.port)) as client:
        yield client


def verify(index: int, group: str, version: bytes = b"1.1") -> bytes:
    """A whole request of one member of a cohort of two."""
    body = as_json(member(index, group))
    return b"POST /verify HTTP/%s\r\nHost: t\r\nContent-Length: %d\r\n\r\n" % (version, len(body)) + body


@asynccontextmanager
async def waiting(server: ServerProcess, group: str, version: bytes = b"1.1") -> AsyncIterator[Client]:
    """A client whose member waits for its sibling."""
    async with client_of(server) as client:
        await client.send(verify(0, group, version))
        await until_waiting(server, 2)  # with the one that is held all the while
        yield client


async def rewarded(client: Client) -> None:
    """The client's next answer is an outcome with a reward."""
    status, body = await client.answer()
    told: dict[str, Any] = json.loads(body)
    assert (status, told["mask_sample"]) == (200, False), body


async def with_sibling(server: ServerProcess, group: str) -> None:
    """The other member comes, and is told its outcome."""
    async with client_of(server) as other:
        await other.send(verify(1, group))
        await rewarded(other)


# -- how clients behave --------------------------------------------------------------------------------


async def slow_senders(server: ServerProcess, group: str) -> None:
    """Who sends a little at a time is waited for, head and body; who stops in the middle is told so."""

    async def slowly(client: Client, data: bytes) -> None:
        size = len(data) // PARTS + 1
        for at in range(0, len(data), size):
            await client.send(data[at : at + size])
            await trio.sleep(0.02)

    async with client_of(server) as first, client_of(server) as second, client_of(server) as stops:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(slowly, first, verify(0, group))
            nursery.start_soon(slowly, second, verify(1, group))
            nursery.start_soon(stops.send, verify(0, f"{group}, stopped")[:-1])
        await rewarded(first)
        await rewarded(second)
        assert (await stops.answer())[0] == 408
        assert await stops.rest() == b""


async def half_closing(server: ServerProcess, group: str) -> None:
    """A client that only stopped writing has its answer, and no other after it."""
    async with waiting(server, group) as half:
        await half.stream.send_eof()
        for _ in range(PROBES):
            assert (await half.stream.receive_some()).startswith(b"HTTP/1.1 100"), "it is asked whether it is there"
        await until_waiting(server, 2)
        await with_sibling(server, group)
        await rewarded(half)
        assert await half.rest() == b""


async def half_closing_then_leaving(server: ServerProcess, group: str) -> None:
    """Its request ends, and the same member may come again."""
    async with waiting(server, group) as half:
        await half.stream.send_eof()
    await until_waiting(server, 1)
    await again(server, group)


async def ending_an_http_1_0_request(server: ServerProcess, group: str) -> None:
    """Its end is the client's end."""
    async with waiting(server, group, b"1.0") as old:
        await old.stream.send_eof()
        await until_waiting(server, 1)
    await again(server, group)


async def again(server: ServerProcess, group: str) -> None:
    """The member whose client left comes back over a new connection; then both are told."""
    async with waiting(server, group) as back:
        await with_sibling(server, group)
        await rewarded(back)


async def resetting(server: ServerProcess, group: str) -> None:
    async with waiting(server, group) as client:
        client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await until_waiting(server, 1)
    await again(server, group)


async def pipelining_behind_a_held_request(server: ServerProcess, group: str) -> None:
    """What comes behind it is answered after it, in order, the other member of its cohort on its own connection."""
    async with client_of(server) as client:
        await client.send(verify(0, group) + HEALTH + LAST)
        await until_waiting(server, 2)
        await with_sibling(server, group)
        first, *behind = (await client.rest()).split(b"HTTP/1.1 200")[1:]
        assert b'"mask_sample":false' in first.replace(b" ", b""), first
        assert [answer.endswith(b'{"status":"ok"}') for answer in behind] == [True, True], behind


async def pipelining_more_than_is_read_ahead(server: ServerProcess, group: str) -> None:
    """The held request is answered; what was not read is never answered."""
    async with waiting(server, group) as client:
        await client.send(HEALTH * (100 * READ_AHEAD // len(HEALTH)))
        await with_sibling(server, group)
        answer = await client.rest()
        assert answer.count(b"HTTP/1.1 200") == 1, answer
        assert b"connection: close" in answer.lower()


async def pipelining_then_leaving(server: ServerProcess, group: str) -> None:
    """Bytes behind a held request do not hide that its client left, be they more than is read ahead or not."""
    for behind in (HEALTH, verify(1, group)[:-1], HEALTH * (10 * READ_AHEAD // len(HEALTH))):
        async with waiting(server, group) as client:
            await client.send(behind)
        await until_waiting(server, 1)
    await again(server, group)


BEHAVIOURS: Final[tuple[Callable[[ServerProcess, str], Awaitable[None]], ...]] = (
    slow_senders,
    half_closing,
    half_closing_then_leaving,
    ending_an_http_1_0_request,
    resetting,
    pipelining_behind_a_held_request,
    pipelining_more_than_is_read_ahead,
    pipelining_then_leaving,
)


async def test_each_member_has_its_outcome_whatever_its_client_and_others_do(tmp_path: Path) -> None:
    async with process(tmp_path, limits=LIMITS) as server, trio.open_nursery() as nursery:
        held = Held(server.peer)
        nursery.start_soon(held.run, member(0, "held"))
        await until_waiting(server, 1)
        base = descriptors(server)
        for behave in BEHAVIOURS:
            try:
                with trio.fail_after(WITHIN_S):
                    await behave(server, behave.__name__)
                    await until_waiting(server, 1)
            except BaseException as error:
                error.add_note(f"clients that are {behave.__name__}")
                raise
        await server.until(lambda read: read["connections"] == 2)  # of the held member, and of this question
        assert descriptors(server) <= base + 2  # connections to the judge, kept for the next call
        nursery.start_soon(held.run, member(1, "held"))
    assert held.replies == [200] * 2
