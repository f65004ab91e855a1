"""The command `compare` on a terminal or without one: progress, the closing line, the exit code."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import trio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from genrm_trio.judging.faults import RULES, Action, Kind
from genrm_trio.judging.judge import CallSeen, FaultSeen
from genrm_trio.ops import logs
from genrm_trio.ops.assembly import make_judge, policy
from genrm_trio.ops.batch import Batch, Files, Tally
from genrm_trio.ops.score_settings import score_digest
from genrm_trio.ops.settings import Settings, secrets_of

PLAIN_LINES: Final = 20
"""How many lines of progress a run writes without a terminal."""
FAILURES_TOLD: Final = 5
"""How many failed groups a run prints; the file of failed groups has all of them."""
SOME_FAILED: Final = 1
INTERRUPTED: Final = 130


def compare_files(settings: Settings, source: Path, output: Path) -> int:
    """Judge the groups of a file; returns 0 when all have rewards, 1 when some failed, 130 when stopped."""
    console = Console(stderr=True)
    logs.configure(debug=settings.debug_logging, secrets=secrets_of(settings), max_line=settings.limits.max_log_line)
    files = Files(source, output)

    tally, stopped = trio.run(_run, settings, files, console)
    console.print(f"{tally.judged} groups judged, {tally.known} known before, {tally.failed} failed: {output}")
    if stopped:
        console.print("stopped; the same command goes on from here")
        return INTERRUPTED
    if tally.failed:
        console.print(f"the failed groups are in {files.failed}; the same command tries them again")
    return SOME_FAILED if tally.failed else 0


class Talk:
    """Says once for each endpoint and kind what goes wrong with the judge, and prints the first failed groups."""

    def __init__(self, settings: Settings, files: Files, console: Console) -> None:
        self._settings = settings
        self._files = files
        self._console = console
        self._met: set[tuple[str, str, str]] = set()
        self._failures = 0

    def on_call(self, call: CallSeen) -> None:
        """Nobody counts calls here."""

    def on_fault(self, fault: FaultSeen) -> None:
        """Say in a line what happened and what follows, the first time."""
        met = (fault.endpoint, fault.kind, fault.features)
        if met in self._met:
            return
        self._met.add(met)
        told = RULES.get(Kind(fault.kind))
        what = told.meaning if told is not None else fault.kind
        if fault.kind == Kind.REFUSED:
            what = f"nothing listens at {fault.endpoint}"
        elif fault.features:
            what = f"{fault.features} is refused, at {fault.endpoint}"
        elif fault.endpoint:
            what = f"{what}, at {fault.endpoint}"
        self.say(f"judge: {what}; {self._what_follows(fault.action)}")

    def _what_follows(self, action: str) -> str:
        retries = f"{self._settings.genrm_parse_retries} more times (genrm_parse_retries)"
        return {
            Action.RETRY: f"trying again, up to {retries}",
            Action.RETRY_FREE: f"trying again for up to {self._settings.judge_request_timeout_s:g} s "
            "(judge_request_timeout_s)",
            Action.WAIT: "waiting as long as it says",
            Action.PAIR: f"asking again, up to {retries}",
            Action.WITHOUT: "asking without it from now on",
        }.get(Action(action), "not trying again")

    def failed(self, text: str) -> None:
        """Print one of the first groups that failed."""
        self._failures += 1
        if self._failures <= FAILURES_TOLD:
            self.say(f"failed: {text}")
        elif self._failures == FAILURES_TOLD + 1:
            self.say(f"more groups failed: see {self._files.failed}")

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


async def _run(settings: Settings, files: Files, console: Console) -> tuple[Tally, bool]:
    """Run until all groups are through or an interrupt comes; tell how far it went, and whether it was stopped."""
    talk = Talk(settings, files, console)
    judge = make_judge(settings, talk)
    stopped = False
    try:
        with _shown(console) as advanced:
            batch = Batch(policy(settings), judge, files, score_digest(settings), advanced, talk.failed, talk.say)
            async with trio.open_nursery() as nursery:

                async def stop() -> None:
                    nonlocal stopped
                    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                        async for _ in signals:
                            stopped = True
                            nursery.cancel_scope.cancel()

                nursery.start_soon(stop)
                await batch.run()
                nursery.cancel_scope.cancel()
        return batch.tally, stopped
    finally:
        with trio.CancelScope(shield=True):
            await judge.aclose()


@contextmanager
def _shown(console: Console) -> Iterator[Callable[[Tally], None]]:
    """Show a bar on a terminal, else now and then a line."""
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("groups", total=None)

        def advanced(tally: Tally) -> None:
            failed = f"groups, {tally.failed} failed" if tally.failed else "groups"
            bar.update(task, completed=tally.finished, total=tally.total, description=failed)
            if not console.is_terminal and tally.finished % max(1, tally.total // PLAIN_LINES) == 0:
                console.print(f"{tally.finished} of {tally.total} {failed}")

        yield advanced
