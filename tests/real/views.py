"""Callers with different views at a real host, over sockets and relays, while its file is edited and the lists of its
servers change: `tests/orders/test_views.py` with another clock.

    .venv/bin/python -m tests.real.views [--edits 100] [--rate 200] [--seed N]

Beside the changes, `rate` requests a second are sent by clients of every transport and era. Each must come to what the
second judge says of one of the states that it may have met. Exits with 1 at the first that does not.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import trio

from host.cli.admin_client import AdminClientError, find_hosts
from tests.kit.asgi import Connection, HeaderValue, Response
from tests.kit.memory import MemoryLink
from tests.orders.view_clients import FORMS, Client, Reply, request
from tests.orders.view_judge import SERVERS, TOKENS, VIEWS, Judge, Place
from tests.orders.view_run import PLACES, Run, Server, save_random_file

from .running import BARE_PYTHON, COLONNADE, beside, serving
from .running import SERVERS as PROGRAMS
from .soak import Broken
from .soak import Connection as Wire

PAUSE = 2.0
"""Seconds in which a change has reached every client: two notices for one client are half a second apart, and a server
may start again."""
PATIENCE = 30.0


class SocketConnection(Connection):
    """The same client over TCP: one connection for each request."""

    def __init__(self, address: tuple[str, int], nursery: trio.Nursery) -> None:
        super().__init__(_no_app, nursery)
        self._address = address
        self._requests = nursery
        self.headers = {"host": f"127.0.0.1:{address[1]}", "connection": "close"}

    def another(self, session: str | None = None) -> SocketConnection:
        other = SocketConnection(self._address, self._requests)
        other.session, other.headers = session, dict(self.headers)
        return other

    def send(
        self,
        method: str,
        path: str = "/mcp",
        body: bytes | object = b"",
        headers: Mapping[str, HeaderValue] | None = None,
        *,
        pieces: list[bytes] | None = None,
    ) -> Response:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {**self._headers(headers), "content-length": str(len(data))}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {each}" for name, each in given.items())]
        answer = Response()
        self._requests.start_soon(self._exchange, "\r\n".join([*lines, "", ""]).encode() + data, answer, self.leaves)
        return answer

    async def _exchange(self, data: bytes, answer: Response, leaves: trio.Event) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_when, leaves, nursery.cancel_scope)
            async with await trio.open_tcp_stream(*self._address) as stream:
                wire = Wire(stream)
                with suppress(Broken):
                    status, headers = await wire.ask(data)
                    answer.take({"type": "http.response.start", "status": status, "headers": list(headers.items())})
                    if headers.get(b"transfer-encoding") == b"chunked":
                        while piece := await wire.chunk():
                            answer.take({"type": "http.response.body", "body": piece, "more_body": True})
                    else:
                        piece = await wire.body(int(headers.get(b"content-length", b"0")))
                        answer.take({"type": "http.response.body", "body": piece, "more_body": True})
                if not answer.complete.is_set():
                    answer.status = answer.status or 599
                    answer.started.set()
                    answer.take({"type": "http.response.body", "body": b"", "more_body": False})
            nursery.cancel_scope.cancel()


async def _no_app(*_: object) -> None:
    raise AssertionError("there is a real one")


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


class Relayed(Client):
    """A client over stdio, behind a relay, with a view of its own choice."""

    has_address = False

    def __init__(self, connection: Connection, file: Path, place: Place, nursery: trio.Nursery) -> None:
        super().__init__(connection, TOKENS[0], place)
        self.token = ""
        self._file = file
        self._nursery = nursery
        self._process: trio.Process | None = None
        self._saying = trio.Lock()
        self._last = 0

    def address(self, judge: Judge) -> Place | None:
        """That at which it began: a client over stdio keeps its view, and has nothing of one that is no more."""
        return self.opened_at if self.is_open else judge.over_stdio(self.place.view)

    async def open(self) -> int:
        view = ["--view", self.place.view] if self.place.view else []
        command = [COLONNADE, "serve", "--stdio", *view, str(self._file)]
        self._process = await trio.lowlevel.open_process(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=beside(self._file)
        )
        stream = Response()
        stream.status = 200
        self._nursery.start_soon(self._read, self._process, stream)
        self.stream = stream
        info = {"name": "t", "version": "1"}
        opened = await self.ask("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info})
        if opened.message is None or "result" not in opened.message:
            self.stream = None
            return 404
        self.instructions = opened.message["result"].get("instructions", "")
        await self._say({"jsonrpc": "2.0", "method": "notifications/initialized"})
        await self.ask("logging/setLevel", {"level": "debug"})
        return 200

    async def _read(self, process: trio.Process, stream: Response) -> None:
        """Its lines, as the events of a stream."""
        assert process.stdout is not None
        rest = b""
        async for data in process.stdout:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                event = b"event: message\ndata: %b\n\n" % line
                stream.take({"type": "http.response.body", "body": event, "more_body": True})
        await process.wait()
        stream.take({"type": "http.response.body", "body": b"", "more_body": False})

    async def _say(self, message: Mapping[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async with self._saying:
                await self._process.stdin.send_all(json.dumps(message).encode() + b"\n")

    async def ask(self, method: str, params: Mapping[str, Any]) -> Reply:
        stream, heard = self.stream, self.hear()
        assert stream is not None
        self._last += 1
        id, at = self._last, len(heard)
        await self._say({**request(method, params), "id": id})
        with trio.move_on_after(PATIENCE):
            while not stream.complete.is_set():
                self.hear()
                for each in heard[at:]:
                    if each.get("id") == id and "method" not in each:
                        return Reply(200, each)
                await trio.sleep(0.005)
        return Reply(404 if stream.complete.is_set() else 200, None)

    def close(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
        super().close()


async def _serve_links(server: Server, path: Path, task_status: trio.TaskStatus[list[trio.SocketListener]]) -> None:
    """Be the server behind each process that connects to this socket."""
    bound = trio.socket.socket(trio.socket.AF_UNIX)
    await bound.bind(str(path))
    bound.listen()
    serve = partial(trio.serve_listeners, partial(_link, server), [trio.SocketListener(bound)])
    await serve(task_status=task_status)


async def _link(server: Server, stream: trio.SocketStream) -> None:
    async with server.open_link() as host_end, trio.open_nursery() as nursery:
        assert isinstance(host_end, MemoryLink)

        async def copy_out() -> None:
            with suppress(trio.EndOfChannel, trio.BrokenResourceError):
                while True:
                    await stream.send_all(await host_end.read_bytes() + b"\n")

        nursery.start_soon(copy_out)
        rest = b""
        with suppress(trio.BrokenResourceError):
            async for data in stream:
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    host_end.write_bytes(line)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def opened(folder: Path, order: Random) -> AsyncIterator[Run]:
    servers = {id: Server(id, order) for id in SERVERS}
    sockets = {id: folder / f"{id}.socket" for id in SERVERS}
    file = folder / "colonnade.yaml"
    specs = {
        id: {"command": [*BARE_PYTHON, str(PROGRAMS / "pipe.py"), str(path)], "trust": "trusted"}
        for id, path in sockets.items()
    }
    settings = {"watch": "off", "console": "off"}
    spec, _ = save_random_file(file, order, specs, settings)
    async with trio.open_nursery() as nursery:
        for id, server in servers.items():
            await nursery.start(_serve_links, server, sockets[id])
        host = serving(file, *SERVERS)
        running = await trio.to_thread.run_sync(host.__enter__)
        try:
            port = int(running.url.split(":")[2].split("/")[0])
            connection = SocketConnection(("127.0.0.1", port), nursery)
            clients: list[Client] = [
                form(connection, token, place)
                for token in TOKENS
                for place in PLACES
                for form in order.sample(FORMS, 2)
            ]
            relayed = [Relayed(connection, file, Place(view=view), nursery) for view in ("", *VIEWS[:2])]
            run = Run(
                file,
                spec,
                servers,
                [*clients, *relayed],
                order,
                _reloader(file),
                pause=PAUSE,
                asked=1,
                is_busy=True,
                has_status=True,
            )
            await run.settle()
            yield run
        finally:
            for client in relayed:
                client.close()
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(host.__exit__, None, None, None)


def _reloader(file: Path) -> Any:
    state = file.parent / "state"

    def post() -> str:
        (host,) = find_hosts(state)
        try:
            host.post("configuration/reload", apply=True)
        except AdminClientError as refusal:
            return str(refusal)
        return ""

    return partial(trio.to_thread.run_sync, post)


async def _load(run: Run, rate: float) -> None:
    """That many requests a second, until cancelled."""
    start, sent = trio.current_time(), 0
    async with trio.open_nursery() as nursery:
        while True:
            await trio.sleep_until(start + sent / rate)
            nursery.start_soon(run.ask, run.order.choice(run.clients))
            sent += 1
            run.seen["sent in the load"] = sent


async def play(folder: Path, edits: int, rate: float, seed: int) -> Run:
    order = Random(seed)
    async with opened(folder, order) as run:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_load, run, rate)
            for number in range(edits):
                await run.edit()
                await run.change_lists()
                print(f"edit {number + 1} of {edits}: {dict(run.seen)}", flush=True)
            nursery.cancel_scope.cancel()
        return run


def main() -> None:
    parser = argparse.ArgumentParser(description="Views under edits, list changes and load")
    parser.add_argument("--edits", type=int, default=100)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"seed {options.seed}")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        run = trio.run(play, Path(folder), options.edits, options.rate, options.seed)
    seconds = time.monotonic() - began
    calls = run.seen["arrived"] + run.seen["refused"]
    print(
        f"{options.edits} edits, {options.edits} changes of lists, {calls / seconds:.0f} requests a second: all right"
    )


if __name__ == "__main__":
    main()
