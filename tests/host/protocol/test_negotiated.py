"""Capabilities of a server in each revision; an invalid declaration counts as none."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from host.protocol.methods import Kind
from host.protocol.negotiated import NegotiatedServer, declared_capabilities, negotiated_server
from host.protocol.versions import LATEST, LATEST_LEGACY, LEGACY, MODERN, Revision
from tests.kit.examples import examples

FIRST = LEGACY["2024-11-05"]
ALL = [*LEGACY.values(), *MODERN.values()]


def raw(thing: object) -> Raw:
    return Raw(json.dumps(thing).encode())


def offered(capabilities: object, revision: Revision = LATEST_LEGACY) -> NegotiatedServer:
    return negotiated_server(revision, raw(capabilities), None, None)


def test_an_offer_is_read() -> None:
    found = negotiated_server(
        LATEST, raw({"tools": {}, "logging": {}}), raw("Read first."), raw({"name": "gh", "version": "3"})
    )
    assert found == NegotiatedServer(
        LATEST,
        frozenset({"tools", "logging"}),
        "Read first.",
        "gh 3",
        has_subscriptions=False,
        info=(("name", "gh"), ("version", "3")),
    )
    assert found.has_logging
    assert [kind for kind in Kind if found.has_capability(kind)] == [Kind.TOOL]


def test_subscriptions_are_a_capability_of_their_own() -> None:
    for declared, lacks in (({}, True), ({"resources": {}}, True), ({"resources": {"subscribe": True}}, False)):
        found = negotiated_server(LATEST, raw(declared), None, None)
        assert found.lacks("resources/subscribe") is found.lacks("resources/unsubscribe") is lacks


@pytest.mark.parametrize("instructions", [None, b"null", b"1", b'"\\ud83d"', b"{}"])
def test_what_cannot_be_passed_on_is_left_out(instructions: bytes | None) -> None:
    found = negotiated_server(LATEST, raw({}), None if instructions is None else Raw(instructions), raw(["gh"]))
    assert (found.instructions, found.server) == (None, "")


@pytest.mark.parametrize("capabilities", [[], None, "tools", 1])
def test_capabilities_are_an_object(capabilities: object) -> None:
    with pytest.raises(ValueError):
        offered(capabilities)


@pytest.mark.parametrize("revision", ALL)
def test_changes_are_announced_by_those_that_say_so(revision: Revision) -> None:
    found = offered(
        {"tools": {"listChanged": True}, "prompts": {"listChanged": "true"}, "resources": {"listChanged": False}},
        revision,
    )
    assert found.list_changed == {"tools"}
    found = offered({"prompts": {"listChanged": True}, "resources": {"listChanged": True, "subscribe": True}}, revision)
    assert found.list_changed == {"prompts", "resources"}
    assert found.has_subscriptions
    assert offered({"logging": {"listChanged": True}}, revision).list_changed == frozenset()


def test_completions_are_tried_where_they_cannot_be_declared() -> None:
    """(rule 70)"""
    assert [offered({}, revision).has_completions for revision in ALL] == [True, False, False, False, False]
    assert all(offered({"completions": {}}, revision).has_completions for revision in ALL)


def tasks(capabilities: object, revision: Revision) -> tuple[bool, bool]:
    found = offered(capabilities, revision)
    return found.runs_tasks, found.cancels_tasks


IN_CALLS: dict[str, object] = {"requests": {"tools": {"call": {}}}}


@pytest.mark.parametrize(
    ("declared", "can"),
    [
        (IN_CALLS, (True, False)),
        ({**IN_CALLS, "cancel": {}, "list": {}}, (True, True)),
        ({"cancel": {}}, (False, True)),
        ({"requests": {"tools": {"call": True}}}, (False, False)),
        ({"requests": {"tools": {}}}, (False, False)),
        ({"requests": {"tools": {"list": {}}}}, (False, False)),
        ({"requests": {"sampling": {"createMessage": {}}}}, (False, False)),
        ({"requests": None}, (False, False)),
        ({}, (False, False)),
        (True, (False, False)),
    ],
)
def test_tasks_of_a_handshake(declared: object, can: tuple[bool, bool]) -> None:
    """Only tool calls can be tasks, and only in 2025-11-25."""
    assert tasks({"tasks": declared}, LATEST_LEGACY) == can
    for revision in ALL:
        if revision is not LATEST_LEGACY:
            assert tasks({"tasks": declared}, revision) == (False, False)


@pytest.mark.parametrize(
    ("extensions", "can"),
    [
        ({"io.modelcontextprotocol/tasks": {}}, True),
        ({"io.modelcontextprotocol/tasks": None}, False),
        ({"io.modelcontextprotocol/ui": {}}, False),
        ([], False),
    ],
)
def test_tasks_as_an_extension(extensions: object, can: bool) -> None:
    """Every task of the extension can be cancelled (rule 92)."""
    assert tasks({"extensions": extensions}, LATEST) == (can, can)
    assert tasks({"extensions": extensions}, LATEST_LEGACY) == (False, False)


NAMES = ["tools", "resources", "prompts", "tasks", "extensions", "requests", "call", "cancel", "listChanged"]
VALUES = st.recursive(
    st.sampled_from([None, True, "x", 1]),
    lambda inner: st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(st.dictionaries(st.sampled_from(NAMES), VALUES), st.sampled_from(ALL))
def test_no_capability_is_worth_an_error(capabilities: dict[str, object], revision: Revision) -> None:
    found = offered(capabilities, revision)
    assert found.capabilities == {name for name, each in capabilities.items() if isinstance(each, dict)}
    assert found.list_changed <= found.capabilities


@pytest.mark.parametrize("revision", ALL)
@pytest.mark.parametrize(
    "capabilities",
    [
        {},
        {"tools": {}},
        {"tools": {"listChanged": True}, "logging": {}},
        {"resources": {}, "prompts": {"listChanged": True}, "completions": {}},
        {"resources": {"subscribe": True}},
        {"resources": {"listChanged": True, "subscribe": True}},
    ],
)
def test_what_a_server_declares_is_declared_for_it(revision: Revision, capabilities: dict[str, object]) -> None:
    declared = declared_capabilities(offered(capabilities, revision))
    # The first revision has completions, but not the capability, so they are tried.
    tried: dict[str, object] = {} if revision.has_completions_capability else {"completions": {}}
    assert declared == {**capabilities, **tried}


def test_what_a_server_declares_in_vain_is_not_declared_for_it() -> None:
    odd = {"tools": {"listChanged": 1, "more": {}}, "prompts": {"subscribe": True}, "resources": True, "x": {}}
    assert declared_capabilities(offered(odd)) == {"tools": {}, "prompts": {}}
