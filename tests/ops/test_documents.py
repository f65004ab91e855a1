"""What the documents promise about settings and commands is what the code does."""

import json
import os
import re
import subprocess
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel
from tests.web.app_harness import site
from typer.core import TyperGroup
from typer.main import get_command

from genrm_trio.judging.judge import Unobserved
from genrm_trio.ops import assembly
from genrm_trio.ops.agreement import agreement, mean_agreement
from genrm_trio.ops.batch import Batch, Files
from genrm_trio.ops.cli import app
from genrm_trio.ops.complaints import StartupError
from genrm_trio.ops.demo import CALLS, PLAYED
from genrm_trio.ops.gym import gym_entry
from genrm_trio.ops.metrics import Metrics, Reading
from genrm_trio.ops.rows import read_rows
from genrm_trio.ops.settings import Settings
from genrm_trio.ops.sources import example_rows, load
from genrm_trio.web.verification import Identified, VerifyReader

ROOT = Path(__file__).resolve().parents[2]


def blocks(path: Path, kind: str) -> list[str]:
    """Return the blocks of code of this kind in a document."""
    found = re.findall(rf"^ *```{kind}\n(.*?)^ *```", path.read_text(), re.M | re.S)
    return [textwrap.dedent(block) for block in found]


def documented() -> dict[str, str]:
    """Return the text of the default of each field that docs/configuration.md lists."""
    rows = re.findall(r"^\| `([a-z_.0-9]+)` \| ([^|]*) \|", (ROOT / "docs" / "configuration.md").read_text(), re.M)
    assert len(rows) == len({name for name, _ in rows}), "a field is listed twice"
    return dict(rows)


def effective() -> dict[str, object]:
    """Return every field that can be set, by dotted name, with its default."""
    found: dict[str, object] = {}
    for name, value in Settings.model_validate({}).model_dump(mode="json").items():
        section = Settings.model_fields[name].annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            found |= {f"{name}.{inner}": default for inner, default in value.items()}
        else:
            found[name] = value
    return found


def test_every_field_is_documented_with_its_default() -> None:
    documents, settings = documented(), effective()
    assert set(documents) == set(settings)
    for name, text in documents.items():
        if name != "default_principle":
            expected = None if text == "none" else yaml.safe_load(text.strip("`"))
            assert settings[name] == expected, name


def test_every_choice_is_documented() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    for name, field in Settings.model_fields.items():
        for choice in get_args(field.annotation):
            if isinstance(choice, str):
                (line,) = [line for line in text.splitlines() if line.startswith(f"| `{name}` |")]
                assert f"`{choice}`" in line, f"{name}: {choice}"


def test_the_configuration_to_start_from_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StartupError, match="control_auth_token"):
        load(ROOT / "deploy" / "config.yaml")
    monkeypatch.setenv("GENRM_TRIO_SESSION_SECRET", "s")
    monkeypatch.setenv("GENRM_TRIO_CHECKPOINT__CONTROL_AUTH_TOKEN", "t")
    assert load(ROOT / "deploy" / "config.yaml").settings.num_rollouts_per_prompt == 16


def test_the_unit_starts_the_server_with_and_without_its_further_arguments() -> None:
    (line,) = re.findall(r"^ExecStart=\S+/genrm-trio (.*)$", (ROOT / "deploy" / "genrm-trio.service").read_text(), re.M)
    (offered,) = re.findall(r"^#SERVE_ARGS=(.*)$", (ROOT / "deploy" / "serve.env").read_text(), re.M)
    for further, waits in ("", False), (offered, True):
        command, *arguments = line.replace("$SERVE_ARGS", further).split()
        assert command == "serve"
        serve = get_command(app)
        assert isinstance(serve, TyperGroup)
        assert serve.commands["serve"].make_context("serve", arguments).params["await_restore"] is waits


def test_the_documents_configurations_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENRM_TRIO_SESSION_SECRET", "s")
    monkeypatch.setenv("GENRM_TRIO_CHECKPOINT__CONTROL_AUTH_TOKEN", "t")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rec3.jsonl").touch()  # the recording that one of them names
    found = 0
    for path in (ROOT / "README.md", ROOT / "docs" / "configuration.md"):
        for block in blocks(path, "yaml"):
            if "resources_servers" in block:
                continue
            (tmp_path / "c.yaml").write_text(block)
            load(tmp_path / "c.yaml")
            found += 1
    assert found >= 2


def test_what_gym_reads_of_the_documents_reaches_the_server_and_starts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    path = ROOT / "docs" / "configuration.md"
    elsewhere, started = (text for text in blocks(path, "yaml") if "resources_servers" in text)
    entries = yaml.safe_load(elsewhere)
    named = entries["my_agent"]["responses_api_agents"]["simple_agent"]["resources_server"]
    assert gym_entry(entries, named["name"]) == {"name": "my_genrm", "host": "rewards.internal", "port": 8700}
    document = yaml.safe_load(started)
    document["my_genrm"]["resources_servers"]["genrm_trio"] |= {"host": "127.0.0.1", "port": 9001}  # as Gym does
    document["my_judge"] = {"responses_api_models": {"vllm_model": {"host": "127.0.0.2", "port": 9002}}}
    monkeypatch.setenv("NEMO_GYM_CONFIG_DICT", yaml.safe_dump(document))
    monkeypatch.setenv("NEMO_GYM_CONFIG_PATH", "my_genrm")
    settings = load(None).settings
    assert (settings.name, settings.port, settings.num_rollouts_per_prompt) == ("my_genrm", 9001, 16)
    assert settings.judge.base_url == "http://127.0.0.2:9002"
    became: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(os, "execv", lambda path, words: became.append((path, words)))
    (script,) = blocks(path, "python")
    exec(script)
    assert became == [("/opt/genrm-trio/.venv/bin/genrm-trio", ["genrm-trio", "serve"])]


async def test_the_figures_in_the_readme_are_those_of_the_demo(tmp_path: Path) -> None:
    rows = {row.question_id: row for row in read_rows(example_rows())}
    lines = []
    for aggregator, strategy in PLAYED:
        settings = load(None, {"aggregator_method": aggregator, "comparison_strategy": strategy}).settings
        files = Files(example_rows(), tmp_path / f"{aggregator}-{strategy}.jsonl")
        judge = assembly.make_judge(settings, Unobserved())
        await Batch(assembly.policy(settings), judge, files, "digest", lambda tally: None).run()
        judged = [json.loads(line) for line in files.output.read_text().splitlines()]
        scores = [[answer.gpt4_score for answer in rows[group["id"]].answers] for group in judged]
        agreements = [agreement(group["rewards"], one) for group, one in zip(judged, scores, strict=True)]
        mean, lowest = mean_agreement(agreements), min(one.kendall for one in agreements)
        figures = f"{mean.kendall:.3f} | {lowest:.3f} | {mean.spearman:.3f}"
        lines.append(f"| `{aggregator}` | `{strategy}` | {CALLS[strategy]} | {figures} |")
    readme = (ROOT / "README.md").read_text()
    assert [line for line in lines if line not in readme] == []


def test_the_operating_guide_sets_what_its_commands_use() -> None:
    script = "".join(blocks(ROOT / "docs" / "operating.md", "sh"))
    subprocess.run(["sh", "-n"], input=script, text=True, check=True)
    used = set(re.findall(r"\$([A-Za-z_]\w*)", script))
    assert used == {"CONTROL_TOKEN", "dir", "request"}
    assert used <= set(re.findall(r"^(\w+)=", script, re.M))
    (request,) = re.findall(r"^request='(.*?)'$", script, re.M | re.S)
    settings = Settings.model_validate({"num_rollouts_per_prompt": 2})
    assert isinstance(VerifyReader(assembly.policy(settings)).read(bytearray(request.encode())), Identified)


async def test_the_request_in_the_readme_gets_the_reply_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readme = ROOT / "README.md"
    _, configuration = blocks(readme, "yaml")
    recording, reply = blocks(readme, "json")
    (script,) = (text for text in blocks(readme, "sh") if "curl" in text)
    (body,) = re.findall(r"-d '(.*)' &", script, re.S)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "three.yaml").write_text(configuration)
    (tmp_path / "rec3.jsonl").write_text(recording)
    settings = load(tmp_path / "three.yaml").settings
    judge: Any = assembly.make_judge(settings, Unobserved())  # a judge like the harness's own
    async with site(assembly.policy(settings), judge) as s:
        requests = [s.begin("POST", "/verify", body.replace("'$i'", str(i)).encode()) for i in range(3)]
        answers = [(await s.answered(request)).json for request in requests]
    told = {name: value for name, value in json.loads(reply).items() if value != "…"}
    assert {name: answers[0][name] for name in told} == told
    assert [answer["reward"] for answer in answers] == [told["reward"], 1.0, pytest.approx(25 / 9)]


def test_every_metric_is_in_the_operating_guide() -> None:
    rows = re.findall(r"^\| `(genrm_trio_\w+)(?:\{([\w,]+)\})?` \|", (ROOT / "docs" / "operating.md").read_text(), re.M)
    documents = {name.removesuffix("_total"): tuple(labels.split(",")) if labels else () for name, labels in rows}
    metrics = Metrics()
    state = Reading(Counter(), 0, 0, 0, 0, True, 0, 0, 0, checkpoint_phase="idle", resting=[("judge:1", False)])
    metrics.read_from(lambda: state)
    metrics.verifies.labels("rewarded")
    exposed = {}
    for family in metrics.registry.collect():
        if family.name.startswith("genrm_trio_"):
            labels = {name for sample in family.samples for name in sample.labels} - {"le"}
            exposed[family.name] = labels
    assert set(documents) == set(exposed)
    for name, labels in exposed.items():
        if labels:
            assert set(documents[name]) == labels, name
