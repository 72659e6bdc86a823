"""Amp: `settings.json`, whose keys all begin with `amp.`; the servers stand under `amp.mcpServers`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from config.desktop.desktop_host import DesktopHost, FileContext, HostFile, rewrite
from config.desktop.entry import (
    LAUNCH,
    CannotUse,
    ServerEntry,
    approved_tools,
    escape,
    harmless,
    mapping,
    names,
    off_if,
)
from config.document import is_null
from config.patterns import after_prefix

_USERS = tuple(HostFile(f"~/.config/amp/settings.{end}", variable="AMP_SETTINGS_FILE") for end in ("json", "jsonc"))
_PROJECTS = (HostFile(".amp/settings.json", is_project=True), HostFile(".amp/settings.jsonc", is_project=True))

_REFERENCE = re.compile(r"\$\{([^}]*)\}")
_ACTIONS = ("allow", "ask", "reject", "delegate")


def _translate(text: str, context: FileContext) -> str:
    """`${NAME}`. All other forms stay as they are, except one that only Amp's own machines can fill in."""

    def reference(match: re.Match[str]) -> str:
        if match[1].startswith("amp:"):
            raise CannotUse("it has a reference to a token of Amp, which only its host can obtain")
        return f"${{env:{match[1]}}}" if re.fullmatch(r"[A-Za-z_]\w*", match[1], re.ASCII) else escape(match[0])

    return rewrite(text, _REFERENCE, reference)


def _include_tools(entry: ServerEntry, key: str, value: object) -> None:
    """The only tools. `*` is wild; whether other characters are is not known."""
    patterns = names(key, value)
    if any("?" in pattern or _is_special(pattern) for pattern in patterns):
        raise CannotUse(f'its key "{key}" holds a pattern that could match more here; write names, with * alone')
    entry.permit(patterns)


def _restrict(context: FileContext, entries: Mapping[str, ServerEntry]) -> None:
    """The settings of this file, of the user and of the machine; the restrictions of all hold."""
    roots = [context.root]
    others = [file for file in map(context.users, _USERS) if file != context.file]
    twin = context.file.with_suffix(".json" if context.file.suffix == ".jsonc" else ".jsonc")
    if context.project is not None and twin != context.file:
        others.append(twin)
    roots += map(context.sibling, others)
    roots.append(
        context.system_wide(
            "etc/ampcode/managed-settings.json", "Library/Application Support/ampcode/managed-settings.json"
        )
    )
    for name, entry in entries.items():
        entry.needs_approval = context.project is not None
        for root in roots:
            settings = {key: value for key, value in root.items() if not is_null(value)}
            entry.attempt(_restrict_one, name, settings)


def _restrict_one(entry: ServerEntry, name: str, settings: dict[str, object]) -> None:
    for key in ("amp.mcpPermissions", "amp.experimental.mcpPermissions"):
        if any(rule.get("action") != "allow" for rule in _maps(key, settings.get(key, []))):
            entry.detect(f"the setting {key}")
    permissions = _maps("amp.permissions", settings.get("amp.permissions", []))
    for prefix in {f"mcp__{name}__", f"mcp__{re.sub(r'[^a-zA-Z0-9_-]', '_', name)}__"}:
        for tool in names("amp.tools.disable", settings.get("amp.tools.disable", [])):
            if tool.startswith("builtin:"):
                continue
            if _is_special(tool):
                entry.detect("the setting amp.tools.disable")
            else:
                # The host puts `_` in the place of other characters.
                entry.deny(pattern.replace("_", "?") for pattern in after_prefix(tool, prefix))
        if "amp.tools.enable" in settings:
            enabled = names("amp.tools.enable", settings["amp.tools.enable"])
            patterns = (after_prefix(tool, prefix) for tool in enabled if "?" not in tool and not _is_special(tool))
            entry.permit(set().union(*patterns))
        for permission in permissions:
            _detect_permission(entry, permission, prefix)
    if settings.get("amp.dangerouslyAllowAll") == "true":
        entry.approve()


def _detect_permission(entry: ServerEntry, permission: dict[str, object], prefix: str) -> None:
    """A rule of `amp.permissions`. A program that one delegates to can refuse."""
    tool, action = permission.get("tool"), permission.get("action")
    if not isinstance(tool, str) or not tool or is_null(tool) or action not in _ACTIONS:
        raise CannotUse('a rule of the setting "amp.permissions" is not understood and could restrict it')
    if action != "allow" and (_is_special(tool) or after_prefix(tool, prefix)):
        entry.detect("the setting amp.permissions", may_forbid=action != "ask")


def _is_special(pattern: str) -> bool:
    """Whether a pattern is more than a text with `*`: a regular expression, or a form whose meaning is not known."""
    return bool(set("[]{}!") & set(pattern)) or (len(pattern) > 1 and pattern[0] == pattern[-1] == "/")


def _maps(key: str, value: object) -> list[dict[str, object]]:
    if not isinstance(value, list):
        raise CannotUse(f'the setting "{key}" is not a list and could restrict it')
    return [mapping(key, item) for item in value]


AMP = DesktopHost(
    name="amp",
    title="Amp",
    files=(*_USERS, *_PROJECTS),
    servers=("amp.mcpServers",),
    other_keys=(
        *(("amp.mcpPermissions",), ("amp.experimental.mcpPermissions",), ("amp.permissions",)),
        *(("amp.tools.disable",), ("amp.tools.enable",), ("amp.dangerouslyAllowAll",)),
    ),
    rules={
        **LAUNCH,
        "includeTools": _include_tools,
        "disabled": off_if("true"),
        "alwaysAllow": approved_tools,
        "_target": harmless,
    },
    translate=_translate,
    restrict=_restrict,
    has_shape=lambda root: "amp.mcpServers" in root,
)
