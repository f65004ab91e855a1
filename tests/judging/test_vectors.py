"""Every worked number of the contract, one test each, by the id it has in `vectors.json`.

A vector marked `differs_on_purpose` asserts our value. A rule without a check here fails, so none can be forgotten.
"""

import json
import math
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from tests.support.tables import aggregate_metrics

from genrm_trio.core.identity import parse_capture_key
from genrm_trio.judging import adjustments, digest, figures, pairs, scoring, text, verdict

VECTORS = Path(__file__).parent.parent / "data" / "vectors.json"
CHECKS: dict[str, Callable[[Any, Any], None]] = {}


@cache
def vectors() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(VECTORS.read_text(encoding="utf-8"))["vectors"]
    return found


def checks(rule: str) -> Callable[[Callable[[Any, Any], None]], Callable[[Any, Any], None]]:
    def keep(check: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        CHECKS[rule] = check
        return check

    return keep


def close(value: object) -> Any:
    return pytest.approx(value, abs=1e-9, rel=0)


@pytest.mark.parametrize("vector", vectors(), ids=lambda vector: vector["id"])
def test_vector(vector: dict[str, Any]) -> None:
    output = OURS[vector["id"]] if "differs_on_purpose" in vector else vector["output"]
    CHECKS[vector["rule"]](vector["input"], output)


def test_every_vector_is_exercised() -> None:
    assert [vector["id"] for vector in vectors()] == [f"v{number:03}" for number in range(1, 168)]
    assert {vector["rule"] for vector in vectors()} == set(CHECKS)
    assert {vector["id"] for vector in vectors() if "ours" in vector} == set(OURS)


OURS = {
    # "all counts 0, density 0.0": CJK text is not emoji (contract 14.4).
    "v074": {
        "counts": {"header_count": 0, "list_count": 0, "bold_count": 0, "emoji_count": 0},
        "density": 0.0,
    },
}


@checks("pairs")
def check_pairs(given: Any, output: Any) -> None:
    if "error" in output:
        with pytest.raises(ValueError, match="comparison"):
            pairs.plan(given["strategy"], given["n"], order="fixed")
        return
    planned = pairs.plan(given["strategy"], given["n"], order="fixed")
    assert [[p.first, p.second] for p in planned] == output
    assert [[p.i, p.j] for p in planned] == output


@checks("verdict (lenient rules)")
def check_verdict(given: Any, output: Any) -> None:
    rules = verdict.VerdictRules(
        mode="lenient", default_score=given["default_score"], default_ranking=given["default_ranking"]
    )
    read = verdict.read_verdict(given["text"], rules)
    assert (read is None) == output["parse_failed"]
    neutral = scoring.ScoringRules(
        default_score=given["default_score"], default_ranking=given["default_ranking"]
    ).neutral
    assert triple(read or neutral) == output["scores"]


@checks("verdict (rubric_mean)")
def check_rubric(given: Any, output: Any) -> None:
    for mode in ("lenient", "strict"):
        rules = verdict.VerdictRules(mode=mode)
        read = verdict.read_rubric(given["text"], rules, given["expected_rubric_ids"])
        assert (read is None) == output["parse_failed"]
        if read is not None:
            assert triple(read) == close(output["scores"])


def triple(read: verdict.Verdict) -> list[float]:
    return [read.score_1, read.score_2, read.ranking]


@checks("reasoning and answer extraction")
def check_extraction(given: Any, output: Any) -> None:
    read = text.read_output(given.get("output") if isinstance(given, dict) else given)
    assert {"reasoning": read.reasoning, "answer": read.answer, "judge_text": read.judge_text} == output


@checks("conversation history from responses_create_params.input")
def check_conversation(given: Any, output: Any) -> None:
    assert [{"role": turn.role, "content": turn.content} for turn in text.conversation(given["input"])] == output


@checks("style counts and density")
def check_style(given: Any, output: Any) -> None:
    counts = adjustments.style_counts(given["text"])
    assert {
        "header_count": counts.headers,
        "list_count": counts.list_items,
        "bold_count": counts.bold,
        "emoji_count": counts.emoji,
    } == output["counts"]
    assert adjustments.style_density(given["text"]) == close(output["density"])


@checks("style weights")
def check_style_weights(given: Any, output: Any) -> None:
    assert adjustments.relative_weights(given["densities"]) == close(output)


@checks("length weights")
def check_length_weights(given: Any, output: Any) -> None:
    assert adjustments.relative_weights(given["lengths"]) == close(output)


def answers(given: Any) -> list[text.AnswerText]:
    return [text.read_output(response["output"]) for response in given["response_objs"]]


def changed(scores: list[float], changes: list[float]) -> list[float]:
    return [score + change for score, change in zip(scores, changes, strict=True)]


@checks("length adjustments")
def check_length(given: Any, output: Any) -> None:
    rules = adjustments.LengthRules(**{k: v for k, v in given.items() if k not in {"scores", "response_objs"}})
    changes = adjustments.length_changes(given["scores"], answers(given), rules)
    assert changes == close(output["bonuses"])
    assert changed(given["scores"], changes) == close(output["scores"])


@checks("style adjustments")
def check_style_changes(given: Any, output: Any) -> None:
    changes = adjustments.style_changes(answers(given), given["coeff"])
    assert changes == close(output["adjustments"])
    assert changed(given["scores"], changes) == close(output["scores"])


@checks("aggregation (simple_tiebreaker, length and style adjustments)")
def check_aggregation(given: Any, output: Any) -> None:
    settings = {k: v for k, v in given.items() if k not in {"results", "metadata", "response_objs"}}
    if "error" in output:
        with pytest.raises(ValueError, match="aggregator_method"):
            scoring.ScoringRules(**settings)
        return
    rules = scoring.ScoringRules(on_unparseable_verdict="default_scores", **settings)
    compared = [
        scoring.Compared(i, j, judge, verdict.Verdict(*result))
        for (i, j, judge), result in zip(given["metadata"], given["results"], strict=True)
    ]
    scores = scoring.score_cohort(rules, answers(given), compared)
    assert list(scores.rewards) == close(output["rewards"])
    assert [member["reward_score_raw"] for member in scores.members] == close(output["base_scores"])
    assert [member["reward_length_adjustment"] for member in scores.members] == close(output["bonuses"])
    assert {k: v for k, v in scores.metrics.items() if not k.startswith("genrm_")} == close(output["metrics"])


@checks("prompt digest (raw JSON input)")
def check_raw_prompt(given: Any, output: Any) -> None:
    assert sha256(digest.prompt_text(given["input"], given["principle"]).encode("ascii")).hexdigest() == output


@checks("prompt digest (after request validation)")
def check_prompt(given: Any, output: Any) -> None:
    assert digest.normalised_input(given["input"]) == output["normalised_input"]
    assert digest.prompt_digest(given["input"], given["principle"]) == output["digest"]


def spoken(value: Any) -> Any:
    """Replace the stand-ins for what a JSON file cannot carry."""
    if isinstance(value, dict) and set(value) == {"nonfinite"}:
        return float(value["nonfinite"])
    if isinstance(value, dict) and set(value) == {"lone_surrogate"}:
        return json.loads(f'"{value["lone_surrogate"]}"')
    return {k: spoken(v) for k, v in value.items()} if isinstance(value, dict) else value


@checks("response digest (scheme json-ascii-sha256)")
def check_canonical(given: Any, output: Any) -> None:
    written = digest.canonical(spoken(given))
    assert written == output["canonical"]
    assert sha256(written.encode("ascii")).hexdigest() == output["sha256"]


@checks("response digest (after response validation)")
def check_legacy(given: Any, output: Any) -> None:
    assert digest.response_digest(json.dumps(given).encode(), digest.LEGACY_SCHEME) == output["sha256"]


@checks("token percentile")
def check_percentile(given: Any, output: Any) -> None:
    values = given["values"]
    assert figures.percentile(values, 0.5) == close(output["p50"])
    assert figures.percentile(values, 0.95) == close(output["p95"])
    assert math.fsum(values) / len(values) == close(output["mean"])


@checks("fixed_baseline order")
def check_baseline(given: Any, output: Any) -> None:
    planned = pairs.baseline_plan(given["prompt_key"], given["response_index"] + 1, given["judge_index"] + 1)
    [asked] = [p for p in planned if (p.i, p.judge_index) == (given["response_index"], given["judge_index"])]
    assert (asked.first == asked.i) == output["rollout_is_response_1"]
    assert asked.flipped != output["rollout_is_response_1"]


@checks("capture key -> episode id")
def check_capture_key(given: Any, output: Any) -> None:
    episode = parse_capture_key(given["capture_key"])
    assert {"rollout_id": episode.rollout_id, "attempt": episode.attempt} == output
    assert episode.key == given["capture_key"]


@checks("aggregate_metrics")
def check_aggregate(given: Any, output: Any) -> None:
    ours = aggregate_metrics(given["verify_responses"])
    assert_alike(ours, output, "")


def assert_alike(ours: Any, theirs: Any, where: str) -> None:
    if isinstance(theirs, dict):
        assert isinstance(ours, dict), where
        assert set(ours) == set(theirs), where
        for key in theirs:
            assert_alike(ours[key], theirs[key], f"{where}.{key}")
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs), where
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_alike(one, other, f"{where}[{index}]")
    elif isinstance(theirs, float):
        assert isinstance(ours, float), where
        assert ours == close(theirs), where
    else:
        assert ours == theirs, where
        assert type(ours) is type(theirs), where
