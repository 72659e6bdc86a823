"""The orders of the searches that are compared: for each query the tools, the best first.

All get the same tools. Colonnade's index gets them as `host/router` gives them to it; FastMCP gets them as tools of one
server, whose names begin with the server's, as those of a server that mounts others; SQLite gets name, server,
description, and the names and texts of arguments as columns of one FTS5 table, each with the weight 1.
"""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from host.search.index import Index, Tool
from tests.bench.build import from_pypi
from tests.bench.contenders import FASTMCP
from tests.kit.awaited import awaited
from tests.search.tools import Tools

Orders = Mapping[str, Sequence[str]]
"""Tools as `server/tool`, by query."""
FOUND = 50


def index_tools(tools: Tools) -> list[Tool]:
    """The tools as the index holds them."""
    return [(*_halves(name), json.dumps(each).encode()) for name, each in tools.items()]


def colonnade(tools: Tools, queries: Sequence[str]) -> Orders:
    index = Index()
    awaited(index.update(index_tools(tools)))
    found = {query: awaited(index.search(query, limit=FOUND)) for query in queries}
    return {query: [f"{hit.server}/{hit.name}" for hit in hits] for query, hits in found.items()}


def fastmcp(tools: Tools, queries: Sequence[str]) -> Orders:
    """Raises NotInstalled, subprocess.CalledProcessError."""
    names = {name.replace("/", "_", 1): name for name in tools}
    given = {"tools": {short: tools[name] for short, name in names.items()}, "queries": queries}
    program = [from_pypi(FASTMCP) / "python", Path(__file__).with_name("fastmcp_order.py")]
    done = subprocess.run(program, input=json.dumps(given), capture_output=True, text=True, check=True)
    return {query: [names[short] for short in found] for query, found in json.loads(done.stdout).items()}


def sqlite_fts5(tools: Tools, queries: Sequence[str]) -> Orders:
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE VIRTUAL TABLE search USING fts5(tool UNINDEXED, name, server, description, arguments)")
        rows = (
            (name, *reversed(_halves(name)), each.get("description", ""), _arguments(each))
            for name, each in tools.items()
        )
        database.executemany("INSERT INTO search VALUES (?, ?, ?, ?, ?)", rows)
        return {query: _matches(database, query) for query in queries}


def _matches(database: sqlite3.Connection, query: str) -> list[str]:
    words = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", query))
    select = "SELECT tool FROM search WHERE search MATCH ? ORDER BY bm25(search) LIMIT ?"
    return [name for (name,) in database.execute(select, (words, FOUND))]


def _arguments(definition: Mapping[str, Any]) -> str:
    properties = definition["inputSchema"].get("properties", {})
    return " ".join(
        f"{name} {each.get('description', '')}" for name, each in properties.items() if isinstance(each, dict)
    )


def _halves(name: str) -> tuple[str, str]:
    server, _, tool = name.partition("/")
    return server, tool
