"""Files that describe servers and start none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import config
from config.desktop.foreign_files import refusal

FILES: list[tuple[str, dict[str, object]]] = [
    (
        "the manifest of a Claude extension",
        {"manifest_version": "0.3", "name": "x", "server": {"type": "node", "mcp_config": {"command": "node"}}},
    ),
    ("the manifest of a Claude extension", {"dxt_version": "0.1", "name": "x", "server": {"type": "python"}}),
    ("of the MCP registry", {"name": "io.example/x", "packages": [{"registryType": "npm", "identifier": "x"}]}),
    ("of the MCP registry", {"name": "io.example/x", "remotes": [{"type": "sse", "url": "https://h/sse"}]}),
    ("of the MCP registry", {"server": {"name": "io.example/x", "remotes": []}, "_meta": {}}),
    ("of the MCP registry", {"servers": [{"server": {"name": "io.example/x", "packages": []}}]}),
    ("of FastMCP", {"source": {"path": "server.py"}, "deployment": {"transport": "stdio"}}),
    ("of FastMCP", {"$schema": "https://gofastmcp.com/public/schemas/fastmcp.json/v1.json", "environment": {}}),
    ("a catalog of Docker", {"version": 3, "name": "docker-mcp", "registry": {"fetch": {"image": "mcp/fetch"}}}),
    ("a catalog of Docker", {"registry": {"fetch": {"ref": ""}}}),
    ("of agentgateway", {"mcp": {"port": 3000, "targets": [{"name": "a", "stdio": {"cmd": "npx"}}]}}),
    ("of agentgateway", {"binds": [{"port": 3000}]}),
    ("of FastMCP", {"entrypoint": {"file": "server.py"}, "environment": {}}),
    ("a catalog of Docker", {"name": "fetch", "image": "mcp/fetch", "type": "server", "about": {"title": "F"}}),
    ("a description of an API", {"openapi": "3.1.0", "info": {}, "servers": [{"url": "https://h"}], "paths": {}}),
    ("a description of an API", {"swagger": "2.0", "info": {}, "paths": {}}),
    ("of Docker Compose", {"version": "3", "services": {"a": {"image": "x", "command": ["y"]}}}),
    ("the package.json", {"name": "x", "version": "1.0.0", "bin": {"x": "i.js"}}),
    ("the pyproject.toml", {"project": {"name": "x"}, "tool": {}}),
    ("of Smithery", {"startCommand": {"type": "stdio"}}),
    ("of Smithery", {"runtime": "typescript"}),
    ("a workflow of n8n", {"name": "x", "nodes": [{"type": "n8n-nodes-base.set"}], "connections": {}}),
    ("settings of Claude Code", {"permissions": {"deny": ["mcp__x"]}}),
    ("settings of Claude Code", {"enableAllProjectMcpServers": True}),
    ("a development container", {"image": "x", "customizations": {"vscode": {"mcp": {"servers": {}}}}}),
    ("a former config.json of Continue", {"models": [], "experimental": {"modelContextProtocolServers": []}}),
    ("of OpenHands", {"mcp": {"sse_servers": ["https://h/sse"]}}),
    ("under another key than mcpServers", {"mcpservers": {"a": {"command": "x"}}}),
    ("under another key than mcpServers", {"ai-features.mcp.mcpServers": {"a": {"command": "x"}}}),
    ("JSON with typographic quotes", {"“mcpServers”": {"“a”": {}}}),
    ("settings, with servers under mcp", {"mcp": {"servers": {"a": {"command": "x"}}, "inputs": []}}),
    ("settings, with servers under mcp", {"mcp": {"a": {"type": "stdio", "command": "x"}}, "options": {}}),
    ("one server without a name", {"command": "npx", "args": ["-y", "x"]}),
    ("one server without a name", {"type": "http", "url": "https://h/mcp"}),
    ("one server without a name", {"name": "x", "transport": {"type": "stdio", "command": "npx"}}),
]


@pytest.mark.parametrize(("what", "root"), FILES)
def test_a_file_is_called_what_it_is(tmp_path: Path, what: str, root: dict[str, object]) -> None:
    """With what to do, in JSON and in YAML."""
    for name in ("a.json", "a.yaml"):
        (tmp_path / name).write_text(json.dumps(root))
        with pytest.raises(config.ConfigError) as caught:
            config.load(tmp_path / name, {})
        (problem,) = caught.value.problems
        assert problem.text.startswith("this is ")
        assert what in problem.text
        assert any(each in problem.text for each in ("colonnade add NAME", "mcpServers", "straight ones"))


@pytest.mark.parametrize(
    "beside",
    [
        *("mcp_servers", "mcp", "context_servers", "amp.mcpServers", "extensions"),
        *("registry", "binds", "source", "name", "manifest_version", "services", "permissions", "inputs"),
    ],
)
def test_no_key_beside_servers_of_ours_makes_a_file_anothers(tmp_path: Path, beside: str) -> None:
    """It is an unknown key, and the other problems are found too."""
    theirs = [] if beside == "binds" else {"a": {"type": "local", "command": ["x"], "image": "i"}}
    ours = {"command": ["x", "${env:MISSING}"], "consent": {"tools": {"deny": ["*"]}}}
    (tmp_path / "a.json").write_text(json.dumps({beside: theirs, "packages": [], "servers": {"mine": ours}}))
    with pytest.raises(config.ConfigError) as caught:
        config.load(tmp_path / "a.json", {})
    found = {problem.where: problem.text for problem in caught.value.problems}
    shown = beside if "." not in beside else found.keys() - {"packages", "servers.mine.command[1]"}
    assert found.keys() == {"packages", "servers.mine.command[1]", *([shown] if isinstance(shown, str) else shown)}
    assert "MISSING is not set" in found["servers.mine.command[1]"]


@pytest.mark.parametrize(
    "root",
    [
        {"servers": {"a": {"command": "x"}}},
        {"servers": {"a": {"command": "x"}}, "manifest_version": 3},
        {"manifest_version": 3, "name": "an extension of a browser"},
        {"name": "x", "packages": {"": {}}},
        {"source": "text"},
        {"registry": {}},
        {},
    ],
)
def test_other_files(root: dict[str, object]) -> None:
    assert refusal(root) == ""
