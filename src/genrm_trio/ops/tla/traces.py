"""Recorded traces, checked by TLC as behaviours of the spec: the module with their events, and what TLC said of them.

Long traces are checked in parts, each of which starts where the spec was at the end of the part before.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from genrm_trio.core.trace import Event
from genrm_trio.ops.tla import shapes, tlc
from genrm_trio.ops.tla.events import spec_event
from genrm_trio.ops.tla.numbering import Numbering
from genrm_trio.ops.tla.values import write

PART = 20_000
"""Events that one module holds at most, of all traces together."""

FEW = 3000
"""Events up to which Java need not optimise."""

INVARIANTS = (
    "TerminalListed",
    "OneActiveAttempt",
    "ActiveHasWatermark",
    "WatermarkKept",
    "WatermarkReleased",
    "NoLeak",
    "RetireFrees",
    "UngroupedGone",
    "ClosedIsEmpty",
    "ClosedStaysClosed",
)
"""The spec's invariants that speak of the server alone; they are checked along every trace."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the spec has to know of a server: members per cohort, and the cap on finished cohorts."""

    cohort_size: int
    max_terminal_cohorts: int


@dataclass
class Checked:
    """What became of one trace.

    followed: how many of its events the spec allows, one after the other. impossible: the first that it does not allow.
    unreadable: TLC could not even evaluate the spec for that event.
    expected: the reply that the spec has for that event, when only the reply is wrong; as TLC shows it.
    broken: the invariant that does not hold after the last event that was followed. broken_by: that event.
    """

    followed: int = 0
    impossible: Event | None = None
    unreadable: bool = False
    expected: str | None = None
    broken: str | None = None
    broken_by: Event | None = None

    @property
    def accepted(self) -> bool:
        """Whether the whole trace is a behaviour of the spec, in all of whose states the invariants hold."""
        return self.impossible is None and self.broken is None


class Damaged(Exception):
    """The file is no trace, or an event is none that this server emits; the text says why.

    `position` counts events from 1; 0 is what a trace starts with, and None is the whole file.
    """

    def __init__(self, position: int | None, why: str) -> None:
        super().__init__(why)
        self.position = position


class Recorded:
    """A trace file that is read. Iterated over once, it reads the events as they are asked for; raises Damaged.

    Event n is in line n + 1. cut: the number of a last line that lacks its end and is left out, as the process died
    while it wrote; known once all were read.
    """

    def __init__(self, lines: Iterable[bytes]) -> None:
        self.cut: int | None = None
        self._events = self._read(lines)
        self.bounds = self._begin()

    def _begin(self) -> Bounds:
        first = next(self._events, None)
        if first is None and self.cut is None:
            raise Damaged(None, "the file is empty")
        if first is None:
            raise Damaged(0, "the line is incomplete")
        if first.name != "Init":
            raise Damaged(0, "a trace starts with the event Init")
        if wrong := shapes.wrong_init(first.args):
            raise Damaged(0, wrong)
        return Bounds(**{name: cast("int", first.args[name]) for name in Bounds.__slots__})

    def __iter__(self) -> Iterator[Event]:
        return self._events

    def _read(self, lines: Iterable[bytes]) -> Iterator[Event]:
        for position, line in enumerate(lines):
            if not line.endswith(b"\n"):
                self.cut = position + 1
                return
            try:
                read = json.loads(line)
            except UnicodeDecodeError:
                raise Damaged(position, "the line is no UTF-8 text") from None
            except json.JSONDecodeError as error:
                raise Damaged(position, f"the line is no JSON, from character {error.pos + 1} on") from None
            except ValueError:
                raise Damaged(position, "a number in the line has too many digits") from None
            except RecursionError:
                raise Damaged(position, "the line is nested too deeply") from None
            if wrong := shapes.wrong_line(read):
                raise Damaged(position, wrong)
            yield Event(read["event"], read["args"], read["reply"])


class _Checking:
    """One trace while it is checked.

    part: the events that are checked now, with their texts. starts: where the spec is before them, as TLC printed it.
    """

    def __init__(self, events: Iterable[Event], bounds: Bounds) -> None:
        self.result = Checked()
        self._bounds = bounds
        self.part: list[tuple[Event, str]] = []
        self.starts = "<<>>"
        self._events = iter(events)
        self._names = Numbering()
        self._read = 0
        self._damage: Damaged | None = None

    @property
    def ungrouped(self) -> set[str]:
        return self._names.ungrouped

    def fill(self, limit: int) -> int:
        """Read events up to this many; returns how many there are now.

        Raises Damaged once all events before the damaged one were followed: one of those may be impossible.
        """
        try:
            while self._damage is None and len(self.part) < limit and (event := next(self._events, None)):
                self._read += 1
                self.part.append((event, self._text(event)))
        except Damaged as damage:
            self._damage = damage
        if self._damage is not None and not self.part:
            raise self._damage
        return len(self.part)

    def _text(self, event: Event) -> str:
        if wrong := shapes.wrong_event(*event, self._bounds.cohort_size):
            raise Damaged(self._read, wrong)
        try:
            self._names.learn(event)
            return write(spec_event(event, self._names))
        except ValueError as error:
            raise Damaged(self._read, str(error)) from None
        except RecursionError:
            raise Damaged(self._read, "the line is nested too deeply") from None

    def follow(self, steps: int, ends: str | None, expected: str | None) -> None:
        """TLC followed so many events of the part; `ends` is where the spec is then, if that was all of them."""
        self.result.followed += steps
        if ends is None:
            self.result.impossible, self.result.expected = self.part[steps][0], expected
        else:
            self.starts = ends
        self.part = []

    def stop(self, steps: int, *, broken: str | None) -> None:
        """TLC followed so many events of the part, and stopped: an invariant broke there, or it could not go on."""
        self.result.followed += steps
        if broken is not None:
            self.result.broken, self.result.broken_by = broken, self.part[steps - 1][0] if steps else None
        else:
            self.result.impossible, self.result.unreadable = self.part[steps][0], True
        self.part = []


def check(traces: Iterable[Iterable[Event]], bounds: Bounds, *, part: int = PART) -> list[Checked]:
    """Check traces of servers with the same bounds. Raises Damaged, and tlc.TlcError."""
    checking = [_Checking(events, bounds) for events in traces]
    while going := _share([one for one in checking if one.result.accepted], part):
        _check_parts(going, bounds)
    return [one.result for one in checking]


def _share(checking: Iterable[_Checking], room: int) -> list[_Checking]:
    """Those whose next events fit into one module, filled with them. A trace without more events is over."""
    going = []
    for one in checking:
        if room <= 0:
            break
        taken = one.fill(room)
        if taken:
            going.append(one)
            room -= taken
    return going


def module(checking: Sequence[_Checking]) -> str:
    """The text of the module TraceData."""
    ungrouped = frozenset(name for one in checking for name in one.ungrouped)
    lines = ["---- MODULE TraceData ----", "EXTENDS TLC", f"TraceUngrouped == {write(ungrouped)}"]
    for number, one in enumerate(checking, 1):
        lines += [f"Trace{number} == <<", ",\n".join(text for _, text in one.part), ">>"]
    numbers = range(1, len(checking) + 1)
    lines.append(f"Traces == <<{', '.join(f'Trace{number}' for number in numbers)}>>")
    lines.append(f"Begins == <<{', '.join(one.starts for one in checking)}>>")
    return "\n".join([*lines, "===="])


def configuration(bounds: Bounds) -> str:
    """The text of the configuration for Trace.tla."""
    return "\n".join(
        [
            "SPECIFICATION TraceSpec",
            "CONSTANTS",
            f"  N = {bounds.cohort_size}",
            f"  Cap = {bounds.max_terminal_cohorts}",
            "  Ungrouped <- TraceUngrouped",
            *(f"  {name} = {{}}" for name in ("GroupNames", "Lone", "Untyped", "World", "Mutants")),
            *(f"  {name} = 0" for name in ("MaxAttempt", "MaxAnswer", "MaxCrash", "MaxWaiters")),
            "VIEW TraceView",
            f"INVARIANTS Progress {' '.join(INVARIANTS)}",
            "",
        ]
    )


_BROKEN = re.compile(r"Error: Invariant (\w+) is violated")


class _Report:
    """What TLC prints while it follows traces.

    reached: by trace, how many events were followed. ends: where those that were followed to their end are then.
    replies: the spec's own reply for an event that it did not follow. last: the trace whose state was reached last.
    """

    def __init__(self) -> None:
        self.reached: Counter[int] = Counter()
        self.ends: dict[int, str] = {}
        self.replies: dict[int, str] = {}
        self.last = 0
        self.broken: str | None = None
        self.other: list[str] = []

    def hear(self, line: str) -> None:
        kind, _, told = (tlc.printed(line) or "").partition(" ")
        if kind in {"AT", "END", "REPLY"}:
            number, _, rest = told[2:-2].partition(", ")
            self._note(kind, int(number), rest)
        elif found := _BROKEN.match(line):
            self.broken = found[1]
        else:
            self.other.append(line)

    def _note(self, kind: str, trace: int, told: str) -> None:
        if kind == "AT":
            self.last, self.reached[trace] = trace, int(told)
        elif kind == "END":
            self.ends[trace] = f"<<{told}>>"
        else:
            self.replies[trace] = told


def _check_parts(checking: Sequence[_Checking], bounds: Bounds) -> None:
    """Run TLC once.

    An invariant that breaks ends the run for all; who was not at its end by then is checked again. An event that TLC
    cannot evaluate ends it, too. TLC does not always say in which trace; so each is then checked by itself.
    """
    report = _Report()
    short = sum(len(one.part) for one in checking) <= FEW
    data = {"TraceData.tla": module(checking)}
    ended = tlc.run(configuration(bounds), "Trace", report.hear, extra=data, short=short)
    if ended.code in (tlc.STEP_FAILED, tlc.INVARIANT_FAILED) and report.last:
        if len(checking) > 1:
            for one in checking:
                _check_parts([one], bounds)
            return
        # An invariant without a value speaks of the state that was reached, and so of the event that led there.
        report.reached[1] -= ended.code == tlc.INVARIANT_FAILED
    elif ended.code not in (tlc.OK, tlc.INVARIANT):
        raise tlc.TlcError("TLC could not follow the traces:\n" + "\n".join(report.other)[-3000:])
    stopped = report.last if ended.code != tlc.OK else None
    for number, one in enumerate(checking, 1):
        if number == stopped:
            one.stop(report.reached[number], broken=report.broken)
        elif stopped is None or number in report.ends:
            one.follow(report.reached[number], report.ends.get(number), report.replies.get(number))
