"""Which settings decide scores, as one digest: rows made under two digests must not stand in one file.

Only judges and scores count. Bounds, times and secrets change when groups are judged, not what comes of it.
"""

import json
from hashlib import sha256
from pathlib import Path

from pydantic import JsonValue

from genrm_trio.ops.complaints import StartupError
from genrm_trio.ops.settings import JudgeSettings, Settings

SCORE_FIELDS = frozenset(
    {"genrm_responses_create_params", "comparison_strategy", "num_judges_per_comparison", "pair_order"}
    | {"use_principle", "default_principle", "aggregator_method", "score_source", "verdict_rules", "score_range"}
    | {"ranking_range", "on_unparseable_verdict", "min_comparisons", "default_score", "default_ranking"}
    | {"reasoning_bonus", "answer_bonus", "group_reasoning_length_penalty_coeff", "top_percentile"}
    | {"group_answer_length_penalty_coeff", "group_style_penalty_coeff", "genrm_parse_retries"}
)


def score_digest(settings: Settings) -> str:
    """Return the SHA-256 of all settings that decide the scores of a group, as hex digits.

    Raises:
        StartupError: a file that belongs to them cannot be read.
    """
    decisive: dict[str, JsonValue] = settings.model_dump(mode="json", include=set(SCORE_FIELDS))
    decisive["judge"] = _judge(settings.judge)
    return sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def _judge(judge: JudgeSettings) -> JsonValue:
    """Who judges: the model where it has a name, so that it may move to another address; else the addresses."""
    seats: set[tuple[str, str]] = {(judge.model or "", "" if judge.model else judge.base_url or "")}
    if judge.panel:
        named = [(seat.model or judge.model or "", seat.base_url) for seat in judge.panel]
        seats = {(model, "" if model else base_url) for model, base_url in named}
    files = {"template": judge.template, "recording": judge.recording if judge.backend == "recorded" else None}
    return {
        "backend": judge.backend,
        "json_schema": judge.json_schema,
        "seats": [list(seat) for seat in sorted(seats)],
        **{name: _content(path) for name, path in files.items()},
    }


def _content(path: Path | None) -> str | None:
    try:
        return None if path is None else sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise StartupError(f"{path}: {error.strerror}") from error
