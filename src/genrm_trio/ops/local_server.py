"""A server of our own on this machine, as a process of its own, for as long as a block runs.

Used by the demo. It is the same `serve` that an operator starts, with a configuration file in a folder that the
caller owns.
"""

import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import Final

import trio
import yaml

from genrm_trio.ops.complaints import StartupError
from genrm_trio.ops.settings import ENV_PREFIX

START_TIMEOUT_S: Final = 30.0
TAIL_CHARS: Final = 2000


@asynccontextmanager
async def local_server(settings: Mapping[str, object], folder: Path) -> AsyncIterator[str]:
    """Start `serve` on a free port with these settings; yields its URL and stops it with SIGTERM at the end.

    Raises StartupError, with what it last said, when it does not come up.
    """
    config, said = folder / "config.yaml", folder / "server.log"
    config.write_text(yaml.safe_dump(dict(settings)), encoding="utf-8")
    command = [sys.executable, "-m", "genrm_trio", "serve", "--config", str(config), "--port", "0"]
    async with trio.open_nursery() as nursery:
        with said.open("wb") as log:
            options = {"env": _environment(), "stdin": b"", "stdout": PIPE, "stderr": log, "check": False}
            run = partial(trio.run_process, command, **options, deliver_cancel=_stop)
            process: trio.Process = await nursery.start(run)
        url = ""
        with trio.move_on_after(START_TIMEOUT_S):
            url = await _first_line(process)
        try:
            if not url.startswith("http"):
                raise StartupError(f"the server did not start:\n{said.read_text(errors='replace')[-TAIL_CHARS:]}")
            yield url
        finally:
            nursery.cancel_scope.cancel()


async def _first_line(process: trio.Process) -> str:
    """Return the line that the server prints once it accepts requests; empty when it ended instead."""
    assert process.stdout is not None, "its standard output is a pipe"
    line = b""
    while b"\n" not in line:
        part = await process.stdout.receive_some()
        if not part:
            return ""
        line += part
    return line.decode().split()[-1]


def _environment() -> dict[str, str]:
    """Return our environment without what would change the server's settings."""
    return {k: v for k, v in os.environ.items() if not k.upper().startswith((ENV_PREFIX, "NEMO_GYM_"))}


async def _stop(process: trio.Process) -> None:
    """Ask the process to end; it does so within its own grace."""
    process.send_signal(signal.SIGTERM)
