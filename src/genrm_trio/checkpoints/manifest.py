"""A checkpoint's manifest: the small file that makes a records file count. Pure functions on bytes.

A checkpoint exists if and only if its manifest does; the manifest is written last and never replaced
(contract 10.8).
"""

import json
import re
from dataclasses import dataclass

from genrm_trio.checkpoints.errors import CheckpointStateError
from genrm_trio.checkpoints.records import Malformed, strict_json
from genrm_trio.core.outcome import JSON

MANIFEST = "manifest.json"
KIND = "resources"
SCHEMA_VERSION = 1
MAX_MANIFEST_BYTES = 64 * 1024 * 1024
"""Newer writers may add fields of their own, such as the owners of sessions; a longer file is damage."""

INSTANCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_RECORDS_FILE = re.compile(r"records(-[0-9a-f]{64})?\.jsonl", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a manifest says. `records_sha256` is the lower-case hex digest of the records file's bytes."""

    instance: str
    checkpoint_id: str
    records_file: str
    records_sha256: str
    record_count: int

    def document(self) -> dict[str, JSON]:
        """The manifest's JSON object, as it is written and as the reply to commit carries it."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": KIND,
            "instance": self.instance,
            "checkpoint_id": self.checkpoint_id,
            "records_file": self.records_file,
            "records_sha256": self.records_sha256,
            "record_count": self.record_count,
        }

    def encode(self) -> bytes:
        """The file's bytes: keys sorted, indented by one."""
        return json.dumps(self.document(), sort_keys=True, indent=1).encode("ascii") + b"\n"


def records_file_name(sha256: str) -> str:
    """The name of the records file with this digest."""
    return f"records-{sha256}.jsonl"


def check_instance(instance: str) -> None:
    """Raise CheckpointStateError unless `instance` can name a folder (contract 10.8)."""
    if not INSTANCE.fullmatch(instance):
        raise CheckpointStateError(f"instance {instance[:80]!r} must match {INSTANCE.pattern}")


def decode_manifest(data: bytes, instance: str) -> Manifest:
    """Read and check a manifest of this instance; fields it does not know are left alone.

    Raises CheckpointStateError that names the field.
    """
    try:
        document = strict_json(data)
    except Malformed as error:
        raise CheckpointStateError(f"{MANIFEST}: {error}") from error
    if not isinstance(document, dict):
        raise CheckpointStateError(f"{MANIFEST} must be an object")
    version = document.get("schema_version")
    if version != SCHEMA_VERSION or isinstance(version, (bool, float)):
        raise CheckpointStateError(f"{MANIFEST}: schema_version must be {SCHEMA_VERSION}, not {version!r}"[:200])
    for name, expected in (("kind", KIND), ("instance", instance)):
        if document.get(name) != expected:
            found = str(document.get(name))[:80]
            raise CheckpointStateError(f"{MANIFEST}: {name} must be {expected!r}, not {found!r}")
    return Manifest(
        instance=instance,
        checkpoint_id=_text(document, "checkpoint_id"),
        records_file=_text(document, "records_file", _RECORDS_FILE),
        records_sha256=_text(document, "records_sha256", _SHA256),
        record_count=_count(document),
    )


def _text(document: dict[str, JSON], name: str, grammar: re.Pattern[str] | None = None) -> str:
    value = document.get(name)
    if not isinstance(value, str):
        raise CheckpointStateError(f"{MANIFEST}: {name} must be a string")
    if grammar is not None and not grammar.fullmatch(value):
        raise CheckpointStateError(f"{MANIFEST}: {name} {value[:120]!r} must match {grammar.pattern}")
    return value


def _count(document: dict[str, JSON]) -> int:
    value = document.get("record_count")
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise CheckpointStateError(f"{MANIFEST}: record_count must be an integer of 0 or more")
    return value
