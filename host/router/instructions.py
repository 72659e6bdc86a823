"""The instructions of an endpoint, merged from those of its servers."""

from __future__ import annotations

from host.exchange import Caller
from host.policy.definitions import Definitions
from host.upstream.supervisor import UpstreamServer
from host.upstream.upstreams import Upstreams
from host.views import View

MAX_INSTRUCTIONS = 2048
"""Characters of one server's instructions in the merged text."""
MAX_ALL_INSTRUCTIONS = 8192
"""Characters of the merged text."""
PREAMBLE = (
    "Several servers answer here. Their tools and prompts are called <server>__<name> and their resources "
    "<server>+<URI>; where a server's own text below uses a bare name, put its prefix before it."
)
PLAIN_PREAMBLE = (
    "Several servers answer here. Their resources are called <server>+<URI>; where a server's own text below uses a "
    "bare URI, put its prefix before it."
)


def merged_instructions(caller: Caller, view: View, upstreams: Upstreams, definitions: Definitions) -> str:
    """The instructions of all servers of the caller's view under headings, shortened, or those that the view has in
    their place; on a server's own endpoint that server's, unchanged. Held instructions are left out. Those of a server
    that is away are the last ones that it sent."""
    if caller.endpoint.server is not None:
        upstream = upstreams.by_id.get(caller.endpoint.server)
        return "" if upstream is None else _instructions_of(upstream, definitions, caller) or ""
    if view.instructions is not None:
        return view.instructions
    parts: list[str] = []
    for upstream in map(upstreams.by_id.__getitem__, upstreams.at(caller.endpoint)):
        text = _instructions_of(upstream, definitions, caller)
        if text:
            spec = upstream.spec
            heading = f"## {spec.outward_prefix}" + (f" ({spec.title})" if spec.title else "")
            parts.append(f"{heading}\n{_cut(text, MAX_INSTRUCTIONS)}")
    preamble = PLAIN_PREAMBLE if view.names.plain else PREAMBLE
    return _cut("\n\n".join([preamble, *parts]), MAX_ALL_INSTRUCTIONS)


def _instructions_of(upstream: UpstreamServer, definitions: Definitions, caller: Caller) -> str | None:
    connection = upstream.offering(caller)
    if connection.spec.disabled or connection.negotiated is None:
        return None
    return definitions.instructions(connection.source, connection.negotiated.instructions)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."
