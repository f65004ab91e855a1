"""What the fuzz tests share: how many examples, hostile JSON, and the ways in which a right body goes wrong.

`GENRM_TRIO_FUZZ` is the number of examples of each test; `make fuzz` sets it high. Without it every run tries the
same few, so that CI does not fail on the luck of the draw.
"""

import json
import os
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import trio
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from tests.web.app_harness import Answer
from trio.testing import MockClock

_ASKED: Final = os.environ.get("GENRM_TRIO_FUZZ")
fuzz: Final = settings(
    max_examples=int(_ASKED or 40),
    deadline=None,
    derandomize=_ASKED is None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
"""The settings of every fuzz test."""

T = TypeVar("T")
HUGE: Final = 10**400
EVIL_TEXTS: Final = {
    "lone surrogate": "a\ud800b",
    "reversed pair": "\udc00\ud83d",
    "NUL": "a\x00b",
    "four-byte emoji": "\U0001f600 ok",
    "controls": "\x01\x1f\x7f\u2028\u2029\ufeff",
    "right to left": "\u202eabc",
    "combining": "e\u0301" * 20,
    "quotes": "\"'`\\{}[]",
    "empty": "",
    "blank": " \t\n\r\u3000",
    "newlines": "a\r\nb\nSet-Cookie: x=1\r\n",
    "escapes": "\\u0000\\ud800\\n",
    "not characters": "\uffff\ufffe\U0010ffff",
    "long": "word " * 2000,
}
"""Texts that have broken a server somewhere."""

texts = st.one_of(st.sampled_from(sorted(EVIL_TEXTS.values())), st.text(max_size=20), st.characters(codec=None))
numbers = st.one_of(
    st.integers(-3, 20),
    st.sampled_from([-1, 2**31, 2**63, 2**64, -(2**63) - 1, HUGE, -HUGE]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([1.0, -0.0, 1e-320, 1.7976931348623157e308, 0.1]),
)
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=6
)


def nested(depth: int, opening: str = "[", closing: str = "]") -> str:
    """JSON text that is nested so deep."""
    return opening * depth + closing * depth


raw_values = st.sampled_from(
    [
        *("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "01", "1.", "+1", "0x1", "'a'", "undefined", ""),
        *(nested(500), nested(5000), nested(100_000), nested(3000, '{"a":', "}").replace(":}", ":0}")),
        *("9" * 5000, "1." + "0" * 5000, "1e" + "9" * 500, '"\\ud800"', '"\\q"', '"\\u00', '"\x00"', '"a\nb"'),
        *('{"a":1,"a":2}', '{"a":1,}', "[1,]", "{}{}", "//", "null null", '"\udcff"'),
    ]
)
"""JSON texts, right and wrong, that no Python value is dumped to."""


def to_text(value: Any, *, ascii_only: bool = True) -> str:
    """Dump as a careless client does, NaN included; beyond ASCII, surrogates are left for the encoding."""
    return json.dumps(value, ensure_ascii=ascii_only)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside, itself included."""
    found = [at]
    if isinstance(value, dict):
        for key, inside in value.items():
            found += places(inside, (*at, key))
    elif isinstance(value, list):
        for index, inside in enumerate(value):
            found += places(inside, (*at, index))
    return found


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy in which another value stands at the path; `...` removes what stands there."""
    if not path:
        return new
    key, *rest = path
    copy = dict(value) if isinstance(value, dict) else list(value)
    if not rest and new is ...:
        del copy[key]
    else:
        copy[key] = replaced(copy[key], tuple(rest), new)
    return copy


@st.composite
def bodies(draw: st.DrawFn, right: Any) -> bytes:
    """A right body with a few things changed: values replaced, members removed or added, then bytes damaged."""
    value = right
    for _ in range(draw(st.integers(0, 3))):
        path = draw(st.sampled_from(places(value)))
        match draw(st.sampled_from(["replace", "remove", "add"])):
            case "remove" if path:
                value = replaced(value, path, ...)
            case "add":
                inside = value
                for key in path:
                    inside = inside[key]
                if isinstance(inside, dict):
                    value = replaced(value, path, {**inside, draw(texts): draw(values)})
            case _:
                value = replaced(value, path, draw(values))
    text = to_text(value, ascii_only=draw(st.booleans()))
    if draw(st.integers(0, 3)) == 0:
        text = _spoilt(draw, text)
    data = text.encode("utf-8", "surrogatepass")
    return draw(damaged(data)) if draw(st.integers(0, 3)) == 0 else data


def _spoilt(draw: st.DrawFn, text: str) -> str:
    """Put a raw JSON text where some value or member begins."""
    marks = [at for at, character in enumerate(text) if character in ":[{,"]
    if not marks:
        return draw(raw_values)
    at = draw(st.sampled_from(marks)) + 1
    member = draw(st.sampled_from(["", '"response":', '"_ng_group_id":', '"a":', '"checkpoint_id":']))
    return text[:at] + member + draw(raw_values) + draw(st.sampled_from([",", ""])) + text[at:]


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes of which some were lost, doubled, or changed."""
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        until = min(len(data), at + draw(st.integers(0, 8)))
        match draw(st.sampled_from(["cut", "drop", "insert", "repeat", "flip"])):
            case "cut":
                data = data[:at]
            case "drop":
                data = data[:at] + data[until:]
            case "insert":
                data = data[:at] + draw(st.binary(min_size=1, max_size=6)) + data[at:]
            case "repeat":
                data = data[:until] + data[at:until] + data[until:]
            case _ if data:
                at %= len(data)
                data = data[:at] + bytes([data[at] ^ (1 << draw(st.integers(0, 7)))]) + data[at + 1 :]
    return data


def run(main: Callable[[], Awaitable[T]]) -> T:
    """Run one example on a fresh virtual clock."""
    return trio.run(main, clock=MockClock(autojump_threshold=0))


def strict_json(data: bytes) -> Any:
    """Read a reply as the strictest of clients does: UTF-8, and no NaN."""

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} in a reply")

    return json.loads(data.decode("utf-8"), parse_constant=refuse, parse_int=str)


def check_refusal(answer: Answer) -> None:
    """A refusal of genrm has the right shape: a text or a list, and a code."""
    body = strict_json(answer.body)
    assert set(body) <= {"detail", "code", "latest_attempt"}, body
    assert isinstance(body["detail"], str | list)
    assert isinstance(body["code"], str)
