"""Both sides of `initialize`: negotiated revision, declared capabilities, and invalid handshakes."""

from __future__ import annotations

import json
from typing import Any

import mcp.types
import pytest
from msgspec import Raw
from msgspec.structs import replace

from host.errors import InvalidParams
from host.protocol.abilities import NO_ABILITIES, SHARED_ABILITIES, Abilities, abilities_of
from host.protocol.handshake import (
    UnsupportedRevision,
    client_capabilities,
    initialize_params,
    initialize_result,
    read_initialize,
    read_initialize_result,
)
from host.protocol.methods import Kind
from host.protocol.versions import LATEST_LEGACY, LEGACY, Revision

FIRST = LEGACY["2024-11-05"]


def params(**found: object) -> Raw:
    return Raw(json.dumps({"protocolVersion": "2025-06-18", **found}).encode())


# The client's side


def test_an_opening_settles_the_revision_and_tells_who_it_is() -> None:
    found = read_initialize(params(capabilities={"sampling": {}}, clientInfo={"name": "desk", "version": "1.0"}))
    assert found.revision.name == "2025-06-18"
    assert found.abilities.sampling
    assert found.client == "desk 1.0"


def test_an_opening_may_be_bare() -> None:
    found = read_initialize(params())
    assert found.client == ""
    assert found.abilities == abilities_of(found.revision, Raw(b"{}"))


def test_abilities_are_those_of_the_revision_that_was_settled() -> None:
    """For an unknown revision the latest one is negotiated, and the abilities are those of the latest one."""
    capabilities: dict[str, object] = {"elicitation": {"url": {}}, "roots": {}}
    found = read_initialize(params(protocolVersion="2099-01-01", capabilities=capabilities)).abilities
    assert (found.roots, found.form, found.url) == (True, False, True)
    found = read_initialize(params(capabilities=capabilities)).abilities
    assert (found.roots, found.form, found.url) == (True, True, False)


def test_an_unknown_revision_settles_with_the_latest() -> None:
    assert read_initialize(params(protocolVersion="2099-01-01")).revision is LATEST_LEGACY


@pytest.mark.parametrize(
    ("info", "client"),
    [
        ({"name": "x" * 200, "version": "y" * 200}, "x" * 80 + " " + "y" * 80),
        ({"name": 1, "version": None}, ""),
        ({"version": "2"}, "2"),
        ({"name": "a\n"}, "a\n"),
        ({"name": "\ud800"}, ""),
    ],
)
def test_a_client_is_called_by_what_can_be_shown(info: object, client: str) -> None:
    assert read_initialize(params(clientInfo=info)).client == client


@pytest.mark.parametrize(
    "text",
    [
        None,
        b"{}",
        b"[]",
        b"null",
        b'"2025-06-18"',
        b'{"protocolVersion":1}',
        b'{"protocolVersion":null}',
        b'{"protocolVersion":"\\ud800"}',
        b'{"protocolversion":"2025-06-18"}',
        b'{"protocolVersion":"2025-06-18","capabilities":[]}',
        b'{"protocolVersion":"2025-06-18","capabilities":null}',
        b'{"protocolVersion":"2025-06-18","clientInfo":"desk"}',
    ],
)
def test_what_is_no_opening_is_the_callers_mistake(text: bytes | None) -> None:
    with pytest.raises(InvalidParams):
        read_initialize(None if text is None else Raw(text))


def test_the_answer_promises_what_is_always_served() -> None:
    found = json.loads(bytes(initialize_result(LATEST_LEGACY, "1.2", "Be kind.")))
    assert found == {
        "protocolVersion": LATEST_LEGACY.name,
        "capabilities": {
            "tools": {"listChanged": True},
            "resources": {"listChanged": True, "subscribe": True},
            "prompts": {"listChanged": True},
            "completions": {},
            "logging": {},
        },
        "serverInfo": {"name": "colonnade", "title": "Colonnade", "version": "1.2"},
        "instructions": "Be kind.",
    }


def promised(revision: Revision, **more: Any) -> Any:
    return json.loads(bytes(initialize_result(revision, "1.2", None, **more)))["capabilities"]


@pytest.mark.parametrize("revision", LEGACY.values())
def test_tasks_are_promised_to_those_that_have_them(revision: Revision) -> None:
    """A task list is only declared where clients can be told apart (rule 93)."""
    tasks: dict[str, object] = {"cancel": {}, "requests": {"tools": {"call": {}}}}
    has_them = revision is LATEST_LEGACY
    assert "tasks" not in promised(revision)
    assert "tasks" not in promised(revision, lists_tasks=True)
    assert promised(revision, tasks=True).get("tasks") == (tasks if has_them else None)
    assert promised(revision, tasks=True, lists_tasks=True).get("tasks") == (
        {**tasks, "list": {}} if has_them else None
    )


@pytest.mark.parametrize("revision", LEGACY.values())
def test_pages_of_tools_are_promised_to_those_that_show_them(revision: Revision) -> None:
    assert "extensions" not in promised(revision, tasks=True)
    assert promised(revision, apps=True)["extensions"] == {"io.modelcontextprotocol/ui": {}}


def test_the_first_revision_knows_no_completions_capability() -> None:
    found = json.loads(bytes(initialize_result(FIRST, "1.2", None)))
    assert found["protocolVersion"] == FIRST.name
    assert "completions" not in found["capabilities"]


@pytest.mark.parametrize("nothing", [None, ""])
def test_without_instructions_the_member_is_missing(nothing: str | None) -> None:
    assert "instructions" not in json.loads(bytes(initialize_result(LATEST_LEGACY, "1", nothing)))


# The server's side


def test_a_server_is_greeted_with_the_latest_revision_and_no_promises() -> None:
    found = json.loads(bytes(initialize_params("1.2")))
    assert (found["protocolVersion"], found["capabilities"]) == (LATEST_LEGACY.name, {})
    assert found["clientInfo"]["version"] == "1.2"


@pytest.mark.parametrize(
    ("askable", "roots_change", "expected"),
    [
        (NO_ABILITIES, True, {}),
        (replace(NO_ABILITIES, roots=True, form=True), False, {"roots": {}, "elicitation": {"form": {}}}),
        (replace(NO_ABILITIES, roots=True), True, {"roots": {"listChanged": True}}),
        (replace(NO_ABILITIES, form=True, url=True), True, {"elicitation": {"form": {}, "url": {}}}),
        (replace(NO_ABILITIES, url=True), False, {"elicitation": {"url": {}}}),
        (replace(NO_ABILITIES, sampling=True), False, {"sampling": {}}),
        (replace(NO_ABILITIES, sampling=True, sampling_tools=True), False, {"sampling": {"tools": {}}}),
        (replace(NO_ABILITIES, sampling_tools=True), False, {}),
        (
            SHARED_ABILITIES,
            True,
            {"roots": {"listChanged": True}, "elicitation": {"form": {}, "url": {}}, "sampling": {}},
        ),
    ],
)
def test_a_server_is_told_what_may_be_asked(
    askable: Abilities, roots_change: bool, expected: dict[str, object]
) -> None:
    """Never tasks, and never the context of other servers (rule 10)."""
    asks = client_capabilities(askable, roots_change=roots_change)
    found = mcp.types.InitializeRequestParams.model_validate_json(bytes(initialize_params("1.2", asks)), by_name=False)
    assert found.capabilities.model_dump(mode="json", by_alias=True, exclude_none=True) == expected
    assert json.loads(bytes(initialize_params("1.2", asks)))["capabilities"] == expected


def test_a_server_is_told_what_is_done_with_its_answers() -> None:
    apps = {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]}}
    tasks: dict[str, object] = {"io.modelcontextprotocol/tasks": {}}
    assert client_capabilities(NO_ABILITIES, roots_change=False, apps=True) == {"extensions": apps}
    assert client_capabilities(NO_ABILITIES, roots_change=False, tasks=True) == {"extensions": tasks}
    both = client_capabilities(replace(NO_ABILITIES, roots=True), roots_change=False, apps=True, tasks=True)
    assert both == {"roots": {}, "extensions": {**apps, **tasks}}


def answered(**found: object) -> Raw:
    return params(**found)


def test_an_offer_is_read() -> None:
    found = read_initialize_result(
        answered(
            capabilities={"tools": {"listChanged": True}, "resources": {"listChanged": False}, "logging": {}},
            serverInfo={"name": "gh", "version": "3"},
            instructions="Read first.",
        )
    )
    assert found.revision.name == "2025-06-18"
    assert found.capabilities == {"tools", "resources", "logging"}
    assert (found.instructions, found.server) == ("Read first.", "gh 3")


@pytest.mark.parametrize(
    ("capabilities", "kinds"),
    [
        ({}, set()),
        ({"tools": {}}, {Kind.TOOL}),
        ({"resources": {}}, {Kind.RESOURCE, Kind.TEMPLATE}),
        ({"prompts": {}, "tools": None}, {Kind.PROMPT}),
        ({"tools": True, "prompts": []}, set()),
    ],
)
def test_an_offer_names_the_kinds_that_can_be_listed(capabilities: object, kinds: set[Kind]) -> None:
    found = read_initialize_result(answered(capabilities=capabilities))
    assert {kind for kind in Kind if found.has_capability(kind)} == kinds


@pytest.mark.parametrize(
    ("resources", "subscribes"),
    [
        ({"subscribe": True}, True),
        ({"listChanged": True}, False),
        ({"subscribe": False}, False),
        ({"subscribe": "true"}, False),
        ({"subscribe": {}}, False),
        (True, False),
        (None, False),
    ],
)
def test_an_offer_says_whether_single_resources_can_be_watched(resources: object, subscribes: bool) -> None:
    assert read_initialize_result(answered(capabilities={"resources": resources})).has_subscriptions is subscribes
    assert not read_initialize_result(answered()).has_subscriptions


@pytest.mark.parametrize(("capabilities", "logs"), [({"logging": {}}, True), ({"logging": True}, False), ({}, False)])
def test_an_offer_says_whether_there_is_a_log(capabilities: object, logs: bool) -> None:
    assert read_initialize_result(answered(capabilities=capabilities)).has_logging is logs


def test_missing_members_of_an_offer_are_empty() -> None:
    found = read_initialize_result(answered())
    assert (found.capabilities, found.instructions, found.server) == (frozenset(), None, "")
    assert read_initialize_result(answered(serverInfo="gh")).server == ""


@pytest.mark.parametrize("instructions", ["null", "1", '"\\ud83d"', "{}"])
def test_instructions_that_are_no_text_are_none(instructions: str) -> None:
    """A lone surrogate in the instructions must not make the whole handshake fail."""
    text = f'{{"protocolVersion":"{LATEST_LEGACY.name}","instructions":{instructions}}}'
    assert read_initialize_result(Raw(text.encode())).instructions is None


@pytest.mark.parametrize("version", ["2099-01-01", "2026-07-28", "", "2025-06-18 "])
def test_a_revision_that_is_not_spoken_is_said_so(version: str) -> None:
    with pytest.raises(UnsupportedRevision) as caught:
        read_initialize_result(answered(protocolVersion=version))
    assert str(caught.value) == version


def test_a_long_revision_is_cut() -> None:
    with pytest.raises(UnsupportedRevision) as caught:
        read_initialize_result(answered(protocolVersion="x" * 1000))
    assert len(str(caught.value)) == 40


@pytest.mark.parametrize(
    "text",
    [
        b"{}",
        b"[]",
        b"null",
        b'{"protocolVersion":1}',
        b'{"protocolVersion":"2025-06-18","capabilities":[]}',
        b'{"protocolVersion":"2025-06-18","capabilities":null}',
    ],
)
def test_what_is_no_offer_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError) as caught:
        read_initialize_result(Raw(text))
    assert not isinstance(caught.value, UnsupportedRevision)
