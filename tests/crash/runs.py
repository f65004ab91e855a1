"""Runs many schedules, several at a time, and says how to replay the ones that fail.

`python -m tests.crash.runs --schedules 200 --seed 1` for the deep run; `--schedules 1 --seed S --log` replays one.
"""

import argparse
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio
from tests.crash.play import Played, play
from tests.crash.schedule import make
from tests.support.server_process import forks

AT_A_TIME: Final = 4
"""A run mostly waits; so many keep two cores busy."""
LONGEST_S: Final = 90.0


@dataclass
class Results:
    """What came of a number of runs; failures by seed."""

    played: list[Played] = field(default_factory=list)
    failures: dict[int, BaseException] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """One line with what the runs amounted to."""
        total = {
            name: sum(getattr(run, name) for run in self.played)
            for name in ("crashes", "restores", "told", "replays", "judge_calls")
        }
        counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in total.items())
        return f"{len(self.played)} schedules held, {len(self.failures)} failed: {counts}"

    def report(self) -> Iterator[str]:
        """Each failure with its log and how to replay it."""
        for seed, error in sorted(self.failures.items()):
            yield f"schedule {seed} failed; replay it with: make crash SCHEDULES=1 SEED={seed}"
            yield "".join(traceback.format_exception(error, chain=False))


async def run_all(
    seeds: Sequence[int],
    folder: Path,
    socket: Path | None,
    *,
    at_a_time: int = AT_A_TIME,
    until_failure: bool = False,
    tell: Callable[[str], object] = lambda _line: None,
) -> Results:
    """Play these schedules; with `until_failure` all end once one has failed."""
    results = Results()
    left = list(reversed(seeds))

    async def work() -> None:
        while left:
            seed = left.pop()
            own = folder / f"schedule-{seed}"
            own.mkdir()
            try:
                with trio.fail_after(LONGEST_S):
                    results.played.append(await play(make(seed), own, socket))
            except Exception as error:  # noqa: BLE001 - whatever a run ends with is reported, with its seed
                results.failures[seed] = error
            tell(f"schedule {seed}: {'FAILED' if seed in results.failures else 'held'}")
            if until_failure and results.failures:
                nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for _ in range(min(at_a_time, len(seeds))):
            nursery.start_soon(work)
    return results


def main() -> None:
    """Run as the command line says; the exit code is 1 when a schedule failed."""
    parser = argparse.ArgumentParser(description="Plays random schedules of crashes against the real server.")
    parser.add_argument("--schedules", type=int, default=20, help="how many")
    parser.add_argument("--seed", type=int, default=1, help="of the first one; the next have the next numbers")
    parser.add_argument("--at-a-time", type=int, default=AT_A_TIME)
    parser.add_argument("--log", action="store_true", help="show what was done, also when all held")
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.schedules)
    with tempfile.TemporaryDirectory(prefix="genrm-trio-crash-") as name, forks(Path(name)) as socket:

        async def run() -> Results:
            return await run_all(seeds, Path(name), socket, at_a_time=options.at_a_time, tell=print)

        results = trio.run(run)
    for played in results.played if options.log else ():
        print(f"schedule {played.seed}:", *played.log, sep="\n")
    for text in results.report():
        print(text)
    print(results.summary)
    sys.exit(bool(results.failures))


if __name__ == "__main__":
    main()
