#!/usr/bin/env bash
# Behind HAProxy, and behind Caddy with a line that many add, a call that was given up goes on, since 2026-07-28.
#
# Packages: PyPI mcp 2.3.0; of Debian 12 nginx 1.22.1, caddy 2.6.2, haproxy 2.6.12. Needs Python 3.11 with venv, and the
# three proxies. It listens on free ports of the loopback address.
#
# Expected: a proxy is no part of the protocol. A client of 2025-11-25 cancels by a message of its own. One of
# 2026-07-28 closes its request, and the server has to take that for a cancellation (Cancellation, "Transport-Specific
# Cancellation": MUST): a proxy whose client has gone closes its own connection, so that the server sees the same.
#
# Seen on 2026-11-30: nginx and Caddy do, as they are. HAProxy waits for the answer of its server as long as it is
# silent, unless it has `option abortonclose`. Caddy does so with `flush_interval -1`, which is there against collected
# events, and which a response of type text/event-stream does not need. The tool runs to its end for nobody, and nobody
# is told. A server that writes something meanwhile, such as a comment every 15 s, is cancelled after that at the
# earliest.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check mcp==2.3.0 2>/dev/null

cat >check.py <<'PY'
import contextlib
import logging
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import uvicorn
from mcp import Client
from mcp.server import MCPServer

NGINX = """
daemon off;
pid nginx.pid;
error_log /dev/null;
events {}
http {
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    server {
        listen 127.0.0.1:PROXY;
        location / {
            proxy_pass http://127.0.0.1:SERVER;
        }
    }
}
"""
CADDY = """
{
    admin off
    auto_https off
}
http://127.0.0.1:PROXY {
    reverse_proxy 127.0.0.1:SERVER {
        LINE
    }
}
"""
HAPROXY = """
defaults
  mode http
  timeout connect 5s
  timeout client 1m
  timeout server 1m
  LINE
frontend clients
  bind 127.0.0.1:PROXY
  default_backend servers
backend servers
  server one 127.0.0.1:SERVER
"""
KINDS = {
    "nginx": (NGINX, ["nginx", "-p", ".", "-e", "/dev/null", "-c"]),
    "Caddy": (CADDY, ["caddy", "run", "--adapter", "caddyfile", "--config"]),
    "HAProxy": (HAPROXY, ["haproxy", "-db", "-f"]),
}

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


@contextlib.contextmanager
def proxied(kind: str, line: str, port: int) -> Iterator[int]:
    """The port of a proxy of this kind, with this line, before the server at `port`; without a kind, that one."""
    if not kind:
        yield port
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        own = free.getsockname()[1]
    text, command = KINDS[kind]
    file = Path(f"{kind}.conf").absolute()
    file.write_text(text.replace("PROXY", str(own)).replace("SERVER", str(port)).replace("LINE", line))
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([*command, str(file)], **quiet) as proxy:
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", own), 1):
                break
            time.sleep(0.05)
        yield own
        proxy.terminate()


async def give_up(title: str, port: int, mode: str) -> None:
    async with Client(f"http://127.0.0.1:{port}/mcp", mode=mode) as client, anyio.create_task_group() as calls:
        version = client.session.protocol_version
        calls.start_soon(client.call_tool, "work")
        assert await heard.receive() == "begun"
        calls.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            print(f"{title}, {version}: the call is given up, and the tool is {await heard.receive()}")


async def main() -> None:
    http = uvicorn.Server(uvicorn.Config(server.streamable_http_app(), port=0, log_level="critical"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(http.serve)
        while not http.started:
            await anyio.sleep(0.05)
        port = http.servers[0].sockets[0].getsockname()[1]
        with anyio.fail_after(300):
            for kind, line in [
                ("", ""),
                ("nginx", ""),
                ("Caddy", ""),
                ("Caddy", "flush_interval -1"),
                ("HAProxy", ""),
                ("HAProxy", "option abortonclose"),
            ]:
                title = f"{kind} with {line}" if line else kind or "no proxy"
                with proxied(kind, line, port) as own:
                    await give_up(title, own, "legacy")
                    await give_up(title, own, "auto")
        http.should_exit = True


anyio.run(main)
PY
nginx -v 2>&1
echo "caddy $(caddy version)"
haproxy -v | head -1
seen=$(venv/bin/python check.py 2>/dev/null)
echo "$seen"
said='the call is given up, and the tool is'
[ "$seen" = "no proxy, 2025-11-25: $said cancelled
no proxy, 2026-07-28: $said cancelled
nginx, 2025-11-25: $said cancelled
nginx, 2026-07-28: $said cancelled
Caddy, 2025-11-25: $said cancelled
Caddy, 2026-07-28: $said cancelled
Caddy with flush_interval -1, 2025-11-25: $said cancelled
Caddy with flush_interval -1, 2026-07-28: $said finished
HAProxy, 2025-11-25: $said cancelled
HAProxy, 2026-07-28: $said finished
HAProxy with option abortonclose, 2025-11-25: $said cancelled
HAProxy with option abortonclose, 2026-07-28: $said cancelled" ]
