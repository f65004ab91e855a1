"""What `inspect` reads from a checkpoint: counts, and every kind of damage."""

import hashlib
import json
from pathlib import Path

import pytest
from tests.checkpoints.material import INSTANCE, write

from genrm_trio.checkpoints.disk import open_folder
from genrm_trio.checkpoints.inspection import MAX_DAMAGE_TOLD, Inspection, inspect_checkpoint
from genrm_trio.checkpoints.manifest import MANIFEST, Manifest
from genrm_trio.checkpoints.records import Record
from genrm_trio.core.identity import EpisodeId
from genrm_trio.core.outcome import JSON

PROMPT = "ab" * 32


def state(group: str, index: int, *, failure: str | None = None, **changes: JSON) -> JSON:
    """An exported state as the core writes it."""
    common: dict[str, JSON] = {
        "group_id": group,
        "group_attempt": 0,
        "newest_attempt": 1,
        "rollout_index": index,
        "prompt_digest": PROMPT,
        "response_digest": f"{index:064x}",
        "response_digest_scheme": "genrm-trio-1",
    }
    own: dict[str, JSON] = {"result": {"reward": index / 3}}
    if failure is not None:
        own = {"failure_kind": "judge", "failure": failure}
    return {**common, **own, **changes}


def sessions(*states: JSON) -> list[Record]:
    return [Record(EpisodeId(f"r{n}"), f"s{n}", one) for n, one in enumerate(states)]


def written(directory: Path, *states: JSON, instance: str = INSTANCE) -> Path:
    """Write a checkpoint of these states; returns the folder of its part."""
    path = directory / "gym" / "resources" / instance
    folder = open_folder(path, create=True)
    write(folder, sessions(*states))
    folder.close()
    return path


def inspected(directory: Path) -> Inspection:
    (found,) = inspect_checkpoint(directory)
    return found


def test_a_good_checkpoint_is_counted(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        state("g", 0),
        state("g", 1),
        state("g", 1),  # a second session that backs the same member
        state("g", 0, group_attempt=1),
        state("h", 0, failure="no verdict"),
        {},
        {},
    )
    for directory in (tmp_path, path):
        found = inspected(directory)
        assert not found.damaged, found.damage
        assert found.digest_ok is True
        assert (found.sessions, found.empty_states, found.groups, found.cohorts) == (7, 2, 2, 3)
        assert (found.rewarded, found.judge_failed) == (3, 1)
        assert found.notes == []
    rows = dict(inspected(tmp_path).rows())
    assert rows["checkpoint_id"] == "ck-1"
    assert rows["digest"] == "matches"
    assert rows["record_count"] == "7"


@pytest.mark.parametrize("suffix", ["", f":{'cd' * 32}", ":rubrics:1,2", f":{'cd' * 32}:rubrics:3"])
def test_states_of_every_configuration_are_read(tmp_path: Path, suffix: str) -> None:
    written(tmp_path, state("g", 0, prompt_digest=PROMPT + suffix))
    assert inspected(tmp_path).damage == []


def test_an_empty_checkpoint_is_good(tmp_path: Path) -> None:
    written(tmp_path)
    found = inspected(tmp_path)
    assert (found.damaged, found.sessions, found.digest_ok) == (False, 0, True)


def test_every_server_of_the_checkpoint_is_inspected(tmp_path: Path) -> None:
    for instance in ("b", "a"):
        path = tmp_path / "gym" / "resources" / instance
        path.mkdir(parents=True)
        sha = hashlib.sha256(b"").hexdigest()
        (path / "records.jsonl").write_bytes(b"")
        (path / MANIFEST).write_bytes(Manifest(instance, "ck", "records.jsonl", sha, 0).encode())
    found = inspect_checkpoint(tmp_path)
    assert [one.folder.name for one in found] == ["a", "b"]
    assert [one.damage for one in found] == [[], []]


def test_odd_but_harmless_files_are_noted(tmp_path: Path) -> None:
    path = written(tmp_path, {})
    (path / ".records.jsonl.abc").touch()
    (path / f"records-{'0' * 64}.jsonl").touch()
    found = inspected(tmp_path)
    assert not found.damaged
    assert found.notes == [
        ".records.jsonl.abc: left by a process that was killed",
        f"records-{'0' * 64}.jsonl: no manifest names it",
    ]


def test_nothing_there_is_damage(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "missing"):
        assert "no checkpoint here" in inspected(directory).damage[0]


def test_a_part_without_a_manifest_is_damage(tmp_path: Path) -> None:
    path = written(tmp_path, {})
    (path / MANIFEST).unlink()
    assert "manifest.json does not exist" in inspected(tmp_path).damage[0]


def test_a_damaged_manifest_is_told(tmp_path: Path) -> None:
    path = written(tmp_path, {})
    document = json.loads((path / MANIFEST).read_bytes())
    (path / MANIFEST).write_text(json.dumps({**document, "schema_version": 9}))
    found = inspected(tmp_path)
    assert found.damage == ["manifest.json: schema_version must be 1, not 9"]
    assert dict(found.rows())["digest"] == "not checked"


def test_a_damaged_records_file_is_told_and_read_on(tmp_path: Path) -> None:
    path = written(tmp_path, state("g", 0), state("g", 1), state("h", 0))
    (file,) = path.glob("records-*")
    first, second, third = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(first + second[:20] + b"\n" + third)
    found = inspected(tmp_path)
    assert found.damaged
    assert found.digest_ok is False
    assert "sha256 is" in found.damage[0]
    assert "line 2: not JSON" in found.damage[1]
    assert (found.sessions, found.groups) == (2, 2)


def test_a_missing_records_file_is_told(tmp_path: Path) -> None:
    path = written(tmp_path, {})
    (file,) = path.glob("records-*")
    file.unlink()
    assert "does not exist, but manifest.json names it" in inspected(tmp_path).damage[0]


def test_states_that_a_restore_would_refuse_are_damage_though_the_digest_fits(tmp_path: Path) -> None:
    written(
        tmp_path,
        state("g", 0),
        state("g", 0, response_digest="f" * 64),
        state("h", 0, response_digest_scheme="md5"),
        state("i", 0, surprise=1),
        [],
    )
    found = inspected(tmp_path)
    assert found.digest_ok is True
    assert found.damage_count == 4
    assert [name in text for name, text in zip(["'s1'", "'s2'", "'s3'", "'s4'"], found.damage, strict=True)] == [
        True
    ] * 4


def test_the_list_of_damage_is_bounded(tmp_path: Path) -> None:
    written(tmp_path, *([[]] * 200))
    found = inspected(tmp_path)
    assert found.damage_count == 200
    assert len(found.damage) == MAX_DAMAGE_TOLD


def test_a_folder_that_is_no_folder_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "gym" / "resources" / INSTANCE
    path.mkdir(parents=True)
    (path / MANIFEST).mkdir()
    assert "not a regular file" in inspected(tmp_path).damage[0]
