"""The command line as a person meets it: real processes, their output and their exit codes."""

import subprocess
import sys
from pathlib import Path

import yaml


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


def test_without_a_command_the_commands_are_listed() -> None:
    done = run()
    assert "config" in done.stdout + done.stderr
