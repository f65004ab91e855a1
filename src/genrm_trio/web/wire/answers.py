"""The texts of a response, read out of its raw `output` without decoding the rest, its token arrays above all."""

from collections.abc import Iterator, Mapping

from genrm_trio.judging.text import AnswerText, read_output
from genrm_trio.web.wire.strict import Raw, decode_texts, members, objects

_WHOLE = 512
"""Bytes of an object that is decoded with all that is in it, as that costs less than to choose."""


def read_answer(output: Raw | None) -> AnswerText:
    """The texts of a checked `output`, of whatever shape; what is of an unexpected one is skipped."""
    return read_output([_item(raw) for raw in _objects(output)])


def _item(raw: Raw) -> object:
    if len(raw) <= _WHOLE:
        return decode_texts(raw)
    inside = members(raw) or {}
    return {name: read_parts(inside.get(name)) for name in ("summary", "content")} | _texts(inside, "type")


def read_parts(raw: Raw | None) -> list[object]:
    """What `read_output` looks at of an item's checked `summary` or `content`."""
    return [*map(_part, _objects(raw))]


def _part(raw: Raw) -> object:
    return decode_texts(raw) if len(raw) <= _WHOLE else _texts(members(raw) or {}, "type", "text")


def _texts(inside: Mapping[str, Raw], *names: str) -> dict[str, object]:
    return {name: decode_texts(inside[name]) for name in names if name in inside and bytes(inside[name][:1]) == b'"'}


def _objects(raw: Raw | None) -> Iterator[Raw]:
    return objects(raw) if raw is not None and bytes(raw[:1]) == b"[" else iter(())
