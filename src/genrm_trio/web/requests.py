"""Reading the body of the current request, on the event loop or beside it."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import trio
from quart import request

from genrm_trio.web.errors import TooLarge
from genrm_trio.web.policy import INLINE_BYTES, READING_THREADS
from genrm_trio.web.serving.exchange import BODY
from genrm_trio.web.wire.strict import has_more_values

T = TypeVar("T")
V = TypeVar("V", bytearray, memoryview)


def request_body() -> bytearray:
    """The whole body of the current request, once: no other copy of it exists."""
    take: Callable[[], bytearray] = request.scope[BODY]  # type: ignore[literal-required]  # our own key in the scope
    return take()


class Reading:
    """Runs pure readers, in one of a few threads when their input is large.

    max_values: texts, objects and arrays of one body; numbers do not count.
    """

    def __init__(self, max_values: int) -> None:
        self._max_values = max_values
        self._threads = trio.CapacityLimiter(READING_THREADS)

    async def read_body(self, reader: Callable[[bytearray], T], body: bytearray) -> T:
        """Like `read`, of a body that nobody has looked at yet; raises TooLarge beyond `max_values`."""
        return await self.read(partial(self._bounded, reader), body)

    async def read(self, reader: Callable[[V], T], source: V) -> T:
        """What `reader` makes of `source`; raises what it raises. When cancelled, a thread is left to end by itself."""
        if len(source) <= INLINE_BYTES:
            return reader(source)
        return await trio.to_thread.run_sync(reader, source, limiter=self._threads, abandon_on_cancel=True)

    def _bounded(self, reader: Callable[[bytearray], T], body: bytearray) -> T:
        if has_more_values(body, self._max_values):
            bound = f"limits.max_json_values, {self._max_values}"
            raise TooLarge(f"the body has more texts, objects and arrays than {bound}")
        return reader(body)
