"""Small fields of a request: each read strictly, each mistake noted with its place, in the order of the contract.

A reader that meets a mistake notes a Problem and returns the value of an omitted field.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from genrm_trio.web.errors import MAX_PROBLEMS, InvalidBody, Problem
from genrm_trio.web.wire.strict import Raw, brief, decode, is_null

MAX_INTEGER_DIGITS = 640
"""Longer integers name no index, attempt or id."""

MAX_NAME_CHARS = 1024
"""The longest group, prompt and session id, and rollout id of a body: each is kept, and stands in every checkpoint."""

MAX_LISTED = 4096
"""The most integers of one list, and ..."""
MAX_LISTED_INTEGER = 2**63
"""... how large each may be: they stand in cohort keys and in every checkpoint."""


class FieldReader:
    """Reads the members of one object at `loc`, and collects what is wrong with them."""

    def __init__(self, members: Mapping[str, Raw], loc: tuple[str | int, ...] = ("body",)) -> None:
        self.members = members
        self.loc = loc
        self.problems: list[Problem] = []

    def note(self, type_: str, name: str, msg: str, value: object = None) -> None:
        """Note one mistake of the member `name`."""
        self.problems.append(Problem(type_, (*self.loc, name), msg, value))

    def add(self, problems: Iterable[Problem]) -> None:
        """Note mistakes, as many as an error lists; no more are looked for."""
        self.problems += islice(problems, max(0, MAX_PROBLEMS - len(self.problems)))

    @property
    def full(self) -> bool:
        """Whether as many mistakes are noted as an error lists."""
        return len(self.problems) >= MAX_PROBLEMS

    def check(self) -> None:
        """Raise InvalidBody when any mistake was noted."""
        if self.problems:
            raise InvalidBody(*self.problems)

    def pick(self, name: str, alias: str | None = None) -> tuple[str, Raw | None]:
        """The member under its own name, or else under its alias; null counts as omitted."""
        for key in (name, alias):
            if key is not None and not is_null(self.members.get(key)):
                return key, self.members[key]
        return name, None

    def value(self, name: str) -> Any:
        """Any value that is there, as Python objects; raises InvalidBody for what Python does not read."""
        try:
            return decode(self.members[name])
        except InvalidBody as error:
            raise InvalidBody(*(replace(problem, loc=(*self.loc, name)) for problem in error.problems)) from None

    def text(self, name: str, alias: str | None = None) -> str | None:
        """A string, or None."""
        key, raw = self.pick(name, alias)
        if raw is None:
            return None
        if bytes(raw[:1]) != b'"':
            self.note("string_type", key, "Input should be a valid string", brief(raw))
            return None
        return str(decode(raw))

    def name(self, name: str, alias: str | None = None) -> str | None:
        """A string that names something, of at most MAX_NAME_CHARS, or None."""
        found = self.text(name, alias)
        if found is not None and len(found) > MAX_NAME_CHARS:
            self.problems.append(too_long((*self.loc, self.pick(name, alias)[0]), found))
        return found

    def integer(self, name: str, alias: str | None = None) -> int | None:
        """An integer, or None: no boolean, no float, no numeric string (contract 5.1)."""
        key, raw = self.pick(name, alias)
        if raw is None:
            return None
        found = integer(bytes(raw))
        if found is None:
            self.note("int_type", key, "Input should be a valid integer", _short(raw))
        return found

    def integers(self, name: str) -> tuple[int, ...] | None:
        """A list of integers as a sorted tuple without repeats, or None."""
        key, raw = self.pick(name)
        if raw is None:
            return None
        value = self.value(key)
        if not isinstance(value, list):
            self.note("list_type", key, "Input should be a valid list", value)
            return None
        if any(type(item) is not int for item in value):
            text = "Input should be a valid integer"
            wrong = ((at, item) for at, item in enumerate(value) if type(item) is not int)
            self.add(Problem("int_type", (*self.loc, key, at), text, item) for at, item in wrong)
            return None
        if len(value) > MAX_LISTED:
            self.note("too_long", key, f"List should have at most {MAX_LISTED} items", len(value))
            return None
        if any(abs(item) >= MAX_LISTED_INTEGER for item in value):
            self.note("int_parsing_size", key, "Each integer should be below 2**63 in size")
            return None
        return tuple(sorted(set(value)))


def integer(text: bytes) -> int | None:
    """The integer that a JSON number spells as one; None for anything else."""
    digits = text.removeprefix(b"-")
    return int(text) if digits.isdigit() and len(digits) <= MAX_INTEGER_DIGITS else None


def too_long(loc: tuple[str | int, ...], name: str) -> Problem:
    """The mistake of a name that is longer than MAX_NAME_CHARS."""
    return Problem("string_too_long", loc, f"String should have at most {MAX_NAME_CHARS} characters", name[:200])


def _short(raw: Raw) -> object:
    """A wrong value for an error: decoded when it is small, else the start of its text."""
    return decode(raw) if len(raw) <= 200 else bytes(raw[:200]).decode("utf-8", "replace")
