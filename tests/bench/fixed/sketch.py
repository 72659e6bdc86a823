"""The least that a proxy in this language could cost: trio and httptools on both sides, payloads as they came.

    sketch.py http URL             one connection to the server for each of a client
    sketch.py stdio COMMAND ...    one program for all clients

It prints its URL. It checks, names, records and limits nothing; ids of requests pass as they are, so clients must have
different ones. It is the floor of the benchmark, not a program to use.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from urllib.parse import urlsplit

import httptools
import trio

RECEIVE = 65536
ID = re.compile(rb'"id":(\d+)')
RESPONSE = b"HTTP/1.1 %d OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
PASSED_ON = (b"mcp-protocol-version", b"mcp-method", b"mcp-name")


class Request:
    """What a parser of requests found."""

    def __init__(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.begin()

    def begin(self) -> None:
        self.body: list[bytes] = []
        self.headers: list[bytes] = []
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in PASSED_ON:
            self.headers.append(b"%b: %b\r\n" % (name, value))

    def on_body(self, data: bytes) -> None:
        self.body.append(data)

    def on_message_complete(self) -> None:
        self.complete = True


class Response:
    """What a parser of responses found."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.begin()

    def begin(self) -> None:
        self.body: list[bytes] = []
        self.complete = False

    def on_body(self, data: bytes) -> None:
        self.body.append(data)

    def on_message_complete(self) -> None:
        self.complete = True


class HttpServer:
    """The server behind the sketch, over HTTP."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 80)
        self._head = b"POST %b HTTP/1.1\r\nHost: %b\r\nAccept: application/json, text/event-stream\r\n" % (
            parts.path.encode(),
            parts.netloc.encode(),
        )

    async def serve(self, client: trio.SocketStream) -> None:
        """Everything that comes over one connection of a client."""
        request, response = Request(), Response()
        async with await trio.open_tcp_stream(*self._address) as server:
            while data := await client.receive_some(RECEIVE):
                request.parser.feed_data(data)
                if not request.complete:
                    continue
                body = b"".join(request.body)
                length = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
                await server.send_all(b"".join((self._head, *request.headers, length, body)))
                while not response.complete:
                    response.parser.feed_data(await server.receive_some(RECEIVE))
                answer = b"".join(response.body)
                await client.send_all(RESPONSE % (response.parser.get_status_code(), len(answer)) + answer)
                request.begin()
                response.begin()


class StdioServer:
    """The server behind the sketch, over its standard input and output."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin = trio.lowlevel.FdStream(os.dup(self._process.stdin.fileno()))
        self._stdout = trio.lowlevel.FdStream(os.dup(self._process.stdout.fileno()))
        self._waiting: dict[bytes, Waiter] = {}
        self._turn = trio.StrictFIFOLock()

    async def read(self) -> None:
        """Give each answer to whoever waits for it."""
        parts: list[bytes] = []
        while data := await self._stdout.receive_some(RECEIVE):
            *lines, rest = data.split(b"\n")
            for line in lines:
                parts.append(line)
                self._wake(b"".join(parts))
                parts.clear()
            parts.append(rest)

    def _wake(self, answer: bytes) -> None:
        found = ID.search(answer)
        assert found is not None
        waiter = self._waiting.pop(found[1])
        waiter.answer = answer
        waiter.come.set()

    async def serve(self, client: trio.SocketStream) -> None:
        """Everything that comes over one connection of a client."""
        request = Request()
        while data := await client.receive_some(RECEIVE):
            request.parser.feed_data(data)
            if not request.complete:
                continue
            body = b"".join(request.body)
            request.begin()
            waiter = Waiter()
            if found := ID.search(body):
                self._waiting[found[1]] = waiter
            async with self._turn:
                await self._stdin.send_all(body + b"\n")
            if found is None:
                await client.send_all(RESPONSE % (202, 0))
            else:
                await waiter.come.wait()
                await client.send_all(RESPONSE % (200, len(waiter.answer)) + waiter.answer)


class Waiter:
    """A request whose answer has not come yet."""

    def __init__(self) -> None:
        self.come = trio.Event()
        self.answer = b""


async def main(*arguments: str) -> None:
    kind, *target = arguments
    async with trio.open_nursery() as nursery:
        if kind == "http":
            serve = HttpServer(target[0]).serve
        else:
            server = StdioServer(target)
            nursery.start_soon(server.read)
            serve = server.serve

        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1", backlog=4096)
        print(f"http://127.0.0.1:{listener.socket.getsockname()[1]}/mcp", flush=True)
        await trio.serve_listeners(serve, [listener])


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
