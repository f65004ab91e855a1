"""Reading the body of the current request, on the event loop or beside it."""

from collections.abc import Callable
from typing import TypeVar

import trio
from quart import request

from genrm_trio.web.policy import INLINE_BYTES, READING_THREADS

T = TypeVar("T")
V = TypeVar("V", bytes, memoryview)


async def request_body() -> bytes:
    """The whole body of the current request; Quart keeps no copy of it."""
    body = await request.get_data(cache=False, as_text=False, parse_form_data=False)
    assert isinstance(body, bytes), "asked for as bytes"
    return body


class Reading:
    """Runs pure readers, in one of a few threads when their input is large."""

    def __init__(self) -> None:
        self._threads = trio.CapacityLimiter(READING_THREADS)

    async def read(self, reader: Callable[[V], T], source: V) -> T:
        """What `reader` makes of `source`; raises what it raises."""
        if len(source) <= INLINE_BYTES:
            return reader(source)
        return await trio.to_thread.run_sync(reader, source, limiter=self._threads)
