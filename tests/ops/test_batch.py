"""`compare`: groups from a file get the rewards of `/compare`, and a stopped run goes on where it was."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from genrm_trio.judging.judge import Answered, Ask, JudgeError
from genrm_trio.judging.slots import Ticket
from genrm_trio.judging.verdict import Verdict
from genrm_trio.ops import assembly
from genrm_trio.ops.batch import Batch, Files, Tally
from genrm_trio.ops.complaints import StartupError
from genrm_trio.ops.groups import GroupError, read_group
from genrm_trio.ops.score_settings import SCORE_FIELDS, score_digest
from genrm_trio.ops.settings import Settings


@dataclass
class LengthJudge:
    """Likes longer answers; fails on texts that say so, and counts what it is asked."""

    asked: list[tuple[str, str]] = field(default_factory=list)
    takes_s: float = 1.0

    async def compare(self, ask: Ask, slot: Ticket) -> Answered:
        async with slot.slot():
            self.asked.append((ask.response_1, ask.response_2))
            await trio.sleep(self.takes_s)
            if "fail" in ask.response_1:
                raise JudgeError("judge /v1/responses said no")
            score_1, score_2 = len(ask.response_1), len(ask.response_2)
            return Answered(Verdict(score_1, score_2, 1 if score_1 > score_2 else 6), None, None, "")

    async def aclose(self) -> None:
        """Hold nothing."""


def make_batch(tmp_path: Path, judge: LengthJudge, *, max_concurrency: int = 256, **fields: object) -> Batch:
    at = {"base_url": "http://judge:1", "max_concurrency": max_concurrency}
    settings = Settings.model_validate({"judge": at, **fields})
    files = Files(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    return Batch(assembly.policy(settings), judge, files, score_digest(settings), lambda tally: None)


def write_groups(tmp_path: Path, *groups: object) -> None:
    lines = [group if isinstance(group, str) else json.dumps(group) for group in groups]
    (tmp_path / "in.jsonl").write_text("".join(f"{line}\n" for line in lines))


def read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def group(name: str, *answers: str) -> dict[str, object]:
    return {"id": name, "prompt": "p", "answers": list(answers)}


async def test_each_group_gets_its_rewards(tmp_path: Path, autojump_clock: MockClock) -> None:
    write_groups(tmp_path, group("a", "1", "333", "22"), group("b", "4444", "1"), group("alone", "x"), group("none"))
    tally = await make_batch(tmp_path, LengthJudge()).run()
    assert (tally.total, tally.judged, tally.failed) == (4, 4, 0)
    rows = {row["id"]: row for row in read(tmp_path / "out.jsonl")}
    assert rows["a"]["rewards"] == [1, 3, 2]
    assert rows["b"]["rewards"] == [4, 1]
    assert rows["alone"]["rewards"] == [3.0]
    assert rows["none"]["rewards"] == []
    assert not (tmp_path / "out.failed.jsonl").exists()


async def test_judging_is_concurrent_within_the_bound(tmp_path: Path, autojump_clock: MockClock) -> None:
    write_groups(tmp_path, *(group(str(n), "1", "22") for n in range(100)))
    began = trio.current_time()
    await make_batch(tmp_path, LengthJudge(), max_concurrency=8).run()
    assert trio.current_time() - began == pytest.approx(100 * 2 / 8)


async def test_failed_groups_go_to_a_file_of_their_own_and_are_tried_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    good, bad = group("good", "1", "22"), group("bad", "fail", "22")
    formless = [{"id": "no answers", "prompt": "p"}, {"prompt": "p", "answers": [1, 2], "question_id": 9}]
    write_groups(tmp_path, good, bad, "{", "[]", *formless)
    judge = LengthJudge()
    tally = await make_batch(tmp_path, judge).run()
    assert (tally.judged, tally.failed) == (1, 5)
    failed = {row["line"]: row for row in read(tmp_path / "out.failed.jsonl")}
    assert [failed[line]["id"] for line in range(2, 7)] == ["bad", "3", "4", "no answers", "9"]
    assert failed[2]["error"] == "judge /v1/responses said no"
    assert "not JSON" in str(failed[3]["error"])

    write_groups(tmp_path, good, group("bad", "1", "22"))
    judge.asked.clear()
    tally = await make_batch(tmp_path, judge).run()
    assert (tally.known, tally.judged, tally.failed) == (1, 1, 0)
    assert len(judge.asked) == 2, "only the group that had failed is judged"
    assert not (tmp_path / "out.failed.jsonl").exists()


async def test_the_first_id_that_repeats_is_remarked_on(tmp_path: Path, autojump_clock: MockClock) -> None:
    nameless = {"prompt": "p", "answers": ["1", "22"]}
    write_groups(tmp_path, group("a", "1"), group("2", "1"), {**nameless, "question_id": 4}, nameless, group("a", "2"))
    remarks: list[str] = []
    batch = make_batch(tmp_path, LengthJudge())
    batch.remark = remarks.append
    assert (await batch.run()).judged == 5
    assert len(remarks) == 1
    assert "join by line" in remarks[0]
    write_groups(tmp_path, group("2", "1", "333"))
    batch = make_batch(tmp_path, LengthJudge())
    batch.remark = remarks.append
    (row,) = (row for row in read(tmp_path / "out.jsonl") if row["id"] == "2")
    (tmp_path / "out.jsonl").write_text(json.dumps(row) + "\n")
    await batch.run()
    assert len(remarks) == 2, "what stands in the output counts"


async def test_a_stopped_run_goes_on_where_it_was(tmp_path: Path, autojump_clock: MockClock) -> None:
    write_groups(tmp_path, *(group(str(n), "1", "22") for n in range(6)))
    judge = LengthJudge()
    batch = make_batch(tmp_path, judge, max_concurrency=2)
    with trio.move_on_after(3.5):
        await batch.run()
    done = len(read(tmp_path / "out.jsonl"))
    assert 0 < done < 6
    with (tmp_path / "out.jsonl").open("a") as output:
        output.write('{"id": "torn", "line": 7, "rewa')
    judge.asked.clear()
    tally = await make_batch(tmp_path, judge).run()
    assert (tally.known, tally.judged) == (done, 6 - done)
    assert sorted(str(row["id"]) for row in read(tmp_path / "out.jsonl")) == [str(n) for n in range(6)]


async def test_a_group_that_changed_is_judged_anew(tmp_path: Path, autojump_clock: MockClock) -> None:
    for answers in (("1", "22"), ("333", "22")):
        write_groups(tmp_path, group("g", *answers))
        await make_batch(tmp_path, LengthJudge()).run()
    assert [row["rewards"] for row in read(tmp_path / "out.jsonl")] == [[1, 2], [3, 2]]


async def test_an_output_of_other_settings_is_refused_and_stays_as_it_is(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    write_groups(tmp_path, group("g", "1", "22"))
    await make_batch(tmp_path, LengthJudge()).run()
    (tmp_path / "out.failed.jsonl").write_text("kept\n")
    before = (tmp_path / "out.jsonl").read_bytes()
    with pytest.raises(StartupError, match=r"out\.jsonl, line 1: made with other settings"):
        await make_batch(tmp_path, LengthJudge(), comparison_strategy="all_pairs").run()
    assert (tmp_path / "out.jsonl").read_bytes() == before
    assert (tmp_path / "out.failed.jsonl").read_text() == "kept\n"
    tally = await make_batch(tmp_path, LengthJudge(), max_concurrency=1, judge_request_timeout_s=5).run()
    assert tally.known == 1


def digest_of(**fields: object) -> str:
    return score_digest(Settings.model_validate(fields))


def test_settings_that_decide_scores_are_told_apart(tmp_path: Path) -> None:
    assert set(Settings.model_fields) >= SCORE_FIELDS
    recording = tmp_path / "r.jsonl"
    recording.write_text("1")
    replayed = digest_of(judge={"backend": "recorded", "recording": str(recording)})
    recording.write_text("2")
    other: list[dict[str, object]] = [
        {"judge": {"base_url": "http://a:1"}},
        {"judge": {"base_url": "http://b:1"}},
        {"judge": {"base_url": "http://a:1", "model": "m"}},
        {"judge": {"base_url": "http://a:1", "model": "n"}},
        {"judge": {"base_url": "http://a:1"}, "default_score": 2.0},
        {"judge": {"backend": "recorded", "recording": str(recording)}},
    ]
    assert len({replayed, *(digest_of(**fields) for fields in other)}) == 7
    moved = digest_of(judge={"base_url": "http://b:1", "model": "m", "api_key": "k"}, port=1)
    assert moved == digest_of(judge={"base_url": "http://a:1", "model": "m"})


async def test_a_slow_judge_fails_the_group(tmp_path: Path, autojump_clock: MockClock) -> None:
    write_groups(tmp_path, group("slow", "1", "22"))
    tally = await make_batch(tmp_path, LengthJudge(takes_s=50), cohort_evaluation_timeout_s=10).run()
    assert tally.failed == 1
    assert "evaluation deadline of 10 s" in str(read(tmp_path / "out.failed.jsonl")[0]["error"])


async def test_waiting_for_a_slot_does_not_count_against_the_deadline(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    write_groups(tmp_path, *(group(str(n), "1", "22") for n in range(20)))
    judge = LengthJudge(takes_s=8)
    tally = await make_batch(tmp_path, judge, cohort_evaluation_timeout_s=10, max_concurrency=2).run()
    assert tally.failed == 0


async def test_rubrics_need_their_ids(tmp_path: Path, autojump_clock: MockClock) -> None:
    write_groups(tmp_path, group("g", "1", "22"))
    tally = await make_batch(tmp_path, LengthJudge(), score_source="rubric_mean").run()
    assert tally.failed == 1


async def test_unusable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"in\.jsonl: No such file"):
        await make_batch(tmp_path, LengthJudge()).run()
    write_groups(tmp_path)
    (tmp_path / "out.jsonl").write_text("{}\n")
    with pytest.raises(StartupError, match=r"out\.jsonl, line 1: not a line that this command wrote"):
        await make_batch(tmp_path, LengthJudge()).run()


async def test_a_line_that_was_cut_anywhere_is_judged_anew(tmp_path: Path, autojump_clock: MockClock) -> None:
    write_groups(tmp_path, group('a "quoted" \\ \ud800 \u00e9', "1", "22"))
    await make_batch(tmp_path, LengthJudge()).run()
    output = tmp_path / "out.jsonl"
    whole = output.read_bytes()
    for end in (
        b"",
        b"{",
        b'{"id": "',
        b"a \\",
        b"\\ud8",
        b'00e9"',
        b'"line": ',
        b'"line": 1',
        b'"rewards',
        whole[:-1],
    ):
        output.write_bytes(whole[: whole.index(end) + len(end)])
        assert (await make_batch(tmp_path, LengthJudge()).run()).judged == 1
        assert output.read_bytes() == whole


@pytest.mark.parametrize(
    "foreign",
    [
        '{"important": "notes, no newline at the end"}',
        '{"id": "g", "prompt": "p", "answers": []}',
        '{"id": "g", "line": "of a poem"}',
        '{"id":"g","line":1,"rewards":[1]}',
        '{"id": 7',
        "one line\rand another",
        "[1]",
        " ",
    ],
)
async def test_an_output_without_a_newline_that_is_not_ours_stays_as_it_is(tmp_path: Path, foreign: str) -> None:
    write_groups(tmp_path, group("g", "1", "22"))
    output = tmp_path / "out.jsonl"
    output.write_bytes(foreign.encode())
    with pytest.raises(StartupError, match=r"out\.jsonl, line 1: not a line that this command wrote"):
        await make_batch(tmp_path, LengthJudge()).run()
    assert output.read_bytes() == foreign.encode()


async def test_the_input_is_never_overwritten(tmp_path: Path) -> None:
    write_groups(tmp_path, group("g", "1", "2"))
    batch = make_batch(tmp_path, LengthJudge())
    batch.files = Files(batch.files.source, batch.files.source)
    with pytest.raises(StartupError, match="name another file"):
        await batch.run()


def contents(line: object) -> Sequence[str]:
    return [c.answer.answer for c in read_group(json.dumps(line).encode(), 1).contenders]


def test_a_group_is_read_in_each_of_its_forms() -> None:
    response = {"output": [{"type": "message", "content": [{"type": "output_text", "text": "three"}]}]}
    assert contents({"prompt": "p", "answers": ["one", {"text": "two", "model": "m"}, response]}) == [
        "one",
        "two",
        "three",
    ]
    assert contents({"conversation_history": [{"role": "user", "content": "p"}], "response_objs": []}) == []
    named = read_group(b'{"question_id": 7, "input": [], "responses": [], "expected_rubric_ids": [2, 1, 2]}', 1)
    assert named.id == "7"
    assert read_group(b'{"prompt": "", "answers": []}', 12).id == "12"


@pytest.mark.parametrize(
    "line",
    [
        '{"prompt": 1, "answers": []}',
        '{"prompt": "p", "answers": {}}',
        '{"prompt": "p", "answers": [null]}',
        '{"prompt": "p", "answers": [], "principle": 1}',
        '{"prompt": "p", "answers": [], "expected_rubric_ids": [true]}',
        '"p"',
        "\udcff".encode("utf-8", "surrogateescape").decode("latin-1"),
    ],
)
def test_a_line_that_is_no_group_is_refused(line: str) -> None:
    with pytest.raises(GroupError):
        read_group(line.encode("latin-1"), 1)


def test_progress_is_told_after_each_group() -> None:
    tally = Tally(total=3, known=1, judged=1, failed=1)
    assert tally.finished == 3
