"""Long replies are written in pieces, none of which keeps other threads waiting for long."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.tables import aggregate_metrics

from genrm_trio.core.outcome import JSON
from genrm_trio.web import routes
from genrm_trio.web.errors import to_json
from genrm_trio.web.speaking import SLICE, gathered, in_pieces

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(values, st.integers(1, 40))
def test_the_pieces_are_the_whole(value: Any, size: int) -> None:
    assert json.loads(b"".join(in_pieces(value))) == value
    whole = gathered(in_pieces(value), size)
    assert b"".join(whole) == b"".join(in_pieces(value))
    assert all(len(piece) >= size for piece in whole[:-1])


ROWS: dict[str, list[dict[str, Any]]] = {
    "a column of its own for each row": [{f"c{n}": n, "_ng_task_index": n} for n in range(2 * SLICE + 1)],
    "one group": [{"c": n, "_ng_task_index": 0, "_ng_rollout_index": n} for n in range(2 * SLICE + 1)],
    "one row": [{f"c{n}": n for n in range(2 * SLICE + 1)} | {"_ng_task_index": 0, "_ng_rollout_index": 0}],
    "nothing": [],
}


@pytest.mark.parametrize("name", ROWS)
def test_no_part_of_the_metrics_is_long(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoder holds every other thread up for as long as a part takes."""
    longest = 0

    def counting(value: JSON) -> bytes:
        nonlocal longest
        longest = max(longest, len(value) if isinstance(value, dict | list) else 1)
        assert not isinstance(value, list)
        assert not isinstance(value, dict) or not any(isinstance(entry, dict | list) for entry in value.values())
        return to_json(value)

    monkeypatch.setattr("genrm_trio.web.speaking.to_json", counting)
    body = to_json({"verify_responses": ROWS[name]})
    pieces = routes._aggregated(body, 1_000_000)
    assert json.loads(b"".join(pieces)) == aggregate_metrics(ROWS[name])
    assert longest <= SLICE
    assert all(len(piece) < routes.PIECE_BYTES + 100 * SLICE for piece in pieces)
