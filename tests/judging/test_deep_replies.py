"""A reply may nest as deep as it likes, in any place that is looked at: it is a verdict or a judge failure.

How deep a reply can be before reading it or showing it fails depends on the stack: between the deepest reply that can
be read and the deepest value that can be written there are only a few levels, below the interpreter's limit.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fake_judge import answer
from tests.support.judging_kit import ASK, GOOD, Kept, Scripted, Step, endpoints, judge_of, ticket

from genrm_trio.judging.chat import Chat
from genrm_trio.judging.judge import Answered, JudgeError
from genrm_trio.judging.recorded import RecordedJudge
from genrm_trio.judging.responses import Responses
from genrm_trio.judging.text import shown
from genrm_trio.judging.transport import Dialect, Said
from genrm_trio.judging.verdict import VerdictRules

LIMIT: Final = sys.getrecursionlimit()
DEPTHS: Final = sorted({*range(1, 3001, 40), *range(LIMIT - 120, LIMIT)})
FORMS: Final = (("[", "]"), ('{"a":', "}"))
DEEP: Final = "<deep>"
CHAT: Final = "/v1/chat/completions"
RESPONSES: Final = "/v1/responses"

ANYWHERE: Final[Mapping[str, Any]] = {
    "error": {"error": DEEP},
    "error.message": {"error": {"message": DEEP}},
    "error.code": {"error": {"code": DEEP}},
    "error.type": {"error": {"type": DEEP}},
    "a bare error": {"object": "error", "message": DEEP},
    "the whole": DEEP,
}
IN_A_RESPONSE: Final[Mapping[str, Any]] = {
    **ANYWHERE,
    "status": {"status": DEEP},
    "reason": {"status": "incomplete", "incomplete_details": {"reason": DEEP}},
    "output": {"output": DEEP},
    "an item's type": {"output": [{"type": DEEP}]},
    "an item's content": {"output": [{"type": "message", "content": DEEP}]},
    "a part's type": {"output": [{"type": "message", "content": [{"type": DEEP, "text": DEEP}]}]},
    "a summary": {"output": [{"type": "reasoning", "summary": [{"text": DEEP}]}]},
}
IN_A_COMPLETION: Final[Mapping[str, Any]] = {
    **ANYWHERE,
    "choices": {"choices": DEEP},
    "message": {"choices": [{"message": DEEP}]},
    "finish_reason": {"choices": [{"finish_reason": DEEP, "message": {"content": None}}]},
    "content": {"choices": [{"message": {"content": DEEP}}]},
    "refusal": {"choices": [{"message": {"refusal": DEEP}}]},
    "tool_calls": {"choices": [{"message": {"tool_calls": DEEP}}]},
}


def deep(reply: object) -> Iterator[tuple[int, bytes]]:
    """A reply with lists, and with objects, at every depth in the place that is marked."""
    text = json.dumps(reply)
    for depth in DEPTHS:
        for left, right in FORMS:
            yield depth, text.replace(json.dumps(DEEP), left * depth + "1" + right * depth).encode()


async def outcome(dialect: Dialect, body: bytes, observer: Kept | None = None) -> Answered | JudgeError:
    judge = judge_of(Scripted(Step(body=body)), dialect=dialect, retries=0, observer=observer)
    try:
        return await judge.compare(ASK, ticket())
    except JudgeError as error:
        return error


@pytest.mark.parametrize(
    ("dialect", "reply"),
    [pytest.param(Responses({}), reply, id=f"responses, {place}") for place, reply in IN_A_RESPONSE.items()]
    + [pytest.param(Chat({}), reply, id=f"chat, {place}") for place, reply in IN_A_COMPLETION.items()],
)
async def test_a_deep_value_is_a_judge_failure(dialect: Dialect, reply: object) -> None:
    for depth, body in deep(reply):
        failure = await outcome(dialect, body)
        assert isinstance(failure, JudgeError), depth
        assert len(str(failure)) < 3000, depth


@pytest.mark.parametrize(
    ("dialect", "target"), [(Responses({}), RESPONSES), (Chat({}), CHAT)], ids=["responses", "chat"]
)
@pytest.mark.parametrize("place", ["usage", "input_tokens", "beside"])
async def test_a_deep_value_beside_a_verdict_takes_nothing_from_it(dialect: Dialect, target: str, place: str) -> None:
    beside = {"usage": DEEP} if place == "usage" else {"usage": {place: DEEP}}
    beside = {"x": DEEP} if place == "beside" else beside
    for depth, body in deep(answer(GOOD, target) | beside):
        told = await outcome(dialect, body)
        if isinstance(told, JudgeError):
            assert depth > LIMIT - 120, "no reply that can be read is refused"
            assert "nested too deeply" in str(told)
        else:
            assert told.overall is not None


async def test_a_deep_verdict_is_none() -> None:
    for _, text in deep({"score_1": DEEP, "score_2": 1, "ranking": 1}):
        told = await outcome(Responses({}), json.dumps(answer(text.decode())).encode())
        assert isinstance(told, Answered)
        assert told.overall is None


@pytest.mark.parametrize(
    "row",
    [
        {"pair": "p", "judge_index": 0, "text": "", "usage": DEEP},
        {"pair": "p", "judge_index": 0, "text": "", "usage": [1e999, 1, DEEP]},
        {"pair": DEEP, "judge_index": DEEP, "text": DEEP},
        {"prompt": DEEP, "answers": []},
        {"prompt": "p", "answers": [{"text": "a", "score": DEEP}]},
        {"prompt": "p", "answers": [], "score_scale": DEEP},
        DEEP,
    ],
)
def test_a_deep_line_of_a_recording_is_named(row: object) -> None:
    for _, line in deep(row):
        with pytest.raises(ValueError, match="line 1 is"):
            RecordedJudge([line + b"\n"], VerdictRules())


class Runaway(Responses):
    """Reads a reply as a mistake of ours would."""

    def __init__(self, error: type[Exception]) -> None:
        super().__init__({})
        self._error = error

    def read(self, reply: Mapping[str, Any]) -> Said:
        raise self._error("words")


async def test_running_out_of_stack_is_the_replys_doing_and_a_mistake_is_ours() -> None:
    kept = Kept()
    failure = await outcome(Runaway(RecursionError), b"{}", kept)
    assert "RecursionError: nested too deeply" in str(failure)
    assert kept.kinds == ["not_json"]
    with pytest.raises(KeyError):
        await outcome(Runaway(KeyError), b"{}")


async def test_a_key_in_a_long_value_is_masked_before_anything_is_cut() -> None:
    key = "k" * 40
    for length in range(900, 1060):
        (place,) = endpoints(Scripted(Step(body={"status": ["x" * length + key, key]})), api_key=key)
        with pytest.raises(JudgeError) as caught:
            await judge_of(place, retries=0).compare(ASK, ticket())
        assert "kk" not in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text(max_size=8), inner, max_size=9),
)


@given(JSON)
def test_any_value_can_be_shown(value: object) -> None:
    assert len(shown(value)) < 100_000


def test_a_value_is_shown_as_python_writes_it_within_bounds() -> None:
    assert shown("failed") == "'failed'"
    assert shown("x" * 5000) == repr("x" * 5000)
    assert shown(10**5000) == f"<an integer of {(10**5000).bit_length()} bits>"
    assert shown([-(2**70), True, None, 0.5]) == f"[{-(2**70)}, True, None, 0.5]"
    assert shown([[[[[[[[1]]]]]]]]) == "[[[[[[[...]]]]]]]"
    assert shown(list(range(1000))) == "[0, 1, 2, 3, 4, 5, ...]"
