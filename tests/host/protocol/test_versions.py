"""The revisions and what they let a peer do."""

from __future__ import annotations

import pytest

from host.protocol.versions import LATEST_LEGACY, LEGACY, settled_with


def test_the_handshake_revisions_are_these_four() -> None:
    assert list(LEGACY) == ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
    assert all(revision.name == name for name, revision in LEGACY.items())
    assert LATEST_LEGACY is LEGACY["2025-11-25"]


@pytest.mark.parametrize("name", LEGACY)
def test_a_revision_that_is_served_is_settled(name: str) -> None:
    assert settled_with(name).name == name


@pytest.mark.parametrize("name", ["", "2099-01-01", "2025-11-25 ", "2026-07-28", "latest", "\0"])
def test_any_other_is_answered_with_the_latest(name: str) -> None:
    assert settled_with(name) is LATEST_LEGACY


def test_abilities_by_revision() -> None:
    assert [revision.names_itself_in_http for revision in LEGACY.values()] == [False, False, True, True]
    assert [revision.has_completions_capability for revision in LEGACY.values()] == [False, True, True, True]
