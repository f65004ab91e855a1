"""What the checkpoint tests share: records, Hypothesis strategies for them, and a write and a read in one line."""

import json
from collections.abc import Iterable

from hypothesis import strategies as st

from genrm_trio.checkpoints.folders import Folder
from genrm_trio.checkpoints.manifest import Manifest
from genrm_trio.checkpoints.records import Record
from genrm_trio.checkpoints.steps import Checkpoint, finish, read_steps, write_steps
from genrm_trio.core.identity import EpisodeId
from genrm_trio.core.outcome import JSON

INSTANCE = "genrm_compare"


def record(n: int, state: JSON = None, attempt: int = 0) -> Record:
    """Record number n, with a state that tells which one it is."""
    return Record(EpisodeId(f"r{n}", attempt), f"session-{n}", {"n": n} if state is None else state)


def records(count: int) -> list[Record]:
    return [record(n) for n in range(count)]


def write(folder: Folder, content: Iterable[Record], checkpoint_id: str = "ck-1") -> Manifest:
    return finish(write_steps(folder, instance=INSTANCE, checkpoint_id=checkpoint_id, records=content))


def read(folder: Folder, scope: frozenset[EpisodeId] | None = None) -> Checkpoint:
    return finish(read_steps(folder, instance=INSTANCE, scope=scope))


def any_text(max_size: int, min_size: int = 0) -> st.SearchStrategy[str]:
    """Any text that JSON can carry: lone surrogates too, but no pair of them written as two characters."""
    characters = st.characters(codec=None, exclude_categories=())
    texts = st.text(characters, min_size=min_size, max_size=max_size)
    return texts.filter(lambda text: json.loads(json.dumps(text)) == text)


any_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=2**64, max_value=2**200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | any_text(20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text(8), inner, max_size=4),
    max_leaves=12,
)

rollout_ids = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,12}", fullmatch=True).filter(lambda text: "-a" not in text)
episodes = st.builds(EpisodeId, rollout_ids, st.integers(0, 2**40))
session_ids = any_text(24, min_size=1)
any_record = st.builds(Record, episodes, session_ids, any_json)
any_records = st.lists(any_record, max_size=8, unique_by=lambda r: r.session_id)
