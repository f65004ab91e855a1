"""Length and style: equal to a slow and plain reading of the contract, and linear in the text."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from genrm_trio.judging.adjustments import (
    LengthRules,
    StyleCounts,
    length_changes,
    relative_weights,
    style_changes,
    style_counts,
    style_density,
    without_fences,
)
from genrm_trio.judging.text import AnswerText

STYLED = st.text(alphabet="#*_-+1٣.` \n\r\t\u2028\u3000a☀é", max_size=40) | st.text()


def slow_counts(text: str) -> StyleCounts:
    """Count as contract 7.9 tells it, with expressions that go back over blank lines again and again."""
    remaining = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return StyleCounts(
        headers=len(re.findall(r"^#{1,6}\s", remaining, re.MULTILINE)),
        list_items=len(re.findall(r"^\s*\d+\.\s", remaining, re.MULTILINE))
        + len(re.findall(r"^\s*[-*+]\s", remaining, re.MULTILINE)),
        bold=len(re.findall(r"\*\*[^*\n]+\*\*", remaining)) + len(re.findall(r"__[^_\n]+__", remaining)),
        emoji=sum(ord(character) in EMOJI for character in remaining),
    )


def emoji() -> set[int]:
    blocks = [
        *[(0x1F600, 0x1F64F), (0x1F300, 0x1F5FF), (0x1F680, 0x1F6FF), (0x1F1E0, 0x1F1FF), (0x2702, 0x27B0)],
        *[(0x1F900, 0x1F9FF), (0x1FA00, 0x1FA6F), (0x1FA70, 0x1FAFF), (0x2600, 0x26FF), (0x2700, 0x27BF)],
        *[(0x25AA, 0x25AB), (0x25FB, 0x25FE), (0x2934, 0x2935), (0x2B05, 0x2B07), (0x2B1B, 0x2B1C)],
        *[(0x1F170, 0x1F171), (0x1F17E, 0x1F17F), (0x1F191, 0x1F19A), (0x1F201, 0x1F202)],
        *[(0x1F232, 0x1F23A), (0x1F250, 0x1F251)],
    ]
    single = {0x24C2, 0x25B6, 0x25C0, 0x2B50, 0x2B55, 0x3030, 0x303D, 0x3297, 0x3299}
    single |= {0x1F004, 0x1F0CF, 0x1F18E, 0x1F21A, 0x1F22F}
    return single.union(*(range(first, last + 1) for first, last in blocks))


EMOJI = emoji()


@given(STYLED)
@example("-\n-\n- \n1.\n\n\n 2. ")
@example("\n \n\t\n- a\n\n* b")
@example("***a***b__c____d__**e\n**")
@example("a```b```c````d```e```f")
@example("```")
def test_style_is_counted_as_the_slow_reading_does(text: str) -> None:
    assert style_counts(text) == slow_counts(text)
    assert without_fences(text) == re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def test_every_code_point_is_emoji_exactly_when_the_contract_lists_it() -> None:
    for start in range(0, 0x110000, 0x1000):
        points = range(start, start + 0x1000)
        assert style_counts("".join(map(chr, points))).emoji == len(EMOJI.intersection(points))


@pytest.mark.parametrize("text", ["中文字符", "한국어 텍스트", "ひらがな", "①②③", "└─┐", "𝔸"])
def test_other_scripts_and_symbols_are_no_emoji(text: str) -> None:
    assert style_density(text) == 0.0


def test_density_is_per_code_point_of_the_trimmed_rest() -> None:
    assert style_density("  # a  ") == 0.0
    assert style_density("\n# a\n") == 1 / 3
    assert style_density("```\n# a\n```") == 0.0
    assert style_density("😀") == 1.0


@pytest.mark.parametrize(
    ("unit", "total"),
    [
        *[
            ("\n", 0),
            (" ", 0),
            ("\u3000", 0),
            ("#", 0),
            ("*", 0),
            ("_", 0),
            ("**a\n", 0),
            ("__", 0),
            ("1", 0),
            ("-", 0),
        ],
        *[
            ("\n ", 0),
            ("`", 0),
            ("```", 0),
            ("** ", 150_000),
            ("# ", 1),
            ("**a", 150_000),
            ("- ", 1),
            ("1.", 0),
            ("\r", 0),
        ],
    ],
)
def test_a_long_text_is_counted_at_all(unit: str, total: int) -> None:
    # An expression that went back over what it read would take hours here.
    assert style_counts(unit * 300_000 + "a").total == total


WEIGHED = st.lists(st.floats(0, 1e6), min_size=1, max_size=20)


@given(WEIGHED)
def test_weights_sum_to_nothing_and_favour_the_smallest(values: list[float]) -> None:
    weights = relative_weights(values)
    assert sum(weights) == pytest.approx(0.0, abs=1e-9)
    assert weights[values.index(min(values))] == max(weights)
    assert weights[values.index(max(values))] == min(weights)
    assert max(weights) - min(weights) == pytest.approx(1.0 if max(values) > min(values) else 0.0)


def test_no_weights_of_nothing() -> None:
    assert relative_weights([]) == []


def texts(*pairs: tuple[str, str]) -> list[AnswerText]:
    return [AnswerText(reasoning, answer) for reasoning, answer in pairs]


def test_nothing_is_changed_by_default_nor_for_one_answer() -> None:
    two = texts(("a", "bb"), ("aa", "# b"))
    assert length_changes([1.0, 2.0], two, LengthRules()) == [0.0, 0.0]
    assert style_changes(two, 0.0) == style_changes(two, -1.0) == [0.0, 0.0]
    everything = LengthRules(1.0, 1.0, 1.0, 1.0, 1.0)
    assert length_changes([1.0], two[:1], everything) == [0.0]
    assert style_changes(two[1:], 1.0) == [0.0]


def test_a_negative_bonus_is_none_and_negative_penalties_alone_are_off() -> None:
    two = texts(("a", "b"), ("aa", "bb"))
    assert length_changes([1.0, 1.0], two, LengthRules(-1.0, -1.0, 1.0, -1.0, -1.0)) == [0.0, 0.0]


def test_the_answer_bonus_counts_on_the_score_that_the_reasoning_bonus_changed() -> None:
    two = texts(("a", "b"), ("aa", "bb"))
    rules = LengthRules(reasoning_bonus=2.0, answer_bonus=0.5)
    assert length_changes([1.0, 3.0], two, rules) == [0.0, 0.0]
    assert length_changes([2.0, 3.0], two, rules) == [0.0, 0.0]
    top = LengthRules(reasoning_bonus=2.0, answer_bonus=0.5, top_percentile=1.0)
    assert length_changes([1.0, 3.0], two, top) == [2.5, 0.0]


@pytest.mark.parametrize(("percentile", "threshold_rank"), [(0.0, 0), (0.2, 0), (0.5, 1), (1.0, 3), (7.0, 3)])
def test_the_threshold_is_the_score_at_its_rank(percentile: float, threshold_rank: int) -> None:
    scores = [4.0, 3.0, 2.0, 1.0]
    for rank in range(4):
        answers = texts(*(("", "a" if k == rank else "aa") for k in range(4)))
        changes = length_changes(scores, answers, LengthRules(answer_bonus=1.0, top_percentile=percentile))
        assert changes == [float(k == rank and rank <= threshold_rank) for k in range(4)]


def test_lengths_are_code_points_of_trimmed_text() -> None:
    answers = texts(("", " 😀😀\u3000"), ("", "abc"))
    assert length_changes([1.0, 1.0], answers, LengthRules(answer_bonus=1.0)) == [1.0, 0.0]
