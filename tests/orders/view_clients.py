"""Clients of every transport and era, each with an access token at one address: what they see, and what they ask."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import trio

from host.wire.sse import EventParser, SseEvent
from tests.kit.asgi import Connection, Response
from tests.orders.view_judge import TOKENS, Judge, Place

SECRETS = {name: f"{name}-0123456789abcdef" for name in TOKENS}
TAG = "example.com/tag"
LIST_METHODS = {
    "tools": "tools/list",
    "resources": "resources/list",
    "resourceTemplates": "resources/templates/list",
    "prompts": "prompts/list",
}


@dataclass(frozen=True)
class Ask:
    """A request. `tag` stands in its arguments."""

    method: str
    kind: str
    name: str
    tag: str
    arguments: Mapping[str, Any]

    @property
    def params(self) -> dict[str, Any]:
        if self.method == "completion/complete":
            ref = {"type": "ref/prompt", "name": self.name}
            if self.kind == "resourceTemplates":
                ref = {"type": "ref/resource", "uri": self.name}
            return {"ref": ref, "argument": {"name": "mood" if self.kind == "prompts" else "id", "value": self.tag}}
        if self.method == "resources/read":
            return {"uri": self.name, "_meta": {TAG: self.tag}}
        return {"name": self.name, "arguments": dict(self.arguments)}


@dataclass(frozen=True)
class Reply:
    """The outcome of a request: the status of HTTP, and the message. Without one, its session ended."""

    status: int
    message: Mapping[str, Any] | None


# Clients


class Client(ABC):
    """A client with a token at a place. `notices` are those that came since they were taken."""

    listens = True
    """Whether it has a stream for what comes outside requests."""

    has_address = True
    """Whether it is at an address of HTTP."""

    def __init__(self, connection: Connection, token: str, place: Place) -> None:
        self.token, self.place = token, place
        self.connection = connection.another()
        self.connection.headers["authorization"] = f"Bearer {SECRETS[token]}"
        self.stream: Response | None = None
        self.opened_at: Place | None = None
        """Where it was when it opened its session."""
        self.lists: dict[str, list[dict[str, Any]]] = {}
        """The lists that it read last."""
        self.subscribed: set[str] = set()
        self.instructions = ""
        self._parser = EventParser()
        self._parsed = 0
        self._heard: list[dict[str, Any]] = []
        """The messages of the stream."""
        self._taken = 0

    def __repr__(self) -> str:
        return f"{self.token} at {type(self).__name__}{self.place.path or '/'}"

    @property
    def is_open(self) -> bool:
        return self.stream is not None

    @property
    def is_over(self) -> bool:
        """Whether the host has ended what it opened."""
        return self.stream is not None and self.stream.complete.is_set()

    @abstractmethod
    async def open(self) -> int:
        """Open a session or stream: the status."""

    @abstractmethod
    async def ask(self, method: str, params: Mapping[str, Any]) -> Reply: ...

    async def subscribe(self, uri: str) -> Reply:
        return await self.ask("resources/subscribe", {"uri": uri})

    async def servers(self) -> list[str] | None:
        """The servers that /status shows; None if there is no such endpoint."""
        answer = await self.connection.get("GET", "/status" + self.place.path)
        return [each["id"] for each in json.loads(answer.body)["servers"]] if answer.status == 200 else None

    def close(self) -> None:
        self.connection.leaves.set()
        self.connection = self.connection.another()
        self.connection.session = self.stream = None
        self.subscribed.clear()
        self._parser, self._parsed, self._taken = EventParser(), 0, 0
        self._heard = []

    def hear(self) -> list[dict[str, Any]]:
        """All messages that have come on the stream."""
        if self.stream is not None:
            data, self._parsed = self.stream.body[self._parsed :], len(self.stream.body)
            events = [each for each in self._parser.feed(data) if isinstance(each, SseEvent)]
            self._heard += [json.loads(each.data) for each in events if each.event == "message" and each.data]
        return self._heard

    def notices(self) -> list[dict[str, Any]]:
        """Those that came since the last look."""
        every = self.hear()
        found, self._taken = every[self._taken :], len(every)
        return [each for each in found if "method" in each]

    def address(self, judge: Judge) -> Place | None:
        """Where it is, by the judge."""
        return judge.address(self.token, self.place)

    async def read_lists(self) -> dict[str, list[dict[str, Any]]] | None:
        """All lists; None if there is no such endpoint."""
        found: dict[str, list[dict[str, Any]]] = {}
        for kind, method in LIST_METHODS.items():
            reply = await self.ask(method, {})
            if reply.status == 404 or reply.message is None:
                return None
            found[kind] = reply.message["result"][kind]
        return found


class Streamable(Client):
    """A session over Streamable HTTP."""

    base = "/mcp"
    revision = "2025-11-25"

    async def open(self) -> int:
        info = {"name": "t", "version": "1"}
        params = {"protocolVersion": self.revision, "capabilities": {}, "clientInfo": info}
        reply = await self.connection.get("POST", self.path, request("initialize", params))
        if reply.status != 200:
            return reply.status
        self.instructions = reply.messages()[-1]["result"].get("instructions", "")
        self.connection.session = reply.headers["mcp-session-id"]
        await self.connection.notify({"method": "notifications/initialized"}, self.path)
        self.stream = self.connection.send("GET", self.path, headers={"accept": "text/event-stream"})
        await self.stream.started.wait()
        assert (await self.ask("logging/setLevel", {"level": "debug"})).status == 200
        return 200

    @property
    def path(self) -> str:
        return self.base + self.place.path

    async def ask(self, method: str, params: Mapping[str, Any]) -> Reply:
        return reply_of(await self.connection.get("POST", self.path, request(method, params)))


class Old(Client):
    """A session over HTTP+SSE."""

    def __init__(self, connection: Connection, token: str, place: Place) -> None:
        super().__init__(connection, token, place)
        self._there = ""
        self._last = 0

    async def open(self) -> int:
        stream = self.connection.send("GET", "/sse" + self.place.path, headers={"accept": "text/event-stream"})
        await stream.started.wait()
        if stream.status != 200:
            await stream.complete.wait()
            return stream.status
        self.stream = stream
        while not stream.events():  # noqa: ASYNC110 - the stream has no event of ours
            await trio.sleep(0.01)
        self._there = stream.events()[0].data.decode()
        info = {"name": "old", "version": "1"}
        params = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": info}
        reply = await self.ask("initialize", params)
        assert reply.message is not None
        self.instructions = reply.message["result"].get("instructions", "")
        await self.connection.notify({"method": "notifications/initialized"}, self._there)
        await self.ask("logging/setLevel", {"level": "debug"})
        return 200

    async def ask(self, method: str, params: Mapping[str, Any]) -> Reply:
        stream, heard = self.stream, self.hear()
        assert stream is not None
        self._last += 1
        id, at = self._last, len(heard)
        posted = await self.connection.get("POST", self._there, {**request(method, params), "id": id})
        if posted.status != 202:
            return Reply(posted.status, None)
        with trio.move_on_after(30):
            while not stream.complete.is_set() and self.stream is stream:
                self.hear()
                for each in heard[at:]:
                    if each.get("id") == id and "method" not in each:
                        return Reply(200, each)
                await trio.sleep(0.005)
        return Reply(200, None)


class Stateless(Client):
    """A client of 2026-07-28 that listens."""

    async def open(self) -> int:
        wanted: dict[str, Any] = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}
        wanted |= {"resourceSubscriptions": sorted(self.subscribed)} if self.subscribed else {}
        stream = self.connection.start("subscriptions/listen", {"notifications": wanted}, path=self.path)
        await stream.started.wait()
        if stream.status != 200:
            return stream.status
        self.stream = stream
        reply = await self.ask("server/discover", {})
        assert reply.message is not None
        self.instructions = reply.message["result"].get("instructions", "")
        return 200

    @property
    def path(self) -> str:
        return "/mcp" + self.place.path

    async def ask(self, method: str, params: Mapping[str, Any]) -> Reply:
        answer = self.connection.start(method, params, path=self.path, meta=params.get("_meta"))
        await answer.complete.wait()
        return reply_of(answer)

    async def subscribe(self, uri: str) -> Reply:
        return Reply(0, None)


class Alone(Client):
    """Requests without a session, to /message."""

    listens = False

    async def open(self) -> int:
        return (await self.ask("ping", {})).status

    async def ask(self, method: str, params: Mapping[str, Any]) -> Reply:
        path = "/message" + self.place.path
        return reply_of(await self.connection.get("POST", path, request(method, params)))


def request(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": dict(params)}


def reply_of(answer: Response) -> Reply:
    messages = [each for each in answer.messages() if "method" not in each]
    return Reply(answer.status, messages[-1] if messages and answer.status != 404 else None)


FORMS: tuple[Callable[[Connection, str, Place], Client], ...] = (Streamable, Old, Stateless, Alone)
