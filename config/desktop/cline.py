"""Cline: `cline_mcp_settings.json` of its extension in an editor and of its command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from config.desktop.desktop_host import DesktopHost, FileContext, HostFile, at, has_server
from config.desktop.editors import extension_files
from config.desktop.entry import (
    LAUNCH,
    NEEDS_OAUTH,
    SWITCHES,
    CannotUse,
    ServerEntry,
    cannot,
    duration,
    harmless,
    kind,
    names,
    same,
    truth,
    within,
)
from config.desktop.variables import only_environment
from config.document import Plain
from config.problems import clip

_MODE = "cline.mcp.mode"
_TRANSPORT = {
    "type": kind(remote=("sse", "streamableHttp")),
    **LAUNCH,
    "cwd": same,
}
_SHORTENED = re.compile(r"_[0-9a-f]{8}$")


def _timeout(entry: ServerEntry, key: str, value: object) -> None:
    """Seconds, for the start and for each call."""
    for ours in ("start_timeout", "timeout"):
        duration(ours, 1)(entry, key, value)


def _restrict(context: FileContext, entries: Mapping[str, ServerEntry]) -> None:
    """The switch in the editor's settings, and tools that are off in those of the command line."""
    if len(context.folder.parents) > 2:
        settings = context.sibling(context.folder.parents[2] / "settings.json", (_MODE,))
        mode = settings.get(_MODE, "full")
        if mode == "off":
            for entry in entries.values():
                entry.switch_off()
        elif mode not in ("full", "server-use-only"):
            raise CannotUse(f'the setting {_MODE} of its host is "{clip(str(mode))}", which is not known here')
    shared = context.sibling(
        Path(context.environ.get("CLINE_GLOBAL_SETTINGS_PATH") or context.folder / "global-settings.json")
    )
    removed = names("disabledTools", shared.get("disabledTools") or [])
    for tool in at(shared, "tools"):
        enabled = at(shared, "tools", tool).get("enabled", Plain("true"))
        if not truth(f"tools.{tool}.enabled", enabled):
            removed.append(tool)
    for name, entry in entries.items():
        for tool in removed:
            _remove(entry, name, tool)


def _remove(entry: ServerEntry, server: str, tool: str) -> None:
    """A tool by its full name, SERVER__TOOL, or alone. A long or unusual name is cut and ends in a digest."""
    tool = tool.removeprefix(re.sub(r"[^A-Za-z0-9_-]", "_", server) + "__")
    entry.deny([tool])
    if _SHORTENED.search(tool):
        # Any character may stand where an underscore stands.
        entry.deny([_SHORTENED.sub("", tool).replace("_", "?") + "*"])


def _has_marks(root: Mapping[str, object]) -> bool:
    return has_server(
        root, "mcpServers", lambda each: "transportType" in each or isinstance(each.get("transport"), dict)
    )


CLINE = DesktopHost(
    name="cline",
    title="Cline",
    files=(
        *extension_files("saoudrizwan.claude-dev", "cline_mcp_settings.json"),
        HostFile("~/.cline/data/settings/cline_mcp_settings.json", variable="CLINE_MCP_SETTINGS_PATH"),
    ),
    servers=("mcpServers",),
    rules={
        **_TRANSPORT,
        "transport": within(_TRANSPORT),
        "transportType": kind(remote=("sse", "http", "streamableHttp")),
        **SWITCHES,  # `disabledTools` is of no effect in version 3.0.65; a person who writes it means it
        "timeout": _timeout,
        **dict.fromkeys(("remoteConfigured", "metadata"), harmless),
        **dict.fromkeys(("oauth", "oauthClient"), cannot(NEEDS_OAUTH)),
    },
    translate=only_environment,
    restrict=_restrict,
    has_marks=_has_marks,
)
