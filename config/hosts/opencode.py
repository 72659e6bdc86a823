"""opencode: `opencode.json`. Version 1 has the servers under `mcp`, version 2 under `mcp.servers`; a file can have
both. Agents, with rules for tools, stand there too or each in a Markdown file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from config.document import is_null
from config.hosts.desktop_host import (
    DesktopHost,
    FileContext,
    HostFile,
    Servers,
    at,
    in_repository,
    merged,
    rewrite,
    servers_at,
)
from config.hosts.entry import (
    NEEDS_OAUTH,
    CannotUse,
    ServerEntry,
    duration,
    harmless,
    kind,
    mapping,
    off_if,
    renamed,
    same,
    truth,
)
from config.hosts.ordered import STRICTNESS, ToolRule, apply_ordered, of_server
from config.problems import clip
from config.read import read_text

_NAMES = ("opencode.json", "opencode.jsonc")
_FOLDER = HostFile("~/.config/opencode/opencode.json")
_USERS = tuple(HostFile(f"~/.config/opencode/{name}") for name in ("config.json", *_NAMES))
_PROJECTS = tuple(HostFile(f"{folder}{name}", is_project=True) for folder in (".opencode/", "") for name in _NAMES)

_REFERENCE = re.compile(r"\{(env|file):([^}]+)\}")
_SWITCHES = frozenset({"enabled", "disabled"})
_REVISION = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_EFFECTS = ("allow", "ask", "deny")
_CLEANED = re.compile(r"[a-zA-Z0-9_*?-]*")
_RULES = ("tools", "permission", "permissions")
_AGENTS = ("mode", "agent", "agents")
_FRONT_MATTER = re.compile(r"---(?!-)[^\n]*(.*?)(?:\n---|\Z)", re.DOTALL)
"""To the end of the file, if it does not end before. The first line may name its language."""
_MERGE = re.compile(r"<<[\"']?\s*:")
_AGENT_KEYS = re.compile(rf"^(['\"]?)(?:name|{'|'.join(_RULES)})\1[ \t]*:.*\n(?:(?:[ \t#-].*)?\n)*", re.MULTILINE)
"""The keys of an agent that mean something here, where others are no YAML, which opencode tolerates."""


def _translate(text: str, context: FileContext) -> str:
    """`{env:NAME}`, which is empty if the variable is not set, and `{file:PATH}`."""

    def reference(match: re.Match[str]) -> str:
        kind, name = match[1], match[2]
        if kind == "file":
            path = context.home / name.removeprefix("~/") if name.startswith("~/") else context.folder / name
            return f"${{file:{path}}}"
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise CannotUse("it has a reference to a variable that no environment can hold; correct its name")
        return f"${{env:{name}:-}}"

    return rewrite(text, _REFERENCE, reference)


def _find(context: FileContext) -> Servers:
    """The servers of the file. An entry of version 1 completes that of a file with lower precedence."""
    try:
        below = _merged(_layers(context, including=False))
    except CannotUse:
        below = {}  # `_restrict` stops all servers then
    mcp = context.at("mcp")
    newer = [key for key in ("servers", "timeout") if not _is_server(mcp.get(key))]
    found: Servers = []
    for path, name, value in servers_at(context, ("mcp",)):
        if name in newer:
            continue
        if isinstance(value, dict):
            value = merged(at(below, "mcp", name), value)
            if set(value) <= _SWITCHES:
                context.notices.append(f"{clip(name)} is only switched on or off here; it is defined elsewhere")
                continue
        found.append((path, name, value))
    return found + (servers_at(context, ("mcp", "servers")) if "servers" in newer else [])


def _is_server(value: object) -> bool:
    return isinstance(value, dict) and value.get("type") in ("local", "remote")


def _layers(context: FileContext, *, including: bool) -> list[dict[str, object]]:
    """The settings of the user, and of the project and the folders above it, of which the later win, as far as the file
    that is read, or all of them."""
    users = context.users(_FOLDER).parent
    files = [users / Path(file.linux).name for file in _USERS]
    folders: list[Path] = []
    if context.folder != users:
        own = context.folder.parent if context.folder.name == ".opencode" else context.folder
        folders = in_repository(own) or [*reversed(own.parents), own]
    if named := context.environ.get("OPENCODE_CONFIG"):
        files.append(Path(named))
    files += [folder / name for folder in folders for name in _NAMES]
    files += _agents_in(context, users)
    more = [folder / ".opencode" for folder in (*folders, context.home)]
    if named := context.environ.get("OPENCODE_CONFIG_DIR"):
        more.append(Path(named))
    for folder in more:
        files += [*(folder / name for name in _NAMES), *_agents_in(context, folder)]
    if not including:
        files = files[: files.index(context.file)] if context.file in files else []
    layers = [context.root if file == context.file else _read(context, file) for file in files]
    if including:
        layers += [context.root] if context.file not in files else []
        layers.append(context.of_variable("OPENCODE_CONFIG_CONTENT"))
        if permission := context.of_variable("OPENCODE_PERMISSION"):
            layers.append({"permission": permission})
    return layers


def _agents_in(context: FileContext, folder: Path) -> list[Path]:
    """The Markdown files of agents, which formerly were modes."""
    below = {"agent": "**/*.md", "agents": "**/*.md", "mode": "*.md", "modes": "*.md"}
    return [file for name, pattern in below.items() for file in context.within(folder / name, pattern)]


def _read(context: FileContext, file: Path) -> dict[str, object]:
    """The settings in a file. An agent in Markdown has the name of its file, or one of its own."""
    if file.suffix != ".md":
        return context.sibling(file)
    context.note(file)
    try:
        front = _FRONT_MATTER.match(read_text(file))
    except (OSError, ValueError):
        raise CannotUse(f"the file {file.name} of its host, which may restrict it, cannot be read") from None
    text = front[1] if front else ""
    if _MERGE.search(text):  # its reader merges maps, and ours does not
        raise CannotUse(f"the file {file.name} of its host, which may restrict it, merges maps; write them out")
    keys = [(key,) for key in ("name", *_RULES)]
    try:
        agent = context.sibling(file, *keys, data=text.encode())
    except CannotUse:
        text = "".join(match[0] for match in _AGENT_KEYS.finditer(text + "\n"))
        agent = context.sibling(file, *keys, data=text.encode())
    above = next(each for each in file.parents if each.name in ("agent", "agents", "mode", "modes"))
    name = str(agent.get("name", file.relative_to(above).with_suffix("")))
    return {"agent": {name: agent}}


def _merged(layers: Iterable[Mapping[str, object]]) -> dict[str, object]:
    """All settings in one, of which the later win."""
    settings: dict[str, object] = {}
    for layer in map(_spelled_out, layers):
        settings = _over(settings, layer)
    return settings


def _over(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """Two settings in one. Lists of rules, those of an agent too, hold together."""
    made = merged(below, above)
    for key in ("permissions", "policies"):
        first, second = below.get(key), above.get(key)
        if isinstance(first, list) and isinstance(second, list):
            made[key] = [*first, *second]
    for key in _AGENTS:
        agents, others = at(dict(below), key), at(dict(above), key)
        if both := agents.keys() & others.keys():
            made[key] = {**at(made, key), **{name: _over(at(agents, name), at(others, name)) for name in both}}
    return made


def _spelled_out(layer: Mapping[str, object]) -> dict[str, object]:
    """The settings with a permission for all tools, of an agent too, as the map that it stands for."""
    made = dict(layer)
    if isinstance(permission := made.get("permission"), str) and not is_null(permission):
        made["permission"] = {"*": permission}
    for key in _AGENTS:
        if isinstance(agents := made.get(key), dict):
            made[key] = {name: _spelled_out(each) if isinstance(each, dict) else each for name, each in agents.items()}
    return made


def _command(entry: ServerEntry, key: str, value: object) -> None:
    if not isinstance(value, list):
        raise CannotUse(f'its key "{key}" is not a list of a program and its arguments')
    entry.set(key, value, key)


def _oauth(entry: ServerEntry, key: str, value: object) -> None:
    if value != "false":
        raise CannotUse(f'its key "{key}" {NEEDS_OAUTH}')


def _timeout(entry: ServerEntry, key: str, value: object) -> None:
    """The time for the lists; version 2 has one for connecting and one for calls."""
    if not isinstance(value, dict):
        duration("start_timeout", 0.001)(entry, key, value)
        return
    ours = {"startup": "start_timeout", "execution": "timeout"}
    for name, below in value.items():
        if name not in (*ours, "catalog"):
            raise CannotUse(f'its key "{key}" holds a key that is not known here; remove the key')
        if name in ours:
            duration(ours[name], 0.001)(entry, name, below)
            entry.written[ours[name]] = (*entry.path, key, name)


def _protocol(entry: ServerEntry, key: str, value: object) -> None:
    """How a connection begins; a revision of MCP stands for a beginning without handshake."""
    if value in ("legacy", "auto"):
        entry.set(key, value, key)
    elif isinstance(value, str) and _REVISION.fullmatch(value):
        entry.set(key, "modern", key)
    else:
        raise CannotUse(f'its key "{key}" is not known here; expected legacy, auto or a revision')


def _restrict(context: FileContext, entries: Mapping[str, ServerEntry]) -> None:
    """Switches, and rules for tools, of the files of user, project and machine together."""
    layers = _layers(context, including=True)
    layers += [
        context.system_wide(f"etc/opencode/{name}", f"Library/Application Support/opencode/{name}") for name in _NAMES
    ]
    # Policies were experimental.
    former = [{"policies": at(layer, "experimental").get("policies", [])} for layer in layers]
    settings = _merged([*layers, *former])
    agents: dict[str, object] = {}
    for key in ("agent", "mode", "agents"):
        agents = at(_over({key: agents}, {key: at(settings, key)}), key)
    usual = str(settings.get("default_agent", "build"))
    for name, entry in entries.items():
        switches = [at(settings, "mcp", name), at(settings, "mcp", "servers", name)]
        if any(each.get("enabled") == "false" or each.get("disabled") == "true" for each in switches):
            entry.switch_off()
        entry.attempt(_restrict_one, name, settings, {})
        for agent in agents:
            own = at(agents, agent)
            if agent == usual:
                entry.attempt(_restrict_one, name, settings, own)
            elif set(_RULES) & set(own):
                entry.note(f"rules for tools of the agent {clip(agent)} hold at opencode only")
        if policies := settings.get("policies"):
            entry.attempt(_apply_policies, policies)


def _restrict_one(entry: ServerEntry, name: str, settings: dict[str, object], agent: dict[str, object]) -> None:
    rules = [*_tool_rules(settings), *_tool_rules(agent)]
    prefix = re.sub(r"[^a-zA-Z0-9_-]", "_", name) + "_"
    apply_ordered(entry, of_server(rules, prefix), cleaned=_CLEANED)


def _apply_policies(entry: ServerEntry, policies: object) -> None:
    """Policies can only restrict; those for providers are about models."""
    for policy in policies if isinstance(policies, list) else [policies]:
        rule = mapping("policies", policy)
        if rule.get("action") != "provider.use" and rule.get("effect") != "allow":
            raise CannotUse(
                'the setting "policies" restricts tools in a way that is not known here; write a permission'
            )


def _tool_rules(settings: dict[str, object]) -> list[ToolRule]:
    """The rules for tools, of which the last that matches decides."""
    set_up = {key: settings[key] for key in _RULES if key in settings and not is_null(settings[key])}
    rules = [
        ToolRule(pattern, "allow" if truth(f"tools.{pattern}", is_on) else "deny")
        for pattern, is_on in mapping("tools", set_up.get("tools", {})).items()
    ]
    permission = set_up.get("permission", {})
    for pattern, value in (
        {"*": permission} if isinstance(permission, str) else mapping("permission", permission)
    ).items():
        rules += _permission(pattern, value)
    for item in _list("permissions", set_up.get("permissions", [])):
        rule = mapping("permissions", item)
        action = rule.get("action")
        if not isinstance(action, str) or not set(rule) <= {"action", "resource", "effect"}:
            raise CannotUse('a rule of the setting "permissions" is not understood and could restrict it')
        rules.append(ToolRule(action, _effect(rule.get("effect")), rule.get("resource", "*") == "*"))
    return rules


def _permission(pattern: str, value: object) -> list[ToolRule]:
    """A verdict, or a map of verdicts by inputs, of which the strictest is taken."""
    if not isinstance(value, dict):
        return [ToolRule(pattern, _effect(value))]
    effects = [_effect(effect) for effect in value.values()]
    if not effects:
        return []
    return [ToolRule(pattern, max(effects, key=lambda effect: STRICTNESS[effect]), set(value) == {"*"})]


def _list(key: str, value: object) -> list[object]:
    if not isinstance(value, list):
        raise CannotUse(f'the setting "{key}" is not a list and could restrict it')
    return value


def _effect(value: object) -> str:
    if isinstance(value, str) and value in _EFFECTS:
        return str(value)
    raise CannotUse(f"a permission of its host is not understood and could restrict it; expected {', '.join(_EFFECTS)}")


def _has_shape(root: Mapping[str, object]) -> bool:
    mcp = root.get("mcp")
    if not isinstance(mcp, dict):
        return False
    servers = mcp.get("servers")
    found = [*mcp.values(), *(servers.values() if isinstance(servers, dict) else ())]
    return any(_is_server(value) for value in found)


OPENCODE = DesktopHost(
    name="opencode",
    title="opencode",
    files=(*_USERS, *_PROJECTS),
    servers=("mcp",),
    other_keys=(
        *((key,) for key in _RULES),
        *((key,) for key in _AGENTS),
        *(("default_agent",), ("policies",), ("experimental", "policies")),
    ),
    rules={
        "type": kind(remote=("remote",), local=("local",)),
        "command": _command,
        "cwd": same,
        "environment": renamed("env"),
        "url": same,
        "headers": same,
        "oauth": _oauth,
        "enabled": off_if("false"),
        "disabled": off_if("true"),
        "timeout": _timeout,
        "codemode": harmless,
        "protocol": _protocol,
    },
    translate=_translate,
    find=_find,
    restrict=_restrict,
    has_shape=_has_shape,
)
