"""What the controller may do besides: retire, forget, leave sessions out, fail a restore and start everything over.

On the real process. A group whose rollouts were dropped must form again under the same attempt and complete.
"""

from pathlib import Path

from tests.e2e.stage import AT_ONCE_S, Stage, close_all, nothing_is_left, stage
from tests.e2e.test_replay import own_rewards, replayed
from tests.support.gym import Rollout
from tests.support.peer import Reply


def is_refused(reply: Reply, status: int, code: str) -> None:
    """A refusal with this code, in the one shape that its status and origin have."""
    assert (reply.status, reply.code) == (status, code), reply


def started_over(play: Stage, rollouts: list[Rollout], draft: int = 0) -> list[Rollout]:
    """The same rollouts from the input on: new sessions, the attempt after next, and perhaps another answer."""
    return [
        play.rollout(r.mark.group, r.mark.index, draft=draft, group_attempt=r.mark.attempt, attempt=r.attempt + 2)
        for r in rollouts
    ]


async def complete(play: Stage, rollouts: list[Rollout], epoch: int = 0) -> None:
    """These rollouts make a whole cohort, and each gets its own reward."""
    for rollout in rollouts:
        assert (await rollout.seed()).status == 200
    own_rewards(rollouts, [await pending.told() for pending in play.verify_all(rollouts)], epoch)
    await close_all(rollouts)


async def test_a_live_retire_frees_the_slot_of_a_collecting_cohort(tmp_path: Path) -> None:
    async with stage(tmp_path, size=2) as play:
        lost, mate = await play.seeded("g")
        waiting = play.verify(lost)
        await play.waiting(1)
        assert (await play.controller.retire("x", [lost.key]))["retired"] == [lost.key]
        is_refused(await waiting.answer(within=AT_ONCE_S), 409, "stale_attempt")
        is_refused(await lost.verify(), 409, "stale_attempt")
        is_refused(await lost.seed(), 409, "stale_attempt")
        assert (await lost.close()).status == 200, "a close is never refused"
        assert (await play.controller.status())["retired_rollouts"] == 1
        anew = play.rollout("g", 0, draft=1, attempt=1)
        await anew.seed()
        own_rewards([anew, mate], [await p.told() for p in play.verify_all([anew, mate])])
        await close_all([anew, mate])
        await play.controller.forget("x", [lost.rollout_id])
        assert (await play.controller.status())["retired_rollouts"] == 0
        assert (await lost.seed()).status == 200, "the mark is gone"
        await lost.close()
        await nothing_is_left(play)


async def test_a_retire_in_a_judged_cohort_leaves_the_answer(tmp_path: Path) -> None:
    async with stage(tmp_path, size=2) as play:
        rollouts, outcomes = await play.judged("g")
        await play.controller.retire("x", [rollouts[0].key])
        same = play.rollout("g", 0, attempt=1)
        await same.seed()
        assert await replayed(play, [same]) == outcomes[:1]
        other = play.rollout("g", 0, draft=1, attempt=2)
        await other.seed()
        is_refused(await other.verify(), 409, "different_response")
        assert await replayed(play, rollouts[1:]) == outcomes[1:], "a retire touches no sibling"
        await close_all([same, other, rollouts[1]])
        await nothing_is_left(play)


async def test_a_failed_restore_elsewhere_starts_everything_over(tmp_path: Path) -> None:
    """Contract 10.7: every next attempt is retired under the id of the restore, then resume; the groups form anew."""
    async with stage(tmp_path, size=2) as play:
        play.judge.conduct["failing"].manner = "fail"
        rewarded, failing, going_on = [(await play.judged(g))[0] for g in ("rewarded", "failing", "going-on")]
        everybody = [*rewarded, *failing, *going_on]
        folder = await play.checkpoint("c")
        play.judge.crashed()
        server = await play.house.restart()
        await play.controller.restore("r", folder, [rollout.key for rollout in everybody])
        again = [rollout.restored(server.peer) for rollout in everybody]
        own_rewards(again[4:5], [await play.verify(again[4]).told(within=AT_ONCE_S)])
        retired = [*again[:4], again[5]]
        await play.controller.retire("r", [rollout.key for rollout in retired])
        await play.controller.resume("r")
        for rollout in retired:
            is_refused(await rollout.verify(), 409, "stale_attempt")
        play.judge.conduct["failing"].manner = "reward"
        await complete(play, started_over(play, rewarded, draft=1), epoch=1)
        await complete(play, started_over(play, failing, draft=1), epoch=1)
        # A member that replayed stays, so whoever starts over beside it is told so (contract 11.5).
        (beside,) = started_over(play, going_on[1:], draft=1)
        await beside.seed()
        is_refused(await beside.verify(), 409, "slot_closed")
        await close_all([again[4], beside])
        await nothing_is_left(play)


async def test_a_restore_that_fails_here_leaves_the_server_open_and_empty(tmp_path: Path) -> None:
    async with stage(tmp_path, size=2) as play:
        rollouts, _ = await play.judged("g")
        folder = await play.checkpoint("c")
        (records,) = (folder / "gym/resources/genrm_compare").glob("records-*.jsonl")
        records.write_bytes(records.read_bytes().replace(b'"reward":', b'"rewarb":', 1))
        play.judge.crashed()
        server = await play.house.restart()
        keys = [rollout.key for rollout in rollouts]
        reply = await play.controller.reply("restore", "r", checkpoint_dir=str(folder), episode_ids=keys)
        is_refused(reply, 422, "invalid_checkpoint_state")
        status = await play.controller.status()
        assert (status["phase"], status["checkpoint_id"]) == ("idle", None)
        assert status["report"]["counts"]["sessions"] == 0
        again = [rollout.restored(server.peer) for rollout in rollouts]
        await play.controller.retire("r", [rollout.key for rollout in again])
        await play.controller.resume("r")
        await complete(play, started_over(play, rollouts, draft=1), epoch=1)
        await nothing_is_left(play)


async def test_a_restore_of_more_sessions_than_may_be_open_is_refused_and_one_of_fewer_is_not(tmp_path: Path) -> None:
    async with stage(tmp_path, size=2) as play:
        rollouts, told = await play.judged("g")
        others = await play.seeded("h")
        folder = await play.checkpoint("c")
        play.judge.crashed()
        server = await play.house.restart(limits={"max_sessions": 3})
        keys = [rollout.key for rollout in (*rollouts, *others)]
        reply = await play.controller.reply("restore", "r", checkpoint_dir=str(folder), episode_ids=keys)
        is_refused(reply, 422, "invalid_checkpoint_state")
        assert "4 sessions are asked for, limits.max_sessions is 3" in reply.body.decode()
        await play.controller.restore("r", folder, keys[:3])
        await play.controller.resume("r")
        again = [rollout.restored(server.peer) for rollout in (*rollouts, others[0])]
        assert await replayed(play, again[:2]) == told
        await close_all(again)
        await complete(play, [play.rollout("fresh", index) for index in range(2)])
        await nothing_is_left(play)


async def test_a_process_that_holds_anything_refuses_a_restore_and_goes_on(tmp_path: Path) -> None:
    async with stage(tmp_path, size=2) as play:
        rollouts, told = await play.judged("g")
        folder = await play.checkpoint("c")
        await play.controller.resume("c")
        reply = await play.controller.reply("restore", "r", checkpoint_dir=str(folder), episode_ids=["g-0"])
        is_refused(reply, 409, "checkpoint_error")
        assert await replayed(play, rollouts) == told
        await close_all(rollouts)
        await nothing_is_left(play)


async def test_a_narrower_scope_drops_what_nobody_claimed(tmp_path: Path) -> None:
    """A commit whose scope leaves restored sessions out deletes them, but not those that were used (contract 11.5)."""
    async with stage(tmp_path, size=2) as play:
        left_out, _ = await play.judged("left-out")
        claimed, told_claimed = await play.judged("claimed", typed=True)
        kept, told_kept = await play.judged("kept")
        everybody = [*left_out, *claimed, *kept]
        again = await play.crash_and_restore(await play.checkpoint("c"), everybody)
        for rollout in again[2:4]:
            seeded = await rollout.seed()
            assert seeded.json["resources_session_id"] == rollout.session_id
        folder = await play.checkpoint("d", [rollout.key for rollout in again[4:]])
        await play.controller.resume("d")
        assert (await play.server.metrics())["open_sessions"] == 4, "claimed and kept"
        anew = started_over(play, left_out, draft=1)
        await complete(play, anew, epoch=1)
        assert await replayed(play, again[2:4]) == told_claimed
        assert await replayed(play, again[4:]) == told_kept
        after = await play.crash_and_restore(folder, again[4:])
        assert await replayed(play, after) == told_kept
        await close_all(after)
        await nothing_is_left(play)


async def test_typed_seeds_name_one_session_however_often_they_come(tmp_path: Path) -> None:
    async with stage(tmp_path, size=2) as play:
        first, mate = await play.seeded("g", typed=True)
        cookie = first.cookie
        twice = await first.seed()
        assert twice.json["resources_session_id"] == first.session_id
        assert twice.header("x-ng-checkpoint-verify") == "replay"
        assert cookie is not None
        assert (await play.server.metrics())["open_sessions"] == 2
        outcomes = [await pending.told() for pending in play.verify_all([first, mate])]
        assert (await play.server.metrics())["open_sessions"] == 2, "environment servers always close"
        first, mate = await play.crash_and_restore(await play.checkpoint("c"), [first, mate])
        assert (await first.seed()).json["resources_session_id"] == first.session_id
        assert (await play.server.metrics())["open_sessions"] == 2, "the seed claims the restored one"
        assert await replayed(play, [first, mate]) == outcomes
        await close_all([first, mate])
        assert (await first.seed()).status == 200
        await nothing_is_left(play)  # a closed id binds nothing any more


async def test_without_the_header_a_session_ends_with_its_reply(tmp_path: Path) -> None:
    """And while a checkpoint is open, only at resume, so that the checkpoint still has its outcome (contract 3.4)."""
    async with stage(tmp_path, size=2) as play:
        rollouts = await play.seeded("before")
        for pending in [play.verify(rollout, close_follows=False) for rollout in rollouts]:
            await pending.told()
        await nothing_is_left(play)
        waiting = await play.seeded("during")
        told = [await pending.told() for pending in play.verify_all(waiting)]
        await play.controller.prepare("c")
        again = [await play.verify(rollout, close_follows=False).told(AT_ONCE_S) for rollout in waiting]
        assert again == told, "a stored outcome is told while closed, too"
        assert (await play.server.metrics())["open_sessions"] == 2
        await play.controller.commit("c", tmp_path / "c")
        await play.controller.resume("c")
        await nothing_is_left(play)
        restored = await play.crash_and_restore(tmp_path / "c", waiting)
        assert await replayed(play, restored) == told
