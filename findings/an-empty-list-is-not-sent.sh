#!/usr/bin/env bash
# CrewAI leaves empty lists out of a call: who takes the last label away sets the label that is there by default.
#
# Packages: PyPI crewai 1.15.30, mcp 1.30.0. Needs Python 3.11 with venv. No model is asked.
#
# Expected: what the model gives as arguments reaches the server. A tool that replaces a list is told that nothing is
# left by an empty one, and one that assigns is told by null that it is nobody. A client that leaves an argument out
# says something else: that it is to be as it is, or by default.
#
# Seen on 2026-12-01: before each call, all empty lists, empty objects and nulls are taken out of the arguments, at each
# depth, also where the input schema requires them (`_clean_tool_arguments`, crewai/mcp/client.py). So the labels of an
# issue become those of the default, and "nobody" the one who is assigned by default, and both calls succeed. A required
# list that is empty fails the call. A patch loses exactly the members that were to be emptied. Besides, an argument
# called `sources` that is a list of texts becomes one of objects, `{"type": …}`, whatever its schema says, and the
# server refuses it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check crewai==1.15.30 mcp==1.30.0 2>/dev/null

cat >server.py <<'PY'
import json
from typing import Any

from mcp.server.fastmcp import FastMCP

server = FastMCP("server", log_level="CRITICAL")


@server.tool()
def label(issue: int, labels: list[str] = ["bug"]) -> str:
    return f"{issue} has the labels {json.dumps(labels)}"


@server.tool()
def assign(issue: int, user: str | None = "ann") -> str:
    return f"{issue} is assigned to {json.dumps(user)}"


@server.tool()
def choose(columns: list[str]) -> str:
    return f"chose {json.dumps(columns)}"


@server.tool()
def patch(changes: dict[str, Any]) -> str:
    return f"changed {json.dumps(changes)}"


@server.tool()
def search(sources: list[str]) -> str:
    return f"searched in {json.dumps(sources)}"


server.run()
PY
cat >check.py <<'PY'
import asyncio
import sys
from typing import Any

from crewai.mcp import MCPClient
from crewai.mcp.transports.stdio import StdioTransport

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("label", {"issue": 7, "labels": []}),
    ("assign", {"issue": 7, "user": None}),
    ("choose", {"columns": []}),
    ("patch", {"changes": {"title": "Rain", "tags": [], "due": None, "owner": {}}}),
    ("search", {"sources": ["web", "mail"]}),
]


def short(text: str) -> str:
    """The text, or of an error the line that says what is wrong with which argument."""
    lines = text.splitlines()
    return " ".join(line.split(" [")[0].strip() for line in lines[1:3]) if len(lines) > 1 else text


async def main() -> None:
    async with MCPClient(StdioTransport(command=sys.executable, args=["server.py"])) as client:
        for name, arguments in CALLS:
            direct = await client.session.call_tool(name, arguments)
            print(f"SEEN mcp, {name}: {short(direct.content[0].text)}")
            print(f"SEEN crewai, {name}: {short(await client.call_tool(name, arguments))}")


asyncio.run(main())
PY
export CREWAI_DISABLE_TELEMETRY=true OTEL_SDK_DISABLED=true CREWAI_STORAGE_DIR="$folder/storage"
seen=$(venv/bin/python -W ignore check.py 2>/dev/null | sed -n 's/^.*SEEN \(mcp\|crewai\), /\1, /p')
echo "$seen"
[ "$seen" = 'mcp, label: 7 has the labels []
crewai, label: 7 has the labels ["bug"]
mcp, assign: 7 is assigned to null
crewai, assign: 7 is assigned to "ann"
mcp, choose: chose []
crewai, choose: columns Field required
mcp, patch: changed {"title": "Rain", "tags": [], "due": null, "owner": {}}
crewai, patch: changed {"title": "Rain"}
mcp, search: searched in ["web", "mail"]
crewai, search: sources.0 Input should be a valid string' ]
