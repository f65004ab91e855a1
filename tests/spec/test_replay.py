"""Code is led along the spec's edges, and a defect in it is found: in the core, and in the runtime alone."""

from functools import partial

import pytest
import trio
from spec.tools.core_target import core_target
from spec.tools.replay import Divergence, Fresh
from spec.tools.replaying import run, seen_by_server
from spec.tools.trio_target import trio_target
from spec.tools.walks import covering
from tests.spec import small

from genrm_trio.core.registry import Registry
from genrm_trio.runtime.life import Life
from genrm_trio.runtime.server import Server


def core() -> Fresh:
    return partial(core_target, small.constants(), small.graph().states[0])


def runtime() -> Fresh:
    return partial(trio_target, small.constants(), small.graph().states[0])


def test_every_edge_holds_on_the_core() -> None:
    done = run(small.graph(), small.walks(), core())
    assert done.edges == len(small.graph().edges)
    assert done.steps > done.edges


def test_every_edge_that_a_server_can_tell_apart_holds_on_the_runtime() -> None:
    graph = small.graph()
    led = covering(graph, partial(seen_by_server, graph))
    done = run(graph, led, runtime())
    assert done.walks == len(led)


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


def test_defects_of_the_runtime_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = small.graph()
    led = covering(graph, partial(seen_by_server, graph))
    with monkeypatch.context() as patched:
        patched.setattr(Server, "open_admission", lost_wakeup)
        with pytest.raises(BaseExceptionGroup) as lost:
            run(graph, led, runtime())
    assert lost.group_contains(Divergence, match="was not woken")
    with monkeypatch.context() as patched:
        patched.setattr(Life, "live", no_hold)
        with pytest.raises(BaseExceptionGroup) as unheld:
            run(graph, led, runtime())
    assert unheld.group_contains(Divergence, match="Publish")


def test_a_divergence_tells_the_way_that_leads_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Registry, "leave", lambda _self, _now, _waiter: trio.current_time())
    monkeypatch.setattr(Registry, "close_admission", lambda self, now: self._emit("CloseAdmission", None))
    with pytest.raises(Divergence, match="open: the spec has False, the code True\nafter\n"):
        run(small.graph(), small.walks(), core())
