"""Codex: `config.toml`, with a table `mcp_servers`. Nothing in it is a reference; variables are named in keys of their
own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from config.desktop.desktop_host import (
    DesktopHost,
    FileContext,
    HostFile,
    Servers,
    at,
    detect_hooks,
    in_repository,
    merged,
    servers_at,
)
from config.desktop.entry import (
    CannotUse,
    ServerEntry,
    cannot,
    denied_tools,
    duration,
    escape,
    harmless,
    headers_helper,
    mapping,
    names,
    oauth_client,
    off_if,
    only_tools,
    program,
    same,
)
from config.document import Plain

_USER = HostFile("~/.codex/config.toml", variable="CODEX_HOME", below="config.toml")
_PROJECT = HostFile(".codex/config.toml", is_project=True)

_SURFACES = frozenset({"code_mode", "deferred", "direct"})
_ASKS = {"auto": False, "prompt": True, "writes": True, "approve": False}
_HOOKS = ("PreToolUse", "PermissionRequest")
"""Hooks that may deny a call."""
_SETTINGS = frozenset({"approval_policy", "sandbox_mode", "projects", "hooks"})
_NO_OAUTH = "needs OAuth in a way that is unsupported; put a token into a variable and name it in bearer_token_env_var"


_read_client = oauth_client(client_id="client_id", scopes="scopes")


def _find(context: FileContext) -> Servers:
    """The servers of the file. Files of the user and of the machine complete them key by key."""
    try:
        below, above = _layers(context)
    except CannotUse:
        below, above = {}, {}  # which then stops all servers in `_restrict`
    found: Servers = []
    for path, name, value in servers_at(context, ("mcp_servers",)):
        if isinstance(value, dict):
            value = merged(merged(at(below, "mcp_servers", name), value), at(above, "mcp_servers", name))
        found.append((path, name, value))
    return found


def _layers(context: FileContext) -> tuple[dict[str, object], dict[str, object]]:
    """The settings that this file's replace, and those that replace this file's."""
    below = _personal(context)
    if context.project is not None:
        for folder in in_repository(context.project)[:-1]:
            below = merged(below, context.sibling(folder / _PROJECT.linux))
    return below, context.system_wide("etc/codex/managed_config.toml", "etc/codex/managed_config.toml")


def _personal(context: FileContext) -> dict[str, object]:
    """The settings of the machine and, below a project's, of the user."""
    found = context.system_wide("etc/codex/config.toml", "etc/codex/config.toml")
    return found if context.project is None else merged(found, context.sibling(context.users(_USER)))


def _env(entry: ServerEntry, key: str, value: object) -> None:
    """`env` and `env_vars`. A named variable that is not set is left out there; here it is empty."""
    named = _variables(entry.values.get("env_vars", []))
    passed = {name: f"${{env:{_variable(name, 'env_vars')}:-}}" for name in named}
    entry.set("env", {**passed, **_literals(entry, "env")}, key, str)


def _variables(value: object) -> list[str]:
    """The names in `env_vars`, each alone or as `{name, source}`."""
    found = []
    for item in value if isinstance(value, list) else [value]:
        known = item if isinstance(item, dict) else {"name": item}
        if not set(known) <= {"name", "source"} or not isinstance(known.get("name"), str):
            raise CannotUse('its key "env_vars" is not a list of names of variables')
        if known.get("source", "local") != "local":
            raise CannotUse('its key "env_vars" names a variable of another machine')
        found.append(str(known["name"]))
    return found


def _headers(entry: ServerEntry, key: str, value: object) -> None:
    """`http_headers`, `env_http_headers` and `bearer_token_env_var`, of which the later replace the earlier."""
    headers = _literals(entry, "http_headers")
    for name, variable in _table(entry, "env_http_headers").items():
        _set_header(headers, name, f"${{env:{_variable(variable, 'env_http_headers')}:-}}")
    if "bearer_token_env_var" in entry.values:
        variable = _variable(entry.values["bearer_token_env_var"], "bearer_token_env_var")
        _set_header(headers, "Authorization", f"Bearer ${{env:{variable}}}")
    entry.set("headers", headers, key, str)


def _set_header(headers: dict[str, object], name: str, value: str) -> None:
    for other in [each for each in headers if each.lower() == name.lower()]:
        del headers[other]
    headers[name] = value


def _table(entry: ServerEntry, key: str) -> dict[str, object]:
    return mapping(key, entry.values.get(key, {}))


def _literals(entry: ServerEntry, key: str) -> dict[str, object]:
    return {
        name: escape(value) if isinstance(value, str) and not isinstance(value, Plain) else value
        for name, value in _table(entry, key).items()
    }


def _variable(value: object, key: str) -> str:
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z_]\w*", value, re.ASCII):
        return value
    raise CannotUse(f'its key "{key}" does not name a variable of the environment')


def _omitted(entry: ServerEntry, key: str, value: object) -> None:
    """The ways in which the model is not offered the tools. With all of them, it is not offered any."""
    omitted = set(names(key, value))
    if not omitted <= _SURFACES:
        raise CannotUse(f'its key "{key}" holds a word that is not known here and could restrict it')
    if omitted == _SURFACES:
        entry.deny_all()


def _oauth(entry: ServerEntry, key: str, value: object) -> None:
    """The client of a login, which stands in two keys."""
    client = entry.values.get("oauth", {})
    scopes = {"scopes": entry.values["scopes"]} if "scopes" in entry.values else {}
    _read_client(entry, "oauth", {**mapping("oauth", client), **scopes})


def _restrict(context: FileContext, entries: Mapping[str, ServerEntry]) -> None:
    """Hooks, approval modes, the requirements of the machine, and whether the project is trusted."""
    detect_hooks("Codex", _HOOKS, _with_hooks(context), entries.values())
    below, above = _layers(context)
    settings = merged(merged(below, context.root), above)
    settings = merged(settings, at(settings, "profiles", str(settings.get("profile"))))
    required = context.system_wide("etc/codex/requirements.toml", "etc/codex/requirements.toml")
    personal = _personal(context)  # a project's file cannot approve itself
    for entry in entries.values():
        entry.needs_approval = context.project is not None and not _is_trusted(personal, context.project)
        if "mcp_servers" in required:
            entry.detect("a list of servers of the administrator (requirements.toml)")
        if _refuses(settings):
            entry.detect("the setting approval_policy of Codex")
        entry.attempt(_approvals)


def _with_hooks(context: FileContext) -> Iterator[dict[str, object]]:
    """The files that may hold hooks. The hooks of all of them run."""
    system = context.system_path("etc/codex", "etc/codex")
    folders = {context.users(_USER).parent, context.folder, system}
    if context.project is not None:
        folders.update(folder / ".codex" for folder in in_repository(context.project))
    for folder in sorted(folders):
        yield context.sibling(folder / "hooks.json", ("hooks",))
        yield context.sibling(folder / "config.toml") if folder != context.folder else context.root
    yield context.sibling(system / "managed_config.toml")
    yield context.sibling(system / "requirements.toml")


def _refuses(settings: dict[str, object]) -> bool:
    """Whether calls that would need approval are refused."""
    policy = settings.get("approval_policy")
    if isinstance(policy, dict):
        return at(policy, "granular").get("mcp_elicitations") == "false"
    return policy == "never" and settings.get("sandbox_mode") != "danger-full-access"


def _approvals(entry: ServerEntry) -> None:
    """`default_tools_approval_mode`, and `approval_mode` of single tools."""
    default = _mode(entry.values.get("default_tools_approval_mode", "auto"))
    modes: dict[str, str] = {}
    for tool, value in _table(entry, "tools").items():
        keys = mapping(f"tools.{tool}", value)
        if not set(keys) <= {"approval_mode", "output_token_limit"}:
            raise CannotUse('its key "tools" holds a key that is not known here and could restrict it; remove the key')
        if "approval_mode" in keys:
            modes[tool] = _mode(keys["approval_mode"])
    if _ASKS[default]:
        entry.ask()
    else:
        # A tool in the usual mode is asked about at times, also where all others are approved.
        entry.ask(tool for tool, mode in modes.items() if _ASKS[mode] or (default == "approve" and mode == "auto"))
    if modes:
        entry.approve_named(tool for tool, mode in modes.items() if mode == "approve")
    if default == "approve":
        entry.approve()


def _mode(value: object) -> str:
    if isinstance(value, str) and value in _ASKS:
        return value
    raise CannotUse(f"its mode of approval is not known here; expected one of {', '.join(_ASKS)}")


def _is_trusted(settings: dict[str, object], project: Path) -> bool:
    """Whether the user trusts the project: its folder, or that of its repository."""
    for folder in (project, *project.parents):
        level = at(settings, "projects", str(folder)).get("trust_level")
        if level is not None or (folder / ".git").exists():
            return level == "trusted"
    return False


CODEX = DesktopHost(
    name="codex",
    title="Codex",
    files=(_USER, _PROJECT),
    servers=("mcp_servers",),
    other_keys=(("approval_policy",), ("sandbox_mode",), ("hooks",)),
    rules={
        "command": program,
        "args": same,
        **dict.fromkeys(("env", "env_vars"), _env),
        **dict.fromkeys(("cwd", "url"), same),
        **dict.fromkeys(("http_headers", "env_http_headers", "bearer_token_env_var"), _headers),
        "http_headers_helper": headers_helper,
        "bearer_token": cannot("is not read by its host; put the token into a variable named by bearer_token_env_var"),
        "auth": cannot(_NO_OAUTH, but="oauth"),  # the default, for servers that request it
        **dict.fromkeys(("scopes", "oauth"), _oauth),
        "oauth_resource": cannot(_NO_OAUTH),
        **dict.fromkeys(
            ("environment_id", "experimental_environment"), cannot("starts it on another machine", but="local")
        ),
        "enabled": off_if("false"),
        "startup_timeout_sec": duration("start_timeout", 1),
        "tool_timeout_sec": duration("timeout", 1),
        "enabled_tools": only_tools,
        "disabled_tools": denied_tools,
        "omit_tools_from": _omitted,
        "default_tools_approval_mode": harmless,  # with `tools`, see `_approvals`
        **dict.fromkeys(("tools", "name", "required", "startup_timeout_ms", "supports_parallel_tool_calls"), harmless),
    },
    find=_find,
    restrict=_restrict,
    syntax="TOML",
    has_marks=lambda root: isinstance(root.get("mcp_servers"), dict) and not _SETTINGS.isdisjoint(root),
    has_shape=lambda root: isinstance(root.get("mcp_servers"), dict),
)
