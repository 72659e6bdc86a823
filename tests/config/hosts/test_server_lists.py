"""Lists of servers that a host permits or refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.hosts.entry import CannotUse, ServerEntry
from config.hosts.server_lists import permit_listed, refuse_listed


def fill(text: str) -> str | None:
    return None if "$UNSET" in text else text.replace("$HOST", "h.example")


def entry(**values: object) -> ServerEntry:
    return ServerEntry("a", "a", ("a",), values, lambda text: text, Path("/"))


def refused(made: ServerEntry, *items: object) -> bool:
    refuse_listed(made, "a", "refused", list(items), fill)
    return made.is_off


def permitted(made: ServerEntry, *items: object) -> bool:
    permit_listed(made, "a", "permitted", list(items), fill)
    return not made.is_off


@pytest.mark.parametrize(
    ("pattern", "url", "loose", "strict"),
    [
        ("https://h.example/*", "https://h.example/mcp", True, True),
        ("https://$HOST/*", "https://h.example/mcp", True, True),
        ("https://h.example/*", "https://$HOST/mcp", True, True),
        ("https://H.example/*", "https://h.example/mcp", True, True),
        ("https://h.example/MCP", "https://h.example/mcp", True, False),
        ("https://*.example/*", "https://x.example/mcp", True, True),
        ("https://*.example/*", "https://evil/x.example/mcp", True, False),
        ("https://*.example/*", "https://evil?x.example/mcp", True, False),
        ("https://h.example", "https://h.example/mcp", False, False),
        ("*", "https://h.example/mcp", True, True),
    ],
)
def test_urls(pattern: str, url: str, loose: bool, strict: bool) -> None:
    """A list that refuses is compared loosely, and one that permits strictly."""
    assert refused(entry(url=url), {"serverUrl": pattern}) is loose
    assert permitted(entry(url=url), {"serverUrl": pattern}) is strict


@pytest.mark.parametrize(
    ("words", "same"),
    [(["npx", "-y", "8"], True), (["npx", "-y"], False), (["npx"], False), (["npx", "-y", "8", "9"], False)],
)
def test_commands_are_compared_word_by_word(words: list[str], same: bool) -> None:
    made = entry(command="npx", args=["-y", "8"])
    assert permitted(made, {"serverCommand": words}) is same
    assert refused(entry(command="npx", args=["-y", "8"]), {"serverCommand": words}) is same


def test_names() -> None:
    assert refused(entry(command="x"), {"serverName": "b"}, {"serverName": "a"})
    assert permitted(entry(command="x"), {"serverName": "b"}, {"serverName": "a"})
    assert not permitted(entry(command="x"))


def test_a_name_does_not_count_beside_a_list_of_its_kind() -> None:
    items = ({"serverName": "a"}, {"serverUrl": "https://h.example/*"})
    assert permitted(entry(command="x"), *items)
    assert not permitted(entry(url="https://other.example/mcp"), *items)


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(CannotUse):
        refused(entry(url="https://$UNSET/"), {"serverUrl": "https://h/*"})
    with pytest.raises(CannotUse):
        refused(entry(command="x"), {"serverCommand": ["$UNSET"]})
    assert not permitted(entry(url="https://$UNSET/"), {"serverUrl": "*"})
    assert not permitted(entry(command="$UNSET"), {"serverCommand": ["$UNSET"]})
    assert not permitted(entry(args=["x"]), {"serverCommand": ["x"]})


@pytest.mark.parametrize(
    "item",
    ["a", {}, {"name": "a"}, {"serverName": ["a"]}, {"serverCommand": "x"}, {"serverName": "a", "serverUrl": "*"}],
)
def test_items_that_are_not_known(item: object) -> None:
    with pytest.raises(CannotUse):
        refused(entry(command="x"), item)
    with pytest.raises(CannotUse):
        permitted(entry(command="x"), item)
