"""A record's line: exactly its shape, strict JSON, key order kept, and back without a difference."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.checkpoints.material import any_record, any_records, record

from genrm_trio.checkpoints.errors import CheckpointStateError
from genrm_trio.checkpoints.records import (
    MAX_RECORD_BYTES,
    SLICE_BYTES,
    Malformed,
    Record,
    decode_record,
    encode_record,
    encode_slices,
    strict_json,
)
from genrm_trio.core.identity import EpisodeId


def line(**changes: object) -> bytes:
    """A good record's line with some keys set anew; None of them needs to be good any more."""
    good: dict[str, object] = {"episode_id": {"rollout_id": "r", "attempt": 2}, "session_id": "s", "state": {}}
    return json.dumps(good | changes).encode()


def test_a_record_is_one_line_with_the_state_last() -> None:
    text = encode_record(Record(EpisodeId("r", 1), "s", {"z": 1, "a": [1.5, None]}))
    assert text == (b'{"episode_id":{"rollout_id":"r","attempt":1},"session_id":"s","state":{"z":1,"a":[1.5,null]}}\n')


def test_an_omitted_attempt_is_zero() -> None:
    assert decode_record(line(episode_id={"rollout_id": "r"})).episode == EpisodeId("r", 0)


@given(any_record)
def test_a_record_comes_back_as_it_was(one: Record) -> None:
    text = encode_record(one)
    assert text.count(b"\n") == 1
    back = decode_record(text[:-1])
    assert back == one
    assert encode_record(back) == text  # types of numbers and the order of keys, too


@given(any_records)
def test_slices_are_the_lines_one_after_the_other(content: list[Record]) -> None:
    slices = list(encode_slices(content))
    assert b"".join(data for data, _ in slices) == b"".join(encode_record(one) for one in content)
    assert sum(count for _, count in slices) == len(content)


def test_slices_are_bounded() -> None:
    content = [record(n, {"text": "x" * 1000}) for n in range(500)]
    assert max(len(data) for data, _ in encode_slices(content)) < SLICE_BYTES + 2000


@pytest.mark.parametrize(
    ("damaged", "told"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "must be an object, not a list"),
        (b"null", "not null"),
        (b'{"a":1}{}', "not JSON"),
        (b'\xef\xbb\xbf{"a":1}', "not JSON"),
        (b'{"a":"\xff"}', "not UTF-8 at byte 6"),
        (line(extra=1), "unknown keys 'extra'"),
        (b'{"episode_id":{"rollout_id":"r"},"session_id":"s"}', "lacks state"),
        (b'{"state":{}}', "lacks episode_id, session_id"),
        (line(session_id=1), "session_id must be a string"),
        (line(session_id=""), "session_id must be a string"),
        (line(session_id=None), "session_id must be a string"),
        (line(episode_id="r-a2"), "episode_id must be an object, not a string"),
        (line(episode_id={}), "episode_id lacks rollout_id"),
        (line(episode_id={"rollout_id": "r", "extra": 1}), "episode_id has unknown keys 'extra'"),
        (line(episode_id={"rollout_id": 3}), "rollout_id must be a string"),
        (line(episode_id={"rollout_id": "r/s"}), "rollout_id must be a string that matches"),
        (line(episode_id={"rollout_id": "r\n"}), "rollout_id must be a string that matches"),
        (line(episode_id={"rollout_id": "r-a2"}), "must not end in"),
        (line(episode_id={"rollout_id": "r", "attempt": -1}), "attempt must be 0 or more"),
        (line(episode_id={"rollout_id": "r", "attempt": True}), "attempt must be an integer"),
        (line(episode_id={"rollout_id": "r", "attempt": 1.0}), "attempt must be an integer"),
        (line(episode_id={"rollout_id": "r", "attempt": "1"}), "attempt must be an integer"),
        (line(state=float("nan")), "NaN is not JSON"),
        (line(state=float("-inf")), "-Infinity is not JSON"),
        (line().replace(b'"state": {}', b'"state": 1e999'), "1e999 is not finite"),
        (line().replace(b'"state": {}', b'"state": {"a":{"b":1,"b":1}}'), "'b' stands twice"),
        (line().replace(b'"state": {}', b'"state": {},"session_id":"s"'), "'session_id' stands twice"),
        (line().replace(b'"state": {}', b'"state": ' + b"9" * 5000), "cannot be read"),
        (line().replace(b'"state": {}', b'"state": ' + b"[" * 100_000), "nested too deeply"),
    ],
)
def test_what_is_not_exactly_a_record_is_refused(damaged: bytes, told: str) -> None:
    with pytest.raises(Malformed, match=told.replace("[", r"\[")):
        decode_record(damaged)


@given(st.binary(max_size=200))
def test_reading_any_bytes_either_succeeds_or_is_malformed(data: bytes) -> None:
    with suppress(Malformed):
        json.dumps(strict_json(data), allow_nan=False)


def deep() -> object:
    state: list[object] = []
    for _ in range(100_000):
        state = [state]
    return state


@pytest.mark.parametrize("state", [float("nan"), {"a": float("inf")}, {"a": {1, 2}}, {(1, 2): 3}, deep()])
def test_a_state_that_json_cannot_carry_is_never_written(state: object) -> None:
    one = Record(EpisodeId("r"), "the session", state)  # type: ignore[arg-type]  # that is the fault
    with pytest.raises(CheckpointStateError, match="'the session' is not strict JSON") as caught:
        encode_record(one)
    assert (caught.value.status, caught.value.code) == (422, "invalid_checkpoint_state")


def test_a_record_beyond_the_bound_is_never_written() -> None:
    with pytest.raises(CheckpointStateError, match="are allowed"):
        encode_record(record(1, "x" * MAX_RECORD_BYTES))
