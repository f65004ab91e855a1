"""Long replies as JSON, a slice at a time, so that the event loop is not held up by them.

The standard library's encoder writes a whole value in one go, and no other thread runs meanwhile.
"""

from collections.abc import Iterable, Iterator, Mapping

import trio

from genrm_trio.core.outcome import JSON
from genrm_trio.web.errors import to_json

SLICE = 4096
"""Entries of a reply's list that are written between two checkpoints of the event loop."""


async def spoken(reply: Mapping[str, JSON]) -> bytes:
    """A reply whose lists may be long: a commit may name a million episodes, a `/compare` have many comparisons."""
    parts = []
    for name, value in reply.items():
        parts.append(to_json(name) + b":" + (await _list(value) if isinstance(value, list) else to_json(value)))
    return b"{" + b",".join(parts) + b"}"


async def _list(values: list[JSON]) -> bytes:
    slices = []
    for at in range(0, len(values), SLICE):
        slices.append(to_json(values[at : at + SLICE])[1:-1])
        if len(values) > SLICE:
            await trio.lowlevel.checkpoint()
    return b"[" + b",".join(slices) + b"]"


def in_pieces(value: JSON) -> Iterator[bytes]:
    """A value as JSON in pieces of at most SLICE entries; for a thread."""
    if isinstance(value, dict):
        yield b"{"
        yield from _listed(_members(value))
        yield b"}"
    elif isinstance(value, list):
        yield b"["
        yield from _listed(_entries(value))
        yield b"]"
    else:
        yield to_json(value)


def _listed(parts: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    comma = b""
    for part in parts:
        yield comma
        yield from part
        comma = b","


def _members(value: Mapping[str, JSON]) -> Iterator[Iterable[bytes]]:
    """The members of an object, those without members of their own together."""
    plain: dict[str, JSON] = {}
    for name, entry in value.items():
        if isinstance(entry, dict | list):
            if plain:
                yield (to_json(plain)[1:-1],)
                plain = {}
            yield (to_json(name), b":", *in_pieces(entry))
        else:
            plain[name] = entry
            if len(plain) == SLICE:
                yield (to_json(plain)[1:-1],)
                plain = {}
    if plain:
        yield (to_json(plain)[1:-1],)


def _entries(value: Iterable[JSON]) -> Iterator[Iterable[bytes]]:
    return (in_pieces(entry) for entry in value)


def gathered(pieces: Iterable[bytes], size: int) -> list[bytes]:
    """Many small pieces as fewer of about this size."""
    whole: list[bytes] = []
    pending = bytearray()
    for piece in pieces:
        pending += piece
        if len(pending) >= size:
            whole.append(bytes(pending))
            pending.clear()
    return [*whole, bytes(pending)]
