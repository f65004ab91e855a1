"""SIGTERM to a process that holds thousands of requests: each has its answer within the grace that is the default."""

import socket
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import trio
from tests.support.server_process import ServerProcess
from tests.web.bodies import as_json
from tests.web.serving_harness import Client
from tests.web.test_process import member, process, until_waiting

from genrm_trio.web.serving import raise_descriptor_limit

MOST: Final = 4000
SIZE: Final = 8
JUDGE_CALLS: Final = 8
GRACE_S: Final = 5.0
SLACK_S: Final = 2.0
"""What a busy machine may add."""
AT_A_TIME: Final = 100


def asked(number: int) -> bytes:
    """A member of a cohort that lacks one."""
    group, index = divmod(number, SIZE - 1)
    body = as_json(member(index, str(group)))
    return b"POST /verify HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def as_many_as_may_be() -> int:
    """How many connections the limit of open files leaves to us, and to a server that has the same."""
    left = raise_descriptor_limit(2 * MOST) - JUDGE_CALLS - 128
    return min(MOST, left * 7 // 8 - 300)


@asynccontextmanager
async def holding(server: ServerProcess, count: int) -> AsyncIterator[list[Client]]:
    """Clients that wait; some have closed their writing side."""
    clients: list[Client] = []
    try:
        for number in range(count):
            clients.append(Client(await trio.open_tcp_stream("127.0.0.1", server.port)))
            await clients[-1].send(asked(number))
            if number % 10 == 0:
                clients[-1].stream.socket.shutdown(socket.SHUT_WR)
            if number % AT_A_TIME == 0:
                await server.metrics()
        await until_waiting(server, count)
        yield clients
    finally:
        for client in clients:
            await trio.aclose_forcefully(client.stream)


async def test_thousands_of_held_requests_have_their_answer_within_the_grace(tmp_path: Path) -> None:
    held = as_many_as_may_be()
    statuses: Counter[int] = Counter()

    async def read(client: Client) -> None:
        status, body = await client.answer()
        assert b'"code":"shutting_down"' in body
        assert await client.rest() == b""
        statuses[status] += 1

    judge = {"max_concurrency": JUDGE_CALLS}
    settings = {"shutdown_grace_s": GRACE_S, "cohort_collection_timeout_s": 600.0, "judge": judge}
    async with process(tmp_path, size=SIZE, **settings) as server, holding(server, held) as clients:
        began = time.monotonic()
        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(read, client)
            assert await server.terminate() == 0
            took = time.monotonic() - began
        assert statuses == {503: held}
        assert took < GRACE_S + SLACK_S
        (line,) = await server.logged("shut_down")
        assert (line["waiters"], line["cohorts"]) == (held, -(-held // (SIZE - 1)))
