"""One client's socket: how long it may take over its answer, on real sockets in virtual time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio
import trio.testing

from genrm_trio.web.serving import ServingLimits
from genrm_trio.web.serving.peer import Peer, PeerGone

STALL_S = 60.0
TAKEN_BYTES = 16 * 1024
"""What the slow client takes at a time: enough for its kernel to say so, and a small part of one write."""


@dataclass
class Writing:
    """An answer that is being written to a client with small buffers."""

    client: trio.SocketStream
    peer: Peer
    ended: str = ""

    async def write(self, data: bytes) -> None:
        try:
            await self.peer.write(data)
        except PeerGone:
            self.ended = "cut"
        else:
            self.ended = "written"

    async def take(self, count: int) -> None:
        """Have the client read so many bytes; the clock stands still."""
        while count > 0:
            count -= len(await self.client.receive_some(count))
        await trio.testing.wait_all_tasks_blocked(0)

    async def take_slowly(self, times: int, clock: trio.testing.MockClock) -> None:
        """Have it read a little as often, each time when the bound is nearly over; it must not be cut meanwhile."""
        for _ in range(times):
            await self.take(TAKEN_BYTES)
            clock.jump(STALL_S * 0.9)
            await trio.testing.wait_all_tasks_blocked()
            assert self.ended == ""


@asynccontextmanager
async def writing(size: int) -> AsyncIterator[Writing]:
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    socket = trio.socket.socket()
    socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 4096)
    await socket.connect(listener.socket.getsockname())
    client, ours = trio.SocketStream(socket), await listener.accept()
    ours.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_SNDBUF, 256 * 1024)
    writing = Writing(client, Peer(ours, ServingLimits(write_stall_s=STALL_S)))
    async with client, ours, listener, trio.open_nursery() as nursery:
        nursery.start_soon(writing.write, b"x" * size)
        await trio.testing.wait_all_tasks_blocked()
        yield writing
        nursery.cancel_scope.cancel()


async def test_a_client_that_takes_bytes_is_never_cut(mock_clock: trio.testing.MockClock) -> None:
    """It takes so little that the kernel does not let us send again for many times the bound."""
    async with writing(2_000_000) as w:
        await w.take_slowly(40, mock_clock)
        await w.take(2_000_000 - 40 * TAKEN_BYTES)
        assert w.ended == "written"


async def test_a_client_that_stops_taking_bytes_is_cut(mock_clock: trio.testing.MockClock) -> None:
    async with writing(2_000_000) as w:
        await w.take_slowly(2, mock_clock)
        for _ in range(2):  # the first may end a time in which it took some
            mock_clock.jump(STALL_S)
            await trio.testing.wait_all_tasks_blocked()
        assert w.ended == "cut"
