"""Amp: `settings.json`, whose keys all begin with `amp.`; the servers stand under `amp.mcpServers`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from config.document import is_null
from config.globs import Globs
from config.hosts.desktop_host import DesktopHost, FileContext, HostFile, rewrite
from config.hosts.entry import (
    CannotUse,
    ServerEntry,
    approved_tools,
    escape,
    harmless,
    mapping,
    names,
    off_if,
    program,
    same,
)
from config.hosts.ordered import ToolRule, apply_ordered, of_server
from config.patterns import after_prefix

_USERS = tuple(HostFile(f"~/.config/amp/settings.{end}", variable="AMP_SETTINGS_FILE") for end in ("json", "jsonc"))
_PROJECTS = (HostFile(".amp/settings.json", is_project=True), HostFile(".amp/settings.jsonc", is_project=True))

_REFERENCE = re.compile(r"\$\{([^}]*)\}")
_ACTIONS = {"allow": "allow", "ask": "ask", "reject": "deny", "delegate": "deny"}
"""A program that a rule delegates to can refuse; here it is not run, and the call is refused."""
_RULE_KEYS = frozenset({"tool", "matches", "action", "context", "to", "message"})
_CLEANED = re.compile(r"[a-zA-Z0-9_*?-]*")


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
        if not _may_start(entry, _maps(key, settings.get(key, []))):
            entry.switch_off()
    permissions = _maps("amp.permissions", settings.get("amp.permissions", []))
    rules = [rule for permission in reversed(permissions) for rule in reversed(_tool_rules(permission))]
    for prefix in {f"mcp__{name}__", f"mcp__{re.sub(r'[^a-zA-Z0-9_-]', '_', name)}__"}:
        disabled = names("amp.tools.disable", settings.get("amp.tools.disable", []))
        off = [ToolRule(_strict(tool), "deny") for tool in disabled if not tool.startswith("builtin:")]
        apply_ordered(entry, of_server(off, prefix), cleaned=_CLEANED)
        if "amp.tools.enable" in settings:
            enabled = names("amp.tools.enable", settings["amp.tools.enable"])
            patterns = (after_prefix(tool, prefix) for tool in enabled if "?" not in tool and not _is_special(tool))
            entry.permit(set().union(*patterns))
        apply_ordered(entry, of_server(rules, prefix), cleaned=_CLEANED)
    if settings.get("amp.dangerouslyAllowAll") == "true":
        entry.approve()


def _strict(pattern: str) -> str:
    """A pattern of a restriction.

    Raises:
        CannotUse: it is no name with `*`, and could match less here.
    """
    if _is_special(pattern):
        raise CannotUse("a setting of its host restricts tools by a pattern that is more than a name with *")
    return pattern


def _is_special(pattern: str) -> bool:
    """Whether a pattern is more than a text with `*`: a regular expression, or a form whose meaning is not known."""
    return bool(set("[]{}!") & set(pattern)) or (len(pattern) > 1 and pattern[0] == pattern[-1] == "/")


def _maps(key: str, value: object) -> list[dict[str, object]]:
    if not isinstance(value, list):
        raise CannotUse(f'the setting "{key}" is not a list and could restrict it')
    return [mapping(key, item) for item in value]


def _may_start(entry: ServerEntry, rules: list[dict[str, object]]) -> bool:
    """Whether the first rule that matches the command or URL permits the server, or none matches it."""
    for rule in rules:
        action = rule.get("action")
        matches = _matches(entry, rule.get("matches"))
        if matches is not False and action != "allow":
            return False
        if matches and action == "allow":
            return True
    return True


def _matches(entry: ServerEntry, matches: object) -> bool | None:
    """Whether a rule is about the server; None if that cannot be told here."""
    if not isinstance(matches, dict):
        return None
    command, url = entry.values.get("command"), entry.values.get("url")
    words = entry.values.get("args", [])
    args = " ".join(str(word) for word in words) if isinstance(words, list) else ""
    found: list[bool | None] = []
    for key, pattern in matches.items():
        text = {"command": command, "args": args if command is not None else None, "url": url}.get(key, ...)
        if text is None:
            found.append(False)
        elif not isinstance(text, str) or not isinstance(pattern, str):
            found.append(None)
        elif not _fits(pattern, text) and key == "command" and _fits(pattern, f"{text} {args}") is not False:
            found.append(None)  # formerly the pattern could be for the whole line
        else:
            found.append(_fits(pattern, text))
    return False if False in found else None if None in found else True


def _fits(pattern: str, text: str) -> bool | None:
    """Whether a pattern matches; None if it is more than a text with `*`, or if a reference is to be filled in."""
    if not pattern.strip("*"):
        return True
    if "${" in text or "?" in pattern or _is_special(pattern):
        return None
    return Globs([pattern], uris=False).match(text)


def _tool_rules(permission: dict[str, object]) -> list[ToolRule]:
    """A rule of `amp.permissions`."""
    tool, action = permission.get("tool"), permission.get("action")
    if not isinstance(tool, str) or not tool or action not in _ACTIONS:
        raise CannotUse('a rule of the setting "amp.permissions" is not understood and could restrict it')
    verdict = _ACTIONS[str(action)]
    is_certain = not set(permission) - _RULE_KEYS and "matches" not in permission and "context" not in permission
    if verdict == "allow":
        # Without the rule, stricter ones hold.
        is_certain = is_certain and "?" not in tool and not _is_special(tool)
        return [ToolRule(tool, verdict, is_certain)]
    pattern = _strict(tool)
    conditions = None
    if action == "reject" and set(permission) <= _RULE_KEYS and "context" not in permission:
        conditions = _conditions(permission.get("matches"))
    if conditions is None:
        return [ToolRule(pattern, verdict, is_certain)]
    return [ToolRule(pattern, verdict, is_certain, when) for when in conditions]


def _conditions(matches: object) -> list[dict[str, object]] | None:
    """The conditions on arguments in our form, of which one has to hold; None if they cannot be written."""
    if not isinstance(matches, dict) or len(matches) != 1:
        return None
    ((argument, value),) = matches.items()
    patterns = value if isinstance(value, list) else [value]
    if not patterns or not all(isinstance(each, str) and each and not _is_special(each) for each in patterns):
        return None
    return [{argument: {"glob": each}} for each in patterns]


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
        "command": program,
        "args": same,
        "env": same,
        "url": same,
        "headers": same,
        "includeTools": _include_tools,
        "disabled": off_if("true"),
        "alwaysAllow": approved_tools,
        "_target": harmless,
    },
    translate=_translate,
    restrict=_restrict,
    has_shape=lambda root: "amp.mcpServers" in root,
)
