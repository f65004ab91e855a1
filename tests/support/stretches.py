"""Measures how long the event loop is away at a stretch."""

import time

import trio


class Stretches:
    """The longest time the event loop was away, in seconds, though it had a task to run at all times.

    Counted is the lesser of wall time and of this process's own processor time, so that other processes on a busy
    machine do not count.
    """

    def __init__(self) -> None:
        self.worst = 0.0

    async def watch(self) -> None:
        """Look again and again, until cancelled."""
        wall, own = time.perf_counter(), time.process_time()
        while True:
            await trio.sleep(0.001)
            wall_now, own_now = time.perf_counter(), time.process_time()
            self.worst = max(self.worst, min(wall_now - wall - 0.001, own_now - own))
            wall, own = wall_now, own_now

    async def start(self) -> None:
        """Leave out what came before."""
        await trio.sleep(0.05)
        self.worst = 0.0

    def take(self) -> float:
        """The longest stretch since `start`, but for the one that is under way."""
        return self.worst
