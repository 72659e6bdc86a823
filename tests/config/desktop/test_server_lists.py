"""Lists of servers that a host permits or refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.desktop.entry import ServerEntry
from config.desktop.server_lists import apply_lists

UNKNOWN: list[object] = ["a", ["a"], [{}], [{"name": "a"}], [{"serverName": ["a"]}], [{"serverName": "a", "x": "*"}]]
NAMED, OTHER, BY_COMMAND = {"serverName": "a"}, {"serverName": "b"}, {"serverCommand": ["x"]}


@pytest.mark.parametrize(
    ("settings", "is_off", "is_detected"),
    [
        ({}, False, False),
        ({"deniedMcpServers": []}, False, False),
        ({"deniedMcpServers": [OTHER]}, False, False),
        ({"deniedMcpServers": [OTHER, NAMED]}, True, False),
        ({"deniedMcpServers": [BY_COMMAND]}, False, True),
        ({"deniedMcpServers": [BY_COMMAND, NAMED]}, True, True),
        ({"allowedMcpServers": []}, True, False),
        ({"allowedMcpServers": [OTHER]}, True, False),
        ({"allowedMcpServers": [NAMED]}, False, False),
        ({"allowedMcpServers": [NAMED], "deniedMcpServers": [NAMED]}, True, False),
        ({"allowedMcpServers": [OTHER, BY_COMMAND]}, False, True),
        *(({key: items}, False, True) for key in ("deniedMcpServers", "allowedMcpServers") for items in UNKNOWN),
    ],
)
def test_lists(settings: dict[str, object], is_off: bool, is_detected: bool) -> None:
    made = ServerEntry("a", "a", ("a",), {"command": "x"}, lambda text: text, Path("/"))
    apply_lists(made, "a", settings)
    assert (made.is_off, made.may_be_forbidden) == (is_off, is_detected)
