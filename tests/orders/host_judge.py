"""A second reading of the files of desktop hosts: what a host would do with a call of a tool of a server.

It is written from what is known of the hosts alone, and shares no code with `config/desktop`. It reads files as the
hosts' own parsers do (of two equal keys the later counts). Where it does not know what a host would do, the most is
that a person confirms; a setting that may refuse any call, such as a hook, is taken to refuse each.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

DENIED, ASKED, USUAL, FREE = 0, 1, 2, 3
"""Not offered or refused; confirmed, since a file says so or is not understood; as the host does it where no file says
anything; run, since a file says that nobody is asked."""

Match = Callable[[str], bool]


class Doubt(Exception):
    """Something is not understood."""


@dataclass
class Seen:
    """A server as the files describe it."""

    off: bool = False
    unapproved: bool = False
    """It stands in a project's file, and no file says that the host may start it."""
    doubtful: bool = False
    asks: bool = False
    """Whether the host asks about calls of which no file says anything."""
    only: list[Match] = field(default_factory=list)
    denied: list[Match] = field(default_factory=list)
    asked: list[Match] = field(default_factory=list)
    free: list[Match] = field(default_factory=list)
    ordered: list[Callable[[str], int | None]] = field(default_factory=list)
    """Lists of rules, each with its verdict on a tool."""

    def verdict(self, tool: str) -> int:
        if self.off or not all(each(tool) for each in self.only) or any(each(tool) for each in self.denied):
            return DENIED
        found = [verdict for each in self.ordered if (verdict := each(tool)) is not None]
        if DENIED in found:
            return DENIED
        if self.doubtful or ASKED in found or any(each(tool) for each in self.asked):
            return ASKED
        return FREE if FREE in found or any(each(tool) for each in self.free) else USUAL


@dataclass
class Files:
    """The texts of files by their places: `~/` is the user's folder, `/` the machine, else the project."""

    texts: Mapping[str, str]
    main: str

    @property
    def is_project(self) -> bool:
        return not self.main.startswith("~/")

    def read(self, place: str) -> dict[str, Any]:
        """The values of a file; none if it is not there."""
        text = self.texts.get(place, "")
        if not text.strip():
            return {}
        try:
            if place.endswith(".toml"):
                found: Any = tomllib.loads(text)
            elif place.endswith((".yaml", ".yml")):
                found = yaml.safe_load(text)
            else:
                found = json.loads(text)
        except (ValueError, yaml.YAMLError):
            raise Doubt from None
        if found is None:
            return {}
        if not isinstance(found, dict):
            raise Doubt
        return found


def judge(host: str, texts: Mapping[str, str], main: str) -> dict[str, Seen]:
    """The servers of a host, by their names. Without an entry, the host would offer nothing of a server."""
    files = Files(texts, main)
    try:
        root = files.read(main)
        servers = _servers(host, root)
    except Doubt:
        return {}
    found: dict[str, Seen] = {}
    for name, entry in servers.items():
        seen = found[name] = Seen(asks=host in _ASKING)
        if not isinstance(entry, dict):
            seen.doubtful = True
            continue
        entry = {key: value for key, value in entry.items() if value is not None}
        if not entry.keys() <= _KEYS[host] | {"tools", "transportType"}:
            seen.doubtful = True
        # Names in a list of tools that is copied from the file of another host are the only tools.
        copied = () if "tools" in _KEYS[host] else (_only_listed,)
        for step in (*_STEPS[host], *copied):
            try:
                step(seen, name, entry, files)
            except Doubt:
                seen.doubtful = True
    return found


# The meaning of values.


def _true(value: object) -> bool:
    if not isinstance(value, bool):
        raise Doubt
    return value


def _texts(value: object) -> list[str]:
    """The names in a list. A number, a truth or nothing among them is a name too: YAML has names without quotes."""
    if not isinstance(value, list) or not all(isinstance(each, str | int | float | None) for each in value):
        raise Doubt
    return [each if isinstance(each, str) else json.dumps(each) for each in value]


def _map(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Doubt
    return value


def _at(root: Mapping[str, Any], *path: str) -> dict[str, Any]:
    """The map at a path; empty where there is none. Settings of a wrong type are left out by the hosts."""
    value: Any = root
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _list(root: Mapping[str, Any], key: str) -> list[str]:
    value = root.get(key)
    return [] if value is None else _texts(value)


def _maps(root: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    value = root.get(key)
    if not isinstance(value, list | None):
        raise Doubt
    return [_map(each) for each in value or []]


def _one_of(tools: Iterable[str]) -> Match:
    known = set(tools)
    return lambda tool: tool in known


def _wild(pattern: str) -> re.Pattern[str]:
    """A pattern with `*` and `?`."""
    text = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.compile(text, re.DOTALL)


def _fits(pattern: str, text: str) -> bool:
    return _wild(pattern).fullmatch(text) is not None


def _full(patterns: list[str], prefix: str) -> Match:
    """Patterns for full names."""
    return lambda tool: any(_fits(each, prefix + _clean(tool)) for each in patterns)


def _wildcard(pattern: str) -> Match:
    return lambda tool: _fits(pattern, tool)


def _all(tool: str) -> bool:
    return True


# Keys of servers that several hosts have.


def _switch(seen: Seen, name: str, entry: dict[str, Any], files: Files) -> None:
    if "disabled" in entry and _true(entry["disabled"]):
        seen.off = True
    if "enabled" in entry and not _true(entry["enabled"]):
        seen.off = True


def _lists(seen: Seen, name: str, entry: dict[str, Any], files: Files) -> None:
    for key in ("disabledTools", "excludeTools", "disabled_tools"):
        seen.denied.append(_one_of(_list(entry, key)))
    for key in ("includeTools", "enabled_tools"):
        if key in entry:
            # Some hosts take `name(arguments)` for the name.
            permitted = {each.partition("(")[0] for each in _texts(entry[key])}
            seen.only.append(_one_of(permitted))
    for key in ("autoApprove", "alwaysAllow"):
        if key in entry:
            seen.asks = True
            seen.free.append(_one_of(_texts(entry[key])))


def _trust(seen: Seen, name: str, entry: dict[str, Any], files: Files) -> None:
    if "trust" in entry:
        seen.asks = True
        if _true(entry["trust"]):
            seen.free.append(_all)


def _unapproved(seen: Seen, name: str, entry: dict[str, Any], files: Files) -> None:
    seen.unapproved = files.is_project


# Full names, as `mcp__SERVER__TOOL`.


def _clean(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", text)


def _named(rule: str, server: str, tool: str) -> bool:
    """Whether a rule for full names is about a tool."""
    pattern = rule.partition("(")[0].strip()
    whole = f"mcp__{_clean(server)}"
    full = f"{whole}__{_clean(tool)}"
    return _fits(pattern, whole) or _fits(pattern, full)


def _rules(seen: Seen, server: str, kind: str, rules: list[str]) -> None:
    def match(wanted: list[str]) -> Match:
        return lambda tool: any(_named(rule, server, tool) for rule in wanted)

    plain = [rule for rule in rules if "(" not in rule]
    if kind == "deny":
        seen.denied.append(match(plain))
        seen.asked.append(match(rules))  # a rule for some arguments denies some calls
    elif kind == "ask":
        seen.asked.append(match(rules))
    elif any(_named(rule, server, "") or rule.startswith(f"mcp__{_clean(server)}") for rule in plain):
        seen.asks = True
        seen.free.append(match(plain))


def _hooks_matter(hooks: object) -> bool:
    """Whether a hook could decide about calls of servers."""
    if hooks is None or hooks in ([], {}, "", 0, False):
        return False
    for each in hooks if isinstance(hooks, list) else [hooks]:
        matcher = each.get("matcher") if isinstance(each, dict) else None
        words = matcher.split("|") if isinstance(matcher, str) else [""]
        if not all(re.fullmatch(r"\w+", word) and not word.lower().startswith("mcp") for word in words):
            return True
    return False


# Claude Code.


def _approved(value: object) -> list[object]:
    """The items of a list that approves; one that is no list approves nothing."""
    return value if isinstance(value, list) else []


def _claude(seen: Seen, name: str, entry: dict[str, Any], files: Files) -> None:
    if "url" in entry and "type" not in entry:
        raise Doubt
    state = _at(files.read("~/.claude.json"), "projects")
    settings = [files.read("~/.claude/settings.json"), files.read("/etc/claude-code/managed-settings.json")]
    if files.is_project:
        own = _at(state, PROJECT)
        off = _list(own, "disabledMcpServers") + _list(own, "disabledMcpjsonServers")
        projects = [files.read(".claude/settings.json"), files.read(".claude/settings.local.json")]
        approving = settings + (projects if own.get("hasTrustDialogAccepted") is True else [])
        seen.unapproved = not any(
            each.get("enableAllProjectMcpServers") is True or name in _approved(each.get("enabledMcpjsonServers"))
            for each in approving
        )
        settings = settings + projects
        off += [each for root in settings for each in _list(root, "disabledMcpjsonServers")]
    else:
        off = [each for folder in state for each in _list(_at(state, folder), "disabledMcpServers")]
    seen.off = seen.off or name in off
    for root in settings:
        for hook in ("PreToolUse", "PermissionRequest"):
            if _hooks_matter(_at(root, "hooks").get(hook)):
                seen.off = True  # it may refuse each call
        for item in _maps(root, "deniedMcpServers"):
            if item == {"serverName": name}:
                seen.off = True
            elif set(item) != {"serverName"} or isinstance(item["serverName"], list | dict):
                seen.doubtful = True
        if isinstance(root.get("allowedMcpServers"), list) and {"serverName": name} not in root["allowedMcpServers"]:
            seen.off = True
        permissions = _at(root, "permissions")
        for kind in ("deny", "ask", "allow"):
            _rules(seen, name, kind, _list(permissions, kind))
        if permissions.get("defaultMode") == "dontAsk":
            seen.off = True


def _claude_entry(seen: Seen, name: str, entry: dict[str, Any], files: Files) -> None:
    words = {"always_allow": FREE, "allow": FREE, "always_ask": ASKED, "ask": ASKED, "always_deny": DENIED}
    words["blocked"] = DENIED

    def judge_tool(tool: str, word: object, *, approves: bool) -> None:
        if not isinstance(word, str) or word not in words:
            raise Doubt
        if words[word] is FREE and not approves:
            return
        {DENIED: seen.denied, ASKED: seen.asked, FREE: seen.free}[words[word]].append(_one_of([tool]))
        seen.asks = seen.asks or words[word] is FREE

    listed = entry.get("tools")
    if isinstance(listed, list) and not any(isinstance(each, dict | list) for each in listed):
        _only_listed(seen, name, entry, files)  # as Copilot CLI, which reads the same file
    elif "tools" in entry:
        for item in listed if isinstance(listed, list) else [listed]:
            item = dict(_map(item))
            tool = item.pop("name", None)
            if isinstance(tool, list | dict | None) or not item.keys() <= {"permission_policy", "org_max_permission"}:
                raise Doubt
            for key, word in item.items():
                judge_tool(_texts([tool])[0], word, approves=key == "permission_policy")
    for tool, word in _map(entry.get("toolPermissions", {})).items():
        judge_tool(tool, word, approves=True)


# Cursor, VS Code.


def _cursor(seen: Seen, name: str, entry: dict[str, Any], files: Files) -> None:
    _unapproved(seen, name, entry, files)
    places = ["~/.cursor/cli-config.json", *([".cursor/cli.json"] if files.is_project else [])]
    for place in places:
        for rule in _list(_at(files.read(place), "permissions"), "deny"):
            if not rule.lower().startswith("mcp"):
                continue
            parts = re.fullmatch(r"Mcp\(([^:]*)(?::(.*))?\)", rule)
            if parts is None:
                raise Doubt
            server, tool = ((part or "").strip() or "*" for part in parts.groups())
            if _fits(server.lower(), name.lower()):
                seen.denied.append(_wildcard(tool))
    for folder in ("~/.cursor", *([".cursor"] if files.is_project else [])):
        hooks = _at(files.read(f"{folder}/hooks.json"), "hooks")
        if hooks.get("beforeMCPExecution") or _hooks_matter(hooks.get("preToolUse")):
            seen.off = True
        try:
            listed = files.read(f"{folder}/permissions.json").get("mcpAllowlist")
        except Doubt:
            listed = None
        for item in listed if isinstance(listed, list) else []:
            server, colon, tool = item.partition(":") if isinstance(item, str) else ("", "", "")
            if colon and tool and _fits(server, name):
                seen.free.append(_wildcard(tool))


def _vscode(seen: Seen, name: str, entry: dict[str, Any], files: Files) -> None:
    _unapproved(seen, name, entry, files)
    root = files.read(files.main)
    if entry.get("sandboxEnabled") or entry.get("sandbox") or _at(root, "sandbox"):
        seen.doubtful = True
    places = ["~/.config/Code/User/settings.json", *([".vscode/settings.json"] if files.is_project else [])]
    for settings in map(files.read, places):
        access = settings.get("chat.mcp.access")
        if access in ("none", False) or settings.get("chat.disableAIFeatures") is True:
            seen.off = True
        elif access not in (None, "all", True):
            seen.doubtful = True
        if settings.get("chat.mcp.enabled") is False or settings.get("chat.agent.enabled") is False:
            seen.off = True


# Cline, Roo Code.


def _cline(seen: Seen, name: str, entry: dict[str, Any], files: Files) -> None:
    if "oauth" in entry or "oauthClient" in entry:
        raise Doubt
    shared = files.read("~/.cline/data/settings/global-settings.json")
    removed = _list(shared, "disabledTools")
    for tool, value in _at(shared, "tools").items():
        if isinstance(value, dict) and "enabled" in value and not _true(value["enabled"]):
            removed.append(tool)
    seen.denied.append(lambda tool: tool in removed or f"{_clean(name)}__{tool}" in removed)


def _roo(seen: Seen, name: str, entry: dict[str, Any], files: Files) -> None:
    if "url" in entry and "type" not in entry:
        raise Doubt


# Gemini CLI, Qwen Code.


def _with_former(root: dict[str, Any], more: Mapping[str, tuple[str, str]] = {}) -> list[dict[str, Any]]:
    former = {
        "allowMCPServers": ("mcp", "allowed"),
        "excludeMCPServers": ("mcp", "excluded"),
        "excludeTools": ("tools", "exclude"),
        "coreTools": ("tools", "core"),
        "allowedTools": ("tools", "allowed"),
        **more,
    }
    old: dict[str, Any] = {}
    for key, (above, below) in former.items():
        if key in root:
            old.setdefault(above, {})[below] = root[key]
    return [root, old]


def _gemini_full(server: str, tool: str) -> set[str]:
    def clean(text: str) -> str:
        return re.sub(r"[^a-zA-Z0-9_.:-]", "_", text)

    return {tool, f"mcp_{clean(server)}_{clean(tool)}", f"{server}__{tool}", f"{clean(server)}__{clean(tool)}"}


def _gemini(seen: Seen, name: str, entry: dict[str, Any], files: Files) -> None:
    if any(key in entry for key in ("targetAudience", "targetServiceAccount", "tcp")):
        seen.doubtful = True
    places = {files.main, "~/.gemini/settings.json", "/etc/gemini-cli/settings.json"}
    plain = name.strip().lower()
    if _at(files.read("~/.gemini/mcp-server-enablement.json"), plain).get("enabled") is False:
        seen.off = True
    needs_trust = True
    for place in sorted(places):
        root = files.read(place)
        if _at(root, "hooks").get("BeforeTool") or _at(root, "hooks").get("BeforeToolSelection"):
            seen.off = True
        if _at(root, "security", "folderTrust").get("enabled") is False and place != files.main:
            needs_trust = False
        for each in _with_former(root):
            _gemini_settings(seen, name, plain, each)
    if files.is_project:
        levels = files.read("~/.gemini/trustedFolders.json")
        trusted = [
            folder if level == "TRUST_FOLDER" else os.path.dirname(folder)
            for folder, level in levels.items()
            if level in ("TRUST_FOLDER", "TRUST_PARENT")
        ]
        seen.unapproved = needs_trust and not any(f"{PROJECT}/".startswith(f"{folder}/") for folder in trusted)
    _gemini_policies(seen, name, files)


def _gemini_listed(server: str, tools: list[str]) -> Match:
    return lambda tool: bool(_gemini_full(server, tool) & set(tools))


def _gemini_settings(seen: Seen, name: str, plain: str, root: dict[str, Any]) -> None:
    mcp, tools = _at(root, "mcp"), _at(root, "tools")
    if "allowed" in mcp and plain not in {each.strip().lower() for each in _texts(mcp["allowed"])}:
        seen.off = True
    if {plain, "*"} & {each.strip().lower() for each in _list(mcp, "excluded")}:
        seen.off = True
    if _at(root, "admin", "mcp").get("enabled") is False:
        seen.off = True
    if _at(root, "admin", "mcp", "config"):
        seen.doubtful = True
    for key, found in (("exclude", seen.denied), ("confirmationRequired", seen.asked)):
        found.append(_gemini_listed(name, _list(tools, key)))
    if "core" in tools or _at(root, "general").get("defaultApprovalMode") == "plan":
        seen.off = True  # which tools these permit is not known


def _gemini_policies(seen: Seen, name: str, files: Files) -> None:
    """Rules that deny or ask, in whatever order: what allows is no restriction."""
    places = ["~/.gemini/policies/own.toml", "/etc/gemini-cli/policies/all.toml"]
    for place in [*places, *([".gemini/policies/shop.toml"] if files.is_project else [])]:
        found = files.read(place).get("rule", [])
        for rule in found if isinstance(found, list) else [found]:
            if _map(rule).get("decision") not in ("allow", "ask_user", "deny"):
                raise Doubt
            if rule["decision"] != "allow":
                tools = rule.get("toolName", "*")
                patterns = _texts(tools if isinstance(tools, list) else [tools])
                _gemini_rule(seen, name, rule, patterns)


def _gemini_rule(seen: Seen, name: str, rule: dict[str, Any], patterns: list[str]) -> None:
    if "mcpName" in rule and rule["mcpName"] not in ("*", name):
        return

    def match(tool: str) -> bool:
        known = {tool} if "mcpName" in rule else _gemini_full(name, tool)
        return "*" in patterns or bool(known & set(patterns))

    (seen.denied if rule["decision"] == "deny" else seen.asked).append(match)


def _qwen(seen: Seen, name: str, entry: dict[str, Any], files: Files) -> None:
    _unapproved(seen, name, entry, files)
    more = {"approvalMode": ("tools", "approvalMode")}
    for place in sorted({files.main, "~/.qwen/settings.json", "/etc/qwen-code/settings.json"}):
        root = files.read(place)
        hooks = root.get("hooks")
        if isinstance(hooks, dict) and (hooks.get("PreToolUse") or hooks.get("PermissionRequest")):
            seen.off = True
        for each in _with_former(root, more):
            mcp, tools, permissions = _at(each, "mcp"), _at(each, "tools"), _at(each, "permissions")
            if "allowed" in mcp and not any(_fits(pattern, name) for pattern in _texts(mcp["allowed"])):
                seen.off = True
            if any(_fits(pattern, name) for pattern in _list(mcp, "excluded")):
                seen.off = True
            for kind in ("deny", "ask", "allow"):
                _rules(seen, name, kind, _list(permissions, kind))
            for key, kind in (("exclude", "deny"), ("disabled", "deny"), ("allowed", "allow")):
                _rules(seen, name, kind, _list(tools, key))
            mode = tools.get("approvalMode")
            if mode == "plan":
                seen.off = True
            elif mode == "yolo":
                seen.free.append(_all)


# Copilot CLI, Codex.


def _only_listed(seen: Seen, name: str, entry: dict[str, Any], files: Files) -> None:
    if "tools" in entry:
        tools = _texts(entry["tools"])
        if "*" not in tools:
            seen.only.append(_one_of(tools))


def _copilot(seen: Seen, name: str, entry: dict[str, Any], files: Files) -> None:
    _only_listed(seen, name, entry, files)
    if entry.get("filterMapping"):
        seen.doubtful = True
    settings = [files.read("~/.copilot/settings.json")]
    if files.is_project:
        settings.append(files.read(".github/copilot/settings.json"))
        config = files.read("~/.copilot/config.json")
        seen.unapproved = PROJECT not in _list(config, "trustedFolders") + _list(config, "trusted_folders")
    managed = files.read("/etc/github-copilot/managed-settings.json")
    if {"sandbox", "policyHelper"} & managed.keys() or _at(managed, "permissions").keys() & {"deny", "ask", "allow"}:
        seen.doubtful = True
    for root in (*settings, managed):
        if name in _list(root, "disabledMcpServers"):
            seen.off = True
        for hook in ("preToolUse", "PreToolUse", "permissionRequest", "PermissionRequest"):
            if _hooks_matter(_at(root, "hooks").get(hook)):
                seen.off = True  # it may refuse each call


def _codex(seen: Seen, name: str, entry: dict[str, Any], files: Files) -> None:
    root = files.read(files.main)
    for hook in ("PreToolUse", "PermissionRequest"):
        if _hooks_matter(_at(root, "hooks").get(hook)):
            seen.off = True
    modes = {"auto": USUAL, "prompt": ASKED, "writes": ASKED, "approve": FREE}
    omitted = set(_list(entry, "omit_tools_from"))
    if not omitted <= {"code_mode", "deferred", "direct"}:
        raise Doubt
    seen.off = seen.off or len(omitted) == 3

    def mode(word: object) -> int:
        if not isinstance(word, str) or word not in modes:
            raise Doubt
        return modes[word]

    default = mode(entry.get("default_tools_approval_mode", "auto"))
    own: dict[str, int] = {}
    for tool, values in _map(entry.get("tools", {})).items():
        if not _map(values).keys() <= {"approval_mode", "output_token_limit"}:
            raise Doubt
        if "approval_mode" in values:
            own[tool] = mode(values["approval_mode"])
    policy = root.get("approval_policy")
    refuses = policy == "never" and root.get("sandbox_mode") != "danger-full-access"
    if isinstance(policy, dict):
        refuses = _at(policy, "granular").get("mcp_elicitations") is False
    seen.off = seen.off or refuses
    seen.asked.append(lambda tool: own.get(tool, default) is ASKED)
    seen.free.append(lambda tool: own.get(tool, default) is FREE)
    if files.is_project:
        level = _at(files.read("~/.codex/config.toml"), "projects", PROJECT).get("trust_level")
        seen.unapproved = level != "trusted"


# Zed, Continue, opencode, Amp, Goose.


def _zed(seen: Seen, name: str, entry: dict[str, Any], files: Files) -> None:
    _unapproved(seen, name, entry, files)
    if "settings" in entry or "oauth" in entry:
        raise Doubt
    if "remote" in entry and _true(entry["remote"]):
        raise Doubt
    roots = [files.read(place) for place in sorted({files.main, "~/.config/zed/settings.json"})]
    for root in [*roots, *(_at(root, block) for root in roots for block in ("linux", "stable"))]:
        if root.get("disable_ai") is not None and _true(root["disable_ai"]):
            seen.off = True
        agent = _at(root, "agent")
        if agent.get("always_allow_tool_actions") is True:
            seen.free.append(_all)
        if "profiles" in agent or "default_profile" in agent:
            _zed_profile(seen, name, agent)
        permissions = agent.get("tool_permissions")
        if permissions is not None:
            _zed_permissions(seen, name, _map(permissions))


def _zed_profile(seen: Seen, name: str, agent: dict[str, Any]) -> None:
    chosen = str(agent.get("default_profile", "write"))
    profile = _at(agent, "profiles", chosen)
    own = _at(profile, "context_servers", name)
    tools = _map(own.get("tools", {}))
    everything = profile.get("enable_all_context_servers")
    permits = chosen == "write" if everything is None else _true(everything)
    off = {tool for tool, is_on in tools.items() if not _true(is_on)}
    if own.get("enabled") is False:
        seen.denied.append(_all)
    elif permits:
        seen.denied.append(_one_of(off))
    else:
        seen.only.append(_one_of(tools.keys() - off))


def _zed_permissions(seen: Seen, name: str, permissions: dict[str, Any]) -> None:
    words = {"allow": FREE, "confirm": ASKED, "deny": DENIED}

    def word(value: dict[str, Any]) -> int | None:
        found = value.get("default", value.get("default_mode"))
        if found is None:
            return None
        if not isinstance(found, str) or found not in words:
            raise Doubt
        return words[found]

    own: dict[str, dict[str, Any]] = {
        key.removeprefix(f"mcp:{name}:"): _map(value)
        for key, value in _map(permissions.get("tools", {})).items()
        if key.startswith(f"mcp:{name}:")
    }
    general = word(permissions)
    seen.off = seen.off or general is DENIED
    verdicts = {tool: word(value) for tool, value in own.items()}

    def verdict(tool: str) -> int | None:
        found = verdicts.get(tool)
        found = general if found is None else found
        if any(own.get(tool, {}).get(key, []) != [] for key in ("always_confirm", "always_deny")):
            return ASKED if found is None else min(found, ASKED)
        return found

    seen.ordered.append(verdict)


def _continue(seen: Seen, name: str, entry: dict[str, Any], files: Files) -> None:
    if any(key in entry for key in ("uses", "with", "override")):
        raise Doubt
    permissions = files.read("~/.continue/permissions.yaml")
    prefix = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") + "_"

    def match(patterns: list[str]) -> Match:
        return lambda tool: any(_fits(each, tool) or _fits(each, prefix + tool) for each in patterns)

    lists = {key: _list(permissions, key) for key in ("exclude", "ask", "allow")}
    seen.denied.append(match([each for each in lists["exclude"] if "(" not in each]))
    seen.asked.append(match([each.partition("(")[0] for key in ("exclude", "ask") for each in lists[key]]))
    seen.free.append(match(lists["allow"]))


def _opencode(seen: Seen, name: str, entry: dict[str, Any], files: Files) -> None:
    if entry.get("oauth", False) is not False:
        raise Doubt
    root = files.read(files.main)
    full = f"{_clean(name)}_"

    def match(pattern: str) -> Match:
        return lambda tool: _fits(pattern, full + _clean(tool))

    switches: list[tuple[str, bool]] = []
    for settings in (root, _at(root, "agent", str(root.get("default_agent", "build")))):
        if settings.get("tools") is not None:
            switches += [(key, _true(value)) for key, value in _map(settings["tools"]).items()]
        permission = settings.get("permission")
        found = {"*": permission} if isinstance(permission, str) else {} if permission is None else _map(permission)
        rules = [(key, each) for key, value in found.items() for each in (_map_or_one(value))]
        for rule in _maps(settings, "permissions"):
            if not rule.keys() <= {"action", "resource", "effect"} or isinstance(
                rule.get("action"), list | dict | None
            ):
                raise Doubt
            rules.append((str(rule["action"]), rule.get("effect")))
        for pattern, effect in rules:
            if effect not in ("allow", "ask", "deny"):
                raise Doubt
            if effect != "allow":
                (seen.denied if effect == "deny" else seen.asked).append(match(pattern))

    def is_off(tool: str) -> bool:
        return not next((is_on for pattern, is_on in reversed(switches) if match(pattern)(tool)), True)

    seen.denied.append(is_off)


def _map_or_one(value: object) -> list[object]:
    """The effects for inputs, or the one for all."""
    return list(value.values()) if isinstance(value, dict) else [value]


def _amp(seen: Seen, name: str, entry: dict[str, Any], files: Files) -> None:
    _unapproved(seen, name, entry, files)
    if "includeTools" in entry:
        patterns = _texts(entry["includeTools"])
        # Instead of names, as elsewhere, it has patterns.
        seen.only[:] = [lambda tool: any(fnmatch.fnmatchcase(tool, each) for each in patterns)]
    places = {files.main, "~/.config/amp/settings.json", "/etc/ampcode/managed-settings.json"}
    for root in [files.read(place) for place in sorted(places)]:
        full = f"mcp__{_clean(name)}__"
        for pattern in _list(root, "amp.tools.disable"):
            seen.denied.append(_full([pattern], full))
        if root.get("amp.tools.enable") is not None:
            seen.only.append(_full(_texts(root["amp.tools.enable"]), full))
        for key in ("amp.mcpPermissions", "amp.experimental.mcpPermissions"):
            seen.off = seen.off or any(rule.get("action") != "allow" for rule in _maps(root, key))
        for rule in _maps(root, "amp.permissions"):
            if isinstance(rule.get("tool"), list | dict | None) or rule.get("action") not in _AMP_ACTIONS:
                raise Doubt
            if rule["action"] != "allow":
                match = _full(_texts([rule["tool"]]), full)
                (seen.asked if rule["action"] == "ask" else seen.denied).append(match)
        seen.free += [_all] if root.get("amp.dangerouslyAllowAll") is True else []


_AMP_ACTIONS = ("allow", "ask", "reject", "delegate")


def _goose(seen: Seen, name: str, entry: dict[str, Any], files: Files) -> None:
    if entry.get("type") not in ("stdio", "streamable_http") or "enabled" not in entry or "socket" in entry:
        raise Doubt
    available = _list(entry, "available_tools")
    if available:
        seen.only.append(_one_of(available))
    mode = files.read(files.main).get("GOOSE_MODE")
    if mode == "chat":
        seen.denied.append(_all)
    elif mode in ("approve", "smart_approve"):
        seen.asked.append(lambda tool: not any(each(tool) for each in seen.free))
    elif mode not in (None, "auto"):
        raise Doubt
    beginnings = {name, str(entry.get("name", name))}
    full = {re.sub(r"[^a-z0-9_-]", "_", re.sub(r"\s", "", each).lower()) + "__" for each in beginnings}
    for category, lists in files.read("~/.config/goose/permission.yaml").items():
        if not _map(lists).keys() <= {"always_allow", "ask_before", "never_allow"}:
            raise Doubt

        def listed(key: str, lists: dict[str, Any] = lists) -> Match:
            return _one_of(
                name.removeprefix(each) for name in _list(lists, key) for each in full if name.startswith(each)
            )

        seen.denied.append(listed("never_allow"))
        seen.asked.append(listed("ask_before"))
        seen.free += [listed("always_allow")] if category == "user" else []


# The servers of a file.


PROJECT = ""
"""The folder of the project, as files name it; the test sets it."""


def _servers(host: str, root: dict[str, Any]) -> dict[str, Any]:
    if host == "continue" and isinstance(root.get("mcpServers"), list):
        return _in_list(root["mcpServers"])
    key = {"vscode": "servers", "zed": "context_servers", "opencode": "mcp", "codex": "mcp_servers"}
    key |= {"amp": "amp.mcpServers", "goose": "extensions"}
    found = root.get(key.get(host, "mcpServers"))
    servers = {} if found is None else _map(found)
    if host == "opencode":
        servers = {name: each for name, each in servers.items() if name not in ("servers", "timeout")}
    if host == "goose":
        parts = ("builtin", "platform", "frontend", "inline_python")
        servers = {name: each for name, each in servers.items() if _at({"": each}, "").get("type") not in parts}
    return servers


def _in_list(items: list[Any]) -> dict[str, Any]:
    """Servers by their names, or their places in the list."""
    found: dict[str, Any] = {}
    for n, each in enumerate(items):
        name = each.get("name", "") if isinstance(each, dict) else ""
        found.setdefault(f"server {n + 1}" if name == "" or isinstance(name, list | dict) else _texts([name])[0], each)
    return found


_ASKING = frozenset(
    {"cline", "roo", "qwen", "gemini", "copilot", "codex", "zed"}
    | {"claude-desktop", "cursor", "vscode", "lm-studio", "continue"}
)
"""Hosts that ask unless a file or a switch that no file shows says otherwise."""

_LAUNCH = frozenset({"command", "args", "env", "url", "headers", "type"})
_APPROVALS = frozenset({"autoApprove", "alwaysAllow"})
_GEMINI_KEYS = (_LAUNCH - {"type"}) | {
    *("type", "cwd", "httpUrl", "timeout", "trust", "description", "includeTools", "excludeTools"),
    *("extension", "extensionName", "oauth", "authProviderType", "targetAudience", "targetServiceAccount", "tcp"),
}
_KEYS: Mapping[str, frozenset[str]] = {
    "claude-desktop": _LAUNCH | _APPROVALS | {"disabled", "disabledTools"},
    "claude-code": _LAUNCH
    | {"headersHelper", "oauth", "timeout", "request_timeout_ms", "alwaysLoad", "tools", "toolPermissions"}
    | {"displayName", "role", "bareElicitationCapability", "discoveryCache", "disabled"},
    "cursor": _LAUNCH | _APPROVALS | {"envFile", "cwd", "auth", "timeout", "disabled", "disabledTools"},
    "vscode": _LAUNCH
    | {"transport", "envFile", "cwd", "oauth", "sandboxEnabled", "sandbox", "dev", "gallery", "version", "disabled"},
    "windsurf": _LAUNCH | _APPROVALS | {"serverUrl", "disabled", "disabledTools"},
    "cline": _LAUNCH
    | _APPROVALS
    | {"cwd", "transport", "transportType", "disabled", "disabledTools", "timeout", "remoteConfigured", "metadata"}
    | {"oauth", "oauthClient"},
    "roo": _LAUNCH | {"cwd", "timeout", "disabled", "disabledTools", "alwaysAllow", "watchPaths"},
    "gemini": frozenset(_GEMINI_KEYS),
    "qwen": frozenset(_GEMINI_KEYS | {"discoveryTimeoutMs", "versionNegotiation", "alwaysLoadTools", "scope"}),
    "copilot": _LAUNCH
    | {"cwd", "tools", "excludeTools", "disabled", "timeout", "oauthClientId", "oauthScopes", "oauthPublicClient"}
    | {"oauthGrantType", "auth", "oidc", "filterMapping", "displayName", "safeForTelemetry", "isDefaultServer"}
    | {"slowConnectionThresholdMs", "deferTools", "disableToolCache", "disableSecretMasking", "events"}
    | {"notifications", "headersRefreshTtlMs"},
    "lm-studio": _LAUNCH | {"timeout", "disabled", "disabledTools"},
    "codex": frozenset({"command", "args", "env", "env_vars", "cwd", "url", "http_headers", "env_http_headers"})
    | {"bearer_token_env_var", "http_headers_helper", "bearer_token", "auth", "scopes", "oauth", "oauth_resource"}
    | {"environment_id", "experimental_environment", "enabled", "required", "startup_timeout_sec"}
    | {"startup_timeout_ms", "tool_timeout_sec", "supports_parallel_tool_calls", "enabled_tools", "disabled_tools"}
    | {"omit_tools_from", "default_tools_approval_mode", "tools", "name"},
    "zed": frozenset({"command", "args", "env", "timeout", "enabled", "remote", "url", "headers", "oauth"})
    | {"settings", "source"},
    "continue": frozenset({"name", "type", "command", "args", "env", "envFile", "cwd", "url", "apiKey", "headers"})
    | {"requestOptions", "connectionTimeout", "disabled", "serverName", "faviconUrl", "sourceFile", "sourceSlug"}
    | {"uses", "with", "override"},
    "opencode": frozenset({"type", "command", "cwd", "environment", "url", "headers", "oauth", "enabled", "disabled"})
    | {"timeout", "codemode", "protocol"},
    "amp": frozenset(
        {"command", "args", "env", "url", "headers", "includeTools", "disabled", "alwaysAllow", "_target"}
    ),
    "goose": frozenset({"type", "enabled", "name", "description", "display_name", "bundled", "cmd", "args", "envs"})
    | {"env_keys", "timeout", "cwd", "uri", "headers", "socket", "available_tools"},
}

Step = Callable[[Seen, str, dict[str, Any], Files], None]
_STEPS: Mapping[str, tuple[Step, ...]] = {
    "claude-desktop": (_switch, _lists),
    "claude-code": (_switch, _claude_entry, _claude),
    "cursor": (_switch, _lists, _cursor),
    "vscode": (_switch, _vscode),
    "windsurf": (_switch, _lists),
    "cline": (_switch, _lists, _cline),
    "roo": (_switch, _lists, _roo),
    "gemini": (_lists, _trust, _gemini),
    "qwen": (_lists, _trust, _qwen),
    "copilot": (_switch, _lists, _copilot),
    "lm-studio": (_switch, _lists),
    "codex": (_switch, _lists, _codex),
    "zed": (_switch, _zed),
    "continue": (_switch, _continue),
    "opencode": (_switch, _opencode),
    "amp": (_switch, _lists, _amp),
    "goose": (_switch, _goose),
}
HOSTS = tuple(_STEPS)
