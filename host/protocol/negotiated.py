"""What a server offers: read once from its handshake or from its discovery, and then the same for everybody.

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
from host.protocol.methods import COMPLETION_CAPABILITY, LIST_METHODS, LOGGING_CAPABILITY, Kind
from host.protocol.versions import Revision

LIST_CAPABILITIES = frozenset(row.capability for row in LIST_METHODS.values())
"""The capabilities whose lists may change."""


@dataclass(frozen=True, slots=True)
class NegotiatedServer:
    """What a server said of itself when it was met."""

    revision: Revision
    capabilities: frozenset[str]
    instructions: str | None
    server: str
    """Name and version as the server gives them: a claim, shown to people, never a ground for trust."""
    has_subscriptions: bool
    """Whether it tells of changes to a single resource, if asked to."""
    list_changed: frozenset[str] = frozenset()
    """Those of `tools`, `prompts` and `resources` whose changes it tells of."""
    runs_tasks: bool = False
    """Whether a call may become a task there."""
    cancels_tasks: bool = False
    unreadable: bool = False
    """Whether its instructions hold what no client could read, and are left out for that."""

    def has_capability(self, kind: Kind) -> bool:
        return LIST_METHODS[kind].capability in self.capabilities

    @property
    def has_completions(self) -> bool:
        # 2024-11-05 has the method but no way to declare it: it is tried, and -32601 means no.
        return COMPLETION_CAPABILITY in self.capabilities or not self.revision.has_completions_capability

    @property
    def has_logging(self) -> bool:
        return LOGGING_CAPABILITY in self.capabilities


def negotiated_server(
    revision: Revision, capabilities: Raw, instructions: Raw | None, server_info: Raw | None
) -> NegotiatedServer:
    """The offer of a server that is met in `revision`. What cannot be read of it is not offered.

    Raises:
        ValueError: `capabilities` is no object.
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
    )


def _tasks(revision: Revision, capabilities: Mapping[str, Raw]) -> tuple[bool, bool]:
    """Whether it runs tasks, and whether it cancels them. The extension knows no task that cannot be cancelled."""
    if revision.stateless:
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
    """What it says there, if it says anything that can be passed on: a server is not turned away for its prose."""
    try:
        return string(raw or b"")
    except ValueError:
        return None
