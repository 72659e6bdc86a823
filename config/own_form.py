"""Whether a file is a configuration in our form, told without the modules of desktop hosts: to import those takes a
tenth of the time until the port is open."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

TOP_KEY = "mcpServers"
"""The key of the servers in files of most hosts."""
URL_KEYS = ("url", "serverUrl", "httpUrl", "baseUrl", "uri")
"""The names that hosts have for a URL."""
LAUNCH_KEYS = ("command", "cmd", *URL_KEYS)
_FOLDERS = frozenset({".continue", "goose"})
"""The folders in which hosts have files in YAML."""


def may_be_at_a_host(path: Path) -> bool:
    """Whether a path, or what it leads to, could be at the place of a host: it is no YAML, or in a folder of a host."""
    return any(
        each.suffix not in (".yaml", ".yml") or not _FOLDERS.isdisjoint(each.parts)
        for each in (path, Path(os.path.realpath(path)))
    )


def has_own_servers(root: Mapping[str, object]) -> bool:
    """Whether a file has servers where a configuration of ours has them, and none under `mcpServers`, which always
    were the only ones that count."""
    servers = None if root.get(TOP_KEY) else root.get("servers")
    found = servers.values() if isinstance(servers, dict) else ()
    return any(isinstance(each, dict) and launches(each) for each in found)


def launches(server: Mapping[str, object]) -> bool:
    """Whether a map has the command or the URL of a server."""
    transport = server.get("transport")
    nested = transport if isinstance(transport, dict) else {}
    return any(isinstance(nested.get(key, server.get(key)), str | list) for key in LAUNCH_KEYS)
