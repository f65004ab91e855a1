"""Standard output and standard error that a running server can write to whatever becomes of them.

The reader of a pipe goes away, a disk fills up, a limit on file sizes is met: what is written then is lost and counted,
and nothing else happens. An error would end whatever wanted to say something, and bytes that stay behind in a buffer
would spoil the exit code. A server does not wait for a slow reader either: what it says is kept for a while.
"""

import io
import os
import select
import sys
import time
from collections import deque
from threading import Lock
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


PENDING_BYTES: Final = 1024 * 1024
"""What is kept for a reader that does not read; what comes then is lost."""
PIECE_BYTES: Final = 4096
"""A pipe, socket or terminal that is ready takes so much without waiting: a page, and at least POSIX's PIPE_BUF."""


class _Descriptor(io.RawIOBase):
    """Writes to an open file descriptor, which it does not own; takes everything and never raises."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.lost = 0
        self._number = number
        self._torn = False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return os.isatty(self._number)

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write all of it; if that fails, count one loss. What follows a part of a line begins on a new one."""
        size = memoryview(data).nbytes
        left = memoryview(b"\n" + bytes(data) if self._torn else bytes(data))
        whole = left
        try:
            while left:
                left = left[os.write(self._number, left) :]
        except OSError:
            self.lost += 1
        self._torn = len(left) > 0 and (self._torn or len(left) < len(whole))
        return size


class _Unhurried(_Descriptor):
    """The same, but it waits for no reader: what finds no room now is written with what comes later."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0
        self._left = b""  # of the text that is being written
        self._begun = False  # whether a part of it is out
        self._lock = Lock()  # the watchdog speaks from its own thread

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write as much as there is room for, and keep or lose the text as a whole."""
        text = bytes(data)
        with self._lock:
            self._pass_on()
            if self._pending_bytes + len(text) > PENDING_BYTES:
                self.lost += 1
            else:
                self._pending.append(text)
                self._pending_bytes += len(text)
                self._pass_on()
        return len(text)

    def drain(self, seconds: float) -> None:
        """Wait at most so long for the reader to take what is kept."""
        end = time.monotonic() + seconds
        with self._lock:
            self._pass_on()
            while (self._left or self._pending) and (left := end - time.monotonic()) > 0:
                self._pass_on(left)

    def _pass_on(self, patience_s: float = 0.0) -> None:
        while (self._left or self._next()) and self._has_room(patience_s):
            try:
                count = os.write(self._number, self._left[:PIECE_BYTES])
            except OSError:
                self.lost += 1
                self._torn = self._torn or self._begun
                self._left = b""
            else:
                self._begun = True
                self._left = self._left[count:]
                self._torn = self._torn and bool(self._left)

    def _next(self) -> bool:
        while self._pending and not self._left:
            text = self._pending.popleft()
            self._pending_bytes -= len(text)
            self._left = b"\n" + text if self._torn else text
            self._begun = False
        return bool(self._left)

    def _has_room(self, patience_s: float) -> bool:
        poll = select.poll()
        poll.register(self._number, select.POLLOUT)
        return bool(poll.poll(patience_s * 1000))


class Unfailing(io.TextIOWrapper):
    """Text for a file descriptor, written at once; `lost` counts the writes that failed, whole or in part.

    waits: whether a write waits for a reader that is slow. Else up to PENDING_BYTES are kept for it, and whoever ends
    should `drain`.
    """

    def __init__(self, number: int, *, waits: bool = True) -> None:
        self._descriptor = _Descriptor(number) if waits or number < 0 else _Unhurried(number)
        # `write_through` hands each text on as one write, so that a line that is lost counts once.
        super().__init__(self._descriptor, "utf-8", "backslashreplace", write_through=True)  # type: ignore[arg-type]  # raw

    @property
    def lost(self) -> int:
        """How often something could not be written."""
        return self._descriptor.lost

    def drain(self, seconds: float) -> None:
        """Wait so long for a reader to take what was kept for it."""
        if isinstance(self._descriptor, _Unhurried):
            self._descriptor.drain(seconds)


def unfailing(stream: TextIO | None, *, waits: bool = True) -> TextIO:
    """Return a stream to the same file that never fails. One without a descriptor of its own is returned as it is."""
    if stream is None:  # closed before we were started; the number may be another file's by now
        return Unfailing(-1)
    if isinstance(stream, Unfailing) and waits:
        return stream
    try:
        return Unfailing(stream.fileno(), waits=waits)
    except (OSError, ValueError):
        return stream


def protect_stderr() -> None:
    """Let nothing fail for what it says on standard error."""
    sys.stderr = unfailing(sys.stderr)


def protect_stdout() -> None:
    """The same for standard output: for a command whose output is no more than a word to whoever looks."""
    sys.stdout = unfailing(sys.stdout)
