"""Capture keys, episodes and cohort keys: contract 2 and 5.3."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genrm_trio.core.identity import (
    MAX_ATTEMPT,
    EpisodeId,
    cohort_key_suffix,
    group_cohort_id,
    parse_capture_key,
    ungrouped_cohort_id,
)
from genrm_trio.core.record import Rebuild, StateRefused
from genrm_trio.core.state import Limits

VECTORS = json.loads((Path(__file__).parent.parent / "data" / "vectors.json").read_text(encoding="utf-8"))["vectors"]
KEYS = [v for v in VECTORS if v["rule"] == "capture key -> episode id"]


@pytest.mark.parametrize("vector", KEYS, ids=[v["id"] for v in KEYS])
def test_a_capture_key_names_the_episode_of_the_vector(vector: dict[str, dict[str, str]]) -> None:
    key = vector["input"]["capture_key"]
    episode = parse_capture_key(key)
    assert {"rollout_id": episode.rollout_id, "attempt": episode.attempt} == vector["output"]
    assert episode.key == key


@pytest.mark.parametrize("key", ["", "-a1", ".r", "_r", "r/x", "r%20", "ü", "r\n", "r-a1-a2", "r\x00"])
def test_what_is_not_in_the_grammar_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match=r"capture key|must not end"):
        parse_capture_key(key)


@pytest.mark.parametrize(("rollout", "attempt"), [("r-a1", 0), ("r-a12", 3), ("r", -1)])
def test_an_episode_that_its_key_could_not_name_is_refused(rollout: str, attempt: int) -> None:
    with pytest.raises(ValueError, match="must"):
        EpisodeId(rollout, attempt)


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True), st.integers(0, MAX_ATTEMPT - 1))
def test_every_episode_comes_back_from_its_key(rollout: str, attempt: int) -> None:
    try:
        episode = EpisodeId(rollout, attempt)
    except ValueError:
        assert parse_capture_key(f"x{rollout}").attempt > 0, "only a rollout id that looks like an attempt is refused"
        return
    assert parse_capture_key(episode.key) == episode
    assert episode.next.attempt == attempt + 1


@given(st.text(max_size=40))
def test_reading_a_key_fails_only_with_a_value_error(text: str) -> None:
    try:
        assert parse_capture_key(text).key == text
    except ValueError:
        return


def test_the_keys_of_cohorts() -> None:
    assert group_cohort_id("g", 2).key == "group_id::g::group_attempt::2"
    assert ungrouped_cohort_id("d", 1, task_index=7).key == "task_idx::7::d::group_attempt::1"
    assert ungrouped_cohort_id("d", 0, prompt_id="p").key == "prompt_id::p::d::group_attempt::0"
    assert ungrouped_cohort_id("d", 0).key == "d::group_attempt::0"
    assert ungrouped_cohort_id("d", 0, task_index=0, prompt_id="p").key.startswith("task_idx::0::")
    assert (group_cohort_id("g", 2).group, group_cohort_id("g", 2).attempt) == ("g", 2)
    assert ungrouped_cohort_id("d", 1).group is None


def test_the_suffixes_come_in_order_baseline_then_rubrics() -> None:
    assert cohort_key_suffix() == ""
    assert cohort_key_suffix(baseline_sha256="b", rubric_ids=(1, 2, 5)) == ":b:rubrics:1,2,5"
    suffix = cohort_key_suffix(rubric_ids=(-1, 3))
    assert group_cohort_id("g", 0, suffix).key == "group_id::g::group_attempt::0:rubrics:-1,3"
    assert ungrouped_cohort_id("d", 0, suffix=suffix).key == "d::group_attempt::0:rubrics:-1,3"


@pytest.mark.parametrize("digits", ["1" + "0" * 18, "9" * 19, "9" * 4300, "9" * 100_000])
def test_a_key_with_an_attempt_beyond_all_bounds_is_none(digits: str) -> None:
    with pytest.raises(ValueError, match="attempt"):
        parse_capture_key(f"r-a{digits}")


def test_the_largest_attempt_cannot_be_restored_into_a_next_one() -> None:
    with pytest.raises(StateRefused, match="no next one"):
        Rebuild(Limits(2), 0.0).add(EpisodeId("r", MAX_ATTEMPT), "s", {})


def test_the_largest_attempt_has_a_key_that_can_be_read() -> None:
    last = EpisodeId("r", MAX_ATTEMPT)
    assert parse_capture_key(last.key) == last
    with pytest.raises(ValueError, match="at most"):
        _ = last.next
