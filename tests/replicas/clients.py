"""Clients that go on while the host behind their URL ends and comes back: of both eras, and the official SDK's.

A client opens its session once. Whatever happens, it sends no second `initialize`: it names the session that it has.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx
import httpx2
import trio
from mcp import Client
from mcp.client.session import ClientRequestContext, IncomingMessage
from mcp.client.streamable_http import streamable_http_client
from mcp.types import (
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestParams,
    ElicitResult,
    ServerNotification,
    TextContent,
)

from host.errors import TOO_MANY_REQUESTS, Interrupted, first_exception
from host.fleet.forwarding import HOLD
from host.wire.sse import EventParser, SseEvent
from tests.kit.stateless import stateless_request
from tests.real.clients import initialize

from .book import Attempt, Book, End

HANDSHAKE = "2025-11-25"
PATIENCE = 25.0
"""Seconds for one request: more than any call takes, and less than a drain."""
LONG = 12.0
"""Seconds that a long call takes at most: longer than balancers take to notice a drain."""
AGAIN = 0.1
"""Seconds until a client tries again that got no connection, or whose stream broke."""
UPDATED = "notifications/resources/updated"


@dataclass
class Load:
    """What all clients share.

    Attributes:
        quiet: the SDK's clients begin no call while it is set.
        pause: seconds between two calls of a client, at most.
        cut: the HTTP statuses with which a balancer says that the connection to a process broke.
    """

    url: str
    book: Book
    random: random.Random
    pause: float = 0.2
    quiet: bool = False
    stopping: bool = False
    cut: frozenset[int] = frozenset()
    heard: dict[str, int] = field(default_factory=dict)
    """By client, how many updates of its resource it was told of."""
    members: set[str] = field(default_factory=set)
    """The clients that have a subscription."""
    listening: set[str] = field(default_factory=set)
    """The clients whose stream for them is open."""
    sdks: list[SdkClient] = field(default_factory=list)
    _last: Any = field(default_factory=count)

    def new_id(self, client: str) -> str:
        return f"{client}-{next(self._last)}"

    async def rest(self) -> bool:
        """Pause between two calls. False if the client is to leave."""
        await trio.sleep(self.random.random() * self.pause)
        return not self.stopping

    def hear(self, client: str, message: Mapping[str, Any]) -> None:
        if message.get("method") == UPDATED:
            self.heard[client] = self.heard.get(client, 0) + 1


class HttpClient:
    """A client by hand over HTTP. `server` is the one that it calls, `patience` the seconds that it gives a call."""

    server = "book"
    patience = PATIENCE

    def __init__(self, name: str, load: Load, http: httpx.AsyncClient) -> None:
        self.name = name
        self.load = load
        self.book = load.book
        self.http = http
        self._last = count(1)

    def wrap(self, method: str, params: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
        """The headers and the body of a request."""
        raise NotImplementedError

    async def open(self) -> None:
        """Do what is done once."""
        raise NotImplementedError

    async def run(self) -> None:
        """Call tools and read lists until the load ends."""
        while await self.load.rest():
            kind = self.load.random.random()
            if kind < 0.1:
                await self.page()
            else:
                await self.call("confirmed" if kind < 0.15 else "note", 1.5 if kind > 0.95 else 0.05)

    async def call(self, tool: str, seconds: float) -> None:
        """One call, tried again under its id as long as there is no connection."""
        await self.call_as(self.load.new_id(self.name), tool, seconds)

    async def call_as(self, id: str, tool: str, seconds: float) -> None:
        """One call under this id."""
        if tool == "confirmed":
            self.book.asked.add(id)
        worked = seconds * self.load.random.random()
        params = {"name": f"{self.server}__{tool}", "arguments": {"id": id, "seconds": worked}}
        while True:
            begun = trio.current_time()
            end, said = await self.attempt(params, id)
            self.book.attempts.append(Attempt(id, self.name, begun, trio.current_time(), end, said, worked))
            if end is not End.REFUSED:
                return
            await trio.sleep(AGAIN)

    async def attempt(self, params: Mapping[str, Any], id: str) -> tuple[End, str]:
        try:
            with trio.fail_after(self.patience):
                answer = await self.ask("tools/call", params)
        except httpx.ConnectError as problem:
            return End.REFUSED, repr(problem)
        except httpx.TransportError as problem:
            return End.BROKEN, repr(problem)
        except trio.TooSlowError:
            now = trio.current_time()
            self.book.doubt(f"{self.name}: {id} had no end within {self.patience:g} s", now - self.patience, now)
            return End.BROKEN, "no end"
        return self.judge(answer, id)

    def judge(self, answer: Mapping[str, Any] | None, id: str) -> tuple[End, str]:
        """What an answer to a call says; None if its stream ended without one."""
        if answer is None:
            return End.BROKEN, "its stream ended without an answer"
        if "error" in answer:
            unsent = answer["error"]["code"] == TOO_MANY_REQUESTS
            return End.UNSENT if unsent else End.TOLD, json.dumps(answer["error"])
        text = answer["result"]["content"][0]["text"]
        if not answer["result"].get("isError"):
            if text != id:
                self.book.blame(f"{self.name}: {id} got the result of {text}")
            return End.DONE, ""
        is_unsent = "needs a person's consent" in text or "a person said no" in text
        return (End.UNSENT if is_unsent else End.TOLD), text

    async def page(self) -> None:
        """Read all pages of the list of tools, which a restart may come between."""
        cursor: str | None = None
        while True:
            try:
                with trio.fail_after(PATIENCE):
                    answer = await self.ask("tools/list", {} if cursor is None else {"cursor": cursor})
            except (httpx.TransportError, trio.TooSlowError):
                self.book.count["broken lists"] += 1
                await trio.sleep(AGAIN)
                continue
            if answer is not None and answer.get("error", {}).get("code") == Interrupted.code:
                # It was forwarded to a process that was killed then. Nobody looks whether what is lost is only a list.
                self.book.count["broken lists"] += 1
                continue
            if answer is None or "error" in answer:
                self.book.count["list errors"] += 1
                self.book.blame(f"{self.name}: a list, {'with' if cursor else 'without'} a cursor: {answer}")
                return
            self.book.count["pages"] += 1
            cursor = answer["result"].get("nextCursor")
            if cursor is None:
                return

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any] | None:
        """The answer to a request; None if its stream ended without one."""
        headers, body = self.wrap(method, params)
        async with self.http.stream("POST", self.load.url, json=body, headers=headers) as answer:
            kind = answer.headers.get("content-type", "")
            if answer.status_code == 503 and kind != "application/json":
                raise httpx.ConnectError("the balancer has no process that is ready")
            self.note(method, answer.status_code)
            if kind == "text/event-stream":
                return await self.follow(answer, body["id"])
            found: dict[str, Any] = json.loads(await answer.aread())
            return found

    async def follow(self, answer: httpx.Response, id: int | None) -> dict[str, Any] | None:
        """Read a stream to its end, or to the answer to this request."""
        parser = EventParser()
        async for data in answer.aiter_bytes():
            for event in parser.feed(data):
                if isinstance(event, SseEvent) and event.data:
                    message: dict[str, Any] = json.loads(event.data)
                    if id is not None and message.get("id") == id and "method" not in message:
                        return message
                    self.load.hear(self.name, message)
        return None

    def note(self, what: str, status: int) -> None:
        self.book.count[f"HTTP {status}"] += 1
        if status in self.load.cut:
            raise httpx.RemoteProtocolError(f"HTTP {status} of the balancer")
        if status == 503:  # a home that is slow cannot be reached
            now = trio.current_time()
            since = now - max((each.at for each in self.book.outages), default=now)
            self.book.doubt(f"{self.name}: HTTP {status} to {what}, {since:.1f} s after a kill", now - HOLD, now)
        elif status not in (200, 202):
            self.book.blame(f"{self.name}: HTTP {status} to {what}")

    async def listen(self) -> None:
        """Hear of updates of its resource until the load ends, on one stream after the other."""
        while not self.load.stopping:
            try:
                await self.hear_updates()
            except httpx.TransportError:
                self.book.count["broken streams"] += 1
            self.load.listening.discard(self.name)
            await trio.sleep(AGAIN)

    async def hear_updates(self) -> None:
        """One stream, to its end."""
        raise NotImplementedError


class SessionClient(HttpClient):
    """A client of the handshake era, with a standing stream and a subscription."""

    def __init__(self, name: str, load: Load, http: httpx.AsyncClient) -> None:
        super().__init__(name, load, http)
        self.headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}

    def wrap(self, method: str, params: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
        return self.headers, {"jsonrpc": "2.0", "id": next(self._last), "method": method, "params": params}

    async def open(self) -> None:
        answer = await self.http.post(self.load.url, content=initialize(HANDSHAKE), headers=self.headers)
        self.headers |= {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": HANDSHAKE}
        body = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        await self.http.post(self.load.url, json=body, headers=self.headers)
        subscribed = await self.ask("resources/subscribe", {"uri": "book+memo://0"})
        assert subscribed is not None
        assert "result" in subscribed, subscribed

    async def hear_updates(self) -> None:
        headers = {**self.headers, "accept": "text/event-stream"}
        async with self.http.stream("GET", self.load.url, headers=headers, timeout=_STANDING) as answer:
            if answer.status_code == 409:  # the former one is about to end
                return
            self.note("GET", answer.status_code)
            self.load.listening.add(self.name)
            await self.follow(answer, None)


class PatientClient(SessionClient):
    """One with calls that take seconds, and others beside them in the same session."""

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(super().run)
            while await self.load.rest():
                await self.call("note", LONG)


class TaskClient(SessionClient):
    """One that calls what becomes a task, and fetches its result."""

    async def run(self) -> None:
        while await self.load.rest():
            key = self.load.new_id(self.name)
            try:
                with trio.fail_after(PATIENCE):
                    said = await self._do(key)
            except (httpx.TransportError, trio.TooSlowError, KeyError, TypeError) as problem:
                said = repr(problem)
            if said == f"{key} is done":
                self.book.count["tasks"] += 1
            else:
                self.book.blame(f"{self.name}: a task: {said}")

    async def _do(self, key: str) -> str:
        """The text of the result of a task."""
        made = await self._result("tools/call", {"name": "old__long_chore", "arguments": {"key": key}, "task": {}})
        task = {"taskId": made["task"]["taskId"]}
        while True:
            found = await self._result("tasks/get", task)
            if found["status"] == "completed":
                break
            if found["status"] != "working":
                return json.dumps(found)
            await trio.sleep(AGAIN)
        return str((await self._result("tasks/result", task))["content"][0]["text"])

    async def _result(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        answer = await self.ask(method, params) or {}
        if "result" not in answer:
            raise KeyError(f"{method}: {answer}")
        found: dict[str, Any] = answer["result"]
        return found


class StatelessClient(HttpClient):
    """A client of 2026-07-28, which listens."""

    def wrap(self, method: str, params: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
        return stateless_request(method, params, id=next(self._last))

    async def open(self) -> None:
        """There is nothing to open."""
        await trio.lowlevel.checkpoint()

    async def hear_updates(self) -> None:
        method = "subscriptions/listen"
        headers, body = self.wrap(method, {"notifications": {"resourceSubscriptions": ["book+memo://0"]}})
        async with self.http.stream("POST", self.load.url, json=body, headers=headers, timeout=_STANDING) as answer:
            self.note(method, answer.status_code)
            self.load.listening.add(self.name)
            await self.follow(answer, None)


_STANDING = httpx.Timeout(10, read=math.inf)


class _Transport(httpx2.AsyncHTTPTransport):
    """Tries to connect again. `posts` counts the requests whose response has not begun, notifications too."""

    def __init__(self) -> None:
        super().__init__(retries=6)
        self.posts = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.posts += request.method == "POST"
        try:
            return await super().handle_async_request(request)
        finally:
            self.posts -= request.method == "POST"


class SdkClient:
    """The official SDK's client, whose HTTP library is told to try to connect again. `opened` counts its `initialize`.

    A connection that breaks before the head of a response ends that client as a whole (mcp 2.3.0,
    `StreamableHTTPTransport.post_writer`), whatever the server is. So it has no call in flight when a host is killed
    (`Load.quiet`); a host that is told to end must let it notice nothing.
    """

    def __init__(self, name: str, load: Load, mode: str) -> None:
        self.name = name
        self.load = load
        self.book = load.book
        self.mode = mode
        self.opened = 0
        self.calls = 0
        self._calling = False
        self._transport = _Transport()
        self._said: list[str] = []

    @property
    def is_busy(self) -> bool:
        """Whether it would end as a whole if its connections broke."""
        return self._calling or self._transport.posts > 0

    async def _on_request(self, request: httpx2.Request) -> None:
        self._said.append(f"{trio.current_time():.2f} {request.method} {request.content[:80]!r}")
        if request.method == "POST" and b'"initialize"' in request.content:
            self.opened += 1

    async def _on_response(self, response: httpx2.Response) -> None:
        status = response.status_code
        if status in self.load.cut:
            self.book.count[f"HTTP {status}"] += 1
        elif status >= 400 and not (status == 409 and response.request.method == "GET"):
            self.book.count[f"HTTP {status}"] += 1
            self.book.blame(f"{self.name}: HTTP {status} to {response.request.method} of the SDK's client")

    async def _hear(self, message: IncomingMessage) -> None:
        if isinstance(message, ServerNotification):
            self.load.hear(self.name, {"method": message.method})

    def callbacks(self) -> dict[str, Any]:
        """What answers the requests of servers."""
        return {}

    async def run(self, on_open: Callable[[], None]) -> None:
        """Call until the load ends, or this client has."""
        try:
            await self._run(on_open)
        except* Exception as problems:  # noqa: BLE001 - it ends as a whole, whatever one request met
            self._calling = False
            now, last = trio.current_time(), self.book.outages[-1:]
            since = f", {now - last[0].at:.2f} s after {last[0].how}" if last else ""
            self.book.blame(f"{self.name} has ended{since}: {first_exception(problems)!r}; its last: {self._said[-3:]}")

    async def _run(self, on_open: Callable[[], None]) -> None:
        hooks: dict[str, list[Any]] = {"request": [self._on_request], "response": [self._on_response]}
        http = httpx2.AsyncClient(
            transport=self._transport,
            timeout=httpx2.Timeout(30, read=300),
            event_hooks=hooks,
        )
        async with http:
            transport = streamable_http_client(self.load.url, http_client=http)
            client = Client(
                transport,
                mode=self.mode,
                message_handler=self._hear,
                read_timeout_seconds=PATIENCE,
                **self.callbacks(),
            )
            async with client:
                await client.list_tools()
                on_open()
                while await self.load.rest():
                    if not self.load.quiet:
                        self._calling = True
                        await self._call(client)
                        self._calling = False

    async def _call(self, client: Client) -> None:
        id, begun = self.load.new_id(self.name), trio.current_time()
        end, said = End.DONE, ""
        try:
            result = await client.call_tool("book__note", {"id": id, "seconds": 0.02})
            self.calls += 1
            if result.is_error:
                end, said = End.TOLD, str(result.content)
        except Exception as problem:  # noqa: BLE001 - whatever it makes of that is what an application sees
            end, said = End.BROKEN, repr(problem)
        self.book.attempts.append(Attempt(id, self.name, begun, trio.current_time(), end, said))


class GuestClient(SdkClient):
    """One that servers ask for something in the middle of its calls. In 2026-07-28 the answer goes with the call, which
    is repeated under its `requestState`."""

    def callbacks(self) -> dict[str, Any]:
        return {"elicitation_callback": self._fill_in, "sampling_callback": self._complete}

    async def _fill_in(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        await self.load.rest()
        return ElicitResult(action="accept", content={"name": self.name})

    async def _complete(self, context: ClientRequestContext, params: CreateMessageRequestParams) -> CreateMessageResult:
        await self.load.rest()
        return CreateMessageResult(role="assistant", content=TextContent(type="text", text=self.name), model="none")

    async def _call(self, client: Client) -> None:
        server, tool = self.load.random.choice(("old", "new")), self.load.random.choice(("form", "sampling"))
        try:
            result = await client.call_tool(f"{server}__ask_{tool}", {"key": self.load.new_id(self.name)})
        except Exception as problem:  # noqa: BLE001 - whatever it makes of that is what an application sees
            self.book.blame(f"{self.name}: {server} asked for a {tool}: {problem!r}")
            return
        if result.is_error or f'"{self.name}"' not in str(result.content):
            self.book.blame(f"{self.name}: {server} asked for a {tool}: {result.content}")
        else:
            self.book.count["calls in which a server asked"] += 1
