"""`python -m bench.trace`: what `serve --trace FILE` costs of a verify, which must stay under 3 percent.

Measured twice: on two real processes in turns, which is what users have but is as noisy as the machine; and in the core
alone, where the difference is small and steady, as a share of the verify that was measured beside it.
"""

import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

import trio
from rich.console import Console
from rich.table import Table
from tests.runtime.test_control_load import SIZE
from tests.soak.wire import Client, judge
from tests.support.server_process import ServerProcess, servers, settings_for

from bench.costs import COHORTS, cohorts, row
from genrm_trio.core.cohort import Answer
from genrm_trio.core.identity import EpisodeId, group_cohort_id
from genrm_trio.core.outcome import RESULT_FIELDS, Rewarded
from genrm_trio.core.registry import Registry, Submission
from genrm_trio.core.state import Limits
from genrm_trio.core.trace import Hook
from genrm_trio.ops.tracing import traced

ROUNDS: Final = 9
LIMIT: Final = 0.03
RESULT: Final = Rewarded(dict.fromkeys(sorted(RESULT_FIELDS), 0.123456789))


async def processes(folder: Path) -> dict[str, list[float]]:
    """Processor time of a verify, without and with a trace, in turns."""
    costs: dict[str, list[float]] = {"plain": [], "traced": []}
    async with judge() as url, trio.open_nursery() as nursery:
        found: dict[str, ServerProcess] = {}
        ended = trio.Event()

        async def keep(name: str, task_status: trio.TaskStatus[ServerProcess]) -> None:
            await trio.Path(folder / name).mkdir()
            async with servers(folder / name, settings_for(url, SIZE)) as house:
                options = ["--trace", str(folder / "trace.jsonl")] if name == "traced" else []
                task_status.started(await house.start(*options))
                await ended.wait()
                await house.running.kill()  # type: ignore[union-attr]  # it was started above

        for name in costs:
            found[name] = await nursery.start(keep, name)
        clients = {name: Client(server.port) for name, server in found.items()}
        for turn in range(ROUNDS):
            for name, server in found.items():
                cost = await cohorts(server, clients[name], f"{name}-{turn}")
                costs[name] += [cost] if turn else []
        for client in clients.values():
            client.close()
        ended.set()
    return costs


def in_core(trace: Hook | None, name: str) -> float:
    """Processor time of the core for each verify of some cohorts, its seed and the end of its session included."""
    registry = Registry(Limits(SIZE, record_sessions=True), trace=trace)
    began = time.process_time()
    for number in range(COHORTS):
        cohort = group_cohort_id(f"{name}-{number}", 0)
        for index in range(SIZE):
            session, episode = f"session-of-{name}-{number}-{index}", EpisodeId(f"rollout-of-{name}-{number}-{index}")
            registry.seed(0.0, session, episode, binds=True)
            answer = Answer({"genrm-trio-1": "0" * 64})
            waiter = number * SIZE + index
            registry.submit(0.0, Submission(waiter, cohort, index, "0" * 64, answer, session, episode))
        registry.judged(0.0, cohort.key, [RESULT] * SIZE)
        registry.publish(0.0, cohort.key)
        for index in range(SIZE):
            registry.end_session(0.0, f"session-of-{name}-{number}-{index}", "close")
    return (time.process_time() - began) / (COHORTS * SIZE)


def core(folder: Path) -> float:
    """What a trace adds to the core's time for a verify."""
    added = []
    with traced(folder / "core.jsonl") as file:
        for turn in range(30):
            plain = in_core(None, f"a{turn}")
            added.append(in_core(file, f"b{turn}") - plain)
    return statistics.median(added)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="genrm-trio-bench-") as name:
        costs, added = trio.run(processes, Path(name)), core(Path(name))
    base = statistics.median(costs["plain"])
    table = Table("processor time", "us", "ratio")
    row(table, "a verify (cohort of 16, its judge call included), without a trace", costs["plain"], base)
    row(table, "the same with --trace", costs["traced"], base)
    row(table, "what the trace of a verify and of its session costs in the core", [added], base)
    console = Console(soft_wrap=True)
    console.print(table)
    console.print(f"the trace takes {added / base:.2%} of a verify; the limit is {LIMIT:.0%}")
    raise SystemExit(added / base > LIMIT)


if __name__ == "__main__":
    main()
