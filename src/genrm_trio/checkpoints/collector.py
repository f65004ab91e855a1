"""Keeping Python's garbage collector from stopping the process while very many objects are made at once.

A full collection looks at every object there is and stops all threads meanwhile: with a large checkpoint in
memory that is a tenth of a second and more, and making that many objects sets it off again and again. Their
reference counts free them without it. Called on the event loop's thread only.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_pauses: list[bool] = []


@contextmanager
def collector_paused() -> Iterator[None]:
    """No collection while this runs, and none of what was made meanwhile when the outermost one ends.

    What exists at that moment is left out of later collections until `collect_again`. May be nested.
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
    """Let later collections look at everything again: for when most of what was made is gone."""
    if not _pauses:
        gc.unfreeze()
