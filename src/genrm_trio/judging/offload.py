"""Large texts are read in a thread, so that a megabyte from a judge does not hold up every other request.

Only the rule is here: what is small is done at once, as a thread costs more and makes virtual clocks jump.
"""

from collections.abc import Callable
from typing import Final, TypeVar

import trio

OFF_LOOP_SIZE: Final = 65536
"""Replies of more bytes, and answers of more characters, are read in a thread."""

T = TypeVar("T")


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """Do pure `work` on something of this size; cancelled work in a thread is left to end by itself."""
    if size <= OFF_LOOP_SIZE:
        return work()
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True)
