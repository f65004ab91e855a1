"""The command `trace check`: whether a recorded trace is a behaviour of the formal spec, in words and as exit code."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console

from genrm_trio.core.invariants import STATE_INVARIANTS
from genrm_trio.core.trace import Event, method_name
from genrm_trio.judging.files import refuse_device
from genrm_trio.judging.text import scrub
from genrm_trio.ops.complaints import OperationFailed, StartupError
from genrm_trio.ops.tla.tlc import TlcError
from genrm_trio.ops.tla.traces import Checked, Damaged, Recorded, check

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
            refuse_device(file, path)
            trace = Recorded(file)
            (found,) = check([trace], trace.bounds)
    except OSError as error:
        raise StartupError(f"{path}: {error.strerror}") from error
    except Damaged as damaged:
        where = path if damaged.position is None else f"{path}, line {damaged.position + 1}"
        raise OperationFailed(f"{where}: {scrub(str(damaged))}") from damaged
    except TlcError as error:
        raise StartupError(str(error)) from error
    for line in _verdict(path, found, trace.cut):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return 0 if found.accepted else IMPOSSIBLE


@contextmanager
def _working(console: Console) -> Iterator[None]:
    with console.status("TLC follows the trace") if console.is_terminal else _quietly():
        yield


@contextmanager
def _quietly() -> Iterator[None]:
    yield


def _verdict(path: Path, found: Checked, cut: int | None) -> Iterator[str]:
    if found.accepted:
        events = "1 event" if found.followed == 1 else f"{found.followed:,} events"
        yield f"{path}: {f'{events}, all as the spec has them' if found.followed else 'it holds no events'}"
        if cut is not None:
            yield f"  line {cut}, the last, is incomplete and was left out"
        return
    if found.broken is not None:
        yield f"{path}, line {found.followed + 1}: after this event {found.broken} does not hold"
        if found.broken_by is not None:
            yield f"  event: {_shown(found.broken_by)}"
        if guarded := STATE_INVARIANTS[method_name(found.broken)].__doc__:
            yield f"  {found.broken}: {guarded}"
        return
    judged = "cannot read this event" if found.unreadable else "does not allow this event here"
    others = "1 other" if found.followed == 1 else f"{found.followed:,} others"
    yield f"{path}, line {found.followed + 2}: the spec {judged}, after {others}"
    if found.impossible is not None:
        yield f"  event: {_shown(found.impossible)}"
    if found.expected is not None:
        yield f"  the spec's reply, under its own names: {found.expected}"


def _shown(event: Event) -> str:
    text = json.dumps({"event": event.name, "args": event.args, "reply": event.reply}, ensure_ascii=False)
    return scrub(text)[:LONGEST_SHOWN]
