"""Strict JSON: what is refused and where, what is accepted although msgspec would not, and every value unchanged."""

import json
import re
import tracemalloc
from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.steps import count_steps

from genrm_trio.judging import lenient
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
    "list with text behind": (b"[] x", 3),
    "NaN and worse behind it": (b'{"a":NaN,}', 5),
    "NaN behind a lone surrogate": (b'{"\\ud800":"\\\\ud800","b":NaN}', 24),
    "NaN behind an emoji": ('{"a":"\U0001f600","b":-Infinity}'.encode(), 13),
    "lone surrogate outside of a text": (b'{"a":\\ud800}', 5),
    "lone surrogate with a bad digit": (b'{"a":"\\ud8x0"}', 7),
    "backslashes outside of a text": (b'{"a":1\\\\}', 6),
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


MIB = 1 << 20
LONG = {
    "plain": b"x" * MIB,
    "escaped quotation marks": b'\\"' * (MIB // 2),
    "escaped backslashes": b"\\\\" * (MIB // 2),
    "letters between escapes": b"a\\n" * (MIB // 3),
    "lone surrogates": b"\\ud800" * (MIB // 6),
    "brackets": b"[{]}," * (MIB // 5),
}
FRAMES: dict[str, tuple[bytes, bytes]] = {
    "NaN behind": (b'{"a":"', b'","b":NaN}'),
    "junk behind": (b'{"a":"', b'"}x'),
    "no end": (b'{"a":"', b""),
    "a lone surrogate beside": (b'{"a":["\\ud800","', b'"]}'),
    "a key": (b'{"\\ud800', b'":1}'),
    "no object": (b'["', b'"]'),
}


@pytest.mark.parametrize(("text", "frame"), list(product(LONG, FRAMES)))
def test_memory_and_steps_do_not_grow_with_a_text(text: str, frame: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body = LONG[text].join(FRAMES[frame])
    steps = count_steps(monkeypatch, strict)
    raw = memoryview(b"[" + body + b"]")

    def read() -> None:
        strict.has_more_values(body, 2)
        try:
            strict.read_object(body)
        except InvalidBody:
            return
        strict.nested_deeper(raw, 9)
        strict.has_more_entries(raw, 1)
        list(strict.entries(raw))
        list(strict.each_entry(raw))
        list(strict.objects(raw))
        strict.members(raw[1:-1])

    tracemalloc.start()
    try:
        read()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * len(body)
    assert steps.longest <= 4 * 65_536


FILLINGS = [b"1,", b" ", b"true,", b"[],", b'"",', b"1:", b"-0.5e1,", b'{"a":[1]},', b"[1,2],", b"[[1],2],"]


@pytest.mark.parametrize("filling", FILLINGS)
@pytest.mark.parametrize("start", [b"[", b"[[", b'{"a":['])
def test_what_stands_between_texts_is_passed_in_steps(
    start: bytes, filling: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = count_steps(monkeypatch, strict)
    raw = memoryview(start + filling * (MIB // len(filling)) + b"1]]")
    assert not strict.has_more_values(bytes(raw), MIB)
    assert not strict.nested_deeper(raw, 9)
    assert not strict.has_more_entries(raw, MIB)
    assert steps.longest <= 4 * 65_536


def test_numbers_beside_a_lone_surrogate_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    body = b'{"a":["\\ud800",[0.1' + b",0.1" * 100_000 + b"]]}"
    tracemalloc.start()
    try:
        raw = strict.read_object(body)["a"]
        text, numbers = strict.entries(raw)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (strict.decode(text), len(numbers)) == ("\ud800", 400_005)
    assert peak < 3 * len(body)
    monkeypatch.setattr(strict, "_float", lambda _: 0.25)  # a call for each number: other threads have their turn
    assert strict.decode(raw) == ["\ud800", [0.25] * 100_001]


def test_a_mistake_in_a_large_body_is_where_it_is() -> None:
    long = "\u00e9" * 300_000
    for rest, offset in (("1 x}", 2), ("1}x", 2), ('"\\ud800",x}', 9), ("NaN}", 0), ("-Infinity}", 0)):
        found, (_, at) = refused(('{"a":"' + long + '","b":' + rest).encode())
        assert (found, at) == ("json_invalid", 12 + len(long) + offset)


def bounded(monkeypatch: pytest.MonkeyPatch, step: int, size: int) -> None:
    """Make pattern steps and slices tiny, so that every place of a small body is the end of one."""
    for name, value in list(vars(strict).items()):
        if isinstance(value, re.Pattern) and isinstance(value.pattern, bytes):
            pattern = value.pattern.replace(b"%d}" % strict._STEP, b"%d}" % step)
            pattern = pattern.replace(b"%d}" % strict._SPAN, b"%d}" % (step // 4 + 1))
            monkeypatch.setattr(strict, name, re.compile(pattern, re.DOTALL))
    monkeypatch.setattr(strict, "_SLICE", size)


def value_count(inner: object) -> int:
    if isinstance(inner, dict):
        return 1 + len(inner) + sum(map(value_count, inner.values()))
    return 1 + sum(map(value_count, inner)) if isinstance(inner, list) else isinstance(inner, str)


def depth(inner: object) -> int:
    if isinstance(inner, dict):
        inner = list(inner.values())
    return 1 + max(map(depth, inner), default=0) if isinstance(inner, list) else 0


odd_texts = st.lists(
    st.sampled_from(
        [
            "\\",
            '"',
            "x",
            "u",
            "d",
            "\ud800",
            "\udc00",
            "\U0001f600",
            "\U0010ffff",
            "\ue000",
            "ud800",
            "\n",
            "[",
            "}",
            ",",
        ]
    ),
    max_size=9,
).map("".join)
odd_values = st.recursive(
    odd_texts | st.sampled_from([0, -1.5, True, None, 10**30]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(odd_texts, inner, max_size=4),
    max_leaves=9,
)


@pytest.mark.parametrize("step", [1, 2, 3, 5, 8])
def test_every_cut_reads_the_same(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bounded(monkeypatch, step, max(step, 3))

    @given(st.dictionaries(odd_texts, odd_values, max_size=4), st.booleans(), st.sampled_from([None, 1]))
    def check(value: dict[str, object], ascii_: bool, indent: int | None) -> None:
        try:
            body = json.dumps(value, ensure_ascii=ascii_, indent=indent).encode()
        except UnicodeEncodeError:
            body = json.dumps(value, indent=indent).encode()
        expected = json.loads(body)
        listed = memoryview(b"[" + b" , ".join([body] * 2) + b"]")
        ways: list[Callable[[], dict[str, memoryview] | None]] = [
            lambda: strict.read_object(body),
            lambda: strict.members(memoryview(body)),
            lambda: strict.members(list(strict.entries(listed))[1]),
        ]
        for way in ways:
            assert {name: json.loads(bytes(raw)) for name, raw in (way() or {}).items()} == expected
        for count in (value_count(expected) - 1, value_count(expected)):
            assert strict.has_more_values(body, count) == (count < value_count(expected))
        assert not strict.nested_deeper(listed, depth(expected) + 1)
        assert strict.nested_deeper(listed, depth(expected))
        assert not strict.has_more_entries(listed, 2)
        assert strict.has_more_entries(listed, 1)
        entries = [*expected.values(), 1, expected, 2]
        text = memoryview(json.dumps(entries, indent=indent).encode())
        for split in (strict.entries, strict.each_entry):
            assert [json.loads(bytes(entry)) for entry in split(text)] == entries
        assert [json.loads(bytes(entry)) for entry in strict.objects(text)] == [
            e for e in entries if isinstance(e, dict)
        ]

    check()


@given(st.binary(max_size=12).map(lambda b: b"\\" * (len(b) % 5) + b), st.integers(3, 9))
def test_a_copy_keeps_every_place(source: bytes, size: int) -> None:
    whole = strict.without_surrogates(source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strict, "_SLICE", size)
        assert strict.without_surrogates(source) == whole
    assert len(whole) == len(source)


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
    assert [json.loads(bytes(entry)) for entry in strict.each_entry(raw)] == values
    assert [json.loads(bytes(entry)) for entry in strict.objects(raw)] == [v for v in values if isinstance(v, dict)]
    assert strict.has_more_entries(raw, most) == (len(values) > most)


@given(st.dictionaries(st.text(max_size=4), json_values, max_size=6), st.integers(0, 40))
def test_values_are_counted_before_they_are_made(value: dict[str, object], most: int) -> None:
    body, more = json.dumps(value).encode(), value_count(value) > most
    assert strict.has_more_values(body, most) == more
    assert lenient.has_more_values(body, most) == more, "of a judge's reply, too"


@pytest.mark.parametrize("body", [b'"' + b'\\"' * 2_000_000, b'{"' * 2_000_000, b'"\\' * 2_000_000, b'""' * 9 + b"\\"])
def test_broken_bodies_are_counted_in_linear_time(body: bytes) -> None:
    assert not strict.has_more_values(body, 4_000_000)
    lenient.has_more_values(body, 4_000_000)


@given(json_values)
def test_nesting_is_what_it_is(value: object) -> None:
    raw = memoryview(json.dumps(value).encode())
    assert not strict.nested_deeper(raw, depth(value))
    assert depth(value) == 0 or strict.nested_deeper(raw, depth(value) - 1)
