"""Settings: sources and their order, unknown fields, secrets, Gym's start (contract chapters 12 and 13)."""

import os
import re
from pathlib import Path

import pytest
import yaml

from genrm_trio.ops.complaints import StartupError
from genrm_trio.ops.settings import Settings, secrets_of
from genrm_trio.ops.sources import Loaded, load, shown

JUDGE = "judge: {base_url: 'http://judge:8000'}\n"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.startswith(("GENRM_TRIO_", "NEMO_GYM_"))]:
        monkeypatch.delenv(name)


def from_yaml(tmp_path: Path, text: str, **flags: object) -> Loaded:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return load(path, flags)


def refused(tmp_path: Path, text: str, **flags: object) -> str:
    with pytest.raises(StartupError) as caught:
        from_yaml(tmp_path, text, **flags)
    return str(caught.value)


def documented_defaults() -> dict[str, str]:
    """Read the field tables of contract 12 and 13: each name with the text of its default column."""
    text = (Path(__file__).parents[2] / "docs" / "contract.md").read_text(encoding="utf-8")
    chapters = text[text.index("## 12.") : text.index("## 14.")]
    defaults = {}
    for line in chapters.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 3 and cells[0].startswith("`"):
            names = re.findall(r"`([a-z_.]+)`", cells[0])
            values = re.split(r", (?![^\[]*\])", cells[1]) if len(names) > 1 else [cells[1]]
            for position, name in enumerate(names):
                defaults[name] = values[position] if position < len(values) else values[0]
    return defaults


def value_of(settings: Settings, name: str) -> object:
    value: object = settings.model_dump(mode="json")
    for part in name.split("."):
        assert isinstance(value, dict)
        value = value[part]
    return value


def test_every_documented_field_has_its_documented_default(tmp_path: Path) -> None:
    settings = from_yaml(tmp_path, JUDGE).settings
    loose = {"entrypoint", "default_principle", "genrm_responses_create_params", "genrm_model_server"}
    loose |= {"num_workers", "judge.base_url"}
    checked = 0
    for name, text in documented_defaults().items():
        if name in loose:
            continue
        expected = yaml.safe_load(text.strip("`").replace("–", "null").replace("none", "null"))
        if name in {"host", "port", "name"} and expected is None:
            continue
        assert value_of(settings, name) == expected, name
        checked += 1
    assert checked > 45


def test_later_sources_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = JUDGE + "port: 1\nhost: from-file\nnum_rollouts_per_prompt: 4\n"
    monkeypatch.setenv("GENRM_TRIO_PORT", "2")
    monkeypatch.setenv("GENRM_TRIO_HOST", "from-environment")
    settings = from_yaml(tmp_path, text, host="from-flag", port=None).settings
    assert (settings.host, settings.port, settings.num_rollouts_per_prompt) == ("from-flag", 2, 4)


def test_nested_variables_lie_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENRM_TRIO_JUDGE__MODEL", "m")
    monkeypatch.setenv("GENRM_TRIO_SCORE_RANGE", "[0, 10]")
    monkeypatch.setenv("GENRM_TRIO_COHORT_RESULT_TTL_S", "null")
    monkeypatch.setenv("GENRM_TRIO_GENRM_RESPONSES_CREATE_PARAMS__TEMPERATURE", "0.1")
    settings = from_yaml(tmp_path, JUDGE).settings
    assert (settings.judge.model, settings.judge.base_url) == ("m", "http://judge:8000")
    assert list(settings.score_range) == [0, 10]
    assert settings.cohort_result_ttl_s is None
    assert settings.genrm_responses_create_params["temperature"] == 0.1
    assert settings.genrm_responses_create_params["max_output_tokens"] == 16384


@pytest.mark.parametrize(
    ("text", "unknown", "nearest"),
    [
        ("num_rollout_per_prompt: 4", "num_rollout_per_prompt", "num_rollouts_per_prompt"),
        ("judge: {base_ulr: 'http://j'}", "judge.base_ulr", "judge.base_url"),
        ("checkpoint: {enable: true}", "checkpoint.enable", "checkpoint.enabled"),
        ("limits: {keepalive_s: 20}", "limits.keepalive_s", "limits.keep_alive_s"),
        ("judge: {panel: [{base_url: 'http://j', wieght: 2}]}", "judge.panel.0.wieght", "judge.panel.0.weight"),
        ("base_url: 'http://j'", "base_url", "judge.base_url"),
    ],
)
def test_an_unknown_field_is_named_with_the_nearest(tmp_path: Path, text: str, unknown: str, nearest: str) -> None:
    assert f"unknown field {unknown}; the nearest known one is {nearest}" in refused(tmp_path, text)


@pytest.mark.parametrize("text", ["limits: {foo: 1}", "judge: {prot: 1}", "judge: {panel: [{judge: 1}]}", "xyz: 1"])
def test_a_field_that_is_like_none_of_its_section_gets_no_hint(tmp_path: Path, text: str) -> None:
    said = refused(tmp_path, text)
    assert "unknown field" in said
    assert "nearest" not in said


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [("GENRM_TRIO_PROT", "GENRM_TRIO_PORT"), ("GENRM_TRIO_JUDGE__BASE_UR", "GENRM_TRIO_JUDGE__BASE_URL")],
)
def test_an_unknown_variable_is_named_with_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, nearest: str
) -> None:
    monkeypatch.setenv(variable, "1")
    said = refused(tmp_path, JUDGE)
    assert variable in said
    assert said.endswith(nearest)


def test_what_gym_files_carry_besides_is_tolerated(tmp_path: Path) -> None:
    text = "domain: rlhf\nverified: false\ndescription: d\nvalue: v\nentrypoint: app.py\n"
    assert from_yaml(tmp_path, JUDGE + text).settings.name == "genrm_compare"


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("cohort_collection_timeout_s: 0", "cohort_collection_timeout_s: Input should be greater than 0"),
        ("cohort_collection_timeout_s: null", "cohort_collection_timeout_s"),
        ("cohort_evaluation_timeout_s: .inf", "cohort_evaluation_timeout_s"),
        ("cohort_result_ttl_s: .nan", "cohort_result_ttl_s"),
        ("num_rollouts_per_prompt: true", "true or false stands where a number is wanted"),
        ("judge: {base_url: 'http://judge:1?x=1'}", "without a query"),
        ("judge: {base_url: 'http://user:sesame@judge:1'}", "api_key is the place for a secret"),
        ("judge: {base_url: 'judge:1'}", "http://host:port"),
        ("close_follows_header: 'a b'", "close_follows_header"),
        ("port: 1\na: [", "is not valid YAML, line 2"),
        ("port: 1\nport: 2", "the key 'port' stands twice"),
        ("- port", "must hold a mapping"),
    ],
)
def test_bad_values_are_named(tmp_path: Path, text: str, fragment: str) -> None:
    assert fragment in refused(tmp_path, text)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"nowhere\.yaml cannot be read: No such file"):
        load(tmp_path / "nowhere.yaml")


def test_a_bad_variable_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENRM_TRIO_PORT", "many")
    assert "port, set by GENRM_TRIO_PORT: " in refused(tmp_path, JUDGE)


def test_a_bad_flag_is_named_as_a_flag(tmp_path: Path) -> None:
    assert ": --port: Input should be" in refused(tmp_path, JUDGE, port=70000)


def test_a_value_where_a_section_belongs_is_said_with_the_way_out(tmp_path: Path) -> None:
    said = refused(tmp_path, "judge: http://sesame\n")
    assert "judge: is a section; its settings stand under it, as in judge.base_url" in said
    assert "sesame" not in said
    assert "as in checkpoint.enabled" in refused(tmp_path, "checkpoint: true\n")


def test_a_name_that_is_like_no_other_gets_no_suggestion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused(tmp_path, "qqqq: 1\n").endswith("unknown field qqqq")
    monkeypatch.setenv("GENRM_TRIO_ZZZZ", "1")
    assert refused(tmp_path, JUDGE).endswith("GENRM_TRIO_ZZZZ names no setting")


def test_several_problems_are_one_message(tmp_path: Path) -> None:
    said = refused(tmp_path, "port: -1\nmax_connections: 0\nprot: 1\n")
    assert said.splitlines()[0].endswith("config.yaml: 3 problems")
    assert len(said.splitlines()) == 4


SECRETS = """
session_secret: sesame-1
data_auth_token: sesame-2
checkpoint: {enabled: true, control_auth_token: sesame-3}
judge: {panel: [{base_url: 'http://judge:1/v1/', api_key: sesame-5}], api_key: sesame-4}
"""


def test_secrets_are_masked_wherever_settings_are_shown(tmp_path: Path) -> None:
    settings = from_yaml(tmp_path, SECRETS).settings
    assert set(secrets_of(settings)) >= {f"sesame-{n}" for n in range(1, 6)}
    assert "sesame" not in shown(settings)
    assert "sesame-1" not in repr(settings)
    assert settings.judge.panel[0].base_url == "http://judge:1"


@pytest.mark.parametrize(
    "text",
    [
        "session_secret: [sesame]",
        "session_secret: {sesame: sesame}",
        "judge: sesame",
        "judge: {panel: sesame}",
        "checkpoint: [sesame]",
        "checkpoint: {control_auth_token: 5355461}",
        "session_secret: sesame\nport: -1",
        "judge: {base_url: 'http://user:sesame@judge:1'}",
        "judge: {panel: [{base_url: 'http://user:sesame@judge:1'}]}",
        "session_secret: 'sesame",
    ],
)
def test_no_message_shows_a_secret(tmp_path: Path, text: str) -> None:
    said = refused(tmp_path, text)
    assert "sesame" not in said
    assert "5355461" not in said


GYM = """
my_genrm:
  resources_servers:
    genrm_compare:
      entrypoint: app.py
      domain: rlhf
      host: 127.0.0.1
      port: 9001
      num_rollouts_per_prompt: 16
      genrm_model_server: {type: responses_api_models, name: my_judge}
my_judge:
  responses_api_models:
    vllm_model: {host: 127.0.0.2, port: 9002, entrypoint: app.py}
head_server: {host: 127.0.0.1, port: 11000}
"""


def test_gyms_start_reads_our_entry_and_the_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMO_GYM_CONFIG_DICT", GYM + "checkpoint: {enabled: true, control_auth_token: t}\n")
    monkeypatch.setenv("NEMO_GYM_CONFIG_PATH", "my_genrm")
    monkeypatch.setenv("GENRM_TRIO_SESSION_SECRET", "s")
    monkeypatch.setenv("GENRM_TRIO_NUM_ROLLOUTS_PER_PROMPT", "8")
    loaded = load(None, {"port": 9003})
    settings = loaded.settings
    assert (settings.name, settings.host, settings.port) == ("my_genrm", "127.0.0.1", 9003)
    assert settings.num_rollouts_per_prompt == 8
    assert settings.judge.base_url == "http://127.0.0.2:9002"
    assert settings.checkpoint.enabled
    assert loaded.origin == "NEMO_GYM_CONFIG_DICT, entry my_genrm"
    assert not loaded.is_example


def test_a_file_takes_only_the_judges_address_from_gym(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMO_GYM_CONFIG_DICT", GYM)
    monkeypatch.setenv("NEMO_GYM_CONFIG_PATH", "my_genrm")
    settings = from_yaml(tmp_path, "genrm_model_server: {name: my_judge}\n").settings
    assert settings.judge.base_url == "http://127.0.0.2:9002"
    assert settings.num_rollouts_per_prompt == 1
    settings = from_yaml(tmp_path, JUDGE + "genrm_model_server: {name: my_judge}\n").settings
    assert settings.judge.base_url == "http://judge:8000", "an address of our own wins"


def test_gyms_variables_must_fit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMO_GYM_CONFIG_DICT", GYM)
    monkeypatch.setenv("NEMO_GYM_CONFIG_PATH", "other")
    with pytest.raises(StartupError, match="names 'other'"):
        load(None)


def test_a_judge_that_gym_does_not_know_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMO_GYM_CONFIG_DICT", GYM.replace("name: my_judge", "name: lost"))
    monkeypatch.setenv("NEMO_GYM_CONFIG_PATH", "my_genrm")
    with pytest.raises(StartupError) as caught:
        load(None)
    for fragment in ("judge.base_url", "genrm_model_server", "'lost'"):
        assert fragment in str(caught.value)


def test_without_any_judge_setting_the_example_is_served() -> None:
    loaded = load(None)
    assert loaded.is_example
    assert loaded.settings.judge.backend == "recorded"
    assert loaded.settings.num_rollouts_per_prompt == 15


def test_the_example_never_stands_in_for_a_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "the judge has no address" in refused(tmp_path, "port: 1")
    monkeypatch.setenv("GENRM_TRIO_JUDGE__MODEL", "m")
    with pytest.raises(StartupError, match="the judge has no address"):
        load(None)
