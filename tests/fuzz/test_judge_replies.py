"""Whatever a judge replies, a cohort ends with finite rewards or as a judge failure, and nothing is ever raised.

Rewards are made of what a judge said: a script in which it never says anything of use ends as a judge failure.
"""

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
from tests.support.unusable import CHAT, CHAT_UNUSABLE, RESPONSES_UNUSABLE

from genrm_trio.core.outcome import JudgeFailed, Rewarded
from genrm_trio.judging.chat import Chat
from genrm_trio.judging.lenient import decode_json
from genrm_trio.judging.responses import Responses
from genrm_trio.judging.scoring import ScoringRules
from genrm_trio.judging.text import scrub
from genrm_trio.judging.verdict import VerdictRules, read_rubric, read_verdict

Mode = Literal["strict", "lenient"]
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
    """One reply of the judge: what it says is drawn, or what its reply looks like, or both; or it says nothing."""
    silent = [body for _, body in (CHAT_UNUSABLE if target == CHAT else RESPONSES_UNUSABLE).values()]
    whole = draw(st.sampled_from(silent)) if draw(st.integers(0, 3)) == 0 else reply(draw(said), target)
    body: Any = draw(bodies(whole)) if draw(st.booleans()) else whole
    status = draw(st.sampled_from([200, 200, 200, 200, 204, 302, 400, 408, 429, 500, 503]))
    headers = draw(st.sampled_from([{}, {}, {"Retry-After": "1"}, {"Content-Type": "text/html"}]))
    return Step(status, body if isinstance(body, bytes) else as_bytes(body), headers)


def as_bytes(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body).encode()


def of_use(step: Step, *, chat: bool, mode: Mode, unread: Unread) -> bool:
    """Whether a score can come of a reply: by a verdict, or, where neutral scores stand in for one, by any answer.

    Contract 7.5 and 14.2; in `lenient` a verdict may lack fields. Told from the reply alone, not from how the transport
    classes it.
    """
    text = scrub(answer_in(step, chat=chat))
    readable = unread == "default_scores" or read_verdict(text, VerdictRules(mode=mode)) is not None
    return bool(text.strip()) and readable


def answer_in(step: Step, *, chat: bool) -> str:
    """The answer in a reply; empty unless it is a 2xx with a JSON object that is completed and no error."""
    try:
        told = decode_json(step.content)
    except ValueError:
        return ""
    if step.status // 100 != 2 or not isinstance(told, dict) or told.get("error") or told.get("object") == "error":
        return ""
    if not chat:
        found = [part for item in dicts(told.get("output"), "message") for part in dicts(item.get("content"))]
        completed = not told.get("status") or told["status"] == "completed"
        return texts_of(found, "output_text") if completed else ""
    choices = told.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        return ""
    if choice.get("finish_reason") in ("length", "content_filter", "tool_calls"):
        return ""
    content = message.get("content")
    return content if isinstance(content, str) else texts_of(dicts(content), "text", "output_text")


def dicts(value: Any, *types: str) -> list[dict[str, Any]]:
    """The objects in a list, of these types if any are named."""
    found = [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
    return [item for item in found if not types or item.get("type") in types]


def texts_of(parts: list[dict[str, Any]], *types: str) -> str:
    return "".join(text for part in dicts(parts, *types) if isinstance(text := part.get("text"), str))


def outcome_of(script: list[Step], *, chat: bool, mode: Mode, unread: Unread) -> Any:
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
    data: st.DataObject, chat: bool, mode: Mode, unread: Unread
) -> None:
    target = CHAT if chat else "/v1/responses"
    script = data.draw(st.lists(steps(target), min_size=1, max_size=4))
    answers = outcome_of(script, chat=chat, mode=mode, unread=unread)
    assert len({type(answer) for answer in answers}) == 1
    useful = any(of_use(step, chat=chat, mode=mode, unread=unread) for step in script)
    event(f"{type(answers[0]).__name__}, {'some' if useful else 'no'} reply of use")
    if not useful:
        assert isinstance(answers[0], JudgeFailed), "a score was made of nothing"
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
def test_the_work_on_a_text_is_proportional_to_its_length(unit: str, mode: Mode) -> None:
    """A character is worth so many lines that run and so many characters read as JSON, in a long text as in a short."""
    rules = VerdictRules(mode=mode)
    for length in (1_000, 10_000):
        text = unit * (length // len(unit) + 1)
        with pytest.MonkeyPatch.context() as monkeypatch, counted(monkeypatch) as counts:
            read_verdict(text, rules)
            read_rubric(text, rules, (1,))
        assert counts["lines"] <= LINES_A_CHARACTER * len(text) + 100
        assert counts["characters"] <= 5 * len(text) + 200
