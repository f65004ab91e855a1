"""Answers and turns out of whatever a client sent: unexpected shapes are skipped, and a judge sees valid text only."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genrm_trio.judging.text import AnswerText, Turn, conversation, read_output, scrub

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "message", "output_text", "text"]),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from(["type", "role", "text", "content", "summary"]), inner)
    ),
)


@given(JSON)
def test_no_shape_raises(value: Any) -> None:
    read_output(value)
    conversation(value)


@given(st.text(alphabet=st.characters(categories=["Cs", "L"])))
def test_scrubbed_text_can_be_written(text: str) -> None:
    clean = scrub(text)
    assert clean.encode("utf-8").decode("utf-8") == clean
    assert clean == "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_valid_text_is_left_alone(text: str) -> None:
    assert scrub(text) == text


def test_the_judge_sees_the_untrimmed_answer_without_lone_surrogates() -> None:
    answer = read_output([{"type": "message", "content": [{"type": "output_text", "text": " a\ud800 "}]}])
    assert answer == AnswerText("", " a\ud800 ")
    assert answer.judge_text == " a\ufffd "


@pytest.mark.parametrize("blank", ["", " ", "\n\t", "\u3000"])
def test_a_blank_answer_is_shown_as_none(blank: str) -> None:
    assert AnswerText("thought", blank).judge_text == "None"


def test_a_list_with_other_things_than_objects_keeps_its_objects() -> None:
    message = {"type": "message", "content": ["x", None, {"type": "output_text", "text": "a"}]}
    assert read_output([1, None, [message], message]).answer == "a"


@pytest.mark.parametrize(
    ("item", "turn"),
    [
        ({"content": "a"}, Turn("user", "a")),
        ({"role": "developer", "type": None, "content": "a"}, Turn("developer", "a")),
        ({"role": "user", "content": None}, Turn("user", "")),
        ({"role": None, "content": []}, Turn("user", "")),
        (
            {"role": "user", "content": [{"type": "input_image"}, {"type": "input_text", "text": "a"}]},
            Turn("user", "a"),
        ),
        ({"role": "us\udfffer", "content": "\ud800"}, Turn("us\ufffder", "\ufffd")),
    ],
)
def test_turns(item: object, turn: Turn) -> None:
    assert conversation([item]) == (turn,)


@pytest.mark.parametrize("item", [{"type": "reasoning"}, {"type": "function_call_output", "output": "o"}, {"type": []}])
def test_what_is_no_message_is_dropped(item: object) -> None:
    assert conversation([item]) == ()
