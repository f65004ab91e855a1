"""From the finished comparisons of a cohort to what each member is told (contract 7.7 to 7.11, 8 and 14.2).

Here verdicts that could not be read are dealt with, scores are rated and adjusted, and the numbers of contract 5.6
are put together. Nothing here asks a judge, waits, or knows a cohort's state.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from genrm_trio.core.outcome import JSON
from genrm_trio.judging.adjustments import LengthRules, length_changes, style_changes
from genrm_trio.judging.figures import deviation, mean, percentile
from genrm_trio.judging.judge import Usage
from genrm_trio.judging.rating import METHODS, Method, Rated, Scale, ScoringFailed, rate
from genrm_trio.judging.text import AnswerText
from genrm_trio.judging.verdict import Verdict

__all__ = [
    "CohortScores",
    "Compared",
    "NonFiniteReward",
    "ScoringFailed",
    "ScoringRules",
    "score_cohort",
]

Unparseable = Literal["drop_comparison", "judge_failure", "default_scores"]
ScoreSource = Literal["overall", "rubric_mean"]


class NonFiniteReward(ValueError):
    """A score or reward came out as NaN or infinite; never published (contract 5.4)."""


@dataclass(frozen=True, slots=True)
class ScoringRules(LengthRules):
    """Every setting that scores depend on, under its name in the configuration. Raises ValueError for a wrong one."""

    aggregator_method: Method = "simple_tiebreaker"
    score_source: ScoreSource = "overall"
    score_range: tuple[float, float] = (1.0, 5.0)
    on_unparseable_verdict: Unparseable = "drop_comparison"
    min_comparisons: int = 1
    default_score: float = 3.0
    default_ranking: float = 3.5
    group_style_penalty_coeff: float = 0.0

    def __post_init__(self) -> None:
        for name, value, known in (
            ("aggregator_method", self.aggregator_method, tuple(METHODS)),
            ("score_source", self.score_source, ("overall", "rubric_mean")),
            (
                "on_unparseable_verdict",
                self.on_unparseable_verdict,
                ("drop_comparison", "judge_failure", "default_scores"),
            ),
        ):
            if value not in known:
                raise ValueError(f"{name} {value!r} is not one of {', '.join(known)}")

    @property
    def by_rubric(self) -> bool:
        """Whether rewards come from the rubric entries."""
        return self.score_source == "rubric_mean"

    @property
    def neutral(self) -> Verdict:
        """The verdict that stands for one that could not be read, where it has to count."""
        return Verdict(self.default_score, self.default_score, self.default_ranking)


@dataclass(frozen=True, slots=True)
class Compared:
    """The result of one comparison, in the order of its pair: a flipped ask has been flipped back.

    `i` and `j` are positions in the cohort, `j` the cohort's size when it is the baseline. `overall` and `rubric` are
    None when that part could not be read; outside rubric mode `rubric` is not looked at. `usage` is None when the judge
    told none.
    """

    i: int
    j: int
    judge_index: int
    overall: Verdict | None
    rubric: Verdict | None = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class CohortScores:
    """What a cohort is told.

    members: per member, in the order given, the numbers of contract 5.6 by their wire names.
    comparison_results: the comparisons that count, with their selected scores before any tiebreak (contract 8).
    metrics: contract 7.7 and the `genrm_` numbers, without those that are unknown (contract 8).
    """

    members: tuple[dict[str, JSON], ...]
    comparison_results: tuple[dict[str, JSON], ...]
    metrics: dict[str, JSON]

    @property
    def rewards(self) -> tuple[JSON, ...]:
        """The reward of each member."""
        return tuple(member["reward"] for member in self.members)


def score_cohort(
    rules: ScoringRules, answers: Sequence[AnswerText], compared: Sequence[Compared], *, baseline: bool = False
) -> CohortScores:
    """Score the answers of a cohort from all of its comparisons.

    With `baseline` the position behind the last answer is the baseline's: it is rated with the members and told
    nothing. In rubric mode the overall scores are diagnostics, so an overall verdict that could not be read counts as
    neutral there, whatever `on_unparseable_verdict` says.

    Raises ScoringFailed, a failure of the judge, when a verdict could not be read and `on_unparseable_verdict` says so,
    when a member is left with fewer than `min_comparisons`, and when the comparisons left do not link the members and
    `bradley_terry` needs it. Raises NonFiniteReward, and ValueError for a comparison of nobody.
    """
    n, rated = len(answers), len(answers) + baseline
    for comparison in compared:
        if not (0 <= comparison.i < rated and 0 <= comparison.j < rated and comparison.i != comparison.j):
            raise ValueError(f"there is no pair {comparison.i}:{comparison.j} among {rated} answers")
    counting = _counting(rules, compared, n)
    selected = _rate(rules, [r for _, r in counting], n, rated)
    overall = selected
    if rules.by_rubric:
        overall = _rate(rules, [_rated(c, c.overall or rules.neutral) for c in compared], n, rated)
    valid = _valid_rubric(rules, compared, n, rated)
    changes, overall_changes = _changes(rules, selected, answers), _changes(rules, overall, answers)
    group = _group_numbers(rules, compared)
    members: list[dict[str, JSON]] = [
        {
            "reward": selected[k] + changes[k],
            "reward_score_raw": selected[k],
            "reward_rubric_aggregate_valid": valid[k],
            "reward_overall_score_raw": overall[k],
            "reward_overall_score": overall[k] + overall_changes[k],
            "reward_length_adjustment": changes[k],
            **group,
        }
        for k in range(n)
    ]
    metrics = _score_metrics([r.verdict for _, r in counting]) | {k: v for k, v in group.items() if v is not None}
    _check_finite(members, metrics)
    return CohortScores(tuple(members), tuple(_result(c, r.verdict) for c, r in counting), metrics)


# --- which verdicts count


def _selected(rules: ScoringRules, comparison: Compared) -> Verdict | None:
    return comparison.rubric if rules.by_rubric else comparison.overall


def _counting(rules: ScoringRules, compared: Sequence[Compared], n: int) -> list[tuple[Compared, Rated]]:
    """Return the comparisons that count, each with its selected verdict; raises ScoringFailed (contract 14.2)."""
    verdicts = [(c, _selected(rules, c)) for c in compared]
    unread = [c for c, verdict in verdicts if verdict is None]
    if unread and rules.on_unparseable_verdict == "judge_failure":
        raise ScoringFailed(f"no verdict can be read {_which(unread, compared)}")
    if rules.on_unparseable_verdict == "default_scores":
        return [(c, _rated(c, verdict or rules.neutral)) for c, verdict in verdicts]
    counting = [(c, _rated(c, verdict)) for c, verdict in verdicts if verdict is not None]
    left = Counter(k for c, _ in counting for k in (c.i, c.j))
    for k in range(n):
        if left[k] < rules.min_comparisons:
            raise ScoringFailed(
                f"answer {k} is left with {left[k]} comparisons, min_comparisons is {rules.min_comparisons}: "
                f"no verdict can be read {_which(unread, compared)}"
            )
    return counting


def _which(unread: Sequence[Compared], compared: Sequence[Compared]) -> str:
    named = ", ".join(f"{c.i}:{c.j}" for c in unread[:8])
    return f"in {len(unread)} of {len(compared)} comparisons" + (f" (pairs {named})" if unread else "")


def _rated(comparison: Compared, verdict: Verdict) -> Rated:
    return Rated(comparison.i, comparison.j, verdict)


# --- scores


def _rate(rules: ScoringRules, rated: Sequence[Rated], n: int, with_baseline: int) -> list[float]:
    scale = Scale(*rules.score_range, rules.default_score)
    return rate(rules.aggregator_method, rated, with_baseline, scale)[:n]


def _valid_rubric(rules: ScoringRules, compared: Sequence[Compared], n: int, with_baseline: int) -> list[float | None]:
    """Return the rubric score of each member whose rubric verdicts could all be read, else None (contract 7.10)."""
    if not rules.by_rubric:
        return [None] * n
    readable = [_rated(c, c.rubric) for c in compared if c.rubric is not None]
    failed = {k for c in compared if c.rubric is None for k in (c.i, c.j)}
    try:
        scores = _rate(rules, readable, n, with_baseline)
    except ScoringFailed:  # what is readable does not link the members, so it has no scores
        return [None] * n
    return [None if k in failed else scores[k] for k in range(n)]


def _changes(rules: ScoringRules, scores: Sequence[float], answers: Sequence[AnswerText]) -> list[float]:
    """Return what length, then style, adds to each score; the top of the scores is told before any change."""
    by_length = length_changes(scores, answers, rules)
    by_style = style_changes(answers, rules.group_style_penalty_coeff)
    return [length + style for length, style in zip(by_length, by_style, strict=True)]


# --- the numbers that go with them


def _group_numbers(rules: ScoringRules, compared: Sequence[Compared]) -> dict[str, float | None]:
    unread = sum(c.overall is None for c in compared)
    unread_rubric = sum(c.rubric is None for c in compared) if rules.by_rubric else 0
    count = max(1, len(compared))
    return {
        "genrm_parse_failure_rate_per_group": unread / count,
        "genrm_rubric_parse_failure_rate_per_group": unread_rubric / count,
        **_token_numbers([c.usage for c in compared if c.usage is not None]),
    }


def _token_numbers(usages: Sequence[Usage]) -> dict[str, float | None]:
    """Return the eight token fields over the comparisons whose judge told its usage; all None without any."""
    columns = {
        "input": [float(usage.input_tokens) for usage in usages],
        "output": [float(usage.output_tokens) for usage in usages],
    }
    numbers: dict[str, Callable[[Sequence[float]], float]] = {
        "mean": mean,
        "p50": lambda values: percentile(values, 0.5),
        "p95": lambda values: percentile(values, 0.95),
    }
    fields: dict[str, float | None] = {
        f"genrm_{column}_tokens_per_comparison_{name}": number(values) if values else None
        for column, values in columns.items()
        for name, number in numbers.items()
    }
    fields["genrm_output_tokens_total_per_group"] = sum(columns["output"]) if usages else None
    hits = [float(usage.hit_max) for usage in usages]
    fields["genrm_max_output_tokens_hit_rate_per_group"] = mean(hits) if hits else None
    return fields


def _score_metrics(verdicts: Sequence[Verdict]) -> dict[str, JSON]:
    """Return the metrics of contract 7.7 over the scores as given; none without comparisons."""
    if not verdicts:
        return {}
    scores = [score for verdict in verdicts for score in (verdict.score_1, verdict.score_2)]
    return {
        "mean_individual_score": mean(scores),
        "std_individual_score": deviation(scores),
        "tiebreak_usage_rate": mean([float(verdict.score_1 == verdict.score_2) for verdict in verdicts]),
    }


def _result(comparison: Compared, verdict: Verdict) -> dict[str, JSON]:
    return {
        "response_i": comparison.i,
        "response_j": comparison.j,
        "judge_idx": comparison.judge_index,
        "score_1": verdict.score_1,
        "score_2": verdict.score_2,
        "ranking": verdict.ranking,
    }


def _check_finite(members: Sequence[Mapping[str, JSON]], metrics: Mapping[str, JSON]) -> None:
    for what, numbers in (*((f"answer {k}", member) for k, member in enumerate(members)), ("the cohort", metrics)):
        for name, number in numbers.items():
            if isinstance(number, float) and not math.isfinite(number):
                raise NonFiniteReward(f"{name} of {what} is {number}")
