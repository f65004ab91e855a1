"""The store of checkpoints (contract 10.8), as the control plane awaits it.

`FileStore` works in threads of its own, so that a slow disk never holds up the event loop; `MemoryStore` does
the same steps in memory, for tests under virtual time. What a checkpoint is and in which order it is written is
not here but in `steps`.
"""

import posixpath
import threading
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Protocol, TypeVar

import trio

from genrm_trio.checkpoints.collector import collector_paused
from genrm_trio.checkpoints.disk import folder_path, open_folder
from genrm_trio.checkpoints.errors import CheckpointStateError
from genrm_trio.checkpoints.faults import Before, WatchedFolder
from genrm_trio.checkpoints.folders import Folder
from genrm_trio.checkpoints.manifest import Manifest, check_instance
from genrm_trio.checkpoints.memory import MemoryFolder
from genrm_trio.checkpoints.records import Record
from genrm_trio.checkpoints.steps import Checkpoint, Stage, finish, read_steps, write_steps
from genrm_trio.core.identity import EpisodeId

MAX_STORE_THREADS = 8
"""Threads that may hang in the file system at once; a later call waits, and can be cancelled while it does."""

T = TypeVar("T")
S = TypeVar("S")


class Store(Protocol):
    """Where checkpoints are written to and read from."""

    async def write(self, checkpoint_dir: str, *, checkpoint_id: str, records: Iterable[Record]) -> Manifest:
        """Write a checkpoint and return its manifest; the same content again succeeds.

        `records` is read in another thread: nobody may change what it hands out. Cancelling abandons the write
        without waiting for the disk, and nothing of it will ever be published; only when the files are being
        given their names does the cancellation wait for that to be over. Raises CheckpointStateError for all
        that goes wrong, a failing disk included.
        """

    async def read(self, checkpoint_dir: str, *, scope: frozenset[EpisodeId] | None) -> Checkpoint:
        """Read and verify a checkpoint, keeping the records of the episodes in `scope`, None for all.

        Cancelling does not wait for the disk. Raises CheckpointStateError for all that is wrong with it.
        """


class FileStore:
    """Checkpoints on a file system. `root`: where their folders must lie, None for anywhere.

    before_call: announces each file operation in its thread; see `faults`.
    """

    def __init__(self, instance: str, *, root: Path | None = None, before_call: Before | None = None) -> None:
        check_instance(instance)
        self._instance = instance
        self._root = root
        self._before_call = before_call
        self._limiter = trio.CapacityLimiter(MAX_STORE_THREADS)

    async def write(self, checkpoint_dir: str, *, checkpoint_id: str, records: Iterable[Record]) -> Manifest:
        """See `Store.write`."""
        wanted = _Wanted(trio.lowlevel.current_trio_token())

        def work() -> Manifest:
            with wanted, _told(checkpoint_dir), closing(self._open(checkpoint_dir, create=True)) as folder:
                steps = write_steps(folder, instance=self._instance, checkpoint_id=checkpoint_id, records=records)
                return finish(steps, lambda stage: wanted.enter(publishing=stage is Stage.PUBLISHING))

        return await self._in_thread(work, wanted)

    async def read(self, checkpoint_dir: str, *, scope: frozenset[EpisodeId] | None) -> Checkpoint:
        """See `Store.read`."""
        wanted = _Wanted(trio.lowlevel.current_trio_token())

        def work() -> Checkpoint:
            with wanted, _told(checkpoint_dir), closing(self._open(checkpoint_dir, create=False)) as folder:
                steps = read_steps(folder, instance=self._instance, scope=scope)
                return finish(steps, lambda _: wanted.enter(publishing=False))

        with collector_paused():
            return await self._in_thread(work, wanted)

    async def _in_thread(self, work: Callable[[], T], wanted: "_Wanted") -> T:
        try:
            return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._limiter)
        except trio.Cancelled:
            if not wanted.abandon():
                with trio.CancelScope(shield=True):
                    await wanted.over.wait()
            raise

    def _open(self, checkpoint_dir: str, *, create: bool) -> Folder:
        path = folder_path(checkpoint_dir, self._instance, self._root)
        try:
            folder: Folder = open_folder(path, create=create)
        except FileNotFoundError as error:
            raise CheckpointStateError(f"the folder {str(path)!r} does not exist") from error
        return folder if self._before_call is None else WatchedFolder(folder, self._before_call)


class MemoryStore:
    """Checkpoints in memory, with no thread and no disk.

    folders: by normalised `checkpoint_dir`, to be looked at and damaged by tests.
    before_call: announces each file operation; see `faults`.
    between: awaited after each step of a write with what comes next, so that a test can hold a write there.
        Shielded while the files are being given their names, as a write on disk is.
    """

    def __init__(
        self,
        instance: str,
        *,
        before_call: Before | None = None,
        between: Callable[[Stage], Awaitable[None]] | None = None,
    ) -> None:
        check_instance(instance)
        self.folders: dict[str, MemoryFolder] = {}
        self._instance = instance
        self._before_call = before_call
        self._between = between

    async def write(self, checkpoint_dir: str, *, checkpoint_id: str, records: Iterable[Record]) -> Manifest:
        """See `Store.write`."""
        self.folders.setdefault(posixpath.normpath(checkpoint_dir), MemoryFolder())
        with _told(checkpoint_dir):
            folder = self._open(checkpoint_dir)
            steps = write_steps(folder, instance=self._instance, checkpoint_id=checkpoint_id, records=records)
            return await _run_async(steps, self._pause)

    async def read(self, checkpoint_dir: str, *, scope: frozenset[EpisodeId] | None) -> Checkpoint:
        """See `Store.read`."""
        with _told(checkpoint_dir):
            folder = self._open(checkpoint_dir)
            steps = read_steps(folder, instance=self._instance, scope=scope)
            return await _run_async(steps, self._breathe)

    def _open(self, checkpoint_dir: str) -> Folder:
        folder = self.folders.get(posixpath.normpath(checkpoint_dir))
        if folder is None:
            raise CheckpointStateError("the folder does not exist")
        return folder if self._before_call is None else WatchedFolder(folder, self._before_call)

    async def _breathe(self, _: None) -> None:
        await trio.lowlevel.checkpoint()

    async def _pause(self, stage: Stage) -> None:
        await trio.lowlevel.checkpoint()
        if self._between is not None:
            with trio.CancelScope(shield=stage is Stage.PUBLISHING):
                await self._between(stage)


class _Abandoned(Exception):
    """Nobody wants this work any more; ends its thread."""


class _Wanted:
    """Whether a thread's work is still wanted, agreed between that thread and the task that awaits it.

    over: set once the thread is done with its work.
    """

    def __init__(self, token: trio.lowlevel.TrioToken) -> None:
        self.over = trio.Event()
        self._token = token
        self._lock = threading.Lock()
        self._abandoned = False
        self._publishing = False

    def enter(self, *, publishing: bool) -> None:
        """In the thread, before a step: raises `_Abandoned` when it must not be made any more."""
        with self._lock:
            if self._abandoned:
                raise _Abandoned
            self._publishing = publishing

    def abandon(self) -> bool:
        """In the task: give the work up. False when the files are being published and one has to wait."""
        with self._lock:
            self._abandoned = not self._publishing
            return self._abandoned

    def __enter__(self) -> "_Wanted":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self.over.set)


async def _run_async(steps: Generator[S, None, T], before_next: Callable[[S], Awaitable[None]]) -> T:
    """As `finish`, in a task."""
    with closing(steps):
        while True:
            try:
                step = next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            await before_next(step)


@contextmanager
def _told(checkpoint_dir: str) -> Iterator[None]:
    """Say for which folder something went wrong, and that a disk's errors are a checkpoint's errors."""
    shown = repr(checkpoint_dir if len(checkpoint_dir) <= 200 else checkpoint_dir[:200] + "...")
    try:
        yield
    except CheckpointStateError as error:
        raise CheckpointStateError(f"checkpoint_dir {shown}: {error.detail}") from error
    except OSError as error:
        name = f" ({error.filename})" if isinstance(error.filename, str) else ""
        raise CheckpointStateError(f"checkpoint_dir {shown}: {error.strerror or error}{name}") from error
