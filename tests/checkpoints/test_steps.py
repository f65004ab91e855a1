"""Writing and reading: never a half checkpoint, whatever fails, dies or is damaged, and never a replaced one."""

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.checkpoints.material import INSTANCE, any_records, read, record, records, write

from genrm_trio.checkpoints import steps as steps_module
from genrm_trio.checkpoints.disk import open_folder
from genrm_trio.checkpoints.errors import CheckpointStateError
from genrm_trio.checkpoints.faults import FailAt, Killed, WatchedFolder
from genrm_trio.checkpoints.folders import Folder
from genrm_trio.checkpoints.manifest import MANIFEST, Manifest, decode_manifest
from genrm_trio.checkpoints.memory import Blob, MemoryFile, MemoryFolder
from genrm_trio.checkpoints.records import MAX_RECORD_BYTES, Record, encode_record
from genrm_trio.checkpoints.steps import Stage, write_steps
from genrm_trio.core.identity import EpisodeId


def visible(folder: Folder) -> list[str]:
    return sorted(name for name in folder.names() if not name.startswith("."))


def temporary(folder: Folder) -> list[str]:
    return sorted(name for name in folder.names() if name.startswith("."))


# -- round trips ---------------------------------------------------------------------------------------


@given(any_records)
def test_what_was_written_is_read_back_and_writes_the_same_bytes(content: list[Record]) -> None:
    folder = MemoryFolder()
    manifest = write(folder, content)
    checkpoint = read(folder)
    assert checkpoint.manifest == manifest
    assert checkpoint.records == content
    again = MemoryFolder()
    assert write(again, checkpoint.records) == manifest
    assert again.blobs[manifest.records_file].data == folder.blobs[manifest.records_file].data


def test_the_digest_is_over_the_files_bytes() -> None:
    folder = MemoryFolder()
    manifest = write(folder, records(300))
    data = bytes(folder.blobs[manifest.records_file].data)
    assert data == b"".join(encode_record(one) for one in records(300))
    assert manifest.records_file == f"records-{hashlib.sha256(data).hexdigest()}.jsonl"
    assert manifest.record_count == 300
    assert visible(folder) == [MANIFEST, manifest.records_file]
    assert temporary(folder) == []


def test_only_the_episodes_in_scope_are_kept() -> None:
    folder = MemoryFolder()
    write(folder, [record(1), record(2, attempt=1), record(3)])
    scope = frozenset({EpisodeId("r2", 1), EpisodeId("r3", 1), EpisodeId("absent")})
    assert read(folder, scope).records == [record(2, attempt=1)]
    assert read(folder, frozenset()).records == []


# -- never replaced ------------------------------------------------------------------------------------


def test_the_same_content_again_succeeds() -> None:
    folder = MemoryFolder()
    first = write(folder, records(3))
    before = bytes(folder.blobs[MANIFEST].data)
    assert write(folder, records(3)) == first
    assert folder.blobs[MANIFEST].data == before
    assert temporary(folder) == []


def test_the_same_content_with_fields_of_a_newer_writer_succeeds() -> None:
    folder = MemoryFolder()
    manifest = write(folder, records(3))
    folder.blobs[MANIFEST] = Blob(bytearray(json.dumps({**manifest.document(), "session_owners": {}}).encode()))
    assert write(folder, records(3)) == manifest


def test_the_same_content_again_heals_a_damaged_records_file() -> None:
    folder = MemoryFolder()
    manifest = write(folder, records(3))
    folder.blobs[manifest.records_file].data[5] ^= 1
    write(folder, records(3))
    assert read(folder).records == records(3)


def test_other_content_is_refused_and_its_records_go() -> None:
    folder = MemoryFolder()
    manifest = write(folder, records(3))
    with pytest.raises(CheckpointStateError, match=r"'ck-1' with other content; manifest\.json is never replaced"):
        write(folder, records(4))
    assert visible(folder) == [MANIFEST, manifest.records_file]
    assert temporary(folder) == []
    assert read(folder).records == records(3)


def test_another_checkpoint_with_the_same_records_loses_but_leaves_them() -> None:
    folder = MemoryFolder()
    manifest = write(folder, records(3))
    with pytest.raises(CheckpointStateError, match="another checkpoint, 'ck-1'"):
        write(folder, records(3), "ck-2")
    assert visible(folder) == [MANIFEST, manifest.records_file]
    assert read(folder).manifest == manifest


def test_a_manifest_that_cannot_be_read_is_not_replaced_either() -> None:
    folder = MemoryFolder()
    folder.blobs[MANIFEST] = Blob(bytearray(b"{"))
    with pytest.raises(CheckpointStateError, match="cannot be read"):
        write(folder, records(3))
    assert visible(folder) == [MANIFEST]


# -- abandoned -----------------------------------------------------------------------------------------


def test_an_abandoned_write_leaves_nothing() -> None:
    stages = list(write_steps(MemoryFolder(), instance=INSTANCE, checkpoint_id="ck", records=records(1500)))
    assert len(stages) > 3
    assert stages.index(Stage.PUBLISHING) == len(stages) - 1
    for n in range(1, len(stages) + 1):
        folder = MemoryFolder()
        steps = write_steps(folder, instance=INSTANCE, checkpoint_id="ck", records=records(1500))
        for _ in range(n):
            next(steps)
        steps.close()
        assert folder.names() == []


def test_more_records_than_a_checkpoint_may_have_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_module, "MAX_RECORDS", 300)
    folder = MemoryFolder()
    with pytest.raises(CheckpointStateError, match="more than 300 records"):
        write(folder, records(301))
    assert folder.names() == []
    assert write(folder, records(300)).record_count == 300
    assert read(folder).records == records(300)


def test_a_record_that_cannot_be_written_leaves_nothing() -> None:
    folder = MemoryFolder()
    with pytest.raises(CheckpointStateError, match="session-7"):
        write(folder, [*records(5), record(7, float("nan"))])
    assert folder.names() == []


# -- the n-th operation fails, or the process dies there -----------------------------------------------


def consistent(folder: Folder, content: list[Record]) -> bool:
    """A reader finds no manifest, or this whole checkpoint. Returns which."""
    if MANIFEST not in folder.names():
        with pytest.raises(CheckpointStateError, match="does not exist"):
            read(folder)
        return False
    assert read(folder).records == content
    return True


def operations(content: list[Record]) -> list[str]:
    """The operations of a write that meets one stale file of a killed process."""
    announced = FailAt(10**9, OSError())
    folder = MemoryFolder()
    folder.create(".records.jsonl.").close()
    write(WatchedFolder(folder, announced), content)
    return announced.calls


CONTENT = records(1500)
OPERATIONS = operations(CONTENT)


def test_the_sweep_meets_every_kind_of_operation() -> None:
    assert set(OPERATIONS) == {
        "names", "remove_stale", "create", "write", "sync_file", "rename", "sync_folder", "link", "remove",
    }  # fmt: skip


@pytest.mark.parametrize("n", range(1, len(OPERATIONS) + 1))
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), Killed()], ids=["fails", "dies"])
def test_any_operation_may_fail_or_be_the_last(tmp_path: Path, n: int, error: BaseException) -> None:
    broken = open_folder(tmp_path, create=False)
    broken.create(".records.jsonl.").close()
    try:
        write(WatchedFolder(broken, FailAt(n, error)), CONTENT)
    except (OSError, Killed):
        pass
    else:
        # Only what cannot be removed may be passed over: it is removed by the next commit.
        assert OPERATIONS[n - 1] == "remove"
    broken.close()
    folder = open_folder(tmp_path, create=False)
    published = consistent(folder, CONTENT)
    if published:
        with pytest.raises(CheckpointStateError, match="never replaced"):
            write(folder, records(7))
        assert read(folder).records == CONTENT
    assert write(folder, CONTENT).record_count == len(CONTENT)
    assert consistent(folder, CONTENT)
    assert temporary(folder) == []
    assert len(visible(folder)) == 2
    folder.close()


@pytest.mark.parametrize("n", range(1, 40))
def test_the_losing_writer_may_die_anywhere_too(n: int) -> None:
    folder = MemoryFolder()
    write(folder, CONTENT)
    hook = FailAt(n, Killed())
    with pytest.raises((Killed, CheckpointStateError)):
        write(WatchedFolder(folder, hook), records(3))
    assert read(folder).records == CONTENT


class LossyFile(MemoryFile):
    """A file whose content is only safe once it was synced."""

    def __init__(self, file: MemoryFile, blob: Blob, synced: set[int]) -> None:
        super().__init__(blob, file.name)
        self._id = id(blob)
        self._synced = synced

    def sync(self) -> None:
        self._synced.add(self._id)


class LossyFolder(MemoryFolder):
    """A folder whose machine may lose power: what was not synced may be there or not, in any combination."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: set[int] = set()
        self.durable: dict[str, Blob] = {}
        self.pending: list[tuple[str, Blob | None]] = []

    def create(self, prefix: str) -> MemoryFile:
        file = super().create(prefix)
        return LossyFile(file, self.blobs[file.name], self.synced)

    def rename(self, temporary: str, name: str) -> None:
        super().rename(temporary, name)
        self.pending += [(name, self.blobs[name]), (temporary, None)]

    def link(self, temporary: str, name: str) -> bool:
        linked = super().link(temporary, name)
        if linked:
            self.pending.append((name, self.blobs[name]))
        return linked

    def remove(self, name: str) -> None:
        super().remove(name)
        self.pending.append((name, None))

    def sync(self) -> None:
        self.durable = dict(self.blobs)
        self.pending.clear()

    def after_power_loss(self, kept: int) -> MemoryFolder:
        """What is found afterwards: the bits of `kept` say which pending names survived."""
        names = dict(self.durable)
        for bit, (name, blob) in enumerate(self.pending):
            if kept >> bit & 1:
                if blob is None:
                    names.pop(name, None)
                else:
                    names[name] = blob
        found = MemoryFolder()
        for name, blob in names.items():
            found.blobs[name] = blob if id(blob) in self.synced else Blob(bytearray(b"\0" * len(blob.data)))
        return found


@pytest.mark.parametrize("n", range(1, len(OPERATIONS) + 2))
def test_a_power_loss_at_any_operation_leaves_no_checkpoint_or_a_whole_one(n: int) -> None:
    folder = LossyFolder()
    try:
        write(WatchedFolder(folder, FailAt(n, Killed())), CONTENT)
        finished = True
    except Killed:
        finished = False
    for kept in range(1 << len(folder.pending)):
        found = consistent(folder.after_power_loss(kept), CONTENT)
        assert found or not finished, "a write that returned survives"


# -- damage --------------------------------------------------------------------------------------------


@st.composite
def damage(draw: st.DrawFn, data: bytes) -> bytes:
    """The bytes with one to three flips, insertions, removals or cuts."""
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        match draw(st.sampled_from(["flip", "insert", "remove", "cut", "double"])):
            case "flip":
                data = data[:at] + bytes([data[at] ^ draw(st.integers(1, 255))]) + data[at + 1 :] if data else data
            case "insert":
                data = data[:at] + draw(st.binary(min_size=1, max_size=4)) + data[at:]
            case "remove":
                data = data[:at] + data[at + draw(st.integers(1, 40)) :]
            case "cut":
                data = data[:at]
            case _:
                data += data[at:]
    return data


@given(st.data(), any_records.filter(bool))
def test_a_damaged_records_file_is_never_read_as_valid(data: st.DataObject, content: list[Record]) -> None:
    folder = MemoryFolder()
    manifest = write(folder, content)
    good = bytes(folder.blobs[manifest.records_file].data)
    bad = data.draw(damage(good))
    folder.blobs[manifest.records_file] = Blob(bytearray(bad))
    if bad == good:
        assert read(folder).records == content
        return
    with pytest.raises(CheckpointStateError, match="sha256 is"):
        read(folder)


@given(st.data())
def test_a_damaged_manifest_never_gives_other_records(data: st.DataObject) -> None:
    folder = MemoryFolder()
    manifest = write(folder, records(3))
    bad = data.draw(damage(bytes(folder.blobs[MANIFEST].data)))
    folder.blobs[MANIFEST] = Blob(bytearray(bad))
    try:
        checkpoint = read(folder)
    except CheckpointStateError:
        return
    # The manifest itself has no digest: only the checkpoint's id, or white space, can have changed.
    assert checkpoint.records == records(3)
    assert checkpoint.manifest.records_sha256 == manifest.records_sha256


def forged(*lines: bytes) -> MemoryFolder:
    """A checkpoint whose digest and count fit its records, whatever these are."""
    data = b"".join(lines)
    sha = hashlib.sha256(data).hexdigest()
    folder = MemoryFolder()
    folder.blobs["records.jsonl"] = Blob(bytearray(data))
    manifest = Manifest(INSTANCE, "ck-1", "records.jsonl", sha, data.count(b"\n") + (not data.endswith(b"\n")))
    folder.blobs[MANIFEST] = Blob(bytearray(manifest.encode()))
    return folder


GOOD = encode_record(record(1))


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([GOOD, b"\n"], "line 2: not JSON"),
        ([GOOD, b"{}\n", GOOD], "line 2: record lacks .*; line 3: field session_id: 'session-1' occurs twice"),
        ([GOOD[:-1]], "line 1 does not end in a newline"),
        ([GOOD, b" " * MAX_RECORD_BYTES + b"\n", encode_record(record(2))], "line 2 is longer than"),
        ([b"{}\n"] * 30, "line 3: .* \\(and 27 more\\)"),
    ],
)
def test_records_are_checked_though_their_digest_fits(lines: list[bytes], told: str) -> None:
    with pytest.raises(CheckpointStateError, match=told):
        read(forged(*lines))


def test_a_line_of_just_the_allowed_length_is_read() -> None:
    padded = GOOD[:-1].ljust(MAX_RECORD_BYTES - 1) + b"\n"
    assert read(forged(padded)).records == [record(1)]


def test_the_count_must_fit() -> None:
    folder = MemoryFolder()
    manifest = write(folder, records(3))
    document = {**manifest.document(), "record_count": 2}
    folder.blobs[MANIFEST] = Blob(bytearray(json.dumps(document).encode()))
    with pytest.raises(CheckpointStateError, match="3 records, the manifest says 2"):
        read(folder)


def test_a_missing_records_file_is_told() -> None:
    folder = MemoryFolder()
    manifest = write(folder, records(3))
    folder.remove(manifest.records_file)
    with pytest.raises(CheckpointStateError, match=f"{manifest.records_file} does not exist"):
        read(folder)


def test_a_count_beyond_the_bound_is_refused_before_reading() -> None:
    folder = MemoryFolder()
    manifest = write(folder, records(3))
    document = {**manifest.document(), "record_count": 10**9}
    folder.blobs[MANIFEST] = Blob(bytearray(json.dumps(document).encode()))
    with pytest.raises(CheckpointStateError, match="record_count is above"):
        read(folder)


def test_an_empty_checkpoint_is_a_checkpoint() -> None:
    folder = MemoryFolder()
    manifest = write(folder, [])
    assert decode_manifest(bytes(folder.blobs[MANIFEST].data), INSTANCE) == manifest
    assert read(folder).records == []
