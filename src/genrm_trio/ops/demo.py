"""`make demo`: the main job on real answers, on this machine, in well under a minute.

For each pairing strategy the real server runs as a process of its own with the recorded judge, and the trainer of
`trainer` plays whole cohorts against it. What is shown at the end is what an operator would want to know: how
well the rewards recover the order that another judge gave to the same answers.
"""

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
STRATEGIES: Final[tuple[Strategy, ...]] = ("circular", "all_pairs")
PLAIN_WIDTH: Final = 100
"""Columns of the output when there is no terminal to ask."""

WHAT_NEXT: Final = """[bold]What to do next[/bold]
  genrm-trio serve                      the same server, on port 8700, still with the recorded judge
  genrm-trio serve --config FILE        your own judge; docs/configuration.md lists the settings
  genrm-trio config                     the settings in force
  genrm-trio compare INPUT OUTPUT       judge groups from a file, without a trainer
The recorded judge only knows the shipped rows: to anything else it says so, it never makes up a score."""


@dataclass(frozen=True, slots=True)
class Run:
    """All cohorts of one strategy, and how far each one's rewards agree with the recorded scores."""

    strategy: Strategy
    cohorts: tuple[PlayedCohort, ...]
    agreements: tuple[Agreement, ...]


def demo(*, seed: int, limit: int | None = None, console: Console | None = None) -> None:
    """Run the demo; `limit` plays only so many cohorts.

    Raises:
        StartupError: the server does not start.
        PlayError: a rollout did not get the one reward that is its own.
    """
    console = console or Console()
    if not console.is_terminal:
        console = Console(file=console.file, width=PLAIN_WIDTH)
    rows = read_rows(example_rows())[:limit]
    console.print(
        f"{len(rows)} real prompts, {EXAMPLE_MEMBERS} answers each. For each pairing strategy the server runs as a "
        "process of its own; in each cohort the answers arrive in random order, one of them twice, and one loses its "
        "connection and comes again."
    )
    runs = [trio.run(_run, strategy, rows, seed, console) for strategy in STRATEGIES]
    for number in range(len(rows)):
        console.print(_cohort_table(number, runs))
    console.print(_summary(runs))
    console.print(_reading(runs))
    console.print(WHAT_NEXT)


async def _run(strategy: Strategy, rows: Sequence[Row], seed: int, console: Console) -> Run:
    """Start a server with this strategy, play all rows, stop it."""
    settings: Mapping[str, object] = {
        "num_rollouts_per_prompt": EXAMPLE_MEMBERS,
        "comparison_strategy": strategy,
        "judge": {"backend": "recorded", "recording": str(example_rows())},
    }
    with TemporaryDirectory(prefix="genrm-trio-demo-") as folder, _shown(strategy, rows, console) as listener:
        async with local_server(settings, Path(folder)) as url:
            cohorts = await play(url, rows, seed=seed, listener=listener)
    return Run(strategy, cohorts, tuple(agreement(c.rewards, _scores(c.row)) for c in cohorts))


def _scores(row: Row) -> list[float]:
    return [answer.gpt4_score for answer in row.answers]


@contextmanager
def _shown(strategy: str, rows: Sequence[Row], console: Console) -> Iterator[Listener]:
    """Show what happens: as bars on a terminal, else as a line for each cohort that got its rewards."""
    done: Counter[str] = Counter()
    expected = EXAMPLE_MEMBERS + 1  # one of them posts twice
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=console, disable=not console.is_terminal) as bars:
        sent = bars.add_task(f"{strategy}: answers sent", total=expected * len(rows))
        rewarded = bars.add_task(f"{strategy}: rewarded", total=expected * len(rows))

        def hear(progress: Progress) -> None:
            if progress.what == "sent":
                bars.advance(sent)
            elif progress.what == "rewarded":
                bars.advance(rewarded)
                done[progress.group] += 1
                if done[progress.group] == expected and not console.is_terminal:
                    console.print(f"{strategy}: cohort {progress.group[:8]} complete, {EXAMPLE_MEMBERS} rewards")

        yield hear


def _cohort_table(number: int, runs: Sequence[Run]) -> Table:
    """Show one cohort: each model with GPT-4's score and its reward under each strategy, best first."""
    row = runs[0].cohorts[number].row
    prompt = " ".join(row.prompt.split())
    table = Table(title=f"{number + 1}. {prompt[:80]}", title_justify="left")
    table.add_column("model")
    for name in ("GPT-4's score", *(f"reward, {run.strategy}" for run in runs)):
        table.add_column(name, justify="right")
    rewards = [run.cohorts[number].rewards for run in runs]
    for index in sorted(range(len(row.answers)), key=lambda i: -rewards[-1][i]):
        answer = row.answers[index]
        table.add_row(answer.model, f"{answer.gpt4_score:g}", *(f"{reward[index]:.2f}" for reward in rewards))
    return table


def _summary(runs: Sequence[Run]) -> Table:
    """Show the rank correlations: each cohort's, and their means."""
    table = Table(title="How far the rewards have GPT-4's order (1 is the same order)", title_justify="left")
    table.add_column("cohort")
    for run in runs:
        table.add_column(f"{run.strategy}: Kendall tau-b", justify="right")
        table.add_column("Spearman rho", justify="right")
    for number, cohort in enumerate(runs[0].cohorts):
        shown = [run.agreements[number] for run in runs]
        table.add_row(cohort.row.question_id[:8], *_figures(shown), end_section=number == len(runs[0].cohorts) - 1)
    table.add_row("mean", *_figures([mean_agreement(run.agreements) for run in runs]), style="bold")
    return table


def _figures(agreements: Sequence[Agreement]) -> list[str]:
    return [f"{value:.3f}" for one in agreements for value in (one.kendall, one.spearman)]


def _reading(runs: Sequence[Run]) -> str:
    """Say in one sentence what the figures mean."""
    calls = {"circular": EXAMPLE_MEMBERS, "all_pairs": EXAMPLE_MEMBERS * (EXAMPLE_MEMBERS - 1) // 2}
    parts = [
        f"{run.strategy} asks the judge {calls[run.strategy]} times a cohort and reaches a mean tau-b of "
        f"{mean_agreement(run.agreements).kendall:.3f}"
        for run in runs
    ]
    return f"{'; '.join(parts)}. Both strategies saw the same verdicts: the difference is what more pairs tell.\n"
