"""Gemini CLI: `settings.json`, with `mcpServers` beside all other settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from config.hosts.desktop_host import DesktopHost, FileContext, HostFile, at, rewrite
from config.hosts.entry import (
    CannotUse,
    ServerEntry,
    approves_all,
    cannot,
    denied_tools,
    duration,
    escape,
    harmless,
    harmless_map,
    kind,
    mapping,
    names,
    oauth_client,
    program,
    renamed,
    same,
)
from config.hosts.ordered import STRICTNESS, ToolRule, apply_ordered
from config.patterns import after_prefix

_USER = HostFile("~/.gemini/settings.json", variable="GEMINI_CLI_HOME", below=".gemini/settings.json")
_PROJECT = HostFile(".gemini/settings.json", is_project=True)

_REFERENCE = re.compile(r"\$(?:(\w+)|\{([^}]+)\})", re.ASCII)
_REFERENCE_IN_ENV = re.compile(rf"{_REFERENCE.pattern}|%(\w+)%", re.ASCII)
_NAME = re.compile(r"(?P<name>[A-Za-z_]\w*)(?::-(?P<default>.*))?", re.ASCII | re.DOTALL)
_DEFAULT_AUTH = "dynamic_discovery"
_known_oauth = harmless_map(
    *("enabled", "clientId", "clientSecret", "authorizationUrl", "issuer", "tokenUrl", "scopes", "audiences"),
    *("redirectUri", "tokenParamName", "registrationUrl"),
)
_read_client = oauth_client(
    enabled="", clientId="client_id", clientSecret="client_secret", scopes="scopes",
    authorizationUrl="", tokenUrl="", issuer="", registrationUrl="", redirectUri="",
)  # fmt: skip
_NEEDS_GOOGLE = "needs credentials that only its host can obtain"

_VERDICTS = {"allow": "allow", "ask_user": "ask", "deny": "deny"}
_FORMER_KEYS = {
    "allowMCPServers": ("mcp", "allowed"),
    "excludeMCPServers": ("mcp", "excluded"),
    "excludeTools": ("tools", "exclude"),
    "coreTools": ("tools", "core"),
    "allowedTools": ("tools", "allowed"),
}
"""Keys of older files, which newer versions read as these."""
_HOOKS = ("BeforeTool", "BeforeToolSelection")
"""Hooks that may deny a call, or a tool."""
_RULE_KEYS = frozenset({"toolName", "mcpName", "decision", "priority", "denyMessage", "name", "description"})
"""The keys of a policy rule that make no condition."""
_CLEANED = re.compile(r"[a-zA-Z0-9_.:*?-]*")
"""Names of tools as its rules have them; other characters became `_`."""


@dataclass(frozen=True)
class _Policy:
    """A rule of a policy file. `server` is None if the tools have their full names."""

    priority: float
    verdict: str
    tools: list[str]
    server: str | None
    is_certain: bool


def _translate(text: str, context: FileContext) -> str:
    """`$NAME`, `${NAME}` and `${NAME:-default}`. A variable that is not set stays as it is written there; here it is an
    error."""

    def reference(match: re.Match[str]) -> str:
        return f"${{env:{inside}}}" if _NAME.fullmatch(inside := match[1] or match[2]) else escape(match[0])

    return rewrite(text, _REFERENCE, reference)


def _translate_in_env(text: str) -> str:
    """The same and `%NAME%`. A variable that is not set is empty."""

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


def _auth(entry: ServerEntry, key: str, value: object) -> None:
    if value != _DEFAULT_AUTH:
        raise CannotUse(f'its key "{key}" {_NEEDS_GOOGLE}')


def _oauth(entry: ServerEntry, key: str, value: object) -> None:
    if mapping(key, value).get("enabled") == "false":
        _known_oauth(entry, key, value)
    else:
        _read_client(entry, key, value)


def _managed(context: FileContext) -> list[dict[str, object]]:
    """The settings of the machine: those that replace all others, and those that all others replace."""
    folder = context.system_path("etc/gemini-cli", "Library/Application Support/GeminiCli")
    settings = Path(context.environ.get("GEMINI_CLI_SYSTEM_SETTINGS_PATH") or folder / "settings.json")
    defaults = context.environ.get("GEMINI_CLI_SYSTEM_DEFAULTS_PATH") or settings.with_name("system-defaults.json")
    return [context.sibling(file) if file != context.file else context.root for file in (settings, Path(defaults))]


def _restrict(context: FileContext, entries: Mapping[str, ServerEntry]) -> None:
    """The settings of the file, of the user and of the machine, `gemini mcp disable`, extensions, and policies.

    A setting of one file would replace that of another there; here all of them hold."""
    users = context.users(_USER)
    own = context.sibling(users) if users != context.file else context.root
    managed = _managed(context)
    settings = [context.root, own, *managed]
    folders = {context.folder, users.parent}
    extensions = [each for folder in sorted(folders) for each in context.within(folder / "extensions", "*")]
    excluded = [context.sibling(folder / "gemini-extension.json", ("excludeTools",)) for folder in extensions]
    switches = [context.sibling(folder / "mcp-server-enablement.json") for folder in folders]
    policies = _policies(context, users.parent, settings, extensions)
    hooks = [context.sibling(folder / "hooks" / "hooks.json", ("hooks",)) for folder in extensions]
    for hook in _HOOKS:
        if any(at(root, "hooks").get(hook) for root in (*settings, *hooks)):
            raise CannotUse(f"a hook of Gemini CLI ({hook}) decides about its calls, and it does not run here")
    for name, entry in entries.items():
        entry.needs_approval = context.project is not None and not _is_trusted(
            context, [own, managed[0]], context.project
        )
        if any(at(root, name.strip().lower()).get("enabled") == "false" for root in switches):
            entry.switch_off()
        replacing = at(managed[0], "mcpServers")
        if name in replacing and replacing is not context.root.get("mcpServers"):
            entry.stop("the administrator's settings have a server of its name, which its host starts instead")
        for root in (*settings, *map(_renamed, (*settings, *excluded))):
            entry.attempt(_restrict_one, name, root)
        entry.attempt(apply_ordered, _policy_rules(policies, name), cleaned=_CLEANED)
    if at(context.root, "mcp").get("serverCommand"):
        context.notices.append("mcp.serverCommand is not taken over; write its server under mcpServers")


def _renamed(settings: dict[str, object]) -> dict[str, object]:
    """The settings under former keys, under those of now."""
    made: dict[str, dict[str, object]] = {}
    for key, (above, name) in _FORMER_KEYS.items():
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
        raise CannotUse("the administrator's settings (admin.mcp.config) say how its host reaches it")
    entry.deny(_matched(name, names("tools.exclude", tools.get("exclude", []))))
    entry.ask(_matched(name, names("tools.confirmationRequired", tools.get("confirmationRequired", []))))
    if "core" in tools:
        # Newer versions deny all other tools then, those of servers too.
        permitted = names("tools.core", tools["core"]) + names("tools.allowed", tools.get("allowed", []))
        entry.permit(tool for each in permitted for tool in _named(name, each))
    if at(settings, "general").get("defaultApprovalMode") == "plan":
        entry.deny_all()
        entry.note('"plan" permits only tools that read, which are not known here; all tools are denied')


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


def _named(server: str, name: str) -> set[str]:
    """The server's tools that a permission means. `*` is wild only in the place of a whole server or tool."""
    if name in ("*", "mcp_*"):
        return {"*"}
    rests = {name.removeprefix(prefix) for prefix in (*_prefixes(server), "mcp_*_") if name.startswith(prefix)}
    return {rest for rest in rests if rest == "*" or (rest and not set(rest) & set("*?("))}


def _policies(
    context: FileContext, users: Path, settings: list[dict[str, object]], extensions: list[Path]
) -> list[_Policy]:
    """The rules of policy files, of which the last that matches decides."""
    project = context.project
    system = context.system_path("etc/gemini-cli/policies", "Library/Application Support/GeminiCli/policies")
    tiers = {
        5: [
            system,
            *([] if context.within(system, "*.toml") else _policy_paths(context, settings, "adminPolicyPaths")),
        ],
        4: _policy_paths(context, settings, "policyPaths") or [users / "policies"],
        3: [project / ".gemini" / "policies"] if project else [],
        2: [folder / "policies" for folder in extensions],
    }
    found = []
    for tier, paths in tiers.items():
        for file in [file for path in paths for file in ([path] if path.is_file() else context.within(path, "*.toml"))]:
            rules = context.sibling(file).get("rule", [])
            found += [_policy(file.name, rule, tier) for rule in (rules if isinstance(rules, list) else [rules])]
    # An extension cannot approve.
    found = [policy for policy in found if policy.priority >= 3 or policy.verdict != "allow"]
    return sorted(found, key=lambda policy: (policy.priority, STRICTNESS[policy.verdict]))


def _policy_paths(context: FileContext, settings: list[dict[str, object]], key: str) -> list[Path]:
    """Other policy files, or folders of them, which all settings name together."""
    found = []
    for path in [Path(path) for root in settings for path in names(key, root.get(key, []))]:
        if str(path).startswith("~") or "$" in str(path) or (context.project is None and not path.is_absolute()):
            raise CannotUse(f'the setting "{key}" of its host names policies by a path that is not absolute')
        found.append((context.project or Path()) / path)
    return found


def _policy(file: str, rule: object, tier: int) -> _Policy:
    try:
        found = mapping("rule", rule)
        tools = found.get("toolName", "*")
        return _Policy(
            tier + float(str(found.get("priority", 0))) / 1000,
            _VERDICTS[str(found["decision"])],
            names("toolName", tools if isinstance(tools, list) else [tools]),
            str(found["mcpName"]) if "mcpName" in found else None,
            set(found) <= _RULE_KEYS,
        )
    except (CannotUse, KeyError, ValueError):
        raise CannotUse(f"a rule in the file {file} of its host, which may restrict it, cannot be read") from None


def _policy_rules(policies: Iterable[_Policy], server: str) -> list[ToolRule]:
    """The rules for the tools of a server."""
    return [
        ToolRule(tool, policy.verdict, policy.is_certain)
        for policy in policies
        for tool in sorted(_policy_tools(policy, server))
    ]


def _policy_tools(policy: _Policy, server: str) -> set[str]:
    if policy.server is None and policy.verdict == "allow":
        return {tool for name in policy.tools for tool in _named(server, name)}
    if policy.server is None:
        rests = (after_prefix(tool, prefix) for tool in policy.tools for prefix in _prefixes(server))
        return set(policy.tools).union(*rests)
    if policy.server not in ("*", server, _cleaned(server)):
        return set()
    return {tool for tool in policy.tools if policy.verdict != "allow" or tool == "*" or not set(tool) & set("*?")}


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
        *((key,) for key in _FORMER_KEYS),
    ),
    asks_by_default=True,
    rules={
        "command": program,
        "args": same,
        "env": _env,
        "cwd": same,
        "url": _url,
        "httpUrl": renamed("url"),
        "type": kind(),
        "headers": same,
        "timeout": duration("timeout", 0.001),
        "trust": approves_all,
        "description": harmless,
        "includeTools": _only_tools,
        "excludeTools": denied_tools,
        "extension": harmless,
        "extensionName": harmless,
        "oauth": _oauth,
        "authProviderType": _auth,
        "targetAudience": cannot(_NEEDS_GOOGLE),
        "targetServiceAccount": cannot(_NEEDS_GOOGLE),
        "tcp": cannot("names a transport that is not supported"),
    },
    translate=_translate,
    restrict=_restrict,
    has_shape=_has_shape,
)
