#!/usr/bin/env bash
# A client that is told that a file of a watched folder has changed reads the folder from its cache, as it was before.
#
# Packages: PyPI mcp 2.3.0; npm @modelcontextprotocol/client 2.4.0. Needs Python 3.11 with venv, and Node 20 with npm.
#
# Expected: `notifications/resources/updated` may name a sub-resource of the one that the client has subscribed to (all
# revisions, ResourceUpdatedNotificationParams), as for a folder whose entries change. A cached answer is given up when
# the server tells of a change, however long its `ttlMs` is (2026-07-28, Caching). So the host, told of `…/docs/b`, reads
# the folder that it watches, and gets what is there now.
#
# Seen on 2026-11-30: both clients hand such a notification to the host, and take exactly the URI in it out of their
# cache, in which it is not. The folder stays there until its `ttlMs` has passed, up to a day. The host did what it had
# to do and shows what was there before, and nothing says so. If the server names the folder, both read it anew.
# `cache_mode="refresh"`, or `cacheMode: 'refresh'`, helps.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check mcp==2.3.0 2>/dev/null
npm install --silent --no-audit --no-fund @modelcontextprotocol/client@2.4.0 >/dev/null

cat >check.py <<'PY'
from typing import Any

import anyio
from mcp import Client
from mcp.server.lowlevel import Server
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import (
    ReadResourceResult,
    ResourceUpdatedNotification,
    ResourceUpdatedNotificationParams,
    SubscriptionsAcknowledgedNotification,
    SubscriptionsAcknowledgedNotificationParams,
    TextResourceContents,
)

entries = ["a"]
changes, changed = anyio.create_memory_object_stream[str](1)


async def read(context: Any, params: Any) -> ReadResourceResult:
    contents = [TextResourceContents(uri=params.uri, text=", ".join(entries))]
    return ReadResourceResult(contents=contents, ttl_ms=3_600_000, cache_scope="private")


async def listen(context: Any, params: Any) -> None:
    meta = {SUBSCRIPTION_ID_META_KEY: context.request_id}

    async def send(notification: Any) -> None:
        await context.session.send_notification(notification, related_request_id=context.request_id)

    agreed = SubscriptionsAcknowledgedNotificationParams(notifications=params.notifications, _meta=meta)
    await send(SubscriptionsAcknowledgedNotification(params=agreed))
    async for uri in changed:
        await send(ResourceUpdatedNotification(params=ResourceUpdatedNotificationParams(uri=uri, _meta=meta)))


async def main() -> None:
    server = Server("server", on_read_resource=read, on_subscriptions_listen=listen)

    async def show(told: str, **mode: Any) -> None:
        answer = await client.read_resource("file:///docs", **mode)
        print(f"mcp 2.3.0: {told}, the folder has: {answer.contents[0].text}")

    async with Client(server) as client, client.listen(resource_subscriptions=["file:///docs"]) as subscription:
        await show("at the start")
        for entry, uri in (("b", "file:///docs/b"), ("c", "file:///docs")):
            entries.append(entry)
            await changes.send(uri)
            event = await anext(subscription)
            await show(f"told of {event.uri}")
        entries.append("d")
        await changes.send("file:///docs/d")
        await anext(subscription)
        await show("told of file:///docs/d, refresh", cache_mode="refresh")


anyio.run(main)
PY
cat >check.mjs <<'JS'
import {Client} from '@modelcontextprotocol/client';

const key = 'io.modelcontextprotocol/subscriptionId';
const hints = {resultType: 'complete', ttlMs: 3_600_000, cacheScope: 'private'};
const entries = ['a'];
let subscription;

const transport = {
  async start() {},
  async close() {},
  async send({id, method, params}) {
    const notifications = params?.notifications;
    if (method === 'subscriptions/listen') {
      subscription = id;
      this.tell('notifications/subscriptions/acknowledged', {notifications});
    } else if (method === 'server/discover') {
      const capabilities = {resources: {subscribe: true}};
      this.give({id, result: {...hints, supportedVersions: ['2026-07-28'], capabilities}});
    } else if (method === 'resources/read') {
      this.give({id, result: {...hints, contents: [{uri: params.uri, text: entries.join(', ')}]}});
    }
  },
  give(message) { queueMicrotask(() => this.onmessage({jsonrpc: '2.0', ...message})); },
  tell(method, params) { this.give({method, params: {...params, _meta: {[key]: subscription}}}); },
};

let heard;
const client = new Client({name: 'client', version: '1'}, {versionNegotiation: {mode: 'auto'}});
client.setNotificationHandler('notifications/resources/updated', ({params}) => heard(params.uri));
await client.connect(transport);
await client.listen({resourceSubscriptions: ['file:///docs']});

async function show(told, options) {
  const {contents} = await client.readResource({uri: 'file:///docs'}, options);
  console.log(`client 2.4.0: ${told}, the folder has: ${contents[0].text}`);
}

async function change(entry, uri) {
  entries.push(entry);
  const event = new Promise(resolve => { heard = resolve; });
  transport.tell('notifications/resources/updated', {uri});
  return `told of ${await event}`;
}

await show('at the start');
await show(await change('b', 'file:///docs/b'));
await show(await change('c', 'file:///docs'));
await show(`${await change('d', 'file:///docs/d')}, refresh`, {cacheMode: 'refresh'});
await client.close();
JS
seen=$(venv/bin/python check.py 2>/dev/null && node check.mjs)
echo "$seen"
[ "$seen" = 'mcp 2.3.0: at the start, the folder has: a
mcp 2.3.0: told of file:///docs/b, the folder has: a
mcp 2.3.0: told of file:///docs, the folder has: a, b, c
mcp 2.3.0: told of file:///docs/d, refresh, the folder has: a, b, c, d
client 2.4.0: at the start, the folder has: a
client 2.4.0: told of file:///docs/b, the folder has: a
client 2.4.0: told of file:///docs, the folder has: a, b, c
client 2.4.0: told of file:///docs/d, refresh, the folder has: a, b, c, d' ]
