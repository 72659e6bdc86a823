"""Names and versions that peers give themselves."""

from __future__ import annotations

import json

import pytest
from msgspec import Raw

from host.protocol.identity import MAX_INFO, display_name, implementation_info, server_info


def test_we_have_one_name() -> None:
    assert implementation_info("1.2") == {"name": "colonnade", "title": "Colonnade", "version": "1.2"}


@pytest.mark.parametrize(
    ("info", "shown"),
    [
        ({"name": "desk", "version": "1.0"}, "desk 1.0"),
        ({"version": "1.0", "name": "desk", "title": "Desk"}, "desk 1.0"),
        ({"name": "desk"}, "desk"),
        ({"name": "desk", "version": None}, "desk"),
        ({"name": "x" * 200, "version": "y" * 200}, "x" * 80 + " " + "y" * 80),
        ({"name": 1}, ""),
        ({}, ""),
        ([], ""),
        ("desk", ""),
        ({"name": "\ud800"}, ""),
    ],
)
def test_others_are_called_by_what_can_be_shown(info: object, shown: str) -> None:
    """(rule 11)"""
    assert display_name(Raw(json.dumps(info).encode())) == shown


def test_who_says_nothing_has_no_name() -> None:
    assert display_name(None) == ""


@pytest.mark.parametrize(
    ("info", "passed_on"),
    [
        ({"version": "1", "name": "gh", "title": "Git", "icons": [{"src": "data:x"}], "more": 1}, None),
        ({"name": "g\u200bh\u001b[1m", "version": "1\u202e"}, {"name": "gh", "version": "1"}),
        ({"name": "gh", "version": 1, "title": None}, {"name": "gh"}),
        ({"name": "gh", "description": "d", "websiteUrl": "https://gh/"}, None),
        ({"name": "gh", "websiteUrl": "javascript:alert(1)"}, {"name": "gh"}),
        ({"name": "gh", "websiteUrl": 1}, {"name": "gh"}),
        ({"name": "\ud800"}, {}),
        ({}, {}),
        ([], {}),
        ("gh", {}),
    ],
)
def test_what_a_server_calls_itself_is_passed_on_as_text(info: object, passed_on: dict[str, str] | None) -> None:
    found = dict(server_info(Raw(json.dumps(info).encode())))
    if passed_on is None:
        assert isinstance(info, dict)
        passed_on = {name: each for name, each in info.items() if name not in ("icons", "more")}
    assert found == passed_on


def test_a_long_name_is_cut_and_none_is_none() -> None:
    ((_, name),) = server_info(Raw(json.dumps({"name": "x" * 10_000}).encode()))
    assert len(name) == MAX_INFO
    assert server_info(None) == ()
