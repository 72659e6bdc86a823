"""The load generator of load.c in Python, for machines without a compiler. Options and output are the same."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any
from urllib.parse import urlsplit

import httptools
import trio

IO = "io.modelcontextprotocol/"
INFO = {"name": "load", "version": "1"}
META = {"_meta": {f"{IO}protocolVersion": "2026-07-28", f"{IO}clientCapabilities": {}, f"{IO}clientInfo": INFO}}
PATIENCE = 60.0


class Response:
    """One response as it arrives."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.headers: dict[str, str] = {}
        self.parts: list[bytes] = []
        self.has_head = self.is_complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode()

    def on_headers_complete(self) -> None:
        self.has_head = True

    def on_body(self, data: bytes) -> None:
        self.parts.append(data)

    def on_message_complete(self) -> None:
        self.is_complete = True

    def message(self) -> Any:
        """The message of the body: all of it, or the last event of a stream."""
        body = b"".join(self.parts)
        if self.headers.get("content-type", "").startswith("text/event-stream"):
            body = [line for line in body.splitlines() if line.startswith(b"data:")][-1][5:]
        return json.loads(body)


class Client:
    """A client with one connection."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._where = urlsplit(options.url)
        self._stateless = options.era == "stateless"
        self._session: dict[str, str] = {}
        self._stream: trio.SocketStream | None = None

    async def open(self) -> None:
        """The handshake, if this is a client with one."""
        if self._stateless:
            return
        asked = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": INFO}
        response = await self.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": asked}, {})
        assert response.parser.get_status_code() == 200, b"".join(response.parts)
        if session := response.headers.get("mcp-session-id"):
            self._session = {"Mcp-Session-Id": session}
        response = await self.post({"jsonrpc": "2.0", "method": "notifications/initialized"}, self._version())
        assert response.parser.get_status_code() == 202, b"".join(response.parts)

    async def open_stream(self) -> None:
        """A stream that stays open."""
        await self.open()
        if self._stateless:
            params = {**META, "notifications": {"toolsListChanged": True}}
            method = "subscriptions/listen"
            message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            response = await self.post(message, {**self._version(), "Mcp-Method": method}, to_its_end=False)
        else:
            response = await self._exchange("GET", self._version(), b"", to_its_end=False)
        assert response.parser.get_status_code() == 200, "no stream"

    async def call(self, id: int) -> bool:
        """One call; whether the answer is right."""
        options = self._options
        tool = options.tool.replace("#", str(1 + id % options.servers))
        method = "tools/list" if options.list else "tools/call"
        params: dict[str, Any] = dict(META) if self._stateless else {}
        headers = self._version()
        if self._stateless:
            headers |= {"Mcp-Method": method}
        if not options.list:
            params |= {"name": tool, "arguments": {"text": f"call {id}", "size": options.size}}
            headers |= {"Mcp-Name": tool} if self._stateless else {}
        response = await self.post({"jsonrpc": "2.0", "id": id, "method": method, "params": params}, headers)
        message = response.message()
        if response.parser.get_status_code() != 200 or message.get("id") != id or "result" not in message:
            return False
        if options.list:
            return bool(len(message["result"]["tools"]) == options.list)
        return bool(message["result"]["content"][0]["text"] == f"call {id}" + "x" * options.size)

    def _version(self) -> dict[str, str]:
        return {"MCP-Protocol-Version": "2026-07-28" if self._stateless else "2025-06-18"}

    async def post(self, message: Any, headers: dict[str, str], to_its_end: bool = True) -> Response:
        body = json.dumps(message, separators=(",", ":")).encode()
        more = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        return await self._exchange("POST", {**headers, **more}, body, to_its_end)

    async def _exchange(self, verb: str, headers: dict[str, str], body: bytes, to_its_end: bool = True) -> Response:
        """A connection that stood unused may have been closed at the moment of the request: it gets a second."""
        named = {"Host": self._where.netloc, "Accept": "application/json, text/event-stream"}
        lines = [f"{verb} {self._where.path} HTTP/1.1", *map(": ".join, (named | headers | self._session).items())]
        request = "\r\n".join([*lines, "", ""]).encode() + body
        for _ in range(2):
            if self._stream is None:
                self._stream = await trio.open_tcp_stream(str(self._where.hostname), self._where.port or 80)
            response = Response()
            try:
                await self._stream.send_all(request)
                while not (response.is_complete if to_its_end else response.has_head):
                    data = await self._stream.receive_some(1 << 20)
                    if not data:
                        break
                    response.parser.feed_data(data)
                else:
                    return response
            except trio.BrokenResourceError:
                pass
            await self._stream.aclose()
            self._stream = None
        raise trio.BrokenResourceError("the connection ended in mid-answer")


class Round:
    """The calls of all clients for some seconds."""

    def __init__(self, seconds: float) -> None:
        self.began = time.monotonic()
        self._deadline = self.began + seconds
        self.latencies: list[float] = []
        self.errors = 0

    async def run(self, client: Client, ids: Any) -> None:
        now = time.monotonic()
        while now < self._deadline:
            right = False
            with trio.move_on_after(PATIENCE):
                try:
                    right = await client.call(next(ids))
                except (
                    trio.BrokenResourceError,
                    httptools.HttpParserError,
                    ValueError,
                    KeyError,
                    IndexError,
                ) as problem:
                    print(f"no answer: {problem!r}", file=sys.stderr)
            began, now = now, time.monotonic()
            if right:
                self.latencies.append(now - began)
            else:
                self.errors += 1

    def line(self) -> str:
        ordered = sorted(self.latencies)
        count = len(ordered)
        at = [ordered[int(part * (count - 1))] * 1e6 if count else 0.0 for part in (0.5, 0.99)]
        seconds = time.monotonic() - self.began
        found = {"calls": count, "errors": self.errors, "seconds": seconds, "p50": at[0], "p99": at[1]}
        return json.dumps(found)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("era", choices=["handshake", "stateless"])
    parser.add_argument("connections", type=int)
    parser.add_argument("--tool", default="echo")
    for name, otherwise in (("--servers", 1), ("--size", 0), ("--list", 0), ("--idle", 0)):
        parser.add_argument(name, type=int, default=otherwise)
    options = parser.parse_args()
    clients = [Client(options) for _ in range(options.connections)]
    for client in clients:
        await client.open()
    idle = [Client(options) for _ in range(options.idle)]
    for client in idle:
        await client.open_stream()
    ids = iter(range(1, sys.maxsize))
    print("ready", flush=True)
    while line := await trio.to_thread.run_sync(sys.stdin.readline):
        this = Round(float(line))
        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(this.run, client, ids)
        print(this.line(), flush=True)


if __name__ == "__main__":
    trio.run(main)
