"""Measures how far a module's patterns go in one call of the regex engine, which holds the interpreter meanwhile."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest


@dataclass
class Steps:
    """What was counted: the longest step, what was searched through in vain included."""

    longest: int = 0


class _Counted:
    def __init__(self, pattern: re.Pattern[Any], steps: Steps) -> None:
        self.pattern = pattern.pattern
        self._real = pattern
        self._steps = steps

    def finditer(self, text: Any, at: int = 0) -> Iterator[re.Match[Any]]:
        for found in self._real.finditer(text, at):
            self._count(found.end() - at)
            at = found.end()
            yield found
        self._count(len(text) - at)

    def match(self, text: Any, at: int = 0) -> re.Match[Any] | None:
        if (found := self._real.match(text, at)) is not None:
            self._count(found.end() - at)
        return found

    def fullmatch(self, text: Any) -> re.Match[Any] | None:
        self._count(len(text))
        return self._real.fullmatch(text)

    def _count(self, passed: int) -> None:
        self._steps.longest = max(self._steps.longest, passed)


def count_steps(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> Steps:
    """Count the steps of every compiled pattern of a module from now on."""
    steps = Steps()
    for name, value in list(vars(module).items()):
        if isinstance(value, re.Pattern):
            monkeypatch.setattr(module, name, _Counted(value, steps))
    return steps
