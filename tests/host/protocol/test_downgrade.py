"""Results for clients of earlier revisions: readable, without loss, and unchanged where the revision has the same."""

from __future__ import annotations

import json
from typing import Any

import mcp.types
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from host.jsonrpc.outline import outline
from host.protocol.abilities import NO_ABILITIES, Abilities, abilities_of
from host.protocol.downgrade import downgrade_definition, downgrade_result
from host.protocol.versions import LATEST as STATELESS
from host.protocol.versions import LEGACY
from tests.kit.examples import examples

FREE = abilities_of(STATELESS, Raw(b"{}"))
LATEST, JUNE, MARCH, FIRST = (
    abilities_of(LEGACY[name], Raw(b"{}")) for name in ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
)


def fitted(result: bytes, abilities: Abilities = FIRST, method: str = "tools/call") -> bytes:
    return bytes(downgrade_result(method, Raw(result), abilities, outline(Raw(result))))


LINK = b'{"type":"resource_link","name":"Log","uri":"gh+file:///l","mimeType":"text/plain"}'
LINK_TEXT = b'{"type":"text","text":"Log: gh+file:///l (text/plain)"}'
AUDIO = b'{"type":"audio","data":"AA\\/=","mimeType":"audio/wav"}'
AUDIO_RESOURCE = b'{"type":"resource","resource":{"uri":"audio:1","mimeType":"audio/wav","blob":"AA\\/="}}'
TEXT = b'{"type":"text","text": "\\u00e9" , "n":1.00}'


@pytest.mark.parametrize(
    ("abilities", "block", "expected"),
    [
        (FIRST, LINK, LINK_TEXT),
        (MARCH, LINK, LINK_TEXT),
        (FIRST, AUDIO, AUDIO_RESOURCE),
        (MARCH, AUDIO, AUDIO),
        (FIRST, b'{"type":"resource_link","name":"L","uri":"x:1"}', b'{"type":"text","text":"L: x:1"}'),
        (FIRST, b'{"type":"resource_link","name":"L","uri":"x:1","mimeType":5}', b'{"type":"text","text":"L: x:1"}'),
        (
            FIRST,
            b'{"type":"resource\\u005flink","annotations":{"priority": 1.0},"name":"L","uri":"x:1","_meta":{"a": 1}}',
            b'{"type":"text","text":"L: x:1","annotations":{"priority": 1.0},"_meta":{"a": 1}}',
        ),
        (
            FIRST,
            b'{"type":"\\u0061udio","_meta":{"a": 1},"data":"AA==","annotations":{"priority": 1.0}}',
            b'{"type":"resource","resource":{"uri":"audio:1","blob":"AA=="},'
            b'"annotations":{"priority": 1.0},"_meta":{"a": 1}}',
        ),
    ],
)
def test_a_block_of_an_unknown_type_becomes_one_that_is_known(
    abilities: Abilities, block: bytes, expected: bytes
) -> None:
    """The blocks around it keep their bytes, in a tool's result and in a prompt (rule 61)."""
    result, wanted = (b'{"content":[%b,%b],"x":[ ]}' % (TEXT, each) for each in (block, expected))
    assert fitted(result, abilities) == wanted
    result, wanted = (b'{"messages":[{"role":"user","content":%b}]}' % each for each in (block, expected))
    assert fitted(result, abilities, "prompts/get") == wanted


@pytest.mark.parametrize(
    "block",
    [
        b'{"type":"resource_link","name":"L"}',
        b'{"type":"resource_link","uri":"x:1","name":"\\ud83d"}',
        b'{"type":"resource_link"}',
        b'{"type":"audio","mimeType":"audio/wav"}',
    ],
)
def test_a_block_that_lacks_its_members_becomes_its_own_text(block: bytes) -> None:
    (found,) = json.loads(fitted(b'{"content":[%b]}' % block))["content"]
    assert found == {"type": "text", "text": block.decode()}


def test_every_recording_has_an_address_of_its_own() -> None:
    content = json.loads(fitted(b'{"content":[%b,%b,%b]}' % (AUDIO, LINK, AUDIO)))["content"]
    assert [block.get("resource", {}).get("uri") for block in content] == ["audio:1", None, "audio:2"]


STRUCTURE = b'{"n": 1.00, "s":"\\u00e9\\/"}'


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (b'{"content":[%b],"structuredContent":%b}' % (TEXT, STRUCTURE), b'{"content":[%b]}' % TEXT),
        (b'{"structuredContent":%b,"content":[%b],"isError":false}', b'{"content":[%b],"isError":false}'),
        (b'{"content":[],"structuredContent":null}', b'{"content":[]}'),
        (b'{"content":5,"structuredContent":{}}', b'{"content":5}'),
        (b'{"content":[{"type":"t\\u0065xt","text":""}],"structured\\u0043ontent":{}}', None),
    ],
)
def test_structure_is_dropped_where_text_says_it(result: bytes, expected: bytes | None) -> None:
    """(rule 61)"""
    if result.count(b"%b"):
        result, expected = result % (STRUCTURE, TEXT), (expected or b"") % TEXT
    assert fitted(result, MARCH) == (expected or b'{"content":[{"type":"t\\u0065xt","text":""}]}')


@pytest.mark.parametrize("content", [b"", b'"content":[],', b'"content":[%b],' % LINK, b'"content":[1,null],'])
def test_structure_that_no_text_says_becomes_text(content: bytes) -> None:
    """The name of a resource link does not count as text (rule 61)."""
    found = json.loads(fitted(b'{%b"structuredContent":%b,"isError":true}' % (content, STRUCTURE)))
    assert found["content"][-1] == {"type": "text", "text": STRUCTURE.decode()}
    assert found["isError"] is True
    assert "structuredContent" not in found


def test_half_an_emoji_in_the_structure_stays_what_it_is() -> None:
    found = json.loads(fitted(b'{"content":[],"structuredContent":{"\\ud83d":"\\ud83d"}}'))
    assert found == {"content": [{"type": "text", "text": '{"\\ud83d":"\\ud83d"}'}]}


EVERYTHING = b'{ "content":[%b, %b,%b],"structuredContent": %b }' % (LINK, AUDIO, TEXT, STRUCTURE)


OTHER_STRUCTURES = [b"[1, 2.0]", b'"s"', b"5", b"-1.50", b"true", b"[]"]


@pytest.mark.parametrize("structure", OTHER_STRUCTURES)
@pytest.mark.parametrize("abilities", [LATEST, JUNE, MARCH, FIRST])
def test_structure_that_is_no_object_becomes_text_if_no_text_says_it(structure: bytes, abilities: Abilities) -> None:
    """(rule 62)"""
    said = json.loads(fitted(b'{"structuredContent" : %b,"content":[]}' % structure, abilities))
    assert said == {"content": [{"type": "text", "text": structure.decode()}]}
    beside = b'{"content":[%b],"isError":false%b}'
    assert fitted(beside % (TEXT, b',"structuredContent":\n %b' % structure), abilities) == beside % (TEXT, b"")
    escaped = b'{"structured\\u0043ontent":%b,"content":[%b]}' % (structure, TEXT)
    assert fitted(escaped, abilities) == b'{"content":[%b]}' % TEXT


def test_no_structure_is_no_loss() -> None:
    """(rule 62)"""
    assert fitted(b'{"content":[],"structuredContent":null}', LATEST) == b'{"content":[]}'


@pytest.mark.parametrize("structure", [*OTHER_STRUCTURES, b"null", STRUCTURE])
def test_structure_of_any_type_reaches_those_who_know_it(structure: bytes) -> None:
    """(rule 62)"""
    result = Raw(b'{ "content":[],"structuredContent": %b }' % structure)
    assert downgrade_result("tools/call", result, FREE, result) is result
    assert downgrade_result("tools/call", result, NO_ABILITIES, result) is result


@pytest.mark.parametrize(
    "result",
    [
        b'{ "content":[ %b ],"structuredContent":\t%b }' % (LINK, STRUCTURE),
        b'{ "content":[%b],"structuredContent":{"structuredContent":[ 1]} }' % TEXT,
        b'{ "content":[],"_meta":{"structuredContent":[ 1]} }',
        b'{ "structured\\u0043ontent":{ },"content":[1] }',
        b'{ "structuredContent":{ },"content":{} }',
    ],
)
@pytest.mark.parametrize("abilities", [LATEST, JUNE])
def test_structure_that_is_an_object_keeps_every_byte(result: bytes, abilities: Abilities) -> None:
    """(rule 62)"""
    assert fitted(result, abilities) == result


@pytest.mark.parametrize("content", [b"", b'"content":[],', b'"content":[ \n],', b'"content":null,'])
@pytest.mark.parametrize("abilities", [LATEST, JUNE])
def test_structure_without_any_content_is_also_text(content: bytes, abilities: Abilities) -> None:
    """Many clients of these revisions show the model content alone. Stateless clients get what the server wrote
    (rule 61)."""
    result = b'{%b"structuredContent":%b,"isError":true,"x":1.0}' % (content, STRUCTURE)
    said = json.loads(fitted(result, abilities))
    text = {"type": "text", "text": STRUCTURE.decode()}
    assert said == {"content": [text], "structuredContent": json.loads(STRUCTURE), "isError": True, "x": 1.0}
    assert STRUCTURE in fitted(result, abilities)
    assert fitted(result, FREE) == result
    assert fitted(result, LATEST, "prompts/get") == result


@pytest.mark.parametrize("abilities", [LATEST, JUNE, NO_ABILITIES])
def test_who_takes_everything_gets_every_byte(abilities: Abilities) -> None:
    result = Raw(EVERYTHING)
    assert downgrade_result("tools/call", result, abilities, result) is result


@pytest.mark.parametrize(
    ("method", "result"),
    [
        ("resources/read", EVERYTHING),
        ("completion/complete", b'{ "content":[{"type":"audio"}] }'),
        ("prompts/get", EVERYTHING),
        ("prompts/get", b'{"messages": [{"content":[%b]}, 1, null]}' % LINK),
        ("prompts/get", b'{"messages": {"content":%b}}' % LINK),
        ("tools/call", b'{"content": [{"type":"text","text":"audio resource_link structuredContent"}]}'),
        ("tools/call", b'{"content": [{"type":"text","text":"\\"audio\\" \\u0061"} , 1]}'),
        ("tools/call", b'{"content": {"type":"audio"} }'),
        ("tools/call", b'{"content": [{"type":["audio"]}] }'),
        ("tools/call", b'{"_meta": {"structuredContent":1,"content":[%b]} }' % LINK),
        ("tools/call", b'{ "x":"\\u0061" }'),
    ],
)
def test_whatever_is_of_another_shape_stays(method: str, result: bytes) -> None:
    assert fitted(result, FIRST, method) == result


def test_what_is_nested_too_deep_stays() -> None:
    deep = b'{"structuredContent":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert fitted(deep) == deep


def test_the_translated_result_is_one_that_a_client_takes() -> None:
    found = mcp.types.CallToolResult.model_validate_json(fitted(EVERYTHING), by_name=False)
    assert [block.type for block in found.content] == ["text", "resource", "text"]
    recording = found.content[1]
    assert isinstance(recording, mcp.types.EmbeddedResource)
    assert isinstance(recording.resource, mcp.types.BlobResourceContents)
    assert (recording.resource.blob, recording.resource.mime_type) == ("AA/=", "audio/wav")
    prompt = b'{"messages":[{"role":"user","content":%b},{"role":"assistant","content":%b}]}' % (LINK, AUDIO)
    taken = mcp.types.GetPromptResult.model_validate_json(fitted(prompt, FIRST, "prompts/get"), by_name=False)
    assert [message.content.type for message in taken.messages] == ["text", "resource"]


WORDS = st.text(max_size=5)
BLOCKS = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": WORDS}),
    st.fixed_dictionaries({"type": st.just("resource_link"), "name": WORDS, "uri": WORDS}),
    st.fixed_dictionaries({"type": st.just("audio"), "data": WORDS, "mimeType": WORDS}),
    st.fixed_dictionaries({"type": st.sampled_from(["image", "later"])}, optional={"data": WORDS}),
)


@settings(max_examples=examples(150))
@given(st.lists(BLOCKS, max_size=4), st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_translating_agrees_with_a_whole_parser(
    blocks: list[dict[str, Any]], escaped: bool, whole: bool, audio: bool, links: bool, structure: bool
) -> None:
    """(rule 61, rule 62)"""
    abilities = replace(LATEST, audio=audio, resource_links=links, structured_content=structure)
    given = {"content": blocks, "structuredContent": {"a": 1} if whole else [1], "isError": False}
    expected = json.loads(json.dumps(given))
    made = 0
    for at, block in enumerate(blocks):
        if block["type"] == "resource_link" and not links:
            expected["content"][at] = {"type": "text", "text": f"{block['name']}: {block['uri']}"}
        if block["type"] == "audio" and not audio:
            made += 1
            inner = {"uri": f"audio:{made}", "mimeType": block["mimeType"], "blob": block["data"]}
            expected["content"][at] = {"type": "resource", "resource": inner}
    if not structure or not whole:
        del expected["structuredContent"]
    if (not blocks or "structuredContent" not in expected) and all(block["type"] != "text" for block in blocks):
        expected["content"].append({"type": "text", "text": '{"a": 1}' if whole else "[1]"})
    assert json.loads(fitted(json.dumps(given, ensure_ascii=escaped).encode(), abilities)) == expected


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(st.dictionaries(WORDS, st.recursive(WORDS | st.none(), st.lists, max_leaves=4)), st.booleans())
def test_a_result_of_known_things_keeps_every_byte(extra: dict[str, object], escaped: bool) -> None:
    result = {**extra, "content": [{"type": "text", "text": "x", "_meta": extra}, extra]}
    text = json.dumps(result, ensure_ascii=escaped, indent=1).encode()
    assert fitted(text) == text


# Definitions


TOOL = b'{"name":"t","execution":{"taskSupport":"optional"},"inputSchema":{"type": "object"},"outputSchema":{"x": 1.0}}'


def test_no_tool_offers_tasks() -> None:
    """(rule 60)"""
    found = downgrade_definition(TOOL, icons=True, tasks=False)
    assert found == b'{"name":"t","inputSchema":{"type": "object"},"outputSchema":{"x": 1.0}}'
    escaped = TOOL.replace(b'"execution"', b'"\\u0065xecution"')
    assert downgrade_definition(escaped, icons=True, tasks=False) == found


def test_a_tool_promises_no_structure_to_those_who_do_not_know_it() -> None:
    """(rule 61)"""
    found = downgrade_definition(TOOL, icons=True, structured=False, tasks=False)
    assert found == b'{"name":"t","inputSchema":{"type": "object"}}'


@pytest.mark.parametrize("structured", [True, False])
def test_who_is_served_tasks_is_told_which_tools_take_them(structured: bool) -> None:
    """(rule 60)"""
    expected = TOOL if structured else TOOL.replace(b',"outputSchema":{"x": 1.0}', b"")
    assert downgrade_definition(TOOL, icons=True, structured=structured) == expected


def test_icons_are_for_revisions_that_have_them() -> None:
    raw = b'{"uri": "x:1","name":"r","icons":[{"src":"https://x/y.png","sizes":["48x48"]}]}'
    assert downgrade_definition(raw, icons=True) is raw
    assert downgrade_definition(raw, icons=False) == b'{"uri":"x:1","name":"r"}'


@pytest.mark.parametrize(
    "raw",
    [
        b'{ "name":"t", "inputSchema":{"properties":{"execution":{},"outputSchema":{},"icons":{}}} }',
        b'{ "name":"t", "description":"\\u0061 execution" }',
        b'{ "name":"t" }',
    ],
)
@pytest.mark.parametrize("wanted", [True, False])
def test_a_definition_with_nothing_to_lose_keeps_every_byte(raw: bytes, wanted: bool) -> None:
    assert downgrade_definition(raw, icons=wanted, structured=wanted, tasks=wanted) is raw
