"""Revision and capabilities of a server, read once per connection from its handshake or its discovery.

Source: "ServerCapabilities" of the schemas of 2024-11-05 to 2026-07-28.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from types import MappingProxyType

from msgspec import Raw, Struct

from host.jsonrpc.raw import EMPTY_OBJECT, TRUE, encode, encode_object, is_object, members, string
from host.jsonrpc.readable import why_unreadable, why_unreadable_result
from host.protocol.abilities import TASKS_EXTENSION, object_members
from host.protocol.identity import SERVER_INFO, display_name
from host.protocol.identity import server_info as read_server_info
from host.protocol.meta import META
from host.protocol.methods import (
    COMPLETION_CAPABILITY,
    COMPLETION_COMPLETE,
    LIST_METHODS,
    LOGGING_CAPABILITY,
    SET_LEVEL,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Kind,
)
from host.protocol.versions import STATELESS, Era, Revision

FIRST_MEMBERS = ("protocolVersion", "supportedVersions", "capabilities", "instructions", "serverInfo")
"""The members of a handshake or of a discovery that Colonnade makes anew. Neither passes on those of the other, which a
reader of both may take for its own."""
MAX_BESIDE = 16 * 1024
"""Bytes of the members of a result besides those that Colonnade makes anew, up to which they are passed on."""
_CAPABILITY_OF = {SET_LEVEL: LOGGING_CAPABILITY, **{row.method: row.capability for row in LIST_METHODS.values()}}

LIST_CAPABILITIES = frozenset(row.capability for row in LIST_METHODS.values())
"""The server capabilities that have lists."""
SUBSCRIPTION_FLAG = "subscribe"
"""The member of the capability `resources` for subscriptions."""
ALL_CAPABILITIES = LIST_CAPABILITIES | {LOGGING_CAPABILITY, COMPLETION_CAPABILITY, SUBSCRIPTION_FLAG}
"""The server capabilities that Colonnade declares to clients, and the flag for subscriptions."""


class NegotiatedServer(Struct, frozen=True):
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
    beside: str = "{}"
    """JSON object: the members of its handshake or discovery that clients of it alone get besides what Colonnade says
    itself."""
    refused_newer: bool = False
    """It refused `initialize` with newer revisions instead of selecting this one."""

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

    def lacks(self, method: str) -> bool:
        """Whether the method belongs to a capability that the server does not declare. Only for methods that are about
        no entry, which Colonnade could answer instead: lists, `logging/setLevel`, `completion/complete` and
        subscriptions."""
        if method in (SUBSCRIBE, UNSUBSCRIBE):
            return not self.has_subscriptions
        if method == COMPLETION_COMPLETE:
            return not self.has_completions
        capability = _CAPABILITY_OF.get(method)
        return capability is not None and capability not in self.capabilities


def negotiated_server(
    revision: Revision,
    capabilities: Raw,
    instructions: Raw | None,
    server_info: Raw | None,
    beside: Mapping[str, Raw] = MappingProxyType({}),
) -> NegotiatedServer:
    """Read the members of a server's handshake or discovery. Members of the wrong type count as missing.

    Args:
        beside: the members that Colonnade does not know; left out if they are long, or clients could not parse them.

    Raises:
        ValueError: `capabilities` is not an object.
    """
    unknown = bytes(encode_object(dict(beside)))
    passes = len(unknown) <= MAX_BESIDE and why_unreadable_result(unknown) is None
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
        beside=unknown.decode() if passes else "{}",
    )


def declared_capabilities(server: NegotiatedServer | None, lacking: Container[str] = ()) -> dict[str, object]:
    """The server capabilities that Colonnade declares to clients of this server alone, or (None) of all servers. The
    latter are those of Colonnade itself, whichever servers are connected, because a client gets them only once; a
    declared feature may have an empty list.

    Args:
        lacking: those of ALL_CAPABILITIES that the client's view does not have.
    """
    declared: dict[str, object] = {}
    for capability in dict.fromkeys(row.capability for row in LIST_METHODS.values()):
        if capability not in lacking and (server is None or capability in server.capabilities):
            subscribes = capability == "resources" and (server is None or server.has_subscriptions)
            flags = {
                "listChanged": server is None or capability in server.list_changed,
                SUBSCRIPTION_FLAG: subscribes and SUBSCRIPTION_FLAG not in lacking,
            }
            declared[capability] = {name: True for name, is_set in flags.items() if is_set}
    if LOGGING_CAPABILITY not in lacking and (server is None or server.has_logging):
        declared[LOGGING_CAPABILITY] = {}
    if COMPLETION_CAPABILITY not in lacking and (server is None or server.has_completions):
        declared[COMPLETION_CAPABILITY] = {}
    return declared


def first_members(server: NegotiatedServer | None) -> dict[str, Raw]:
    """The members of the first result that a client gets that are of the only server of its endpoint: `beside`, and in
    `_meta` its `serverInfo`, under a key of Colonnade's."""
    if server is None:
        return {}
    beside = members(server.beside.encode())
    meta = members(beside.get(META, EMPTY_OBJECT))
    if server.info:
        meta[SERVER_INFO] = encode(dict(server.info))
    kept = {name: each for name, each in beside.items() if name != META}
    return {**kept, META: encode_object(meta)} if meta else kept


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
    return members(capabilities.get(capability, EMPTY_OBJECT)).get(name) == TRUE


def _text(raw: Raw | None) -> str | None:
    """The text of a string, or None: a server is not refused because of malformed instructions."""
    try:
        return string(raw or b"")
    except ValueError:
        return None
