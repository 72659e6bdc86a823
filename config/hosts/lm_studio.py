"""LM Studio: `mcp.json`. It knows no references."""

from __future__ import annotations

from config.hosts.desktop_host import DesktopHost, HostFile
from config.hosts.entry import denied_tools, harmless, kind, off_if, program, same

LM_STUDIO = DesktopHost(
    name="lm-studio",
    title="LM Studio",
    files=(HostFile("~/.lmstudio/mcp.json"), HostFile("~/.cache/lm-studio/mcp.json")),
    servers=("mcpServers",),
    rules={
        "command": program,
        "args": same,
        "env": same,
        "url": same,
        "headers": same,
        "type": kind(),
        "timeout": harmless,  # its unit is not documented
        "disabled": off_if("true"),
        "disabledTools": denied_tools,
    },
    hides_switches=True,
)
