"""`python -m bench.costs`: what a verify, a judge call and a retained member cost, and how that grows.

Costs are processor time, so that others on the machine count little; what is compared is measured in turns in one run.
"""

import gc
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from itertools import islice
from pathlib import Path
from typing import Final

import httpx2
import trio
from rich.console import Console
from rich.table import Table
from tests.runtime.test_control_load import INSTANCE, MEMBERS, SIZE, content
from tests.soak.endings import verify_body
from tests.soak.wire import Client, judge
from tests.support.gym import Controller
from tests.support.judges import ScriptedJudge
from tests.support.judging_kit import ASK, GOOD, Scripted, judge_of, says
from tests.support.scene import policy
from tests.support.server_process import CONTROL_TOKEN, ServerProcess, servers, settings_for

from genrm_trio.checkpoints.store import FileStore
from genrm_trio.judging.slots import Slots
from genrm_trio.runtime.server import Server
from genrm_trio.runtime.transfer import rebuild_aside

ROUNDS: Final = 7
COHORTS: Final = 12
CALLS: Final = 300
KEPT: Final = 8192
WITHIN_S: Final = 300.0


def processor_s(pid: str) -> float:
    """Processor time that all threads of a process had, in seconds."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9


def row(table: Table, name: str, costs: list[float], base: float) -> None:
    """Show the median of some costs in seconds, and how many times the base it is."""
    middle = statistics.median(costs)
    table.add_row(name, f"{1e6 * middle:.0f}", f"{middle / base:.2f}")


# -- a verify ------------------------------------------------------------------------------------------


async def cohorts(server: ServerProcess, client: Client, name: str) -> float:
    """Processor time of the server for each verify of some cohorts of 16."""
    before = processor_s(str(server.child.pid))
    for number in range(COHORTS):
        async with trio.open_nursery() as nursery:
            for index in range(SIZE):
                nursery.start_soon(client.ask, "POST", "/verify", verify_body(f"{name}-{number}", index))
    return (processor_s(str(server.child.pid)) - before) / (COHORTS * SIZE)


async def verifies(folder: Path, table: Table) -> None:
    """A verify at a server that retains nothing, and at one that retains 4,096 cohorts of 16."""
    await FileStore(INSTANCE).write(str(folder / "saved"), checkpoint_id="ck", records=content())
    costs: dict[str, list[float]] = {"empty": [], "full": []}
    async with judge() as url, trio.open_nursery() as nursery:
        found: dict[str, ServerProcess] = {}
        ended = trio.Event()

        async def keep(name: str, task_status: trio.TaskStatus[ServerProcess]) -> None:
            place = trio.Path(folder / name)
            await place.mkdir()
            async with servers(folder / name, settings_for(url, SIZE, max_terminal_cohorts=8192)) as house:
                task_status.started(await house.start())
                await ended.wait()
                await house.running.kill()  # type: ignore[union-attr]  # it was started above

        for name in costs:
            found[name] = await nursery.start(keep, name)
        controller = Controller(found["full"].peer, CONTROL_TOKEN, deadline_s=WITHIN_S)
        await controller.restore("re", folder / "saved", [f"{n // SIZE}-{n % SIZE}" for n in range(MEMBERS)])
        await controller.resume("re")
        clients = {name: Client(server.port) for name, server in found.items()}
        for turn in range(ROUNDS):
            for name, server in found.items():
                cost = await cohorts(server, clients[name], f"{name}-{turn}")
                costs[name] += [cost] if turn else []
        for client in clients.values():
            client.close()
        ended.set()
    base = statistics.median(costs["empty"])
    row(table, "a verify (cohort of 16, its judge call included), nothing retained", costs["empty"], base)
    row(table, "the same with 4,096 cohorts of 16 retained", costs["full"], base)


# -- a judge call --------------------------------------------------------------------------------------


async def judge_calls(table: Table) -> None:
    """One comparison through the judge's transport, beside the bare HTTP client that it uses."""
    async with judge() as url, httpx2.AsyncClient() as bare:
        over_loopback, in_memory = judge_of(url), judge_of(Scripted(says(GOOD)))
        slots = Slots(64)
        body = {"input": [], "metadata": {"response_1": "four", "response_2": "five"}}

        async def bare_call() -> None:
            await bare.post(f"{url}/v1/responses", json=body)

        async def whole() -> None:
            await over_loopback.compare(ASK, slots.ticket())

        async def without_network() -> None:
            await in_memory.compare(ASK, slots.ticket())

        kinds: dict[str, Callable[[], Awaitable[None]]] = {
            "a bare HTTP call to the judge (client and judge in one process)": bare_call,
            "a comparison, all of it": whole,
            "a comparison without the network": without_network,
        }
        costs: dict[str, list[float]] = {name: [] for name in kinds}
        for turn in range(ROUNDS):
            for name, call in kinds.items():
                began = time.process_time()
                for _ in range(CALLS):
                    await call()
                costs[name] += [(time.process_time() - began) / CALLS] if turn else []
        await over_loopback.aclose()
        await in_memory.aclose()
    base = statistics.median(next(iter(costs.values())))
    for name, measured in costs.items():
        row(table, name, measured, base)


# -- a retained member ---------------------------------------------------------------------------------


async def memory() -> dict[str, float]:
    """Bytes that Python's allocator gives to a retained member, with its open session and when that has ended."""
    server = Server(policy(SIZE), ScriptedJudge())
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    found = {}
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        rebuild = await rebuild_aside(server, list(islice(content(), KEPT)))
        server.close_admission()
        server.registry.restore(server.now(), rebuild)
        server.open_admission(resumed=True)
        del rebuild
        gc.collect()
        found["a retained member with an open session"] = tracemalloc.get_traced_memory()[0] - before
        for session_id in [session.session_id for session in server.registry.sessions]:
            server.end_session(session_id, by="verify")
        gc.collect()
        found["a retained member whose session has ended"] = tracemalloc.get_traced_memory()[0] - before
        nursery.cancel_scope.cancel()
    tracemalloc.stop()
    return {name: size / KEPT for name, size in found.items()}


def main() -> None:
    console = Console(soft_wrap=True)
    sizes = Table("memory", "bytes")
    for name, size in trio.run(memory).items():
        sizes.add_row(name, f"{size:.0f}")
    console.print(sizes)
    calls = Table("processor time of the client's process", "us", "ratio")
    trio.run(judge_calls, calls)
    console.print(calls)
    costs = Table("processor time of the server", "us", "ratio")
    with tempfile.TemporaryDirectory(prefix="genrm-trio-bench-") as folder:
        trio.run(verifies, Path(folder), costs)
    console.print(costs)


if __name__ == "__main__":
    main()
