"""Claude Desktop: `claude_desktop_config.json`, for servers that it starts itself. It knows no references."""

from __future__ import annotations

from config.desktop.desktop_host import DesktopHost, HostFile
from config.desktop.entry import LAUNCH, SWITCHES, cannot, kind

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
        **LAUNCH,
        "type": kind(remote=()),
        "url": _NO_URL,
        "headers": _NO_URL,
        # Not documented, and found in files all the same.
        **SWITCHES,
    },
    hides_switches=True,
)
