"""Gemini CLI: `settings.json`, with `mcpServers` beside all other settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from config.desktop.desktop_host import DesktopHost, FileContext, HostFile, at, detect_hooks, rewrite
from config.desktop.entry import (
    LAUNCH,
    CannotUse,
    ServerEntry,
    approves_all,
    call_timeout,
    cannot,
    denied_tools,
    harmless,
    harmless_map,
    kind,
    mapping,
    names,
    oauth_client,
    renamed,
    same,
)
from config.desktop.variables import DOLLAR, dollar_variables
from config.patterns import after_prefix

_USER = HostFile("~/.gemini/settings.json", variable="GEMINI_CLI_HOME", below=".gemini/settings.json")
_PROJECT = HostFile(".gemini/settings.json", is_project=True)

_REFERENCE_IN_ENV = re.compile(rf"{DOLLAR.pattern}|%(\w+)%", re.ASCII)
_NAME = re.compile(r"(?P<name>[A-Za-z_]\w*)(?::-(?P<default>.*))?", re.ASCII | re.DOTALL)
_known_oauth = harmless_map(
    *("enabled", "clientId", "clientSecret", "authorizationUrl", "issuer", "tokenUrl", "scopes", "audiences"),
    *("redirectUri", "tokenParamName", "registrationUrl"),
)
_read_client = oauth_client(
    enabled="", clientId="client_id", clientSecret="client_secret", scopes="scopes",
    authorizationUrl="", tokenUrl="", issuer="", registrationUrl="", redirectUri="",
)  # fmt: skip
_NEEDS_GOOGLE = "needs credentials that only its host can obtain"

_DECISIONS = ("allow", "ask_user", "deny")
FORMER_KEYS = {
    "allowMCPServers": ("mcp", "allowed"),
    "excludeMCPServers": ("mcp", "excluded"),
    "excludeTools": ("tools", "exclude"),
    "coreTools": ("tools", "core"),
    "allowedTools": ("tools", "allowed"),
}
"""Keys of older files, which newer versions read as these."""
_FORMER_RESTRICTIONS = frozenset({"admin", *FORMER_KEYS}) - {"allowedTools"}
_HOOKS = ("BeforeTool", "BeforeToolSelection")
"""Hooks that may deny a call, or a tool."""


def _translate_in_env(text: str) -> str:
    """`$NAME`, `${NAME}`, `${NAME:-default}` and `%NAME%`. A variable that is not set is empty."""

    def reference(match: re.Match[str]) -> str:
        name = _NAME.fullmatch(match[1] or match[2] or match[3])
        return f"${{env:{name['name']}:-{name['default'] or ''}}}" if name else ""

    return rewrite(text, _REFERENCE_IN_ENV, reference)


def _env(entry: ServerEntry, key: str, value: object) -> None:
    entry.set(key, value, key, _translate_in_env)


def _url(entry: ServerEntry, key: str, value: object) -> None:
    if "httpUrl" not in entry.values:
        entry.set(key, value, key)


def _only_tools(entry: ServerEntry, key: str, value: object) -> None:
    """The only tools, each by its name or as `name(...)`."""
    entry.only(name.partition("(")[0] for name in names(key, value))


def _oauth(entry: ServerEntry, key: str, value: object) -> None:
    if mapping(key, value).get("enabled") == "false":
        _known_oauth(entry, key, value)
    else:
        _read_client(entry, key, value)


def all_settings(context: FileContext, user: HostFile, linux: str, macos: str, prefix: str) -> list[dict[str, object]]:
    """The settings of the file, those of the user, and those of the machine: first what replaces all others, then what
    all others replace. `linux` and `macos` are the folders of the machine, and `prefix` begins the names of the
    variables that move these files."""
    folder = context.system_path(linux, macos)
    settings = Path(context.environ.get(f"{prefix}_SYSTEM_SETTINGS_PATH") or folder / "settings.json")
    defaults = context.environ.get(f"{prefix}_SYSTEM_DEFAULTS_PATH") or settings.with_name("system-defaults.json")
    files = (context.users(user), settings, Path(defaults))
    return [context.root, *(context.sibling(file) if file != context.file else context.root for file in files)]


def stop_replaced(context: FileContext, entries: Mapping[str, ServerEntry], managed: dict[str, object]) -> None:
    """Stop the servers of which the administrator's settings have another one."""
    replacing = at(managed, "mcpServers")
    for name in entries.keys() & replacing.keys() if replacing is not context.root.get("mcpServers") else ():
        entries[name].stop("the administrator's settings have a server of its name, which its host starts instead")


def _restrict(context: FileContext, entries: Mapping[str, ServerEntry]) -> None:
    """The settings of the file, of the user and of the machine, `gemini mcp disable`, extensions, and policies.

    A setting of one file would replace that of another there; here all of them hold."""
    users = context.users(_USER)
    settings = all_settings(context, _USER, "etc/gemini-cli", "Library/Application Support/GeminiCli", "GEMINI_CLI")
    _, own, managed, _ = settings
    stop_replaced(context, entries, managed)
    folders = {context.folder, users.parent}
    extensions = [each for folder in sorted(folders) for each in context.within(folder / "extensions", "*")]
    excluded = [context.sibling(folder / "gemini-extension.json", ("excludeTools",)) for folder in extensions]
    switches = [context.sibling(folder / "mcp-server-enablement.json") for folder in folders]
    hooks = [context.sibling(folder / "hooks" / "hooks.json", ("hooks",)) for folder in extensions]
    detect_hooks("Gemini CLI", _HOOKS, (*settings, *hooks), entries.values(), have_matchers=False)
    policies = _policies(context, users.parent, extensions)
    paths = [key for key in ("policyPaths", "adminPolicyPaths") if any(root.get(key) for root in settings)]
    for name, entry in entries.items():
        entry.needs_approval = context.project is not None and not _is_trusted(context, [own, managed], context.project)
        if any(at(root, name.strip().lower()).get("enabled") == "false" for root in switches):
            entry.switch_off()
        for rule in policies:
            _apply_policy(entry, name, rule)
        for key in paths:
            entry.detect(f"the setting {key} of Gemini CLI")
        for root in (*settings, *map(under_present_keys, (*settings, *excluded))):
            entry.attempt(_restrict_one, name, root)
    if at(context.root, "mcp").get("serverCommand"):
        context.notices.append("mcp.serverCommand is not taken over; write its server under mcpServers")


def under_present_keys(
    settings: dict[str, object], former: Mapping[str, tuple[str, str]] = FORMER_KEYS
) -> dict[str, object]:
    """The settings under former keys, under those of now."""
    made: dict[str, dict[str, object]] = {}
    for key, (above, name) in former.items():
        if key in settings:
            made.setdefault(above, {})[name] = settings[key]
    return {**made}


def _restrict_one(entry: ServerEntry, name: str, settings: dict[str, object]) -> None:
    mcp, tools = at(settings, "mcp"), at(settings, "tools")
    known = name.strip().lower()
    if mcp.get("allowed") == []:
        entry.note('"mcp.allowed" is empty, which means no server to some versions of its host and all to others')
    if "allowed" in mcp and known not in _servers("mcp.allowed", mcp["allowed"]):
        entry.switch_off()
    if {known, "*"} & _servers("mcp.excluded", mcp.get("excluded", [])):
        entry.switch_off()
    admin = at(settings, "admin", "mcp")
    if admin.get("enabled") == "false":
        entry.switch_off()
    if permitted_servers := at(admin, "config"):
        if name not in permitted_servers:
            entry.switch_off()
        entry.detect("the administrator's settings (admin.mcp.config)")
    entry.deny(_matched(name, names("tools.exclude", tools.get("exclude", []))))
    entry.ask(_matched(name, names("tools.confirmationRequired", tools.get("confirmationRequired", []))))
    if "core" in tools:
        # Newer versions deny all other tools then, those of servers too.
        entry.detect("the list tools.core of Gemini CLI")
    if at(settings, "general").get("defaultApprovalMode") == "plan":
        entry.detect('the mode "plan" of Gemini CLI')


def _servers(key: str, value: object) -> set[str]:
    return {name.strip().lower() for name in names(key, value)}


def _prefixes(server: str) -> list[str]:
    """The beginnings of the full names of a server's tools: `mcp_SERVER_TOOL`, formerly `SERVER__TOOL`."""
    return [f"mcp_{server}_", f"mcp_{_cleaned(server)}_", f"{server}__", f"{_cleaned(server)}__"]


def _cleaned(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_.:-]", "_", name)


def _matched(server: str, patterns: Iterable[str]) -> set[str]:
    """Patterns for the server's tools that restrictions mean, by their full names or, as formerly, by their own."""
    found: set[str] = set()
    for pattern in patterns:
        # The middle of a long name is replaced by three dots.
        pattern = pattern.replace("...", "*")
        found |= {pattern}.union(*(after_prefix(pattern, prefix) for prefix in _prefixes(server)))
    return {pattern.replace("_", "?") for pattern in found}


def _policies(context: FileContext, users: Path, extensions: list[Path]) -> list[dict[str, object]]:
    """The rules of all policy files but those that allow."""
    folders = [
        context.system_path("etc/gemini-cli/policies", "Library/Application Support/GeminiCli/policies"),
        users / "policies",
        *(folder / "policies" for folder in extensions),
        *([context.project / ".gemini" / "policies"] if context.project else []),
    ]
    found = []
    for file in [file for folder in folders for file in context.within(folder, "*.toml")]:
        rules = context.sibling(file).get("rule", [])
        for rule in rules if isinstance(rules, list) else [rules]:
            if not isinstance(rule, dict) or rule.get("decision") not in _DECISIONS:
                raise CannotUse(f"a rule in the file {file.name} of its host, which may restrict it, cannot be read")
            found += [rule] if rule["decision"] != "allow" else []
    return found


def _apply_policy(entry: ServerEntry, name: str, rule: dict[str, object]) -> None:
    """A rule that denies or asks: for a server, or for tools by their full names or, as formerly, by their own."""
    listed = rule.get("toolName", "*")
    tools = names("toolName", listed if isinstance(listed, list) else [listed])
    is_denied = rule["decision"] == "deny"
    is_about_it = rule.get("mcpName") in ("*", name, _cleaned(name)) or (
        "mcpName" not in rule and any(after_prefix(tool, prefix) for tool in tools for prefix in _prefixes(name))
    )
    if is_about_it:
        entry.detect("a policy of Gemini CLI", may_forbid=is_denied)
    elif "mcpName" not in rule:
        # The host puts `_` in the place of other characters.
        (entry.deny if is_denied else entry.ask)(tool.replace("_", "?") for tool in tools)


def _is_trusted(context: FileContext, settings: list[dict[str, object]], project: Path) -> bool:
    """Whether the user trusts the folder, or one above it, and distrusts none of these. The last of the settings that
    says whether trust is needed decides."""
    needed = [at(each, "security", "folderTrust").get("enabled", "") for each in settings]
    if next((word for word in reversed(needed) if word), "") == "false":
        return True
    levels = context.sibling(
        Path(
            context.environ.get("GEMINI_CLI_TRUSTED_FOLDERS_PATH")
            or context.users(_USER).with_name("trustedFolders.json")
        )
    )
    trusted = False
    for folder, level in levels.items():
        above = Path(folder).parent if level == "TRUST_PARENT" else Path(folder)
        if project.is_relative_to(above):
            if level not in ("TRUST_FOLDER", "TRUST_PARENT"):
                return False
            trusted = True
    return trusted


def _has_shape(root: Mapping[str, object]) -> bool:
    mcp, tools = root.get("mcp"), root.get("tools")
    return "mcpServers" in root and (
        (isinstance(mcp, dict) and bool({"allowed", "excluded"} & set(mcp)))
        or (isinstance(tools, dict) and bool({"core", "exclude"} & set(tools)))
    )


GEMINI = DesktopHost(
    name="gemini",
    title="Gemini CLI",
    files=(_USER, _PROJECT),
    servers=("mcpServers",),
    other_keys=(
        *(("mcp",), ("tools",), ("admin",), ("general",), ("security",), ("hooks",)),
        *(("policyPaths",), ("adminPolicyPaths",)),
        *((key,) for key in FORMER_KEYS),
    ),
    rules={
        **LAUNCH,
        "env": _env,
        "cwd": same,
        "url": _url,
        "httpUrl": renamed("url"),
        "type": kind(),
        "timeout": call_timeout(0.001),
        "trust": approves_all,
        "includeTools": _only_tools,
        "excludeTools": denied_tools,
        **dict.fromkeys(("description", "extension", "extensionName"), harmless),
        "oauth": _oauth,
        "authProviderType": cannot(_NEEDS_GOOGLE, but="dynamic_discovery"),
        **dict.fromkeys(("targetAudience", "targetServiceAccount"), cannot(_NEEDS_GOOGLE)),
        "tcp": cannot("names a transport that is not supported"),
    },
    translate=dollar_variables(),
    restrict=_restrict,
    has_shape=_has_shape,
    has_marks=lambda root: _has_shape(root) or not _FORMER_RESTRICTIONS.isdisjoint(root),
)
