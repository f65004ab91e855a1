"""A restore and a commit of thousands of members in cohorts of 16, on a real disk, while the event loop goes on."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.support.judges import ScriptedJudge
from tests.support.scene import policy

from genrm_trio.checkpoints.calls import CommitCall, PrepareCall, RestoreCall, ResumeCall
from genrm_trio.checkpoints.records import Record
from genrm_trio.checkpoints.store import FileStore
from genrm_trio.core.identity import EpisodeId
from genrm_trio.core.outcome import JSON, RESULT_FIELDS
from genrm_trio.core.record import Rebuild
from genrm_trio.core.registry import Registry
from genrm_trio.runtime.control import Control
from genrm_trio.runtime.server import EXPORT_SLICE, Server
from genrm_trio.runtime.transfer import SLICE

INSTANCE = "genrm_compare"
MEMBERS = 65_536
"""As many as a server may hold, for those who measure."""
SOME = 8192
"""Many times what may lie between two turns."""
SIZE = 16


def content(members: int = MEMBERS) -> Iterator[Record]:
    """What a server with so many finished members exports."""
    for n in range(members):
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


class Turns:
    """How many members are dealt with between two turns of another task, at most."""

    def __init__(self) -> None:
        self.worst = 0
        self.members = 0
        self._since = 0

    def count(self, members: int) -> None:
        self.members += members
        self._since += members
        self.worst = max(self.worst, self._since)

    async def watch(self) -> None:
        """Take a turn whenever there is one, until cancelled."""
        while True:
            await trio.lowlevel.checkpoint()
            self._since = 0


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> dict[str, Turns]:
    """Counts what a restore builds and what a commit exports."""
    found = {"restore": Turns(), "commit": Turns()}
    add, export = Rebuild.add, Registry.export

    def counted_add(rebuild: Rebuild, episode: EpisodeId, session_id: str, state: JSON) -> None:
        found["restore"].count(1)
        add(rebuild, episode, session_id, state)

    def counted_export(registry: Registry, *args: Any, **more: Any) -> dict[str, JSON]:
        states = export(registry, *args, **more)
        found["commit"].count(len(states))
        return states

    monkeypatch.setattr(Rebuild, "add", counted_add)
    monkeypatch.setattr(Registry, "export", counted_export)
    return found


async def restore_and_commit(folder: Path, keys: list[EpisodeId], turns: dict[str, Turns]) -> None:
    """A restore and a commit in a fresh server."""
    server = Server(policy(SIZE), ScriptedJudge())
    control = Control(server, FileStore(INSTANCE), instance=INSTANCE)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        await nursery.start(control.run)
        for each in turns.values():
            nursery.start_soon(each.watch)
        within = time.time() + 100
        restore = RestoreCall(
            checkpoint_id="re", deadline_ts=within, checkpoint_dir=str(folder / "saved"), episode_ids=keys
        )
        reply = await control.restore(restore)
        assert len(reply["restored"]) == SOME  # type: ignore[arg-type]  # a list
        await control.resume(ResumeCall(checkpoint_id="re", deadline_ts=within))
        await control.prepare(PrepareCall(checkpoint_id="ck", deadline_ts=within))
        commit = CommitCall(
            checkpoint_id="ck", deadline_ts=within, checkpoint_dir=str(folder / "again"), episode_ids=None
        )
        reply = await control.commit(commit)
        assert len(reply["episode_ids"]) == SOME  # type: ignore[arg-type]  # a list
        nursery.cancel_scope.cancel()


async def test_a_large_restore_and_a_large_commit_let_others_have_their_turn(
    tmp_path: Path, turns: dict[str, Turns]
) -> None:
    """How long a turn lasts is measured by `python -m bench.stretches`. Two slices may lie between two turns."""
    await FileStore(INSTANCE).write(str(tmp_path / "saved"), checkpoint_id="ck", records=content(SOME))
    keys = [EpisodeId(f"{n // SIZE}-{n % SIZE}") for n in range(SOME)]
    await restore_and_commit(tmp_path, keys, turns)
    for each in turns.values():
        assert each.members == SOME
        assert each.worst <= 2 * (max(SLICE, EXPORT_SLICE) + SIZE)
