#!/usr/bin/env bash
# A Bearer challenge that stands behind another scheme is not read by TypeScript clients: they look elsewhere.
#
# Packages: npm @modelcontextprotocol/sdk 1.32.2, @modelcontextprotocol/client 2.4.0; PyPI mcp 2.3.0. Needs Node 20
# with npm, and Python 3.11 with venv.
#
# Expected: `WWW-Authenticate: Negotiate, Bearer resource_metadata="…"` has two challenges (RFC 9110, 11.6.1), as a
# proxy adds its own to that of the server behind it. A client reads the Bearer one and asks for the metadata where it
# says.
#
# Seen on 2026-11-28: both TypeScript clients look at the first word of the header alone. Behind `Negotiate` or
# `Basic` they ignore `resource_metadata`, say nothing, and ask below /.well-known instead. With two header fields it
# is the same, because fetch joins them. The Python client searches the whole header, and finds the place. A server
# that has its metadata at the usual place too hides the difference.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check mcp==2.3.0 2>/dev/null
npm install --silent --no-audit --no-fund @modelcontextprotocol/sdk@1.32.2 @modelcontextprotocol/client@2.4.0 >/dev/null

cat >server.mjs <<'JS'
// Refuses each request to /mcp with the challenge of its query, and prints the first place that is asked for metadata.
import {createServer} from 'node:http';

let asked = false;
const server = createServer((request, response) => {
  const {pathname, searchParams} = new URL(request.url, 'http://127.0.0.1');
  if (pathname !== '/mcp') {
    if (!asked) console.log(pathname);
    asked = true;
    return response.writeHead(404).end();
  }
  const here = `http://127.0.0.1:${server.address().port}`;
  const bearer = `Bearer resource_metadata="${here}/metadata"`;
  const challenges = {
    alone: bearer,
    behind: `Negotiate, ${bearer}`,
    apart: ['Basic realm="proxy"', bearer], // two header fields
  };
  response.writeHead(401, {'WWW-Authenticate': challenges[searchParams.get('challenge')]}).end();
});
server.listen(0, '127.0.0.1', () => console.log(server.address().port));
JS
cat >check.mjs <<'JS'
import {Client as One} from '@modelcontextprotocol/sdk/client/index.js';
import {StreamableHTTPClientTransport as OneHttp} from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import {Client as Two, StreamableHTTPClientTransport as TwoHttp} from '@modelcontextprotocol/client';

const [major, address] = process.argv.slice(2);
const [Client, Http] = {1: [One, OneHttp], 2: [Two, TwoHttp]}[major];
const authProvider = {
  redirectUrl: 'http://127.0.0.1/callback',
  clientMetadata: {redirect_uris: ['http://127.0.0.1/callback']},
  clientInformation() {}, saveClientInformation() {}, tokens() {}, saveTokens() {},
  redirectToAuthorization() {}, saveCodeVerifier() {}, codeVerifier: () => '',
};
const client = new Client({name: 'client', version: '1'});
await client.connect(new Http(new URL(address), {authProvider})).catch(() => {});
JS
cat >check.py <<'PY'
import sys
from typing import Any

import anyio
import httpx2
from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import OAuthClientMetadata


class Nowhere:
    async def get_tokens(self) -> None: ...
    async def set_tokens(self, tokens: Any) -> None: ...
    async def get_client_info(self) -> None: ...
    async def set_client_info(self, info: Any) -> None: ...


async def main(address: str) -> None:
    metadata = OAuthClientMetadata(redirect_uris=["http://127.0.0.1/callback"])
    async with httpx2.AsyncClient(auth=OAuthClientProvider(address, metadata, Nowhere())) as client:
        await client.post(address, json={})


try:
    anyio.run(main, sys.argv[1])
except Exception:
    pass
PY

# The first place that a client asks for metadata: play TITLE CHALLENGE COMMAND…
play() {
    local title=$1 challenge=$2 port
    shift 2
    mkfifo told
    node server.mjs >told &
    { read -r port; timeout 60 "$@" "http://127.0.0.1:$port/mcp?challenge=$challenge" >/dev/null 2>&1 || true
      read -r place; } <told
    kill $! && wait $! 2>/dev/null || true
    rm told
    echo "$title, $challenge: $place"
}
seen=$(
    for challenge in alone behind apart; do
        play 'TypeScript 1.32.2' $challenge node check.mjs 1
        play 'TypeScript 2.4.0' $challenge node check.mjs 2
        play 'Python 2.3.0' $challenge venv/bin/python check.py
    done
)
echo "$seen"
[ "$seen" = 'TypeScript 1.32.2, alone: /metadata
TypeScript 2.4.0, alone: /metadata
Python 2.3.0, alone: /metadata
TypeScript 1.32.2, behind: /.well-known/oauth-protected-resource/mcp
TypeScript 2.4.0, behind: /.well-known/oauth-protected-resource/mcp
Python 2.3.0, behind: /metadata
TypeScript 1.32.2, apart: /.well-known/oauth-protected-resource/mcp
TypeScript 2.4.0, apart: /.well-known/oauth-protected-resource/mcp
Python 2.3.0, apart: /metadata' ]
