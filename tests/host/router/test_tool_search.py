"""The search tools of a view: what is listed, what is found, and that every call behind them takes the ordinary way."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from config import AskSpec, Channel, Config, Consent, Search
from config.views import NameStyle, ViewNames, ViewSpec
from host.attempts import Reason
from host.memory import OverBudget, Use
from host.policy.confirmations import ConfirmationAnswer
from host.protocol.methods import TOOLS_CHANGED, Kind
from host.protocol.search_tools import SEARCH_TOOL_NAMES
from host.protocol.versions import LATEST, LATEST_LEGACY, LEGACY
from host.source import Endpoint
from tests.kit.asgi import IO, Connection, open_http_app
from tests.kit.awaited import awaited
from tests.kit.gates import auto_answering, entry, kind
from tests.kit.world import Refusal, ScriptedClient, ScriptedServer, World, later, open_client, open_world, tool

from .shared import echo

FOUND = Endpoint(view="found")
PATH = "/mcp/@found"
FORM = {"message": "Which?", "requestedSchema": {"type": "object", "properties": {}}}
READS = {"annotations": {"readOnlyHint": True}}
ALLOWED = Consent(tools=kind(default="allow"))


def git(**more: Any) -> ScriptedServer:
    tools = [
        {**tool("commit"), "description": "Record changes to the repository."},
        {**tool("log"), "description": "Show the commit logs.", **READS},
        tool("secret"),
    ]
    more.setdefault("consent", Consent(tools=kind(deny=["secret"], default="allow")))
    return ScriptedServer("git", tools=tools, answers={"tools/call": echo}, **more)


def slack(**more: Any) -> ScriptedServer:
    tools = [{**tool("post_message"), "description": "Post a message to a channel."}]
    more.setdefault("consent", ALLOWED)
    return ScriptedServer("slack", tools=tools, answers={"tools/call": echo}, **more)


def offer(world: World, views: Mapping[str, ViewSpec]) -> None:
    """Have these views."""
    found = world.gate.policies.views
    found.replace(Config(servers={id: server.spec for id, server in world.servers.items()}, views=views))
    world.catalog.set_views(found, found.audiences())


@asynccontextmanager
async def searching(*servers: ScriptedServer, ask: AskSpec | None = None, **view: Any) -> AsyncIterator[World]:
    """A world with the view `found`, which has a search unless `view` says otherwise."""
    spec = ViewSpec(**{"search": Search.ON, **view})
    async with open_world(*servers, ask=ask) as world:
        offer(world, {"found": spec})
        yield world


@asynccontextmanager
async def searching_over_http(*servers: ScriptedServer, **view: Any) -> AsyncIterator[tuple[World, Connection]]:
    """The same over HTTP, at PATH."""
    views = {"found": ViewSpec(**{"search": Search.ON, **view})}
    async with open_http_app(*servers, views=views) as (world, connection):
        yield world, connection


async def in_session(connection: Connection, method: str, params: object) -> Any:
    """The result of a request in the connection's session, which is opened with the first."""
    if connection.session is None:
        await connection.open(path=PATH)
    answer = connection.send("POST", PATH, {"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    with trio.fail_after(30):
        await answer.complete.wait()
    return answer.messages()[-1]["result"]


async def search(client: ScriptedClient, query: str, **more: Any) -> list[dict[str, Any]]:
    result = await client.call("search_tools", {"query": query, **more})
    assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
    found: list[dict[str, Any]] = result["structuredContent"]["tools"]
    return found


async def said(client: ScriptedClient, name: str, arguments: object) -> str:
    """The text of a result that is an error."""
    result = await client.call(name, arguments)
    assert result["isError"] is True
    return str(result["content"][0]["text"])


async def test_a_search_view_lists_the_four_tools_and_those_that_are_pinned() -> None:
    async with searching(git(), slack(), pinned=("slack__*",)) as world:
        client = await world.client(FOUND)
        assert await client.names() == [
            "search_tools",
            "describe_tools",
            "read_tool",
            "call_tool",
            "slack__post_message",
        ]
        (listed, *_) = (await client.request("tools/list"))["tools"]
        assert "Servers: git, slack." in listed["description"]


async def test_without_a_search_the_names_are_nobodys() -> None:
    async with searching(git(), search=Search.OFF) as world:
        for endpoint in (FOUND, Endpoint(), Endpoint("git"), Endpoint("git", "found")):
            client = await world.client(endpoint)
            assert SEARCH_TOOL_NAMES.isdisjoint(await client.names())
            for name in SEARCH_TOOL_NAMES:
                with pytest.raises(Refusal, match=f"Unknown tool: {name}"):
                    await client.call(name, {"name": "git__log", "query": "log", "names": ["git__log"]})


async def test_a_servers_own_endpoint_has_no_search() -> None:
    async with searching(git()) as world:
        client = await world.client(Endpoint("git", "found"))
        assert await client.names() == ["commit", "log"]
        with pytest.raises(Refusal, match="Unknown tool: call_tool"):
            await client.call("call_tool", {"name": "log"})


async def test_what_is_found_is_what_the_caller_may_see() -> None:
    async with searching(git(), slack()) as world:
        client = await world.client(FOUND)
        first, *_ = await search(client, "show the history of commits")
        assert (first["name"], first["server"]) == ("git__log", "git")
        assert [each["name"] for each in await search(client, "secret")] == []
        assert {each["server"] for each in await search(client, "post a commit message", server="slack")} == {"slack"}
        assert len(await search(client, "commit message", limit=1)) == 1
        assert "no server 'nosuch' has tools here; known are: git, slack" in await said(
            client, "search_tools", {"query": "x", "server": "nosuch"}
        )


async def test_the_index_follows_lists_and_rules() -> None:
    server = slack()
    async with searching(server) as world:
        client = await world.client(FOUND)
        assert [each["name"] for each in await search(client, "message")] == ["slack__post_message"]
        server.lists["tools"].append(tool("delete_message"))
        await server.notifies(TOOLS_CHANGED)
        await wait_all_tasks_blocked()
        assert {each["name"] for each in await search(client, "message")} == {
            "slack__post_message",
            "slack__delete_message",
        }
        denied = {"slack": replace(server.spec, consent=Consent(tools=kind(deny=["delete_*"])))}
        world.gate.replace(denied, {})
        assert [each["name"] for each in await search(client, "message")] == ["slack__post_message"]


async def test_descriptions_are_those_of_a_list_and_hidden_tools_have_none() -> None:
    async with searching(git()) as world:
        client, plain = await world.client(FOUND), await world.client()
        listed = {each["name"]: each for each in (await plain.request("tools/list"))["tools"]}
        names = ["git__log", "git__secret", "git__nosuch", "git__commit", "search_tools"]
        found = (await client.call("describe_tools", {"names": names}))["structuredContent"]
        assert found == {
            "tools": [listed["git__log"], listed["git__commit"]],
            "unknown": ["git__secret", "git__nosuch", "search_tools"],
        }


async def test_a_call_through_call_tool_is_the_call_itself() -> None:
    async with searching(git()) as world:
        client = await world.client(FOUND)
        direct = await client.call("git__log", {"n": 1})
        assert await client.call("call_tool", {"name": "git__log", "arguments": {"n": 1}}) == direct
        assert direct["_meta"]["saw"] == "log"


async def test_over_stateless_http_the_header_names_the_search_tool() -> None:
    async with searching_over_http(git()) as (_, connection):
        direct = await connection.result("tools/call", {"name": "git__log", "arguments": {"n": 1}}, path=PATH)
        inner = {"name": "git__log", "arguments": {"n": 1}}
        through = {"name": "call_tool", "arguments": inner}
        assert await connection.result("tools/call", through, path=PATH) == direct
        answer = await connection.start("tools/call", through, path=PATH, headers={"mcp-name": "git__log"}).ended()
        assert answer.status == 400
        with pytest.raises(Refusal, match="take the member 'NAME' for another one"):
            await connection.result("tools/call", {"name": "call_tool", "arguments": {**inner, "NAME": 1}}, path=PATH)


async def test_headers_of_arguments_are_none_of_a_call_through_call_tool() -> None:
    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    server = ScriptedServer(
        "a",
        tools=[{"name": "x", "inputSchema": schema}],
        answers={"tools/call": echo},
        revision=LATEST.name,
        consent=ALLOWED,
    )
    async with searching_over_http(server) as (_, connection):
        inner = {"name": "a__x", "arguments": {"region": "eu"}}
        await connection.result("tools/call", {"name": "call_tool", "arguments": inner}, path=PATH)
        (sent,) = [headers for method, headers in server.sent_headers if method == "tools/call"]
        assert (sent["Mcp-Name"], sent["Mcp-Param-Region"]) == ("x", "eu")


async def test_a_question_is_answered_by_the_same_call_through_the_same_tool() -> None:
    server = ScriptedServer("a", tools=["x"], consent=ALLOWED)
    async with searching_over_http(server) as (_, connection):
        through = {"name": "call_tool", "arguments": {"name": "a__x", "arguments": {"k": 1}}}
        call = connection.start("tools/call", through, path=PATH, capabilities={"elicitation": {}})
        request = await server.hears("tools/call")
        async with trio.open_nursery() as nursery:
            question = later(nursery, server.asks, "elicitation/create", FORM)
            await call.complete.wait()
            asked = call.outcome("tools/call")
            (key,) = asked["inputRequests"]
            answers = {
                "inputResponses": {key: {"action": "accept", "content": {}}},
                "requestState": asked["requestState"],
            }
            direct = {"name": "a__x", "arguments": {"k": 1}, **answers}
            with pytest.raises(Refusal, match="requestState"):
                await connection.another().result("tools/call", direct, path=PATH, capabilities={"elicitation": {}})
            again = connection.another().start(
                "tools/call", {**through, **answers}, path=PATH, capabilities={"elicitation": {}}
            )
            assert (await question.comes())["action"] == "accept"
            server.says(request["id"], {"content": []})
            await again.complete.wait()
            assert again.outcome("tools/call")["content"] == []


async def test_a_tool_that_is_not_listed_can_be_called_by_its_name() -> None:
    async with searching(git()) as world:
        client = await world.client(FOUND)
        assert (await client.call("git__log"))["_meta"]["saw"] == "log"


@pytest.mark.parametrize("name", ["git__secret", "git__nosuch", "nosuch", "call_tool", "search_tools", ""])
async def test_hidden_and_missing_tools_get_the_same_error_through_call_tool(name: str) -> None:
    async with searching(git()) as world:
        client = await world.client(FOUND)
        for through in ("call_tool", "read_tool"):
            with pytest.raises(Refusal) as refusal:
                await client.call(through, {"name": name})
            assert (refusal.value.code, refusal.value.message) == (-32602, f"Unknown tool: {name}")


async def test_arguments_of_another_form_are_errors_that_a_model_can_read() -> None:
    async with searching(git()) as world:
        client = await world.client(FOUND)
        assert await said(client, "call_tool", {}) == (
            "call_tool: the argument 'name' is missing: expected the name of a tool"
        )
        assert "must be an object" in await said(client, "read_tool", {"name": "git__log", "arguments": "{}"})
        assert "'query' is missing" in await said(client, "search_tools", {})
        assert "array of names" in await said(client, "describe_tools", {"names": "git__log"})
        with pytest.raises(Refusal, match="take the member 'Name' for another one"):
            await client.call("call_tool", {"name": "git__log", "Name": "git__commit"})


async def test_read_tool_reaches_tools_that_claim_to_read_once_a_person_approved_them() -> None:
    async with searching(git()) as world:
        client = await world.client(FOUND)
        assert "does not claim to only read" in await said(client, "read_tool", {"name": "git__log"})
        assert not any(each.get("readOnly") for each in await search(client, "log"))
        definitions, ref = world.gate.definitions, entry("git", Kind.TOOL, "log")
        awaited(definitions.approve(ref.item, definitions.fingerprint(ref), "console"))
        assert (await client.call("read_tool", {"name": "git__log"}))["_meta"]["saw"] == "log"
        assert [each["name"] for each in await search(client, "log") if each.get("readOnly")] == ["git__log"]
        assert "call it through call_tool" in await said(client, "read_tool", {"name": "git__commit"})


async def test_without_consent_a_person_is_asked_about_calls_through_call_tool() -> None:
    async with searching(slack(consent=Consent())) as world:
        client = await world.client(FOUND)
        call = {"name": "slack__post_message", "arguments": {"text": "hi"}}
        with auto_answering(world.gate, ConfirmationAnswer.ONCE) as asked:
            assert (await client.call("slack__post_message"))["_meta"]["saw"] == "post_message"
            assert asked == []
            assert (await client.call("call_tool", call))["_meta"]["saw"] == "post_message"
        (card,) = asked
        assert (card.access.subject.item.name, card.context.through) == ("post_message", "call_tool")
        assert json.loads(card.context.raw_arguments) == {"text": "hi"}


async def test_a_client_can_confirm_a_call_through_call_tool_itself() -> None:
    async with searching(slack(consent=Consent()), ask=AskSpec(answers=(Channel.CLIENT,))) as world:
        client = await world.client(FOUND, capabilities={"elicitation": {}})
        async with trio.open_nursery() as nursery:
            call = later(nursery, client.call, "call_tool", {"name": "slack__post_message"})
            form = await client.is_asked("elicitation/create")
            assert "The tool post_message of slack" in form["message"]
            assert "(through call_tool)" in form["message"]
            client.replies(form["id"], {"action": "decline"})
            assert (await call.comes())["isError"]


async def test_progress_and_cancellation_go_through() -> None:
    server = ScriptedServer("s", tools=["slow"], consent=ALLOWED)
    async with searching(server) as world:
        client = await world.client(FOUND)
        async with trio.open_nursery() as nursery:
            asked = {"name": "call_tool", "arguments": {"name": "s__slow"}, "_meta": {"progressToken": "p"}}
            call = later(nursery, client.request, "tools/call", asked, "c1")
            request = await server.hears("tools/call")
            assert request["name"] == "slow"
            token = request["_meta"]["progressToken"]
            await server.notifies("notifications/progress", {"progressToken": token, "progress": 1})
            await wait_all_tasks_blocked()
            assert client.notifications_of("notifications/progress") == [{"progressToken": "p", "progress": 1}]
            client.notifies("notifications/cancelled", {"requestId": "c1"})
            assert (await server.hears("notifications/cancelled"))["requestId"] == request["id"]
            assert await call.comes() is None


async def test_a_client_may_ask_for_a_task_of_any_tool_through_call_tool() -> None:
    async with searching_over_http(git()) as (_, connection):
        listed = await in_session(connection, "tools/list", {})
        assert [each["name"] for each in listed["tools"] if "execution" in each] == ["read_tool", "call_tool"]
        called = {"name": "call_tool", "arguments": {"name": "git__log"}, "task": {"ttl": 60_000}}
        created = await in_session(connection, "tools/call", called)
        done = await in_session(connection, "tasks/result", {"taskId": created["task"]["taskId"]})
        assert done["_meta"]["saw"] == "log"


@pytest.mark.parametrize("revision", LEGACY)
async def test_each_revision_gets_the_form_that_it_knows(revision: str) -> None:
    async with searching(git()) as world:
        client = await world.client(FOUND, revision)
        listed = (await client.request("tools/list"))["tools"]
        assert any("outputSchema" in each for each in listed) == (revision >= "2025-06-18")
        assert not any("execution" in each for each in listed if revision != LATEST_LEGACY.name)
        found = await client.call("search_tools", {"query": "log"})
        assert ("structuredContent" in found) == (revision >= "2025-06-18")
        assert "git__log" in found["content"][0]["text"]


# When there is a search


async def test_auto_is_decided_by_what_the_list_costs() -> None:
    for above, expected in ((10_000, False), (10, True)):
        async with searching(git(), search=Search.AUTO, search_above=above) as world:
            client = await world.client(FOUND)
            assert ("search_tools" in await client.names()) is expected


async def test_a_session_keeps_what_was_decided() -> None:
    server = slack()
    async with searching(server, search=Search.AUTO, search_above=200) as world:
        first = await world.client(FOUND)
        assert await first.names() == ["slack__post_message"]
        server.lists["tools"] += [tool(f"tool_{number}") for number in range(50)]
        await server.notifies(TOOLS_CHANGED)
        await wait_all_tasks_blocked()
        assert len(await first.names()) == 51
        second = await world.client(FOUND)
        assert await second.names() == ["search_tools", "describe_tools", "read_tool", "call_tool"]
        del server.lists["tools"][1:]
        await server.notifies(TOOLS_CHANGED)
        await wait_all_tasks_blocked()
        assert len(await second.names()) == 4
        assert await (await world.client(FOUND)).names() == ["slack__post_message"]


async def test_a_client_that_defers_tools_itself_gets_the_list_unless_the_view_says_on() -> None:
    for mode, expected in ((Search.AUTO, False), (Search.ON, True)):
        async with searching(git(), search=mode, search_above=10) as world:
            client = await world.client(FOUND, info={"name": "claude-code", "version": "2.1.332"})
            assert ("search_tools" in await client.names()) is expected


async def test_without_a_session_only_view_and_caller_decide() -> None:
    async with searching_over_http(git(), search=Search.AUTO, search_above=10) as (_, connection):
        info = {f"{IO}clientInfo": {"name": "claude-code", "version": "2.1.332"}}
        listed = await connection.result("tools/list", path=PATH, meta=info)
        assert "search_tools" in [each["name"] for each in listed["tools"]]
        assert not any("execution" in each for each in listed["tools"])


@pytest.mark.virtual_time
async def test_the_list_of_a_search_view_changes_only_with_what_it_shows() -> None:
    server = slack()
    async with searching(server, git()) as world:
        client = await world.client(FOUND)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.listen_changes)
            await client.names()
            server.lists["tools"].append(tool("more"))
            await server.notifies(TOOLS_CHANGED)
            await trio.sleep(2)
            assert client.notifications_of(TOOLS_CHANGED) == []
            server.lists["tools"].clear()
            await server.notifies(TOOLS_CHANGED)
            await trio.sleep(2)
            assert len(client.notifications_of(TOOLS_CHANGED)) == 1  # the server is not named any more
            nursery.cancel_scope.cancel()


async def test_a_plain_name_that_is_one_of_ours_is_not_taken_from_the_view() -> None:
    server = ScriptedServer("s", tools=["call_tool", "x"], consent=ALLOWED, answers={"tools/call": echo})
    async with searching(server, names=ViewNames(NameStyle.PLAIN)) as world:
        client = await world.client(FOUND)
        assert [each["name"] for each in await search(client, "call tool x")] == ["x"]
        assert (await client.call("call_tool", {"name": "x"}))["_meta"]["saw"] == "x"
        assert await client.names() == ["search_tools", "describe_tools", "read_tool", "call_tool"]
        with pytest.raises(Refusal, match="Unknown tool: call_tool"):
            await client.call("call_tool", {"name": "call_tool"})


@pytest.mark.virtual_time
async def test_an_entry_that_is_held_takes_no_plain_name_of_ours() -> None:
    server = ScriptedServer("s", tools=["search_tools", "x"], consent=ALLOWED, answers={"tools/call": echo})
    async with searching(server, names=ViewNames(NameStyle.PLAIN)) as world:
        client = await world.client(FOUND)
        definitions, ref = world.gate.definitions, entry("s", Kind.TOOL, "search_tools")
        awaited(definitions.approve(ref.item, definitions.fingerprint(ref), "console"))
        server.lists["tools"][0] = {**tool("search_tools"), "description": "Another one."}
        await server.notifies(TOOLS_CHANGED)
        await trio.sleep(1)
        assert definitions.why_hidden(ref, "", exists=True) is Reason.HELD
        assert [each["name"] for each in await search(client, "x")] == ["x"]
        for through in ("call_tool", "read_tool"):
            with pytest.raises(Refusal, match="Unknown tool: search_tools"):
                await client.call(through, {"name": "search_tools"})


async def test_the_index_of_a_view_that_is_gone_is_given_up() -> None:
    async with searching(git()) as world:
        await search(await world.client(FOUND), "log")
        (index,) = world.router.tool_search._indexes.values()
        assert len(index.tools) == 2
        offer(world, {"other": ViewSpec(search=Search.ON)})
        await search(await world.client(Endpoint(view="other")), "log")
        assert [viewer.view for viewer in world.router.tool_search._indexes] == ["other"]
        assert len(index.tools) == 0


async def test_two_searches_may_give_up_the_same_indexes() -> None:
    async with searching(git()) as world:
        for names in ("abc", "xy"):
            offer(world, {name: ViewSpec(search=Search.ON) for name in names})
            clients = [await world.client(Endpoint(view=name)) for name in names]
            async with trio.open_nursery() as nursery:
                for client in clients:
                    nursery.start_soon(search, client, "log")
        assert {viewer.view for viewer in world.router.tool_search._indexes} == {"x", "y"}


async def test_an_index_is_charged_and_given_up_when_its_memory_is_needed() -> None:
    async with searching(git()) as world:
        client, memory = await world.client(FOUND), world.catalog.memory
        before = memory.used
        await search(client, "log")
        (index,) = world.router.tool_search._indexes.values()
        assert memory.used - before == index.holding.size > 0
        with pytest.raises(OverBudget):
            memory.hold(("client", "large"), Use.REQUESTS, memory.total)
        memory.total = memory.used
        memory.hold(("client", "other"), Use.REQUESTS, 1)
        assert world.router.tool_search._indexes == {}
        memory.total *= 2
        assert {each["name"] for each in await search(client, "log")} == {"git__log", "git__commit"}


async def test_an_index_that_is_given_up_is_charged_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async with searching(git()) as world:
        await search(await world.client(FOUND), "log")
        (former,) = world.router.tool_search._indexes.values()
        seen: list[bool] = []

        async def update(tools: object) -> None:
            seen.append(former.holding.dropped)  # else others may drop it here, and it is in no table any more

        monkeypatch.setattr(former.tools, "update", update)
        offer(world, {"other": ViewSpec(search=Search.ON)})
        await search(await world.client(Endpoint(view="other")), "log")
        assert seen == [True]


async def test_a_search_that_a_reload_begins_meanwhile_refuses_a_call_in_words(autojump_clock: MockClock) -> None:
    async def slowly(params: dict[str, Any]) -> object:
        await trio.sleep(3)
        return {"protocolVersion": LATEST_LEGACY, "capabilities": {"tools": {}}, "serverInfo": {}}

    late = ScriptedServer("late", tools=["y"], answers={"initialize": slowly})
    plain = ViewSpec(names=ViewNames(NameStyle.PLAIN))
    async with open_client(late, views={"found": plain}, endpoint=FOUND) as (world, client, nursery):
        call = later(nursery, client.call, "call_tool", {"name": "y"})
        await trio.sleep(1)
        offer(world, {"found": replace(plain, search=Search.ON)})
        await call.ended.wait()
        assert call.refusal is None
        assert "send the request again" in call.result["content"][0]["text"]
