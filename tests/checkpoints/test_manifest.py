"""The manifest: its exact form, and that anything else is refused with the field's name."""

import json

import pytest

from genrm_trio.checkpoints.errors import CheckpointStateError
from genrm_trio.checkpoints.manifest import Manifest, check_instance, decode_manifest, records_file_name

SHA = "0123456789abcdef" * 4
GOOD = Manifest("genrm_compare", "ck-1", records_file_name(SHA), SHA, 3)


def changed(**changes: object) -> bytes:
    return json.dumps({**GOOD.document(), **changes}).encode()


def without(name: str) -> bytes:
    return json.dumps({key: value for key, value in GOOD.document().items() if key != name}).encode()


def test_the_file_has_sorted_keys_and_an_indent_of_one() -> None:
    assert GOOD.encode().decode() == (
        "{\n"
        ' "checkpoint_id": "ck-1",\n'
        ' "instance": "genrm_compare",\n'
        ' "kind": "resources",\n'
        ' "record_count": 3,\n'
        f' "records_file": "records-{SHA}.jsonl",\n'
        f' "records_sha256": "{SHA}",\n'
        ' "schema_version": 1\n'
        "}\n"
    )
    assert decode_manifest(GOOD.encode(), "genrm_compare") == GOOD


def test_fields_of_newer_writers_are_left_alone() -> None:
    assert decode_manifest(changed(session_owners={"a": 1}), "genrm_compare") == GOOD


def test_the_older_name_of_the_records_file_is_read() -> None:
    assert decode_manifest(changed(records_file="records.jsonl"), "genrm_compare").records_file == "records.jsonl"


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "not JSON"),
        (b"[1]", "must be an object"),
        (b'{"kind":"resources","kind":"resources"}', "'kind' stands twice"),
        (changed(schema_version=2), "schema_version must be 1, not 2"),
        (changed(schema_version=True), "schema_version must be 1, not True"),
        (changed(schema_version="1"), "schema_version must be 1"),
        (without("schema_version"), "schema_version must be 1, not None"),
        (changed(kind="agent"), "kind must be 'resources', not 'agent'"),
        (changed(instance="other"), "instance must be 'genrm_compare', not 'other'"),
        (without("checkpoint_id"), "checkpoint_id must be a string"),
        (changed(checkpoint_id=7), "checkpoint_id must be a string"),
        (changed(records_file="../records.jsonl"), "records_file .* must match"),
        (changed(records_file=f"records-{SHA[:-1]}.jsonl"), "records_file .* must match"),
        (changed(records_file=f"records-{SHA}.jsonl\n"), "records_file .* must match"),
        (changed(records_file=None), "records_file must be a string"),
        (changed(records_sha256=SHA.upper()), "records_sha256 .* must match"),
        (changed(record_count=-1), "record_count must be an integer"),
        (changed(record_count=True), "record_count must be an integer"),
        (changed(record_count=3.0), "record_count must be an integer"),
    ],
)
def test_anything_else_is_refused_with_the_fields_name(data: bytes, told: str) -> None:
    with pytest.raises(CheckpointStateError, match=told):
        decode_manifest(data, "genrm_compare")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-a", "a b", "ä", "a\n", "a\0"])
def test_an_instance_that_cannot_name_a_folder_is_refused(name: str) -> None:
    with pytest.raises(CheckpointStateError, match="instance"):
        check_instance(name)


@pytest.mark.parametrize("name", ["a", "0", "genrm_compare", "A.b-c_d"])
def test_good_instances_pass(name: str) -> None:
    check_instance(name)
