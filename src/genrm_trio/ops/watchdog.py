"""A thread that notices when the event loop has stopped running tasks, and says where it stands.

A stuck loop cannot answer anything: that is how `/livez` fails then, by the probe's own timeout. Whoever probes ends
the process; this thread only leaves in the log what the loop was doing, and counts. It cannot run, and says nothing,
while some library holds the interpreter's lock.
"""

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

LOOKS: Final = 8
"""Looks in a row that must find no beat. A stopped process misses only one, whatever the time it was stopped for."""
FRAMES_SHOWN: Final = 12


class Watchdog:
    """Looks for the loop's beats from a thread of its own.

    stuck_s: seconds without a beat after which `on_stuck` is called, once for each time the loop is stuck, with the
    innermost frames of the loop's thread as text. on_again: called on the loop, with the seconds, by the beat that
    ends it.
    """

    def __init__(
        self, stuck_s: float, on_stuck: Callable[[str], None], on_again: Callable[[float], None] = lambda _s: None
    ) -> None:
        self._every_s = stuck_s / LOOKS
        self._on_stuck = on_stuck
        self._on_again = on_again
        self._last = time.monotonic()
        self._missed = 0
        self._loop = threading.get_ident()
        self._end = threading.Event()

    def beat(self) -> None:
        """Say that the loop runs; called on the loop, a few times within `stuck_s`."""
        missed, self._missed = self._missed, 0
        before, self._last = self._last, time.monotonic()
        if missed >= LOOKS:
            self._on_again(self._last - before)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look while this runs. To be entered on the loop's thread."""
        self._loop = threading.get_ident()
        thread = threading.Thread(target=self._keep_looking, name="watchdog", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._end.set()
            thread.join()

    def look(self) -> None:
        """Look once; `watching` does it for as long as it runs."""
        self._missed += 1
        if self._missed == LOOKS:
            self._on_stuck(self._where())

    def _keep_looking(self) -> None:
        while not self._end.wait(self._every_s):
            self.look()

    def _where(self) -> str:
        frame = sys._current_frames().get(self._loop)
        return "".join(traceback.format_stack(frame)[-FRAMES_SHOWN:]) if frame is not None else "its thread has ended"
