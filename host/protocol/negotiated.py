"""Revision and capabilities of a server, read once per connection from its handshake or its discovery.

Source: "ServerCapabilities" of the schemas of 2024-11-05 to 2026-07-28.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import Raw

from host.jsonrpc.raw import EMPTY_OBJECT, is_object, members, string
from host.jsonrpc.readable import why_unreadable
from host.protocol.abilities import TASKS_EXTENSION, object_members
from host.protocol.identity import display_name
from host.protocol.identity import server_info as read_server_info
from host.protocol.methods import COMPLETION_CAPABILITY, LIST_METHODS, LOGGING_CAPABILITY, Kind
from host.protocol.versions import STATELESS, Era, Revision

LIST_CAPABILITIES = frozenset(row.capability for row in LIST_METHODS.values())
"""The server capabilities that have lists."""


@dataclass(frozen=True, slots=True)
class NegotiatedServer:
    """Revision, capabilities and instructions of a connected server."""

    revision: Revision
    capabilities: frozenset[str]
    instructions: str | None
    server: str
    """Name and version as the server gives them: shown to people, never a reason to trust the server."""
    has_subscriptions: bool
    """The server sends notifications for resources that are subscribed to."""
    list_changed: frozenset[str] = frozenset()
    """Those of `tools`, `prompts` and `resources` whose list changes the server notifies."""
    runs_tasks: bool = False
    """A call may become a task at the server."""
    cancels_tasks: bool = False
    unreadable: bool = False
    """The instructions are left out because clients could not parse them."""
    info: tuple[tuple[str, str], ...] = ()
    """The members of its `serverInfo`, as clients may get them."""

    @property
    def era(self) -> Era:
        return self.revision.era

    def has_capability(self, kind: Kind) -> bool:
        return LIST_METHODS[kind].capability in self.capabilities

    @property
    def has_completions(self) -> bool:
        # 2024-11-05 has the method but not the capability: the method is tried, and -32601 means that it is missing.
        return COMPLETION_CAPABILITY in self.capabilities or not self.revision.has_completions_capability

    @property
    def has_logging(self) -> bool:
        return LOGGING_CAPABILITY in self.capabilities


def negotiated_server(
    revision: Revision, capabilities: Raw, instructions: Raw | None, server_info: Raw | None
) -> NegotiatedServer:
    """Read the members of a server's handshake or discovery. Members of the wrong type count as missing.

    Raises:
        ValueError: `capabilities` is not an object.
    """
    found = {name: each for name, each in members(capabilities).items() if is_object(each)}
    runs_tasks, cancels_tasks = _tasks(revision, found)
    return NegotiatedServer(
        revision=revision,
        capabilities=frozenset(found),
        instructions=_text(instructions),
        server=display_name(server_info),
        has_subscriptions=_is_true(found, "resources", "subscribe"),
        list_changed=frozenset(name for name in LIST_CAPABILITIES if _is_true(found, name, "listChanged")),
        runs_tasks=runs_tasks,
        cancels_tasks=cancels_tasks,
        unreadable=instructions is not None and why_unreadable(bytes(instructions)) is not None,
        info=read_server_info(server_info),
    )


def declared_capabilities(server: NegotiatedServer | None) -> dict[str, object]:
    """The server capabilities that Colonnade declares to clients of this server alone, or (None) of all servers. The
    latter are those of Colonnade itself, whichever servers are connected, because a client gets them only once; a
    declared feature may have an empty list."""
    if server is None:
        return {
            "tools": {"listChanged": True},
            "resources": {"listChanged": True, "subscribe": True},
            "prompts": {"listChanged": True},
            LOGGING_CAPABILITY: {},
            COMPLETION_CAPABILITY: {},
        }
    declared: dict[str, object] = {}
    for capability in dict.fromkeys(row.capability for row in LIST_METHODS.values()):
        if capability in server.capabilities:
            subscribes = capability == "resources" and server.has_subscriptions
            flags = {"listChanged": capability in server.list_changed, "subscribe": subscribes}
            declared[capability] = {name: True for name, is_set in flags.items() if is_set}
    if server.has_logging:
        declared[LOGGING_CAPABILITY] = {}
    if server.has_completions:
        declared[COMPLETION_CAPABILITY] = {}
    return declared


def _tasks(revision: Revision, capabilities: Mapping[str, Raw]) -> tuple[bool, bool]:
    """Whether the server runs tasks, and whether it cancels them. With the extension every task can be cancelled."""
    if revision.era is STATELESS:
        runs = TASKS_EXTENSION in _inside(capabilities, "extensions")
        return runs, runs
    if not revision.has_tasks:
        return False, False
    tasks = _inside(capabilities, "tasks")
    calls = _inside(_inside(tasks, "requests"), "tools")
    return "call" in calls, "cancel" in tasks


def _inside(found: Mapping[str, Raw], name: str) -> dict[str, Raw]:
    return object_members(found.get(name, EMPTY_OBJECT))


def _is_true(capabilities: Mapping[str, Raw], capability: str, name: str) -> bool:
    found = members(capabilities.get(capability, EMPTY_OBJECT))
    return bytes(found.get(name, b"")).strip() == b"true"


def _text(raw: Raw | None) -> str | None:
    """The text of a string, or None: a server is not refused because of malformed instructions."""
    try:
        return string(raw or b"")
    except ValueError:
        return None
