"""The control plane on the real process: who may call, what an open checkpoint makes wait, aborts and the lease.

The phases themselves are tested as a table elsewhere; here stands what only a whole server shows.
"""

import json
import shutil
import time
from pathlib import Path

import trio
from tests.e2e.stage import AT_ONCE_S, Stage, nothing_is_left, stage
from tests.e2e.test_replay import own_rewards
from tests.e2e.test_restarts import is_refused
from tests.support.gym import CONTROL, Controller, Rollout
from tests.support.peer import Reply
from tests.support.server_process import CONTROL_TOKEN


async def replies_after(play: Stage, rollout: Rollout, replies: list[Reply]) -> None:
    replies.append(await rollout.seed())


async def test_an_aborted_checkpoint_leaves_no_trace(tmp_path: Path) -> None:
    async with stage(tmp_path, size=2) as play:
        rollouts = await play.seeded("g")
        first = play.verify(rollouts[0])
        await play.waiting(1)
        await play.controller.prepare("c")
        second = play.verify(rollouts[1])
        await play.cohorts("held", 1)
        seeds: list[Reply] = []
        late = play.rollout("h", 0)
        play.start_soon(replies_after, play, late, seeds)
        assert (await play.server.peer.ask("GET", "/health")).status == 200
        assert first.waits
        assert second.waits
        assert not seeds
        await play.controller.resume("c")
        own_rewards(rollouts, [await pending.told(AT_ONCE_S) for pending in (first, second)])
        await play.until(lambda m: m["open_sessions"] == 3)
        is_refused(await play.controller.reply("prepare", "c"), 409, "stale_checkpoint")
        assert (await play.controller.resume("c"))["idempotent"] is True


async def test_a_lease_that_passes_resumes_by_itself(tmp_path: Path) -> None:
    async with stage(tmp_path, size=2, checkpoint={"lease_grace_seconds": 0.2}) as play:
        hold = play.judge.hold("g")
        rollouts = await play.seeded("g")
        pending = play.verify_all(rollouts)
        await play.judge.until(lambda: play.judge.server.in_flight == 2)
        controller = Controller(play.server.peer, CONTROL_TOKEN, deadline_s=0.2)
        await controller.prepare("c")
        hold.set()
        await play.cohorts("held", 1)
        lease = (await controller.status())["lease_expires_at"]
        assert lease <= time.time() + 0.5
        own_rewards(rollouts, [await each.told(within=2) for each in pending])
        status = await controller.status()
        assert (status["phase"], status["lease_expires_at"], status["checkpoint_id"]) == ("idle", None, None)
        late = await controller.reply("commit", "c", checkpoint_dir=str(tmp_path / "c"))
        is_refused(late, 409, "stale_checkpoint")
        assert (await controller.resume("c"))["idempotent"] is True
        assert not (tmp_path / "c").exists()


async def test_tokens_shapes_and_statuses(tmp_path: Path) -> None:
    async with stage(tmp_path, size=2) as play:
        peer = play.server.peer
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {CONTROL_TOKEN}"}):
            is_refused(await peer.ask("GET", f"{CONTROL}/status", headers=headers), 401, "unauthorized")
            is_refused(await peer.ask("POST", f"{CONTROL}/prepare", b"{nonsense", headers), 401, "unauthorized")
        token = {"authorization": f"Bearer {CONTROL_TOKEN}"}
        soon = time.time() + 20
        for body in (b"{nonsense", b"[]", {"checkpoint_id": "c"}, {"checkpoint_id": "-", "deadline_ts": soon}):
            assert (await peer.ask("POST", f"{CONTROL}/prepare", body, token)).status == 422, body
        more = {"checkpoint_id": "c", "deadline_ts": soon, "more": 1}
        assert (await peer.ask("POST", f"{CONTROL}/prepare", more, token)).status == 422
        assert (await peer.ask("GET", f"{CONTROL}/prepare", headers=token)).status == 405
        assert (await peer.ask("POST", f"{CONTROL}/nothing", {}, token)).status == 404
        is_refused(await play.controller.reply("renew", "c"), 409, "invalid_phase")
        is_refused(await play.controller.reply("commit", "c", checkpoint_dir=str(tmp_path)), 409, "invalid_phase")
        status = await play.controller.status()
        assert status == {
            "kind": "resources",
            "instance": "genrm_compare",
            "phase": "idle",
            "checkpoint_id": None,
            "lease_expires_at": None,
            "retired_rollouts": 0,
            "report": {
                "ready": True,
                "blockers": [],
                "blocker_count": 0,
                "counts": {"inflight": 0, "sessions": 0},
                "restarts": status["report"]["restarts"],
            },
            "mode": "exported",
            "verify": "replay",
            "verify_step_type": "replay",
            "retired_sessions": 0,
        }
        assert not status["report"]["restarts"]


async def test_a_checkpoint_on_the_disk_and_in_the_replies(tmp_path: Path) -> None:
    async with stage(tmp_path, size=2) as play:
        rollouts, _ = await play.judged("g")
        prepared = await play.controller.prepare("c")
        assert await play.controller.prepare("c") == prepared
        is_refused(await play.controller.reply("prepare", "other"), 409, "checkpoint_conflict")
        renewed = await play.controller.call("renew", "c", deadline_s=40.0)
        assert renewed["lease_expires_at"] > time.time() + 600
        committed = await play.controller.commit("c", tmp_path / "c", [r.key for r in rollouts])
        assert committed["phase"] == "committed"
        assert committed["episode_ids"] == ["g-0", "g-1"]
        backwards = [{"rollout_id": "g-1"}, {"rollout_id": "g-0", "attempt": 0}]
        same = await play.controller.call("commit", "c", checkpoint_dir=str(tmp_path / "c"), episode_ids=backwards)
        assert same == committed, "the order of a scope does not matter"
        other = await play.controller.reply("commit", "c", checkpoint_dir=str(tmp_path / "d"))
        is_refused(other, 409, "checkpoint_conflict")
        folder = tmp_path / "c/gym/resources/genrm_compare"
        manifest = json.loads((folder / "manifest.json").read_bytes())
        assert manifest == committed["manifest"]
        assert manifest["record_count"] == 2
        assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", manifest["records_file"]]
        is_refused(await play.controller.reply("retire", "c", episode_ids=["g-0"]), 409, "invalid_phase")
        for rollout in rollouts:
            await closed_at_resume(play, rollout)
        await play.controller.resume("c")
        await nothing_is_left(play)


async def closed_at_resume(play: Stage, rollout: Rollout) -> None:
    """Post the close, which waits for resume, without waiting for it."""

    async def close() -> None:
        assert (await rollout.close()).status == 200

    play.start_soon(close)
    await trio.lowlevel.checkpoint()


async def test_a_prepare_that_is_late_leaves_admission_closed(tmp_path: Path) -> None:
    async with stage(tmp_path, size=2) as play:
        late = await play.controller.call("prepare", "c", deadline_s=-1.0)
        assert late["phase"] == "preparing"
        is_refused(await play.controller.reply("commit", "c", checkpoint_dir=str(tmp_path / "c")), 409, "invalid_phase")
        seeds: list[Reply] = []
        play.start_soon(replies_after, play, play.rollout("g", 0), seeds)
        await play.until(lambda m: m["admission_open"] == 0 and m["connections"] == 2)
        await play.controller.prepare("c")
        await play.controller.commit("c", tmp_path / "c")
        assert not seeds
        await play.controller.resume("c")
        await play.until(lambda m: m["open_sessions"] == 1)


def everything_in(folder: Path) -> set[str]:
    """The path of each file and folder in it, links not followed."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


async def test_a_checkpoint_stays_within_the_root(tmp_path: Path) -> None:
    """What lies outside is neither written nor read: by a relative path, an absolute one, or a link in the root."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "link").symlink_to(outside)
    async with stage(tmp_path, checkpoint={"root": str(root)}) as play:
        leaving = (str(outside), f"{root}2", "../outside", "within/../../outside", "link", f"{root}/link/deep")
        rollout = play.rollout("g", 0)
        await rollout.seed()
        for number, folder in enumerate(leaving):
            await play.controller.prepare(f"c{number}")
            is_outside(await play.controller.reply("commit", f"c{number}", checkpoint_dir=folder))
            await play.controller.resume(f"c{number}")
        assert not everything_in(outside)
        assert everything_in(root) == {"link"}
        await play.controller.prepare("c")
        await play.controller.commit("c", Path("within"))
        await play.controller.resume("c")
        await rollout.close()
        for copy in (outside, outside / "deep", tmp_path / "root2"):  # where a restore would find what it asks for
            shutil.copytree(root / "within", copy, dirs_exist_ok=True)
        for folder in leaving:
            is_outside(await play.controller.reply("restore", "r", checkpoint_dir=folder, episode_ids=[rollout.key]))
            assert (await play.controller.status())["report"]["counts"]["sessions"] == 0
        restored = await play.controller.restore("r", root / "within", [rollout.key])
        assert restored["restored"] == [rollout.next_key]


def is_outside(reply: Reply) -> None:
    is_refused(reply, 422, "invalid_checkpoint_state")
    assert "does not lie under the configured checkpoint root" in reply.body.decode()
