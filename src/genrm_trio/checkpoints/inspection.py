"""What a checkpoint holds, for a person: its manifest, its counts, and everything that is wrong with it.

Reads the same files with the same checks as a restore, but goes on after a fault and collects them. Changes
nothing. It does not know the server's settings, so what only those decide is not checked.
"""

import re
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from genrm_trio.checkpoints.disk import open_folder
from genrm_trio.checkpoints.errors import CheckpointStateError
from genrm_trio.checkpoints.folders import TEMPORARY, Folder
from genrm_trio.checkpoints.manifest import INSTANCE, MANIFEST, Manifest, decode_manifest
from genrm_trio.checkpoints.records import Record
from genrm_trio.checkpoints.steps import finish, open_records, read_manifest_bytes, scan_steps
from genrm_trio.core.outcome import JSON
from genrm_trio.core.record import Rebuild, StateRefused
from genrm_trio.core.state import Limits

MAX_DAMAGE_TOLD = 50
"""How many faults of one checkpoint are told in words; the others are counted."""

_ANY_SIZE = 2**31
_BASELINE = re.compile(r"[0-9a-f]{64}:[0-9a-f]{64}")


@dataclass(slots=True)
class Inspection:
    """One server's part of a checkpoint.

    manifest: None when it cannot be read. digest_ok: None when there was nothing to compare.
    sessions: readable records; empty_states of them carry no outcome. rewarded, judge_failed: members by outcome,
    a member that several sessions back counted once. damage: what makes every restore refuse it; damage_count is how
    much there is. notes: what is odd but harmless.
    """

    folder: Path
    manifest: Manifest | None = None
    digest_ok: bool | None = None
    sessions: int = 0
    empty_states: int = 0
    groups: int = 0
    cohorts: int = 0
    rewarded: int = 0
    judge_failed: int = 0
    damage: list[str] = field(default_factory=list)
    damage_count: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def damaged(self) -> bool:
        """Whether every restore would refuse it, under any configuration."""
        return self.damage_count > 0

    def fault(self, text: str) -> None:
        """Note one fault."""
        self.damage_count += 1
        if len(self.damage) < MAX_DAMAGE_TOLD:
            self.damage.append(text)

    def rows(self) -> list[tuple[str, str]]:
        """Name and value of everything but damage and notes, for a table."""
        manifest = self.manifest
        told: list[tuple[str, object]] = [("folder", self.folder)]
        if manifest is not None:
            told += manifest.document().items()
        digest = {True: "matches", False: "DOES NOT MATCH", None: "not checked"}[self.digest_ok]
        told += [
            ("digest", digest),
            ("sessions", self.sessions),
            ("empty states", self.empty_states),
            ("groups", self.groups),
            ("cohorts", self.cohorts),
            ("members with a reward", self.rewarded),
            ("members judge-failed", self.judge_failed),
        ]
        return [(name, str(value)) for name, value in told]


def inspect_checkpoint(directory: Path) -> list[Inspection]:
    """Inspect every resources server's part of a checkpoint, by name; or one part's own folder.

    `directory` is a checkpoint folder as the controller names it, or the folder with the manifest in it. Where
    there is neither, the one Inspection that is returned says so as damage. Blocks.
    """
    parent = directory / "gym" / "resources"
    parts = sorted(path for path in parent.iterdir() if path.is_dir()) if parent.is_dir() else []
    if not parts and (directory / MANIFEST).exists():
        parts = [directory]
    if not parts:
        missing = Inspection(directory)
        missing.fault(f"there is no checkpoint here: neither gym/resources/<instance> nor {MANIFEST}")
        return [missing]
    return [_inspect_part(path) for path in parts]


def _inspect_part(path: Path) -> Inspection:
    found = Inspection(path)
    try:
        with closing(open_folder(path.resolve(), create=False)) as folder:
            _inspect_folder(folder, path.resolve().name, found)
    except CheckpointStateError as error:
        found.fault(error.detail)
    except OSError as error:
        found.fault(f"{error.filename or path}: {error.strerror or error}")
    return found


def _inspect_folder(folder: Folder, instance: str, found: Inspection) -> None:
    names = sorted(folder.names())
    found.notes += [f"{name}: left by a process that was killed" for name in names if name.startswith(TEMPORARY)]
    if not INSTANCE.fullmatch(instance):
        found.fault(f"the folder's name {instance!r} is not one of an instance: it must match {INSTANCE.pattern}")
    manifest = found.manifest = decode_manifest(read_manifest_bytes(folder), instance)
    unused = [name for name in names if name.startswith("records") and name != manifest.records_file]
    found.notes += [f"{name}: no manifest names it" for name in unused]
    content = _Content(found)
    with closing(open_records(folder, manifest)) as file:
        scan = finish(scan_steps(file, manifest, content.take))
    found.digest_ok = scan.sha256 == manifest.records_sha256
    for fault in scan.faults:
        found.fault(f"{manifest.records_file}: {fault}")
    found.damage_count += scan.fault_count - len(scan.faults)
    content.count()


class _Content:
    """Builds the state that a restore would build, to count it and to meet what disagrees in it."""

    def __init__(self, found: Inspection) -> None:
        self._found = found
        self._rebuild: Rebuild | None = None

    def take(self, record: Record) -> None:
        """Add one readable record."""
        self._found.sessions += 1
        if record.state == {}:
            self._found.empty_states += 1
            return
        if self._rebuild is None:
            self._rebuild = Rebuild(_limits(record.state), 0.0)
        try:
            self._rebuild.add(record.episode, record.session_id, record.state)
        except StateRefused as refused:
            self._found.fault(str(refused))

    def count(self) -> None:
        """Count what was built."""
        if self._rebuild is None:
            return
        state, found = self._rebuild.state, self._found
        found.groups = len(state.groups)
        found.cohorts = len(state.cohorts)
        for cohort in state.cohorts.values():
            if cohort.failure is None:
                found.rewarded += len(cohort.members)
            else:
                found.judge_failed += len(cohort.members)


def _limits(state: JSON) -> Limits:
    """Limits that fit the first state: one server writes all its states under one configuration."""
    prompt = state.get("prompt_digest") if isinstance(state, dict) else None
    text = prompt if isinstance(prompt, str) else ""
    return Limits(
        cohort_size=_ANY_SIZE,
        record_sessions=True,
        fixed_baseline=_BASELINE.match(text) is not None,
        rubrics=":rubrics:" in text,
    )
