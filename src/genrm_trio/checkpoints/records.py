"""One record of a checkpoint: a session, its episode and its exported state, as a line of JSON and back.

Pure functions on bytes. Reading is strict: exactly the keys of contract 10.8, finite numbers, UTF-8, no key
twice. The state may be any JSON value; its keys keep their order, and it is always written last.
"""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from genrm_trio.checkpoints.errors import CheckpointStateError
from genrm_trio.core.identity import CAPTURE_KEY, EpisodeId
from genrm_trio.core.outcome import JSON

MAX_RECORD_BYTES = 8 * 1024 * 1024
"""Longest line, newline included. One line is encoded or parsed at a stretch, so this bounds the stretch."""

SLICE_BYTES = 64 * 1024
"""How much is encoded or parsed before the thread lets go of the interpreter: about a millisecond of work."""

_RECORD_KEYS = frozenset({"episode_id", "session_id", "state"})
_EPISODE_KEYS = frozenset({"rollout_id", "attempt"})
_encode = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode


class Malformed(ValueError):
    """Bytes that are not what they should be; the text names the field and says what it must be."""


@dataclass(frozen=True, slots=True)
class Record:
    """One exported session. `state` is any JSON value with finite numbers; nobody may change it any more."""

    episode: EpisodeId
    session_id: str
    state: JSON


def encode_record(record: Record) -> bytes:
    """The record as one line of ASCII JSON, newline included.

    Raises CheckpointStateError when the state holds something that JSON cannot carry, or is too long.
    """
    document = {
        "episode_id": {"rollout_id": record.episode.rollout_id, "attempt": record.episode.attempt},
        "session_id": record.session_id,
        "state": record.state,
    }
    try:
        line = _encode(document).encode("ascii") + b"\n"
    except (ValueError, TypeError, RecursionError) as error:
        raise CheckpointStateError(
            f"the state of session {record.session_id[:80]!r} is not strict JSON: {error}"
        ) from error
    if len(line) > MAX_RECORD_BYTES:
        raise CheckpointStateError(
            f"the record of session {record.session_id[:80]!r} has {len(line)} bytes, {MAX_RECORD_BYTES} are allowed"
        )
    return line


def encode_slices(records: Iterable[Record]) -> Iterator[tuple[bytes, int]]:
    """The lines of all records in slices of about `SLICE_BYTES`, each with its number of records."""
    lines: list[bytes] = []
    size = 0
    for record in records:
        line = encode_record(record)
        lines.append(line)
        size += len(line)
        if size >= SLICE_BYTES:
            yield b"".join(lines), len(lines)
            lines, size = [], 0
    if lines:
        yield b"".join(lines), len(lines)


def decode_record(line: bytes) -> Record:
    """Read one line without its newline. Raises Malformed."""
    document = strict_json(line)
    if not isinstance(document, dict):
        raise Malformed(f"a record must be an object, not {_kind(document)}")
    _exact_keys(document, "record", _RECORD_KEYS, _RECORD_KEYS)
    session_id = document["session_id"]
    if not isinstance(session_id, str) or not session_id:
        raise Malformed("field session_id must be a string that is not empty")
    return Record(_decode_episode(document["episode_id"]), session_id, document["state"])


def strict_json(data: bytes) -> JSON:
    """Parse JSON as contract 4 means it; raises Malformed for anything else.

    Refused are bytes that are not UTF-8, non-finite numbers in any spelling, an object with a key twice, and
    nesting or integers beyond what Python reads.
    """
    try:
        value: JSON = _decoder.decode(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise Malformed(f"not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise Malformed(f"not JSON: {error.msg} at character {error.pos}") from error
    except RecursionError as error:
        raise Malformed("nested too deeply") from error
    except Malformed:
        raise
    except ValueError as error:
        raise Malformed(f"a number cannot be read: {error}") from error
    return value


def _decode_episode(value: JSON) -> EpisodeId:
    if not isinstance(value, dict):
        raise Malformed(f"field episode_id must be an object, not {_kind(value)}")
    _exact_keys(value, "episode_id", _EPISODE_KEYS, frozenset({"rollout_id"}))
    rollout, attempt = value["rollout_id"], value.get("attempt", 0)
    if not isinstance(rollout, str) or not CAPTURE_KEY.fullmatch(rollout):
        raise Malformed(f"field episode_id.rollout_id must be a string that matches {CAPTURE_KEY.pattern}")
    if not isinstance(attempt, int) or isinstance(attempt, bool):
        raise Malformed("field episode_id.attempt must be an integer")
    try:
        return EpisodeId(rollout, attempt)
    except ValueError as error:
        raise Malformed(f"field episode_id: {error}") from error


def _exact_keys(document: dict[str, JSON], name: str, allowed: frozenset[str], required: frozenset[str]) -> None:
    keys = document.keys()
    if missing := sorted(required - keys):
        raise Malformed(f"{name} lacks {', '.join(missing)}")
    if unknown := sorted(keys - allowed):
        raise Malformed(f"{name} has unknown keys {', '.join(repr(key[:80]) for key in unknown[:5])}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]  # add() is None
        raise Malformed(f"key {twice[:80]!r} stands twice in one object")
    return document


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise Malformed(f"number {text[:40]} is not finite")
    return value


def _no_constant(text: str) -> NoReturn:
    raise Malformed(f"{text} is not JSON")


_decoder = json.JSONDecoder(object_pairs_hook=_object, parse_float=_finite, parse_constant=_no_constant)


def _kind(value: JSON) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
