"""opencode: `opencode.json`. Version 1 has the servers under `mcp`, version 2 under `mcp.servers`; a file can have
both. Agents, with rules for tools, stand there too or each in a Markdown file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from config.desktop.desktop_host import (
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
from config.desktop.entry import (
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
from config.document import is_null
from config.patterns import after_prefix, covered
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
_FRONT_MATTER = re.compile(r"---(?!-)[^\n]*(.*?)(?:\n---|\Z)", re.DOTALL)
"""To the end of the file, if it does not end before. The first line may name its language."""
_NAME = re.compile(r"\bname\b|\\")
_RULE = re.compile(r"tools|permission|<<|\\")
"""The words of an agent's name and rules. With a backslash, YAML could write them in another way."""


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


def _folders(context: FileContext) -> list[Path]:
    """The folders with files of their own and agents, of which the later win: of the user, of the project and those
    above it, of the user again, and of the environment."""
    users = context.users(_FOLDER).parent
    more = [folder / ".opencode" for folder in (*_project_folders(context, users), context.home)]
    named = context.environ.get("OPENCODE_CONFIG_DIR")
    return [users, *more, *([Path(named)] if named else [])]


def _project_folders(context: FileContext, users: Path) -> list[Path]:
    if context.folder == users:
        return []
    own = context.folder.parent if context.folder.name == ".opencode" else context.folder
    return in_repository(own) or [*reversed(own.parents), own]


def _layers(context: FileContext, *, including: bool) -> list[dict[str, object]]:
    """The settings of the user, and of the project and the folders above it, of which the later win, as far as the file
    that is read, or all of them."""
    users, *more = _folders(context)
    files = [users / Path(file.linux).name for file in _USERS]
    if named := context.environ.get("OPENCODE_CONFIG"):
        files.append(Path(named))
    files += [folder / name for folder in (*_project_folders(context, users), *more) for name in _NAMES]
    if not including:
        files = files[: files.index(context.file)] if context.file in files else []
    layers = [context.root if file == context.file else context.sibling(file) for file in files]
    if including:
        layers += [context.root] if context.file not in files else []
        layers.append(context.of_variable("OPENCODE_CONFIG_CONTENT"))
        if permission := context.of_variable("OPENCODE_PERMISSION"):
            layers.append({"permission": permission})
    return layers


def _merged(layers: Iterable[Mapping[str, object]]) -> dict[str, object]:
    """All settings in one, of which the later win."""
    settings: dict[str, object] = {}
    for layer in layers:
        settings = merged(settings, layer)
    return settings


def _agents_in(context: FileContext, folder: Path) -> list[Path]:
    """The Markdown files of agents, which formerly were modes."""
    below = {"agent": "**/*.md", "agents": "**/*.md", "mode": "*.md", "modes": "*.md"}
    return [file for name, pattern in below.items() for file in context.within(folder / name, pattern)]


def _has_rules(context: FileContext, file: Path, usual: str) -> bool:
    """Whether the Markdown file of an agent may be that of the usual one, and have rules for tools. An agent has the
    name of its file, or one of its own.

    Raises:
        CannotUse: it cannot be read.
    """
    context.note(file)
    try:
        front = _FRONT_MATTER.match(read_text(file))
    except (OSError, ValueError):
        raise CannotUse(f"the file {file.name} of its host, which may restrict it, cannot be read") from None
    text = front[1] if front else ""
    return (file.stem == Path(usual).name or _NAME.search(text) is not None) and _RULE.search(text) is not None


def _command(entry: ServerEntry, key: str, value: object) -> None:
    if not isinstance(value, list):
        raise CannotUse(f'its key "{key}" is not a list of a program and its arguments')
    entry.set(key, value, key)


def _oauth(entry: ServerEntry, key: str, value: object) -> None:
    if value not in ("false", {}):  # an empty map: the host finds all by itself, as happens here
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
    """Switches of servers and tools in the files of user, project and machine together. Permissions are detected, in
    each file and in its usual agent."""
    layers = _layers(context, including=True)
    layers += [
        context.system_wide(f"etc/opencode/{name}", f"Library/Application Support/opencode/{name}") for name in _NAMES
    ]
    settings = _merged(layers)
    usual = str(settings.get("default_agent", "build"))
    agents = [file for folder in _folders(context) for file in _agents_in(context, folder)]
    has_rules = True in [_has_rules(context, file, usual) for file in agents]  # each is looked at, and so watched
    # Policies were experimental. They can only restrict; those for providers are about models.
    policies = [policy for layer in layers for each in (layer, at(layer, "experimental")) for policy in _policies(each)]
    for name, entry in entries.items():
        switches = [at(settings, "mcp", name), at(settings, "mcp", "servers", name)]
        if any(each.get("enabled") == "false" or each.get("disabled") == "true" for each in switches):
            entry.switch_off()
        if has_rules:
            entry.detect(f"the agent {clip(usual)} of opencode")
        if any(each.get("action") != "provider.use" and each.get("effect") != "allow" for each in policies):
            entry.detect('the setting "policies" of opencode')
        prefix = re.sub(r"[^a-zA-Z0-9_-]", "_", name) + "_"
        for each in (settings, *_agents(settings, usual)):
            entry.attempt(_switch_tools, prefix, each)
        for layer in layers:
            for each in (layer, *_agents(layer, usual)):
                entry.attempt(_detect_permissions, prefix, each)


def _agents(settings: dict[str, object], name: str) -> list[dict[str, object]]:
    return [at(settings, key, name) for key in ("agent", "mode", "agents")]


def _policies(settings: dict[str, object]) -> list[dict[str, object]]:
    found = settings.get("policies", [])
    return [mapping("policies", policy) for policy in (found if isinstance(found, list) else [found])]


def _switch_tools(entry: ServerEntry, prefix: str, settings: dict[str, object]) -> None:
    """`tools`: switches by full names, in which `_` stands for other characters too, and `*` is wild. The last one
    holds there; here a switch that is off holds too, except one for all tools."""
    found = settings.get("tools")
    on: set[str] = set()
    off: set[str] = set()
    for pattern, value in mapping("tools", {} if found is None or is_null(found) else found).items():
        tools = after_prefix(pattern, prefix)
        if truth(f"tools.{pattern}", value):
            on |= tools
        else:
            off |= tools
            on = {tool for tool in on if not covered(tool, tools)}
    if "*" in off:
        entry.permit(tool for tool in on if _CLEANED.fullmatch(tool))
    entry.deny(tool.replace("_", "?") for tool in off - {"*"})


def _detect_permissions(entry: ServerEntry, prefix: str, settings: dict[str, object]) -> None:
    """`permission` and `permissions`: effects by full names, perhaps for some inputs alone."""
    effects: list[tuple[str, object]] = []
    permission = settings.get("permission")
    if permission is not None and not is_null(permission):
        effects += mapping("permission", {"*": permission} if isinstance(permission, str) else permission).items()
    rules = settings.get("permissions", [])
    rules = [] if is_null(rules) else rules
    if not isinstance(rules, list):
        raise CannotUse('the setting "permissions" is not a list and could restrict it')
    for rule in (mapping("permissions", item) for item in rules):
        if not isinstance(rule.get("action"), str) or not set(rule) <= {"action", "resource", "effect"}:
            raise CannotUse('a rule of the setting "permissions" is not understood and could restrict it')
        effects.append((str(rule["action"]), str(rule.get("effect"))))
    for pattern, value in effects:
        for effect in value.values() if isinstance(value, dict) else [value]:
            if effect not in _EFFECTS:
                raise CannotUse(
                    f"a permission of its host is not understood and could restrict it; expected {', '.join(_EFFECTS)}"
                )
            if effect != "allow" and after_prefix(pattern, prefix):
                entry.detect("a permission of opencode", may_forbid=effect == "deny")


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
        *(("tools",), ("permission",), ("permissions",), ("mode",), ("agent",), ("agents",)),
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
