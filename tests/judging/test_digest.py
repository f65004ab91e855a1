"""Digests: what makes two responses the same, whichever way they were written and read.

The reference is the definition in the contract written down slowly, with the standard library alone.
"""

import json
import math
import tracemalloc
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from genrm_trio.core.record import DIGEST_SCHEMES
from genrm_trio.judging import digest
from genrm_trio.judging.digest import (
    KNOWN_SCHEMES,
    LEGACY_SCHEME,
    MAX_DEPTH,
    SCHEME,
    TOKEN_ARRAYS,
    DigestError,
    UnknownScheme,
    prompt_digest,
    response_digest,
)

Draw = Callable[[st.SearchStrategy[Any]], Any]

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
INTEGERS = st.integers() | st.integers(-(10**30), 10**30)
TEXTS = st.text(alphabet=st.characters(), max_size=5) | st.sampled_from(["\ud800", "\udc00x", "😀", "é", '"\\\n'])
KEYS = st.sampled_from(["a", "b", "é", "\ud83d", "output", "id", *sorted(TOKEN_ARRAYS)]) | st.text(max_size=3)
VALUES = st.recursive(
    st.none() | st.booleans() | INTEGERS | FLOATS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
NUMBERS = st.lists(FLOATS | INTEGERS, max_size=6) | st.lists(FLOATS, max_size=6)
ITEMS = st.dictionaries(st.sampled_from(sorted(TOKEN_ARRAYS)), NUMBERS | st.lists(NUMBERS, max_size=3))
RESPONSES = st.fixed_dictionaries({"id": TEXTS, "output": st.lists(ITEMS | VALUES, max_size=3), "more": VALUES})


def reference(value: Any) -> str:
    """Return the digest by definition, from a decoded value."""
    return sha256(written(value).encode("ascii")).hexdigest()


def written(value: Any) -> str:
    if isinstance(value, dict):
        members = {k: hashed(k, v) for k, v in value.items() if v is not None}
        return "{" + ",".join(f"{json.dumps(k)}:{members[k]}" for k in sorted(members)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(written(v) for v in value) + "]"
    if isinstance(value, float):
        return str(int(value)) if value == int(value) else repr(value)
    return json.dumps(value)


def hashed(key: str, value: Any) -> str:
    text = written(value)
    return f'"{sha256(text.encode("ascii")).hexdigest()}"' if key in TOKEN_ARRAYS and isinstance(value, list) else text


def spelled(value: Any, draw: Draw) -> str:
    """Write a value as JSON in one of the ways in which it can be written."""
    space: str = draw(st.sampled_from(["", " ", "\n", "\t\r"]))
    if isinstance(value, dict):
        members = [
            f"{spelled(k, draw)}:{space}{spelled(v, draw)}" for k, v in draw(st.permutations(list(value.items())))
        ]
        absent = draw(st.sampled_from(["nothing", "neither", "none"]))
        if absent not in value and draw(st.booleans()):
            members.append(f'"{absent}" :null')
        if members and draw(st.booleans()):  # an earlier member of the same name does not count
            members.insert(0, f"{json.dumps(draw(st.sampled_from(list(value) or [absent])))}:[null]")
        return "{" + f"{space},".join(members) + "}"
    if isinstance(value, list):
        return "[" + f",{space}".join(spelled(v, draw) for v in value) + space + "]"
    if isinstance(value, float):
        return str(draw(st.sampled_from(float_spellings(value))))
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53:
        tenth = f"{value}0E-1" if value else "0E7"
        return str(draw(st.sampled_from([str(value), f"{value}.0", f"{value}.000", f"{value}e0", tenth])))
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=draw(st.booleans()) or any("\ud800" <= c <= "\udfff" for c in value))
    return json.dumps(value)


def float_spellings(value: float) -> list[str]:
    spellings = [repr(value), f"{value:.17e}", f"{value:.20E}"]
    return spellings + ([str(int(value))] if value == int(value) and abs(value) < 2**53 else [])


@given(RESPONSES | VALUES, st.data())
def test_every_spelling_has_the_digest_of_the_definition(value: Any, data: st.DataObject) -> None:
    raw = spelled(value, data.draw).encode()
    assert response_digest(raw) == reference(value)


@given(RESPONSES | VALUES)
def test_an_echo_and_a_re_dump_are_the_same_answer(value: Any) -> None:
    raw = json.dumps(value).encode()
    again = json.dumps(json.loads(raw), separators=(",", ":"), sort_keys=True).encode()
    assert response_digest(raw) == response_digest(again) == reference(value)


@given(st.lists(FLOATS | st.integers(-(2**53), 2**53), min_size=1))
@example([0.0, -0.0, 1e-4, 9.999e-5, 1.5e-5, 1e-5, 1e-7, 5e-324, 1e15, 1e16, 1e21, 1e22, 1.7976931348623157e308])
@example([2.0**-44, 9.5367431640625e-07, 123456.7, 4.35, 0.1 + 0.2, 2e23 + 0.0])
def test_token_arrays_are_hashed_in_shortest_form(values: list[float]) -> None:
    raw = json.dumps({"output": [{"generation_log_probs": values}]}).encode()
    assert response_digest(raw) == reference({"output": [{"generation_log_probs": values}]})


def test_long_arrays_are_written_in_pieces_without_a_seam() -> None:
    for length in (1, digest._CHUNK - 1, digest._CHUNK, digest._CHUNK + 1, 3 * digest._CHUNK):
        value = {"generation_log_probs": [-k / 7 for k in range(length)], "x": [k / 3 for k in range(length)]}
        assert response_digest(json.dumps(value).encode()) == reference(value)


@pytest.mark.parametrize("name", sorted(TOKEN_ARRAYS))
def test_two_spellings_of_a_token_array_are_one(name: str) -> None:
    spellings = ["[1,2,3]", "[ 1 , 2.0 ,3e0 ]", "[1.0,2,0.3e1]", "[1,\n2,\t3]"]
    digests = {response_digest(f'{{"output":[{{"{name}":{text}}}]}}'.encode()) for text in spellings}
    assert digests == {reference({"output": [{name: [1, 2, 3]}]})}


@given(RESPONSES, st.data())
def test_any_other_token_is_another_answer(value: dict[str, Any], data: st.DataObject) -> None:
    tokens = data.draw(st.lists(st.integers(0, 200_000), min_size=1))
    at = data.draw(st.integers(0, len(tokens) - 1))
    changed = [*tokens[:at], tokens[at] + 1, *tokens[at + 1 :]]
    name = data.draw(st.sampled_from(sorted(TOKEN_ARRAYS)))
    one, other = ({**value, "output": [{name: array}]} for array in (tokens, changed))
    assert response_digest(json.dumps(one).encode()) != response_digest(json.dumps(other).encode())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a":1}', '{"a":1,"b":2}'),
        ('{"a":[null]}', '{"a":[]}'),
        ('{"a":{}}', '{"b":{}}'),
        ('{"a":"1"}', '{"a":1}'),
        ('{"a":true}', '{"a":1}'),
        ('{"a":"\\ud800"}', '{"a":"\\ufffd"}'),
        ('{"a":1208925819614629174706176}', '{"a":1208925819614629174706177}'),
        ('{"a":"x "}', '{"a":"x"}'),
    ],
)
def test_different_answers(one: str, other: str) -> None:
    assert response_digest(one.encode()) != response_digest(other.encode())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a":1,"a":2}', '{"a":2}'),
        ('{"a":1,"a":null}', "{}"),
        ('{"output":[{"a":[1],"a":[2]}]}', '{"output":[{"a":[2]}]}'),
        ('{"a":-0}', '{"a":0.0}'),
        ('{"a":-0.0}', '{"a":0}'),
        ('{"a":"\\u00e9\\/"}', '{"a":"é/"}'),
        ('{"a":"\\uD83D\\uDE00"}', '{"a":"😀"}'),
        ('{"a":1.2089258196146292e24}', '{"a":1208925819614629174706176}'),
        (" { } ", "{}"),
        ("[1.0]", "[1]"),
    ],
)
def test_the_same_answer(one: str, other: str) -> None:
    assert response_digest(one.encode()) == response_digest(other.encode())


def test_integers_of_any_length_are_carried() -> None:
    for digits in (19, 20, 400, 641, 4300, 4301, 20_000):
        number = "9" * digits
        for raw in (f'{{"a":{number}}}', f'{{"a":-{number},"prompt_token_ids":[{number},-1]}}'):
            spaced = raw.replace(":", ": ").replace(",", " , ")
            assert response_digest(raw.encode()) == response_digest(spaced.encode())
            assert response_digest(raw.encode()) != response_digest(raw.replace("9", "8", 1).encode())


@pytest.mark.parametrize("scheme", sorted(KNOWN_SCHEMES))
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b'{"a":NaN}',
        b'{"a":[Infinity]}',
        b'{"a":-Infinity}',
        b'{"a":1e400}',
        b'{"created_at":1' + b"0" * 400 + b".0}",
        b'{"output":[{"generation_log_probs":[1.5,-1e999]}]}',
        b'{"prompt_token_ids":[1,NaN]}',
        b'{"a":"\xff"}',
        b'{"a":"\xed\xa0\x80"}',
        b"\xef\xbb\xbf{}",
        b'{"prompt_token_ids":[01]}',
        b'{"prompt_token_ids":[1 2]}',
        b'{"a":"\x01"}',
        b"{'a':1}",
        b"{} {}",
        '{"a":1}'.encode("utf-16"),
    ],
)
def test_what_is_not_json_is_refused_and_never_hashed(raw: bytes, scheme: str) -> None:
    with pytest.raises(DigestError):
        response_digest(raw, scheme)


def nested(depth: int, leaf: str) -> list[bytes]:
    """Return texts that are `depth` containers deep, by several ways of nesting."""
    return [
        ('{"a":' * depth + leaf + "}" * depth).encode(),
        ('{"a":' + "[" * (depth - 1) + leaf + "]" * (depth - 1) + "}").encode(),
        ('{"output":[' + '{"a":' * (depth - 2) + leaf + "}" * (depth - 2) + "]}").encode(),
        ('{"prompt_token_ids":' + "[" * (depth - 1) + leaf + "]" * (depth - 1) + "}").encode(),
        ('{"output":[{"routed_experts":' + "[" * (depth - 3) + leaf + "]" * (depth - 3) + "}]}").encode(),
    ]


@pytest.mark.parametrize("leaf", ["1", "0.5", '"\\ud800"'])
def test_nesting_is_bounded_the_same_way_for_every_way_of_reading(leaf: str) -> None:
    for raw in nested(MAX_DEPTH, leaf):
        response_digest(raw)
    for depth in (MAX_DEPTH + 1, 5_000, 200_000):
        for raw in nested(depth, leaf):
            with pytest.raises(DigestError, match="nested"):
                response_digest(raw)


def test_the_legacy_scheme_bounds_nesting_too() -> None:
    for depth in (MAX_DEPTH + 1, 100_000):
        with pytest.raises(DigestError, match="nested"):
            response_digest(nested(depth, "1")[0], LEGACY_SCHEME)


def no_number(name: str) -> None:
    raise ValueError(name)


@given(st.binary() | st.text(alphabet=st.sampled_from('{}[]",:0-.eE1ntu\\ ')).map(str.encode))
def test_arbitrary_bytes_have_a_digest_exactly_when_they_are_json(raw: bytes) -> None:
    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=no_number)
    except ValueError:
        with pytest.raises(DigestError):
            response_digest(raw)
    else:
        if "Infinity" not in json.dumps(value):
            assert response_digest(raw) == reference(value)


def test_a_wide_array_is_not_read_as_a_deep_one() -> None:
    experts = [[[k, k + 1]] * 3 for k in range(MAX_DEPTH)]
    raw = json.dumps({"output": [{"routed_experts": experts}]}).encode()
    assert response_digest(raw) == reference({"output": [{"routed_experts": experts}]})


def test_memory_stays_proportional_to_the_body() -> None:
    item = {"prompt_token_ids": list(range(100_000)), "generation_log_probs": [-k / 7 for k in range(50_000)]}
    raw = json.dumps({"output": [item]}).encode()
    tracemalloc.start()
    response_digest(raw)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 * len(raw)


def test_plain_token_ids_are_never_read_as_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    decode = msgspec.json.decode

    def counting(raw: bytes, **how: Any) -> Any:
        read.append(0 if how else len(raw))
        return decode(raw, **how)

    monkeypatch.setattr(msgspec.json, "decode", counting)
    raw = json.dumps({"id": "x", "output": [{"type": "message", "prompt_token_ids": list(range(9_999))}]}).encode()
    response_digest(raw)
    assert sum(read) < 100


# --- the scheme that is only read


def legacy(response: dict[str, Any]) -> str:
    return response_digest(json.dumps(response).encode(), LEGACY_SCHEME)


def test_the_legacy_scheme_knows_a_re_dump_but_keeps_the_spelling_of_numbers() -> None:
    item = {"type": "message", "content": [], "x": 1.0}
    original = {"id": "r", "created_at": 1, "output": [item]}
    re_dump = {"user": None, **original, "created_at": 1.0, "output": [{**item, "status": None}]}
    assert legacy(original) == legacy(re_dump)
    assert legacy(original) != legacy({**original, "output": [{**item, "x": 1}]})


def test_the_legacy_scheme_does_not_hash_arrays_apart() -> None:
    response = {"id": "r", "output": [{"prompt_token_ids": [1, 2]}]}
    fields: dict[str, Any] = dict.fromkeys(digest._LEGACY_FIELDS.split())
    text = json.dumps({**fields, **response}, sort_keys=True, separators=(",", ":"))
    assert legacy(response) == sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    "raw", [b"[]", b'"text"', b"1", b'{"a":' + b"9" * 5000 + b"}", b'{"created_at":1' + b"0" * 400 + b"}"]
)
def test_what_the_legacy_scheme_cannot_hold(raw: bytes) -> None:
    with pytest.raises(DigestError):
        response_digest(raw, LEGACY_SCHEME)


def test_schemes() -> None:
    assert KNOWN_SCHEMES == DIGEST_SCHEMES == {SCHEME, LEGACY_SCHEME}
    with pytest.raises(UnknownScheme, match="genrm-trio-2"):
        response_digest(b"{}", "genrm-trio-2")


# --- prompts


def test_suffixes_come_in_their_order() -> None:
    baseline = sha256("wörter".encode()).hexdigest()
    plain = prompt_digest("Hello", None)
    assert len(plain) == 64
    assert prompt_digest("Hello", None, baseline="wörter") == f"{plain}:{baseline}"
    assert prompt_digest("Hello", None, rubric_ids=(5, 1, 2, 1)) == f"{plain}:rubrics:1,2,5"
    assert prompt_digest("Hello", None, baseline="wörter", rubric_ids=(1,)) == f"{plain}:{baseline}:rubrics:1"


def test_null_members_and_a_missing_type_do_not_make_another_prompt() -> None:
    easy = [{"role": "user", "content": [{"type": "input_text", "text": "a", "detail": None}], "type": None}]
    full = [{"type": "message", "role": "user", "content": [{"text": "a", "type": "input_text"}]}]
    assert prompt_digest(easy, "p") == prompt_digest(full, "p")
    assert prompt_digest(easy, "p") != prompt_digest(easy, None)
    assert prompt_digest(easy, "") != prompt_digest(easy, None)


def test_only_messages_gain_a_type() -> None:
    assert digest.normalised_input([{"id": "x"}, "y", {"type": "reasoning", "role": "a"}]) == [
        {"id": "x"},
        "y",
        {"type": "reasoning", "role": "a"},
    ]


@given(VALUES)
def test_a_prompt_has_a_digest_whatever_it_is(value: Any) -> None:
    assert len(prompt_digest(value, "\ud800", baseline="\udfff")) == 129


@pytest.mark.parametrize("value", [[math.nan], [{"a": math.inf}], math.nan])
def test_a_prompt_with_what_is_not_json_is_refused(value: Any) -> None:
    with pytest.raises(DigestError):
        prompt_digest(value, None)


def test_a_prompt_nested_too_deep_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(MAX_DEPTH):
        deep = [deep]
    with pytest.raises(DigestError, match="nested"):
        prompt_digest(deep, None)
