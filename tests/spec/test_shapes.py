"""What is no event is refused while it is read, by field and expectation; what is one is not."""

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from tests.core.play import Play
from tests.core.test_vocabulary import every_action

from genrm_trio.core.trace import ACTIONS, Event
from genrm_trio.ops.tla import events, shapes
from genrm_trio.ops.tla.events import spec_event
from genrm_trio.ops.tla.numbering import Numbering
from genrm_trio.ops.tla.values import write

SIZE = 2
ODD: tuple[Any, ...] = (None, True, -1, 9, 10**11, 1.5, "", "zero", "é\ud800", [], [None], [[]], {}, {"x": None})


def every_event() -> list[Event]:
    """Of every action at least one; the exports and restores with an outcome come first."""
    play = Play()
    every_action(play)
    return [*restored(), *play.events]


def restored() -> list[Event]:
    """A group is judged and told, saved, and restored by the next process."""
    play = Play()
    play.done()
    play.close()
    return [*play.events, *play.crash(play.save()).events]


def wrong(event: Event) -> str | None:
    return shapes.wrong_event(*event, SIZE)


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a value."""
    yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        yield from paths(part, (*path, name))


def put(event: Event, path: tuple[Any, ...], value: Any) -> Event:
    """The event with something else at a place."""
    fields: Any = copy.deepcopy({"args": dict(event.args), "reply": event.reply})
    holder: Any = fields
    for part in path[:-1]:
        holder = holder[part]
    holder[path[-1]] = value
    return Event(event.name, **fields)


def with_odd_values(event: Event) -> Iterator[Event]:
    """The event with something odd at one of its places."""
    places = [path for path in paths({"args": event.args, "reply": event.reply}) if path]
    for path, value in itertools.product(places, ODD):
        yield put(event, path, value)


def test_every_action_has_its_shape_and_what_the_core_emits_has_it() -> None:
    assert set(shapes._SHAPES) == set(ACTIONS)
    assert {event.name for event in every_event()} == set(ACTIONS)
    assert [wrong(event) for event in every_event() if wrong(event)] == []


def test_what_a_shape_lets_through_can_be_written_and_nothing_else_is_an_error() -> None:
    """Whatever stands at whatever place of whatever event."""
    refused = taken = 0
    for event in every_event():
        for other in with_odd_values(event):
            if (text := wrong(other)) is not None:
                assert text.startswith("field `"), text
                refused += 1
                continue
            names = Numbering()
            names.learn(other)
            assert write(spec_event(other, names)).isascii()
            taken += 1
    assert refused > 1000
    assert taken > 500


@pytest.mark.parametrize(
    ("name", "path", "value", "text"),
    [
        ("Submit", "args.index", 9, "is 9, expected 0 to 1, as cohort_size in line 1 is 2"),
        ("Submit", "args.index", "zero", 'is "zero", expected an integer'),
        ("Submit", "args.index", True, "is true, expected an integer"),
        (
            "Submit",
            "args.waiter",
            99999999999,
            "is 99999999999, expected at most 2147483647, the largest number",
        ),
        ("Submit", "args.attempt", -1, "is -1, expected 0 or more"),
        ("Submit", "args.session", 5, "is 5, expected a text"),
        ("Submit", "args.episode", "no key!", 'is "no key!", expected an episode\'s key: '),
        ("Submit", "args.episode", f"r-a{10**12}", "expected an attempt of at most 2147483647"),
        ("Submit", "reply.reply", {"waits": False}, 'is an object, expected {"waits": true}, {"refused": a code} or'),
        ("Submit", "reply.reply", {"refused": "é"}, "expected printable ASCII"),
        ("Submit", "reply.evicted", "k", 'is "k", expected a list'),
        ("Leave", "reply", None, "is null, expected true or false"),
        ("Judged", "reply", {}, "is an object, expected null"),
        ("Publish", "reply", None, "is null, expected an object"),
        ("Fail", "args.code", "x" * 200, f"is \"{'x' * 79}…, expected 'superseded', "),
        ("Restore", "args.states.0.state.newest_attempt", "x", 'is "x", expected an integer'),
        ("Restore", "args.states.0.state.failure", "x", "expected either `result` or `failure` in it"),
    ],
)
def test_a_wrong_value_is_named_with_its_field_and_what_was_expected(
    name: str, path: str, value: object, text: str
) -> None:
    event = next(e for e in every_event() if e.name == name)
    at = tuple(int(part) if part.isdigit() else part for part in path.split("."))
    told = wrong(put(event, at, value))
    assert told is not None
    assert text in told
    if name != "Restore":
        assert told.startswith(f"field `{path}` is ")


def test_a_restored_state_is_named_by_its_place() -> None:
    event = next(e for e in every_event() if e.name == "Restore")
    told = wrong(put(event, ("args", "states", 0, "state", "rollout_index"), 2))
    assert told == ("field `args.states[0].state.rollout_index` is 2, expected 0 to 1, as cohort_size in line 1 is 2")


def test_what_a_client_made_up_is_named_in_plain_characters() -> None:
    told = wrong(Event("Export", {"group": None, "anew": False}, {"states": {"é\x1b[31m": 5}}))
    assert told == r'field `reply.states["\u00e9\u001b[31m"]` is 5, expected an object'


def test_a_missing_field_and_an_unknown_action_are_named() -> None:
    assert wrong(Event("Publish", {"cohort": "k"}, {"published": True})) == "field `reply.answered` is missing"
    assert wrong(Event("Publisch", {}, None)) == (
        'field `event` is "Publisch", expected the name of an action, such as Submit'
    )


def test_a_restore_that_is_refused_for_an_odd_name_can_be_written() -> None:
    event = Event("RefuseRestore", {"reason": "newest_attempt differs from another session's of group 'é\n'"}, None)
    assert wrong(event) is None
    assert write(events.spec_event(event, Numbering())).isascii()
