"""What of a judge's reply is not its body: heads, chunk sizes and extensions, trailers. Watched before it is parsed.

The parser takes time for each chunk and field, and for a bad chunk line the square of its length. So it gets a reply in
small parts while such things may come, and lines and sums are bounded here. It finds out by itself what is malformed.

Where a reply ends is known here, too: what comes behind it would be taken for the reply to the next request.
"""

import re
from typing import Final

import httpcore2

FRAMED_BYTES: Final = 2 * 1024
"""Read at a time of heads and of chunked bodies: hundreds of fields or chunks, never thousands."""
PLAIN_BYTES: Final = 64 * 1024
"""Read at a time of a body that is nothing but data."""
HEAD_BYTES: Final = 32 * 1024
"""All heads of a reply together, interim ones included; or its trailers."""
HEAD_LINES: Final = 1024
"""Lines of the same."""
CHUNK_LINE_BYTES: Final = 1024
"""A chunk's size with its extensions and the line's end."""
FRAMING_BYTES: Final = 1024 * 1024
"""Chunk lines may take as much as their data and this much more."""

_HEAD_END = re.compile(rb"\n\r?\n")
_INTERIM = re.compile(rb"HTTP/[0-9]\.[0-9] 1(?!01)")
_BODILESS = re.compile(rb"HTTP/[0-9]\.[0-9] (?:204|304)")
_LENGTH = re.compile(rb"\ncontent-length:[ \t]*([0-9]{1,20})[ \t]*(?=\r?\n(?![ \t]))", re.IGNORECASE)
_CODED = re.compile(rb"\ntransfer-encoding[ \t]*:", re.IGNORECASE)
_SIZE = re.compile(rb"[0-9A-Fa-f]{1,20}")


class TooMuchFraming(httpcore2.RemoteProtocolError):
    """A reply has more or longer heads, chunk lines or trailers than any judge needs."""


class Framing:
    """Follows one reply. `feed` raises TooMuchFraming; `most` is how much may be read next.

    `ended`: it is known that the reply is over, and nothing came behind it.
    """

    def __init__(self) -> None:
        self.most = FRAMED_BYTES
        self.ended = False
        self._feed = self._heads
        self._head = bytearray()  # the head that is coming
        self._head_bytes = self._head_lines = 0  # of those before it; then of the trailers
        self._line = bytearray()  # the chunk line that is coming
        self._left = 0  # of a chunk, with the line end behind it; or of a body of a known length
        self._chunk_bytes = self._line_bytes = 0  # of chunks, and of their lines

    def feed(self, data: bytes) -> None:
        """Take what was read, in order."""
        self._feed(data)

    def _heads(self, data: bytes) -> None:
        self._head += data
        while (end := _HEAD_END.search(self._head)) is not None:
            head, self._head = self._head[: end.end()], self._head[end.end() :]
            self._count(head)
            if not _INTERIM.match(head):
                self._begin_body(head, bytes(self._head))
                return
        self._check(self._head_bytes + len(self._head), self._head_lines + self._head.count(b"\n"))

    def _begin_body(self, head: bytearray, rest: bytes) -> None:
        self._head_bytes = self._head_lines = 0
        self._head.clear()
        if _CODED.search(head):
            self._feed = self._chunks
            self._chunks(rest)
            return
        self.most = PLAIN_BYTES
        lengths = set(_LENGTH.findall(head))
        if _BODILESS.match(head):
            self._left = 0
        elif len(lengths) == 1:
            self._left = int(lengths.pop())
        else:
            self._feed = self._endless
            return
        self._feed = self._plain
        self._plain(rest)

    def _plain(self, data: bytes) -> None:
        """A part of a body of a known length."""
        self._left -= len(data)
        self.ended = self._left == 0

    def _endless(self, data: bytes) -> None:
        """Only the end of the connection ends the body."""

    def _chunks(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            if self._left:
                step = min(self._left, len(data) - at)
                self._left -= step
                at += step
                continue
            before = len(self._line)
            self._line += data[at : at + CHUNK_LINE_BYTES - before]
            end = self._line.find(b"\r\n")
            if end < 0:
                if len(self._line) == CHUNK_LINE_BYTES:
                    raise TooMuchFraming(f"a chunk's size and extensions are longer than {CHUNK_LINE_BYTES} bytes")
                return
            at += end + 2 - before
            if not self._begin_chunk(end + 4):
                self._feed = self._trailers
                self._head += b"\r\n"  # without trailers the next line ends the reply
                self._trailers(data[at:])
                return

    def _begin_chunk(self, framing: int) -> bool:
        """Whether the line that is there begins a chunk; behind the last one, or a bad one, only trailers can come."""
        size = _SIZE.match(self._line)
        count = 0 if size is None else int(size.group(), 16)
        self._line.clear()
        self._left = count + 2
        self._chunk_bytes += count
        self._line_bytes += framing
        if self._line_bytes > FRAMING_BYTES + self._chunk_bytes:
            raise TooMuchFraming(f"the reply's chunk lines take {FRAMING_BYTES} bytes more than its data")
        return count > 0

    def _trailers(self, data: bytes) -> None:
        self._count(data)
        self._head += data
        end = _HEAD_END.search(self._head)
        self.ended = end is not None and end.end() == len(self._head)

    def _count(self, data: bytes | bytearray) -> None:
        self._head_bytes += len(data)
        self._head_lines += data.count(b"\n")
        self._check(self._head_bytes, self._head_lines)

    def _check(self, size: int, lines: int) -> None:
        if size > HEAD_BYTES or lines > HEAD_LINES:
            raise TooMuchFraming(f"the reply's head or trailers exceed {HEAD_BYTES} bytes or {HEAD_LINES} lines")
