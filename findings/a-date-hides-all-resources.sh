#!/usr/bin/env bash
# A resource whose `lastModified` is a date, or a time without a zone, hides all resources from TypeScript clients.
#
# Packages: npm @modelcontextprotocol/sdk 1.32.2, @modelcontextprotocol/client 2.4.0; PyPI mcp 2.3.0.
# Needs Node 20 with npm, and Python 3.11 with venv.
#
# Expected: `lastModified` is an ISO 8601 string (schemas of 2025-06-18 to 2026-07-28: `"type": "string"`, without a
# format). `2025-01-12`, and what Python's `datetime.now().isoformat()` gives, are such strings. It is a hint for people.
#
# Seen on 2026-11-28: both TypeScript clients want date, time and zone, and refuse the whole list for one resource that
# has anything less. Behind a gateway that is the list of all servers. The Python client takes every text.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check mcp==2.3.0 2>/dev/null
npm install --silent --no-audit --no-fund @modelcontextprotocol/sdk@1.32.2 @modelcontextprotocol/client@2.4.0 >/dev/null

cat >server.py <<'PY'
# A server of 2025-11-25 over stdio: two resources, of which one was modified at the time in the first argument.
import json
import sys

RESOURCES = [
    {"uri": "memo:1", "name": "plain"},
    {"uri": "memo:2", "name": "dated", "annotations": {"lastModified": sys.argv[1]}},
]
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    answer = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] == "initialize":
        info = {"name": "server", "version": "1"}
        answer["result"] = {"protocolVersion": "2025-11-25", "capabilities": {"resources": {}}, "serverInfo": info}
    elif message["method"] == "resources/list":
        answer["result"] = {"resources": RESOURCES}
    else:
        answer["error"] = {"code": -32601, "message": "Method not found"}
    print(json.dumps(answer), flush=True)
PY
cat >check.mjs <<'JS'
import {Client as One} from '@modelcontextprotocol/sdk/client/index.js';
import {StdioClientTransport as OneStdio} from '@modelcontextprotocol/sdk/client/stdio.js';
import {Client as Two} from '@modelcontextprotocol/client';
import {StdioClientTransport as TwoStdio} from '@modelcontextprotocol/client/stdio';

const [major, time] = process.argv.slice(2);
const [Client, Stdio] = {1: [One, OneStdio], 2: [Two, TwoStdio]}[major];
const client = new Client({name: 'client', version: '1'});
await client.connect(new Stdio({command: 'python3', args: ['server.py', time]}));
await client.listResources().then(
  ({resources}) => console.log(resources.map((resource) => resource.name).join(', ')),
  () => console.log('the list is refused'),
);
await client.close();
JS
cat >check.py <<'PY'
import sys

import anyio
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


async def main(time: str) -> None:
    async with stdio_client(StdioServerParameters(command="python3", args=["server.py", time])) as streams:
        async with ClientSession(*streams) as session:
            await session.initialize()
            print(", ".join(each.name for each in (await session.list_resources()).resources))


anyio.run(main, sys.argv[1])
PY

seen=$(
    for time in 2025-01-12T15:00:58Z 2025-01-12T15:00:58 2025-01-12; do
        echo "TypeScript 1.32.2, $time: $(timeout 60 node check.mjs 1 $time)"
        echo "TypeScript 2.4.0, $time: $(timeout 60 node check.mjs 2 $time)"
        echo "Python 2.3.0, $time: $(timeout 60 venv/bin/python check.py $time)"
    done
)
echo "$seen"
[ "$seen" = 'TypeScript 1.32.2, 2025-01-12T15:00:58Z: plain, dated
TypeScript 2.4.0, 2025-01-12T15:00:58Z: plain, dated
Python 2.3.0, 2025-01-12T15:00:58Z: plain, dated
TypeScript 1.32.2, 2025-01-12T15:00:58: the list is refused
TypeScript 2.4.0, 2025-01-12T15:00:58: the list is refused
Python 2.3.0, 2025-01-12T15:00:58: plain, dated
TypeScript 1.32.2, 2025-01-12: the list is refused
TypeScript 2.4.0, 2025-01-12: the list is refused
Python 2.3.0, 2025-01-12: plain, dated' ]
