"""Each refusal has its status, its shape and its code, and the two shapes are never mixed."""

import json
from typing import get_args

import pytest

from genrm_trio.core.outcome import CohortFailed, FailureCode, RefusalCode, Refused
from genrm_trio.web import errors


def read(reply: errors.Reply) -> object:
    assert reply.headers["content-type"] == "application/json"
    return json.loads(reply.body)


@pytest.mark.parametrize("code", get_args(RefusalCode))
def test_every_refusal_of_the_core_has_a_status(code: RefusalCode) -> None:
    reply = errors.of_refusal(Refused(code, "text"), 7)
    if code == "stale_attempt":
        assert read(reply) == {"error": {"code": code, "detail": "text"}}
    else:
        assert read(reply) == {"detail": "text", "code": code}
    assert reply.status in {409, 503}
    assert reply.headers.get("retry-after") == ("7" if code == "too_busy" else None)


@pytest.mark.parametrize("code", get_args(FailureCode))
def test_a_failed_cohort_is_always_503(code: FailureCode) -> None:
    reply = errors.of_cohort_failure(CohortFailed(code, "text"))
    assert (reply.status, read(reply)) == (503, {"detail": "text", "code": code})


def test_a_superseded_attempt_names_the_latest() -> None:
    reply = errors.of_refusal(Refused("superseded", "text", latest_attempt=3), 7)
    assert (reply.status, read(reply)) == (409, {"detail": "text", "code": "superseded", "latest_attempt": 3})
    reply = errors.of_cohort_failure(CohortFailed("superseded", "text", latest_attempt=3))
    assert (reply.status, read(reply)) == (503, {"detail": "text", "code": "superseded", "latest_attempt": 3})


def test_validation_errors_list_where_and_what_and_never_repeat_a_whole_body() -> None:
    problem = errors.Problem("int_type", ("body", "x"), "should be an integer", "a" * 100_000)
    reply = errors.of_invalid(errors.InvalidBody(problem))
    body = json.loads(reply.body)
    assert reply.status == 422
    assert body["code"] == "invalid_request"
    (entry,) = body["detail"]
    assert (entry["type"], entry["loc"], entry["msg"]) == ("int_type", ["body", "x"], "should be an integer")
    assert len(entry["input"]) < 1100


def test_large_values_of_any_kind_are_only_described() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    values: list[object] = ["a" * 10**6, list(range(10**6)), {str(n): n for n in range(10**5)}, deep, 10**5000]
    values += [[["a" * 2000]], {"a" * 2000: 1}]
    for value in values:
        reply = errors.of_invalid(errors.InvalidBody(errors.Problem("t", ("body",), "m", value)))
        assert len(reply.body) < 1500


def test_only_so_many_mistakes_are_listed() -> None:
    problem = errors.Problem("t", ("body",), "m")
    assert len(errors.InvalidBody(*[problem] * 5000).problems) == errors.MAX_PROBLEMS


@pytest.mark.parametrize("value", [{1, 2}, float("nan"), b"\xff"])
def test_an_input_that_json_cannot_carry_is_described(value: object) -> None:
    assert errors.of_invalid(errors.InvalidBody(errors.Problem("t", ("body",), "m", value))).status == 422


def test_other_shapes() -> None:
    unhandled = errors.unhandled(ValueError("\ud800"))
    assert (unhandled.status, read(unhandled)) == (500, "ValueError('\\ud800')")
    assert read(errors.cancelled()) == "Request was cancelled"
    assert read(errors.not_found()) == {"detail": "Not Found"}
    refused = errors.method_not_allowed(["GET", "HEAD"])
    assert (refused.status, read(refused)) == (405, {"detail": "Method Not Allowed"})
    assert refused.headers["allow"] == "GET, HEAD"
    control = errors.control("checkpoint_error", "shutting down", status=503)
    assert (control.status, read(control)) == (503, {"error": {"code": "checkpoint_error", "detail": "shutting down"}})
    assert errors.control("unauthorized", "no").status == 401
