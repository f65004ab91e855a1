"""What `make setup` says when something is missing, and that running it again costs nothing.

The installation itself is what every clean clone's `make test` does first; here the ways in which it can
refuse are played with stand-ins for the interpreter.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def machine_with(tmp_path: Path, python: str) -> dict[str, str]:
    """Return the environment of a machine whose only interpreter is the given sh script."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("sh", "dirname", "cat"):
        (folder / tool).symlink_to(shutil.which(tool) or tool)
    interpreter = folder / "python3"
    interpreter.write_text(f"#!/bin/sh\n{python}\n")
    interpreter.chmod(0o755)
    return {"PATH": str(folder)}


def run_setup(env: dict[str, str], root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [shutil.which("sh") or "sh", str(root / "tools" / "setup.sh")],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


def copy_of_checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    (root / "tools").mkdir(parents=True)
    for name in ("tools/setup.sh", "tools/setup.py", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, root / name)
    return root


def test_an_old_python_is_named_with_the_way_out(tmp_path: Path) -> None:
    old = '[ "$1" = --version ] && echo Python 3.9.2 && exit 0\nexit 1'
    done = run_setup(machine_with(tmp_path, old))
    assert done.returncode == 1
    assert "needs Python 3.11" in done.stderr
    assert "found Python 3.9.2" in done.stderr


def test_no_python_at_all_is_named_too(tmp_path: Path) -> None:
    env = machine_with(tmp_path, "exit 1")
    (tmp_path / "bin" / "python3").unlink()
    done = run_setup(env)
    assert done.returncode == 1
    assert "found no python3" in done.stderr


def test_a_python_that_was_asked_for_is_never_replaced_by_another() -> None:
    done = run_setup({**os.environ, "PYTHON": "/nonexistent/python"})
    assert done.returncode == 1
    assert "found no /nonexistent/python" in done.stderr


def test_a_python_without_ensurepip_names_debians_package(tmp_path: Path) -> None:
    starter = """
import importlib.util, runpy, sys
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "ensurepip" else find_spec(name, *rest)
runpy.run_path(sys.argv[1], run_name="__main__")
"""
    script = tmp_path / "starter.py"
    script.write_text(starter)
    python = f'case "$1" in -c) exit 0;; *) exec {sys.executable} {script} "$@";; esac'
    done = run_setup(machine_with(tmp_path, python), copy_of_checkout(tmp_path))
    assert done.returncode == 1, done.stderr
    assert "python3-venv" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "checkout" / ".venv").exists()


def test_a_finished_setup_is_not_repeated(tmp_path: Path) -> None:
    root = copy_of_checkout(tmp_path)
    ask = (
        "import runpy; setup = runpy.run_path('tools/setup.py'); print(setup['fingerprint'](), setup['is_complete']())"
    )

    def state() -> tuple[str, str]:
        answer = subprocess.run([sys.executable, "-c", ask], cwd=root, capture_output=True, text=True, check=True)
        fingerprint, complete = answer.stdout.split()
        return fingerprint, complete

    fingerprint, complete = state()
    assert complete == "False"
    (root / ".venv" / "bin").mkdir(parents=True)
    (root / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (root / ".venv" / ".setup-complete").write_text(fingerprint)
    assert state() == (fingerprint, "True")
    assert run_setup(dict(os.environ), root).stdout == ""

    (root / "requirements.lock").write_text("# changed\n")
    assert state()[1] == "False", "a changed lock is installed again"
