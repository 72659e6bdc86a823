"""Paths below others, and paths in messages."""

from __future__ import annotations

import pytest

from host.sandbox.paths import in_quotes, is_below_any


@pytest.mark.parametrize(
    ("path", "folders", "is_below"),
    [
        ("/a", ["/a"], True),
        ("/a/b", ["/x", "/a"], True),
        ("/ab", ["/a"], False),
        ("/a", ["/a/b"], False),
        ("/a", ["/"], True),
        ("/a", [], False),
    ],
)
def test_what_is_below(path: str, folders: list[str], is_below: bool) -> None:
    assert is_below_any(path, folders) is is_below


def test_a_path_in_a_message_has_no_quotes_and_no_lines_of_its_own() -> None:
    assert in_quotes("/a b/\"c'`\n") == '"/a b/?c???"'
