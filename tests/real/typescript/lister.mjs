// The client of the official TypeScript SDK 1.x, which most hosts use:
//
//     node lister.mjs URL
//
// It prints one line of JSON with the names in each list. A list with a definition that it refuses ends it.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const client = new Client({ name: "typescript", version: "1" });
await client.connect(new StreamableHTTPClientTransport(new URL(process.argv[2])));
const { tools } = await client.listTools();
const { resources } = await client.listResources();
const { resourceTemplates } = await client.listResourceTemplates();
const { prompts } = await client.listPrompts();
await client.close();
const named = (entries) => entries.map((entry) => entry.name);
console.log(JSON.stringify({
  tools: named(tools), resources: named(resources), templates: named(resourceTemplates), prompts: named(prompts),
}));
