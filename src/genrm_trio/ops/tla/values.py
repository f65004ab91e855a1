"""TLA+ values as Python values, read from what TLC prints and written as what it reads.

Only values live here: no operators, no names of the spec. A sequence is a tuple, a set a frozenset, a record or any
other function a Map. As in TLA+ a function over 1..n is a sequence, so the empty function is the empty tuple.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

Value: TypeAlias = "bool | int | str | tuple[Value, ...] | frozenset[Value] | Map"


class Map(dict["Value", Any]):
    """A function that is no sequence. Never changed once it was made, and so it can be a member of a set."""

    def __hash__(self) -> int:  # type: ignore[override]  # a dict is not hashable, but this one does not change
        return hash(frozenset(self.items()))


def function(items: Iterable[tuple[Value, Value]]) -> Value:
    """The function with these pairs: a tuple when its domain is 1..n."""
    pairs = Map(items)
    # TRUE is not 1: no function here has both kinds in its domain.
    if 1 in pairs and set(pairs) == set(range(1, len(pairs) + 1)):
        return tuple(pairs[n] for n in range(1, len(pairs) + 1))
    return pairs or ()


def record(**fields: Value) -> Map:
    """A record."""
    return Map(fields)


def pairs_of(value: Value) -> Iterable[tuple[Any, Any]]:
    """The pairs of a function or sequence."""
    if isinstance(value, Map):
        return value.items()
    assert isinstance(value, tuple), f"{value!r} is no function"
    return list(enumerate(value, 1))


# -- reading -------------------------------------------------------------------------------------------

_TOKEN = re.compile(r'<<|>>|\|->|:>|@@|"(?:[^"\\]|\\.)*"|-?\d+|\w+|[\[\](){},]')
_ESCAPED = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


def parse(text: str) -> Value:
    """Read one value as TLC prints it. Raises ValueError when the text is no value."""
    tokens = iter(_TOKEN.findall(text))
    try:
        value = _value(next(tokens), tokens.__next__)
    except (StopIteration, RuntimeError):
        raise ValueError(f"no complete TLA+ value: {text[:200]!r}") from None
    if next(tokens, None) is not None:
        raise ValueError(f"more than one TLA+ value: {text[:200]!r}")
    return value


def _value(token: str, take: Callable[[], str]) -> Value:
    match token:
        case "<<":
            return tuple(_items(">>", take))
        case "{":
            return frozenset(_items("}", take))
        case "[":
            return function(_pairs("]", ("|->", ","), take))
        case "(":
            return function(_pairs(")", (":>", "@@"), take))
        case "TRUE" | "FALSE":
            return token[0] == "T"
    if token[0] == '"':
        return (
            _ESCAPED.sub(lambda found: _ESCAPES.get(found[1], found[1]), token[1:-1]) if "\\" in token else token[1:-1]
        )
    try:
        return int(token)
    except ValueError:
        raise ValueError(f"no TLA+ value starts with {token!r}") from None


def _items(end: str, take: Callable[[], str]) -> list[Value]:
    found: list[Value] = []
    token = take()
    while token != end:
        found.append(_value(token, take))
        if (token := take()) == ",":
            token = take()
    return found


def _pairs(end: str, marks: tuple[str, str], take: Callable[[], str]) -> list[tuple[Value, Value]]:
    found: list[tuple[Value, Value]] = []
    arrow, between = marks
    token = take()
    while token != end:
        key: Value = token if arrow == "|->" else _value(token, take)
        if take() != arrow:
            raise ValueError(f"a pair of a function needs {arrow!r}")
        found.append((key, _value(take(), take)))
        if (token := take()) == between and (token := take()) == end:
            raise ValueError(f"a pair of a function is missing behind {between!r}")
    return found


_BRACKET = re.compile(r'<<|>>|"(?:[^"\\]|\\.)*"|[\[\](){}]|, ')
_DEEPER = frozenset(("<<", "[", "(", "{"))
_HIGHER = frozenset((">>", "]", ")", "}"))


def elements(text: str, start: int = 2) -> Iterator[str]:
    """The texts of a sequence's elements as TLC prints them, unread: `<<a, b>>` has `a` and `b`.

    start: where an element of it starts; by default the first.
    """
    depth = 1
    for found in _BRACKET.finditer(text, start):
        token = found[0]
        if token in _DEEPER:
            depth += 1
        elif token in _HIGHER:
            depth -= 1
            if depth == 0:
                if found.start() > start:
                    yield text[start : found.start()]
                return
        elif token[0] == "," and depth == 1:
            yield text[start : found.start()]
            start = found.end()


# -- writing -------------------------------------------------------------------------------------------

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)


def write(value: Value) -> str:
    """A value as TLA+ reads it. Raises ValueError for text beyond printable ASCII, which TLC cannot read."""
    match value:
        case bool():
            return "TRUE" if value else "FALSE"
        case int():
            return str(value)
        case str():
            if not (value.isascii() and value.isprintable()):
                raise ValueError(f"TLC reads no such text: {value!r}")
            escaped = value.replace("\\", "\\\\").replace('"', '\\"')
            return f'"{escaped}"'
        case tuple():
            return f"<<{', '.join(map(write, value))}>>"
        case frozenset():
            return f"{{{', '.join(sorted(map(write, value)))}}}"
        case Map():
            if all(isinstance(key, str) and _NAME.fullmatch(key) for key in value):
                return f"[{', '.join(f'{key} |-> {write(part)}' for key, part in value.items())}]"
            return f"({' @@ '.join(f'{write(key)} :> {write(part)}' for key, part in value.items())})"
