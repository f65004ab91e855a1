"""The folder of one checkpoint, as the dozen file operations that a checkpoint needs.

Only the shape is here: `disk` does them on a file system, `memory` in memory for tests under virtual time, and
`faults` lets a test fail or crash the n-th one. Which are done in which order is `steps`. All of it is
synchronous, and errors are OSError.
"""

from typing import Protocol

RECORDS_TEMPORARY = ".records.jsonl."
MANIFEST_TEMPORARY = ".manifest.json."
TEMPORARY = (RECORDS_TEMPORARY, MANIFEST_TEMPORARY)
"""How the names of temporary files start."""


class Readable(Protocol):
    """An open file that is read from its start to its end."""

    def read(self, size: int) -> bytes:
        """The next bytes, at most `size`; empty at the end."""

    def close(self) -> None:
        """Let go of the file."""


class Temporary(Protocol):
    """A temporary file being written. While it is open no other writer takes it for one of a killed process."""

    @property
    def name(self) -> str:
        """Its name in the folder."""

    def write(self, data: bytes) -> None:
        """Append all of `data`."""

    def sync(self) -> None:
        """Return once everything written is on the disk."""

    def close(self) -> None:
        """Let go of the file; it stays in the folder."""


class Folder(Protocol):
    """One folder."""

    def names(self) -> list[str]:
        """Every name in the folder, in no particular order."""

    def create(self, prefix: str) -> Temporary:
        """Make a file with a fresh name that starts with `prefix`."""

    def rename(self, temporary: str, name: str) -> None:
        """Give the file another name, replacing what had it."""

    def link(self, temporary: str, name: str) -> bool:
        """Give the file a second name; False, and nothing done, when that name is taken."""

    def remove(self, name: str) -> None:
        """Remove a name; one that is not there is no error."""

    def remove_stale(self, temporary: str) -> bool:
        """Remove a temporary file unless a writer still has it open. Returns whether it went."""

    def open(self, name: str) -> Readable | None:
        """Open a regular file for reading; None when the name is not there."""

    def sync(self) -> None:
        """Return once all names given and removed are on the disk."""

    def close(self) -> None:
        """Let go of the folder."""
