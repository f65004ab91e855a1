"""The judge that only repeats: verdicts of a live judge from a file, and verdicts from recorded scores.

It never makes up a score: a pair that is not in the file is a JudgeError. The format is here, reading it is here;
writing it is `recorder`.

Two kinds of lines, which may be mixed. A *verdict line* is what one live comparison said:

    {"pair": "<digest>", "judge_index": 0, "text": "…", "usage": [in, out, hit_max] or null}

`pair` is `pair_digest` of the ask, `text` the judge's words, so that the rules for reading them may change. The
last line for a pair and judge counts. A *score line* is a prompt whose answers were each given a score:

    {"prompt": "…", "answers": [{"text": "…", "gpt4_score": 7}, …], "score_scale": [1, 10]}

`score` may stand for `gpt4_score`, `score_scale` is [1, 10] when left out, other members are ignored.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from genrm_trio.judging.judge import Answered, Ask, JudgeError, Usage
from genrm_trio.judging.lenient import decode_json
from genrm_trio.judging.offload import off_loop
from genrm_trio.judging.slots import Ticket
from genrm_trio.judging.text import AnswerText, scrub, shown
from genrm_trio.judging.verdict import Verdict, VerdictRules, read_rubric, read_verdict

DEFAULT_SCALE: Final = (1.0, 10.0)
SCORE_NAMES: Final = ("gpt4_score", "score")


def pair_digest(ask: Ask) -> str:
    """Return what names a comparison in a recording: SHA-256 hex of everything the judge sees.

    The order of the two answers counts, the position of the pair in its cohort does not.
    """
    seen = [
        [[turn.role, turn.content] for turn in ask.conversation],
        ask.response_1,
        ask.response_2,
        ask.principle,
        ask.rubric_ids,
    ]
    return hashlib.sha256(json.dumps(seen, separators=(",", ":")).encode("ascii")).hexdigest()


@dataclass(frozen=True, slots=True)
class _Said:
    text: str
    usage: Usage | None


@dataclass(frozen=True, slots=True)
class _Scored:
    """The scores of one prompt's answers, as fractions of their scale: 0 the worst, 1 the best."""

    by_text: Mapping[str, float]


class RecordedJudge:
    """Answers from a recording.

    A pair with two recorded scores gets, on `rules.score_range` [a, b] and `rules.ranking_range` [c, d], with f1 and f2
    the scores as fractions of their scale: score_k = a + f_k (b - a), ranking = (c + d) / 2 - (f1 - f2) (d - c) / 2.
    So equal scores are a tie with the middle ranking. The prompt must be the whole conversation: one user turn.
    Two answers with the same text have the mean of their scores.
    """

    def __init__(self, lines: Iterable[str | bytes], rules: VerdictRules, name: str = "recorded judge") -> None:
        """Read a recording; raises ValueError that names the line.

        A last line without a newline at its end that does not parse is taken as cut off by a crash, and left out.
        """
        self._rules = rules
        self._name = name
        self._said: dict[tuple[str, int], _Said] = {}
        self._scored: dict[str, _Scored] = {}
        self._torn = 0  # the number of the line that was left out
        for number, line in enumerate(lines, 1):
            if line.strip():
                self._add(number, line)

    @classmethod
    def load(cls, path: Path, rules: VerdictRules) -> "RecordedJudge":
        """Read a file. Raises ValueError that names it, also for one that holds nothing."""
        try:
            with path.open("rb") as file:
                judge = cls(file, rules, f"recording {path.name}")
        except OSError as error:
            raise ValueError(f"judge.recording {path}: {error.strerror}") from None
        except ValueError as error:
            raise ValueError(f"judge.recording {path}: {error}") from None
        if len(judge) == 0:
            # A judge that knows nothing fails every cohort: the wrong file, or one that nothing was recorded to.
            why = f"line {judge._torn} is not JSON" if judge._torn else "the recording is empty"
            raise ValueError(f"judge.recording {path}: {why}")
        return judge

    def __len__(self) -> int:
        """How many verdicts and scored prompts there are."""
        return len(self._said) + len(self._scored)

    async def compare(self, ask: Ask, slot: Ticket) -> Answered:
        """Look a comparison up; see `Judge.compare`. Raises JudgeError for one that is not in the recording."""
        async with slot.slot():  # so that the deadline starts and the order is kept as with a live judge
            pass
        said = self._said.get((pair_digest(ask), ask.judge_index))
        if said is not None:
            return await off_loop(len(said.text), partial(self._replayed, ask, said))
        return self._derived(ask)

    async def aclose(self) -> None:
        """Nothing is open."""

    def _replayed(self, ask: Ask, said: _Said) -> Answered:
        rubric = None if ask.rubric_ids is None else read_rubric(said.text, self._rules, ask.rubric_ids)
        return Answered(read_verdict(said.text, self._rules), rubric, said.usage, said.text)

    def _derived(self, ask: Ask) -> Answered:
        first, second = self._fractions(ask)
        if first is None or second is None:
            raise JudgeError(f"{self._name} pair={ask.pair} judge_index={ask.judge_index}: this pair is not recorded")
        if ask.rubric_ids is not None:
            raise JudgeError(f"{self._name} pair={ask.pair}: recorded scores say nothing about rubrics")
        low, high = self._rules.score_range
        least, most = self._rules.ranking_range
        verdict = Verdict(
            low + first * (high - low),
            low + second * (high - low),
            (least + most) / 2 - (first - second) * (most - least) / 2,
        )
        words = {"score_1": verdict.score_1, "score_2": verdict.score_2, "ranking": verdict.ranking}
        return Answered(verdict, None, None, json.dumps(words))

    def _fractions(self, ask: Ask) -> tuple[float | None, float | None]:
        if len(ask.conversation) != 1 or ask.conversation[0].role != "user":
            return None, None
        row = self._scored.get(ask.conversation[0].content)
        return (row.by_text.get(ask.response_1), row.by_text.get(ask.response_2)) if row else (None, None)

    def _add(self, number: int, line: str | bytes) -> None:
        try:
            row = decode_json(line)
        except ValueError as error:
            if line[-1:] not in ("\n", b"\n"):
                self._torn = number
                return
            raise ValueError(f"line {number} is not JSON: {error}") from None
        try:
            if "pair" in row:
                self._said[row["pair"], row["judge_index"]] = _read_said(row)
            else:
                self._scored[scrub(row["prompt"])] = _read_scored(row)
        except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
            raise ValueError(f"line {number} is neither a verdict nor a row of scores: {error!r}") from None


def _read_said(row: Mapping[str, Any]) -> _Said:
    usage = row.get("usage")
    if not isinstance(row["pair"], str) or type(row["judge_index"]) is not int or not isinstance(row["text"], str):
        raise TypeError("pair, judge_index and text")
    if usage is None:
        return _Said(row["text"], None)
    input_tokens, output_tokens, hit_max = usage
    tokens = float(input_tokens), float(output_tokens)
    if not all(map(math.isfinite, tokens)):
        raise ValueError(f"usage {shown(usage)}")
    return _Said(row["text"], Usage(*tokens, bool(hit_max)))


def _read_scored(row: Mapping[str, Any]) -> _Scored:
    low, high = row.get("score_scale", DEFAULT_SCALE)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"score_scale [{shown(low)}, {shown(high)}]")
    found: dict[str, list[float]] = {}
    for answer in row["answers"]:
        name = next((name for name in SCORE_NAMES if name in answer), SCORE_NAMES[0])
        score = answer[name]
        if isinstance(score, bool) or not low <= score <= high:
            raise ValueError(f"{name} {shown(score)} outside [{shown(low)}, {shown(high)}]")
        found.setdefault(AnswerText("", answer["text"]).judge_text, []).append((score - low) / (high - low))
    return _Scored({text: math.fsum(scores) / len(scores) for text, scores in found.items()})
