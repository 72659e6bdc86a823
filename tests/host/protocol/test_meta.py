"""Members of `_meta` that are passed on, in every spelling."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from host.errors import InvalidParams
from host.jsonrpc.messages import Id
from host.jsonrpc.raw import encode_object, members
from host.protocol.meta import (
    end_to_end_fields,
    increased_progress,
    prepare_for_next_hop,
    progress_token,
    unknown_members,
    with_progress_token,
    without_hop_fields,
)
from tests.kit.examples import examples


def token(meta: bytes) -> Id | None:
    return progress_token(members(b'{"_meta":' + meta + b"}"))


def sent_on(params: bytes, own: Id | None = None) -> bytes:
    found = members(params)
    prepare_for_next_hop(found, own)
    return bytes(encode_object(found))


@pytest.mark.parametrize(
    ("meta", "found"),
    [
        (b'{"progressToken":1}', 1),
        (b'{"progressToken":"1"}', "1"),
        (b'{"progressToken":""}', ""),
        (b'{"progress\\u0054oken":7}', 7),
        (b'{"x":{"progressToken":1}}', None),
        (b'{"x":"progressToken"}', None),
        (b"{}", None),
    ],
)
def test_the_token_keeps_its_type(meta: bytes, found: Id | None) -> None:
    """(rule 42)"""
    assert (type(token(meta)), token(meta)) == (type(found), found)


def test_without_meta_there_is_no_token() -> None:
    assert progress_token({}) is None


@pytest.mark.parametrize("wrong", [b"1.5", b"1.0", b"true", b"null", b"{}", b"[1]"])
def test_a_token_of_another_type_is_refused(wrong: bytes) -> None:
    with pytest.raises(InvalidParams, match="progress token"):
        token(b'{"progressToken":' + wrong + b"}")


@pytest.mark.parametrize("meta", [b'["progressToken"]', b'"progressToken"', b'"\\u0000"'])
def test_meta_that_is_no_object_is_refused(meta: bytes) -> None:
    with pytest.raises(InvalidParams, match="_meta"):
        token(meta)
    with pytest.raises(InvalidParams, match="_meta"):
        sent_on(b'{"_meta":' + meta + b"}")


def test_the_servers_token_takes_the_place_of_the_askers() -> None:
    """(rules 42, 51)"""
    assert sent_on(b'{"_meta":{"progressToken":"theirs","a": 1.0}}', 5) == b'{"_meta":{"a":1.0,"progressToken":5}}'


@pytest.mark.parametrize(
    ("last", "report", "increased"),
    [
        (float("-inf"), b'{"progress":-3}', -3),
        (1, b'{"progress": 1.5 ,"total":9}', 1.5),
        (1, b'{"progress":1000000000000000000000000000000}', 10**30),
        (1, b'{"progress":1.0}', None),
        (1, b'{"progress":-3}', None),
        (0, b'{"progress":true}', None),
        (0, b'{"progress":"2"}', None),
        (0, b'{"progress":null}', None),
        (0, b"{}", None),
    ],
)
def test_progress_counts_if_it_is_a_number_that_increases(last: float, report: bytes, increased: float | None) -> None:
    assert increased_progress(members(report), last) == increased


def test_meta_that_is_null_is_missing() -> None:
    """As for the Python SDK's server."""
    assert token(b"null") is None
    assert sent_on(b'{"_meta":null,"a":1}') == b'{"a":1}'
    assert sent_on(b'{"_meta":null}', 7) == b'{"_meta":{"progressToken":7}}'


def test_a_token_makes_a_meta_where_there_was_none() -> None:
    assert sent_on(b'{"name":"x"}', 5) == b'{"name":"x","_meta":{"progressToken":5}}'
    assert sent_on(b'{"name":"x"}') == b'{"name":"x"}'


@pytest.mark.parametrize(
    "meta",
    [
        b'{"progressToken":"theirs"}',
        b'{"progress\\u0054oken":"theirs"}',
        b'{"io.modelcontextprotocol/clientInfo":{}}',
        b'{"io.modelcontextprotocol\\/clientInfo":{}}',
        b'{"\\u0069o.modelcontextprotocol/related-task":{"taskId":"1"}}',
        b'{"io.modelcontextprotocol/":1,"progressToken":1.5}',
        b'{"ProgressToken":6}',
        b'{"progressTo\\u212aen":6}',
        b'{"progressToken\\u0000":6}',
    ],
)
@pytest.mark.parametrize("own", [None, 5])
def test_nothing_of_one_hop_crosses_however_it_is_spelled(meta: bytes, own: Id | None) -> None:
    """(rules 51, 54)"""
    found = json.loads(sent_on(b'{"_meta":' + meta + b"}", own))
    assert found == {"_meta": {} if own is None else {"progressToken": 5}}


@pytest.mark.parametrize(
    "meta",
    [
        b'{"traceparent":"00-0-0-01", "com.example/x": 1.0}',
        b'{"a":{"progress":"token"}}',
        b'{"IO.modelcontextprotocol/x":1}',
    ],
)
def test_everything_else_crosses_byte_for_byte(meta: bytes) -> None:
    """Vendor keys and trace context (rules 3, 4, 53, 55)"""
    assert sent_on(b'{"_meta":' + meta + b"}") == b'{"_meta":' + meta + b"}"


def test_what_crosses_can_be_had_alone() -> None:
    """(rules 51, 53)"""
    meta = b'{"progressToken":1,"io.modelcontextprotocol/x":{},"a": 1.0,"traceparent":"00"}'
    found = end_to_end_fields(members(b'{"_meta":' + meta + b"}"))
    assert {name: bytes(each) for name, each in found.items()} == {"a": b"1.0", "traceparent": b'"00"'}
    assert end_to_end_fields({}) == {}
    with pytest.raises(InvalidParams, match="_meta"):
        end_to_end_fields(members(b'{"_meta":null}'))


@pytest.mark.parametrize(
    ("params", "left"),
    [
        (b'{"a":1}', b'{"a":1}'),
        (b'{"a":1,"_meta":{"v":2,"progressToken":3}}', b'{"a":1,"_meta":{"v":2}}'),
        (b'{"a":1,"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"}}}', b'{"a":1}'),
        (b'{"_meta":{}}', b"{}"),
    ],
)
def test_without_its_hop_a_question_keeps_no_empty_meta(params: bytes, left: bytes) -> None:
    before = members(params)
    assert bytes(encode_object(without_hop_fields(before))) == left
    assert bytes(encode_object(before)) == params, "what it was made of is unchanged"


def test_a_question_whose_meta_is_no_object_is_refused() -> None:
    with pytest.raises(InvalidParams, match="_meta"):
        without_hop_fields({"_meta": Raw(b"[]")})


def test_a_member_named_by_half_an_emoji_crosses_too() -> None:
    """(rule 3)"""
    assert sent_on(b'{"_meta":{"\\ud83d":1,"progressToken":2}}') == b'{"_meta":{"\\ud83d":1}}'


def test_a_request_of_our_own_has_a_progress_token_if_progress_is_wanted() -> None:
    params = Raw(b'{"name":"x","_meta":{"vendor/a":1}}')
    assert with_progress_token(params, None) is params
    assert bytes(with_progress_token(params, 4) or b"") == b'{"name":"x","_meta":{"vendor/a":1,"progressToken":4}}'
    assert bytes(with_progress_token(None, 4) or b"") == b'{"_meta":{"progressToken":4}}'


@settings(max_examples=examples(100))
@given(
    st.dictionaries(
        st.sampled_from(["progressToken", "io.modelcontextprotocol/a", "io.modelcontextprotocol", "b", "é", "\ud800"]),
        st.integers() | st.text(),
        max_size=5,
    ),
    st.none() | st.integers(0, 9),
    st.booleans(),
)
def test_what_crosses_is_the_same_for_every_spelling(meta: dict[str, object], own: int | None, escaped: bool) -> None:
    """(rules 51, 54)"""
    try:
        params = json.dumps({"_meta": meta}, ensure_ascii=escaped).encode()
    except UnicodeEncodeError:
        params = json.dumps({"_meta": meta}).encode()
    kept = {name: x for name, x in meta.items() if name in ("io.modelcontextprotocol", "b", "é", "\ud800")}
    assert json.loads(sent_on(params, own)) == {"_meta": kept if own is None else {**kept, "progressToken": own}}


def test_of_a_result_that_is_made_anew_what_is_not_known_is_passed_on() -> None:
    meta = {
        "vendor/a": 1,
        "progressToken": 2,
        "Colonnade/missingServers": [],
        "io.modelcontextprotocol/serverInfo": {},
        "io.modelcontextprotocol/related-task": {},
        "ui": {"resourceUri": "ui://x"},
        "openai/outputTemplate": "ui://x",
    }
    result = {"tools": [], "nextcursor": "x", "NEXTCURSOR": 1, "more": [1.50], "_meta": meta}
    found = members(json.dumps(result).encode())
    kept = unknown_members(found, ("tools", "nextCursor"))
    assert bytes(encode_object(kept)) == b'{"more":[1.5],"_meta":{"vendor/a":1}}'
    asking = {"resultType": "input_required", "inputRequests": {"a": {}}, "InputRequests": {}, "requestState": "s"}
    for nothing in (asking, {"_meta": {"progressToken": 1}}, {"_meta": 5}, {"_META": {"a": 1}}, {}):
        assert unknown_members(members(json.dumps(nothing).encode()), ()) == {}
