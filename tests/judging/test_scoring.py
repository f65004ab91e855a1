"""Scores of a cohort: what unreadable verdicts do, what is published per member, and what must never be."""

import math
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genrm_trio.core.outcome import RESULT_FIELDS
from genrm_trio.judging.judge import Usage
from genrm_trio.judging.pairs import baseline_plan, plan
from genrm_trio.judging.rating import Method
from genrm_trio.judging.scoring import (
    Compared,
    NonFiniteReward,
    ScoringFailed,
    ScoringRules,
    Unparseable,
    score_cohort,
)
from genrm_trio.judging.text import AnswerText
from genrm_trio.judging.verdict import Verdict

METHODS: tuple[Method, ...] = ("simple_tiebreaker", "win_rate", "bradley_terry")
A, B = Verdict(4.0, 2.0, 2.0), Verdict(1.0, 5.0, 6.0)


def answers(n: int) -> list[AnswerText]:
    return [AnswerText("r" * k, "a" * (k + 1)) for k in range(n)]


def ring(verdicts: Sequence[Verdict | None], rubrics: Sequence[Verdict | None] = ()) -> list[Compared]:
    n = len(verdicts)
    return [
        Compared(k, (k + 1) % n, 0, verdicts[k], rubrics[k] if rubrics else None, Usage(k, 2 * k, k == 0))
        for k in range(n)
    ]


def column(rules: ScoringRules, compared: Sequence[Compared], name: str, n: int = 3) -> list[Any]:
    return [member[name] for member in score_cohort(rules, answers(n), compared).members]


# --- verdicts that cannot be read


def test_a_dropped_comparison_counts_for_nobody() -> None:
    scores = score_cohort(ScoringRules(), answers(3), ring([A, None, B]))
    assert scores.rewards == (4.5, 2.0, 1.0)
    assert scores.metrics["genrm_parse_failure_rate_per_group"] == 1 / 3
    assert scores.metrics["mean_individual_score"] == 3.0
    assert [(r["response_i"], r["response_j"]) for r in scores.comparison_results] == [(0, 1), (2, 0)]


def test_a_member_left_with_too_few_comparisons_fails_the_judge() -> None:
    with pytest.raises(ScoringFailed, match=r"answer 1 is left with 0 .* in 2 of 3 comparisons \(pairs 0:1, 1:2\)"):
        score_cohort(ScoringRules(), answers(3), ring([None, None, A]))
    rules = ScoringRules(min_comparisons=2)
    score_cohort(rules, answers(3), ring([A, A, A]))
    with pytest.raises(ScoringFailed, match="answer 1 is left with 1 comparisons, min_comparisons is 2"):
        score_cohort(rules, answers(3), ring([A, None, A]))
    assert score_cohort(ScoringRules(min_comparisons=0), answers(3), ring([None, None, A])).rewards[1] == 3.0


def test_one_unreadable_verdict_can_fail_the_judge() -> None:
    rules = ScoringRules(on_unparseable_verdict="judge_failure")
    with pytest.raises(ScoringFailed, match=r"in 1 of 3 comparisons \(pairs 1:2\)"):
        score_cohort(rules, answers(3), ring([A, None, B]))
    assert score_cohort(rules, answers(3), ring([A, A, A])).rewards == (3.0, 3.0, 3.0)


def test_neutral_scores_can_be_published_and_counted() -> None:
    rules = ScoringRules(on_unparseable_verdict="default_scores", default_score=2.0, default_ranking=3.0)
    scores = score_cohort(rules, answers(3), ring([A, None, B]))
    assert scores.rewards == (4.5, 2.25, 1.25)
    assert scores.comparison_results[1] == {
        "response_i": 1,
        "response_j": 2,
        "judge_idx": 0,
        "score_1": 2.0,
        "score_2": 2.0,
        "ranking": 3.0,
    }
    assert scores.metrics["tiebreak_usage_rate"] == 1 / 3


def test_dropped_comparisons_can_part_the_cohort_for_bradley_terry() -> None:
    rules = ScoringRules(aggregator_method="bradley_terry")
    with pytest.raises(ScoringFailed, match="do not link all 4 answers"):
        score_cohort(rules, answers(4), ring([A, None, A, None]))
    assert len(score_cohort(rules, answers(4), ring([A, None, A, A])).rewards) == 4


@given(
    st.lists(st.none() | st.sampled_from([A, B, Verdict(3.0, 3.0, 3.0)]), min_size=2, max_size=6),
    st.sampled_from(METHODS),
    st.sampled_from(["drop_comparison", "judge_failure", "default_scores"]),
    st.integers(0, 3),
)
def test_scores_are_finite_numbers_or_there_are_none(
    verdicts: list[Verdict | None], method: Method, unparseable: Unparseable, least: int
) -> None:
    rules = ScoringRules(aggregator_method=method, on_unparseable_verdict=unparseable, min_comparisons=least)
    try:
        scores = score_cohort(rules, answers(len(verdicts)), ring(verdicts))
    except ScoringFailed:
        assert None in verdicts or least > 2
        assert unparseable != "default_scores"
        return
    assert len(scores.members) == len(verdicts)
    for member in scores.members:
        assert set(member) == RESULT_FIELDS
        assert all(value is None or (isinstance(value, float) and math.isfinite(value)) for value in member.values())
    counted = len(verdicts) if unparseable == "default_scores" else sum(v is not None for v in verdicts)
    assert len(scores.comparison_results) == counted


# --- rubric mode


RUBRIC = ScoringRules(score_source="rubric_mean")


def test_the_rubric_decides_and_the_overall_scores_are_told_beside_it() -> None:
    compared = ring([B, B, B], [A, A, A])
    assert column(RUBRIC, compared, "reward") == [3.0, 3.0, 3.0]
    assert column(RUBRIC, compared, "reward_overall_score_raw") == [3.0, 3.0, 3.0]
    compared = ring([A, B, A], [A, A, B])
    assert column(RUBRIC, compared, "reward_score_raw") == [4.5, 3.0, 1.5]
    assert column(RUBRIC, compared, "reward_rubric_aggregate_valid") == [4.5, 3.0, 1.5]
    assert column(RUBRIC, compared, "reward_overall_score_raw") == [3.0, 1.5, 4.5]
    assert score_cohort(RUBRIC, answers(3), compared).comparison_results[2]["score_2"] == 5.0


def test_an_unreadable_overall_verdict_costs_nothing_in_rubric_mode() -> None:
    rules = ScoringRules(score_source="rubric_mean", on_unparseable_verdict="judge_failure", min_comparisons=2)
    compared = ring([None, None, A], [A, A, A])
    assert column(rules, compared, "reward") == [3.0, 3.0, 3.0]
    assert column(rules, compared, "reward_overall_score_raw") == [2.5, 3.0, 3.5]
    assert column(rules, compared, "genrm_parse_failure_rate_per_group") == [2 / 3] * 3
    assert column(rules, compared, "genrm_rubric_parse_failure_rate_per_group") == [0.0] * 3


def test_an_unreadable_rubric_leaves_its_two_members_without_a_valid_aggregate() -> None:
    compared = ring([A, A, A, A], [A, None, A, A])
    for unparseable, second in (("drop_comparison", 2.0), ("default_scores", 2.5)):
        rules = ScoringRules(score_source="rubric_mean", on_unparseable_verdict=unparseable)  # type: ignore[arg-type]  # both are of the literal
        assert column(rules, compared, "reward", 4)[1] == second
        assert column(rules, compared, "reward_rubric_aggregate_valid", 4) == [3.0, None, None, 3.0]
    with pytest.raises(ScoringFailed, match="pairs 1:2"):
        score_cohort(
            ScoringRules(score_source="rubric_mean", on_unparseable_verdict="judge_failure"), answers(4), compared
        )


def test_a_valid_aggregate_needs_a_linked_cohort_for_bradley_terry() -> None:
    rules = ScoringRules(
        score_source="rubric_mean", aggregator_method="bradley_terry", on_unparseable_verdict="default_scores"
    )
    compared = ring([A] * 4, [A, None, A, None])
    assert column(rules, compared, "reward_rubric_aggregate_valid", 4) == [None] * 4
    assert len(set(column(rules, compared, "reward", 4))) == 2


def test_outside_rubric_mode_rubrics_are_not_looked_at() -> None:
    compared = ring([A, A, A], [None, B, B])
    assert column(ScoringRules(), compared, "reward") == [3.0, 3.0, 3.0]
    assert column(ScoringRules(), compared, "reward_rubric_aggregate_valid") == [None] * 3
    assert column(ScoringRules(), compared, "genrm_rubric_parse_failure_rate_per_group") == [0.0] * 3


# --- adjustments


def test_adjustments_come_on_top_and_are_told() -> None:
    rules = ScoringRules(answer_bonus=0.5, top_percentile=1.0, group_answer_length_penalty_coeff=1.0)
    for member, change in zip(score_cohort(rules, answers(3), ring([A, A, A])).members, (1.0, 0.0, -0.5), strict=True):
        assert member["reward_score_raw"] == member["reward_overall_score_raw"] == 3.0
        assert member["reward_length_adjustment"] == change
        assert member["reward"] == member["reward_overall_score"] == 3.0 + change


def test_overall_scores_are_adjusted_by_the_same_rules_on_their_own() -> None:
    rules = ScoringRules(score_source="rubric_mean", answer_bonus=0.5)
    [first, second] = score_cohort(rules, answers(2), [Compared(0, 1, 0, B, A)]).members
    assert (first["reward"], second["reward"]) == (4.5, 2.0)
    assert (first["reward_overall_score"], second["reward_overall_score"]) == (1.0, 5.0)


def test_style_is_part_of_the_adjustment() -> None:
    styled = [AnswerText("", "plain"), AnswerText("", "# styled")]
    scores = score_cohort(ScoringRules(group_style_penalty_coeff=1.0), styled, [Compared(0, 1, 0, Verdict(3, 3, 3.5))])
    assert scores.rewards == (3.5, 2.5)


# --- the baseline


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n", [1, 3])
def test_the_baseline_is_rated_with_the_members_and_told_nothing(n: int, method: Method) -> None:
    rules = ScoringRules(aggregator_method=method, group_answer_length_penalty_coeff=1.0)
    compared = [Compared(p.i, p.j, p.judge_index, A if p.i == 0 else B) for p in baseline_plan("key", n, 2)]
    scores = score_cohort(rules, answers(n), compared, baseline=True)
    raw = [member["reward_score_raw"] for member in scores.members]
    assert len(raw) == n
    assert raw == sorted(raw, key=lambda score: -float(str(score)))
    assert float(str(raw[0])) > 3.0
    assert sum(float(str(member["reward_length_adjustment"])) for member in scores.members) == pytest.approx(0.0)


def test_a_member_without_a_verdict_against_the_baseline_fails_the_judge() -> None:
    with pytest.raises(ScoringFailed, match="answer 1"):
        score_cohort(ScoringRules(), answers(2), [Compared(0, 2, 0, A), Compared(1, 2, 0, None)], baseline=True)


# --- tokens


def test_token_numbers_are_over_the_comparisons_that_told_their_usage() -> None:
    compared = [
        Compared(0, 1, 0, A, None, Usage(10, 1, hit_max=True)),
        Compared(0, 1, 1, A, None, Usage(20, 3, hit_max=False)),
        Compared(0, 1, 2, A, None, None),
    ]
    member = score_cohort(ScoringRules(), answers(2), compared).members[1]
    assert {name: value for name, value in member.items() if "token" in name} == {
        "genrm_input_tokens_per_comparison_mean": 15.0,
        "genrm_input_tokens_per_comparison_p50": 15.0,
        "genrm_input_tokens_per_comparison_p95": 19.5,
        "genrm_output_tokens_per_comparison_mean": 2.0,
        "genrm_output_tokens_per_comparison_p50": 2.0,
        "genrm_output_tokens_per_comparison_p95": pytest.approx(2.9),
        "genrm_output_tokens_total_per_group": 4.0,
        "genrm_max_output_tokens_hit_rate_per_group": 0.5,
    }


def test_without_usage_the_token_numbers_are_null_and_left_out_of_the_metrics() -> None:
    scores = score_cohort(ScoringRules(), answers(2), [Compared(0, 1, 0, A)])
    assert [value for name, value in scores.members[0].items() if "token" in name] == [None] * 8
    assert set(scores.metrics) == {
        "mean_individual_score",
        "std_individual_score",
        "tiebreak_usage_rate",
        "genrm_parse_failure_rate_per_group",
        "genrm_rubric_parse_failure_rate_per_group",
    }


# --- what must never be


@pytest.mark.parametrize(
    "verdict", [Verdict(math.inf, 1.0, 1.0), Verdict(1.7e308, 1.7e308, -1.7e308), Verdict(3.0, 3.0, math.nan)]
)
def test_a_reward_that_is_no_finite_number_is_an_error(verdict: Verdict) -> None:
    with pytest.raises(NonFiniteReward):
        score_cohort(ScoringRules(), answers(2), [Compared(0, 1, 0, verdict), Compared(1, 0, 0, verdict)])


def test_the_largest_scores_give_finite_rewards() -> None:
    verdict = Verdict(sys.float_info.max, sys.float_info.max, 1.0)
    found = score_cohort(ScoringRules(), answers(2), [Compared(0, 1, 0, verdict), Compared(1, 0, 0, verdict)])
    assert found.rewards == (sys.float_info.max, sys.float_info.max)
    assert found.metrics["std_individual_score"] == 0.0


@pytest.mark.parametrize(("i", "j"), [(0, 2), (-1, 0), (1, 1), (3, 0)])
def test_a_comparison_of_nobody_is_an_error(i: int, j: int) -> None:
    with pytest.raises(ValueError, match="there is no pair"):
        score_cohort(ScoringRules(), answers(2), [Compared(i, j, 0, A)])


@pytest.mark.parametrize("name", ["aggregator_method", "score_source", "on_unparseable_verdict"])
def test_a_wrong_rule_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} 'x' is not one of"):
        ScoringRules(**{name: "x"})  # type: ignore[arg-type]  # the wrong value is the point


@pytest.mark.parametrize("method", METHODS)
def test_flipped_asks_come_to_the_same_rewards(method: Method) -> None:
    rules = ScoringRules(aggregator_method=method)
    quality = [1.0, 4.0, 2.0, 5.0]

    def judged(first: int, second: int) -> Verdict:
        return Verdict(quality[first], quality[second], 1.0 if quality[first] > quality[second] else 6.0)

    rewards = set()
    for order in ("fixed", "balanced", "both"):
        compared = []
        for p in plan("all_pairs", 4, 2, order):
            said = judged(p.first, p.second)
            compared.append(Compared(p.i, p.j, p.judge_index, said.flipped() if p.flipped else said))
        rewards.add(tuple(round(float(str(r)), 2) for r in score_cohort(rules, answers(4), compared).rewards))
    if method == "bradley_terry":  # twice the comparisons weigh more against the prior
        assert {tuple(sorted(range(4), key=r.__getitem__)) for r in rewards} == {(0, 2, 1, 3)}
    else:
        assert len(rewards) == 1
