"""The instructions of an endpoint, merged from those of its servers."""

from __future__ import annotations

from host.exchange import Caller
from host.policy.definitions import Definitions
from host.upstream.supervisor import UpstreamServer
from host.upstream.upstreams import Upstreams

MAX_INSTRUCTIONS = 2048
"""Characters of one server's instructions in the merged text."""
MAX_ALL_INSTRUCTIONS = 8192
"""Characters of the merged text."""


def merged_instructions(caller: Caller, upstreams: Upstreams, definitions: Definitions) -> str:
    """The instructions of all servers under headings, shortened; on a server's own endpoint that server's, unchanged.
    Held instructions are left out. Those of a server that is away are the last ones that it sent."""
    if caller.endpoint is not None:
        upstream = upstreams.by_id.get(caller.endpoint)
        return "" if upstream is None else _instructions_of(upstream, definitions, caller) or ""
    parts: list[str] = []
    for server, upstream in upstreams.by_id.items():
        text = _instructions_of(upstream, definitions, caller)
        if text:
            heading = f"## {server}" + (f" ({upstream.spec.title})" if upstream.spec.title else "")
            parts.append(f"{heading}\n{_cut(text, MAX_INSTRUCTIONS)}")
    preamble = (
        "Several servers answer here. Their tools and prompts are called <server>__<name> and their resources "
        "<server>+<URI>; where a server's own text below uses a bare name, put its prefix before it."
    )
    return _cut("\n\n".join([preamble, *parts]), MAX_ALL_INSTRUCTIONS)


def _instructions_of(upstream: UpstreamServer, definitions: Definitions, caller: Caller) -> str | None:
    connection = upstream.offering(caller)
    if connection.spec.disabled or connection.negotiated is None:
        return None
    return definitions.instructions(connection.source, connection.negotiated.instructions)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."
