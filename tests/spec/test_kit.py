"""The kit for ports is what docs/kit.md says: values, walks, whom a step tells what, traces, counterexamples."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from spec.tools import configs, kit
from spec.tools.codes import Codes, Constants
from spec.tools.core_target import core_target
from spec.tools.graph import Event, Graph, State, dump
from spec.tools.replay import compare
from spec.tools.walks import covering
from tests.spec import small
from tests.spec.recorder import BOUNDS, record

from genrm_trio.core.cohort import NotEnabled
from genrm_trio.core.outcome import Answer, Refused
from genrm_trio.core.trace import ACTIONS
from genrm_trio.ops.tla.traces import Recorded
from genrm_trio.ops.tla.values import Map, Value, pairs_of
from genrm_trio.ops.tla.values import record as fields

ENDINGS = '{"shutdown", "evaluation error", "live retire", "start seeded"}'
"""A world in which a cohort can end in every way but by a newer attempt or a checkpoint."""


def cores(graph: Graph) -> list[Map]:
    return list({state.core: None for state in graph.states})


def test_the_kit_holds_the_values_of_the_spec() -> None:
    graph = small.graph()
    for core in cores(graph):
        assert kit.decoded(kit.encoded_core(core)) == core
    for event in graph.events:
        assert kit.decoded(kit.encoded_event(event)) == (event.name, event.args, event.reply)


def test_nothing_the_empty_sequence_and_the_empty_function_are_told_apart() -> None:
    core = kit.encoded_core(small.graph().states[0].core)
    assert core["term"] == core["marks"] == []
    assert all(core[name] == {"#map": []} for name in kit.FUNCTIONS - {"session"})
    assert kit.encoded_event(Event("CloseAdmission", (), ())) == ["CloseAdmission", None, None]
    restore = Event("Restore", fields(states=(), order=()), ())
    assert kit.encoded_event(restore) == ["Restore", {"states": {"#map": []}, "order": []}, None]
    assert kit.encoded_event(Event("Export", fields(group=()), ())) == ["Export", {"group": None}, {"#map": []}]


def test_walks_of_the_kit_lead_along_the_graph() -> None:
    graph = small.graph()
    document = kit.walks_of("Q", graph)
    assert document["events"] == [kit.encoded_event(event) for event in graph.events]
    assert kit.decoded(document["states"][0]) == graph.states[0].core
    steps = {(state, event) for walk in document["walks"] for event, state in walk}
    states = {kit.decoded(state): number for number, state in enumerate(document["states"])}
    wanted = {
        (states[graph.states[edge.target].core], edge.event)
        for edge in graph.edges
        if graph.events[edge.event].name in {*ACTIONS, "Crash"}
    }
    assert steps == wanted


def told(event: Event, before: State) -> dict[Any, Value]:
    """Whom a step tells what, as docs/kit.md derives it from the event and the state before."""
    reply: Any = event.reply
    waiting: dict[Any, Any] = dict(pairs_of(before.core["waiting"]))
    cohorts: dict[Any, Any] = dict(pairs_of(before.core["cohort"]))
    match event.name:
        case "Publish" | "OpenAdmission":
            asked = {waiter: waiting[waiter] for waiter in reply["answered"]}
            return {w: cohorts[one["k"]]["fail"] or cohorts[one["k"]]["out"][one["i"]] for w, one in asked.items()}
        case "ExpireCollection":
            return dict.fromkeys(reply["answered"], ("cohort", "collection_timeout"))
        case "Fail":
            return dict.fromkeys(reply["answered"], ("cohort", event.arg("code")))
        case "Submit":
            superseded = [waiter for waiter, one in waiting.items() if one["k"] in reply["superseded"]]
            return dict.fromkeys(superseded, ("cohort", "superseded"))
        case "Retire":
            return dict.fromkeys(reply["answered"], ("refused", "stale_attempt"))
        case "ShutDown":
            return dict.fromkeys(reply["answered"], ("cohort", "shutting_down"))
    return {}


TOLD_BY = {"Publish", "OpenAdmission", "ExpireCollection", "Fail", "Submit", "Retire", "ShutDown"}
Step = tuple[Event, State]


def test_the_table_of_whom_a_step_tells_what_has_a_row_for_each_such_step() -> None:
    text = (kit.FILE.parents[1] / "docs" / "kit.md").read_text()
    table = text[text.index("| event | each of them is told |") : text.index("The reply of a `Submit` is")]
    assert set(re.findall(r"`([A-Z][A-Za-z]+)`(?=[^|]*\|[^|]*\|$)", table, re.MULTILINE)) == TOLD_BY


async def heard_along(constants: Constants, first: State, steps: Iterable[Step]) -> set[str]:
    """Lead the core along steps of the spec, as far as it takes them; whom it tells what is what the spec's event says.

    Returns the names of the events by which somebody was told something.
    """
    heard: set[str] = set()
    before = first
    async with core_target(constants, first) as target:
        for event, after in steps:
            try:
                taken = await target.take(event)
            except NotEnabled:
                return heard
            if event.name in ACTIONS and taken.event != (event.name, event.args, event.reply):
                return heard
            answers = {target.codes.waiter(n): _outcome(target.codes, answer) for n, answer in taken.answers.items()}
            assert answers == told(event, before), event
            heard |= {event.name} if answers else set()
            if target.core() != after.core:
                return heard
            before = after
    return heard


def _outcome(codes: Codes, answer: Answer) -> Value:
    return ("refused", answer.code) if isinstance(answer, Refused) else codes.outcome(answer)


async def test_whom_a_step_tells_what_follows_from_the_event_and_the_state_before() -> None:
    """Along a graph with a shutdown and defects of the judging, and along the counterexamples until the code parts."""
    config = small.changed("Q", MaxAnswer="1", MaxCrash="0", World=ENDINGS)
    graph = dump(config)
    heard: set[str] = set()
    for walk in covering(graph):
        edges = [graph.edges[number] for number in walk]
        steps = [(graph.events[edge.event], graph.states[edge.target]) for edge in edges]
        heard |= await heard_along(Constants.of(config), graph.states[0], steps)
    assert heard == {"Publish", "ExpireCollection", "Fail", "Retire", "ShutDown"}
    for one in kit.recorded():
        heard |= await heard_along(Constants.of(configs.load(one.configuration)), one.steps[0][1], one.steps[1:])
    assert heard == TOLD_BY


def test_traces_of_the_kit_are_trace_files(tmp_path: Path) -> None:
    found = kit.write_traces(1, tmp_path)
    files = sorted(tmp_path.iterdir())
    assert len(files) == found
    for path, events in zip(files, record(0), strict=True):
        with path.open("rb") as file:
            read = Recorded(file)
            bounds = read.bounds
            assert bounds == BOUNDS
            assert [event.name for event in read] == [event.name for event in events]


@pytest.mark.parametrize("arguments", [[], ["walks", "Q"], ["traces"]])
def test_a_call_that_is_none_says_what_there_is(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert kit.main(arguments) == 2
    assert "spec.tools.kit walks" in capsys.readouterr().out


@pytest.mark.parametrize("one", kit.recorded(), ids=lambda one: f"{one.mutant}-{one.invariant}")
async def test_code_that_keeps_the_rule_leaves_the_counterexample(one: kit.Counterexample) -> None:
    """But for a rule that is none of the state: no retire comes while a checkpoint is open."""
    parts = False
    async with core_target(Constants.of(configs.load(one.configuration)), one.steps[0][1]) as target:
        for (_, before), (event, after) in zip(one.steps, one.steps[1:], strict=False):
            try:
                taken = await target.take(event)
            except NotEnabled:
                parts = True
            else:
                parts = compare(event, before, after, taken, target) is not None
            if parts:
                break
    assert parts == (one.mutant != "RetireDuringCommit")


def test_counterexamples_hold_what_differs_from_the_state_before() -> None:
    for line in json.loads(kit.FILE.read_text()):
        first, *later = line["steps"]
        assert first["event"] == ["Init", None, None]
        assert {name for name in first if name != "event"} == {"caller", *(f"core.{name}" for name in _core())}
        assert all(set(step) <= set(first) for step in later)


def _core() -> set[str]:
    return set(map(str, small.graph().states[0].core))
