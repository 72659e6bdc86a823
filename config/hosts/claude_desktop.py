"""Claude Desktop: `claude_desktop_config.json`, for servers that it starts itself. It knows no references."""

from __future__ import annotations

from config.hosts.desktop_host import DesktopHost, HostFile
from config.hosts.entry import approved_tools, cannot, denied_tools, kind, off_if, program, same

_NO_URL = cannot("belongs to a server at a URL, which Claude Desktop takes from the settings of the account alone")

CLAUDE_DESKTOP = DesktopHost(
    name="claude-desktop",
    title="Claude Desktop",
    files=(
        HostFile(
            "~/.config/Claude/claude_desktop_config.json",
            "~/Library/Application Support/Claude/claude_desktop_config.json",
        ),
    ),
    servers=("mcpServers",),
    rules={
        "command": program,
        "args": same,
        "env": same,
        "type": kind(remote=()),
        "url": _NO_URL,
        "headers": _NO_URL,
        # Not documented, and found in files all the same.
        "disabled": off_if("true"),
        "disabledTools": denied_tools,
        "autoApprove": approved_tools,
        "alwaysAllow": approved_tools,
    },
    hides_switches=True,
)
