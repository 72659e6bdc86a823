"""Qwen Code: `settings.json` in the form of Gemini CLI, with permissions and switches of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from config.desktop.desktop_host import DesktopHost, FileContext, HostFile, at
from config.desktop.entry import CannotUse, ServerEntry, duration, harmless, names, same
from config.desktop.full_names import cleaned, tools_allowed, tools_restricted
from config.desktop.gemini import FORMER_KEYS, GEMINI, all_settings, stop_replaced, under_present_keys
from config.desktop.variables import dollar_variables
from config.globs import Globs

_USER = HostFile("~/.qwen/settings.json", variable="QWEN_HOME", below="settings.json")
_PROJECT = HostFile(".qwen/settings.json", is_project=True)
_FORMER_KEYS = {**FORMER_KEYS, "approvalMode": ("tools", "approvalMode")}
_HOOKS = ("PreToolUse", "PermissionRequest")
"""Hooks that may deny a call. Their matcher is looked for anywhere in the name of a tool, so it could mean any."""
_SHORTENED = re.compile(r"[_?][01][0-9a-z]{6}$")
"""The end of a full name that was too long or had other characters."""
_MAX_SERVER = 48
"""Characters of a server's name that stand in each full name, of 63."""


def _restrict(context: FileContext, entries: Mapping[str, ServerEntry]) -> None:
    """The settings of the file, of the user and of the machine, hooks of extensions, and servers that the person
    rejected. All settings hold together, as they do there for lists that forbid."""
    home = context.users(_USER).parent
    settings = all_settings(context, _USER, "etc/qwen-code", "Library/Application Support/QwenCode", "QWEN_CODE")
    stop_replaced(context, entries, settings[2])
    if settings[1] is context.root:
        del settings[1]
    extensions = [
        each for folder in sorted({context.folder, home}) for each in context.within(folder / "extensions", "*")
    ]
    files = [folder / name for folder in extensions for name in ("qwen-extension.json", "hooks/hooks.json")]
    for root in (*settings, *map(context.sibling, files)):
        hooks = root.get("hooks", root)
        if not isinstance(hooks, dict) or any(hooks.get(hook) for hook in _HOOKS):
            for entry in entries.values():
                entry.detect("a hook of Qwen Code")
    approvals = context.environ.get("QWEN_CODE_MCP_APPROVALS_PATH") or home / "mcpApprovals.json"
    decided = at(context.sibling(Path(approvals)), str(context.project))
    for name, entry in entries.items():
        # An approval is bound to a digest of the entry with all references filled in, which is not compared here.
        entry.needs_approval = context.project is not None
        if at(decided, name).get("status") == "rejected":
            entry.switch_off()
        for root in (*settings, *(under_present_keys(each, _FORMER_KEYS) for each in settings)):
            entry.attempt(_restrict_one, name, root)


def _restrict_one(entry: ServerEntry, name: str, settings: dict[str, object]) -> None:
    mcp, tools, permissions = (at(settings, key) for key in ("mcp", "tools", "permissions"))
    if "allowed" in mcp and not _has(name, "mcp.allowed", mcp["allowed"]):
        entry.switch_off()
    if _has(name, "mcp.excluded", mcp.get("excluded", [])):
        entry.switch_off()
    if at(tools, "executionSandbox"):
        entry.switch_off()  # it starts no servers then
    server = cleaned(name)
    denied = [
        *_rules("permissions.deny", permissions.get("deny", [])),
        *_rules("tools.exclude", tools.get("exclude", [])),
        *_rules("tools.disabled", tools.get("disabled", [])),
    ]
    asked = _rules("permissions.ask", permissions.get("ask", []))
    if len(server) > _MAX_SERVER and (denied or asked):
        raise CannotUse("its name is cut in the rules of its host; give it a shorter one")
    entry.deny(_whole(tools_restricted(denied, server)))
    entry.ask(_whole(tools_restricted(asked, server)))
    rules = names("permissions.allow", permissions.get("allow", [])) + names("tools.allowed", tools.get("allowed", []))
    if allowed := tools_allowed(rules, server):
        entry.approve(None if "*" in allowed else sorted(tool for tool in allowed if "?" not in tool))
    mode = tools.get("approvalMode")
    if mode == "plan":
        entry.detect('the mode "plan" of Qwen Code')
    elif mode == "yolo":
        entry.approve()


def _has(name: str, key: str, value: object) -> bool:
    return Globs(names(key, value), uris=False).match(name)


def _rules(key: str, value: object) -> list[str]:
    """Rules that restrict, with the names in them as they stand in full names."""
    return [re.sub(r"[^A-Za-z0-9_*-]", "_", rule.strip().partition("(")[0]) for rule in names(key, value)]


def _whole(tools: set[str]) -> set[str]:
    """The patterns, and for one that ends in a digest, one for the name that it stands for."""
    return tools | {_SHORTENED.sub("*", tool) for tool in tools}


def _has_shape(root: Mapping[str, object]) -> bool:
    return "mcpServers" in root and "$version" in root


QWEN = DesktopHost(
    name="qwen",
    title="Qwen Code",
    files=(_USER, _PROJECT),
    servers=("mcpServers",),
    other_keys=(
        *(("mcp",), ("tools",), ("permissions",), ("hooks",)),
        *((key,) for key in _FORMER_KEYS),
    ),
    rules={
        **GEMINI.rules,
        "env": same,
        "discoveryTimeoutMs": duration("start_timeout", 0.001),
        **dict.fromkeys(("versionNegotiation", "alwaysLoadTools", "scope"), harmless),
    },
    translate=dollar_variables(has_defaults=False),
    restrict=_restrict,
    has_shape=_has_shape,
    # Claude Code has rules of the same form under this key.
    has_marks=lambda root: _has_shape(root) or isinstance(root.get("permissions"), dict),
)
