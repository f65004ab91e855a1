"""Code is led along the spec's edges, and a defect in it is found: in the core, and in the runtime alone."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import trio
from spec.tools.core_target import core_target
from spec.tools.graph import Event, State
from spec.tools.replay import Divergence, Fresh, Taken, compare
from spec.tools.replaying import run, seen_by_server
from spec.tools.trio_target import trio_target
from spec.tools.walks import Walk, covering
from tests.spec import small
from trio.testing import MockClock

from genrm_trio.core.outcome import CohortFailed, SubmitReply, Told
from genrm_trio.core.registry import Registry, Submission
from genrm_trio.ops.tla.values import Map, Value, record
from genrm_trio.runtime.gate import Gate
from genrm_trio.runtime.life import Life
from genrm_trio.runtime.server import Server


def core() -> Fresh:
    return partial(core_target, small.constants(), small.graph().states[0])


def runtime() -> Fresh:
    return partial(trio_target, small.constants(), small.graph().states[0])


@cache
def told_apart() -> list[Walk]:
    """Walks that take every edge which a server can tell from others."""
    return covering(small.graph(), partial(seen_by_server, small.graph()))


def found(match: str) -> None:
    """The runtime is not what the spec says, in this."""
    with pytest.raises(BaseExceptionGroup) as group:
        run(small.graph(), told_apart(), runtime())
    assert group.group_contains(Divergence, match=match)


def test_every_edge_holds_on_the_core() -> None:
    done = run(small.graph(), small.walks(), core())
    assert done.edges == len(small.graph().edges)
    assert done.steps > done.edges


def test_every_edge_that_a_server_can_tell_apart_holds_on_the_runtime() -> None:
    done = run(small.graph(), told_apart(), runtime())
    assert done.walks == len(told_apart())


def test_a_defect_of_the_core_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Registry, "needed", lambda _self, _cohort: False)
    with pytest.raises(Divergence, match="Expire: the spec has"):
        run(small.graph(), small.walks(), core())


def lost_wakeup(server: Server, *, resumed: bool) -> None:
    server.registry.open_admission(server.now())


async def no_hold(life: Life) -> None:
    """A life that publishes as soon as its verdict is there."""
    with life._scope:
        verdict = await life._verdict()
        life._report(verdict)
        life._server.registry.publish(life._server.now(), life._key)


submit = Registry.submit


def told_another(registry: Registry, now: float, submission: Submission) -> SubmitReply:
    """The event is right, and the request that is told at once hears something else."""
    reply = submit(registry, now, submission)
    return Told(CohortFailed("evaluation_failed", "")) if isinstance(reply, Told) else reply


end_session = Server.end_session


def ends_later(*args: Any) -> str:
    end_session(*args)
    return "later"


@pytest.mark.parametrize(
    ("owner", "method", "defect", "match"),
    [
        (Server, "open_admission", lost_wakeup, "was not woken"),
        (Life, "live", no_hold, "Publish"),
        (
            Registry,
            "submit",
            told_another,
            r"to Submit, what came back is \('told', \('cohort', 'evaluation_failed'\)\)",
        ),
        (Server, "end_session", ends_later, "to EndSession, what came back is later"),
    ],
)
def test_defects_of_the_runtime_are_found(
    owner: type, method: str, defect: Callable[..., object], match: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, method, defect)
    found(match)


SESSION: Map = record(session=("g", 0, 1), episode=(("g", 0), 0))
RETIRE = Event("Retire", record(episodes=frozenset([SESSION["episode"]])), ())
USE, SEED = (Event(name, SESSION, ()) for name in ("UseSession", "Seed"))
SHUT_DOWN = Event("ShutDown", (), ())


def came_back(*events: Event) -> "list[Value | None]":
    """What the runtime says to each."""

    async def led() -> "list[Value | None]":
        async with runtime()() as target:
            return [(await target.take(event)).returned for event in events]

    return trio.run(led, clock=MockClock())


def test_what_the_runtime_says_of_a_session_is_its_own_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = (USE, SEED, RETIRE, USE, SEED, SHUT_DOWN, USE, SEED)
    assert came_back(*steps) == [True, "bound", None, False, "stale_attempt", None, True, "shutting_down"]
    monkeypatch.setattr(Gate, "_check", lambda gate, _kind, *who: gate._registry.use_session(0.0, *who))
    assert came_back(RETIRE, USE) == [None, True]


def test_another_reply_than_the_specs_is_a_divergence_and_so_is_none() -> None:
    state = small.graph().states[0]

    async def led(returned: "Value | None") -> str | None:
        async with core()() as target:
            event = Event("UseSession", SESSION, False)
            taken = Taken(("UseSession", SESSION, False), {}, returned)
            return compare(event, state, State(target.core(), state.caller, state.task, state.world), taken, target)

    assert trio.run(led, False) is None
    for returned in (True, None):
        assert trio.run(led, returned) == f"the spec replies False to UseSession, what came back is {returned}"


def test_a_divergence_tells_the_way_that_leads_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Registry, "leave", lambda _self, _now, _waiter: trio.current_time())
    monkeypatch.setattr(Registry, "close_admission", lambda self, now: self._emit("CloseAdmission", None))
    with pytest.raises(Divergence, match="open: the spec has False, the code True\nafter\n"):
        run(small.graph(), small.walks(), core())
