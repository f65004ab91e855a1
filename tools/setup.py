"""Makes `.venv` hold exactly what `requirements.lock` says, plus this package in editable form.

Standard library only: it runs before anything is installed. It writes inside `.venv` and to `.venv.lock`,
nowhere else. A stamp that is written last makes a repeated run free; a marker that is written first makes
an interrupted run start over; a file lock makes concurrent runs wait for each other.
"""

import fcntl
import hashlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / ".setup-complete"
UNFINISHED = VENV / ".setup-unfinished"
INPUTS = ("requirements.lock", "pyproject.toml", "tools/setup.py")


class SetupError(Exception):
    """What is missing and what to do about it, in words for the person at the terminal."""


def say(text: str) -> None:
    """Print one line of progress at once, also when the output is a pipe."""
    print(f"setup: {text}", flush=True)


def fingerprint() -> str:
    """Return what the stamp has to say: every input's content, and where the checkout lies.

    The place counts because scripts inside a virtual environment carry absolute paths.
    """
    digest = hashlib.sha256(str(ROOT).encode())
    for name in INPUTS:
        digest.update(b"\0" + (ROOT / name).read_bytes())
    return digest.hexdigest()


def is_complete() -> bool:
    """Tell whether an earlier run finished for exactly these inputs, and its Python is still there."""
    try:
        stamped = STAMP.read_text()
    except OSError:
        return False
    return stamped == fingerprint() and os.access(VENV / "bin" / "python", os.X_OK)


@contextmanager
def exclusive() -> Iterator[None]:
    """Hold the setup lock; the kernel drops it when this process ends in whatever way."""
    with (ROOT / ".venv.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another setup is running here; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def is_usable() -> bool:
    """Tell whether `.venv` can be brought up to date: whole, of this place, with a pip that runs."""
    if UNFINISHED.exists() or not (VENV / "pyvenv.cfg").exists():
        return False
    script = VENV / "bin" / "pip"
    try:
        of_this_place = str(VENV) in script.read_text().splitlines()[0]
        probe = subprocess.run([VENV / "bin" / "python", "-m", "pip", "--version"], capture_output=True, check=False)
    except (OSError, IndexError):
        return False
    return of_this_place and probe.returncode == 0


def create() -> None:
    """Make `.venv` afresh from the interpreter that is behind the running one."""
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise SetupError(
            f"Python {version} at {sys.executable} comes without the module {' and '.join(missing)}.\n"
            f"On Debian and Ubuntu: apt-get install python3-venv (or python{version}-venv)."
        )
    say(f"making .venv with Python {sys.version.split()[0]}")
    interpreter = getattr(sys, "_base_executable", None) or sys.executable
    run([interpreter, "-m", "venv", "--clear", str(VENV)], "making .venv failed")


def install() -> None:
    """Install the lock with its hashes, then the package itself, and check that all of it fits together."""
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    install = [*pip, "install", "--quiet", "--no-deps"]
    locked = (ROOT / "requirements.lock").read_text()
    count = sum("==" in line and not line.startswith((" ", "#")) for line in locked.splitlines())
    say(f"installing {count} locked packages, a minute or two the first time")
    run(
        [*install, "--require-hashes", "--only-binary", ":all:", "-r", str(ROOT / "requirements.lock")],
        "installing the locked packages failed; is the package index reachable from here?",
    )
    say("installing genrm-trio itself")
    run([*install, "--no-build-isolation", "--editable", str(ROOT)], "installing genrm-trio failed")
    run([*pip, "check"], "the installed packages do not fit together")


def run(command: list[str], trouble: str) -> None:
    """Run one command quietly; when it fails, show what it said under our own words."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise SetupError(f"{trouble}\n{done.stdout.strip()}")


def main() -> int:
    """Bring `.venv` up to date; 0 when it is, 1 with a message when it cannot be."""
    if is_complete():
        return 0
    try:
        with exclusive():
            if is_complete():
                return 0
            if not is_usable():
                create()
            STAMP.unlink(missing_ok=True)
            UNFINISHED.touch()
            install()
            partial = STAMP.with_suffix(".partial")
            partial.write_text(fingerprint())
            partial.replace(STAMP)
            UNFINISHED.unlink()
    except SetupError as problem:
        print(f"setup: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("setup: interrupted; the next run starts over", file=sys.stderr)
        return 130
    say("ready")
    return 0


if __name__ == "__main__":
    sys.exit(main())
