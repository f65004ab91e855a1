"""What each backend sends and reads: `responses`, and `chat` with special roles, templates and JSON schemas.

The loop around them is in `test_budget`; here one call or a few over a scripted transport.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import unusable
from tests.support.fake_judge import answer
from tests.support.judging_kit import ASK, GOOD, PARAMS, Kept, Scripted, Step, ask, judge_of, ticket
from trio.testing import MockClock

from genrm_trio.judging.chat import Chat
from genrm_trio.judging.endpoint import Address, Endpoint
from genrm_trio.judging.judge import Answered, Ask, JudgeError
from genrm_trio.judging.responses import Responses
from genrm_trio.judging.template import JudgeTemplate
from genrm_trio.judging.transport import Dialect

RANGES = ((1.0, 5.0), (1.0, 6.0))
FULL = ask("one <b>", "two {{ principle }}", turns=[("system", "s"), ("user", "u")], principle="be kind")
PLAIN = (
    "{% for turn in conversation %}{{ turn.role }}: {{ turn.content }}\n{% endfor %}[{{ response_1 }}|{{ response_2 }}]"
)
BLOCKS = (
    "{% block system %}Scores {{ score_range[0] }} to {{ score_range[1] }}.{% endblock %}"
    "{% block user %}{% if principle %}By: {{ principle }}\n{% endif %}A: {{ response_1 }}\n"
    "B: {{ response_2 }}{% endblock %}"
)


async def sent(dialect: Dialect, question: Ask, *steps: Step) -> tuple[list[Any], Answered]:
    wire = Scripted(*steps or (completion(),))
    answered = await judge_of(wire, dialect=dialect, retries=0).compare(question, ticket())
    assert all(request.url.path == dialect.path for request in wire.requests)
    return wire.bodies, answered


def completion(content: Any = GOOD, finish: str | None = "stop", **message: Any) -> Step:
    return Step(body=unusable.completion(content, finish, **message))


# --- responses


async def test_responses_leaves_the_principle_out_unless_there_is_one(autojump_clock: MockClock) -> None:
    bodies, _ = await sent(Responses({"temperature": 0}), ASK, Step(body=answer(GOOD)))
    assert bodies[0] == {
        "temperature": 0,
        "input": [{"role": "user", "content": "2+2?", "type": "message"}],
        "metadata": {"response_1": "four", "response_2": "five"},
    }
    bodies, _ = await sent(Responses({}), ask(principle="p"), Step(body=answer(GOOD)))
    assert bodies[0]["metadata"]["principle"] == "p"


@pytest.mark.parametrize("dialect", [Responses, Chat])
@pytest.mark.parametrize("name", ["stream", "background"])
def test_replies_are_read_whole(dialect: Any, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        dialect({name: True})
    dialect({name: False})


# --- chat with special roles


async def test_special_roles(autojump_clock: MockClock) -> None:
    bodies, answered = await sent(Chat(PARAMS), FULL)
    assert bodies[0] == {
        "max_tokens": 64,
        "temperature": 0.6,
        "top_p": 0.95,
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "u"},
            {"role": "response_1", "content": "one <b>"},
            {"role": "response_2", "content": "two {{ principle }}"},
            {"role": "principle", "content": "be kind"},
        ],
    }
    assert answered.overall is not None
    assert answered.usage is not None
    assert (answered.usage.input_tokens, answered.usage.output_tokens) == (100.0, 20.0)
    bodies, _ = await sent(Chat({}), ASK)
    assert [message["role"] for message in bodies[0]["messages"]] == ["user", "response_1", "response_2"]


def test_parameters_are_translated_or_refused() -> None:
    place = Endpoint(Address("http://j", model="m"))
    params = {
        "instructions": "be brief",
        "temperature": 0,
        "reasoning": {"effort": "low"},
        "tools": [],
        "metadata": {"a": "b"},
        "parallel_tool_calls": True,
        "truncation": None,
        "top_logprobs": 3,
    }
    import json

    body = json.loads(Chat(params).write(ASK, place).content)
    assert body["messages"][0] == {"role": "system", "content": "be brief"}
    assert {name: value for name, value in body.items() if name != "messages"} == {
        "temperature": 0,
        "reasoning_effort": "low",
        "logprobs": True,
        "top_logprobs": 3,
        "model": "m",
    }
    for name, value in (("truncation", "auto"), ("tools", [{}]), ("reasoning", {"summary": "auto"})):
        with pytest.raises(ValueError, match=f"{name} has no counterpart"):
            Chat({name: value})


# --- templates


async def test_a_plain_template_is_one_user_message(autojump_clock: MockClock) -> None:
    template = JudgeTemplate(PLAIN, *RANGES)
    bodies, _ = await sent(Chat({}, template), FULL)
    content = "system: s\nuser: u\n[one <b>|two {{ principle }}]"
    assert bodies[0]["messages"] == [{"role": "user", "content": content}]


async def test_blocks_become_messages(autojump_clock: MockClock) -> None:
    template = JudgeTemplate(BLOCKS, *RANGES)
    bodies, _ = await sent(Chat({}, template), FULL)
    assert bodies[0]["messages"] == [
        {"role": "system", "content": "Scores 1.0 to 5.0."},
        {"role": "user", "content": "By: be kind\nA: one <b>\nB: two {{ principle }}"},
    ]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ response_3 }}", "response_3"),
        ("{% if principle %}{{ nobody }}{% endif %}", "nobody"),
        ("{% if rubric_ids %}{{ nobody }}{% endif %}", "nobody"),
        ("\n\n{% if %}", "line 3"),
        ("{{ conversation[5].content }}", "conversation|object"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ conversation.append(1) }}", "unsafe|not safely"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ 1 + response_1 }}", "TypeError"),
    ],
)
def test_a_template_that_cannot_work_fails_at_start(source: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        JudgeTemplate(source, *RANGES)


def test_a_template_is_read_from_a_file(tmp_path: Any) -> None:
    path = tmp_path / "judge.jinja"
    path.write_text(PLAIN)
    assert JudgeTemplate.load(path, *RANGES).messages((), "a", "b", None, None)[0]["content"] == "[a|b]"
    with pytest.raises(ValueError, match=r"nowhere\.jinja"):
        JudgeTemplate.load(tmp_path / "nowhere.jinja", *RANGES)
    path.write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"judge\.jinja"):
        JudgeTemplate.load(path, *RANGES)


async def test_a_template_that_fails_on_real_text_is_a_judge_failure(autojump_clock: MockClock) -> None:
    template = JudgeTemplate("{{ 1 // (response_1|length - 4) }} {{ response_2 }}", *RANGES)
    with pytest.raises(JudgeError, match="ZeroDivisionError"):
        await sent(Chat({}, template), ASK)


@given(st.text(st.characters()), st.text(st.characters()))
def test_answers_are_never_templates_nor_escaped(first: str, second: str) -> None:
    (message,) = JudgeTemplate("{{ response_1 }}\0{{ response_2 }}.", *RANGES).messages((), first, second, None, None)
    message["content"].encode("utf-8")
    if not any("\ud800" <= char <= "\udfff" for char in first + second):
        assert message["content"] == f"{first}\0{second}."


# --- JSON schema


def names(schema: dict[str, Any]) -> list[str]:
    return list(schema["json_schema"]["schema"]["properties"])


async def test_a_template_asks_for_json(autojump_clock: MockClock) -> None:
    template = JudgeTemplate(PLAIN, *RANGES)
    bodies, _ = await sent(Chat({}, template), ASK)
    assert names(bodies[0]["response_format"]) == ["analysis", "score_1", "score_2", "ranking"]
    question = ask(rubric_ids=(1,))
    text = '{"rubric_evaluations": [{"rubric_id": 1, "score_1": 2, "score_2": 4, "ranking": 5}]}'
    bodies, answered = await sent(Chat({}, template), question, completion(text))
    assert names(bodies[0]["response_format"]) == ["analysis", "rubric_evaluations", "overall"]
    assert answered.rubric is not None
    for dialect in (Chat({}), Chat({}, template, schema=False)):
        bodies, _ = await sent(dialect, ASK)
        assert "response_format" not in bodies[0]


@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize(
    "words", ["Unknown field: response_format", "json_schema is not supported", "Guided decoding off"]
)
async def test_an_endpoint_that_refuses_schemas_is_asked_without_from_then_on(
    status: int, words: str, autojump_clock: MockClock
) -> None:
    kept = Kept()
    wire = Scripted(Step(status, {"error": {"message": words}}), completion())
    judge = judge_of(wire, dialect=Chat({}, JudgeTemplate(PLAIN, *RANGES)), retries=0, observer=kept)
    for _ in range(3):
        assert (await judge.compare(ASK, ticket())).attempts == 1
    assert ["response_format" in body for body in wire.bodies] == [True, False, False, False]
    assert [call.kind for call in kept.calls] == ["feature_refused", *["answered"] * 3], "every call was seen"
    (fault,) = kept.faults
    assert (fault.kind, fault.action, fault.first) == ("feature_refused", "again_without_it", True)
    assert "this endpoint is asked without response_format from now on" in fault.text
    assert words in fault.text
    (seat,) = judge.panel.health()
    assert (seat.resting, seat.faults_in_a_row) == (False, 0)


async def test_each_feature_that_is_refused_is_told(autojump_clock: MockClock) -> None:
    kept = Kept()
    newer = "Use 'max_completion_tokens' instead of 'max_tokens'."
    wire = Scripted(
        Step(400, {"error": "no json_schema"}, after_s=1), Step(422, {"error": newer}, after_s=2), completion()
    )
    judge = judge_of(wire, dialect=Chat(PARAMS, JudgeTemplate(PLAIN, *RANGES)), retries=0, observer=kept)
    assert (await judge.compare(ASK, ticket())).attempts == 1
    assert [(fault.features, fault.first) for fault in kept.faults] == [("response_format", True), ("max_tokens", True)]
    told = [(call.kind, call.status, call.seconds) for call in kept.calls]
    assert told == [("feature_refused", 400, 1), ("feature_refused", 422, 2), ("answered", 200, 0)]


async def test_a_refusal_that_does_not_end_is_a_judge_failure(autojump_clock: MockClock) -> None:
    wire = Scripted(Step(400, {"error": "response_format, max_tokens, max_completion_tokens: all wrong"}))
    judge = judge_of(wire, dialect=Chat(PARAMS, JudgeTemplate(PLAIN, *RANGES)))
    with pytest.raises(JudgeError, match="all wrong"):
        await judge.compare(ASK, ticket())
    assert len(wire.bodies) == 2
    assert "max_completion_tokens" in wire.bodies[1]


async def test_another_400_is_no_refusal_of_schemas(autojump_clock: MockClock) -> None:
    told = {"error": {"message": "maximum context length is 4096; lower max_tokens or max_completion_tokens"}}
    wire = Scripted(Step(400, told))
    judge = judge_of(wire, dialect=Chat(PARAMS, JudgeTemplate(PLAIN, *RANGES)))
    with pytest.raises(JudgeError):
        await judge.compare(ASK, ticket())
    assert len(wire.bodies) == 1


async def test_the_newer_name_for_the_token_limit(autojump_clock: MockClock) -> None:
    told = {"error": {"message": "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."}}
    bodies, _ = await sent(Chat(PARAMS), ASK, Step(400, told), completion())
    assert [("max_tokens" in b, "max_completion_tokens" in b) for b in bodies] == [(True, False), (False, True)]


# --- reading chat completions


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        *((Step(body=body), kind) for kind, body in unusable.CHAT_UNUSABLE.values()),
        (completion("  \n"), "no_text"),
        (completion([]), "no_text"),
        (completion(None, function_call={"name": "f"}), "tool_call"),
        (completion(GOOD, "content_filter"), "incomplete"),
        (Step(body={"choices": []}), "not_object"),
        (Step(body={"choices": None}), "not_object"),
        (Step(body={"choices": [{"message": "text"}]}), "not_object"),
        (Step(body={"choices": ["text"]}), "not_object"),
        (Step(body={}), "not_object"),
    ],
)
async def test_unusable_completions(step: Step, kind: str, autojump_clock: MockClock) -> None:
    kept = Kept()
    judge = judge_of(Scripted(step), dialect=Chat({}), observer=kept)
    with pytest.raises(JudgeError, match="no completed answer after 4 attempts") as caught:
        await judge.compare(ASK, ticket())
    assert set(kept.kinds) == {kind}
    assert ("ended at max_output_tokens" in caught.value.text) == (step == completion(GOOD, "length"))


@pytest.mark.parametrize(
    "step",
    [
        completion(),
        completion(finish=None),
        completion(finish=""),
        completion([{"type": "text", "text": GOOD}]),
        completion(tool_calls=[], refusal=None, reasoning_content="hm"),
    ],
)
async def test_usable_completions(step: Step, autojump_clock: MockClock) -> None:
    _, answered = await sent(Chat({}), ASK, step)
    assert answered.overall is not None


# --- any reply


KEYS = st.sampled_from(
    ["choices", "message", "content", "finish_reason", "output", "type", "text", "status", "usage", "reason", "error"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(KEYS, JSON, max_size=5))
def test_reading_never_raises(reply: dict[str, Any]) -> None:
    for dialect in (Responses({}), Chat({})):
        said = dialect.read(reply)
        assert (said.fault is None) == bool(said.text.strip())
        said.text.encode("utf-8")


# --- addresses


@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("http://h:1", "http://h:1/v1/responses"),
        ("http://h:1/", "http://h:1/v1/responses"),
        ("http://h:1/v1", "http://h:1/v1/responses"),
        ("http://h:1/v1/", "http://h:1/v1/responses"),
        ("http://h:1/team/judge", "http://h:1/team/judge/v1/responses"),
        (" https://h ", "https://h/v1/responses"),
        ("http://[::1]:9", "http://[::1]:9/v1/responses"),
    ],
)
async def test_base_urls(base: str, url: str, autojump_clock: MockClock) -> None:
    wire = Scripted(Step(body=answer(GOOD)))
    await judge_of(Endpoint(Address(base), wire)).compare(ASK, ticket())
    assert str(wire.requests[0].url) == url


@pytest.mark.parametrize(
    "base",
    ["", "h:1", "ftp://h", "http://", "http://u:hunter2@h", "http://h?key=hunter2", "http://h#hunter2", "http://h:x"],
)
def test_addresses_that_cannot_be_used(base: str) -> None:
    with pytest.raises(ValueError, match="base_url") as caught:
        Endpoint(Address(base))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("key", ["", "a secret", "secret\n", "s\xe9cret", "secret\0"])
def test_keys_that_cannot_be_sent(key: str) -> None:
    with pytest.raises(ValueError, match="api_key") as caught:
        Endpoint(Address("http://h", api_key=key))
    assert "ecret" not in str(caught.value)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("inf"), float("nan")])
def test_weights_that_make_no_sense(weight: float) -> None:
    with pytest.raises(ValueError, match="weight"):
        Endpoint(Address("http://h", weight=weight))
