"""The `initialize` handshake of the legacy revisions, both sides of it, as pure functions.

Source: 2025-11-25, "Lifecycle / Initialization"; the earlier revisions differ only in members that are optional.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import Raw

from host.errors import InvalidParams
from host.jsonrpc.raw import EMPTY_OBJECT, encode, is_object, members, string
from host.protocol.abilities import APPS_EXTENSION, TASKS_EXTENSION, Abilities, abilities_of
from host.protocol.identity import display_name, implementation_info
from host.protocol.methods import COMPLETION_CAPABILITY, LOGGING_CAPABILITY
from host.protocol.negotiated import NegotiatedServer, negotiated_server
from host.protocol.versions import LATEST_LEGACY, LEGACY, MAX_SHOWN, Revision, negotiated_revision

APP_PAGES = "text/html;profile=mcp-app"
"""The type of the pages that are passed on to clients which show them (MCP Apps, "Client Capabilities")."""


@dataclass(frozen=True, slots=True)
class InitializeRequest:
    """What a client said in `initialize`."""

    revision: Revision
    """What was settled, not what was asked for."""
    client: str
    """Name and version as the client gives them: for logs only, never a ground for trust."""
    abilities: Abilities
    """What revision and capabilities come to."""


class UnsupportedRevision(ValueError):
    """The server answered with a revision that Colonnade does not speak."""


def read_initialize(params: Raw | Mapping[str, Raw] | None) -> InitializeRequest:
    """What the client's `initialize` asks for.

    Raises:
        InvalidParams: `protocolVersion` is missing or no string, or `capabilities` or `clientInfo` is no object.
    """
    try:
        found = params if isinstance(params, Mapping) else members(params or b"")
        asked = string(found["protocolVersion"])
    except (ValueError, KeyError):
        raise InvalidParams("initialize needs an object with a protocolVersion") from None
    capabilities = found.get("capabilities", EMPTY_OBJECT)
    if not is_object(capabilities):
        raise InvalidParams("capabilities is not an object")
    info = found.get("clientInfo", EMPTY_OBJECT)
    if not is_object(info):
        raise InvalidParams("clientInfo is not an object")
    revision = negotiated_revision(asked)
    return InitializeRequest(revision, display_name(info), abilities_of(revision, capabilities))


def initialize_result(
    revision: Revision,
    version: str,
    instructions: str | None,
    *,
    tasks: bool = False,
    lists_tasks: bool = False,
    apps: bool = False,
) -> Raw:
    """The result of `initialize` that a client gets. Capabilities: what Colonnade implements, whoever happens to be up,
    since a client is told them once (an advertised feature with an empty list is lawful).

    Args:
        tasks: calls may become tasks here; told to clients of a revision that has them.
        lists_tasks: it is known whose a task is, so that everybody can be shown their own.
        apps: the client has declared that it shows the pages of tools.
    """
    capabilities: dict[str, object] = {
        "tools": {"listChanged": True},
        "resources": {"listChanged": True, "subscribe": True},
        "prompts": {"listChanged": True},
        LOGGING_CAPABILITY: {},
    }
    if revision.has_completions_capability:
        capabilities[COMPLETION_CAPABILITY] = {}
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
    return encode(answer)


def client_capabilities(
    usable: Abilities, *, roots_change: bool, apps: bool = False, tasks: bool = False
) -> dict[str, object]:
    """The capabilities that Colonnade declares to a server: what whoever is behind it may be asked for. For a server
    that several clients share that is the most that any of them may be; what the one that is then meant can is decided
    for each question (`server_requests.adapt`).

    That it may make tasks of its questions is never declared, nor `sampling.context`: "this server" would mean all
    servers to the client.

    Args:
        roots_change: the server will be told when the roots do.
        apps: the pages of its tools are shown.
        tasks: it may make a task of a call. Only for a stateless server: others are told so in each call.
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


def initialize_params(version: str, capabilities: Mapping[str, object] | None = None) -> Raw:
    """The params of the `initialize` that Colonnade sends to a server: the latest revision, and `capabilities` (see
    `client_capabilities`) as the capabilities; none at all without it."""
    return encode(
        {
            "protocolVersion": LATEST_LEGACY.name,
            "capabilities": dict(capabilities or {}),
            "clientInfo": implementation_info(version),
        }
    )


def read_initialize_result(result: Raw) -> NegotiatedServer:
    """What the server answered.

    Raises:
        UnsupportedRevision: it settled on a revision that Colonnade does not speak.
        ValueError: the result is not what `initialize` must be answered with.
    """
    found = members(result)
    if "protocolVersion" not in found:
        raise ValueError("the answer to initialize has no protocolVersion")
    version = string(found["protocolVersion"])
    if version not in LEGACY:
        raise UnsupportedRevision(version[:MAX_SHOWN])
    return negotiated_server(
        LEGACY[version],
        found.get("capabilities", EMPTY_OBJECT),
        found.get("instructions"),
        found.get("serverInfo"),
    )
