"""A rollout that was told its outcome, or whose outcome was judged, gets exactly that one again after a crash.

All on the real process, over HTTP, with `kill -9`; members of one group have different rewards, so that no sibling's
can pass for one's own.
"""

import itertools
from pathlib import Path

import pytest
import trio
from tests.e2e.stage import AT_ONCE_S, SOON_S, Stage, close_all, nothing_is_left, stage
from tests.support.gym import Outcome, Rollout
from tests.support.verdicts import epoch_of


async def replayed(stage: Stage, rollouts: list[Rollout]) -> list[Outcome]:
    """What each is told when it verifies again: at once, and without a judge call."""
    before = stage.judge.calls
    outcomes = [await stage.verify(rollout).told(within=AT_ONCE_S) for rollout in rollouts]
    assert stage.judge.calls == before, "a replay asks no judge"
    return outcomes


def own_rewards(rollouts: list[Rollout], outcomes: list[Outcome], epoch: int = 0) -> None:
    """Each was told the reward of its own answer, from this judging."""
    for rollout, outcome in zip(rollouts, outcomes, strict=True):
        assert outcome.reward is not None, outcome
        assert epoch_of(outcome.reward, rollout.mark) == epoch, (rollout.mark, outcome)


@pytest.mark.parametrize("between", ["replays between", "does not replay between"])
async def test_outcomes_survive_one_and_two_crashes(tmp_path: Path, between: str) -> None:
    async with stage(tmp_path, size=2) as play:
        play.judge.conduct["failing"].manner = "fail"
        told: dict[str, list[Outcome]] = {}
        rollouts: dict[str, list[Rollout]] = {}
        rollouts["rewarded"], told["rewarded"] = await play.judged("rewarded")
        rollouts["failing"], told["failing"] = await play.judged("failing")
        rollouts["typed"], told["typed"] = await play.judged("typed", typed=True)
        own_rewards(rollouts["rewarded"], told["rewarded"])
        own_rewards(rollouts["typed"], told["typed"])
        assert all(o.failure and "no verdict on failing" in o.failure for o in told["failing"])
        groups = list(rollouts)
        for number in (1, 2):
            folder = await play.checkpoint(f"c{number}")
            everybody = [rollout for group in groups for rollout in rollouts[group]]
            await play.crash_and_restore(folder, everybody)
            rollouts = {group: [r.restored(play.server.peer) for r in rollouts[group]] for group in groups}
            if number == 1 and between == "does not replay between":
                continue
            for group in groups:
                assert await replayed(play, rollouts[group]) == told[group], (number, group)
        await close_all([rollout for group in groups for rollout in rollouts[group]])
        await nothing_is_left(play)


async def test_the_command_itself_with_an_interpreter_of_its_own(tmp_path: Path) -> None:
    """What all other tests do with a forked process, once from the start, and what `--ready-file` says meanwhile."""
    ready = tmp_path / "ready"
    async with stage(tmp_path, 2, "--ready-file", str(ready), forked=False) as play:
        await play.until(lambda _metrics: ready.exists())
        assert ready.read_text() == play.server.url
        rollouts, told = await play.judged("g")
        again = await play.crash_and_restore(await play.checkpoint("c"), rollouts)
        assert await replayed(play, again) == told
        await close_all(again)
        await nothing_is_left(play)
        assert await play.server.terminate() == 0


async def test_judged_and_held_outcomes_are_exported_and_never_judged_again(tmp_path: Path) -> None:
    """Contract 14.7: the judge was done when admission closed, so nobody was told; after a crash everybody is."""
    async with stage(tmp_path, size=2) as play:
        groups = ("held", "held-failing")
        play.judge.conduct["held-failing"].manner = "fail"
        holds = [play.judge.hold(group) for group in groups]
        rollouts = {group: await play.seeded(group) for group in groups}
        pending = [play.verify(rollout) for group in groups for rollout in rollouts[group]]
        await play.judge.until(lambda: play.judge.server.in_flight >= 3)
        await play.controller.prepare("c")
        for hold in holds:
            hold.set()
        await play.cohorts("held", 2)
        assert all(each.waits for each in pending)
        await play.controller.commit("c", tmp_path / "c")
        assert all(each.waits for each in pending)
        everybody = [rollout for group in groups for rollout in rollouts[group]]
        for each in pending:
            await each.hang_up()
        again = await play.crash_and_restore(tmp_path / "c", everybody)
        outcomes = await replayed(play, again)
        own_rewards(again[:2], outcomes[:2])
        assert all(o.failure and "no verdict on held-failing" in o.failure for o in outcomes[2:])
        twice = await play.crash_and_restore(await play.checkpoint("d"), again)
        assert await replayed(play, twice) == outcomes


async def test_held_outcomes_are_told_at_resume_when_nothing_crashed(tmp_path: Path) -> None:
    async with stage(tmp_path, size=2) as play:
        hold = play.judge.hold("held")
        rollouts = await play.seeded("held")
        pending = play.verify_all(rollouts)
        await play.judge.until(lambda: play.judge.server.in_flight == 2)
        await play.controller.prepare("c")
        hold.set()
        await play.cohorts("held", 1)
        await play.controller.commit("c", tmp_path / "c")
        assert all(each.waits for each in pending)
        await play.controller.resume("c")
        own_rewards(rollouts, [await each.told(within=AT_ONCE_S) for each in pending])
        await close_all(rollouts)
        await nothing_is_left(play)


async def test_unfinished_groups_form_again_and_complete(tmp_path: Path) -> None:
    """A session without an outcome is restored, too; its group collects anew, under the same attempt."""
    async with stage(tmp_path, size=2) as play:
        never = play.judge.hold("evaluating")
        collecting, evaluating = await play.seeded("collecting"), await play.seeded("evaluating")
        waiting = [play.verify(collecting[0]), *play.verify_all(evaluating)]
        await play.waiting(3)
        await play.judge.until(lambda: play.judge.server.in_flight == 2)
        folder = await play.checkpoint("c")
        for each in waiting:
            await each.hang_up()
        again = await play.crash_and_restore(folder, [*collecting, *evaluating])
        never.set()
        outcomes = [await pending.told() for pending in play.verify_all(again)]
        own_rewards(again[:2], outcomes[:2])
        own_rewards(again[2:], outcomes[2:], epoch=1)
        await close_all(again)
        await nothing_is_left(play)


@pytest.mark.parametrize("manner", ["reward", "fail"])
@pytest.mark.parametrize("pressure", [{"max_terminal_cohorts": 1}, {"cohort_result_ttl_s": 0.01}], ids=["cap", "ttl"])
async def test_what_an_open_session_needs_survives_retention(
    tmp_path: Path, pressure: dict[str, float], manner: str
) -> None:
    """Two finished groups of two, member 0 of each closed: member 1 of each must find its outcome after a crash."""
    async with stage(tmp_path, size=2, **pressure) as play:
        left: list[Rollout] = []
        told: list[Outcome] = []
        for group in ("first", "second"):
            play.judge.conduct[group].manner = manner  # type: ignore[assignment]  # the parameters are manners
            rollouts, outcomes = await play.judged(group)
            await close_all(rollouts[:1])
            left.append(rollouts[1])
            told.append(outcomes[1])
        again = await play.crash_and_restore(await play.checkpoint("c"), left)
        assert await replayed(play, again) == told
        assert await play.retained() == 2, "each is needed until its session ends"
        await close_all(again)
        last, _ = await play.judged("last")
        await close_all(last)
        await pruned(play, to=1 if "max_terminal_cohorts" in pressure else 0)


async def pruned(play: Stage, to: int) -> None:
    """Once nobody needs the cohorts they go as any other, until so many are left.

    Each verification holds age and count, so rollouts whose groups never form send some; each is retired and leaves
    nothing. A reply can come sooner than the age of 0.01 s, so one is not always enough.
    """
    with trio.fail_after(SOON_S):
        for attempt in itertools.count():
            probe = play.rollout(f"probe-{attempt}", 0)
            await probe.seed()
            pending = play.verify(probe)
            await play.waiting(1)
            await play.controller.retire("probe", [probe.key])
            await pending.answer()
            if await play.retained() == to:
                return


async def test_a_fresh_process_can_wait_for_its_restore(tmp_path: Path) -> None:
    """Requests of the crashed time come again before the controller does; they must not be in its way (14.17)."""
    async with stage(tmp_path, size=2) as play:
        hold = play.judge.hold("g")
        rollouts = await play.seeded("g")
        waiting = play.verify_all(rollouts)
        await play.judge.until(lambda: play.judge.server.in_flight == 2)
        await play.controller.prepare("c")
        hold.set()
        await play.cohorts("held", 1)
        await play.controller.commit("c", tmp_path / "c")
        play.judge.crashed()
        server = await play.house.restart("--await-restore")
        again = [rollout.restored(server.peer) for rollout in rollouts]
        early = play.verify(again[0])
        seeds: list[int] = []

        async def seed() -> None:
            seeds.append((await play.rollout("h", 0).seed()).status)

        play.start_soon(seed)
        await play.until(lambda m: m["connections"] >= 5)
        metrics = await server.metrics()
        assert metrics["waiting_verifies"] == 0, "nothing has passed"
        assert all(each.waits for each in (*waiting, early))
        await play.controller.restore("r", tmp_path / "c", [rollout.key for rollout in rollouts])
        assert early.waits
        assert not seeds
        await play.controller.resume("r")
        own_rewards(again[:1], [await early.told(within=AT_ONCE_S)])
        own_rewards(again[1:], await replayed(play, again[1:]))
        for late in waiting:
            reply = await late.answer()
            assert (reply.status, reply.code) == (409, "stale_attempt"), reply
        await play.until(lambda _metrics: seeds == [200])


async def test_waiting_for_a_restore_ends_with_a_resume_alone(tmp_path: Path) -> None:
    async with stage(tmp_path, 2, "--await-restore") as play:
        first = play.verify(play.rollout("g", 0))
        await play.until(lambda m: m["connections"] >= 2)
        with trio.move_on_after(AT_ONCE_S / 10):
            await first.answer(within=AT_ONCE_S)
        assert first.waits
        assert (await play.controller.resume("none"))["idempotent"] is True
        second = play.verify(play.rollout("g", 1))
        own_rewards([first.rollout, second.rollout], [await first.told(), await second.told()])
