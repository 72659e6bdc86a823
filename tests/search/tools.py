"""The tools of published servers, as they list them when this runs; nothing of their texts is kept.

python -m tests.search.tools        prints `server/tool` for each
python -m tests.search.tools --text their descriptions, too
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from tests.published.install import install
from tests.published.places import READY, Place, left_behind
from tests.published.run import parameters
from tests.published.servers import BY_PACKAGE

PACKAGES = {
    "atlassian": "pypi:mcp-atlassian",
    "calc": "npm:@coo-quack/calc-mcp",
    "chart": "npm:@antv/mcp-server-chart",
    "excel": "pypi:excel-mcp-server",
    "files": "npm:@modelcontextprotocol/server-filesystem",
    "firecrawl": "npm:firecrawl-mcp",
    "git": "pypi:mcp-server-git",
    "github": "npm:@modelcontextprotocol/server-github",
    "maps": "npm:@modelcontextprotocol/server-google-maps",
    "memory": "npm:@modelcontextprotocol/server-memory",
    "mobile": "npm:@mobilenext/mobile-mcp",
    "notion": "npm:@notionhq/notion-mcp-server",
    "playwright": "npm:@playwright/mcp",
    "slack": "npm:@modelcontextprotocol/server-slack",
    "taskmanager": "npm:@kazuph/mcp-taskmanager",
    "time": "pypi:mcp-server-time",
    "wikipedia": "pypi:wikipedia-mcp",
    "word": "pypi:office-word-mcp-server",
}
"""The servers, by the ids that the queries use."""
AT_ONCE = 4

Tools = dict[str, dict[str, Any]]
"""Definitions, by `server/tool`."""


def list_tools() -> Tools:
    """The tools of all servers, which are installed first if they are not there.

    Raises:
        AssertionError: a server left processes behind.
    """
    servers = {name: BY_PACKAGE[package] for name, package in PACKAGES.items()}
    install(servers.values())
    mark = secrets.token_hex(8)
    found: dict[str, Tools] = {}
    with tempfile.TemporaryDirectory(prefix="search-") as folder:
        targets: dict[str, StdioServerParameters] = {}
        for name, server in servers.items():
            place = Place(server, Path(folder, name))
            place.folder.mkdir()
            targets[name] = _quiet(parameters(place, mark))
        trio.run(_list_all, targets, found)
    assert not left_behind(mark), left_behind(mark)
    return {name: definition for server in servers for name, definition in found[server].items()}


def _quiet(program: StdioServerParameters) -> StdioServerParameters:
    """The same, without what it writes to standard error."""
    words = ["-c", 'exec "$0" "$@" 2>/dev/null', program.command, *program.args]
    return program.model_copy(update={"command": "sh", "args": words})


async def _list_all(targets: dict[str, StdioServerParameters], found: dict[str, Tools]) -> None:
    limit = trio.CapacityLimiter(AT_ONCE)

    async def one(server: str, target: StdioServerParameters) -> None:
        async with limit:
            found[server] = await _list(server, target)

    async with trio.open_nursery() as nursery:
        for server, target in targets.items():
            nursery.start_soon(one, server, target)


async def _list(server: str, target: StdioServerParameters) -> Tools:
    found: Tools = {}
    with trio.fail_after(READY):
        async with Client(target, mode="legacy", cache=None, read_timeout_seconds=READY) as client:
            cursor: str | None = None
            while True:
                page = await client.list_tools(cursor=cursor)
                for tool in page.tools:
                    found[f"{server}/{tool.name}"] = tool.model_dump(mode="json", by_alias=True, exclude_none=True)
                cursor = page.next_cursor
                if not cursor:
                    return found


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", action="store_true")
    options = parser.parse_args(words)
    for name, definition in list_tools().items():
        print(name)
        if options.text:
            print(json.dumps({key: definition.get(key) for key in ("description", "inputSchema")}, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
