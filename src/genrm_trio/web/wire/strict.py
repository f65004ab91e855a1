"""Strict JSON: an object's members as raw text, and small values decoded.

msgspec checks all that it skips, but for UTF-8, which is checked first. What it refuses although the contract
accepts it, escaped lone surrogates, it finds the places of in a copy without them. The standard library decodes the
texts that have some, and numbers beyond msgspec's range. NaN and infinities are no JSON for either.

A pattern and a decoder hold the interpreter while they run, so each goes over a body in steps; the few passes of
plain C over a whole body (msgspec's, and those of `bytes`) are quicker than anything that would cut them.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias, TypeVar

import msgspec

from genrm_trio.web.errors import InvalidBody, Problem

Raw: TypeAlias = memoryview
"""A value's JSON text as received: a view into the one copy of the body."""

Body: TypeAlias = bytes | bytearray
"""A request's body. It must not change while views into it exist."""

Text: TypeAlias = Body | Raw

T = TypeVar("T")


class _Key:
    """A key in a copy, where two may look the same that are not: equal to no other."""

    __slots__ = ()


_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_VALUE = msgspec.json.Decoder()
_ENTRIES = msgspec.json.Decoder(list[msgspec.Raw])
_ANYTHING = msgspec.json.Decoder(msgspec.Raw)
_LENGTHS = msgspec.json.Decoder(dict[_Key, msgspec.Raw], dec_hook=lambda _, name: _Key())

_QUOTE, _COMMA, _BRACE = b'",{'
_STEP = 65_535
"""How much a pattern passes in one step, more or less, before other threads have their turn."""
_SPAN = 255
"""Its root: as many escapes, with at most so much between two, are one step of a text whether they are few or many."""
_PIECE = rb'[^"\\]{0,%d}+(?:\\.[^"\\]{0,%d}+){0,%d}+' % (_STEP, _SPAN, _SPAN)
"""The inside of a text, or so much of it as is one step. Possessive: the engine keeps a frame of every other repeat."""
_TEXT_PIECE = re.compile(_PIECE, re.DOTALL)
_BLANKS = re.compile(rb"[ \t\n\r]{0,%d}+" % _STEP)


def _stepping(marks: bytes) -> re.Pattern[bytes]:
    """A text or one of the marks, each with what follows up to the next; group 1 says that a text was not cut."""
    other = rb'[^"%s]' % marks
    return re.compile(
        rb'"%s(?:(")%s{0,%d}+)?|[%s]%s{0,%d}+|%s{1,%d}+' % (_PIECE, other, _STEP, marks, other, _STEP, other, _STEP),
        re.DOTALL,
    )


_OPENINGS = _stepping(rb"\[{")
_BRACKETS = _stepping(rb"\[\]{}")
_BRACKETS_AND_COMMAS = _stepping(rb"\[\]{},")

_SMALL = 65_536
"""Bytes of a value that an error may repeat."""
_SLICE = 1 << 20
"""How much of a body is copied at once."""
_EXACT = 256 * 1024
"""How large a body is in which the standard library looks for a mistake; it holds the interpreter meanwhile."""
_AT_BYTE = re.compile(r"(.*) \(byte ([0-9]+)\)")
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
    values = (mark for mark, _ in _marks(_OPENINGS, body, 0) if mark in b'"[{')
    return any(count > most for count, _ in enumerate(values, 1))


def _marks(steps: re.Pattern[bytes], text: Text, at: int) -> Iterator[tuple[int, int]]:
    """Where a pattern of `_stepping` finds what: the first byte of each step behind `at`, a mark or not, and its place.

    A text is one however long it is, and also when it has no end, as in a broken body.
    """
    while at < len(text):
        for step in steps.finditer(text, at):
            start, at = step.span()
            yield text[start], start
            if step.lastindex is None and text[start] == _QUOTE:
                at = _behind_text(text, at)
                break


def _behind_text(text: Text, at: int) -> int:
    """Where a text ends that `at` is inside of, its quotation mark included; the end of all when it does not."""
    while text[at : at + 1] != b'"':
        if (end := _behind(_TEXT_PIECE, text, at)) == at:
            return len(text)
        at = end
    return at + 1


def _behind_blanks(text: Text, at: int) -> int:
    """The position of the next character that is no whitespace."""
    while (end := _behind(_BLANKS, text, at)) != at:
        at = end
    return at


def _behind(step: re.Pattern[bytes], text: Text, at: int) -> int:
    found = step.match(text, at)
    assert found is not None, "nothing at all is a match"
    return found.end()


def read_object(body: Body) -> dict[str, Raw]:
    """The members of a body that must be a JSON object, each as its raw text; of duplicate keys the last one wins.

    Raises InvalidBody: `missing` when there is no body, `json_invalid` with the offset, or `dict_type`.
    """
    if not body:
        raise InvalidBody(missing(("body",)))
    _check_utf8(body)
    try:
        return {key: memoryview(raw) for key, raw in _MEMBERS.decode(body).items()}
    except (msgspec.DecodeError, RecursionError):
        pass
    copy = without_surrogates(body)
    try:
        return _odd_members(body, copy, _LENGTHS.decode(copy))
    except msgspec.ValidationError:
        pass
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidBody(_mistake(body, error)) from None
    try:
        _ANYTHING.decode(copy)  # what is no object was not looked through
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidBody(_mistake(body, error)) from None
    raise InvalidBody(not_an_object(("body",)))


def members(raw: Raw) -> dict[str, Raw] | None:
    """The members of a value that was checked before, as raw text; None when it is no object."""
    if bytes(raw[:1]) != b"{":
        return None
    try:
        return {key: memoryview(value) for key, value in _checked(_MEMBERS, raw).items()}
    except msgspec.DecodeError:
        copy = without_surrogates(raw)
        return _odd_members(raw, copy, _checked(_LENGTHS, copy))


def entries(raw: Raw) -> Iterable[Raw]:
    """The entries of a list that was checked before, as raw text."""
    try:
        found = _checked(_ENTRIES, raw)
    except msgspec.DecodeError:
        return _odd_entries(raw, without_surrogates(raw))
    return (memoryview(entry) for entry in found)


def _odd_members(source: Text, copy: bytes, lengths: dict[_Key, msgspec.Raw]) -> dict[str, Raw]:
    """The members of an object whose copy has no surrogates, and values of these lengths."""
    view = memoryview(source)
    found: dict[str, Raw] = {}
    at = _behind_blanks(copy, 0)
    for value in lengths.values():
        key = _behind_blanks(copy, at + 1)  # at is the bracket or a comma
        at = _behind_text(copy, key + 1)
        name = decode(view[key:at])
        at = _behind_blanks(copy, _behind_blanks(copy, at) + 1)
        end = at + len(memoryview(value))
        found[name] = view[at:end]
        at = _behind_blanks(copy, end)
    return found


def _odd_entries(source: Raw, copy: bytes) -> Iterator[Raw]:
    """The entries of a list whose copy has no surrogates."""
    at = 0
    for value in _checked(_ENTRIES, copy):
        at = _behind_blanks(copy, at + 1)  # at is the bracket or a comma
        end = at + len(memoryview(value))
        yield source[at:end]
        at = _behind_blanks(copy, end)


def _checked(decoder: msgspec.json.Decoder[T], text: Text) -> T:
    """Decode what was checked before, further up the stack: a few more calls may be too many."""
    try:
        return decoder.decode(text)
    except RecursionError:
        raise InvalidBody(_TOO_DEEP) from None


def without_surrogates(source: Text) -> bytes:
    """A copy of the same length with other escapes for all surrogates, so that everything keeps its place.

    Of escaped backslashes none stays either, so that every one that does starts an escape.
    """
    view = memoryview(source)
    parts: list[bytes] = []
    at = 0
    while at < len(view):
        part = bytes(view[at : at + _SLICE])
        if at + len(part) < len(view):
            part = part[: _behind_escapes(part)]
        at += len(part)
        parts.append(part.replace(rb"\\", b"xx").replace(rb"\ud", rb"\u0").replace(rb"\uD", rb"\u0"))
    return b"".join(parts)


def _behind_escapes(part: bytes) -> int:
    """Where to cut, so that no backslash is parted from the two characters behind it."""
    before = part.removesuffix(b"u")
    backslashes = len(before) - len(before.rstrip(b"\\"))
    return len(before) - 1 if backslashes % 2 else len(part)


def has_more_entries(raw: Raw, most: int) -> bool:
    """Whether a checked list has more than `most` entries; makes none of them, and stops at the first beyond."""
    text = bytes(raw)
    if text.count(b",") < most:
        return False
    return any(count >= most for count, _ in enumerate(_commas(text), 1))


def each_entry(raw: Raw) -> Iterator[Raw]:
    """The entries of a checked list one by one, as `entries` makes them all at once; blanks may stand behind each."""
    start = _behind_blanks(raw, 1)
    for comma in _commas(raw):
        yield raw[start:comma]
        start = _behind_blanks(raw, comma + 1)
    if start < len(raw) - 1:
        yield raw[start:-1]


def objects(raw: Raw) -> Iterator[Raw]:
    """The objects among the entries of a checked list, one by one; of millions of other entries none is made."""
    start, depth = 0, 0
    for mark, at in _marks(_BRACKETS, raw, 1):
        if mark in b"[{":
            start = at if depth == 0 else start
            depth += 1
        elif mark in b"]}":
            depth -= 1
            if depth == 0 and raw[start] == _BRACE:
                yield raw[start : at + 1]


def _commas(text: Text) -> Iterator[int]:
    """Where the commas between a list's own entries are."""
    at, depth = 1, 0  # behind its opening bracket
    while at < len(text):
        steps = _BRACKETS if depth else _BRACKETS_AND_COMMAS  # of millions of numbers deeper inside none is a step
        for mark, start in _marks(steps, text, at):
            at = start + 1
            if mark in b"[{":
                depth += 1
            elif mark in b"]}":
                depth -= 1
                if depth == 0 and steps is _BRACKETS:
                    break
            elif mark == _COMMA and steps is not _BRACKETS:
                if depth:
                    break
                yield start
        else:
            return


def nested_deeper(raw: Raw, most: int) -> bool:
    """Whether a checked value has objects and arrays inside each other more than `most` deep."""
    depth = 0
    for mark, _ in _marks(_BRACKETS, raw, 0):
        if mark in b"[{":
            depth += 1
            if depth > most:
                return True
        elif mark in b"]}":
            depth -= 1
    return False


def decode(raw: Raw) -> Any:
    """A checked value as Python objects; an integer that Python does not convert raises InvalidBody."""
    try:
        return _VALUE.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return _decode_slowly(raw, _integer, _float)


def decode_finite(raw: Raw) -> Any:
    """Like `decode`, for a value that is written again: a number beyond a double raises InvalidBody, too."""
    try:
        return _VALUE.decode(raw)  # which refuses such numbers
    except (msgspec.DecodeError, RecursionError):
        return _decode_slowly(raw, _integer, _finite)


def decode_texts(raw: Raw) -> Any:
    """Like `decode`, for a reader of texts only: numbers out of range do not matter and come as 0."""
    try:
        return _VALUE.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return _decode_slowly(raw, _no_number, _float)


def brief(raw: Raw) -> Any:
    """A checked value as an error repeats it: decoded when it is small, else the start of its text."""
    return decode_texts(raw) if len(raw) <= _SMALL else bytes(raw[:_SMALL]).decode("utf-8", "ignore")


def is_null(raw: Raw | None) -> bool:
    """Whether a member is left out; in optional fields null means the same."""
    return raw is None or spells(raw, b"null")


def spells(raw: Raw, text: bytes) -> bool:
    """Whether a value is spelled exactly so."""
    return len(raw) == len(text) and bytes(raw) == text


def _check_utf8(body: Body) -> None:
    if body.isascii():
        return
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidBody(_broken(error.start, f"invalid UTF-8: {error.reason}")) from None


def _broken(offset: int, reason: str) -> Problem:
    return Problem("json_invalid", ("body", offset), f"JSON decode error: {reason}", {})


_TOO_DEEP = _broken(0, "nested too deeply")


def _mistake(body: Body, error: Exception) -> Problem:
    """What is wrong with a body that msgspec refuses, and where: of a large one as msgspec says it.

    Of a smaller one as the standard library says it, which names the beginning of what is wrong.
    """
    if isinstance(error, RecursionError):
        return _TOO_DEEP
    said = _AT_BYTE.fullmatch(str(error))
    at = int(said[2]) if said else len(body)  # or it ends too early
    if said and said[1].endswith("trailing characters"):
        at -= 1  # of these alone msgspec names the second
    for constant in _CONSTANTS:
        if body.startswith(constant, at):
            at -= body.startswith(b"-", max(at - 1, 0))
            return _broken(_characters(body, at), f"{constant.decode()} is not JSON")
    if len(body) <= _EXACT:
        try:
            json.JSONDecoder(parse_int=_no_number).decode(body.decode("utf-8"))
        except json.JSONDecodeError as found:
            return _broken(found.pos, found.msg)
    return _broken(_characters(body, at), said[1] if said else str(error))


_CONSTANTS = (b"NaN", b"Infinity")
"""What the standard library takes for numbers."""


def _characters(body: Body, end: int) -> int:
    """How many characters the first bytes of a body are."""
    return len(body[:end].decode("utf-8", "ignore"))


def _decode_slowly(raw: Raw, parse_int: Callable[[str], int], parse_float: Callable[[str], float]) -> Any:
    """Decode with the standard library; its calls for each number let other threads have their turn."""
    try:
        return json.JSONDecoder(parse_int=parse_int, parse_float=parse_float).decode(bytes(raw).decode("utf-8"))
    except RecursionError:
        raise InvalidBody(_TOO_DEEP) from None


def _float(text: str) -> float:
    return float(text)


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise InvalidBody(Problem("finite_number", ("body",), "Input should be a finite number", text))
    return number


def _integer(text: str) -> int:
    if len(text) > _SURE_DIGITS:
        raise InvalidBody(Problem("int_parsing_size", ("body",), "An integer has too many digits", text))
    return int(text)


def _no_number(text: str) -> int:
    return 0
