"""The command `trace check`: whether a recorded trace is a behaviour of the formal spec, in words and as exit code."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console

from genrm_trio.core.trace import Event
from genrm_trio.judging.text import scrub
from genrm_trio.ops.complaints import OperationFailed, StartupError
from genrm_trio.ops.tla.tlc import TlcError
from genrm_trio.ops.tla.traces import Checked, Damaged, check, read_trace

IMPOSSIBLE: Final = 1
LONGEST_SHOWN: Final = 1000
"""Characters of an event that are shown."""


def check_file(path: Path) -> int:
    """Check a trace file; returns 0 when it is a behaviour of the spec, else 1, having said why.

    Raises StartupError when the file or TLC cannot be used, and OperationFailed when the file holds no trace.
    """
    console = Console(stderr=True)
    try:
        with path.open("rb") as file, _working(console):
            bounds, events = read_trace(file)
            (found,) = check([events], bounds)
    except OSError as error:
        raise StartupError(f"{path}: {error.strerror}") from error
    except Damaged as damaged:
        raise OperationFailed(f"{path}, line {damaged.position + 1}: {damaged}") from damaged
    except TlcError as error:
        raise StartupError(str(error)) from error
    for line in _verdict(path, found):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return 0 if found.accepted else IMPOSSIBLE


@contextmanager
def _working(console: Console) -> Iterator[None]:
    with console.status("TLC follows the trace") if console.is_terminal else _quietly():
        yield


@contextmanager
def _quietly() -> Iterator[None]:
    yield


def _verdict(path: Path, found: Checked) -> Iterator[str]:
    if found.accepted:
        yield f"{path}: {found.followed:,} events, all as the spec has them"
        return
    if found.broken is not None:
        yield f"{path}, line {found.followed + 1}: after this event {found.broken} does not hold"
        return
    yield f"{path}, line {found.followed + 2}: the spec does not allow this event here, after {found.followed:,} others"
    if found.impossible is not None:
        yield f"  event: {_shown(found.impossible)}"
    if found.expected is not None:
        yield f"  the spec's reply, under its own names: {found.expected}"


def _shown(event: Event) -> str:
    text = json.dumps({"event": event.name, "args": event.args, "reply": event.reply}, ensure_ascii=False)
    return scrub(text)[:LONGEST_SHOWN]
