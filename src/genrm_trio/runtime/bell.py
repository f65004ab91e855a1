"""A bell: waits on a condition over shared state, woken by whoever changed that state."""

from collections.abc import Callable

import trio


class Bell:
    """Wakes everybody who waits for a condition. State is read after each ring, never carried by it."""

    def __init__(self) -> None:
        self._rung = trio.Event()

    def ring(self) -> None:
        """Something changed: everybody looks again."""
        self._rung.set()
        self._rung = trio.Event()

    async def heard(self) -> None:
        """Wait for the next ring."""
        await self._rung.wait()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once the condition holds, at once if it does. It may have changed again when the caller runs on."""
        while not condition():
            await self.heard()
