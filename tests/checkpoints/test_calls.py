"""The bodies of control calls: exactly their fields, strict types, episodes as objects or as keys."""

import json
from typing import Any

import pytest
from hypothesis import given
from pydantic import ValidationError
from tests.checkpoints.material import any_json

from genrm_trio.checkpoints.calls import (
    Call,
    CommitCall,
    ForgetCall,
    PrepareCall,
    RenewCall,
    RestoreCall,
    ResumeCall,
    RetireCall,
    read_call,
)
from genrm_trio.core.identity import EpisodeId

COMMON = {"checkpoint_id": "ck-1", "deadline_ts": 1.5}
GOOD: dict[type[Call], dict[str, Any]] = {
    PrepareCall: COMMON,
    RenewCall: COMMON,
    ResumeCall: COMMON,
    CommitCall: {**COMMON, "checkpoint_dir": "d"},
    RestoreCall: {**COMMON, "checkpoint_dir": "d", "episode_ids": []},
    RetireCall: {**COMMON, "episode_ids": ["r"]},
    ForgetCall: {**COMMON, "rollout_ids": ["r"]},
}


@pytest.mark.parametrize("model", GOOD)
def test_the_smallest_good_body_passes_and_no_field_may_be_left_out(model: type[Call]) -> None:
    good = GOOD[model]
    model.model_validate(good)
    for name in good:
        with pytest.raises(ValidationError) as caught:
            model.model_validate({key: value for key, value in good.items() if key != name})
        assert [(error["type"], error["loc"]) for error in caught.value.errors()] == [("missing", (name,))]


@pytest.mark.parametrize("model", GOOD)
def test_unknown_fields_are_refused(model: type[Call]) -> None:
    with pytest.raises(ValidationError) as caught:
        model.model_validate({**GOOD[model], "extra": None})
    assert [(error["type"], error["loc"]) for error in caught.value.errors()] == [("extra_forbidden", ("extra",))]


@pytest.mark.parametrize("good", ["a", "0", "A.b_c-d", "x" * 128])
def test_good_checkpoint_ids(good: str) -> None:
    assert PrepareCall.model_validate({**COMMON, "checkpoint_id": good}).checkpoint_id == good


@pytest.mark.parametrize("bad", ["", "x" * 129, "-a", ".a", "a b", "a/b", "ä", "a\n", 1, None])
def test_bad_checkpoint_ids(bad: object) -> None:
    with pytest.raises(ValidationError):
        PrepareCall.model_validate({**COMMON, "checkpoint_id": bad})


@pytest.mark.parametrize("good", [0, -1, 1.25, 1_700_000_000, 1e300])
def test_good_deadlines(good: float) -> None:
    assert PrepareCall.model_validate({**COMMON, "deadline_ts": good}).deadline_ts == good


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 10**400, True, "1", None, [1]])
def test_bad_deadlines(bad: object) -> None:
    with pytest.raises(ValidationError):
        PrepareCall.model_validate({**COMMON, "deadline_ts": bad})


def test_episodes_are_objects_or_keys() -> None:
    call = CommitCall.model_validate(
        {**GOOD[CommitCall], "episode_ids": ["r", "r-a2", {"rollout_id": "q", "attempt": 1}, {"rollout_id": "q"}]}
    )
    assert call.episode_ids == [EpisodeId("r"), EpisodeId("r", 2), EpisodeId("q", 1), EpisodeId("q")]
    assert call.scope == frozenset(call.episode_ids)


@pytest.mark.parametrize(
    "bad",
    ["", "-r", "a b", 1, None, [], {}, {"rollout_id": ""}, {"rollout_id": 1}, {"rollout_id": "r-a1"},
     {"rollout_id": "r", "attempt": -1}, {"rollout_id": "r", "attempt": True}, {"rollout_id": "r", "attempt": 1.0},
     {"rollout_id": "r", "attempt": None}, {"rollout_id": "r", "extra": 1}],
)  # fmt: skip
def test_bad_episodes_are_refused_with_their_place(bad: object) -> None:
    with pytest.raises(ValidationError) as caught:
        RetireCall.model_validate({**COMMON, "episode_ids": ["r", bad]})
    assert [error["loc"] for error in caught.value.errors()] == [("episode_ids", 1)]


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        (CommitCall, {"checkpoint_dir": ""}),
        (CommitCall, {"checkpoint_dir": 1}),
        (CommitCall, {"stop": 1}),
        (CommitCall, {"stop": None}),
        (CommitCall, {"episode_ids": "r"}),
        (RestoreCall, {"episode_ids": None}),
        (RetireCall, {"episode_ids": []}),
        (ForgetCall, {"rollout_ids": []}),
        (ForgetCall, {"rollout_ids": [""]}),
        (ForgetCall, {"rollout_ids": [1]}),
    ],
)
def test_bad_fields(model: type[Call], changes: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        model.model_validate({**GOOD[model], **changes})


def test_a_commit_of_everything_has_no_scope() -> None:
    assert CommitCall.model_validate(GOOD[CommitCall]).scope is None
    assert CommitCall.model_validate({**GOOD[CommitCall], "episode_ids": None}).scope is None
    assert CommitCall.model_validate({**GOOD[CommitCall], "episode_ids": []}).scope == frozenset()


@given(any_json)
def test_any_json_is_taken_or_refused(body: object) -> None:
    for model, good in GOOD.items():
        for candidate in (body, {**good, "episode_ids": body}, {**COMMON, "checkpoint_id": body}):
            try:
                model.model_validate(candidate)
            except ValidationError as error:
                error.errors()


@pytest.mark.parametrize("count", [1, 20_000])
async def test_a_body_is_read_from_its_bytes_short_or_long(count: int) -> None:
    body = json.dumps({**GOOD[RestoreCall], "episode_ids": [f"r{n}-a1" for n in range(count)]}).encode()
    call = await read_call(RestoreCall, body)
    assert call.scope == {EpisodeId(f"r{n}", 1) for n in range(count)}
    with pytest.raises(ValidationError):
        await read_call(RestoreCall, body[:-1])
