"""A tap on HTTP: passes the bytes on both ways as they are, and writes down the messages that Colonnade sent.

It knows HTTP and the ids of requests, so that it can tell which request a response answers, and of which revision the
conversation is. It refuses to change or delay anything. A connection that one side closes is closed to the other.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httptools
import trio

from host.wire.sse import EventParser, SseEvent
from tests.conformance.schemas import Receiver, Sent

IO = "io.modelcontextprotocol/"
REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
STATELESS_CODES = (-32020, -32021, -32022)
PIECE = 65536
SENT = "sent.json"

Key = tuple[str, object]
"""The session, empty without one, and the id of a request."""


@dataclass
class Exchange:
    """An HTTP request and what is known of its response."""

    headers: dict[str, str] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    answer_headers: dict[str, str] = field(default_factory=dict)

    @property
    def session(self) -> str:
        """The id of the session, which `initialize` gets with its response."""
        return self.answer_headers.get("mcp-session-id") or self.headers.get("mcp-session-id", "")


class Conversations:
    """All that goes through one tap. Messages to the `receiver` are those that Colonnade sent."""

    def __init__(self, receiver: Receiver, where: str) -> None:
        self.sent: list[Sent] = []
        self._receiver = receiver
        self._where = where
        self._revisions: dict[str, str] = {}
        self._methods: dict[Receiver, dict[Key, str]] = {"client": {}, "server": {}}

    def to_server(self, exchange: Exchange, body: bytes) -> None:
        """The whole body of a request."""
        exchange.messages = self._read("server", exchange, body)

    def to_client(self, exchange: Exchange, body: bytes) -> None:
        """A whole JSON body, or the data of an event."""
        self._read("client", exchange, body)

    def _read(self, to: Receiver, exchange: Exchange, body: bytes) -> list[dict[str, Any]]:
        message: Any = _parsed(body)
        messages = [each for each in (message if isinstance(message, list) else [message]) if isinstance(each, dict)]
        for each in messages:
            if "method" in each and "id" in each:
                self._methods[to][exchange.session, _id(each)] = each["method"]
            if to == "client" and (agreed := _at(each, "result", "protocolVersion")) in REVISIONS:
                self._revisions[exchange.session] = agreed
        if to == self._receiver:
            for each in messages or [message]:
                self.sent.append(self._sent(to, exchange, each))
        return messages

    def _sent(self, to: Receiver, exchange: Exchange, message: Any) -> Sent:
        answers = None
        if isinstance(message, dict) and "method" not in message:
            own = {_id(each): each["method"] for each in exchange.messages if "method" in each and "id" in each}
            asked = self._methods["server" if to == "client" else "client"]
            answers = own.get(_id(message)) or asked.get((exchange.session, _id(message)))
        return Sent(self._where, self._revision(exchange, message), to, message, answers)

    def _revision(self, exchange: Exchange, message: Any) -> str:
        """The revision that the headers name, or the handshake of the session, or the message itself."""
        said = [
            exchange.headers.get("mcp-protocol-version"),
            self._revisions.get(exchange.session),
            *(_at(each, "params", "_meta", f"{IO}protocolVersion") for each in exchange.messages or [message]),
            _at(message, "params", "protocolVersion"),
        ]
        if _at(message, "error", "code") in STATELESS_CODES:
            return REVISIONS[-1]
        return next((each for each in said if each in REVISIONS), REVISIONS[-2])


def _parsed(body: bytes) -> Any:
    """The JSON; what is none, as text."""
    try:
        return json.loads(body)
    except ValueError:
        return body.decode(errors="replace")


def _at(value: Any, *path: str) -> Any:
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _id(message: dict[str, Any]) -> object:
    id = message.get("id")
    return id if isinstance(id, str | int) else None


def keep(folder: Path, *taps: Conversations) -> None:
    """Write what the taps have written down to a file in the folder, after what is there already."""
    file = folder / SENT
    kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    file.write_text(json.dumps([*kept, *(asdict(each) for tap in taps for each in tap.sent)]), encoding="utf-8")


def kept_below(folder: Path) -> list[Sent]:
    """Everything that was kept in this folder and those below."""
    files = sorted(folder.rglob(SENT))
    return [Sent(**each) for file in files for each in json.loads(file.read_text(encoding="utf-8"))]


class Requests:
    """httptools' callbacks for the requests of one connection."""

    def __init__(self, conversations: Conversations, pending: deque[Exchange]) -> None:
        self._conversations = conversations
        self._pending = pending

    def on_message_begin(self) -> None:
        self._exchange = Exchange()
        self._body = b""

    def on_header(self, name: bytes, value: bytes) -> None:
        self._exchange.headers[name.decode("latin-1").lower()] = value.decode("latin-1").strip()

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self._pending.append(self._exchange)
        if self._body:
            self._conversations.to_server(self._exchange, self._body)


class Responses:
    """httptools' callbacks for the responses of one connection."""

    def __init__(self, conversations: Conversations, pending: deque[Exchange]) -> None:
        self._conversations = conversations
        self._pending = pending

    def on_message_begin(self) -> None:
        self._exchange = self._pending.popleft() if self._pending else Exchange()
        self._body = b""
        self._events = EventParser()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._exchange.answer_headers[name.decode("latin-1").lower()] = value.decode("latin-1").strip()

    def on_body(self, body: bytes) -> None:
        if not self._type.startswith("text/event-stream"):
            self._body += body
            return
        for event in self._events.feed(body):
            if isinstance(event, SseEvent) and event.event == "message" and event.data:
                self._conversations.to_client(self._exchange, event.data)

    def on_message_complete(self) -> None:
        if self._body and self._type.startswith("application/json"):
            self._conversations.to_client(self._exchange, self._body)

    @property
    def _type(self) -> str:
        return self._exchange.answer_headers.get("content-type", "")


@asynccontextmanager
async def open_tap(url: str, receiver: Receiver, where: str) -> AsyncIterator[tuple[str, Conversations]]:
    """A tap before the server at `url`, for the time of the block: its own URL, and what it writes down.

    Args:
        receiver: the side that gets what Colonnade sends: its client, or the server behind it.
        where: the name of this place in what is written down.
    """
    target = urlsplit(url)
    conversations = Conversations(receiver, where)

    async def serve(near: trio.SocketStream) -> None:
        with suppress(OSError):  # nobody is there any more: the near side is closed, too
            async with near, await trio.open_tcp_stream(str(target.hostname), target.port or 80) as far:
                pending: deque[Exchange] = deque()
                requests = httptools.HttpRequestParser(Requests(conversations, pending))
                responses = httptools.HttpResponseParser(Responses(conversations, pending))
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_pass_on, near, far, requests.feed_data, nursery.cancel_scope.cancel)
                    nursery.start_soon(_pass_on, far, near, responses.feed_data, nursery.cancel_scope.cancel)

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        yield urlunsplit(target._replace(netloc=f"{target.hostname}:{port}")), conversations
        nursery.cancel_scope.cancel()


async def _pass_on(
    source: trio.SocketStream, sink: trio.SocketStream, look: Callable[[bytes], None], end: Callable[[], None]
) -> None:
    """Pass on until one side closes, which ends the other direction too."""
    readable = True
    with suppress(trio.BrokenResourceError):
        while data := await source.receive_some(PIECE):
            if readable:  # before it is passed on, so that no response is seen before its request
                try:
                    look(bytes(data))
                except httptools.HttpParserError:
                    readable = False  # what it is worth is the receiver's to say
            await sink.send_all(data)
    end()
