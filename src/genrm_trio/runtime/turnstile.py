"""Wakes tasks that wait for one thing a few at a time, when thousands of them come to go on in one step.

Trio runs all that can run before it looks at the sockets again: thousands of answers that are made side by side hold up
each other, and whoever asks for the server's health.
"""

from typing import Final

import trio

AT_ONCE: Final = 32
"""How many may be awake that have not run since. Each wakes the next as it runs, so as many go on in each pass of the
event loop; an answer takes some ten passes.
"""


class Turnstile:
    """Who is awake, and the line of those who may go on after them, first come first served."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._awake: set[trio.Event] = set()
        self._line: dict[trio.Event, None] = {}

    def let(self, event: trio.Event) -> None:
        """Set the event that one task waits for: now, or when it is its turn."""
        if len(self._awake) < self._at_once:
            self._awake.add(event)
            event.set()
        else:
            self._line[event] = None

    def through(self, event: trio.Event) -> None:
        """The task runs again, woken or cancelled. Must be called once it does, or the line stands still."""
        if event not in self._awake:
            self._line.pop(event, None)
            return
        self._awake.remove(event)
        for following in self._line:
            del self._line[following]
            self.let(following)
            return

    def let_all(self) -> None:
        """Wake the whole line in this step."""
        line, self._line = self._line, {}
        for event in line:
            self._awake.add(event)
            event.set()
