"""A thousand connections that should close do, on the real process, while cohorts are held that then complete."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio
from tests.web.serving_harness import HEALTH, Client
from tests.web.test_process import Held, descriptors, member, process, until_waiting

KEEP_ALIVE_S: Final = 15.01
"""The least that the settings allow: the clients of the field keep theirs for 15 s."""
LIMITS: Final = {"keep_alive_s": KEEP_ALIVE_S, "body_stall_s": 0.2, "header_timeout_s": 0.2, "linger_s": 0.1}
GROUPS: Final = 10
AT_ONCE: Final = 40
BEGUN: Final = b"HTTP/1.1 "
WITHIN_S: Final = 90.0

LARGE: Final = b"POST /verify HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999999\r\n\r\n"
CLOSING: Final[dict[str, tuple[bytes, bytes]]] = {
    "connection: close": (b"GET /health HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n", b"200"),
    "HTTP/1.0": (b"GET /health HTTP/1.0\r\n\r\n", b"200"),
    "HTTP/1.0 that asks for more": (b"GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", b"200"),
    "413": (LARGE, b"413"),
    "413 with a body that comes": (LARGE + b"x" * 10_000, b"413"),
    "408 in a body": (b"POST /verify HTTP/1.1\r\nHost: t\r\nContent-Length: 9\r\n\r\nhalf", b"408"),
    "408 in a head": (b"GET /health HTTP/1.1\r\nHo", b"408"),
    "400": (b"what\r\n\r\n", b"400"),
}
"""By what it is: what is sent, and the status of the answer. The server closes after each, and the client does not."""


async def test_a_thousand_closings_leave_no_descriptor_while_cohorts_are_held(tmp_path: Path) -> None:
    async with process(tmp_path, limits=LIMITS) as server, trio.open_nursery() as nursery:
        held = Held(server.peer)
        for group in range(GROUPS):
            nursery.start_soon(held.run, member(0, str(group)))
        await until_waiting(server, GROUPS)
        base = descriptors(server)
        limit = trio.CapacityLimiter(AT_ONCE)

        async def closed(name: str, data: bytes, fits: Callable[[bytes], bool]) -> None:
            """Have our end open until the server has closed its own."""
            async with Client(await trio.open_tcp_stream("127.0.0.1", server.port)) as client:
                await client.send(data)
                answer = await client.rest()
            assert fits(answer), (name, answer)

        async def closing(name: str) -> None:
            data, status = CLOSING[name]
            async with limit:
                await closed(name, data, lambda answer: answer.startswith(BEGUN + status))

        with trio.fail_after(WITHIN_S):
            async with trio.open_nursery() as clients:
                for _ in range(60):
                    clients.start_soon(closed, "idle", HEALTH, lambda answer: answer.startswith(BEGUN + b"200"))
                    clients.start_soon(closed, "never used", b"", lambda answer: answer == b"")
                for at in range(1000):
                    clients.start_soon(closing, list(CLOSING)[at % len(CLOSING)])
            server.peer.close()  # idle for so long that the server may be about to close it
            await server.until(lambda read: read["connections"] == GROUPS + 1)  # and of the one who asks
        assert descriptors(server) == base
        await until_waiting(server, GROUPS)
        for group in range(GROUPS):
            nursery.start_soon(held.run, member(1, str(group)))
    assert held.replies == [200] * 2 * GROUPS
