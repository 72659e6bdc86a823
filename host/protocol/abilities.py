"""Abilities of one caller: its revision and its declared capabilities, read once, as booleans. `server_requests` and
`downgrade` decide by these booleans alone.

Source: "ClientCapabilities" of the schemas, and 2025-11-25, "Sampling / Capabilities" and "Elicitation / Capabilities".
"""

from __future__ import annotations

from functools import lru_cache

from msgspec import Raw, Struct, structs

from host.jsonrpc.raw import EMPTY_OBJECT, is_object, members_if_object
from host.protocol.versions import LATEST, STATELESS, Revision

# Extensions are declared under `extensions` of the capabilities, by these names.
TASKS_EXTENSION = "io.modelcontextprotocol/tasks"
APPS_EXTENSION = "io.modelcontextprotocol/ui"

_SERVER_REQUESTS = ("roots", "sampling", "sampling_tools", "form", "url")
_READ = frozenset(("roots", "sampling", "sampling.tools", "elicitation", "elicitation.form", "elicitation.url"))
"""The names of the capabilities that these abilities stand for; which name stands for which depends on the revision."""
_PASSED_ON = _READ | {"extensions", f"extensions.{APPS_EXTENSION}"}

CACHED_CLIENTS = 256
CACHED_BYTES = 2048
"""Size of a declaration that is kept decoded: a stateless client repeats its declaration with every request."""


class Abilities(Struct, frozen=True):
    """Server requests that one caller supports, and the kinds of content that it can read. The defaults are those of a
    caller without a handshake, which supports no request and reads all content."""

    roots: bool = False
    sampling: bool = False
    sampling_tools: bool = False
    """Sampling requests may offer tools, and their messages may contain tool calls and results."""
    sampling_arrays: bool = False
    """A sampling message may have an array of content blocks."""
    form: bool = False
    url: bool = False
    """Elicitation in mode url: its user can be sent to a page."""
    choice_schemas: bool = False
    """Forms may have the members of 2025-11-25: `mode`, titled and multiple choices, defaults for all types."""
    audio: bool = True
    resource_links: bool = True
    structured_content: bool = True
    free_structure: bool = True
    """Structured content may be of any JSON type, not only an object."""
    icons: bool = True
    """Entries may have icons."""
    tasks: bool = False
    """A task may be returned instead of a result. A handshake client also requests this in each call; for a stateless
    client this declaration is the request."""
    retries: bool = False
    """Server requests reach the caller in an `input_required` result, and it repeats its request with the responses
    (2026-07-28, "Multi Round-Trip Requests")."""
    apps: bool = False
    """The client shows the pages of MCP Apps that tools name."""
    declared: frozenset[str] = frozenset()
    """Names of all that the client declares, also of what Colonnade does not know: `sampling`, `sampling.context`,
    `extensions.NAME`."""

    @property
    def needs_no_downgrade(self) -> bool:
        """Whether the caller can read every result unchanged."""
        return self.audio and self.resource_links and self.structured_content and self.free_structure


NO_ABILITIES = Abilities()
"""Abilities of a caller without a handshake: it can read every result and supports no server request."""


SHARED_ABILITIES = structs.replace(
    NO_ABILITIES,
    roots=True,
    sampling=True,
    sampling_arrays=True,
    form=True,
    url=True,
    choice_schemas=True,
    tasks=True,
    apps=True,
)
"""The abilities that a server is promised whose connection several clients share: those that any of them may have,
without sampling with tools, which few have. A server that was promised it would offer tools to the others in vain."""


def abilities_of(revision: Revision, capabilities: Raw) -> Abilities:
    """The abilities of a client with this revision, negotiated or stated, and these declared capabilities.

    A capability whose value is not an object counts as not declared: a server request that a client cannot answer costs
    more than one that is refused. Capabilities that the revision does not have are ignored. Never raises.
    """
    text = bytes(capabilities)
    return _read(revision, text) if len(text) > CACHED_BYTES else _read_once(revision, text)


def lacks(abilities: Abilities, required: Raw) -> bool:
    """Whether a client declares less than these required capabilities, in the shape of the schema. Never raises."""
    needed = abilities_of(LATEST, required)
    missing = any(getattr(needed, each) and not getattr(abilities, each) for each in _SERVER_REQUESTS)
    return missing or not _names(required) <= abilities.declared | _READ


def are_passed_on(required: Raw) -> bool:
    """Whether all of these capabilities are declared to a server where its client has them and policy permits it.
    Never raises."""
    return _names(required) <= _PASSED_ON


def _names(capabilities: bytes | Raw) -> frozenset[str]:
    found = object_members(capabilities)
    return frozenset((*found, *(f"{name}.{part}" for name, each in found.items() for part in object_members(each))))


def object_members(raw: bytes | Raw) -> dict[str, Raw]:
    """The members whose values are objects, as every capability is; none if `raw` is not an object. Never raises."""
    return {name: each for name, each in members_if_object(raw).items() if is_object(each)}


def _read(revision: Revision, capabilities: bytes) -> Abilities:
    declared = object_members(capabilities)
    sampling = declared.get("sampling")
    elicitation = declared.get("elicitation") if revision.has_elicitation else None
    modes = object_members(elicitation) if elicitation is not None and revision.has_url_elicitation else {}
    extensions = object_members(declared.get("extensions", EMPTY_OBJECT))
    return Abilities(
        roots="roots" in declared,
        sampling=sampling is not None,
        sampling_tools=sampling is not None and revision.has_sampling_tools and "tools" in object_members(sampling),
        sampling_arrays=sampling is not None and revision.has_sampling_tools,
        # `elicitation: {}` means forms only, as before there were modes (2025-11-25, "Elicitation / Capabilities").
        form=elicitation is not None and ("form" in modes or "url" not in modes),
        url="url" in modes,
        choice_schemas=revision.has_choice_schemas,
        audio=revision.has_audio,
        resource_links=revision.has_resource_links,
        structured_content=revision.has_structured_content,
        free_structure=revision.has_free_structure,
        icons=revision.has_icons,
        tasks=TASKS_EXTENSION in extensions if revision.era is STATELESS else revision.has_tasks,
        retries=revision.era is STATELESS,
        apps=APPS_EXTENSION in extensions,
        declared=_names(capabilities),
    )


_read_once = lru_cache(maxsize=CACHED_CLIENTS)(_read)
