"""Definitions of which only the order differs, and the remedies by which servers keep one."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import HttpServer, Secret, StdioServer
from host.policy.word_order import LONGEST, is_reordered, order_remedy


def text(value: object) -> bytes:
    return json.dumps(value).encode()


def tool(description: str, **more: object) -> dict[str, object]:
    return {"name": "x", "description": description, **more}


SET = "Fields: {'summary', 'status', 'due date'}."


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (tool(SET), tool("Fields: {'due date', 'summary', 'status'}.")),
        (
            tool("", inputSchema={"properties": {"f": {"default": "a,b,c"}}}),
            tool("", inputSchema={"properties": {"f": {"default": "c,a,b"}}}),
        ),
        (
            tool("", inputSchema={"properties": {"f": {"enum": ["a", "b"]}}, "required": ["f", "g"]}),
            tool("", inputSchema={"required": ["g", "f"], "properties": {"f": {"enum": ["b", "a"]}}}),
        ),
        (tool("a b", x=[{"y": "a b"}, 1]), tool("a b", x=[{"y": "b a"}, 1])),
        ("use a, then b", "use b, then a"),
        (tool("never delete, always ask"), tool("never ask, always delete")),  # another meaning: it stays held
    ],
)
def test_the_order_alone(before: object, after: object) -> None:
    assert is_reordered(text(before), text(after))
    assert is_reordered(text(after), text(before))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (tool("a b"), tool("a b b")),
        (tool("a b"), tool("ab ")),
        (tool("ab c"), tool("a bc")),
        (tool("a, b"), tool("b. a")),
        (tool("a b"), tool("a B")),
        (tool("a b"), tool("b\u202ea")),
        (tool("a b", title="c"), tool("a c", title="b")),  # words may not move to another text
        (tool("a b", title="c"), tool("a b", name="c")),
        (tool("a b", annotations={"readOnlyHint": True}), tool("b a", annotations={"readOnlyHint": False})),
        (
            tool("", annotations={"readOnlyHint": True, "destructiveHint": False}),
            tool("", annotations={"readOnlyHint": False, "destructiveHint": True}),
        ),
        (tool("a b"), {"description": "b a"}),
        (tool("", x=1), tool("", x=1.0)),
        (tool("", x=1), tool("", x=True)),
        (tool("", x=12), tool("", x=21)),
        (tool("", x=[1, 2]), tool("", x=[2, 1])),
        (tool("", x=[{"a": 1}, {"b": 1}]), tool("", x=[{"b": 1}, {"a": 1}])),
        (tool("", x=["a", "a"]), tool("", x=["a"])),
        (tool("", x=["a", None]), tool("", x=[None, "a"])),
        (tool("a b"), "b a"),
    ],
)
def test_more_than_the_order(before: object, after: object) -> None:
    assert not is_reordered(text(before), text(after))
    assert not is_reordered(text(after), text(before))


def test_what_is_not_compared() -> None:
    assert not is_reordered(None, text("a"))
    assert not is_reordered(b"{", b"{")
    assert not is_reordered(b"[" * 50_000, b"[" * 50_000)
    assert not is_reordered(text("a " * LONGEST), text("a " * LONGEST))
    assert not is_reordered(b"1" * 6000, b"1" * 6000)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"title":"b a"}', '{"title":"delete","title":"a b"}'),
        ('{"title":"a b","x":0.1}', '{"title":"b a","x":0.1000000000000000055511151231257827}'),
        ('{"title":"a b","x":1e999}', '{"title":"b a","x":2e999}'),
        ('{"title":"a b","x":NaN}', '{"title":"b a","x":NaN}'),
    ],
)
def test_what_parsers_may_read_in_two_ways_is_more_than_the_order(before: str, after: str) -> None:
    assert not is_reordered(before.encode(), after.encode())
    assert not is_reordered(after.encode(), before.encode())


WORDS = st.lists(st.sampled_from(["a", "b", "c", "of", "ü"]), max_size=8)


@given(WORDS, WORDS, st.randoms(use_true_random=False))
def test_it_agrees_with_sorting(one: list[str], other: list[str], chance: random.Random) -> None:
    assert is_reordered(text(", ".join(one)), text(", ".join(other))) == (sorted(one) == sorted(other))
    mixed = list(one)
    chance.shuffle(mixed)
    assert is_reordered(text(tool(", ".join(one), enum=one)), text(tool(", ".join(mixed), enum=mixed)))


def program(*words: str, **env: str) -> StdioServer:
    secrets: Any = {name: Secret(each) for name, each in env.items()}
    return StdioServer(id="x", command=tuple(map(Secret, words)), env=secrets, cwd=Path("/"))


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (program("uvx", "mcp-atlassian"), 'write env: {PYTHONHASHSEED: "0"} and'),
        (program("/srv/own", KEY="k"), 'write env: {…, PYTHONHASHSEED: "0"} and'),
        (program("python3", "x.py", PYTHONHASHSEED="0"), "approve it once with PYTHONHASHSEED; if"),
        (program("/usr/bin/npx", "-y", "x"), "its author"),
        (program("docker", "run", "x"), "add -e PYTHONHASHSEED=0 to the arguments of docker run"),
        (program("sudo", "-n", "podman", "run", "x"), "add -e PYTHONHASHSEED=0 to the arguments of podman run"),
        (HttpServer(id="x", url=Secret("https://h/mcp")), "its operator can set PYTHONHASHSEED=0"),
    ],
)
def test_the_remedy_is_for_the_one_who_starts_it(spec: StdioServer | HttpServer, says: str) -> None:
    assert says in order_remedy(spec)
