"""Which mutants of the source a replay finds: each is put into a copy of the code, which is led along the graphs.

    python -m spec.tools.kills                 all mutants of tests/mutants, written to kills.json
    python -m spec.tools.kills --only NAME     one of them, printed

The walks take one edge of all that look alike to whoever is led. A mutant of the core is led as the core first; one of
the rooms around it shows on Trio only. The first divergence ends the search. A mutant that is not found is explained in
tests/mutants/reasons.py (`NOT_REPLAYED`), or is a gap.
"""

import argparse
import json
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from spec.tools import configs
from spec.tools.codes import Constants
from spec.tools.core_target import core_target
from spec.tools.graph import Graph, dump
from spec.tools.replay import Fresh
from spec.tools.replaying import run, seen_by_core, seen_by_server
from spec.tools.tlc import SPEC
from spec.tools.trio_target import trio_target
from spec.tools.walks import Walk, covering
from tests.mutants.run import mutate
from tests.mutants.table import MUTANTS, Mutant

FILE = SPEC / "kills.json"
TIME_LIMIT_S = 1800.0

Stage = tuple[str, str, int]
"""What is led, in which graph, and along every how many-th of its walks. Those that cost least come first."""

CORE: tuple[Stage, ...] = (
    ("core", "U", 1),
    ("core", "F", 1),
    ("core", "C", 1),
    ("core", "A", 1),
    ("core", "S", 8),
    ("core", "D", 1),
    ("core", "E", 2),
    ("core", "R", 1),
    ("core", "P", 1),
    ("core", "X", 1),
    ("trio", "U", 1),
    ("core", "V", 1),
)
"""For a mutant of the core. Q is left out, whose behaviours are those of P and X; S and E are large, and are there for
a second group attempt, and for what goes by count while a checkpoint is open."""
AROUND: tuple[Stage, ...] = (("trio", "U", 1), ("trio", "F", 1), ("trio", "R", 3), ("trio", "X", 3))
"""For a mutant of anything else."""


def stages(mutant: Mutant) -> tuple[Stage, ...]:
    """What a mutant is led along."""
    return CORE if any(file.startswith("core/") for file, _, _ in mutant.edits) else AROUND


def store(folder: Path) -> Iterator[str]:
    """Dump each graph and its walks into files, for what is led along it; yields the names of the graphs."""
    seen = {"core": seen_by_core, "trio": seen_by_server}
    wanted = dict.fromkeys((name, led) for led, name, _ in (*CORE, *AROUND))
    for config in dict.fromkeys(name for name, _ in wanted):
        graph = dump(configs.load(config))
        for led in (led for name, led in wanted if name == config):
            named: partial[Hashable] = partial(seen[led], graph)
            (folder / f"{led} {config}").write_bytes(pickle.dumps((graph, covering(graph, named))))
        yield config


def lead(folder: Path, mutant: Mutant) -> str | None:
    """Lead this process' own code along the stored graphs; returns by what and where it was found out, or None."""
    for led, name, every in stages(mutant):
        graph, walks = _read(folder / f"{led} {name}")
        constants, initial = Constants.of(configs.load(name)), graph.states[0]
        fresh: Fresh = partial(core_target if led == "core" else trio_target, constants, initial)
        try:
            run(graph, walks[::every], fresh)
        except Exception as error:  # noqa: BLE001 - however code with a defect goes wrong, it was found out
            return f"{led} {name}: {_first_line(error)}"
    return None


def _read(path: Path) -> tuple[Graph, list[Walk]]:
    read: tuple[Graph, list[Walk]] = pickle.loads(path.read_bytes())  # noqa: S301 - written by ourselves
    return read


def _first_line(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


def found_out(mutant: Mutant, graphs: Path) -> str | None:
    """Put a mutant into a copy of the code and lead that."""
    with tempfile.TemporaryDirectory(prefix="kill-") as name:
        folder = Path(name)
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
        for part in ("src", "spec", "tests"):
            shutil.copytree(SPEC.parent / part, folder / part, ignore=ignored)
        mutate(folder / "src", mutant)
        done = subprocess.run(
            [sys.executable, "-m", "spec.tools.kills", "--lead", str(graphs), "--only", mutant.name],
            cwd=folder,
            env={"PYTHONPATH": f"{folder / 'src'}:{folder}", "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_S,
            check=False,
        )
    if done.returncode != 0:
        raise RuntimeError(f"{mutant.name} could not be led:\n{done.stderr[-2000:]}")
    told = done.stdout.splitlines()
    return told[-1] if told else None


def search(mutants: Iterable[Mutant], workers: int) -> Iterator[tuple[str, str | None]]:
    """Each mutant, and how it was found out."""
    with tempfile.TemporaryDirectory(prefix="graphs-") as name, ThreadPoolExecutor(workers) as pool:
        folder = Path(name)
        for config in store(folder):
            print(f"graph {config}", flush=True)
        listed = list(mutants)
        found = pool.map(lambda one: found_out(one, folder), listed)
        yield from zip((mutant.name for mutant in listed), found, strict=True)


def by(how: str | None) -> str | None:
    """What is recorded: what was led when it was found, and in which graph."""
    return how.partition(":")[0] if how is not None else None


def recorded() -> dict[str, str | None]:
    """What kills.json holds: for each mutant how it is found, null when it is not."""
    read: dict[str, str | None] = json.loads(FILE.read_text())
    return read


def record(found: dict[str, str | None]) -> None:
    """Write kills.json."""
    FILE.write_text(json.dumps(found, indent=1) + "\n")


def main(arguments: list[str]) -> int:
    """Do what the arguments ask for."""
    parser = argparse.ArgumentParser(description="Lead broken code along the graphs of the spec.")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some mutants, printed and not written")
    parser.add_argument("--workers", type=int, default=2, help="how many are led at once")
    parser.add_argument("--lead", metavar="FOLDER", help="lead the code of this process (used by the copies)")
    options = parser.parse_args(arguments)
    chosen = [mutant for mutant in MUTANTS if not options.only or mutant.name in options.only]
    if options.lead:
        if how := lead(Path(options.lead), *chosen):
            print(how)
        return 0
    found: dict[str, str | None] = {}
    for name, how in search(chosen, options.workers):
        found[name] = by(how)
        print(f"{name}: {how}", flush=True)
    if not options.only:
        record(found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
