"""Standard output and standard error that a running server can write to whatever becomes of them.

The reader of a pipe goes away, a disk fills up, a limit on file sizes is met: what is written then is lost and counted,
and nothing else happens. An error would end whatever wanted to say something, and bytes that stay behind in a buffer
would spoil the exit code.
"""

import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


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


class Unfailing(io.TextIOWrapper):
    """Text for a file descriptor, written at once; `lost` counts the writes that failed, whole or in part."""

    def __init__(self, number: int) -> None:
        self._descriptor = _Descriptor(number)
        # `write_through` hands each text on as one write, so that a line that is lost counts once.
        super().__init__(self._descriptor, "utf-8", "backslashreplace", write_through=True)  # type: ignore[arg-type]  # raw

    @property
    def lost(self) -> int:
        """How often something could not be written."""
        return self._descriptor.lost


def unfailing(stream: TextIO | None) -> TextIO:
    """Return a stream to the same file that never fails. One without a descriptor of its own is returned as it is."""
    if stream is None:  # closed before we were started; the number may be another file's by now
        return Unfailing(-1)
    if isinstance(stream, Unfailing):
        return stream
    try:
        return Unfailing(stream.fileno())
    except (OSError, ValueError):
        return stream


def protect_stderr() -> None:
    """Let nothing fail for what it says on standard error."""
    sys.stderr = unfailing(sys.stderr)


def protect_stdout() -> None:
    """The same for standard output: for a command whose output is no more than a word to whoever looks."""
    sys.stdout = unfailing(sys.stdout)
