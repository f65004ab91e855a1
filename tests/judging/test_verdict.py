"""Verdicts in a judge's text: which object decides, what is refused, and that no text costs more than its length."""

import json
import math
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from genrm_trio.judging import verdict
from genrm_trio.judging.verdict import Verdict, VerdictRules, object_spans, read_rubric, read_verdict

STRICT = VerdictRules()
LENIENT = VerdictRules("lenient")

A = '{"score_1": 4, "score_2": 3, "ranking": 2}'
B = '{"score_1": 1, "score_2": 5, "ranking": 6}'
VERDICT_A = Verdict(4.0, 3.0, 2.0)
VERDICT_B = Verdict(1.0, 5.0, 6.0)


def fenced(text: str, tag: str = "json") -> str:
    return f"```{tag}\n{text}\n```"


# --- strict: which object decides


@pytest.mark.parametrize(
    "text",
    [
        A,
        fenced(A),
        fenced(A, ""),
        fenced(A, "python"),
        f"so {A} it is",
        f"{B} no: {A}",
        f"{fenced(B)} no: {fenced(A)}",
        f"{fenced(A)} that is {A}",
        f"{A} {{}} {{'not': JSON}}",
        f'{A} {{"score_1": 5}}',
        f'{A} {{"score_1": 5, "ranking": 1}}',
        f"<think>{B}</think>{A}",
        f"{B} rambling </think> {A}",
        f"<think>a</think>{B}<THINK>b</Think>{A}",
        f"<think>```json\n{B}</think>{A}",
        f"[{A}]",
        f"{{ {A}",
        f'{{"overall": {A}, "rubric_evaluations": [{B}]}}',
        f'{{"overall": 7, {A[1:]}',
        '{"score_1": "4", "score_2": "3.0", "ranking": "+2"}',
        '{"score_1": 4e0, "score_2": 3, "ranking": 2.0}',
        f'{{"why": "```json {{ not }} a fence", {A[1:]} {fenced("x")} {A}',
    ],
)
def test_strict_reads(text: str) -> None:
    assert read_verdict(text, STRICT) == VERDICT_A


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I prefer the first",
        "{}",
        '{"score_1": 4, "score_2": 3}',
        '{"overall": {}, "score_1": 4, "score_2": 3, "ranking": 2}',
        f"{fenced(A)} final: {B}",
        f"{B} final: {fenced(A)}",
        f"{A} {fenced(B)} {A}",
        f"{A} and {fenced(B, '')}",
        f"<think>{A}",
        f"{A}<think>hm",
        f"<think>a</think>{A}<think>",
        f"{A}</think>",
        f"{A} correction: {A.replace('4', '9')}",
        f"{A} correction: {A.replace('4', 'true')}",
    ],
)
def test_strict_refuses(text: str) -> None:
    assert read_verdict(text, STRICT) is None


@pytest.mark.parametrize("value", ["1", "5", '"1"', '"5.0"', "3.25", '"+4"', "1e0", "0.5e1", '"007.5"'])
def test_strict_score(value: str) -> None:
    text = f'{{"score_1": {value}, "score_2": 3, "ranking": 2}}'
    read = read_verdict(text, VerdictRules(score_range=(1, 7.5)))
    assert read == Verdict(float(json.loads(value)), 3.0, 2.0)


@pytest.mark.parametrize(
    "value",
    [
        *("true", "false", "null", "[4]", '{"value": 4}', "NaN", "Infinity", "-Infinity", "1e309", "-1e309", "9" * 400),
        *('"NaN"', '"inf"', '"4e0"', '" 4"', '"4 "', '"4."', '".5"', '"1_0"', '"４"', '"four"', '""', '"+"', '"4\\n"'),
        *("0", "6.000001", "-1", '"-3"', '"7"', "9" * 5000),
    ],
)
def test_strict_refuses_a_value(value: str) -> None:
    for name in ("score_1", "score_2", "ranking"):
        fields = {"score_1": "4", "score_2": "3", "ranking": "2"} | {name: value}
        text = "{" + ", ".join(f'"{k}": {v}' for k, v in fields.items()) + "}"
        assert read_verdict(text, STRICT) is None


def test_ranges_are_settings_with_their_ends_included() -> None:
    rules = VerdictRules(score_range=(0, 10), ranking_range=(-1, 1))
    assert read_verdict('{"score_1": 0, "score_2": 10, "ranking": -1}', rules) == Verdict(0.0, 10.0, -1.0)
    assert read_verdict('{"score_1": 0, "score_2": 10, "ranking": 2}', rules) is None


# --- lenient: beyond the vectors


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"score_1": "1_0", "score_2": "４", "ranking": true}', Verdict(10.0, 4.0, 1.0)),
        (f"{A} {fenced(B)} {A}", VERDICT_B),
        (f"{fenced(A)}{fenced(B)}", VERDICT_A),
        (f"```jsonc\n{A}```{B}", VERDICT_A),
        (f"``` json\n{A}```{B}", VERDICT_B),
        (f"```json\n{A}", VERDICT_A),
        (f"```json\n{{'x'}} {A} {B}```", VERDICT_A),
        (f"<think>{A}", VERDICT_A),
        (f'{A} {{"score_1": null}}', VERDICT_A),
        (f'{A} {{"score_1": 1e309}}', None),
        (f'{A} {{"score_1": {"9" * 400}}}', None),
        (f'{A} {{"score_1": [1]}}', VERDICT_A),
        ('{"score_1": 1.7e308, "score_2": -1.7e308, "ranking": -1.7e308}', Verdict(1.7e308, -1.7e308, -1.7e308)),
        ('{"score_1": 1.7e308, "score_2": 1.7e308, "ranking": 1}', Verdict(1.7e308, 1.7e308, 1.0)),
        ('{"score_1": 1.7e308, "score_2": 1.7e308, "ranking": -1.7e308}', None),
        ('{"score_1": -1.7e308, "score_2": -1.7e308, "ranking": 1.7e308}', None),
        (f'{{"score_1": 1{"0" * 5000}}} ', None),
    ],
)
def test_lenient(text: str, expected: Verdict | None) -> None:
    assert read_verdict(text, LENIENT) == expected


# --- rubrics


def entry(rubric_id: object, *values: object) -> dict[str, object]:
    return dict(zip(("rubric_id", "score_1", "score_2", "ranking"), (rubric_id, *values), strict=False))


@pytest.mark.parametrize("rules", [STRICT, LENIENT], ids=["strict", "lenient"])
@pytest.mark.parametrize(
    "entries",
    [
        [],
        [entry(1, 4, 2, 2)],
        [entry(1, 4, 2, 2), entry(1, 4, 2, 2)],
        [entry(1, 4, 2, 2), entry(3, 4, 2, 2)],
        [entry(1, 4, 2, 2), entry(2, 4, 2, 2), entry(3, 4, 2, 2)],
        [entry(1, 4, 2, 2), entry(2.0, 4, 2, 2)],
        [entry(1, 4, 2, 2), entry("2", 4, 2, 2)],
        [entry(True, 4, 2, 2), entry(2, 4, 2, 2)],
        [entry(1, 4, 2), entry(2, 4, 2, 2)],
        [entry(1, 4, 2, None), entry(2, 4, 2, 2)],
        [entry(1, 4, 2, math.inf), entry(2, 4, 2, 2)],
        [entry(1, 4, 2, 2), "entry"],
        "entries",
        {"1": entry(1, 4, 2, 2)},
    ],
)
def test_a_rubric_must_rate_each_expected_id_once(entries: object, rules: VerdictRules) -> None:
    text = json.dumps({"rubric_evaluations": entries, "overall": json.loads(A)})
    assert read_rubric(text, rules, (1, 2)) is None
    assert read_verdict(text, rules) == VERDICT_A


def test_a_rubric_is_searched_like_a_verdict() -> None:
    one, other = (json.dumps({"rubric_evaluations": [entry(7, *v)]}) for v in ((4, 3, 2), (1, 5, 6)))
    broken = json.dumps({"rubric_evaluations": [entry(8, 4, 3, 2)]})
    assert read_rubric(f"{one} {other}", STRICT, (7,)) == VERDICT_B
    assert read_rubric(f"{fenced(one)} {other}", STRICT, (7,)) is None
    assert read_rubric(f"<think>{other}</think> {one}", STRICT, (7,)) == VERDICT_A
    assert read_rubric(f"{one} {broken}", STRICT, (7,)) is None
    assert read_rubric(f"{one} {B}", STRICT, (7,)) == VERDICT_A
    assert read_rubric(f"{fenced(one)} {other}", LENIENT, (7,)) == VERDICT_A
    assert read_rubric(f"{one} {broken}", LENIENT, (7,)) == VERDICT_A


def test_rubric_values_follow_the_mode() -> None:
    text = json.dumps({"rubric_evaluations": [entry(1, "1e0", True, 9)]})
    assert read_rubric(text, LENIENT, (1,)) == Verdict(1.0, 1.0, 9.0)
    assert read_rubric(text, STRICT, (1,)) is None


@pytest.mark.parametrize("rules", [STRICT, LENIENT], ids=["strict", "lenient"])
def test_a_rubric_mean_beyond_every_double_is_none(rules: VerdictRules) -> None:
    entries = [entry(k, 1.7e308, 1.7e308, 1.7e308) for k in (1, 2)]
    assert read_rubric(json.dumps({"rubric_evaluations": entries}), rules, (1, 2)) is None


def test_without_expected_ids_there_is_no_rubric() -> None:
    text = json.dumps({"rubric_evaluations": []})
    assert read_rubric(text, STRICT, None) is None
    assert read_rubric(text, LENIENT, ()) is None


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.sampled_from([1.0, 2.0, 3.5, 6.0]))
def test_flipping_twice_changes_nothing(score_1: float, score_2: float, ranking: float) -> None:
    flipped = Verdict(score_1, score_2, ranking).flipped()
    assert flipped == Verdict(score_2, score_1, 7.0 - ranking)
    assert flipped.flipped() == Verdict(score_1, score_2, ranking)


# --- nothing raises, and the finder finds what the slow one finds


PIECES = st.sampled_from(
    [*'{}"\\` ,:[]', "```", "```json", "<think>", "</think>", A, B, '{"overall":', '"score_1"', "NaN", "\ud800", "{}"]
)
TEXTS = st.lists(PIECES, max_size=30).map("".join) | st.text()


@given(TEXTS)
@example("[" * 100_000 + '{"a":' * 100_000 + "}" * 100_000)
@example('{"score_1":' + "[" * 5_000 + "]" * 5_000 + "}")
def test_no_text_raises(text: str) -> None:
    for rules in (STRICT, LENIENT):
        for read in (read_verdict(text, rules), read_rubric(text, rules, (1, 2))):
            assert read is None or all(map(math.isfinite, (read.score_1, read.score_2, read.ranking)))
    strict = read_verdict(text, STRICT)
    assert strict is None or (1 <= strict.score_1 <= 5 and 1 <= strict.score_2 <= 5 and 1 <= strict.ranking <= 6)


def slow_spans(text: str) -> Iterator[tuple[int, int]]:
    """Find top-level objects by scanning from each opening brace anew, as contract 7.3 tells it."""
    at = 0
    while at < len(text):
        end = slow_end(text, at) if text[at] == "{" else None
        if end is not None:
            yield at, end
        at = end or at + 1


def slow_end(text: str, at: int) -> int | None:
    depth, in_string, escaped = 0, False, False
    for position in range(at, len(text)):
        character = text[position]
        if in_string:
            if not escaped and character == '"':
                in_string = False
            escaped = not escaped and character == "\\"
        elif character == '"':
            in_string = True
        else:
            depth += (character == "{") - (character == "}")
            if depth == 0:
                return position + 1
    return None


@given(st.text(alphabet='{}"\\a', max_size=40) | TEXTS)
@example('{"a{"\\"}{\\"}}')
@example('{{"\\\\"}"}')
def test_the_finder_finds_what_the_slow_one_finds(text: str) -> None:
    assert list(object_spans(text, 0, len(text))) == list(slow_spans(text))


@given(st.text(alphabet='{}"\\a', max_size=30), st.integers(0, 30), st.integers(0, 30))
def test_a_part_of_a_text_is_read_as_if_it_were_all(text: str, start: int, end: int) -> None:
    start = 0 if text[:start].endswith("\\") else start  # a fence never begins behind a backslash
    found = [(a - start, b - start) for a, b in object_spans(text, start, min(end, len(text)))]
    assert found == list(slow_spans(text[start:end]))


# --- the work is linear: twice the text, at most twice the steps and the characters that are read as JSON


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Count the lines that the module runs and the characters that it reads as JSON."""
    work: Counter[str] = Counter()

    def trace(frame: FrameType, event: str, _arg: object) -> Any:
        if frame.f_code.co_filename != verdict.__file__:
            return None
        work["lines"] += event == "line"
        return trace

    decode = json.loads

    def counting(text: str) -> Any:
        work["characters"] += len(text)
        return decode(text)

    before = sys.gettrace()
    with monkeypatch.context() as patched:
        patched.setattr(json, "loads", counting)
        sys.settrace(trace)
        try:
            yield work
        finally:
            sys.settrace(before)


HOSTILE = [
    *("{", "}", '"', "\\", "`", "{}", '{"', '\\"', '{\\"', '{"\\', '"{', '{"a":', "}{", "{{}", '{"}', "{ ", "{a}"),
    *("```", "```json", "```json{", "```json{}```", "<think>", "</think>", "<think></think>", "`` ", A, fenced(A)),
    *('{"ranking":1}', '{"ranking":', '{"rubric_evaluations":[', '{"rubric_id":1}', "9", "[", "[{"),
]


@pytest.mark.parametrize("rules", [STRICT, LENIENT], ids=["strict", "lenient"])
@pytest.mark.parametrize("unit", HOSTILE)
def test_the_work_is_linear(unit: str, rules: VerdictRules, monkeypatch: pytest.MonkeyPatch) -> None:
    for start, end in (("", ""), ("{", "}"), ('{"', '"}'), ('{"score_1":"', '"}'), ("```json", "```")):
        work = []
        for times in (100, 200):
            with counted(monkeypatch) as counts:
                read_verdict(start + unit * times + end, rules)
                read_rubric(start + unit * times + end, rules, (1,))
            work.append(counts)
        assert work[1]["lines"] <= 2 * work[0]["lines"] + 200
        assert work[1]["characters"] <= 2 * work[0]["characters"] + 200
        assert work[1]["characters"] <= 5 * (len(unit) * 200 + 40)


@pytest.mark.parametrize("rules", [STRICT, LENIENT], ids=["strict", "lenient"])
@pytest.mark.parametrize("unit", ["{", '{"', '"', "\\", "`", "```json", "<think>", "{ "])
def test_a_long_text_is_read_at_all(unit: str, rules: VerdictRules) -> None:
    text = unit * (400_000 // len(unit))
    for whole in (text, text + A, "{" + text + "}"):
        read_verdict(whole, rules)
