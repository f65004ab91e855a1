"""Standard output and standard error that a running server can write to whatever becomes of them.

The reader of a pipe goes away, a disk fills up, a limit on file sizes is met: what is written then is lost and counted,
and nothing else happens. An error would end whatever wanted to say something, and bytes that stay behind in a buffer
would spoil the exit code. A server does not wait for a slow reader either: what it says is kept for a while.
"""

import atexit
import io
import os
import select
import sys
import time
from queue import SimpleQueue
from threading import Event, RLock, Thread
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


PENDING_BYTES: Final = 1024 * 1024
"""What is kept for a reader that does not read; what comes then is lost."""
LAST_WORDS_S: Final = 0.5
"""How long, at the end, a slow reader is waited for."""
RETRY_S: Final = 0.01
"""Seconds between two attempts at a file that says it is ready and takes nothing."""


class _Descriptor(io.RawIOBase):
    """Writes to an open file descriptor, which it does not own; takes everything and never raises."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number
        self._failed = 0
        self._torn = False

    @property
    def lost(self) -> int:
        """How often something could not be written."""
        return self._failed

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return os.isatty(self._number)

    def write(self, data: "ReadableBuffer", /) -> int:
        text = bytes(data)
        self._write_all(text)
        return len(text)

    def passed(self) -> Event:
        """Return what is set once everything that was said before is written or lost."""
        event = Event()
        event.set()
        return event

    def _write_all(self, text: bytes) -> None:
        """Write all of it; if that fails, count one loss. What follows a part of a line begins on a new one."""
        whole = left = memoryview(b"\n" + text if self._torn else text)
        try:
            while left:
                left = left[self._write_some(left) :]
        except OSError:
            self._failed += 1
        self._torn = len(left) > 0 and (self._torn or len(left) < len(whole))

    def _write_some(self, left: memoryview) -> int:
        try:
            return os.write(self._number, left)
        except BlockingIOError:  # whoever else has this file may have made it so; that it has no room is no loss
            poll = select.poll()
            poll.register(self._number, select.POLLOUT)
            poll.poll()
            time.sleep(RETRY_S)  # a terminal says it is ready long before it takes a byte: without this we would spin
            return 0


class _HandedOn(_Descriptor):
    """The same, but nobody waits: a thread of its own writes, and what waits for it is bounded.

    No kind of file can be asked beforehand whether a write will wait. A terminal says that it is ready when it has room
    for a byte, a pipe has other writers, and the flag that forbids waiting belongs to everybody who has the file open.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self._texts: SimpleQueue[bytes | Event] = SimpleQueue()
        self._taken = 0
        self._done = 0  # of the bytes taken; only the thread counts here, so that it never holds the lock
        self._refused = 0
        self._lock = RLock()  # garbage that is collected in the middle may have something to say, too
        Thread(target=self._keep_writing, name="output", daemon=True).start()

    @property
    def lost(self) -> int:
        """How often something could not be written or kept."""
        return self._failed + self._refused

    def write(self, data: "ReadableBuffer", /) -> int:
        """Keep the text for the thread, or lose it as a whole."""
        text = bytes(data)
        with self._lock:
            if self._taken - self._done + len(text) > PENDING_BYTES:
                self._refused += 1
            else:
                self._taken += len(text)
                self._texts.put(text)
        return len(text)

    def passed(self) -> Event:
        event = Event()
        self._texts.put(event)
        return event

    def _keep_writing(self) -> None:
        while True:
            text = self._texts.get()
            if isinstance(text, Event):
                text.set()
            else:
                self._write_all(text)
                self._done += len(text)


class Unfailing(io.TextIOWrapper):
    """Text for a file descriptor, written at once; `lost` counts the writes that failed, whole or in part.

    waits: whether a write waits for a reader that is slow. Else up to PENDING_BYTES are kept for it, and whoever ends
    should `drain`.
    """

    def __init__(self, number: int, *, waits: bool = True) -> None:
        self.waits = waits
        self._unread = False
        self._descriptor = _Descriptor(number) if waits or number < 0 else _HandedOn(number)
        # `write_through` hands each text on as one write, so that a line that is lost counts once.
        super().__init__(self._descriptor, "utf-8", "backslashreplace", write_through=True)  # type: ignore[arg-type]  # raw

    @property
    def lost(self) -> int:
        """How often something could not be written."""
        return self._descriptor.lost

    def passed(self) -> Event:
        """Return what is set once everything that was said before is written or lost."""
        return self._descriptor.passed()

    def drain(self, seconds: float) -> None:
        """Wait so long for a reader to take what was kept for it. One that did not is not waited for again."""
        if not self._unread:
            self._unread = not self.passed().wait(seconds)


def unfailing(stream: TextIO | None, *, waits: bool = True) -> TextIO:
    """Return a stream to the same file that never fails. One without a descriptor of its own is returned as it is.

    waits: whether it may wait for a reader; one that does not wait already is right for both.
    """
    if stream is None:  # closed before we were started; the number may be another file's by now
        return Unfailing(-1)
    if isinstance(stream, Unfailing) and (waits or not stream.waits):
        return stream
    try:
        return Unfailing(stream.fileno(), waits=waits)
    except (OSError, ValueError):
        return stream


def protect_stderr() -> None:
    """Let nothing fail for what it says on standard error."""
    sys.stderr = unfailing(sys.stderr)


def wait_for_no_reader() -> None:
    """Let nothing fail or wait for what it says on standard error or standard output, until the process ends.

    When both are one file they become one stream, or a line of the one could end up inside a line of the other.
    """
    shared = _are_one_file(sys.stdout, sys.stderr)
    sys.stderr = unfailing(sys.stderr, waits=False)
    sys.stdout = sys.stderr if shared else unfailing(sys.stdout, waits=False)
    atexit.register(drain)  # also for what the interpreter says of an error that nobody caught


def drain() -> None:
    """Wait for a moment until what was said is out."""
    end = time.monotonic() + LAST_WORDS_S
    for stream in _ours():
        stream.drain(end - time.monotonic())


def lost() -> int:
    """How often standard output or standard error could not be written."""
    return sum(stream.lost for stream in _ours())


def _ours() -> list[Unfailing]:
    return [stream for stream in dict.fromkeys((sys.stderr, sys.stdout)) if isinstance(stream, Unfailing)]


def _are_one_file(one: TextIO | None, other: TextIO | None) -> bool:
    if one is None or other is None:
        return False
    try:
        return os.path.samestat(os.fstat(one.fileno()), os.fstat(other.fileno()))
    except (OSError, ValueError):
        return False
