#!/usr/bin/env bash
# `mcp-remote --protocol auto` passes a cancel on in a form that means nothing to a server of 2026-07-28.
#
# Packages: npm mcp-remote 0.15.1; PyPI mcp 2.3.0. Needs Node 20 with npm, and Python 3.11 with venv. It listens on a
# free port of the loopback address.
#
# Expected: its README says of `auto` that each later request is rewritten for the newer revision, and names what is
# bridged beyond requests: change notifications, and calls that ask for input. Over stdio, a client cancels by
# `notifications/cancelled` in both revisions. Over HTTP in 2026-07-28 it closes the response stream, and sends no such
# notification (Cancellation, "Transport-Specific Cancellation"). So the bridge closes the request of that call.
#
# Seen on 2026-11-30: the bridge posts the notification, and leaves the request open. The server answers 202, and goes
# on, because an id that a client has chosen names nothing there. The tool runs to its end, for an older client as for
# one that speaks 2026-07-28 itself, and neither learns of it. With `--protocol legacy`, the default, the same cancel
# stops the tool of the same server.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check mcp==2.3.0 2>/dev/null
npm install --silent --no-audit --no-fund mcp-remote@0.15.1 >/dev/null

cat >check.py <<'PY'
import logging

import anyio
import uvicorn
from mcp import Client, StdioServerParameters
from mcp.server import MCPServer

logging.disable(logging.CRITICAL)
server = MCPServer("server", log_level="CRITICAL")
said, heard = anyio.create_memory_object_stream[str](10)


@server.tool()
async def work() -> str:
    said.send_nowait("begun")
    try:
        await anyio.sleep(10)
    except anyio.get_cancelled_exc_class():
        said.send_nowait("cancelled")
        raise
    said.send_nowait("finished")
    return "done"


async def give_up(title: str, url: str, protocol: str | None, mode: str) -> None:
    bridge = StdioServerParameters(
        command="node_modules/.bin/mcp-remote",
        args=[url, "--allow-http", "--transport", "http-only", "--protocol", protocol or ""],
        env={"MCP_REMOTE_CONFIG_DIR": "."},
    )
    async with Client(bridge if protocol else url, mode=mode) as client, anyio.create_task_group() as calls:
        version = client.session.protocol_version
        calls.start_soon(client.call_tool, "work")
        assert await heard.receive() == "begun"
        calls.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            print(f"{title}, client of {version}: the call is given up, and the tool is {await heard.receive()}")


async def main() -> None:
    http = uvicorn.Server(uvicorn.Config(server.streamable_http_app(), port=0, log_level="critical"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(http.serve)
        while not http.started:
            await anyio.sleep(0.05)
        url = f"http://127.0.0.1:{http.servers[0].sockets[0].getsockname()[1]}/mcp"
        with anyio.fail_after(300):
            await give_up("no bridge", url, None, "legacy")
            await give_up("no bridge", url, None, "auto")
            await give_up("--protocol legacy", url, "legacy", "legacy")
            await give_up("--protocol auto", url, "auto", "legacy")
            await give_up("--protocol auto", url, "auto", "auto")
        http.should_exit = True


anyio.run(main)
PY
seen=$(venv/bin/python check.py 2>/dev/null)
echo "$seen"
said='the call is given up, and the tool is'
[ "$seen" = "no bridge, client of 2025-11-25: $said cancelled
no bridge, client of 2026-07-28: $said cancelled
--protocol legacy, client of 2025-11-25: $said cancelled
--protocol auto, client of 2025-11-25: $said finished
--protocol auto, client of 2026-07-28: $said finished" ]
