"""`compare`: judges groups from a file, without a trainer and without a server.

Each input line is one group, each output line its rewards; what an input line may hold is in `groups`. A group is
written as soon as it is judged, so a run that is stopped goes on where it was: what stands in the output with the
same input line is not judged again. An output of other settings is refused. Groups without rewards go to a file of
their own, and are tried again next time.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from io import FileIO
from pathlib import Path
from typing import BinaryIO, Final

import trio

from genrm_trio.core.outcome import JSON
from genrm_trio.judging.files import refuse_device
from genrm_trio.judging.judge import Judge, JudgeError
from genrm_trio.judging.scoring import CohortScores, NonFiniteReward
from genrm_trio.judging.slots import Slots
from genrm_trio.ops.complaints import OperationFailed, StartupError
from genrm_trio.ops.groups import Group, GroupError, read_group
from genrm_trio.runtime.evaluation import Comparing, evaluate
from genrm_trio.runtime.server import Policy, TooManyComparisons

GROUPS_AT_ONCE: Final = 64
"""Groups that are read and judged at the same time; judge calls have a bound of their own."""
ERROR_CHARS: Final = 1000
_BEGINNING: Final = (
    rb'{"id": "',
    re.compile(rb'(?:[^"\\]|\\.?)*+', re.DOTALL),
    rb'", "line": ',
    re.compile(rb"[0-9]*+"),
    rb", ",
)
"""How each line that this command writes begins: texts and patterns one behind the other."""


@dataclass(slots=True)
class Tally:
    """How far a run has come, in groups."""

    total: int = 0
    known: int = 0
    judged: int = 0
    failed: int = 0

    @property
    def finished(self) -> int:
        """How many need no more work in this run."""
        return self.known + self.judged + self.failed


@dataclass(frozen=True, slots=True)
class Files:
    """Where groups come from and where they go."""

    source: Path
    output: Path

    def __post_init__(self) -> None:
        """Refuse an output beside which no other file can be named."""
        if not self.output.name:
            raise StartupError(f"{self.output}: the output is a file, not a folder")

    @property
    def failed(self) -> Path:
        """The file of the groups without rewards: `rewards.jsonl` has `rewards.failed.jsonl` beside it."""
        return self.output.with_name(f"{self.output.stem}.failed{self.output.suffix}")


@dataclass(slots=True)
class Batch:
    """One run.

    settings: the digest of the settings that decide scores. `advanced` is called after each group, `complain` with
    the words for each one that failed, `remark` at the first id that two lines of the output have.
    """

    policy: Policy
    judge: Judge
    files: Files
    settings: str
    advanced: Callable[[Tally], None]
    complain: Callable[[str], None] = lambda text: None
    remark: Callable[[str], None] = lambda text: None
    tally: Tally = field(default_factory=Tally)
    _ids: set[str] = field(default_factory=set)
    _remarked: bool = False

    async def run(self) -> Tally:
        """Judge every group that the output does not have yet.

        Raises:
            StartupError: a file cannot be read or written, or the output holds something else, or was made with
                other settings.
        """
        known = set()
        for digest, named in _known(self.files, self.settings):
            known.add(digest)
            self.note(named)
        with _opened(self.files) as (source, output, failed):
            self.tally.total = sum(1 for line in source if line.strip())
            source.seek(0)
            send, receive = trio.open_memory_channel[tuple[int, bytes, str]](0)
            slots = Slots(self.policy.max_concurrency)
            comparing = Comparing(self.judge, self.policy.scoring, self.policy.principle)
            async with trio.open_nursery() as nursery:
                for _ in range(GROUPS_AT_ONCE):
                    worker = _Worker(self, comparing, slots, output, failed)
                    nursery.start_soon(worker.work, receive.clone())
                receive.close()
                async with send:
                    for number, line in enumerate(source, 1):
                        digest = sha256(line.strip()).hexdigest()
                        if digest in known:
                            self.tally.known += 1
                            self.advanced(self.tally)
                        elif line.strip():
                            await send.send((number, line, digest))
        return self.tally

    def note(self, group_id: str) -> None:
        """A group of this id is in the output, or will be; say once when it is not the first one."""
        if group_id in self._ids and not self._remarked:
            self._remarked = True
            self.remark(f"more than one group has the id {group_id[:ERROR_CHARS]!r}: join by line, not by id")
        self._ids.add(group_id)


@contextmanager
def _opened(files: Files) -> Iterator[tuple[BinaryIO, FileIO, FileIO]]:
    """Open the three files; the output is appended to, behind its last whole line."""
    try:
        with ExitStack() as stack:
            source = stack.enter_context(files.source.open("rb"))
            refuse_device(source, files.source)
            _drop_torn_line(files.output)
            output = stack.enter_context(files.output.open("ab", buffering=0))
            failed = stack.enter_context(files.failed.open("wb", buffering=0))
            yield source, output, failed
    except OSError as error:
        raise StartupError(f"{error.filename}: {error.strerror}") from error
    if files.failed.stat().st_size == 0:
        files.failed.unlink()


def _drop_torn_line(path: Path) -> None:
    """Cut off a last line without its end, which was seen to be ours: a run was stopped while it was written."""
    content = _content(path)
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)


def _begins_as_ours(torn: bytes) -> bool:
    """Tell whether so much of a line begins as our own lines do, as far as it goes."""
    at = 0
    for part in _BEGINNING:
        if isinstance(part, bytes):
            if not part.startswith(torn[at : at + len(part)]):
                return False
            at += len(part)
        else:
            found = part.match(torn, at)
            assert found is not None, "nothing at all is a match"
            at = found.end()
        if at >= len(torn):
            return True
    return True


def _known(files: Files, settings: str) -> list[tuple[str, str]]:
    """Return the input lines that the output answers, by digest and id. Writes nothing: a refusal costs nothing."""
    try:
        if files.source.resolve() in {files.output.resolve(), files.failed.resolve()}:
            raise StartupError(f"{files.source} is the input: name another file for the output")
        *whole, torn = _content(files.output).split(b"\n")
    except OSError as error:
        raise StartupError(f"{files.output}: {error.strerror}") from error
    except RuntimeError as error:  # what pathlib makes of a circle of symbolic links
        raise StartupError(f"{files.output}: {error}") from error
    known = [_answered(line, f"{files.output}, line {number}", settings) for number, line in enumerate(whole, 1)]
    if torn and not _begins_as_ours(torn):
        raise _foreign(f"{files.output}, line {len(whole) + 1}")
    return known


def _content(output: Path) -> bytes:
    if not output.exists():
        return b""
    with output.open("rb") as file:
        refuse_device(file, output)
        return file.read()


def _foreign(where: str) -> StartupError:
    return StartupError(f"{where}: not a line that this command wrote")


def _answered(line: bytes, where: str, settings: str) -> tuple[str, str]:
    """Return the digest of the input line that an output line answers, and the group's id."""
    try:
        row = json.loads(line)
        digest, named, made_with = str(row["input_sha256"]), str(row.get("id")), row.get("settings_sha256")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _foreign(where) from error
    if made_with != settings:
        raise StartupError(
            f"{where}: made with other settings of the judge or of scores than those in force now. "
            "Name another output, or use the settings it was made with"
        )
    return digest, named


@dataclass(frozen=True, slots=True)
class _Worker:
    """Judges one group after the other."""

    batch: Batch
    comparing: Comparing
    slots: Slots
    output: FileIO
    failed: FileIO

    async def work(self, lines: trio.MemoryReceiveChannel[tuple[int, bytes, str]]) -> None:
        async with lines:
            async for number, line, digest in lines:
                await self._one(number, line, digest)
                self.batch.advanced(self.batch.tally)

    async def _one(self, number: int, line: bytes, digest: str) -> None:
        """Judge the group of one line and write what came of it."""
        group_id = str(number)
        try:
            group = read_group(line, number)
            group_id = group.id
            self.batch.note(group_id)
            scores = await self._judge(group)
        except (GroupError, JudgeError, NonFiniteReward) as error:
            if isinstance(error, GroupError) and error.id is not None:
                group_id = error.id
            text = str(error)[:ERROR_CHARS]
            self.batch.complain(f"line {number}: {text}")
            _write(self.failed, {"id": group_id, "line": number, "error": text, "input_sha256": digest})
            self.batch.tally.failed += 1
            return
        made: dict[str, JSON] = {"input_sha256": digest, "settings_sha256": self.batch.settings}
        _write(self.output, {"id": group_id, "line": number, **scores, **made})
        self.batch.tally.judged += 1

    async def _judge(self, group: Group) -> dict[str, JSON]:
        """Return a group's rewards. The deadline counts from its first judge call; raises JudgeError."""
        policy, count = self.batch.policy, len(group.contenders)
        if count < 2:
            return {"rewards": [policy.scoring.default_score] * count, "members": None, "comparison_results": None}
        if policy.scoring.by_rubric and not group.contenders[0].rubric_ids:
            raise GroupError("expected_rubric_ids must be given, as score_source is rubric_mean")
        try:
            planned = await policy.plan(count)
        except TooManyComparisons as error:
            raise GroupError(f"answers: {error}") from None

        def begin() -> None:
            ticket.deadline.deadline = trio.current_time() + policy.evaluation_timeout_s

        ticket = self.slots.ticket(label=str(group.id), on_first=begin)
        scores: CohortScores | JudgeError = JudgeError(
            f"the evaluation deadline of {policy.evaluation_timeout_s:g} s passed"
        )
        with ticket.deadline:
            scores = await evaluate(self.comparing, planned, dict(enumerate(group.contenders)), ticket)
        if isinstance(scores, JudgeError):
            raise scores
        return {
            "rewards": list(scores.rewards),
            "members": list(scores.members),
            "comparison_results": list(scores.comparison_results),
            "metrics": scores.metrics,
        }


def _write(file: FileIO, row: dict[str, JSON]) -> None:
    """Write one whole line, so that a run that is killed now has lost nothing before it."""
    try:
        left = memoryview(json.dumps(row).encode() + b"\n")
        while left:
            left = left[file.write(left) :]
        os.fsync(file.fileno())
    except OSError as error:
        raise OperationFailed(f"{file.name}: {error.strerror}") from error
