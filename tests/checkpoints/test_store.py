"""The store as the control plane awaits it: threads, cancelling, a hung disk, and the event loop all the while."""

import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from tests.checkpoints.material import INSTANCE, record, records
from tests.support.stretches import Stretches

from genrm_trio.checkpoints.errors import CheckpointStateError
from genrm_trio.checkpoints.faults import FailAt, Killed
from genrm_trio.checkpoints.manifest import MANIFEST
from genrm_trio.checkpoints.records import Record
from genrm_trio.checkpoints.steps import Stage
from genrm_trio.checkpoints.store import FileStore, MemoryStore, Store
from genrm_trio.core.identity import EpisodeId
from genrm_trio.core.outcome import JSON


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return FileStore(INSTANCE, root=tmp_path) if request.param == "file" else MemoryStore(INSTANCE)


async def test_a_checkpoint_comes_back(store: Store) -> None:
    manifest = await store.write("ck", checkpoint_id="ck-1", records=records(10))
    assert (await store.read("ck", scope=None)).records == records(10)
    checkpoint = await store.read("ck", scope=frozenset({EpisodeId("r3")}))
    assert checkpoint.records == [record(3)]
    assert checkpoint.manifest == manifest
    assert manifest.checkpoint_id == "ck-1"
    assert await store.write("ck", checkpoint_id="ck-1", records=records(10)) == manifest


async def test_what_goes_wrong_names_the_folder(store: Store) -> None:
    with pytest.raises(CheckpointStateError, match=r"checkpoint_dir 'ck': the folder .*does not exist"):
        await store.read("ck", scope=None)
    await store.write("ck", checkpoint_id="ck-1", records=records(10))
    with pytest.raises(CheckpointStateError, match="checkpoint_dir 'ck': the folder holds another checkpoint"):
        await store.write("ck", checkpoint_id="ck-2", records=records(10))
    with pytest.raises(CheckpointStateError, match="checkpoint_dir 'other': the state of session 'session-1'"):
        await store.write("other", checkpoint_id="ck-1", records=[record(1, float("nan"))])


@pytest.mark.parametrize("make", [FileStore, MemoryStore])
def test_an_instance_that_cannot_name_a_folder_fails_at_once(make: type[FileStore] | type[MemoryStore]) -> None:
    with pytest.raises(CheckpointStateError, match="instance"):
        make("../x")


async def test_the_root_is_held(tmp_path: Path) -> None:
    store = FileStore(INSTANCE, root=tmp_path / "root")
    for bad in ("..", str(tmp_path)):
        with pytest.raises(CheckpointStateError, match="does not lie under"):
            await store.write(bad, checkpoint_id="ck-1", records=records(3))
        with pytest.raises(CheckpointStateError, match="does not lie under"):
            await store.read(bad, scope=None)
    assert names(tmp_path) == []


@pytest.mark.parametrize("n", range(1, 12))
async def test_a_failing_disk_is_a_checkpoint_error(tmp_path: Path, n: int) -> None:
    store = FileStore(INSTANCE, before_call=FailAt(n, OSError(28, "No space left on device")))
    with pytest.raises(CheckpointStateError, match=r"checkpoint_dir .*: No space left on device"):
        await store.write(str(tmp_path), checkpoint_id="ck-1", records=records(3))


# -- cancelling ----------------------------------------------------------------------------------------


class Held:
    """Holds a store's thread at the first of one operation until it is let go."""

    def __init__(self, operation: str) -> None:
        self._operation = operation
        self._token = trio.lowlevel.current_trio_token()
        self.reached = trio.Event()
        self.let_go = threading.Event()

    def __call__(self, operation: str) -> None:
        if operation == self._operation and not self.reached.is_set():
            trio.from_thread.run_sync(self.reached.set, trio_token=self._token)
            assert self.let_go.wait(30)


async def idle(store: FileStore) -> None:
    """Wait until none of the store's threads is at work any more."""
    limiter = store._limiter
    with trio.fail_after(10):
        for _ in range(int(limiter.total_tokens)):
            await limiter.acquire_on_behalf_of(object())


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("operation", ["create", "write", "sync_file"])
async def test_a_write_on_a_hung_disk_is_abandoned_at_once_and_publishes_nothing(
    tmp_path: Path, operation: str
) -> None:
    held = Held(operation)
    store = FileStore(INSTANCE, before_call=held)
    with trio.fail_after(5), trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_when, held.reached, scope)
            await store.write(str(tmp_path), checkpoint_id="ck-1", records=records(3))
    assert scope.cancelled_caught
    # The next checkpoint goes to the same folder while the old thread still hangs there.
    other = FileStore(INSTANCE)
    await other.write(str(tmp_path), checkpoint_id="ck-2", records=records(3))
    held.let_go.set()
    await idle(store)
    manifest = (await other.read(str(tmp_path), scope=None)).manifest
    assert manifest.checkpoint_id == "ck-2"
    assert names(tmp_path) == [MANIFEST, manifest.records_file]


async def cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


@pytest.mark.parametrize("operation", ["rename", "sync_folder", "link"])
async def test_a_manifest_being_published_is_waited_for(tmp_path: Path, operation: str) -> None:
    held = Held(operation)
    store = FileStore(INSTANCE, before_call=held)
    done = trio.Event()

    async def publish() -> None:
        with scope:
            await store.write(str(tmp_path), checkpoint_id="ck-1", records=records(3))
        done.set()

    scope = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(publish)
        await held.reached.wait()
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert not done.is_set()
        held.let_go.set()
    assert (await FileStore(INSTANCE).read(str(tmp_path), scope=None)).records == records(3)


async def test_cancelled_before_its_thread_begins_a_write_does_nothing(tmp_path: Path) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await FileStore(INSTANCE).write(str(tmp_path), checkpoint_id="ck-1", records=records(3))
    assert scope.cancelled_caught
    assert names(tmp_path) == []


async def test_a_read_on_a_hung_disk_is_abandoned_at_once(tmp_path: Path) -> None:
    await FileStore(INSTANCE).write(str(tmp_path), checkpoint_id="ck-1", records=records(3))
    held = Held("read")
    with trio.fail_after(5), trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_when, held.reached, scope)
            await FileStore(INSTANCE, before_call=held).read(str(tmp_path), scope=None)
    assert scope.cancelled_caught
    held.let_go.set()


def test_a_run_that_ends_does_not_wait_for_a_hung_disk(tmp_path: Path) -> None:
    let_go: list[Held] = []

    async def main() -> None:
        held = Held("write")
        let_go.append(held)
        store = FileStore(INSTANCE, before_call=held)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_when, held.reached, nursery.cancel_scope)
            await store.write(str(tmp_path), checkpoint_id="ck-1", records=records(3))

    trio.run(main)
    let_go[0].let_go.set()
    assert MANIFEST not in names(tmp_path)


async def test_hung_threads_are_bounded_and_a_later_call_can_be_cancelled(tmp_path: Path) -> None:
    held = [Held("names") for _ in range(8)]
    calls = iter(held)

    def hold(operation: str) -> None:
        next(calls)(operation)

    store = FileStore(INSTANCE, before_call=hold)
    async with trio.open_nursery() as nursery:
        for one in held:
            nursery.start_soon(write_quietly, store, str(tmp_path))
            await one.reached.wait()
        nursery.cancel_scope.cancel()
    with trio.move_on_after(0.05) as scope:
        await store.write(str(tmp_path), checkpoint_id="ck-1", records=records(3))
    assert scope.cancelled_caught
    for one in held:
        one.let_go.set()
    await FileStore(INSTANCE).write(str(tmp_path), checkpoint_id="ck-1", records=records(3))


async def write_quietly(store: Store, folder: str) -> None:
    await store.write(folder, checkpoint_id="ck-1", records=records(3))


# -- two at once ---------------------------------------------------------------------------------------


async def test_of_two_writers_with_other_content_one_wins_whole(tmp_path: Path) -> None:
    for round_number in range(10):
        outcomes: dict[int, bool] = {}

        async def one(count: int, folder: str, outcomes: dict[int, bool] = outcomes) -> None:
            try:
                await FileStore(INSTANCE).write(folder, checkpoint_id="ck-1", records=records(count))
            except CheckpointStateError:
                outcomes[count] = False
            else:
                outcomes[count] = True

        folder = tmp_path / str(round_number)
        async with trio.open_nursery() as nursery:
            for count in (3, 4):
                nursery.start_soon(one, count, str(folder))
        (winner,) = [count for count, won in outcomes.items() if won]
        assert (await FileStore(INSTANCE).read(str(folder), scope=None)).records == records(winner)
        assert len(list((folder / "gym/resources" / INSTANCE).iterdir())) == 2


async def test_two_writers_with_the_same_content_both_succeed(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(write_quietly, FileStore(INSTANCE), str(tmp_path))
    assert (await FileStore(INSTANCE).read(str(tmp_path), scope=None)).records == records(3)
    assert len(list((tmp_path / "gym/resources" / INSTANCE).iterdir())) == 2


# -- in memory -----------------------------------------------------------------------------------------


async def test_a_write_in_memory_can_be_held_and_abandoned(autojump_clock: trio.testing.MockClock) -> None:
    async def hang(stage: Stage) -> None:
        if stage is Stage.WRITING:
            await trio.sleep_forever()

    store = MemoryStore(INSTANCE, between=hang)
    with trio.move_on_after(1) as scope:
        await store.write("ck", checkpoint_id="ck-1", records=records(3))
    assert scope.cancelled_caught
    assert store.folders["ck"].names() == []


async def test_a_write_in_memory_that_publishes_is_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    async def slow(stage: Stage) -> None:
        if stage is Stage.PUBLISHING:
            await trio.sleep(10)

    store = MemoryStore(INSTANCE, between=slow)
    with trio.move_on_after(1):
        await store.write("ck", checkpoint_id="ck-1", records=records(3))
    assert trio.current_time() >= 10
    assert MANIFEST in store.folders["ck"].names()


async def test_a_store_in_memory_can_fail_at_any_operation() -> None:
    hook = FailAt(10**9, OSError())
    await MemoryStore(INSTANCE, before_call=hook).write("ck", checkpoint_id="ck-1", records=records(3))
    for n in range(1, len(hook.calls)):
        store = MemoryStore(INSTANCE, before_call=FailAt(n, Killed()))
        with pytest.raises(Killed):
            await store.write("ck", checkpoint_id="ck-1", records=records(3))


# -- the event loop meanwhile --------------------------------------------------------------------------


def members(count: int) -> Iterator[Record]:
    """Records as large as real ones: an outcome of twenty numbers, digests and a group."""
    for n in range(count):
        result: dict[str, JSON] = {f"genrm_metric_number_{i}_per_comparison": n / (i + 3) for i in range(20)}
        state: JSON = {
            "group_id": f"group-{n // 16}",
            "rollout_index": n % 16,
            "response_digest": f"{n:064x}",
            "result": result,
        }
        yield Record(EpisodeId(f"{n // 16}-{n % 16}"), f"{n:032x}", state)


async def test_the_event_loop_goes_on_while_a_large_checkpoint_is_written_and_read(tmp_path: Path) -> None:
    content = list(members(65_536))
    gc.collect()
    store = FileStore(INSTANCE)
    stretches = Stretches()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stretches.watch)
        await stretches.start()
        await store.write(str(tmp_path), checkpoint_id="ck-1", records=content)
        checkpoint = await store.read(str(tmp_path), scope=None)
        await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert len(checkpoint.records) == len(content)
    assert checkpoint.records[::1000] == content[::1000]
    assert stretches.take() < 0.05
