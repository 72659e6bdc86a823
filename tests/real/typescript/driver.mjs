// The official TypeScript SDK's client, driven from the command line:
//
//     node driver.mjs '{"mode": "legacy" | "auto", "url": "...", "tools": ["a__book_table"], "guests": 4}'
//     node driver.mjs '{"mode": ..., "command": ["colonnade", "serve", ...], "tools": [...], "guests": 4}'
//
// It waits until every tool in `tools` is listed, calls them one after the other, answers the questions that come in
// the meantime, and prints one line of JSON: the protocol version, the names that are listed, the text that each tool
// gave, and the questions as they were asked.

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";

const LISTED_SECONDS = 30;

const task = JSON.parse(process.argv[2]);
const asked = [];

const client = new Client(
  { name: "typescript", version: "1" },
  { capabilities: { elicitation: { form: {} } }, versionNegotiation: { mode: task.mode } },
);
client.setRequestHandler("elicitation/create", async ({ params }) => {
  asked.push(params.message);
  const answers = { guests: task.guests, name: "Tess" };
  const wanted = Object.keys(params.requestedSchema.properties);
  return { action: "accept", content: Object.fromEntries(wanted.map((key) => [key, answers[key]])) };
});

async function names() {
  const { tools } = await client.listTools(undefined, { cacheMode: "refresh" });
  return tools.map((tool) => tool.name);
}

async function listed() {
  for (const end = Date.now() + LISTED_SECONDS * 1000; ; ) {
    const found = await names();
    const missing = task.tools.filter((name) => !found.includes(name));
    if (missing.length === 0) return found;
    if (Date.now() > end) throw new Error(`${missing} not listed, only ${found}`);
    await new Promise((resolve) => setTimeout(resolve, 100)); // servers behind the host may still be starting
  }
}

const [command, ...args] = task.command ?? [];
const transport = command
  ? new StdioClientTransport({ command, args, env: process.env })
  : new StreamableHTTPClientTransport(new URL(task.url));
await client.connect(transport);
const tools = await listed();
const texts = {};
for (const name of task.tools) {
  const result = await client.callTool({ name, arguments: { day: "Friday" } });
  texts[name] = result.content.map((block) => block.text).join();
}
const version = client.getNegotiatedProtocolVersion();
await client.close();
console.log(JSON.stringify({ version, tools, texts, asked }));
