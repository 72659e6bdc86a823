"""One request that stands open for what changes: what it is granted, what it is told, and its two ends."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import Any

import pytest
import trio
from mcp_types.methods import parse_server_notification, validate_server_result
from trio.testing import wait_all_tasks_blocked

from config import Auth, Consent, Isolation, Listen, Secret
from host.downstream.http import replies
from host.downstream.list_changes import SPACING
from host.downstream.listen_streams import AGREEMENT_TIMEOUT, Subscription
from host.downstream.stateless import StatelessClient
from host.jsonrpc.messages import ErrorBody, Notification
from host.jsonrpc.raw import encode
from host.peer.outstanding import PeerError
from host.protocol.abilities import NO_ABILITIES
from host.protocol.subscriptions import Filter
from host.source import Endpoint
from host.wire.asgi import HEARTBEAT_INTERVAL
from tests.kit.asgi import IO, LATEST, Connection, Response, open_http_app, open_stateless
from tests.kit.awaited import awaited
from tests.kit.gates import kind
from tests.kit.world import ScriptedServer, World, open_world

pytestmark = pytest.mark.virtual_time

LISTEN = "subscriptions/listen"
ACK = "notifications/subscriptions/acknowledged"
UPDATED = "notifications/resources/updated"
ID = f"{IO}subscriptionId"
ALL_LISTS: dict[str, Any] = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}
SUBSCRIBABLE = {"tools": {"listChanged": True}, "resources": {"listChanged": True, "subscribe": True}}
OK: dict[str, Any] = {"content": []}
TOKENS = Listen(auth=Auth({name: Secret(f"{name}-0123456789abcdef") for name in ("desk", "laptop")}))
DESK = {"authorization": "Bearer desk-0123456789abcdef"}
LAPTOP = {"authorization": "Bearer laptop-0123456789abcdef"}


def listens(connection: Connection, id: object = 1, path: str = "/mcp", **wanted: Any) -> Response:
    return connection.start(LISTEN, {"notifications": wanted}, id=id, path=path)


def told(answer: Response, id: object = 1) -> list[tuple[str, dict[str, Any]]]:
    """What came by a subscription, each as the schema has it and marked as the subscription's."""
    found = []
    for message in answer.messages():
        if "method" not in message:
            assert message["id"] == id
            validate_server_result(LISTEN, LATEST, message["result"])
            meta, params = message["result"]["_meta"], {}
        else:
            parse_server_notification(message["method"], LATEST, message["params"])
            params = dict(message["params"])
            meta = params.pop("_meta")
        assert meta[ID] == id
        assert type(meta[ID]) is type(id)
        found.append((message.get("method", "end"), params))
    return found


async def acknowledged(answer: Response, id: object = 1) -> dict[str, Any]:
    await answer.wait_messages(1)
    method, params = told(answer, id)[0]
    assert method == ACK
    granted: dict[str, Any] = params["notifications"]
    return granted


def watched_server(id: str = "a", *resources: str, **more: Any) -> ScriptedServer:
    more = {"capabilities": SUBSCRIBABLE, **more}
    return ScriptedServer(id, tools=["x"], resources=resources or ("x://y",), **more)


async def grows(world: World, server: str = "a", *tools: str) -> None:
    """The server offers something else from now on."""
    scripted = world.servers[server]
    scripted.lists["tools"] = [{"name": name, "inputSchema": {"type": "object"}} for name in tools]
    if scripted.stateless:
        await scripted.tells("notifications/tools/list_changed")
    else:
        await scripted.notifies("notifications/tools/list_changed")


# What is granted


@pytest.mark.parametrize("id", [1, 0, -7, "1", "", "a b"])
async def test_the_first_thing_is_what_is_granted(connection: Connection, id: object) -> None:
    """Under the id of the request, with its type (rule 86)."""
    answer = listens(connection, id, **ALL_LISTS)
    assert await acknowledged(answer, id) == ALL_LISTS
    assert answer.status == 200
    assert answer.streams
    assert answer.headers["x-accel-buffering"] == "no"
    assert b"\nid:" not in b"\n" + answer.body
    assert "mcp-session-id" not in answer.headers


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"toolsListChanged": True},
        {"toolsListChanged": False, "promptsListChanged": True},
        {"resourceSubscriptions": []},
        {"unknownThings": True, "resourcesListChanged": True},
    ],
)
async def test_no_more_is_granted_than_was_asked_for(connection: Connection, wanted: dict[str, Any]) -> None:
    granted = await acknowledged(listens(connection, **wanted))
    assert granted == {name: True for name, want in wanted.items() if want is True and name in ALL_LISTS}


async def test_what_cannot_be_granted_at_all_is_refused(connection: Connection) -> None:
    rows: list[dict[str, Any]] = [
        {},
        {"notifications": None},
        {"notifications": []},
        {"notifications": {"toolsListChanged": 1}},
        {"notifications": {"resourceSubscriptions": "x"}},
        {"notifications": {"resourceSubscriptions": [1]}},
        {"notifications": {"resourceSubscriptions": ["x://y"] * 1001}},
    ]
    for params in rows:
        answer = await connection.start(LISTEN, params, id=5).ended()
        (message,) = answer.messages()
        assert (answer.status, message["id"], message["error"]["code"]) == (400, 5, -32602)


async def test_a_resource_is_granted_once_its_server_has_agreed() -> None:
    """(rule 89)"""
    server = watched_server("a", "x://y", "x://hidden", consent=Consent(resources=kind(deny=("x://hidden",))))
    mute = ScriptedServer("b", tools=["x"], resources=["x://y"])
    async with open_http_app(server, mute) as (_, connection):
        uris = ["a+x://y", "a+x://hidden", "b+x://y", "none+x://y", "nonsense", "a+x://unlisted"]
        answer = listens(connection, resourceSubscriptions=uris)
        assert await acknowledged(answer) == {"resourceSubscriptions": ["a+x://y", "a+x://unlisted"]}
        assert server.asked.count("resources/subscribe") == 2
        assert "resources/subscribe" not in mute.asked


async def test_a_server_that_refuses_grants_nothing() -> None:
    async def refused(_: dict[str, Any]) -> object:
        raise PeerError(ErrorBody(-32002, "Resource not found", encode({"uri": "x://y"})))

    server = watched_server(answers={"resources/subscribe": refused})
    async with open_http_app(server) as (_, connection):
        assert await acknowledged(listens(connection, resourceSubscriptions=["a+x://y"], toolsListChanged=True)) == {
            "toolsListChanged": True
        }


async def test_a_server_that_does_not_answer_holds_up_nothing() -> None:
    """It has said that it tells of such changes, so it is believed (rule 89)."""

    async def silent(_: dict[str, Any]) -> object:
        await trio.sleep_forever()

    servers = watched_server("a", answers={"resources/subscribe": silent}), watched_server("b")
    async with open_http_app(*servers) as (_, connection):
        began = trio.current_time()
        uris = ["a+x://y", "b+x://y"]
        assert await acknowledged(listens(connection, resourceSubscriptions=uris)) == {"resourceSubscriptions": uris}
        assert trio.current_time() - began <= AGREEMENT_TIMEOUT + 0.1


async def test_at_a_servers_own_endpoint_its_own_uris_count() -> None:
    server = watched_server()
    async with open_http_app(server) as (_, connection):
        answer = listens(connection, path="/mcp/a", resourceSubscriptions=["x://y"])
        assert await acknowledged(answer) == {"resourceSubscriptions": ["x://y"]}
        await server.notifies(UPDATED, {"uri": "x://y"})
        await answer.wait_messages(2)
        assert told(answer)[1] == (UPDATED, {"uri": "x://y"})


# While servers start, and later


def starting(seconds: float, **more: Any) -> ScriptedServer:
    async def initialize(params: dict[str, Any]) -> object:
        await trio.sleep(seconds)
        return {"protocolVersion": "2025-11-25", "capabilities": SUBSCRIBABLE, "serverInfo": {}}

    return watched_server(answers={"initialize": initialize, **more})


@pytest.mark.parametrize("path", ["/mcp", "/mcp/a"])
async def test_during_the_start_the_acknowledgement_waits_as_lists_do(path: str) -> None:
    uri = "a+x://y" if path == "/mcp" else "x://y"
    async with open_http_app(starting(2), settled=False) as (_, connection):
        lists = listens(connection, 1, path, **ALL_LISTS)
        answer = listens(connection, 2, path, resourceSubscriptions=[uri])
        assert await acknowledged(lists) == ALL_LISTS  # these are granted whatever comes
        assert trio.current_time() < 1
        assert await acknowledged(answer, 2) == {"resourceSubscriptions": [uri]}
        assert trio.current_time() == pytest.approx(2, abs=0.1)


async def test_a_server_that_starts_after_the_grace_is_added() -> None:
    """A resource that the client does not know to be watched is announced as changed."""
    server = starting(10)
    async with open_http_app(server, settled=False, start_grace=3.0) as (_, connection):
        answer = listens(connection, resourceSubscriptions=["a+x://y"])
        assert await acknowledged(answer) == {}
        assert trio.current_time() == pytest.approx(3 + AGREEMENT_TIMEOUT, abs=0.2)
        await trio.sleep_until(9.9)
        assert len(told(answer)) == 1
        await trio.sleep_until(10.1)
        assert len(told(answer)) == 2
        await server.notifies(UPDATED, {"uri": "x://y", "more": 1})
        await answer.wait_messages(3)
        assert told(answer)[1:] == [(UPDATED, {"uri": "a+x://y"}), (UPDATED, {"uri": "a+x://y", "more": 1})]
        await trio.sleep(300)
        assert len(told(answer)) == 3
        assert server.asked.count("resources/subscribe") == 1


async def test_a_server_that_comes_back_without_news_is_added() -> None:
    """It lists what it listed before, so nothing else tells of it."""
    server = watched_server()
    async with open_http_app(server) as (world, connection):
        fails = True

        async def initialize(params: dict[str, Any]) -> object:
            if fails:
                raise PeerError(ErrorBody(-32000, "not now"))
            return {"protocolVersion": "2025-11-25", "capabilities": SUBSCRIBABLE, "serverInfo": {}}

        server.answers["initialize"] = initialize
        server.dies()
        await trio.sleep(30)
        answer = listens(connection, resourceSubscriptions=["a+x://y"])
        assert await acknowledged(answer) == {}
        version = world.catalog.version
        await trio.sleep(100)
        fails = False
        await trio.sleep(200)
        assert world.catalog.version == version
        assert told(answer)[1:] == [(UPDATED, {"uri": "a+x://y"})]


async def test_what_is_hidden_and_shown_again_is_watched_again() -> None:
    server = watched_server("a", "x://y", "x://z")
    async with open_http_app(server) as (world, connection):
        definitions = world.gate.definitions
        (pin,) = [each for each in definitions.pins.pinned() if each.item.name == "x://y"]
        answer = listens(connection, resourceSubscriptions=["a+x://y", "a+x://z"])
        assert len((await acknowledged(answer))["resourceSubscriptions"]) == 2
        awaited(definitions.revoke(pin.item, pin.fingerprint, "console"))
        await trio.sleep(5)
        await server.notifies(UPDATED, {"uri": "x://y"})
        await trio.sleep(5)
        assert len(told(answer)) == 1
        awaited(definitions.approve(pin.item, pin.fingerprint, "console"))
        await trio.sleep(5)
        await server.notifies(UPDATED, {"uri": "x://y", "more": 1})
        await trio.sleep(5)
        assert told(answer)[1:] == [(UPDATED, {"uri": "a+x://y"}), (UPDATED, {"uri": "a+x://y", "more": 1})]


async def test_a_server_that_refuses_is_asked_again_at_growing_intervals() -> None:
    asked: list[float] = []

    async def refuse(_: dict[str, Any]) -> object:
        asked.append(trio.current_time())
        if len(asked) < 10:
            raise PeerError(ErrorBody(-32000, "too many"))
        return {}

    server = watched_server(answers={"resources/subscribe": refuse})
    async with open_http_app(server) as (_, connection):
        answer = listens(connection, resourceSubscriptions=["a+x://y"])
        assert await acknowledged(answer) == {}
        await trio.sleep(600)
        pauses = [after - before for before, after in pairwise(asked[:10])]
        assert pauses[-1] > 30
        assert pauses == sorted(pauses)
        assert (UPDATED, {"uri": "a+x://y"}) in told(answer)


async def test_when_the_host_stops_it_waits_for_no_start() -> None:
    async with open_http_app(starting(100), settled=False) as (_, connection):
        answer = listens(connection, resourceSubscriptions=["a+x://y"], **ALL_LISTS)
        await trio.sleep(1)
        connection.stop.set()
        await answer.complete.wait()
        assert trio.current_time() < 1.5
        assert told(answer) == [(ACK, {"notifications": ALL_LISTS}), ("end", {})]


# What is told


@pytest.mark.parametrize("revision", ["2025-11-25", LATEST])
async def test_only_what_was_asked_for_is_told(revision: str) -> None:
    """(rule 86)"""
    server = watched_server(revision=revision)
    async with open_http_app(server) as (world, connection):
        some = listens(connection.another(), "some", toolsListChanged=True)
        others = listens(connection.another(), "others", promptsListChanged=True, resourcesListChanged=True)
        for answer, id in ((some, "some"), (others, "others")):
            await acknowledged(answer, id)
        await grows(world, "a", "x", "y")
        await some.wait_messages(2)
        assert told(some, "some")[1:] == [("notifications/tools/list_changed", {})]
        await trio.sleep(2)
        assert len(told(others, "others")) == 1


async def test_many_changes_in_a_moment_are_few_notices() -> None:
    """(rule 85)"""
    server = watched_server()
    async with open_http_app(server) as (world, connection):
        answer = listens(connection, **ALL_LISTS)
        await acknowledged(answer)
        for number in range(20):
            await grows(world, "a", f"t{number}")
            await trio.sleep(SPACING / 10)
        await trio.sleep(3)
        assert 1 <= len(told(answer)) - 1 <= 8
        shown = await connection.another().result("tools/list")
        assert [each["name"] for each in shown["tools"]] == ["a__t19"]


async def test_a_change_before_the_acknowledgement_is_told_after_it() -> None:
    """Nothing comes before it, and nothing is lost (rule 86)."""

    async def slow(_: dict[str, Any]) -> object:
        await server.notifies(UPDATED, {"uri": "x://y"})
        await grows(world, "a", "x", "y")
        await trio.sleep(AGREEMENT_TIMEOUT / 2)
        return {}

    server = watched_server(answers={"resources/subscribe": slow})
    async with open_http_app(server) as (world, connection):
        answer = listens(connection, toolsListChanged=True, resourceSubscriptions=["a+x://y"])
        await answer.wait_messages(3)
        assert told(answer)[0][0] == ACK
        assert {method for method, _ in told(answer)[1:]} == {UPDATED, "notifications/tools/list_changed"}


@pytest.mark.parametrize("revision", ["2025-11-25", LATEST])
async def test_a_changed_resource_is_told_by_its_outward_name(revision: str) -> None:
    """Parts of it too; nothing else (rule 66)."""
    server = watched_server("a", "x://y", "x://z", revision=revision)
    async with open_http_app(server) as (_, connection):
        answer = listens(connection, resourceSubscriptions=["a+x://y"])
        await acknowledged(answer)
        send = server.tells if revision == LATEST else server.notifies
        await send(UPDATED, {"uri": "x://y"})
        await send(UPDATED, {"uri": "x://y/part", "vendor": 1})
        await answer.wait_messages(3)
        assert told(answer)[1:] == [
            (UPDATED, {"uri": "a+x://y"}),
            (UPDATED, {"uri": "a+x://y/part", "vendor": 1}),
        ]


async def test_what_policy_hides_is_not_told_either() -> None:
    server = watched_server("a", "x://y", consent=Consent(resources=kind(deny=("x://y/secret*",))))
    async with open_http_app(server) as (_, connection):
        answer = listens(connection, resourceSubscriptions=["a+x://y"])
        await acknowledged(answer)
        await server.notifies(UPDATED, {"uri": "x://y/secret"})
        await server.notifies(UPDATED, {"uri": "x://y"})
        await answer.wait_messages(2)
        assert told(answer)[1:] == [(UPDATED, {"uri": "a+x://y"})]


async def test_two_servers_resources_of_one_name_are_two() -> None:
    servers = watched_server("a"), watched_server("b")
    async with open_http_app(*servers) as (_, connection):
        only_a = listens(connection.another(), resourceSubscriptions=["a+x://y"])
        both = listens(connection.another(), resourceSubscriptions=["a+x://y", "b+x://y"])
        await acknowledged(only_a)
        await acknowledged(both)
        await servers[1].notifies(UPDATED, {"uri": "x://y"})
        await both.wait_messages(2)
        assert told(both)[1:] == [(UPDATED, {"uri": "b+x://y"})]
        assert len(told(only_a)) == 1


async def test_each_of_several_has_its_own_id_even_if_it_is_the_same() -> None:
    """(rule 26)"""
    server = watched_server()
    async with open_http_app(server) as (_, connection):
        answers = [listens(connection.another(), 1, resourceSubscriptions=["a+x://y"]) for _ in range(3)]
        for answer in answers:
            await acknowledged(answer)
        assert server.asked.count("resources/subscribe") == 1
        await server.notifies(UPDATED, {"uri": "x://y"})
        for answer in answers:
            await answer.wait_messages(2)
            assert len(told(answer)) == 2


async def test_progress_and_logs_never_come_this_way() -> None:
    """Not even those of a server that serves this client alone (rules 83, 86)."""
    server = watched_server(isolation=Isolation.PER_CLIENT)
    async with open_http_app(server, listen=TOKENS) as (_, connection):
        connection.headers.update(DESK)
        answer = connection.start(
            LISTEN,
            {"notifications": {"resourceSubscriptions": ["a+x://y"], **ALL_LISTS}},
            meta={f"{IO}logLevel": "debug", "progressToken": 1},
        )
        await acknowledged(answer)
        await server.notifies("notifications/message", {"level": "emergency", "data": "d"})
        await server.notifies("notifications/progress", {"progressToken": 1, "progress": 1})
        await server.notifies(UPDATED, {"uri": "x://y"})
        await answer.wait_messages(2)
        await trio.sleep(1)
        assert [method for method, _ in told(answer)] == [ACK, UPDATED]


async def test_a_call_of_the_same_client_is_answered_elsewhere() -> None:
    server = watched_server()
    async with open_http_app(server) as (_, connection):
        answer = listens(connection, 1, **ALL_LISTS)
        await acknowledged(answer)
        call = connection.start("tools/call", {"name": "a__x"}, id=1, meta={"progressToken": 1})
        asked = await server.hears("tools/call")
        await server.notifies(
            "notifications/progress", {"progressToken": asked["_meta"]["progressToken"], "progress": 1}
        )
        server.says(asked["id"], OK)
        await call.complete.wait()
        assert len(call.messages()) == 2
        assert len(answer.messages()) == 1


async def test_what_is_told_is_what_this_caller_can_see() -> None:
    """A change at one server is none at the endpoint of another."""
    async with open_http_app(watched_server("a"), watched_server("b")) as (world, connection):
        of_a = listens(connection.another(), path="/mcp/a", **ALL_LISTS)
        of_b = listens(connection.another(), path="/mcp/b", **ALL_LISTS)
        await acknowledged(of_a)
        await acknowledged(of_b)
        await grows(world, "b", "x", "more")
        await of_b.wait_messages(2)
        await trio.sleep(1)
        assert len(told(of_a)) == 1


async def test_a_quiet_stream_gives_signs_of_life(connection: Connection) -> None:
    """(rule 28)"""
    answer = listens(connection)
    await acknowledged(answer)
    before = len(answer.body)
    await trio.sleep(2 * HEARTBEAT_INTERVAL + 1)
    assert answer.body[before:] == b": working\n\n" * 2


# Its ends


async def test_to_leave_ends_it_and_the_server_is_told() -> None:
    """The last to leave gives the subscription back, and no sooner (rule 88)."""
    server = watched_server()
    async with open_http_app(server) as (_, connection):
        clients = [connection.another() for _ in range(2)]
        answers = [listens(each, resourceSubscriptions=["a+x://y"]) for each in clients]
        for answer in answers:
            await acknowledged(answer)
        clients[0].leaves.set()
        await trio.sleep(1)
        assert "resources/unsubscribe" not in server.asked
        clients[1].leaves.set()
        await trio.sleep(1)
        assert server.asked.count("resources/unsubscribe") == 1
        await server.notifies(UPDATED, {"uri": "x://y"})
        await trio.sleep(1)
        assert all(answer.after_disconnect == b"" for answer in answers)


async def test_to_leave_before_it_was_granted_leaves_nothing_behind() -> None:
    answered = trio.Event()

    async def slow(_: dict[str, Any]) -> object:
        await answered.wait()
        return {}

    server = watched_server(answers={"resources/subscribe": slow})
    async with open_http_app(server) as (_, connection):
        leaving = connection.another()
        listens(leaving, resourceSubscriptions=["a+x://y"])
        await trio.sleep(AGREEMENT_TIMEOUT / 2)
        leaving.leaves.set()
        await wait_all_tasks_blocked()
        answered.set()
        await trio.sleep(1)
        assert server.asked.count("resources/unsubscribe") == 1


async def test_when_the_host_stops_it_ends_in_good_order() -> None:
    """With a result, which is its last message."""
    async with open_http_app(watched_server()) as (_, connection):
        answer = listens(connection, "s", resourceSubscriptions=["a+x://y"], **ALL_LISTS)
        await acknowledged(answer, "s")
        connection.stop.set()
        await answer.complete.wait()
        assert told(answer, "s")[-1] == ("end", {})
        result = answer.messages()[-1]["result"]
        assert result["resultType"] == "complete"
        assert {"ttlMs", "cacheScope"}.isdisjoint(result)


async def test_a_client_that_does_not_read_loses_its_subscription_in_good_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it missed it finds by asking again (rules 5, 86)."""
    monkeypatch.setattr(replies, "MAX_KEPT", 20_000)
    server = watched_server()
    async with open_http_app(server) as (_, connection):
        slow, quick = connection.another(), connection.another()
        answer = listens(slow, resourceSubscriptions=["a+x://y"])
        other = listens(quick, resourceSubscriptions=["a+x://y"])
        await acknowledged(answer)
        await acknowledged(other)
        slow.reads = trio.Event()
        for number in range(300):
            await server.notifies(UPDATED, {"uri": "x://y", "number": number})
            await wait_all_tasks_blocked()
        slow.reads.set()
        await answer.complete.wait()
        assert told(answer)[-1] == ("end", {})
        assert 1 < len(told(answer)) < 200
        assert len(told(other)) == 301
        again = listens(slow, resourceSubscriptions=["a+x://y"])
        await acknowledged(again)


async def test_a_long_subscription_keeps_nothing_that_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """(rule 5)"""
    monkeypatch.setattr(replies, "MAX_KEPT", 20_000)
    server = watched_server()
    async with open_http_app(server) as (_, connection):
        answer = listens(connection, resourceSubscriptions=["a+x://y"])
        await acknowledged(answer)
        for number in range(50):
            await server.notifies(UPDATED, {"uri": "x://y", "text": "x" * 3000, "number": number})
            await wait_all_tasks_blocked()
        assert [params["number"] for _, params in told(answer)[1:]] == list(range(50))


async def test_a_server_that_comes_back_is_taken_to_have_changed() -> None:
    """(rules 85, 88)"""
    server = watched_server()
    async with open_http_app(server) as (_, connection):
        answer = listens(connection, toolsListChanged=True, resourceSubscriptions=["a+x://y"])
        await acknowledged(answer)
        server.lists["tools"].append({"name": "new", "inputSchema": {"type": "object"}})
        server.dies()
        await trio.sleep(30)
        assert server.connections == 2
        assert server.asked.count("resources/subscribe") == 2
        methods = [method for method, _ in told(answer)[1:]]
        assert (UPDATED in methods, "notifications/tools/list_changed" in methods) == (True, True)


async def test_a_client_that_leaves_in_whichever_step_leaves_nothing_behind() -> None:
    """Also in the one in which its subscription would have been acknowledged."""
    client, said = StatelessClient("c", Endpoint("a"), None, None, object()), list[Notification]()
    wanted = Filter(frozenset({"notifications/tools/list_changed"}), ("x://y",), ())

    def say(notice: Notification) -> bool:
        said.append(notice)
        return True

    world_of = open_world(watched_server())
    async with world_of as world, open_stateless(world) as stateless, trio.open_nursery() as nursery:
        await world.settled()
        announcements = stateless.announcements
        shared = stateless, 1, wanted, client, NO_ABILITIES, say
        for steps in 20 * list(range(8, 16)):  # the tasks of one step run in any order
            subscription = Subscription(*shared, on_end=said.clear)
            nursery.start_soon(subscription.run)
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            told = len(said)
            subscription.close()
            await trio.sleep(1)
            assert (len(said), announcements._joining, announcements._listeners) == (told, deque(), {}), steps
        assert said
