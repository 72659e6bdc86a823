"""Zed: `settings.json`, with `context_servers` beside all other settings. It has no references."""

from __future__ import annotations

from collections.abc import Mapping

from config.desktop.desktop_host import DesktopHost, FileContext, HostFile, at
from config.desktop.entry import (
    LAUNCH,
    NEEDS_OAUTH,
    CannotUse,
    ServerEntry,
    cannot,
    duration,
    harmless,
    mapping,
    off_if,
    program,
    truth,
)
from config.document import is_null

_USER = HostFile("~/.config/zed/settings.json", macos="~/.config/zed/settings.json")
_PROJECT = HostFile(".zed/settings.json", is_project=True)

_BLOCKS = ("linux", "macos", "stable", "preview", "nightly", "dev")
"""Maps of settings for a system or a release, which replace the others there."""
_BUILT_IN = {"write": True, "ask": False, "minimal": False}
"""Whether the built-in profiles permit the tools of all servers."""
_VERDICTS = {"allow": "allow", "confirm": "ask", "deny": "deny"}


def _command(entry: ServerEntry, key: str, value: object) -> None:
    """The program, formerly a map of the program, its arguments and its variables."""
    if not isinstance(value, dict):
        program(entry, key, value)
        return
    rules = {"path": "command", "args": "args", "env": "env"}
    for name, below in value.items():
        if name not in rules:
            raise CannotUse(f'its key "{key}" holds a key that is not known here and could restrict it; remove the key')
        if not is_null(below):
            entry.set(rules[name], below, key)
            entry.written[rules[name]] = (*entry.path, key, name)
    entry.ours.setdefault("args", [])


def _settings(entry: ServerEntry, key: str, value: object) -> None:
    """Settings of an extension; formerly every server had them, also empty ones."""
    if value or "command" not in entry.values:
        raise CannotUse(
            f'its key "{key}" belongs to an extension of Zed, which knows how to start it; write its command'
        )


def _remote(entry: ServerEntry, key: str, value: object) -> None:
    if truth(key, value):
        raise CannotUse(f'its key "{key}" starts it on another machine')


def _restrict(context: FileContext, entries: Mapping[str, ServerEntry]) -> None:
    """The switches and lists in this file, in the user's and in that of the administrator; all restrictions hold."""
    roots = [context.root]
    if context.users(_USER) != context.file:
        roots.append(context.sibling(context.users(_USER)))
    roots.append(context.sibling(context.users(_USER).with_name("global_settings.json")))
    roots += [block for root in roots for name in _BLOCKS if (block := at(root, name))]
    for name, entry in entries.items():
        entry.needs_approval = context.project is not None
        for root in roots:
            entry.attempt(_restrict_one, name, root)


def _restrict_one(entry: ServerEntry, name: str, settings: dict[str, object]) -> None:
    agent = at(settings, "agent")
    if "disable_ai" in settings and not is_null(settings["disable_ai"]) and truth("disable_ai", settings["disable_ai"]):
        entry.switch_off()
    if at(settings, "context_servers", name).get("enabled") == "false":
        entry.switch_off()
    if agent.get("always_allow_tool_actions") == "true":
        entry.approve()
    if "profiles" in agent or "default_profile" in agent:
        _apply_profile(entry, name, agent)
    if "tool_permissions" in agent:
        _apply_permissions(entry, name, mapping("agent.tool_permissions", agent["tool_permissions"]))


def _apply_profile(entry: ServerEntry, server: str, agent: dict[str, object]) -> None:
    """The tools of the profile that new threads get."""
    id = str(agent.get("default_profile", "write"))
    profile = at(agent, "profiles", id)
    own = at(profile, "context_servers", server)
    tools = {tool: truth(tool, is_on) for tool, is_on in mapping("tools", own.get("tools", {})).items()}
    everything = profile.get("enable_all_context_servers")
    permits_all = (
        _BUILT_IN.get(id, False)
        if everything is None or is_null(everything)
        else truth("enable_all_context_servers", everything)
    )
    if own.get("enabled") == "false":
        entry.deny_all()
    elif permits_all:
        entry.deny(tool for tool, is_on in tools.items() if not is_on)
    else:
        entry.only(tool for tool, is_on in tools.items() if is_on)


def _apply_permissions(entry: ServerEntry, server: str, permissions: dict[str, object]) -> None:
    """The default, and the permissions of single tools under `mcp:SERVER:TOOL`."""
    default, prefix = _verdict(permissions), f"mcp:{server}:"
    if default == "deny":
        entry.detect("the setting agent.tool_permissions of Zed")
    elif default == "ask":
        entry.ask()
    for name, value in mapping("agent.tool_permissions.tools", permissions.get("tools", {})).items():
        if name.startswith(prefix):
            _apply_permission(entry, name.removeprefix(prefix), mapping(name, value), approves=default == "ask")


def _apply_permission(entry: ServerEntry, tool: str, permission: dict[str, object], *, approves: bool) -> None:
    verdict = _verdict(permission)
    if verdict == "deny":
        entry.deny([tool])
    elif verdict == "ask":
        entry.ask([tool])
    elif verdict == "allow" and approves:
        entry.approve_named([tool])
    # Patterns for the input of a tool; whether they are held against tools of servers is not known.
    for key, restrict in (("always_confirm", entry.ask), ("always_deny", entry.deny)):
        if permission.get(key, []) != []:
            restrict([tool])


def _verdict(permission: dict[str, object]) -> str:
    word = permission.get("default", permission.get("default_mode"))
    if word is None or is_null(word):
        return ""
    if isinstance(word, str) and word in _VERDICTS:
        return _VERDICTS[word]
    raise CannotUse("agent.tool_permissions holds a default that is not known here and could restrict it")


ZED = DesktopHost(
    name="zed",
    title="Zed",
    files=(_USER, _PROJECT),
    servers=("context_servers",),
    other_keys=(
        *(("disable_ai",), ("agent",)),
        *((block, key) for block in _BLOCKS for key in ("disable_ai", "agent", "context_servers")),
    ),
    rules={
        **LAUNCH,
        "command": _command,
        "timeout": duration("timeout", 1),
        "enabled": off_if("false"),
        "remote": _remote,
        "oauth": cannot(NEEDS_OAUTH),
        "settings": _settings,
        "source": harmless,
    },
    restrict=_restrict,
    has_shape=lambda root: "context_servers" in root,
)
