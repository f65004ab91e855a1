"""A small configuration of the spec with its whole graph, for tests that lead code along it."""

import re
from functools import cache

from spec.tools import configs
from spec.tools.codes import Constants
from spec.tools.graph import Graph, dump
from spec.tools.walks import Walk, covering


def changed(name: str, **constants: str) -> configs.Config:
    """A configuration with other constants."""
    text = configs.load(name).text
    for constant, value in constants.items():
        text, count = re.subn(rf"^(\s*{constant}\s*=).*$", rf"\g<1> {value}", text, flags=re.MULTILINE)
        assert count == 1
    return configs.Config("small", text)


@cache
def config() -> configs.Config:
    """Q without starting over: one group of two, one crash."""
    return changed("Q", MaxAnswer="1", World='{"checkpoint", "start seeded"}')


@cache
def graph() -> Graph:
    return dump(config())


@cache
def walks() -> list[Walk]:
    return covering(graph())


def constants() -> Constants:
    return Constants.of(config())
