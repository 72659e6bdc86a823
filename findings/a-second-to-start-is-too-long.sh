#!/usr/bin/env bash
# A program that needs more than a second to start is lost to the AI SDK once its server speaks 2026-07-28.
#
# Packages: npm @ai-sdk/mcp 2.0.99, @modelcontextprotocol/client 2.4.0; PyPI mcp 2.3.0; mcp 1.30.0 for the older server.
# Needs Node 20 with npm, and Python 3.11 with venv.
#
# Expected: a client that does not know what a server speaks asks it by `server/discover`, and falls back to the
# handshake if it is an older one. It takes silence for nothing but silence, because a program that is started has to
# import its modules first, and one that is run by npx or uvx to be installed.
#
# Seen on 2026-11-30: over stdio, the AI SDK waits one second, and then sends `initialize` behind the question on the
# same pipe. The program reads both when it has started, answers the first, and refuses the second, since the first has
# chosen the revision: "the initialize handshake is not accepted". The answer to the question has come by then, and is
# reported as one to an unknown request. The older server, as slow, refuses the first and answers the second. So the
# update of the server alone brings this about, for the same program on the slower machine. `initializationOptions` has
# limits for the start, and none for this second. `protocolVersionDiscovery: false` helps. The TypeScript SDK asks in a
# process of its own, and the Python SDK waits for ten seconds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
for version in 1.30.0 2.3.0; do
    python3 -m venv "$version"
    "$version/bin/pip" install --quiet --disable-pip-version-check "mcp==$version" 2>/dev/null
done
npm install --silent --no-audit --no-fund @ai-sdk/mcp@2.0.99 @modelcontextprotocol/client@2.4.0 >/dev/null

cat >server.py <<'PY'
"""A server that has as many seconds of work before it reads as its argument says."""

import sys
import time

time.sleep(float(sys.argv[1]))
try:
    from mcp.server import MCPServer
except ImportError:
    from mcp.server.fastmcp import FastMCP as MCPServer

MCPServer("server", log_level="CRITICAL").run()
PY
cat >check.mjs <<'JS'
import {createMCPClient} from '@ai-sdk/mcp';
import {Experimental_StdioMCPTransport} from '@ai-sdk/mcp/mcp-stdio';
import {Client} from '@modelcontextprotocol/client';
import {StdioClientTransport} from '@modelcontextprotocol/client/stdio';

async function ai(program, protocolVersionDiscovery) {
  const transport = new Experimental_StdioMCPTransport(program);
  const client = await createMCPClient({transport, protocolVersionDiscovery});
  const {protocolVersion} = client.initializeResult;
  await client.close();
  return protocolVersion;
}

async function sdk(program) {
  const client = new Client({name: 'client', version: '1'}, {versionNegotiation: {mode: 'auto'}});
  await client.connect(new StdioClientTransport(program));
  const version = client.getNegotiatedProtocolVersion();
  await client.close();
  return version;
}

async function show(title, version, connect) {
  const program = {command: `${version}/bin/python`, args: ['server.py', '4']};
  console.log(`${title}, mcp ${version}: ${await connect(program).catch(({message}) => message)}`);
}

await show('AI SDK', '1.30.0', program => ai(program));
await show('AI SDK', '2.3.0', program => ai(program));
await show('AI SDK without discovery', '2.3.0', program => ai(program, false));
await show('client 2.4.0', '2.3.0', sdk);
JS
seen=$(node check.mjs 2>/dev/null)
echo "$seen"
[ "$seen" = 'AI SDK, mcp 1.30.0: 2025-11-25
AI SDK, mcp 2.3.0: connection is serving the 2026-07-28 protocol; the initialize handshake is not accepted
AI SDK without discovery, mcp 2.3.0: 2025-11-25
client 2.4.0, mcp 2.3.0: 2026-07-28' ]
