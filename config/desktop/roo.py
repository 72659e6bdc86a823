"""Roo Code: `mcp_settings.json` in the folder of an editor, and a project's `.roo/mcp.json`."""

from __future__ import annotations

from collections.abc import Mapping

from config.desktop.desktop_host import DesktopHost, FileContext, HostFile
from config.desktop.editors import extension_files
from config.desktop.entry import (
    LAUNCH,
    CannotUse,
    ServerEntry,
    approved_tools,
    call_timeout,
    denied_tools,
    harmless,
    kind,
    number,
    off_if,
    same,
)
from config.desktop.variables import VALUES, editor_variables

_seconds = call_timeout(1)


def _timeout(entry: ServerEntry, key: str, value: object) -> None:
    if not 1 <= number(key, value) <= 3600:
        raise CannotUse(f'its key "{key}" is not between 1 and 3600 seconds, so its host does not use the server')
    _seconds(entry, key, value)


def _restrict(context: FileContext, entries: Mapping[str, ServerEntry]) -> None:
    """A server at a URL has to say which transport it speaks; its host does not use it otherwise."""
    for entry in entries.values():
        if "url" in entry.values and "type" not in entry.values:
            entry.stop('it has a url and no "type", so Roo Code does not use it; add "type": "streamable-http"')


ROO = DesktopHost(
    name="roo",
    title="Roo Code",
    files=(
        *extension_files("rooveterinaryinc.roo-cline", "mcp_settings.json"),
        HostFile(".roo/mcp.json", is_project=True),
    ),
    servers=("mcpServers",),
    rules={
        "type": kind(remote=("sse", "streamable-http")),
        **LAUNCH,
        "cwd": same,
        "timeout": _timeout,
        "disabled": off_if("true"),
        "disabledTools": denied_tools,
        "alwaysAllow": approved_tools,
        "watchPaths": harmless,
    },
    translate=editor_variables({"workspaceFolder": VALUES["workspaceFolder"]}, frozenset()),
    restrict=_restrict,
)
