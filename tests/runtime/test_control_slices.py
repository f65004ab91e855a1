"""Long lists are dealt with in slices, between which everything else goes on, a controller's other calls included."""

import pytest
import trio
from tests.support.plane import Plane, memory_store, plane
from trio.abc import Clock

from genrm_trio.core.identity import EpisodeId
from genrm_trio.core.trace import Event
from genrm_trio.runtime.transfer import SLICE, SORT_SLICE, in_order


def heard(p: Plane, name: str) -> list[Event]:
    """The events of one action from now on."""
    events: list[Event] = []
    p.s.server.registry.trace = lambda event: events.append(event) if event.name == name else None
    return events


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
            for _ in range(1000):
                if events:
                    break
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
