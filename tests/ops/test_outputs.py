"""What the server says goes to files that may fail: nothing else fails for it, and what is lost is counted."""

import fcntl
import io
import json
import os
import pty
import resource
import select
import signal
import socket
import subprocess
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import IO

import pytest
import yaml
from tests.ops.test_service import get, hold_a_verify, serving
from tests.support.server_process import START_S, clean_environment

from genrm_trio.ops.outputs import PENDING_BYTES, Unfailing, unfailing, wait_for_no_reader

FULL = Path("/dev/full")
ROOM = 700
"""Bytes of the log that find room on the disk in these tests."""


def test_what_is_lost_is_counted_and_nothing_is_raised() -> None:
    with FULL.open("w") as full:
        out = unfailing(full)
        for _ in range(3):
            assert out.write("line\n") == 5
            out.flush()
        assert isinstance(out, Unfailing)
        assert out.lost == 3


def test_a_reader_that_went_away() -> None:
    reader, writer = os.pipe()
    out = Unfailing(writer)
    out.write("one\n")
    assert os.read(reader, 10) == b"one\n"
    os.close(reader)
    out.write("two\n")
    os.close(writer)
    out.write("three\n")
    assert out.lost == 2


def test_a_line_behind_a_torn_one_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk takes a part of one line, nothing of the next, and then has room again."""
    room = [4, 0, 0]
    write = os.write

    def short(number: int, data: memoryview) -> int:
        if not room:
            return write(number, data)
        taken = room.pop(0)
        if not taken:
            raise OSError(28, "No space left on device")
        return write(number, data[:taken])

    monkeypatch.setattr(os, "write", short)
    with (tmp_path / "log").open("w") as file:
        out = Unfailing(file.fileno())
        for line in ("first\n", "second\n", "third\n", "fourth\n"):
            out.write(line)
        assert out.lost == 2
    assert (tmp_path / "log").read_text() == "firs\nthird\nfourth\n"


def test_other_streams_are_left_as_they_are() -> None:
    text = io.StringIO()
    assert unfailing(text) is text
    closed = unfailing(None)
    closed.write("no file at all\n")
    assert isinstance(closed, Unfailing)
    assert closed.lost == 1
    assert unfailing(closed) is closed


@contextmanager
def small_pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    with both(reader, writer):
        yield reader, writer


@contextmanager
def both(reader: int, writer: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(reader)
        os.close(writer)


def read_all(reader: int, out: Unfailing) -> bytes:
    """Read until nothing is kept any more."""
    passed, found = out.passed(), b""
    while select.select([reader], [], [], 0.01)[0] or not passed.is_set():
        if select.select([reader], [], [], 0)[0]:
            found += os.read(reader, 65536)
    return found.replace(b"\r\n", b"\n")  # from a terminal


def at_once(work: Callable[[], object]) -> None:
    """Do what must not wait; what waits all the same is left alone, and the test fails."""
    thread = Thread(target=work, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive(), "it waits for a reader"


def a_pipe() -> tuple[int, int]:
    return os.pipe()


def a_terminal() -> tuple[int, int]:
    """One that makes two bytes of a newline, so that it can be ready and have no room for the next byte."""
    return pty.openpty()


def a_terminal_s_other_side() -> tuple[int, int]:
    master, slave = pty.openpty()
    tty.setraw(slave)
    return slave, master


def a_stopped_terminal() -> tuple[int, int]:
    """Somebody pressed Ctrl-S, which holds until the reader comes."""
    master, slave = a_terminal()
    termios.tcflow(slave, termios.TCOOFF)
    return master, slave


def a_socket() -> tuple[int, int]:
    one, other = socket.socketpair()
    return one.detach(), other.detach()


def a_fifo() -> tuple[int, int]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "fifo"
        os.mkfifo(path)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        return reader, os.open(path, os.O_WRONLY)


Opener = Callable[[], tuple[int, int]]
OUTPUTS: list[Opener] = [a_pipe, a_terminal, a_terminal_s_other_side, a_stopped_terminal, a_socket, a_fifo]


@pytest.mark.parametrize("opened", OUTPUTS)
def test_a_reader_that_does_not_read_is_not_waited_for(opened: Opener) -> None:
    reader, writer = opened()
    with both(reader, writer):
        out = Unfailing(writer, waits=False)
        lines = [f"{at} ".ljust(1000 + at, ".") + "\n" for at in range(500)]
        at_once(lambda: [out.write(line) for line in lines])
        if opened is a_stopped_terminal:
            termios.tcflow(writer, termios.TCOON)
        assert read_all(reader, out) == "".join(lines).encode()
        assert out.lost == 0
        out.write("last\n")
        assert read_all(reader, out) == b"last\n"


@pytest.mark.parametrize("waits", [True, False])
def test_no_room_on_a_file_that_somebody_made_non_blocking_is_no_loss(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, write = Event(), os.write

    def noted(number: int, data: memoryview) -> int:
        try:
            return write(number, data)
        except BlockingIOError:
            refused.set()
            raise

    monkeypatch.setattr(os, "write", noted)
    with small_pipe() as (reader, writer):
        os.set_blocking(writer, False)
        out = Unfailing(writer, waits=waits)
        thread = Thread(target=out.write, args=("." * 19_999 + "\n",))
        thread.start()
        assert refused.wait(10)
        found = b""
        while len(found) < 20_000:
            found += os.read(reader, 65536)
        thread.join()
        assert found.endswith(b".\n")
        assert out.lost == 0


def test_what_is_kept_for_a_reader_is_bounded() -> None:
    with small_pipe() as (reader, writer):
        out = Unfailing(writer, waits=False)
        line = "." * 9999 + "\n"
        for _ in range(300):
            out.write(line)
        kept = read_all(reader, out)
        assert PENDING_BYTES - 10_000 <= len(kept) <= PENDING_BYTES + 20_000
        assert kept.count(b"\n") + out.lost == 300
        assert set(kept.splitlines(keepends=True)) == {line.encode()}


def test_at_the_end_a_slow_reader_is_waited_for_and_one_that_does_not_read_once() -> None:
    with small_pipe() as (reader, writer):
        out, other = Unfailing(writer, waits=False), Unfailing(writer, waits=False)
        out.write("." * 9999 + "\n")
        thread = Thread(target=out.drain, args=(60.0,))
        thread.start()
        found = b""
        while len(found) < 10_000:
            found += os.read(reader, 1000)
        thread.join()
        assert found.endswith(b".\n")
        other.write("." * 9999 + "\n")
        other.drain(0.01)
        other.drain(60.0)
        assert len(read_all(reader, other)) == 10_000


def test_behind_a_line_that_was_cut_while_it_was_kept_the_next_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    with small_pipe() as (reader, writer):
        out = Unfailing(writer, waits=False)
        pieces, write = iter([4096]), os.write

        def broken(number: int, data: memoryview) -> int:
            for size in pieces:
                return write(number, data[:size])
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(os, "write", broken)
        out.write("." * 9999 + "\n")
        out.write("nothing of it\n")
        assert read_all(reader, out) == b"." * 4096
        assert out.lost == 2
        monkeypatch.setattr(os, "write", write)
        out.write("whole\n")
        assert read_all(reader, out) == b"\nwhole\n"


def test_both_outputs_in_one_pipe_keep_their_lines_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    with small_pipe() as (reader, writer), open(writer, "w", closefd=False) as one, open(os.dup(writer), "w") as other:
        monkeypatch.setattr(sys, "stdout", one)
        monkeypatch.setattr(sys, "stderr", other)
        wait_for_no_reader()
        assert isinstance(sys.stdout, Unfailing)
        log, said = "l" * 9999 + "\n", "said\n"
        sys.stderr.write(log)
        sys.stdout.write(said)
        sys.stderr.write(log)
        assert read_all(reader, sys.stdout).decode() == log + said + log


class Verdict(BaseHTTPRequestHandler):
    """A judge that always says the same."""

    SAID = json.dumps({"score_1": 4, "score_2": 2, "ranking": 2})
    REPLY = {"output": [{"type": "message", "content": [{"type": "output_text", "text": SAID}]}]}

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = json.dumps(self.REPLY).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        """Say nothing."""


@pytest.fixture(name="settings")
def settings_of_a_server_with_a_judge() -> Iterator[dict[str, object]]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Verdict) as judge:
        thread = Thread(target=judge.serve_forever)
        thread.start()
        yield {"num_rollouts_per_prompt": 2, "judge": {"base_url": f"http://127.0.0.1:{judge.server_port}"}}
        judge.shutdown()
        thread.join()


def second_of_two(url: str, first: socket.socket) -> list[bytes]:
    """Complete the cohort of a held verify; returns how the answers of both begin."""
    with hold_a_verify(url, 1) as second:
        return [connection.recv(12) for connection in (first, second)]


def wait_until_lines_are_lost(url: str) -> None:
    while "\ngenrm_trio_log_lines_lost_total 0.0" in get(f"{url}/metrics"):
        pass


def test_a_log_whose_reader_goes_away_ends_no_cohort(tmp_path: Path, settings: dict[str, object]) -> None:
    with serving(tmp_path, **settings) as (process, url):
        assert process.stderr is not None
        with hold_a_verify(url) as first:
            process.stderr.close()
            assert second_of_two(url, first) == [b"HTTP/1.1 200"] * 2
        wait_until_lines_are_lost(url)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def unread(pipe: IO[str]) -> int:
    """How many bytes a pipe holds."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_a_log_whose_reader_does_not_read_holds_up_no_cohort(tmp_path: Path, settings: dict[str, object]) -> None:
    with serving(tmp_path, **settings, debug_logging=True) as (process, url):
        assert process.stderr is not None
        fcntl.fcntl(process.stderr, fcntl.F_SETPIPE_SZ, 8192)
        while unread(process.stderr) < 4096:
            hold_a_verify(url).close()
            get(f"{url}/health")
        for _ in range(50):  # each is a line of the log, and together they are longer than what has room
            hold_a_verify(url).close()
            get(f"{url}/health")
        with hold_a_verify(url) as first:
            assert second_of_two(url, first) == [b"HTTP/1.1 200"] * 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def small_disk() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, ROOM))


@contextmanager
def serving_into(
    folder: Path,
    settings: dict[str, object],
    *options: str,
    stdout: IO[bytes] | int,
    stderr: IO[bytes] | int,
    limit: Callable[[], None] | None = None,
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run `serve` with these outputs."""
    config, ready = folder / "config.yaml", folder / "ready"
    config.write_text(yaml.safe_dump(settings))
    command = [sys.executable, "-m", "genrm_trio", "serve", "--config", str(config), "--port", "0"]
    command += ["--ready-file", str(ready), *options]
    outputs = {"stdout": stdout, "stderr": stderr}
    with subprocess.Popen(command, env=clean_environment(), preexec_fn=limit, **outputs) as process:  # type: ignore[call-overload]  # noqa: PLW1509
        try:
            end = time.monotonic() + START_S
            while not ready.exists():
                with suppress(subprocess.TimeoutExpired):
                    raise AssertionError(f"it ended with {process.wait(0.05)}")
                assert time.monotonic() < end, "it does not start"
            yield process, ready.read_text()
        finally:
            process.kill()


@contextmanager
def on_a_full_disk(
    folder: Path,
    settings: dict[str, object],
    *options: str,
    output: Path = FULL,
    limit: Callable[[], None] | None = None,
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run `serve` with its standard output and its log in a file that is full, or soon will be."""
    with (
        output.open("wb") as file,
        serving_into(folder, settings, *options, stdout=file, stderr=file, limit=limit) as served,
    ):
        yield served


@pytest.mark.parametrize("options", [(), ("--trace", "/dev/full"), ("--record", "/dev/full")])
def test_a_disk_that_is_full_ends_no_server(
    tmp_path: Path, settings: dict[str, object], options: tuple[str, ...]
) -> None:
    with on_a_full_disk(tmp_path, settings, *options) as (process, url):
        with hold_a_verify(url) as first:
            assert second_of_two(url, first) == [b"HTTP/1.1 200"] * 2
        wait_until_lines_are_lost(url)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_a_disk_that_fills_up_ends_no_server(tmp_path: Path, settings: dict[str, object]) -> None:
    """Log, trace and recording meet the limit in the middle of a line."""
    options = ("--trace", str(tmp_path / "trace"), "--record", str(tmp_path / "record"))
    with on_a_full_disk(tmp_path, settings, *options, output=tmp_path / "log", limit=small_disk) as (process, url):
        with hold_a_verify(url) as first:
            assert second_of_two(url, first) == [b"HTTP/1.1 200"] * 2
        wait_until_lines_are_lost(url)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    assert (tmp_path / "log").stat().st_size == ROOM


def fill(output: int) -> None:
    """Fill it with empty lines, as a server before this one may have done, until it has no room."""
    os.set_blocking(output, False)
    with suppress(BlockingIOError):
        while True:
            os.write(output, b"\n")
    os.set_blocking(output, True)


def lines_until(reader: int, word: bytes) -> list[bytes]:
    """Read whole lines until one has this word; returns those that are not empty."""
    found = b""
    while word not in found[: found.rfind(b"\n") + 1]:
        found += os.read(reader, 65536)
    return [line for line in found.splitlines() if line]


@pytest.mark.parametrize("opened", [a_pipe, a_terminal])
@pytest.mark.parametrize("full", ["stdout", "stderr", "both"])
def test_an_output_that_has_no_room_at_the_start_stops_nothing(
    tmp_path: Path, settings: dict[str, object], opened: Opener, full: str
) -> None:
    reader, writer = opened()
    other_reader, other = os.pipe()
    fill(writer)
    stdout, stderr = {"stdout": (writer, other), "stderr": (other, writer), "both": (writer, writer)}[full]
    with (
        both(reader, writer),
        both(other_reader, other),
        serving_into(tmp_path, settings, stdout=stdout, stderr=stderr) as (process, url),
    ):
        with hold_a_verify(url) as first:
            assert second_of_two(url, first) == [b"HTTP/1.1 200"] * 2
        said = f"genrm-trio serves at {url}".encode()
        if full == "stdout":
            assert json.loads(lines_until(other_reader, b"announcement_waits")[-1])["level"] == "warning"
            assert lines_until(reader, said) == [said]
        elif full == "stderr":
            assert lines_until(other_reader, said) == [said]
            assert [json.loads(line) for line in lines_until(reader, b"cohort_ended")]
        else:
            lines = lines_until(reader, b"cohort_ended")
            assert lines.count(said) == 1
            assert all(json.loads(line) for line in lines if line != said)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_a_start_that_has_something_to_say_waits_for_no_reader_either(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    """It warns of a cohort size of 1 before it serves."""
    reader, writer = os.pipe()
    fill(writer)
    alone = {"judge": settings["judge"]}
    with (
        both(reader, writer),
        serving_into(tmp_path, alone, stdout=subprocess.DEVNULL, stderr=writer) as (process, url),
    ):
        get(f"{url}/health")
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0, "a log that nobody reads is no failure"


def test_a_log_on_a_terminal_that_is_not_read_holds_up_no_cohort(tmp_path: Path, settings: dict[str, object]) -> None:
    reader, writer = a_terminal()
    loud = {**settings, "debug_logging": True}
    with (
        both(reader, writer),
        serving_into(tmp_path, loud, stdout=subprocess.DEVNULL, stderr=writer) as (process, url),
    ):
        for _ in range(300):  # each is a line of the log, and together they are longer than what has room
            hold_a_verify(url).close()
            get(f"{url}/health")
        with hold_a_verify(url) as first:
            assert second_of_two(url, first) == [b"HTTP/1.1 200"] * 2
        assert all(json.loads(line) for line in lines_until(reader, b"cohort_ended"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_an_announcement_that_is_lost_is_logged_and_counted(tmp_path: Path, settings: dict[str, object]) -> None:
    reader, writer = os.pipe()
    with (
        both(reader, writer),
        FULL.open("wb") as full,
        serving_into(tmp_path, settings, stdout=full, stderr=writer) as (_, url),
    ):
        wait_until_lines_are_lost(url)
        assert json.loads(lines_until(reader, b"announcement_lost")[-1])["level"] == "warning"


def test_a_command_that_cannot_say_why_still_exits_as_it_should(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "genrm_trio", "serve", "--config", str(tmp_path / "none.yaml")]
    with FULL.open("w") as full:
        assert subprocess.run(command, stderr=full, env=clean_environment(), check=False).returncode == 2
