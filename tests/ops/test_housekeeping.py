"""Sweeps: when they come, and that in between no collection looks at what is retained."""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import trio
import trio.testing

from genrm_trio.checkpoints.collector import collect_again, collector_paused, sweeping
from genrm_trio.ops import housekeeping
from genrm_trio.ops.housekeeping import LATEST_AFTER_S, LOOK_EVERY_S, QUIET_AFTER_S, WORTH_IT, keep_swept

RETAINED = 10_000


class Ring:
    """Garbage that no reference count frees."""

    def __init__(self) -> None:
        self.itself = self


def test_collections_between_sweeps_look_at_what_is_new() -> None:
    retained = [[number] for number in range(RETAINED)]
    with sweeping() as sweep:
        assert sweep()
        assert len(gc.get_objects()) < RETAINED / 10
        collect_again()
        assert len(gc.get_objects()) < RETAINED / 10
        ring = weakref.ref(Ring())
        gc.collect()
        assert ring() is None
    assert len(gc.get_objects()) > len(retained)


def test_the_next_sweep_takes_what_was_alive_at_the_last() -> None:
    with sweeping() as sweep:
        alive = Ring()
        ring = weakref.ref(alive)
        sweep()
        del alive
        gc.collect()
        assert ring() is not None
        sweep()
        assert ring() is None


def test_a_pause_is_not_broken() -> None:
    with sweeping() as sweep:
        with collector_paused():
            assert not sweep()
            assert not gc.isenabled()
        assert sweep()
        assert gc.isenabled()


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times of sweeps, none of which is made."""
    times: list[float] = []

    def sweep() -> bool:
        times.append(trio.current_time())
        return True

    @contextmanager
    def noting() -> Iterator[Callable[[], bool]]:
        yield sweep

    monkeypatch.setattr(housekeeping, "sweeping", noting)
    return times


@pytest.mark.parametrize(("quiet", "first"), [(True, QUIET_AFTER_S), (False, LATEST_AFTER_S)])
async def test_a_sweep_waits_for_quiet_but_not_for_ever(
    quiet: bool, first: float, swept: list[float], monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    busy = iter(range(0, 10**9, WORTH_IT))
    monkeypatch.setattr(housekeeping, "young_collections", lambda: next(busy))
    began = trio.current_time()
    with trio.move_on_after(first + LOOK_EVERY_S):
        await keep_swept(lambda: quiet)
    assert [at - began for at in swept] == pytest.approx([0.0, first])


async def test_an_idle_server_is_not_swept_again(
    swept: list[float], monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    monkeypatch.setattr(housekeeping, "young_collections", lambda: 7)
    with trio.move_on_after(3 * LATEST_AFTER_S):
        await keep_swept(lambda: True)
    assert len(swept) == 1
