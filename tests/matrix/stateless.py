"""Clients of the stateless revision, written by hand, one for each transport that it has: each request says itself who
asks and what it can be asked; what changes is told where somebody listens; a question comes as an unfinished result.

They are as strict as those with a handshake (`clients.py`): what the revision forbids is written down as a complaint.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import trio

from tests.matrix.clients import (
    ANSWER_TIMEOUT,
    IO,
    NOTICE_TIMEOUT,
    POLL,
    START,
    Call,
    Client,
    Done,
    Message,
    NoAnswer,
    ReceivedMessage,
    StdioClient,
    capabilities,
    connections,
    events,
    is_over,
    over_stdio,
    reply_to,
)

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
LISTEN = "subscriptions/listen"
CHANGED = {
    "notifications/tools/list_changed": "toolsListChanged",
    "notifications/prompts/list_changed": "promptsListChanged",
    "notifications/resources/list_changed": "resourcesListChanged",
    "notifications/resources/updated": "resourceSubscriptions",
}
"""The names of notifications in a filter."""
CACHEABLE = (
    *("server/discover", "tools/list", "prompts/list"),
    *("resources/list", "resources/templates/list", "resources/read"),
)
ASKING = ("tools/call", "prompts/get", "resources/read")
"""The methods whose result may ask for something first."""
NAMED = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
}
"""The member of the params that the header Mcp-Name repeats."""
BAD_REQUEST = (-32020, -32021, -32022)
"""The errors that are HTTP 400."""
ROUNDS = 5


@dataclass
class ListenStream:
    """A request that stands open for notices, and what of it was promised."""

    call: Call
    honoured: Message | None = None
    settled: trio.Event = field(default_factory=trio.Event)


class Stateless(Client):
    """The part that both share."""

    def __init__(self, name: str, revision: str, nursery: trio.Nursery, *transport: Any) -> None:
        super().__init__(name, revision, nursery, *transport)
        self._level: str | None = None
        self._listening: dict[int, ListenStream] = {}
        self._watched: dict[str, ListenStream] = {}

    async def open(self) -> None:
        """There is nothing to open: find out what is offered, and listen for lists that change."""
        result: Message = (await self.ask("server/discover", patience=START))["result"]
        assert self.revision in result["supportedVersions"], result
        self.offered = result["capabilities"]
        listening = await self._listen({"toolsListChanged": True})
        assert listening.honoured == {"toolsListChanged": True}, listening

    async def begin(self, method: str, params: Message | None = None) -> Call:
        """Send a request that says all that is to be known of it; `_meta` of the params goes before that."""
        stated = {
            f"{IO}protocolVersion": self.revision,
            f"{IO}clientCapabilities": capabilities(self.revision),
            f"{IO}clientInfo": {"name": self.name, "version": "1"},
        }
        if self._level is not None:
            stated[f"{IO}logLevel"] = self._level
        params = params or {}
        call = await super().begin(method, {**params, "_meta": {**stated, **params.get("_meta", {})}})
        if method == LISTEN:
            self._listening[call.id] = ListenStream(call)
        return call

    async def ask(self, method: str, params: Message | None = None, patience: float = ANSWER_TIMEOUT) -> Message:
        """The answer in the end, after all rounds of questions and the task that it may have become."""
        return (await self._drive(method, params or {}, patience)).answer

    async def _drive(self, method: str, params: Message, patience: float = ANSWER_TIMEOUT) -> Done:
        answer = await self._ask_once(method, params, patience)
        for _ in range(ROUNDS):
            result = answer.get("result", {})
            if result.get("resultType") != "input_required":
                break
            answer = await self._ask_once(method, self._with_answers(params, result), patience)
        if answer.get("result", {}).get("resultType") != "task":
            return Done(None, answer)
        return await self._follow(answer["result"])

    async def _ask_once(self, method: str, params: Message, patience: float = ANSWER_TIMEOUT) -> Message:
        return await super().ask(method, params, patience)

    def _with_answers(self, params: Message, result: Message) -> Message:
        """The params of the next round."""
        asked = result.get("inputRequests", {})
        more: Message = {"inputResponses": {key: self._answer(each) for key, each in asked.items()}} if asked else {}
        if "requestState" in result:
            more["requestState"] = result["requestState"]
        return {**params, **more}

    def _answer(self, question: Message) -> Message:
        self.asked.append(ReceivedMessage(question, 0))
        body = reply_to(self.name, self.revision, question["method"], question.get("params", {}))
        if "error" in body or question.keys() - {"method", "params"} or "_meta" in question.get("params", {}):
            self.complaints.append(f"asked what {self.revision} does not have: {question}")
        answer: Message = body.get("result", {})
        return answer

    async def _follow(self, task: Message) -> Done:
        """To the end of the task."""
        while not is_over(task):
            await trio.sleep(task.get("pollIntervalMs", POLL) / 1000)
            task = (await self._ask_once("tasks/get", {"taskId": task["taskId"]}))["result"]
        return Done(task, {name: task[name] for name in ("result", "error") if name in task})

    async def call_as_task(self, params: Message) -> Done:
        return await self._drive("tools/call", params)

    async def call_without_task(self, params: Message) -> Message:
        able = {name: value for name, value in capabilities(self.revision).items() if name != "extensions"}
        done = await self._drive("tools/call", {**params, "_meta": {f"{IO}clientCapabilities": able}})
        if done.task is not None:
            self.complaints.append(f"a task, although this client knows nothing of tasks: {done.task}")
        return done.answer

    async def want_log(self, level: str) -> Message:
        """From now on each request says so; nobody is asked."""
        self._level = level
        return {"result": {}}

    async def watch(self, uri: str) -> Message:
        listening = await self._listen({"resourceSubscriptions": [uri]})
        self._watched[uri] = listening
        if listening.honoured == {"resourceSubscriptions": [uri]}:
            return {"result": listening.honoured}
        return {"error": listening.call.answer or f"acknowledged: {listening.honoured}"}

    async def unwatch(self, uri: str) -> None:
        call = self._watched.pop(uri).call
        await self.call_off(call)
        self.end(call.id)

    async def _listen(self, wanted: Message) -> ListenStream:
        """Until the server has said what of it is honoured, or that nothing is.

        Raises:
            NoAnswer: it said nothing.
        """
        call = await self.begin(LISTEN, {"notifications": wanted})
        listening = self._listening[call.id]
        with trio.move_on_after(ANSWER_TIMEOUT):
            await listening.settled.wait()
        if not listening.settled.is_set():
            raise NoAnswer(f"{LISTEN} was not acknowledged")
        return listening

    def end(self, id: int) -> None:
        super().end(id)
        if listening := self._listening.pop(id, None):
            listening.settled.set()

    def take(self, text: str | bytes, about: int | None = None) -> None:
        message = self.receive(text, about)
        if not isinstance(message, dict):
            self.complaints.append(f"an array: {message}")
        elif "method" in message and "id" in message:
            self.complaints.append(f"a request of a server: {message}")
        elif "method" in message:
            heard = ReceivedMessage(message, about)
            if wrong := self._out_of_place(heard):
                self.complaints.append(f"{wrong}: {message}")
            self.heard.append(heard)
            self._arrivals.unpark_all()
        else:
            self._answered(message)

    def _out_of_place(self, heard: ReceivedMessage) -> str:
        """Why this notification should not have come here; empty if it belongs here."""
        subscription = heard.params.get("_meta", {}).get(f"{IO}subscriptionId")
        if heard.method in ("notifications/progress", "notifications/message"):
            return self._out_of_request(heard, subscription)
        listening = self._listening.get(subscription) if type(subscription) is int else None
        if listening is None or heard.about not in (None, subscription):
            return "nobody listens"
        if heard.method == ACKNOWLEDGED:
            twice = listening.settled.is_set()
            listening.honoured = heard.params["notifications"]
            listening.settled.set()
            return "acknowledged twice" if twice else ""
        if listening.honoured is None:
            return "before it was acknowledged"
        return "" if CHANGED.get(heard.method) in listening.honoured else "nobody asked for it"

    def _out_of_request(self, heard: ReceivedMessage, subscription: object) -> str:
        calls = [call for call in self._calls.values() if heard.about in (None, call.id) and call.method != LISTEN]
        metas: list[Message] = [call.params["_meta"] for call in calls]
        if heard.method == "notifications/message":
            is_wanted = any(f"{IO}logLevel" in meta for meta in metas)
        else:
            is_wanted = heard.params["progressToken"] in [meta.get("progressToken") for meta in metas]
        return "" if is_wanted and subscription is None else "no request asked for it"

    def wrong_with(self, call: Call, result: Message) -> list[str]:
        if not result:
            return []
        wrong = []
        kind = result.get("resultType")
        able = call.params["_meta"][f"{IO}clientCapabilities"]
        kinds = {"complete"} | ({"input_required"} if call.method in ASKING else set())
        if call.method == "tools/call" and "extensions" in able:
            kinds |= {"task"}
        if kind not in kinds:
            wrong.append(f"a result of type {kind}")
        if kind == "input_required" and not {"inputRequests", "requestState"} & result.keys():
            wrong.append("input is required, but which?")
        if call.method in CACHEABLE and kind == "complete":
            fresh, scope = result.get("ttlMs"), result.get("cacheScope")
            if not isinstance(fresh, int) or fresh < 0 or scope not in ("public", "private"):
                wrong.append(f"no word of how long it is fresh: {fresh}, {scope}")
        return wrong


class StatelessStdioClient(Stateless, StdioClient):
    """A program of its own, one message on a line."""


class StatelessHttpClient(Stateless):
    """Streamable HTTP: nothing but POSTs, each with the answer to its request."""

    def __init__(self, name: str, revision: str, nursery: trio.Nursery, http: httpx.AsyncClient, url: str) -> None:
        super().__init__(name, revision, nursery)
        self.carries_questions_on_calls = True
        self._http = http
        self._url = url
        self._posts: dict[int, trio.CancelScope] = {}
        self._mirrored: dict[str, Message] = {}

    async def call_off(self, call: Call) -> None:
        """To leave is all that there is."""
        self._posts[call.id].cancel()
        with trio.move_on_after(NOTICE_TIMEOUT):
            await call.ended.wait()

    async def send(self, message: Message) -> None:
        self._nursery.start_soon(self._post, message)

    async def _post(self, message: Message) -> None:
        id = message["id"]
        with trio.CancelScope() as self._posts[id]:
            try:
                headers = self._headers(message["method"], message["params"])
                async with self._http.stream("POST", self._url, json=message, headers=headers) as answer:
                    await self._take_answer(answer, message)
            except httpx.HTTPError as problem:
                self.complaints.append(f"{type(problem).__name__} while {message['method']} was posted")
        del self._posts[id]
        self.end(id)

    def _headers(self, method: str, params: Message) -> dict[str, str]:
        headers = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": self.revision,
            "mcp-method": method,
        }
        if method in NAMED:
            headers["mcp-name"] = params[NAMED[method]]
        if method == "tools/call":
            arguments = params.get("arguments", {})
            schema = self._mirrored.get(params["name"], {}).get("properties", {})
            for name, each in schema.items():
                if "x-mcp-header" in each and name in arguments:
                    headers[f"mcp-param-{each['x-mcp-header']}"] = arguments[name]
        return headers

    async def _take_answer(self, answer: httpx.Response, message: Message) -> None:
        self.received.append((message["id"], {"status": answer.status_code}))
        if "mcp-session-id" in answer.headers:
            self.complaints.append("a session, although there are none")
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            async for event in events(answer, self.revision, self.complaints):
                self.take(event.data, message["id"])
            return
        if message["method"] == LISTEN and answer.is_success:
            self.complaints.append("no stream to listen to")
        body = await answer.aread()
        self._check_status(answer.status_code, json.loads(body), message["method"])
        self.take(body, message["id"])

    def _check_status(self, status: int, body: Message, method: str) -> None:
        code = body.get("error", {}).get("code")
        wanted = 400 if code in BAD_REQUEST else 404 if code == -32601 else 200
        if status != wanted:
            self.complaints.append(f"HTTP {status} instead of {wanted} to {method}: {body}")

    def _answered(self, message: Message) -> None:
        """Tools say which arguments are to be repeated in headers."""
        for tool in message.get("result", {}).get("tools", ()):
            self._mirrored[tool["name"]] = tool["inputSchema"]
        super()._answered(message)


def over_stateless_stdio(name: str, revision: str, where: list[str]) -> AbstractAsyncContextManager[Client]:
    return over_stdio(name, revision, where, StatelessStdioClient)


@asynccontextmanager
async def over_stateless_http(name: str, revision: str, where: str) -> AsyncIterator[Client]:
    async with connections() as http, trio.open_nursery() as nursery:
        client = StatelessHttpClient(name, revision, nursery, http, where)
        await client.open()
        yield client
        nursery.cancel_scope.cancel()
