"""Keeps what a live judge says in a file that `recorded` replays: `--record FILE`.

A line is on its way before its comparison is told, and is written by a thread, so that a slow disk stalls neither the
loop nor loses a line: a cancelled comparison leaves its line to the next one, or to the close.
"""

import json
import os
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

import trio

from genrm_trio.judging.judge import Answered, Ask, FaultSeen, Judge, Observer, Unobserved
from genrm_trio.judging.lenient import decode_json
from genrm_trio.judging.recorded import pair_digest
from genrm_trio.judging.slots import Ticket
from genrm_trio.judging.text import scrub

MAX_PENDING_BYTES: Final = 64 << 20
"""Of lines kept while the file cannot be written; beyond it the oldest go, and the observer is told."""
BLOCK_BYTES: Final = 1 << 20
"""Written at a time, so that each try at a full disk is a small one."""
BEGINNING: Final = b'{"pair":"'
"""Of every line that is written here."""
RECORDING_FAILED: Final = "recording_failed"


def verdict_line(ask: Ask, answered: Answered) -> bytes:
    """Return one line of a recording (format: `recorded`)."""
    usage = answered.usage
    row = {
        "pair": pair_digest(ask),
        "judge_index": ask.judge_index,
        "text": scrub(answered.text),
        "usage": None if usage is None else [usage.input_tokens, usage.output_tokens, usage.hit_max],
    }
    return json.dumps(row, separators=(",", ":")).encode("ascii") + b"\n"


class Recorder:
    """A judge that passes everything on to another one and appends its verdicts to a file.

    Judge errors are not recorded. A file that cannot be written fails no comparison: lines are kept and tried again
    with the next one. Raises ValueError when the file cannot be opened, or ends within a line and is no recording.
    """

    def __init__(self, judge: Judge, path: Path, observer: Observer | None = None) -> None:
        self._judge = judge
        self._observer: Observer = observer or Unobserved()
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0
        self._writing = trio.Lock()
        self._thread = trio.CapacityLimiter(1)  # none of those that look-ups of names may hold
        self.lost = 0
        try:
            self._file: IO[bytes] = _open_at_a_line(path)
        except OSError as error:
            raise ValueError(f"--record {path}: {error.strerror}") from None

    async def compare(self, ask: Ask, slot: Ticket) -> Answered:
        """Ask the judge, see `Judge.compare`, and return when the verdict's line is written."""
        answered = await self._judge.compare(ask, slot)
        line = verdict_line(ask, answered)
        self._pending.append(line)
        self._pending_bytes += len(line)
        async with self._writing:
            if self._pending:  # else the one before has taken this line along
                error = await self._flush()
                if error is not None:
                    self._tell(ask, slot, error)
        return answered

    async def aclose(self) -> None:
        """Close the judge, write what is pending, and close the file. Idempotent. Raises OSError when it cannot."""
        try:
            await self._judge.aclose()
        finally:
            with trio.CancelScope(shield=True):
                async with self._writing:
                    await self._finish()

    async def _finish(self) -> None:
        if self._file.closed:
            return
        error = await self._flush()
        await trio.to_thread.run_sync(self._file.close, limiter=self._thread)
        if error is not None:
            raise error

    async def _flush(self) -> OSError | None:
        """Write the pending lines in blocks; those of a failed write and after it stay pending. The lock is held."""
        while self._pending:
            block, lines = bytearray(), 0
            for line in self._pending:
                block += line
                lines += 1
                if len(block) >= BLOCK_BYTES:
                    break
            error = await trio.to_thread.run_sync(self._write, block, limiter=self._thread)
            if error is not None:
                return error
            for _ in range(lines):
                self._drop_oldest()
        return None

    def _drop_oldest(self) -> None:
        self._pending_bytes -= len(self._pending.popleft())

    def _write(self, block: bytearray) -> OSError | None:
        """Append a block of lines, all of it or nothing; in a thread."""
        try:
            start = self._file.seek(0, os.SEEK_END)
        except OSError as error:
            return error
        left = memoryview(block)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            with suppress(OSError):  # the next block may then begin within a line
                self._file.truncate(start)
            return error
        return None

    def _tell(self, ask: Ask, slot: Ticket, error: OSError) -> None:
        while self._pending_bytes > MAX_PENDING_BYTES:
            self._drop_oldest()
            self.lost += 1
        self._observer.on_fault(
            FaultSeen(
                kind=RECORDING_FAILED,
                action="kept",
                first=slot.first(RECORDING_FAILED),
                cohort=slot.label,
                endpoint="",
                pair=ask.pair,
                judge_index=ask.judge_index,
                text=f"{type(error).__name__}: {error.strerror}; {len(self._pending)} lines wait, {self.lost} lost",
            )
        )


def _open_at_a_line(path: Path) -> IO[bytes]:
    """Open a file for appending, behind its last whole line: a crash may have left a part of one."""
    file = path.open("a+b", buffering=0)
    size = file.seek(0, os.SEEK_END)
    last = _last_line(file, size)
    if last and not last.endswith(b"\n"):
        try:
            decode_json(last)  # as the reader of recordings does: a line that it takes is not cut off
        except ValueError:
            file.seek(0)
            begins = {file.read(len(BEGINNING)), last[: len(BEGINNING)]}
            if not any(BEGINNING.startswith(start) for start in begins):
                file.close()
                raise ValueError(f"--record {path}: its last line is not one of a recording") from None
            file.truncate(size - len(last))
        else:
            file.write(b"\n")
    file.seek(0, os.SEEK_END)
    return file


def _last_line(file: IO[bytes], size: int) -> bytes:
    """Return what stands behind the last newline but one at the very end."""
    block, end, found = 65536, size, b""
    while end > 0:
        start = max(0, end - block)
        file.seek(start)
        found = file.read(end - start) + found
        cut = found.rfind(b"\n", 0, len(found) - 1)
        if cut >= 0:
            return found[cut + 1 :]
        end = start
    return found
