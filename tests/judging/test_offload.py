"""What computes on large texts does so beside the loop, and not many at once."""

import threading
from functools import partial

import trio
import trio.testing

from genrm_trio.judging.offload import OFF_LOOP_SIZE, THREADS, in_thread, off_loop


class Works:
    """Counts how many are under way at once, and on which threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.at_once = self.most = self.done = 0
        self.on_loop = 0
        self.loop = threading.get_ident()

    def work(self) -> int:
        with self.lock:
            self.at_once += 1
            self.most = max(self.most, self.at_once)
            self.on_loop += threading.get_ident() == self.loop
        sum(range(20_000))
        with self.lock:
            self.at_once -= 1
            self.done += 1
        return self.done


async def test_small_work_is_done_at_once_and_large_work_in_few_threads() -> None:
    works = Works()
    assert await off_loop(OFF_LOOP_SIZE, works.work) == 1
    assert works.on_loop == 1
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(off_loop, OFF_LOOP_SIZE + 1, works.work)
            nursery.start_soon(in_thread, works.work)
    assert works.done == 41
    assert works.on_loop == 1
    assert works.most <= max(THREADS, 1)


async def test_cancelled_work_gives_its_place_back_when_it_ends() -> None:
    works, go = Works(), threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(in_thread, partial(go.wait, 20))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    go.set()
    with trio.fail_after(20):
        await in_thread(works.work)
    assert works.done == 1
