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


@pytest.mark.parametrize(
    ("ability", "first"),
    [
        ("has_completions_capability", "2025-03-26"),
        ("resumes_streams", "2025-03-26"),
        ("has_audio", "2025-03-26"),
        ("names_itself_in_http", "2025-06-18"),
        ("has_resource_links", "2025-06-18"),
        ("has_structured_content", "2025-06-18"),
        ("has_elicitation", "2025-06-18"),
        ("primes_streams", "2025-11-25"),
        ("has_url_elicitation", "2025-11-25"),
        ("has_sampling_tools", "2025-11-25"),
        ("has_choice_schemas", "2025-11-25"),
    ],
)
def test_an_ability_stays_once_it_is_there(ability: str, first: str) -> None:
    assert [name for name, revision in LEGACY.items() if getattr(revision, ability)] == [
        name for name in LEGACY if name >= first
    ]


def test_one_revision_alone_has_batches() -> None:
    assert [name for name, revision in LEGACY.items() if revision.has_batches] == ["2025-03-26"]
