"""A server that speaks exactly one revision of the protocol, over any transport that the revision has. Or, at one URL,
the last revision with a handshake and the one without, each as its client speaks it.

    python3 -I -S any_revision.py --revision R --transport stdio
    python3 -I -S any_revision.py --revision R --transport http [--port 0]     prints its URL first
    python3 -I -S any_revision.py --revision R --transport sse  [--port 0]     prints its URL first
    python3 -I -S any_revision.py --revision 2026-07-28 --transport both       the same

It offers what its revision knows and is strict about what it gets. Its tools are named after what they do; those that
ask the client something give back what came, as JSON text. With a handshake, everything it remembers belongs to one
session; without one, to the whole process, and what belongs to one request comes with it. Nothing but the standard
library, since it is started by the dozen.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import hmac
import itertools
import json
import queue
import secrets
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

AUDIO_SINCE = COMPLETIONS_SINCE = PROGRESS_MESSAGE_SINCE = "2025-03-26"
LINKS_SINCE = STRUCTURED_SINCE = HEADER_SINCE = "2025-06-18"
CHOICES_SINCE = URL_SINCE = PRIMING_SINCE = TASKS_SINCE = "2025-11-25"
STATELESS_SINCE = FREE_STRUCTURE_SINCE = "2026-07-28"
REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
PATIENCE = 10.0
"""Seconds for which an answer to a question is waited for."""
HEARTBEAT = 15.0
AWAY = 0.05
"""Seconds between two looks at whether a client that waits for an answer is still there."""
CHORE = 0.05
"""Seconds that a task takes."""
POLL = 20
"""Milliseconds between two looks at a task, as clients are advised."""
FRESH = 60_000
"""Milliseconds for which what may be kept is said to be fresh: long, so that only a notice makes it stale."""
BLOB = base64.b64encode(b"matrix").decode()
PEOPLE = ("albert", "alice", "bob")
TOOLS = {
    **dict.fromkeys(("echo", "rich", "progress", "wait", "was_cancelled", "grow", "shrink", "touch", "log"), ""),
    **dict.fromkeys(("level", "ask_sampling", "ask_form", "ask_url", "ask_roots", "need_url", "chore"), ""),
    "long_chore": TASKS_SINCE,
    "free": FREE_STRUCTURE_SINCE,
}
"""Each with the revision since which it can exist."""
TASK_SUPPORT = {"chore": "optional", "long_chore": "required"}

IO = "io.modelcontextprotocol/"
TASKS = f"{IO}tasks"
INFO = {"name": "any revision", "version": "1"}
CACHEABLE = (
    *("server/discover", "tools/list", "prompts/list"),
    *("resources/list", "resources/templates/list", "resources/read"),
)
NAMED = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    **dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId"),
}
"""The member of the params that the header Mcp-Name repeats."""

Message = dict[str, Any]
Say = Callable[[Message | None], None]
"""Sends a message to whoever sent the request; None is the end, when no answer will come."""


class Refusal(Exception):
    """The request is answered with this error."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.body = {"code": code, "message": message} | ({} if data is None else {"data": data})


class InputRequired(Exception):
    """The request is answered with this question; its retry brings the answer."""

    def __init__(self, question: Message) -> None:
        super().__init__(question["method"])
        self.question = question


@dataclass(frozen=True)
class Asked:
    """A request, and where to speak about it."""

    id: object
    method: str
    params: Message
    say: Say

    @property
    def meta(self) -> Message:
        meta: Message = self.params.get("_meta", {})
        return meta

    @property
    def tool(self) -> str:
        return str(self.params["name"])

    @property
    def key(self) -> str:
        return str(self.params.get("arguments", {}).get("key", ""))

    @property
    def variant(self) -> str:
        return str(self.params.get("arguments", {}).get("variant", "plain"))


@dataclass(frozen=True)
class Task:
    """A chore under way. Its time makes it done; nobody works on it."""

    id: str
    key: str
    began: float

    @property
    def done(self) -> bool:
        return time.time() - self.began >= CHORE

    def described(self, *, extension: bool) -> Message:
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.began))
        ttl, poll = ("ttlMs", "pollIntervalMs") if extension else ("ttl", "pollInterval")
        status = {"taskId": self.id, "status": "completed" if self.done else "working"}
        return {**status, "createdAt": moment, "lastUpdatedAt": moment, ttl: FRESH, poll: POLL}

    def result(self) -> Message:
        """The outcome, as soon as there is one."""
        threading.Event().wait(self.began + CHORE - time.time())
        return text(f"{self.key} is done")


class Speaker:
    """The part that all revisions share: everything that is offered, and what is remembered of it."""

    everyone: ClassVar[list[Speaker] | None] = None
    """All speakers of a server of both eras, whose tools come and go for all of them."""

    def __init__(self, revision: str) -> None:
        self._revision = revision
        if self.everyone is not None:
            self.everyone.append(self)
        self._grown: list[str] = []
        self._waiting: list[Asked] = []
        self._cancelled: set[str] = set()
        self._tasks: dict[str, Task] = {}

    def take(self, message: Message, say: Say) -> None:
        """One message. What is said to it, now or later, goes to `say`. Never waits: what takes time has a thread."""
        raise NotImplementedError

    def _offered(self, asked: Asked) -> Message:
        """The result of every method that has been the same ever since."""
        method, params = asked.method, asked.params
        if method == "tools/list":
            return {"tools": [self._tool(name) for name in self._tools()]}
        if method == "resources/list":
            return {"resources": [{"uri": "note://one", "name": "one"}]}
        if method == "resources/templates/list":
            return {"resourceTemplates": [{"uriTemplate": "note://{name}", "name": "notes"}]}
        if method == "resources/read":
            uri = params["uri"]
            return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": f"what {uri} says"}]}
        if method == "prompts/list":
            return {"prompts": [{"name": "letter", "arguments": [{"name": "to", "required": True}]}]}
        if method == "prompts/get":
            said = [{"type": "text", "text": f"Dear {params['arguments']['to']}"}, *self._blocks()]
            return {"messages": [{"role": "user", "content": block} for block in said]}
        if method == "completion/complete":
            return self._completion(params)
        raise Refusal(-32601, "Method not found")

    def _tools(self) -> list[str]:
        return [*(name for name, since in TOOLS.items() if self._revision >= since), *self._grown]

    def _tool(self, name: str) -> Message:
        tool: Message = {"name": name, "inputSchema": {"type": "object"}}
        if name == "rich" and self._revision >= STRUCTURED_SINCE:
            tool["outputSchema"] = {"type": "object", "properties": {"price": {"type": "number"}}}
        if name == "free":
            tool["outputSchema"] = {"type": "array", "items": {"type": "string"}}
        if name in TASK_SUPPORT and TASKS_SINCE <= self._revision < STATELESS_SINCE:
            tool["execution"] = {"taskSupport": TASK_SUPPORT[name]}
        if name == "echo" and self._revision >= STATELESS_SINCE:
            tool["inputSchema"]["properties"] = {"key": {"type": "string", "x-mcp-header": "Key"}}
        return tool

    def _completion(self, params: Message) -> Message:
        ref = params["ref"]
        expected = {"ref/prompt": ("name", "letter", "to"), "ref/resource": ("uri", "note://{name}", "name")}
        member, target, argument = expected.get(ref.get("type"), ("", "", ""))
        if not member or ref.get(member) != target or params["argument"]["name"] != argument:
            raise Refusal(-32602, "nothing like that is completed here")
        values = [name for name in PEOPLE if name.startswith(params["argument"]["value"])]
        return {"completion": {"values": values, "total": len(values), "hasMore": False}}

    def _blocks(self) -> list[Message]:
        """One content block of every kind that the revision knows, but text."""
        blocks: list[Message] = [
            {"type": "image", "data": BLOB, "mimeType": "image/png"},
            {"type": "resource", "resource": {"uri": "note://one", "mimeType": "text/plain", "text": "a note"}},
        ]
        if self._revision >= AUDIO_SINCE:
            blocks.append({"type": "audio", "data": BLOB, "mimeType": "audio/wav"})
        if self._revision >= LINKS_SINCE:
            blocks.append({"type": "resource_link", "uri": "note://two", "name": "two", "mimeType": "text/plain"})
        return blocks

    def _call(self, asked: Asked) -> Message | None:
        """The result of a tool; None if the tool runs until it is cancelled."""
        name, key = asked.tool, asked.key
        if name not in self._tools():
            raise Refusal(-32602, f"Unknown tool: {name}")
        if (task := self._begun(asked)) is not None:
            return task
        if name == "wait":
            self._waiting.append(asked)
            return None
        if name == "rich":
            return self._rich(key)
        if name == "free":
            return {**text(key), "structuredContent": [key]}
        if name == "progress":
            self._progress(asked)
            return text("done")
        if name == "need_url":
            return self._need_url(asked)
        if name.startswith("ask_"):
            return text(json.dumps(self._ask(asked, *self._question(name, key, asked.variant))))
        return text(self._do(asked))

    def _do(self, asked: Asked) -> str:
        """The tools that are done at once."""
        name, key = asked.tool, asked.key
        if name == "echo":
            return key
        if name == "was_cancelled":
            waiting = key in [each.key for each in self._waiting]
            return "waiting" if waiting else "cancelled" if key in self._cancelled else "unknown"
        if name in ("grow", "shrink"):
            for speaker in self.everyone or [self]:
                (speaker._grown.append if name == "grow" else speaker._grown.remove)(key)
                speaker._tools_changed()
            return "done"
        if name == "touch":
            return "told" if self._updated(key) else "nobody has subscribed"
        if name == "log":
            level = self._level_of(asked)
            for each in LEVELS[LEVELS.index(level) :] if level else ():
                notify(asked.say, "notifications/message", {"level": each, "logger": "matrix", "data": {"key": key}})
            return "done"
        if name == "chore":
            return f"{key} is done"
        return self._level_of(asked) if name == "level" else f"{name} is new here"

    def _rich(self, key: str) -> Message:
        result: Message = {"content": [{"type": "text", "text": key}, *self._blocks()]}
        if self._revision >= STRUCTURED_SINCE:
            result["structuredContent"] = {"price": 1.5}
        return result

    def _progress(self, asked: Asked) -> None:
        if "progressToken" not in asked.meta:
            return
        for step in (1, 2, 3):
            report = {"progressToken": asked.meta["progressToken"], "progress": step, "total": 3}
            more = {"message": f"step {step}"} if self._revision >= PROGRESS_MESSAGE_SINCE else {}
            notify(asked.say, "notifications/progress", report | more)

    def _question(self, tool: str, key: str, variant: str) -> tuple[str, Message]:
        """Method and params of what this tool asks."""
        if tool == "ask_roots":
            return "roots/list", {}
        if tool == "ask_form":
            return "elicitation/create", self._form(key, variant)
        if tool == "ask_url":
            return "elicitation/create", self._page(key, f"Sign in for {key}")
        content: Message = {"type": "text", "text": key}
        if variant == "audio":
            content = {"type": "audio", "data": BLOB, "mimeType": "audio/wav"}
        messages = [{"role": "user", "content": content}]
        params: Message = {"messages": messages, "maxTokens": 10, "systemPrompt": f"This is for {key}"}
        if variant == "context":
            params["includeContext"] = "allServers"
        if variant == "tools":
            params |= {"tools": [{"name": "dig", "inputSchema": {"type": "object"}}], "toolChoice": {"mode": "auto"}}
        return "sampling/createMessage", params

    def _form(self, key: str, variant: str) -> Message:
        choice: Message = {"type": "string", "enum": ["r", "g"], "enumNames": ["Red", "Green"]}
        name: Message = {"type": "string"}
        if self._revision >= CHOICES_SINCE:
            titles = [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}]
            choice = {"type": "string", "oneOf": titles, "default": "r"}
            name["default"] = "Ann"
        properties = {"name": name, "sure": {"type": "boolean", "default": True}, "colour": choice}
        if variant == "many":
            properties = {"colours": {"type": "array", "items": {"type": "string", "enum": ["r", "g"]}}}
        schema = {"type": "object", "properties": properties, "required": list(properties)[:1]}
        return {"message": f"Fill in {key}", "requestedSchema": schema}

    def _page(self, key: str, message: str) -> Message:
        named = {} if self._revision >= STATELESS_SINCE else {"elicitationId": key}
        return {"mode": "url", "message": message, "url": f"https://example.com/{key}", **named}

    def _called_off(self, which: Callable[[Asked], bool]) -> None:
        """No answer will come to these."""
        for each in [each for each in self._waiting if which(each)]:
            self._waiting.remove(each)
            self._cancelled.add(each.key)
            each.say(None)

    def _new_task(self, key: str) -> Task:
        task = Task(secrets.token_hex(16), key, time.time())
        self._tasks[task.id] = task
        return task

    def _task(self, params: Message) -> Task:
        if params.get("taskId") not in self._tasks:
            raise Refusal(-32602, "no such task")
        return self._tasks[params["taskId"]]

    def _begun(self, asked: Asked) -> Message | None:
        """The task that the call becomes; None if it becomes none."""
        raise NotImplementedError

    def _ask(self, asked: Asked, method: str, params: Message) -> Message:
        """The response: an object with `result`, `error` or, if nothing did, `silence`."""
        raise NotImplementedError

    def _need_url(self, asked: Asked) -> Message:
        """The answer to a call that needs a page to be visited before."""
        raise NotImplementedError

    def _level_of(self, asked: Asked) -> str:
        """From which level on there are log messages about this request; empty for none at all."""
        raise NotImplementedError

    def _updated(self, uri: str) -> bool:
        """Tell whoever watches this resource; whether anyone does."""
        raise NotImplementedError

    def _tools_changed(self) -> None:
        raise NotImplementedError


class Session(Speaker):
    """One client with a handshake. `unasked` carries what belongs to no request."""

    def __init__(self, revision: str, unasked: Say) -> None:
        super().__init__(revision)
        self._unasked = unasked
        self._initialized = False
        self._subscribed: set[str] = set()
        self._visited: set[str] = set()
        self._level = LEVELS[0]
        self._ids = itertools.count(1)
        self._asked: dict[object, queue.SimpleQueue[Message]] = {}

    def take(self, message: Message, say: Say) -> None:
        if "method" not in message:
            waiting = self._asked.pop(message.get("id"), None)
            if waiting is not None:
                waiting.put(message)
        elif "id" not in message:
            self._told(message["method"], message.get("params", {}))
        else:
            asked = Asked(message["id"], message["method"], message.get("params", {}), say)
            if asked.method in ("tools/call", "tasks/result"):
                threading.Thread(target=self._answer, args=(asked,), daemon=True).start()
            else:
                self._answer(asked)

    def _told(self, method: str, params: Message) -> None:
        if method == "notifications/initialized":
            self._initialized = True
        elif method == "notifications/cancelled":
            self._called_off(lambda each: each.id == params.get("requestId"))

    def _answer(self, asked: Asked) -> None:
        answer = {"jsonrpc": "2.0", "id": asked.id}
        try:
            if not self._initialized and asked.method not in ("initialize", "ping"):
                raise Refusal(-32600, "notifications/initialized has not come yet")
            result = self._call(asked) if asked.method == "tools/call" else self._other(asked)
        except Refusal as refusal:
            asked.say({**answer, "error": refusal.body})
            return
        if result is not None:
            asked.say({**answer, "result": result})

    def _other(self, asked: Asked) -> Message:
        """Everything but a call."""
        method, params = asked.method, asked.params
        if method == "initialize":
            return self._opening()
        if method == "ping":
            return {}
        if method in ("resources/subscribe", "resources/unsubscribe"):
            (self._subscribed.add if method == "resources/subscribe" else self._subscribed.discard)(params["uri"])
            return {}
        if method == "logging/setLevel":
            if params.get("level") not in LEVELS:
                raise Refusal(-32602, "no such level")
            self._level = params["level"]
            return {}
        if method in ("tasks/get", "tasks/result", "tasks/cancel") and self._revision >= TASKS_SINCE:
            return self._of_task(method, self._task(params))
        return self._offered(asked)

    def _opening(self) -> Message:
        capabilities: Message = {
            "tools": {"listChanged": True},
            "resources": {"subscribe": True},
            "prompts": {},
            "logging": {},
        }
        if self._revision >= COMPLETIONS_SINCE:
            capabilities["completions"] = {}
        if self._revision >= TASKS_SINCE:
            capabilities["tasks"] = {"cancel": {}, "requests": {"tools": {"call": {}}}}
        return {"protocolVersion": self._revision, "capabilities": capabilities, "serverInfo": INFO}

    def _begun(self, asked: Asked) -> Message | None:
        wanted = self._revision >= TASKS_SINCE and "task" in asked.params
        support = TASK_SUPPORT.get(asked.tool, "forbidden") if self._revision >= TASKS_SINCE else "forbidden"
        if (wanted and support == "forbidden") or (not wanted and support == "required"):
            raise Refusal(-32601, f"{asked.tool} as a task is {support}")
        return {"task": self._new_task(asked.key).described(extension=False)} if wanted else None

    def _of_task(self, method: str, task: Task) -> Message:
        if method == "tasks/result":
            return {**task.result(), "_meta": {f"{IO}related-task": {"taskId": task.id}}}
        if method == "tasks/cancel" and task.done:
            raise Refusal(-32602, "the task is over")
        if method == "tasks/cancel":
            return {**self._tasks.pop(task.id).described(extension=False), "status": "cancelled"}
        return task.described(extension=False)

    def _ask(self, asked: Asked, method: str, params: Message) -> Message:
        id = f"{method} {next(self._ids)}"  # the record of its answer shows what was asked
        answers = self._asked[id] = queue.SimpleQueue()
        asked.say({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
        try:
            came = answers.get(timeout=PATIENCE)
        except queue.Empty:
            return {"silence": PATIENCE}
        if "elicitationId" in params and "result" in came:
            notify(self._unasked, "notifications/elicitation/complete", {"elicitationId": params["elicitationId"]})
        return {member: came[member] for member in ("result", "error") if member in came}

    def _need_url(self, asked: Asked) -> Message:
        """The page counts as visited the second time."""
        if asked.key in self._visited:
            return text("signed in")
        self._visited.add(asked.key)
        raise Refusal(-32042, "Sign in first", {"elicitations": [self._page(asked.key, "Sign in")]})

    def _level_of(self, asked: Asked) -> str:
        return self._level

    def _updated(self, uri: str) -> bool:
        if uri in self._subscribed:
            notify(self._unasked, "notifications/resources/updated", {"uri": uri})
        return uri in self._subscribed

    def _tools_changed(self) -> None:
        notify(self._unasked, "notifications/tools/list_changed")


class Stateless(Speaker):
    """All clients of a revision without a handshake: each request says itself what it needs to be understood."""

    METHODS = (
        *("server/discover", "tools/list", "tools/call", "prompts/list", "prompts/get", "completion/complete"),
        *("resources/list", "resources/templates/list", "resources/read", "subscriptions/listen"),
        *("tasks/get", "tasks/update", "tasks/cancel"),
    )

    def __init__(self, revision: str) -> None:
        super().__init__(revision)
        self._secret = secrets.token_bytes(16)
        self._listening: list[Asked] = []
        self._lock = threading.Lock()

    def take(self, message: Message, say: Say) -> None:
        """One message over stdio."""
        if "id" not in message:
            if message.get("method") == "notifications/cancelled":
                self.leave(lambda each: each.id == message["params"]["requestId"])
            return
        try:
            self.check(message, None)
        except Refusal as refusal:
            say({"jsonrpc": "2.0", "id": message["id"], "error": refusal.body})
            return
        self.answer(message, say)

    def answer(self, message: Message, say: Say) -> None:
        """A request that has been checked."""
        asked = Asked(message["id"], message["method"], message["params"], say)
        threading.Thread(target=self._answer, args=(asked,), daemon=True).start()

    def leave(self, which: Callable[[Asked], bool]) -> None:
        """Whoever sent these requests wants no more of them."""
        with self._lock:
            self._listening = [each for each in self._listening if not which(each)]
        self._called_off(which)

    def check(self, message: Message, headers: Callable[[str], str | None] | None) -> None:
        """Check every request; without headers where the transport has none.

        Raises:
            Refusal: it is not.
        """
        method, params = message["method"], message.get("params", {})
        meta = params.get("_meta", {})
        version, able = meta.get(f"{IO}protocolVersion"), meta.get(f"{IO}clientCapabilities")
        if not isinstance(version, str) or not isinstance(able, dict):
            raise Refusal(-32602, f"each request states its revision, which is {self._revision}, and its abilities")
        if headers is not None:
            self._check_headers(method, params, version, headers)
        if version != self._revision:
            raise Refusal(-32022, "another revision", {"supported": [self._revision], "requested": version})
        if method not in self.METHODS:
            raise Refusal(-32601, f"Method not found in {self._revision}")
        if meta.get(f"{IO}logLevel", LEVELS[0]) not in LEVELS:
            raise Refusal(-32602, "no such level")

    def _check_headers(self, method: str, params: Message, version: str, headers: Callable[[str], str | None]) -> None:
        wanted: Message = {"mcp-protocol-version": version, "mcp-method": method}
        if method in NAMED:
            wanted["mcp-name"] = params.get(NAMED[method])
        if method == "tools/call" and params.get("name") == "echo":
            wanted["mcp-param-key"] = params.get("arguments", {}).get("key")
        for name, value in wanted.items():
            if headers(name) != value:
                raise Refusal(-32020, f"{name} says {headers(name)}, the body {value}")

    def _answer(self, asked: Asked) -> None:
        answer = {"jsonrpc": "2.0", "id": asked.id}
        try:
            result = self._result(asked)
        except Refusal as refusal:
            asked.say({**answer, "error": refusal.body})
            return
        except InputRequired as needed:
            state = self._sealed(asked)
            result = {"resultType": "input_required", "inputRequests": {"q": needed.question}, "requestState": state}
        if result is None:
            return
        if asked.method in CACHEABLE:
            result |= {"ttlMs": FRESH, "cacheScope": "public"}
        asked.say({**answer, "result": {"resultType": "complete", **result, "_meta": {f"{IO}serverInfo": INFO}}})

    def _result(self, asked: Asked) -> Message | None:
        if asked.method == "tools/call":
            return self._call(asked)
        if asked.method == "server/discover":
            return self._discovery()
        if asked.method == "subscriptions/listen":
            self._listen(asked)
            return None
        if asked.method.startswith("tasks/"):
            return self._of_task(asked)
        return self._offered(asked)

    def _discovery(self) -> Message:
        capabilities: Message = {
            "tools": {"listChanged": True},
            "resources": {"subscribe": True},
            "prompts": {},
            "completions": {},
            "logging": {},
            "extensions": {TASKS: {}},
        }
        return {"supportedVersions": [self._revision], "capabilities": capabilities}

    def _listen(self, asked: Asked) -> None:
        wanted = asked.params["notifications"]
        honoured = {name: wanted[name] for name in ("toolsListChanged", "resourceSubscriptions") if wanted.get(name)}
        with self._lock:  # nothing may be said before this, and nothing may be missed after it
            self._tell(asked, "notifications/subscriptions/acknowledged", {"notifications": honoured})
            self._listening.append(asked)

    def _tell(self, listener: Asked, method: str, params: Message) -> None:
        notify(listener.say, method, {**params, "_meta": {f"{IO}subscriptionId": listener.id}})

    def _begun(self, asked: Asked) -> Message | None:
        if asked.tool not in TASK_SUPPORT:
            return None
        if asked.tool == "long_chore":
            self._need(asked, {"extensions": {TASKS: {}}})
        elif not self._is_able(asked, {"extensions": {TASKS: {}}}):
            return None
        return {"resultType": "task", **self._new_task(asked.key).described(extension=True)}

    def _of_task(self, asked: Asked) -> Message:
        self._need(asked, {"extensions": {TASKS: {}}})
        task = self._task(asked.params)
        if asked.method == "tasks/cancel":
            del self._tasks[task.id]
        if asked.method != "tasks/get":
            return {}
        described = task.described(extension=True)
        if described["status"] == "completed":
            described["result"] = {"resultType": "complete", **task.result()}
        return described

    def _ask(self, asked: Asked, method: str, params: Message) -> Message:
        self._need(asked, _demanded(method, params))
        state, answers = asked.params.get("requestState"), asked.params.get("inputResponses", {})
        if state is not None and not hmac.compare_digest(state, self._sealed(asked)):
            raise Refusal(-32602, "this requestState belongs to something else")
        if state is None or "q" not in answers:
            raise InputRequired({"method": method, "params": params})
        return {"result": answers["q"]}

    def _sealed(self, asked: Asked) -> str:
        """The state that a retry must bring back: proof that it goes on with this very call."""
        bound = f"{asked.tool} {asked.key} {asked.variant}".encode()
        return hmac.new(self._secret, bound, hashlib.sha256).hexdigest()

    def _need(self, asked: Asked, demanded: Message) -> None:
        if not self._is_able(asked, demanded):
            raise Refusal(-32021, "the client lacks what this needs", {"requiredCapabilities": demanded})

    def _is_able(self, asked: Asked, demanded: Message) -> bool:
        return _covers(asked.meta[f"{IO}clientCapabilities"], demanded)

    def _need_url(self, asked: Asked) -> Message:
        came = self._ask(asked, "elicitation/create", self._page(asked.key, "Sign in"))
        return text("signed in" if came["result"]["action"] == "accept" else "not signed in")

    def _level_of(self, asked: Asked) -> str:
        return str(asked.meta.get(f"{IO}logLevel", ""))

    def _updated(self, uri: str) -> bool:
        watching = self._who(lambda wanted: uri in wanted.get("resourceSubscriptions", ()))
        for each in watching:
            self._tell(each, "notifications/resources/updated", {"uri": uri})
        return bool(watching)

    def _tools_changed(self) -> None:
        for each in self._who(lambda wanted: bool(wanted.get("toolsListChanged"))):
            self._tell(each, "notifications/tools/list_changed", {})

    def _who(self, wants: Callable[[Message], bool]) -> list[Asked]:
        with self._lock:
            return [each for each in self._listening if wants(each.params["notifications"])]


def _demanded(method: str, params: Message) -> Message:
    """The capability that a client must have declared for this request."""
    if method == "roots/list":
        return {"roots": {}}
    if method == "elicitation/create":
        return {"elicitation": {params.get("mode", "form"): {}}}
    return {"sampling": {"tools": {}} if "tools" in params else {}}


def _covers(declared: Message, demanded: Message) -> bool:
    """Whether each member that is demanded is there, at every depth. An empty elicitation is one of forms."""
    if demanded == {"elicitation": {"form": {}}} and declared.get("elicitation") == {}:
        return True
    return all(name in declared and _covers(declared[name], inner) for name, inner in demanded.items())


def notify(say: Say, method: str, params: Message | None = None) -> None:
    say({"jsonrpc": "2.0", "method": method} | ({} if params is None else {"params": params}))


def text(said: str) -> Message:
    return {"content": [{"type": "text", "text": said}]}


class Record:
    """All messages that come, a line for each. Several processes may write into one file."""

    def __init__(self, file: str | None) -> None:
        self._file = None if file is None else open(file, "ab", buffering=0)  # noqa: SIM115 - as long as the process

    def add(self, message: Message, headers: Message | None = None) -> None:
        if self._file is not None:
            mcp = {name.lower(): value for name, value in (headers or {}).items() if name.lower().startswith("mcp-")}
            self._file.write(json.dumps({"headers": mcp, "message": message}).encode() + b"\n")


def serve_stdio(revision: str, record: Record) -> None:
    lock = threading.Lock()

    def say(message: Message | None) -> None:
        if message is not None:
            with lock:
                sys.stdout.buffer.write(json.dumps(message).encode() + b"\n")
                sys.stdout.buffer.flush()

    speaker = Stateless(revision) if revision >= STATELESS_SINCE else Session(revision, say)
    for line in sys.stdin.buffer:
        message = json.loads(line)
        record.add(message)
        speaker.take(message, say)


class Handler(BaseHTTPRequestHandler):
    """Parts that both HTTP transports share. No two sessions meet but in `sessions`."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    revision: ClassVar[str]
    record: ClassVar[Record]
    sessions: ClassVar[dict[str, tuple[Session, queue.SimpleQueue[Message | None]]]] = {}

    def log_request(self, code: object = "-", size: object = "-") -> None:
        pass

    def _body(self) -> Message:
        body: Message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.record.add(body, dict(self.headers))
        return body

    def _plain(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if body:
            self.wfile.write(body)

    def _open_stream(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()

    def _event(self, data: str) -> None:
        chunk = data.encode() + b"\n\n"
        self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))

    def _stand(self, unasked: queue.SimpleQueue[Message | None]) -> None:
        """Pour what is said unasked until the client leaves or, at None, the session ends."""
        try:
            while True:
                try:
                    message = unasked.get(timeout=HEARTBEAT)
                except queue.Empty:
                    self._event(": still here")
                    continue
                if message is None:
                    break
                self._event(f"event: message\ndata: {json.dumps(message)}")
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True

    def _begin(self) -> tuple[str, Session, queue.SimpleQueue[Message | None]]:
        id = secrets.token_hex(16)
        unasked: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        session = Session(self.revision, unasked.put)
        self.sessions[id] = (session, unasked)
        return id, session, unasked


class StreamableHandler(Handler):
    """Streamable HTTP: calls are answered with an event stream, everything else with JSON."""

    def do_POST(self) -> None:
        message = self._body()
        if message.get("method") == "initialize":
            id, session, _ = self._begin()
            session.take(message, lambda answer: self._json(answer, mcp_session_id=id))
            return
        found = self._session()
        if found is None:
            return
        session, _ = found
        if "method" not in message or "id" not in message:
            session.take(message, lambda _: None)
            self._plain(202)
        elif message["method"] == "tools/call":
            self._pour_answer(session, message)
        else:
            session.take(message, self._json)

    def do_GET(self) -> None:
        found = self._session()
        if found is not None:
            self._open_stream()
            self._stand(found[1])

    def do_DELETE(self) -> None:
        found = self._session()
        if found is not None:
            del self.sessions[self.headers["mcp-session-id"]]
            found[1].put(None)
            self._plain(204)

    def _json(self, answer: Message | None, **headers: str) -> None:
        self._plain(200, json.dumps(answer).encode(), content_type="application/json", **headers)

    def _session(self) -> tuple[Session, queue.SimpleQueue[Message | None]] | None:
        """The session that the request names; if there is none, that has been answered."""
        if self.revision >= HEADER_SINCE and self.headers.get("mcp-protocol-version") != self.revision:
            self._plain(400, b"expected this revision in MCP-Protocol-Version")
            return None
        id = self.headers.get("mcp-session-id")
        if id is None:
            self._plain(400, b"expected Mcp-Session-Id")
        elif id not in self.sessions:
            self._plain(404, b"no such session")
        else:
            return self.sessions[id]
        return None

    def _pour_answer(self, session: Session, message: Message) -> None:
        said: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._open_stream()
        try:
            if self.revision >= PRIMING_SINCE:
                self._event(f"id: {secrets.token_hex(8)}\nretry: 1000\ndata: ")
            session.take(message, said.put)
            while (each := said.get()) is not None:
                self._event(f"data: {json.dumps(each)}")
                if each.get("id") == message["id"] and "method" not in each:
                    break
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True


class EventsHandler(Handler):
    """HTTP+SSE as 2024-11-05 has it: one stream carries everything, and its end is the end of the session."""

    def do_GET(self) -> None:
        if self.path != "/sse":
            self._plain(404)
            return
        id, _, unasked = self._begin()
        self._open_stream()
        self._event(f"event: endpoint\ndata: /message?session_id={id}")
        self._stand(unasked)
        self.sessions.pop(id, None)

    def do_POST(self) -> None:
        message = self._body()
        path, _, id = self.path.partition("?session_id=")
        if path != "/message":
            self._plain(405, allow="GET")
        elif id not in self.sessions:
            self._plain(404)
        else:
            session, stream = self.sessions[id]
            self._plain(202)
            session.take(message, lambda said: None if said is None else stream.put(said))


class StatelessHandler(Handler):
    """Streamable HTTP without sessions: each request has the answer to its POST for itself; to leave calls it off."""

    speaker: ClassVar[Stateless]

    def do_GET(self) -> None:
        self._plain(405, allow="POST")

    def do_DELETE(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        message = self._body()
        if "id" not in message:
            self._plain(202)
            return
        try:
            self.speaker.check(message, self.headers.get)
        except Refusal as refusal:
            self._refuse(message, refusal.body)
            return
        said: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self.speaker.answer(message, said.put)
        try:
            self._pour(said, message)
        except OSError:
            self.close_connection = True
            # Every request has a queue of its own, which is what tells it from others with the same id.
            self.speaker.leave(lambda each: each.say == said.put)

    def _refuse(self, message: Message, error: Message) -> None:
        body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}).encode()
        self._plain(404 if error["code"] == -32601 else 400, body, content_type="application/json")

    def _pour(self, said: queue.SimpleQueue[Message | None], message: Message) -> None:
        """Plain JSON for what is answered at once and is no call, else a stream of events."""
        each = self._next(said)
        if each is not None and each.get("error", {}).get("code") == -32021:
            self._refuse(message, each["error"])
            return
        if each is not None and "id" in each and message["method"] != "tools/call":
            self._plain(200, json.dumps(each).encode(), content_type="application/json")
            return
        self._open_stream()
        while each is not None:
            self._event(f"data: {json.dumps(each)}")
            if "id" in each:
                break
            each = self._next(said)
        self.wfile.write(b"0\r\n\r\n")

    def _next(self, said: queue.SimpleQueue[Message | None]) -> Message | None:
        """The next message.

        Raises:
            OSError: the client has left.
        """
        while True:
            try:
                return said.get(timeout=AWAY)
            except queue.Empty:
                readable, _, _ = select.select([self.connection], [], [], 0)
                if readable and not self.connection.recv(1, socket.MSG_PEEK):
                    raise ConnectionResetError("the client has left") from None


class EitherHandler(StatelessHandler, StreamableHandler):
    """Streamable HTTP with sessions and without: the header of a request says which."""

    def _handler(self) -> type[Handler]:
        stated = self.headers.get("mcp-protocol-version") or ""
        return StatelessHandler if stated >= STATELESS_SINCE else StreamableHandler

    def do_GET(self) -> None:
        self._handler().do_GET(self)  # type: ignore[attr-defined]

    def do_DELETE(self) -> None:
        self._handler().do_DELETE(self)  # type: ignore[attr-defined]

    def do_POST(self) -> None:
        self._handler().do_POST(self)  # type: ignore[attr-defined]


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--revision", choices=REVISIONS, required=True)
    parser.add_argument("--transport", choices=("stdio", "http", "sse", "both"), required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--record", metavar="FILE", help="append each message that comes, as a line of JSON")
    chosen = parser.parse_args()
    if chosen.transport == "stdio":
        serve_stdio(chosen.revision, Record(chosen.record))
        return
    Handler.revision = chosen.revision
    Handler.record = Record(chosen.record)
    handler: type[Handler] = EventsHandler if chosen.transport == "sse" else StreamableHandler
    path = "/sse" if chosen.transport == "sse" else "/mcp"
    if chosen.transport == "both":
        Handler.revision, Speaker.everyone = TASKS_SINCE, []
        StatelessHandler.speaker = Stateless(STATELESS_SINCE)
        handler = EitherHandler
    elif chosen.revision >= STATELESS_SINCE:
        if chosen.transport == "sse":
            parser.error(f"{chosen.revision} has no HTTP+SSE")
        StatelessHandler.speaker = Stateless(chosen.revision)
        handler = StatelessHandler
    server = Server(("127.0.0.1", chosen.port), handler)
    print(f"http://127.0.0.1:{server.server_address[1]}{path}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
