"""The instructions of an endpoint, merged from those of its servers."""

from __future__ import annotations

from host.policy.definitions import Definitions
from host.protocol.versions import Era
from host.upstream.supervised import UpstreamConnection
from host.upstream.upstreams import Upstreams

MAX_INSTRUCTIONS = 2048
"""Characters of one server's instructions in the merged text."""
MAX_ALL_INSTRUCTIONS = 8192
"""Characters of the merged text."""


def merged_instructions(endpoint: str | None, upstreams: Upstreams, definitions: Definitions, era: Era) -> str:
    """The instructions of all servers under headings, shortened; on a server's own endpoint that server's, unchanged.
    Held instructions are left out. Those of a server that is away are the last ones that it sent. `era`: of the
    client."""
    if endpoint is not None:
        return _instructions_of(endpoint, upstreams, definitions, era) or ""
    parts: list[str] = []
    for server, upstream in upstreams.by_id.items():
        text = _instructions_of(server, upstreams, definitions, era)
        if text:
            heading = f"## {server}" + (f" ({upstream.spec.title})" if upstream.spec.title else "")
            parts.append(f"{heading}\n{_cut(text, MAX_INSTRUCTIONS)}")
    preamble = (
        "Several servers answer here. Their tools and prompts are called <server>__<name> and their resources "
        "<server>+<URI>; where a server's own text below uses a bare name, put its prefix before it."
    )
    return _cut("\n\n".join([preamble, *parts]), MAX_ALL_INSTRUCTIONS)


def _instructions_of(server: str, upstreams: Upstreams, definitions: Definitions, era: Era) -> str | None:
    connection = offering(server, upstreams, era)
    if connection is None or connection.spec.disabled or connection.negotiated is None:
        return None
    return definitions.instructions(connection.source, connection.negotiated.instructions)


def offering(server: str, upstreams: Upstreams, era: Era) -> UpstreamConnection | None:
    """The connection whose negotiation clients of an era are shown, which may be a remembered one; None if the server
    is not configured. While its session was never open, clients with a session get what the stateless connection
    offers."""
    found = upstreams.by_id.get(server)
    if found is None:
        return None
    connection = found.serving(era)
    return found.main if connection.negotiated is None else connection


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."
