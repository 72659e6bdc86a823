"""Cursor: `mcp.json` of the user and of a project. Its switches for servers and tools stand in no file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from config.desktop.desktop_host import DesktopHost, FileContext, HostFile, at, detect_hooks
from config.desktop.entry import (
    LAUNCH,
    SWITCHES,
    CannotUse,
    ServerEntry,
    env_file,
    harmless,
    kind,
    names,
    oauth_client,
    same,
)
from config.desktop.variables import editor_variables
from config.globs import Globs
from config.problems import clip

_RULE = re.compile(r"Mcp\(([^:]*)(?::(.*))?\)")


def _restrict(context: FileContext, entries: Mapping[str, ServerEntry]) -> None:
    """`permissions.deny` of the command line, and hooks that decide about calls. `mcpAllowlist` only approves."""
    for path in _permission_files(context):
        denied = at(context.sibling(path, ("permissions",)), "permissions").get("deny") or []
        for rule in names("permissions.deny", denied):
            if rule.lower().startswith("mcp"):
                _deny(rule, entries)
    roots = [context.system_wide("etc/cursor/hooks.json", "Library/Application Support/Cursor/hooks.json", ("hooks",))]
    for folder in _folders(context):
        roots.append(context.sibling(folder / "hooks.json", ("hooks",)))
        _approve(context, folder / "permissions.json", entries)
    detect_hooks("Cursor", ("beforeMCPExecution",), roots, entries.values(), have_matchers=False)
    detect_hooks("Cursor", ("preToolUse",), roots, entries.values())
    for entry in entries.values():
        entry.needs_approval = context.project is not None


def _folders(context: FileContext) -> Iterator[Path]:
    """The folders `.cursor` of the user and of the project."""
    yield context.home / ".cursor"
    if context.project is not None:
        yield context.project / ".cursor"


def _permission_files(context: FileContext) -> Iterator[Path]:
    settings = context.environ.get("XDG_CONFIG_HOME") or context.home / ".config"
    yield context.home / ".cursor" / "cli-config.json"
    if moved := context.environ.get("CURSOR_CONFIG_DIR"):
        yield Path(moved) / "cli-config.json"
    yield Path(settings) / "cursor" / "cli-config.json"
    if context.project is not None:
        for folder in (context.project, *context.project.parents):
            yield folder / ".cursor" / "cli.json"


def _deny(rule: str, entries: Mapping[str, ServerEntry]) -> None:
    """`Mcp(server:tool)`, both with `*` for any characters."""
    match = _RULE.fullmatch(rule)
    if match is None:
        raise CannotUse(f'the rule "{clip(rule)}" in permissions.deny of its host is not of the form Mcp(server:tool)')
    server, tool = ((part or "").strip() or "*" for part in match.groups())
    servers = Globs([server.lower()], uris=False)
    for name, entry in entries.items():
        if servers.match(name.lower()):
            entry.deny([tool])


def _approve(context: FileContext, path: Path, entries: Mapping[str, ServerEntry]) -> None:
    """`mcpAllowlist` with items `server:tool`. A file that cannot be read approves nothing."""
    try:
        items = context.sibling(path, ("mcpAllowlist",)).get("mcpAllowlist")
    except CannotUse:
        return
    for item in items if isinstance(items, list) else ():
        server, colon, tool = str(item).partition(":")
        if colon and tool and "?" not in item:
            for name, entry in entries.items():
                if Globs([server], uris=False).match(name):
                    entry.approve(None if tool == "*" else [tool])


CURSOR = DesktopHost(
    name="cursor",
    title="Cursor",
    files=(HostFile("~/.cursor/mcp.json"), HostFile(".cursor/mcp.json", is_project=True)),
    servers=("mcpServers",),
    rules={
        "type": kind(),
        **LAUNCH,
        "envFile": env_file,
        "cwd": same,
        "auth": oauth_client(CLIENT_ID="client_id", CLIENT_SECRET="client_secret", scopes="scopes"),
        # Not documented, and found in files all the same.
        "timeout": harmless,  # its unit is not known
        **SWITCHES,
    },
    translate=editor_variables(),
    restrict=_restrict,
    hides_switches=True,
)
