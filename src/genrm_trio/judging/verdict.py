"""From a judge's text to scores (contract 7.3, 7.4 and 14.1).

A text is untrusted: nothing here raises on one, and the work is proportional to its length. What an unreadable verdict
does to a cohort is decided in `scoring`.

Objects are found by counting braces. From every opening brace a scan would have to run to its closing one, and an
unclosed one sends the scan back to the next brace: quadratic. But such scans differ only in whether they are inside a
string, so where a scan ends is computed once for each brace and each of the two states, from the end of the text
backwards (`_closings`).
"""

import json
import math
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from genrm_trio.judging.figures import mean

Span = tuple[int, int]

NEUTRAL_RANKING = 3.5
"""The ranking that favours nobody, the middle of 1 to 6."""

_SIGNIFICANT = re.compile(r'[{}"]')
_JSON_FENCE = re.compile(r"```json", re.IGNORECASE | re.ASCII)
_FENCE_MARK = re.compile(r"`{3,}")
_THINK_OPEN = re.compile(r"<think>", re.IGNORECASE | re.ASCII)
_THINK_CLOSE = re.compile(r"</think>", re.IGNORECASE | re.ASCII)
_PLAIN_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?", re.ASCII)
_FIELDS = ("score_1", "score_2", "ranking")
_SHORTEST = len('{"ranking":1}')  # no object below it can say anything
_NOWHERE = -1


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge says of two answers: a score each, and a ranking from "1 is much better" to "2 is much better"."""

    score_1: float
    score_2: float
    ranking: float

    def flipped(self) -> "Verdict":
        """Return the same verdict for the answers in the other order (contract 7.11)."""
        return Verdict(self.score_2, self.score_1, 7.0 - self.ranking)

    def untied(self) -> tuple[float, float]:
        """Return both scores, equal ones moved apart by the ranking (contract 7.7)."""
        apart = NEUTRAL_RANKING - self.ranking if self.score_1 == self.score_2 else 0.0
        return self.score_1 + apart, self.score_2 - apart

    @property
    def finite(self) -> bool:
        """Whether it is made of finite numbers and gives such scores."""
        return all(map(math.isfinite, (self.score_1, self.score_2, self.ranking, *self.untied())))


@dataclass(frozen=True, slots=True)
class VerdictRules:
    """How a text is read: the setting `verdict_rules` and what it needs.

    The ranges, ends included, hold in strict mode only; the defaults fill in for missing fields in lenient mode only.
    """

    mode: Literal["strict", "lenient"] = "strict"
    score_range: tuple[float, float] = (1.0, 5.0)
    ranking_range: tuple[float, float] = (1.0, 6.0)
    default_score: float = 3.0
    default_ranking: float = 3.5


class _Refused:
    """An object that claims to be a verdict and breaks a rule."""


_REFUSED = _Refused()
_Claim = Verdict | _Refused | None
_Claims = Callable[[dict[str, object]], _Claim]


def read_verdict(text: str, rules: VerdictRules) -> Verdict | None:
    """Return the overall verdict in a judge's text, or None when there is none to be had.

    Lenient (contract 7.3): the first verdict in a fence tagged `json`, else the last one anywhere; missing fields get
    the defaults; a winner with a value that is not finite, or that gives such a score, is none.

    Strict (contract 14.1): the last object with all three fields decides, and is none when a field breaks the rules;
    a verdict in a fence and a different one outside of any are ambiguous, so none.
    """
    if rules.mode == "lenient":
        return _read_lenient(text, lambda found: _lenient_overall(found, rules))
    return _read_strict(text, lambda found: _strict_fields(_overall(found), rules))


def read_rubric(text: str, rules: VerdictRules, expected_ids: Collection[int] | None) -> Verdict | None:
    """Return the mean over the rubric entries in a judge's text, or None (contract 7.4).

    The object is searched as in `read_verdict`. It must rate each expected id exactly once and no other, with all three
    fields; without expected ids there is nothing to read.
    """
    expected = set(expected_ids or ())
    if not expected:
        return None
    if rules.mode == "lenient":
        return _read_lenient(text, lambda found: _rubric_mean(found, expected, _lenient_fields))
    return _read_strict(
        text, lambda found: _rubric_mean(found, expected, lambda entry: _strict_fields(entry, rules)) or _unrated(found)
    )


# --- which object decides


def _read_lenient(text: str, claims: _Claims) -> Verdict | None:
    for start, end in _json_fences(text):
        for span in object_spans(text, start, end):
            if (claim := _claim(text, span, claims)) is not None:
                return claim if isinstance(claim, Verdict) else None
    for span in reversed(list(object_spans(text, 0, len(text)))):
        if (claim := _claim(text, span, claims)) is not None:
            return claim if isinstance(claim, Verdict) else None
    return None


def _read_strict(text: str, claims: _Claims) -> Verdict | None:
    spoken = _after_thinking(text)
    if spoken is None:
        return None
    last: _Claim = None
    inside: set[Verdict] = set()
    outside: set[Verdict] = set()
    for span, fenced in _with_fences(spoken, list(object_spans(spoken, 0, len(spoken)))):
        claim = _claim(spoken, span, claims)
        if isinstance(claim, Verdict):
            (inside if fenced else outside).add(claim)
        last = last if claim is None else claim
    ambiguous = inside and outside and len(inside | outside) > 1
    return last if isinstance(last, Verdict) and not ambiguous else None


def _claim(text: str, span: Span, claims: _Claims) -> _Claim:
    if span[1] - span[0] < _SHORTEST:
        return None
    found = _decode(text[slice(*span)])
    return claims(found) if isinstance(found, dict) else None


def _decode(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # not JSON, an integer beyond 4300 digits, absurdly deep
        return None


# --- where the objects are


def object_spans(text: str, start: int, end: int) -> Iterator[Span]:
    """Yield where the top-level `{…}` of a part of a text stand, in order (contract 7.3)."""
    end = text.rfind("}", start, end) + 1  # no object closes behind it
    marks = [found.start() for found in _SIGNIFICANT.finditer(text, start, max(start, end))]
    closings = _closings(text, marks)
    at = 0
    while at < len(marks):
        closing = closings[at + 1] if text[marks[at]] == "{" else _NOWHERE
        if closing != _NOWHERE:
            yield marks[at], marks[closing] + 1
            at = closing
        at += 1


def _closings(text: str, marks: list[int]) -> list[int]:
    """Return for each mark which one closes the object that a scan is in when it comes there outside of a string.

    A mark is an index of `marks`. `outside[m]` answers for a scan that reaches mark m outside of a string, `inside`
    for one that reaches it inside. An opening brace is matched by `outside` of its next mark, and behind that match
    the scan goes on; a quote swaps the two, unless an odd number of backslashes escapes it inside a string.
    """
    outside = [_NOWHERE] * (len(marks) + 1)
    inside = _NOWHERE
    for mark in range(len(marks) - 1, -1, -1):
        position = marks[mark]
        if text[position] == "}":
            outside[mark] = mark
        elif text[position] == "{":
            match = outside[mark + 1]
            outside[mark] = outside[match + 1] if match != _NOWHERE else _NOWHERE
        else:
            outside[mark] = inside
            inside = inside if _escaped(text, position) else outside[mark + 1]
    return outside


def _escaped(text: str, quote: int) -> bool:
    """Tell whether an odd number of backslashes stands right before a quote."""
    before = quote
    while before > 0 and text[before - 1] == "\\":
        before -= 1
    return (quote - before) % 2 == 1


def _json_fences(text: str) -> Iterator[Span]:
    """Yield where the insides of the blocks fenced as `json` stand: tag right behind the three backticks."""
    at = 0
    while opening := _JSON_FENCE.search(text, at):
        closing = text.find("```", opening.end())
        if closing < 0:
            return
        yield opening.end(), closing
        at = closing + 3


def _with_fences(text: str, spans: list[Span]) -> Iterator[tuple[Span, bool]]:
    """Yield the spans, each with whether it stands inside a fence: backticks inside an object fence nothing."""
    marks = [found.start() for found in _FENCE_MARK.finditer(text)]
    at, fenced = 0, False
    for start, end in spans:
        while at < len(marks) and marks[at] < start:
            at, fenced = at + 1, not fenced
        yield (start, end), fenced
        while at < len(marks) and marks[at] < end:
            at += 1


def _after_thinking(text: str) -> str | None:
    """Return what follows the last closing `think` tag, or None when thinking goes on behind it."""
    end = 0
    for closing in _THINK_CLOSE.finditer(text):
        end = closing.end()
    return None if _THINK_OPEN.search(text, end) else text[end:]


# --- what an object says


def _overall(found: dict[str, object]) -> dict[str, object]:
    overall = found.get("overall")
    return overall if isinstance(overall, dict) else found


def _lenient_overall(found: dict[str, object], rules: VerdictRules) -> _Claim:
    fields = _overall(found)
    if not any(name in fields for name in _FIELDS):
        return None
    defaults = {"score_1": rules.default_score, "score_2": rules.default_score, "ranking": rules.default_ranking}
    return _lenient_fields(defaults | fields)


def _lenient_fields(fields: dict[str, object]) -> _Claim:
    values = []
    for name in _FIELDS:
        value = fields.get(name)
        if not isinstance(value, int | float | str):
            return None
        try:
            values.append(float(value))
        except ValueError:
            return None
        except OverflowError:
            return _REFUSED
    return _if_finite(Verdict(*values))


def _if_finite(verdict: Verdict) -> _Claim:
    return verdict if verdict.finite else _REFUSED


def _strict_fields(fields: dict[str, object], rules: VerdictRules) -> _Claim:
    if not all(name in fields for name in _FIELDS):
        return None
    values = [_strict_number(fields[name]) for name in _FIELDS]
    ranges = (rules.score_range, rules.score_range, rules.ranking_range)
    if not all(low <= value <= high for value, (low, high) in zip(values, ranges, strict=True)):
        return _REFUSED
    return Verdict(*values)


def _strict_number(value: object) -> float:
    """Return a number, or a text that spells one plainly, as a float; NaN, which no range holds, for anything else."""
    if isinstance(value, str):
        return float(value) if _PLAIN_NUMBER.fullmatch(value) else math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def _rubric_mean(found: dict[str, object], expected: set[int], fields: Callable[[dict[str, object]], _Claim]) -> _Claim:
    entries = found.get("rubric_evaluations")
    if not isinstance(entries, list) or len(entries) != len(expected):
        return None
    left, rated = set(expected), []
    for entry in entries:
        claim = fields(entry) if isinstance(entry, dict) and _takes(entry.get("rubric_id"), left) else None
        if not isinstance(claim, Verdict):
            return claim
        rated.append(claim)
    columns = zip(*((v.score_1, v.score_2, v.ranking) for v in rated), strict=True)
    return _if_finite(Verdict(*map(mean, columns)))


def _takes(rubric_id: object, left: set[int]) -> bool:
    """Take a rubric id out of those that are still to come, if it is one of them: an integer, and not rated before."""
    if type(rubric_id) is not int or rubric_id not in left:
        return False
    left.remove(rubric_id)
    return True


def _unrated(found: dict[str, object]) -> _Claim:
    return _REFUSED if "rubric_evaluations" in found else None
