"""Writing and reading a checkpoint, step by step, as generators over a `Folder`.

Generators, so that one text serves both drivers: a worker thread that looks between the steps whether it is
still wanted, and a task under virtual time that lets others run in between. Closing one abandons the work and
leaves no temporary file behind.

The order of a write is such that a reader finds no checkpoint or a whole one, whenever the process or the
machine dies: first the records and the manifest go to the disk under temporary names; then the records get their
final name, and that is on the disk before the manifest gets its own, by a hard link, which replaces nothing.
"""

import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias, TypeVar

from genrm_trio.checkpoints.errors import CheckpointStateError
from genrm_trio.checkpoints.folders import (
    MANIFEST_TEMPORARY,
    RECORDS_TEMPORARY,
    TEMPORARY,
    Folder,
    Readable,
    Temporary,
)
from genrm_trio.checkpoints.manifest import (
    MANIFEST,
    MAX_MANIFEST_BYTES,
    Manifest,
    decode_manifest,
    records_file_name,
)
from genrm_trio.checkpoints.records import (
    MAX_RECORD_BYTES,
    SLICE_BYTES,
    Malformed,
    Record,
    decode_record,
    encode_slices,
)
from genrm_trio.core.identity import EpisodeId

T = TypeVar("T")
S = TypeVar("S")

MAX_RECORDS = 1_048_576
"""Most records of one checkpoint: sixteen times the largest that was measured."""

MAX_FAULTS_TOLD = 20
"""How many faults of one records file are kept as text; the others are only counted."""


class Stage(Enum):
    """What the next step of a write does."""

    WRITING = "writing"
    """Only temporary files exist; closing the generator leaves no trace."""

    PUBLISHING = "publishing"
    """The next step gives the files their names; once begun it is never stopped."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that was read and verified as a whole: its manifest and those of its records that were asked for."""

    manifest: Manifest
    records: list[Record]


Write: TypeAlias = "Generator[Stage, None, Manifest]"
Read: TypeAlias = "Generator[None, None, Checkpoint]"


def finish(steps: Generator[S, None, T], before_next: Callable[[S], None] | None = None) -> T:
    """Make all steps and return what they come to; whatever `before_next` raises closes them."""
    with closing(steps):
        while True:
            try:
                step = next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            if before_next is not None:
                before_next(step)


# -- writing -------------------------------------------------------------------------------------------


def write_steps(folder: Folder, *, instance: str, checkpoint_id: str, records: Iterable[Record]) -> Write:
    """Write a checkpoint; returns its manifest. Writing the same content again succeeds.

    Raises CheckpointStateError when the folder holds another checkpoint, or a record cannot be written; OSError.
    """
    clear_stale(folder)
    yield Stage.WRITING
    with _temporary(folder, RECORDS_TEMPORARY) as file:
        sha256, count = yield from _write_records(file, records)
        file.sync()
        yield Stage.WRITING
        manifest = Manifest(instance, checkpoint_id, records_file_name(sha256), sha256, count)
        with _temporary(folder, MANIFEST_TEMPORARY) as announced:
            announced.write(manifest.encode())
            announced.sync()
            yield Stage.PUBLISHING
            folder.rename(file.name, manifest.records_file)
            folder.sync()
            if not folder.link(announced.name, MANIFEST):
                _meet(folder, manifest)
            folder.sync()
    return manifest


def clear_stale(folder: Folder) -> None:
    """Remove the temporary files of processes that were killed, and never those of a writer that lives."""
    for name in folder.names():
        if name.startswith(TEMPORARY):
            folder.remove_stale(name)


@contextmanager
def _temporary(folder: Folder, prefix: str) -> Iterator[Temporary]:
    file = folder.create(prefix)
    try:
        yield file
    finally:
        # Removed while it is still locked, and only by its temporary name. What cannot be removed is
        # removed by the next commit, and must not hide why this one ended.
        try:
            with suppress(OSError):
                folder.remove(file.name)
        finally:
            file.close()


def _write_records(file: Temporary, records: Iterable[Record]) -> Generator[Stage, None, tuple[str, int]]:
    digest = hashlib.sha256()
    count = 0
    for data, more in encode_slices(records):
        count += more
        if count > MAX_RECORDS:
            raise CheckpointStateError(f"more than {MAX_RECORDS} records in one checkpoint")
        digest.update(data)
        file.write(data)
        yield Stage.WRITING
    return digest.hexdigest(), count


def _meet(folder: Folder, manifest: Manifest) -> None:
    """There is a manifest already: well if it says the same, else ours is the losing one and its records go."""
    data = read_manifest_bytes(folder)
    try:
        existing = decode_manifest(data, manifest.instance)
        if existing == manifest:
            return
        says = f"holds checkpoint {existing.checkpoint_id[:128]!r} with other content"
        if existing.checkpoint_id != manifest.checkpoint_id:
            says = f"holds another checkpoint, {existing.checkpoint_id[:128]!r}"
    except CheckpointStateError as error:
        says = f"holds a manifest that cannot be read ({error})"
    if manifest.records_file.encode() not in data:
        folder.remove(manifest.records_file)
        folder.sync()
    raise CheckpointStateError(f"the folder {says}; {MANIFEST} is never replaced")


# -- reading -------------------------------------------------------------------------------------------


def read_steps(folder: Folder, *, instance: str, scope: frozenset[EpisodeId] | None) -> Read:
    """Read and verify a whole checkpoint; keeps the records of the episodes in `scope`, None for all.

    Raises CheckpointStateError for any damage; OSError.
    """
    manifest = decode_manifest(read_manifest_bytes(folder), instance)
    if manifest.record_count > MAX_RECORDS:
        raise CheckpointStateError(f"{MANIFEST}: record_count is above {MAX_RECORDS}")
    yield
    kept: list[Record] = []

    def keep(record: Record) -> None:
        if scope is None or record.episode in scope:
            kept.append(record)

    with closing(open_records(folder, manifest)) as file:
        scan = yield from scan_steps(file, manifest, keep)
    if scan.faults:
        shown = "; ".join(scan.faults[:3])
        more = f" (and {scan.fault_count - 3} more)" if scan.fault_count > 3 else ""
        raise CheckpointStateError(f"{manifest.records_file}: {shown}{more}")
    return Checkpoint(manifest, kept)


def read_manifest_bytes(folder: Folder) -> bytes:
    """The manifest's bytes. Raises CheckpointStateError when there is none, or it is too long."""
    file = folder.open(MANIFEST)
    if file is None:
        raise CheckpointStateError(f"{MANIFEST} does not exist: there is no checkpoint of this server here")
    parts: list[bytes] = []
    size = 0
    with closing(file):
        while part := file.read(SLICE_BYTES):
            parts.append(part)
            size += len(part)
            if size > MAX_MANIFEST_BYTES:
                raise CheckpointStateError(f"{MANIFEST} is longer than {MAX_MANIFEST_BYTES} bytes")
    return b"".join(parts)


def open_records(folder: Folder, manifest: Manifest) -> Readable:
    """Open the records file that the manifest names. Raises CheckpointStateError when it is missing."""
    file = folder.open(manifest.records_file)
    if file is None:
        raise CheckpointStateError(f"{manifest.records_file} does not exist, but {MANIFEST} names it")
    return file


@dataclass(slots=True)
class Scan:
    """What reading a records file found: the first faults in words, the digest's first, and how many there are."""

    lines: int = 0
    sha256: str = ""
    faults: list[str] = field(default_factory=list)
    fault_count: int = 0

    def fault(self, text: str, *, first: bool = False) -> None:
        """Note one fault."""
        self.fault_count += 1
        if first:
            self.faults.insert(0, text)
        elif len(self.faults) < MAX_FAULTS_TOLD:
            self.faults.append(text)


def scan_steps(file: Readable, manifest: Manifest, take: Callable[[Record], None]) -> Generator[None, None, Scan]:
    """Read the records file to its end, whatever is wrong with it, and give every good record to `take`.

    Nothing taken may be used before the scan turned out to be without faults.
    """
    scan = Scan()
    digest = hashlib.sha256()
    seen: set[str] = set()
    lines = _Lines()
    while chunk := file.read(SLICE_BYTES):
        digest.update(chunk)
        for line in lines.feed(chunk):
            scan.lines += 1
            if scan.lines <= manifest.record_count:
                _scan_line(scan, line, seen, take)
        yield
    if lines.rest:
        scan.lines += 1
        scan.fault(f"line {scan.lines} does not end in a newline")
    if scan.lines != manifest.record_count:
        scan.fault(f"{scan.lines} records, the manifest says {manifest.record_count}", first=True)
    scan.sha256 = digest.hexdigest()
    if scan.sha256 != manifest.records_sha256:
        scan.fault(f"sha256 is {scan.sha256}, the manifest says {manifest.records_sha256}", first=True)
    return scan


def _scan_line(scan: Scan, line: bytes | None, seen: set[str], take: Callable[[Record], None]) -> None:
    if line is None:
        scan.fault(f"line {scan.lines} is longer than {MAX_RECORD_BYTES} bytes")
        return
    try:
        record = decode_record(line)
    except Malformed as error:
        scan.fault(f"line {scan.lines}: {error}")
        return
    if record.session_id in seen:
        scan.fault(f"line {scan.lines}: field session_id: {record.session_id[:80]!r} occurs twice")
        return
    seen.add(record.session_id)
    take(record)


class _Lines:
    """Cuts chunks into lines, in linear time and without ever keeping more than one line of the allowed length.

    rest: how many bytes follow the last newline.
    """

    def __init__(self) -> None:
        self.rest = 0
        self._parts: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[bytes | None]:
        """The lines that this chunk ends, without their newline; None for one that is too long."""
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            size = self.rest + len(part)
            self._parts.append(part)
            yield b"".join(self._parts) if size < MAX_RECORD_BYTES else None
            self._parts.clear()
            self.rest = 0
        if rest:
            self.rest += len(rest)
            if self.rest < MAX_RECORD_BYTES:
                self._parts.append(rest)
