"""Headers that repeat the body: those we send pass our own check, and exactly the different ones are refused."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp.shared.inbound import (
    decode_header_value,
    encode_header_value,
    find_invalid_x_mcp_header,
    mcp_param_headers,
    validate_mcp_param_headers,
    x_mcp_header_map,
)
from msgspec import Raw

from host.errors import HeaderMismatch, InvalidParams
from host.jsonrpc.raw import members
from host.protocol.param_headers import (
    METHOD_HEADER,
    NAME_HEADER,
    PARAM_PREFIX,
    VERSION_HEADER,
    ParamHeader,
    check,
    check_params,
    check_version,
    decode_header,
    encode_header,
    headers_for,
    name_of,
    param_headers_of,
)
from host.protocol.versions import LATEST
from tests.kit.examples import examples

TEXT = st.text(max_size=12)
TRICKY = st.sampled_from(
    ["", " ", "a b", " a", "a\t", "\t", "é", "=?base64?YQ==?=", "=?base64?", "?=", "=?base64?=", "\r\n", "\x7f"]
)


def headers(*pairs: tuple[str, str]) -> Callable[[str], Sequence[str]]:
    """A function that looks headers up as a server does."""

    def header(name: str) -> list[str]:
        assert name == name.lower()
        return [value for each, value in pairs if each.lower() == name]

    return header


def raw(thing: object) -> Raw:
    return Raw(json.dumps(thing).encode())


def params(**found: object) -> dict[str, Raw]:
    return members(raw(found))


# How a value is spelled


@given(TEXT | TRICKY)
def test_every_text_comes_back_from_a_header(text: str) -> None:
    """The encoding is the SDK's, except for line ends and overlapping marks, which the SDK's pattern does not match."""
    header = encode_header(text)
    assert header.isascii()
    assert header.isprintable() or header == ""
    assert header == header.strip()
    assert decode_header(header) == text
    assert decode_header(f" \t{header} ") == text
    assert decode_header_value(header) == text
    if text != "=?base64?=":
        assert header == encode_header_value(text) or text.strip() != text.strip(" \t")


@pytest.mark.parametrize(
    ("text", "header"),
    [
        ("plain", "plain"),
        ("with inner blanks", "with inner blanks"),
        ("é", "=?base64?w6k=?="),
        (" a", "=?base64?IGE=?="),
        ("a\n", "=?base64?YQo=?="),
        ("=?base64?", "=?base64?"),
        ("?=", "?="),
        ("=?BASE64?YQ==?=", "=?BASE64?YQ==?="),
        ("=?base64?YQ==?=", "=?base64?PT9iYXNlNjQ/WVE9PT89?="),
        ("", ""),
    ],
)
def test_only_what_a_header_cannot_hold_is_in_base64(text: str, header: str) -> None:
    """Text that looks like base64 in its marks is encoded too (rule 35)."""
    assert encode_header(text) == header
    assert decode_header(header) == text


def test_two_marks_that_overlap_mark_nothing() -> None:
    """Nevertheless they are sent in base64, because not every server decodes them that way."""
    assert decode_header("=?base64?=") == "=?base64?="
    assert encode_header("=?base64?=") == "=?base64?PT9iYXNlNjQ/PQ==?="
    assert decode_header("=?base64??=") == ""


@pytest.mark.parametrize(
    "header",
    [
        "=?base64?YQ?=",
        "=?base64?YQ=?=",
        "=?base64?YQ===?=",
        "=?base64?YR==?=",
        "=?base64?Y!==?=",
        "=?base64?Y Q==?=",
        "=?base64?-_8=?=",
        "=?base64?/w==?=",
        "=?base64?7aC9?=",
        "é",
        "a\tb",
        "a\x00",
        "a\x7f",
    ],
)
def test_a_broken_spelling_is_refused(header: str) -> None:
    """(rule 27)"""
    with pytest.raises(ValueError):
        decode_header(header)


def test_half_an_emoji_has_no_spelling() -> None:
    with pytest.raises(ValueError, match="surrogates"):
        encode_header("\ud83d")


# Annotations


def of(**properties: object) -> Raw:
    return raw({"type": "object", "properties": properties})


STRING = {"type": "string", "x-mcp-header": "Region"}


def test_annotations_are_found_where_plain_properties_lead_to_them() -> None:
    """(rule 27)"""
    schema = of(
        a=STRING,
        b={"type": "object", "properties": {"c": {"type": "boolean", "x-mcp-header": "X-1"}}},
        **{"": {"type": "integer", "x-mcp-header": "n!"}},
    )
    assert param_headers_of(schema) == (
        ParamHeader("mcp-param-region", "Mcp-Param-Region", ("a",), "string"),
        ParamHeader("mcp-param-n!", "Mcp-Param-n!", ("",), "integer"),
        ParamHeader("mcp-param-x-1", "Mcp-Param-X-1", ("b", "c"), "boolean"),
    )


@pytest.mark.parametrize(
    "schema",
    [
        b"{}",
        b"true",
        b"5",
        b'{"description":"x-mcp-header"}',
        b'{"description":"\\u0061"}',
        b'{"properties":{"x-mcp-header":{"type":"string"}}}',
        b'{"properties":{"a":{"default":{"x-mcp-header":"A"},"const":{"x-mcp-header":"A"},"enum":[{"x-mcp-header":1}]}}}',
        b'{"properties":{"a":{"examples":[{"x-mcp-header":1}],"later":{"x-mcp-header":1}}}}',
        b'{"properties":["x-mcp-header"],"allOf":{"x-mcp-header":1},"not":[{"x-mcp-header":1}]}',
    ],
)
def test_what_only_looks_like_an_annotation_is_none(schema: bytes) -> None:
    assert param_headers_of(Raw(schema)) == ()


def test_an_annotation_is_read_however_it_is_spelled() -> None:
    schema = b'{"properties":{"a":{"type":"str\\u0069ng","x\\u002dmcp-header":"\\u0052egion","maximum":1e400}}}'
    assert [mirror.header for mirror in param_headers_of(Raw(schema))] == ["mcp-param-region"]


INVALID: list[tuple[object, str]] = [
    ({"x-mcp-header": "A"}, "is only permitted on a property"),
    ({"items": STRING}, "is only permitted on a property"),
    ({"items": [STRING]}, "is only permitted on a property"),
    ({"additionalProperties": STRING}, "is only permitted on a property"),
    ({"$defs": {"a": STRING}}, "is only permitted on a property"),
    ({"properties": {"a": {"anyOf": [STRING]}}}, "is only permitted on a property"),
    ({"not": {"properties": {"a": STRING}}}, "is only permitted on a property"),
    (
        {"properties": {"a": {"type": "array", "items": {"properties": {"b": STRING}}}}},
        "is only permitted on a property",
    ),
    ({"properties": {"a": {"type": "number", "x-mcp-header": "A"}}}, "'a' is not on a string"),
    ({"properties": {"a": {"type": ["string", "null"], "x-mcp-header": "A"}}}, "'a' is not on a string"),
    ({"properties": {"a": {"x-mcp-header": "A"}}}, "'a' is not on a string"),
    ({"properties": {"a": {"type": "string", "x-mcp-header": ""}}}, "'a' is not a valid name of a header"),
    ({"properties": {"a": {"type": "string", "x-mcp-header": "a b"}}}, "'a' is not a valid name of a header"),
    ({"properties": {"a": {"type": "string", "x-mcp-header": "a\r\nb: c"}}}, "'a' is not a valid name of a header"),
    ({"properties": {"a": {"type": "string", "x-mcp-header": "a\n"}}}, "'a' is not a valid name of a header"),
    ({"properties": {"a": {"type": "string", "x-mcp-header": "é"}}}, "'a' is not a valid name of a header"),
    ({"properties": {"a": {"type": "string", "x-mcp-header": 5}}}, "'a' is not a valid name of a header"),
    (
        {"properties": {"a": STRING, "b": {**STRING, "x-mcp-header": "region"}}},
        "'b' names the same header as that of 'a'",
    ),
]


@pytest.mark.parametrize(("schema", "why"), INVALID)
def test_an_invalid_annotation_is_named(schema: object, why: str) -> None:
    """(rule 36)"""
    for _ in range(2):  # refusals are not forgotten, though they are not kept
        with pytest.raises(ValueError, match=why):
            param_headers_of(raw(schema))
    assert find_invalid_x_mcp_header(schema) is not None or isinstance(schema.get("items"), list)  # type: ignore[attr-defined]


def test_a_schema_nested_too_deep_to_be_searched_is_refused() -> None:
    deep = b'{"not":' * 100_000 + b'{"x-mcp-header":"A"}' + b"}" * 100_000
    with pytest.raises(ValueError, match="too deep"):
        param_headers_of(Raw(deep))


def test_a_long_chain_of_properties_is_walked() -> None:
    schema, argument = b'{"type":"string","x-mcp-header":"A"}', b'"v"'
    for _ in range(200):
        schema, argument = b'{"properties":{"p":%b}}' % schema, b'{"p":%b}' % argument
    (mirror,) = param_headers_of(Raw(schema))
    assert mirror.path == ("p",) * 200
    called = {"name": Raw(b'"t"'), "arguments": Raw(argument)}
    assert headers_for("tools/call", called, LATEST, [mirror])[-1] == ("Mcp-Param-A", "v")


def test_a_large_schema_is_read_too() -> None:
    """A large schema is not cached."""
    schema = of(a=STRING, b={"description": "x" * 70_000})
    assert param_headers_of(schema) == param_headers_of(schema) == param_headers_of(of(a=STRING))


NAMES = st.sampled_from(["a", "b", "x-mcp-header"])
SCHEMAS: st.SearchStrategy[Any] = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["string", "integer", "boolean", "number", "object", ["string"]]),
            "x-mcp-header": st.sampled_from(["A", "a", "B", "C", "D", "E", "", 1]),
        },
    ),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"properties": st.dictionaries(NAMES, inner, max_size=3)}),
        st.fixed_dictionaries({"items": inner}),
        st.fixed_dictionaries({"anyOf": st.lists(inner, max_size=2)}),
        st.fixed_dictionaries({"default": inner}),
        st.fixed_dictionaries({"$defs": st.dictionaries(NAMES, inner, max_size=2)}),
    ),
    max_leaves=5,
)


@settings(max_examples=examples(200))
@given(SCHEMAS)
def test_annotations_are_evaluated_as_the_sdk_judges_them(schema: Any) -> None:
    """(rule 36)"""
    if find_invalid_x_mcp_header(schema) is None:
        found = {mirror.path: mirror.spelling.removeprefix("Mcp-Param-") for mirror in param_headers_of(raw(schema))}
        assert found == x_mcp_header_map(schema)
    else:
        with pytest.raises(ValueError, match="x-mcp-header"):
            param_headers_of(raw(schema))


# Standard headers


@pytest.mark.parametrize(
    ("method", "found", "name"),
    [
        ("tools/call", {"name": "gh__search", "uri": "x"}, "gh__search"),
        ("prompts/get", {"name": "é"}, "é"),
        ("resources/read", {"uri": "file:///a", "name": "x"}, "file:///a"),
        ("tasks/get", {"taskId": "t1"}, "t1"),
        ("tasks/update", {"taskId": "t1"}, "t1"),
        ("tasks/cancel", {"taskId": "t1"}, "t1"),
        ("tasks/result", {"taskId": "t1"}, None),
        ("tools/list", {"name": "x"}, None),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "x"}}, None),
        ("subscriptions/listen", {}, None),
    ],
)
def test_the_name_that_a_request_is_for(method: str, found: Mapping[str, object], name: str | None) -> None:
    """(rule 35)"""
    assert name_of(method, params(**found)) == name
    sent = list(headers_for(method, params(**found), LATEST))
    assert sent[:2] == [("MCP-Protocol-Version", LATEST.name), ("Mcp-Method", method)]
    assert [value for key, value in sent if key == "Mcp-Name"] == ([] if name is None else [encode_header(name)])
    check(method, params(**found), headers(*sent))
    check_version(LATEST.name, headers(*sent))


@pytest.mark.parametrize("found", [b"{}", b'{"name":5}', b'{"name":null}', b'{"name":"\\ud83d"}'])
def test_a_request_without_its_name_is_refused(found: bytes) -> None:
    with pytest.raises(InvalidParams, match="'name'"):
        name_of("tools/call", members(found))
    with pytest.raises(InvalidParams):
        headers_for("tools/call", members(found), LATEST)
    with pytest.raises(InvalidParams):
        check("tools/call", members(found), headers(("mcp-method", "tools/call"), ("mcp-name", "t")))


METHOD = ("mcp-method", "tools/call")


@pytest.mark.parametrize(
    ("pairs", "why"),
    [
        ([], "Mcp-Method is missing"),
        ([METHOD], "Mcp-Name is missing"),
        ([("mcp-name", "t")], "Mcp-Method is missing"),
        ([METHOD, METHOD, ("mcp-name", "t")], "Mcp-Method is repeated"),
        ([METHOD, ("mcp-name", "t"), ("mcp-name", "t")], "Mcp-Name is repeated"),
        ([("mcp-method", "tools/Call"), ("mcp-name", "t")], "Mcp-Method differs"),
        ([("mcp-method", ""), ("mcp-name", "t")], "Mcp-Method differs"),
        ([("mcp-method", encode_header("tools/call\n")), ("mcp-name", "t")], "Mcp-Method differs"),
        ([("mcp-method", "=?base64?dG9vbHMvY2FsbA==?="), ("mcp-name", "t")], "Mcp-Method differs"),
        ([METHOD, ("mcp-name", "T")], "Mcp-Name differs"),
        ([METHOD, ("mcp-name", "t, t")], "Mcp-Name differs"),
        ([METHOD, ("mcp-name", "=?base64?dA=?=")], "Mcp-Name is malformed"),
        ([METHOD, ("mcp-name", "\xe9")], "Mcp-Name is malformed"),
    ],
)
def test_headers_that_disagree_with_the_body_are_refused(pairs: list[tuple[str, str]], why: str) -> None:
    """(rule 27)"""
    with pytest.raises(HeaderMismatch, match=why):
        check("tools/call", params(name="t"), headers(*pairs))


@pytest.mark.parametrize("name", ["t", " t\t", "=?base64?dA==?="])
def test_headers_that_agree_are_taken(name: str) -> None:
    """White space around a value, and base64 that is not needed, are accepted (rule 27)."""
    check("tools/call", params(name="t"), headers(("mcp-method", " tools/call "), ("mcp-name", name), ("mcp-x", "y")))


def test_a_name_where_none_belongs_is_ignored() -> None:
    check("tools/list", {}, headers(("mcp-method", "tools/list"), ("mcp-name", "=?base64?!?=")))


@pytest.mark.parametrize("values", [[], ["1999-01-01"], [LATEST.name, LATEST.name], ["=?base64?eA==?="], [""]])
def test_a_version_that_is_not_the_one_of_the_body_is_refused(values: list[str]) -> None:
    """(rule 27)"""
    with pytest.raises(HeaderMismatch, match="MCP-Protocol-Version"):
        check_version(LATEST.name, headers(*((VERSION_HEADER, value) for value in values)))


def test_the_names_of_headers_are_in_lower_case() -> None:
    for name in (VERSION_HEADER, METHOD_HEADER, NAME_HEADER, PARAM_PREFIX):
        assert name == name.lower()


# Parameters


SCHEMA = of(
    text={"type": "string", "x-mcp-header": "Text"},
    count={"type": "integer", "x-mcp-header": "Count"},
    flag={"type": "boolean", "x-mcp-header": "Flag"},
    deep={"type": "object", "properties": {"inner": {"type": "string", "x-mcp-header": "Inner"}}},
)
MIRRORS = param_headers_of(SCHEMA)


def call(arguments: bytes) -> dict[str, Raw]:
    return {"name": Raw(b'"t"'), "arguments": Raw(arguments)}


def sent(arguments: bytes) -> list[tuple[str, str]]:
    return list(headers_for("tools/call", call(arguments), LATEST, MIRRORS)[3:])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (b'{"text":"a","count":1,"flag":true,"deep":{"inner":"i"}}', ["a", "1", "true", "i"]),
        (b'{"flag": false }', ["false"]),
        (b'{"text":"\\u00e9"}', ["=?base64?w6k=?="]),
        (b'{"text":""}', [""]),
        (b'{"text":null,"count": null,"deep":null}', []),
        (b'{"deep":{"inner":null}}', []),
        (b'{"deep":"inner","text":{"a":1},"count":[1],"flag":{}}', []),
        (b"{}", []),
        (b"[]", []),
        (b"null", []),
        (b'{"count":-0}', ["0"]),
        (b'{"count":42.0}', ["42"]),
        (b'{"count":1e2}', ["100"]),
        (b'{"count":9007199254740991}', ["9007199254740991"]),
        (b'{"count":123456789012345678901234567890}', ["123456789012345678901234567890"]),
        (b'{"count":1.5}', ["1.5"]),
        (b'{"count":1e400}', ["1e400"]),
        (b'{"count":"7"}', ["7"]),
        (b'{"text":42.0}', ["42.0"]),
        (b'{"text":true}', ["true"]),
    ],
)
def test_arguments_are_repeated_as_the_specification_spells_them(arguments: bytes, expected: list[str]) -> None:
    """A missing argument and null have no header (rule 35)."""
    assert [value for _, value in sent(arguments)] == expected
    check_params(call(arguments), MIRRORS, headers(*sent(arguments)))


def test_headers_have_the_names_of_the_annotations() -> None:
    assert [name for name, _ in sent(b'{"count":1,"text":"a"}')] == ["Mcp-Param-Text", "Mcp-Param-Count"]
    assert headers_for("tools/call", params(name="t"), LATEST, MIRRORS)[3:] == ()


def test_half_an_emoji_is_no_header() -> None:
    with pytest.raises(InvalidParams, match=r"'deep\.inner'"):
        sent(b'{"deep":{"inner":"\\ud83d"}}')


@pytest.mark.parametrize(
    ("arguments", "pairs"),
    [
        (b'{"count":42}', [("mcp-param-count", "42.0")]),
        (b'{"count":42.0}', [("mcp-param-count", " 42 ")]),
        (b'{"count":1e2}', [("mcp-param-count", "100.00")]),
        (b'{"count":1e20}', [("mcp-param-count", "100000000000000000000")]),
        (b'{"count":0}', [("mcp-param-count", "-0")]),
        (b'{"count":1}', [("mcp-param-count", "=?base64?MQ==?=")]),
        (b'{"count":9007199254740993}', [("mcp-param-count", "9007199254740993")]),
        (b"{}", [("mcp-param-other", "=?base64?!?="), ("mcp-param-other", "x")]),
        (b'{"text":{"a":1}}', []),
    ],
)
def test_a_header_that_says_the_same_in_other_words_is_taken(arguments: bytes, pairs: list[tuple[str, str]]) -> None:
    """Integers are compared as numbers, and headers without an annotation are ignored (rule 27)."""
    check_params(call(arguments), MIRRORS, headers(*pairs))


@pytest.mark.parametrize(
    ("arguments", "pairs", "why"),
    [
        (b'{"text":"a"}', [], "Mcp-Param-Text is missing"),
        (b'{"deep":{"inner":"a"}}', [], "Mcp-Param-Inner is missing"),
        (b'{"text":"a"}', [("mcp-param-text", "a"), ("mcp-param-text", "a")], "Mcp-Param-Text is repeated"),
        (b'{"text":"a"}', [("mcp-param-text", "A")], "Mcp-Param-Text differs"),
        (b'{"text":"1"}', [("mcp-param-text", "1.0")], "Mcp-Param-Text differs"),
        (b'{"text":"a"}', [("mcp-param-text", "=?base64?YQ?=")], "Mcp-Param-Text is malformed"),
        (b'{"text":"\\u00e9"}', [("mcp-param-text", "\xc3\xa9")], "Mcp-Param-Text is malformed"),
        (b'{"flag":true}', [("mcp-param-flag", "True")], "Mcp-Param-Flag differs"),
        (b'{"flag":true}', [("mcp-param-flag", "1")], "Mcp-Param-Flag differs"),
        (b'{"count":9007199254740993}', [("mcp-param-count", "9007199254740992")], "Mcp-Param-Count differs"),
        (b'{"count":1}', [("mcp-param-count", "1.5")], "Mcp-Param-Count differs"),
        (b'{"count":10}', [("mcp-param-count", "1e1")], "Mcp-Param-Count differs"),
        (b'{"count":1}', [("mcp-param-count", "\u0661")], "Mcp-Param-Count is malformed"),
        (b'{"count":1}', [("mcp-param-count", encode_header("\u0661"))], "Mcp-Param-Count differs"),
        (b'{"count":true}', [("mcp-param-count", "1")], "Mcp-Param-Count differs"),
        (b'{"count":1e99999999999999999999}', [("mcp-param-count", "1")], "Mcp-Param-Count differs"),
        (b"{}", [("mcp-param-text", "a")], "Mcp-Param-Text has no argument in the body"),
        (b"{}", [("mcp-param-text", "")], "Mcp-Param-Text has no argument in the body"),
        (b'{"text":null}', [("mcp-param-text", "null")], "Mcp-Param-Text has no argument in the body"),
        (b'{"text":["a"]}', [("mcp-param-text", "a")], "Mcp-Param-Text has no argument in the body"),
        (b'{"inner":"a"}', [("mcp-param-inner", "a")], "Mcp-Param-Inner has no argument in the body"),
    ],
)
def test_parameters_that_disagree_are_refused(arguments: bytes, pairs: list[tuple[str, str]], why: str) -> None:
    """(rule 27)"""
    with pytest.raises(HeaderMismatch, match=why):
        check_params(call(arguments), MIRRORS, headers(*pairs))


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**60), 2**60),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXT,
    TRICKY,
    st.lists(st.integers(), max_size=2),
)
ARGUMENTS = st.fixed_dictionaries(
    {}, optional={"text": VALUES, "count": VALUES, "flag": VALUES, "deep": st.dictionaries(NAMES, VALUES), "x": VALUES}
) | st.fixed_dictionaries({"deep": st.fixed_dictionaries({"inner": VALUES})})


@settings(max_examples=examples(200))
@given(ARGUMENTS, TEXT | TRICKY, st.booleans())
def test_what_we_send_is_what_we_take(arguments: dict[str, Any], name: str, escaped: bool) -> None:
    """(rule 27, rule 35)"""
    body = members(json.dumps({"name": name, "arguments": arguments}, ensure_ascii=escaped).encode())
    header = headers(*headers_for("tools/call", body, LATEST, MIRRORS))
    check_version(LATEST.name, header)
    check("tools/call", body, header)
    check_params(body, MIRRORS, header)


EXACT = st.one_of(st.none(), st.booleans(), st.integers(-(2**53) + 1, 2**53 - 1), TEXT, st.just("a b"))


@settings(max_examples=examples(200))
@given(st.fixed_dictionaries({}, optional={"text": EXACT, "count": EXACT, "flag": EXACT}))
def test_the_sdk_takes_what_we_send_and_we_take_what_it_sends(arguments: dict[str, Any]) -> None:
    """(rule 27, rule 35)"""
    schema = json.loads(bytes(SCHEMA))
    text = json.dumps(arguments).encode()
    assert validate_mcp_param_headers(schema, arguments, dict(sent(text))) is None
    theirs = mcp_param_headers(x_mcp_header_map(schema), arguments)
    check_params(call(text), MIRRORS, headers(*theirs.items()))


@settings(max_examples=examples(200))
@given(EXACT, EXACT)
def test_two_values_are_never_taken_for_one(body: Any, other: Any) -> None:
    """(rule 27)"""
    header = headers(*sent(json.dumps({"text": other}).encode()))
    texts = [json.dumps(each) if isinstance(each, bool) else str(each) for each in (body, other) if each is not None]
    if (body is None) == (other is None) and len(set(texts)) < 2:
        check_params(call(json.dumps({"text": body}).encode()), MIRRORS, header)
    else:
        with pytest.raises(HeaderMismatch):
            check_params(call(json.dumps({"text": body}).encode()), MIRRORS, header)


def test_base64_is_the_standard_one() -> None:
    assert encode_header("\u00ff\u00ff\u00ff>") == f"=?base64?{base64.b64encode('ÿÿÿ>'.encode()).decode()}?="
