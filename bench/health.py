"""`python -m bench.health`: how long `/health` takes while the real server process does the worst it ever has to do.

Latencies are those of the probe in `tests/support`: the time that passed without that in which the server had no
processor, so that others on the machine do not count. One run measures everything, an idle server first.
"""

import statistics
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import trio
from rich.console import Console
from rich.table import Table
from tests.runtime.test_control_load import SIZE
from tests.soak.test_many_members import export, restore, save_all
from tests.support.fake_judge import Call, FakeJudge, Reply
from tests.support.server_process import ServerProcess
from tests.web.test_process import HEALTHY_S, Held, large_bodies, member, probed, process

Load = Callable[[ServerProcess, Path], Awaitable[None]]
IDLE_S: Final = 3.0
BRACES: Final = "{" * 1_000_000


async def idle(_server: ServerProcess, _folder: Path) -> None:
    await trio.sleep(IDLE_S)


async def verify_all(server: ServerProcess, bodies: list[object]) -> None:
    held = Held(server.peer)
    async with trio.open_nursery() as nursery:
        for body in bodies:
            nursery.start_soon(held.run, body)
    assert held.replies == [200] * len(bodies), held.replies


async def large_members(server: ServerProcess, _folder: Path) -> None:
    await verify_all(server, [*large_bodies(16, 8)])


async def braces(server: ServerProcess, _folder: Path) -> None:
    await verify_all(server, [member(index) for index in range(SIZE)])


def says_braces(_call: Call) -> Reply:
    return Reply(text=BRACES)


RUNS: Final[list[tuple[FakeJudge | None, dict[str, Load]]]] = [
    (None, {"nothing": idle, "16 members of 8 MB arrive": large_members}),
    (FakeJudge(says_braces), {"16 judge replies of a megabyte of braces": braces}),
    (
        None,
        {"a restore of 65,536 members": restore, "a commit of 65,536 members": export, "nothing, all retained": idle},
    ),
]


async def measure(folder: Path, table: Table) -> bool:
    """Run every load against its server; tells whether `/health` always answered in time."""
    healthy = True
    await save_all(folder)
    for number, (judge, loads) in enumerate(RUNS):
        place = folder / str(number)
        await trio.Path(place).mkdir()
        lax: dict[str, Any] = {"genrm_parse_retries": 0, "on_unparseable_verdict": "default_scores"}
        async with process(place, judge, size=SIZE, **lax) as server:
            for name, load in loads.items():
                async with probed(server) as latencies:
                    await load(server, folder)
                low, high = statistics.median(latencies), max(latencies)
                late = sorted(latencies)[len(latencies) * 99 // 100]
                table.add_row(name, str(len(latencies)), *(f"{1000 * s:.1f}" for s in (low, late, high)))
                healthy &= high < HEALTHY_S
    return healthy


def main() -> int:
    table = Table("while", "probes", "median ms", "99 % ms", "worst ms", title="/health")
    with tempfile.TemporaryDirectory(prefix="genrm-trio-bench-") as folder:
        healthy = trio.run(measure, Path(folder), table)
    Console(soft_wrap=True).print(table)
    print(f"always within {1000 * HEALTHY_S:.0f} ms: {'yes' if healthy else 'NO'}")
    return 0 if healthy else 1


if __name__ == "__main__":
    raise SystemExit(main())
