"""Exported states and their way back: round trips, and every refusal, each of which installs nothing."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.play import PROMPT, SCHEME, Play, key_of, rebuilt

from genrm_trio.core.identity import EpisodeId, group_cohort_id
from genrm_trio.core.invariants import broken
from genrm_trio.core.outcome import RESULT_FIELDS, JudgeFailed
from genrm_trio.core.record import Rebuild, StateRefused
from genrm_trio.core.state import Limits

LIMITS = Limits(4, record_sessions=True)
BASELINE = "cd" * 32


def state(index: int = 0, **changed: Any) -> dict[str, Any]:
    """The state of a rewarded member."""
    return {
        "group_id": "g",
        "group_attempt": 1,
        "newest_attempt": 2,
        "rollout_index": index,
        "prompt_digest": PROMPT,
        "response_digest": f"answer {index}",
        "response_digest_scheme": SCHEME,
        "result": {"reward": 1.0 + index},
        **changed,
    }


def failed(index: int = 0, **changed: Any) -> dict[str, Any]:
    """The state of a member of a judge-failed cohort."""
    saved = state(index, **{"failure": "no judge", "failure_kind": "judge", **changed})
    return {name: value for name, value in saved.items() if name != "result"}


def rebuild(*states: Any, limits: Limits = LIMITS) -> Rebuild:
    built = Rebuild(limits, 5.0)
    for number, one in enumerate(states):
        built.add(EpisodeId(f"r{number}", 3), f"s{number}", one)
    return built


def test_what_is_saved_comes_back() -> None:
    built = rebuild(state(0), {}, state(2), state(2), failed(0, group_id="h", newest_attempt=1)).state
    assert not broken(built)
    cohort = built.cohorts[key_of("g", 1)]
    assert [(m.index, m.digest, m.result and m.result.fields, m.pending) for m in cohort.by_index] == [
        (0, "answer 0", {"reward": 1.0}, True),
        (2, "answer 2", {"reward": 3.0}, True),
    ]
    assert cohort.sessions == {"s0": 0, "s2": 2, "s3": 2}
    assert built.cohorts[key_of("h", 1)].failure == JudgeFailed("no judge")
    assert {name: group.watermark.attempt for name, group in built.groups.items()} == {"g": 2, "h": 1}
    assert all(group.watermark.installed for group in built.groups.values())
    assert [(s.episode, s.restored, s.claimed) for s in built.sessions] == [
        (EpisodeId(f"r{number}", 4), True, False) for number in range(5)
    ]
    assert list(built.terminal) == [key_of("g", 1), key_of("h", 1)], "the eviction order is the file's"


ONE_STATE: list[tuple[str, Callable[[dict[str, Any]], Any], str]] = [
    ("not an object", lambda s: [s], "object"),
    ("null", lambda s: None, "object"),
    ("unknown field", lambda s: {**s, "extra": 1}, "unknown field 'extra'"),
    ("result and failure", lambda s: {**failed(), "result": {"reward": 1.0}}, "unknown field 'result'"),
    ("failure without kind", lambda s: {k: v for k, v in failed().items() if k != "failure_kind"}, "failure_kind"),
    ("kind without failure", lambda s: {**s, "failure_kind": "judge"}, "unknown field 'failure_kind'"),
    ("another kind", lambda s: failed(failure_kind="cohort"), "failure_kind"),
    ("failure not a text", lambda s: failed(failure=None), "failure"),
    *((f"no {name}", lambda s, n=name: {k: v for k, v in s.items() if k != n}, name) for name in state()),
    *((f"{name} empty", lambda s, n=name: {**s, n: ""}, name) for name in ("group_id", "response_digest")),
    *(
        (f"{name} is {value!r}", lambda s, n=name, v=value: {**s, n: v}, name)
        for name in ("group_attempt", "newest_attempt", "rollout_index")
        for value in (-1, 1.0, "1", True, None)
    ),
    ("newest below attempt", lambda s: {**s, "newest_attempt": 0}, "below group_attempt"),
    ("index not below N", lambda s: {**s, "rollout_index": 4}, "rollout_index 4"),
    ("unknown scheme", lambda s: {**s, "response_digest_scheme": "genrm-trio-2"}, "genrm-trio-2"),
    ("group id not a text", lambda s: {**s, "group_id": 7}, "group_id"),
    ("result not an object", lambda s: {**s, "result": [1]}, "result"),
    ("result empty", lambda s: {**s, "result": {}}, "reward"),
    ("result unknown", lambda s: {**s, "result": {"reward": 1.0, "answer_text": "x"}}, "answer_text"),
    *(
        (f"reward {value!r}", lambda s, v=value: {**s, "result": {"reward": v}}, "reward")
        for value in (float("nan"), float("inf"), True, "1", None, 10**400)
    ),
    (
        "another number",
        lambda s: {**s, "result": {"reward": 1.0, "reward_score_raw": float("inf")}},
        "reward_score_raw",
    ),
    *(
        (f"prompt {prompt[-20:]!r}", lambda s, p=prompt: {**s, "prompt_digest": p}, "prompt_digest")
        for prompt in (
            PROMPT[1:],
            PROMPT.upper(),
            PROMPT + "\n",
            f"{PROMPT}:{BASELINE}",
            f"{PROMPT}:rubrics:1",
            f"{PROMPT}:rubrics:",
            f"{PROMPT}:x",
        )
    ),
]


@pytest.mark.parametrize(("change", "fragment"), [row[1:] for row in ONE_STATE], ids=[row[0] for row in ONE_STATE])
def test_a_state_that_is_not_known_is_refused(change: Callable[[dict[str, Any]], Any], fragment: str) -> None:
    with pytest.raises(StateRefused) as refused:
        rebuild(change(state()))
    assert fragment in str(refused.value)
    assert "'s0'" in str(refused.value), "the text names the session"


DISAGREE: list[tuple[str, dict[str, Any], str]] = [
    ("another answer", state(0, response_digest="x"), "differs"),
    ("another scheme", state(0, response_digest_scheme="json-ascii-sha256"), "differs"),
    ("another reward", state(0, result={"reward": 9.0}), "differs"),
    ("more in the result", state(0, result={"reward": 1.0, "reward_score_raw": 1.0}), "differs"),
    ("a failure for one", failed(1), "outcome"),
    ("a failure for the same member", failed(0), "outcome"),
    ("another prompt", state(1, prompt_digest="ef" * 32), "prompt_digest"),
    ("another prompt in another attempt", state(1, group_attempt=0, prompt_digest="ef" * 32), "prompt_digest"),
    ("another newest attempt", state(1, newest_attempt=3), "newest_attempt"),
    ("another newest attempt in another attempt", state(1, group_attempt=2, newest_attempt=3), "newest_attempt"),
]


@pytest.mark.parametrize(("second", "fragment"), [row[1:] for row in DISAGREE], ids=[row[0] for row in DISAGREE])
def test_sessions_that_disagree_are_refused_in_both_orders(second: dict[str, Any], fragment: str) -> None:
    for states in ((state(0), second), (second, state(0))):
        with pytest.raises(StateRefused) as refused:
            rebuild(*states)
        assert fragment in str(refused.value)


def test_failures_that_disagree_are_refused() -> None:
    with pytest.raises(StateRefused):
        rebuild(failed(0), failed(1, failure="another text"))


def test_a_session_id_that_occurs_twice_is_refused() -> None:
    for first, second in ((state(0), state(1)), ({}, state(0)), ({}, {})):
        built = Rebuild(LIMITS, 0.0)
        built.add(EpisodeId("r"), "s", first)
        with pytest.raises(StateRefused, match="twice"):
            built.add(EpisodeId("q"), "s", second)


def test_the_suffix_of_the_prompt_must_fit_the_configuration() -> None:
    fixed = Limits(4, fixed_baseline=True)
    rubrics = Limits(4, rubrics=True)
    both = Limits(4, fixed_baseline=True, rubrics=True)
    for limits, suffix in ((fixed, f":{BASELINE}"), (rubrics, ":rubrics:-1,5"), (both, f":{BASELINE}:rubrics:1")):
        built = rebuild(state(prompt_digest=PROMPT + suffix), limits=limits).state
        assert list(built.cohorts) == [group_cohort_id("g", 1, suffix).key]
        for other in (LIMITS, fixed, rubrics, both):
            if other is not limits:
                with pytest.raises(StateRefused, match="prompt_digest"):
                    rebuild(state(prompt_digest=PROMPT + suffix), limits=other)


@pytest.mark.parametrize("text", ["", "x", "\ud800", "a\x00b", "ü" * 3000])
def test_whatever_a_judge_failure_says_can_be_restored(text: str) -> None:
    play = Play()
    play.fill()
    play.judge_fails(text=text)
    play.publish()
    play.close()
    again = play.crash(play.save()).verify(1, session="s-g-1", episode="g-1-a1")
    assert again.answer == JudgeFailed(text)


@pytest.mark.parametrize("attempt", [0, 2**31, 2**63, 2**70])
def test_whatever_attempt_a_group_has_can_be_restored(attempt: int) -> None:
    play = Play()
    told = play.done(attempt=attempt)
    play.close()
    fresh = play.crash(play.save())
    assert [fresh.verify(i, attempt=attempt).reward for i in (0, 1)] == [ask.reward for ask in told]


def test_every_field_of_a_result_comes_back() -> None:
    result = {name: number / 7 for number, name in enumerate(sorted(RESULT_FIELDS))}
    result_of_null = dict.fromkeys(RESULT_FIELDS) | {"reward": -0.25}
    built = rebuild(state(0, result=result), state(1, result=result_of_null)).state
    found = [m.result and m.result.fields for m in built.cohorts[key_of("g", 1)].by_index]
    assert found == [result, result_of_null]


@given(st.integers(1, 6), st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=6, max_size=6))
def test_any_reward_survives_two_round_trips_through_json(size: int, rewards: list[float]) -> None:
    play = Play(size)
    play.done()
    for member in play.registry.cohorts[key_of()].by_index:
        assert member.result is not None
        member.result = type(member.result)({"reward": rewards[member.index]})
    play.close()
    once = play.crash(play.save())
    once.open()
    once.close()
    twice = once.crash(once.save())
    assert [twice.verify(i).reward for i in range(size)] == rewards[:size]


def test_a_refusal_leaves_what_was_built_aside_unseen() -> None:
    saved = json.dumps(
        [
            {"episode": "a", "session": "s0", "state": state(0)},
            {"episode": "b", "session": "s1", "state": state(0, result={"reward": 2.0})},
        ]
    )
    play = Play()
    play.close()
    before = copy.deepcopy(vars(play.registry.sessions))
    with pytest.raises(StateRefused):
        rebuilt(saved, play.registry.limits)
    play.registry.refuse_restore(play.now, "no")
    assert vars(play.registry.sessions) == before
    assert play.registry.restore_refused() is None
