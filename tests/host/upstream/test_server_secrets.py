"""Secrets of a server that it repeats: they reach no client, no person and no file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import trio
from msgspec import Raw
from trio.testing import MockClock, wait_all_tasks_blocked

from config import Auth, Config, HttpServer, Listen, OAuth, Secret, ServerSpec, StdioServer, Trust
from host.audit.contents import Contents
from host.exchange import InputRequired
from host.journal import SecretWithheld
from host.jsonrpc.raw import encode
from host.jsonrpc.withheld import WITHHELD
from host.policy.gate import Gate
from host.policy.pins import StaleDecision
from host.protocol.methods import Kind
from host.protocol.versions import LATEST, Era
from host.source import viewer_of
from host.upstream.remembered_lists import SAVE_INTERVAL
from host.upstream.server_secrets import MAX_LEARNED, ServerSecrets, kept_secret, learn, learn_headers, secrets_of
from tests.kit.awaited import awaited
from tests.kit.world import Refusal, ScriptedServer, World, later, open_client, open_world, tool

SECRET = "s3cr3t/of+the-server=="
HIDDEN_SECRET = SECRET.replace("/", "\\/").replace("+", "\\u002B")
REVISIONS = ("2025-11-25", LATEST.name)
CAN: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}


def with_file(spec: ServerSpec) -> ServerSpec:
    """A program whose environment has the secret from a file."""
    assert isinstance(spec, StdioServer)
    return replace(spec, env={"TOKEN": Secret(SECRET, filled=(SECRET,), kept=(SECRET,))})


def with_header(spec: ServerSpec) -> ServerSpec:
    header = {"Authorization": Secret(f"Bearer {SECRET}")}
    return HttpServer(id=spec.id, url=Secret("https://x.example/mcp"), headers=header, trust=spec.trust)


def with_login(spec: ServerSpec) -> ServerSpec:
    made = HttpServer(id=spec.id, url=Secret("https://x.example/mcp"), trust=spec.trust)
    learn(made, [kept_secret(SECRET)])
    return made


GIVEN = (with_file, with_header, with_login)


def repeating(given: Callable[[ServerSpec], ServerSpec], revision: str, **more: Any) -> ScriptedServer:
    tools = [tool("good"), tool("told", description=f"Use {SECRET}"), tool("named", inputSchema=_named(SECRET))]
    instructions = f"The token is {SECRET}."
    server = ScriptedServer("a", tools=tools, revision=revision, instructions=instructions, **more)
    server.spec = given(server.spec)  # type: ignore[assignment]  # scripted servers are reached without their spec
    return server


def _named(name: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "string"}}}


def test_the_secrets_of_a_configuration_are_known() -> None:
    """Of all servers, of the clients of their logins, and of clients."""
    client = OAuth(client_id=Secret("an-id"), client_secret=Secret("the-client's-secret"))
    by_login = HttpServer(id="c", url=Secret("https://x.example/mcp"), oauth=client)
    servers = {"a": with_file(ScriptedServer("a").spec), "b": with_header(ScriptedServer("b").spec), "c": by_login}
    auth = Auth(MappingProxyType({"ci": Secret("token-of-ci-1234")}))
    secrets = secrets_of(Config(servers=MappingProxyType(servers), listen=Listen(auth=auth)))
    expected = [SECRET, f"Bearer {SECRET}", "the-client's-secret", "token-of-ci-1234"]
    assert secrets() == sorted(expected, key=len, reverse=True)
    learn(by_login, [kept_secret("learned-since")])
    assert "learned-since" in secrets()


def places(world: World) -> list[str]:
    return [event.where for event in world.events if isinstance(event, SecretWithheld)]


def held(gate: Gate) -> dict[str, str]:
    return {each.item.name: each.problem for each in awaited(gate.definitions.held())}


@pytest.mark.few(3)
@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("trust", [Trust.STANDARD, Trust.TRUSTED])
async def test_a_definition_with_a_secret_is_held_and_cannot_be_approved(
    given: Callable[[ServerSpec], ServerSpec], revision: str, trust: Trust, tmp_path: Path, autojump_clock: MockClock
) -> None:
    server = repeating(given, revision, trust=trust)
    async with open_world(server, state=tmp_path) as world:
        await world.settled()
        client = await world.client()
        listed = await client.request("tools/list", {})
        assert [each["name"] for each in listed["tools"]] == ["a__good"]
        problems = held(world.gate)
        assert set(problems) == {"told", "named"}
        assert all(each.startswith("it repeats a secret that its server was given") for each in problems.values())
        for each in awaited(world.gate.definitions.held()):
            assert WITHHELD.encode() in each.offered
            with pytest.raises(StaleDecision, match="repeats a secret that its server was given, so it cannot be appr"):
                awaited(world.gate.definitions.approve(each.item, each.fingerprint, "console"))
        with pytest.raises(Refusal):
            await client.request("tools/call", {"name": "a__told", "arguments": {}})
        assert "the result of tools/list" in places(world)
        assert SECRET not in " ".join(map(str, world.events))
        # Corrected, it is listed like one that is new or has changed.
        server.lists["tools"][1]["description"] = "Use the token"
        await (server.tells if server.stateless else server.notifies)("notifications/tools/list_changed")
        await trio.sleep(1)
        assert "told" not in held(world.gate)
    assert_nowhere(tmp_path)


def assert_nowhere(folder: Path) -> None:
    files = [each for each in folder.rglob("*") if each.is_file()]
    assert files
    for each in files:
        assert SECRET.encode() not in each.read_bytes(), each


@pytest.mark.parametrize("revision", REVISIONS)
async def test_a_rotated_token_is_no_change_of_the_definition(revision: str, autojump_clock: MockClock) -> None:
    server = repeating(with_login, revision)
    spec = server.spec
    assert isinstance(spec, HttpServer)
    async with open_world(server) as world:
        await world.settled()
        (before,) = {each.fingerprint for each in awaited(world.gate.definitions.held()) if each.item.name == "told"}
        learn(spec, [kept_secret("the-next-token")])
        server.lists["tools"][1]["description"] = "Use the-next-token"
        await (server.tells if server.stateless else server.notifies)("notifications/tools/list_changed")
        await trio.sleep(1)
        (after,) = {each.fingerprint for each in awaited(world.gate.definitions.held()) if each.item.name == "told"}
        assert before == after


@pytest.mark.few(3)
@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("secret", [SECRET, HIDDEN_SECRET])
async def test_a_secret_in_a_result_or_an_error_is_replaced(
    given: Callable[[ServerSpec], ServerSpec], revision: str, secret: str
) -> None:
    async def answer(params: dict[str, Any]) -> object:
        text = b'{"content":[{"type":"text","text":"a %b b"}],"structuredContent":{"%b":1.50},"resultType":"complete"}'
        return Raw(text % (secret.encode(), secret.encode()))

    server = repeating(given, revision, answers={"tools/call": answer})
    async with open_client(server) as (world, client, nursery):
        world.gate.decision_log.contents = Contents(None)
        result = await client.call("a__good")
        audit = world.gate.decision_log._audit.path
        assert audit is not None
        assert WITHHELD.encode() in audit.read_bytes()
        assert not any(each.encode() in audit.read_bytes() for each in (SECRET, HIDDEN_SECRET.replace("\\", 2 * "\\")))
        assert result["content"] == [{"type": "text", "text": f"a {WITHHELD} b"}]
        assert result["structuredContent"] == {WITHHELD: 1.5}
        del server.answers["tools/call"]
        for _ in range(2):
            call = later(nursery, client.call, "a__good")
            server.refuses((await server.hears("tools/call"))["id"], -32050, f"bad {SECRET}", {"why": [SECRET]})
            with pytest.raises(Refusal) as refused:
                await call.comes()
            assert (refused.value.message, refused.value.data) == (f"bad {WITHHELD}", {"why": [WITHHELD]})
        assert places(world).count("an error") == places(world).count("the result of tools/call") == 1


@pytest.mark.slow
async def test_a_long_result_is_searched_in_another_process() -> None:
    async def answer(params: dict[str, Any]) -> object:
        return {"content": [{"type": "text", "text": "x" * 300_000 + SECRET}]}

    async with open_client(repeating(with_file, "2025-11-25", answers={"tools/call": answer})) as (_, client, _):
        result = await client.call("a__good")
        assert result["content"][0]["text"][-len(WITHHELD) :] == WITHHELD


async def test_a_secret_in_what_a_server_says_by_itself_is_replaced() -> None:
    server = repeating(with_file, "2025-11-25", capabilities={"tools": {}, "logging": {}})
    async with open_client(server, capabilities=CAN) as (world, client, nursery):
        call = {"name": "a__good", "arguments": {}, "_meta": {"progressToken": 5}}
        later(nursery, client.request, "tools/call", call, "c")
        asked = await server.hears("tools/call")
        progress = {"progressToken": asked["_meta"]["progressToken"], "progress": 1, "message": SECRET}
        await server.notifies("notifications/progress", progress)
        await server.notifies("notifications/message", {"level": "error", "data": {SECRET: [SECRET]}})
        await server.notifies(f"notifications/{SECRET}", {})
        form = {"message": SECRET, "requestedSchema": {"type": "object", "properties": {"a": {"title": SECRET}}}}
        question = later(nursery, server.asks, "elicitation/create", form)
        shown = await client.is_asked("elicitation/create")
        assert shown["message"] == f"[a] {WITHHELD}"
        client.replies(shown["id"], {"action": "cancel"})
        await question.comes()
        long = {"messages": [{"role": "user", "content": {"type": "text", "text": SECRET + "x" * 200_000}}]}
        with pytest.raises(Refusal, match="may repeat a secret"):
            await later(nursery, server.asks, "sampling/createMessage", {**long, "maxTokens": 5}).comes()
        await wait_all_tasks_blocked()
        (reported,) = client.notifications_of("notifications/progress")
        assert reported["message"] == WITHHELD
        (logged,) = client.notifications_of("notifications/message")
        assert logged["data"] == {WITHHELD: [WITHHELD]}
        assert SECRET not in " ".join(map(str, world.events))
        server.says(asked["id"], {"content": []})


async def test_a_secret_in_an_input_round_is_replaced() -> None:
    async def ask(params: dict[str, Any]) -> object:
        question = {
            "method": "elicitation/create",
            "params": {"message": SECRET, "requestedSchema": {"type": "object"}},
        }
        return {"resultType": "input_required", "inputRequests": {"q": question}}

    async with open_world(repeating(with_header, LATEST.name, answers={"tools/call": ask})) as world:
        came = await world.mrtr_round("tools/call", {"name": "a__good", "arguments": {}}, capabilities=CAN)
        assert isinstance(came, InputRequired)
        assert json.loads(bytes(came.requests["q"][1]["message"])) == f"[a] {WITHHELD}"


@pytest.mark.parametrize("revision", REVISIONS)
async def test_what_an_earlier_version_has_stored_is_replaced_at_the_start(
    revision: str, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """It knew of no secret, so the definition was approved at first sight."""
    spec = with_login(repeating(with_file, revision).spec)
    assert isinstance(spec, HttpServer)
    server = repeating(lambda _: replace(spec, learned_secrets=[]), revision)
    async with open_world(server, state=tmp_path) as world:
        await world.settled()
        await trio.sleep(SAVE_INTERVAL)
        assert {each.item.name for each in world.gate.definitions.pins.pinned()} >= {"told", "named"}
    with pytest.raises(AssertionError):
        assert_nowhere(tmp_path)
    again = repeating(lambda _: spec, revision)
    again.answers["initialize"] = again.answers["server/discover"] = _never
    async with open_world(again, state=tmp_path, start_grace=0) as world:
        await trio.sleep(0.1)
        part = world.catalog.snapshot(Kind.TOOL, viewer_of(Era.SESSION)).parts["a"]
        listed = [entry.ref.name for entry in part.by_name.values()]
        assert "good" in listed
        client = await world.client()
        tools = (await client.request("tools/list", {}))["tools"]
        assert [each["name"] for each in tools] == ["a__good"]
        (told,) = [each for each in awaited(world.gate.definitions.held()) if each.item.name == "told"]
        assert SECRET.encode() not in told.offered + (told.approved or b"")
    async with open_world(repeating(lambda _: spec, revision), state=tmp_path) as world:
        await world.settled()
        await trio.sleep(SAVE_INTERVAL)
        assert set(held(world.gate)) == {"told", "named"}
    assert_nowhere(tmp_path)


async def _never(params: dict[str, Any]) -> object:
    await trio.Event().wait()
    return None


# Which values are secrets


def program(value: Secret | None = None, word: Secret | None = None) -> StdioServer:
    env = {} if value is None else {"A": value}
    return StdioServer(id="a", command=(Secret("x"), *([] if word is None else [word])), cwd=Path("/"), env=env)


def at_url(value: Secret | None = None, header: str = "Authorization", url: Secret | None = None) -> HttpServer:
    return HttpServer(id="a", url=url or Secret("https://x/"), headers={} if value is None else {header: value})


KEY = "k" * 16


@pytest.mark.parametrize(
    ("spec", "withheld"),
    [
        (program(Secret("/home/me/a/long/folder")), None),
        (program(Secret(KEY, filled=(KEY,))), None),
        (program(Secret(KEY[1:], kept=(KEY[1:],))), None),
        (program(Secret(KEY, kept=(KEY,))), KEY),
        (program(None, Secret(f"--key={KEY}", kept=(KEY,))), KEY),
        (at_url(Secret(KEY), "X-Api-Key"), None),
        (at_url(Secret(KEY, kept=(KEY,)), "X-Api-Key"), KEY),
        (at_url(Secret(KEY), "authorization"), KEY),
        (at_url(Secret(f"Basic {KEY}")), KEY),
        (at_url(Secret(f"Bearer  {KEY}")), KEY),
        (at_url(Secret(f"Bearer {KEY[1:]}")), None),
        (at_url(None, "", Secret(f"https://x/{KEY}", kept=(f"{KEY}\n",))), KEY),
    ],
)
def test_values_of_files_and_of_authorization_are_withheld(spec: ServerSpec, withheld: str | None) -> None:
    found = ServerSecrets(spec).withheld
    assert (None if found is None else found.texts[0]) == withheld


def test_the_value_of_the_one_parameter_of_a_header_is_withheld_too() -> None:
    found = ServerSecrets(at_url(Secret(f'Token token="{KEY}"'))).withheld
    assert found is not None
    assert found.texts == (f'token="{KEY}"', KEY)
    assert found.replaced_in_text(f"no such token: {KEY}") == f"no such token: {WITHHELD}"


def test_a_helper_that_prints_other_headers_makes_the_former_ones_known_too() -> None:
    spec = HttpServer(id="a", url=Secret("https://x/"))
    secrets = ServerSecrets(spec)
    assert not secrets.knows_any
    for number in range(MAX_LEARNED):
        learn_headers(
            spec, {"Authorization": Secret(f"Bearer {number:020}"), "X-Tenant": Secret("a-tenant-with-a-name")}
        )
    withheld = secrets.withheld
    assert withheld is not None
    assert len(withheld.texts) == MAX_LEARNED // 2 + 7  # the other header is known once
    assert "a-tenant-with-a-name" not in withheld.texts


def test_without_a_secret_nothing_is_searched() -> None:
    raw = encode({"a": "b"})
    assert ServerSecrets(HttpServer(id="a", url=Secret("https://x/"))).clean(raw, "it") is raw
