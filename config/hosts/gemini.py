"""Gemini CLI: `settings.json`, with `mcpServers` beside all other settings."""

from __future__ import annotations

import re
from collections.abc import Mapping

from config.document import Plain
from config.hosts.desktop_host import DesktopHost, FileContext, HostFile, at, rewrite
from config.hosts.entry import (
    CannotUse,
    ServerEntry,
    cannot,
    denied_tools,
    escape,
    harmless,
    kind,
    mapping,
    names,
    own_trust,
    program,
    renamed,
    same,
)

_REFERENCE = re.compile(r"\$(?:(\w+)|\{([^}]+)\})")
_DEFAULT_AUTH = "dynamic_discovery"


def _translate(text: str, context: FileContext) -> str:
    """`$NAME` and `${NAME}`. A variable that is not set stays as it is written there; here it is an error."""

    def reference(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            return escape(match[0])
        return f"${{env:{name}}}"

    return rewrite(text, _REFERENCE, reference)


def _env(entry: ServerEntry, key: str, value: object) -> None:
    """Variables of the program. One that is not set is empty, unlike in the other keys."""
    entry.set(key, value, key)
    variables = entry.ours[key]
    if isinstance(variables, dict):
        entry.ours[key] = {
            name: re.sub(r"\$\{env:(\w+)\}", r"${env:\1:-}", text)
            if isinstance(text, str) and not isinstance(text, Plain)
            else text
            for name, text in variables.items()
        }


def _only_tools(entry: ServerEntry, key: str, value: object) -> None:
    """The only tools, each by its name or as `name(...)`."""
    entry.only(name.partition("(")[0] for name in names(key, value))


def _auth(entry: ServerEntry, key: str, value: object) -> None:
    if value != _DEFAULT_AUTH:
        raise CannotUse(f'its key "{key}" needs credentials that only its host can obtain')


def _oauth(entry: ServerEntry, key: str, value: object) -> None:
    if mapping(key, value).get("enabled") != "false":
        raise CannotUse(f'its key "{key}" needs OAuth, which is not supported yet; put a token into headers')


def _restrict(context: FileContext, entries: Mapping[str, ServerEntry]) -> None:
    """`mcp.allowed`, `mcp.excluded`, `tools.exclude`, and the switches of `gemini mcp disable`."""
    mcp = context.at("mcp")
    allowed = {name.strip().lower() for name in names("mcp.allowed", mcp.get("allowed") or [])}
    excluded = {name.strip().lower() for name in names("mcp.excluded", mcp.get("excluded") or [])}
    switches = {
        **context.sibling(context.folder / "mcp-server-enablement.json"),
        **context.sibling(context.home / ".gemini" / "mcp-server-enablement.json"),
    }
    removed = names("tools.exclude", context.at("tools").get("exclude") or [])
    for name, entry in entries.items():
        known = name.strip().lower()
        if allowed and known not in allowed and "*" not in allowed:
            entry.switch_off()
        if known in excluded or "*" in excluded:
            entry.switch_off()
        if at(switches, known).get("enabled") == "false":
            entry.switch_off()
        for tool in removed:
            _exclude(entry, name, tool)


def _exclude(entry: ServerEntry, server: str, tool: str) -> None:
    """A tool by its full name: `mcp_SERVER_TOOL`, formerly `SERVER__TOOL` or the tool alone."""
    cleaned = re.sub(r"[^a-zA-Z0-9_.:-]", "_", server)
    for prefix in (f"mcp_{cleaned}_", f"mcp_{server}_", f"{server}__", "mcp_*_"):
        if tool.startswith(prefix):
            entry.deny([tool.removeprefix(prefix)])
            return
    if tool == "mcp_*":
        entry.deny(["*"])
    else:
        entry.deny([tool])


GEMINI = DesktopHost(
    name="gemini",
    title="Gemini CLI",
    files=(
        HostFile("~/.gemini/settings.json"),
        HostFile(".gemini/settings.json", is_project=True),
    ),
    servers=("mcpServers",),
    other_keys=(("mcp",), ("tools",)),
    rules={
        "command": program,
        "args": same,
        "env": _env,
        "cwd": same,
        "url": same,
        "httpUrl": renamed("url"),
        "type": kind(),
        "headers": same,
        "timeout": harmless,
        "trust": own_trust,
        "description": harmless,
        "includeTools": _only_tools,
        "excludeTools": denied_tools,
        "extension": harmless,
        "extensionName": harmless,
        "oauth": _oauth,
        "authProviderType": _auth,
        "targetAudience": cannot("needs credentials that only its host can obtain"),
        "targetServiceAccount": cannot("needs credentials that only its host can obtain"),
        "tcp": cannot("names a transport that is not supported"),
    },
    translate=_translate,
    restrict=_restrict,
    has_shape=lambda root: "mcpServers" in root and isinstance(root.get("mcp"), dict),
)
