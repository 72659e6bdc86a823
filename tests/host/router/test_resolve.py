"""Names and URIs of clients: the server that they lead to, also while it starts."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from config.views import NameStyle, ViewNames, ViewServer, ViewSpec
from host.client_process import ClientProcess
from host.errors import (
    ColonnadeError,
    ResourceNotFound,
    UnknownEntry,
)
from host.exchange import Answered
from host.protocol.methods import Kind
from host.protocol.versions import Era
from host.source import Endpoint
from tests.host.router.shared import REACHING, REVISION, echo, refusing
from tests.kit.world import Refusal, ScriptedServer, World, open_client, open_world


async def test_a_servers_own_endpoint_has_its_own_names() -> None:
    server = ScriptedServer("a", tools=["x"], resources=["file:///r"], answers={"tools/call": echo})
    async with open_client(server, ScriptedServer("b", tools=["x"]), endpoint="a") as (_, client, _):
        assert await client.names() == ["x"]
        assert await client.names("resources/list", "uri") == ["file:///r"]
        assert (await client.call("x"))["_meta"] == {"saw": "x"}


async def test_a_web_uri_goes_to_the_one_server_that_lists_it() -> None:
    """(rule 67)"""

    async def read(params: dict[str, Any]) -> object:
        return {"contents": [{"uri": params["uri"], "text": "from a"}]}

    a = ScriptedServer("a", resources=["https://x/1", "https://x/2"], answers={"resources/read": read})
    b = ScriptedServer("b", resources=["https://x/2"], templates=["https://y/{z}"], answers={"resources/read": read})
    async with open_client(a, b) as (_, client, _):
        assert (await client.request("resources/read", {"uri": "https://x/1"}))["contents"][0]["text"] == "from a"
        await client.request("resources/read", {"uri": "https://y/anything"})
        assert await client.names("resources/list", "uri") == ["https://x/1"]  # the one that both list is neither's
        for uri in ("https://x/2", "https://z/"):
            with pytest.raises(Refusal, match="-32002"):
                await client.request("resources/read", {"uri": uri})


async def test_a_raw_uri_from_a_text_finds_the_one_server_that_lists_it() -> None:
    """(rule 67)"""

    async def read(params: dict[str, Any]) -> object:
        return {"contents": [{"uri": params["uri"], "text": "t"}]}

    a = ScriptedServer("a", resources=["memo:1"], answers={"resources/read": read})
    async with open_client(a, ScriptedServer("b", resources=["other:1"])) as (_, client, _):
        assert (await client.request("resources/read", {"uri": "memo:1"}))["contents"][0]["uri"] == "a+memo:1"


FIRST: list[tuple[str, dict[str, Any], str]] = [
    ("tools/call", {"name": "late__x"}, "late"),
    ("prompts/get", {"name": "late__p"}, "late"),
    ("resources/read", {"uri": "late+x:1"}, "late"),
    ("resources/read", {"uri": "x:1"}, "any"),
    ("completion/complete", {"ref": {"type": "ref/prompt", "name": "late__p"}, "argument": {}}, "late"),
    ("completion/complete", {"ref": {"type": "ref/resource", "uri": "late+x:1"}, "argument": {}}, "late"),
]
"""What may be the first that a client without a session asks, and whose it is to answer."""


def starting(seconds: float, id: str = "late", **spec: Any) -> ScriptedServer:
    """A server that takes so long to start."""

    async def initialize(params: dict[str, Any]) -> object:
        await trio.sleep(seconds)
        offers: dict[str, Any] = {"tools": {}, "prompts": {}, "resources": {}, "completions": {}}
        return {"protocolVersion": REVISION, "capabilities": offers, "serverInfo": {}}

    async def answer(params: dict[str, Any]) -> object:
        return {"content": [], "messages": [], "contents": [], "completion": {"values": []}}

    answers = dict.fromkeys(("tools/call", "prompts/get", "resources/read", "completion/complete"), answer)
    return ScriptedServer(
        id, tools=["x"], prompts=["p"], resources=["x:1"], answers={**answers, "initialize": initialize}, **spec
    )


@pytest.mark.few(3)
@pytest.mark.parametrize("endpoint", [None, "late"])
@pytest.mark.parametrize(("method", "params", "whose"), FIRST)
async def test_what_is_asked_right_after_the_start_waits_for_its_server(
    method: str, params: dict[str, Any], whose: str, endpoint: str | None, autojump_clock: MockClock
) -> None:
    """And for no other, unless any might have it (rule 111)."""
    if endpoint is not None:
        params = json.loads(json.dumps(params).replace("late__", "").replace("late+", ""))
    async with open_world(starting(2), starting(30, "later"), start_grace=3.0) as world:
        began = trio.current_time()
        assert isinstance(await world.mrtr_round(method, params, endpoint=endpoint), Answered)
        waited = 3 if whose == "any" and endpoint is None else 2
        assert trio.current_time() - began == pytest.approx(waited, abs=0.01)
        before = trio.current_time()
        await world.mrtr_round(method, params, endpoint=endpoint)
        assert trio.current_time() == before


@pytest.mark.few(2)
@pytest.mark.parametrize(("method", "params", "whose"), FIRST)
async def test_a_request_waits_for_its_starting_server_as_long_as_for_its_answer(
    method: str, params: dict[str, Any], whose: str, autojump_clock: MockClock
) -> None:
    """Beyond the grace, in which lists wait; a URI that names no server is nobody's after the grace (rule 111)."""
    async with open_world(starting(30), start_grace=3.0) as world:
        if whose == "any":
            with pytest.raises(ResourceNotFound):
                await world.mrtr_round(method, params)
            assert trio.current_time() == pytest.approx(3, abs=0.01)
        else:
            await _answered(world, method, params)
            assert trio.current_time() == pytest.approx(30, abs=0.01)


async def test_a_request_whose_server_does_not_start_in_time_is_never_sent(autojump_clock: MockClock) -> None:
    server, calls = starting(50, timeout=20.0), list[object]()

    async def call(params: dict[str, Any]) -> object:
        calls.append(params)
        return {"content": []}

    server.answers["tools/call"] = call
    async with open_world(server) as world:
        said = bytes((await _answered(world, "tools/call", {"name": "late__x"})).result).decode()
        assert "late did not start within 20 s; the call was not sent" in said
        assert trio.current_time() == pytest.approx(20, abs=0.01)
        await trio.sleep(60)
        assert not calls


async def test_what_is_no_servers_waits_for_nobody(autojump_clock: MockClock) -> None:
    async with open_world(starting(30)) as world:
        for name in ("nobody__x", "x", "__"):
            with pytest.raises(UnknownEntry):
                await world.mrtr_round("tools/call", {"name": name})
        assert trio.current_time() == 0


async def _answered(world: World, method: str, params: dict[str, Any]) -> Answered:
    answer = await world.mrtr_round(method, params)
    assert isinstance(answer, Answered)
    return answer


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("era", "method", "params"),
    [
        (era, *each)
        for era in Era
        for each in REACHING
        if era is Era.SESSION or each[0] != "resources/subscribe"  # stateless clients subscribe otherwise
    ],
)
async def test_a_server_answers_no_client_that_has_another_value_of_a_variable(
    era: Era, method: str, params: dict[str, Any]
) -> None:
    """Its lists stay, and other servers answer."""
    process = ClientProcess("claude", 7, "/w", {"TOKEN": "t"})
    process.refused = {"a": "TOKEN"}
    a, b = refusing(-32000, "reached"), ScriptedServer("b", tools=["x"], answers={"tools/call": echo})
    async with open_client(a, b, process=process) as (world, client, _):

        async def outcome() -> str:
            try:
                if era is Era.SESSION:
                    return json.dumps(await client.request(method, params))
                answer = await world.mrtr_round(method, params, process=process)
            except (Refusal, ColonnadeError) as problem:
                return str(problem)
            assert isinstance(answer, Answered)
            return bytes(answer.result).decode()

        said = await outcome()
        assert "a runs with another value of the environment variable TOKEN than this client has" in said
        assert "--own" in said
        assert method not in a.asked
        assert await client.names() == ["a__x", "b__x"]
        assert "isError" not in await client.call("b__x")
        process.refused = {}
        assert "reached" in await outcome()


@pytest.mark.parametrize("style", NameStyle)
async def test_a_name_that_a_view_has_by_now_is_found_before_its_long_list_is_evaluated(style: NameStyle) -> None:
    """And one that it has no more is not."""
    names = ViewNames(style)
    server = ScriptedServer("a", tools=[f"{letter}{at}" for letter in "xy" for at in range(200)])
    server.answers["tools/call"] = echo
    prefix = "a__" if style is NameStyle.PREFIXED else ""
    async with open_world(server, views={"v": part_of_a("x*", names)}) as world:
        client = await world.client(Endpoint(view="v"))
        assert (await client.call(f"{prefix}x7"))["_meta"] == {"saw": "x7"}
        world.configures(server, views={"v": part_of_a("y*", names), "new": part_of_a("x*", names)})
        assert not world.catalog.is_evaluated(Kind.TOOL)
        with pytest.raises(Refusal, match="Unknown tool"):
            await client.call(f"{prefix}x8")
        world.configures(server, views={"v": part_of_a("x*", names), "new": part_of_a("y*", names)})
        assert not world.catalog.is_evaluated(Kind.TOOL)
        assert (await client.call(f"{prefix}x9"))["_meta"] == {"saw": "x9"}
        assert (await (await world.client(Endpoint(view="new"))).call(f"{prefix}y9"))["_meta"] == {"saw": "y9"}


async def test_a_plain_name_that_two_servers_have_is_nobodys_while_one_list_is_evaluated() -> None:
    a, b = ScriptedServer("a", tools=[f"x{at}" for at in range(200)]), ScriptedServer("b", tools=["x7"])

    def view(pattern: str) -> ViewSpec:
        servers = {"a": ViewServer((pattern,)), "b": ViewServer(("*",))}
        return ViewSpec(servers=servers, names=ViewNames(NameStyle.PLAIN))

    async with open_world(a, b, views={"v": view("*")}) as world:
        client = await world.client(Endpoint(view="v"))
        world.configures(a, b, views={"v": view("x*")})
        assert not world.catalog.is_evaluated(Kind.TOOL)
        with pytest.raises(Refusal, match="Unknown tool"):
            await client.call("x7")


def part_of_a(pattern: str, names: ViewNames) -> ViewSpec:
    return ViewSpec(servers={"a": ViewServer(tools=(pattern,))}, names=names)
