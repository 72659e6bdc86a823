"""Refusals and their form: by servers of the official SDKs, and by Colonnade in front of one of them.

`ROWS` is the table of docs/revisions.md. `test_refusals.py` holds the Python SDK's server and Colonnade against it,
`eras.py` the TypeScript SDK's. An answer is written as its HTTP status and the code of its error, or `result`, or
`isError` for a result that says that it failed.

It knows how each request is sent, in a session of 2025-11-25 and without one in 2026-07-28, and nothing of its meaning.
The servers have a tool `weather` with the argument `city`, a prompt `paint` and a resource `memo://first`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

IO = "io.modelcontextprotocol/"
SESSION, STATELESS = "2025-11-25", "2026-07-28"
HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
INFO = {"name": "refusals", "version": "1"}
ENVELOPE = {f"{IO}protocolVersion": STATELESS, f"{IO}clientCapabilities": {}, f"{IO}clientInfo": INFO}
OPENING = {"protocolVersion": SESSION, "capabilities": {}, "clientInfo": INFO}


@dataclass
class Requester:
    """Sends requests to one server, in a session or without one. `prefix`: of names, and of URIs."""

    http: httpx.Client
    url: str
    revision: str
    prefix: tuple[str, str] = ("", "")
    headers: dict[str, str] = field(default_factory=lambda: dict(HEADERS))

    def open(self, *, whole: bool = True) -> None:
        """Open the session; not `whole`: without saying that it is."""
        message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": OPENING}
        answer = self.http.post(self.url, json=message, headers=self.headers)
        self.headers |= {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": SESSION}
        if whole:
            self.send("POST", '{"jsonrpc":"2.0","method":"notifications/initialized"}')

    def ask(self, method: str, params: Any = None, **changed: str | None) -> str:
        """The answer to a request; `changed` are headers, with `_` for `-`, and None leaves one out."""
        headers = dict(self.headers)
        if self.revision == STATELESS:
            headers |= {"mcp-protocol-version": STATELESS, "mcp-method": method}
            if params is None or isinstance(params, dict):
                params = {"_meta": ENVELOPE, **(params or {})}
                if isinstance(name := params.get(NAMED.get(method, "")), str):
                    headers["mcp-name"] = name
        message = {"jsonrpc": "2.0", "id": 2, "method": method} | ({} if params is None else {"params": params})
        return self.send("POST", json.dumps(message), headers, **changed)

    def send(self, method: str, body: str = "", headers: Mapping[str, str] | None = None, **changed: str | None) -> str:
        """The answer to an HTTP request."""
        sent = {**(self.headers if headers is None else headers)}
        sent |= {name.replace("_", "-"): value for name, value in changed.items() if value is not None}
        for name in [name.replace("_", "-") for name, value in changed.items() if value is None]:
            sent.pop(name, None)
        answer = self.http.request(method, self.url, content=body, headers=sent)
        return f"{answer.status_code} {_kind(_message(answer))}".strip()

    def name(self, name: str) -> str:
        return self.prefix[0] + name

    def uri(self, uri: str) -> str:
        return self.prefix[1] + uri


def _message(answer: httpx.Response) -> Any:
    text = answer.text
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        text = [line[5:] for line in text.splitlines() if line.startswith("data:") and line[5:].strip()][-1]
    try:
        return json.loads(text)
    except ValueError:
        return text


def _kind(message: Any) -> str:
    if not isinstance(message, dict):
        return ""
    if "error" in message:
        return str(message["error"]["code"])
    return "isError" if message["result"].get("isError") else "result"


Send = Callable[[Requester], str]


@dataclass(frozen=True)
class Row:
    """A refusal. Where the two revisions differ, an answer has a slash between that in a session and that without."""

    what: str
    send: Send
    python: str
    typescript: str
    colonnade: str
    why: str
    revisions: tuple[str, ...] = (SESSION, STATELESS)

    def expected(self, who: str, revision: str) -> str:
        answers: list[str] = getattr(self, who).split(" / ")
        return answers[-1 if revision == STATELESS else 0]


def _call(name: str, arguments: Any) -> Send:
    return lambda to: to.ask("tools/call", {"name": to.name(name), "arguments": arguments})


def _call_with_null(member: str) -> Send:
    return lambda to: to.ask("tools/call", {"name": to.name("weather"), "arguments": {"city": "x"}, member: None})


def _ask_early(to: Requester) -> str:
    del to.headers["mcp-session-id"], to.headers["mcp-protocol-version"]
    to.open(whole=False)
    return to.ask("tools/list")


UNKNOWN = {f"{IO}protocolVersion": "1999-01-01", f"{IO}clientCapabilities": {}}
SPECIFIED = "the specification names the code"
BOTH = "as both"
NULL = "as Python: none"
IN_SESSION, WITHOUT = (SESSION,), (STATELESS,)

ROWS = (
    Row("unknown tool", _call("nope", {}), "200 isError", "200 -32602", "200 -32602", SPECIFIED),
    Row(
        "unknown prompt",
        lambda to: to.ask("prompts/get", {"name": to.name("nope")}),
        "200 0 / 200 -32603",
        "200 -32602",
        "200 -32602",
        SPECIFIED,
    ),
    Row(
        "unknown resource",
        lambda to: to.ask("resources/read", {"uri": to.uri("memo://nope")}),
        "200 -32602 / 400 -32602",
        "200 -32602",
        "200 -32002 / 200 -32602",
        f"{SPECIFIED}, another one before 2026-07-28. `data.uri` as both",
    ),
    Row(
        "arguments that the tool does not take",
        _call("weather", {}),
        "200 isError",
        "200 isError",
        "200 isError",
        "the server's own answer",
    ),
    Row(
        "a name that is missing",
        lambda to: to.ask("tools/call", {}),
        "200 -32602 / 400 -32602",
        "200 -32602",
        "200 -32602 / 400 -32602",
        "the code as both, the status as Python: the request cannot be compared with its headers",
    ),
    Row(
        "params that are no object",
        lambda to: to.ask("tools/list", [1]),
        "400 -32602 / 400 -32600",
        "400 -32600",
        "200 -32600 / 400 -32600",
        "the code as TypeScript: it is no request of MCP. In a session no status but 200 says anything of a request",
    ),
    Row(
        "unknown method",
        lambda to: to.ask("vendor/nope"),
        "200 -32601 / 404 -32601",
        "200 -32601 / 404 -32601",
        "200 -32601 / 404 -32601",
        f"{BOTH}, `Method not found`; the method in `data` as Python, since it helps",
    ),
    Row(
        "invalid cursor",
        lambda to: to.ask("tools/list", {"cursor": "nope"}),
        "200 result",
        "200 result",
        "200 -32602",
        f"{SPECIFIED}; the SDKs' servers have one page and do not look at the cursor",
    ),
    Row(
        "an empty cursor",
        lambda to: to.ask("tools/list", {"cursor": ""}),
        "200 result",
        "200 result",
        "200 result",
        f"{BOTH}: none",
    ),
    Row(
        "a cursor that is null",
        lambda to: to.ask("tools/list", {"cursor": None}),
        "200 result",
        "200 -32603",
        "200 result",
        NULL,
    ),
    Row(
        "`_meta` that is null",
        _call_with_null("_meta"),
        "200 result",
        "400 -32600",
        "200 result",
        NULL,
        IN_SESSION,
    ),
    Row(
        "a task that is null",
        _call_with_null("task"),
        "200 result",
        "200 -32602",
        "200 result",
        NULL,
        IN_SESSION,
    ),
    Row(
        "inputResponses that are null",
        _call_with_null("inputResponses"),
        "200 result",
        "200 result",
        "200 result",
        f"{BOTH}: none",
        WITHOUT,
    ),
    Row(
        "a requestState that is null",
        _call_with_null("requestState"),
        "200 result",
        "200 -32602",
        "200 result",
        NULL,
        WITHOUT,
    ),
    Row(
        "a log level that is null",
        lambda to: to.ask("tools/list", {"_meta": {**ENVELOPE, f"{IO}logLevel": None}}),
        "200 result",
        "400 -32602",
        "200 result",
        NULL,
        WITHOUT,
    ),
    Row(
        "a requestState that was not given out",
        lambda to: to.ask("tools/call", {"name": to.name("weather"), "arguments": {"city": "x"}, "requestState": "x"}),
        "400 -32602",
        "200 result",
        "200 -32602",
        "the code, message and `data.reason` as Python, and as TypeScript where it looks; the status as of all params",
        WITHOUT,
    ),
    Row(
        "a revision that is not served",
        lambda to: to.ask("tools/list", {"_meta": UNKNOWN}, mcp_protocol_version="1999-01-01"),
        "400 -32022",
        "400 -32022",
        "400 -32022",
        SPECIFIED,
        WITHOUT,
    ),
    Row(
        "a revision in the header that is not served",
        lambda to: to.ask("tools/list", mcp_protocol_version="1999-01-01"),
        "400 -32602",
        "400 -32000",
        "400 -32022",
        "the specification names the status; the code of 2026-07-28, as the header may come from its client",
        IN_SESSION,
    ),
    Row(
        "no envelope",
        lambda to: to.ask("tools/list", {"_meta": {}}),
        "400 -32602",
        "400 -32602",
        "400 -32602",
        BOTH,
        WITHOUT,
    ),
    Row(
        "a header that differs from the body",
        lambda to: to.ask("tools/list", mcp_method="tools/call"),
        "400 -32020",
        "400 -32020",
        "400 -32020",
        SPECIFIED,
        WITHOUT,
    ),
    Row(
        "no session",
        lambda to: to.ask("tools/list", mcp_session_id=None),
        "400 -32600",
        "400 -32000",
        "400 -32600",
        "as Python: codes from -32000 on mean nothing in 2026-07-28",
        IN_SESSION,
    ),
    Row(
        "unknown session",
        lambda to: to.ask("tools/list", mcp_session_id="nope"),
        "404 -32600",
        "404 -32001",
        "404 -32600",
        "as before; `Session not found` as both",
        IN_SESSION,
    ),
    Row(
        "GET without a session",
        lambda to: to.send("GET", mcp_session_id=None),
        "400 -32600",
        "400 -32000",
        "400 -32600",
        "as Python",
        IN_SESSION,
    ),
    Row(
        "a request before notifications/initialized",
        _ask_early,
        "200 result",
        "200 result",
        "200 result",
        f"{BOTH}: it is not refused",
        IN_SESSION,
    ),
    Row(
        "a second initialize",
        lambda to: to.ask("initialize", OPENING),
        "200 result",
        "400 -32600",
        "200 -32600",
        "the code as TypeScript: a session cannot become another one",
        IN_SESSION,
    ),
    Row(
        "no JSON",
        lambda to: to.send("POST", "{nope", mcp_protocol_version=to.revision),
        "400 -32700",
        "400 -32700",
        "400 -32700",
        f"{BOTH}; without `id`, where they have `null`, which the schemas do not permit",
    ),
    Row(
        "several messages in an array",
        lambda to: to.send("POST", '[{"jsonrpc":"2.0","id":1,"method":"ping"}]', mcp_protocol_version=to.revision),
        "400 -32602 / 400 -32600",
        "200 result / 400 -32000",
        "400 -32600",
        "as Python in 2026-07-28: arrays were removed in 2025-06-18",
    ),
    Row(
        "another Content-Type",
        lambda to: to.ask("tools/list", content_type="text/plain"),
        "400",
        "415 -32000",
        "415 -32600",
        "the status as TypeScript, the code as of every request that is not served",
    ),
    Row(
        "an Accept without event streams",
        lambda to: to.ask("tools/list", accept="application/json"),
        "406 -32600 / 406",
        "406 -32000 / 200 result",
        "406 -32600",
        "as Python: a client must accept both",
    ),
)


def refused(url: str, revision: str, prefix: tuple[str, str] = ("", "")) -> dict[str, str]:
    """The answer to each row of this revision at the address."""
    found = {}
    with httpx.Client(trust_env=False, timeout=20) as http:
        for row in ROWS:
            if revision in row.revisions:
                to = Requester(http, url, revision, prefix)
                if revision == SESSION:
                    to.open()
                found[row.what] = row.send(to)
    return found


def expected(who: str, revision: str) -> dict[str, str]:
    """The answer to each row of this revision by `python`, `typescript` or `colonnade`."""
    return {row.what: row.expected(who, revision) for row in ROWS if revision in row.revisions}


def table() -> str:
    """The table of docs/revisions.md."""
    lines = ["| refused | Python SDK | TypeScript SDK | Colonnade | why |", "|---|---|---|---|---|"]
    for row in ROWS:
        only = "" if len(row.revisions) > 1 else " (in a session)" if SESSION in row.revisions else " (2026-07-28)"
        lines.append(f"| {row.what}{only} | {row.python} | {row.typescript} | {row.colonnade} | {row.why} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
