"""A server whose one tool, `ask`, asks the client while it works, and gives back what it was answered.

    asker.py LEDGER              over standard input and output
    asker.py LEDGER --http PORT  over HTTP on 127.0.0.1; prints its URL (port 0: a free one)

A call brings a secret (`nonce`), from which follows all that happens in it: how many questions, when, and what else is
done in between. Every question carries the secret of its call. The ledger, a file of JSON lines, holds each question
that was asked and what came of it: ["asked", nonce, number, kind] and ["got", nonce, number, outcome]. Beside it, in
LEDGER.heard, stands each message that came; the id of an answer shows what was asked.

Arguments of a call: `nonce`; `who` calls; `together`, the most questions that may be open at once; `obeys`, whether it
heeds a cancel: if not, it works on, asks on and answers as if there had been none.
"""

from __future__ import annotations

import io
import json
import os
import random
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

MOST_QUESTIONS = 3
KINDS = ("sampling", "form", "url")
PATIENCE = 10.0
"""Seconds after which a question counts as one that nobody answers."""
NOBODY = "nobody answered"
FORM = {"type": "object", "properties": {"answer": {"type": "string"}}}
TOOL = {"name": "ask", "description": "Asks while it works.", "inputSchema": {"type": "object"}}

Message = dict[str, Any]
Say = Callable[[Message], Awaitable[None]]
"""Sends a message to the client, on the channel of the request that it belongs to."""


class Gone(Exception):
    """The channel of the request is closed."""


@dataclass
class Call:
    """A call in flight."""

    id: int | str
    nonce: str
    who: str
    together: int
    obeys: bool
    token: int | str | None
    work: random.Random
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


class WaitingRequest:
    """A question that waits for its answer."""

    def __init__(self) -> None:
        self.answered = trio.Event()
        self.answer: Message = {}


class Asker:
    """One process; what it remembers is shared by whoever shares the process."""

    def __init__(self, ledger: Path) -> None:
        self._ledger = ledger.open("ab", buffering=0)
        self._heard = ledger.with_name(f"{ledger.name}.heard").open("ab", buffering=0)
        self._calls: dict[int | str, Call] = {}
        self._questions: dict[str, WaitingRequest] = {}
        self._last_id = 0
        self._served = 0
        self._first: str | None = None
        self._roots: list[str] | None = None

    def begin(self, message: Message) -> Call | None:
        """Note a message as soon as it is read, since a cancel may be next. If it is a call, `carry_out` must follow,
        else `hear`."""
        _write(self._heard, message)
        if message.get("method") != "tools/call" or "id" not in message:
            return None
        params = message["params"]
        said = params["arguments"]
        token = params.get("_meta", {}).get("progressToken")
        work = random.Random(said["nonce"])
        call = Call(message["id"], said["nonce"], said["who"], said["together"], said["obeys"], token, work)
        self._calls[call.id] = call
        return call

    def hear(self, message: Message) -> Message | None:
        """Anything but a call. The answer, if it is answered."""
        if "method" not in message:
            question = self._questions.get(message["id"])
            if question is not None:
                question.answer = message
                question.answered.set()
            return None
        if "id" in message:
            return {"jsonrpc": "2.0", "id": message["id"], **self._answer(message)}
        if message["method"] == "notifications/cancelled":
            call = self._calls.get(message["params"]["requestId"])
            if call is not None and call.obeys:
                call.scope.cancel()
        return None

    async def ask_roots(self, say: Say) -> None:
        """Once the client has greeted, as many servers do; what it says is remembered."""
        answer = await self._answer_to(say, "roots/list", {})
        if answer is not None and "result" in answer:
            self._roots = [root["uri"] for root in answer["result"]["roots"]]

    async def carry_out(self, call: Call, say: Say) -> None:
        """The call, to its answer; without one if it was cancelled or if nobody is there to hear it."""
        self._first = self._first or call.who
        self._served += 1
        served = self._served
        try:
            with call.scope:
                answers = await self._work(call, say)
                shown = {"nonce": call.nonce, "answers": answers, "pid": os.getpid(), "served": served}
                text = json.dumps({**shown, "first": self._first, "roots": self._roots})
                await say({"jsonrpc": "2.0", "id": call.id, "result": {"content": [{"type": "text", "text": text}]}})
        except* Gone:
            pass
        finally:
            del self._calls[call.id]

    def _answer(self, message: Message) -> Message:
        match message["method"]:
            case "initialize":
                info = {"name": "asker", "version": "1"}
                version = message["params"]["protocolVersion"]
                return {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}}
            case "ping":
                return {"result": {}}
            case "tools/list":
                return {"result": {"tools": [TOOL]}}
            case _:
                return {"error": {"code": -32601, "message": "Method not found"}}

    async def _work(self, call: Call, say: Say) -> dict[int, str]:
        """Work, and questions before, between and after it, one by one or several at once."""
        answers: dict[int, str] = {}
        left = list(range(call.work.randint(0, MOST_QUESTIONS)))
        await self._toil(call, say)
        while left:
            count = min(call.work.choice((1, 1, 2, 3)), call.together)
            now, left = left[:count], left[count:]
            async with trio.open_nursery() as nursery:
                for number in now:
                    nursery.start_soon(self._ask, call, number, call.work.choice(KINDS), say, answers)
            await self._toil(call, say)
        return answers

    async def _toil(self, call: Call, say: Say) -> None:
        chance = call.work.random()
        if call.token is not None and call.work.random() < 0.2:
            params = {"progressToken": call.token, "progress": trio.current_time(), "message": call.nonce}
            await say({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
        if chance > 0.995:  # long enough for an answer to become a stream by itself
            await trio.sleep(0.7)
        elif chance > 0.5:
            await trio.sleep((chance - 0.5) / 50)

    async def _ask(self, call: Call, number: int, kind: str, say: Say, answers: dict[int, str]) -> None:
        text = f"{call.nonce}/{number}"
        self._note("asked", call.nonce, number, kind)
        if kind == "sampling":
            said = {"role": "user", "content": {"type": "text", "text": text}}
            answer = await self._answer_to(say, "sampling/createMessage", {"messages": [said], "maxTokens": 10})
        elif kind == "form":
            params = {"mode": "form", "message": text, "requestedSchema": FORM}
            answer = await self._answer_to(say, "elicitation/create", params)
        else:
            params = {"mode": "url", "message": text, "url": f"https://ask.example/{text}", "elicitationId": text}
            answer = await self._answer_to(say, "elicitation/create", params)
        answers[number] = _outcome(kind, answer)
        self._note("got", call.nonce, number, answers[number])

    async def _answer_to(self, say: Say, method: str, params: Message) -> Message | None:
        self._last_id += 1
        id = f"{method} {self._last_id}"
        question = self._questions[id] = WaitingRequest()
        try:
            await say({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
            with trio.move_on_after(PATIENCE):
                await question.answered.wait()
                return question.answer
            return None
        finally:
            del self._questions[id]

    def _note(self, *what: object) -> None:
        _write(self._ledger, what)


def _write(file: io.FileIO, what: object) -> None:
    file.write(json.dumps(what).encode() + b"\n")  # one write: several processes have one ledger


def _outcome(kind: str, answer: Message | None) -> str:
    """An answer in one line: the text that was answered, or code and message of an error."""
    if answer is None:
        return NOBODY
    if "error" in answer:
        return f"{answer['error']['code']} {answer['error']['message']}"
    result = answer["result"]
    place = {"sampling": ("content", "text"), "form": ("content", "answer"), "url": ("_meta", "answer")}[kind]
    try:
        return str(result[place[0]][place[1]])
    except KeyError:
        return f"something else: {json.dumps(result)}"


async def serve_stdio(asker: Asker) -> None:
    output = trio.lowlevel.FdStream(os.dup(1))
    turn = trio.Lock()

    async def say(message: Message) -> None:
        with trio.CancelScope(shield=True):  # half a line would spoil the next one
            async with turn:
                await output.send_all(json.dumps(message).encode() + b"\n")

    def take(message: Message) -> None:
        call = asker.begin(message)
        if call is not None:
            nursery.start_soon(asker.carry_out, call, say)
            return
        answer = asker.hear(message)
        if answer is not None:
            nursery.start_soon(say, answer)
        if message.get("method") == "notifications/initialized":
            nursery.start_soon(asker.ask_roots, say)

    async with trio.lowlevel.FdStream(os.dup(0)) as source, trio.open_nursery() as nursery:
        rest = b""
        async for data in source:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                take(json.loads(line))
        nursery.cancel_scope.cancel()


class Visitor:
    """One connection over HTTP/1.1; only what a client of MCP says is understood."""

    def __init__(self, asker: Asker, stream: trio.SocketStream) -> None:
        self._asker = asker
        self._stream = stream
        self._heard = b""
        self._turn = trio.Lock()
        self._streaming = False
        self._answered = False

    async def serve(self) -> None:
        try:
            async with self._stream:
                while (request := await self._request()) is not None:
                    await self._take(*request)
        except (trio.BrokenResourceError, Gone):
            return  # it left

    async def _request(self) -> tuple[bytes, bytes] | None:
        """Method and body of the next request; None at the end."""
        while b"\r\n\r\n" not in self._heard:
            if not await self._hear():
                return None
        head, _, rest = self._heard.partition(b"\r\n\r\n")
        method, *fields = head.split(b"\r\n")
        sizes = [int(value) for name, _, value in (each.partition(b":") for each in fields) if _is_size(name)]
        size = sizes[0] if sizes else 0
        self._heard = rest
        while len(self._heard) < size:
            if not await self._hear():
                return None
        body, self._heard = self._heard[:size], self._heard[size:]
        return method.partition(b" ")[0], body

    async def _hear(self) -> bool:
        data = await self._stream.receive_some()
        self._heard += bytes(data)
        return bool(data)

    async def _take(self, method: bytes, body: bytes) -> None:
        if method != b"POST":
            await self._send(b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n")
            return
        message = json.loads(body)
        call = self._asker.begin(message)
        if call is None:
            answer = self._asker.hear(message)
            await self._respond(answer)
            return
        self._streaming = self._answered = False
        await self._asker.carry_out(call, self._say)
        if not self._answered:
            if not self._streaming:
                await self._begin_stream()  # it was cancelled before anything was said
            await self._send(b"0\r\n\r\n")

    async def _respond(self, answer: Message | None) -> None:
        if answer is None:
            await self._send(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
            return
        data = json.dumps(answer).encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data)
        await self._send(head + data)

    async def _begin_stream(self) -> None:
        self._streaming = True
        await self._send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")

    async def _say(self, message: Message) -> None:
        """On the stream of the request; an answer before which nothing was said is plain JSON."""
        data = b"data: " + json.dumps(message).encode() + b"\n\n"
        with trio.CancelScope(shield=True):
            async with self._turn:
                if not self._streaming and "method" not in message:
                    self._answered = True
                    await self._respond(message)
                    return
                if not self._streaming:
                    await self._begin_stream()
                await self._send(b"%x\r\n%b\r\n" % (len(data), data))

    async def _send(self, data: bytes) -> None:
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise Gone from None


def _is_size(name: bytes) -> bool:
    return name.strip().lower() == b"content-length"


async def serve_http(asker: Asker, port: int) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await Visitor(asker, stream).serve()

    (listener,) = await trio.open_tcp_listeners(port, host="127.0.0.1")
    print(f"http://127.0.0.1:{listener.socket.getsockname()[1]}/mcp", flush=True)
    await trio.serve_listeners(serve, [listener])


if __name__ == "__main__":
    if "--http" in sys.argv:
        trio.run(serve_http, Asker(Path(sys.argv[1])), int(sys.argv[-1]))
    else:
        trio.run(serve_stdio, Asker(Path(sys.argv[1])))
