"""Bodies of the other data routes: which seeds are typed, what a close needs, and texts to compare."""

from typing import Any

import pytest
from tests.web.bodies import as_json, response, verify

from genrm_trio.core.identity import EpisodeId
from genrm_trio.web import wire
from genrm_trio.web.errors import InvalidBody, Problem, TooLarge
from genrm_trio.web.wire import Seed, read_close, read_seed
from genrm_trio.web.wire.fields import FieldReader

TYPED: dict[str, Any] = {
    "resources_session_id": "s-1",
    "episode_id": {"rollout_id": "0-3", "attempt": 2},
    "task_id": {"taskset": "t", "task_id": "7"},
    "task_data": {"anything": [1]},
}


def locs(read: Any, body: Any) -> list[tuple[str | int, ...]]:
    with pytest.raises(InvalidBody) as caught:
        read(body if isinstance(body, bytes) else as_json(body))
    return [problem.loc for problem in caught.value.problems]


def read_compare(body: bytes) -> wire.Compare:
    return wire.read_compare(body, 100)


def read_aggregate(body: bytes) -> list[dict[str, Any]]:
    return wire.read_aggregate(body, 100)


def test_a_typed_seed() -> None:
    assert read_seed(as_json(TYPED)) == Seed("s-1", EpisodeId("0-3", 2))
    assert read_seed(as_json({**TYPED, "episode_id": {"rollout_id": "r"}})).episode == EpisodeId("r", 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"extra": 1},
        {"resources_session_id": ""},
        {"resources_session_id": 7},
        {"episode_id": "0-3"},
        {"episode_id": {"rollout_id": "r", "attempt": -1}},
        {"episode_id": {"rollout_id": "r", "attempt": True}},
        {"episode_id": {"rollout_id": "r", "attempt": 1.0}},
        {"episode_id": {"rollout_id": "r-a1"}},
        {"episode_id": {"rollout_id": "no spaces"}},
        {"episode_id": {"rollout_id": "r", "more": 1}},
        {"task_id": {"taskset": "t"}},
        {"task_data": []},
        {"resources_session_id": "\ud800", "task_id": 1},
        {"episode_id": {"rollout_id": "a\ud800"}},
    ],
)
def test_what_is_not_exactly_typed_is_untyped(changes: dict[str, Any]) -> None:
    assert not read_seed(as_json({**TYPED, **changes})).typed


def test_the_names_of_a_typed_seed_are_bounded() -> None:
    assert read_seed(as_json({**TYPED, "resources_session_id": "s" * 1024})).session_id == "s" * 1024
    assert locs(read_seed, {**TYPED, "resources_session_id": "s" * 1025}) == [("body", "resources_session_id")]
    long = {**TYPED, "episode_id": {"rollout_id": "r" * 1025}}
    assert locs(read_seed, long) == [("body", "episode_id", "rollout_id")]


@pytest.mark.parametrize(
    ("changes", "at"),
    [
        ({"resources_session_id": "a\ud800"}, ("resources_session_id",)),
        ({"episode_id": {"rollout_id": "r", "attempt": 10**18}}, ("episode_id", "attempt")),
        ({"episode_id": {"rollout_id": "r", "attempt": 10**1000}}, ("episode_id", "attempt")),
    ],
)
def test_a_typed_seed_that_cannot_be_held_is_no_untyped_one(changes: dict[str, Any], at: tuple[str, ...]) -> None:
    assert locs(read_seed, {**TYPED, **changes}) == [("body", *at)]


def test_of_a_task_nothing_is_kept_so_its_texts_may_be_any() -> None:
    assert read_seed(as_json({**TYPED, "task_id": {"taskset": "\ud800", "task_id": ""}})).session_id == "s-1"


def test_any_object_is_a_seed() -> None:
    assert not read_seed(b"{}").typed
    assert not read_seed(as_json(verify())).typed
    assert locs(read_seed, b"") == [("body",)]
    assert locs(read_seed, b"[]") == [("body",)]
    assert locs(read_seed, b"{") == [("body", 1)]


def test_a_close() -> None:
    body = {"resources_session_id": "s-1", "episode_id": {"rollout_id": "0-3"}}
    close = read_close(as_json(body))
    assert (close.session_id, close.episode) == ("s-1", EpisodeId("0-3"))
    assert locs(read_close, {**body, "extra": 1}) == [("body", "extra")]
    assert locs(read_close, {"resources_session_id": "s"}) == [("body", "episode_id")]
    assert locs(read_close, {**body, "episode_id": {"rollout_id": "r-a1"}}) == [("body", "episode_id", "rollout_id")]
    assert locs(read_close, {**body, "resources_session_id": 1}) == [("body", "resources_session_id")]
    for attempt in (10**18, 10**1000):
        late = {"rollout_id": "r", "attempt": attempt}
        assert locs(read_close, {**body, "episode_id": late}) == [("body", "episode_id", "attempt")]


def test_a_compare() -> None:
    read = read_compare(
        as_json(
            {
                "conversation_history": [{"role": "user", "content": "q"}],
                "response_objs": [response(text="a"), {"output": "none"}, {}, response(text="b", output=[7])],
                "principle": "p",
                "expected_rubric_ids": [2, 1],
            }
        )
    )
    assert read.conversation == [{"role": "user", "content": "q"}]
    assert [answer.answer for answer in read.answers] == ["a", "", "", ""]
    assert (read.principle, read.rubric_ids) == ("p", (1, 2))


def test_a_compare_with_texts_that_msgspec_refuses() -> None:
    body = {"conversation_history": [], "response_objs": [response(text="\ud800"), response(text="b")]}
    assert [answer.answer for answer in read_compare(as_json(body)).answers] == ["\ud800", "b"]


def test_a_wrong_compare() -> None:
    assert locs(read_compare, {}) == [("body", "conversation_history"), ("body", "response_objs")]
    wrong = {"conversation_history": [{"role": 1}, "x"], "response_objs": [1, {}]}
    assert locs(read_compare, wrong) == [
        ("body", "conversation_history", 0, "role"),
        ("body", "conversation_history", 1),
        ("body", "response_objs", 0),
    ]
    assert locs(read_compare, {"conversation_history": {}, "response_objs": "x"}) == [
        ("body", "conversation_history"),
        ("body", "response_objs"),
    ]


def test_aggregate_rows() -> None:
    assert read_aggregate(b'{"verify_responses":[{"reward":1}]}') == [{"reward": 1}]
    assert read_aggregate(b'{"verify_responses":[],"more":1}') == []
    assert locs(read_aggregate, {"verify_responses": [1]}) == [("body", "verify_responses", 0)]
    assert locs(read_aggregate, {}) == [("body", "verify_responses")]


def test_of_a_row_only_numbers_and_its_agent_are_read() -> None:
    usage = {"input_tokens": 7, "details": {"cached": 1}}
    row = {"a": 1, "b": -2.5, "c": True, "d": None, "e": "t", "f": [1], "response": {"usage": usage, "output": [[[]]]}}
    agent = {"type": "x", "names": ["y"]}
    assert read_aggregate(as_json({"verify_responses": [{**row, "agent_ref": agent}, {"agent_ref": "t"}]})) == [
        {"a": 1, "b": -2.5, "c": True, "response": {"usage": {"input_tokens": 7}}, "agent_ref": agent},
        {},
    ]
    odd = b'{"verify_responses":[{"x":"\\ud800","\\ud801":1,"agent_ref":{"n":"\\ud802"}},{"a":2}]}'
    assert read_aggregate(odd) == [{"\ud801": 1, "agent_ref": {"n": "\ud802"}}, {"a": 2}]


def test_no_more_mistakes_are_looked_for_than_are_told() -> None:
    wrong = iter(range(1000))
    reader = FieldReader({})
    reader.note("missing", "a", "Field required")
    for _ in range(2):
        reader.add(Problem("int_type", ("body", at), "Input should be a valid integer") for at in wrong)
    assert next(wrong) == 99
    with pytest.raises(InvalidBody) as caught:
        reader.check()
    assert len(caught.value.problems) == 100
    turns = b'{"conversation_history":[' + b"1," * 200 + b"1]"
    assert len(locs(read_compare, turns + b',"response_objs":[1]}')) == 100
    assert len(locs(read_compare, b'{"conversation_history":[],"response_objs":[' + b"1," * 99 + b"1]}")) == 100


def test_more_rows_and_numbers_than_the_bound() -> None:
    row = {"a": 1, "b": 2, "response": {"usage": {"c": 3}}}
    assert len(read_aggregate(as_json({"verify_responses": [row] * 25}))) == 25
    with pytest.raises(TooLarge, match=r"limits\.max_aggregate_numbers, 100"):
        read_aggregate(as_json({"verify_responses": [row] * 26}))
    with pytest.raises(TooLarge, match="verify_responses has more than 100 entries"):
        read_aggregate(b'{"verify_responses":[' + b",".join([b"{}"] * 101) + b"]}")
    with pytest.raises(TooLarge, match="response_objs has more than 100 entries"):
        read_compare(b'{"conversation_history":[],"response_objs":[' + b",".join([b"{}"] * 101) + b"]}")


@pytest.mark.parametrize(("depth", "reads"), [(127, True), (128, False), (400, False)])
def test_an_agent_is_nested_no_deeper_than_it_can_be_written(depth: int, reads: bool) -> None:
    agent = b'{"a":' + b"[" * depth + b'"]]"' + b"]" * depth + b"}"
    body = b'{"verify_responses":[{"agent_ref":' + agent + b"}]}"
    if reads:
        assert len(read_aggregate(body)) == 1
    else:
        assert locs(read_aggregate, body) == [("body", "verify_responses", 0, "agent_ref")]
