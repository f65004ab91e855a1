"""A restore and a commit of 65,536 members in cohorts of 16, on a real disk, while the event loop goes on."""

import time
from collections.abc import Iterator
from pathlib import Path

import trio
from tests.support.judges import ScriptedJudge
from tests.support.scene import policy
from tests.support.stretches import Stretches

from genrm_trio.checkpoints.calls import CommitCall, PrepareCall, RestoreCall, ResumeCall
from genrm_trio.checkpoints.records import Record
from genrm_trio.checkpoints.store import FileStore
from genrm_trio.core.identity import EpisodeId
from genrm_trio.core.outcome import JSON, RESULT_FIELDS
from genrm_trio.runtime.control import Control
from genrm_trio.runtime.server import Server

INSTANCE = "genrm_compare"
MEMBERS = 65_536
SIZE = 16


def content() -> Iterator[Record]:
    """What a server with that many finished members exports."""
    for n in range(MEMBERS):
        result: dict[str, JSON] = {name: n / (i + 3) for i, name in enumerate(sorted(RESULT_FIELDS))}
        state: dict[str, JSON] = {
            "group_id": f"group-{n // SIZE}",
            "group_attempt": 0,
            "newest_attempt": 0,
            "rollout_index": n % SIZE,
            "prompt_digest": f"{n // SIZE:064x}",
            "response_digest": f"{n:064x}",
            "response_digest_scheme": "genrm-trio-1",
            "result": result,
        }
        yield Record(EpisodeId(f"{n // SIZE}-{n % SIZE}"), f"{n:032x}", state)


async def restore_and_commit(folder: Path, keys: list[EpisodeId]) -> dict[str, float]:
    """The worst stretch of a restore and of a commit, in a fresh server."""
    server = Server(policy(SIZE), ScriptedJudge())
    control = Control(server, FileStore(INSTANCE), instance=INSTANCE)
    worst: dict[str, float] = {}
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        await nursery.start(control.run)
        stretches = Stretches()
        nursery.start_soon(stretches.watch)
        within = time.time() + 100
        restore = RestoreCall(
            checkpoint_id="re", deadline_ts=within, checkpoint_dir=str(folder / "saved"), episode_ids=keys
        )
        await stretches.start()
        reply = await control.restore(restore)
        await trio.sleep(0.01)
        worst["restore"] = stretches.take()
        assert len(reply["restored"]) == MEMBERS  # type: ignore[arg-type]  # a list
        await control.resume(ResumeCall(checkpoint_id="re", deadline_ts=within))
        await control.prepare(PrepareCall(checkpoint_id="ck", deadline_ts=within))
        commit = CommitCall(
            checkpoint_id="ck", deadline_ts=within, checkpoint_dir=str(folder / "again"), episode_ids=None
        )
        await stretches.start()
        reply = await control.commit(commit)
        await trio.sleep(0.01)
        worst["commit"] = stretches.take()
        assert len(reply["episode_ids"]) == MEMBERS  # type: ignore[arg-type]  # a list
        nursery.cancel_scope.cancel()
    return worst


async def test_no_stretch_of_a_large_restore_or_commit_is_longer_than_50_ms(tmp_path: Path) -> None:
    await FileStore(INSTANCE).write(str(tmp_path / "saved"), checkpoint_id="ck", records=content())
    keys = [EpisodeId(f"{n // SIZE}-{n % SIZE}") for n in range(MEMBERS)]
    worst = await restore_and_commit(tmp_path, keys)
    assert max(worst.values()) < 0.05, worst
