"""`python -m tests.soak`: runs the soak, prints a table, and exits with 1 when something is not flat."""

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

import trio
from rich.console import Console
from rich.table import Table
from tests.soak.run import Soak, soak


def main() -> int:
    parser = argparse.ArgumentParser(description="Many verifies in mixed endings; memory and descriptors stay flat.")
    parser.add_argument("verifies", nargs="?", type=int, default=200_000)
    parser.add_argument("--generations", type=int, default=4, help="processes, each restored from the one before")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="genrm-trio-soak-") as folder:
        found = trio.run(partial(soak, Path(folder), options.verifies, options.generations, options.seed))
    show(found)
    return 1 if found.wrong else 0


def show(found: Soak) -> None:
    """Print what was measured."""
    console = Console(soft_wrap=True, width=200)
    columns = ["process", "verifies", "per s", "MB idle", "MB warm", "MB end", "fds idle", "fds warm", "fds end"]
    columns += ["objects warm", "objects end", "MB alive warm", "MB alive end"]
    table = Table(*columns)
    for each in found.generations:
        held = (each.idle, each.warm, each.end)
        numbers = [str(each.number), str(each.verifies), f"{each.verifies / each.seconds:.0f}"]
        numbers += [f"{h.memory_mb:.1f}" for h in held]
        numbers += [str(h.descriptors) for h in held]
        numbers += [str(h.objects) for h in held[1:]]
        table.add_row(*numbers, *(f"{h.bytes / 1e6:.2f}" for h in held[1:]))
    console.print(table)
    endings = ", ".join(f"{count} {name}" for name, count in found.endings.items())
    console.print(f"{found.verifies} verifies; cohorts: {endings}")
    for text in found.wrong:
        console.print(f"NOT FLAT: {text}")


if __name__ == "__main__":
    sys.exit(main())
