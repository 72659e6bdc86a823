"""What one caller can be asked and can take: its revision and its declared capabilities, read once, as plain booleans.

Nothing here knows sessions, servers or what is asked; `server_requests` and `downgrade` go by these booleans alone.
Source: "ClientCapabilities" of the schemas, and 2025-11-25, "Sampling / Capabilities" and "Elicitation / Capabilities".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from msgspec import Raw

from host.jsonrpc.raw import EMPTY_OBJECT, is_object, members
from host.protocol.versions import Revision

# Extensions are declared under `extensions` of the capabilities, by these names.
TASKS_EXTENSION = "io.modelcontextprotocol/tasks"
APPS_EXTENSION = "io.modelcontextprotocol/ui"

_CACHED_CLIENTS = 256
_CACHED_BYTES = 2048
"""Of a declaration: a stateless client repeats it with every request. A longer one is not worth its room."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """What one caller can be asked, and what it can take in an answer."""

    roots: bool
    sampling: bool
    sampling_tools: bool
    """Whether tools may be offered to its model, and messages may hold their calls and results."""
    sampling_arrays: bool
    """Whether one message may hold several pieces of content."""
    form: bool
    url: bool
    """Whether its user can be sent to a page."""
    choice_schemas: bool
    """Whether it knows forms as 2025-11-25 has them: `mode`, titled and multiple choices, defaults for all types."""
    audio: bool
    resource_links: bool
    structured_content: bool
    free_structure: bool
    """Whether structured content may be of any JSON type, and not only an object."""
    tasks: bool
    """Whether it can take a task in place of a result. One of a handshake says in each call whether it wants to; a
    stateless request has said so with this."""
    retries: bool
    """Whether it is asked by an answer that is not the last, and asks again with what it was asked for (2026-07-28,
    "Multi Round-Trip Requests")."""
    apps: bool
    """Whether it shows the pages that tools bring with them."""

    @property
    def needs_no_downgrade(self) -> bool:
        """Whether no answer has to be changed for it."""
        return self.audio and self.resource_links and self.structured_content and self.free_structure


NO_ABILITIES = Abilities(
    roots=False,
    sampling=False,
    sampling_tools=False,
    sampling_arrays=False,
    form=False,
    url=False,
    choice_schemas=False,
    audio=True,
    resource_links=True,
    structured_content=True,
    free_structure=True,
    tasks=False,
    retries=False,
    apps=False,
)
"""Of a caller without a handshake: it takes every answer and can be asked nothing."""


ALL_ABILITIES = replace(
    NO_ABILITIES,
    roots=True,
    sampling=True,
    sampling_tools=True,
    sampling_arrays=True,
    form=True,
    url=True,
    choice_schemas=True,
    tasks=True,
    apps=True,
)
"""Of whoever might come."""


def abilities_of(revision: Revision, capabilities: Raw) -> Abilities:
    """What a client can that settled on `revision`, or states it, and declared `capabilities`.

    A capability whose value is no object is not declared: a question that is wrongly sent costs more than one that is
    not. What a client declares beyond its revision means nothing. Never raises.
    """
    text = bytes(capabilities)
    return _read(revision, text) if len(text) > _CACHED_BYTES else _read_once(revision, text)


def object_members(raw: bytes | Raw) -> dict[str, Raw]:
    """The members that are objects, as every declared capability is; none if `raw` is no object. Never raises."""
    try:
        return {name: each for name, each in members(raw).items() if is_object(each)}
    except ValueError:
        return {}


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
        # Elicitation without a word on modes means forms, as it did before there were modes.
        form=elicitation is not None and ("form" in modes or "url" not in modes),
        url="url" in modes,
        choice_schemas=revision.has_choice_schemas,
        audio=revision.has_audio,
        resource_links=revision.has_resource_links,
        structured_content=revision.has_structured_content,
        free_structure=revision.has_free_structure,
        tasks=TASKS_EXTENSION in extensions if revision.stateless else revision.has_tasks,
        retries=revision.stateless,
        apps=APPS_EXTENSION in extensions,
    )


_read_once = lru_cache(maxsize=_CACHED_CLIENTS)(_read)
