"""Files at places of no host: pasted ones, and those of gateways.

A server in them may have the keys of all hosts, as far as these mean one thing, and the map or list of servers may
stand where any of them has it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from config.desktop.claude_code import CLAUDE_CODE
from config.desktop.cline import CLINE
from config.desktop.codex import CODEX
from config.desktop.continue_dev import CONTINUE
from config.desktop.copilot import COPILOT
from config.desktop.desktop_file import OWN_TOP_KEYS
from config.desktop.desktop_host import DesktopHost, FileContext, Servers, at, detect_hooks, servers_at
from config.desktop.entry import (
    REMOTE_TYPES,
    CannotUse,
    Rule,
    ServerEntry,
    approved_tools,
    approves_all,
    cannot,
    denied_tools,
    env_file,
    escape,
    harmless,
    harmless_map,
    headers_helper,
    kind,
    listed_tools,
    mapping,
    names,
    oauth_client,
    off_if,
    only_tools,
    program,
    renamed,
    same,
    truth,
    within,
)
from config.desktop.gemini import GEMINI
from config.desktop.qwen import QWEN
from config.desktop.server_lists import apply_lists
from config.desktop.variables import VALUES
from config.document import Plain, is_null
from config.own_form import TOP_KEY, URL_KEYS, launches
from config.problems import KeyPath, clip

_BARE = re.compile(r"(\$\$\{)|\$\{(/|[A-Za-z_][A-Za-z0-9_]*)(:-[^}]*)?\}")
_DOLLAR = re.compile(r"(?<![\w$}])\$[A-Z_][A-Z0-9_]*\b")
_OF_EXTENSIONS = frozenset({"extensionPath", "workspacePath", "CLAUDE_PLUGIN_ROOT", "CLAUDE_PLUGIN_DATA", "__dirname"})
_OF_LITELLM = re.compile(r"os\.environ/([A-Za-z_][A-Za-z0-9_]*)")
_MARKED = (CLAUDE_CODE, CLINE, QWEN, GEMINI, COPILOT, CODEX, CONTINUE)
"""The hosts from whose files servers are pasted."""
_OF_MCPPROXY = frozenset({"data_dir", "enable_socket", "quarantine_enabled", "docker_isolation", "routing_mode"})
_OF_MCPHUB = frozenset({"systemConfig", "bearerKeys", "userConfigs", "oauthClients"})
_OF_LITELLM_FILE = frozenset({"model_list", "litellm_settings", "general_settings", "router_settings"})
_BESIDE_A_LIST = frozenset({"servers", "$schema", "name", "version", "description"})
_HOOKS = ("PreToolUse", "preToolUse", "PermissionRequest", "permissionRequest", "BeforeTool", "beforeMCPExecution")
_SETTINGS = {
    "chat.mcp.access": ("all", "true"),
    "chat.mcp.enabled": ("true",),
    "chat.agent.enabled": ("true",),
    "chat.disableAIFeatures": ("false",),
}
"""Settings of VS Code, with the values that switch nothing off."""
_VARIABLES = ("env", "envs", "environment")

OWN_KEYS = (
    *("consent", "limits", "overrides", "isolation", "max_instances", "idle_timeout"),
    *("prefix", "start", "idle", "protocol", "eras", "client", "start_timeout", "timeout_total"),
)
"""Keys of ours that may stand in a server's entry. In a host's own file, another could raise its own trust by them.
`client` is a former one, which the model refuses with a sentence of its own."""
_OAUTH_KEYS = {
    "clientId": "client_id",
    "clientSecret": "client_secret",
    "callbackPort": "redirect_port",
    **{key: key for key in ("client_id", "client_secret", "private_key", "scopes", "client_metadata_url")},
    **{key: key for key in ("redirect_port", "issuers", "resource", "pkce", "parameters", "grant")},
}
_CLIENT_KEYS = ("client_id", "client_secret", "scopes")
_HEADER_KEYS = ("http_headers", "headers", "static_headers")
_TOKEN_HEADERS = {
    "bearer_token": ("Authorization", "Bearer "),
    "token": ("Authorization", "token "),
    "authorization": ("Authorization", ""),
    "api_key": ("X-API-Key", ""),
}
"""The header of a token and what stands before it, by the `auth_type` of LiteLLM."""
_UNCONFINED = "has its host confine the program, which does not happen here"


def bare_names(text: str, context: FileContext) -> str:
    """`${NAME}` and `${NAME:-default}` beside our own forms, and `os.environ/NAME` of LiteLLM."""
    if whole := _OF_LITELLM.fullmatch(text):
        return f"${{env:{whole[1]}}}"
    last = text.rfind("}") + 1  # behind it nothing closes, and looking for the end of each takes quadratic time

    def write(match: re.Match[str]) -> str:
        name = match[2]
        if name in VALUES:
            return escape(VALUES[name](context))
        if name in _OF_EXTENSIONS and name not in context.environ:
            raise CannotUse(f"${{{name}}} is a folder that only its host knows; write the path")
        return match[1] or f"${{env:{name}{match[3] or ''}}}"

    return _BARE.sub(write, text[:last]) + text[last:]


# The servers of a file.


def container(root: Mapping[str, object]) -> KeyPath | None:
    """The path of the map or list of servers; None if there is none."""
    if TOP_KEY in root:
        return (TOP_KEY,)
    if isinstance(root.get("mcp_servers"), dict | list):
        return ("mcp_servers",)
    if "servers" in root:
        return ("servers",) if root.keys() <= _BESIDE_A_LIST and _are_servers(root["servers"], is_list=True) else None
    return () if _are_servers(root) else None


def _are_servers(value: object, *, is_list: bool = False) -> bool:
    """Whether a value is a list of servers, or a map with nothing but servers."""
    if not isinstance(value, dict | list) or isinstance(value, list) is not is_list:
        return False
    items = value if isinstance(value, list) else [each for key, each in value.items() if key != "$schema"]
    return bool(items) and all(isinstance(item, dict) and launches(item) for item in items)


def _find(context: FileContext) -> Servers:
    path = container(context.root)
    assert path is not None
    if path != (TOP_KEY,):
        where = f"under {'.'.join(map(str, path))}" if path else "at the top of the file"
        context.notices.append(f"its servers stand {where}; most programs look for them under {TOP_KEY}")
    elif "servers" in context.root:
        context.notices.append(f"what stands under servers is left out, since it has {TOP_KEY} too; move it there")
    value: object = context.root
    for key in path:
        value = value[str(key)] if isinstance(value, dict) else None
    if isinstance(value, list):
        return [((*path, n), _name_of(item, n), item) for n, item in enumerate(value)]
    found = servers_at(context, tuple(map(str, path)))
    return [each for each in found if path or each[1] != "$schema"]


def _name_of(item: object, place: int) -> str:
    name = item.get("name") if isinstance(item, dict) else None
    return str(name) if isinstance(name, str) and name else f"server {place + 1}"


def _restrict(context: FileContext, entries: Mapping[str, ServerEntry]) -> None:
    """Apply the keys beside the servers, and the files of the hosts whose marks the file has: one that is pasted from
    there loses no restriction."""
    root = context.root
    for name, entry in entries.items():
        entry.attempt(_restrict_beside, name, root)
        if any(_DOLLAR.search(text) for text in _texts(list(entry.ours.values()))):
            entry.note("it has a text such as $NAME, a variable at some hosts and plain text here; write ${NAME}")
    detect_hooks("its file", _HOOKS, [root], entries.values())
    if not OWN_TOP_KEYS.isdisjoint(context.root):
        return  # no host knows those keys
    for host in _MARKED:
        if host.has_marks(context.root):
            host.restrict(context, entries)


def _restrict_beside(entry: ServerEntry, name: str, root: Mapping[str, object]) -> None:
    for key in ("disabledMcpServers", "disabledMcpjsonServers"):
        if name in names(key, root.get(key, [])):
            entry.switch_off()
    apply_lists(entry, name, root)
    if any(root.get(key, words[0]) not in words for key, words in _SETTINGS.items()):
        entry.switch_off()
    if isinstance(root.get("tools"), list):  # an agent of Amazon Q or Kiro: the tools that it may use
        tools = names("tools", root["tools"])
        if {"*", f"@{name}", f"@{name}/*"}.isdisjoint(tools):
            entry.permit(tool.removeprefix(f"@{name}/") for tool in tools if tool.startswith(f"@{name}/"))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(each)


# The keys of a server.


_EMPTY: tuple[object, ...] = ("", [], {})
"""The values that some hosts write for the keys of a server of the other kind."""


def _alias(ours: str) -> Rule:
    """One of several names of a key of ours."""

    rule = program if ours == "command" else renamed(ours)

    def read(entry: ServerEntry, key: str, value: object) -> None:
        if value in _EMPTY:
            return
        first = entry.written.get(ours, ("",))[-1]
        if first and entry.values.get(str(first)) != value:
            raise CannotUse(f'its keys "{first}" and "{key}" mean the same and differ; remove one')
        rule(entry, key, value)

    return read


_known_kind = kind(remote=(*REMOTE_TYPES, "remote"), local=("stdio", "local"))


def _kind(entry: ServerEntry, key: str, value: object) -> None:
    """The transport, which some write in capitals."""
    _known_kind(entry, key, value.lower() if isinstance(value, str) and value.isupper() else value)


_connection = within(
    {"type": _kind, "command": program, "args": same, "env": same, "cwd": same, "url": same, "headers": same}
)


def _args(entry: ServerEntry, key: str, value: object) -> None:
    """The arguments. Some programs fill in `${NAME}` themselves, from a variable that the entry gives them."""
    given = {str(name) for each in _VARIABLES for name, text in at(entry.values, each).items() if "${" not in str(text)}

    def translate(text: str) -> str:
        kept = _BARE.sub(lambda match: f"${match[0]}" if match[2] in given and not match[3] else match[0], text)
        return entry.translate(kept)

    entry.set(key, value, key, translate)


def _transport(entry: ServerEntry, key: str, value: object) -> None:
    """The transport by its name, or the keys of the connection in a map of their own, as the command line of Cline
    writes them."""
    rule = _connection if isinstance(value, dict) else _kind
    rule(entry, key, value)


def _protocol(entry: ServerEntry, key: str, value: object) -> None:
    """The transport in mcpproxy-go."""
    if value != "auto":
        _kind(entry, key, value)


def _isolation(entry: ServerEntry, key: str, value: object) -> None:
    """The container of mcpproxy-go for the program."""
    if mapping(key, value).get("enabled") != "false":
        raise CannotUse(f'its key "{key}" {_UNCONFINED}')


def _or_ours(rule: Rule, is_theirs: Callable[[object], bool]) -> Rule:
    """A key of ours that is also one of others, which have other values for it."""
    return lambda entry, key, value: (rule if is_theirs(value) else same)(entry, key, value)


def _trust_mode(entry: ServerEntry, key: str, value: object) -> None:
    """How mcpproxy-go takes new tools: by itself, or after a person has looked."""
    if value != "auto":
        entry.ask()


def _tools(entry: ServerEntry, key: str, value: object) -> None:
    """A list of the only tools; or, by their names, maps that switch tools off (mcphub, FastMCP)."""
    if not isinstance(value, dict):
        listed_tools(entry, key, value)
        return
    for tool, item in value.items():
        settings = mapping(f"{key}.{clip(tool)}", item)
        if settings.keys() - {"enabled", "description"}:
            raise CannotUse(f'its key "{key}" changes the tool "{clip(tool)}", which is not possible here')
        if not truth(f"{key}.{tool}.enabled", settings.get("enabled", Plain("true"))):
            own = tool.removeprefix(entry.name).lstrip("-_.:/")  # mcphub puts the name of the server before it
            entry.deny([tool, own or tool])


def _all_on(entry: ServerEntry, key: str, value: object) -> None:
    """Prompts or resources by their names, of which none may be switched off."""
    for name, item in mapping(key, value).items():
        if mapping(f"{key}.{clip(name)}", item).get("enabled", "true") != "true":
            raise CannotUse(f'its key "{key}" switches something off; write consent in a configuration of Colonnade')


def _none_off(entry: ServerEntry, key: str, value: object) -> None:
    """A list of what is switched off beside tools."""
    if names(key, value):
        raise CannotUse(f'its key "{key}" switches something off; write consent in a configuration of Colonnade')


def _approved(entry: ServerEntry, key: str, value: object) -> None:
    """Tools that the host calls without asking, or whether it asks at all."""
    (approved_tools if isinstance(value, list) else approves_all)(entry, key, value)


def _asked(entry: ServerEntry, key: str, value: object) -> None:
    entry.ask(names(key, value))


def _options(entry: ServerEntry, key: str, value: object) -> None:
    """Timeouts (mcphub), and a filter of tools (TBXark/mcp-proxy)."""
    options = dict(mapping(key, value))
    tool_filter = mapping(f"{key}.toolFilter", options.pop("toolFilter", {}))
    listed = names(f"{key}.toolFilter.list", tool_filter.get("list", []))
    if tool_filter.get("mode") == "allow":
        entry.only(listed)
    elif tool_filter.get("mode") == "block":
        entry.deny(listed)
    elif tool_filter:
        raise CannotUse(f'its key "{key}.toolFilter" has no mode that is known here; expected allow or block')
    harmless_map("timeout", "resetTimeoutOnProgress", "maxTotalTimeout", "panicIfInvalid", "logEnabled")(
        entry, key, options
    )


def _headers(entry: ServerEntry, key: str, value: object) -> None:
    """Headers under several names, and the token of LiteLLM, which becomes one."""
    headers: dict[str, object] = {}
    for name in _HEADER_KEYS:
        if not is_null(entry.values.get(name, Plain(""))):
            headers |= mapping(name, entry.values[name])
    token, kind = (entry.values.get(name) for name in ("auth_value", "auth_type"))
    token = entry.values.get("authentication_token", token)
    if headers or token is not None:
        entry.set("headers", headers, key)
    if token is None and kind in (None, "none", "oauth2"):
        return
    if not isinstance(token, str) or kind not in _TOKEN_HEADERS:
        raise CannotUse('its keys "auth_type" and "auth_value" are a login that is not known here; write headers')
    name, before = _TOKEN_HEADERS[str(kind)]
    entry.ours["headers"] = {**mapping(key, entry.ours["headers"]), name: before + entry.translate(token)}


def _auth(entry: ServerEntry, key: str, value: object) -> None:
    """The client of a login (Cursor), or the word for one without a client (FastMCP)."""
    if isinstance(value, dict):
        _auth_client(entry, key, value)
    elif value != "oauth":
        raise CannotUse(f'its key "{key}" is text; write "headers": {{"Authorization": "Bearer TOKEN"}}')


def _client(entry: ServerEntry, key: str, value: object) -> None:
    """The client of a login whose keys stand in the server itself (LiteLLM)."""
    client = {name: entry.values[name] for name in _CLIENT_KEYS if name in entry.values}
    if "oauth" in entry.values:
        raise CannotUse(f'it has both the key "{key}" and the key "oauth"; remove one')
    oauth_client(**{name: name for name in _CLIENT_KEYS})(entry, key, client)


def _forwarded(entry: ServerEntry, key: str, value: object) -> None:
    """Names of headers that a client may send along; none is sent along here."""
    names(key, value)


_auth_client = oauth_client(CLIENT_ID="client_id", CLIENT_SECRET="client_secret", scopes="scopes")

_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("command", "cmd"), _alias("command")),
    "args": _args,
    **dict.fromkeys(_VARIABLES, _alias("env")),
    **dict.fromkeys(("cwd", "working_dir", "working_directory", "workingDirectory"), _alias("cwd")),
    **dict.fromkeys(URL_KEYS, _alias("url")),
    **dict.fromkeys((*_HEADER_KEYS, "auth_type", "auth_value", "authentication_token"), _headers),
    "extra_headers": _forwarded,
    "headersHelper": headers_helper,
    "headers_helper": same,
    "envFile": env_file,
    **dict.fromkeys(("type", "transport", "transportType"), _transport),
    **dict.fromkeys(("disabled", "quarantined"), off_if("true")),
    **dict.fromkeys(("enabled", "isActive", "active"), off_if("false")),
    "tools": _tools,
    **dict.fromkeys(("includeTools", "enabledTools", "enabled_tools", "allowedTools", "allowed_tools"), only_tools),
    **dict.fromkeys(("excludeTools", "disabledTools", "disabled_tools", "disallowed_tools"), denied_tools),
    **dict.fromkeys(("prompts", "resources"), _all_on),
    **dict.fromkeys(("disabled_prompts", "disabled_resources", "disabled_resourceTemplates"), _none_off),
    **dict.fromkeys(("autoApprove", "alwaysAllow"), _approved),
    "disabledAutoApproveTools": _asked,
    "trust_mode": _trust_mode,
    "isolation": _isolation,
    "protocol": _protocol,
    "options": _options,
    "oauth": oauth_client(**_OAUTH_KEYS),
    "auth": _auth,
    **dict.fromkeys(_CLIENT_KEYS, _client),
    **dict.fromkeys(("include_tags", "exclude_tags"), cannot("picks tools by their tags, which is not possible here")),
    "customUserVars": cannot("asks each user for values, which is not possible here"),
    "access_groups": cannot("says who may use it, which is not possible here"),
    **dict.fromkeys(("timeout", "sse_read_timeout", "init_timeout", "keep_alive", "reconnect_on_use"), harmless),
    **dict.fromkeys(("description", "name", "title", "icon", "alias", "mcp_info", "owner", "visibility"), harmless),
    **dict.fromkeys(("displayName", "display_name", "serverName", "metadata", "tags", "version", "gallery"), harmless),
    **dict.fromkeys(("iconPath", "faviconUrl", "serverInstructions", "chatMenu", "alwaysLoad", "deferTools"), harmless),
    **dict.fromkeys(("startup_timeout_sec", "tool_timeout_sec", "request_timeout_ms", "connectionTimeout"), harmless),
    **dict.fromkeys(("initTimeout", "startup", "required", "watchPaths", "remoteConfigured"), harmless),
    **dict.fromkeys(("id", "uuid", "_comment", "comment", "$typeName", "requiresOAuth", "start_on_launch"), harmless),
    **dict.fromkeys(("registryUrl", "provider", "providerUrl", "logoUrl", "longRunning", "installSource"), harmless),
    **dict.fromkeys(("isTrusted", "searchKey", "official", "custom_instructions"), harmless),
    **dict.fromkeys(("autoStart", "autostart"), harmless),
    **dict.fromkeys(("created", "updated", "skip_quarantine", "auto_approve_tool_changes", "fromGalleryId"), harmless),
}


# The forms of files.


_OFF = ("none", "off", "disabled")


def _restrict_mcpproxy(context: FileContext, entries: Mapping[str, ServerEntry]) -> None:
    """Its containers for all programs."""
    isolation = at(context.root, "docker_isolation")
    is_on = isolation.get("enabled") == "true" or isolation.get("mode") not in (None, *_OFF)
    for entry in entries.values() if is_on else ():
        if "command" in entry.values and at(entry.values, "isolation").get("enabled") != "false":
            entry.stop(f'the key "docker_isolation" of the file {_UNCONFINED}')

    for key in ("output_sanitisation", "sensitive_data_detection"):
        value = at(context.root, key)
        if value and value.get("enabled") != "false" and value.get("mode") not in _OFF:
            raise CannotUse(f'the key "{key}" of its file filters what tools answer, which is not possible here')


def _restrict_litellm(context: FileContext, entries: Mapping[str, ServerEntry]) -> None:
    """Its guardrails for calls of tools."""
    for entry in entries.values() if "mcp" in repr(context.root.get("guardrails", "")) else ():
        entry.detect("a guardrail of its file")


def _restrict_mcphub(context: FileContext, entries: Mapping[str, ServerEntry]) -> None:
    """Whether servers can be reached by groups alone, which permit tools of their own."""
    routing = at(context.root, "systemConfig", "routing")
    for entry in entries.values() if routing.get("enableGlobalRoute", "true") != "true" else ():
        entry.detect("the setting enableGlobalRoute of its file, by which groups alone permit servers,")


GENERIC = DesktopHost(
    name="generic",
    title=TOP_KEY,
    files=(),
    servers=(TOP_KEY,),
    rules={
        **_RULES,
        **dict.fromkeys(OWN_KEYS, same),
        # A host may have it, too, with another meaning.
        "sandbox": cannot("is not known here and could restrict it; use a file of Colonnade's own, which has one"),
        "isolation": _or_ours(_isolation, lambda value: isinstance(value, dict)),
        "protocol": _or_ours(_protocol, lambda value: value in (*REMOTE_TYPES, "stdio")),
        # Hosts have a switch of that name by which they ask nothing any more.
        "trust": _or_ours(approves_all, lambda value: isinstance(value, Plain) and value in ("true", "false")),
    },
    translate=bare_names,
    find=_find,
    restrict=_restrict,
    has_shape=lambda root: container(root) is not None,
    has_own_keys=True,
)
_OF_GATEWAY = replace(GENERIC, rules=_RULES, has_own_keys=False)
MCPPROXY = replace(
    _OF_GATEWAY,
    name="mcpproxy",
    title="mcpproxy-go",
    other_keys=(("docker_isolation",), ("output_sanitisation",), ("sensitive_data_detection",)),
    restrict=_restrict_mcpproxy,
    has_shape=lambda root: (
        isinstance(root.get(TOP_KEY), list)
        and (isinstance(root.get("listen"), str) or not _OF_MCPPROXY.isdisjoint(root))
    ),
    hides_switches=True,
)
MCPHUB = replace(
    _OF_GATEWAY,
    name="mcphub",
    title="mcphub",
    other_keys=(("systemConfig",),),
    restrict=_restrict_mcphub,
    has_shape=lambda root: isinstance(root.get(TOP_KEY), dict) and not _OF_MCPHUB.isdisjoint(root),
)
LITELLM = replace(
    _OF_GATEWAY,
    name="litellm",
    title="LiteLLM",
    servers=("mcp_servers",),
    other_keys=(("guardrails",),),
    restrict=_restrict_litellm,
    has_shape=lambda root: "mcp_servers" in root and not _OF_LITELLM_FILE.isdisjoint(root),
)
FORMS = (MCPPROXY, MCPHUB, LITELLM, GENERIC)
"""The forms of files at places of no host, in the order in which they are tried."""
