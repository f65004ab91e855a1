"""What length and style do to scores (contract 7.8, 7.9 and 14.4).

Pure functions on numbers and texts; who is compared with whom and what is published stands in `scoring`. Every text is
read a fixed number of times from front to back: no expression here goes back over what it has read.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from genrm_trio.judging.text import AnswerText

EMOJI_RANGES = (
    ("\u2600", "\u26ff"),
    ("\u2700", "\u27bf"),
    ("\U0001f1e0", "\U0001f1ff"),
    ("\U0001f300", "\U0001f5ff"),
    ("\U0001f600", "\U0001f64f"),
    ("\U0001f680", "\U0001f6ff"),
    ("\U0001f900", "\U0001f9ff"),
    ("\U0001fa00", "\U0001fa6f"),
    ("\U0001fa70", "\U0001faff"),
    # Instead of 24C2-1F251, which holds most CJK text (contract 14.4):
    ("\u24c2", "\u24c2"),
    ("\u25aa", "\u25ab"),
    ("\u25b6", "\u25b6"),
    ("\u25c0", "\u25c0"),
    ("\u25fb", "\u25fe"),
    ("\u2934", "\u2935"),
    ("\u2b05", "\u2b07"),
    ("\u2b1b", "\u2b1c"),
    ("\u2b50", "\u2b50"),
    ("\u2b55", "\u2b55"),
    ("\u3030", "\u3030"),
    ("\u303d", "\u303d"),
    ("\u3297", "\u3297"),
    ("\u3299", "\u3299"),
    ("\U0001f004", "\U0001f004"),
    ("\U0001f0cf", "\U0001f0cf"),
    ("\U0001f170", "\U0001f171"),
    ("\U0001f17e", "\U0001f17f"),
    ("\U0001f18e", "\U0001f18e"),
    ("\U0001f191", "\U0001f19a"),
    ("\U0001f201", "\U0001f202"),
    ("\U0001f21a", "\U0001f21a"),
    ("\U0001f22f", "\U0001f22f"),
    ("\U0001f232", "\U0001f23a"),
    ("\U0001f250", "\U0001f251"),
)
"""The code points that count as emoji, as (first, last)."""

_EMOJI = re.compile(f"[{''.join(f'{first}-{last}' for first, last in EMOJI_RANGES)}]")
_HEADER = re.compile(r"^#{1,6}\s", re.MULTILINE)
# A line's own leading blanks are enough: an item behind blank lines also stands first on its own line.
_LIST_ITEM = re.compile(r"^[^\S\n]*+(?:[-*+]|\d++\.)\s", re.MULTILINE)
_BOLD = (re.compile(r"\*\*[^*\n]++\*\*"), re.compile(r"__[^_\n]++__"))


@dataclass(frozen=True, slots=True)
class StyleCounts:
    """How often each mark of style stands in an answer, fenced blocks left out."""

    headers: int
    list_items: int
    bold: int
    emoji: int

    @property
    def total(self) -> int:
        """All marks together."""
        return self.headers + self.list_items + self.bold + self.emoji


def style_counts(text: str) -> StyleCounts:
    """Count the marks of style in an answer (contract 7.9); blanks are Unicode's, lines end at a newline only."""
    return _counts(without_fences(text))


def style_density(text: str) -> float:
    """Return marks of style per code point of the trimmed answer, fenced blocks left out; 0 when nothing is left."""
    remaining = without_fences(text)
    length = len(remaining.strip())
    return _counts(remaining).total / length if length else 0.0


def without_fences(text: str) -> str:
    """Return a text without its fenced blocks, from three backticks to the next three; an unclosed one stays."""
    parts = text.split("```")
    kept = parts[::2]
    if len(parts) % 2 == 0:  # the last backticks close nothing and open nothing
        kept.append("```" + parts[-1])
    return "".join(kept)


def relative_weights(values: Sequence[float]) -> list[float]:
    """Return 1 - (v - min) / (max - min) of each value, less the mean of these; all 0 when the values are equal.

    The smallest value has the largest weight, and the weights sum to 0 (contract 7.8).
    """
    low, high = min(values, default=0.0), max(values, default=0.0)
    if low == high:
        return [0.0] * len(values)
    weights = [1.0 - (value - low) / (high - low) for value in values]
    mean = math.fsum(weights) / len(weights)
    return [weight - mean for weight in weights]


@dataclass(frozen=True, slots=True)
class LengthRules:
    """The settings of the length adjustments, under their names in the configuration, in units of the score.

    `top_percentile` is a share of the cohort, from 0 to 1; each of the others is off at 0.
    """

    reasoning_bonus: float = 0.0
    answer_bonus: float = 0.0
    top_percentile: float = 0.2
    group_reasoning_length_penalty_coeff: float = 0.0
    group_answer_length_penalty_coeff: float = 0.0


def length_changes(scores: Sequence[float], answers: Sequence[AnswerText], rules: LengthRules) -> list[float]:
    """Return what length adds to each score (contract 7.8); nothing below two answers.

    Lengths are code points of trimmed texts. A bonus goes to the shortest non-empty text of all answers, if its score
    then is among the top; the threshold is that of the scores given. The group penalties are on when one of them is
    above 0, and then both count.
    """
    changes = [0.0] * len(scores)
    if len(scores) < 2:
        return changes
    reasoning = [len(answer.reasoning.strip()) for answer in answers]
    final = [len(answer.answer.strip()) for answer in answers]
    rank = max(0, min(len(scores), int(len(scores) * rules.top_percentile)) - 1)
    threshold = sorted(scores, reverse=True)[rank]
    for bonus, lengths in ((rules.reasoning_bonus, reasoning), (rules.answer_bonus, final)):
        shortest = min((i for i, length in enumerate(lengths) if length), key=lengths.__getitem__, default=None)
        if bonus > 0 and shortest is not None and scores[shortest] + changes[shortest] >= threshold:
            changes[shortest] += bonus
    per_reasoning, per_answer = rules.group_reasoning_length_penalty_coeff, rules.group_answer_length_penalty_coeff
    if per_reasoning > 0 or per_answer > 0:
        weights = zip(relative_weights(reasoning), relative_weights(final), strict=True)
        for i, (of_reasoning, of_answer) in enumerate(weights):
            changes[i] += of_reasoning * per_reasoning + of_answer * per_answer
    return changes


def style_changes(answers: Sequence[AnswerText], coefficient: float) -> list[float]:
    """Return what style adds to each score (contract 7.9); nothing below two answers or unless it is above 0."""
    if len(answers) < 2 or coefficient <= 0:
        return [0.0] * len(answers)
    return [w * coefficient for w in relative_weights([style_density(answer.answer) for answer in answers])]


def _counts(remaining: str) -> StyleCounts:
    return StyleCounts(
        headers=_count(_HEADER, remaining),
        list_items=_count(_LIST_ITEM, remaining),
        bold=sum(_count(pattern, remaining) for pattern in _BOLD),
        emoji=_count(_EMOJI, remaining),
    )


def _count(pattern: re.Pattern[str], text: str) -> int:
    return sum(1 for _ in pattern.finditer(text))
