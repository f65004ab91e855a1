"""Named points: where a task has just woken and has not yet re-checked.

In production a point does nothing, not even a checkpoint. A test parks tasks there, to force any order of wake-ups.
"""

from typing import Protocol


class Points(Protocol):
    """Where tasks report that they reached a named point; may hold them there."""

    async def reach(self, name: str, key: str, /) -> None:
        """A task that waited at `name`, about `key`, woke up."""


class NoPoints:
    """The points of production."""

    async def reach(self, name: str, key: str, /) -> None:
        """Do nothing."""
