"""Break each rule of the source on purpose, in a copy, and see that the tests named beside it fail.

    python tests/mutants/run.py                   all mutants, by their named tests
    python tests/mutants/run.py --only NAME       one of them (may be repeated)
    python tests/mutants/run.py --third 1/3       every third one, so that three runs cover all
    python tests/mutants/run.py --by machine      the core's mutants, by the stateful test alone
    python tests/mutants/run.py --by invariant    each by each invariant named beside it, checked alone

The exit code is 0 when every mutant was killed by a test that failed, not by one that could not be imported.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.mutants.table import MUTANTS, Mutant, part_of  # noqa: E402 - the checkout is put on the path above

MACHINE = ("tests/core/test_machine.py::test_no_walk_breaks_an_invariant",)
WALKS = "6000"
TIME_LIMIT = 900.0


@dataclass(frozen=True)
class Verdict:
    """What became of one mutant: killed by every test that should, or what is wrong."""

    name: str
    killed: bool
    text: str


@dataclass(frozen=True)
class Job:
    """One mutant, the tests that must fail, and the only invariant that is checked, if it is to be one."""

    mutant: Mutant
    tests: tuple[str, ...]
    invariant: str = ""

    @property
    def name(self) -> str:
        return f"{self.mutant.name} by {self.invariant}" if self.invariant else self.mutant.name


class TableError(Exception):
    """The table does not fit the source any more."""


def mutate(source: Path, mutant: Mutant) -> None:
    """Apply a mutant's edits to the package below `source`. Raises TableError unless each fragment is there once."""
    for file, fragment, replacement in mutant.edits:
        path = source / "genrm_trio" / file
        text = path.read_text(encoding="utf-8")
        found = text.count(fragment)
        if found != 1:
            raise TableError(f"{mutant.name}: the fragment is in {file} {found} times:\n{fragment}")
        mutated = text.replace(fragment, replacement)
        compile(mutated, str(path), "exec")
        path.write_text(mutated, encoding="utf-8")


def copy_checkout(folder: Path) -> None:
    """Copy what the tests need into an empty folder."""
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc", ".hypothesis")
    for name in ("src", "tests", "docs", "examples", "spec"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder / name)


def pytest(
    folder: Path, tests: Sequence[str], *, first: bool, walks: str = WALKS, only: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run tests of a copied checkout against its own source."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "GENRM_TRIO_WALKS": walks,
        "GENRM_TRIO_ONLY": only,
        "COLUMNS": "400",
    }
    flags = ["-q", "-rf", "--no-header", "-p", "no:cacheprovider", "--tb=line", *(["-x"] if first else [])]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *flags, *tests],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
        check=False,
    )


def judge(name: str, tests: Sequence[str], done: subprocess.CompletedProcess[str]) -> Verdict:
    """Read from pytest's report whether each of the tests failed."""
    failed = re.findall(r"^FAILED (.+?)(?: - (.*))?$", done.stdout, re.MULTILINE)
    if done.returncode not in {0, 1}:
        return Verdict(name, False, f"pytest ended with {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}")
    survived = [test for test in tests if not any(failure.startswith(test) for failure, _ in failed)]
    if survived:
        return Verdict(name, False, f"survived {', '.join(survived)}")
    unfit = [reason for _, reason in failed if re.match(r"(ImportError|SyntaxError|ModuleNotFoundError)", reason)]
    if unfit:
        return Verdict(name, False, f"the tests could not run: {unfit[0]}")
    return Verdict(name, True, f"{failed[0][0].rsplit('::', 1)[-1]}: {failed[0][1][:110]}")


def run(job: Job) -> Verdict:
    """Copy, break, test."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        folder = Path(name)
        copy_checkout(folder)
        try:
            mutate(folder / "src", job.mutant)
            done = pytest(folder, job.tests, first=job.tests is MACHINE, only=job.invariant)
        except TableError as error:
            return Verdict(job.name, False, str(error))
        except subprocess.TimeoutExpired:
            return Verdict(job.name, False, f"the tests did not end within {TIME_LIMIT:g} s")
    return judge(job.name, job.tests, done)


def check_baseline(jobs: Sequence[Job]) -> None:
    """The unbroken copy must pass the same tests, and they must test the copy. Raises SystemExit otherwise."""
    tests = sorted({test for job in jobs for test in job.tests})
    with tempfile.TemporaryDirectory(prefix="mutant-none-") as name:
        folder = Path(name)
        copy_checkout(folder)
        where = subprocess.run(
            [sys.executable, "-c", "import genrm_trio; print(genrm_trio.__file__)"],
            env={**os.environ, "PYTHONPATH": str(folder / "src")},
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        if not where.startswith(str(folder)):
            raise SystemExit(f"the copy is not what is imported: {where}")
        done = pytest(folder, tests, first=True, walks="200")
    if done.returncode != 0:
        raise SystemExit(f"without any mutant the tests fail:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")


def choose(arguments: argparse.Namespace) -> list[Job]:
    """The mutants that the command line asks for, and how each is to be killed."""
    chosen = [m for m in MUTANTS if not arguments.only or m.name in arguments.only]
    unknown = set(arguments.only or ()) - {m.name for m in MUTANTS}
    if unknown:
        raise SystemExit(f"no such mutant: {', '.join(sorted(unknown))}")
    match arguments.by:
        case "machine":
            jobs = [Job(m, MACHINE) for m in chosen if m.machine]
        case "invariant":
            jobs = [Job(m, MACHINE, invariant) for m in chosen for invariant in m.breaks]
        case _:
            jobs = [Job(m, m.tests) for m in chosen]
    if arguments.third:
        jobs = list(part_of(jobs, arguments.third))
    if not jobs:
        raise SystemExit("nothing to run: what was chosen is not to be found that way")
    return jobs


def main() -> int:
    """Run the mutants that are asked for, two at a time, and print what became of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME")
    parser.add_argument("--third", metavar="K/3")
    parser.add_argument("--by", choices=("tests", "machine", "invariant"), default="tests")
    parser.add_argument("-j", type=int, default=2, metavar="N", help="how many at a time (default 2)")
    arguments = parser.parse_args()
    jobs = choose(arguments)
    check_baseline(jobs)
    alive = 0
    with ThreadPoolExecutor(arguments.j) as pool:
        for verdict in pool.map(run, jobs):
            alive += not verdict.killed
            print(f"{'killed' if verdict.killed else 'ALIVE '} {verdict.name:32} {verdict.text}", flush=True)
    print(f"{len(jobs) - alive} of {len(jobs)} killed")
    return 1 if alive else 0


if __name__ == "__main__":
    raise SystemExit(main())
