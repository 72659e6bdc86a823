"""LM Studio: `mcp.json`. It knows no references."""

from __future__ import annotations

from config.desktop.desktop_host import DesktopHost, HostFile
from config.desktop.entry import LAUNCH, denied_tools, harmless, kind, off_if

LM_STUDIO = DesktopHost(
    name="lm-studio",
    title="LM Studio",
    files=(HostFile("~/.lmstudio/mcp.json"), HostFile("~/.cache/lm-studio/mcp.json")),
    servers=("mcpServers",),
    rules={
        **LAUNCH,
        "type": kind(),
        "timeout": harmless,  # its unit is not documented
        "disabled": off_if("true"),
        "disabledTools": denied_tools,
    },
    hides_switches=True,
)
