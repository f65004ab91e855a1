"""Large texts are read in a thread, so that a megabyte from a judge does not hold up every other request.

Only the rule is here: what is small is done at once, as a thread costs more and makes virtual clocks jump. There are
few threads: those that compute share one interpreter lock with the event loop, which waits its turn behind each.
"""

from collections.abc import Callable
from typing import Final, TypeVar

import trio

OFF_LOOP_SIZE: Final = 65536
"""Replies of more bytes, and answers of more characters, are read in a thread."""
THREADS: Final = 1
"""That compute at once. More would not be faster, and each adds 5 ms to every turn of the loop."""

T = TypeVar("T")
_threads: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("judging_threads")


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """Do pure `work` on something of this size; cancelled work in a thread is left to end by itself."""
    return work() if size <= OFF_LOOP_SIZE else await in_thread(work)


async def in_thread(work: Callable[[], T]) -> T:
    """Do pure `work` in a thread, in the order of asking; cancelled work is left to end by itself."""
    try:
        limiter = _threads.get()
    except LookupError:
        limiter = trio.CapacityLimiter(THREADS)
        _threads.set(limiter)
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter)
