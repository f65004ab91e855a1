"""Digests of prompts and responses: what makes two prompts the same, and a retry a retry (contract 5.3 and 7.2).

Only JSON and hashes live here. Under `SCHEME` a response's digest is the sha256 of a canonical text:

    object   members sorted by key (code points), those whose value is null left out, no spaces
    text     non-ASCII escaped as \\uXXXX, lower-case, surrogate pairs above the BMP, lone surrogates kept
    number   integral ones as an integer, others in Python's shortest form
    array    its elements, null included; but an array under one of `TOKEN_ARRAYS`, at any level, is the sha256 hex
             of that text

A number spelled with a fraction or an exponent is the IEEE double nearest to it, one spelled as an integer is exact.
Of duplicate keys the last one wins.

A response is read with msgspec, which leaves the token arrays unread; they are hashed one after the other, straight
from their bytes when they hold plain integers, so a body of 64 MiB needs a few times the size of its largest array.
What msgspec refuses (lone surrogates, numbers out of its range) is read whole with the standard library instead.
Both ways give one text, which the tests hold.
"""

import json
import math
from collections.abc import Mapping
from hashlib import sha256
from itertools import accumulate

import msgspec

from genrm_trio.core.identity import cohort_key_suffix

SCHEME = "genrm-trio-1"
"""The scheme of every digest that is made. Any change of what is hashed, however small, needs a new name here and
the old one kept readable, or members restored from an older checkpoint refuse their own replays."""

LEGACY_SCHEME = "json-ascii-sha256"
"""A scheme of other servers, only ever read (contract 7.2): like ours without the arrays hashed apart, but numbers are
as spelled (those of the known float fields as floats), and the known top-level fields are present as null."""

KNOWN_SCHEMES = frozenset({SCHEME, LEGACY_SCHEME})

TOKEN_ARRAYS = frozenset({"prompt_token_ids", "generation_token_ids", "generation_log_probs", "routed_experts"})
"""The members whose arrays are hashed on their own: they are most of a body and nobody compares them by element."""

MAX_DEPTH = 128
"""How deep objects and arrays of a response may be nested."""

_LEGACY_FLOATS = frozenset({"created_at", "temperature", "top_p"})
_LEGACY_FIELDS = """
    background conversation created_at error id incomplete_details instructions max_output_tokens max_tool_calls
    metadata model object output parallel_tool_calls previous_response_id prompt prompt_cache_key reasoning
    safety_identifier service_tier status temperature text tool_choice tools top_logprobs top_p truncation usage
    user
"""
_SURE_DIGITS = 640  # what Python converts to an integer however it is configured
_SMALLEST_FIXED = 1e-4  # below it Python's shortest form has an exponent, msgspec's only from 1e-5 on
_CHUNK = 4096  # numbers written at a time, so that their texts never all exist at once
_PLAIN_INTEGERS = b"0123456789,[] \t\n\r"


class DigestError(ValueError):
    """A text that has no digest: not JSON, a number beyond every double, or nested deeper than `MAX_DEPTH`.

    The text is worded for the client that sent it.
    """


class UnknownScheme(ValueError):
    """A digest scheme that this version does not know."""


class _Digits(str):
    """An integer too long for Python to convert; its spelling is canonical as it is."""

    __slots__ = ()


def response_digest(raw: bytes, scheme: str = SCHEME) -> str:
    """Return the digest (64 hex digits) of a response given as the bytes of its JSON text.

    The original, its echo and a client's re-dump of it have one digest: key order, null members, spaces, escapes and
    the spelling of numbers do not matter. Anything else does, a single token included.

    Raises DigestError, and UnknownScheme for a scheme that is not in `KNOWN_SCHEMES`.
    """
    if scheme == SCHEME:
        return _sha(_response_text(raw))
    if scheme == LEGACY_SCHEME:
        return _sha(_legacy_text(raw))
    raise UnknownScheme(f"unknown digest scheme {scheme!r}; known are {', '.join(sorted(KNOWN_SCHEMES))}")


def prompt_digest(
    prompt: object,
    principle: str | None,
    *,
    baseline: str | None = None,
    rubric_ids: tuple[int, ...] | None = None,
) -> str:
    """Return the identity of a prompt: 64 hex digits and the suffixes of contract 5.3.

    `prompt` is the decoded `responses_create_params.input`; `baseline` the baseline's text in `fixed_baseline` mode,
    `rubric_ids` the expected ids in rubric mode, both None outside their mode. Raises DigestError.
    """
    rubrics = None if rubric_ids is None else tuple(sorted(set(rubric_ids)))
    suffix = cohort_key_suffix(
        baseline_sha256=None if baseline is None else baseline_digest(baseline), rubric_ids=rubrics
    )
    return _sha(prompt_text(normalised_input(prompt), principle)) + suffix


def baseline_digest(text: str) -> str:
    """Return the sha256 hex of a baseline's text in UTF-8; a lone surrogate is encoded as if it were allowed."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def prompt_text(prompt: object, principle: str | None) -> str:
    """Return the JSON text whose sha256 is the plain prompt digest (contract 5.3); `prompt` is normalised."""
    return json.dumps({"input": prompt, "principle": principle}, sort_keys=True)


def normalised_input(prompt: object) -> object:
    """Return a prompt as validation leaves it: no null members, and `"type": "message"` in an easy message.

    A string stays a string, so it differs from a list of one message. Raises DigestError.
    """
    pruned = _pruned(prompt, 1)
    return [_normalised_item(item) for item in pruned] if isinstance(pruned, list) else pruned


def canonical(value: object) -> str:
    """Return a decoded value as JSON text: sorted keys, no spaces, ASCII only, floats in Python's shortest form."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _normalised_item(item: object) -> object:
    if isinstance(item, dict) and "type" not in item and "role" in item:
        return item | {"type": "message"}
    return item


def _sha(text: str) -> str:
    return sha256(text.encode("ascii")).hexdigest()


# --- the text of SCHEME


def _response_text(raw: bytes) -> str:
    try:
        try:
            return _object_text(raw, 1)
        except msgspec.DecodeError:
            return _text(_decode(raw), 1)
    except RecursionError:
        raise _too_deep() from None


def _object_text(raw: bytes, depth: int) -> str:
    """Write an object whose token arrays, and whose `output` at the top, are still bytes.

    Raises msgspec's errors for what it cannot read, and also for a value that is no object.
    """
    members = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    written = {}
    for key, value in members.items():
        if (source := bytes(value)) != b"null":
            written[key] = _member_text(key, source, depth + 1)
    return _braces(written)


def _member_text(key: str, source: bytes, depth: int) -> str:
    if key in TOKEN_ARRAYS and source.startswith(b"["):
        return _quoted(_token_digest(source, depth))
    if key == "output" and depth == 2 and source.startswith(b"["):
        items = msgspec.json.decode(source, type=list[msgspec.Raw])
        return f"[{','.join(_item_text(bytes(item), depth + 1) for item in items)}]"
    return _text(msgspec.json.decode(source), depth)


def _item_text(source: bytes, depth: int) -> str:
    return _object_text(source, depth) if source.startswith(b"{") else _text(msgspec.json.decode(source), depth)


def _token_digest(source: bytes, depth: int) -> str:
    """Return the sha256 hex of a token array's canonical text, given its JSON text."""
    if not source.translate(None, _PLAIN_INTEGERS):
        _check_depth(depth - 1 + _nesting(source))
        return sha256(source.translate(None, b" \t\n\r")).hexdigest()
    return _sha(_text(msgspec.json.decode(source), depth))


def _nesting(arrays: bytes) -> int:
    """Return how deep arrays of integers are nested, or a bound of it that is below `MAX_DEPTH`."""
    if (opened := arrays.count(b"[")) < MAX_DEPTH // 2:
        return opened
    brackets = arrays.translate(None, b"0123456789, \t\n\r")
    return max(accumulate(1 if bracket == ord("[") else -1 for bracket in brackets))


def _text(value: object, depth: int) -> str:
    """Write a decoded value, which stands `depth - 1` containers deep."""
    if isinstance(value, dict):
        _check_depth(depth)
        return _braces({k: _value_text(k, v, depth + 1) for k, v in value.items() if v is not None})
    if isinstance(value, list):
        _check_depth(depth)
        if set(map(type, value)) <= {int, float}:
            return _numbers(value)
        return f"[{','.join([_text(v, depth + 1) for v in value])}]"
    return _scalar(value)


def _value_text(key: str, value: object, depth: int) -> str:
    text = _text(value, depth)
    return _quoted(_sha(text)) if key in TOKEN_ARRAYS and isinstance(value, list) else text


def _braces(written: Mapping[str, str]) -> str:
    return f"{{{','.join([f'{json.dumps(key)}:{written[key]}' for key in sorted(written)])}}}"


def _quoted(text: str) -> str:
    return f'"{text}"'


def _scalar(value: object) -> str:
    if isinstance(value, float):
        return _float(value)
    return str(value) if isinstance(value, _Digits) else json.dumps(value)


def _float(value: float) -> str:
    if not math.isfinite(value):
        raise _beyond_double()
    return str(int(value)) if value.is_integer() else repr(value)


def _numbers(values: list[float]) -> str:
    return f"[{','.join(_chunk(values[at : at + _CHUNK]) for at in range(0, len(values), _CHUNK))}]"


def _chunk(values: list[float]) -> str:
    """Write numbers as `_scalar` does, at a third of its cost: msgspec writes most of them just so."""
    if set(map(type, values)) != {float} or not all(map(math.isfinite, values)):
        return ",".join([_float(v) if type(v) is float else str(v) for v in values])
    texts = msgspec.json.encode(values)[1:-1].decode("ascii").split(",")
    for index, value in enumerate(values):
        if -_SMALLEST_FIXED < value < _SMALLEST_FIXED or value.is_integer():
            texts[index] = _float(value)
    return ",".join(texts)


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise _too_deep()


def _beyond_double() -> DigestError:
    return DigestError("a number is beyond the range of a double")


def _too_deep() -> DigestError:
    return DigestError(f"the JSON text is nested deeper than {MAX_DEPTH} levels")


# --- the slow and certain way to read


def _decode(raw: bytes) -> object:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DigestError(f"not UTF-8: {error.reason} at byte {error.start}") from None
    try:
        return _loads(text)
    except RecursionError:
        raise _too_deep() from None
    except json.JSONDecodeError as error:
        raise DigestError(f"not JSON: {error}") from None


def _loads(text: str) -> object:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (json.JSONDecodeError, DigestError):
        raise
    except ValueError:  # an integer that Python does not convert
        return json.loads(text, parse_int=_integer, parse_constant=_refuse_constant)


def _integer(text: str) -> int | _Digits:
    return int(text) if len(text) <= _SURE_DIGITS else _Digits(text)


def _refuse_constant(name: str) -> object:
    raise DigestError(f"{name} is not JSON")


# --- the text of LEGACY_SCHEME


def _legacy_text(raw: bytes) -> str:
    received = _decode(raw)
    if not isinstance(received, dict):
        raise DigestError("a response must be a JSON object")
    payload: dict[str, object] = dict.fromkeys(_LEGACY_FIELDS.split())
    payload |= {key: _pruned(value, 2) for key, value in received.items() if value is not None}
    for key in _LEGACY_FLOATS:
        value = payload[key]
        if type(value) is int:
            payload[key] = _legacy_float(value)
    return canonical(payload)


def _legacy_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        raise _beyond_double() from None


def _pruned(value: object, depth: int) -> object:
    """Return a decoded value without the null members of its objects; null elements of arrays stay.

    Raises DigestError for what cannot be written as JSON.
    """
    if isinstance(value, dict):
        _check_depth(depth)
        return {k: _pruned(v, depth + 1) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        _check_depth(depth)
        return [_pruned(v, depth + 1) for v in value]
    if isinstance(value, _Digits):
        raise DigestError("an integer has too many digits")
    if isinstance(value, float) and not math.isfinite(value):
        raise _beyond_double()
    return value
