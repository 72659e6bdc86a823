"""An HTTP client for an ASGI app in the same process: what a listener would do, step by step under the test's hand.

With `open` it shakes hands, and `send`, `get`, `request` and `notify` go on in that session. With `start` and `result`
each request stands for itself, and everything that comes back is held against the schema.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

import trio
from mcp_types.methods import parse_server_notification, validate_server_result
from msgspec import Raw

from config import DEFAULT_CAPACITY, CallerSpec, Capacity, Listen, ViewSpec
from host.addresses import Addresses
from host.downstream.call_store import open_call_store
from host.downstream.connected_clients import ConnectedClients
from host.downstream.drain import Drain
from host.downstream.http.app import open_http_endpoint
from host.downstream.stateless import Stateless
from host.downstream.stored_sessions import StoredSessions
from host.downstream.tasks import Tasks
from host.fleet.forwarding import Forwarding
from host.fleet.tokens import HomedSeal
from host.journal import InternalError
from host.jsonrpc.messages import ErrorBody
from host.seal import Seal
from host.source import Endpoint
from host.wire.asgi import (
    IMMEDIATE,
    ASGIApp,
    Begin,
    Begun,
    Event,
    Receive,
    Scope,
    Send,
    cancel_when,
    encode_headers,
)
from host.wire.deadlines import CallScope
from host.wire.sse import EventParser, SseEvent
from tests.kit.world import Refusal, ScriptedServer, World, open_world

MCP_HEADERS = {
    "host": "127.0.0.1:8808",
    "content-type": "application/json",
    "accept": "application/json, text/event-stream",
}
LATEST = "2026-07-28"
IO = "io.modelcontextprotocol/"
NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""The member of the params that Mcp-Name repeats."""

HeaderValue = str | Sequence[str] | None
"""Several are a header that stands there several times; None is one that does not."""


class Response:
    """A response, as far as it has come. `complete` is set at its end."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.after_disconnect = b""
        """Events that were sent after the client had left."""
        self.complete = trio.Event()
        self.started = trio.Event()
        self._more = trio.Event()

    @property
    def streams(self) -> bool:
        return self.headers.get("content-type") == "text/event-stream"

    def messages(self) -> list[dict[str, Any]]:
        """The JSON-RPC messages in it, from either form."""
        if not self.streams:
            return [json.loads(self.body)] if self.body else []
        return [json.loads(event.data) for event in self.events() if event.event == "message"]

    def events(self) -> list[SseEvent]:
        """The events of a stream that have data, with their names and ids."""
        return [event for event in EventParser().feed(self.body) if isinstance(event, SseEvent) and event.data]

    async def ended(self) -> Response:
        """The same, once all of it is there."""
        await self.complete.wait()
        return self

    def outcome(self, method: str) -> dict[str, Any]:
        """The result that a stateless request of this method got, once every message is what the schema says; raises
        Refusal for an error."""
        *notices, last = self.messages()
        for notice in notices:
            assert set(notice) <= {"jsonrpc", "method", "params"}
            parse_server_notification(notice["method"], LATEST, notice.get("params"))
        if "error" in last:
            error = last["error"]
            assert set(error) <= {"code", "message", "data"}
            data = Raw(json.dumps(error["data"]).encode()) if "data" in error else None
            raise Refusal(ErrorBody(error["code"], error["message"], data))
        result: dict[str, Any] = last["result"]
        validate_server_result(method, LATEST, result)
        return result

    async def wait_events(self, count: int) -> list[SseEvent]:
        with trio.fail_after(5):
            while len(self.events()) < count:
                await self._more.wait()
        return self.events()

    async def wait_messages(self, count: int) -> list[dict[str, Any]]:
        with trio.fail_after(5):
            while len(self.messages()) < count:
                await self._more.wait()
        return self.messages()

    def take(self, event: Event) -> None:
        if event["type"] == "http.response.start":
            assert not self.status, "the answer began twice"
            self.status = event["status"]
            self.headers = {name.decode(): value.decode() for name, value in event["headers"]}
            self.started.set()
        else:
            assert self.status, "a body before its head"
            assert not self.complete.is_set(), "more after the end"
            self.body += event.get("body", b"")
            if not event.get("more_body", False):
                self.complete.set()
        more, self._more = self._more, trio.Event()
        more.set()


class Connection:
    """One client of the app. `leaves` is what a closed connection looks like from inside."""

    def __init__(self, app: ASGIApp, nursery: trio.Nursery) -> None:
        self.app = app
        self._nursery = nursery
        self.session: str | None = None
        self.leaves = trio.Event()
        self.stop = trio.Event()
        self.drain: Drain
        """That of the host behind the app."""
        self.clients = ConnectedClients()
        """The event that the host sets when it stops."""
        self.change_access: Callable[[Listen, Addresses], None] = lambda listen, addresses: None
        """Has the endpoint let in other access tokens, at other addresses."""
        self.reads = trio.Event()
        """Unset, the client takes nothing of any answer."""
        self.reads.set()
        self.writes = trio.Event()
        """Unset, the bodies of its requests do not come."""
        self.writes.set()
        self.headers: dict[str, Any] = {}
        """Headers of every request."""
        self.extensions: dict[str, Any] = {}
        """ASGI extensions that the listener offers with every request."""
        self.at_once = True
        """Whether the listener offers to do at once what needs no waiting."""

    def another(self, session: str | None = None) -> Connection:
        """A second connection to the same app, which may go on with a session."""
        other = Connection(self.app, self._nursery)
        other.session, other.headers, other.stop = session, dict(self.headers), self.stop
        other.extensions, other.at_once = self.extensions, self.at_once
        return other

    def _headers(self, headers: Mapping[str, HeaderValue] | None) -> dict[str, HeaderValue]:
        """The headers of a request: those of every MCP client, of its session, of this connection, and these."""
        session = {} if self.session is None else {"mcp-session-id": self.session}
        return {**MCP_HEADERS, **session, **self.headers, **(headers or {})}

    def send(
        self,
        method: str,
        path: str = "/mcp",
        body: bytes | object = b"",
        headers: Mapping[str, HeaderValue] | None = None,
        *,
        pieces: list[bytes] | None = None,
    ) -> Response:
        """Start a request; the answer grows while it is served. A header of None is left out."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = self._headers(headers)
        path, _, query = path.partition("?")
        scope: Scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "raw_path": path.encode(),
            "path": path,
            "query_string": query.encode(),
            "client": ("127.0.0.1", 50_000),
            "extensions": dict(self.extensions),
            "headers": [(name.encode(), each.encode("latin-1")) for name in given for each in _each(given[name])],
        }
        coming = [data] if pieces is None else list(pieces)
        answer = Response()

        async def receive() -> Event:
            await self.writes.wait()
            if coming:
                piece = coming.pop(0)
                return {"type": "http.request", "body": piece, "more_body": bool(coming) or pieces is not None}
            await self.leaves.wait()
            return {"type": "http.disconnect"}

        def take(event: Event) -> None:
            if not self.leaves.is_set():
                answer.take(event)
            else:
                answer.after_disconnect += event.get("body", b"")

        async def send(event: Event) -> None:
            await trio.lowlevel.checkpoint()
            await self.reads.wait()
            take(event)

        at_once = _Immediate(self, coming if pieces is None else [], take, receive, send)
        if self.at_once:
            scope["extensions"][IMMEDIATE] = at_once

        async def serve() -> None:
            await self.app(scope, receive, send)
            await at_once.finish()
            await at_once.going_on()

        self._nursery.start_soon(serve)
        return answer

    async def get(self, method: str, path: str = "/mcp", body: object = b"", **more: Any) -> Response:
        """A request and its whole answer."""
        answer = self.send(method, path, body, **more)
        with trio.fail_after(30):
            await answer.complete.wait()
        return answer

    async def open(
        self, path: str = "/mcp", revision: str = "2025-11-25", capabilities: Mapping[str, Any] | None = None
    ) -> Response:
        """Shake hands; the session is kept for what follows."""
        info = {"name": "t", "version": "1"}
        params = {"protocolVersion": revision, "capabilities": capabilities or {}, "clientInfo": info}
        answer = await self.get("POST", path, {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        self.session = answer.headers["mcp-session-id"]
        noted = await self.get("POST", path, {"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert noted.status == 202
        return answer

    async def request(self, method: str, params: object = None, id: object = 1, path: str = "/mcp") -> dict[str, Any]:
        answer = await self.get("POST", path, {"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}})
        (message,) = answer.messages()
        return message

    def start(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        id: object = 1,
        path: str = "/mcp",
        capabilities: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
    ) -> Response:
        """Start a request that says everything about itself, with the headers that repeat it."""
        said = {f"{IO}protocolVersion": LATEST, f"{IO}clientCapabilities": capabilities or {}, **(meta or {})}
        given = {**(params or {}), "_meta": {name: each for name, each in said.items() if each is not None}}
        repeated: dict[str, HeaderValue] = {"mcp-protocol-version": LATEST, "mcp-method": method}
        if method in NAMED and NAMED[method] in given:
            repeated["mcp-name"] = given[NAMED[method]]
        body = {"jsonrpc": "2.0", "id": id, "method": method, "params": given}
        return self.send("POST", path, body, {**repeated, **(headers or {})})

    async def result(self, method: str, params: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        """The result of such a request; raises Refusal for an error."""
        answer = self.start(method, params, **more)
        with trio.fail_after(30):
            await answer.complete.wait()
        return answer.outcome(method)

    async def notify(self, message: Mapping[str, Any], path: str = "/mcp") -> int:
        """Post what is answered with nothing: the status."""
        answer = await self.get("POST", path, {"jsonrpc": "2.0", **message})
        assert not answer.body or answer.status >= 400
        return answer.status


class _Immediate:
    """The steps that a `Connection` lets a listener do at once. `coming`: the body, unless it comes in pieces."""

    def __init__(
        self, client: Connection, coming: list[bytes], take: Callable[[Event], None], receive: Receive, send: Send
    ) -> None:
        self._client = client
        self._coming = coming
        self._take = take
        self._receive = receive
        self._send = send
        self._rest: Event | None = None
        self.going_on: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        self._woken = trio.Event()
        self._begun: Begun | None = None
        self._is_over = trio.Event()

    async def receive(self) -> Event:
        return await self._receive()

    async def send(self, event: Event) -> None:
        await self._send(event)

    def repeat(self, begin: Begin) -> bool:
        if self._client.writes.is_set() and self._coming and (begun := begin(self, self._coming[0])) is not None:
            self._coming.pop()
            self._begun = begun
        return self._begun is not None

    def end_begun(self, *, in_task: bool = False) -> None:
        if not in_task:
            self._begun = None
        self._is_over.set()

    async def finish(self) -> None:
        """Wait as a listener does for who answers a request that was begun, or for its client."""
        if self._begun is None:
            return
        async with trio.open_nursery() as nursery:
            for event in (self._is_over, self._client.leaves):
                nursery.start_soon(cancel_when, event, nursery.cancel_scope)
        if self._begun is not None:
            await self._begun.go_on()

    def take_scope(self) -> CallScope:
        return CallScope()

    def take_body(self, limit: int) -> bytes | None:
        if not self._client.writes.is_set() or not self._coming or len(self._coming[0]) > limit:
            return None
        return self._coming.pop()

    def begin_response(
        self, status: int, headers: tuple[tuple[str, str], ...], body: bytes, moves: Callable[[], object]
    ) -> Awaitable[None] | None:
        raw = encode_headers({**dict(headers), "content-length": str(len(body))})
        events: list[Event] = [
            {"type": "http.response.start", "status": status, "headers": raw},
            {"type": "http.response.body", "body": body, "more_body": False},
        ]
        if not self._client.reads.is_set():
            return self._send_all(events)
        for event in events:
            self._take(event)
        return None

    def pass_on(self, response: bytes, size: int) -> Awaitable[None] | None:
        status, *lines = response[: size - 4].decode("latin-1").split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        del headers["content-length"]
        return self.begin_response(int(status.split()[1]), tuple(headers.items()), response[size:], lambda: None)

    def go_on(self, serve: Callable[[], Awaitable[None]]) -> None:
        self.going_on = serve

    def send_part(self, body: bytes) -> bool:
        event: Event = {"type": "http.response.body", "body": body, "more_body": True}
        if self._client.reads.is_set():
            self._take(event)
            return True
        self._rest = event
        self.wake()
        return False

    async def wait_client(self, seconds: float, sign: bytes) -> bool:
        if self._rest is not None:
            await self._send(self._rest)
            self._rest = None
            return True
        leaves, woken = self._client.leaves, self._woken
        while not (leaves.is_set() or woken.is_set()):
            with trio.move_on_after(seconds) as silence:
                async with trio.open_nursery() as nursery:
                    for event in (leaves, woken):
                        nursery.start_soon(cancel_when, event, nursery.cancel_scope)
            if silence.cancelled_caught:
                self.send_part(sign)
        self._woken = trio.Event()
        return not leaves.is_set()

    def wake(self) -> None:
        self._woken.set()

    async def _send_all(self, events: list[Event]) -> None:
        for event in events:
            await self._send(event)


def _each(value: HeaderValue) -> Sequence[str]:
    return [value] if isinstance(value, str) else value or ()


@asynccontextmanager
async def open_stateless(world: World, seal: Seal | None = None) -> AsyncIterator[Stateless]:
    """The part that answers stateless requests of any transport."""

    def on_crash(problem: Exception) -> None:
        world.journal.note(InternalError("test", problem))

    async with open_call_store(on_crash, world.memory) as calls, trio.open_nursery() as nursery:
        seal = seal or world.seal
        stateless = Stateless(world.router, world.journal, calls, Tasks(world.router, calls, seal), seal)
        nursery.start_soon(stateless.announcements.run)
        yield stateless
        nursery.cancel_scope.cancel()


def drain_of(world: World, stateless: Stateless, limit: float = 30.0) -> Drain:
    """The drain of a host, in which this part answers stateless requests."""
    return Drain(lambda: limit, world.memory, stateless._calls, world.gate.authorizer.confirmations.close)


@asynccontextmanager
async def open_http_app(
    *servers: ScriptedServer,
    listen: Listen | None = None,
    views: Mapping[str, ViewSpec] = MappingProxyType({}),
    callers: Mapping[str, CallerSpec] = MappingProxyType({}),
    default_view: str | None = None,
    status: Callable[[Endpoint], bytes] = lambda endpoint: b"{}",
    key: bytes | None = None,
    console: ASGIApp | None = None,
    settled: bool = True,
    capacity: Capacity = DEFAULT_CAPACITY,
    drain: float = 30.0,
    seal: Seal | None = None,
    forwarding: Forwarding | None = None,
    stores_sessions: bool = False,
    **more: Any,
) -> AsyncIterator[tuple[World, Connection]]:
    """The HTTP face with scripted servers behind it, which have been started if `settled`, and a client of it; for
    `key`, and for `more`, see `open_world`. `seal`: that of states, by default the one of the world. `stores_sessions`:
    another one with the same state and key can open its sessions anew."""
    async with trio.open_nursery() as nursery:
        served = servers or (ScriptedServer("a", tools=["x"]),)
        async with open_world(*served, key=key, views=views, callers=callers, **more) as world:
            if settled:
                await world.settled()
            stop, clients, stored = trio.Event(), ConnectedClients(), None
            if stores_sessions:
                store, note = world.gate.definitions.pins._db, world.journal.note
                homes = seal.homes if isinstance(seal, HomedSeal) else None
                stored = StoredSessions(store, world.seal, capacity.sessions, note, trio.current_time, homes)
            async with (
                open_stateless(world, seal) as stateless,
                open_http_endpoint(
                    listen or Listen(),
                    Addresses(views, callers, default_view),
                    world.router,
                    stateless,
                    world.journal,
                    status,
                    stop,
                    console,
                    memory=world.memory,
                    drain=(draining := drain_of(world, stateless, drain)),
                    clients=clients,
                    record_attempt=world.gate.decision_log.record_attempt,
                    is_recorded=world.gate.decision_log.is_recorded,
                    capacity=capacity,
                    forwarding=forwarding,
                    stored=stored,
                ) as app,
            ):
                connection = Connection(app.serve, nursery)
                connection.change_access = app.change_access
                connection.stop, connection.drain = stop, draining
                connection.clients = clients
                yield world, connection
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_session(
    *servers: ScriptedServer, revision: str = "2025-11-25", capabilities: Mapping[str, Any] | None = None, **more: Any
) -> AsyncIterator[tuple[World, Connection]]:
    """As `open_http_app`, with a client that has shaken hands."""
    async with open_http_app(*servers, **more) as (world, connection):
        await connection.open(revision=revision, capabilities=capabilities)
        yield world, connection
