"""Windsurf: `mcp_config.json`, in which it notes the servers and tools that are switched off."""

from __future__ import annotations

from config.hosts.desktop_host import DesktopHost, HostFile
from config.hosts.entry import approved_tools, denied_tools, kind, off_if, program, renamed, same
from config.hosts.variables import only_environment

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
        "command": program,
        "args": same,
        "env": same,
        "serverUrl": renamed("url"),
        "url": same,
        "headers": same,
        "type": kind(),
        "disabled": off_if("true"),
        "disabledTools": denied_tools,
        "autoApprove": approved_tools,
        "alwaysAllow": approved_tools,
    },
    translate=only_environment,
)
