"""TLA+ values: what TLC prints is read, what is written TLC reads, and equal values are equal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genrm_trio.ops.tla.values import Map, Value, elements, function, parse, record, write

SCALARS = st.one_of(
    st.booleans(), st.integers(2), st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=5)
)


def nested(inner: st.SearchStrategy[Value]) -> st.SearchStrategy[Value]:
    names = st.from_regex(r"[a-z][a-z_0-9]{0,3}", fullmatch=True)
    return st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.frozensets(inner, max_size=3),
        st.dictionaries(names, inner, max_size=3).map(lambda fields: function(fields.items())),
        st.dictionaries(inner, inner, max_size=3).map(lambda pairs: function(pairs.items())),
    )


VALUES = st.recursive(SCALARS, nested, max_leaves=12)


@given(VALUES)
def test_what_is_written_is_read_back(value: Value) -> None:
    assert parse(write(value)) == value


@given(st.lists(VALUES, max_size=4))
def test_the_elements_of_a_sequence_are_found_unread(values: list[Value]) -> None:
    text = write(tuple(values))
    assert [parse(element) for element in elements(text)] == values


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<<>>", ()),
        ("<< >>", ()),
        ("{}", frozenset()),
        ("TRUE", True),
        ("-3", -3),
        (r'"a \"b\" \\ c"', 'a "b" \\ c'),
        ("[g |-> 1, ok |-> FALSE]", record(g=1, ok=False)),
        ("(0 :> <<1>> @@ 1 :> <<>>)", Map({0: (1,), 1: ()})),
        ('(<<"g", 0>> :> {2, 3})', Map({("g", 0): frozenset({2, 3})})),
        ('(1 :> "a" @@ 2 :> "b")', ("a", "b")),
    ],
)
def test_values_as_tlc_prints_them(text: str, value: Value) -> None:
    assert parse(text) == value


@pytest.mark.parametrize("text", ["", "<<1", "[a |-> ]", "(1 :> 2 @@ )", "<<1>> <<2>>", "{1, 2", "[a :> 1]", "oops"])
def test_what_is_no_value_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"TLA\+ value|function"):
        parse(text)


def test_maps_can_be_members_of_sets() -> None:
    assert frozenset({record(a=1), record(a=1)}) == {record(a=1)}


def test_text_that_tlc_cannot_read_is_not_written() -> None:
    with pytest.raises(ValueError, match="TLC reads no such text"):
        write("é")
