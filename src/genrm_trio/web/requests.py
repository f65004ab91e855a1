"""Reading the body of the current request, on the event loop or beside it."""

from collections.abc import Callable
from typing import TypeVar

import trio
from quart import request

from genrm_trio.web.policy import INLINE_BYTES, READING_THREADS
from genrm_trio.web.serving.exchange import BODY

T = TypeVar("T")
V = TypeVar("V", bytearray, memoryview)


def request_body() -> bytearray:
    """The whole body of the current request, once: no other copy of it exists."""
    take: Callable[[], bytearray] = request.scope[BODY]  # type: ignore[literal-required]  # our own key in the scope
    return take()


class Reading:
    """Runs pure readers, in one of a few threads when their input is large."""

    def __init__(self) -> None:
        self._threads = trio.CapacityLimiter(READING_THREADS)

    async def read(self, reader: Callable[[V], T], source: V) -> T:
        """What `reader` makes of `source`; raises what it raises. When cancelled, a thread is left to end by itself."""
        if len(source) <= INLINE_BYTES:
            return reader(source)
        return await trio.to_thread.run_sync(reader, source, limiter=self._threads, abandon_on_cancel=True)
