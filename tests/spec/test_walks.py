"""Graphs that TLC wrote are read back whole, and the walks through them take every edge."""

import pytest
from spec.tools import walks
from spec.tools.graph import Edge, Event, Graph, counterexample, read, state_of
from tests.spec import small

from genrm_trio.ops.tla.values import record


def made(edges: list[tuple[int, int]]) -> Graph:
    """A graph with these edges and one event."""
    size = 1 + max(max(edge) for edge in edges)
    state = state_of([record(a=1), (), (), record(b=2)])
    graph = Graph([state] * size, [Event("Wake", (), ())], [], [[] for _ in range(size)])
    for source, target in edges:
        graph.leaving[source].append(len(graph.edges))
        graph.edges.append(Edge(source, 0, target))
    return graph


@pytest.mark.parametrize(
    "edges",
    [
        [(0, 1)],
        [(0, 0), (0, 1), (1, 1)],
        [(0, 1), (1, 2), (2, 0), (0, 2), (2, 1)],
        [(0, n) for n in range(1, 9)] + [(n, 9) for n in range(1, 9)],
        [(n, n + 1) for n in range(200)] + [(100, 0)],
    ],
)
def test_walks_take_every_edge(edges: list[tuple[int, int]]) -> None:
    graph = made(edges)
    found = walks.covering(graph)
    walks.check(graph, found)
    assert {edge for walk in found for edge in walk} == set(range(len(graph.edges)))


def test_walks_go_on_as_long_as_they_find_something() -> None:
    graph = made([(0, 1), (1, 2), (2, 3), (1, 3), (3, 0)])
    assert len(walks.covering(graph)) == 1


def test_of_edges_with_one_name_one_is_enough() -> None:
    graph = made([(0, n) for n in range(1, 9)])
    assert len(walks.covering(graph, lambda _edge: "all alike")) == 1


def test_a_configurations_graph_is_read_whole_and_is_deterministic() -> None:
    graph = small.graph()
    assert not graph.ambiguous()
    walks.check(graph, small.walks())
    assert {edge for walk in small.walks() for edge in walk} == set(range(len(graph.edges)))
    assert {event.name for event in graph.events} >= {"Submit", "Publish", "Export", "Crash", "Restore", "Retire"}


def test_two_ways_to_print_one_state_are_one_state() -> None:
    def view(numbers: str) -> str:
        return f"<<[s |-> {{{numbers}}}], <<>>, <<>>, [p |-> 1]>>"

    event = '<<"Wake", <<>>, <<>>>>'
    graph = read([f"<<{view('1, 2')}, {event}, {view('1')}>>", f"<<{view('2, 1')}, {event}, {view('1')}>>"])
    assert (len(graph.states), len(graph.edges)) == (2, 1)


def test_a_spec_that_is_not_deterministic_is_told() -> None:
    graph = made([(0, 1), (0, 2)])
    assert len(graph.ambiguous()) == 1


def test_a_counterexample_is_read_from_tlcs_report() -> None:
    report = """Error: The behavior up to this point is:
State 1: <Initial predicate>
/\\ core = [open |-> TRUE]
/\\ ev = <<"Init", <<>>, <<>>>>
/\\ caller = <<>>
/\\ task = << >>
/\\ world = [phase |->
    "idle"]

State 2: <CloseAdmission line 1, col 1 to line 2, col 2 of module GenrmTrio>
/\\ core = [open |-> FALSE]
/\\ ev = <<"CloseAdmission", <<>>, <<>>>>
/\\ caller = <<>>
/\\ task = << >>
/\\ world = [phase |-> "prepare"]

3 states generated, 2 distinct states found, 0 states left on queue.
"""
    steps = counterexample(report)
    assert [event.name for event, _ in steps] == ["Init", "CloseAdmission"]
    assert [state.core["open"] for _, state in steps] == [True, False]
