"""`make demo`: the main job on real answers, on this machine, in well under a minute.

For each pairing strategy and each of two ways to make scores of verdicts, the real server runs as a process of its own
with the recorded judge, and the trainer of `trainer` plays whole cohorts against it. What is shown at the end is what
an operator would want to know: how well the rewards recover the order that another judge gave to the same answers.
"""

import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal

import trio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table

from genrm_trio.ops.agreement import Agreement, agreement, mean_agreement
from genrm_trio.ops.local_server import local_server
from genrm_trio.ops.rows import Row, read_rows
from genrm_trio.ops.sources import EXAMPLE_MEMBERS, example_rows
from genrm_trio.ops.trainer import Listener, PlayedCohort, Progress, play

Strategy = Literal["circular", "all_pairs"]
Aggregator = Literal["simple_tiebreaker", "win_rate"]
PLAYED: Final[tuple[tuple[Aggregator, Strategy], ...]] = (
    ("simple_tiebreaker", "circular"),
    ("simple_tiebreaker", "all_pairs"),
    ("win_rate", "circular"),
    ("win_rate", "all_pairs"),
)
CALLS: Final = {"circular": EXAMPLE_MEMBERS, "all_pairs": EXAMPLE_MEMBERS * (EXAMPLE_MEMBERS - 1) // 2}
TITLE_WIDTH: Final = 80
PLAIN_WIDTH: Final = 108
"""Columns of the output when there is no terminal to ask."""

WHAT_NEXT: Final = """[bold]What to do next[/bold]
  {command} serve                 the same server, on port 8700, still with the recorded judge
  {command} serve --config FILE   your own judge; docs/configuration.md lists the settings
  {command} config                the settings in force
  {command} compare INPUT OUTPUT  judge groups from a file, without a trainer
The recorded judge only knows the shipped rows: to anything else it says so, it never makes up a score."""


@dataclass(frozen=True, slots=True)
class Run:
    """All cohorts of one configuration, and how far each one's rewards agree with the recorded scores."""

    aggregator: Aggregator
    strategy: Strategy
    cohorts: tuple[PlayedCohort, ...]
    agreements: tuple[Agreement, ...]

    @property
    def heading(self) -> str:
        """Its name over a narrow column."""
        return "\n".join([*self.aggregator.replace("_", "_ ").split(), self.strategy])

    @property
    def tau(self) -> str:
        """The mean of Kendall's tau-b."""
        return f"{mean_agreement(self.agreements).kendall:.3f}"


def demo(*, seed: int, limit: int | None = None, console: Console | None = None) -> tuple[Run, ...]:
    """Run the demo and show it; `limit` plays only so many cohorts.

    Raises:
        StartupError: the server does not start.
        PlayError: a rollout did not get the one reward that is its own.
    """
    console = console or Console()
    if not console.is_terminal:
        console = Console(file=console.file, width=PLAIN_WIDTH)
    rows = read_rows(example_rows())[:limit]
    console.print(
        f"{len(rows)} real prompts, {EXAMPLE_MEMBERS} answers each, against {len(PLAYED)} configurations of the "
        "server, each a process of its own. In each cohort the answers arrive in random order, one of them twice, and "
        "one loses its connection and comes again."
    )
    runs = tuple(trio.run(_run, aggregator, strategy, rows, seed, console) for aggregator, strategy in PLAYED)
    for number in range(len(rows)):
        console.print(_cohort_table(number, runs))
    console.print(_summary(runs))
    console.print(_reading(runs))
    console.print(WHAT_NEXT.format(command=_command()), soft_wrap=True)
    return runs


def _command() -> str:
    """Return the command as it was called, so that what is shown can be copied."""
    called = Path(sys.argv[0])
    if called.name != "genrm-trio":
        return "python -m genrm_trio"
    return called.name if shutil.which(called.name) == str(called) else str(called)


def _cut(text: str, width: int = TITLE_WIDTH) -> str:
    """Return a text on one line, cut with an ellipsis."""
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1].rstrip()}…"


async def _run(aggregator: Aggregator, strategy: Strategy, rows: Sequence[Row], seed: int, console: Console) -> Run:
    """Start a server with this configuration, play all rows, stop it."""
    settings: Mapping[str, object] = {
        "num_rollouts_per_prompt": EXAMPLE_MEMBERS,
        "comparison_strategy": strategy,
        "aggregator_method": aggregator,
        "judge": {"backend": "recorded", "recording": str(example_rows())},
    }
    title = f"{aggregator}, {strategy}"
    with TemporaryDirectory(prefix="genrm-trio-demo-") as folder, _shown(title, rows, console) as listener:
        async with local_server(settings, Path(folder)) as url:
            cohorts = await play(url, rows, seed=seed, listener=listener)
    return Run(aggregator, strategy, cohorts, tuple(agreement(c.rewards, _scores(c.row)) for c in cohorts))


def _scores(row: Row) -> list[float]:
    return [answer.gpt4_score for answer in row.answers]


@contextmanager
def _shown(title: str, rows: Sequence[Row], console: Console) -> Iterator[Listener]:
    """Show what happens: as bars on a terminal, else as a line for each cohort that got its rewards."""
    done: Counter[str] = Counter()
    expected = EXAMPLE_MEMBERS + 1  # one of them posts twice
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=console, disable=not console.is_terminal) as bars:
        sent = bars.add_task(f"{title}: answers sent", total=expected * len(rows))
        rewarded = bars.add_task(f"{title}: rewarded", total=expected * len(rows))

        def hear(progress: Progress) -> None:
            if progress.what == "sent":
                bars.advance(sent)
            elif progress.what == "rewarded":
                bars.advance(rewarded)
                done[progress.group] += 1
                if done[progress.group] == expected and not console.is_terminal:
                    console.print(f"{title}: cohort {progress.group[:8]} complete, {EXAMPLE_MEMBERS} rewards")

        yield hear


def _cohort_table(number: int, runs: Sequence[Run]) -> Table:
    """Show one cohort: each model with GPT-4's score and its reward in each configuration, best first."""
    row = runs[0].cohorts[number].row
    table = Table(title=f"{number + 1}. {_cut(row.prompt)}", title_justify="left")
    table.add_column("model")
    for name in ("GPT-4's\nscore", *(run.heading for run in runs)):
        table.add_column(name, justify="right")
    for index in sorted(range(len(row.answers)), key=lambda i: (-row.answers[i].gpt4_score, row.answers[i].model)):
        rewards = [run.cohorts[number].rewards[index] for run in runs]
        answer = row.answers[index]
        table.add_row(answer.model, f"{answer.gpt4_score:g}", *(f"{reward:.2f}" for reward in rewards))
    return table


def _summary(runs: Sequence[Run]) -> Table:
    """Show what each configuration costs, and its rank correlations, as means over the cohorts."""
    table = Table(title="How far the rewards have GPT-4's order (1 is the same order)", title_justify="left")
    table.add_column("scores from")
    table.add_column("pairs")
    for name in ("judge calls\na cohort", "Kendall\ntau-b", "lowest of\na cohort", "Spearman\nrho"):
        table.add_column(name, justify="right")
    for run in runs:
        lowest = min(one.kendall for one in run.agreements)
        rho = mean_agreement(run.agreements).spearman
        calls = str(CALLS[run.strategy])
        table.add_row(run.aggregator, run.strategy, calls, run.tau, f"{lowest:.3f}", f"{rho:.3f}")
    return table


def _reading(runs: Sequence[Run]) -> str:
    """Say what the figures mean, and what they do not."""
    by = {(run.aggregator, run.strategy): run.tau for run in runs}
    return (
        "The recorded judge gives an answer the same score whoever it meets, so the mean of scores "
        "(simple_tiebreaker) has GPT-4's order in any pairing. win_rate keeps only who won: "
        f"{CALLS['circular']} pairs in a ring then reach a tau-b of {by['win_rate', 'circular']}, "
        f"all {CALLS['all_pairs']} pairs {by['win_rate', 'all_pairs']}. Your own judge and rows will differ: "
        "`genrm-trio compare` measures them.\n"
    )
