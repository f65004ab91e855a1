"""Strict JSON: an object's members as raw text, and small values decoded.

msgspec checks all that it skips, but for UTF-8, which is checked first. What it refuses although the contract
accepts it (escaped lone surrogates, numbers beyond its range) is read with the standard library, which also tells
where a text is wrong. NaN and infinities are no JSON for either.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Never, TypeAlias, TypeVar

import msgspec

from genrm_trio.web.errors import InvalidBody, Problem

Raw: TypeAlias = memoryview
"""A value's JSON text as received: a view into the one copy of the body."""

Body: TypeAlias = bytes | bytearray
"""A request's body. It must not change while views into it exist."""

T = TypeVar("T")

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_VALUE = msgspec.json.Decoder()
_ENTRIES = msgspec.json.Decoder(list[msgspec.Raw])
_MARK = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{},]', re.DOTALL)
"""A text, which hides what is in it, or a mark of structure."""
_ENTRY_MARK = re.compile(rb"\[[-+0-9.eE, \t\n\r]*+\]|" + _MARK.pattern, re.DOTALL)
"""The same, or a whole array of numbers: a response may have millions of tokens."""
_VALUE_MARK = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{]|[-0-9][-+0-9.eE, \t\n\r]{0,65535}+', re.DOTALL)
"""A text, which in a broken body may have no end, the start of an object or array, or a stretch of numbers.

A stretch is short enough to be one step, so that other threads have their turn.
"""
_WHITESPACE = re.compile(r"[ \t\n\r]*")
_STRING_OR_CONSTANT = re.compile(r'"(?:[^"\\]|\\.)*"|NaN|-?Infinity', re.DOTALL)
_SURE_DIGITS = 640  # what Python converts to an integer however it is configured


def missing(loc: tuple[str | int, ...], parent: object = None) -> Problem:
    """A required field is not there."""
    return Problem("missing", loc, "Field required", parent)


def not_an_object(loc: tuple[str | int, ...], value: object = None) -> Problem:
    """A JSON value that should be an object is none."""
    return Problem("dict_type", loc, "Input should be an object", value)


def has_more_values(body: Body, most: int) -> bool:
    """Whether a body has more than `most` texts, objects and arrays, keys being texts and numbers being free.

    Nothing is decoded. Each value takes many times the memory of its text; 64 MB hold 21 million empty objects.
    """
    if len(body) <= most or body.count(b'"') // 2 + body.count(b"[") + body.count(b"{") <= most:
        return False
    marks = (mark for mark in _VALUE_MARK.finditer(body) if body[mark.start()] in b'"[{')
    return any(count > most for count, _ in enumerate(marks, 1))


def read_object(body: Body) -> dict[str, Raw]:
    """The members of a body that must be a JSON object, each as its raw text; of duplicate keys the last one wins.

    Raises InvalidBody: `missing` when there is no body, `json_invalid` with the offset, or `dict_type`.
    """
    if not body:
        raise InvalidBody(missing(("body",)))
    text = _utf8(body)
    try:
        return {key: memoryview(raw) for key, raw in _MEMBERS.decode(body).items()}
    except (msgspec.DecodeError, RecursionError):
        return _certain(_members, text if text is not None else body.decode("ascii"))


def members(raw: Raw) -> dict[str, Raw] | None:
    """The members of a value that was checked before, as raw text; None when it is no object."""
    if bytes(raw[:1]) != b"{":
        return None
    try:
        return {key: memoryview(value) for key, value in _MEMBERS.decode(raw).items()}
    except (msgspec.DecodeError, RecursionError):
        return _certain(_members, _text(raw))


def entries(raw: Raw) -> list[Raw]:
    """The entries of a list that was checked before, as raw text."""
    try:
        return [memoryview(entry) for entry in _ENTRIES.decode(raw)]
    except (msgspec.DecodeError, RecursionError):
        return _certain(_listed, _text(raw))


def has_more_entries(raw: Raw, most: int) -> bool:
    """Whether a checked list has more than `most` entries; makes none of them, and stops at the first beyond."""
    text = bytes(raw)
    if text.count(b",") < most:
        return False
    return any(count >= most for count in _commas(text))


def _commas(text: bytes) -> Iterator[int]:
    """Count the commas between a list's own entries."""
    depth, count = 0, 0
    for mark in _ENTRY_MARK.finditer(text, 1):  # behind its opening bracket
        match mark.group():
            case b"," if depth == 0:
                count += 1
                yield count
            case b"[" | b"{":
                depth += 1
            case b"]" | b"}":
                depth -= 1


def nested_deeper(raw: Raw, most: int) -> bool:
    """Whether a checked value has objects and arrays inside each other more than `most` deep."""
    depth = 0
    for mark in _MARK.finditer(raw):
        match mark.group():
            case b"[" | b"{":
                depth += 1
                if depth > most:
                    return True
            case b"]" | b"}":
                depth -= 1
    return False


def decode(raw: Raw) -> Any:
    """A checked value as Python objects; an integer that Python does not convert raises InvalidBody."""
    try:
        return _VALUE.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return _certain(_decoder(_integer).decode, _text(raw))


def decode_texts(raw: Raw) -> Any:
    """Like `decode`, for a reader of texts only: numbers out of range do not matter and come as 0."""
    try:
        return _VALUE.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return _certain(_decoder(_no_number).decode, _text(raw))


def is_null(raw: Raw | None) -> bool:
    """Whether a member is left out; in optional fields null means the same."""
    return raw is None or spells(raw, b"null")


def spells(raw: Raw, text: bytes) -> bool:
    """Whether a value is spelled exactly so."""
    return len(raw) == len(text) and bytes(raw) == text


def _utf8(body: Body) -> str | None:
    """The text of a body; None for plain ASCII, which needs no copy."""
    if body.isascii():
        return None
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidBody(_broken(error.start, f"invalid UTF-8: {error.reason}")) from None


def _broken(offset: int, reason: str) -> Problem:
    return Problem("json_invalid", ("body", offset), f"JSON decode error: {reason}", {})


def _text(raw: Raw) -> str:
    return bytes(raw).decode("utf-8")


class _Constant(Exception):
    """NaN or an infinity was met; the standard library does not say where."""


def _certain(read: Callable[[str], T], text: str) -> T:
    """Run a standard library reader, with its errors as ours."""
    try:
        return read(text)
    except json.JSONDecodeError as error:
        raise InvalidBody(_broken(error.pos, error.msg)) from None
    except _Constant as constant:
        found = (m.start() for m in _STRING_OR_CONSTANT.finditer(text) if not m.group().startswith('"'))
        raise InvalidBody(_broken(next(found, 0), f"{constant} is not JSON")) from None
    except RecursionError:
        raise InvalidBody(_broken(0, "nested too deeply")) from None


def _members(text: str) -> dict[str, Raw]:
    """The slow reading of an object's members; checks every value in full."""
    decoder = _decoder(_no_number)
    at = _skip(text, 0)
    if text[at : at + 1] != "{":
        _end(text, decoder.raw_decode(text, at)[1])
        raise InvalidBody(not_an_object(("body",)))
    found: dict[str, Raw] = {}
    at = _skip(text, at + 1)
    more = text[at : at + 1] != "}"
    if not more:
        at += 1
    while more:
        if text[at : at + 1] != '"':
            raise json.JSONDecodeError("Expecting property name enclosed in double quotes", text, at)
        key, at = decoder.raw_decode(text, at)
        at = _skip(text, at)
        if text[at : at + 1] != ":":
            raise json.JSONDecodeError("Expecting ':' delimiter", text, at)
        start = _skip(text, at + 1)
        _, at = decoder.raw_decode(text, start)
        found[key] = memoryview(text[start:at].encode("utf-8"))
        at = _skip(text, at)
        mark = text[at : at + 1]
        if mark not in {",", "}"}:
            raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
        more = mark == ","
        at = _skip(text, at + 1) if more else at + 1
    _end(text, at)
    return found


def _listed(text: str) -> list[Raw]:
    """The slow reading of a list's entries."""
    decoder = _decoder(_no_number)
    found: list[Raw] = []
    at = _skip(text, 1)
    while text[at] != "]":
        _, end = decoder.raw_decode(text, at)
        found.append(memoryview(text[at:end].encode("utf-8")))
        at = _skip(text, end)
        at = _skip(text, at + 1) if text[at] == "," else at
    return found


def _skip(text: str, at: int) -> int:
    """The position of the next character that is no whitespace."""
    found = _WHITESPACE.match(text, at)
    assert found is not None, "no whitespace at all is a match"
    return found.end()


def _end(text: str, at: int) -> None:
    if (rest := _skip(text, at)) != len(text):
        raise json.JSONDecodeError("Extra data", text, rest)


def _decoder(parse_int: Callable[[str], int]) -> json.JSONDecoder:
    return json.JSONDecoder(parse_int=parse_int, parse_constant=_no_constant)


def _integer(text: str) -> int:
    if len(text) > _SURE_DIGITS:
        raise InvalidBody(Problem("int_parsing_size", ("body",), "An integer has too many digits", text))
    return int(text)


def _no_number(text: str) -> int:
    return 0


def _no_constant(name: str) -> Never:
    raise _Constant(name)
