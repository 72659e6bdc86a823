"""URIs in messages: those that name resources are renamed, and nothing else changes, not even white space."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from host.jsonrpc.outline import outline
from host.jsonrpc.raw import encode_object, members
from host.protocol.links import rename_in_content, rename_in_result, rename_page, without_pages
from host.protocol.methods import PROMPTS_GET, RESOURCES_READ, TOOLS_CALL, Method
from tests.kit.examples import examples


def outward(uri: str) -> str:
    return f"gh+{uri}"


def renamed(result: bytes, places: tuple[tuple[str, ...], ...] = TOOLS_CALL.links) -> bytes:
    return bytes(rename_in_result(Raw(result), places, outward, outline(Raw(result))))


LINK = b'{"type":"resource_link","uri":"x://1","name": "n"}'
LINKED = b'{"type":"resource_link","uri":"gh+x://1","name":"n"}'
EMBEDDED = b'{"type":"resource","resource":{"text":"t\\u00e9","uri":"x://2"}}'
EMBEDDED_OUT = b'{"type":"resource","resource":{"text":"t\\u00e9","uri":"gh+x://2"}}'


@pytest.mark.parametrize(
    ("places", "result", "expected"),
    [
        (TOOLS_CALL.links, b'{"content":[%b]}' % LINK, b'{"content":[%b]}' % LINKED),
        (TOOLS_CALL.links, b'{"content":[1,%b,null]}' % EMBEDDED, b'{"content":[1,%b,null]}' % EMBEDDED_OUT),
        (
            RESOURCES_READ.links,
            b'{"contents":[{"uri":"x://3","text":"\\/"}]}',
            b'{"contents":[{"uri":"gh+x://3","text":"\\/"}]}',
        ),
        (
            PROMPTS_GET.links,
            b'{"messages":[{"role":"user","content":%b},{"role":"user"}],"description":"d"}' % EMBEDDED,
            b'{"messages":[{"role":"user","content":%b},{"role":"user"}],"description":"d"}' % EMBEDDED_OUT,
        ),
        (
            TOOLS_CALL.links,
            b'{"_meta":{"ui":{"resourceUri":"ui://p"}}}',
            b'{"_meta":{"ui":{"resourceUri":"gh+ui://p"}}}',
        ),
        (TOOLS_CALL.links, b'{"_meta":{"ui/resourceUri":"ui://p"}}', b'{"_meta":{"ui/resourceUri":"gh+ui://p"}}'),
        (TOOLS_CALL.links, b'{"_meta":{"ui\\/resourceUri":"ui://p"}}', b'{"_meta":{"ui/resourceUri":"gh+ui://p"}}'),
        (
            TOOLS_CALL.links,
            b'{"_meta":{"ui":{"r\\u0065source\\u0055ri":"ui://p"}}}',
            b'{"_meta":{"ui":{"resourceUri":"gh+ui://p"}}}',
        ),
        (
            TOOLS_CALL.links,
            b'{"_meta":{"ui/resourceUri":"ui://p","ui":5}}',
            b'{"_meta":{"ui/resourceUri":"gh+ui://p","ui":5}}',
        ),
        (TOOLS_CALL.links, b'{"content":[{"\\u0075ri":"x://1"}]}', b'{"content":[{"uri":"gh+x://1"}]}'),
        (TOOLS_CALL.links, b'{"content":[{"uri":"x:\\/\\/1"}]}', b'{"content":[{"uri":"gh+x://1"}]}'),
    ],
)
def test_a_uri_that_names_a_resource_is_renamed(
    places: tuple[tuple[str, ...], ...], result: bytes, expected: bytes
) -> None:
    """(rules 59, 65)"""
    assert renamed(result, places) == expected


@pytest.mark.parametrize(
    "result",
    [
        b'{"content": [ {"type":"text","text":"uri"} ] , "x": 1.0}',
        b'{ "structuredContent": {"uri": "x://1", "list": [{"uri":"x://2"}]} }',
        b'{"x":1,"x":2,"y":"\\u0075ri"}',
        b'{"content":"uri \\" \\"uri\\""}',
        b'{"_meta": {"uri": "x://1"}}',
        b'{"_meta":"resourceUri"}',
        b'{"_meta": {"ui": "resourceUri"}}',
        b'{"_meta": {"ui": {"resourceUri": 1}}}',
        b" {} ",
    ],
)
def test_a_result_without_such_uris_keeps_every_byte(result: bytes) -> None:
    """(rules 3, 4)"""
    assert renamed(result) == result


@pytest.mark.parametrize(
    "result",
    [
        b'{"content":{"uri":"x://1"}}',
        b'{"content":null,"a":"\\u0000"}',
        b'{"content":[{"uri":1},{"resource":{"uri":null}},{"resource":"uri"}]}',
        b'{"content":[{"resource":[{"uri":"x://1"}]}]}',
    ],
)
def test_whatever_is_of_another_shape_stays(result: bytes) -> None:
    assert renamed(result) == result


def test_a_link_beside_a_resource_of_another_shape_is_still_renamed() -> None:
    assert bytes(rename_in_content(Raw(b'{"uri":"a","resource":1}'), outward)) == b'{"uri":"gh+a","resource":1}'


def test_a_half_emoji_beside_a_link_does_not_matter() -> None:
    result = b'{"content":[{"uri":"x://1","\\ud83d":"\\ud83d"}]}'
    assert renamed(result) == b'{"content":[{"uri":"gh+x://1","\\ud83d":"\\ud83d"}]}'


@pytest.mark.parametrize("result", [b"[]", b"null", b'"uri"', b'["uri"]', b"1", b'"resourceUri"', b'"\\u0000"'])
def test_a_result_that_is_no_object_is_a_value_error(result: bytes) -> None:
    with pytest.raises(ValueError):
        renamed(result)


def test_what_is_renamed_to_itself_keeps_its_bytes() -> None:
    content = Raw(b'{ "uri" : "x:\\/\\/1" }')
    assert rename_in_content(content, lambda uri: uri) is content


def test_the_page_of_a_definition_is_renamed() -> None:
    """(rule 56)"""
    definition = members(b'{"name":"t","uri":"x","_meta":{"a": 1.0,"ui":{"resourceUri":"ui://p","v":[ ]}}}')
    rename_page(definition, outward)
    assert (
        bytes(encode_object(definition))
        == b'{"name":"t","uri":"x","_meta":{"a":1.0,"ui":{"resourceUri":"gh+ui://p","v":[ ]}}}'
    )


URIS = st.sampled_from(["a://1", "ui://p", "é"])
BLOCKS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "resource"])},
    optional={"uri": URIS, "resource": st.fixed_dictionaries({"uri": URIS, "text": st.text(max_size=5)})},
)


@settings(max_examples=examples(100))
@given(st.lists(BLOCKS, max_size=4), st.booleans())
def test_renaming_agrees_with_a_whole_parser(blocks: list[dict[str, object]], escaped: bool) -> None:
    """(rules 59, 65)"""
    result = json.dumps({"content": blocks, "isError": False}, ensure_ascii=escaped).encode()
    expected = json.loads(result)
    for block in expected["content"]:
        for holder in (block, block.get("resource", {})):
            if "uri" in holder:
                holder["uri"] = outward(holder["uri"])
    assert json.loads(renamed(result)) == expected


@pytest.mark.parametrize(
    ("method", "result", "left"),
    [
        (
            TOOLS_CALL,
            b'{"content":[{"type":"resource","resource":{"uri":"UI://x","text":"<b>"}},{"type":"text","text":"ui://"}]}',
            b'{"content":[{"type":"text","text":"%b"},{"type":"text","text":"ui://"}]}',
        ),
        (
            TOOLS_CALL,
            b'{"content":[{"type":"resource_link","uri":"ui:\\/\\/y","name":"n"}],"_meta":{"ui":{"resourceUri":"u"}}}',
            b'{"content":[{"type":"text","text":"%b"}],"_meta":{}}',
        ),
        (
            RESOURCES_READ,
            b'{"contents":[{"uri":"ui://x","text":"<b>"}]}',
            b'{"contents":[{"uri":"ui://x","text":"%b"}]}',
        ),
        (
            PROMPTS_GET,
            b'{"messages":[{"role":"user","content":{"type":"resource","resource":{"uri":"ui://x","text":"<b>"}}}]}',
            b'{"messages":[{"role":"user","content":{"type":"text","text":"%b"}}]}',
        ),
    ],
)
def test_a_result_can_be_had_without_pages(method: Method, result: bytes, left: bytes) -> None:
    """A text replaces each page."""
    said = b"[a page that is not shown, since its server is untrusted]"
    assert bytes(without_pages(Raw(result), method.links)) == left % said


def test_a_result_without_pages_keeps_its_bytes() -> None:
    result = Raw(b'{"content": [ {"type":"text","text":"see ui://x"} ]}')
    assert without_pages(result, TOOLS_CALL.links) is result


def test_the_page_that_one_host_knows_by_another_name_is_renamed_too() -> None:
    """(rule 56)"""
    found = {"_meta": Raw(b'{"openai/outputTemplate":"ui://w","x":1}')}
    assert rename_page(found, outward)
    assert bytes(found["_meta"]) == b'{"openai/outputTemplate":"gh+ui://w","x":1}'
    assert (
        bytes(without_pages(Raw(b'{"_meta":{"openai/outputTemplate":"ui://w"}}'), TOOLS_CALL.links)) == b'{"_meta":{}}'
    )
