"""The actions in a cell and their expected results: one function for each feature.

Nothing is counted that came before or belongs to another cell: everything that a cell makes somebody say carries the
cell's own key, a text that is used once in a run.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio

from tests.matrix.clients import NOTICE_TIMEOUT, Client, Message, ReceivedMessage
from tests.matrix.expectations import (
    INVALID_PARAMS,
    R24,
    R25A,
    R25B,
    R25C,
    R26,
    Cell,
    Feature,
    Note,
    Verdict,
    expected,
    has,
    is_stateless,
    refusal,
)

BLOB = "bWF0cml4"
LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
POLL_INTERVAL = 0.02
"""Seconds between two looks at what changes in another process."""


class CellFailed(Exception):
    """The cell is not as expected; what was seen."""


def must(condition: bool, seen: object) -> None:
    if not condition:
        raise CellFailed(str(seen)[:400])


@dataclass(frozen=True)
class CellRun:
    """A client and a server that meet. Without a `prefix` no gateway stands between them."""

    client: Client
    cell: Cell
    prefix: str

    @property
    def key(self) -> str:
        return f"{self.client.name}.{self.prefix}.{self.cell.feature.name.lower()}"

    def name(self, inward: str) -> str:
        return f"{self.prefix}__{inward}" if self.prefix else inward

    def uri(self, inward: str) -> str:
        return f"{self.prefix}+{inward}" if self.prefix else inward

    async def ask(self, method: str, params: Message | None = None) -> Message:
        """The result; an error is not as expected."""
        return result_of(await self.client.ask(method, params), method)

    async def call(self, tool: str, key: str | None = None, **more: object) -> Message:
        """The result of a tool, which must be none that failed."""
        result = await self.ask("tools/call", self.params(tool, key, **more))
        must(not result.get("isError"), f"{tool} failed: {result}")
        return result

    def params(self, tool: str, key: str | None = None, **more: object) -> Message:
        """Those of a call: under the key of this cell, unless another one is meant."""
        return {"name": self.name(tool), "arguments": {"key": self.key if key is None else key, **more}}

    async def said(self, tool: str, key: str | None = None, **more: object) -> str:
        """The one text that a tool gives."""
        (block,) = (await self.call(tool, key, **more))["content"]
        return str(block["text"])

    async def asked(self, tool: str, key: str | None = None, **more: object) -> tuple[Message, list[ReceivedMessage]]:
        """What came back to a server that asked the client something, and what the client was asked meanwhile."""
        before = len(self.client.asked)
        came: Message = json.loads(await self.said(tool, key, **more))
        asked = self.client.asked[before:]
        if self.client.carries_questions_on_calls:
            must(all(each.about is not None for each in asked), f"asked on the standing stream: {asked}")
        return came, asked

    async def not_asked(self, tool: str, variant: str = "plain") -> Message:
        """The answer to a call whose question cannot be asked: the client must hear nothing of it."""
        before = len(self.client.asked)
        answer = await self.client.ask("tools/call", self.params(tool, variant=variant))
        must(len(self.client.asked) == before, f"asked nonetheless: {self.client.asked[before:]}")
        return answer

    async def until(self, tool: str, wanted: str, key: str | None = None) -> None:
        """Call the tool until it says what is wanted."""
        said = ""
        with trio.move_on_after(NOTICE_TIMEOUT):
            while True:
                mark = len(self.client.received)
                said = await self.said(tool, key)
                if said == wanted:
                    return
                self._forget(max(self.client.methods), mark)  # how often this is done is a matter of time
                await trio.sleep(POLL_INTERVAL)
        raise CellFailed(f"{tool} says {said!r}, not {wanted!r}")

    def _forget(self, id: int, mark: int) -> None:
        """Leave out what came since `mark` for this request; not what came for others meanwhile."""
        received = self.client.received
        received[mark:] = [
            (about, each)
            for about, each in received[mark:]
            if id != about and (about is not None or "method" in each or id != each.get("id"))
        ]


def result_of(answer: Message, what: str) -> Message:
    must("result" in answer, f"{what}: {answer}")
    result: Message = answer["result"]
    return result


async def call(at: CellRun) -> None:
    """The answer is the tool's; every kind of content arrives in a form that the client's revision has (rule 61). What
    a stateless client must repeat in headers, the list says (rule 27)."""
    listed = {tool["name"]: tool for tool in await tools(at)}
    must(await at.said("echo") == at.key, "another text")
    result = await at.call("rich")
    head, *blocks = result["content"]
    must(head == {"type": "text", "text": at.key}, head)
    _as_the_client_has_them(at, blocks)
    structured = has(at.cell.server, R25B) and has(at.cell.client, R25B)
    must(result.get("structuredContent") == ({"price": 1.5} if structured else None), result)
    rich = listed[at.name("rich")]
    must(("outputSchema" in rich) == structured, rich)
    if is_stateless(at.cell.server):
        await _call_free(at, listed[at.name("free")])


async def _call_free(at: CellRun, tool: Message) -> None:
    """A structure that is no object (rule 62)."""
    result = await at.call("free")
    must(result["content"] == [{"type": "text", "text": at.key}], result)
    free = has(at.cell.client, R26)
    must(result.get("structuredContent") == ([at.key] if free else None), result)
    must(("outputSchema" in tool) == free, tool)


async def read(at: CellRun) -> None:
    """A listed resource, and one that only a template makes."""
    listed = (await at.ask("resources/list"))["resources"]
    must(at.uri("note://one") in [each["uri"] for each in listed], listed)
    templates = (await at.ask("resources/templates/list"))["resourceTemplates"]
    must(at.uri("note://{name}") in [each["uriTemplate"] for each in templates], templates)
    for inward in ("note://one", f"note://{at.key}"):
        (content,) = (await at.ask("resources/read", {"uri": at.uri(inward)}))["contents"]
        must(content == {"uri": at.uri(inward), "mimeType": "text/plain", "text": f"what {inward} says"}, content)


async def get(at: CellRun) -> None:
    prompts = (await at.ask("prompts/list"))["prompts"]
    must(at.name("letter") in [each["name"] for each in prompts], prompts)
    result = await at.ask("prompts/get", {"name": at.name("letter"), "arguments": {"to": at.key}})
    head, *blocks = [message["content"] for message in result["messages"]]
    must(head == {"type": "text", "text": f"Dear {at.key}"}, head)
    _as_the_client_has_them(at, blocks)


def _as_the_client_has_them(at: CellRun, blocks: list[Message]) -> None:
    """The blocks that the server sends: unchanged but for URIs, or what stands for them."""
    image, embedded, *rest = blocks
    must(image == {"type": "image", "data": BLOB, "mimeType": "image/png"}, image)
    inner = {"uri": at.uri("note://one"), "mimeType": "text/plain", "text": "a note"}
    must(embedded == {"type": "resource", "resource": inner}, embedded)
    if has(at.cell.server, R25A):
        audio = rest.pop(0)
        if has(at.cell.client, R25A):
            must(audio == {"type": "audio", "data": BLOB, "mimeType": "audio/wav"}, audio)
        else:
            instead = audio.get("resource", {})
            must(audio["type"] == "resource" and isinstance(instead.get("uri"), str), audio)
            must(instead.get("blob") == BLOB and instead.get("mimeType") == "audio/wav", audio)
    if has(at.cell.server, R25B):
        link = rest.pop(0)
        if has(at.cell.client, R25B):
            whole = {"uri": at.uri("note://two"), "name": "two", "mimeType": "text/plain"}
            must(link == {"type": "resource_link", **whole}, link)
        else:
            must(link["type"] == "text" and at.uri("note://two") in link["text"], link)
    must(not rest, f"more than the server sent: {rest}")


async def complete(at: CellRun) -> None:
    for ref, argument in (
        ({"type": "ref/prompt", "name": at.name("letter")}, "to"),
        ({"type": "ref/resource", "uri": at.uri("note://{name}")}, "name"),
    ):
        params = {"ref": ref, "argument": {"name": argument, "value": "al"}}
        completion = (await at.ask("completion/complete", params))["completion"]
        must(completion["values"] == ["albert", "alice"], completion)


async def progress(at: CellRun) -> None:
    """Three reports before the answer, under the client's own token (rule 42)."""
    before = len(at.client.heard)
    params = {"name": at.name("progress"), "arguments": {}, "_meta": {"progressToken": at.key}}
    await at.ask("tools/call", params)
    heard = [each.params for each in at.client.heard[before:] if each.params.get("progressToken") == at.key]
    must([(each["progress"], each["total"]) for each in heard] == [(1, 3), (2, 3), (3, 3)], heard)
    said = [f"step {step}" if has(at.cell.server, R25A) else None for step in (1, 2, 3)]
    must([each.get("message") for each in heard] == said, heard)


async def cancel(at: CellRun) -> None:
    """The server is told, and the client gets no answer any more (rule 45)."""
    under_way = await at.client.begin("tools/call", {"name": at.name("wait"), "arguments": {"key": at.key}})
    await at.until("was_cancelled", "waiting")
    await at.client.call_off(under_way)
    await at.until("was_cancelled", "cancelled")
    if at.client.carries_questions_on_calls:
        with trio.move_on_after(NOTICE_TIMEOUT):
            await under_way.ended.wait()
        must(under_way.ended.is_set(), "the stream of the cancelled call stays open")
    at.client.end(under_way.id)
    must(under_way.answer is None, under_way.answer)


async def subscribe(at: CellRun) -> None:
    """Updates come while the client watches, and the server is told of the end (rule 88)."""
    inward = f"note://{at.key}"
    before = len(at.client.heard)
    must(await at.said("touch", inward) == "nobody has subscribed", "subscribed before it was asked")
    result_of(await at.client.watch(at.uri(inward)), "watch")
    await at.until("touch", "told", inward)  # of several processes, the one that the client subscribed at
    wanted = {"uri": at.uri(inward)}
    told = await at.client.hears(
        lambda heard: heard.method == UPDATED and wanted.items() <= heard.params.items(), before
    )
    must(told, f"no update; heard {at.client.heard[before:]}")
    await at.client.unwatch(at.uri(inward))
    await at.until("touch", "nobody has subscribed", inward)


UPDATED = "notifications/resources/updated"


async def log(at: CellRun) -> None:
    """Everything from the level on that the client has set last, and nothing below it (rule 82)."""
    for level in ("debug", "warning"):
        result_of(await at.client.want_log(level), "setLevel")
        if level == "debug":
            await at.until("level", "debug")
        key = f"{at.key}.{level}"
        before = len(at.client.heard)
        await at.call("log", key)
        await at.client.hears(partial(_is_last, key), before)
        heard = [found for each in at.client.heard[before:] if (found := _logged(each, key))]
        must(heard == list(LEVELS[LEVELS.index(level) :]), f"set {level}, heard {heard}")
        loggers = {each.params.get("logger") for each in at.client.heard[before:] if _logged(each, key)}
        must(loggers == {f"{at.prefix}/matrix" if at.prefix else "matrix"}, loggers)


def _is_last(key: str, heard: ReceivedMessage) -> bool:
    return _logged(heard, key) == LEVELS[-1]


def _logged(heard: ReceivedMessage, key: str) -> str | None:
    if heard.method != "notifications/message" or heard.params.get("data") != {"key": key}:
        return None
    level: str = heard.params["level"]
    return level


async def sampling(at: CellRun) -> None:
    """This client's own answer comes back; what its revision cannot take is refused without asking it (rule 74)."""
    kinds = {"plain": R24, "context": R24, "audio": R25A, "tools": R25C}
    for kind in [kind for kind, since in kinds.items() if has(at.cell.server, since)]:
        if not has(at.cell.client, kinds[kind]):
            await _sampling_refused(at, kind)
            continue
        came, asked = await at.asked("ask_sampling", variant=kind)
        must(len(asked) == 1 and asked[0].method == "sampling/createMessage", f"{kind}: {came}, asked {asked}")
        params = asked[0].params
        must(params.get("includeContext", "none") == "none" or not at.prefix, f"includeContext: {params}")
        must(("tools" in params) == (kind == "tools"), params)
        read = "audio" if kind == "audio" else at.key
        must(_answer(came)["content"] == {"type": "text", "text": f"{at.client.name} read {read}"}, came)


async def _sampling_refused(at: CellRun, kind: str) -> None:
    if not is_stateless(at.cell.server):
        _must_be_refused(*await at.asked("ask_sampling", variant=kind), INVALID_PARAMS)
    elif kind == "tools":
        _must_lack(await at.not_asked("ask_sampling", variant=kind), {"sampling": {"tools": {}}})
    else:
        _must_fail(await at.not_asked("ask_sampling", variant=kind))


async def form(at: CellRun) -> None:
    """The client is asked in the words of its revision, and told who asks (rule 73) (rule 75)."""
    if Note.LACKS_ABILITY in expected(at.cell).notes:
        _must_lack(await at.not_asked("ask_form"), {"elicitation": {"form": {}}})
        return
    came, asked = await at.asked("ask_form")
    if expected(at.cell).verdict is Verdict.IMPOSSIBLE:
        _must_be_refused(came, asked, refusal(at.cell))
        return
    must(len(asked) == 1 and asked[0].method == "elicitation/create", f"{came}, asked {asked}")
    params = asked[0].params
    must(params["message"] == (f"[{at.prefix}] " if at.prefix else "") + f"Fill in {at.key}", params)
    properties = params["requestedSchema"]["properties"]
    must(properties["sure"] == {"type": "boolean", "default": True}, properties)
    titled = has(at.cell.server, R25C) and has(at.cell.client, R25C)
    must(properties["colour"] == (TITLED if titled else NAMED), properties)
    must(properties["name"] == {"type": "string"} | ({"default": "Ann"} if titled else {}), properties)
    content = {"name": at.client.name, "sure": True, "colour": "g"}
    must(_answer(came) == {"action": "accept", "content": content}, came)
    if has(at.cell.server, R25C):
        await _form_of_many(at)


TITLED = {
    "type": "string",
    "oneOf": [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}],
    "default": "r",
}
NAMED = {"type": "string", "enum": ["r", "g"], "enumNames": ["Red", "Green"]}


async def _form_of_many(at: CellRun) -> None:
    """A multiple choice has no form in 2025-06-18."""
    if is_stateless(at.cell.server) and not has(at.cell.client, R25C):
        _must_fail(await at.not_asked("ask_form", variant="many"))
        return
    came, asked = await at.asked("ask_form", variant="many")
    if has(at.cell.client, R25C):
        must(_answer(came) == {"action": "accept", "content": {"colours": ["r", "g"]}}, came)
    else:
        _must_be_refused(came, asked, INVALID_PARAMS)


async def url(at: CellRun) -> None:
    """The client is asked under an id that it also hears of when the other side is done (rule 76); without a handshake
    there are no such ids."""
    if Note.LACKS_ABILITY in expected(at.cell).notes:
        _must_lack(await at.not_asked("ask_url"), {"elicitation": {"url": {}}})
        return
    before = len(at.client.heard)
    came, asked = await at.asked("ask_url")
    if has(at.cell.server, R25C):
        await _page_needed(at)
    if expected(at.cell).verdict is Verdict.IMPOSSIBLE:
        _must_be_refused(came, asked, refusal(at.cell))
        return
    must(len(asked) == 1 and asked[0].params.get("mode") == "url", f"{came}, asked {asked}")
    params = asked[0].params
    must(params["url"] == f"https://example.com/{at.key}", params)
    must(at.key in params["message"], params)
    must(_answer(came) == {"action": "accept"}, came)
    if is_stateless(at.cell.client) or is_stateless(at.cell.server):
        return
    done = {"elicitationId": params["elicitationId"]}
    told = await at.client.hears(lambda heard: heard.method == COMPLETE and heard.params == done, before)
    must(told, f"not told that it is complete; heard {at.client.heard[before:]}")


COMPLETE = "notifications/elicitation/complete"


async def _page_needed(at: CellRun) -> None:
    """A call that needs a page to be visited first: an error says so where both sides have such, or a text where the
    client has no pages. Without a handshake it is a question like others."""
    before = len(at.client.asked)
    answer = await at.client.ask("tools/call", at.params("need_url"))
    page = f"https://example.com/{at.key}"
    if not has(at.cell.client, R25C):
        must("result" in answer and answer["result"].get("isError") is True, answer)
        must(page in answer["result"]["content"][0]["text"], answer)
        return
    if not is_stateless(at.cell.client) and not is_stateless(at.cell.server):
        must(answer.get("error", {}).get("code") == URL_REQUIRED, answer)
        (needed,) = answer["error"]["data"]["elicitations"]
        must((needed["mode"], needed["url"]) == ("url", page) and isinstance(needed["elicitationId"], str), needed)
        answer = await at.client.ask("tools/call", at.params("need_url"))
    else:
        asked = [each.params for each in at.client.asked[before:]]
        must([(each.get("mode"), each.get("url")) for each in asked] == [("url", page)], f"{answer}, asked {asked}")
    must(result_of(answer, "need_url")["content"] == [{"type": "text", "text": "signed in"}], answer)


URL_REQUIRED = -32042


async def roots(at: CellRun) -> None:
    came, asked = await at.asked("ask_roots")
    must([each.method for each in asked] == ["roots/list"], f"{came}, asked {asked}")
    must(_answer(came)["roots"] == [{"uri": f"file:///{at.client.name}", "name": at.client.name}], came)


def _answer(came: Message) -> Message:
    must("result" in came, came)
    result: Message = came["result"]
    return result


async def task(at: CellRun) -> None:
    """Who can take a task gets one, by its own revision's ways, and its result in the end; who cannot gets the result
    at once, as does everyone before a server that has no tasks (rule 92) (rule 60)."""
    listed = {tool["name"]: tool for tool in await tools(at)}
    both = has(at.cell.client, R25C) and has(at.cell.server, R25C)
    support = {"taskSupport": "optional"} if both and not is_stateless(at.cell.client) else None
    must(listed[at.name("chore")].get("execution") == support, listed[at.name("chore")])
    done = await at.client.call_as_task(at.params("chore"))
    result = result_of(done.answer, "chore")
    must(result["content"] == [{"type": "text", "text": f"{at.key} is done"}], result)
    if not both:
        must(done.task is None, f"a task nonetheless: {done.task}")
        return
    must(done.task is not None and done.task["status"] == "completed", done)
    offered = at.client.offered
    announced = TASKS in offered.get("extensions", {}) if is_stateless(at.cell.client) else "tasks" in offered
    must(announced, f"tasks, but not among {offered}")


TASKS = "io.modelcontextprotocol/tasks"


async def task_tool(at: CellRun) -> None:
    """A tool that requires a task can be called without one (rule 90)."""
    listed = [tool["name"] for tool in await tools(at)]
    exists = has(at.cell.server, R25C)
    must((at.name("long_chore") in listed) == exists, listed)
    if exists:
        result = result_of(await at.client.call_without_task(at.params("long_chore")), "long_chore")
        must(result["content"] == [{"type": "text", "text": f"{at.key} is done"}], result)


def _must_lack(answer: Message, ability: Message) -> None:
    """The server has said what the client would have to be able to do (rule 74)."""
    error = answer.get("error", {})
    must(error.get("code") == INTERNAL_ERROR, answer)
    must(error.get("data", {}).get("requiredCapabilities") == ability, answer)


INTERNAL_ERROR = -32603


def _must_fail(answer: Message) -> None:
    must("error" in answer or answer["result"].get("isError") is True, answer)


def _must_be_refused(came: Message, asked: list[ReceivedMessage], code: int) -> None:
    """An error for the server, and no question for the client (rule 74)."""
    must(not asked, f"asked nonetheless: {asked}")
    must(came.get("error", {}).get("code") == code, f"expected {code}, the server got {came}")


async def tools(at: CellRun) -> list[Message]:
    """All pages of the list of tools."""
    found: list[Message] = []
    params: Message = {}
    while True:
        page: dict[str, Any] = await at.ask("tools/list", params)
        found += page["tools"]
        if "nextCursor" not in page:
            return found
        params = {"cursor": page["nextCursor"]}


async def shows(at: CellRun, tool: str, there: bool, before: int) -> None:
    """The client is told that the list of tools is another, and then it is: it has the tool, or no more (rule 85). It
    may also be told of what others have made of a server that is the same for all."""
    name = at.name(tool)
    names: list[str] = []
    with trio.move_on_after(NOTICE_TIMEOUT):
        while await at.client.hears(lambda heard: heard.method == "notifications/tools/list_changed", before):
            before = len(at.client.heard)
            names = [each["name"] for each in await tools(at)]
            if (name in names) == there:
                return
    must(bool(names), f"not told that the list has changed; heard {at.client.heard[before:]}")
    raise CellFailed(f"the list {'lacks' if there else 'still has'} {tool}")


CHECKS: dict[Feature, Callable[[CellRun], Awaitable[None]]] = {
    Feature.CALL: call,
    Feature.READ: read,
    Feature.GET: get,
    Feature.COMPLETE: complete,
    Feature.PROGRESS: progress,
    Feature.CANCEL: cancel,
    Feature.SUBSCRIBE: subscribe,
    Feature.LOG: log,
    Feature.SAMPLING: sampling,
    Feature.FORM: form,
    Feature.URL: url,
    Feature.ROOTS: roots,
    Feature.TASK: task,
    Feature.TASK_TOOL: task_tool,
}
"""All but `list_changed`, which concerns every client at once."""
