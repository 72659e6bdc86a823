"""VS Code: `mcp.json` of the user and of a project, with `servers` and `inputs`, and the same under `settings.mcp` of a
`*.code-workspace`. Its switches for servers and tools stand in no file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from config.desktop.desktop_host import DesktopHost, FileContext, HostFile, Servers, at, servers_at
from config.desktop.editors import machine_files, user_files
from config.desktop.entry import (
    NEEDS_OAUTH,
    CannotUse,
    ServerEntry,
    cannot,
    env_file,
    harmless,
    harmless_map,
    kind,
    mapping,
    off_if,
    program,
    same,
    truth,
)
from config.desktop.server_lists import apply_lists
from config.desktop.variables import editor_variables
from config.document import is_null
from config.problems import clip

_EDITORS = ("Code", "Code - Insiders", "VSCodium")
_ACCESS, _ENABLED = "chat.mcp.access", "chat.mcp.enabled"
_AGENT, _NO_AI = "chat.agent.enabled", "chat.disableAIFeatures"
_POLICIES = {"ChatMCP": _ACCESS, "ChatAgentMode": _AGENT}
"""Settings of the administrator, by the names of policies."""
_PERMITTED, _REFUSED = "chat.mcp.allowedServers", "chat.mcp.deniedServers"
_TOP_KEYS = frozenset({"servers", "inputs", "sandbox", "$schema"})
_WORKSPACE = HostFile("*.code-workspace", is_project=True)
_IN_WORKSPACE = ("settings", "mcp")
_UNCONFINED = "has its host confine the program, which does not happen here"


def _mcp(context: FileContext) -> dict[str, object]:
    """The map with the servers and what belongs to them."""
    return context.at(*_IN_WORKSPACE) if _WORKSPACE.matches(context.file) else context.root


def _find(context: FileContext) -> Servers:
    above = _IN_WORKSPACE if _WORKSPACE.matches(context.file) else ()
    return servers_at(context, (*above, "servers"))


def _input(id: str, context: FileContext) -> str:
    """A value that the host asks for once."""
    inputs = _mcp(context).get("inputs")
    for item in inputs if isinstance(inputs, list) else ():
        if isinstance(item, dict) and item.get("id") == id:
            if item.get("type") not in ("promptString", "pickString"):
                raise CannotUse(f'its input "{clip(id)}" is the result of a command of the editor')
            options = item.get("options")
            choice = [str(option) for option in options if isinstance(option, str)] if isinstance(options, list) else []
            description = str(item.get("description") or id)
            context.inputs[id] = f"{description} ({', '.join(choice)})" if choice else description
            return f"${{input:{id}}}"
    raise CannotUse(f'its input "{clip(id)}" is not among the inputs of the file')


def _home(value: object) -> object:
    """A path, whose `~` is the user's folder."""
    if isinstance(value, str) and re.match(r"~(/|$)", value):
        return "${userHome}" + value[1:]
    return value


def _program(entry: ServerEntry, key: str, value: object) -> None:
    program(entry, key, _home(value))


def _paths(entry: ServerEntry, key: str, value: object) -> None:
    same(entry, key, [_home(item) for item in value] if isinstance(value, list) else _home(value))


def _env(entry: ServerEntry, key: str, value: object) -> None:
    """Variables of the program. Null removes one, and `PATH` is added to the one that there is."""
    variables = {name: text for name, text in mapping(key, value).items() if not is_null(text)}
    entry.set(key, variables, key)
    ours = mapping(key, entry.ours[key])
    if isinstance(ours.get("PATH"), str):
        ours["PATH"] = f"${{env:PATH:-}}:{ours['PATH']}"


def _sandbox_enabled(entry: ServerEntry, key: str, value: object) -> None:
    if truth(key, value):
        raise CannotUse(f'its key "{key}" {_UNCONFINED}')


def _restrict(context: FileContext, entries: Mapping[str, ServerEntry]) -> None:
    """The settings of the user and of the project that switch servers off, and what confines them all."""
    keys = (_ACCESS, _ENABLED, _AGENT, _NO_AI, _PERMITTED, _REFUSED)
    found = [context.sibling(path, *((key,) for key in keys)) for path in _settings_files(context)]
    if context.project is not None:
        workspaces = context.within(context.project, _WORKSPACE.linux)
        found += [at(context.sibling(path, *(("settings", key) for key in keys)), "settings") for path in workspaces]
    policy = context.system_wide("etc/vscode/policy.json", "etc/vscode/policy.json")
    found.append({setting: policy[name] for name, setting in _POLICIES.items() if name in policy})
    for settings in found:
        for name, entry in entries.items():
            _apply_settings(entry, name, settings)
    if at(_mcp(context), "sandbox"):
        for entry in entries.values():
            if "command" in entry.values:
                entry.stop(f'the key "sandbox" of the file {_UNCONFINED}')
    for entry in entries.values():
        entry.needs_approval = context.project is not None


def _settings_files(context: FileContext) -> Iterator[Path]:
    """Beside the file, above a profile, of the machine that it is on, and, for a project, those of every VS Code of the
    user."""
    if context.project is None:
        yield context.folder / "settings.json"
        if context.folder.parent.name == "profiles":
            yield context.folder.parents[1] / "settings.json"
        for file in machine_files("settings.json"):
            if file.path(context.home, context.home, context.environ).parents[1] in context.file.parents:
                yield file.path(context.home, context.home, context.environ)
        return
    yield context.project / ".vscode" / "settings.json"
    for file in (*user_files("settings.json", _EDITORS), *machine_files("settings.json")):
        for platform in ("linux", "darwin"):
            yield file.path(context.project, context.home, context.environ, platform)


def _apply_settings(entry: ServerEntry, name: str, settings: dict[str, object]) -> None:
    access = settings.get(_ACCESS, "all")
    is_off = "false" in (settings.get(_ENABLED), settings.get(_AGENT)) or settings.get(_NO_AI) == "true"
    if access in ("none", "false") or is_off:  # formerly the policy was a switch
        entry.switch_off()
    elif access not in ("all", "true") and not is_null(access):
        entry.detect(f"the setting {_ACCESS} of VS Code")
    lists = {key: value for key, value in settings.items() if isinstance(value, list)}
    apply_lists(entry, name, lists, _REFUSED, _PERMITTED)


def _has_shape(root: Mapping[str, object]) -> bool:
    """Whether the file is a workspace, or has servers and nothing that is ours: inputs stand beside them, or those at a
    URL have a type and one has it, and a command is the program alone."""
    if "folders" in root and "servers" in at(dict(root), *_IN_WORKSPACE):
        return True
    servers = root.get("servers")
    if not isinstance(servers, dict) or not root.keys() <= _TOP_KEYS:
        return False
    found = [each for each in servers.values() if isinstance(each, dict)]
    programs = [each for each in found if "command" in each]
    if len(found) < len(servers) or not all(_is_program(each) for each in programs):
        return False
    typed = [each for each in found if "type" in each]
    return "inputs" in root or (bool(typed) and all(each in programs or each in typed for each in found))


def _is_program(server: dict[str, object]) -> bool:
    """Whether the command of a server is the program alone, and not the words of one in our form."""
    command = server["command"]
    return isinstance(command, str) and ("args" in server or " " not in command)


def may_be_vscode(root: Mapping[str, object]) -> bool:
    """Whether the file has servers and nothing that is ours alone: with no more it could also be one in our form."""
    servers = list(at(dict(root), "servers").values())
    found = [each for each in servers if isinstance(each, dict) and each.keys() <= VSCODE.rules.keys()]
    are_programs = all(_is_program(each) for each in found if "command" in each)
    return bool(found) and len(found) == len(servers) and are_programs and root.keys() <= _TOP_KEYS


VSCODE = DesktopHost(
    name="vscode",
    title="VS Code",
    files=(
        *user_files("mcp.json", _EDITORS),
        *user_files("profiles/*/mcp.json", _EDITORS),
        HostFile(".vscode/mcp.json", is_project=True),
        _WORKSPACE,
    ),
    servers=("servers",),
    other_keys=(("inputs",), ("sandbox",), _IN_WORKSPACE),
    rules={
        **dict.fromkeys(("type", "transport"), kind(remote=("http", "sse"))),
        "command": _program,
        "args": _paths,
        "env": _env,
        "envFile": env_file,
        "cwd": _paths,
        "url": same,
        "headers": same,
        "oauth": cannot(NEEDS_OAUTH),
        "sandboxEnabled": _sandbox_enabled,
        "sandbox": cannot(_UNCONFINED),
        "dev": harmless_map("watch", "debug"),
        **dict.fromkeys(("gallery", "version"), harmless),
        "disabled": off_if("true"),  # not documented; a person who writes it means it
    },
    translate=editor_variables(more={"input": _input}, unset=":-"),
    find=_find,
    restrict=_restrict,
    has_shape=_has_shape,
    hides_switches=True,
)
