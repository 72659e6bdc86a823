"""Windsurf: `mcp_config.json`, in which it notes the servers and tools that are switched off."""

from __future__ import annotations

from config.desktop.desktop_host import DesktopHost, HostFile
from config.desktop.entry import LAUNCH, SWITCHES, kind, renamed
from config.desktop.variables import only_environment

WINDSURF = DesktopHost(
    name="windsurf",
    title="Windsurf",
    files=(
        HostFile("~/.codeium/windsurf/mcp_config.json"),
        HostFile("~/.codeium/windsurf-next/mcp_config.json"),
        HostFile("~/.codeium/mcp_config.json"),
    ),
    servers=("mcpServers",),
    rules={
        **LAUNCH,
        "serverUrl": renamed("url"),
        "type": kind(),
        **SWITCHES,
    },
    translate=only_environment,
)
