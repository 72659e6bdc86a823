#!/usr/bin/env bash
# A bridge between a Python client and a Python server rounds an id of 19 digits: the tool gets that of another item.
#
# Packages: npm mcp-remote 0.15.1, supergateway 4.0.0, mcp-proxy 6.7.19; PyPI mcp 2.3.0. Needs Node 20 with npm, and
# Python 3.11 with venv. It listens on free ports of the loopback address.
#
# Expected: a bridge changes the transport and not the message. Arguments and results are JSON of a client and a server
# that know each other's schema, and a program between the two has no need to know the numbers in them. `integer` has
# no largest value in JSON Schema, and Python's `int` has none. Ids of messages, users and posts often have 19 digits.
#
# Seen on 2026-11-30: each of the three parses a message and writes it again, and JavaScript has all numbers as doubles,
# of which those above 2^53 are not all integers. 1234567890123456789 arrives as 1234567890123456800, in the arguments
# and in `structuredContent`, without an error: the number is an integer still, and valid by the schema. A tool that
# deletes by id deletes another item, or none. The same number in a text of the result stays, so that the two halves of
# one result disagree. Without the bridge, all of it arrives as it was sent. An id that is a string stays as it is.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check mcp==2.3.0 2>/dev/null
npm install --silent --no-audit --no-fund mcp-remote@0.15.1 supergateway@4.0.0 mcp-proxy@6.7.19 >/dev/null

cat >server.py <<'PY'
"""A server over stdio or, with the argument http, at a URL, whose port it prints."""

import sys

import anyio
import uvicorn
from mcp.server import MCPServer

server = MCPServer("server", log_level="CRITICAL")


@server.tool()
def find(id: int) -> str:
    return f"item {id}"


@server.tool()
def newest() -> dict[str, int]:
    return {"id": 1234567890123456789}


async def serve() -> None:
    http = uvicorn.Server(uvicorn.Config(server.streamable_http_app(), port=0, log_level="critical"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(http.serve)
        while not http.started:
            await anyio.sleep(0.05)
        print(http.servers[0].sockets[0].getsockname()[1], flush=True)


if sys.argv[1:] == ["http"]:
    anyio.run(serve)
else:
    server.run()
PY
cat >check.py <<'PY'
import json
import socket
import subprocess
import sys
from typing import Any

import anyio
from mcp import Client, StdioServerParameters


async def show(title: str, target: Any) -> None:
    async with Client(target, mode="legacy") as client:
        found = await client.call_tool("find", {"id": 1234567890123456789})
        newest = await client.call_tool("newest")
        texts = found.content[0].text, json.loads(newest.content[0].text)["id"]
        print(f"{title}: {texts[0]}; newest {newest.structured_content['id']}, in text {texts[1]}")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


async def behind(bridge: str, port: int, arguments: list[str]) -> None:
    command = [f"node_modules/.bin/{bridge}", "--port", str(port), *arguments]
    async with await anyio.open_process(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while True:
            try:
                await (await anyio.connect_tcp("127.0.0.1", port)).aclose()
                break
            except OSError:
                await anyio.sleep(0.2)
        await show(bridge, f"http://127.0.0.1:{port}/mcp")
        process.terminate()


async def main() -> None:
    with anyio.fail_after(300):
        await show("no bridge", StdioServerParameters(command=sys.executable, args=["server.py"]))
        with subprocess.Popen([sys.executable, "server.py", "http"], stdout=subprocess.PIPE, text=True) as server:
            url = f"http://127.0.0.1:{int(server.stdout.readline())}/mcp"
            arguments, folder = [url, "--allow-http"], {"MCP_REMOTE_CONFIG_DIR": "."}
            remote = StdioServerParameters(command="node_modules/.bin/mcp-remote", args=arguments, env=folder)
            await show("mcp-remote", remote)
            server.terminate()
        streamable = ["--outputTransport", "streamableHttp"]
        await behind("supergateway", free_port(), ["--stdio", f"{sys.executable} server.py", *streamable])
        await behind("mcp-proxy", free_port(), ["--host", "127.0.0.1", "--", sys.executable, "server.py"])


anyio.run(main)
PY
seen=$(venv/bin/python check.py 2>/dev/null)
echo "$seen"
rounded='item 1234567890123456800; newest 1234567890123456800, in text 1234567890123456789'
[ "$seen" = "no bridge: item 1234567890123456789; newest 1234567890123456789, in text 1234567890123456789
mcp-remote: $rounded
supergateway: $rounded
mcp-proxy: $rounded" ]
