#!/usr/bin/env bash
# With OAuth, a client of the Python SDK sends its next call when the last one is answered, since 2026-07-28.
#
# Packages: PyPI mcp 2.3.0. Needs Python 3.11 with venv. It listens on a free port of the loopback address.
#
# Expected: calls that one client makes at once are in the server at once, with a login as without one, and in the
# stateless revision as before. `OAuthClientProvider` adds a header to each request, and has more to do only when a
# token has expired or is refused (RFC 6750, 2.1, and RFC 6749, 6).
#
# Seen on 2026-11-30: the provider holds its lock from before a request until the head of the response is there
# (`_auth_flow`, mcp/client/auth/oauth2.py). A server of 2025-11-25 that streams sends the head before it runs the tool,
# so it does not show there. In 2026-07-28 the status can depend on the result, so the server of the same SDK sends the
# head with the answer, with the first notification, or after 15 seconds. Until then each other request of this client
# waits, lists and short calls too. Both ends agree on the newer revision by themselves. A tool that reports progress to
# a client that has asked for it, `mode="legacy"`, or a token in a header of the client's own avoids it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check mcp==2.3.0 2>/dev/null

cat >check.py <<'PY'
"""Two calls at once of a tool that waits until both are there, for six seconds at most: how many were."""

import anyio
import httpx2
import uvicorn
from mcp import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.auth import OAuthClientMetadata, OAuthToken

server = MCPServer("server", log_level="CRITICAL")
inside, together = 0, 0


@server.tool()
async def meet(ctx: Context) -> str:
    global inside, together
    inside += 1
    together = max(together, inside)
    await ctx.report_progress(0)
    with anyio.move_on_after(6):
        while together < 2:
            await anyio.sleep(0.05)
    inside -= 1
    return "done"


class Storage:
    """A token that is valid for an hour, from an earlier login."""

    async def get_tokens(self) -> OAuthToken:
        return OAuthToken(access_token="token", expires_in=3600)

    async def get_client_info(self) -> None:
        return None


def oauth(url: str) -> OAuthClientProvider:
    metadata = OAuthClientMetadata(redirect_uris=["http://localhost/callback"])
    return OAuthClientProvider(url, metadata, Storage())


async def ignore(*_: object) -> None: ...


async def count(url: str, mode: str, auth: httpx2.Auth | None, progress: bool = False) -> None:
    global together
    together = 0
    headers = {} if auth else {"Authorization": "Bearer token"}
    async with (
        httpx2.AsyncClient(auth=auth, headers=headers, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
        anyio.create_task_group() as calls,
    ):
        for _ in range(2):
            calls.start_soon(lambda: client.call_tool("meet", progress_callback=ignore if progress else None))
        version = client.session.protocol_version
    how = "OAuth" if auth else "a header"
    print(f"{version}, {how}{', progress' if progress else ''}: {together} of 2 calls at once")


async def main() -> None:
    config = uvicorn.Config(server.streamable_http_app(), port=0, log_level="critical")
    http = uvicorn.Server(config)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(http.serve)
        while not http.started:
            await anyio.sleep(0.05)
        url = f"http://127.0.0.1:{http.servers[0].sockets[0].getsockname()[1]}/mcp"
        with anyio.fail_after(300):
            for mode in ("legacy", "auto"):
                await count(url, mode, None)
                await count(url, mode, oauth(url))
            await count(url, "auto", oauth(url), progress=True)
        http.should_exit = True


anyio.run(main)
PY
seen=$(venv/bin/python check.py 2>/dev/null)
echo "$seen"
[ "$seen" = '2025-11-25, a header: 2 of 2 calls at once
2025-11-25, OAuth: 2 of 2 calls at once
2026-07-28, a header: 2 of 2 calls at once
2026-07-28, OAuth: 1 of 2 calls at once
2026-07-28, OAuth, progress: 2 of 2 calls at once' ]
