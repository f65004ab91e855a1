"""Parks tasks at the runtime's named points, so that a test decides who wakes first."""

from collections import Counter

from genrm_trio.runtime.bell import Bell


class Parking:
    """Lets tasks pass, but for the points that are blocked."""

    def __init__(self) -> None:
        self._blocked: set[str] = set()
        self._parked: Counter[str] = Counter()
        self._bell = Bell()

    async def reach(self, name: str, _key: str, /) -> None:
        if name not in self._blocked:
            return
        self._parked[name] += 1
        self._bell.ring()
        try:
            await self._bell.until(lambda: name not in self._blocked)
        finally:
            self._parked[name] -= 1

    def block(self, name: str) -> None:
        """From now on tasks stop at this point."""
        self._blocked.add(name)

    def release(self, name: str) -> None:
        """Let the tasks parked here go on, and later ones pass."""
        self._blocked.discard(name)
        self._bell.ring()

    async def parked(self, name: str, count: int = 1) -> None:
        """Wait until so many tasks stand at this point."""
        await self._bell.until(lambda: self._parked[name] >= count)
