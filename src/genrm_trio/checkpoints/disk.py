"""A checkpoint's folder on a file system: where it may lie, how it is opened, and its file operations.

Nothing here follows a symbolic link inside the folder or on the way to it once that way was resolved, and no
operation can end up in another folder than the one that was opened.
"""

import errno
import fcntl
import os
import secrets
import stat
from pathlib import Path

from genrm_trio.checkpoints.errors import CheckpointStateError
from genrm_trio.checkpoints.manifest import check_instance

_CREATE_TRIES = 16
_NO_LOCKS = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL})
_NOT_OURS = frozenset({errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.EMLINK})
_WALK = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def folder_path(checkpoint_dir: str, instance: str, root: Path | None) -> Path:
    """Where the files of `instance` are in a checkpoint, with every link resolved.

    With a root, a relative `checkpoint_dir` counts from it, and the resolved folder must lie under the resolved
    root. Raises CheckpointStateError when it does not, or when the text is no path at all.
    """
    check_instance(instance)
    if not checkpoint_dir:
        raise CheckpointStateError("the path must not be empty")
    try:
        base = os.path.realpath(root if root is not None else os.curdir)
        path = Path(os.path.realpath(os.path.join(base, checkpoint_dir, "gym", "resources", instance)))
    except (OSError, ValueError) as error:
        raise CheckpointStateError(f"the path cannot be used: {error}") from error
    if root is not None and not path.is_relative_to(base):
        raise CheckpointStateError("the path does not lie under the configured checkpoint root")
    return path


def open_folder(path: Path, *, create: bool) -> "DiskFolder":
    """Open a resolved path, one part after the other and never through a symbolic link.

    So a link that someone puts there after `folder_path` looked leads nowhere. With `create`, parts that are
    missing are made and are on the disk when this returns. Raises OSError.
    """
    fd = os.open(path.anchor, _WALK)
    try:
        for part in path.parts[1:]:
            if create:
                _make(part, fd)
            inner = os.open(part, _WALK, dir_fd=fd)
            os.close(fd)
            fd = inner
        return DiskFolder(os.open(os.curdir, _LIST, dir_fd=fd))
    finally:
        os.close(fd)


def _make(part: str, parent: int) -> None:
    try:
        os.mkdir(part, dir_fd=parent)
    except FileExistsError:
        return
    listed = os.open(os.curdir, _LIST, dir_fd=parent)
    try:
        os.fsync(listed)
    finally:
        os.close(listed)


class DiskFile:
    """A file on disk. Temporary ones are locked while they are open, and a lock ends with its process."""

    def __init__(self, fd: int, name: str) -> None:
        self.name = name
        self._fd = fd

    def write(self, data: bytes) -> None:
        """Append all of `data`."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def read(self, size: int) -> bytes:
        """The next bytes, at most `size`; empty at the end."""
        return os.read(self._fd, size)

    def sync(self) -> None:
        """Return once everything written is on the disk."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class DiskFolder:
    """A folder on disk, held open, so that nothing done here can end up in another one."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def names(self) -> list[str]:
        """Every name in the folder, in no particular order."""
        return os.listdir(self._fd)

    def create(self, prefix: str) -> DiskFile:
        """Make a locked file with a fresh name that starts with `prefix`."""
        for _ in range(_CREATE_TRIES):
            name = prefix + secrets.token_hex(8)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(name, flags, 0o666, dir_fd=self._fd)
            file = DiskFile(fd, name)
            # Another writer's clean-up may have taken the new file before it was locked.
            if _lock(fd) is not False and self._is(name, fd):
                return file
            file.close()
        raise OSError(errno.EAGAIN, "another process takes every temporary file")

    def rename(self, temporary: str, name: str) -> None:
        """Give the file another name, replacing what had it."""
        os.rename(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def link(self, temporary: str, name: str) -> bool:
        """Give the file a second name; False, and nothing done, when that name is taken."""
        try:
            os.link(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd, follow_symlinks=False)
        except FileExistsError:
            return False
        return True

    def remove(self, name: str) -> None:
        """Remove a name; one that is not there is no error."""
        try:
            os.unlink(name, dir_fd=self._fd)
        except FileNotFoundError:
            return

    def remove_stale(self, temporary: str) -> bool:
        """Remove a temporary file that no live process holds locked. Where locks do not work it stays."""
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            fd = os.open(temporary, flags, dir_fd=self._fd)
        except OSError as error:
            if error.errno in _NOT_OURS:
                return False
            raise
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode) or not _lock(fd):
                return False
            self.remove(temporary)
            return True
        finally:
            os.close(fd)

    def open(self, name: str) -> DiskFile | None:
        """Open a regular file for reading; None when the name is not there."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            fd = os.open(name, flags, dir_fd=self._fd)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "not a regular file", name)
        return DiskFile(fd, name)

    def sync(self) -> None:
        """Return once all names given and removed are on the disk."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Let go of the folder."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _is(self, name: str, fd: int) -> bool:
        try:
            return os.path.samestat(os.stat(name, dir_fd=self._fd, follow_symlinks=False), os.fstat(fd))
        except FileNotFoundError:
            return False


def _lock(fd: int) -> bool | None:
    """Lock an open file without waiting: False when someone else has it, None where locks do not work."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        raise
    return True
