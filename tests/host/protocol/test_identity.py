"""Names and versions that peers give themselves."""

from __future__ import annotations

import json

import pytest
from msgspec import Raw

from host.protocol.identity import display_name, implementation_info


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
