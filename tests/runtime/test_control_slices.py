"""Long lists are dealt with in slices, between which everything else goes on, a controller's other calls included."""

import pytest
import trio
from tests.support.plane import Plane, memory_store, plane, settled
from trio.abc import Clock

from genrm_trio.core.identity import EpisodeId
from genrm_trio.core.trace import Event
from genrm_trio.runtime import control
from genrm_trio.runtime.transfer import SLICE, SORT_SLICE, in_order

ROLLOUTS = [f"r{n}" for n in range(5)]


@pytest.fixture(autouse=True)
def slices_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "RETIRE_SLICE", 2)


def heard(p: Plane, name: str) -> list[Event]:
    """The events of one action from now on."""
    events: list[Event] = []
    p.s.server.registry.trace = lambda event: events.append(event) if event.name == name else None
    return events


def seeded(p: Plane) -> None:
    for rollout in ROLLOUTS:
        p.s.seed(f"s-{rollout}", rollout)


async def cut(p: Plane) -> None:
    """A retire of all whose client goes away after the first slice."""
    with trio.CancelScope() as call:
        call.cancel()
        await p.retire(ROLLOUTS)
    assert call.cancelled_caught
    assert len(p.s.server.registry.sessions) == 3


async def test_a_retire_goes_slice_by_slice_and_its_call_waits_for_the_last(autojump_clock: Clock) -> None:
    async with plane() as p:
        seeded(p)
        events = heard(p, "Retire")
        assert await p.retire(ROLLOUTS) == {"retired": ROLLOUTS}
        assert [event.args["episodes"] for event in events] == [ROLLOUTS[:2], ROLLOUTS[2:4], ROLLOUTS[4:]]
        assert len(p.s.server.registry.sessions) == 0


async def test_a_retire_goes_on_to_its_end_without_its_call(autojump_clock: Clock) -> None:
    async with plane() as p:
        seeded(p)
        await cut(p)
        await settled()
        assert len(p.s.server.registry.sessions) == 0
        assert [p.s.seed("s", rollout) for rollout in ROLLOUTS] == ["stale_attempt"] * 5


async def test_a_prepare_waits_for_the_slices_that_are_left(autojump_clock: Clock) -> None:
    async with plane() as p:
        seeded(p)
        await cut(p)
        assert p.control.status()["report"]["blockers"] == ROLLOUTS  # type: ignore[index,call-overload]  # an object
        assert (await p.prepare("ck"))["phase"] == "prepared"
        assert len(p.s.server.registry.sessions) == 0
        assert (await p.commit("ck"))["episode_ids"] == []


async def test_a_repeated_retire_waits_for_the_slices_that_are_left(autojump_clock: Clock) -> None:
    async with plane() as p:
        seeded(p)
        await cut(p)
        assert await p.refused(p.forget(ROLLOUTS[4:])) == "retire_incomplete"
        assert await p.retire(ROLLOUTS[4:]) == {"retired": ROLLOUTS[4:]}
        assert len(p.s.server.registry.sessions) == 0


async def test_a_shutdown_ends_the_slices(autojump_clock: Clock) -> None:
    async with plane() as p:
        seeded(p)
        await cut(p)
        events = heard(p, "Retire")
        p.s.server.shut_down()
        await settled()
        assert events == []


async def test_a_forget_stops_where_a_checkpoint_opens_and_is_finished_by_a_repeat(autojump_clock: Clock) -> None:
    async with plane() as p, trio.open_nursery() as nursery:
        await p.retire(ROLLOUTS)
        began = heard(p, "Forget")

        async def open_checkpoint() -> None:
            while not began:
                await trio.lowlevel.checkpoint()
            await p.prepare("ck")

        nursery.start_soon(open_checkpoint)
        assert await p.refused(p.forget(ROLLOUTS, "f")) == "checkpoint_conflict"
        assert 0 < len(p.s.server.registry.sessions.retired) < 5
        await p.resume("ck")
        assert await p.forget(ROLLOUTS, "f") == {"forgotten": ROLLOUTS}
        assert p.s.server.registry.sessions.retired == {}


async def test_what_a_commit_leaves_out_goes_slice_by_slice_unless_it_is_claimed_meanwhile(
    autojump_clock: Clock,
) -> None:
    store = memory_store()
    keys = [f"r{n}" for n in range(4 * SLICE)]
    async with plane(store) as p:
        for key in keys:
            p.s.seed(f"s-{key}", key)
        await p.prepare()
        await p.commit()
    async with plane(store) as p, trio.open_nursery() as nursery:
        await p.restore(keys)
        await p.resume("re")
        last = list(p.s.server.registry.sessions)[-1]
        await p.prepare("ck")
        events = heard(p, "DeleteRestored")

        async def claim() -> None:
            while not events:
                await trio.lowlevel.checkpoint()
            p.s.server.registry.use_session(p.s.server.now(), last.session_id, last.episode)

        nursery.start_soon(claim)
        await p.commit("ck", "again", episode_ids=[EpisodeId("none", 0).key])
        assert [len(event.args["sessions"]) for event in events] == [SLICE] * 4  # type: ignore[arg-type]  # a list
        assert list(p.s.server.registry.sessions) == [last]


@pytest.mark.parametrize("count", [0, 1, SORT_SLICE, 3 * SORT_SLICE + 1])
async def test_texts_are_sorted_as_if_at_once(count: int) -> None:
    texts = [f"r{n % 777}" for n in range(count)]
    assert await in_order(texts) == sorted(set(texts))
