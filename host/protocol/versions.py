"""The revisions Colonnade speaks, and what each of them lets a peer do. Version strings stand here and nowhere else.

Legacy revisions open with an `initialize` handshake that settles one of them for the whole connection; with modern ones
every request states its own. A caller of this module gets a `Revision` and asks it for abilities; nobody compares the
strings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from host.errors import UnsupportedVersion
from host.jsonrpc.raw import encode

MAX_SHOWN = 40
"""Characters of a version that somebody else made up, where it is told on."""


@dataclass(frozen=True, slots=True)
class Revision:
    """One released revision of MCP. `name` is for the wire and for people, never for decisions."""

    name: str
    stateless: bool
    """Whether there is no handshake, and every request says what it is of (2026-07-28, "Statelessness")."""
    names_itself_in_http: bool
    """Whether a client sends `MCP-Protocol-Version` after the handshake, if there is one (2025-06-18, "Protocol Version
    Header")."""
    resumes_streams: bool
    """Whether a client may ask for the rest of a broken event stream (2025-03-26, "Resumability and Redelivery")."""
    primes_streams: bool
    """Whether its event streams begin with an event that has an id and no data; clients of earlier revisions fail on it
    (2025-11-25, "Sending Messages to the Server")."""
    has_completions_capability: bool
    """Whether `completions` is a declared capability; 2024-11-05 has the method without the capability."""
    has_batches: bool
    """Whether several messages may come as one array (2025-03-26, "Batching"; no other revision has it)."""
    has_audio: bool
    """Whether content may be of type `audio` (2025-03-26, "Audio Content")."""
    has_resource_links: bool
    """Whether content may be of type `resource_link` (2025-06-18, "Resource Links")."""
    has_structured_content: bool
    """Whether tools have an `outputSchema` and results `structuredContent` (2025-06-18, "Structured Content")."""
    has_free_structure: bool
    """Whether both may be of any JSON type; before, they are objects (2026-07-28, "Structured Content")."""
    has_elicitation: bool
    """Whether a server may ask the user for the members of a form (2025-06-18, "Elicitation")."""
    has_url_elicitation: bool
    """Whether a server may send the user to a page, and a client says which of form and page it does
    (2025-11-25, "Elicitation / Capabilities")."""
    has_sampling_tools: bool
    """Whether a server may offer tools to the client's model (2025-11-25, "Sampling / Capabilities")."""
    has_choice_schemas: bool
    """Whether a form says its `mode` and may hold titled choices (`oneOf`, `anyOf`), choices of several, and defaults
    for more than booleans (2025-11-25, "Requested Schema")."""
    has_tasks: bool
    """Whether tasks are part of it (2025-11-25, "Tasks"); later they are an extension that a request declares."""


_2024_11_05 = Revision(
    "2024-11-05",
    stateless=False,
    names_itself_in_http=False,
    resumes_streams=False,
    primes_streams=False,
    has_completions_capability=False,
    has_batches=False,
    has_audio=False,
    has_resource_links=False,
    has_structured_content=False,
    has_free_structure=False,
    has_elicitation=False,
    has_url_elicitation=False,
    has_sampling_tools=False,
    has_choice_schemas=False,
    has_tasks=False,
)
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
    has_tasks=True,
)
_2026_07_28 = replace(
    _2025_11_25,
    name="2026-07-28",
    stateless=True,
    resumes_streams=False,
    primes_streams=False,
    has_free_structure=True,
    has_tasks=False,
)

LEGACY: dict[str, Revision] = {each.name: each for each in (_2024_11_05, _2025_03_26, _2025_06_18, _2025_11_25)}
LATEST_LEGACY = _2025_11_25
MODERN: dict[str, Revision] = {each.name: each for each in (_2026_07_28,)}
LATEST = _2026_07_28

SERVED: tuple[str, ...] = (*reversed(MODERN), *reversed(LEGACY))
"""The names of all of them, the newest first, as clients are told them."""


def negotiated_revision(asked: str) -> Revision:
    """The revision a server answers `initialize` with: the client's if served, else the latest
    (2025-11-25, "Version Negotiation")."""
    return LEGACY.get(asked, LATEST_LEGACY)


def unsupported_version(asked: str) -> UnsupportedVersion:
    """What a request of the revision `asked` is refused with (2026-07-28, "UnsupportedProtocolVersionError")."""
    shown = asked[:MAX_SHOWN]
    trouble = "begins with initialize" if asked in LEGACY else "is not served"
    return UnsupportedVersion(
        f"the protocol version {shown!r} {trouble}; served are {', '.join(SERVED)}",
        data=encode({"supported": SERVED, "requested": shown}),
    )
