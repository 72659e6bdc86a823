"""Files that describe servers and start none: what they are, and what to do with them instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from config.desktop.desktop_host import at
from config.own_form import has_own_servers

_OF_SMITHERY = ("typescript", "python", "container")
Shape = Callable[[Mapping[str, object]], bool]


def refusal(root: Mapping[str, object]) -> str:
    """Why nothing can be read from a file, in a sentence that names its kind; empty for any other file."""
    if has_own_servers(root):
        return ""
    return next((f"this is {what}; {remedy}" for what, remedy, is_one in _KINDS if is_one(root)), "")


def _is_of_registry(root: Mapping[str, object]) -> bool:
    entry = at(dict(root), "server") or root
    listed = root.get("servers")
    if isinstance(listed, list) and listed:
        first = listed[0]
        entry = (at(first, "server") or first) if isinstance(first, dict) else {}
    lists = (entry.get("packages"), entry.get("remotes"))
    return isinstance(entry.get("name"), str) and any(isinstance(each, list) for each in lists)


def _is_of_fastmcp(root: Mapping[str, object]) -> bool:
    source = root.get("source", root.get("entrypoint"))
    is_source = isinstance(source, dict) and not {"path", "type", "file"}.isdisjoint(source)
    return "mcpServers" not in root and (is_source or "gofastmcp.com" in str(root.get("$schema", "")))


def _is_of_docker(root: Mapping[str, object]) -> bool:
    registry = at(dict(root), "registry")
    is_of_one = isinstance(root.get("image"), str) and isinstance(root.get("about"), dict)
    return is_of_one or (bool(registry) and all(isinstance(each, dict) for each in registry.values()))


def _has_settings(root: Mapping[str, object]) -> bool:
    mcp = at(dict(root), "mcp")
    found = at(mcp, "servers") or mcp
    return any(isinstance(each, dict) and not {"command", "url"}.isdisjoint(each) for each in found.values())


def _is_of_compose(root: Mapping[str, object]) -> bool:
    services = at(dict(root), "services").values()
    return any(isinstance(each, dict) and not {"image", "build"}.isdisjoint(each) for each in services)


def _is_of_npm(root: Mapping[str, object]) -> bool:
    return isinstance(root.get("name"), str) and any(
        isinstance(root.get(key), dict) for key in ("dependencies", "devDependencies", "scripts", "bin")
    )


def _is_of_claude_code(root: Mapping[str, object]) -> bool:
    lists = ("enabledMcpjsonServers", "disabledMcpjsonServers", "enableAllProjectMcpServers")
    return any(key in root for key in lists) or any(isinstance(root.get(key), dict) for key in ("permissions", "hooks"))


def _has_servers_elsewhere(root: Mapping[str, object]) -> bool:
    return "servers" not in root and any(
        re.sub("[^a-z]", "", key.lower()).endswith(("mcpserver", "mcpservers"))
        for key, value in root.items()
        if isinstance(value, dict | list)
    )


def _is_one_server(root: Mapping[str, object]) -> bool:
    keys = ("command", "url", "serverUrl", "httpUrl")
    transport = at(dict(root), "transport")
    return "servers" not in root and any(isinstance(transport.get(key, root.get(key)), str | list) for key in keys)


_ADD = "colonnade add NAME -- COMMAND ARGUMENTS"
_KINDS: tuple[tuple[str, str, Shape], ...] = (
    (
        "the manifest of a Claude extension (.mcpb, formerly .dxt)",
        f"add its server with {_ADD}: its server.mcp_config has both, with ${{__dirname}} for the folder of this file",
        lambda root: not {"manifest_version", "dxt_version"}.isdisjoint(root) and isinstance(root.get("server"), dict),
    ),
    (
        "an entry of the MCP registry (server.json), which says where a server is published",
        "add it with colonnade add NAME URL, or colonnade add NAME -- npx -y PACKAGE (uvx PACKAGE for PyPI)",
        _is_of_registry,
    ),
    (
        "the file of one server of FastMCP (fastmcp.json)",
        "add it with colonnade add NAME -- fastmcp run FILE",
        _is_of_fastmcp,
    ),
    (
        "a catalog of Docker's MCP Toolkit",
        "add a server of it with colonnade add NAME -- docker mcp gateway run --servers SERVER",
        _is_of_docker,
    ),
    (
        "a configuration of agentgateway",
        f"add each of its targets with {_ADD}, or colonnade add NAME URL",
        lambda root: isinstance(root.get("binds"), list) or isinstance(at(dict(root), "mcp").get("targets"), list),
    ),
    (
        "a file of settings, with servers under mcp",
        "put these under mcpServers in a file of their own",
        _has_settings,
    ),
    (
        "a description of an API, and no list of MCP servers",
        f"add a program that makes an MCP server of it with {_ADD}",
        lambda root: isinstance(root.get("info"), dict) and not {"openapi", "swagger", "asyncapi"}.isdisjoint(root),
    ),
    (
        "a file of Docker Compose",
        "add each of its MCP servers with colonnade add NAME URL, or colonnade add NAME -- docker run -i --rm IMAGE",
        _is_of_compose,
    ),
    (
        "the package.json of a program",
        "add it with colonnade add NAME -- npx -y PACKAGE",
        _is_of_npm,
    ),
    (
        "the pyproject.toml of a program",
        "add it with colonnade add NAME -- uvx PACKAGE",
        lambda root: "name" in at(dict(root), "project") or isinstance(root.get("build-system"), dict),
    ),
    (
        "of Smithery (smithery.yaml), which says how a server is built",
        f"add it with {_ADD}, or colonnade add NAME URL",
        lambda root: isinstance(root.get("startCommand"), dict) or root.get("runtime") in _OF_SMITHERY,
    ),
    (
        "a workflow of n8n",
        "add the URL of its MCP Server Trigger with colonnade add NAME URL",
        lambda root: isinstance(root.get("nodes"), list) and isinstance(root.get("connections"), dict),
    ),
    (
        "settings of Claude Code, whose servers stand in other files",
        "colonnade import claude-code finds them, and colonnade add NAME adds one",
        _is_of_claude_code,
    ),
    (
        "the file of a development container",
        f"add each of the servers in its customizations with {_ADD}, or colonnade add NAME URL",
        lambda root: bool(at(dict(root), "customizations")),
    ),
    (
        "a former config.json of Continue",
        f"add each of its modelContextProtocolServers with {_ADD}, or colonnade add NAME URL",
        lambda root: "modelContextProtocolServers" in at(dict(root), "experimental"),
    ),
    (
        "a configuration of OpenHands",
        f"add each of its servers with {_ADD}, or colonnade add NAME URL",
        lambda root: not {"sse_servers", "stdio_servers", "shttp_servers"}.isdisjoint(at(dict(root), "mcp")),
    ),
    (
        "JSON with typographic quotes (“ ”)",
        'write straight ones (")',
        lambda root: any(key.startswith(("“", "‘", "”")) for key in root),
    ),
    (
        "a file with servers under another key than mcpServers",
        'rename that key to "mcpServers"',
        _has_servers_elsewhere,
    ),
    (
        "one server without a name",
        'put it under mcpServers: {"mcpServers": {"NAME": {…}}}',
        _is_one_server,
    ),
)
