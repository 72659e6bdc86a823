// A server made with the official TypeScript SDK, for both eras: sessions, and 2026-07-28.
//
//     node server.mjs
//
// It prints its URL. What it offers is what `tests/real/refusals.py` asks for.

import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { NodeStreamableHTTPServerTransport, toNodeHandler, toWebRequest } from "@modelcontextprotocol/node";
import { McpServer, createMcpHandler, isLegacyRequest } from "@modelcontextprotocol/server";
import { z } from "zod";

function build() {
  const server = new McpServer({ name: "typescript", version: "1" });
  const text = (said) => ({ type: "text", text: said });
  server.registerTool("weather", { inputSchema: z.object({ city: z.string() }) }, async ({ city }) => ({
    content: [text(city)],
  }));
  server.registerPrompt("paint", { argsSchema: z.object({ colour: z.string() }) }, async ({ colour }) => ({
    messages: [{ role: "user", content: text(colour) }],
  }));
  server.registerResource("first", "memo://first", {}, async (uri) => ({ contents: [{ uri: uri.href, text: "first" }] }));
  return server;
}

const stateless = toNodeHandler(createMcpHandler(build, { legacy: "reject" }));
const sessions = new Map();

async function transport(id) {
  // An id that nobody has is left to a transport of another session, whose answer is the SDK's own.
  const known = sessions.get(id) ?? (id === undefined ? undefined : sessions.values().next().value);
  if (known) return known;
  const opened = new NodeStreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    onsessioninitialized: (session) => void sessions.set(session, opened),
  });
  await build().connect(opened);
  return opened;
}

function parsed(body) {
  try {
    return JSON.parse(body);
  } catch {
    return undefined; // the SDK reads it again, and says what it thinks of it
  }
}

const http = createServer(async (request, response) => {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const text = Buffer.concat(chunks).toString();
  const body = text ? parsed(text) : undefined;
  const legacy = body === undefined || (await isLegacyRequest(await toWebRequest(request, body), body));
  if (!legacy) return stateless(request, response, body);
  await (await transport(request.headers["mcp-session-id"])).handleRequest(request, response, body);
});
http.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${http.address().port}/mcp`));
