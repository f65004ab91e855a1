"""Long replies as JSON, a slice at a time, so that the event loop is not held up by them."""

from collections.abc import Mapping

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
