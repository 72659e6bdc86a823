"""Abilities of a client: from its revision and its declared capabilities; an invalid declaration counts as none."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from host.protocol.abilities import (
    APPS_EXTENSION,
    NO_ABILITIES,
    TASKS_EXTENSION,
    Abilities,
    abilities_of,
    are_passed_on,
    lacks,
    object_members,
)
from host.protocol.versions import LATEST, LATEST_LEGACY, LEGACY, Revision
from tests.kit.examples import examples

REVISIONS = [*LEGACY.values(), LATEST]
ASKED = ("roots", "sampling", "sampling_tools", "form", "url")


def can(capabilities: object, revision: str = LATEST_LEGACY.name) -> set[str]:
    """The server requests that a client with these capabilities supports."""
    found = abilities_of(LEGACY[revision], Raw(json.dumps(capabilities).encode()))
    return {name for name in ASKED if getattr(found, name)}


@pytest.mark.parametrize(
    ("elicitation", "modes"),
    [
        ({}, {"form"}),
        ({"form": {}}, {"form"}),
        ({"form": {"applyDefaults": True}}, {"form"}),
        ({"url": {}}, {"url"}),
        ({"form": {}, "url": {}}, {"form", "url"}),
        ({"form": None, "url": {}}, {"url"}),
        ({"form": {}, "url": None}, {"form"}),
        ({"voice": {}}, {"form"}),
        (None, set()),
        (True, set()),
        ([], set()),
    ],
)
def test_elicitation_without_a_mode_means_forms(elicitation: object, modes: set[str]) -> None:
    assert can({"elicitation": elicitation}) == modes


@pytest.mark.parametrize(
    ("revision", "expected"),
    [
        ("2024-11-05", {"roots", "sampling"}),
        ("2025-03-26", {"roots", "sampling"}),
        ("2025-06-18", {"roots", "sampling", "form"}),
        ("2025-11-25", {"roots", "sampling", "sampling_tools", "url"}),
    ],
)
def test_what_a_revision_does_not_know_is_not_declared(revision: str, expected: set[str]) -> None:
    """Modes and tools mean nothing before 2025-11-25, elicitation nothing before 2025-06-18 (rule 74)."""
    capabilities: dict[str, object] = {"roots": {}, "sampling": {"tools": {}}, "elicitation": {"url": {}}, "tasks": {}}
    assert can(capabilities, revision) == expected


@pytest.mark.parametrize("sampling", [{}, {"tools": True}, {"tools": None}, {"context": {}}])
def test_sampling_without_tools(sampling: object) -> None:
    assert can({"sampling": sampling}) == {"sampling"}


@pytest.mark.parametrize("wrong", [None, True, 1, "yes", []])
def test_a_capability_that_is_no_object_is_not_declared(wrong: object) -> None:
    assert can({"roots": wrong, "sampling": wrong, "elicitation": wrong}) == set()


@pytest.mark.parametrize("text", [b"", b"{", b"null", b"[]", b'"roots"', b'{"\\ud83d":{}}', b"\xff"])
def test_odd_capabilities_are_none(text: bytes) -> None:
    found = abilities_of(LATEST_LEGACY, Raw(text))
    assert not any(getattr(found, name) for name in ASKED)


def test_what_a_client_takes_is_its_revisions() -> None:
    found = [abilities_of(revision, Raw(b"{}")) for revision in REVISIONS]
    assert [each.audio for each in found] == [False, True, True, True, True]
    assert [each.resource_links for each in found] == [False, False, True, True, True]
    assert [each.structured_content for each in found] == [False, False, True, True, True]
    assert [each.free_structure for each in found] == [False, False, False, False, True]
    assert [each.needs_no_downgrade for each in found] == [False, False, False, False, True]
    assert [each.choice_schemas for each in found] == [False, False, False, True, True]


def test_who_has_no_session_is_asked_by_answers() -> None:
    assert [abilities_of(revision, Raw(b"{}")).retries for revision in REVISIONS] == [False] * 4 + [True]


def extended(revision: Revision, extensions: object) -> tuple[bool, bool]:
    found = abilities_of(revision, Raw(json.dumps({"extensions": extensions}).encode()))
    return found.tasks, found.apps


def test_tasks_come_with_one_revision_and_are_declared_in_later_ones() -> None:
    """(rule 92)"""
    declared: dict[str, object] = {TASKS_EXTENSION: {}}
    assert [extended(revision, {})[0] for revision in REVISIONS] == [False, False, False, True, False]
    assert [extended(revision, declared)[0] for revision in REVISIONS] == [False, False, False, True, True]


@pytest.mark.parametrize("revision", REVISIONS)
def test_pages_of_tools_can_be_declared_in_any_revision(revision: Revision) -> None:
    assert extended(revision, {APPS_EXTENSION: {"mimeTypes": ["text/html;profile=mcp-app"]}})[1]
    assert extended(revision, {APPS_EXTENSION: {}})[1]
    assert not extended(revision, {TASKS_EXTENSION: {}})[1]


@pytest.mark.parametrize("wrong", [None, True, [], "x", {TASKS_EXTENSION: None, APPS_EXTENSION: True}])
def test_an_extension_that_is_no_object_is_not_declared(wrong: object) -> None:
    assert extended(LATEST, wrong) == (False, False)


def test_what_is_declared_is_an_object() -> None:
    found = object_members(Raw(b'{"a":{},"b":[],"c":null,"d": {"e":1}}'))
    assert {name: bytes(each) for name, each in found.items()} == {"a": b"{}", "d": b'{"e":1}'}
    assert object_members(Raw(b"[]")) == {}


def test_without_a_handshake_nothing_is_asked_and_everything_taken() -> None:
    assert NO_ABILITIES.needs_no_downgrade
    assert not any(getattr(NO_ABILITIES, name) for name in (*ASKED, "choice_schemas", "tasks", "retries", "apps"))


VALUES = st.recursive(
    st.sampled_from([None, True, "x", 1]),
    lambda inner: st.dictionaries(
        st.sampled_from(["roots", "sampling", "elicitation", "form", "url", "tools"]), inner, max_size=4
    ),
    max_leaves=12,
)


@settings(max_examples=examples(100))
@given(VALUES)
def test_no_declaration_is_worth_an_error(capabilities: object) -> None:
    found = abilities_of(LATEST_LEGACY, Raw(json.dumps(capabilities).encode()))
    assert isinstance(found, Abilities)
    assert found.sampling or not found.sampling_tools


@pytest.mark.parametrize(
    ("declared", "required", "expected"),
    [
        ({}, {}, False),
        ({}, {"elicitation": {}}, True),
        ({"elicitation": {}}, {"elicitation": {"form": {}}}, False),
        ({"elicitation": {"form": {}}}, {"elicitation": {"url": {}}}, True),
        ({"sampling": {}}, {"sampling": {"tools": {}}}, True),
        ({"sampling": {}}, {"sampling": {"context": {}}}, True),
        ({"sampling": {"context": {}}}, {"sampling": {"context": {}}}, False),
        ({"extensions": {"a/b": {}}}, {"extensions": {"a/b": {"v": 1}}}, False),
        ({"extensions": {"a/b": None}}, {"extensions": {"a/b": {}}}, True),
        ({"extensions": {"a/b": {}}}, {"extensions": {"a/b": {}, "a/c": {}}}, True),
        ({"experimental": {}}, {"experimental": {"x": {}}}, True),
        ({}, {"later": {}}, True),
        ({"later": {}}, {"later": {}}, False),
        ({}, {"roots": None, "extensions": 1}, False),
    ],
)
def test_a_client_lacks_what_it_does_not_declare(declared: object, required: object, expected: bool) -> None:
    each = (Raw(json.dumps(what).encode()) for what in (declared, required))
    assert lacks(abilities_of(LATEST, next(each)), next(each)) is expected


@pytest.mark.parametrize(
    ("required", "expected"),
    [
        ({"roots": {}, "sampling": {"tools": {}}, "elicitation": {"url": {}}}, True),
        ({"extensions": {APPS_EXTENSION: {}}}, True),
        ({"extensions": {TASKS_EXTENSION: {}}}, False),
        ({"sampling": {"context": {}}}, False),
        ({"extensions": {"a/b": {}}}, False),
    ],
)
def test_what_a_server_is_told_of_its_client(required: object, expected: bool) -> None:
    assert are_passed_on(Raw(json.dumps(required).encode())) is expected


def test_a_long_declaration_is_read_as_a_short_one() -> None:
    """A short one is decoded once for each revision (rule 26)."""
    short = Raw(b'{"sampling":{"tools":{}}}')
    long = Raw(b'{"sampling":{"tools":{"y":"%b"}}}' % (b"z" * 5000))
    for revision in REVISIONS:
        found = abilities_of(revision, short)
        assert abilities_of(revision, long) == found
        assert abilities_of(revision, short) is found
    assert len({abilities_of(revision, short) for revision in REVISIONS}) == len(REVISIONS)
