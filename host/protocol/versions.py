"""Revisions of MCP that Colonnade supports, as tables of their features. Version strings are in this file only.

A handshake revision (LEGACY) is negotiated with `initialize` for a whole connection; a request of a stateless one
(MODERN) names its own revision. Other code asks a `Revision` for its features and never compares version strings.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from host.errors import UnsupportedVersion
from host.jsonrpc.raw import encode

MAX_SHOWN = 40
"""Characters of a peer's version string that error messages repeat."""


class Era(StrEnum):
    """The era of a message, a connection or a list. It is text, because text has a fast hash and an Enum's is slow."""

    SESSION = "session"
    """Handshake revisions: a message belongs to a session or opens one. The session also refuses a message that needs
    one and has none."""
    STATELESS = "stateless"
    """No session: the message's own envelope is all that counts."""


SESSION, STATELESS = Era.SESSION, Era.STATELESS
"""The same as variables, for what every request compares; see RESOURCE in `protocol/methods.py`."""


class Revision(Struct, frozen=True):
    """One released revision of MCP. `name` is for the wire and for people, never for decisions."""

    name: str
    era: Era
    """Whether there is a handshake, or every request names its revision and capabilities (2026-07-28,
    "Statelessness")."""
    names_itself_in_http: bool = False
    """Clients send `MCP-Protocol-Version` with every request, after the handshake if there is one (2025-06-18,
    "Protocol Version Header")."""
    resumes_streams: bool = False
    """A client may request the rest of a broken event stream (2025-03-26, "Resumability and Redelivery")."""
    primes_streams: bool = False
    """Event streams begin with an event that has an id and no data (2025-11-25, "Sending Messages to the Server").
    Clients of earlier revisions fail on it."""
    has_completions_capability: bool = False
    """`completions` is a declared capability; 2024-11-05 has the method without the capability."""
    has_batches: bool = False
    """Several messages may be sent as one array (2025-03-26, "Batching"; no other revision has it)."""
    has_audio: bool = False
    """Content may be of type `audio` (2025-03-26, "Audio Content")."""
    has_resource_links: bool = False
    """Content may be of type `resource_link` (2025-06-18, "Resource Links")."""
    has_structured_content: bool = False
    """Tools have an `outputSchema` and results `structuredContent` (2025-06-18, "Structured Content")."""
    has_free_structure: bool = False
    """Both may be of any JSON type, not only objects (2026-07-28, "Structured Content")."""
    has_elicitation: bool = False
    """A server may request the fields of a form from the user (2025-06-18, "Elicitation")."""
    has_url_elicitation: bool = False
    """A server may send the user to a page, and a client declares which modes of elicitation it supports (2025-11-25,
    "Elicitation / Capabilities")."""
    has_sampling_tools: bool = False
    """A server may offer tools to the client's model (2025-11-25, "Sampling / Capabilities")."""
    has_choice_schemas: bool = False
    """A form names its `mode` and may have titled choices (`oneOf`, `anyOf`), multiple choices, and defaults of all
    types (2025-11-25, "Requested Schema")."""
    has_icons: bool = False
    """Entries may have `icons` (2025-11-25, "Icons")."""
    has_tasks: bool = False
    """Tasks are part of the revision (2025-11-25, "Tasks"); in 2026-07-28 they are an extension."""


_2024_11_05 = Revision("2024-11-05", SESSION)
_2025_03_26 = replace(
    _2024_11_05,
    name="2025-03-26",
    resumes_streams=True,
    has_completions_capability=True,
    has_batches=True,
    has_audio=True,
)
_2025_06_18 = replace(
    _2025_03_26,
    name="2025-06-18",
    names_itself_in_http=True,
    has_batches=False,
    has_resource_links=True,
    has_structured_content=True,
    has_elicitation=True,
)
_2025_11_25 = replace(
    _2025_06_18,
    name="2025-11-25",
    primes_streams=True,
    has_url_elicitation=True,
    has_sampling_tools=True,
    has_choice_schemas=True,
    has_icons=True,
    has_tasks=True,
)
_2026_07_28 = replace(
    _2025_11_25,
    name="2026-07-28",
    era=STATELESS,
    resumes_streams=False,
    primes_streams=False,
    has_free_structure=True,
    has_tasks=False,
)

LEGACY: dict[str, Revision] = {each.name: each for each in (_2024_11_05, _2025_03_26, _2025_06_18, _2025_11_25)}
LATEST_LEGACY = _2025_11_25
HANDSHAKES: tuple[Revision, ...] = tuple(reversed(LEGACY.values()))
"""The handshake revisions, newest first."""
MODERN: dict[str, Revision] = {each.name: each for each in (_2026_07_28,)}
LATEST = _2026_07_28

SERVED: tuple[str, ...] = (*reversed(MODERN), *reversed(LEGACY))
"""The names of all revisions, newest first, as clients get them."""


def negotiated_revision(asked: str) -> Revision:
    """The revision in the response to `initialize`: the requested one if it is supported, else the latest handshake
    revision (2025-11-25, "Version Negotiation")."""
    return LEGACY.get(asked, LATEST_LEGACY)


def unsupported_version(asked: str) -> UnsupportedVersion:
    """The error for a request that names the revision `asked` (2026-07-28, "UnsupportedProtocolVersionError")."""
    shown = asked[:MAX_SHOWN]
    problem = "needs initialize" if asked in LEGACY else "is not supported"
    return UnsupportedVersion(
        f"the protocol version {shown!r} {problem}; supported versions: {', '.join(SERVED)}",
        data=encode({"supported": SERVED, "requested": shown}),
    )
