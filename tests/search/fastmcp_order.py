"""FastMCP's `BM25SearchTransform` over given tools; runs in an environment that has FastMCP and nothing of Colonnade.

Reads `{"tools": {NAME: DEFINITION}, "queries": [TEXT]}` and writes the names of the tools found, by query.
"""

from __future__ import annotations

import json
import sys

import anyio
from fastmcp import Client, FastMCP  # type: ignore[import-not-found]  # it is in an environment of its own
from fastmcp.server.transforms.search import BM25SearchTransform  # type: ignore[import-not-found]
from fastmcp.tools.base import Tool  # type: ignore[import-not-found]

FOUND = 50


async def main() -> None:
    given = json.load(sys.stdin)
    server = FastMCP("search")
    for name, each in given["tools"].items():
        server.add_tool(Tool(name=name, description=each.get("description"), parameters=each["inputSchema"]))
    server.add_transform(
        BM25SearchTransform(
            max_results=FOUND, search_result_serializer=lambda tools: " ".join(each.name for each in tools)
        )
    )
    found = {}
    async with Client(server) as client:
        for query in given["queries"]:
            result = await client.call_tool("search_tools", {"query": query})
            found[query] = result.content[0].text.split() if result.content else []
    json.dump(found, sys.stdout)


anyio.run(main)
