"""The folder on disk: where it may lie, what is never followed, and whose temporary files are removed."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.checkpoints.material import INSTANCE, any_text, read, records, write

from genrm_trio.checkpoints import disk
from genrm_trio.checkpoints.disk import DiskFolder, folder_path, open_folder
from genrm_trio.checkpoints.errors import CheckpointStateError
from genrm_trio.checkpoints.manifest import MANIFEST

TAIL = f"gym/resources/{INSTANCE}"


@pytest.fixture
def folder(tmp_path: Path) -> DiskFolder:
    return open_folder(tmp_path / "ck" / TAIL, create=True)


# -- where it may lie ----------------------------------------------------------------------------------


def test_without_a_root_any_path_is_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert folder_path(str(tmp_path / "ck"), INSTANCE, None) == tmp_path / "ck" / TAIL
    assert folder_path("ck", INSTANCE, None) == tmp_path / "ck" / TAIL


@pytest.mark.parametrize("given_dir", ["ck", "./ck", "a/../ck", "{base}/ck", "{base}/../base/ck", "{base}//ck/"])
def test_under_the_root_relative_and_absolute_paths_are_good(tmp_path: Path, given_dir: str) -> None:
    root = tmp_path / "base"
    root.mkdir()
    assert folder_path(given_dir.format(base=root), INSTANCE, root) == root / "ck" / TAIL


@pytest.mark.parametrize(
    "given_dir", ["..", "../other", "ck/../../other", "{base}/../other", "{base}other", "/", "/etc"]
)
def test_outside_the_root_is_refused(tmp_path: Path, given_dir: str) -> None:
    root = tmp_path / "base"
    root.mkdir()
    with pytest.raises(CheckpointStateError, match="does not lie under"):
        folder_path(given_dir.format(base=root), INSTANCE, root)


@pytest.mark.parametrize("where", ["ck", "ck/gym", "ck/gym/resources", f"ck/{TAIL}"])
def test_a_link_that_leaves_the_root_is_refused(tmp_path: Path, where: str) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    outside.mkdir()
    link = root / where
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    with pytest.raises(CheckpointStateError, match="does not lie under"):
        folder_path("ck", INSTANCE, root)
    assert list(outside.iterdir()) == []


def test_a_link_within_the_root_and_a_root_that_is_a_link_are_good(tmp_path: Path) -> None:
    (tmp_path / "real" / "run-5").mkdir(parents=True)
    (tmp_path / "real" / "latest").symlink_to("run-5")
    (tmp_path / "root").symlink_to(tmp_path / "real")
    expected = tmp_path / "real" / "run-5" / TAIL
    assert folder_path("latest", INSTANCE, tmp_path / "root") == expected
    assert folder_path(str(tmp_path / "root" / "latest"), INSTANCE, tmp_path / "root") == expected


def test_a_link_put_there_after_the_look_leads_nowhere(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    outside.mkdir()
    path = folder_path("ck", INSTANCE, root)
    root.mkdir()
    (root / "ck").symlink_to(outside)
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        open_folder(path, create=True)
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("given_dir", ["a\0b", "a\ud800b", "x" * 5000, ""])
def test_what_is_no_path_is_refused(tmp_path: Path, given_dir: str) -> None:
    with pytest.raises((CheckpointStateError, OSError), match=r"cannot be used|must not be empty|too long"):
        open_folder(folder_path(given_dir, INSTANCE, tmp_path), create=True)


@given(st.one_of(any_text(30), st.text("./\\~-ab", max_size=20)))
def test_no_text_leads_out_of_the_root(tmp_path_factory: pytest.TempPathFactory, given_dir: str) -> None:
    root = tmp_path_factory.getbasetemp() / "no-text-leads-out"
    try:
        path = folder_path(given_dir, INSTANCE, root)
    except CheckpointStateError:
        return
    assert path.is_relative_to(root)
    assert ".." not in path.parts


def test_missing_parts_are_made_and_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noted(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    open_folder(tmp_path / "a" / "b", create=True).close()
    assert synced == [str(tmp_path), str(tmp_path / "a")]
    with pytest.raises(FileNotFoundError):
        open_folder(tmp_path / "c", create=False)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = count()
    for n in range(3):
        folder = open_folder(tmp_path / "ck", create=True)
        write(folder, records(3))
        with pytest.raises(CheckpointStateError):
            write(folder, records(4 + n))
        read(folder)
        folder.close()
        folder.close()
        with pytest.raises(FileNotFoundError):
            open_folder(tmp_path / "ck" / "missing", create=False)
    assert count() == before


# -- what is never followed or taken for a file --------------------------------------------------------


def test_a_manifest_or_records_file_that_is_a_link_is_not_read(tmp_path: Path, folder: DiskFolder) -> None:
    manifest = write(folder, records(3))
    real = tmp_path / "ck" / TAIL
    for name in (manifest.records_file, MANIFEST):
        (real / name).rename(tmp_path / name)
        (real / name).symlink_to(tmp_path / name)
        with pytest.raises(OSError, match="Too many levels"):
            read(folder)


def test_a_pipe_is_not_waited_for(tmp_path: Path, folder: DiskFolder) -> None:
    os.mkfifo(tmp_path / "ck" / TAIL / MANIFEST)
    with pytest.raises(OSError, match="not a regular file"):
        read(folder)


def test_odd_things_with_the_names_of_temporary_files_stay(tmp_path: Path, folder: DiskFolder) -> None:
    real = tmp_path / "ck" / TAIL
    (real / ".records.jsonl.folder").mkdir()
    (real / ".records.jsonl.link").symlink_to("/etc/passwd")
    os.mkfifo(real / ".manifest.json.pipe")
    write(folder, records(3))
    left = {name for name in folder.names() if name.startswith(".")}
    assert left == {".records.jsonl.folder", ".records.jsonl.link", ".manifest.json.pipe"}


# -- whose temporary files go --------------------------------------------------------------------------

WRITER = """
import sys, pathlib
from genrm_trio.checkpoints.disk import open_folder
folder = open_folder(pathlib.Path(sys.argv[1]), create=False)
file = folder.create(".records.jsonl.")
file.write(b"half a rec")
print(file.name, flush=True)
sys.stdin.read()
"""


def test_the_file_of_a_live_process_stays_and_that_of_a_killed_one_goes(tmp_path: Path, folder: DiskFolder) -> None:
    real = tmp_path / "ck" / TAIL
    command = [sys.executable, "-c", WRITER, str(real)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        write(folder, records(3))
        assert name in folder.names()
        process.kill()
        process.wait()
        write(folder, records(3))
    assert name not in folder.names()


def test_another_writer_of_this_process_is_a_live_one(folder: DiskFolder) -> None:
    file = folder.create(".records.jsonl.")
    write(folder, records(3))
    assert file.name in folder.names()
    file.close()
    write(folder, records(3))
    assert file.name not in folder.names()


def test_a_file_taken_before_it_was_locked_is_made_anew(folder: DiskFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = disk._lock
    taken: list[str] = []

    def cleaned_up_first(fd: int) -> bool | None:
        if not taken:
            (name,) = folder.names()
            taken.append(name)
            folder.remove(name)
        return lock(fd)

    monkeypatch.setattr(disk, "_lock", cleaned_up_first)
    file = folder.create(".records.jsonl.")
    assert folder.names() == [file.name]
    assert file.name not in taken


def test_when_every_new_file_is_taken_it_gives_up(folder: DiskFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_lock", lambda fd: False)
    with pytest.raises(OSError, match="takes every temporary file"):
        folder.create(".records.jsonl.")


@pytest.mark.parametrize("error", [38, 95])
def test_where_locks_do_not_work_files_are_written_and_none_is_removed(
    folder: DiskFolder, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def refused(fd: int, operation: int) -> None:
        raise OSError(error, "no locks here")

    left = folder.create(".records.jsonl.")
    left.close()
    monkeypatch.setattr(fcntl, "flock", refused)
    write(folder, records(3))
    assert left.name in folder.names()
    assert read(folder).records == records(3)
