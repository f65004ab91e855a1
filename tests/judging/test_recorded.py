"""The recorded judge replays and derives, and makes nothing up; the recorder loses no line.

Score rows here are small; that the shipped example derives rewards in the right order is shown by the demo's tests.
"""

import errno
import json
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fake_judge import verdict_text
from tests.support.judging_kit import ASK, GOOD, Kept, ask, ticket

from genrm_trio.judging import recorder as recorder_module
from genrm_trio.judging.judge import Answered, Ask, JudgeError, Usage
from genrm_trio.judging.recorded import RecordedJudge, pair_digest
from genrm_trio.judging.recorder import RECORDING_FAILED, Recorder, verdict_line
from genrm_trio.judging.slots import Slots, Ticket
from genrm_trio.judging.text import scrub
from genrm_trio.judging.verdict import Verdict, VerdictRules

RULES = VerdictRules()
ROW = json.dumps(
    {
        "question_id": "q",
        "prompt": "2+2?",
        "answers": [
            {"model": "a", "text": "four", "gpt4_score": 10},
            {"model": "b", "text": "five", "gpt4_score": 1},
            {"model": "c", "text": "4", "gpt4_score": 10},
            {"model": "d", "text": " \n", "gpt4_score": 4},
            {"model": "e", "text": "4", "score": 7},
        ],
    }
)


class Live:
    """A judge that says one thing."""

    def __init__(self, text: str = GOOD) -> None:
        self.text = text
        self.closed = False

    async def compare(self, ask: Ask, slot: Ticket) -> Answered:
        async with slot.slot():
            await trio.lowlevel.checkpoint()
        if ask.response_1 == "fail":
            raise JudgeError("no")
        return Answered(None, None, Usage(3.0, 4.0, True), f"{self.text} {ask.response_1}")

    async def aclose(self) -> None:
        self.closed = True


# --- derived from scores


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ("four", "five", (5.0, 1.0, 1.0)),
        ("five", "four", (1.0, 5.0, 6.0)),
        ("four", "four", (5.0, 5.0, 3.5)),
        ("five", "None", (1.0, 7 / 3, 3.5 + 2.5 / 3)),
        ("4", "five", (13 / 3, 1.0, 3.5 - 2.5 * 5 / 6)),
    ],
)
async def test_two_scores_give_a_verdict(first: str, second: str, verdict: tuple[float, ...]) -> None:
    answered = await RecordedJudge([ROW], RULES).compare(ask(first, second), ticket())
    assert answered.overall is not None
    assert astuple(answered.overall) == pytest.approx(verdict)
    assert (answered.rubric, answered.usage) == (None, None)


async def test_the_configured_ranges_are_used() -> None:
    rules = VerdictRules(score_range=(0.0, 100.0), ranking_range=(-1.0, 1.0))
    answered = await RecordedJudge([ROW], rules).compare(ask("four", "five"), ticket())
    assert answered.overall == Verdict(100.0, 0.0, -1.0)


@given(st.floats(1, 10), st.floats(1, 10))
def test_a_derived_verdict_is_within_the_ranges_and_mirrors(a: float, b: float) -> None:
    row = json.dumps({"prompt": "p", "answers": [{"text": "a", "score": a}, {"text": "b", "score": b}]})
    judge = RecordedJudge([row], RULES)

    async def both() -> tuple[Verdict | None, Verdict | None]:
        one = await judge.compare(ask("a", "b", turns=[("user", "p")]), ticket())
        two = await judge.compare(ask("b", "a", turns=[("user", "p")]), ticket())
        return one.overall, two.overall

    forth, back = trio.run(both)
    assert forth is not None
    assert back is not None
    assert 1.0 <= forth.score_1 <= 5.0
    assert 1.0 <= forth.ranking <= 6.0
    assert (forth.score_1, forth.score_2) == (back.score_2, back.score_1)
    assert forth.ranking + back.ranking == pytest.approx(7.0)
    assert (forth.ranking < 3.5) <= (a > b)


@pytest.mark.parametrize(
    "unknown",
    [
        ask("four", "six"),
        ask("six", "five"),
        ask("four ", "five"),
        ask("four", "five", turns=[("user", "3+3?")]),
        ask("four", "five", turns=[("system", "be fair"), ("user", "2+2?")]),
        ask("four", "five", turns=[("assistant", "2+2?")]),
        ask("four", "five", turns=[]),
        ask("four", "five", rubric_ids=(1,)),
    ],
)
async def test_an_unknown_pair_is_a_judge_failure(unknown: Ask) -> None:
    with pytest.raises(JudgeError, match=r"recorded"):
        await RecordedJudge([ROW], RULES).compare(unknown, ticket())


async def test_a_slot_is_taken_so_that_the_deadline_starts() -> None:
    began: list[bool] = []
    await RecordedJudge([ROW], RULES).compare(ASK, Slots(1).ticket(on_first=lambda: began.append(True)))
    assert began == [True]


# --- replayed


async def test_what_is_recorded_is_replayed(tmp_path: Path) -> None:
    path = tmp_path / "said.jsonl"
    asks = [ask("one", "two"), ask("two", "one"), ask("one", "two", judge_index=1), ask("x\ud800", "y", principle="p")]
    recorder = Recorder(Live(), path)
    for question in asks:
        await recorder.compare(question, ticket())
    with pytest.raises(JudgeError):
        await recorder.compare(ask("fail", "two"), ticket())
    await recorder.aclose()
    await recorder.aclose()
    judge = RecordedJudge.load(path, RULES)
    assert len(judge) == 4
    for question in asks:
        answered = await judge.compare(question, ticket())
        assert answered.overall == Verdict(4.0, 2.0, 2.0)
        assert answered.text == scrub(f"{GOOD} {question.response_1}")
        assert answered.usage == Usage(3.0, 4.0, True)
    for other in (
        ask("one", "two", judge_index=2),
        ask("one", "two", principle="p"),
        ask("one", "two", rubric_ids=(1,)),
    ):
        with pytest.raises(JudgeError):
            await judge.compare(other, ticket())
    same = ask("one", "two", pair=(7, 9))
    assert (await judge.compare(same, ticket())).overall is not None, "the place in the cohort does not matter"


async def test_the_rules_are_applied_at_replay(tmp_path: Path) -> None:
    lines = [verdict_line(ASK, Answered(None, None, None, verdict_text(9, 1, 1)))]
    assert (await RecordedJudge(lines, RULES).compare(ASK, ticket())).overall is None
    wide = VerdictRules(score_range=(0, 10))
    assert (await RecordedJudge(lines, wide).compare(ASK, ticket())).overall == Verdict(9.0, 1.0, 1.0)


async def test_a_later_line_replaces_an_earlier_one() -> None:
    lines = [verdict_line(ASK, Answered(None, None, None, text)) for text in (verdict_text(1, 1, 1), GOOD)]
    assert (await RecordedJudge(lines, RULES).compare(ASK, ticket())).text == GOOD


async def test_a_rubric_is_replayed() -> None:
    text = '{"rubric_evaluations": [{"rubric_id": 3, "score_1": 2, "score_2": 4, "ranking": 5}]}'
    question = ask(rubric_ids=(3,))
    judge = RecordedJudge([verdict_line(question, Answered(None, None, None, text))], RULES)
    assert (await judge.compare(question, ticket())).rubric == Verdict(2.0, 4.0, 5.0)


def test_a_digest_covers_all_that_the_judge_sees() -> None:
    different = [
        ASK,
        ask("five", "four"),
        ask(principle=""),
        ask(rubric_ids=()),
        ask(rubric_ids=(1,)),
        ask(turns=[("user", "2+2"), ("user", "?")]),
        ask(turns=[("system", "2+2?")]),
    ]
    assert len({pair_digest(question) for question in different}) == len(different)


# --- files that are not as they should be


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["{}\n"], "line 1 is neither"),
        (["[]\n"], "line 1 is neither"),
        (["3\n"], "line 1 is neither"),
        ([ROW + "\n", "{oops\n"], "line 2 is not JSON"),
        (['{"pair": "x", "judge_index": true, "text": ""}\n'], "neither"),
        (['{"pair": "x", "judge_index": 0, "text": "", "usage": [1]}\n'], "neither"),
        (['{"pair": "x", "judge_index": 0, "text": "", "usage": [1, NaN, false]}\n'], "neither"),
        (['{"prompt": "p", "answers": [{"text": "a", "score": 11}]}\n'], "outside"),
        (['{"prompt": "p", "answers": [{"text": "a"}]}\n'], "gpt4_score"),
        (['{"prompt": "p", "answers": [{"text": "a", "score": true}]}\n'], "neither"),
        (['{"prompt": "p", "answers": [], "score_scale": [5, 5]}\n'], "score_scale"),
    ],
)
def test_a_wrong_line_is_named(lines: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        RecordedJudge(lines, RULES)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere\.jsonl: No such file"):
        RecordedJudge.load(tmp_path / "nowhere.jsonl", RULES)
    with pytest.raises(ValueError, match="--record"):
        Recorder(Live(), tmp_path / "no" / "folder")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b"\xff\xfe\x00", "line 1 is not JSON"),
        (b'\n{"pair": "ab', "line 2 is not JSON"),
    ],
)
def test_a_file_without_a_single_verdict_is_no_recording(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "said.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"said\.jsonl: .*{words}"):
        RecordedJudge.load(path, RULES)


def test_a_last_line_cut_off_is_left_out() -> None:
    assert len(RecordedJudge([ROW + "\n", '{"pair": "abc', "\n"], RULES)) == 1


@pytest.mark.parametrize(
    ("before", "kept"),
    [
        (b"", b""),
        (b'{"a":1}\n', b'{"a":1}\n'),
        (b'{"a":1}\n{"pair":"ab', b'{"a":1}\n'),
        (b'{"pair":"ab', b""),
        (b'{"a":1}', b'{"a":1}\n'),
        (b'{"a":"' + b"x" * 200_000 + b'"}', b'{"a":"' + b"x" * 200_000 + b'"}\n'),
        (b'{"a":1}\n{"pair":"' + b"x" * 200_000, b'{"a":1}\n'),
        (b'{"a":1}\n{"pa', b'{"a":1}\n'),
        (b"\n\n", b"\n\n"),
    ],
)
async def test_a_recording_goes_on_at_a_whole_line(before: bytes, kept: bytes, tmp_path: Path) -> None:
    path = tmp_path / "said.jsonl"
    path.write_bytes(before)
    recorder = Recorder(Live(), path)
    answered = await recorder.compare(ASK, ticket())
    await recorder.aclose()
    assert path.read_bytes() == kept + verdict_line(ASK, answered)


@pytest.mark.parametrize("foreign", [b"notes, no newline at the end", b'{"a":1}\n{"a', b"one\nand another"])
def test_a_line_of_another_file_is_never_cut(foreign: bytes, tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_bytes(foreign)
    with pytest.raises(ValueError, match="notes: its last line is not one of a recording"):
        Recorder(Live(), path)
    assert path.read_bytes() == foreign


# --- no line is lost


async def test_concurrent_and_cancelled_comparisons_lose_no_line(tmp_path: Path) -> None:
    path = tmp_path / "said.jsonl"
    recorder = Recorder(Live(), path)
    slots = Slots(64)
    told: list[str] = []

    async def one(n: int, scope: trio.CancelScope) -> None:
        with scope:
            await recorder.compare(ask(str(n), "b"), slots.ticket())
            told.append(str(n))

    async with trio.open_nursery() as nursery:
        for n in range(300):
            scope = trio.CancelScope()
            nursery.start_soon(one, n, scope)
            if n % 3 == 0:
                nursery.start_soon(cancel_soon, scope, n % 10)
    recorded = set(path.read_bytes().splitlines())
    await recorder.aclose()
    assert {verdict_line(ask(n, "b"), said(n)).rstrip() for n in told} <= recorded
    whole = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert len(whole) >= len(told) >= 200
    assert len({row["pair"] for row in whole}) == len(whole), "and none is written twice"


def said(n: str) -> Answered:
    return Answered(None, None, Usage(3.0, 4.0, True), f"{GOOD} {n}")


async def cancel_soon(scope: trio.CancelScope, steps: int) -> None:
    for _ in range(steps):
        await trio.lowlevel.checkpoint()
    scope.cancel()


class FullDisk:
    """A file whose writes fail, after a part was written, while it is full."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.full = True
        self.largest = 0

    def write(self, data: memoryview) -> int:
        self.largest = max(self.largest, len(data))
        if self.full:
            self._file.write(data[:5])
            raise OSError(errno.ENOSPC, "No space left on device")
        written: int = self._file.write(data[:50])  # short writes are writes too
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


async def test_a_full_disk_fails_no_comparison_and_loses_no_line(tmp_path: Path) -> None:
    path, kept = tmp_path / "said.jsonl", Kept()
    recorder = Recorder(Live(), path, kept)
    disk = FullDisk(recorder._file)
    recorder._file = disk  # type: ignore[assignment]  # stands in for the file
    place = ticket()
    for n in range(3):
        assert (await recorder.compare(ask(str(n), "b"), place)).text
    assert path.read_bytes() == b""
    assert [(f.kind, f.first) for f in kept.faults] == [(RECORDING_FAILED, n == 0) for n in range(3)]
    assert "No space left" in kept.faults[-1].text
    disk.full = False
    await recorder.compare(ask("3", "b"), place)
    await recorder.aclose()
    assert [json.loads(line)["text"] for line in path.read_bytes().splitlines()] == [f"{GOOD} {n}" for n in range(4)]


async def test_pending_lines_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    length = len(verdict_line(ask("0", "b"), said("0")))
    monkeypatch.setattr(recorder_module, "MAX_PENDING_BYTES", 2 * length)
    path, kept = tmp_path / "said.jsonl", Kept()
    live = Live()
    recorder = Recorder(live, path, kept)
    recorder._file = FullDisk(recorder._file)  # type: ignore[assignment]  # stands in for the file
    for n in range(5):
        await recorder.compare(ask(str(n), "b"), ticket())
    assert recorder.lost == 3
    assert "2 lines wait, 3 lost" in kept.faults[-1].text
    with pytest.raises(OSError, match="No space"):
        await recorder.aclose()
    assert live.closed


async def test_a_try_at_a_full_disk_is_a_small_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much waits: each comparison waits for one such try. When there is room again, all of it is written."""
    length = len(verdict_line(ask("0", "b"), said("0")))
    monkeypatch.setattr(recorder_module, "BLOCK_BYTES", 3 * length)
    path = tmp_path / "said.jsonl"
    recorder = Recorder(Live(), path)
    disk = FullDisk(recorder._file)
    recorder._file = disk  # type: ignore[assignment]  # stands in for the file
    for n in range(8):
        await recorder.compare(ask(str(n), "b"), ticket())
    assert disk.largest == 3 * length
    disk.full = False
    await recorder.aclose()
    assert [json.loads(line)["text"] for line in path.read_bytes().splitlines()] == [f"{GOOD} {n}" for n in range(8)]


@given(st.text(), st.text(), st.text())
def test_any_text_can_be_recorded_and_found(text: str, first: str, second: str) -> None:
    question = ask(first, second)
    line = verdict_line(question, Answered(None, None, None, text))
    assert line.count(b"\n") == 1
    judge = RecordedJudge([line], RULES)
    assert trio.run(judge.compare, question, ticket()).text == text
