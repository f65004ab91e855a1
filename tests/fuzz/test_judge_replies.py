"""Whatever a judge replies, a cohort ends with finite rewards or as a judge failure, and nothing is ever raised."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Literal

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from tests.fuzz.kit import bodies, fuzz, nested, run, scalars, texts
from tests.judging.test_verdict import counted
from tests.support.fake_judge import answer, verdict_text
from tests.support.judging_kit import Scripted, Step, judge_of
from tests.support.scene import policy, scene

from genrm_trio.core.outcome import JudgeFailed, Rewarded
from genrm_trio.judging.chat import Chat
from genrm_trio.judging.responses import Responses
from genrm_trio.judging.scoring import ScoringRules
from genrm_trio.judging.verdict import VerdictRules, read_rubric, read_verdict

CHAT: Final = "/v1/chat/completions"
Unread = Literal["drop_comparison", "judge_failure", "default_scores"]

LINES_A_CHARACTER: Final = 32
"""An empty object, the shortest with work in it, costs 28 a character over all passes (strict rules)."""

numbers = st.one_of(
    scalars, st.sampled_from(["3", "1e3", "-0", "NaN", " 3 ", "3.", "\u0663", "0x1", [], {}, [3], 1e308, -1e308])
)
verdicts = st.dictionaries(
    st.sampled_from(["score_1", "score_2", "ranking", "overall", "rubric_evaluations", "x"]), numbers, max_size=5
)
pieces = st.one_of(
    verdicts.map(json.dumps),
    verdicts.map(lambda found: json.dumps({"overall": found})),
    verdicts.map(lambda found: f"```json\n{json.dumps(found)}\n```"),
    st.sampled_from(
        ["<think>", "</think>", "```", "```json", "{", "}", '"', "\\", verdict_text(4, 2, 2), nested(3000)]
    ),
    texts,
)
said = st.lists(pieces, max_size=6).map("".join)


def reply(text: str, target: str) -> Any:
    return answer(text, target, usage={"input_tokens": 10, "output_tokens": 2, "prompt_tokens": 1})


@st.composite
def steps(draw: st.DrawFn, target: str) -> Step:
    """One reply of the judge: what it says is drawn, or what its reply looks like, or both."""
    whole = reply(draw(said), target)
    body: Any = draw(bodies(whole)) if draw(st.booleans()) else whole
    status = draw(st.sampled_from([200, 200, 200, 200, 204, 302, 400, 408, 429, 500, 503]))
    headers = draw(st.sampled_from([{}, {}, {"Retry-After": "1"}, {"Content-Type": "text/html"}]))
    return Step(status, body if isinstance(body, bytes) else as_bytes(body), headers)


def as_bytes(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body).encode()


def outcome_of(script: list[Step], *, chat: bool, mode: Literal["strict", "lenient"], unread: Unread) -> Any:
    """What the members of a cohort of two are told by a judge with this script."""

    async def main() -> Any:
        judge = judge_of(
            Scripted(*script),
            dialect=Chat({}) if chat else Responses({}),
            verdicts=VerdictRules(mode=mode),
            timeout_s=20.0,
            retries=2,
        )
        rules = replace(policy(evaluation_timeout_s=100.0), scoring=ScoringRules(on_unparseable_verdict=unread))
        async with scene(rules, judge) as s:  # type: ignore[arg-type]  # a judge by its methods
            rollouts = [s.verify(0), s.verify(1)]
            await s.ended(*rollouts)
            answers = [rollout.answer for rollout in rollouts]
        await judge.aclose()
        return answers

    return run(main)


@fuzz
@given(
    data=st.data(),
    chat=st.booleans(),
    mode=st.sampled_from(["strict", "lenient"]),
    unread=st.sampled_from(["drop_comparison", "judge_failure", "default_scores"]),
)
def test_any_reply_ends_in_finite_rewards_or_a_judge_failure(
    data: st.DataObject, chat: bool, mode: Literal["strict", "lenient"], unread: Unread
) -> None:
    target = CHAT if chat else "/v1/responses"
    script = data.draw(st.lists(steps(target), min_size=1, max_size=4))
    answers = outcome_of(script, chat=chat, mode=mode, unread=unread)
    assert len({type(answer) for answer in answers}) == 1
    event(type(answers[0]).__name__)
    for told in answers:
        match told:
            case Rewarded(fields=fields):
                numbers = [value for value in fields.values() if value is not None]
                assert all(isinstance(value, int | float) and math.isfinite(value) for value in numbers), fields
            case JudgeFailed(text=text):
                text.encode("utf-8")
                assert len(text) < 4000
            case _:
                raise AssertionError(f"told {told}")


@fuzz
@given(unit=said.filter(bool).map(lambda text: text[:200]), mode=st.sampled_from(["strict", "lenient"]))
def test_the_work_on_a_text_is_proportional_to_its_length(unit: str, mode: Literal["strict", "lenient"]) -> None:
    """A character is worth so many lines that run and so many characters read as JSON, in a long text as in a short."""
    rules = VerdictRules(mode=mode)
    for length in (1_000, 10_000):
        text = unit * (length // len(unit) + 1)
        with pytest.MonkeyPatch.context() as monkeypatch, counted(monkeypatch) as counts:
            read_verdict(text, rules)
            read_rubric(text, rules, (1,))
        assert counts["lines"] <= LINES_A_CHARACTER * len(text) + 100
        assert counts["characters"] <= 5 * len(text) + 200
