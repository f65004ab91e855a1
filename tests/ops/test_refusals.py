"""Every combination of settings that start-up refuses, and its nearest neighbour that is accepted."""

from pathlib import Path

import pytest

from genrm_trio.ops.refusals import RULES, comparisons_per_member, refusals
from genrm_trio.ops.settings import Settings

JUDGE = {"base_url": "http://judge:1"}
TOKEN = {"enabled": True, "control_auth_token": "t"}

CASES: list[tuple[str, dict[str, object], dict[str, object], str]] = [
    ("one_worker", {"num_workers": 2, "num_rollouts_per_prompt": 2}, {"num_workers": 2}, "num_workers is 2"),
    (
        "one_worker",
        {"num_workers": 2, "comparison_mode": "fixed_baseline"},
        {"num_workers": 1, "comparison_mode": "fixed_baseline"},
        "num_workers is 2",
    ),
    ("instance_name", {"name": "-x"}, {"name": "x-"}, "name is '-x'"),
    ("instance_name", {"name": "a/b"}, {"name": "a.b"}, "name is 'a/b'"),
    (
        "checkpoint_token",
        {"checkpoint": {"enabled": True}, "session_secret": "s"},
        {"checkpoint": TOKEN, "session_secret": "s"},
        "control_auth_token",
    ),
    ("checkpoint_secret", {"checkpoint": TOKEN}, {"checkpoint": TOKEN, "session_secret": "s"}, "session_secret"),
    (
        "connection_bound",
        {"max_held_members": 100, "max_connections": 355},
        {"max_held_members": 100, "max_connections": 356},
        "at least 356",
    ),
    (
        "held_bound",
        {"max_held_members": 3, "num_rollouts_per_prompt": 4},
        {"max_held_members": 4, "num_rollouts_per_prompt": 4},
        "not even one cohort",
    ),
    ("judge_address", {"judge": {}}, {"judge": {"panel": [JUDGE]}}, "judge.base_url"),
    ("one_address", {"judge": {**JUDGE, "panel": [JUDGE]}}, {"judge": JUDGE}, "judge.panel"),
    ("recording", {"judge": {"backend": "recorded"}}, {"judge": JUDGE}, "names no file"),
    ("recording", {"judge": {"backend": "recorded", "recording": "/nowhere"}}, {"judge": JUDGE}, "cannot be read"),
    ("recording", {"judge": {**JUDGE, "recording": "/nowhere"}}, {"judge": JUDGE}, "only for judge.backend recorded"),
    ("template", {"judge": {**JUDGE, "template": "/nowhere"}}, {"judge": JUDGE}, "only for judge.backend chat"),
    (
        "template",
        {"judge": {**JUDGE, "backend": "chat", "template": "/nowhere"}},
        {"judge": {**JUDGE, "backend": "chat"}},
        "cannot be read",
    ),
    ("ranges", {"score_range": [5, 1]}, {"score_range": [1, 5]}, "score_range is [5, 1]"),
    ("ranges", {"ranking_range": [2, 2]}, {"ranking_range": [1, 2]}, "ranking_range is [2, 2]"),
    (
        "comparison_bound",
        {"num_rollouts_per_prompt": 17, "max_comparisons": 16},
        {"num_rollouts_per_prompt": 16, "max_comparisons": 16},
        "max_comparisons is 16, but a cohort of num_rollouts_per_prompt 17 takes 17 comparisons",
    ),
    (
        "comparison_bound",
        {
            "num_rollouts_per_prompt": 4,
            "comparison_strategy": "all_pairs",
            "pair_order": "both",
            "num_judges_per_comparison": 3,
            "max_comparisons": 35,
        },
        {
            "num_rollouts_per_prompt": 4,
            "comparison_strategy": "all_pairs",
            "pair_order": "both",
            "num_judges_per_comparison": 3,
            "max_comparisons": 36,
        },
        "comparison_strategy all_pairs, pair_order both and num_judges_per_comparison 3",
    ),
    (
        "comparison_bound",
        {"comparison_mode": "fixed_baseline", "num_judges_per_comparison": 3, "max_comparisons": 2},
        {"comparison_mode": "fixed_baseline", "num_judges_per_comparison": 3, "max_comparisons": 3},
        "3 comparisons with comparison_mode fixed_baseline",
    ),
    (
        "comparison_bound",
        {"num_rollouts_per_prompt": 8, "aggregator_method": "bradley_terry", "max_comparisons": 27},
        {"num_rollouts_per_prompt": 8, "aggregator_method": "bradley_terry", "max_comparisons": 28},
        "bradley_terry fits 28 pairs of num_rollouts_per_prompt 8",
    ),
    (
        "reachable_minimum",
        {"num_rollouts_per_prompt": 4, "min_comparisons": 3},
        {"num_rollouts_per_prompt": 4, "min_comparisons": 3, "comparison_strategy": "all_pairs"},
        "only 2 comparisons",
    ),
    ("grace", {"shutdown_grace_s": 0.5}, {"shutdown_grace_s": 0.6}, "shutdown_reserve_s"),
]


def settings(**fields: object) -> Settings:
    return Settings.model_validate({"judge": JUDGE, **fields})


@pytest.mark.parametrize(("rule", "bad", "good", "fragment"), CASES)
def test_the_rule_refuses_and_its_neighbour_passes(
    rule: str, bad: dict[str, object], good: dict[str, object], fragment: str
) -> None:
    said = {check.__name__: check(settings(**bad)) for check in RULES}
    assert fragment in (said[rule] or "")
    assert refusals(settings(**good)) == []


def test_every_rule_has_a_case() -> None:
    assert {rule.__name__ for rule in RULES} == {case[0] for case in CASES} | {"linked_comparisons"}


def test_comparisons_that_leave_members_apart_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"num_rollouts_per_prompt": 4, "aggregator_method": "bradley_terry"}
    assert refusals(settings(**fields)) == []
    monkeypatch.setattr("genrm_trio.ops.refusals.pairs", lambda strategy, n: ((0, 1), (2, 3)))
    (said,) = refusals(settings(**fields))
    assert "bradley_terry needs comparisons that link all 4 members" in said
    assert refusals(settings(num_rollouts_per_prompt=4)) == [], "other methods need no links"


def test_defaults_with_a_judge_are_accepted(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.touch()
    assert refusals(settings()) == []
    assert refusals(settings(judge={"backend": "recorded", "recording": str(rows)})) == []


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"num_rollouts_per_prompt": 2}, 2),
        ({"num_rollouts_per_prompt": 16}, 2),
        ({"num_rollouts_per_prompt": 16, "comparison_strategy": "all_pairs"}, 15),
        ({"num_rollouts_per_prompt": 16, "comparison_strategy": "all_pairs", "pair_order": "both"}, 30),
        ({"num_rollouts_per_prompt": 16, "num_judges_per_comparison": 3}, 6),
        ({"comparison_mode": "fixed_baseline", "num_judges_per_comparison": 3, "pair_order": "both"}, 3),
    ],
)
def test_comparisons_of_one_member(fields: dict[str, object], expected: int) -> None:
    assert comparisons_per_member(settings(**fields)) == expected
