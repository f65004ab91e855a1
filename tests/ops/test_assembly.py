"""Every setting reaches the room it is for, and what cannot be built is one message."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genrm_trio.core.state import Limits
from genrm_trio.judging.judge import Unobserved
from genrm_trio.judging.recorded import RecordedJudge
from genrm_trio.judging.recorder import Recorder
from genrm_trio.judging.scoring import ScoringRules
from genrm_trio.judging.transport import HttpJudge
from genrm_trio.judging.verdict import VerdictRules
from genrm_trio.ops import assembly
from genrm_trio.ops.complaints import StartupError
from genrm_trio.ops.settings import LimitSettings, Settings
from genrm_trio.ops.sources import example_rows
from genrm_trio.web.policy import WebPolicy
from genrm_trio.web.serving.limits import ServingLimits

JUDGE: dict[str, object] = {"base_url": "http://judge:1"}


def settings(**given: object) -> Settings:
    return Settings.model_validate({"judge": JUDGE, **given})


def test_the_defaults_of_the_inner_rooms_are_those_of_the_settings() -> None:
    defaults = settings()
    assert assembly.verdict_rules(defaults) == VerdictRules()
    assert assembly.scoring_rules(defaults) == ScoringRules()
    assert assembly.serving_limits(defaults) == ServingLimits()
    assert assembly.state_limits(defaults) == Limits(cohort_size=1, max_held_members=32768)


def test_every_bound_of_serving_is_a_setting() -> None:
    known = set(Settings.model_fields) | set(LimitSettings.model_fields)
    assert {field.name for field in fields(ServingLimits)} <= known
    others = {"max_log_line", "max_sessions", "max_aggregate_numbers", "max_json_values", "loop_stuck_s"}
    ours = set(LimitSettings.model_fields) - others
    assert ours <= {field.name for field in fields(ServingLimits)}, "a bound that nothing reads"


def test_every_endpoint_of_a_panel_has_sockets_of_its_own_and_a_recording_none() -> None:
    panel = {"panel": [{"base_url": f"http://judge:{port}"} for port in (1, 2, 3)], "max_concurrency": 5}
    recorded = {"backend": "recorded", "recording": __file__}
    assert [assembly.sockets(settings(judge=judge)).calls for judge in (JUDGE, panel, recorded)] == [256, 15, 0]


def test_what_a_limit_of_open_files_leaves_is_divided_as_the_contract_asks() -> None:
    asked = settings(num_rollouts_per_prompt=16)
    left = assembly.within_descriptors(asked, 1024)
    assert (left.max_connections, left.limits.refusal_connections, left.max_held_members) == (560, 80, 304)
    assert left.judge == asked.judge
    assert assembly.within_descriptors(asked, 40_000) == asked
    small = settings(num_rollouts_per_prompt=2, max_held_members=4)
    assert assembly.within_descriptors(small, 1024).max_held_members == 4


@given(st.integers(1, 100), st.integers(0, 300))
def test_a_limit_that_leaves_no_cohort_names_one_that_does(size: int, refusals: int) -> None:
    asked = settings(num_rollouts_per_prompt=size, limits={"refusal_connections": refusals})
    with pytest.raises(StartupError, match=r"limit of open files is 256, but .* must be at least ([0-9]+)") as caught:
        assembly.within_descriptors(asked, 256)
    least = int(re.findall(r"at least ([0-9]+)", str(caught.value))[0])
    assert assembly.within_descriptors(asked, least).max_held_members >= size


def test_every_scoring_setting_arrives() -> None:
    given: dict[str, object] = {
        "aggregator_method": "win_rate",
        "score_source": "rubric_mean",
        "score_range": (0.0, 10.0),
        "on_unparseable_verdict": "default_scores",
        "min_comparisons": 0,
        "default_score": 4.0,
        "default_ranking": 4.5,
        "group_style_penalty_coeff": 0.1,
        "reasoning_bonus": 0.2,
        "answer_bonus": 0.3,
        "group_reasoning_length_penalty_coeff": 0.4,
        "group_answer_length_penalty_coeff": 0.5,
        "top_percentile": 0.6,
    }
    assert set(given) == {field.name for field in fields(ScoringRules)}
    rules = assembly.scoring_rules(settings(**given))
    assert {name: getattr(rules, name) for name in given} == given


def test_the_policy_takes_the_cohort_settings() -> None:
    built = assembly.policy(
        settings(
            num_rollouts_per_prompt=4,
            cohort_collection_timeout_s=1,
            cohort_evaluation_timeout_s=2,
            cohort_result_ttl_s=None,
            session_idle_ttl_s=3,
            max_terminal_cohorts=5,
            max_held_members=8,
            comparison_strategy="all_pairs",
            num_judges_per_comparison=6,
            pair_order="both",
            use_principle=True,
            default_principle="p",
            judge_start="as_pairs_arrive",
            score_source="rubric_mean",
            judge={**JUDGE, "max_concurrency": 7},
            limits={"max_sessions": 9},
        )
    )
    assert (built.collection_timeout_s, built.evaluation_timeout_s) == (1, 2)
    assert (built.strategy, built.judges, built.pair_order) == ("all_pairs", 6, "both")
    assert (built.principle(None), built.principle("q"), built.judge_start) == ("p", "q", "as_pairs_arrive")
    assert built.max_concurrency == 7
    assert built.limits == Limits(4, 5, None, 3, 8, max_sessions=9, rubrics=True)


def test_checkpoints_and_a_baseline_change_what_the_state_keeps() -> None:
    limits = assembly.state_limits(
        settings(
            comparison_mode="fixed_baseline",
            checkpoint={"enabled": True, "control_auth_token": "t"},
            session_secret="s",
        )
    )
    assert limits.record_sessions
    assert limits.fixed_baseline


def test_the_web_room_gets_its_secrets_in_clear_and_never_an_empty_one() -> None:
    given = settings(
        name="my_genrm",
        session_secret="s",
        data_auth_token="d",
        close_follows_header="x-c",
        checkpoint={"enabled": True, "control_auth_token": "c"},
    )
    assert assembly.web_policy(given) == WebPolicy("my_genrm", "s", "x-c", "d", True, "c")
    first, second = assembly.web_policy(settings()), assembly.web_policy(settings())
    assert first.session_secret != second.session_secret
    assert first.data_auth_token is None


def test_every_bound_arrives_wherever_it_is_asked_for() -> None:
    shipped = LimitSettings()
    changed = {name: value + 1 for name, value in shipped.model_dump().items() if name != "max_sessions"}
    given = settings(limits={**changed, "max_sessions": 9})
    rooms = [assembly.state_limits(given), assembly.serving_limits(given), assembly.web_policy(given)]
    arrived = set()
    for name, value in given.limits.model_dump().items():
        for room in rooms:
            if hasattr(room, name):
                assert getattr(room, name) == value, (name, room)
                arrived.add(name)
    assert set(shipped.model_dump()) - arrived == {"loop_stuck_s", "max_log_line"}, "the process itself reads these"


async def test_judges_are_made_of_their_addresses() -> None:
    panel = [{"base_url": "http://a:1", "weight": 2}, {"base_url": "http://b:2", "api_key": "own", "model": "x"}]
    built = assembly.make_judge(settings(judge={"panel": panel, "api_key": "shared", "model": "m"}), Unobserved())
    assert isinstance(built, HttpJudge)
    assert [seat.endpoint for seat in built.panel.health()] == ["a:1#m", "b:2#x"]
    assert built.rules.name == "judge"
    await built.aclose()
    named = assembly.make_judge(settings(genrm_model_server={"name": "my_judge"}, genrm_parse_retries=0), Unobserved())
    assert isinstance(named, HttpJudge)
    assert (named.rules.name, named.rules.attempts) == ("my_judge", 1)
    await named.aclose()


async def test_the_recorded_judge_reads_its_file_and_a_recorder_stands_before_any_judge(tmp_path: Path) -> None:
    rows = {"backend": "recorded", "recording": str(example_rows())}
    recorded = assembly.make_judge(settings(judge=rows), Unobserved())
    assert isinstance(recorded, RecordedJudge)
    assert len(recorded) == 8
    recording = assembly.recorded_to(tmp_path / "said.jsonl", recorded, Unobserved())
    assert isinstance(recording, Recorder)
    await recording.aclose()
    with pytest.raises(StartupError, match="--record"):
        assembly.recorded_to(tmp_path / "no" / "said.jsonl", recorded, Unobserved())


@pytest.mark.parametrize("address", [JUDGE, {}], ids=["with an address", "without"])
@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe\x00"])
def test_a_recording_without_verdicts_never_asks_a_live_judge(
    content: bytes, address: dict[str, object], tmp_path: Path
) -> None:
    path = tmp_path / "said.jsonl"
    path.write_bytes(content)
    judge = {**address, "backend": "recorded", "recording": str(path)}
    with pytest.raises(StartupError, match=r"said\.jsonl: (the recording is empty|line 1 is not JSON)"):
        assembly.make_judge(settings(judge=judge), Unobserved())


@pytest.mark.parametrize(
    ("given", "fragment"),
    [
        ({"judge": {**JUDGE, "api_key": "two words"}}, "api_key"),
        ({"judge": {"panel": [JUDGE, JUDGE]}}, "twice"),
        ({"genrm_responses_create_params": {"stream": True}}, "stream"),
    ],
)
def test_what_cannot_be_built_is_one_message(given: dict[str, object], fragment: str) -> None:
    with pytest.raises(StartupError, match=fragment):
        assembly.make_judge(settings(**given), Unobserved())


def test_a_broken_template_names_its_file(tmp_path: Path) -> None:
    path = tmp_path / "judge.jinja"
    path.write_text("{{ respons_1 }}")
    with pytest.raises(StartupError, match="respons_1"):
        assembly.make_judge(settings(judge={**JUDGE, "backend": "chat", "template": str(path)}), Unobserved())
