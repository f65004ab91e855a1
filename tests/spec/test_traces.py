"""Traces of the running server are behaviours of the spec; corrupted ones end at their first impossible event."""

import os
from functools import cache
from typing import Any

import pytest
from tests.spec.recorder import BOUNDS, record
from tests.spec.test_shapes import SIZE, every_event, put, restored, with_odd_values, wrong

from genrm_trio.core.trace import Event
from genrm_trio.ops.tla import shapes
from genrm_trio.ops.tla.traces import Bounds, Checked, Damaged, check

AFTERNOONS = int(os.environ.get("GENRM_TRIO_AFTERNOONS", "4"))
Trace = list[Event]


@cache
def traces() -> list[Trace]:
    return [trace for seed in range(AFTERNOONS) for trace in record(seed)]


def first(trace: Trace, name: str, skip: int = 0) -> int | None:
    """Where the first event of this name is, from a position on."""
    return next((n for n in range(skip, len(trace)) if trace[n].name == name), None)


def changed(trace: Trace, at: int, **reply: Any) -> tuple[Trace, int]:
    """The trace with another reply there, which is where it becomes impossible."""
    event = trace[at]
    other = {**event.reply, **reply} if isinstance(event.reply, dict) else reply["value"]
    return [*trace[:at], event._replace(reply=other), *trace[at + 1 :]], at


def corrupted() -> list[tuple[Trace, int]]:
    """Traces with a defect, and how many events they have before it."""
    found: list[tuple[Trace, int]] = []
    for trace in traces():
        if (at := first(trace, "Publish")) is not None:
            found.append(changed(trace, at, answered=[0]))
            found.append(changed(trace, at, published=False))
            found.append(([*trace[: at + 1], trace[at], *trace[at + 1 :]], at + 1))
            judged = first(trace, "Judged")
            if judged is not None and judged < at:
                found.append(([*trace[:judged], *trace[judged + 1 : at + 1]], at - 1))
        if (at := first(trace, "Submit")) is not None:
            found.append(changed(trace, at, reply={"refused": "superseded"}))
            found.append(changed(trace, at, evicted=["nobody has met this cohort"]))
        if (at := first(trace, "Seed")) is not None and trace[at].reply == "bound":
            found.append(changed(trace, at, value="closed"))
        if (at := first(trace, "CloseAdmission")) is not None and (
            then := first(trace, "OpenAdmission", at)
        ) is not None:
            found.append(([*trace[:at], *trace[at + 1 : then + 1]], _first_closed(trace, at, then)))
    return found


def _first_closed(trace: Trace, at: int, then: int) -> int:
    """The first event that needs admission to be closed, in a trace without the event that closed it."""
    needs = {"Restore", "Export", "DeleteRestored", "OpenAdmission"}
    later = next(n for n in range(at + 1, then + 1) if trace[n].name in needs or trace[n].reply == "later")
    return later - 1


@cache
def verdicts() -> tuple[list[Checked], list[Checked]]:
    """Of the traces as they were recorded, and of the corrupted ones; by one run of TLC."""
    recorded = traces()
    found = check([*recorded, *(trace for trace, _ in corrupted())], BOUNDS)
    return found[: len(recorded)], found[len(recorded) :]


def test_what_the_server_does_is_what_the_spec_says() -> None:
    for trace, found in zip(traces(), verdicts()[0], strict=True):
        assert found.accepted, f"after {found.followed} of {len(trace)}: {found.impossible or found.broken}"
        assert found.followed == len(trace)


def test_afternoons_are_full_of_events() -> None:
    assert len(traces()) >= 2 * AFTERNOONS
    assert {event.name for trace in traces() for event in trace} >= {
        "Submit",
        "Leave",
        "ExpireCollection",
        "Judged",
        "JudgeFailed",
        "Publish",
        "Seed",
        "EndSession",
        "CloseAdmission",
        "OpenAdmission",
        "Export",
        "Restore",
        "Retire",
        "ShutDown",
    }


def test_corrupted_traces_are_refused_at_their_first_impossible_event() -> None:
    assert len(corrupted()) > 10 * AFTERNOONS
    for (trace, possible), found in zip(corrupted(), verdicts()[1], strict=True):
        assert not found.accepted
        assert found.followed == possible, f"{trace[possible]} was expected to be refused, not {found.impossible}"
        assert found.impossible == trace[possible]


def test_where_only_the_reply_is_wrong_the_specs_own_is_told() -> None:
    replies = [found for found in verdicts()[1] if found.expected is not None]
    assert any(found.expected is not None and "published |-> TRUE" in found.expected for found in replies)


def test_a_trace_is_checked_in_parts_as_a_whole() -> None:
    trace = max(traces(), key=len)
    bad, possible = changed(trace, _last(trace, "Submit"), reply={"refused": "superseded"})
    whole, broken = check([trace, bad], BOUNDS, part=len(trace) // 2)
    assert whole.accepted
    assert whole.followed == len(trace)
    assert (broken.followed, broken.impossible) == (possible, bad[possible])


def _last(trace: Trace, name: str) -> int:
    return max(n for n, event in enumerate(trace) if event.name == name)


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (Event("Unknown", {}, None), "field `event` is"),
        (Event("Submit", {}, None), "field `args.waiter` is missing"),
        (Event("Publish", {"cohort": "k"}, None), "field `reply` is null"),
        (Event("Seed", {"session": "s", "episode": "not a key!"}, "bound"), "field `args.episode` is"),
    ],
)
def test_what_is_no_event_of_this_server_is_damage(event: Event, text: str) -> None:
    with pytest.raises(Damaged, match=text) as damaged:
        check([[event]], BOUNDS)
    assert damaged.value.position == 1


def test_an_event_that_tlc_cannot_evaluate_is_blamed_among_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself or in an invariant: such events as shapes refuse."""
    monkeypatch.setattr(shapes, "wrong_event", lambda *_: None)
    whole = min(traces(), key=len)
    step = next(trace for trace in traces() if first(trace, "Submit") is not None)
    submit = _last(step, "Submit")
    close, restore = restored()[-2:]
    for number in (0, 1):
        restore = put(restore, ("args", "states", number, "state", "newest_attempt"), "x")
    invariant = [close, restore]
    found = check([whole, [*step[:submit], put(step[submit], ("args", "index"), 9)], invariant], BOUNDS)
    assert [(one.followed, one.unreadable) for one in found] == [(len(whole), False), (submit, True), (1, True)]
    assert [one.impossible and one.impossible.name for one in found] == [None, "Submit", "Restore"]


def test_whatever_has_the_shape_of_an_event_is_one_that_tlc_can_evaluate() -> None:
    """Each with something odd in it, after the events before it."""
    events, odd = every_event(), []
    start = len(restored())
    for number, event in enumerate(events[start:], start):
        others = [other for other in with_odd_values(event) if wrong(other) is None]
        odd += [[*events[start:number], other] for other in others[::8]]
    assert len(odd) > 100
    found = check(odd, Bounds(SIZE, 4096))
    assert [one.impossible for one in found if one.unreadable] == []
