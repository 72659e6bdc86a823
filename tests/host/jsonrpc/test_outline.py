"""The outline of JSON text is that text but for long strings."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from host.jsonrpc.outline import LONG, MAX_BYTES, MAX_OBJECTS, outline, outline_object, outline_soon
from host.jsonrpc.raw import members
from host.jsonrpc.strict import LIGHT_BYTES, count_tokens_outside_strings
from tests.kit.examples import examples

TEXTS = st.sampled_from(["", "a", "é", "{", "},{", '"', "\\", "\b\x7f\n", "\u2028", "\U0001f600", ","]).map(json.dumps)
LONG_TEXTS = st.tuples(TEXTS, st.integers(0, LONG // 2)).map(lambda each: f'"{each[0][1:-1] * each[1]}"')
BLANKS = st.sampled_from(["", "", "", "", " ", "\n"])


def objects(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    names = TEXTS | st.sampled_from([r'"\u0061"', r'"\/"', r'"\u0008"', '"/"', '"\x7f"'])
    pairs = st.tuples(names, BLANKS, inner).map(lambda each: f"{each[0]}:{each[1]}{each[2]}")
    return st.lists(pairs, max_size=4).map(lambda found: "{" + ",".join(found) + "}")


def arrays(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(st.lists(inner, max_size=3), BLANKS).map(lambda each: f"[{f',{each[1]}'.join(each[0])}]")


DOCUMENTS = st.recursive(
    TEXTS | LONG_TEXTS | st.sampled_from(["1", "-1.50e3", "null", "9" * 400]),
    lambda inner: objects(inner) | arrays(inner) | arrays(objects(inner)),
    max_leaves=12,
)


def shortened(before: Any, after: Any) -> bool:
    """Whether two values, read with all members of their objects, differ only in long strings that are empty now."""
    if type(before) is not type(after):
        return False
    if isinstance(before, list | tuple):
        return len(before) == len(after) and all(map(shortened, before, after))
    return before == after or (after == "" and len(json.dumps(before)) > LONG // 2)


@settings(max_examples=examples(500))
@given(objects(DOCUMENTS) | arrays(objects(DOCUMENTS)))
def test_nothing_but_long_strings_is_left_out(text: str) -> None:
    """Also of objects with two members of one name, and of names that are spelled in an unusual way."""
    whole = Raw(text.encode())
    found = outline(whole)
    if len(whole) > LONG:
        outlined = outline_object(whole)
        assert outlined.outline == found
        assert outlined.members == ({} if found is whole or text[0] != "{" else members(whole))
        for name, inner in outlined.inner.items():
            assert inner == members(outlined.members[name])
    before, after = (json.loads(each, object_pairs_hook=list) for each in (text, bytes(found)))
    assert shortened(before, after)
    assert count_tokens_outside_strings(bytes(found)) == count_tokens_outside_strings(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        '{"content":[{"type":"text","text":"%s"}],"isError":false}',
        '{"a":{"b":{"c":{"d":"%s"}}}}',
        '{"edits":[{"old":"%s","new":""},{"new":"x"}],"\u00e9":"%s"}',
        '[{"a":"%s"}]',
    ],
)
@pytest.mark.parametrize("long", ["x" * 2000, r"\n{\"a\":1}," * 200, "é" * 1000])
def test_what_encoders_write_is_outlined(text: str, long: str) -> None:
    whole = Raw(text.replace("%s", long).encode())
    assert outline(whole) == Raw(text.replace("%s", "").encode())
    assert outline_soon(whole) == outline(whole)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": "%s"}',
        '{"a":"","a":"%s"}',
        r'{"\u0061":"%s"}',
        '["%s"]',
        '{"a":"%s\\ud800"}',
        '{"a":{"b":{"c":{"d":{"e":{"f":{"g":{"h":{"i":"%s"}}}}}}}}}',
        "%s",
    ],
)
def test_what_cannot_be_told_from_its_members_is_kept(text: str) -> None:
    whole = Raw(text.replace("%s", "1" * 1000).encode())
    assert outline(whole) == whole


@pytest.mark.parametrize(
    ("long", "char", "most"),
    [("", "x", MAX_BYTES - 8), ("x" * LIGHT_BYTES, "{", MAX_OBJECTS - 2), ("x" * LIGHT_BYTES, ":", MAX_OBJECTS - 2)],
)
def test_the_event_loop_outlines_no_text_that_takes_long(long: str, char: str, most: int) -> None:
    for size in (most, most + 1):
        whole = Raw(b'{"a":"%b"}' % (long + char * size).encode())
        assert (outline_soon(whole) is whole) is (size > most)
        assert outline(whole) == Raw(b'{"a":""}')
