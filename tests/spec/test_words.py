"""What the documents say of configurations, graphs and runs is what the tools do: the sentences, made from the tables.

A sentence is looked for whatever its line breaks. One that is not found is to be corrected in the document, or here.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from spec.tools import check, configs, everywhere, kills, results
from spec.tools.kills import Stage
from spec.tools.tlc import SPEC

README = SPEC / "README.md"
KIT = SPEC.parent / "docs" / "kit.md"
ALL = configs.all_names()


def listed(words: Sequence[str], last: str = "and") -> str:
    """Words as a sentence lists them."""
    return f"{', '.join(words[:-1])} {last} {words[-1]}" if len(words) > 1 else words[0]


def with_world(word: str) -> list[str]:
    """The configurations in whose world something may happen."""
    return [name for name in ALL if f'"{word}"' in configs.load(name).constant("World")]


def along(stages: Sequence[Stage], led: str) -> str:
    """What kills.py leads, in words."""
    nth = {2: "2nd", 3: "3rd", 8: "8th"}
    words = [
        graph if every == 1 else f"every {nth[every]} walk of {graph}" for how, graph, every in stages if how == led
    ]
    return f"along {listed(words)}"


def not_led() -> list[str]:
    """The replayable configurations that `make spec` checks and along which no mutant is led."""
    led = {graph for _, graph, _ in (*kills.CORE, *kills.AROUND)}
    return [name for name in ALL if name in configs.FAST and name not in configs.LIVE and name not in led]


def smallest() -> str:
    found = results.recorded()
    return min(configs.REPLAYED, key=lambda name: found[name].states)


def more(names: Sequence[str], than: Sequence[str]) -> list[str]:
    return [name for name in names if name not in than]


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        (
            README,
            f"TLC prints every edge of {listed(configs.REPLAYED)} (`make spec-deep`: of "
            f"{listed(more(configs.REPLAYED_DEEP, configs.REPLAYED))}, too).",
        ),
        (README, f"Left out in all but {listed(with_world('fine capture'))}: a checkpoint that is exported but not"),
        (
            README,
            f"What the reduced run leaves out: the configurations {listed(more(configs.FAST, configs.REDUCED))}, and",
        ),
        (
            README,
            f"It replays the graphs of {listed(configs.REPLAYED_REDUCED)} only, and checks {check.TRACES['reduced']} "
            f"traces instead of {check.TRACES['full']}.",
        ),
        (
            README,
            "in every configuration that asks for its rule, but for "
            f"{listed(more(ALL, everywhere.PLACES))}. A run ends at {everywhere.MOST:,} distinct states",
        ),
        (
            README,
            f"is led as the core {along(kills.CORE, 'core')}, and on Trio {along(kills.CORE, 'trio')}. Any other is "
            f"led on Trio only, {along(kills.AROUND, 'trio')}.",
        ),
        (README, f"No mutant is led along {listed(not_led(), 'or')}."),
        (KIT, f"{smallest()} is the smallest; `make spec` leads this server along {listed(configs.REPLAYED)} ("),
        (KIT, f"In all configurations but {listed(more(ALL, with_world('start seeded')))} that has an open session"),
    ],
)
def test_a_document_says_what_the_tools_do(document: Path, sentence: str) -> None:
    assert sentence in re.sub(r"\s+", " ", document.read_text())


def test_no_live_configuration_is_replayed_or_led() -> None:
    assert not set(configs.LIVE) & {*configs.REPLAYED_DEEP, *(graph for _, graph, _ in (*kills.CORE, *kills.AROUND))}
