"""Which mutants of the source a replay finds: each is put into a copy of the code, which is led along the graphs.

    python -m spec.tools.kills                 all mutants of tests/mutants, written to kills.json
    python -m spec.tools.kills --only NAME     one of them, printed

The walks take one edge of all that look alike to the server. The core is led first, then the runtime; the first
divergence ends the search. A mutant that is not found is explained in tests/spec/test_one_vocabulary.py, or is a gap.
"""

import argparse
import json
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from spec.tools import configs
from spec.tools.codes import Constants
from spec.tools.core_target import core_target
from spec.tools.graph import Graph, dump
from spec.tools.replaying import run, seen_by_server
from spec.tools.tlc import SPEC
from spec.tools.trio_target import trio_target
from spec.tools.walks import Walk, covering
from tests.mutants.run import mutate
from tests.mutants.table import MUTANTS, Mutant

FILE = SPEC / "kills.json"
ON_CORE = ("Q", "U", "R", "P", "D", "E", "X")
ON_TRIO = ("Q", "U")
TIME_LIMIT_S = 1800.0


def stored(folder: Path, name: str) -> None:
    """Dump a graph and its walks into a file."""
    graph = dump(configs.load(name))
    led = covering(graph, partial(seen_by_server, graph))
    (folder / name).write_bytes(pickle.dumps((graph, led)))


def lead(folder: Path) -> str | None:
    """Lead this process' own code along the stored graphs; returns by what and where it was found out, or None."""
    for target, names in ((core_target, ON_CORE), (trio_target, ON_TRIO)):
        for name in names:
            graph, led = _read(folder / name)
            constants = Constants.of(configs.load(name))
            try:
                run(graph, led, partial(target, constants, graph.states[0]))
            except Exception as error:  # noqa: BLE001 - however code with a defect goes wrong, it was found out
                return f"{target.__name__.removesuffix('_target')} {name}: {_first_line(error)}"
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
            [sys.executable, "-m", "spec.tools.kills", "--lead", str(graphs)],
            cwd=folder,
            env={"PYTHONPATH": f"{folder / 'src'}:{folder}", "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_S,
            check=False,
        )
    if done.returncode != 0:
        return f"it does not run: {done.stderr.strip().splitlines()[-1][:300]}"
    told = done.stdout.splitlines()
    return told[-1] if told else None


def search(mutants: Iterable[Mutant], workers: int) -> dict[str, str | None]:
    """Each mutant, and how it was found out."""
    found: dict[str, str | None] = {}
    with tempfile.TemporaryDirectory(prefix="graphs-") as name, ThreadPoolExecutor(workers) as pool:
        folder = Path(name)
        for config in dict.fromkeys((*ON_CORE, *ON_TRIO)):
            stored(folder, config)
            print(f"graph {config}", flush=True)
        listed = list(mutants)
        for mutant, how in zip(listed, pool.map(lambda one: found_out(one, folder), listed), strict=True):
            found[mutant.name] = how
            print(f"{mutant.name}: {how}", flush=True)
    return found


def main(arguments: list[str]) -> int:
    """Do what the arguments ask for."""
    parser = argparse.ArgumentParser(description="Lead broken code along the graphs of the spec.")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some mutants, printed and not written")
    parser.add_argument("--workers", type=int, default=2, help="how many are led at once")
    parser.add_argument("--lead", metavar="FOLDER", help="lead the code of this process (used by the copies)")
    options = parser.parse_args(arguments)
    if options.lead:
        how = lead(Path(options.lead))
        print(*([how] if how else []))
        return 0
    chosen = [mutant for mutant in MUTANTS if not options.only or mutant.name in options.only]
    found = search(chosen, options.workers)
    if not options.only:
        FILE.write_text(json.dumps({name: _by(how) for name, how in found.items()}, indent=1) + "\n")
    return 0


def _by(how: str | None) -> str | None:
    """What is recorded: by what it was found, and in which graph."""
    return how.partition(":")[0] if how is not None else None


def recorded() -> dict[str, Any]:
    """What kills.json holds: for each mutant how it is found, null when it is not."""
    read: dict[str, Any] = json.loads(FILE.read_text())
    return read


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
