"""`/health` of the real process while 65,536 members are restored and exported."""

from pathlib import Path

from tests.runtime.test_control_load import INSTANCE, MEMBERS, SIZE, content
from tests.support.gym import Controller
from tests.support.server_process import CONTROL_TOKEN, ServerProcess
from tests.web.test_process import HEALTHY_S, probed, process

from genrm_trio.checkpoints.store import FileStore

WITHIN_S = 300.0
"""The deadline of a controller's call."""


async def save_all(folder: Path) -> None:
    """Write the checkpoint of a server that retains 65,536 members."""
    await FileStore(INSTANCE).write(str(folder / "saved"), checkpoint_id="ck", records=content())


async def restore(server: ServerProcess, folder: Path) -> None:
    controller = Controller(server.peer, CONTROL_TOKEN, deadline_s=WITHIN_S)
    await controller.restore("re", folder / "saved", [f"{n // SIZE}-{n % SIZE}" for n in range(MEMBERS)])
    await controller.resume("re")


async def export(server: ServerProcess, folder: Path) -> None:
    controller = Controller(server.peer, CONTROL_TOKEN, deadline_s=WITHIN_S)
    await controller.prepare("ck")
    await controller.commit("ck", folder / "again")
    await controller.resume("ck")


async def test_health_answers_while_all_members_are_restored_and_exported(tmp_path: Path) -> None:
    await save_all(tmp_path)
    async with process(tmp_path, size=SIZE) as server, probed(server) as latencies:
        await restore(server, tmp_path)
        assert (await server.metrics())["open_sessions"] == MEMBERS
        await export(server, tmp_path)
    assert len(latencies) > 20
    assert max(latencies) < HEALTHY_S
