"""Bodies of the other data routes: which seeds are typed, what a close needs, and texts to compare."""

from typing import Any

import pytest
from tests.web.bodies import as_json, response, verify

from genrm_trio.core.identity import EpisodeId
from genrm_trio.web.errors import InvalidBody
from genrm_trio.web.wire import Seed, read_aggregate, read_close, read_compare, read_seed

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
        {"resources_session_id": "\ud800"},
    ],
)
def test_what_is_not_exactly_typed_is_untyped(changes: dict[str, Any]) -> None:
    assert not read_seed(as_json({**TYPED, **changes})).typed


def test_the_names_of_a_typed_seed_are_bounded() -> None:
    assert read_seed(as_json({**TYPED, "resources_session_id": "s" * 1024})).session_id == "s" * 1024
    assert locs(read_seed, {**TYPED, "resources_session_id": "s" * 1025}) == [("body", "resources_session_id")]
    long = {**TYPED, "episode_id": {"rollout_id": "r" * 1025}}
    assert locs(read_seed, long) == [("body", "episode_id", "rollout_id")]


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
