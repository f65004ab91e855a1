"""The real command line in a process that counts what is alive when it is told to; `SOAK_LEAK` puts a leak in.

As a program: `python -m tests.soak.counted ARGUMENTS`. At each SIGUSR1 it waits until every task of the server waits,
collects all garbage and writes a line to its standard output: how many objects are alive, and how many bytes.
"""

import gc
import os
import signal
import sys
from typing import Any, Final

import trio
from trio.testing import wait_all_tasks_blocked

from genrm_trio.ops.cli import main
from genrm_trio.runtime.server import Server, Verification

LEAK: Final = "SOAK_LEAK"
LEAKED_BYTES: Final = 4096
LEAKED_OBJECTS: Final = 10
QUIET_S: Final = 0.02
"""How long nothing must have run."""
KEPT_DEADLINES: Final = 1000
"""How many deadlines that are over Trio keeps before it drops them."""
_kept: list[Any] = []


def alive() -> tuple[int, int]:
    """How many objects the collector knows after a full collection, and their bytes with those of what they hold."""
    gc.unfreeze()
    gc.collect()
    objects = gc.get_objects()
    gc.freeze()  # as a sweep leaves it
    seen = {id(each) for each in objects}
    size = 0
    found: list[Any] = objects
    while found:
        size += sum(map(sys.getsizeof, found))
        # What no cycle can go through, such as a text, the collector does not know.
        found = list({id(each): each for each in gc.get_referents(*found) if id(each) not in seen}.values())
        seen.update(map(id, found))
    return len(objects), size


def _tell(_number: int, _frame: object) -> None:
    trio.lowlevel.current_trio_token().run_sync_soon(trio.lowlevel.spawn_system_task, _tell_when_quiet)


async def _tell_when_quiet() -> None:
    # The one who reads has its reply before the connections that ended in the same moment have ended their tasks.
    await wait_all_tasks_blocked(QUIET_S)
    await forget_deadlines()
    count, size = alive()
    os.write(1, f"alive {count} {size}\n".encode())


async def forget_deadlines() -> None:
    """Have Trio drop the deadlines that are over: it keeps up to a thousand of them, each with its scope."""
    with trio.CancelScope() as scope:
        for number in range(KEPT_DEADLINES + 4):
            scope.deadline = trio.current_time() + 1000 + number
        await trio.lowlevel.checkpoint()  # where it looks


def leak() -> None:
    """Keep what every verify was asked, for ever, and a little more."""
    verify = Server.verify

    async def keeping(self: Server, asked: Verification, **more: Any) -> Any:
        _kept.append((asked, bytes(LEAKED_BYTES), [[] for _ in range(LEAKED_OBJECTS)]))
        return await verify(self, asked, **more)

    Server.verify = keeping  # type: ignore[method-assign]  # the defect that the soak has to find


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, _tell)
    if LEAK in os.environ:
        leak()
    main()
