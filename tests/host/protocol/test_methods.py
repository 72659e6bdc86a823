"""The tables of methods, compared with the specification."""

from __future__ import annotations

import pytest

from host.errors import InvalidParams
from host.jsonrpc.raw import encode_object, members
from host.protocol.methods import (
    COMPLETION_COMPLETE,
    LIST_METHOD_BY_NAME,
    LIST_METHODS,
    TARGETED,
    Kind,
    describe_counts,
    target_of,
    with_target,
)


def test_entries_are_counted_in_words() -> None:
    assert describe_counts([(Kind.TOOL, 1), (Kind.PROMPT, 2), (Kind.RESOURCE, 0)]) == "1 tool, 2 prompts"
    assert describe_counts([]) == "no entries"


def test_every_kind_is_listed_by_one_method() -> None:
    assert {kind: (each.method, each.member, each.key, each.capability) for kind, each in LIST_METHODS.items()} == {
        Kind.TOOL: ("tools/list", "tools", "name", "tools"),
        Kind.RESOURCE: ("resources/list", "resources", "uri", "resources"),
        Kind.TEMPLATE: ("resources/templates/list", "resourceTemplates", "uriTemplate", "resources"),
        Kind.PROMPT: ("prompts/list", "prompts", "name", "prompts"),
    }
    assert {each.kind: each for each in LIST_METHOD_BY_NAME.values()} == LIST_METHODS
    assert all(name == each.method for name, each in LIST_METHOD_BY_NAME.items())


def test_templates_change_together_with_resources() -> None:
    assert {kind: each.list_changed for kind, each in LIST_METHODS.items()} == {
        Kind.TOOL: "notifications/tools/list_changed",
        Kind.RESOURCE: "notifications/resources/list_changed",
        Kind.TEMPLATE: "notifications/resources/list_changed",
        Kind.PROMPT: "notifications/prompts/list_changed",
    }


def test_every_method_that_reaches_an_entry_has_one_row() -> None:
    assert {name: (each.kind, each.target, each.arguments, each.capability) for name, each in TARGETED.items()} == {
        "tools/call": (Kind.TOOL, "name", "arguments", "tools"),
        "resources/read": (Kind.RESOURCE, "uri", None, "resources"),
        "prompts/get": (Kind.PROMPT, "name", "arguments", "prompts"),
    }
    assert TARGETED["tools/call"].links == (("content", "*"),)
    assert TARGETED["resources/read"].links == (("contents", "*"),)
    assert TARGETED["prompts/get"].links == (("messages", "*", "content"),)


@pytest.mark.parametrize(
    ("method", "params", "found"),
    [
        ("tools/call", b'{"name":"a"}', (Kind.TOOL, "a")),
        ("tools/call", b'{"arguments":{"name":"b"},"name":"a"}', (Kind.TOOL, "a")),
        ("resources/read", b'{"uri":"x://y"}', (Kind.RESOURCE, "x://y")),
        ("prompts/get", b'{"name":""}', (Kind.PROMPT, "")),
        (COMPLETION_COMPLETE, b'{"ref":{"type":"ref/prompt","name":"a","uri":"u"}}', (Kind.PROMPT, "a")),
        (COMPLETION_COMPLETE, b'{"ref":{"uri":"u","type":"ref/resource"}}', (Kind.RESOURCE, "u")),
        (COMPLETION_COMPLETE, b'{"ref":{"type":"ref\\/resource","uri":"u"}}', (Kind.RESOURCE, "u")),
    ],
)
def test_the_target_of_a_request(method: str, params: bytes, found: tuple[Kind, str]) -> None:
    assert target_of(method, members(params)) == found


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", b"{}"),
        ("tools/call", b'{"Name":"a"}'),
        ("tools/call", b'{"name":1}'),
        ("tools/call", b'{"name":null}'),
        ("tools/call", b'{"name":["a"]}'),
        ("tools/call", b'{"name":"\\ud800"}'),
        ("resources/read", b'{"name":"a"}'),
        ("prompts/get", b'{"name":true}'),
        (COMPLETION_COMPLETE, b"{}"),
        (COMPLETION_COMPLETE, b'{"ref":"ref/prompt"}'),
        (COMPLETION_COMPLETE, b'{"ref":{}}'),
        (COMPLETION_COMPLETE, b'{"ref":{"type":1,"name":"a"}}'),
        (COMPLETION_COMPLETE, b'{"ref":{"type":"ref/tool","name":"a"}}'),
        (COMPLETION_COMPLETE, b'{"ref":{"type":"ref/prompt"}}'),
        (COMPLETION_COMPLETE, b'{"ref":{"type":"ref/prompt","uri":"u"}}'),
        (COMPLETION_COMPLETE, b'{"ref":{"type":"ref/prompt","name":1}}'),
        (COMPLETION_COMPLETE, b'{"ref":null}'),
        (COMPLETION_COMPLETE, b'{"ref":{"type":"ref/prompt","name":"a","Name":"b"}}'),
        (COMPLETION_COMPLETE, b'{"ref":{"type":"ref/resource","uri":"u","uri\\u0000":"v"}}'),
        (COMPLETION_COMPLETE, b'{"ref":{"type":"ref/resource","uri":"u","a":1,"A":2}}'),
        (COMPLETION_COMPLETE, b'{"ref":{"type":"ref/prompt","name":"a"},"argument":{"name":"b","NAME":"c"}}'),
    ],
)
def test_a_target_that_cannot_be_read_is_the_callers_mistake(method: str, params: bytes) -> None:
    with pytest.raises(InvalidParams):
        target_of(method, members(params))


@pytest.mark.parametrize(
    ("method", "params", "changed"),
    [
        ("tools/call", b'{"a": 1.0,"name":"x","z":"\\/"}', b'{"a":1.0,"name":"n\\"w","z":"\\/"}'),
        ("resources/read", b'{"uri":"x"}', b'{"uri":"n\\"w"}'),
        (
            COMPLETION_COMPLETE,
            b'{"ref":{"type":"ref\\/prompt","name":"x","title": 1.0},"argument":{"name":"x"}}',
            b'{"ref":{"type":"ref\\/prompt","name":"n\\"w","title":1.0},"argument":{"name":"x"}}',
        ),
        (
            COMPLETION_COMPLETE,
            b'{"ref":{"name":"x","type":"ref/resource","uri":"x"}}',
            b'{"ref":{"name":"x","type":"ref/resource","uri":"n\\"w"}}',
        ),
    ],
)
def test_only_the_target_is_renamed(method: str, params: bytes, changed: bytes) -> None:
    """(rules 4, 69, 70)"""
    found = members(params)
    before = dict(found)
    assert bytes(encode_object(with_target(method, found, 'n"w'))) == changed
    assert found == before, "the caller's own params stay as they were"
