"""Goose: `config.yaml`, with a map of `extensions`, of which some are parts of Goose itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

from config.desktop.desktop_host import DesktopHost, FileContext, HostFile, Servers, has_server, rewrite, servers_at
from config.desktop.entry import (
    CannotUse,
    ServerEntry,
    cannot,
    duration,
    escape,
    harmless,
    mapping,
    names,
    off_if,
    same,
)
from config.document import Plain, is_null
from config.problems import clip

_USER = HostFile("~/.config/goose/config.yaml", variable="GOOSE_PATH_ROOT", below="config/config.yaml")

_PARTS = frozenset({"builtin", "platform", "frontend", "inline_python"})
"""Types of extensions that are no servers."""
_REQUIRED = {"stdio": ("enabled", "cmd", "args"), "streamable_http": ("enabled", "uri")}
_REFERENCE = re.compile(r"\$(?:\{\s*(\w+)\s*\}|(\w+))", re.ASCII)
_SECRETS = "secrets.yaml"
_MODES = ("auto", "approve", "smart_approve", "chat")
_IGNORED = frozenset(
    {
        *("PATH", "PATHEXT", "SYSTEMROOT", "WINDIR", "COMSPEC", "TEMP", "TMP", "LOCALAPPDATA", "USERPROFILE"),
        *("HOMEDRIVE", "HOMEPATH", "SESSIONNAME", "APPINIT_DLLS", "LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT"),
        *("LD_DEBUG", "LD_BIND_NOW", "LD_ASSUME_KERNEL", "DYLD_LIBRARY_PATH", "DYLD_INSERT_LIBRARIES"),
        *("DYLD_FRAMEWORK_PATH", "PYTHONPATH", "PYTHONHOME", "NODE_OPTIONS", "RUBYOPT", "GEM_PATH", "GEM_HOME"),
        *("CLASSPATH", "GO111MODULE", "GOROOT"),
    }
)
"""Variables that Goose does not set from `envs`."""


def _find(context: FileContext) -> Servers:
    """The extensions that are servers. The variables under `env_keys` get their values in our form."""
    parts = []
    found: Servers = []
    try:
        secrets = context.sibling(context.folder / _SECRETS)
    except CannotUse:
        secrets = {}  # `_restrict` stops all servers then
    for path, name, value in servers_at(context, ("extensions",)):
        if isinstance(value, dict) and str(value.get("type")) in _PARTS:
            parts.append(clip(name))
            continue
        keys = value.get("env_keys") if isinstance(value, dict) else None
        if isinstance(value, dict) and isinstance(keys, list) and all(isinstance(key, str) for key in keys):
            value = {**value, "env_keys": {key: _secret(key, secrets) for key in keys}}
        found.append((path, name, value))
    if parts:
        context.notices.append(f"these extensions are parts of Goose and stay there: {', '.join(sorted(parts))}")
    return found


def _secret(name: str, secrets: dict[str, object]) -> str:
    """The value of a secret. One that is in the keyring of the system has to be in the environment here."""
    value = secrets.get(name)
    return escape(str(value)) if isinstance(value, str) else f"${{env:{name}}}"


def _env(entry: ServerEntry, key: str, value: object) -> None:
    """`envs` and the variables named by `env_keys`. In a server with a URL, only its references read them."""
    env = {**_keys(entry), **_literal_envs(entry)}
    for name in [name for name in env if name.upper() in _IGNORED]:
        del env[name]
        entry.note(f"its host does not set {name} from the file, so it is left out")
    if entry.values.get("type") == "stdio":
        entry.set("env", env, key, str)


def _literal_envs(entry: ServerEntry) -> dict[str, object]:
    return {
        name: escape(value) if isinstance(value, str) and "${" in value else value  # a number stays one
        for name, value in mapping("envs", entry.values.get("envs", {})).items()
    }


def _keys(entry: ServerEntry) -> dict[str, object]:
    keys = entry.values.get("env_keys", {})
    if not isinstance(keys, dict) or not all(re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) for name in keys):
        raise CannotUse('its key "env_keys" is not a list of names of variables')
    return keys


def _uri(entry: ServerEntry, key: str, value: object) -> None:
    # A URL is shown, so a secret in it stays a reference.
    keys = {name: f"${{env:{name}}}" for name in _keys(entry)}
    entry.set("url", value, key, partial(_filled_in, {**keys, **_literal_envs(entry)}))


def _headers(entry: ServerEntry, key: str, value: object) -> None:
    entry.set("headers", value, key, partial(_filled_in, {**_keys(entry), **_literal_envs(entry)}))


def _filled_in(variables: Mapping[str, object], text: str) -> str:
    """`$NAME` and `${NAME}`, which are variables of the entry alone; others stay as they are."""

    def reference(match: re.Match[str]) -> str:
        value = variables.get(match[1] or match[2])
        return str(value) if isinstance(value, str) else escape(match[0])

    return rewrite(text, _REFERENCE, reference)


def _command(entry: ServerEntry, key: str, value: object) -> None:
    entry.set("command", value, key)
    entry.ours.setdefault("args", [])


def _kind(entry: ServerEntry, key: str, value: object) -> None:
    if value == "sse":
        raise CannotUse(f'its key "{key}" is "sse", which its host does not start any more; write streamable_http')
    if str(value) not in _REQUIRED:
        raise CannotUse(f'its key "{key}" is not known here; expected one of {", ".join(_REQUIRED)}')


def _available_tools(entry: ServerEntry, key: str, value: object) -> None:
    """The only tools. An empty list means all of them there."""
    if tools := names(key, value):
        entry.only(tools)


def _restrict(context: FileContext, entries: Mapping[str, ServerEntry]) -> None:
    """The modes of the file and of the environment, and the permissions of tools in `permission.yaml`, by names as
    `EXTENSION__TOOL`."""
    permissions = context.sibling(context.folder / "permission.yaml")
    context.sibling(context.folder / _SECRETS)
    modes = [context.root.get("GOOSE_MODE", "auto"), context.environ.get("GOOSE_MODE") or "auto"]
    if not all(mode in _MODES for mode in modes):
        raise CannotUse(f"GOOSE_MODE is not known here and could restrict it; expected one of {', '.join(_MODES)}")
    has_list = context.environ.get("GOOSE_ALLOWLIST") and context.environ.get("GOOSE_ALLOWLIST_BYPASS") != "true"
    for name, entry in entries.items():
        if has_list:
            entry.detect("the list of permitted commands of GOOSE_ALLOWLIST")
        entry.attempt(_check_required)
        if "chat" in modes:
            entry.deny_all()
        elif modes != ["auto", "auto"]:
            entry.ask()
        for category, lists in permissions.items():
            entry.attempt(_apply_permissions, name, category, lists)


def _check_required(entry: ServerEntry) -> None:
    """Stop an entry that Goose skips because a key is missing or null."""
    kind = entry.values.get("type")
    for key in ("type", *_REQUIRED.get(str(kind), ())):
        if is_null(entry.values.get(key, Plain("null"))):
            raise CannotUse(f'the key "{key}" is missing, so its host does not start it; add it')


def _apply_permissions(entry: ServerEntry, name: str, category: str, value: object) -> None:
    lists = {key: names(f"{category}.{key}", tools) for key, tools in mapping(category, value).items()}
    if not set(lists) <= {"always_allow", "ask_before", "never_allow"}:
        raise CannotUse("permission.yaml holds a key that is not known here and could restrict it; remove the key")
    names_of_it = {name, str(entry.values.get("name", name))}
    prefixes = {f"{_cleaned(each)}__" for each in names_of_it}

    def own(key: str) -> set[str]:
        return {
            tool.removeprefix(prefix) for tool in lists.get(key, []) for prefix in prefixes if tool.startswith(prefix)
        }

    entry.deny(own("never_allow"))
    entry.ask(own("ask_before"))
    if category == "user" and "always_allow" in lists:  # the other holds guesses of Goose itself
        entry.approve_named(sorted(own("always_allow")))


def _cleaned(name: str) -> str:
    """The beginning of the full names of an extension's tools."""
    return re.sub(r"[^a-z0-9_-]", "_", re.sub(r"\s", "", name).lower())


GOOSE = DesktopHost(
    name="goose",
    title="Goose",
    files=(_USER,),
    servers=("extensions",),
    other_keys=(("GOOSE_MODE",),),
    rules={
        "type": _kind,
        "enabled": off_if("false"),
        **dict.fromkeys(("name", "description", "display_name", "bundled"), harmless),
        "cmd": _command,
        "args": same,
        **dict.fromkeys(("envs", "env_keys"), _env),
        "timeout": duration("timeout", 1),
        "cwd": same,
        "uri": _uri,
        "headers": _headers,
        "socket": cannot("names a socket instead of a network address, which is not supported"),
        "available_tools": _available_tools,
    },
    find=_find,
    restrict=_restrict,
    syntax="YAML",
    has_shape=lambda root: has_server(
        root, "extensions", lambda each: each.get("type") in (*_PARTS, *_REQUIRED, "sse")
    ),
)
