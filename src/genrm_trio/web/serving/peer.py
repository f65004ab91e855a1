"""The other end of one connection: bytes in and out through h11, whether it is still there, and how it ends.

Only the socket and HTTP framing live here; requests, answers and bounds on them are the connection's.
"""

import fcntl
import os
import select
import socket
import sys
import termios
from typing import TypeAlias

import h11
import trio

from genrm_trio.web.serving.limits import ServingLimits

RECEIVE_BYTES = 128 * 1024
FRAMED_BYTES = 2 * 1024
"""What the parser gets at a time of heads and of chunked bodies, each of whose bytes may cost as much as a kilobyte of
plain data: hundreds of chunks, header fields or trailers are read between two turns of the event loop, never thousands.
"""
WRITE_BYTES = 128 * 1024

HANGUP_CHECKS_S = (0.0, 0.01, 0.05, 0.2, 1.0)
"""Pauses after a probe: a reset takes one round trip to come back."""

Outgoing: TypeAlias = "h11.Response | h11.InformationalResponse | h11.Data | h11.EndOfMessage"


class PeerGone(Exception):
    """Nothing can reach the client any more: it left, was reset, or takes no bytes."""


class Peer:
    """One client's socket with the state of its HTTP/1.1 conversation.

    Reads happen in one task at a time; writes take turns.
    """

    def __init__(self, stream: trio.abc.HalfCloseableStream, limits: ServingLimits) -> None:
        self.stream = stream
        self.limits = limits
        self.http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.max_header_bytes)
        self.closed_writing = False
        self.overrun = False
        self._ahead = bytearray()
        self._turn = trio.Lock()

    # -- reading ---------------------------------------------------------------------------------------

    async def receive(self, most: int = FRAMED_BYTES) -> bytes:
        """Let the parser have up to so many bytes, those read ahead first; returns them, none at the end."""
        if self._ahead or self.closed_writing:
            await trio.lowlevel.checkpoint()
            data = bytes(self._ahead[:most])
            del self._ahead[:most]
        else:
            data = await self._receive(most)
        self.http.receive_data(data)
        return data

    async def read_on(self) -> None:
        """Read once while a request is being answered, only to notice the end of the client's bytes.

        What comes is kept for the next request up to `max_pipelined_bytes`. Beyond that it is dropped, and then
        the connection is `overrun`: it cannot carry another request. Not reading it would hide the end.
        """
        data = await self._receive(RECEIVE_BYTES)
        self.overrun = self.overrun or self.read_ahead + len(data) > self.limits.max_pipelined_bytes
        if not self.overrun:
            self._ahead += data

    async def _receive(self, most: int) -> bytes:
        try:
            data = await self.stream.receive_some(most)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise PeerGone from error
        self.closed_writing = not data
        return bytes(data)

    @property
    def unparsed(self) -> bytes:
        """What the parser got and cannot make an event of yet, or belongs to the next request."""
        return self.http.trailing_data[0]

    @property
    def read_ahead(self) -> int:
        """Bytes that were received and belong to nothing read yet."""
        return len(self._ahead) + len(self.unparsed)

    # -- writing ---------------------------------------------------------------------------------------

    async def write(self, data: bytes) -> None:
        """Send bytes; raises PeerGone when the client left or takes none for `write_stall_s`."""
        async with self._turn:
            view = memoryview(data)
            try:
                while view:
                    view = view[await self._write_some(view[:WRITE_BYTES]) :]
            except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError) as error:
                raise PeerGone from error

    def write_now(self, data: bytes) -> int:
        """Hand the kernel what it takes in this step; returns how many bytes that were.

        None of them when the client left, which the next write tells, when another write is under way, or where only
        waiting can send.
        """
        if self._turn.locked() or not isinstance(self.stream, trio.SocketStream):
            return 0
        try:
            return os.write(self.stream.socket.fileno(), data)
        except OSError:  # no room, or nobody there
            return 0

    async def _write_some(self, data: memoryview) -> int:
        """Send a part of some bytes; returns how many. Raises TooSlowError when the client takes none for too long.

        The kernel lets us send again only when much of its buffer is free, which a slow client may take long for. So
        when the time is over, what counts is whether any of the bytes in that buffer has arrived meanwhile.
        """
        if not isinstance(self.stream, trio.SocketStream):
            with trio.fail_after(self.limits.write_stall_s):
                await self.stream.send_all(data)
            return len(data)
        while True:
            unsent = self._unsent()
            with trio.move_on_after(self.limits.write_stall_s):
                return await self.stream.socket.send(data)
            if not self._unsent() < unsent:
                raise trio.TooSlowError

    def _unsent(self) -> int:
        """Bytes that the kernel holds for the client, sent or not, and that it did not acknowledge."""
        assert isinstance(self.stream, trio.SocketStream), "only the kernel counts them"
        return _count(self.stream, termios.TIOCOUTQ)

    async def send(self, event: Outgoing) -> None:
        """Send one HTTP event at once."""
        await self.write(self.http.send(event))

    @property
    def has_bytes(self) -> bool:
        """Whether bytes have come that were not read yet; false where no socket can tell."""
        return isinstance(self.stream, trio.SocketStream) and _count(self.stream, termios.FIONREAD) > 0

    # -- still there? ----------------------------------------------------------------------------------

    def broken(self) -> bool:
        """Whether the connection was reset or closed in both directions; false where no socket can tell."""
        if not isinstance(self.stream, trio.SocketStream):
            return False
        poll = select.poll()
        poll.register(self.stream.socket.fileno(), 0)  # POLLERR and POLLHUP are always reported
        return bool(poll.poll(0))

    async def probe(self) -> bool:
        """Whether a client that closed its writing side still listens.

        A closed socket answers any byte with a reset, a half-closed one takes it. The byte sequence that may be
        sent before an answer is an interim response, so that is what is sent.
        """
        await trio.lowlevel.checkpoint()  # an answer that started meanwhile cancels the watch, and nothing is sent
        try:
            await self.send(h11.InformationalResponse(status_code=100, headers=[]))
            for pause in HANGUP_CHECKS_S:
                await trio.sleep(pause)
                if self.broken():
                    return False
        except PeerGone:
            return False
        return True

    # -- the end ---------------------------------------------------------------------------------------

    async def linger(self, most_bytes: int, seconds: float) -> None:
        """Say that no more will come, then read and drop what the client still sends, within the given bounds.

        Closing with unread bytes would reset the connection, and the client might never read its answer.
        """
        try:
            await self.stream.send_eof()
            with trio.move_on_after(seconds):
                while most_bytes > 0:
                    data = await self.stream.receive_some(RECEIVE_BYTES)
                    if not data:
                        return
                    most_bytes -= len(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError):
            return

    def addresses(self) -> tuple[tuple[str, int] | None, tuple[str, int] | None]:
        """The client's address and ours, as far as they are known."""
        if not isinstance(self.stream, trio.SocketStream):
            return None, None
        try:
            theirs, ours = self.stream.socket.getpeername(), self.stream.socket.getsockname()
        except OSError:
            return None, None
        return (theirs[0], theirs[1]), (ours[0], ours[1])

    def watch_host(self) -> None:
        """Let the kernel find out when the client's host vanished without a word."""
        if not isinstance(self.stream, trio.SocketStream):
            return
        options = {
            "TCP_KEEPIDLE": self.limits.keep_alive_idle_s,
            "TCP_KEEPINTVL": 15,
            "TCP_KEEPCNT": 4,
            "TCP_USER_TIMEOUT": int(self.limits.write_stall_s * 1000),  # for bytes that nobody acknowledges
        }
        try:
            self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in options.items():
                if hasattr(socket, name):
                    self.stream.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        except OSError:  # the client is gone already; the first read will tell
            return


def _count(stream: trio.SocketStream, request: int) -> int:
    """Ask the kernel how many bytes wait in one direction. Raises ClosedResourceError when the socket is closed."""
    number = stream.socket.fileno()
    if number < 0:
        raise trio.ClosedResourceError
    count = bytearray(4)
    fcntl.ioctl(number, request, count)
    return int.from_bytes(count, sys.byteorder, signed=True)
