"""Walks through a graph that together take every edge, so that code can be led along them.

A walk starts in the initial state. It goes to the nearest edge that no walk took yet, and from there on as long as it
finds more of them nearby. Edges that look the same to whoever is led may be given one name; then one of a name is
enough.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from itertools import pairwise

from spec.tools.graph import Graph

LOOK_AHEAD = 64
"""States looked at for the next edge that was not taken, before a walk ends."""

Walk = list[int]
"""The numbers of its edges."""


def covering(graph: Graph, name: Callable[[int], Hashable] = lambda edge: edge) -> list[Walk]:
    """Walks that take an edge of every name; by default each edge has its own."""
    cover = _Cover(graph, name)
    return list(cover.walks())


class _Cover:
    """The edges that are still to be taken.

    to: for each state one edge that leads to it on a shortest way from the initial state.
    """

    def __init__(self, graph: Graph, name: Callable[[int], Hashable]) -> None:
        self.graph = graph
        self.names = [name(edge) for edge in range(len(graph.edges))]
        self.taken: set[Hashable] = set()
        self.order, self.to = _shortest(graph)

    def walks(self) -> Iterator[Walk]:
        for state in self.order:
            while (first := self._fresh(state)) is not None:
                walk = self._way_to(state)
                self.taken.update(self.names[edge] for edge in walk)
                self._go(walk, first)
                walk = self._extended(walk, self.graph.edges[first].target)
                yield walk

    def _go(self, walk: Walk, edge: int) -> None:
        walk.append(edge)
        self.taken.add(self.names[edge])

    def _fresh(self, state: int) -> int | None:
        """An edge from here that is still to be taken: one that stays here, if there is one."""
        fresh = [edge for edge in self.graph.leaving[state] if self.names[edge] not in self.taken]
        return next((edge for edge in fresh if self.graph.edges[edge].target == state), fresh[0] if fresh else None)

    def _way_to(self, state: int) -> Walk:
        walk: Walk = []
        while state:
            walk.append(self.to[state])
            state = self.graph.edges[self.to[state]].source
        return walk[::-1]

    def _extended(self, walk: Walk, state: int) -> Walk:
        while (way := self._nearby(state)) is not None:
            for edge in way:
                self._go(walk, edge)
            state = self.graph.edges[way[-1]].target
        return walk

    def _nearby(self, start: int) -> Walk | None:
        """The shortest way from here that ends with an edge that is still to be taken, if it is near."""
        came: dict[int, int] = {start: -1}
        queue = deque([start])
        while queue:
            state = queue.popleft()
            fresh = self._fresh(state)
            if fresh is not None:
                way = [fresh]
                while came[state] >= 0:
                    way.append(came[state])
                    state = self.graph.edges[came[state]].source
                return way[::-1]
            for edge in self.graph.leaving[state] if len(came) < LOOK_AHEAD else ():
                target = self.graph.edges[edge].target
                if target not in came:
                    came[target] = edge
                    queue.append(target)
        return None


def _shortest(graph: Graph) -> tuple[list[int], dict[int, int]]:
    """The states in the order of their distance from the initial one, and the edge by which each is reached first."""
    order, to = [0], {0: -1}
    for state in order:
        for edge in graph.leaving[state]:
            target = graph.edges[edge].target
            if target not in to:
                to[target] = edge
                order.append(target)
    return order, to


def check(graph: Graph, walks: list[Walk]) -> None:
    """Raises AssertionError unless each walk starts in the initial state, and each edge where the last one ends."""
    for walk in walks:
        assert graph.edges[walk[0]].source == 0, "a walk starts in the initial state"
        for before, after in pairwise(walk):
            assert graph.edges[before].target == graph.edges[after].source, "a walk's edges follow one another"
