"""`serve` as a real process: it comes up, says so, answers, and ends as it should, whatever ends it."""

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from genrm_trio.ops import service
from genrm_trio.ops.complaints import StartupError
from genrm_trio.ops.sources import load
from genrm_trio.runtime.server import Server

JUDGE = {"base_url": "http://127.0.0.1:1"}
MOST = 1_000_000_000
"""The largest bound that a setting may have."""
FEW_FILES = ["sh", "-c", 'ulimit -S -n 256 && ulimit -H -n "$1" && shift && exec "$@"', "sh"]
"""A command in front of another that lowers its limits of open files, the hard one to the first argument."""
RECORDED = {"backend": "recorded", "recording": __file__}
CHECKPOINTS = {"enabled": True, "control_auth_token": "controllers"}
NOWHERE = Path("/nowhere/file")
ANSWER = {
    "responses_create_params": {"input": "p"},
    "response": {
        "id": "r",
        "created_at": 0,
        "model": "m",
        "object": "response",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    },
}


def started(command: list[str]) -> subprocess.Popen[str]:
    """Start a command with its output in pipes, and without settings of ours around it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GENRM_TRIO_")}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextmanager
def serving(tmp_path: Path, *options: str, **settings: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `serve` with these settings on a free port; yields the process and its URL."""
    with serving_behind((), tmp_path, *options, **settings) as running:
        yield running


@contextmanager
def serving_behind(
    before: Sequence[str], tmp_path: Path, /, *options: str, **settings: object
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The same behind a command that ends in running its further arguments."""
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"judge": JUDGE, **settings}))
    command = [*before, sys.executable, "-m", "genrm_trio", "serve", "--config", str(config), "--port", "0", *options]
    with started(command) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            yield process, line.split()[-1] if line else ""
        finally:
            process.kill()


def ended(process: subprocess.Popen[str], within_s: float = 10) -> tuple[int, str]:
    """Return the exit code and the log of a process that ends by itself."""
    _, log = process.communicate(timeout=within_s)
    return process.returncode, log


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as reply:
        body: bytes = reply.read()
        return body.decode()


def hold_a_verify(url: str, index: int = 0) -> socket.socket:
    """Send one of two members and leave its request waiting."""
    host, port = re.findall(r"//(.*):(\d+)", url)[0]
    body = json.dumps({**ANSWER, "_ng_group_id": "g", "_ng_group_attempt": 0, "_ng_rollout_index": index}).encode()
    connection = socket.create_connection((host, int(port)), timeout=10)
    head = f"POST /verify HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def wait_for(url: str, line: str) -> str:
    """Ask for the metrics until they have this line; returns them."""
    while line not in (metrics := get(f"{url}/metrics")):
        pass
    return metrics


def wait_until_held(url: str) -> None:
    wait_for(url, "genrm_trio_waiting_verifies 1.0")


def test_it_says_where_it_serves_and_ends_with_0_on_sigterm(tmp_path: Path) -> None:
    ready = tmp_path / "url"
    ready.write_text("stale")
    with serving(tmp_path, "--ready-file", str(ready), num_rollouts_per_prompt=2) as (process, url):
        assert json.loads(get(f"{url}/health")) == {"status": "ok"}
        process.send_signal(signal.SIGTERM)
        code, log = ended(process)
    assert code == 0, log
    assert ready.read_text() == url
    assert [json.loads(line)["event"] for line in log.splitlines()][-1] == "stopped"


def test_a_server_that_waits_for_a_restore_says_so_and_counts_who_waits(tmp_path: Path) -> None:
    settings = {"num_rollouts_per_prompt": 2, "session_secret": "cookies", "checkpoint": CHECKPOINTS}
    with serving(tmp_path, "--await-restore", **settings) as (process, url), hold_a_verify(url):
        metrics = wait_for(url, "genrm_trio_waiting_requests 1.0")
        process.send_signal(signal.SIGTERM)
        code, log = ended(process)
    assert code == 0, log
    assert "genrm_trio_awaiting_restore 1.0" in metrics
    assert "genrm_trio_admission_open 1.0" in metrics, "no checkpoint is open"
    assert "awaiting_restore" in [json.loads(line)["event"] for line in log.splitlines()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_held_requests_get_their_503_when_it_ends(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path, num_rollouts_per_prompt=2) as (process, url):
        with hold_a_verify(url) as connection:
            wait_until_held(url)
            process.send_signal(number)
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        code, log = ended(process)
    assert code == 0, log
    assert answer.startswith(b"HTTP/1.1 503")
    assert b"shutting down" in answer


def test_a_limit_of_open_files_that_can_be_raised_is_raised_without_a_word(tmp_path: Path) -> None:
    judge = {**JUDGE, "max_concurrency": 4}
    bounds = {"num_rollouts_per_prompt": 2, "max_connections": 300, "max_held_members": 4, "judge": judge}
    with serving_behind([*FEW_FILES, "2000"], tmp_path, **bounds) as (process, _):
        in_force = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        process.send_signal(signal.SIGTERM)
        code, log = ended(process)
    assert code == 0, log
    assert in_force == (300 + 4 + 1024, 2000)
    assert "descriptor_limit_low" not in log


def first_line(process: subprocess.Popen[str], words: str) -> dict[str, Any]:
    """The next line of the log that has these words."""
    assert process.stderr is not None
    line: dict[str, Any] = json.loads(next(line for line in process.stderr if words in line))
    return line


def test_a_limit_of_open_files_that_stays_too_low_lowers_the_bounds(tmp_path: Path) -> None:
    """At the bound in force the answer can be read, probes are answered, and the limit is not met."""
    calls = 88
    # More than any kernel allows: whoever may raise the hard limit, such as root, would else get all that is needed.
    bounds = {"num_rollouts_per_prompt": 2, "max_connections": MOST, "judge": {**JUDGE, "max_concurrency": calls}}
    with serving_behind([*FEW_FILES, "512"], tmp_path, **bounds) as (process, url), ExitStack() as open_now:
        low = first_line(process, "descriptor_limit_low")
        assert low["level"] == "warning"
        assert f"limit of open files is 512, the configured bounds need {MOST + calls + 1024}" in low["text"]
        most, refusals = low["max_connections"], low["refusal_connections"]
        assert (most, refusals, low["max_held_members"]) == (259, 37, 3)
        for _ in range(most):
            open_now.enter_context(hold_a_verify(url))  # the same member each time, which takes its place once
        wait_for(url, f"genrm_trio_waiting_verifies {most}.0")
        with hold_a_verify(url, 1) as refused:
            answer = b"".join(iter(lambda: refused.recv(65536), b"")).lower()
        assert answer.startswith(b"http/1.1 503")
        assert b"retry-after: 1" in answer
        assert f"all {most} connections are in use".encode() in answer
        assert json.loads(get(f"{url}/health")) == {"status": "ok"}
        host, port = re.findall(r"//(.*):(\d+)", url)[0]
        idle = [socket.create_connection((host, int(port)), timeout=10) for _ in range(refusals + 100)]
        for connection in idle:
            open_now.enter_context(connection)
        with suppress(ConnectionError):  # answered or not: it was accepted, and so were those before it
            idle[-1].sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            idle[-1].recv(1)
        process.send_signal(signal.SIGTERM)
        code, log = ended(process)
    assert code == 0, log
    assert "accept" not in log


def test_a_limit_of_open_files_that_leaves_no_cohort_ends_the_start(tmp_path: Path) -> None:
    with serving_behind([*FEW_FILES, "256"], tmp_path, num_rollouts_per_prompt=2, max_connections=MOST) as (process, _):
        code, log = ended(process)
    assert code == 2, log
    assert log.startswith("genrm-trio: the limit of open files is 256, but with judge.max_concurrency 256 and ")
    assert log.count("\n") == 1


def test_a_connection_that_cannot_be_accepted_is_one_short_line(tmp_path: Path) -> None:
    """The limit falls below what is open, as when other software of the process opens files."""
    with serving(tmp_path, num_rollouts_per_prompt=2) as (process, url):
        host, port = re.findall(r"//(.*):(\d+)", url)[0]
        highest = max(int(number) for number in os.listdir(f"/proc/{process.pid}/fd"))
        _, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (highest + 2, hard))
        with ExitStack() as open_now:
            for _ in range(highest + 2):
                open_now.enter_context(socket.create_connection((host, int(port))))
            line = first_line(process, "accept")
        assert json.loads(get(f"{url}/health")) == {"status": "ok"}
        process.send_signal(signal.SIGTERM)
        code, log = ended(process)
    assert code == 0, log
    assert line == {
        "event": "accept_failed",
        "level": "error",
        "text": "Too many open files: connections wait until one can be accepted",
        "timestamp": line["timestamp"],
    }
    assert "accept" not in log


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, shutdown_grace_s=60, num_rollouts_per_prompt=2) as (process, url):
        host, port = re.findall(r"//(.*):(\d+)", url)[0]
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b"POST /verify HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n")  # and no body
            wait_for(url, "genrm_trio_connections 2.0")
            process.send_signal(signal.SIGTERM)
            assert process.stderr is not None
            while "stopping" not in process.stderr.readline():
                pass
            process.send_signal(signal.SIGTERM)
            code, _ = ended(process, within_s=5)
    assert code == -signal.SIGTERM


def test_metrics_tell_what_happens(tmp_path: Path) -> None:
    with serving(tmp_path, num_rollouts_per_prompt=2) as (_, url), hold_a_verify(url):
        wait_until_held(url)
        metrics = wait_for(url, 'genrm_trio_requests_total{route="/metrics",status="200"}')
    assert 'genrm_trio_cohorts{phase="collecting"} 1.0' in metrics
    assert "genrm_trio_held_members 2.0" in metrics
    assert "genrm_trio_cohorts_started_total 1.0" in metrics
    assert 'genrm_trio_judge_endpoint_resting{endpoint="127.0.0.1:1"} 0.0' in metrics


def test_checkpoints_bring_the_control_plane(tmp_path: Path) -> None:
    checkpoint = {"enabled": True, "control_auth_token": "t", "root": str(tmp_path)}
    with serving(tmp_path, session_secret="s", checkpoint=checkpoint) as (_, url):
        request = urllib.request.Request(
            f"{url}/ng-control/v1/checkpoint/status", headers={"authorization": "Bearer t"}
        )
        with urllib.request.urlopen(request, timeout=10) as reply:
            status = json.load(reply)
        metrics = get(f"{url}/metrics")
    assert (status["instance"], status["phase"]) == ("genrm_compare", "idle")
    assert 'genrm_trio_checkpoint_phase{phase="idle"} 1.0' in metrics


def test_without_checkpoints_there_is_no_control_plane(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, url):
        with pytest.raises(urllib.error.HTTPError) as caught:
            get(f"{url}/ng-control/v1/checkpoint/status")
        caught.value.close()
    assert caught.value.code == 404


def test_a_trace_has_every_action(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    with serving(tmp_path, "--trace", str(trace), num_rollouts_per_prompt=2) as (process, url), hold_a_verify(url):
        wait_until_held(url)
        process.send_signal(signal.SIGTERM)
        code, log = ended(process)
    assert code == 0, log
    events = [json.loads(line)["event"] for line in trace.read_text().splitlines()]
    assert events[:2] == ["Init", "Submit"], "a trace begins with what it was recorded under"
    assert events[-1] == "ShutDown"


@pytest.mark.parametrize(
    ("options", "settings", "fragment"),
    [
        (service.Options(await_restore=True), {}, "checkpoint.enabled is false"),
        (service.Options(record=Path("x")), {"judge": RECORDED}, "judge.backend is recorded"),
        (service.Options(trace=NOWHERE), {}, "--trace /nowhere/file: No such file"),
        (service.Options(record=NOWHERE), {}, "--record /nowhere/file: No such file"),
        (service.Options(ready_file=NOWHERE), {}, "--ready-file /nowhere/file: No such file"),
        (service.Options(), {"host": "203.0.113.1"}, "cannot listen on 203.0.113.1"),
        (service.Options(), {"judge": RECORDED}, "judge.recording"),
    ],
)
def test_what_cannot_start_says_why(
    tmp_path: Path, options: service.Options, settings: dict[str, object], fragment: str
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"judge": JUDGE, "port": 0, **settings}))
    with pytest.raises(StartupError, match=re.escape(fragment)):
        service.serve(load(config), options)


def test_a_port_that_is_taken_says_so(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with serving(tmp_path, "--port", port) as (process, _):
            code, log = ended(process)
    assert code == 2
    assert "Traceback" not in log
    assert f"cannot listen on 127.0.0.1 port {port}" in log


def test_an_error_in_a_task_of_the_server_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def crash(self: Server) -> None:
        raise RuntimeError("the sweep broke")

    monkeypatch.setattr(Server, "_sweep", crash)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    assert service.serve(load(None, {"port": 0}), service.Options()) == 1
    assert {number: signal.getsignal(number) for number in handlers} == handlers
    last = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert last["event"] == "server_failed"
    assert "the sweep broke" in last["exception"]


def test_no_configuration_serves_the_example_and_says_so_loudly() -> None:
    with started([sys.executable, "-m", "genrm_trio", "serve", "--port", "0"]) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        assert get(f"{url}/readyz")
        process.send_signal(signal.SIGTERM)
        code, log = ended(process)
    assert code == 0
    assert "NO JUDGE IS CONFIGURED" in log


@pytest.mark.parametrize(
    ("settings", "warned"),
    [({}, True), ({"num_rollouts_per_prompt": 2}, False), ({"comparison_mode": "fixed_baseline"}, False)],
)
def test_a_start_warns_loudly_when_the_judge_will_never_be_asked(
    tmp_path: Path, settings: dict[str, object], warned: bool
) -> None:
    with serving(tmp_path, **settings) as (process, _):
        process.send_signal(signal.SIGTERM)
        code, log = ended(process)
    assert code == 0
    assert ("genrm-trio: num_rollouts_per_prompt is 1, so every reward is default_score (3)" in log) is warned
    assert ('"event": "judge_never_asked"' in log) is warned


STUCK = """
import trio
from genrm_trio.ops.service import _stop_signals

async def main():
    with _stop_signals(0.3):
        print("up", flush=True)
        while True:
            pass

trio.run(main)
"""


def test_a_stuck_loop_does_not_keep_the_process_alive() -> None:
    with started([sys.executable, "-c", STUCK]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        code, log = ended(process)
    assert code == 0, log
