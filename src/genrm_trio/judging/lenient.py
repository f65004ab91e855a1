"""Reading JSON that others wrote: whatever Python's own reader takes is taken, and nothing but ValueError is raised.

For judges' replies and recordings only. What clients send is read strictly, at the wire.
"""

import json
import re
from itertools import islice
from typing import Any, Final

import msgspec

_OPENING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{]', re.DOTALL)
"""A text, whole, or the start of an object or array. Possessive: without it the engine remembers each character."""


def has_more_values(body: bytes, most: int) -> bool:
    """Whether JSON has more than `most` texts, objects and arrays, keys being texts and numbers being free.

    Nothing is decoded. Each takes many times the memory of its text, and the garbage collector looks at each.
    """
    if body.count(b'"') // 2 + body.count(b"[") + body.count(b"{") <= most:
        return False
    return sum(1 for _ in islice(_OPENING.finditer(body), most + 1)) > most


def decode_json(body: bytes | str) -> Any:
    """Decode JSON. NaN, lone surrogates, integers of any size and invalid UTF-8 are taken as they come.

    Lone surrogates stay in the strings; an integer with more digits than Python converts is an infinite float. Raises
    ValueError.
    """
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, ValueError):
        pass  # the quick way is the strict one; the patient one decides
    text = body.decode("utf-8-sig", "replace") if isinstance(body, bytes) else body
    try:
        return json.loads(text, strict=False, parse_int=_integer)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _integer(digits: str) -> int | float:
    """Return an integer; beyond the length that Python converts (4300 digits) the float of it, which is infinite."""
    try:
        return int(digits)
    except ValueError:
        return float(digits)
