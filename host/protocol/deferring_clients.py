"""Clients that keep tools from their model until it searches for them, so that a search of ours would be a second one.

Sources: the documentation and issues of each, and runs of it with a server of our own
(docs/views.md#which-clients-get-a-search).
"""

from __future__ import annotations

import re

_DEFERRING: tuple[tuple[str, tuple[int, ...]], ...] = (
    # On by default since then, at Anthropic's own endpoint (code.claude.com/docs/en/mcp, "Scale with MCP tool search").
    ("claude-code", (2, 1, 7)),
    # For models that can search (openai/codex#29486); the first release for which users report it.
    ("codex-mcp-client", (0, 144, 5)),
    # Measured with 0.24.4; it adds the name of the server, and its version is not that of the host.
    ("qwen-cli-mcp-client-", ()),
)
"""The `name` of `clientInfo`, or its beginning if it ends with a hyphen, and the first `version` that defers."""

_NUMBERS = re.compile(r"(?:0|[1-9][0-9]{0,8})(?:\.(?:0|[1-9][0-9]{0,8})){0,3}")


def defers_tools(client: str) -> bool:
    """Whether a client is known to defer tools itself. `client`: its name and version, separated by a space, in its own
    words (`identity.display_name`)."""
    name, version = client.rsplit(" ", 1) if " " in client else (client, "")
    for known, since in _DEFERRING:
        if name == known or (known.endswith("-") and name.startswith(known)):
            return _numbers(version) >= since
    return False


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers at the beginning of a version; none if it begins with something else."""
    found = _NUMBERS.match(version)
    return () if found is None else tuple(map(int, found[0].split(".")))
