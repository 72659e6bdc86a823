// A client of the official TypeScript SDKs, 1.x, which most hosts use, or 2.x:
//
//     node lister.mjs URL "1" | "legacy" | "auto" TOOL...
//
// It prints one line of JSON with the names in each list, and those of the tools whose calls succeeded. A list with a
// definition that it refuses ends it, and so does a result that is not as its tool promised.

import { Client as One } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport as OneTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { Client as Two, StreamableHTTPClientTransport as TwoTransport } from "@modelcontextprotocol/client";

const [url, mode, ...wanted] = process.argv.slice(2);
const [Client, Transport] = mode === "1" ? [One, OneTransport] : [Two, TwoTransport];
const client = new Client({ name: "typescript", version: "1" }, mode === "1" ? {} : { versionNegotiation: { mode } });
await client.connect(new Transport(new URL(url)));
const { tools } = await client.listTools();
const { resources } = await client.listResources();
const { resourceTemplates } = await client.listResourceTemplates();
const { prompts } = await client.listPrompts();
const called = [];
for (const name of wanted) {
  const { structuredContent } = await client.callTool({ name, arguments: {} });
  if (structuredContent) called.push(name);
}
await client.close();
const named = (entries) => entries.map((entry) => entry.name);
console.log(JSON.stringify({
  tools: named(tools), resources: named(resources), templates: named(resourceTemplates), prompts: named(prompts), called,
}));
