"""Random files of desktop hosts, held against a second reading of them: nothing is permitted here that a host forbids.

Each file has servers with the restrictions that its host knows, and with what people and programs write by mistake:
unknown keys, other cases, wrong types, keys that stand twice, patterns where names are expected, names in another form.
What `import` writes of a file, and what the file means when it is served itself, may never be wider than the judge
says.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

import config
from config import Config, ConfigError, ConsentWord, ToolClaim
from config.desktop import desktop_host
from config.desktop.hosts import HOSTS
from config.desktop.importing.found import FoundFile, read_servers
from config.desktop.importing.merge import Merge
from config.desktop.importing.text import whole_text
from config.naming import make_id
from config.references import Expander
from host.policy.claims import POSSIBLE_CLAIMS, ToolClaims
from host.policy.rules import Rules
from host.protocol.methods import Kind
from tests.orders import host_judge
from tests.orders.host_judge import ASKED, DENIED, FREE, USUAL, Seen, judge

FILES = int(os.environ.get("COLONNADE_HOST_FILES", "400"))
"""Random files in all shards together; more of them for a run that has the time."""
SHARDS = 2
FIRST = int(os.environ.get("COLONNADE_FIRST_HOST_FILE", "0"))
"""The number of the first file, to read a single one again."""

TOOLS = ("read", "Read", "write_file", "write.file", "list-files", "delete", "a b", "日本", "re*d")
SERVERS = ("files", "Files", "my_files", "web.docs", "a b", "files2")
_LEVELS = {"deny": 0, "ask": 1, "allow": 2}
_ODD: tuple[object, ...] = (None, True, False, "true", "yes", 0, 7, 1.5, "", "read", [], [7], ["read", 7], {}, {"a": 1})
_UNKNOWN = (
    "enabledTools",
    "allowedTools",
    "policy",
    "Disabled",
    "disabledtools",
    "tool",
    "tools",
    "consent",
    "trust ",
    "x",
)
BY_NAME = {host.name: host for host in HOSTS}


class Pairs(list[tuple[str, object]]):
    """A map in which a key may stand twice."""


class Scene:
    """The files of a host, of which `main` has the servers."""

    def __init__(self, rng: Random, host: str) -> None:
        self.rng = rng
        self.host = host
        self.files: dict[str, str] = {}
        self.main = rng.choice(_PLACES[host])
        self.servers = rng.sample(SERVERS, rng.choice((1, 1, 2)))
        _SCENES[host](self)

    def write(self, place: str, values: object) -> None:
        values = self.spoil(values)
        self.files[place] = _toml_file(values) if place.endswith(".toml") else _json(values)

    def maybe(self, chance: float = 0.35) -> bool:
        return self.rng.random() < chance

    def spoil(self, value: object) -> object:
        """The value with a few mistakes."""
        if self.maybe(0.02):
            return self.rng.choice(_ODD)
        if isinstance(value, dict):
            made = Pairs()
            for key, below in value.items():
                if self.maybe(0.015):
                    key = self.rng.choice((key.upper(), key.capitalize(), key.lower(), f"{key} "))
                made.append((key, self.spoil(below)))
                if self.maybe(0.02):
                    made.append((key, self.rng.choice((self.spoil(below), self.rng.choice(_ODD)))))
            if self.maybe(0.03):
                made.append((self.rng.choice(_UNKNOWN), self.rng.choice((*_ODD, ["read"], ["*"]))))
            return made
        if isinstance(value, list):
            return [self.spoil(each) for each in value]
        return value

    def tools(self) -> list[object]:
        """A list of names of tools, some of them patterns or full names."""
        return [self.tool() for _ in range(self.rng.choice((0, 1, 1, 2, 3)))]

    def tool(self) -> str:
        if self.maybe(0.6):
            return self.rng.choice(TOOLS)
        return self.rng.choice(("*", "re*", "?ead", "write*", "write?file", "read(x)", self.full(), self.full()))

    def full(self) -> str:
        server = self.rng.choice((*self.servers, "files", "*", "other", "f*"))
        form = self.rng.choice(("mcp__{s}__{t}", "mcp__{s}", "mcp_{s}_{t}", "{s}__{t}", "{s}_{t}", "mcp__{s}__*"))
        tool = self.rng.choice((*TOOLS, "*", "re*", "write_file"))
        made = form.format(s=server, t=tool)
        made = "".join(char if char.isascii() and (char.isalnum() or char in "_-*?") else "_" for char in made)
        return self.rng.choice((made, made, made, f"{made}(a*)"))

    def rules(self) -> list[object]:
        return [self.full() for _ in range(self.rng.choice((0, 1, 2, 3)))]

    def word(self, *words: object) -> object:
        return self.rng.choice(words)

    def entries(self, make: Callable[[str], dict[str, object]], command: str = "command") -> dict[str, object]:
        return {name: {command: f"run-{n}", **make(name)} for n, name in enumerate(self.servers)}

    def some(self, **values: Callable[[], object]) -> dict[str, object]:
        return {key: make() for key, make in values.items() if self.maybe()}

    def approvals(self) -> dict[str, object]:
        return self.some(autoApprove=self.tools, alwaysAllow=self.tools)

    def truth(self) -> object:
        return self.rng.random() < 0.5

    def hooks(self, *names: str) -> dict[str, object]:
        matchers = (None, "Bash", "Bash|Edit", "mcp__.*", "mcp__files__read", "", "*", "MCP|Bash", "Write.*")
        hook = {"matcher": self.rng.choice(matchers), "hooks": [{"type": "command", "command": "x"}]}
        return {self.rng.choice((*names, "PostToolUse", "Stop")): [hook]}


def _json(value: object) -> str:
    if isinstance(value, Pairs):
        return "{" + ", ".join(f"{json.dumps(key)}: {_json(below)}" for key, below in value) + "}"
    if isinstance(value, dict):
        return _json(Pairs(value.items()))
    if isinstance(value, list):
        return "[" + ", ".join(map(_json, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _toml_file(value: object) -> str:
    pairs = value if isinstance(value, Pairs) else value.items() if isinstance(value, dict) else ()
    return "".join(f"{json.dumps(key)} = {_toml(below)}\n" for key, below in pairs if below is not None)


def _toml(value: object) -> str:
    if isinstance(value, dict):
        value = Pairs(value.items())
    if isinstance(value, Pairs):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value if v is not None) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(each) for each in value if each is not None) + "]"
    return json.dumps(value, ensure_ascii=False)


# The files of each host.


def _plain(scene: Scene) -> None:
    """Hosts whose restrictions all stand in the entries."""

    def entry(name: str) -> dict[str, object]:
        return {**scene.some(disabled=scene.truth, disabledTools=scene.tools), **scene.approvals()}

    scene.write(scene.main, {"mcpServers": scene.entries(entry)})


def _claude(scene: Scene) -> None:
    words = ("always_allow", "allow", "ask", "always_deny", "blocked", "never")

    def policy() -> object:
        name, word = scene.rng.choice(TOOLS), scene.word(*words)
        return {"name": name, scene.rng.choice(("permission_policy", "org_max_permission")): word}

    def entry(name: str) -> dict[str, object]:
        return scene.some(
            disabled=lambda: scene.word(False, False, True),
            tools=lambda: [policy() for _ in range(2)],
            toolPermissions=lambda: {scene.rng.choice(TOOLS): scene.word(*words) for _ in range(2)},
        )

    def settings() -> dict[str, object]:
        return scene.some(
            permissions=lambda: scene.some(
                deny=scene.rules,
                ask=scene.rules,
                allow=scene.rules,
                defaultMode=lambda: scene.word("default", "acceptEdits", "dontAsk", "plan"),
            ),
            hooks=lambda: scene.hooks("PreToolUse", "PermissionRequest") if scene.maybe(0.2) else {},
            disabledMcpjsonServers=lambda: scene.rng.sample(SERVERS, 1),
            enabledMcpjsonServers=lambda: scene.rng.sample(SERVERS, 3),
            enableAllProjectMcpServers=scene.truth,
            deniedMcpServers=lambda: [{"serverName": scene.rng.choice(SERVERS)}] if scene.maybe() else [],
        )

    state: dict[str, object] = {host_judge.PROJECT: {"hasTrustDialogAccepted": scene.truth()}} if scene.maybe() else {}
    state |= {"/other": {"disabledMcpServers": scene.rng.sample(SERVERS, 1)}} if scene.maybe(0.2) else {}
    servers = {"mcpServers": scene.entries(entry)}
    if scene.main.startswith("~/"):
        scene.write(scene.main, {**servers, "projects": state} if state else servers)
    else:
        scene.write(scene.main, servers)
        scene.write("~/.claude.json", {"projects": state})
        for place in (".claude/settings.json", ".claude/settings.local.json"):
            if scene.maybe():
                scene.write(place, settings())
    for place, chance in (("~/.claude/settings.json", 0.8), ("/etc/claude-code/managed-settings.json", 0.1)):
        if scene.maybe(chance):
            scene.write(place, settings())


def _cursor(scene: Scene) -> None:
    _plain(scene)

    def rule() -> str:
        server = scene.rng.choice((*SERVERS, "*", "FILES", "f*"))
        return scene.rng.choice((f"Mcp({server}:{scene.tool()})", f"Mcp({server})", "Shell(ls)", "mcp(files:read)"))

    if scene.maybe(0.5):
        place = scene.rng.choice(("~/.cursor/cli-config.json", ".cursor/cli.json"))
        scene.write(place, {"permissions": {"deny": [rule() for _ in range(2)], "allow": []}})
    if scene.maybe(0.15):
        scene.write("~/.cursor/hooks.json", {"hooks": scene.hooks("beforeMCPExecution", "preToolUse")})
    if scene.maybe():
        items = [f"{scene.rng.choice((*SERVERS, '*'))}:{scene.tool()}" for _ in range(2)]
        scene.write("~/.cursor/permissions.json", {"mcpAllowlist": items})


def _vscode(scene: Scene) -> None:
    def entry(name: str) -> dict[str, object]:
        return scene.some(disabled=lambda: scene.word(False, True), sandboxEnabled=lambda: scene.word(False, True))

    more: dict[str, object] = {"sandbox": {"network": {}}} if scene.maybe(0.1) else {}
    scene.write(scene.main, {"servers": scene.entries(entry), "inputs": [], **more})
    for place in ("~/.config/Code/User/settings.json", ".vscode/settings.json"):
        if scene.maybe():
            settings = {
                "chat.mcp.access": scene.word("all", "none", "registry", True, False),
                "chat.mcp.enabled": scene.word(True, True, False),
                "chat.agent.enabled": scene.word(True, True, False),
                "chat.disableAIFeatures": scene.word(False, False, True),
            }
            scene.write(place, {key: value for key, value in settings.items() if scene.maybe(0.4)})


def _cline(scene: Scene) -> None:
    _plain(scene)
    if scene.maybe(0.5):
        switches = {scene.rng.choice((*TOOLS, scene.full())): {"enabled": scene.truth()} for _ in range(2)}
        listed = [scene.rng.choice((scene.tool(), scene.full())) for _ in range(2)]
        scene.write("~/.cline/data/settings/global-settings.json", {"disabledTools": listed, "tools": switches})


def _gemini_entry(scene: Scene) -> dict[str, object]:
    return scene.some(includeTools=scene.tools, excludeTools=scene.tools, trust=scene.truth)


def _mcp(scene: Scene) -> dict[str, object]:
    wide = (list(SERVERS), ["files", "*"], [name.upper() for name in SERVERS])
    return scene.some(
        allowed=lambda: scene.word(*wide, []),
        excluded=lambda: scene.word([], ["other"], ["Files"], ["my_files", "a b"]),
    )


def _gemini(scene: Scene) -> None:
    def settings() -> dict[str, object]:
        found = scene.some(
            mcp=lambda: _mcp(scene),
            tools=lambda: scene.some(exclude=scene.tools, confirmationRequired=scene.tools),
            general=lambda: {"defaultApprovalMode": scene.word("default", "auto_edit", "plan")},
            hooks=lambda: {"BeforeTool": [{"matcher": "x"}]} if scene.maybe(0.1) else {},
            excludeTools=scene.tools,
            excludeMCPServers=lambda: scene.word([], ["Files"], ["web.docs"]),
        )
        if scene.maybe(0.1):
            found["tools"] = {"core": scene.tools(), "allowed": scene.tools()}
        return found

    def rule() -> dict[str, object]:
        tools: object = scene.word(scene.tool(), scene.full(), [scene.tool(), scene.tool()])
        made = {"toolName": tools, "decision": scene.word("allow", "ask_user", "deny"), "priority": scene.word(1, 5, 9)}
        made |= {"mcpName": scene.word(*scene.servers, "*", "other")} if scene.maybe(0.7) else {}
        return made | ({"argsPattern": "x"} if scene.maybe(0.1) else {})

    scene.write(scene.main, {"mcpServers": scene.entries(lambda name: _gemini_entry(scene)), **settings()})
    for place, chance in (("~/.gemini/settings.json", 0.4), ("/etc/gemini-cli/settings.json", 0.15)):
        if place != scene.main and scene.maybe(chance):
            scene.write(place, settings())
    for place in ("~/.gemini/policies/own.toml", ".gemini/policies/shop.toml"):
        if scene.maybe(0.3):
            scene.write(place, {"rule": [rule() for _ in range(scene.rng.choice((1, 2, 3)))]})
    if scene.maybe(0.15):
        scene.write("~/.gemini/mcp-server-enablement.json", {scene.rng.choice(SERVERS): {"enabled": scene.truth()}})
    if scene.maybe(0.5):
        level = scene.word("TRUST_FOLDER", "DO_NOT_TRUST", "TRUST_PARENT")
        scene.write("~/.gemini/trustedFolders.json", {host_judge.PROJECT: level})


def _qwen(scene: Scene) -> None:
    def settings() -> dict[str, object]:
        return scene.some(
            mcp=lambda: _mcp(scene),
            tools=lambda: scene.some(
                exclude=scene.rules,
                disabled=scene.rules,
                allowed=scene.rules,
                approvalMode=lambda: scene.word("default", "auto-edit", "yolo", "plan"),
            ),
            permissions=lambda: scene.some(deny=scene.rules, ask=scene.rules, allow=scene.rules),
            hooks=lambda: scene.hooks("PreToolUse") if scene.maybe(0.1) else {},
            excludeTools=scene.rules,
        )

    scene.write(scene.main, {"mcpServers": scene.entries(lambda name: _gemini_entry(scene)), **settings()})
    if scene.main != "~/.qwen/settings.json" and scene.maybe():
        scene.write("~/.qwen/settings.json", settings())


def _copilot(scene: Scene) -> None:
    def entry(name: str) -> dict[str, object]:
        made = scene.some(excludeTools=scene.tools, disabled=lambda: scene.word(False, False, True))
        return {"type": "local", "tools": scene.word(["*"], scene.tools(), ["*", "read"]), **made}

    scene.write(scene.main, {"mcpServers": scene.entries(entry)})
    for place in ("~/.copilot/settings.json", ".github/copilot/settings.json"):
        if scene.maybe():
            hooks = scene.hooks("preToolUse", "permissionRequest") if scene.maybe(0.2) else {}
            scene.write(place, {"disabledMcpServers": scene.rng.sample(SERVERS, 1), "hooks": hooks})
    if scene.maybe(0.1):
        permissions = scene.word({}, {"deny": ["x"]}, {"disableBypassPermissionsMode": "disable"})
        scene.write("/etc/github-copilot/managed-settings.json", {"permissions": permissions})
    if scene.maybe(0.6):
        scene.write("~/.copilot/config.json", {"trustedFolders": scene.word([], [host_judge.PROJECT])})


def _codex(scene: Scene) -> None:
    modes = ("auto", "prompt", "writes", "approve")

    def entry(name: str) -> dict[str, object]:
        return scene.some(
            enabled=lambda: scene.word(True, True, False),
            enabled_tools=scene.tools,
            disabled_tools=scene.tools,
            default_tools_approval_mode=lambda: scene.word(*modes),
            tools=lambda: {scene.rng.choice(TOOLS): {"approval_mode": scene.word(*modes)} for _ in range(2)},
            omit_tools_from=lambda: scene.word([], ["direct"], ["direct", "deferred", "code_mode"]),
        )

    more = scene.some(
        approval_policy=lambda: scene.word("never", "on-request", {"granular": {"mcp_elicitations": False}}),
        sandbox_mode=lambda: scene.word("read-only", "danger-full-access"),
        hooks=lambda: scene.hooks("PreToolUse") if scene.maybe(0.2) else {},
    )
    scene.write(scene.main, {"mcp_servers": scene.entries(entry), **more})
    if not scene.main.startswith("~/") and scene.maybe(0.7):
        level = scene.word("trusted", "untrusted")
        scene.write("~/.codex/config.toml", {"projects": {host_judge.PROJECT: {"trust_level": level}}})


def _zed(scene: Scene) -> None:
    def switches() -> dict[str, object]:
        return {scene.rng.choice(TOOLS): scene.truth() for _ in range(2)}

    def profile() -> dict[str, object]:
        servers = {
            name: scene.some(tools=switches, enabled=lambda: scene.word(True, False))
            for name in scene.servers
            if scene.maybe(0.7)
        }
        all_on = scene.some(enable_all_context_servers=scene.truth)
        return {"name": "P", "tools": {}, "context_servers": servers, **all_on}

    def permission() -> dict[str, object]:
        made = scene.some(default=lambda: scene.word("allow", "confirm", "deny", "ask"))
        return made | scene.some(always_deny=lambda: scene.word([], [{"pattern": "x"}]))

    def agent() -> dict[str, object]:
        permissions = {f"mcp:{scene.rng.choice(SERVERS)}:{scene.tool()}": permission() for _ in range(2)}
        default = scene.some(default=lambda: scene.word("allow", "confirm", "deny"))
        return scene.some(
            profiles=lambda: {scene.word("write", "ask", "mine"): profile()},
            default_profile=lambda: scene.word("write", "ask", "mine"),
            always_allow_tool_actions=scene.truth,
            tool_permissions=lambda: {"tools": permissions, **default},
        )

    def settings() -> dict[str, object]:
        return scene.some(
            agent=agent, disable_ai=lambda: scene.word(False, False, True), linux=lambda: {"agent": agent()}
        )

    def entry(name: str) -> dict[str, object]:
        return {"source": "custom", **scene.some(enabled=lambda: scene.word(True, True, False))}

    scene.write(scene.main, {"context_servers": scene.entries(entry), **settings()})
    if not scene.main.startswith("~/") and scene.maybe():
        scene.write("~/.config/zed/settings.json", settings())


def _continue(scene: Scene) -> None:
    named = scene.entries(lambda name: scene.some(disabled=scene.truth))
    servers = [{"name": name, **entry} for name, entry in named.items() if isinstance(entry, dict)]
    scene.write(scene.main, {"name": "Mine", "version": "1.0.0", "schema": "v1", "mcpServers": servers})
    if scene.maybe(0.7):

        def patterns() -> list[object]:
            return [scene.rng.choice((scene.tool(), scene.full(), f"files_{scene.tool()}")) for _ in range(2)]

        scene.write("~/.continue/permissions.yaml", scene.some(exclude=patterns, ask=patterns, allow=patterns))


def _opencode(scene: Scene) -> None:
    effects = ("allow", "ask", "deny")

    def pattern() -> str:
        server = scene.rng.choice((*scene.servers, "files", "*"))
        server = "".join(char if char.isalnum() or char in "*-" else "_" for char in server)
        return scene.rng.choice((f"{server}_{scene.tool()}", f"{server}_*", "*", "bash", scene.full()))

    def permission() -> object:
        nested = {scene.word("*", "git *"): scene.word(*effects) for _ in range(2)}
        return scene.word(
            *effects, {pattern(): scene.word(*effects, nested) for _ in range(3)}, {pattern(): scene.word(*effects)}
        )

    def settings() -> dict[str, object]:
        return scene.some(
            tools=lambda: {pattern(): scene.truth() for _ in range(2)},
            permission=permission,
            permissions=lambda: [
                {
                    "action": pattern(),
                    "effect": scene.word(*effects),
                    **scene.some(resource=lambda: scene.word("*", "a")),
                }
                for _ in range(2)
            ],
        )

    def entry(name: str) -> dict[str, object]:
        made = {
            "type": "local",
            "command": [f"run-{name}"],
            **scene.some(enabled=lambda: scene.word(True, True, False)),
        }
        return made

    agents = scene.some(agent=lambda: {scene.word("build", "plan"): settings()})
    scene.write(scene.main, {"mcp": scene.entries(entry), **settings(), **agents})


def _amp(scene: Scene) -> None:
    def rule() -> dict[str, object]:
        made = {
            "tool": scene.word(scene.full(), scene.full(), "*", "Bash"),
            "action": scene.word("allow", "ask", "reject"),
        }
        return made | ({"matches": {"path": "*.md"}} if scene.maybe(0.2) else {})

    def settings() -> dict[str, object]:
        found = scene.some(
            permissions=lambda: [rule() for _ in range(3)],
            dangerouslyAllowAll=scene.truth,
            mcpPermissions=lambda: scene.word(
                [],
                [{"matches": {"command": "*"}, "action": scene.word("allow", "reject")}],
                [{"matches": {"url": "*"}, "action": "reject"}],
            ),
        )
        found |= {"tools.disable": scene.rules()} if scene.maybe() else {}
        found |= {"tools.enable": ["mcp__*", *scene.rules()]} if scene.maybe(0.2) else {}
        return {f"amp.{key}": value for key, value in found.items()}

    def entry(name: str) -> dict[str, object]:
        made = scene.some(includeTools=scene.tools, disabled=lambda: scene.word(False, False, True))
        return made | scene.some(alwaysAllow=scene.tools)

    scene.write(scene.main, {"amp.mcpServers": scene.entries(entry), **settings()})
    if not scene.main.startswith("~/") and scene.maybe():
        scene.write("~/.config/amp/settings.json", settings())


def _goose(scene: Scene) -> None:
    def entry(name: str) -> dict[str, object]:
        made = scene.some(available_tools=scene.tools)
        return {"type": "stdio", "name": name, "args": [], "enabled": scene.word(True, True, True, False), **made}

    mode = scene.some(GOOSE_MODE=lambda: scene.word("auto", "approve", "smart_approve", "chat", "AUTO"))
    scene.write(scene.main, {"extensions": scene.entries(entry, command="cmd"), **mode})
    if scene.maybe(0.7):

        def listed() -> list[object]:
            server = scene.rng.choice((*scene.servers, "files")).lower()
            server = "".join(char if char.isalnum() or char in "_-" else "_" for char in server.replace(" ", ""))
            return [f"{server}__{scene.rng.choice(TOOLS)}" for _ in range(2)]

        lists = scene.some(always_allow=listed, ask_before=listed, never_allow=listed)
        scene.write("~/.config/goose/permission.yaml", {scene.word("user", "smart_approve"): lists})


_PLACES: dict[str, tuple[str, ...]] = {
    "claude-desktop": ("~/.config/Claude/claude_desktop_config.json",),
    "claude-code": ("~/.claude.json", ".mcp.json"),
    "cursor": ("~/.cursor/mcp.json", ".cursor/mcp.json"),
    "vscode": ("~/.config/Code/User/mcp.json", ".vscode/mcp.json"),
    "windsurf": ("~/.codeium/windsurf/mcp_config.json",),
    "cline": ("~/.cline/data/settings/cline_mcp_settings.json",),
    "roo": (
        "~/.config/Code/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json",
        ".roo/mcp.json",
    ),
    "gemini": ("~/.gemini/settings.json", ".gemini/settings.json"),
    "qwen": ("~/.qwen/settings.json", ".qwen/settings.json"),
    "copilot": ("~/.copilot/mcp-config.json", ".github/mcp.json"),
    "lm-studio": ("~/.lmstudio/mcp.json",),
    "codex": ("~/.codex/config.toml", ".codex/config.toml"),
    "zed": ("~/.config/zed/settings.json", ".zed/settings.json"),
    "continue": ("~/.continue/config.yaml",),
    "opencode": ("~/.config/opencode/opencode.json",),
    "amp": ("~/.config/amp/settings.json", ".amp/settings.json"),
    "goose": ("~/.config/goose/config.yaml",),
}
_SCENES: dict[str, Callable[[Scene], None]] = {
    "claude-desktop": _plain,
    "claude-code": _claude,
    "cursor": _cursor,
    "vscode": _vscode,
    "windsurf": _plain,
    "cline": _cline,
    "roo": _plain,
    "gemini": _gemini,
    "qwen": _qwen,
    "copilot": _copilot,
    "lm-studio": _plain,
    "codex": _codex,
    "zed": _zed,
    "continue": _continue,
    "opencode": _opencode,
    "amp": _amp,
    "goose": _goose,
}


class Reader:
    """Writes the files of a scene and reads them with our own code."""

    def __init__(self, folder: Path) -> None:
        self.home, self.project, self.system = (folder / name for name in ("kim", "shop", "system"))
        self.out = folder / "out"
        for each in (self.home, self.project, self.system, self.out):
            each.mkdir()
        self._written: list[Path] = []

    def path(self, place: str) -> Path:
        if place.startswith("~/"):
            return self.home / place[2:]
        return self.system / place[1:] if place.startswith("/") else self.project / place

    def write(self, scene: Scene) -> None:
        for file in self._written:
            file.unlink()
        self._written = [self.path(place) for place in scene.files]
        for file, text in zip(self._written, scene.files.values(), strict=True):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    def served(self, scene: Scene) -> Config | None:
        """The configuration that the file is when it is served itself."""
        try:
            return config.load(self.path(scene.main), {}, home=self.home)
        except ConfigError:
            return None

    def imported(
        self, scene: Scene, word: ConsentWord | None, reading: frozenset[str], *, keep_approvals: bool
    ) -> tuple[Config | None, dict[str, str]]:
        """The configuration that `import` writes under an answer, and the ids there by the names of the servers."""
        found = FoundFile(self.path(scene.main), BY_NAME[scene.host])
        try:
            servers, _ = read_servers(found, self.home, {}, keep_approvals=keep_approvals)
        except ConfigError:
            return None, {}
        merge = Merge(Expander({}, self.out))
        merge.add(servers)
        ids = {each.found[0].name: each.id for each in merge.servers if not each.problems}
        if not ids:
            return None, {}
        for each in merge.servers:
            each.reading = reading
        file = self.out / "colonnade.yaml"
        file.write_text(whole_text(merge.servers, str, word))
        return config.load(file, {}), ids


def _levels(made: Config, id: str, claimed: Mapping[str, ToolClaims | None]) -> list[tuple[str, int]]:
    """The tools, each with what may be done with it if it claims so."""
    server = made.servers[id]
    if server.disabled or server.problem:
        return [(tool, 0) for tool in claimed]
    rules = Rules(server.consent, server.trust)
    return [
        (tool, _LEVELS[rules.evaluate(Kind.TOOL, tool, {}, claims).verdict.value]) for tool, claims in claimed.items()
    ]


def _most_served(seen: Seen, tool: str) -> int:
    """The most that a file may permit that is served itself. What its host asks about by itself is not asked."""
    return {DENIED: 0, ASKED: 1, USUAL: 2, FREE: 2}[seen.verdict(tool)]


def _most_imported(
    seen: Seen, tool: str, word: ConsentWord | None, claims: ToolClaims | None, *, keep_approvals: bool
) -> int:
    """The most that an import may permit under an answer. `claims` are None if no person approved them."""
    verdict = DENIED if seen.unapproved else seen.verdict(tool)
    if verdict in (DENIED, ASKED):
        return verdict
    only_reads = claims is not None and ToolClaim.READ_ONLY in claims.held
    is_free = word is None or (word is ConsentWord.READ_ONLY and only_reads) or (verdict is FREE and keep_approvals)
    return 2 if is_free else 1


@pytest.mark.few(1)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_file_permits_more_than_its_host(shard: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(tmp_path)
    monkeypatch.setattr(desktop_host, "SYSTEM", reader.system)
    monkeypatch.setattr(host_judge, "PROJECT", str(reader.project))
    seen_levels: Counter[str] = Counter()
    for number in range(FIRST + shard, FIRST + FILES, SHARDS):
        rng = Random(number)
        scene = Scene(rng, host_judge.HOSTS[number // SHARDS % len(host_judge.HOSTS)])
        reader.write(scene)
        wider = list(_wider(reader, scene, judge(scene.host, scene.files, scene.main), seen_levels))
        assert not wider, f"file {number} of {scene.host}: {wider[:3]}\n{json.dumps(scene.files, indent=1)}"
    print(f"{FILES // SHARDS} files: {dict(sorted(seen_levels.items()))}")
    # Otherwise nothing would be shown by this.
    assert all(
        seen_levels[word] * 200 > seen_levels["served 0"]
        for word in ("served 1", "served 2", "import read-only 2", "import careful keep 2")
    )
    assert seen_levels["exact"] * 2 > seen_levels["all"]


def _wider(reader: Reader, scene: Scene, found: dict[str, Seen], levels: Counter[str]) -> list[str]:
    """The calls that are permitted more than the judge says."""
    wider: list[str] = []

    def compare(how: str, name: str, tool: str, level: int, most: int) -> None:
        levels[f"{how} {level}"] += 1
        levels["exact"] += level == most
        levels["all"] += 1
        if level > most:
            wider.append(f"{how}: {name} {tool!r}: {level}, and the most is {most}")

    nothing = Seen(off=True)
    if (made := reader.served(scene)) is not None:
        by_id = {make_id(name): seen for name, seen in reversed(found.items())}  # the first of two gets the id
        for id in made.servers:
            for tool, level in _levels(made, id, dict.fromkeys(TOOLS)):
                compare("served", id, tool, level, _most_served(by_id.get(id, nothing), tool))
    claimed = {tool: scene.rng.choice((None, *POSSIBLE_CLAIMS)) for tool in TOOLS}
    reading = frozenset(tool for tool in TOOLS if scene.maybe(0.5))  # they may claim something else by now
    for word in (ConsentWord.READ_ONLY, ConsentWord.CAREFUL, None):
        keep = scene.maybe(0.5)
        imported, ids = reader.imported(scene, word, reading, keep_approvals=keep)
        if imported is None:
            continue
        for name, id in ids.items():
            for tool, level in _levels(imported, id, claimed):
                most = _most_imported(found.get(name, nothing), tool, word, claimed[tool], keep_approvals=keep)
                compare(f"import {word or 'nothing'}{' keep' if keep else ''}", name, tool, level, most)
    return wider


def test_the_judge_knows_every_host() -> None:
    assert set(host_judge.HOSTS) == set(BY_NAME)


def _only(texts: dict[str, Any], host: str, main: str) -> Seen:
    (seen,) = judge(host, {place: json.dumps(values) for place, values in texts.items()}, main).values()
    return seen


def test_the_judge_itself() -> None:
    """A judge that permits everything would find nothing."""
    main = "~/.gemini/settings.json"
    entry = {"command": "x", "includeTools": ["read", "delete"], "excludeTools": ["delete"], "trust": True}
    seen = _only({main: {"mcpServers": {"files": entry}}}, "gemini", main)
    assert [seen.verdict(tool) for tool in ("read", "delete", "write_file")] == [FREE, DENIED, DENIED]
    seen = _only({main: {"mcpServers": {"files": {**entry, "unknown": 1}}}}, "gemini", main)
    assert [seen.verdict(tool) for tool in ("read", "delete")] == [ASKED, DENIED]
