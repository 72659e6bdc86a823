"""The `initialize` handshake of the handshake revisions: reading and writing both sides, as pure functions.

Source: 2025-11-25, "Lifecycle / Initialization"; the earlier revisions differ only in members that are optional.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence

from msgspec import Raw, Struct

from host.errors import InvalidParams, UnsupportedVersion
from host.jsonrpc.messages import INVALID_PARAMS, ErrorBody
from host.jsonrpc.raw import EMPTY_OBJECT, encode, is_object, items, members, string
from host.protocol.abilities import APPS_EXTENSION, TASKS_EXTENSION, Abilities, abilities_of
from host.protocol.identity import display_name, implementation_info
from host.protocol.meta import unknown_members
from host.protocol.methods import COMPLETION_CAPABILITY
from host.protocol.negotiated import (
    FIRST_MEMBERS,
    NegotiatedServer,
    declared_capabilities,
    first_members,
    negotiated_server,
)
from host.protocol.versions import LATEST_LEGACY, LEGACY, MAX_SHOWN, Revision, negotiated_revision

APP_PAGES = "text/html;profile=mcp-app"
"""MIME type of the pages that are passed on to clients that show them (MCP Apps, "Client Capabilities")."""
MAX_KEPT_CAPABILITIES = 8 * 1024
"""Bytes of a client's capabilities that are kept as it declares them: each open session has some, charged to nobody."""
_MAX_SEARCHED = 1024
"""Characters of an error's message in which a version is looked for."""
_OF_VERSION = re.compile(r"version|protocol|\b20\d\d-\d\d-\d\d\b", re.IGNORECASE)


class InitializeRequest(Struct, frozen=True):
    """The `initialize` of a client, after negotiation."""

    revision: Revision
    """The negotiated revision, not the requested one."""
    client: str
    """Name and version as the client gives them: for logs only, never a reason to trust the client."""
    abilities: Abilities
    capabilities: str | None = None
    """The capabilities as the client declares them, as JSON; None if they are longer than MAX_KEPT_CAPABILITIES."""


class UnsupportedRevision(ValueError):
    """The server selected a revision that Colonnade does not support. The text is its name."""


def read_initialize(params: Raw | Mapping[str, Raw] | None) -> InitializeRequest:
    """Read a client's `initialize` and negotiate its revision.

    Raises:
        InvalidParams: `protocolVersion` is missing or not a string, or `capabilities` or `clientInfo` is not an object.
    """
    try:
        found = params if isinstance(params, Mapping) else members(params or b"")
        asked = string(found["protocolVersion"])
    except (ValueError, KeyError):
        raise InvalidParams("initialize needs params with a protocolVersion that is a string") from None
    capabilities = found.get("capabilities", EMPTY_OBJECT)
    if not is_object(capabilities):
        raise InvalidParams("capabilities is not an object")
    info = found.get("clientInfo", EMPTY_OBJECT)
    if not is_object(info):
        raise InvalidParams("clientInfo is not an object")
    revision = negotiated_revision(asked)
    kept = bytes(capabilities).decode() if len(capabilities) <= MAX_KEPT_CAPABILITIES else None
    return InitializeRequest(revision, display_name(info), abilities_of(revision, capabilities), kept)


def repeated_initialize(revision: str, client: str, capabilities: str) -> InitializeRequest | None:
    """The `initialize` of a client that was read before, by the members of what `read_initialize` returned then; None
    if its revision is not served any more."""
    if revision not in LEGACY:
        return None
    abilities = abilities_of(LEGACY[revision], Raw(capabilities.encode()))
    return InitializeRequest(LEGACY[revision], client, abilities, capabilities)


def initialize_result(
    revision: Revision,
    version: str,
    instructions: str | None,
    *,
    server: NegotiatedServer | None = None,
    tasks: bool = False,
    lists_tasks: bool = False,
    apps: bool = False,
    lacking: Container[str] = (),
) -> Raw:
    """The result of a client's `initialize`.

    Args:
        server: the only server of the endpoint, whose capabilities are declared; see `declared_capabilities` and
            `first_members`.
        tasks: calls may become tasks; declared only in a revision that has tasks.
        lists_tasks: clients can be told apart, so that a task list has only the requester's tasks.
        apps: the client has declared MCP Apps.
        lacking: see `declared_capabilities`.
    """
    capabilities = declared_capabilities(server, lacking)
    if not revision.has_completions_capability:
        capabilities.pop(COMPLETION_CAPABILITY, None)
    if tasks and revision.has_tasks:
        listing: dict[str, object] = {"list": {}} if lists_tasks else {}
        capabilities["tasks"] = {**listing, "cancel": {}, "requests": {"tools": {"call": {}}}}
    if apps:
        capabilities["extensions"] = {APPS_EXTENSION: {}}
    answer: dict[str, object] = {
        "protocolVersion": revision.name,
        "capabilities": capabilities,
        "serverInfo": implementation_info(version),
    }
    if instructions:
        answer["instructions"] = instructions
    return encode({**answer, **first_members(server)})


def client_capabilities(
    usable: Abilities, *, roots_change: bool, apps: bool = False, tasks: bool = False
) -> dict[str, object]:
    """The client capabilities that Colonnade declares to a server. A server that several clients share gets the most
    that any of them may have; `server_requests.adapt` then decides for the client of each server request.

    Two capabilities are never declared: tasks for server requests, and `sampling.context`, because clients would read
    "this server" as all servers.

    Args:
        usable: what the clients may have and the consent policy permits for this server.
        roots_change: the server will be notified of changed roots.
        apps: MCP Apps pages of the server are shown.
        tasks: a call may become a task. For stateless servers only; other servers are told so in each call.
    """
    capabilities: dict[str, object] = {}
    if usable.roots:
        capabilities["roots"] = {"listChanged": True} if roots_change else {}
    if usable.form or usable.url:
        capabilities["elicitation"] = ({"form": {}} if usable.form else {}) | ({"url": {}} if usable.url else {})
    if usable.sampling:
        capabilities["sampling"] = {"tools": {}} if usable.sampling_tools else {}
    extensions: dict[str, object] = {}
    if apps:
        extensions[APPS_EXTENSION] = {"mimeTypes": [APP_PAGES]}
    if tasks:
        extensions[TASKS_EXTENSION] = {}
    if extensions:
        capabilities["extensions"] = extensions
    return capabilities


def initialize_params(
    version: str, capabilities: Mapping[str, object] | None = None, revision: Revision = LATEST_LEGACY
) -> Raw:
    """The params of the `initialize` that Colonnade sends to a server, with a handshake revision and the given client
    capabilities (see `client_capabilities`)."""
    return encode(
        {
            "protocolVersion": revision.name,
            "capabilities": dict(capabilities or {}),
            "clientInfo": implementation_info(version),
        }
    )


def refuses_version(error: ErrorBody) -> bool:
    """Whether an error response to `initialize` may be about the version that was offered. A server should select
    another one instead (2025-11-25, "Version Negotiation"); some refuse, with a code of their choice."""
    return error.code in (INVALID_PARAMS, UnsupportedVersion.code) or names_version(error.message)


def names_version(message: str) -> bool:
    """Whether the text of an error speaks of a version."""
    return _OF_VERSION.search(message[:_MAX_SEARCHED]) is not None


def offers_after(error: ErrorBody, left: Sequence[Revision]) -> list[Revision]:
    """Those of the handshake revisions `left` that may still be offered after this error: those that it names as
    supported (2025-11-25, "Error Handling"), or all, if it is about the version and names none."""
    try:
        named = {string(each) for each in items(members(error.data or b"")["supported"])}
    except (ValueError, KeyError):
        is_stateless = error.code == UnsupportedVersion.code and not names_version(error.message)
        return list(left) if refuses_version(error) and not is_stateless else []
    return [each for each in left if each.name in named]


def read_initialize_result(result: Raw) -> NegotiatedServer:
    """Read a server's result of `initialize`.

    Raises:
        UnsupportedRevision: the server selected a revision that Colonnade does not support.
        ValueError: the result is not a valid result of `initialize`.
    """
    found = members(result)
    if "protocolVersion" not in found:
        raise ValueError("the result of initialize has no protocolVersion")
    version = string(found["protocolVersion"])
    if version not in LEGACY:
        raise UnsupportedRevision(version[:MAX_SHOWN])
    return negotiated_server(
        LEGACY[version],
        found.get("capabilities", EMPTY_OBJECT),
        found.get("instructions"),
        found.get("serverInfo"),
        unknown_members(found, FIRST_MEMBERS),
    )
