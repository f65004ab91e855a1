"""A checkpoint's folder in memory, for tests under virtual time, where a thread would make the clock jump."""

import errno
from dataclasses import dataclass, field


@dataclass(slots=True)
class Blob:
    """A file's content in memory, and whether a writer has it open."""

    data: bytearray = field(default_factory=bytearray)
    writing: bool = False


class MemoryFile:
    """An open file in memory."""

    def __init__(self, blob: Blob, name: str) -> None:
        self.name = name
        self._blob = blob
        self._at = 0

    def write(self, data: bytes) -> None:
        """Append all of `data`."""
        self._blob.data += data

    def read(self, size: int) -> bytes:
        """The next bytes, at most `size`; empty at the end."""
        data = bytes(self._blob.data[self._at : self._at + size])
        self._at += len(data)
        return data

    def sync(self) -> None:
        """Memory is where it is."""

    def close(self) -> None:
        """Let go of the file."""
        self._blob.writing = False


class MemoryFolder:
    """A folder in memory, with the names and contents that a test may look at and damage."""

    def __init__(self) -> None:
        self.blobs: dict[str, Blob] = {}
        self._made = 0

    def names(self) -> list[str]:
        """Every name in the folder."""
        return list(self.blobs)

    def create(self, prefix: str) -> MemoryFile:
        """Make a file with a fresh name that starts with `prefix`."""
        self._made += 1
        name = f"{prefix}{self._made}"
        self.blobs[name] = Blob(writing=True)
        return MemoryFile(self.blobs[name], name)

    def rename(self, temporary: str, name: str) -> None:
        """Give the file another name, replacing what had it."""
        self.blobs[name] = self._taken(temporary)
        del self.blobs[temporary]

    def link(self, temporary: str, name: str) -> bool:
        """Give the file a second name; False, and nothing done, when that name is taken."""
        blob = self._taken(temporary)
        return self.blobs.setdefault(name, blob) is blob

    def remove(self, name: str) -> None:
        """Remove a name; one that is not there is no error."""
        self.blobs.pop(name, None)

    def remove_stale(self, temporary: str) -> bool:
        """Remove a temporary file unless a writer still has it open."""
        blob = self.blobs.get(temporary)
        if blob is None or blob.writing:
            return False
        del self.blobs[temporary]
        return True

    def open(self, name: str) -> MemoryFile | None:
        """Open a file for reading; None when the name is not there."""
        blob = self.blobs.get(name)
        return None if blob is None else MemoryFile(blob, name)

    def sync(self) -> None:
        """Memory is where it is."""

    def close(self) -> None:
        """Nothing is held."""

    def _taken(self, name: str) -> Blob:
        try:
            return self.blobs[name]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such file", name) from None
