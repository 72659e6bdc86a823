"""Cline: `cline_mcp_settings.json` of its extension in an editor and of its command line."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path

from config.document import Plain, kind_of
from config.hosts.desktop_host import DesktopHost, FileContext, HostFile, at
from config.hosts.editors import extension_files
from config.hosts.entry import (
    NEEDS_OAUTH,
    CannotUse,
    ServerEntry,
    approved_tools,
    call_timeout,
    cannot,
    denied_tools,
    harmless,
    kind,
    names,
    off_if,
    program,
    same,
    truth,
)
from config.hosts.variables import only_environment
from config.problems import clip

_MODE = "cline.mcp.mode"
_TRANSPORT = {
    "type": kind(remote=("sse", "streamableHttp")),
    "command": program,
    "args": same,
    "env": same,
    "cwd": same,
    "url": same,
    "headers": same,
}
_NEEDS_OAUTH = cannot(NEEDS_OAUTH)
_SHORTENED = re.compile(r"_[0-9a-f]{8}$")


def _transport(entry: ServerEntry, key: str, value: object) -> None:
    """The keys of the connection in a map of their own."""
    if not isinstance(value, dict):
        raise CannotUse(f'its key "{key}" is {kind_of(value)}; expected a map')
    twice = next((name for name in _TRANSPORT if name in entry.values), "")
    if twice:
        raise CannotUse(f'it has both the key "{key}" and the key "{twice}"; remove one')
    dataclasses.replace(entry, values=value, path=(*entry.path, key)).apply(dict(_TRANSPORT))


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


def _has_shape(root: Mapping[str, object]) -> bool:
    servers = root.get("mcpServers")
    return isinstance(servers, dict) and any(
        isinstance(value, dict) and ("transportType" in value or isinstance(value.get("transport"), dict))
        for value in servers.values()
    )


CLINE = DesktopHost(
    name="cline",
    title="Cline",
    files=(
        *extension_files("saoudrizwan.claude-dev", "cline_mcp_settings.json"),
        HostFile("~/.cline/data/settings/cline_mcp_settings.json", variable="CLINE_MCP_SETTINGS_PATH"),
    ),
    servers=("mcpServers",),
    asks_by_default=True,
    rules={
        **_TRANSPORT,
        "transport": _transport,
        "transportType": kind(remote=("sse", "http", "streamableHttp")),
        "disabled": off_if("true"),
        "disabledTools": denied_tools,
        "timeout": call_timeout(1),
        "autoApprove": approved_tools,
        "alwaysAllow": approved_tools,
        "remoteConfigured": harmless,
        "metadata": harmless,
        "oauth": _NEEDS_OAUTH,
        "oauthClient": _NEEDS_OAUTH,
    },
    translate=only_environment,
    restrict=_restrict,
    has_shape=_has_shape,
)
