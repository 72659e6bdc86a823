"""Thousands of calls whose servers ask back, and whether each question finds the one client that it is meant for.

    .venv/bin/python -m tests.real.soak [--exchanges 12000] [--seed N]

One host, three clients with an access token each, and three servers of `tests/kit/servers/asker.py`: `web`, shared,
over HTTP; `own`, over stdio, one process for each client; and in a second phase `pipe`, shared, over stdio, where a
question may only be passed on while it is certain whose call it belongs to. Every call has a secret, every question
carries the secret of its call, and every answer is made from the question and from chance: whatever goes astray shows.
All clients use the same ids and the same progress tokens. Calls are cancelled, streams are dropped and resumed,
questions refused. In the end every message of the host is held against the schema of the revision.

From the seed follow the secrets and all that clients and servers do; when it happens is real time. Exits with 1 if a
question was lost, doubled or at a wrong client, if anything else came amiss, if a message was not what its schema has,
or if hardly anything was asked.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import trio

from host.wire.sse import EventParser, SseEvent
from tests.conformance.schemas import Sent, hold, load

from .running import SERVERS, Running, listening, pids_below, serving, until, write_config

REVISION = "2025-11-25"
IO = "io.modelcontextprotocol/"
CLIENTS = ("alice", "bob", "carol")
WEB, OWN, PIPE = "web", "own", "pipe"
ASKER = str(SERVERS / "asker.py")

EXCHANGES = 12_000
WORKERS = {WEB: 7, OWN: 3, PIPE: 3}
"""Calls of one client that are in flight at once. So few that no server asks more at once than the host lets it."""
TOGETHER = {WEB: 3, OWN: 2, PIPE: 2}
ROUND = 40
"""Calls of one round with `pipe`, in which one client is alone, or all are there, or two."""
LEAST_DELIVERED, LEAST_DELIVERED_PIPE = 0.8, 0.2
"""Questions for each exchange below which the run has shown nothing. One and a half are asked for each."""
PATIENCE = 20.0
"""Seconds for one call: more than the server waits for any answer."""
HOPELESS = 20
"""Calls without a result after which no more are made."""
LEFT_AFTER = 2.0
FRESH = 2.0
"""Seconds after which a connection is not used again: the host may be about to close it."""
MOST_SHOWN = 20
SECRET = re.compile(r"\b([0-9a-f]{16})/(\d)\b")

Message = dict[str, Any]


@dataclass(eq=False)
class Call:
    """What its client knows of a call. `answers`: what it answered to each question it was asked, by number."""

    client: str
    server: str
    nonce: str
    id: int
    cancelled: bool = False
    answers: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """A line of a server's ledger."""

    server: str
    what: str
    nonce: str
    number: int
    text: str


class Book:
    """All calls and what came of their questions. Pure: no clock, no sockets."""

    def __init__(self) -> None:
        self.calls: dict[str, Call] = {}
        self.count: Counter[str] = Counter()
        self.problems: list[str] = []
        self.sent: list[Sent] = []  # every message of the host
        self._pids: dict[str, set[int]] = {}
        self._turns: set[tuple[int, int]] = set()

    def begin(self, call: Call) -> None:
        self.calls[call.nonce] = call

    def question(self, client: str, text: str, channel: Call | None) -> tuple[Call, int] | None:
        """A question with this text came to this client on the stream of that call (None: the standing one). The call
        and the number if it is to be answered."""
        found = SECRET.search(text)
        call = self.calls.get(found[1]) if found else None
        if found is None or call is None:
            self.blame(f"a question that no server asked: {text!r}")
            return None
        number = int(found[2])
        if call.client != client:
            self.count["wrong client on pipe" if call.server == PIPE else "wrong client"] += 1
            self.blame(f"{call.server} asked {call.client}, but {client} got it")
            return None
        if number in call.answers:
            self.count["doubled"] += 1
            self.blame(f"{call.server} asked {client} once, who was asked twice")
            return None
        if call.server == WEB and channel is not call:
            self.blame(f"a question of {WEB} on another stream than that of its own call")
        return call, number

    def result(self, call: Call, shown: Message) -> None:
        """What the server gave back for a call: its own secret, the answers it got, and what its process remembers."""
        if shown["nonce"] != call.nonce:
            self.blame(f"{call.client} got the result of another call of {call.server}")
        for number, outcome in shown["answers"].items():
            self._check(call, int(number), outcome)
        turn = shown["pid"], shown["served"]
        if turn in self._turns:
            self.blame(f"{call.server} answered two calls with one result")
        self._turns.add(turn)
        if shown["roots"] not in (None, [], [_root(call.client)]):
            self.blame(f"{call.server} showed {call.client} the roots {shown['roots']}")
        if call.server == OWN:
            self._pids.setdefault(call.client, set()).add(shown["pid"])
            if shown["first"] != call.client:
                self.blame(f"{call.client} was served by the instance of {shown['first']}")

    def unanswered(self, call: Call, why: str) -> None:
        if not call.cancelled:
            self.count["unanswered"] += 1
            self.blame(f"no result for a call of {call.server} by {call.client}: {why}")

    def progressed(self, call: Call | None, nonce: str) -> None:
        if call is None or call.nonce != nonce:
            self.blame("progress of another call")

    def close(self, ledger: Iterable[Entry]) -> None:
        """Hold what clients saw against what servers say they asked and were answered."""
        for entry in ledger:
            call = self.calls.get(entry.nonce)
            if call is None or call.server != entry.server:
                self.blame(f"{entry.server} heard of a call that was not made there")
            elif entry.what == "asked":
                self._account(call, entry)
            else:
                self._check(call, entry.number, entry.text)
        for client, pids in self._pids.items():
            if len(pids) > 1:
                self.blame(f"{len(pids)} instances of {OWN} for {client}")
        if sum(len(pids) for pids in self._pids.values()) > len(set().union(*self._pids.values())):
            self.blame(f"one instance of {OWN} for two clients")

    def verdict(self) -> list[str]:
        """Everything that is wrong; nothing if all is well. After `close`."""
        by_server = Counter(call.server for call in self.calls.values())
        few = []
        if self.count["delivered"] <= LEAST_DELIVERED * (by_server[WEB] + by_server[OWN]):
            few.append(f"only {self.count['delivered']} questions were delivered")
        if self.count["delivered on pipe"] <= LEAST_DELIVERED_PIPE * by_server[PIPE]:
            few.append(f"only {self.count['delivered on pipe']} questions of {PIPE} were delivered")
        if not self.count["refused on pipe"]:
            few.append(f"no question of {PIPE} was refused: there was never a doubt")
        return self.problems + few

    def details(self) -> str:
        """What else there was to count."""
        count = self.count
        return (
            f"questions asked: {count['asked']}; turned down by clients: {count['turned down']};"
            f" ended with their call: {count['ended with its call']};"
            f" answers at the wrong question: {count['wrong answers']};"
            f" calls cancelled: {count['cancelled']}; streams resumed: {count['resumed']};"
            f" calls unanswered: {count['unanswered']}"
        )

    def summary(self) -> str:
        """The closing line."""
        count = self.count
        return (
            f"exchanges: {len(self.calls)}; questions: {count['delivered']} delivered, {count['lost']} lost,"
            f" {count['doubled']} doubled, {count['wrong client']} at a wrong client;"
            f" shared stdio: {count['delivered on pipe']} delivered, {count['refused on pipe']} refused,"
            f" {count['wrong client on pipe']} at a wrong client"
        )

    def _account(self, call: Call, entry: Entry) -> None:
        arrived = entry.number in call.answers
        self.count["asked"] += 1
        if call.server == PIPE:
            self.count["delivered on pipe" if arrived else "refused on pipe"] += 1
        elif arrived:
            self.count["delivered"] += 1
        elif call.cancelled:
            self.count["ended with its call"] += 1
        else:
            self.count["lost"] += 1
            self.blame(f"{call.server} asked {call.client}, who was never asked")

    def _check(self, call: Call, number: int, outcome: str) -> None:
        """Whether what the server was answered is what the client answered to this very question."""
        if outcome == call.answers.get(number):
            return
        refused = not SECRET.search(outcome)  # a refusal of the host's, since a client's carries the secret
        if number not in call.answers and refused:
            if call.server != PIPE and not call.cancelled:
                self.blame(f"{call.server} could not ask {call.client}: {outcome}")
        elif not (call.cancelled and refused):
            self.count["wrong answers"] += 1
            answered = call.answers.get(number)
            self.blame(f"{call.server} got {outcome!r} from {call.client}, who had said {answered!r}")

    def blame(self, problem: str) -> None:
        """Something that must not be."""
        self.problems.append(problem)


def _root(client: str) -> str:
    return f"file:///{client}"


# HTTP, as cheap as it can be: a run has some forty thousand requests


class Broken(Exception):
    """The connection ended in the middle of an answer."""


class Connection:
    """One connection to the host. Whatever reads may be cancelled and called again: nothing is half taken."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.last_used = trio.current_time()
        self.is_open = True
        self._stream = stream
        self._heard = bytearray()

    async def ask(self, request: bytes) -> tuple[int, dict[bytes, bytes]]:
        """Status and headers of the answer."""
        await self._stream.send_all(request)
        while (end := self._heard.find(b"\r\n\r\n")) < 0:
            await self._hear()
        status, *fields = bytes(self._heard[:end]).split(b"\r\n")
        del self._heard[: end + 4]
        pairs = (each.partition(b":") for each in fields)
        return int(status.split(b" ")[1]), {name.lower(): value.strip() for name, _, value in pairs}

    async def body(self, size: int) -> bytes:
        while len(self._heard) < size:
            await self._hear()
        data = bytes(self._heard[:size])
        del self._heard[:size]
        return data

    async def chunk(self) -> bytes:
        """The next piece of a chunked body; empty at its end."""
        while True:
            start = self._heard.find(b"\r\n") + 2
            if start >= 2:
                end = start + int(self._heard[: start - 2], 16)
                if len(self._heard) >= end + 2:
                    data = bytes(self._heard[start:end])
                    del self._heard[: end + 2]
                    return data
            await self._hear()

    async def close(self) -> None:
        self.is_open = False
        await trio.aclose_forcefully(self._stream)

    async def _hear(self) -> None:
        try:
            data = await self._stream.receive_some()
        except trio.BrokenResourceError:
            data = b""
        if not data:
            raise Broken("the host closed the connection")
        self._heard += data


Opened = tuple[Connection, int, dict[bytes, bytes]]
"""A connection, and status and headers of the answer whose body it brings next."""
Asked = AbstractAsyncContextManager[Opened]


@dataclass(frozen=True)
class Plan:
    """What a client does with one call, seconds after it was sent or after the answer began."""

    nonce: str
    obeys: bool
    cancel_after: float | None
    drops: tuple[float, ...]

    @classmethod
    def of(cls, chance: random.Random, server: str, *, last: bool, gives_up: bool) -> Plan:
        """`last`: the server may heed a cancel and never answer, which at `pipe` leaves the host in doubt for long.
        `gives_up`: the call is cancelled in any case, and soon."""
        cancel, patience = chance.random() < 0.06, chance.random()
        drops = chance.choice((1, 1, 2)) if chance.random() < 0.08 else 0
        return cls(
            nonce=f"{chance.getrandbits(64):016x}",
            obeys=chance.random() < 0.5 and (server != PIPE or last),
            cancel_after=patience / 200 if gives_up else patience * 0.06 if cancel else None,
            drops=tuple(chance.random() * 0.03 for _ in range(drops)),
        )


class _Stream:
    """What comes for one call, over all connections; `drops`: after how many seconds each of them is dropped."""

    def __init__(self, call: Call, drops: list[float]) -> None:
        self.call = call
        self.drops = drops
        self.events = EventParser()
        self.dropped = False
        self.answer: Message | None = None


class Client:
    """One client with one session. `nursery` holds a task for each question that it thinks about."""

    def __init__(self, name: str, token: str, url: str, seed: str, book: Book, nursery: trio.Nursery) -> None:
        self.name = name
        place = urlsplit(url)
        assert place.hostname is not None
        assert place.port is not None
        self._address = place.hostname, place.port
        self._target = place.path
        self._host = place.netloc
        self._seed = f"{seed}/{name}"
        self.book = book
        self._nursery = nursery
        self._headers = f"Authorization: Bearer {token}\r\n"
        self._free: list[Connection] = []
        self._last_id = 0
        self._tokens: dict[int, Call] = {}
        self._withdrawn: set[object] = set()

    async def open(self) -> None:
        """The handshake."""
        capabilities: Message = {"sampling": {}, "elicitation": {"form": {}, "url": {}}, "roots": {}}
        info = {"name": self.name, "version": "1"}
        params = {"protocolVersion": REVISION, "capabilities": capabilities, "clientInfo": info}
        said = self._request("initialize", params)
        async with self._asked("POST", said) as (connection, status, headers):
            assert status == 200, (status, self.name)
            answer = self._received(json.loads(await connection.body(int(headers[b"content-length"]))))
        assert answer["result"]["protocolVersion"] == REVISION
        session = headers[b"mcp-session-id"].decode()
        self._headers += f"Mcp-Session-Id: {session}\r\nMCP-Protocol-Version: {REVISION}\r\n"
        await self._tell({"jsonrpc": "2.0", "method": "notifications/initialized"})

    async def listen(self) -> None:
        """The stream for what belongs to no call, until cancelled."""
        async with self._asked("GET") as (connection, status, _):
            assert status == 200, (status, self.name)
            events = EventParser()
            while data := await connection.chunk():
                for event in events.feed(data):
                    if isinstance(event, SseEvent) and event.data:
                        self._hear(json.loads(event.data), None)

    async def leave(self) -> None:
        """End the session."""
        async with self._asked("DELETE") as (_, status, _headers):
            assert status == 204, (status, self.name)

    async def exchange(self, server: str, number: int, *, last: bool = False, gives_up: bool = False) -> None:
        """One call from its beginning to its end, with all that the plan for it holds."""
        chance = random.Random(f"{self._seed}/{server}/{number}")
        plan = Plan.of(chance, server, last=last, gives_up=gives_up)
        arguments = {"nonce": plan.nonce, "who": self.name, "together": TOGETHER[server], "obeys": plan.obeys}
        said = self._request("tools/call", {"name": f"{server}__ask", "arguments": arguments})
        said["params"]["_meta"] = {"progressToken": said["id"]}
        call = self._tokens[said["id"]] = Call(self.name, server, plan.nonce, said["id"])
        self.book.begin(call)
        why = f"nothing within {PATIENCE:.0f} s"
        with trio.move_on_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                if plan.cancel_after is not None:
                    nursery.start_soon(self._cancel, call, plan.cancel_after)
                try:
                    answer = await self._answer_to(call, said, list(plan.drops))
                    why = "the stream ended without it" if answer is None else f"{answer.get('error')}"
                except (Broken, OSError) as problem:
                    answer, why = None, str(problem)
                nursery.cancel_scope.cancel()
            if answer is not None and "result" in answer:
                text = answer["result"]["content"][0]["text"]
                if not answer["result"].get("isError"):
                    self.book.result(call, json.loads(text))
                    return
                why = text
        self.book.unanswered(call, why)

    # Messages

    def _request(self, method: str, params: Message) -> Message:
        self._last_id += 1
        return {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params}

    async def _tell(self, message: Message) -> None:
        """A message that is answered with nothing."""
        try:
            async with self._asked("POST", message) as (_, status, _headers):
                if status != 202:
                    self.book.blame(f"status {status} for {message}")
        except (Broken, OSError) as problem:
            self.book.blame(f"{problem}: {message}")

    async def _cancel(self, call: Call, after: float) -> None:
        await trio.sleep(after)
        call.cancelled = True
        self.book.count["cancelled"] += 1
        params = {"requestId": call.id, "reason": "changed my mind"}
        await self._tell({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})

    async def _answer_to(self, call: Call, said: Message, drops: list[float]) -> Message | None:
        """Send the call and follow its stream, over all connections that are dropped on the way, to the answer. None:
        the stream ended without one."""
        stream = _Stream(call, drops)
        await self._follow(stream, self._asked("POST", said))
        while stream.dropped and stream.answer is None:
            await trio.sleep(random.Random(stream.events.last_id).random() / 20)
            stream.events.restart()
            stream.dropped = False
            self.book.count["resumed"] += 1
            await self._follow(stream, self._asked("GET", more=f"Last-Event-ID: {stream.events.last_id}\r\n"))
        return stream.answer

    async def _follow(self, stream: _Stream, asked: Asked) -> None:
        """One connection of a call's stream, to its end or until it is time to drop it."""
        async with asked as (connection, status, headers):
            if status != 200:
                raise Broken(f"HTTP status {status}")
            if b"content-length" in headers:
                stream.answer = self._received(json.loads(await connection.body(int(headers[b"content-length"]))))
                return
            patience = stream.drops.pop(0) if stream.drops else float("inf")
            while True:
                with trio.move_on_after(patience):
                    await self._read(stream, connection)
                    return
                if stream.events.last_id:
                    break
                patience = 0.01  # what has no id yet cannot be resumed
            stream.dropped = True
            await connection.close()

    async def _read(self, stream: _Stream, connection: Connection) -> None:
        while data := await connection.chunk():
            for event in stream.events.feed(data):
                if isinstance(event, SseEvent) and event.data:
                    stream.answer = self._hear(json.loads(event.data), stream.call) or stream.answer

    def _received(self, message: Message) -> Message:
        answers = None if "method" in message else "tools/call" if message["id"] in self._tokens else "initialize"
        self.book.sent.append(Sent(self.name, REVISION, "client", message, answers))
        return message

    def _hear(self, message: Message, channel: Call | None) -> Message | None:
        """One message on the stream of that call. It, if it is the call's answer."""
        self._received(message)
        if "method" not in message:
            if channel is None or message["id"] != channel.id:
                self.book.blame("an answer on a stream where it does not belong")
                return None
            return message
        params = message.get("params", {})
        if "id" in message:
            self._asked_for(message, params, channel)
        elif message["method"] == "notifications/cancelled":
            self._withdrawn.add(params["requestId"])
        elif message["method"] == "notifications/progress":
            self.book.progressed(self._tokens.get(params["progressToken"]), params["message"])
        return None

    def _asked_for(self, message: Message, params: Message, channel: Call | None) -> None:
        """A question: answered from its own words and from chance, or refused so; at once, soon, or later."""
        if message["method"] == "roots/list":
            roots = {"roots": [{"uri": _root(self.name)}]}
            self._nursery.start_soon(self._reply, message["id"], {"result": roots}, 0.0)
            return
        text = _text_of(message["method"], params)
        known = self.book.question(self.name, text, channel)
        if known is None:
            self._nursery.start_soon(self._reply, message["id"], {"error": {"code": -1, "message": "not mine"}}, 0.0)
            return
        call, number = known
        chance = random.Random(f"{self._seed}/{text}")
        spoken = f"{self.name} to {call.nonce}/{number}: {chance.getrandbits(32):08x}"
        delay = chance.choice((0.0, 0.0, 0.0, chance.random() / 100, chance.random() / 20))
        if chance.random() < 0.1:
            self.book.count["turned down"] += 1
            call.answers[number] = f"-1 {spoken}"
            answer: Message = {"error": {"code": -1, "message": spoken}}
        else:
            call.answers[number] = spoken
            answer = {"result": _answer(message["method"], params, spoken)}
        self._nursery.start_soon(self._reply, message["id"], answer, delay)

    async def _reply(self, id: object, answer: Message, delay: float) -> None:
        await trio.sleep(delay)
        if id not in self._withdrawn:
            await self._tell({"jsonrpc": "2.0", "id": id, **answer})

    # HTTP

    @asynccontextmanager
    async def _asked(self, method: str, message: Message | None = None, more: str = "") -> AsyncIterator[Opened]:
        """One request: its connection, and status and headers of the answer. The connection is used again if the block
        has read the body to its end."""
        body = b"" if message is None else json.dumps(message).encode()
        head = (
            f"{method} {self._target} HTTP/1.1\r\nHost: {self._host}\r\n{self._headers}{more}"
            f"Accept: {'text/event-stream' if method == 'GET' else 'application/json, text/event-stream'}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        connection = await self._connect()
        whole = False
        try:
            status, headers = await connection.ask(head.encode() + body)
            yield connection, status, headers
            whole = headers.get(b"connection") != b"close" and method != "DELETE"
        finally:
            if whole and connection.is_open:
                connection.last_used = trio.current_time()
                self._free.append(connection)
            else:
                await connection.close()

    async def _connect(self) -> Connection:
        while self._free:
            connection = self._free.pop()
            if trio.current_time() - connection.last_used < FRESH:
                return connection
            await connection.close()
        return Connection(await trio.open_tcp_stream(*self._address))

    async def close(self) -> None:
        for connection in self._free:
            await connection.close()


def _text_of(method: str, params: Message) -> str:
    """The words of a question; nothing if they are at odds with the page that it names."""
    if method == "sampling/createMessage":
        return str(params["messages"][0]["content"]["text"])
    words = str(params["message"])
    found = SECRET.search(words)
    return words if params.get("mode") != "url" or (found and found[0] in params["url"]) else ""


def _answer(method: str, params: Message, spoken: str) -> Message:
    if method == "sampling/createMessage":
        return {"role": "assistant", "content": {"type": "text", "text": spoken}, "model": "none"}
    if params.get("mode") == "url":
        return {"action": "accept", "_meta": {"answer": spoken}}
    return {"action": "accept", "content": {"answer": spoken}}


# The run


async def _work(client: Client, server: str, numbers: Iterator[int], **dialect: bool) -> None:
    for number in numbers:
        if client.book.count["unanswered"] < HOPELESS:
            await client.exchange(server, number, **dialect)


async def _all_at_once(clients: list[Client], shares: Mapping[str, int]) -> None:
    """So many calls for each of these servers, by all clients at the same time."""
    async with trio.open_nursery() as nursery:
        for server, exchanges in shares.items():
            for place, client in enumerate(clients):
                numbers = iter(range(place, exchanges, len(clients)))
                for _ in range(WORKERS[server]):
                    nursery.start_soon(_work, client, server, numbers)


async def _in_rounds(clients: list[Client], exchanges: int) -> None:
    """So many calls for `pipe`: a round of one client alone, a round of all, a round of one beside another that gives
    up whatever it begins, and so on."""
    size = min(ROUND, exchanges // 6 + 1)
    for turn, first in enumerate(range(0, exchanges, size)):
        numbers = range(first, min(first + size, exchanges))
        one, other, another = (clients[(turn // 3 + place) % 3] for place in range(3))
        last = first > 0.95 * exchanges
        async with trio.open_nursery() as nursery:
            if turn % 3 == 0:
                _begin(nursery, one, numbers, WORKERS[PIPE], last=last)
            elif turn % 3 == 1:
                for place, client in enumerate((one, other, another)):
                    _begin(nursery, client, numbers[place::3], WORKERS[PIPE], last=last)
            else:
                _begin(nursery, one, numbers[1::2], WORKERS[PIPE], last=last)
                _begin(nursery, other, numbers[::2], 1, gives_up=True)


def _begin(nursery: trio.Nursery, client: Client, share: range, workers: int, **dialect: bool) -> None:
    numbers = iter(share)
    for _ in range(workers):
        nursery.start_soon(partial(_work, client, PIPE, numbers, **dialect))


async def _converse(url: str, tokens: Mapping[str, str], exchanges: int, seed: int, book: Book) -> None:
    on_pipe = exchanges // 6
    on_own = exchanges * 3 // 10
    async with trio.open_nursery() as nursery:
        clients = [Client(name, token, url, str(seed), book, nursery) for name, token in tokens.items()]
        for client in clients:
            await client.open()
            nursery.start_soon(client.listen)
        await _all_at_once(clients, {WEB: exchanges - on_pipe - on_own, OWN: on_own})
        await _in_rounds(clients, on_pipe)
        await clients[0].leave()  # the others are still there when the host is stopped
        nursery.cancel_scope.cancel()
    for client in clients:
        await client.close()


def play(exchanges: int, seed: int, folder: Path) -> Book:
    """The whole run: a host from its start to its end, and what came of it, accounts closed."""
    book = Book()
    tokens = {name: secrets.token_urlsafe(24) for name in CLIENTS}
    ledgers = {server: folder / f"{server}.ledger" for server in (WEB, OWN, PIPE)}
    on_stdio = {server: {"command": [sys.executable, ASKER, str(ledgers[server])]} for server in (OWN, PIPE)}
    with listening(sys.executable, ASKER, str(ledgers[WEB]), "--http", "0", folder=folder) as (_, url):
        servers = {
            WEB: {"url": url, "trust": "trusted"},
            OWN: {**on_stdio[OWN], "trust": "trusted", "isolation": "per-client"},
            PIPE: {**on_stdio[PIPE], "trust": "trusted"},
        }
        file = write_config(folder, servers, listen={"address": "127.0.0.1:0", "auth": {"tokens": tokens}})
        with serving(file, *servers, stop=False) as host:
            trio.run(_converse, host.url, tokens, exchanges, seed, book)
            _stop(host, book)
    book.close(entry for server, ledger in ledgers.items() for entry in _read(server, ledger))
    book.sent += [each for server, ledger in ledgers.items() for each in _sent_to(server, ledger)]
    return book


def _stop(host: Running, book: Book) -> None:
    """End the host by SIGTERM; it and everything below it must be gone then."""
    below = pids_below(host.process.pid)
    try:
        host.stop()
    except (AssertionError, subprocess.TimeoutExpired) as problem:
        book.blame(f"SIGTERM did not end the host well: {problem}")
    try:
        until(lambda: not _left(below), "all processes are gone", LEFT_AFTER)
    except AssertionError:
        book.blame(f"left: {_left(below)}")
    if "Traceback" in host.errors:
        book.blame(f"the host crashed over something: {host.errors[-4000:]}")


def _left(below: Mapping[int, str]) -> dict[int, str]:
    left = {}
    for pid, command in below.items():
        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace") == command:
                left[pid] = command
    return left


def _read(server: str, ledger: Path) -> Iterator[Entry]:
    for line in ledger.read_text().splitlines():
        yield Entry(server, *json.loads(line))


def _sent_to(server: str, ledger: Path) -> Iterator[Sent]:
    """The messages that the host sent to this server, which speaks the revision that the host asks for."""
    for line in ledger.with_name(f"{ledger.name}.heard").read_text().splitlines():
        message = json.loads(line)
        stateless = message.get("method") == "server/discover"
        revision = message["params"]["_meta"][f"{IO}protocolVersion"] if stateless else REVISION
        answers = None if "method" in message else message["id"].partition(" ")[0]
        yield Sent(server, revision, "server", message, answers)


def main() -> int:
    parser = argparse.ArgumentParser(description="See whether servers' questions find the client they are meant for.")
    parser.add_argument("--exchanges", type=int, default=EXCHANGES, help="calls in all, a sixth of them over pipe")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000), help="repeats a run's plan")
    wanted = parser.parse_args()
    print(f"seed: {wanted.seed}", flush=True)
    schemas = load()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        book = play(wanted.exchanges, wanted.seed, Path(folder))
    wrong = book.verdict()
    for problem, times in Counter(wrong).most_common(MOST_SHOWN):
        print(f"{problem} ({times} times)" if times > 1 else problem, file=sys.stderr)
    print(book.details())
    print(f"seconds: {time.monotonic() - began:.0f}")
    held = hold(book.sent, schemas)
    print(held.report())
    print(book.summary())
    return 1 if wrong or not held.is_sound else 0


if __name__ == "__main__":
    sys.exit(main())
