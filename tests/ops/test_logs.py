"""The log's lines: JSON, bounded, valid Unicode, without secrets, and not repeated without end."""

import errno
import io
import json
import logging
import sys
import warnings

import pytest
import structlog
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from genrm_trio.ops.logs import Renderer, Repeats, configure


def lines_of(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_json_object_on_one_line() -> None:
    stream = io.StringIO()
    configure(stream=stream)
    structlog.get_logger().info("cohort_ended", cohort="group_id::g\n::1", seconds=1.5, members=(0, 1))
    (line,) = lines_of(stream)
    assert line["event"] == "cohort_ended"
    assert line["cohort"] == "group_id::g\n::1"
    assert line["members"] == [0, 1]
    assert line["level"] == "info"
    assert "timestamp" in line


def test_debug_lines_are_written_only_when_asked_for() -> None:
    stream = io.StringIO()
    configure(stream=stream)
    structlog.get_logger().debug("quiet")
    assert lines_of(stream) == []
    configure(stream=stream, debug=True)
    structlog.get_logger().debug("loud")
    assert [line["event"] for line in lines_of(stream)] == ["loud"]


def test_other_libraries_write_the_same_lines() -> None:
    stream = io.StringIO()
    configure(stream=stream, secrets=["sesame"])
    logging.getLogger("hypercorn").warning("open %s", "sesame")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        configure(stream=stream, secrets=["sesame"])
        warnings.warn("look out", stacklevel=1)
    first, second = lines_of(stream)
    assert first["event"] == "open ***"
    assert first["level"] == "warning"
    assert "look out" in str(second["event"])


class NeverAccepts(trio.abc.Listener[trio.SocketStream]):
    """Fails as a listener does when no descriptor is left; after `tries` it ends what serves it."""

    def __init__(self, tries: int, scope: trio.CancelScope) -> None:
        self.left = tries
        self.scope = scope

    async def accept(self) -> trio.SocketStream:
        self.left -= 1
        if not self.left:
            self.scope.cancel()
        await trio.lowlevel.checkpoint()
        raise OSError(errno.EMFILE, "too many")

    async def aclose(self) -> None:
        """Nothing to close."""


async def test_connections_that_cannot_be_accepted_are_one_line_however_often(autojump_clock: MockClock) -> None:
    stream = io.StringIO()
    configure(stream=stream)
    configure(stream=stream)
    with trio.CancelScope() as scope:
        await trio.serve_listeners(trio.aclose_forcefully, [NeverAccepts(30, scope)])
    (line,) = lines_of(stream)
    assert line["event"] == "accept_failed"
    assert "exception" not in line


def test_an_exception_is_a_field_without_secrets() -> None:
    stream = io.StringIO()
    configure(stream=stream, secrets=["sesame"])
    try:
        int("open sesame")
    except ValueError:
        structlog.get_logger().exception("cohort_crashed")
    (line,) = lines_of(stream)
    assert "'open ***'" in str(line["exception"])


@pytest.mark.parametrize("secret", ["sesame", 'se"same', "sésame", "ses\\ame", "s"])
def test_a_secret_is_masked_wherever_it_stands(secret: str) -> None:
    written = Renderer([secret], 4096)(
        None,
        "info",
        {"event": secret, "k": {"deep": [f"x{secret}y"]}, "b": secret.encode(), "quoted": json.dumps(secret)},
    )
    values = json.dumps(list(json.loads(written).values()), ensure_ascii=False).replace("***", "")
    assert secret not in values


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.characters(codec=None),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=40), inner, max_size=5),
    max_leaves=30,
)


@given(event=st.dictionaries(st.text(max_size=400), JSON_LIKE, max_size=8), limit=st.integers(512, 2048))
def test_every_line_is_bounded_valid_json_in_plain_ascii(event: dict[str, object], limit: int) -> None:
    line = Renderer(["sesame"], limit)(None, "info", {"event": "e", "level": "info", **event})
    assert len(line) <= limit
    assert "\n" not in line
    assert line.isascii()
    decoded = json.loads(line, parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))
    json.dumps(decoded, ensure_ascii=False).encode("utf-8")  # no lone surrogate is left


def test_a_long_line_keeps_its_short_fields() -> None:
    line = Renderer([], 600)(None, "info", {"event": "judge_fault", "text": "é" * 10_000, "pair": [0, 1]})
    decoded = json.loads(line)
    assert decoded["event"] == "judge_fault"
    assert decoded["pair"] == [0, 1]
    assert decoded["cut"] == ["text"]
    assert decoded["text"].startswith("é" * 50)


def test_a_line_of_many_long_fields_is_still_a_line() -> None:
    event = {"event": "e", **{f"field {n}": "x" * 300 for n in range(100)}}
    decoded = json.loads(Renderer([], 512)(None, "info", event))
    assert decoded["event"] in {"e", "log_line_too_long"}


def test_an_object_that_cannot_be_shown_is_named() -> None:
    class Shy:
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert json.loads(Renderer([], 512)(None, "info", {"event": Shy()}))["event"] == "<Shy that raised RuntimeError>"


def test_deep_nesting_is_cut() -> None:
    deep: list[object] = []
    for _ in range(sys.getrecursionlimit() * 2):
        deep = [deep]
    assert "..." in Renderer([], 512)(None, "info", {"event": "e", "deep": deep})


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def passes(repeats: Repeats, **event: object) -> dict[str, object] | None:
    try:
        return dict(repeats(None, "warning", {"event": "judge_fault", **event}))
    except structlog.DropEvent:
        return None


def test_a_repeated_event_is_written_first_and_then_once_in_a_while() -> None:
    clock = Clock()
    repeats = Repeats(every_s=60, clock=clock)
    assert passes(repeats, once="timeout") == {"event": "judge_fault"}
    assert [passes(repeats, once="timeout") for _ in range(7)] == [None] * 7
    assert passes(repeats, once="refused") is not None, "another value is another event"
    assert passes(repeats) is not None, "an event without the field is always written"
    clock.now = 60.0
    assert passes(repeats, once="timeout") == {"event": "judge_fault", "left_out": 7}
    assert passes(repeats, once="timeout") is None


def test_only_so_many_values_are_remembered() -> None:
    repeats = Repeats(capacity=2, clock=Clock())
    for value in ("a", "b", "a", "c"):
        passes(repeats, once=value)
    assert passes(repeats, once="a") is None
    assert passes(repeats, once="b") is not None
