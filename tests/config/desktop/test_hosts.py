"""The host of a file, known by the file's place or by its form as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.desktop.generic import GENERIC
from config.desktop.hosts import HOSTS, recognize
from config.desktop.importing import found
from tests.config.desktop.kit import Home, places, state

U, P = Path("/u"), Path("/p")


PLACES = {
    "claude-code": ("~/.claude.json", ".mcp.json"),
    "cursor": ("~/.cursor/mcp.json", ".cursor/mcp.json"),
    "windsurf": tuple(f"~/.codeium/{each}mcp_config.json" for each in ("windsurf/", "windsurf-next/", "")),
    "qwen": ("~/.qwen/settings.json", ".qwen/settings.json"),
    "gemini": ("~/.gemini/settings.json", ".gemini/settings.json"),
    "copilot": ("~/.copilot/mcp-config.json", ".github/mcp.json"),
    "lm-studio": ("~/.lmstudio/mcp.json", "~/.cache/lm-studio/mcp.json"),
    "codex": ("~/.codex/config.toml", ".codex/config.toml"),
    "zed": ("~/.config/zed/settings.json", ".zed/settings.json"),
    "continue": (
        "~/.continue/config.yaml",
        *(f"{user}.continue/mcpServers/*.{end}" for user in ("~/", "") for end in ("yaml", "yml", "json")),
    ),
    "opencode": (
        *(f"~/.config/opencode/{name}" for name in ("config.json", "opencode.json", "opencode.jsonc")),
        *(f"{folder}opencode.{end}" for folder in ("", ".opencode/") for end in ("json", "jsonc")),
    ),
    "amp": tuple(f"{folder}amp/settings.{end}" for folder in ("~/.config/", ".") for end in ("json", "jsonc")),
    "goose": ("~/.config/goose/config.yaml",),
}
"""All places of the files of hosts that are the same on both systems."""
TAIL = "User/globalStorage/{}/settings/{}"
SOME = {
    "claude-desktop": ("%/Claude/claude_desktop_config.json",),
    "vscode": (
        *(f"%/{editor}/User/mcp.json" for editor in ("Code", "Code - Insiders", "VSCodium")),
        *("~/.vscode-server/data/User/mcp.json", ".vscode/mcp.json"),
    ),
    "cline": (
        *(
            f"%/{editor}/{TAIL.format('saoudrizwan.claude-dev', 'cline_mcp_settings.json')}"
            for editor in ("Code", "Code - Insiders", "Windsurf")
        ),
        "~/.cline/data/settings/cline_mcp_settings.json",
    ),
    "roo": (
        *(
            f"%/{editor}/{TAIL.format('rooveterinaryinc.roo-cline', 'mcp_settings.json')}"
            for editor in ("Code", "Code - Insiders", "VSCodium", "Cursor")
        ),
        f"~/.vscode-server/data/{TAIL.format('rooveterinaryinc.roo-cline', 'mcp_settings.json')}",
        ".roo/mcp.json",
    ),
}
"""Some of the others, with `%` for the folder of programs of the system."""
FOLDERS = {"linux": "~/.config", "darwin": "~/Library/Application Support"}


def expected(place: str, platform: str) -> str:
    place = place.replace("%", FOLDERS[platform])
    return place.replace("~", str(U)) if place.startswith("~") else f"{P}/{place}"


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_places(platform: str) -> None:
    assert PLACES.keys() | SOME.keys() == {host.name for host in HOSTS}
    for host in HOSTS:
        found = places(host, platform)
        if host.name in PLACES:
            assert found == {expected(place, platform) for place in PLACES[host.name]}, host.name
        else:
            assert {expected(place, platform) for place in SOME[host.name]} <= found, host.name


@pytest.mark.parametrize(
    ("name", "variable", "value", "path"),
    [
        ("claude-code", "CLAUDE_CONFIG_DIR", "/x", "/x/.claude.json"),
        ("claude-desktop", "XDG_CONFIG_HOME", "/x", "/x/Claude/claude_desktop_config.json"),
        ("cline", "CLINE_MCP_SETTINGS_PATH", "/x/mine.json", "/x/mine.json"),
        ("codex", "CODEX_HOME", "/x", "/x/config.toml"),
        ("copilot", "COPILOT_HOME", "/x", "/x/mcp-config.json"),
        ("goose", "GOOSE_PATH_ROOT", "/x", "/x/config/config.yaml"),
        ("qwen", "QWEN_HOME", "/x", "/x/settings.json"),
    ],
)
def test_a_variable_moves_a_file(name: str, variable: str, value: str, path: str) -> None:
    (host,) = (host for host in HOSTS if host.name == name)
    assert path in places(host, "linux", {variable: value})


def test_each_place_leads_to_its_host() -> None:
    """On both systems, in the user's folder and in a project."""
    for known in HOSTS:
        for file in known.files:
            for platform in ("linux", "darwin"):
                assert recognize(file.path(P, U, {}, platform), {known.servers[0]: {}}) is known


def test_names_are_distinct() -> None:
    assert len({known.name for known in HOSTS}) == len({known.title for known in HOSTS}) == len(HOSTS)


@pytest.mark.parametrize("key", ["listen", "console", "audit"])
def test_a_shape_with_keys_of_ours_is_no_hosts(key: str) -> None:
    """A host would not know them, and the endpoint would be without its tokens."""
    root: dict[str, object] = {"mcpServers": {"a": {"command": "x"}}, "$version": "5"}
    assert recognize(Path("/x.json"), root) not in (None, GENERIC)
    assert recognize(Path("/x.json"), {**root, key: {}}) is GENERIC


OURS = {
    "servers": {"a": {"type": "http", "url": "https://h/mcp"}, "b": {"command": ["x"], "consent": {"tools": "ask"}}}
}
GITHUB = {"a": {"type": "http", "url": "https://h/mcp"}}
PASTED = {"b": {"type": "streamable-http", "url": "https://h/mcp"}, "c": {"serverUrl": "https://h/mcp"}}
LIST = [{"name": "a", "command": "x", "protocol": "stdio", "quarantined": True}]


@pytest.mark.parametrize(
    ("name", "root", "host"),
    [
        ("x.yaml", {"servers": {"a": {"command": "x"}}}, None),
        # One key of one server, or beside the servers, turns no file into that of a host.
        ("x.yaml", OURS, None),
        ("x.json", OURS, None),
        ("x.json", {**OURS, "inputs": []}, None),
        ("x.yaml", {"servers": {"a": {"type": "http", "url": "https://h/mcp"}}}, None),
        ("x.json", {"servers": {"a": {"type": "stdio", "command": "x"}, "b": {"command": "x y"}}}, None),
        ("x.json", {"servers": {"a": {"type": "stdio", "command": "x"}}}, "vscode"),
        ("x.json", {"mcpServers": {**PASTED, "a": {"command": "x", "transportType": "stdio"}}}, "generic"),
        ("x.json", {"mcpServers": {**PASTED, "a": {"command": "x", "type": "local", "tools": ["*"]}}}, "generic"),
        ("x.json", {"mcpServers": {**PASTED, "a": {"transport": {"command": "x"}}}}, "generic"),
        ("x.json", {"mcpServers": PASTED, "$version": 2}, "generic"),
        ("x.json", {"mcpServers": PASTED, "permissions": {"deny": []}}, "generic"),
        ("x.json", {"mcpServers": PASTED, "projects": {}}, "generic"),
        ("x.json", {"mcpServers": PASTED, "tools": {"exclude": []}}, "generic"),
        ("x.json", {"mcpServers": {"a": {"command": "x"}}, "$version": "5"}, "qwen"),
        ("x.json", {"mcpServers": {"a": {"command": "x"}}, "permissions": {}}, "generic"),
        ("x.toml", {"mcp_servers": {"a": {"command": "x"}}}, "codex"),
        ("x.yaml", {"mcp_servers": {"a": {"command": "x"}}}, "generic"),
        ("x.yaml", {"mcp_servers": {"a": {"command": "x"}}, "model_list": []}, "litellm"),
        ("x.yaml", {"mcpServers": [{"name": "a", "command": "x"}]}, "continue"),
        ("x.yaml", {"mcpServers": LIST}, "generic"),
        ("x.json", {"mcpServers": [{"name": "a", "command": "x"}]}, "generic"),
        ("x.json", {"mcpServers": LIST, "listen": "127.0.0.1:8080", "data_dir": "~/.mcpproxy"}, "mcpproxy"),
        ("x.json", {"mcpServers": {"a": {"command": "x"}}, "systemConfig": {}}, "mcphub"),
        ("x.json", {"a": {"command": "x"}, "b": {"url": "https://h/mcp"}}, "generic"),
        ("x.json", {"a": {"command": "x"}, "b": {"title": "none"}}, None),
        ("x.json", {"a": {"command": "x"}, "listen": {"address": "127.0.0.1:0"}}, None),
        ("x.json", {"servers": [{"name": "a", "command": "x"}]}, "generic"),
        ("x.json", {"servers": [{"name": "a", "command": "x"}], "policies": {}}, None),
        ("x.json", {"mcp": {"servers": {"a": {"command": "x"}}}}, None),
        ("x.yaml", {"mcp": {"a": {"type": "local", "command": ["x"]}}, "permission": {"a*": "deny"}}, None),
        ("x.json", {**OURS, "context_servers": {}}, None),
        ("x.json", {**OURS, "mcpServers": {}}, None),
        ("x.json", {**OURS, "mcpServers": PASTED}, "generic"),  # as it always was: those under servers are left out
        ("x.yaml", {**OURS, "extensions": {"a": {"type": "stdio", "cmd": "x"}}}, None),
        ("x.json", {"servers": {**GITHUB, "b": {"command": "x", "args": ["y"]}}}, "vscode"),
        ("x.json", {"servers": {**GITHUB, "b": {"command": "x y"}}}, None),
        ("x.json", {"servers": {**GITHUB, "b": {"url": "https://h/mcp"}}}, None),
        ("x.json", {"mcp": {"a": {"type": "local", "command": ["x"]}}}, "opencode"),
    ],
)
def test_whose_file_it_is_at_no_hosts_place(name: str, root: dict[str, object], host: str | None) -> None:
    known = recognize(Path("/p") / name, root)
    assert (known and known.name) == host


def test_a_file_of_servers_alone_needs_no_key_of_its_host() -> None:
    place = Path("/p/.continue/mcpServers/a.json")
    known = recognize(place, {"command": "x"})
    assert known is not None
    assert known.name == "continue"
    assert recognize(Path("/p/a.json"), {"command": "x"}) is None


def test_a_link_to_a_hosts_file_is_read_at_its_place(home: Home) -> None:
    """The files beside the file behind the link restrict it."""
    home.write(".claude/settings.json", {"permissions": {"deny": ["mcp__files"]}})
    file = home.write(".mcp.json", {"mcpServers": {"files": {"command": "x"}}})
    link = home.write("~/linked.json", "")
    link.unlink()
    link.symlink_to(file)
    made = home.read("~/linked.json")
    assert state(made, "files") == "deny"
    assert made.source == link
    assert found.read_servers(found.FoundFile(link, None), home.path, {})[0][0].tools.default == "deny"
