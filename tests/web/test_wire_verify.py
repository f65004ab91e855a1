"""`/verify` bodies: every rule of contract 4 and 5.1, and replies that carry the request back byte for byte."""

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.web.bodies import PARAMS, as_json, response, verify

from genrm_trio.core.outcome import JSON
from genrm_trio.web.errors import InvalidBody
from genrm_trio.web.wire import read_compare, read_verify
from genrm_trio.web.wire.verify import SUCCESS_ONLY, TOKEN_FIELDS


def problems(body: bytes | dict[str, Any]) -> list[tuple[str, tuple[str | int, ...]]]:
    with pytest.raises(InvalidBody) as caught:
        read_verify(body if isinstance(body, bytes) else as_json(body))
    return [(problem.type, problem.loc) for problem in caught.value.problems]


def test_a_right_body() -> None:
    asked = read_verify(as_json(verify(index=3, principle="p", expected_rubric_ids=[5, 1, 2, 1], prompt_id="i")))
    assert (asked.group_id, asked.group_attempt, asked.attempt_given, asked.rollout_index) == ("g", 0, True, 3)
    assert (asked.principle, asked.rubric_ids, asked.prompt_id, asked.task_index) == ("p", (1, 2, 5), "i", None)
    assert (asked.answer.reasoning, asked.answer.answer) == ("two and two", "4")
    assert asked.prompt == PARAMS["input"]
    assert json.loads(bytes(asked.response)) == response()


def test_omitted_fields() -> None:
    asked = read_verify(as_json({"responses_create_params": {"input": "hi"}, "response": response()}))
    assert (asked.group_id, asked.group_attempt, asked.attempt_given) == (None, 0, False)
    assert (asked.rollout_index, asked.principle, asked.rubric_ids, asked.baseline) == (None, None, None, None)


@pytest.mark.parametrize(
    ("field", "alias", "value"),
    [
        ("_ng_task_index", "task_index", 4),
        ("_ng_group_id", "group_id", "h"),
        ("_ng_group_attempt", "group_attempt", 2),
        ("_ng_rollout_index", "rollout_index", 1),
    ],
)
def test_two_names(field: str, alias: str, value: Any) -> None:
    other = {"_ng_group_id": "other"}.get(field, 9)
    bare = {field: ..., alias: value}
    name = field.removeprefix("_ng_")
    assert getattr(read_verify(as_json(verify(**bare))), name) == value
    assert getattr(read_verify(as_json(verify(**{field: value, alias: other}))), name) == value
    assert getattr(read_verify(as_json(verify(**{field: None, alias: value}))), name) == value
    row = json.loads(b"".join(read_verify(as_json(verify(**bare))).echo.masked("x")))
    assert row[field] == value
    assert alias not in row


@pytest.mark.parametrize("value", [True, 1.0, 1.5, "1", [1], {}, "x", 1e3])
@pytest.mark.parametrize("name", ["_ng_task_index", "task_index", "group_attempt", "_ng_rollout_index"])
def test_integers_are_integers(name: str, value: Any) -> None:
    bare = {"_ng_group_attempt": ...} if name == "group_attempt" else {}
    assert problems(verify(**{**bare, name: value})) == [("int_type", ("body", name))]


def test_exotic_integers() -> None:
    big = read_verify(as_json(verify(index=10**40)))
    assert big.rollout_index == 10**40
    assert problems(as_json(verify(index=5)).replace(b'"_ng_rollout_index":5', b'"_ng_rollout_index":' + b"7" * 5000))
    assert read_verify(as_json(verify()).replace(b'index":0', b'index":-0')).rollout_index == 0


def test_attempts_and_group_ids() -> None:
    assert problems(verify(_ng_group_attempt=-1)) == [("greater_than_equal", ("body", "_ng_group_attempt"))]
    assert problems(verify(group="")) == [("string_too_short", ("body", "_ng_group_id"))]
    assert problems(verify(_ng_group_id=..., group_id="")) == [("string_too_short", ("body", "group_id"))]
    assert problems(verify(_ng_group_id=7)) == [("string_type", ("body", "_ng_group_id"))]
    assert problems(verify(principle=["p"], prompt_id=1)) == [
        ("string_type", ("body", "principle")),
        ("string_type", ("body", "prompt_id")),
    ]


def test_names_are_bounded_for_each_stands_in_every_checkpoint() -> None:
    assert read_verify(as_json(verify(group="g" * 1024, prompt_id="p" * 1024))).group_id == "g" * 1024
    assert problems(verify(group="g" * 1025, prompt_id="p" * 1025)) == [
        ("string_too_long", ("body", "_ng_group_id")),
        ("string_too_long", ("body", "prompt_id")),
    ]


@pytest.mark.parametrize(("value", "loc"), [([1, True], 1), ([1.0], 0), (["1"], 0), ([None], 0)])
def test_rubric_ids_are_integers(value: Any, loc: int) -> None:
    assert problems(verify(expected_rubric_ids=value)) == [("int_type", ("body", "expected_rubric_ids", loc))]
    assert problems(verify(expected_rubric_ids=5)) == [("list_type", ("body", "expected_rubric_ids"))]


def test_rubric_ids_are_bounded_for_they_stand_in_every_checkpoint() -> None:
    assert read_verify(as_json(verify(expected_rubric_ids=list(range(4096))))).rubric_ids == tuple(range(4096))
    assert problems(verify(expected_rubric_ids=list(range(4097)))) == [("too_long", ("body", "expected_rubric_ids"))]
    assert problems(verify(expected_rubric_ids=[2**63])) == [("int_parsing_size", ("body", "expected_rubric_ids"))]


@pytest.mark.parametrize("name", ["id", "created_at", "model", "object", "output", "tools", "tool_choice"])
def test_a_response_needs_its_fields(name: str) -> None:
    body = response()
    del body[name]
    assert problems(verify(response=body)) == [("missing", ("body", "response", name))]
    assert problems(verify(response={**body, name: None})) == [("missing", ("body", "response", name))]


@pytest.mark.parametrize(
    ("changes", "loc"),
    [
        ({"object": "chat"}, ("object",)),
        ({"created_at": "now"}, ("created_at",)),
        ({"created_at": True}, ("created_at",)),
        ({"parallel_tool_calls": 1}, ("parallel_tool_calls",)),
        ({"output": {}}, ("output",)),
        ({"output": [{"type": "message"}, {"content": []}]}, ("output", 1, "type")),
        ({"output": ["text"]}, ("output", 0)),
        ({"output": [{"type": None}]}, ("output", 0, "type")),
        ({"tools": {}}, ("tools",)),
        ({"id": 7}, ("id",)),
    ],
)
def test_a_response_needs_fields_of_the_right_kind(changes: dict[str, Any], loc: tuple[str | int, ...]) -> None:
    ((_, found),) = problems(verify(response=response(**changes)))
    assert found == ("body", "response", *loc)


def test_whole_objects_missing() -> None:
    assert problems({}) == [
        ("missing", ("body", "responses_create_params")),
        ("missing", ("body", "response")),
    ]
    assert problems({"responses_create_params": "x", "response": []}) == [
        ("dict_type", ("body", "responses_create_params")),
        ("dict_type", ("body", "response")),
    ]


def test_unknown_create_parameters_are_refused_unless_null() -> None:
    inside = ("body", "responses_create_params")
    asked = verify(responses_create_params={"input": "x", "logit_bias": {}, "seed": None})
    assert problems(asked) == [("extra_forbidden", (*inside, "logit_bias"))]
    read_verify(as_json(verify(responses_create_params={"input": "x", "seed": None, "stream": False})))
    read_verify(as_json(verify(responses_create_params={"input": "x", "stream": None})))
    for stream in (True, 0, "false"):
        asked = verify(responses_create_params={"input": "x", "stream": stream})
        assert problems(asked) == [("literal_error", (*inside, "stream"))]


@pytest.mark.parametrize(
    ("prompt", "loc"),
    [(None, ()), (7, ()), ({}, ()), ([7], (0,)), ([{"role": "user"}], (0, "type")), ([{}], (0, "type"))],
)
def test_input_is_a_text_or_a_list_of_items(prompt: Any, loc: tuple[str | int, ...]) -> None:
    ((_, found),) = problems(verify(responses_create_params={"input": prompt}))
    assert found == ("body", "responses_create_params", "input", *loc)


def test_the_baseline_is_read_as_it_is() -> None:
    def baseline(metadata: Any) -> Any:
        return read_verify(as_json(verify(responses_create_params={"input": "x", "metadata": metadata}))).baseline

    assert baseline({"baseline_response": "b"}) == "b"
    assert baseline({"baseline_response": ["b"]}) == ["b"]
    assert baseline({}) is None
    assert baseline(None) is None
    assert problems(verify(responses_create_params={"input": "x", "metadata": "b"}))


LOG_PROBS = b'"generation_log_probs":[0.1' + b",0.1" * 200_000 + b"]"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"type":"message"', LOG_PROBS + b',"type":"message"'),
        (b'"tools":[]', b'"tools":[{' + LOG_PROBS + b"}]"),
        (b'"type":"output_text"', LOG_PROBS + b',"type":"output_text"'),
        (b'"content":[', b'"content":[0.1' + b",0.1" * 200_000 + b","),
    ],
)
@pytest.mark.parametrize("text", ["\ud800", "\ud800" + "x" * 600])
def test_of_a_response_with_a_lone_surrogate_only_texts_are_decoded(old: bytes, new: bytes, text: str) -> None:
    body = as_json(verify(response=response(text=text))).replace(old, new)
    assert len(body) > 800_000
    tracemalloc.start()
    try:
        read = read_verify(body)
        compared = read_compare(b'{"conversation_history":[],"response_objs":[' + bytes(read.response) + b"]}", 1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert read.answer.answer == text
    assert compared.answers == (read.answer,)
    assert peak < 5 * len(body)


def test_no_item_is_made_of_an_output_of_numbers() -> None:
    body = as_json(verify(response=response(output=[]))).replace(
        b'"output":[]', b'"output":[1' + b",1" * 500_000 + b"]"
    )
    tracemalloc.start()
    try:
        assert problems(body) == [("dict_type", ("body", "response", "output", at)) for at in range(100)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * len(body)


def test_an_error_does_not_decode_a_large_value() -> None:
    numbers = [0.5] * 200_000
    body = as_json(verify(principle=numbers, response=response(tool_choice=numbers, output=[numbers])))
    tracemalloc.start()
    try:
        assert len(problems(body)) == 3
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * len(body)


# -- replies -----------------------------------------------------------------------------------------------

ODD_RESPONSE = (
    b'{ "id":"r","created_at":1e0 ,"model":"\\ud800","object":"response","huge":123456789012345678901234567890,'
    b'"output":[{"type":"message","content":[{"type":"output_text","text":"\\ud800\xf0\x9f\x98\x80\\u0000"}],'
    b'"prompt_token_ids":[1, 2,3]}],"parallel_tool_calls":true,"tool_choice":"auto","tools":[],"id":"last"}'
)
ODD_PARAMS = b'{"input" : "\\udfff", "temperature":1.00, "seed":null}'
ODD = (
    b'{"responses_create_params":' + ODD_PARAMS + b',"response":' + ODD_RESPONSE + b',"group_id":"\\ud800",'
    b'"rollout_index":1,"agent_ref":{"n":1.0,"deep":[[]]},"_ng_rollout_id":"0-1","task_index":null,'
    b'"reward_score_raw":9,"failure_reason":"old","instance_config":{"a":1.50,"mask_sample":false}}'
)
FIELDS: dict[str, JSON] = {"reward": 1.25, "reward_score_raw": 1.0, "genrm_output_tokens_total_per_group": 7.0}


def test_a_success_reply() -> None:
    asked = read_verify(ODD)
    reply = b"".join(asked.echo.success(FIELDS))
    assert b'"response":' + ODD_RESPONSE in reply
    assert b'"responses_create_params":' + ODD_PARAMS in reply
    row = json.loads(reply)
    assert set(row) == {
        *("responses_create_params", "response", "reward", "mask_sample", "failure_kind", "failure_reason"),
        *("_ng_group_id", "_ng_group_attempt", "_ng_rollout_index", *SUCCESS_ONLY),
    }
    assert (row["reward"], row["mask_sample"], row["failure_kind"], row["failure_reason"]) == (1.25, False, None, None)
    assert (row["_ng_group_id"], row["_ng_group_attempt"], row["_ng_rollout_index"]) == ("\ud800", 0, 1)
    assert (row["reasoning_text"], row["answer_text"]) == ("", "\ud800\U0001f600\x00")
    assert row["genrm_output_tokens_total_per_group"] == 7.0
    assert [row[name] for name in TOKEN_FIELDS].count(None) == 7


def test_a_masked_row() -> None:
    reply = b"".join(read_verify(ODD).echo.masked("x" * 3000))
    assert b'"response":' + ODD_RESPONSE in reply
    assert b'"responses_create_params":' + ODD_PARAMS in reply
    assert b'"agent_ref":{"n":1.0,"deep":[[]]}' in reply
    pairs = json.loads(reply, object_pairs_hook=lambda pairs: pairs)
    names = [name for name, _ in pairs]
    assert len(names) == len(set(names))
    row = json.loads(reply)
    assert not row.keys() & (SUCCESS_ONLY | {"group_id", "rollout_index", "task_index", "group_attempt"})
    assert row["failure_reason"] == row["_ng_failure_judge_error"] == "x" * 2000
    assert (row["reward"], row["mask_sample"], row["failure_kind"]) == (0.0, True, "judge_failed")
    assert row["_ng_failure_class"] == "judge_failed"
    assert row["instance_config"] == {"a": 1.5, "mask_sample": True}
    assert (row["_ng_rollout_id"], row["_ng_group_id"], row["_ng_rollout_index"]) == ("0-1", "\ud800", 1)


@pytest.mark.parametrize("given_config", [None, ..., "text", [1], {}])
def test_instance_config_is_an_object_in_a_masked_row(given_config: Any) -> None:
    row = json.loads(b"".join(read_verify(as_json(verify(instance_config=given_config))).echo.masked("x")))
    assert row["instance_config"] == {"mask_sample": True}


def test_a_reply_never_carries_what_json_cannot() -> None:
    with pytest.raises(ValueError, match="JSON"):
        read_verify(as_json(verify())).echo.success({"reward": float("nan")})


def test_a_request_keeps_one_copy_of_its_body() -> None:
    body = as_json(verify(response=response(text="x" * 100_000)))
    asked = read_verify(body)
    assert asked.response.obj is asked.echo.members["response"].obj  # type: ignore[union-attr] # a view of the body
    assert not [value for value in asked.echo.members.values() if isinstance(value, bytes) and len(value) > 1000]


texts = st.text(st.characters(codec=None), max_size=20)


@given(texts, texts, texts, st.dictionaries(texts.map("x".__add__), st.integers() | texts | st.none(), max_size=4))
def test_any_text_is_carried_unchanged(answer: str, group: str, principle: str, extras: dict[str, Any]) -> None:
    asked = verify(group=group or "g", principle=principle, response=response(text=answer))
    body = as_json({**extras, **asked})
    read = read_verify(body)
    expected = json.loads(as_json([answer, group or "g", principle]))
    assert [read.answer.answer, read.group_id, read.principle] == expected
    row = json.loads(b"".join(read.echo.masked("reason")))
    sent = json.loads(body)
    assert all(row[name] == sent[name] for name in json.loads(as_json(extras)))
    assert row["response"] == json.loads(body)["response"]
