"""A damaged checkpoint is never installed, not even in part, and a whole file that says nonsense is refused.

All through the control plane: what a file holds is judged by what the restored server then does.
"""

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from hypothesis import assume, given
from hypothesis import strategies as st
from tests.fuzz.kit import bodies, damaged, fuzz, places, replaced, run, strict_json, to_text, values
from tests.fuzz.test_control_bodies import AUTHORIZED, NEVER, PREFIX, check, control, open_again
from tests.fuzz.test_data_bodies import check_next_cohort
from tests.support.judges import ScriptedJudge
from tests.support.plane import memory_store
from tests.web.app_harness import Answer, Site, site
from tests.web.bodies import response, verify

from genrm_trio.checkpoints.memory import Blob, MemoryFolder
from genrm_trio.checkpoints.store import MemoryStore
from genrm_trio.core.invariants import broken
from genrm_trio.judging.judge import Ask, JudgeError
from genrm_trio.judging.verdict import Verdict

KEYS: Final = ["good-0", "good-1", "bad-0", "bad-1", "early-0"]
MANIFEST: Final = "manifest.json"
Files = Mapping[str, bytes]


def says(ask: Ask) -> Verdict | JudgeError:
    """Answers are alike, but for those that the judge cannot bear."""
    return JudgeError("it cannot be judged") if "bad" in ask.response_1 else Verdict(3.0, 3.0, 3.5)


def body_of(key: str) -> dict[str, Any]:
    group, _, index = key.partition("-")
    return verify(int(index), group, response=response(text=key))


def ask_for_restore(checkpoint_id: str = "re") -> dict[str, Any]:
    return {"checkpoint_id": checkpoint_id, "deadline_ts": NEVER, "checkpoint_dir": "d", "episode_ids": KEYS}


@cache
def saved() -> Files:
    """The files of a checkpoint with rewards, a judge failure and a session without an outcome."""
    store = memory_store()

    async def main() -> None:
        async with site(judge=ScriptedJudge(says), store=store) as at:
            cookies = {key: await at.seeded(key) for key in KEYS}
            headers = {"x-ng-close-follows": "1"}
            requests = [
                at.begin("POST", f"/ng-rollout/{key}/verify", body_of(key), cookie=cookies[key], headers=headers)
                for key in KEYS[:4]
            ]
            assert [(await at.answered(request)).status for request in requests] == [200] * 4
            common = {"checkpoint_id": "ck", "deadline_ts": NEVER}
            assert (await control(at, "prepare", common)).status == 200
            assert (await control(at, "commit", {**common, "checkpoint_dir": "d"})).status == 200

    run(main)
    return {name: bytes(blob.data) for name, blob in store.folders["d"].blobs.items()}


def stored(files: Files) -> MemoryStore:
    """A store that holds these files."""
    store = memory_store()
    store.folders["d"] = MemoryFolder()
    store.folders["d"].blobs.update({name: Blob(bytearray(data)) for name, data in files.items()})
    return store


def sealed(records: list[str]) -> Files:
    """Records under a manifest that fits them."""
    data = "".join(record + "\n" for record in records).encode("utf-8", "surrogatepass")
    digest = hashlib.sha256(data).hexdigest()
    manifest = json.loads(saved()[MANIFEST])
    manifest |= {"records_sha256": digest, "records_file": f"records-{digest}.jsonl", "record_count": len(records)}
    return {MANIFEST: json.dumps(manifest).encode(), manifest["records_file"]: data}


def saved_records() -> list[Any]:
    (name,) = (name for name in saved() if name != MANIFEST)
    return [json.loads(line) for line in saved()[name].splitlines()]


def check_untouched(at: Site) -> None:
    """A refused restore leaves the server open and without any of it."""
    registry = at.server.registry
    assert registry.admission.open
    kept = (registry.cohorts, registry.groups, list(registry.sessions), registry.terminal)
    assert not any(kept), kept


async def check_replays(at: Site) -> None:
    """What was restored is what was saved."""
    sessions = {session.episode.rollout_id: session for session in at.server.registry.sessions}
    assert sorted(sessions) == sorted(KEYS)
    assert all(session.episode.attempt == 1 for session in sessions.values())
    assert (await control(at, "resume", {"checkpoint_id": "re", "deadline_ts": NEVER})).status == 200
    for key in KEYS[:4]:
        answer = await at.ask("POST", f"/ng-rollout/{key}-a1/verify", body_of(key))
        told = answer.json
        assert (answer.status, told["mask_sample"], told["reward"]) == (200, "bad" in key, 0.0 if "bad" in key else 3.0)
    assert not at.judge.asks


async def restored(at: Site) -> Answer:
    answer = await control(at, "restore", ask_for_restore())
    check("restore", answer)
    assert not broken(at.server.registry)
    if answer.status != 200:
        assert strict_json(answer.body)["error"]["code"] == "invalid_checkpoint_state"
        check_untouched(at)
    return answer


@st.composite
def damages(draw: st.DrawFn) -> Files:
    """The saved files, one of them damaged or gone."""
    files = dict(saved())
    name = draw(st.sampled_from(sorted(files)))
    if draw(st.integers(0, 9)) == 0:
        del files[name]
    else:
        files[name] = draw(damaged(files[name]))
    return files


@fuzz
@given(files=damages())
def test_damaged_files_are_never_installed(files: Files) -> None:
    assume(files != saved())

    async def main() -> None:
        async with site(judge=ScriptedJudge(says), store=stored(files)) as at:
            answer = await restored(at)
            if answer.status == 200:
                same_meaning = {**files, MANIFEST: b""} == {**saved(), MANIFEST: b""}
                assert same_meaning, "only the manifest's own text may have changed, to the same effect"
                await check_replays(at)
            else:
                await check_next_cohort(at)

    run(main)


@st.composite
def nonsense(draw: st.DrawFn) -> Files:
    """Whole files under their right digest, whose records were changed, doubled, dropped or mixed."""
    records = saved_records()
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(0, len(records) - 1))
        match draw(st.sampled_from(["value", "value", "value", "remove", "double", "drop", "borrow"])):
            case "double":
                records.insert(draw(st.integers(0, len(records))), records[at])
            case "drop" if len(records) > 1:
                del records[at]
            case "borrow":
                other = draw(st.sampled_from(records))
                name = draw(st.sampled_from(["state", "session_id"]))
                records[at] = {**records[at], **({name: other[name]} if name in other else {})}
            case "remove":
                path = draw(st.sampled_from([path for path in places(records[at]) if path]))
                records[at] = replaced(records[at], path, ...)
            case _:
                path = draw(st.sampled_from(places(records[at])))
                records[at] = replaced(records[at], path, draw(values))
                if not isinstance(records[at], dict):
                    return sealed([to_text(record) for record in records])
    return sealed([to_text(record, ascii_only=draw(st.booleans())) for record in records])


@fuzz
@given(files=nonsense())
def test_whole_files_that_say_nonsense(files: Files) -> None:
    async def main() -> None:
        async with site(judge=ScriptedJudge(says), store=stored(files)) as at:
            if (await restored(at)).status == 200:
                await open_again(at)
                for key in KEYS[:4]:
                    answer = await at.ask("POST", f"/ng-rollout/{key}-a1/verify", body_of(key))
                    assert answer.status in {200, 409, 503}
                assert not broken(at.server.registry)
            await check_next_cohort(at)

    run(main)


@fuzz
@given(body=bodies(ask_for_restore()))
def test_any_restore_of_whole_files(body: bytes) -> None:
    async def main() -> None:
        async with site(judge=ScriptedJudge(says), store=stored(saved())) as at:
            answer = await at.ask("POST", PREFIX + "restore", body, headers=AUTHORIZED)
            check("restore", answer)
            assert not broken(at.server.registry)
            if answer.status != 200:
                check_untouched(at)
            await open_again(at)
            await check_next_cohort(at)

    run(main)


def test_the_files_as_they_were_are_installed() -> None:
    async def main() -> None:
        async with site(judge=ScriptedJudge(says), store=stored(sealed([to_text(r) for r in saved_records()]))) as at:
            assert (await restored(at)).status == 200
            await check_replays(at)

    run(main)
