"""Fault injection by a sweep: the same afternoon again and again, each time broken at the next moment.

Whatever the n-th fault is, the core's invariants hold after every action, every waiter is answered, nothing leaks, and
the next cohort completes. `GENRM_TRIO_SWEEP=full` tries every step in both moments, behind HTTP too. Without it some
sweeps try a sample of the steps: the same in every run, or with `GENRM_TRIO_SWEEP=K` the K-th; samples cover all.
"""

import os
from collections.abc import Iterable, Iterator
from typing import Any, Final
from unittest import mock

import pytest
from tests.support.cuts import Moment
from tests.sweep.world import Fault, JudgeFault, StoreFault, World, play

from genrm_trio.core.registry import Registry
from genrm_trio.judging.slots import Hold
from genrm_trio.runtime.life import Life

ASKED: Final = os.environ.get("GENRM_TRIO_SWEEP", "")
FULL: Final = ASKED == "full"
SLICE: Final = int(ASKED) if ASKED not in {"", "full"} else None
SHOWN: Final = 5


def sweep(faults: Iterable[Fault], *, web: bool = False) -> list[World]:
    """Play an afternoon with each fault; every one that goes wrong is reported with its fault."""
    worlds, broken = [], []
    for fault in faults:
        try:
            world = play(fault, web=web)
        except Exception as error:  # noqa: BLE001 - told with its fault, after the others
            broken.append(f"{fault}: {error!r}")
            continue
        worlds.append(world)
        broken += [f"{fault}: {wrong}" for wrong in world.wrong]
    assert not broken, "\n".join([f"{len(broken)} faults leave something wrong", *broken[:SHOWN]])
    return worlds


def cuts(
    kind: str, moment: Moment, *, most: int | None = None, first: int = 1, sample: int | None = SLICE, web: bool = False
) -> Iterator[Fault]:
    """A fault at each step of this kind from the first on, or at about so many of them, evenly spread.

    sample: which of the samples, each as good as another; together they have every step.
    """
    total = play(Fault(kind, moment), web=web).cuts.steps
    stride = 1 if FULL or most is None else max(1, total // most)
    return (Fault(kind, moment, at=at) for at in range(first + (sample or 0) % stride, total + 1, stride))


@pytest.mark.parametrize("web", [False, True])
def test_the_afternoon_without_a_fault(web: bool) -> None:
    world = play(Fault(), web=web, watch_steps=True)
    assert not world.wrong
    assert {name: group.attempt for name, group in world.groups.items()} == {"a": 0, "b": 1, "c": 0, "d": 0, "e": 0}
    assert world.told.keys() == {"reward"}
    assert world.generation == 2
    assert world.judge.calls == 14, "five cohorts and two comparisons outside, each asked about once"
    wanted = {"Leave", "Retire", "CloseAdmission", "Export", "Restore", "OpenAdmission", "Expire", "ShutDown"}
    assert wanted <= world.events.keys()


@pytest.mark.parametrize("moment", ["waiting", "waking"])
@pytest.mark.parametrize("kind", ["request", "cohort", "control"])
def test_the_nth_step_of_a_task_cut(kind: str, moment: Moment) -> None:
    worlds = sweep(cuts(kind, moment))
    assert all(world.cuts.cut is not None for world in worlds)


@pytest.mark.parametrize(("moment", "first"), [("waiting", 1), ("waking", 2)])
def test_the_whole_server_cancelled_at_the_nth_step_of_anything(moment: Moment, first: int) -> None:
    worlds = sweep(cuts("everything", moment, most=90, first=first))
    assert all(world.cuts.cut is not None for world in worlds)
    assert any(world.generation == 3 for world in worlds)


@pytest.mark.parametrize("fault", ["judge error", "unexpected error", "hang"])
def test_the_nth_judge_call_spoilt(fault: JudgeFault) -> None:
    calls = play(Fault()).judge.calls
    worlds = sweep(Fault(judge=fault, at=at) for at in range(1, calls + 1))
    masked = [w for w in worlds if w.told["masked"]]
    failed = [w for w in worlds if any(g.attempt > (name == "b") for name, g in w.groups.items())]
    told = failed if fault == "unexpected error" else masked
    assert len(told) >= calls - 4, "but for the two comparisons outside of cohorts, each call is a cohort's"


@pytest.mark.parametrize("fault", ["disk error", "killed"])
def test_the_nth_store_call_spoilt(fault: StoreFault) -> None:
    calls = play(Fault()).store_calls
    worlds = sweep(Fault(store=fault, at=at) for at in range(1, calls + 1))
    if fault == "killed":
        assert all(world.events["killed"] == 1 for world in worlds)


def test_the_nth_stage_of_a_write_takes_for_ever() -> None:
    stages = play(Fault()).stages
    worlds = sweep(Fault(store="slow", at=at) for at in range(1, stages + 1))
    assert len(worlds) == stages


@pytest.mark.parametrize("kind", ["request", "control", "everything"])
@pytest.mark.parametrize("moment", ["waiting", "waking"])
def test_the_nth_step_cut_behind_http(kind: str, moment: Moment) -> None:
    usual = 2 if moment == "waiting" else 10
    sweep(cuts(kind, moment, most=6, sample=usual if SLICE is None else SLICE, web=True), web=True)


def test_the_samples_have_every_step_between_them() -> None:
    total = play(Fault("everything", "waiting")).cuts.steps
    samples = [
        {fault.at for fault in cuts("everything", "waiting", most=90, sample=n)} for n in range(7, 7 + total // 90)
    ]
    assert set().union(*samples) == set(range(1, total + 1))
    assert FULL or sum(map(len, samples)) == total


# -- a sweep that cannot fail shows nothing ------------------------------------------------------------


async def _kept_on_error(self: Hold, kind: object, error: object, trace: object) -> None:
    if error is None:
        self._ticket._slots._release()


def _nothing(*_args: object) -> None:
    return None


DEFECTS: Final[dict[str, tuple[Any, str, Any, str]]] = {
    "a disconnect leaves its waiter": (Registry, "leave", _nothing, "request"),
    "a cancelled call keeps its slot": (Hold, "__aexit__", _kept_on_error, "cohort"),
    "a cancelled cohort never fails": (Life, "_fail", _nothing, "cohort"),
    "shutdown forgets its waiters": (Registry, "shut_down", _nothing, "everything"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_the_sweep_finds_a_defect_that_is_put_in(defect: str) -> None:
    where, name, replacement, kind = DEFECTS[defect]
    faults = list(cuts(kind, "waiting", most=20, sample=8))  # the same in every run: one of them must find it
    with mock.patch.object(where, name, replacement), pytest.raises(AssertionError):
        sweep(faults)
