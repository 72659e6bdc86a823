"""The revisions and their features."""

from __future__ import annotations

import json

import pytest

from config import Protocol
from host.protocol.versions import (
    HANDSHAKES,
    LATEST,
    LATEST_LEGACY,
    LEGACY,
    MODERN,
    SERVED,
    STATELESS,
    negotiated_revision,
    unsupported_version,
)


def test_the_handshake_revisions_are_these_four() -> None:
    assert list(LEGACY) == ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
    assert all(revision.name == name for name, revision in LEGACY.items())
    assert LATEST_LEGACY is LEGACY["2025-11-25"]
    assert not any(revision.era is STATELESS or revision.has_free_structure for revision in LEGACY.values())


def test_one_revision_is_stateless() -> None:
    assert {"2026-07-28": LATEST} == MODERN
    assert LATEST.name == "2026-07-28"
    assert LATEST.era is STATELESS
    assert LATEST.has_free_structure


def test_the_newest_is_named_first() -> None:
    assert list(SERVED) == sorted([*LEGACY, *MODERN], reverse=True)


def test_what_is_not_served_is_told_what_is() -> None:
    refusal = unsupported_version("2099-01-01")
    assert refusal.code == -32022
    assert all(name in refusal.message for name in (*SERVED, "2099-01-01"))
    assert json.loads(bytes(refusal.data or b"")) == {"supported": list(SERVED), "requested": "2099-01-01"}


def test_a_version_that_somebody_made_up_is_cut() -> None:
    refusal = unsupported_version("\x1b" * 1000)
    assert len(refusal.message) < 300
    assert refusal.message.isprintable()
    assert json.loads(bytes(refusal.data or b""))["requested"] == "\x1b" * 40


@pytest.mark.parametrize("name", LEGACY)
def test_a_revision_that_is_served_is_settled(name: str) -> None:
    assert negotiated_revision(name).name == name


@pytest.mark.parametrize("name", ["", "2099-01-01", "2025-11-25 ", "2026-07-28", "latest", "\0"])
def test_any_other_is_answered_with_the_latest(name: str) -> None:
    assert negotiated_revision(name) is LATEST_LEGACY


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


@pytest.mark.parametrize(
    "ability",
    [
        "has_completions_capability",
        "has_audio",
        "names_itself_in_http",
        "has_resource_links",
        "has_structured_content",
        "has_elicitation",
        "has_url_elicitation",
        "has_sampling_tools",
        "has_choice_schemas",
    ],
)
def test_without_a_handshake_the_same_can_be_said(ability: str) -> None:
    assert getattr(LATEST, ability)


def test_without_a_handshake_no_stream_is_taken_up_again() -> None:
    """(rule 38)"""
    assert not LATEST.resumes_streams
    assert not LATEST.primes_streams


def test_one_revision_alone_has_batches_and_one_has_tasks() -> None:
    every = {**LEGACY, **MODERN}
    assert [name for name, revision in every.items() if revision.has_batches] == ["2025-03-26"]
    assert [name for name, revision in every.items() if revision.has_tasks] == ["2025-11-25"]


def test_the_configuration_may_name_each_revision() -> None:
    words = [word.value for word in Protocol]
    assert words == ["auto", "legacy", "modern", *SERVED]
    assert [each.name for each in HANDSHAKES] == [name for name in SERVED if name in LEGACY]
