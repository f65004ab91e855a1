"""When Python's garbage collector may look at everything, so that it does not stop the process at a bad moment.

A full collection looks at every object there is and stops all threads meanwhile: with many members retained or a large
checkpoint in memory that is a tenth of a second and more, and making many objects sets it off again and again. Nearly
everything goes by its reference count without it; a sweep, now and then, takes the cycles. Called on the event loop's
thread only.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_pauses: list[bool] = []
_sweepers: list[Callable[[], bool]] = []


@contextmanager
def collector_paused() -> Iterator[None]:
    """No collection while this runs, and none of what was made meanwhile when the outermost one ends.

    What exists at that moment is left out of later collections until the next sweep. May be nested.
    """
    _pauses.append(gc.isenabled())
    gc.disable()
    try:
        yield
    finally:
        enabled = _pauses.pop()
        if enabled:
            gc.freeze()
            gc.enable()


def collect_again() -> None:
    """Let later collections look at everything again: for when most of what was made is gone.

    Where sweeps are made it is the next one that does.
    """
    if not _pauses and not _sweepers:
        gc.unfreeze()


@contextmanager
def sweeping() -> Iterator[Callable[[], bool]]:
    """Leave it to sweeps to look at everything, while this runs; yields `sweep`.

    `sweep` looks at everything once, and leaves what is alive then out of every collection until the next sweep: from
    then on a collection looks at what was made since, however much is retained. It returns False when it has to wait,
    because a pause is on.
    """

    def sweep() -> bool:
        if _pauses:
            return False
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        return True

    _sweepers.append(sweep)
    try:
        yield sweep
    finally:
        _sweepers.remove(sweep)
        gc.unfreeze()
