"""Strict JSON: what is refused and where, what is accepted although msgspec would not, and every value unchanged."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genrm_trio.web.errors import InvalidBody
from genrm_trio.web.wire import strict


def refused(body: bytes) -> tuple[str, tuple[str | int, ...]]:
    with pytest.raises(InvalidBody) as caught:
        strict.read_object(body)
    (problem,) = caught.value.problems
    return problem.type, problem.loc


BAD: dict[str, tuple[bytes, int]] = {
    "leading zero": (b'{"a":[01]}', 7),
    "no fraction": (b'{"a":[1.]}', 7),
    "plus": (b'{"a":[+1]}', 6),
    "bare fraction": (b'{"a":.5}', 5),
    "NaN": (b'{"a":[NaN]}', 6),
    "NaN behind a string of that name": (b'{"a":"NaN","b":[1,NaN]}', 18),
    "Infinity": (b'{"a":Infinity}', 5),
    "-Infinity": (b'{"a":-Infinity}', 5),
    "control character": (b'{"a":"x\ny"}', 7),
    "NUL": (b'{"a":"x\x00y"}', 7),
    "bad escape": (b'{"a":"\\x"}', 6),
    "short escape": (b'{"a":"\\u12"}', 7),
    "invalid UTF-8": (b'{"a":"\xff"}', 6),
    "surrogate in UTF-8": (b'{"a":"\xed\xa0\x80"}', 6),
    "overlong UTF-8": (b'{"a":"\xc0\x80"}', 6),
    "invalid UTF-8 in a key": (b'{"\xff":1}', 2),
    "byte order mark": (b'\xef\xbb\xbf{"a":1}', 0),
    "trailing text": (b'{"a":1} x', 8),
    "trailing comma": (b'{"a":1,}', 7),
    "comment": (b'{"a":1/**/}', 6),
    "half a text": (b'{"a":"', 5),
    "half an object": (b'{"a":1', 6),
    "only blanks": (b"  ", 2),
    "form feed": (b'\x0c{"a":1}', 0),
    "UTF-16": ('{"a":1}'.encode("utf-16-le"), 1),
    "broken list": (b"[1,", 3),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_json_is_refused_with_its_offset(name: str) -> None:
    body, offset = BAD[name]
    type_, (where, at) = refused(body)
    assert (type_, where) == ("json_invalid", "body")
    assert at == offset


def test_no_body_and_no_object() -> None:
    assert refused(b"") == ("missing", ("body",))
    for body in (b"[]", b"1", b"null", b'"x"', b' "\\ud800" '):
        assert refused(body) == ("dict_type", ("body",))


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
@pytest.mark.parametrize("depth", [2_000, 1_000_000])
def test_deep_nesting_is_refused(opening: bytes, depth: int) -> None:
    closing = b"]" if opening == b"[" else b"}"
    assert refused(b'{"a":' + opening * depth + b"1" + closing * depth + b"}")[0] == "json_invalid"


ODD = {
    "lone surrogate": '{"a":"\\ud800","b":"\\udfffx"}',
    "lone surrogate in a key": '{"\\ud800":1,"b":{"\\udc00":2}}',
    "beyond 64 bits": '{"a":123456789012345678901234567890,"b":-9999999999999999999999}',
    "five thousand digits": '{"a":%s,"b":"\\ud800"}' % ("7" * 5000),
    "beyond every double": '{"a":1e999,"b":-1E+999}',
    "four-byte text": '{"a":"\U0001f600","\U0001f600":"\\ud83d\\ude00"}',
    "NUL escape": '{"a":"\\u0000"}',
    "odd spelling": ' { "a" :\t1.50e+01 , "b":-0,"c":[ ] }\n',
    "empty": " { } ",
    "surrogate and blanks": ' { "a" : "\\ud800" , "b" : [ 1 , 2 ] } ',
}


@pytest.mark.parametrize("name", ODD)
def test_odd_values_come_back_byte_for_byte(name: str) -> None:
    text = ODD[name]
    found = strict.read_object(text.encode())
    pairs = json.JSONDecoder(parse_int=str, parse_float=str, object_pairs_hook=lambda p: p).decode(text)
    assert list(found) == [key for key, _ in pairs]
    for raw in found.values():
        assert bytes(raw).decode() in text


def test_the_last_of_duplicate_keys_wins_on_both_ways() -> None:
    assert bytes(strict.read_object(b'{"a":1,"a":2}')["a"]) == b"2"
    assert bytes(strict.read_object(b'{"a":1,"a":2,"b":"\\ud800"}')["a"]) == b"2"


def test_integers_too_long_for_python_are_refused_only_where_their_value_is_wanted() -> None:
    raw = memoryview(b"7" * 5000)
    assert strict.decode_texts(raw) == 0
    with pytest.raises(InvalidBody):
        strict.decode(raw)
    assert strict.decode(memoryview(b"7" * 300)) == int("7" * 300)


def test_the_slow_way_is_linear() -> None:
    blanks = b" " * 2_000_000
    body = b'{"a":"\\ud800",' + blanks + b'"b":[' + b"1," * 200_000 + b"1]" + blanks + b"}"
    assert len(strict.read_object(body)) == 2


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec=None)), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(st.characters(codec=None)), json_values, max_size=5))
def test_whatever_json_writes_is_read_back(value: dict[str, object]) -> None:
    body = json.dumps(value).encode()
    found = strict.read_object(body)
    expected = json.loads(body)
    assert {name: strict.decode(raw) for name, raw in found.items()} == expected


@given(st.dictionaries(st.text(max_size=3), json_values, max_size=3), st.data())
def test_a_changed_byte_is_refused_exactly_when_the_standard_library_refuses_it(
    value: dict[str, object], data: st.DataObject
) -> None:
    body = bytearray(json.dumps(value, ensure_ascii=data.draw(st.booleans())).encode("utf-8", "surrogatepass"))
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] = data.draw(st.integers(0, 255))
    try:
        json.loads(body.decode("utf-8"), parse_constant=lambda name: json.loads("!"))
        fine = isinstance(json.loads(body.decode("utf-8")), dict)
    except ValueError:
        fine = False
    try:
        strict.read_object(bytes(body))
        accepted = True
    except InvalidBody:
        accepted = False
    assert accepted == fine


@given(st.lists(json_values, max_size=8), st.integers(1, 9))
def test_entries_are_counted_before_they_are_made(values: list[object], most: int) -> None:
    raw = memoryview(json.dumps(values).encode())
    assert [json.loads(bytes(entry)) for entry in strict.entries(raw)] == values
    assert strict.has_more_entries(raw, most) == (len(values) > most)


@given(st.dictionaries(st.text(max_size=4), json_values, max_size=6), st.integers(0, 40))
def test_values_are_counted_before_they_are_made(value: dict[str, object], most: int) -> None:
    def count(inner: object) -> int:
        if isinstance(inner, dict):
            return 1 + len(inner) + sum(map(count, inner.values()))
        return 1 + sum(map(count, inner)) if isinstance(inner, list) else isinstance(inner, str)

    assert strict.has_more_values(json.dumps(value).encode(), most) == (count(value) > most)


@pytest.mark.parametrize("body", [b'"' + b'\\"' * 2_000_000, b'{"' * 2_000_000, b'"\\' * 2_000_000, b'""' * 9 + b"\\"])
def test_broken_bodies_are_counted_in_linear_time(body: bytes) -> None:
    assert not strict.has_more_values(body, 4_000_000)


@given(json_values)
def test_nesting_is_what_it_is(value: object) -> None:
    def depth(inner: object) -> int:
        if isinstance(inner, dict):
            inner = list(inner.values())
        return 1 + max(map(depth, inner), default=0) if isinstance(inner, list) else 0

    raw = memoryview(json.dumps(value).encode())
    assert not strict.nested_deeper(raw, depth(value))
    assert depth(value) == 0 or strict.nested_deeper(raw, depth(value) - 1)
