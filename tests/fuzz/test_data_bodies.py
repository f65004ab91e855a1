"""Whatever stands in the body of a data request, it is answered by the contract, and the next cohort completes."""

import json
from itertools import product
from typing import Any

from hypothesis import currently_in_test_context, event, given
from hypothesis import strategies as st
from tests.fuzz.kit import HUGE, bodies, check_refusal, fuzz, places, replaced, run, strict_json
from tests.support.judges import ScriptedJudge
from tests.web.app_harness import Answer, Site, site
from tests.web.bodies import response, verify

from genrm_trio.core.invariants import broken
from genrm_trio.judging.verdict import Verdict

SESSION = {"resources_session_id": "s", "episode_id": {"rollout_id": "0-0", "attempt": 0}}
RIGHT: dict[str, Any] = {
    "/verify": verify(
        0,
        principle="be fair",
        expected_rubric_ids=[1, 2],
        prompt_id="p",
        _ng_task_index=3,
        agent_ref={"name": "a"},
        instance_config={"x": 1, "mask_sample": False},
    ),
    "/seed_session": {**SESSION, "task_id": {"taskset": "t", "task_id": "1"}, "task_data": {"row": [1]}},
    "/close_session": SESSION,
    "/compare": {
        "conversation_history": [{"role": "user", "content": "2+2?"}],
        "response_objs": [response("1"), response("2")],
        "principle": "be fair",
        "expected_rubric_ids": [1],
    },
    "/aggregate_metrics": {
        "verify_responses": [
            {
                "_ng_task_index": task,
                "_ng_rollout_index": index,
                "reward": 1.5,
                "response": {"usage": {"tokens": 3}},
                "agent_ref": {"name": "a", "versions": [1, {"minor": 2.5}]},
            }
            for task in (0, 1)
            for index in (0, 1)
        ]
    },
}
ALLOWED = {
    "/verify": {200, 409, 422, 503},
    "/seed_session": {200, 422},
    "/close_session": {200, 422},
    "/compare": {200, 422},
    "/aggregate_metrics": {200, 422, 500},
}
BEYOND = [b"1e400", str(HUGE).encode()]
"""Numbers of JSON that no double holds."""
posts = st.sampled_from(sorted(RIGHT)).flatmap(lambda path: st.tuples(st.just(path), bodies(RIGHT[path])))


def even_judge() -> ScriptedJudge:
    """A judge that finds all answers alike, whatever their text is."""
    return ScriptedJudge(lambda _ask: Verdict(3.0, 3.0, 3.5))


def check(path: str, answer: Answer) -> None:
    """The answer is one that the contract names for this route."""
    assert answer.status in ALLOWED[path], f"{path}: {answer.status} {answer.body[:300]!r}"
    if currently_in_test_context():
        event(f"{path} {answer.status}")
    body = strict_json(answer.body)
    if answer.status == 500:
        assert "DuplicateRollout" in body, body
    elif answer.status == 503:
        assert body["code"] in {"collection_timeout", "superseded"}, body
    elif answer.status != 200:
        check_refusal(answer)


async def check_next_cohort(at: Site) -> None:
    """A cohort that nobody has touched gets its rewards."""
    fresh = [at.member(index, group="next of all") for index in range(2)]
    answers = [await at.answered(request) for request in fresh]
    assert [answer.status for answer in answers] == [200, 200]
    assert not broken(at.server.registry)


@fuzz
@given(posts=st.lists(posts, min_size=1, max_size=4), prefix=st.sampled_from(["", "/ng-rollout/0-0", "/ng-rollout/x"]))
def test_any_body_is_answered_by_the_contract(posts: list[tuple[str, bytes]], prefix: str) -> None:
    async def main() -> None:
        async with site(judge=even_judge()) as at:
            sent = [(path, at.begin("POST", prefix + path, body)) for path, body in posts]
            for path, request in sent:
                check(path, await at.answered(request))
            assert not broken(at.server.registry)
            await check_next_cohort(at)

    run(main)


def spelled(data: bytes) -> Any:
    """JSON with its numbers as they are spelled."""
    return json.loads(data, parse_int=str, parse_float=str)


@fuzz
@given(body=bodies(RIGHT["/verify"]))
def test_what_is_accepted_is_echoed(body: bytes) -> None:
    """Two members that differ in nothing but their index: both are rewarded, or neither was ever taken."""
    other = body.replace(b'"_ng_rollout_index": 0', b'"_ng_rollout_index": 1')

    async def main() -> None:
        async with site(judge=even_judge()) as at:
            requests = [at.begin("POST", "/verify", data) for data in (body, other)]
            answers = [await at.answered(request) for request in requests]
            for answer, data in zip(answers, (body, other), strict=True):
                check("/verify", answer)
                if answer.status == 200:
                    sent, told = spelled(data), spelled(answer.body)
                    assert told["response"] == sent["response"]
                    assert told["responses_create_params"] == sent["responses_create_params"]
                    assert told["reward"] == "3.0"

    run(main)


def with_number(right: Any, place: tuple[Any, ...], number: bytes) -> bytes:
    """The body with a number as it is spelled at the place."""
    return json.dumps(replaced(right, place, "NUMBER")).encode().replace(b'"NUMBER"', number)


def test_a_number_beyond_a_double_is_refused_by_its_place_or_carried() -> None:
    """In every place of every body but those of `/verify`, of which two make a cohort: see below."""
    rows = "verify_responses"
    alone = {**RIGHT, "/aggregate_metrics": {rows: RIGHT["/aggregate_metrics"][rows][:1]}}
    tried = [(path, place) for path, right in alone.items() if path != "/verify" for place in places(right)]

    async def main() -> None:
        async with site(judge=even_judge()) as at:
            for (path, place), number in product(tried, BEYOND):
                answer = await at.ask("POST", path, with_number(alone[path], place, number))
                check(path, answer)
                assert answer.status in {200, 422}, (path, place, number)
                if "agent_ref" in place[:-1] and number == b"1e400":
                    assert [entry["loc"] for entry in answer.json["detail"]] == [["body", *place[:3]]]
            await check_next_cohort(at)

    run(main)


def test_a_number_beyond_a_double_anywhere_in_a_cohort_is_refused_or_carried() -> None:
    async def main() -> None:
        async with site(judge=even_judge()) as at:
            for count, place in enumerate(places(RIGHT["/verify"])):
                right = {**RIGHT["/verify"], "_ng_group_id": f"g{count}"}
                sent = [with_number({**right, "_ng_rollout_index": index}, place, b"1e400") for index in range(2)]
                requests = [at.begin("POST", "/verify", body) for body in sent]
                answers = [await at.answered(request) for request in requests]
                assert [answer.status for answer in answers] in ([200, 200], [422, 422]), (place, answers)
                for answer, body in zip(answers, sent, strict=True):
                    check("/verify", answer)
                    if answer.status == 200:
                        assert spelled(answer.body)["response"] == spelled(body)["response"]
            await check_next_cohort(at)

    run(main)
