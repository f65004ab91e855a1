"""JSON of others is taken as it comes: integers of any size spoil nothing that stands beside them."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from tests.support.fake_judge import answer
from tests.support.judging_kit import ASK, GOOD, Scripted, Step, judge_of, ticket

from genrm_trio.judging.chat import Chat
from genrm_trio.judging.judge import Answered
from genrm_trio.judging.lenient import decode_json
from genrm_trio.judging.recorded import RecordedJudge
from genrm_trio.judging.recorder import Recorder, verdict_line
from genrm_trio.judging.responses import Responses
from genrm_trio.judging.transport import Dialect
from genrm_trio.judging.verdict import VerdictRules

HUGE = 5000
LINE = verdict_line(ASK, Answered(None, None, None, GOOD))


def with_huge(value: Any, digits: int, sign: str = "") -> bytes:
    return json.dumps(value).replace('"<huge>"', sign + "9" * digits).encode()


@pytest.mark.parametrize("digits", [1, 19, 20, 309, 310, 4300])
@pytest.mark.parametrize("sign", ["", "-"])
def test_an_integer_that_python_converts_is_exact(digits: int, sign: str) -> None:
    assert decode_json(sign + "9" * digits) == int(sign + "9" * digits)


@pytest.mark.parametrize("digits", [4301, HUGE, 1_000_000])
def test_a_longer_one_is_infinite(digits: int) -> None:
    assert decode_json(b'{"a": [' + b"9" * digits + b"]}") == {"a": [math.inf]}
    assert decode_json("-" + "9" * digits) == -math.inf


@pytest.mark.parametrize("digits", [20, 400, 4301, HUGE])
@pytest.mark.parametrize("sign", ["", "-"])
@pytest.mark.parametrize(("dialect", "target"), [(Responses({}), "/v1/responses"), (Chat({}), "/v1/chat/completions")])
@pytest.mark.parametrize("beside", [{"usage": {"input_tokens": "<huge>", "output_tokens": 1}}, {"created": "<huge>"}])
async def test_an_integer_of_any_size_beside_a_verdict_takes_nothing_from_it(
    beside: dict[str, Any], dialect: Dialect, target: str, sign: str, digits: int
) -> None:
    body = with_huge(answer(GOOD, target) | beside, digits, sign)
    told = await judge_of(Scripted(Step(body=body)), dialect=dialect, retries=0).compare(ASK, ticket())
    assert told.overall is not None
    assert ("usage" in beside) <= (told.usage is None), "what is no count of tokens is left out"


@pytest.mark.parametrize("digits", [20, 400, 4301, HUGE])
def test_a_recording_takes_it_where_nothing_is_read_and_names_the_line_elsewhere(digits: int) -> None:
    row = json.loads(LINE)
    assert len(RecordedJudge([with_huge(row | {"at": "<huge>"}, digits)], VerdictRules())) == 1
    scores = {"prompt": "p", "answers": [{"text": "a", "score": "<huge>"}]}
    wrong: list[dict[str, Any]] = [scores]
    wrong += [scores | {"score_scale": [1, "<huge>"]}, row | {"usage": ["<huge>", 1, False]}] if digits > 308 else []
    wrong += [row | {"judge_index": "<huge>"}] if digits > 4300 else []
    for each in wrong:
        with pytest.raises(ValueError, match="line 1 is neither"):
            RecordedJudge([with_huge(each, digits) + b"\n"], VerdictRules())


@pytest.mark.parametrize("last", [with_huge({"a": "<huge>"}, HUGE), b'{"a": "\xff"}'])
async def test_a_recorder_cuts_off_no_line_that_the_reader_takes(last: bytes, tmp_path: Path) -> None:
    path = tmp_path / "said.jsonl"
    path.write_bytes(last)
    recorder = Recorder(judge_of(Scripted(Step(body=answer(GOOD)))), path)
    await recorder.aclose()
    assert path.read_bytes() == last + b"\n"


@pytest.mark.parametrize("last", [b"[" * 3000, b"[" * 3000 + b"]" * 3000, b'{"a": ' + b"9" * HUGE])
async def test_a_recorder_opens_behind_any_last_line(last: bytes, tmp_path: Path) -> None:
    path = tmp_path / "said.jsonl"
    path.write_bytes(LINE + last)
    await Recorder(judge_of(Scripted(Step(body=answer(GOOD)))), path).aclose()
    assert path.read_bytes() == LINE
