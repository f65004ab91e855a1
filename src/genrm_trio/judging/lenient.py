"""Reading JSON that others wrote: whatever Python's own reader takes is taken, and nothing but ValueError is raised.

For judges' replies and recordings only. What clients send is read strictly, at the wire.
"""

import json
from typing import Any

import msgspec


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
