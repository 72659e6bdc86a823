// A client of the official TypeScript SDKs, 1.x or 2.x, that calls a tool for each line of its input:
//
//     node caller.mjs URL "1" | "legacy" | "auto" TOOL RESOURCE
//
// A line is the `id` that the tool gets. It prints lines of JSON: what came of each call, and whatever else it did and
// heard (tests/replicas/programs.py).

import { createInterface } from "node:readline";
import { Client as One } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport as OneTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { Client as Two, StreamableHTTPClientTransport as TwoTransport } from "@modelcontextprotocol/client";

const [url, mode, name, uri] = process.argv.slice(2);
const [Client, Transport] = mode === "1" ? [One, OneTransport] : [Two, TwoTransport];
const say = (line) => console.log(JSON.stringify(line));

async function watched(input, init) {
  if (typeof init?.body === "string" && init.body.includes('"initialize"')) say({ opens: true });
  const response = await fetch(input, init);
  if (response.status >= 400) say({ status: response.status, to: init?.method ?? "GET" });
  return response;
}

async function call(id) {
  try {
    const { content, isError } = await client.callTool({ name, arguments: { id, seconds: 0.05 } });
    say({ id, text: content[0].text, failed: isError === true });
  } catch (error) {
    say({ id, error: `${error} ${error.cause?.code ?? ""}` });
  }
}

const client = new Client({ name: "caller", version: "1" }, mode === "1" ? {} : { versionNegotiation: { mode } });
client.onclose = () => say({ closed: true });
client.onerror = (error) => say({ complains: String(error) });
client.fallbackNotificationHandler = async ({ method }) => say({ hears: method });
await client.connect(new Transport(new URL(url), { fetch: watched }));
if (mode !== "auto") await client.subscribeResource({ uri });
say({ ready: true });
for await (const id of createInterface({ input: process.stdin })) void call(id);
process.exit(0);
