"""Clients written by hand that speak exactly one revision: nothing newer is sent, and what a client of that revision
could not take is written down as a complaint. Here are those with a handshake, one for each transport, and what the
stateless ones have in common with them.

They know messages and streams, not Colonnade and not what a cell expects. Each owns its tasks and its connection, which
have ended when its block ends.
"""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urljoin

import httpx
import trio

Message = dict[str, Any]

ANSWER_TIMEOUT = 8.0
"""Seconds for an answer. Nothing here takes long: this is the bound for what hangs."""
START = 30.0
"""Seconds for the answer to `initialize`: a host of its own is started for it, which waits for its servers."""
NOTICE_TIMEOUT = 3.0
"""Seconds for a notification."""
ELICITATION_SINCE = STRUCTURED_SINCE = LINKS_SINCE = HEADER_SINCE = "2025-06-18"
URL_SINCE = PRIMING_SINCE = TOOLS_SINCE = TASKS_SINCE = "2025-11-25"
AUDIO_SINCE = "2025-03-26"
STATELESS_SINCE = "2026-07-28"
IO = "io.modelcontextprotocol/"
POLL = 20
"""Milliseconds between two looks at a task, unless its server advises others."""


class NoAnswer(Exception):
    """The request was not answered in time, or its stream ended without an answer."""


@dataclass(frozen=True)
class ReceivedMessage:
    """A notification or a question, and the id of the request on whose stream it came, if it came on one."""

    message: Message
    about: int | None

    @property
    def method(self) -> str:
        return str(self.message["method"])

    @property
    def params(self) -> Message:
        params: Message = self.message.get("params", {})
        return params


@dataclass
class Call:
    """A request under way."""

    id: int
    method: str
    params: Message
    ended: trio.Event = field(default_factory=trio.Event)
    answer: Message | None = None


@dataclass(frozen=True)
class Done:
    """A call that was willing to become a task: the task it became, if any, as it was last; and the answer."""

    task: Message | None
    answer: Message


def capabilities(revision: str) -> Message:
    """Everything that a client of this revision can declare."""
    declared: Message = {"roots": {"listChanged": True}, "sampling": {}}
    if revision >= ELICITATION_SINCE:
        declared["elicitation"] = {}
    if revision >= URL_SINCE:
        declared |= {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}}
    if revision >= STATELESS_SINCE:
        declared |= {"roots": {}, "extensions": {f"{IO}tasks": {}}}
    return declared


class Client:
    """The part that all clients share, and that of handshake revisions. `heard` are notifications, `asked` the
    questions, in the order they came; `received` is every message, and the status of every response to a request, with
    the request on whose stream it came, if it came on one; `methods` are those of its requests, by id; `offered` are
    the server's capabilities."""

    def __init__(self, name: str, revision: str, nursery: trio.Nursery) -> None:
        self.name = name
        self.revision = revision
        self.heard: list[ReceivedMessage] = []
        self.asked: list[ReceivedMessage] = []
        self.complaints: list[str] = []
        self.received: list[tuple[int | None, Message]] = []
        self.offered: Message = {}
        self.carries_questions_on_calls = False
        self._nursery = nursery
        self._ids = itertools.count(1)
        self.methods: dict[int, str] = {}
        self._calls: dict[int, Call] = {}
        self._arrivals = trio.lowlevel.ParkingLot()

    async def open(self) -> None:
        """The handshake."""
        info = {"name": self.name, "version": "1"}
        params = {"protocolVersion": self.revision, "capabilities": capabilities(self.revision), "clientInfo": info}
        result: Message = (await self.ask("initialize", params, START))["result"]
        assert result["protocolVersion"] == self.revision, result
        self.offered = result["capabilities"]
        await self.opened()

    async def opened(self) -> None:
        """The messages after the answer to `initialize`."""
        await self.tell("notifications/initialized")

    async def ask(self, method: str, params: Message | None = None, patience: float = ANSWER_TIMEOUT) -> Message:
        """The answer: an object with `result` or `error`.

        Raises:
            NoAnswer: none came.
        """
        call = await self.begin(method, params)
        with trio.move_on_after(patience):
            await call.ended.wait()
        if call.answer is None:
            raise NoAnswer(f"no answer to {method}")
        return call.answer

    async def begin(self, method: str, params: Message | None = None) -> Call:
        """Send a request without waiting for what becomes of it."""
        call = Call(next(self._ids), method, params or {})
        self._calls[call.id] = call
        self.methods[call.id] = method
        await self.send({"jsonrpc": "2.0", "id": call.id, "method": method, "params": call.params})
        return call

    async def call_off(self, call: Call) -> None:
        """Want no answer to this request any more."""
        await self.tell("notifications/cancelled", {"requestId": call.id, "reason": "enough"})

    async def watch(self, uri: str) -> Message:
        """Hear of every change of this resource from now on; the answer."""
        return await self.ask("resources/subscribe", {"uri": uri})

    async def unwatch(self, uri: str) -> None:
        await self.ask("resources/unsubscribe", {"uri": uri})

    async def want_log(self, level: str) -> Message:
        """Hear log messages from this level on; the answer."""
        return await self.ask("logging/setLevel", {"level": level})

    async def call_as_task(self, params: Message) -> Done:
        """Call a tool as a task, where the revision has any, and follow that to its end."""
        if self.revision < TASKS_SINCE:
            return Done(None, await self.ask("tools/call", params))
        answer = await self.ask("tools/call", {**params, "task": {"ttl": 60_000}})
        task: Message | None = answer.get("result", {}).get("task")
        if task is None:
            return Done(None, answer)
        while not is_over(task):
            await trio.sleep(task.get("pollInterval", POLL) / 1000)
            task = (await self.ask("tasks/get", {"taskId": task["taskId"]}))["result"]
        return Done(task, await self.ask("tasks/result", {"taskId": task["taskId"]}))

    async def call_without_task(self, params: Message) -> Message:
        """Call a tool as a client does that knows nothing of tasks; the answer."""
        return await self.ask("tools/call", params)

    async def tell(self, method: str, params: Message | None = None) -> None:
        await self.send({"jsonrpc": "2.0", "method": method} | ({} if params is None else {"params": params}))

    async def hears(
        self, wanted: Callable[[ReceivedMessage], bool], after: int = 0, patience: float = NOTICE_TIMEOUT
    ) -> bool:
        """Whether such a notification comes, or has come since the first `after`."""
        with trio.move_on_after(patience):
            while not any(map(wanted, self.heard[after:])):
                await self._arrivals.park()
            return True
        return False

    async def send(self, message: Message) -> None:
        raise NotImplementedError

    def take(self, text: str | bytes, about: int | None = None) -> None:
        """One message that came."""
        message = self.receive(text, about)
        if not isinstance(message, dict):
            self.complaints.append(f"an array, unasked: {message}")
        elif "method" not in message:
            self._answered(message)
        elif "id" in message:
            self.asked.append(ReceivedMessage(message, about))
            self._nursery.start_soon(self._reply, message)
        else:
            if f"{IO}subscriptionId" in message.get("params", {}).get("_meta", {}):
                self.complaints.append(f"a subscription that {self.revision} does not have: {message}")
            self.heard.append(ReceivedMessage(message, about))
            self._arrivals.unpark_all()

    def receive(self, text: str | bytes, about: int | None) -> Any:
        """The message, which is written down with where it came."""
        message = json.loads(text)
        self.received.append((about, message))
        return message

    def end(self, id: int) -> None:
        """No answer is expected to this request any more; one that comes all the same is a complaint."""
        if call := self._calls.pop(id, None):
            call.ended.set()

    def _answered(self, message: Message) -> None:
        call = self._calls.get(message.get("id", 0))
        if call is None:
            self.complaints.append(f"an answer to nothing that is open: {message}")
            return
        self.complaints += [f"{call.method}: {each}" for each in self.wrong_with(call, message.get("result", {}))]
        call.answer = message
        self.end(call.id)

    def wrong_with(self, call: Call, result: Message) -> list[str]:
        """Members of a result that a client of this revision could not read."""
        newer = {"resultType", "ttlMs", "cacheScope"} & result.keys()
        stamps = {f"{IO}serverInfo", f"{IO}subscriptionId"} & result.get("_meta", {}).keys()
        return [f"{name} in a result of {self.revision}" for name in sorted(newer | stamps)]

    async def _reply(self, question: Message) -> None:
        body = reply_to(self.name, self.revision, question["method"], question.get("params", {}))
        if "error" in body:
            self.complaints.append(f"asked what {self.revision} does not have: {question}")
        await self.send({"jsonrpc": "2.0", "id": question["id"], **body})


def reply_to(name: str, revision: str, method: str, params: Message) -> Message:
    """What a client of this revision says to a question: it does what it is asked, and says who did it."""
    unlike = _is_unlike(revision, params)
    if method == "ping" and revision < STATELESS_SINCE:
        return {"result": {}}
    if method == "roots/list":
        return {"result": {"roots": [{"uri": f"file:///{name}", "name": name}]}}
    if method == "sampling/createMessage" and not unlike:
        content = params["messages"][0]["content"]
        if content["type"] != "audio" or revision >= AUDIO_SINCE:
            said = f"{name} read {content.get('text', content['type'])}"
            return {"result": {"role": "assistant", "model": "by hand", "content": {"type": "text", "text": said}}}
    if method == "elicitation/create" and revision >= ELICITATION_SINCE and not unlike:
        if params.get("mode") == "url":
            return {"result": {"action": "accept"}}
        filled = {"name": name, "sure": True, "colour": "g", "colours": ["r", "g"]}
        wanted = params["requestedSchema"]["properties"]
        return {"result": {"action": "accept", "content": {key: filled[key] for key in wanted}}}
    return {"error": {"code": -32601, "message": f"not in {revision}"}}


def _is_unlike(revision: str, params: Message) -> bool:
    """Whether a question has members that this revision does not have, or lacks those that it has."""
    if revision < URL_SINCE:
        return bool({"mode", "elicitationId", "tools", "toolChoice"} & params.keys())
    is_named = revision < STATELESS_SINCE and params.get("mode") == "url"
    return ("elicitationId" in params) != is_named


def is_over(task: Message) -> bool:
    return task["status"] in ("completed", "failed", "cancelled")


class StdioClient(Client):
    """A program of its own, one message on a line."""

    def __init__(self, name: str, revision: str, nursery: trio.Nursery, program: trio.Process) -> None:
        super().__init__(name, revision, nursery)
        self._program = program
        self._writing = trio.Lock()

    async def send(self, message: Message) -> None:
        assert self._program.stdin is not None
        async with self._writing:
            await self._program.stdin.send_all(json.dumps(message).encode() + b"\n")

    async def read(self) -> None:
        assert self._program.stdout is not None
        rest = b""
        async for data in self._program.stdout:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self.take(line)
        for id in list(self._calls):
            self.end(id)


class HttpClient(Client):
    """Streamable HTTP, with a standing stream."""

    def __init__(self, name: str, revision: str, nursery: trio.Nursery, http: httpx.AsyncClient, url: str) -> None:
        super().__init__(name, revision, nursery)
        self.carries_questions_on_calls = True
        self._http = http
        self._url = url
        self._headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        self._listening = trio.Event()

    async def opened(self) -> None:
        if self.revision >= HEADER_SINCE:
            self._headers["mcp-protocol-version"] = self.revision
        await super().opened()
        self._nursery.start_soon(self._listen)
        with trio.fail_after(ANSWER_TIMEOUT):
            await self._listening.wait()

    async def send(self, message: Message) -> None:
        if "method" in message and "id" in message:
            self._nursery.start_soon(self._post, message)
        else:
            await self._post(message)

    async def _post(self, message: Message) -> None:
        id = message["id"] if "method" in message and "id" in message else None
        try:
            async with self._http.stream("POST", self._url, json=message, headers=self._headers) as answer:
                await self._take_answer(answer, id)
        except httpx.HTTPError as problem:
            self.complaints.append(f"{type(problem).__name__} while {message.get('method', 'an answer')} was posted")
        if id is not None:
            self.end(id)

    async def _take_answer(self, answer: httpx.Response, id: int | None) -> None:
        if id is not None:
            self.received.append((id, {"status": answer.status_code}))
        if "mcp-session-id" in answer.headers:
            self._headers["mcp-session-id"] = answer.headers["mcp-session-id"]
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            async for event in events(answer, self.revision, self.complaints):
                self.take(event.data, id)
        elif body := await answer.aread():
            if not answer.is_success:
                self.complaints.append(f"HTTP {answer.status_code}: {body!r}")
            elif id is not None:
                self.take(body, id)

    async def _listen(self) -> None:
        with suppress(httpx.HTTPError):
            async with self._http.stream("GET", self._url, headers=self._headers) as stream:
                if not stream.is_success:
                    self.complaints.append(f"HTTP {stream.status_code} to the GET of a stream")
                self._listening.set()
                async for event in events(stream, self.revision, self.complaints):
                    self.take(event.data)

    async def leave(self) -> None:
        headers = {name: value for name, value in self._headers.items() if name != "content-type"}
        with suppress(httpx.HTTPError):
            await self._http.delete(self._url, headers=headers)


class EventsClient(Client):
    """HTTP+SSE as 2024-11-05 has it: everything comes on one stream, which says first where to post."""

    def __init__(self, name: str, revision: str, nursery: trio.Nursery, http: httpx.AsyncClient, url: str) -> None:
        super().__init__(name, revision, nursery)
        self._http = http
        self._url = url
        self._post_to = ""
        self._ready = trio.Event()
        self._headers: dict[str, str] = {}

    async def opened(self) -> None:
        if self.revision >= HEADER_SINCE:
            self._headers["mcp-protocol-version"] = self.revision
        await super().opened()

    async def read(self) -> None:
        headers = {"accept": "text/event-stream"}
        with suppress(httpx.HTTPError):
            async with self._http.stream("GET", self._url, headers=headers) as stream:
                async for event in events(stream, self.revision, self.complaints):
                    if event.type == "endpoint":
                        self._post_to = urljoin(self._url, event.data)
                        self._ready.set()
                    elif event.type == "message":
                        self.take(event.data)
                    elif event.type != "ping":  # a sign of life in wide use, which clients pass over
                        self.complaints.append(f"an event of type {event.type}")
        for id in list(self._calls):
            self.end(id)

    async def send(self, message: Message) -> None:
        with trio.move_on_after(ANSWER_TIMEOUT):
            await self._ready.wait()
        if not self._ready.is_set():
            raise NoAnswer(f"no endpoint event from {self._url}")
        answer = await self._http.post(self._post_to, json=message, headers=self._headers)
        if not answer.is_success:
            self.complaints.append(f"HTTP {answer.status_code} to {message.get('method', 'an answer')}: {answer.text}")
            self.end(message.get("id", 0))


@dataclass
class Event:
    type: str
    data: str


async def events(stream: httpx.Response, revision: str, complaints: list[str]) -> AsyncIterator[Event]:
    """The events of the stream. One without data primes, which only the latest revision has: others would choke."""
    found = Event("message", "")
    seen = False
    async for line in stream.aiter_lines():
        name, _, value = line.partition(":")
        if not line and seen:
            if found.data:
                yield found
            elif revision < PRIMING_SINCE:
                complaints.append("an event without data")
            found, seen = Event("message", ""), False
        elif name == "data":
            found.data, seen = found.data + value.removeprefix(" "), True
        elif name == "event":
            found.type = value.removeprefix(" ")


@asynccontextmanager
async def over_stdio(
    name: str, revision: str, where: list[str], kind: type[StdioClient] = StdioClient
) -> AsyncIterator[Client]:
    async with trio.open_nursery() as nursery:
        program = await trio.lowlevel.open_process(
            where, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        client = kind(name, revision, nursery, program)
        try:
            nursery.start_soon(client.read)
            await client.open()
            yield client
        finally:
            await _end(program)
            nursery.cancel_scope.cancel()


async def _end(program: trio.Process) -> None:
    """Close its input, which ends it; kill it if it does not."""
    with trio.CancelScope(shield=True):
        assert program.stdin is not None
        await program.stdin.aclose()
        with trio.move_on_after(ANSWER_TIMEOUT):
            await program.wait()
        program.kill()
        await program.wait()


@asynccontextmanager
async def over_http(name: str, revision: str, where: str) -> AsyncIterator[Client]:
    async with connections() as http, trio.open_nursery() as nursery:
        client = HttpClient(name, revision, nursery, http, where)
        await client.open()
        yield client
        await client.leave()
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def over_sse(name: str, revision: str, where: str) -> AsyncIterator[Client]:
    async with connections() as http, trio.open_nursery() as nursery:
        client = EventsClient(name, revision, nursery, http, where)
        nursery.start_soon(client.read)
        await client.open()
        yield client
        nursery.cancel_scope.cancel()


def connections() -> httpx.AsyncClient:
    # No TLS: reading the certificates takes longer than all else. Streams stand as long as the session does.
    return httpx.AsyncClient(trust_env=False, verify=False, timeout=httpx.Timeout(ANSWER_TIMEOUT, read=None))
