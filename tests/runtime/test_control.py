"""The control plane: what each call waits for, what it stops, and what is left when it fails."""

from collections.abc import Awaitable, Callable

import pytest
import trio
from tests.support.judges import ScriptedJudge, failing
from tests.support.plane import WALL, Plane, memory_store, plane, settled
from tests.support.scene import policy
from trio.abc import Clock

from genrm_trio.checkpoints.errors import ControlRefused
from genrm_trio.checkpoints.faults import FailAt
from genrm_trio.checkpoints.manifest import MANIFEST
from genrm_trio.checkpoints.phases import Phase
from genrm_trio.checkpoints.steps import Checkpoint, Stage
from genrm_trio.checkpoints.store import MemoryStore
from genrm_trio.core.identity import EpisodeId
from genrm_trio.core.outcome import JudgeFailed
from genrm_trio.core.trace import Event
from genrm_trio.runtime import server as server_module
from genrm_trio.runtime.gate import Kind
from genrm_trio.runtime.server import Policy


class HeldStore(MemoryStore):
    """A store whose writes stop before a stage, and whose reads stop at their start, until they are let go."""

    def __init__(self, stage: Stage | None = None, *, reads: bool = False) -> None:
        super().__init__("genrm_compare", between=self._hold)
        self._stage = stage
        self._reads = reads
        self.reached = trio.Event()
        self.let_go = trio.Event()

    async def _hold(self, stage: Stage) -> None:
        if stage is self._stage:
            self.reached.set()
            await self.let_go.wait()

    async def read(self, checkpoint_dir: str, *, scope: frozenset[EpisodeId] | None) -> Checkpoint:
        if self._reads:
            self.reached.set()
            await self.let_go.wait()
        return await super().read(checkpoint_dir, scope=scope)

    @property
    def published(self) -> bool:
        return "d" in self.folders and MANIFEST in self.folders["d"].names()


def heard(p: Plane) -> list[str]:
    """The names of the core's events from now on."""
    names: list[str] = []

    def note(event: Event) -> None:
        names.append(event.name)

    p.s.server.registry.trace = note
    return names


# -- a whole cycle -------------------------------------------------------------------------------------


@pytest.mark.parametrize("cycles", [1, 2])
@pytest.mark.parametrize("replayed", [False, True])
async def test_every_member_finds_its_own_outcome_after_a_crash(
    cycles: int, replayed: bool, autojump_clock: Clock
) -> None:
    store = memory_store()
    async with plane(store) as p:
        keys = await p.finished_group()
        assert (await p.prepare())["phase"] == "prepared"
        reply = await p.commit(directory="0")
        assert reply["phase"] == "committed"
        assert reply["episode_ids"] == keys
        assert (await p.resume()) == {"phase": "idle", "idempotent": False}
    for cycle in range(cycles):
        async with plane(store, judge=failing()) as p:
            reply = await p.restore(keys, directory=str(cycle))
            keys = [EpisodeId(f"g-r{i}", cycle + 1).key for i in range(2)]
            assert reply == {"phase": "restored", "source_checkpoint_id": "ck", "restored": keys}
            assert not p.is_open()
            if replayed or cycle == cycles - 1:
                replays = [p.s.verify(i, session=f"g-s{i}", episode=EpisodeId(f"g-r{i}", cycle + 1)) for i in range(2)]
                await p.s.ended(*replays)
                assert [replay.reward for replay in replays] == [1.0, 2.0]
            await p.resume("re")
            assert p.is_open()
            await p.prepare("ck")
            await p.commit("ck", str(cycle + 1))
            assert p.s.judge.asks == []


async def test_a_judge_failure_and_a_held_outcome_come_back(autojump_clock: Clock) -> None:
    store = memory_store()
    async with plane(store, judge=failing("no verdict")) as p:
        for index in range(2):
            p.s.seed(f"s{index}", f"r{index}")
        await p.prepare()
        rollouts = [p.s.verify(index, session=f"s{index}") for index in range(2)]
        await settled()
        assert not any(rollout.ended for rollout in rollouts)
        await p.commit()
    async with plane(store) as p:
        await p.restore(["r0", "r1"])
        replays = [p.s.verify(i, session=f"s{i}", episode=EpisodeId(f"r{i}", 1)) for i in range(2)]
        await p.s.ended(*replays)
        assert [replay.answer for replay in replays] == [JudgeFailed("no verdict")] * 2
        assert p.s.judge.asks == []


async def test_a_commit_of_a_scope_holds_only_that_and_deletes_what_was_restored_outside(autojump_clock: Clock) -> None:
    store = memory_store()
    async with plane(store) as p:
        keys = [*await p.finished_group("g"), *await p.finished_group("h")]
        await p.prepare()
        assert (await p.commit(episode_ids=keys[:3], directory="part"))["episode_ids"] == keys[:3]
        await p.resume()
        await p.prepare("all")
        await p.commit("all", "all", episode_ids=None)
    async with plane(store) as p:
        await p.restore(keys, directory="all")
        await p.resume("re")
        await p.prepare("two")
        scope = [EpisodeId(key, 1).key for key in keys[:2]]
        assert (await p.commit("two", "two", episode_ids=[*scope, keys[2]]))["episode_ids"] == sorted(scope)
        assert len(p.s.server.registry.sessions) == 2, "the scope names attempts, not rollouts"
        assert list(p.s.server.registry.groups) == ["g"]


# -- prepare -------------------------------------------------------------------------------------------


async def test_prepare_waits_for_what_is_in_flight(autojump_clock: Clock) -> None:
    async with plane() as p:
        leave = p.request("seed", "s", "r")
        await settled()
        asked = p.start(p.prepare)
        await settled()
        assert (asked.ended, p.is_open(), p.phase) == (False, False, "preparing")
        assert p.control.status()["report"] == {
            "ready": False,
            "blockers": ["r"],
            "blocker_count": 1,
            "counts": {"inflight": 1, "sessions": 0},
            "restarts": [],
        }
        leave.set()
        await p.ended(asked)
        assert asked.reply is not None
        assert asked.reply["phase"] == "prepared"


async def test_a_prepare_past_its_deadline_says_what_it_waits_for_and_stays_closed(
    autojump_clock: Clock,
) -> None:
    async with plane() as p:
        leave = p.request("tool", "s", "r")
        await settled()
        for within in (5.0, 0.0, -5.0):
            reply = await p.prepare(within=within)
            assert reply["phase"] == "preparing"
            assert reply["report"]["blockers"] == ["r"]  # type: ignore[index,call-overload]  # a report is an object
            assert not p.is_open()
        assert trio.current_time() == 5.0
        leave.set()
        await settled()
        assert p.phase == "preparing"
        assert (await p.prepare(within=-1.0))["phase"] == "preparing"
        assert (await p.prepare())["phase"] == "prepared"


async def test_a_finished_prepare_is_answered_from_memory(autojump_clock: Clock) -> None:
    async with plane() as p:
        first = await p.prepare()
        p.s.server.registry.sessions.retired["x"] = 1
        assert await p.prepare() == first
        await p.commit()
        assert await p.prepare() == first


async def test_a_resume_during_the_wait_ends_the_prepare_as_idle(autojump_clock: Clock) -> None:
    async with plane() as p:
        p.request("seed", "s", "r")
        await settled()
        asked = p.start(p.prepare)
        await settled()
        p.s.points.block("prepare")
        assert await p.resume() == {"phase": "idle", "idempotent": False}
        # Another checkpoint opens before the first prepare woke.
        other = p.start(lambda: p.prepare("other", within=3))
        await settled()
        p.s.points.release("prepare")
        await p.ended(asked, other)
        assert asked.reply is not None
        assert asked.reply["phase"] == "idle"
        assert other.reply is not None
        assert other.reply["phase"] == "preparing"


async def test_a_prepare_that_woke_ready_looks_again(autojump_clock: Clock) -> None:
    async with plane() as p:
        leave = p.request("seed", "s", "r")
        await settled()
        asked = p.start(p.prepare)
        await settled()
        p.s.points.block("prepare")
        leave.set()
        await p.s.points.parked("prepare")
        p.s.server.open_admission(resumed=False)
        p.request("seed", "s2", "r2")
        await settled()
        p.s.server.close_admission()
        p.s.points.release("prepare")
        await settled()
        assert not asked.ended
        assert p.phase == "preparing"


async def test_a_prepare_that_raises_reopens(monkeypatch: pytest.MonkeyPatch, autojump_clock: Clock) -> None:
    async with plane() as p:
        leave = p.request("seed", "s", "r")
        await settled()
        asked = p.start(p.prepare)
        await settled()

        async def broken(name: str, key: str) -> None:
            if name == "prepare":
                raise RuntimeError("broken")

        monkeypatch.setattr(p.s.points, "reach", broken)
        leave.set()
        await p.ended(asked)
        assert isinstance(asked.error, RuntimeError)
        assert (p.is_open(), p.phase) == (True, "idle")
        assert not p.control.phases.fenced("ck")


async def test_a_prepare_whose_caller_left_goes_on_with_the_next_call(autojump_clock: Clock) -> None:
    async with plane() as p:
        leave = p.request("seed", "s", "r")
        await settled()
        first, second = p.start(p.prepare), p.start(p.prepare)
        await settled()
        first.scope.cancel()
        leave.set()
        await p.ended(first, second)
        assert second.reply is not None
        assert second.reply["phase"] == "prepared"


# -- commit --------------------------------------------------------------------------------------------


async def test_a_commit_past_its_deadline_goes_on_and_is_joined_without_a_second_export(autojump_clock: Clock) -> None:
    store = HeldStore(Stage.WRITING)
    async with plane(store) as p:
        await p.finished_group()
        await p.prepare()
        names = heard(p)
        assert await p.refused(p.commit(within=5)) == "deadline_exceeded"
        joined = p.start(p.commit)
        await settled()
        assert not joined.ended
        assert p.phase == "prepared"
        store.let_go.set()
        await p.ended(joined)
        assert joined.reply is not None
        assert await p.commit(within=-1) == joined.reply
        assert names.count("Export") == 2  # one group, and one for the sessions left over
        assert p.phase == "committed"


async def test_a_commit_whose_caller_left_goes_on(autojump_clock: Clock) -> None:
    store = HeldStore(Stage.WRITING)
    async with plane(store) as p:
        await p.finished_group()
        await p.prepare()
        asked = p.start(p.commit)
        await store.reached.wait()
        asked.scope.cancel()
        await p.ended(asked)
        store.let_go.set()
        await settled()
        assert p.phase == "committed"


async def test_a_late_commit_that_has_not_begun_does_nothing(autojump_clock: Clock) -> None:
    async with plane() as p:
        await p.prepare()
        names = heard(p)
        assert await p.refused(p.commit(within=0)) == "deadline_exceeded"
        assert names == []


async def test_another_directory_or_scope_is_a_conflict_before_and_after_success(autojump_clock: Clock) -> None:
    async with plane() as p:
        keys = await p.finished_group()
        await p.prepare()
        reply = await p.commit(episode_ids=keys)
        assert await p.commit(episode_ids=[*keys[::-1], keys[0]]) == reply
        assert await p.refused(p.commit(directory="other", episode_ids=keys)) == "checkpoint_conflict"
        assert await p.refused(p.commit(episode_ids=keys[:1])) == "checkpoint_conflict"
        assert await p.refused(p.commit()) == "checkpoint_conflict"


async def test_the_directory_of_a_commit_that_failed_is_kept(autojump_clock: Clock) -> None:
    async with plane(memory_store(before_call=FailAt(3, OSError(5, "I/O error")))) as p:
        await p.prepare()
        assert await p.refused(p.commit()) == "invalid_checkpoint_state"
        assert await p.refused(p.commit(directory="other")) == "checkpoint_conflict"
        assert (await p.commit())["phase"] == "committed"


async def test_a_commit_that_is_no_longer_ready_is_refused(autojump_clock: Clock) -> None:
    async with plane() as p:
        await p.prepare()
        p.s.server.open_admission(resumed=False)
        leave = p.request("tool", "s", "r")
        await settled()
        p.s.server.close_admission()
        with pytest.raises(ControlRefused, match="no longer ready: r in flight") as caught:
            await p.commit()
        assert caught.value.code == "invalid_phase"
        leave.set()
        await settled()
        assert (await p.commit())["phase"] == "committed"


async def test_an_export_that_breaks_can_be_made_anew(monkeypatch: pytest.MonkeyPatch, autojump_clock: Clock) -> None:
    async with plane() as p:
        await p.finished_group()
        await p.prepare()

        async def broken(*_: object, **__: object) -> dict[str, object]:
            raise RuntimeError("broken")

        with monkeypatch.context() as patched:
            patched.setattr(p.s.server, "export_session_states", broken)
            with pytest.raises(RuntimeError, match="broken"):
                await p.commit(directory="first")
        assert p.phase == "prepared"
        assert (await p.commit(directory="second"))["phase"] == "committed"


async def test_sessions_that_ended_during_the_export_are_left_out_with_a_word(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: Clock
) -> None:
    told: list[str] = []
    async with plane() as p:
        await p.finished_group()
        monkeypatch.setattr(p.control, "_trouble", told.append)
        await p.prepare()
        export = p.s.server.export_session_states

        async def one_ends(session_ids: object, *, checkpoint_id: str) -> object:
            p.s.server.end_session("g-s0", "close")  # a close that passed before admission closed
            return await export(session_ids, checkpoint_id=checkpoint_id)  # type: ignore[arg-type]  # as it came

        monkeypatch.setattr(p.s.server, "export_session_states", one_ends)
        reply = await p.commit()
        assert reply["episode_ids"] == ["g-r1"]
        assert "'g-s0'" in told[0]


@pytest.mark.parametrize("n", range(1, 14))
async def test_when_the_nth_store_operation_fails_a_retry_commits_the_same(n: int, autojump_clock: Clock) -> None:
    store = memory_store(before_call=FailAt(n, OSError(28, "No space left on device")))
    async with plane(store) as p:
        keys = await p.finished_group()
        await p.prepare()
        names = heard(p)
        code = await p.refused(p.commit()) if n < 12 else None
        assert code in (None, "invalid_checkpoint_state")
        assert (await p.commit())["episode_ids"] == keys
        assert names.count("Export") == 2
        await p.resume()
        assert p.is_open()
    async with plane(store) as p:
        await p.restore(keys)
        replays = [p.s.verify(i, session=f"g-s{i}", episode=EpisodeId(f"g-r{i}", 1)) for i in range(2)]
        await p.s.ended(*replays)
        assert [replay.reward for replay in replays] == [1.0, 2.0]


# -- resume, abort -------------------------------------------------------------------------------------


async def test_a_resume_stops_a_running_write_and_nothing_of_it_is_published(autojump_clock: Clock) -> None:
    store = HeldStore(Stage.WRITING)
    async with plane(store) as p:
        await p.finished_group()
        await p.prepare()
        asked = p.start(p.commit)
        await store.reached.wait()
        assert await p.resume(within=-5) == {"phase": "idle", "idempotent": False}
        assert p.is_open()
        await p.ended(asked)
        assert asked.code == "stale_checkpoint"
        store.let_go.set()
        await settled()
        assert store.folders["d"].names() == []


async def test_a_resume_waits_for_a_manifest_that_is_being_published(autojump_clock: Clock) -> None:
    store = HeldStore(Stage.PUBLISHING)
    async with plane(store) as p:
        await p.finished_group()
        await p.prepare()
        asked = p.start(p.commit)
        await store.reached.wait()
        assert await p.refused(p.resume(within=5)) == "deadline_exceeded"
        assert (p.is_open(), p.phase) == (False, "prepared")
        resumed = p.start(p.resume)
        await settled()
        assert not resumed.ended
        store.let_go.set()
        await p.ended(asked, resumed)
        assert resumed.reply == {"phase": "idle", "idempotent": False}
        assert store.published


async def test_a_commit_that_comes_while_a_resume_waits_is_stopped_as_well(autojump_clock: Clock) -> None:
    store = HeldStore(Stage.WRITING)
    async with plane(store) as p:
        await p.finished_group()
        await p.prepare()
        first = p.start(p.commit)
        await store.reached.wait()
        p.s.points.block("stopped")
        resumed = p.start(p.resume)
        await p.s.points.parked("stopped")
        await p.ended(first)
        second = p.start(p.commit)
        await settled()
        p.s.points.release("stopped")
        await p.ended(second, resumed)
        assert resumed.reply == {"phase": "idle", "idempotent": False}
        assert (first.code, second.code) == ("stale_checkpoint", "stale_checkpoint")
        store.let_go.set()
        await settled()
        assert not store.published


async def test_a_resume_does_not_wait_for_an_export_that_hangs(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: Clock
) -> None:
    monkeypatch.setattr(server_module, "EXPORT_SLICE", 1)
    store = memory_store()
    async with plane(store) as p:
        await p.finished_group("g")
        await p.finished_group("h")
        await p.prepare()
        p.s.points.block("exporting")
        asked = p.start(p.commit)
        await p.s.points.parked("exporting")
        assert await p.resume(within=0) == {"phase": "idle", "idempotent": False}
        await p.prepare("next")
        p.s.points.release("exporting")
        await p.ended(asked)
        assert asked.code == "stale_checkpoint"
        assert len((await p.commit("next"))["episode_ids"]) == 4  # type: ignore[arg-type]  # a list


async def test_two_resumes_at_once_resume_once(autojump_clock: Clock) -> None:
    store = HeldStore(Stage.PUBLISHING)
    async with plane(store) as p:
        await p.prepare()
        p.start(p.commit)
        await store.reached.wait()
        resumes = [p.start(p.resume), p.start(p.resume)]
        await settled()
        store.let_go.set()
        await p.ended(*resumes)
        replies = [asked.reply["idempotent"] for asked in resumes if asked.reply is not None]
        assert sorted(replies) == [False, True]  # type: ignore[type-var]  # booleans


async def test_a_repeated_resume_leaves_the_next_checkpoint_alone(autojump_clock: Clock) -> None:
    async with plane() as p:
        await p.prepare()
        await p.resume()
        await p.prepare("next")
        assert await p.resume() == {"phase": "idle", "idempotent": True}
        assert (p.is_open(), p.phase) == (False, "prepared")
        assert await p.refused(p.resume("third")) == "checkpoint_conflict"
        assert await p.refused(p.prepare()) == "stale_checkpoint"


# -- lease ---------------------------------------------------------------------------------------------


async def test_when_the_lease_passes_the_server_resumes_itself(autojump_clock: Clock) -> None:
    async with plane() as p:
        for index in range(2):
            p.s.seed(f"s{index}", f"r{index}")
        await p.prepare(within=100)
        rollouts = [p.s.verify(index, session=f"s{index}") for index in range(2)]
        assert (await p.renew(within=150))["lease_expires_at"] == WALL + 750
        assert p.control.status()["lease_expires_at"] == WALL + 750
        await p.s.ended(*rollouts)
        assert trio.current_time() == 750.0
        assert p.is_open()
        assert p.control.status()["lease_expires_at"] is None
        for call in (p.prepare, p.renew, p.commit):
            assert await p.refused(call()) == "stale_checkpoint"
        assert await p.resume() == {"phase": "idle", "idempotent": True}


async def test_a_lease_that_passes_is_told_in_words(monkeypatch: pytest.MonkeyPatch, autojump_clock: Clock) -> None:
    told: list[str] = []
    async with plane() as p:
        monkeypatch.setattr(p.control, "_trouble", told.append)
        await p.prepare(within=10)
        await trio.sleep(10 + 600 + 1)
        assert p.phase == "idle"
        assert len(told) == 1
        assert "was resumed by its lease" in told[0]


async def test_a_passing_lease_stops_a_hung_write(autojump_clock: Clock) -> None:
    store = HeldStore(Stage.WRITING)
    async with plane(store) as p:
        await p.prepare(within=10)
        asked = p.start(lambda: p.commit(within=10))
        await p.ended(asked)
        assert asked.code == "deadline_exceeded"
        await trio.sleep_until(611)
        assert p.is_open()
        store.let_go.set()
        await settled()
        assert not store.published


async def test_a_passing_lease_waits_for_a_manifest_and_the_id_is_stale_meanwhile(autojump_clock: Clock) -> None:
    store = HeldStore(Stage.PUBLISHING)
    async with plane(store) as p:
        await p.prepare(within=10)
        p.start(lambda: p.commit(within=10))
        await trio.sleep_until(700)
        assert not p.is_open()
        assert await p.refused(p.renew()) == "stale_checkpoint"
        store.let_go.set()
        await settled()
        assert p.is_open()
        assert store.published


async def test_a_renewed_lease_holds(autojump_clock: Clock) -> None:
    async with plane() as p:
        await p.prepare(within=10)
        for _ in range(5):
            await trio.sleep(600)
            await p.renew(within=10)
        assert p.phase == "prepared"


# -- restore -------------------------------------------------------------------------------------------


async def committed(store: MemoryStore) -> list[str]:
    """A crash after a checkpoint of one finished group; returns its keys."""
    async with plane(store) as p:
        keys = await p.finished_group()
        await p.prepare()
        await p.commit()
    return keys


async def test_a_repeated_restore_is_answered_from_memory(autojump_clock: Clock) -> None:
    store = memory_store()
    keys = await committed(store)
    async with plane(store) as p:
        reply = await p.restore(keys)
        assert await p.restore(keys[::-1], within=-1) == reply
        assert await p.refused(p.restore(keys, directory="other")) == "checkpoint_conflict"
        assert await p.refused(p.restore(keys[:1])) == "checkpoint_conflict"
        assert await p.refused(p.restore(keys, "another")) == "checkpoint_conflict"


async def _session(p: Plane) -> None:
    p.s.seed("s", "r")


async def _cohort(p: Plane) -> None:
    p.s.verify(0)
    await p.s.waiting(1)


async def _plain_request(p: Plane) -> None:
    p.request("plain", None, None)
    await settled()


async def _verify_request(p: Plane) -> None:
    p.request("verify", None, None)
    await settled()


@pytest.mark.parametrize("holding", [_session, _cohort, _plain_request, _verify_request])
async def test_a_process_that_holds_something_refuses_and_stays_as_it_was(
    holding: Callable[[Plane], Awaitable[None]],
    autojump_clock: Clock,
) -> None:
    store = memory_store()
    keys = await committed(store)
    async with plane(store) as p:
        await holding(p)
        before = (len(p.s.server.registry.sessions), list(p.s.server.registry.cohorts))
        with pytest.raises(ControlRefused, match=r"a restore needs an (empty|idle) process") as caught:
            await p.restore(keys)
        assert (caught.value.status, caught.value.code) == (409, "checkpoint_error")
        assert "`serve --await-restore`" in caught.value.detail, "what helps is said with what is wrong"
        assert (p.is_open(), p.phase) == (True, "idle")
        assert (len(p.s.server.registry.sessions), list(p.s.server.registry.cohorts)) == before
        assert not p.control.phases.fenced("re")


@pytest.mark.parametrize("damage", ["missing", "flipped", "foreign"])
async def test_a_damaged_checkpoint_is_refused_and_the_server_goes_on(damage: str, autojump_clock: Clock) -> None:
    store = memory_store()
    keys = await committed(store)
    blobs = store.folders["d"].blobs
    records = next(name for name in blobs if name.startswith("records-"))
    if damage == "missing":
        del blobs[records]
    elif damage == "flipped":
        blobs[records].data[9] ^= 1
    else:
        blobs[MANIFEST].data[:] = blobs[MANIFEST].data.replace(b"genrm_compare", b"another_name")
    async with plane(store) as p:
        names = heard(p)
        assert await p.refused(p.restore(keys)) == "invalid_checkpoint_state"
        assert names == ["RefuseRestore"]
        assert (p.is_open(), p.phase) == (True, "idle")
        await p.finished_group("fresh")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (policy(1), "rollout_index 1"),
        (policy(limits={"max_sessions": 1}), r"2 sessions are asked for, limits\.max_sessions is 1"),
    ],
)
async def test_a_state_that_does_not_fit_the_configuration_is_refused_as_a_whole(
    changed: Policy, said: str, autojump_clock: Clock
) -> None:
    store = memory_store()
    keys = await committed(store)
    async with plane(store, changed) as p:
        with pytest.raises(ControlRefused, match=said) as caught:
            await p.restore(keys)
        assert caught.value.code == "invalid_checkpoint_state"
        assert len(p.s.server.registry.sessions) == 0
        assert (p.is_open(), p.phase) == (True, "idle")


async def test_a_restore_past_its_deadline_leaves_nothing_and_may_be_asked_again(autojump_clock: Clock) -> None:
    keys = await committed(memory_store())
    store = HeldStore(reads=True)
    async with plane(store) as p:
        assert await p.refused(p.restore(keys, within=5)) == "deadline_exceeded"
        assert (p.is_open(), p.phase) == (True, "idle")
        store.let_go.set()
        assert await p.refused(p.restore(keys, within=5)) == "invalid_checkpoint_state"
        assert await p.refused(p.restore(keys, within=-5)) == "deadline_exceeded"


class LingeringStore(MemoryStore):
    """A store whose reads take three seconds more to end when they are cancelled."""

    async def read(self, checkpoint_dir: str, *, scope: frozenset[EpisodeId] | None) -> Checkpoint:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(3)
        raise AssertionError("never read")


async def test_when_the_last_call_of_a_restore_is_refused_the_restore_is_over(autojump_clock: Clock) -> None:
    async with plane(LingeringStore("genrm_compare")) as p:
        assert await p.refused(p.restore([], within=5)) == "deadline_exceeded"
        assert trio.current_time() == 8.0
        assert p.control.phases.phase is Phase.IDLE


async def test_a_restore_that_is_joined_runs_until_the_later_deadline(autojump_clock: Clock) -> None:
    store = HeldStore(reads=True)
    async with plane(store) as p:
        first, second = p.start(lambda: p.restore([], within=5)), p.start(lambda: p.restore([], within=50))
        await p.ended(first)
        assert first.code == "deadline_exceeded"
        assert not second.ended
        assert p.control.phases.phase is Phase.RESTORING
        await p.ended(second)
        assert trio.current_time() == 50.0
        assert second.code == "deadline_exceeded"


async def test_a_resume_stops_a_running_restore(autojump_clock: Clock) -> None:
    store = HeldStore(reads=True)
    async with plane(store) as p:
        asked = p.start(lambda: p.restore([]))
        await store.reached.wait()
        assert p.phase == "idle"
        assert p.is_open()
        assert await p.resume("re") == {"phase": "idle", "idempotent": False}
        await p.ended(asked)
        assert asked.code == "stale_checkpoint"
        assert p.is_open()


async def test_after_a_failed_restore_the_next_attempts_are_retired_under_the_same_id(autojump_clock: Clock) -> None:
    store = memory_store()
    keys = await committed(store)
    for restored in (True, False):
        async with plane(store) as p:
            if restored:
                await p.restore(keys)
            else:
                assert await p.refused(p.restore(keys, directory="other")) == "invalid_checkpoint_state"
            nexts = [f"{key}-a1" for key in keys]
            assert await p.retire(nexts, "re") == {"retired": nexts}
            assert len(p.s.server.registry.sessions) == 0
            assert p.s.server.registry.cohorts == {}
            assert p.s.server.registry.groups == {}
            assert (await p.resume("re"))["idempotent"] is not restored
            # The group forms anew under the same attempt, with the attempts after those.
            rollouts = [p.s.verify(i, text=str(9 - i), episode=EpisodeId(f"g-r{i}", 2)) for i in range(2)]
            await p.s.ended(*rollouts)
            assert [rollout.reward for rollout in rollouts] == [9.0, 8.0]


async def test_a_retire_waits_for_a_running_restore_of_its_id(autojump_clock: Clock) -> None:
    store = HeldStore(reads=True)
    async with plane(store) as p:
        restored = p.start(lambda: p.restore([]))
        await store.reached.wait()
        assert await p.refused(p.retire(["r-a1"], "other")) == "checkpoint_conflict"
        assert await p.refused(p.retire(["r-a1"], "re", within=5)) == "deadline_exceeded"
        retired = p.start(lambda: p.retire(["r-a1"], "re"))
        forgotten = p.start(lambda: p.forget(["r"], "re"))
        await settled()
        assert not retired.ended
        assert not forgotten.ended
        store.let_go.set()
        await p.ended(restored, retired, forgotten)
        assert restored.code == "invalid_checkpoint_state"
        assert retired.reply == {"retired": ["r-a1"]}


async def test_a_server_that_awaits_a_restore_waits_for_the_resume_after_it(autojump_clock: Clock) -> None:
    store = memory_store()
    keys = await committed(store)
    async with plane(store, await_restore=True) as p:
        p.request("verify", None, None)
        await settled()
        assert p.s.server.gate.running == 0
        await p.restore(keys)
        await settled()
        assert p.s.server.gate.running == 0
        await p.resume("re")
        await settled()
        assert p.s.server.gate.running == 1
    async with plane(store, await_restore=True) as p:
        p.request("plain", None, None)
        assert await p.refused(p.restore(keys, directory="other")) == "invalid_checkpoint_state"
        await settled()
        assert p.s.server.gate.running == 0
        assert await p.resume("none") == {"phase": "idle", "idempotent": True}
        await settled()
        assert p.s.server.gate.running == 1


# -- retire, forget ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "key"), [("tool", "r"), ("seed", "r"), ("plain", None)])
async def test_a_retire_waits_for_the_requests_of_its_sessions_and_blocks_a_prepare(
    kind: Kind, key: str | None, autojump_clock: Clock
) -> None:
    async with plane() as p:
        p.s.seed("s", "r")
        verify = p.s.verify(0, session="s", episode=EpisodeId("r"))
        await p.s.waiting(1)
        leave = p.request(kind, "s", key)
        await settled()
        retired = p.start(lambda: p.retire(["r"]))
        await p.s.ended(verify)
        assert "retired" in verify.failure
        await settled()
        assert not retired.ended
        assert await p.refused(p.forget(["r"])) == "retire_incomplete"
        prepared = p.start(lambda: p.prepare("ck2"))
        await settled()
        assert not prepared.ended
        assert p.control.status()["report"]["blockers"] == ["r"]  # type: ignore[index,call-overload]  # an object
        leave.set()
        await p.ended(retired, prepared)
        assert retired.reply == {"retired": ["r"]}
        assert prepared.reply is not None
        assert prepared.reply["phase"] == "prepared"
        assert (await p.commit("ck2"))["episode_ids"] == []


async def test_a_retire_past_its_deadline_goes_on_by_itself(autojump_clock: Clock) -> None:
    async with plane() as p:
        p.s.seed("s", "r")
        leave = p.request("seed", "s", "r")
        await settled()
        assert await p.refused(p.retire(["r"], within=5)) == "deadline_exceeded"
        assert await p.refused(p.retire(["r"], within=-5)) == "deadline_exceeded"
        assert p.s.seed("s", "r") == "stale_attempt"
        assert await p.refused(p.forget(["r"])) == "retire_incomplete"
        leave.set()
        await settled()
        assert await p.forget(["r", "q", "r"]) == {"forgotten": ["q", "r"]}
        assert p.s.seed("s", "r") == "bound"


async def test_a_repeated_retire_waits_for_the_first(autojump_clock: Clock) -> None:
    async with plane() as p:
        p.s.seed("s", "r")
        leave = p.request("plain", "s", None)  # known to the first only, by the session it ended
        await settled()
        first = p.start(lambda: p.retire(["r"]))
        await settled()
        second = p.start(lambda: p.retire(["r"]))
        await settled()
        assert not first.ended
        assert not second.ended
        leave.set()
        await p.ended(first, second)
        assert second.reply == {"retired": ["r"]}


async def test_a_retire_with_nothing_running_is_done_at_once_even_when_late(autojump_clock: Clock) -> None:
    async with plane() as p:
        assert await p.retire(["r-a2", "q", "r-a2"], within=-5) == {"retired": ["r-a2", "q", "r-a2"]}
        assert p.control.status()["retired_rollouts"] == 2


@pytest.mark.parametrize("commit", [False, True])
async def test_retire_and_forget_are_refused_while_a_checkpoint_is_open(commit: bool, autojump_clock: Clock) -> None:
    async with plane() as p:
        await p.prepare()
        if commit:
            await p.commit()
        assert await p.refused(p.retire(["r"])) == "invalid_phase"
        assert await p.refused(p.forget(["r"])) == "invalid_phase"


# -- shutdown ------------------------------------------------------------------------------------------


async def test_every_call_but_status_and_resume_is_refused_when_the_server_shuts_down(autojump_clock: Clock) -> None:
    async with plane() as p:
        await p.prepare()
        p.s.server.shut_down()
        calls: list[Callable[[], Awaitable[object]]] = [
            p.prepare,
            p.renew,
            p.commit,
            lambda: p.restore([]),
            lambda: p.retire(["r"]),
            lambda: p.forget(["r"]),
        ]
        for call in calls:
            with pytest.raises(ControlRefused, match="shutting down") as caught:
                await call()
            assert (caught.value.status, caught.value.code) == (503, "checkpoint_error")
        assert p.control.status()["phase"] == "prepared"
        names = heard(p)
        assert (await p.resume())["phase"] == "idle"
        assert names == []  # what is shut down stays as it is


async def test_a_shutdown_ends_the_waits_of_prepare_and_retire(autojump_clock: Clock) -> None:
    async with plane() as p:
        p.request("tool", "s", "r")
        await settled()
        asked = [p.start(lambda: p.retire(["r"]))]
        await settled()
        asked.append(p.start(p.prepare))
        await settled()
        p.s.server.shut_down()
        await p.ended(*asked)
        assert [one.code for one in asked] == ["checkpoint_error"] * 2


async def test_a_commit_that_was_exported_before_the_shutdown_may_finish(autojump_clock: Clock) -> None:
    store = HeldStore(Stage.WRITING)
    async with plane(store) as p:
        keys = await p.finished_group()
        await p.prepare()
        asked = p.start(p.commit)
        await store.reached.wait()
        p.s.server.shut_down()
        store.let_go.set()
        await p.ended(asked)
        assert asked.reply is not None
        assert asked.reply["episode_ids"] == keys
        assert store.published


async def test_a_commit_that_was_not_exported_before_the_shutdown_writes_nothing(
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: Clock,
) -> None:
    monkeypatch.setattr(server_module, "EXPORT_SLICE", 1)
    store = memory_store()
    async with plane(store) as p:
        await p.finished_group("g")
        await p.finished_group("h")
        await p.prepare()
        p.s.points.block("exporting")
        asked = p.start(p.commit)
        await p.s.points.parked("exporting")
        p.s.server.shut_down()
        p.s.points.release("exporting")
        await p.ended(asked)
        assert asked.code == "checkpoint_error"
        assert store.folders == {}


async def test_a_write_that_outlives_the_grace_is_abandoned(autojump_clock: Clock) -> None:
    store = HeldStore(Stage.WRITING)
    async with plane(store) as p:
        await p.finished_group()
        await p.prepare()
        p.start(p.commit)
        await store.reached.wait()
        p.s.server.shut_down()
    assert store.folders["d"].names() == []


# -- status --------------------------------------------------------------------------------------------


async def test_status_has_the_contracts_fields_in_every_phase(autojump_clock: Clock) -> None:
    async with plane(judge=ScriptedJudge()) as p:
        assert p.control.status() == {
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
                "restarts": [],
            },
            "mode": "exported",
            "verify": "replay",
            "verify_step_type": "replay",
            "retired_sessions": 0,
        }
        await p.prepare()
        status = p.control.status()
        assert (status["phase"], status["checkpoint_id"], status["lease_expires_at"]) == ("prepared", "ck", WALL + 700)


async def test_a_report_names_at_most_a_hundred_blockers_and_counts_all(autojump_clock: Clock) -> None:
    async with plane() as p:
        for n in range(120):
            p.request("tool", f"s{n}", f"r{n}")
        await settled()
        report = p.control.status()["report"]
        assert isinstance(report, dict)
        assert isinstance(report["blockers"], list)
        assert len(report["blockers"]) == 100
        assert report["blocker_count"] == 120
