"""The command line as a person meets it: real processes, their output and their exit codes."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from tests.checkpoints.material import INSTANCE, write

from genrm_trio.checkpoints.disk import open_folder
from genrm_trio.checkpoints.records import Record
from genrm_trio.core.identity import EpisodeId
from genrm_trio.ops.agreement import agreement
from genrm_trio.ops.rows import read_rows
from genrm_trio.ops.sources import example_rows

COMMAND = "genrm-trio"


def run(*arguments: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "genrm_trio", *arguments],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_config_prints_the_effective_configuration_with_secrets_masked(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("judge: {base_url: 'http://judge:1', api_key: sesame}\nport: 1\n")
    done = run("config", "--config", str(path), GENRM_TRIO_PORT="2")
    assert done.returncode == 0, done.stderr
    effective = yaml.safe_load(done.stdout)
    assert effective["port"] == 2
    assert effective["judge"]["api_key"] == "**********"
    assert "sesame" not in done.stdout + done.stderr


def test_a_refused_configuration_is_one_message_and_exit_code_2(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("prot: 1\n")
    done = run("config", "--config", str(path))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == f"genrm-trio: {path}: unknown field prot; the nearest known one is port\n"


def test_a_wrong_argument_is_a_usage_error() -> None:
    done = run("config", "--confg", "x")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_the_version_is_told() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"genrm-trio {version('genrm-trio')}\n")


@pytest.mark.parametrize(
    "command", [[sys.executable, "-m", "genrm_trio"], [str(Path(sys.executable).with_name(COMMAND))]]
)
def test_an_interrupt_while_modules_load_is_no_traceback(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "typer.py").write_text(
        "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored\n"
        "signal.raise_signal(signal.SIGINT)\n"
    )
    stopped = {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=stopped, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_without_a_command_the_commands_are_listed() -> None:
    done = run()
    assert "config" in done.stdout + done.stderr


def test_compare_names_a_missing_input_and_says_loudly_that_no_judge_is_configured(tmp_path: Path) -> None:
    done = run("compare", str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"))
    assert done.returncode == 2
    assert "NO JUDGE IS CONFIGURED" in done.stderr
    assert "in.jsonl: No such file" in done.stderr
    assert "Traceback" not in done.stderr


def test_compare_reports_groups_that_failed(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("judge: {base_url: 'http://127.0.0.1:1'}\njudge_request_timeout_s: 0.2\n")
    (tmp_path / "in.jsonl").write_text('{"prompt": "p", "answers": ["a", "b"]}\n{"prompt": "p", "answers": ["a"]}\n')
    done = run("compare", str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), "--config", str(config))
    assert done.returncode == 1, done.stderr
    assert "1 groups judged, 0 known before, 1 failed" in done.stderr
    (failed,) = (tmp_path / "out.failed.jsonl").read_text().splitlines()
    assert "TimeoutError" in failed
    said = done.stderr.splitlines()
    assert "judge: nothing listens at 127.0.0.1:1; trying again for up to 0.2 s (judge_request_timeout_s)" in said
    assert any(line.startswith("failed: line 1: ") for line in said)


def test_compare_refuses_an_output_of_other_settings(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "p", "answers": ["a"]}\n')
    files = (str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"))
    assert run("compare", *files).returncode == 0
    done = run("compare", *files, GENRM_TRIO_DEFAULT_SCORE="2")
    assert done.returncode == 2
    assert "out.jsonl, line 1: made with other settings" in done.stderr


def test_compare_judges_the_shipped_example(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    done = run("compare", str(example_rows()), str(output), GENRM_TRIO_COMPARISON_STRATEGY="all_pairs")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [len(row["rewards"]) for row in rows] == [15] * 8
    first = next(row for row in read_rows(example_rows()))
    rewards = next(row["rewards"] for row in rows if row["id"] == first.question_id)
    scores = [answer.gpt4_score for answer in first.answers]
    assert agreement(rewards, scores).kendall > 0.9
    again = run("compare", str(example_rows()), str(output), GENRM_TRIO_COMPARISON_STRATEGY="all_pairs")
    assert "0 groups judged, 8 known before, 0 failed" in again.stderr


def test_inspect_shows_a_checkpoint_and_fails_on_damage(tmp_path: Path) -> None:
    folder = open_folder(tmp_path / "gym" / "resources" / INSTANCE, create=True)
    write(folder, [Record(EpisodeId("r"), "s", {})])
    folder.close()
    done = run("inspect", str(tmp_path))
    assert done.returncode == 0, done.stdout
    assert "matches" in done.stdout
    assert "DAMAGED" not in done.stdout

    (records,) = (tmp_path / "gym" / "resources" / INSTANCE).glob("records-*")
    records.write_bytes(records.read_bytes().replace(b'"s"', b'"t"'))
    done = run("inspect", str(tmp_path))
    assert done.returncode == 1
    assert "DOES NOT MATCH" in done.stdout
    assert "DAMAGED" in done.stdout


def test_inspect_says_when_there_is_nothing(tmp_path: Path) -> None:
    done = run("inspect", str(tmp_path))
    assert done.returncode == 1
    assert "there is no checkpoint here" in done.stdout


def test_inspect_of_a_missing_folder_is_one_line(tmp_path: Path) -> None:
    done = run("inspect", str(tmp_path / "none"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"genrm-trio: {tmp_path / 'none'}: there is no such folder\n"


def test_the_demo_plays_real_cohorts_without_a_terminal() -> None:
    done = run("demo", "--cohorts", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("complete, 15 rewards") == 8
    assert "Kendall" in done.stdout
    assert "What to do next" in done.stdout
    figures = [line for line in done.stdout.splitlines() if "all_pairs" in line and "105" in line]
    assert len(figures) >= 2
    assert "1.000" in figures[0]


@pytest.mark.parametrize(
    ("judge", "words"),
    [
        ("base_url: 'http://[::1'", "judge.base_url: "),
        ("panel: [{base_url: 'http://h'}, {base_url: 'http://h/v1'}]", "twice"),
        ("backend: recorded, recording: EMPTY", "the recording is empty"),
    ],
)
def test_config_and_serve_refuse_the_same(judge: str, words: str, tmp_path: Path) -> None:
    path, empty = tmp_path / "c.yaml", tmp_path / "empty.jsonl"
    empty.touch()
    path.write_text(f"port: 0\njudge: {{{judge.replace('EMPTY', str(empty))}}}\n")
    for command in ("config", "serve"):
        done = run(command, "--config", str(path))
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert words in done.stderr
        assert "Traceback" not in done.stderr
