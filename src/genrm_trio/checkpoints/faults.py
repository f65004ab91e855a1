"""Faults on purpose: a folder that announces each operation, and the hook that fails the n-th one.

For tests and drills only. An OSError from the hook is a disk that fails; anything that is no `Exception`, such
as `Killed`, is a process that dies: from then on nothing is done to the folder any more, clean-up included.
"""

from collections.abc import Callable
from typing import TypeAlias

from genrm_trio.checkpoints.folders import Folder, Readable, Temporary

Before: TypeAlias = Callable[[str], None]
"""Called with an operation's name just before it is done; what it raises is raised instead."""


class Killed(BaseException):
    """The process dies here."""


class FailAt:
    """A hook that raises `error` at the n-th operation, counted from 1; after a `Killed`, at every later one too.

    calls: the names of the operations so far.
    """

    def __init__(self, n: int, error: BaseException) -> None:
        self._n = n
        self._error = error
        self.calls: list[str] = []

    def __call__(self, operation: str) -> None:
        """Announce one operation."""
        self.calls.append(operation)
        count = len(self.calls)
        if count == self._n or (count > self._n and isinstance(self._error, Killed)):
            raise self._error


class WatchedTemporary:
    """A temporary file whose operations are announced. A dying process closes it as well, so that is not."""

    def __init__(self, file: Temporary, before: Before) -> None:
        self._file = file
        self._before = before

    @property
    def name(self) -> str:
        """Its name in the folder."""
        return self._file.name

    def write(self, data: bytes) -> None:
        """Announce, then append."""
        self._before("write")
        self._file.write(data)

    def sync(self) -> None:
        """Announce, then sync."""
        self._before("sync_file")
        self._file.sync()

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


class WatchedReadable:
    """A file being read whose reads are announced."""

    def __init__(self, file: Readable, before: Before) -> None:
        self._file = file
        self._before = before

    def read(self, size: int) -> bytes:
        """Announce, then read."""
        self._before("read")
        return self._file.read(size)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


class WatchedFolder:
    """A folder whose operations are announced."""

    def __init__(self, folder: Folder, before: Before) -> None:
        self._folder = folder
        self._before = before

    def names(self) -> list[str]:
        """Announce, then list."""
        self._before("names")
        return self._folder.names()

    def create(self, prefix: str) -> WatchedTemporary:
        """Announce, then create."""
        self._before("create")
        return WatchedTemporary(self._folder.create(prefix), self._before)

    def rename(self, temporary: str, name: str) -> None:
        """Announce, then rename."""
        self._before("rename")
        self._folder.rename(temporary, name)

    def link(self, temporary: str, name: str) -> bool:
        """Announce, then link."""
        self._before("link")
        return self._folder.link(temporary, name)

    def remove(self, name: str) -> None:
        """Announce, then remove."""
        self._before("remove")
        self._folder.remove(name)

    def remove_stale(self, temporary: str) -> bool:
        """Announce, then remove if stale."""
        self._before("remove_stale")
        return self._folder.remove_stale(temporary)

    def open(self, name: str) -> WatchedReadable | None:
        """Announce, then open."""
        self._before("open")
        file = self._folder.open(name)
        return None if file is None else WatchedReadable(file, self._before)

    def sync(self) -> None:
        """Announce, then sync."""
        self._before("sync_folder")
        self._folder.sync()

    def close(self) -> None:
        """Let go of the folder."""
        self._folder.close()
