"""Opening one level of JSON: the result agrees with a full parser, and no byte of a value changes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from host.jsonrpc.raw import (
    change_at,
    encode,
    encode_object,
    has_only,
    is_json,
    is_object,
    items,
    may_contain_word,
    members,
    members_if_object,
    one_line,
    pick,
    string,
    text_at,
    text_below,
    unless_null,
    value,
    with_members,
)
from tests.kit.cost import assert_costs_less
from tests.kit.examples import examples

CALM = settings(max_examples=examples(60))
LONE = "\ud83d"

ANY_TEXT = st.text(st.characters(exclude_categories=()))  # lone surrogates too
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4),
    max_leaves=12,
)
BLANKS = st.text(" \t\r\n", max_size=3)


@st.composite
def pieces(draw: st.DrawFn) -> bytes:
    """One JSON text in one of its possible spellings."""
    return json.dumps(draw(JSON), ensure_ascii=True, indent=draw(st.sampled_from([None, 0, 2]))).encode()


@CALM
@given(st.dictionaries(ANY_TEXT, pieces(), max_size=5), BLANKS)
def test_members_agree_with_a_whole_parser_and_keep_their_bytes(parts: dict[str, bytes], blank: str) -> None:
    inside = ",".join(f"{blank}{json.dumps(name)}{blank}:{blank}{text.decode()}" for name, text in parts.items())
    document = f"{blank}{{{inside}{blank}}}{blank}".encode()
    found = members(document)
    assert {name: bytes(piece) for name, piece in found.items()} == parts
    assert {name: json.loads(bytes(piece)) for name, piece in found.items()} == json.loads(document)


@CALM
@given(st.lists(pieces(), max_size=5), BLANKS)
def test_items_agree_with_a_whole_parser_and_keep_their_bytes(parts: list[bytes], blank: str) -> None:
    inside = ",".join(f"{blank}{text.decode()}{blank}" for text in parts)
    document = f"{blank}[{inside}{blank}]{blank}".encode()
    found = items(document)
    assert [bytes(piece) for piece in found] == parts
    assert [json.loads(bytes(piece)) for piece in found] == json.loads(document)


@CALM
@given(st.dictionaries(ANY_TEXT, JSON, max_size=5))
def test_opening_and_closing_an_object_changes_nothing(document: dict[str, object]) -> None:
    assert json.loads(bytes(encode_object(members(json.dumps(document).encode())))) == document


@CALM
@given(JSON, st.sampled_from([None, 0, 1, 2]))
def test_one_line_is_the_same_document_on_one_line(document: object, indent: int | None) -> None:
    text = json.dumps(document, indent=indent).replace("\n", "\r\n").encode()
    flat = one_line(text)
    assert b"\n" not in flat
    assert b"\r" not in flat
    assert len(flat) == len(text)
    assert json.loads(flat) == document


@CALM
@given(st.dictionaries(ANY_TEXT, JSON, max_size=5), st.sets(st.text(max_size=3), max_size=3))
def test_picking_gives_some_of_the_members(document: dict[str, object], more: set[str]) -> None:
    text = json.dumps(document).encode()
    readable = not any(0xD800 <= ord(char) < 0xE000 for char in str(json.dumps(document, ensure_ascii=False)))
    names = frozenset((*list(document)[:2], *more))
    if not readable:
        with pytest.raises(ValueError):
            pick(text, names)
    else:
        found = pick(text, names)
        assert {name: json.loads(bytes(each)) for name, each in found.items()} == {
            name: document[name] for name in names & document.keys()
        }
        assert has_only(text, names) == (document.keys() <= names)


@CALM
@given(pieces(), st.sampled_from(["", " ", "x", '"', "\\", "\\ud8", "]"]))
def test_json_is_what_the_standard_library_reads(text: bytes, beside: str) -> None:
    changed = text[: len(text) // 2] + beside.encode() + text[len(text) // 2 :]
    try:
        json.loads(changed.decode())
        readable = True
    except ValueError:
        readable = False
    assert is_json(changed) == readable


def test_one_line_gives_back_what_is_one_line_already() -> None:
    text = b'{"a": "\\n"}'
    assert one_line(text) is text


PAYLOADS = [
    pytest.param(b"0.12345678901234567890123", id="more digits than a float holds"),
    pytest.param(b"10000000000000000000001", id="an integer beyond 64 bits"),
    pytest.param(b"-0.0", id="negative zero"),
    pytest.param(b"1.0", id="a float that is whole"),
    pytest.param(b"1E+400", id="a number beyond floats"),
    pytest.param(b"1" * 5000, id="more digits than Python converts"),
    pytest.param(b'"\\u00e9\\/\\u0000\\ud83d\\ude00"', id="escapes"),
    pytest.param(b'"\\ud83d"', id="half an emoji"),
    pytest.param(b'{"z":1,"a":2,"z":3}', id="members out of order and doubled"),
    pytest.param('{"é\u2028":[ 1 ,\t2 ]}'.encode(), id="white space and raw unicode"),
    pytest.param(b"null", id="null"),
    pytest.param(b"[[[[]]]]", id="nested"),
]
OTHERS = [pytest.param("", id="by itself"), pytest.param(r', "cut\ud83d": 1', id="beside a half emoji's member")]


@pytest.mark.parametrize("beside", OTHERS)
@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_payload_keeps_its_bytes(payload: bytes, beside: str) -> None:
    document = b'{"p": ' + payload + beside.encode() + b"}"
    found = members(document)
    assert bytes(found["p"]) == payload
    assert bytes(members(encode_object(found))["p"]) == payload
    assert bytes(encode([found["p"]])) == b"[" + payload + b"]"


@pytest.mark.parametrize("payload", PAYLOADS)
def test_an_item_keeps_its_bytes(payload: bytes) -> None:
    assert [bytes(item) for item in items(b"[ " + payload + b" , 1 ]")] == [payload, b"1"]


def test_the_last_of_doubled_members_counts_as_in_every_parser_we_know() -> None:
    assert {name: bytes(piece) for name, piece in members(b'{"a":1,"b":2,"a":3}').items()} == {"a": b"3", "b": b"2"}
    assert bytes(members(b'{"a":1,"a":3,"\\udc00":0}')["a"]) == b"3"


def test_a_member_whose_name_holds_a_lone_surrogate_is_written_with_its_escape() -> None:
    assert bytes(encode_object(members(b'{"\\ud83d":1,"b":2}'))) == b'{"\\ud83d":1,"b":2}'


NO_JSON = [
    b"",
    b" ",
    b"{",
    b"[",
    b"}",
    b'{"a"}',
    b'{"a":}',
    b'{"a":1,}',
    b'{"a":1 "b":2}',
    b'{"a" 1}',
    b"{a:1}",
    b"{1:1}",
    b'{"a":1}{}',
    b"{} {}",
    b'{"a":1} x',
    b'{"a":"\n"}',
    b'{"a":"\x01"}',
    b'{"a":"\\x"}',
    b'{"a":"\\ud83d","b":01}',
    b'{"a":"\\ud83d","b":NaN}',
    b'{"a":"\\ud83d","b":Infinity}',
    b'{"a":-Infinity}',
    b'{"a":NaN}',
    b'{"a":tru}',
    b'{"a":1.}',
    b'{"\\ud83d\n":1}',
    b"\xef\xbb\xbf{}",
    '{"a":1}'.encode("utf-16"),
    b'\xa0{"a":1}',
]


@pytest.mark.parametrize("text", NO_JSON)
def test_what_is_no_json_object_has_no_members(text: bytes) -> None:
    with pytest.raises(ValueError):
        members(text)


@pytest.mark.parametrize(
    "text", [b"[] []", b"[1,]", b"[1 2]", b"[", b"[1]]", b"[NaN]", b'["\\ud83d",]', b'["\\ud83d" 1]', b""]
)
def test_what_is_no_json_array_has_no_items(text: bytes) -> None:
    with pytest.raises(ValueError):
        items(text)


@pytest.mark.parametrize("text", [b"[]", b"1", b'"a"', b"null", b"true"])
def test_only_an_object_has_members(text: bytes) -> None:
    with pytest.raises(ValueError):
        members(text)
    assert not is_object(text)


@pytest.mark.parametrize("text", [b"{}", b"1", b'"a"', b"null", b"true"])
def test_only_an_array_has_items(text: bytes) -> None:
    with pytest.raises(ValueError):
        items(text)


def test_empty_ones_are_empty_the_slow_way_too() -> None:
    assert members(b" { } ") == {}
    assert items(b" [ ] ") == []


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"\\ud83d":' + b"[" * 100_000 + b"]" * 100_000 + b"}"])
def test_a_bomb_of_brackets_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError):
        members(text)
    with pytest.raises(ValueError):
        items(b"[" + text + b"]")


def test_the_slow_way_takes_time_in_proportion() -> None:
    text = b'{"\\ud83d":[' + b"1,\n" * 300_000 + b"1]" + b" " * 100_000 + b"}"
    assert len(items(members(text)["\ud83d"])) == 300_001
    assert_costs_less(lambda: items(members(text)["\ud83d"]), 2)


@pytest.mark.parametrize("text", [b"1", b"null", b"{}", b'"\\ud83d"', b'"\xff"', b'"a', b""])
def test_what_is_no_string_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError):
        string(text)


def test_a_string_is_decoded() -> None:
    assert string(Raw(b'"\\u0041\\n\xc3\xa9"')) == "A\né"


def test_a_member_that_is_no_string_has_no_text() -> None:
    found = members(b'{"a":"x","b":1,"c":"\\ud83d"}')
    assert [text_at(found, name) for name in "abcd"] == ["x", None, None, None]


@pytest.mark.parametrize("raw", [None, Raw(b"[]"), Raw(b"null"), Raw(b'{"a"'), Raw(b"")])
def test_what_is_no_object_counts_as_empty_where_that_is_asked(raw: Raw | None) -> None:
    assert members_if_object(raw) == {}
    assert text_below(raw, "a") is None


def test_a_text_is_found_below_other_objects() -> None:
    raw = Raw(b'{"a":{"b":"x","c":1},"d":"y"}')
    assert text_below(raw, "d") == "y"
    assert text_below(raw, "a", "b") == "x"
    assert [text_below(raw, *path) for path in (("a",), ("a", "c"), ("a", "e"), ("d", "b"), ("e", "b"))] == [None] * 5


def test_an_object_whose_members_are_those_found_is_not_written_again() -> None:
    raw = Raw(b'{ "a": 1, "b": 2 }')
    found = members(raw)
    assert with_members(raw, found, dict(found)) is raw
    assert with_members(raw, found, {"a": found["a"]}) == Raw(b'{"a":1}')
    assert with_members(raw, found, {**found, "b": Raw(b"3")}) == Raw(b'{"a":1,"b":3}')


def test_only_the_values_at_a_place_are_changed() -> None:
    raw = Raw(b'{"a":[{"b": 1},{"c":2},3],"d":4}')
    changed = change_at(raw, ("a", "*", "b"), lambda each: Raw(bytes(each) + b"0"))
    assert changed == Raw(b'{"a":[{"b":10},{"c":2},3],"d":4}')
    assert change_at(raw, ("a", "*", "b"), lambda each: each) is raw
    for nowhere in (("e",), ("d", "*"), ("a", "b"), ("a", "*", "b", "f")):
        assert change_at(raw, nowhere, lambda _: Raw(b"0")) is raw


def test_a_value_is_decoded_whole() -> None:
    assert value(b'{"a":[1,null]}') == {"a": [1, None]}
    with pytest.raises(ValueError):
        value(b'{"a":')
    with pytest.raises(ValueError):
        value(b"[" * 100_000)


@pytest.mark.parametrize(
    ("text", "may"),
    [
        (b'{"a/b":1}', True),
        (b'{"a\\/b":1}', True),
        (b'{"\\u0061/b":1}', True),
        (b'{"c":"a/b"}', True),
        (b'{"c":"de"}', True),
        (b'{"c":"d\\n"}', True),
        (b'{"c":1}', False),
    ],
)
def test_what_need_not_be_opened_is_not(text: bytes, may: bool) -> None:
    assert may_contain_word(text, "a/b", "de") is may
    assert may_contain_word(Raw(text), "a/b", "de") is may


@pytest.mark.parametrize(
    ("text", "may"),
    [(b'"\\n\\/\\ud83d"', False), (b'"\\u0061"', True), (b'"\\u005F"', True), (b'"ab"', True), (b'"a"', False)],
)
def test_only_letters_by_number_hide_a_word_without_a_slash(text: bytes, may: bool) -> None:
    assert may_contain_word(text, "ab") is may


@pytest.mark.parametrize("text", [b'{"a": null , "b":\n"null"\t}', b'{"\\ud83d":1,"a":\tnull\r,"b": "null" }'])
def test_a_member_that_is_null_is_missing_however_it_is_spaced(text: bytes) -> None:
    found = members(text)
    assert [unless_null(found.get(name)) for name in "abc"] == [None, Raw(b'"null"'), None]


def test_an_object_is_known_by_its_first_character() -> None:
    assert is_object(b" \t\r\n{}")
    assert is_object(Raw(b"{}"))
    assert not is_object(b"\xa0{}")
    assert not is_object(b"")
