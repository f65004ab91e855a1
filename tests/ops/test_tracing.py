"""The trace file: every event is a line, what a client put into it comes back, and a full disk stops nothing."""

import json
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from genrm_trio.core.trace import Event
from genrm_trio.ops.complaints import StartupError
from genrm_trio.ops.tracing import FLUSH_EVERY_S, traced


def test_events_are_lines_in_order(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with traced(path) as trace:
        assert trace is not None
        trace(Event("Submit", {"group": "g\ud800\n", "index": 2**70}, "waits"))
        trace(Event("Publish", {"cohort": "k"}, None))
    first, second = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert first == {"event": "Submit", "args": {"group": "g\ud800\n", "index": 2**70}, "reply": "waits"}
    assert second["event"] == "Publish"


def test_without_a_file_nothing_is_traced() -> None:
    with traced(None) as trace:
        assert trace is None


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="--trace"), traced(tmp_path / "no" / "trace.jsonl"):
        pass


async def test_a_running_trace_is_flushed(tmp_path: Path, nursery: trio.Nursery, mock_clock: MockClock) -> None:
    path = tmp_path / "trace.jsonl"
    with traced(path) as trace:
        assert trace is not None
        trace(Event("Expire", {}, None))
        nursery.start_soon(trace.keep_flushed)
        await trio.testing.wait_all_tasks_blocked()
        assert path.read_bytes() == b""
        mock_clock.jump(FLUSH_EVERY_S)
        await trio.testing.wait_all_tasks_blocked()
        assert path.read_bytes().count(b"\n") == 1


def test_a_full_disk_ends_the_trace_and_nothing_else() -> None:
    with capture_logs() as lines, traced(Path("/dev/full")) as trace:
        assert trace is not None
        for _ in range(3):
            trace(Event("Expire", {}, None))
            trace.flush()
        assert trace.lost == 3
    assert [line["event"] for line in lines] == ["trace_given_up"]
