"""Claude Code: `.claude.json` of the user, with servers of single projects in it, and a project's `.mcp.json`.

Their restrictions stand in `settings.json` of the user, the project and the administrator, and per project in
`.claude.json`. A project's server runs only after the person has approved it, which such a file notes too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from config.desktop.desktop_host import (
    DesktopHost,
    FileContext,
    HostFile,
    Servers,
    at,
    detect_hooks,
    has_server,
    rewrite,
    servers_at,
)
from config.desktop.entry import (
    LAUNCH,
    CannotUse,
    ServerEntry,
    call_timeout,
    harmless,
    headers_helper,
    kind,
    listed_tools,
    mapping,
    names,
    number,
    oauth_client,
    off_if,
)
from config.desktop.full_names import cleaned, tools_allowed, tools_restricted
from config.desktop.server_lists import ALLOWED, DENIED, PLUGINS_ONLY, allows_plugins_only, apply_lists
from config.document import is_null
from config.problems import KeyPath, clip
from config.read import read_bytes

_MANAGED = ("etc/claude-code", "Library/Application Support/ClaudeCode")
"""The folders in which an administrator's files lie, written without the slash at the beginning."""
_RESERVED = frozenset({"workspace", "claude-in-chrome", "computer-use", "Claude Preview", "Claude Browser"})
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(:-[^}]*)?\}")
_OFF, _REJECTED, _APPROVED = "disabledMcpServers", "disabledMcpjsonServers", "enabledMcpjsonServers"
_ALL_APPROVED, _TRUSTED = "enableAllProjectMcpServers", "hasTrustDialogAccepted"
_MANAGED_SERVERS = "managedMcpServers"
_PLUGINS = "enabledPlugins"
_MAX_INDEX_BYTES = 256 * 1024 * 1024
"""Bytes of the index of a repository that is read. If it has more, each file counts as one of the repository."""
_HOOKS = ("PreToolUse", "PermissionRequest")
"""Hooks that may deny a call."""
_SETTINGS: tuple[KeyPath, ...] = tuple(
    (key,)
    for key in (
        *("permissions", "hooks", _REJECTED, _APPROVED, _ALL_APPROVED, PLUGINS_ONLY),
        *(ALLOWED, DENIED, _MANAGED_SERVERS, _PLUGINS),
    )
)
_STATE: tuple[KeyPath, ...] = tuple(("projects", None, key) for key in (_OFF, _REJECTED, _TRUSTED))
_VERDICTS = {
    "always_allow": "allow",
    "allow": "allow",
    "always_ask": "ask",
    "ask": "ask",
    "always_deny": "deny",
    "blocked": "deny",
}
_milliseconds = call_timeout(0.001)


def _translate(text: str, context: FileContext) -> str:
    """`${NAME}` and `${NAME:-default}`. One that is not set stays as it is written there; here it is an error."""
    return rewrite(text, _REFERENCE, lambda match: f"${{env:{match[1]}{match[2] or ''}}}")


# The keys of a server.


def _timeout(entry: ServerEntry, key: str, value: object) -> None:
    """Milliseconds; less than a second counts for nothing there."""
    if number(key, value) >= 1000:
        _milliseconds(entry, key, value)


def _tools(entry: ServerEntry, key: str, value: object) -> None:
    """A list of tools, each with a policy and the most that the organization permits; or, for Copilot CLI, which reads
    the same file of a project, the names of the only tools."""
    if isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value)):
        listed_tools(entry, key, value)
        return
    for item in value if isinstance(value, list) else [value]:
        policies = dict(mapping(key, item))
        tool = policies.pop("name", None)
        if not isinstance(tool, str) or policies.keys() - {"permission_policy", "org_max_permission"}:
            raise CannotUse(f'its key "{key}" has an item that is not known here')
        for part, word in policies.items():
            _judge(entry, key, tool, word, approves=part == "permission_policy")


def _tool_permissions(entry: ServerEntry, key: str, value: object) -> None:
    for tool, verdict in mapping(key, value).items():
        _judge(entry, key, tool, verdict, approves=True)


def _judge(entry: ServerEntry, key: str, tool: str, word: object, *, approves: bool) -> None:
    verdict = _VERDICTS.get(word) if isinstance(word, str) else None
    if verdict is None:
        raise CannotUse(f'its key "{key}" has a word for the tool "{clip(tool)}" that is not known here')
    if verdict == "deny":
        entry.deny([tool])
    elif verdict == "ask":
        entry.ask([tool])
    elif approves:
        entry.approve_named([tool])


# The servers of a file.


def _find(context: FileContext) -> Servers:
    """The servers of the user or of a project's file, then those that the user has for single projects."""
    servers = servers_at(context, ("mcpServers",))
    taken = {name for _, name, _ in servers}
    for project in context.at("projects"):
        for path, name, value in servers_at(context, ("projects", project, "mcpServers")):
            shown = f"{name} ({Path(project).name})"
            shown = f"{name} ({project})" if shown in taken else shown
            taken.add(shown)
            servers.append((path, shown, value))
    return servers


@dataclass(frozen=True)
class _Restrictions:
    """The settings of a project, the user and the administrator about servers. `approving` are the settings that
    may approve a project's server."""

    settings: list[dict[str, object]]
    approving: list[dict[str, object]]
    switched_off: set[str]
    """The servers that the person has switched off in the project, or rejected."""

    def names(self, key: str) -> set[str]:
        return {name for settings in self.settings for name in names(key, settings.get(key) or [])}

    def permissions(self, kind: str) -> set[str]:
        return {
            rule
            for settings in self.settings
            for rule in names(f"permissions.{kind}", at(settings, "permissions").get(kind) or [])
        }

    def approves(self, name: str) -> bool:
        return any(
            settings.get(_ALL_APPROVED) == "true" or name in names(_APPROVED, settings.get(_APPROVED) or [])
            for settings in self.approving
        )


def _state(context: FileContext) -> dict[str, object]:
    """The map of projects in `.claude.json`."""
    if context.project is None:
        return context.at("projects")
    found: dict[str, object] = {}
    for folder in (context.home, context.environ.get("CLAUDE_CONFIG_DIR")):
        if folder:
            found.update(at(context.sibling(Path(folder) / ".claude.json", *_STATE), "projects"))
    return found


def _managed(context: FileContext) -> list[Path]:
    return [context.system_path(folder, folder) for folder in _MANAGED]


def _restrictions(context: FileContext, state: dict[str, object], project: Path | None) -> _Restrictions:
    user = {context.home / ".claude", Path(context.environ.get("CLAUDE_CONFIG_DIR") or context.home / ".claude")}
    if context.project is None:
        user |= {context.folder, context.folder / ".claude"}
    files = [folder / "managed-settings.json" for folder in _managed(context)]
    files += [file for folder in _managed(context) for file in context.within(folder / "managed-settings.d", "*.json")]
    # `remote-settings.json` is the copy of what the administrator's server sent.
    files += [folder / name for folder in user for name in ("settings.json", "remote-settings.json")]
    personal = [context.sibling(path, *_SETTINGS) for path in files]
    if project is None:
        everywhere = {name for folder in state for name in names(_OFF, at(state, folder).get(_OFF) or [])}
        return _Restrictions([*personal, *_plugins(context, user, personal)], personal, everywhere)
    shared, local = project / ".claude" / "settings.json", project / ".claude" / "settings.local.json"
    of_project = {path: context.sibling(path, *_SETTINGS) for path in (shared, local)}
    approving = list(personal)
    if any(at(state, str(folder)).get(_TRUSTED) == "true" for folder in (project, *project.parents)):
        approving += [settings for path, settings in of_project.items() if path == shared or not _is_tracked(path)]
    # It may have been opened by a path with links, or by one without.
    own = [at(state, str(path)) for path in {project, project.resolve()}]
    off = {name for each in own for key in (_OFF, _REJECTED) for name in names(key, each.get(key) or [])}
    settings = [*personal, *of_project.values()]
    return _Restrictions([*settings, *_plugins(context, user, settings)], approving, off)


def _plugins(
    context: FileContext, user: Iterable[Path], settings: Iterable[dict[str, object]]
) -> Iterator[dict[str, object]]:
    """The hooks of plugins that settings switch on, each as settings."""
    switches = [switch for each in settings for switch in at(each, _PLUGINS).items()]
    enabled = {key for key, is_on in switches if is_on != "false" and not is_null(is_on)}  # or a list of versions
    folders = {folder / "plugins" for folder in user}
    if moved := context.environ.get("CLAUDE_CODE_PLUGIN_CACHE_DIR"):
        folders.add(Path(moved))
    for folder in folders if enabled else ():
        installed = at(context.sibling(folder / "installed_plugins.json"), "plugins")
        for records in (installed[key] for key in sorted(enabled & set(installed))):
            for record in records if isinstance(records, list) else [records]:
                place = record.get("installPath") if isinstance(record, dict) else None
                if not isinstance(place, str):
                    raise CannotUse("a plugin of Claude Code, which may restrict it, is at an unknown place")
                manifest = context.sibling(Path(place) / ".claude-plugin" / "plugin.json", ("hooks",))
                named = manifest.get("hooks", [])
                for path in ["hooks/hooks.json", *(named if isinstance(named, list) else [named])]:
                    yield context.sibling(Path(place) / path, ("hooks",)) if isinstance(path, str) else {"hooks": path}


def _is_tracked(file: Path) -> bool:
    """Whether a file seems to be in git: then others may have written it."""
    for folder in file.parents:
        if (folder / ".git").exists():
            try:
                index = read_bytes(folder / ".git" / "index", _MAX_INDEX_BYTES)
            except FileNotFoundError:
                return not (folder / ".git").is_dir()
            except OSError:
                return True
            # Version 4 of the index shortens paths.
            return index[4:8] > b"\0\0\0\3" or str(file.relative_to(folder)).encode() in index
    return False


def _restrict(context: FileContext, entries: Mapping[str, ServerEntry]) -> None:
    state = _state(context)
    common = _restrictions(context, state, context.project)
    managed = [folder / "managed-mcp.json" for folder in _managed(context)]
    for file in managed:
        context.note(file)
    replaced = any(file.exists() for file in managed)
    locals_of: list[str] = []
    for shown, entry in entries.items():
        name = str(entry.path[-1])
        restrictions = common
        if entry.path[0] == "projects":
            # Its host uses it in that project alone, and this endpoint has no project.
            entry.base = Path(str(entry.path[1]))
            entry.start_in_base()
            restrictions = _restrictions(context, state, entry.base)
            locals_of.append(clip(shown))
            entry.switch_off()
        if replaced:
            entry.switch_off()
        try:
            _apply(context, entry, name, restrictions)
        except CannotUse as problem:
            entry.stop(str(problem))
    if locals_of:
        context.notices.append(f"switched off, as Claude Code uses them in one project alone: {', '.join(locals_of)}")


def _apply(context: FileContext, entry: ServerEntry, name: str, restrictions: _Restrictions) -> None:
    if name in _RESERVED:
        raise CannotUse("Claude Code keeps its name for itself and does not start it")
    if "url" in entry.values and not entry.values["url"]:
        entry.switch_off()
    elif "url" in entry.values and "type" not in entry.values:
        raise CannotUse('it has a url and no "type", so Claude Code does not use it; add "type": "http" or "sse"')
    if name in restrictions.switched_off:
        entry.switch_off()
        if entry.path[0] != "projects" and context.project is None:
            context.notices.append(f"{clip(name)} is switched off, since it is so in one of the user's projects")
    if any(name in at(settings, _MANAGED_SERVERS) for settings in restrictions.settings):
        raise CannotUse("the administrator's settings have a server of its name, which Claude Code uses instead")
    if any(map(allows_plugins_only, restrictions.settings)):
        entry.switch_off()
    if context.project is not None:
        if name in restrictions.names(_REJECTED):
            entry.switch_off()
        entry.needs_approval = not restrictions.approves(name)
    detect_hooks("Claude Code", _HOOKS, restrictions.settings, [entry])
    for settings in restrictions.settings:
        apply_lists(entry, name, settings)
        if at(settings, "permissions").get("defaultMode") == "dontAsk":
            entry.detect('the mode "dontAsk" of Claude Code')
    _apply_permissions(entry, name, restrictions)


def _apply_permissions(entry: ServerEntry, name: str, restrictions: _Restrictions) -> None:
    """`permissions` of the settings: rules such as `mcp__SERVER__TOOL`."""
    server = cleaned(name)
    allowed = tools_allowed(restrictions.permissions("allow"), server)
    entry.deny(tools_restricted(restrictions.permissions("deny"), server))
    entry.ask(tools_restricted(restrictions.permissions("ask"), server))  # also those that another setting approves
    entry.approve(None if "*" in allowed else sorted(tool for tool in allowed if "?" not in tool))


def _has_shape(root: Mapping[str, object]) -> bool:
    has_projects = "mcpServers" in root and isinstance(root.get("projects"), dict)
    return has_projects or has_server(root, "projects", lambda project: "mcpServers" in project)


CLAUDE_CODE = DesktopHost(
    name="claude-code",
    title="Claude Code",
    files=(
        HostFile("~/.claude.json", variable="CLAUDE_CONFIG_DIR", below=".claude.json"),
        HostFile(".mcp.json", is_project=True),
    ),
    servers=("mcpServers",),
    other_keys=(("projects", None, "mcpServers"), *_STATE),
    rules={
        "type": kind(remote=("http", "streamable-http", "sse"), local=("stdio", "local")),  # Copilot CLI has local
        **LAUNCH,
        "headersHelper": headers_helper,
        "oauth": oauth_client(clientId="client_id", callbackPort="redirect_port", scopes="scopes"),
        "timeout": _timeout,
        "tools": _tools,
        "toolPermissions": _tool_permissions,
        **dict.fromkeys(("request_timeout_ms", "alwaysLoad", "displayName", "role"), harmless),
        **dict.fromkeys(("bareElicitationCapability", "discoveryCache"), harmless),
        "disabled": off_if("true"),  # of no effect there; a person who writes it means it
    },
    translate=_translate,
    find=_find,
    restrict=_restrict,
    has_shape=_has_shape,
    has_marks=_has_shape,
)
