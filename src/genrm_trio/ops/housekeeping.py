"""When the garbage of reference cycles is looked for: at quiet moments if there are any, else seldom.

A full collection stops the process for a time that grows with what is retained. Left to themselves full collections
come when they like; here they come as sweeps, and whatever runs between two of them looks at new objects only.
"""

import gc
from collections.abc import Callable
from typing import Final

import trio

from genrm_trio.checkpoints.collector import sweeping

LOOK_EVERY_S: Final = 5.0
QUIET_AFTER_S: Final = 60.0
"""How long after the last sweep the next one may use a moment in which no request is under way."""
LATEST_AFTER_S: Final = 600.0
"""How long after the last sweep the next one comes in any case."""
WORTH_IT: Final = 100
"""Young collections, of some hundred new objects each, without which a sweep is not worth its time."""


async def keep_swept(quiet: Callable[[], bool]) -> None:
    """Sweep now, and then for ever. quiet: whether no request is under way."""
    with sweeping() as sweep:
        sweep()
        last, made = trio.current_time(), young_collections()
        while True:
            await trio.sleep(LOOK_EVERY_S)
            age = trio.current_time() - last
            due = age >= LATEST_AFTER_S or (age >= QUIET_AFTER_S and quiet())
            if due and young_collections() - made >= WORTH_IT and sweep():
                last, made = trio.current_time(), young_collections()


def young_collections() -> int:
    """Collections of the youngest generation so far."""
    return int(gc.get_stats()[0]["collections"])
