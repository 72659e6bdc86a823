#!/usr/bin/env bash
# A tool that returns the text 1.10 returns the number 1.1 through mcpo, and the hash of a commit can become null.
#
# Packages: PyPI mcpo 0.0.20, mcp 1.30.0, fastapi 0.124.4. Needs Python 3.11 with venv. It listens on a free port of the
# loopback address. (mcpo does not pin the other two, and does not start with their newest versions.)
#
# Expected: content of the type `text` is text (2025-11-25, Tools, "Text Content"). A tool that returns a version, a
# hash or a postal code returns the same through a bridge to OpenAPI, and a caller in a typed language gets a string for
# each value. What a tool returns as data is in `structuredContent`.
#
# Seen on 2026-11-30: mcpo tries to read each text as JSON, and answers with what it read. 1.10 is 1.1, and 7e3, the
# name of a room, is 7000.0. A short hash with digits and one `e` is a number as well: 6e83422 is more than a float can
# hold, so it is infinity, which FastAPI writes as null: the call succeeds, and its result is gone. 0123 and 6f83422 are
# no JSON, and stay. So the type of the result depends on its value: of hashes with seven digits, one in twenty is read
# as a number.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check mcpo==0.0.20 mcp==1.30.0 fastapi==0.124.4 2>/dev/null

cat >server.py <<'PY'
from mcp.server.fastmcp import FastMCP

server = FastMCP("server", log_level="CRITICAL")


@server.tool(structured_output=False)
def echo(text: str) -> str:
    return text


server.run()
PY
cat >check.py <<'PY'
import asyncio
import json
import socket
import subprocess
import sys
import time
from urllib.error import URLError
from urllib.request import Request, urlopen

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

TEXTS = ["0123", "1.10", "7e3", "6f83422", "6e83422"]


async def directly() -> list[str]:
    async with stdio_client(StdioServerParameters(command=sys.executable, args=["server.py"])) as streams:
        async with ClientSession(*streams) as session:
            await session.initialize()
            results = [await session.call_tool("echo", {"text": text}) for text in TEXTS]
            return [json.dumps(result.content[0].text) for result in results]


def post(port: int, text: str) -> str:
    body = json.dumps({"text": text}).encode()
    request = Request(f"http://127.0.0.1:{port}/echo", body, {"Content-Type": "application/json"})
    with urlopen(request) as response:
        return f"{response.status} {response.read().decode()}"


def through_mcpo() -> list[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["venv/bin/mcpo", "--host", "127.0.0.1", "--port", str(port), "--", sys.executable, "server.py"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as bridge:
        try:
            for _ in range(600):
                try:
                    urlopen(f"http://127.0.0.1:{port}/openapi.json").close()
                    break
                except URLError:
                    time.sleep(0.1)
            return [post(port, text) for text in TEXTS]
        finally:
            bridge.terminate()


for text, before, after in zip(TEXTS, asyncio.run(directly()), through_mcpo(), strict=True):
    print(f"{text}: mcp {before}, mcpo {after}")
PY
seen=$(venv/bin/python check.py 2>/dev/null)
echo "$seen"
[ "$seen" = '0123: mcp "0123", mcpo 200 "0123"
1.10: mcp "1.10", mcpo 200 1.1
7e3: mcp "7e3", mcpo 200 7000.0
6f83422: mcp "6f83422", mcpo 200 "6f83422"
6e83422: mcp "6e83422", mcpo 200 null' ]
