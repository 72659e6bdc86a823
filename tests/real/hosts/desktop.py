"""The desktop hosts: where they come from, and how each runs headless on a model and servers of the tests.

Every one has a home of its own and sends nothing but to the model: telemetry and updates are off.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from .wires import MODEL

PROMPT = "Call the tool."

Servers = Mapping[str, Sequence[str]]
"""The command of each server, by its name."""


@dataclass(frozen=True)
class DesktopHost:
    """A host.

    Attributes:
        name: as Colonnade names it.
        package: of npm, with its version.
        program: of the package.
        file: with its servers, below its home.
        content: of that file, for servers and the URL of the model's endpoint.
        arguments: of the program, for a run with one prompt. `URL` stands for the endpoint.
        environment: what it needs beside HOME and PATH. `URL` stands for the endpoint.
        prepare: arguments of a run before the first, in which no server is started.
        settings: further files below its home, in JSON.
    """

    name: str
    package: str
    program: str
    file: str
    content: Callable[[Servers, str], str]
    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    prepare: Sequence[str] = ()
    settings: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    def write(self, home: Path, servers: Servers, url: str) -> Path:
        """Write its file, and say where."""
        contents = {name: _json(content) for name, content in self.settings.items()}
        for name, text in {**contents, self.file: self.content(servers, url)}.items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(text)
        return home / self.file


def _servers(servers: Servers, **more: object) -> dict[str, object]:
    """The form that most hosts share."""
    return {name: {"command": words[0], "args": words[1:], **more} for name, words in servers.items()}


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"


def _claude_code(servers: Servers, url: str) -> str:
    return _json({"hasCompletedOnboarding": True, "mcpServers": _servers(servers, type="stdio")})


def _codex(servers: Servers, url: str) -> str:
    lines = [
        f'model = "{MODEL}"',
        'model_provider = "tests"',
        "check_for_update_on_startup = false",
        "[analytics]",
        "enabled = false",
        "[model_providers.tests]",
        'name = "tests"',
        f'base_url = "{url}/v1"',
        'wire_api = "responses"',
    ]
    for name, words in servers.items():
        lines += [f"\n[mcp_servers.{name}]", f"command = {json.dumps(words[0])}", f"args = {json.dumps(words[1:])}"]
    return "\n".join(lines) + "\n"


def _gemini(servers: Servers, url: str, **more: object) -> str:
    quiet = {"privacy": {"usageStatisticsEnabled": False}, "general": {"enableAutoUpdate": False}}
    login = {"security": {"auth": {"selectedType": "gemini-api-key"}}}
    return _json({**quiet, **login, "mcpServers": _servers(servers), **more})


def _qwen(servers: Servers, url: str) -> str:
    return _gemini(servers, url, **{"$version": 4})  # which it would write itself


def _cline(servers: Servers, url: str) -> str:
    return _json({"mcpServers": _servers(servers)})


def _copilot(servers: Servers, url: str) -> str:
    return _json({"mcpServers": _servers(servers, type="local", tools=["*"])})


def _opencode(servers: Servers, url: str) -> str:
    options = {"baseURL": f"{url}/v1", "apiKey": "none"}
    model = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {MODEL: {}}}
    return _json(
        {
            "$schema": "https://opencode.ai/config.json",  # which it would write itself
            "model": f"tests/{MODEL}",
            "provider": {"tests": model},
            "autoupdate": False,
            "share": "disabled",
            "mcp": {name: {"type": "local", "command": words} for name, words in servers.items()},
        }
    )


def _continue(servers: Servers, url: str) -> str:
    model = {"name": "tests", "provider": "openai", "model": MODEL, "apiBase": f"{url}/v1", "apiKey": "none"}
    listed = [{"name": name, "command": words[0], "args": list(words[1:])} for name, words in servers.items()]
    head = {"name": "tests", "version": "1.0.0", "schema": "v1", "models": [model], "mcpServers": listed}
    return yaml.safe_dump(head, sort_keys=False)


DESKTOP_HOSTS = (
    DesktopHost(
        "claude-code", "@anthropic-ai/claude-code@2.1.332", "claude", ".claude.json", _claude_code,
        ("-p", "--dangerously-skip-permissions", PROMPT),
        {
            "ANTHROPIC_BASE_URL": "URL", "ANTHROPIC_API_KEY": "none", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "IS_SANDBOX": "1",  # else it refuses to skip permissions for the user root
        },
    ),
    DesktopHost(
        "codex", "@openai/codex@0.171.0", "codex", ".codex/config.toml", _codex,
        ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", PROMPT),
    ),
    DesktopHost(
        "gemini", "@google/gemini-cli@0.61.0", "gemini", ".gemini/settings.json", _gemini,
        ("--yolo", "--skip-trust", "--model", "gemini-2.5-flash", "-p", PROMPT),
        {"GEMINI_API_KEY": "none", "GOOGLE_GEMINI_BASE_URL": "URL"},
    ),
    DesktopHost(
        "cline", "cline@3.0.65", "cline", ".cline/data/settings/cline_mcp_settings.json", _cline,
        ("--json", "--auto-approve", "true", PROMPT),
        prepare=("auth", "-p", "openai", "-k", "none", "-m", MODEL, "-b", "URL/v1"),
        settings={".cline/data/settings/global-settings.json": {"telemetryOptOut": True, "autoUpdateEnabled": False}},
    ),
    DesktopHost(
        "opencode", "opencode-ai@1.18.33", "opencode", ".config/opencode/opencode.json", _opencode,
        ("run", "--auto", PROMPT),
        {"OPENCODE_DISABLE_MODELS_FETCH": "1", "npm_config_offline": "true"},  # else it installs a package of its own
    ),
    DesktopHost(
        "continue", "@continuedev/cli@1.5.47", "cn", ".continue/config.yaml", _continue,
        ("-p", "--auto", PROMPT),
        {"CONTINUE_METRICS_ENABLED": "0"},
    ),
    DesktopHost(
        "copilot", "@github/copilot@1.0.102", "copilot", ".copilot/mcp-config.json", _copilot,
        ("--allow-all-tools", "--disable-client-telemetry", "-p", PROMPT),
        {"COPILOT_PROVIDER_BASE_URL": "URL/v1", "COPILOT_MODEL": MODEL, "COPILOT_OFFLINE": "true"},
    ),
    DesktopHost(
        "qwen", "@qwen-code/qwen-code@0.24.4", "qwen", ".qwen/settings.json", _qwen,
        (
            "--yolo", "--auth-type", "openai", "--openai-api-key", "none", "--openai-base-url", "URL/v1",
            "--model", MODEL, "-p", PROMPT,
        ),
    ),
)  # fmt: skip
