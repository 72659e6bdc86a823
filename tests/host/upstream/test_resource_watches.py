"""Watched resources: one subscription at the server for all who want it, whatever happens in between."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from trio.testing import MockClock, wait_all_tasks_blocked

from config import CallerSpec, Consent, Isolation, KindConsent, Rule, Secret, UriRule
from config.globs import MAX_LENGTH
from host.errors import ServerErrorResponse
from host.exchange import Caller, Exchange, NoClient
from host.jsonrpc.messages import ErrorBody, Request
from host.peer.outstanding import PeerError
from host.policy.confirmations import ConfirmationAnswer
from host.protocol.methods import Kind
from host.protocol.versions import STATELESS
from host.source import SHARED, EntryRef, Source
from host.upstream import resource_watches
from host.upstream.server_requests import MAX_UPDATE
from host.upstream.state import Ready
from host.upstream.upstreams import DRAIN_TIMEOUT
from tests.kit.awaited import Paused, awaited
from tests.kit.examples import examples
from tests.kit.gates import auto_answering, entry, kind, open_gate
from tests.kit.passes import assert_loop_responsive
from tests.kit.world import Later, Refusal, ScriptedClient, ScriptedServer, World, later, open_client, open_world

D, E, F = "file:///d", "file:///e", "file:///f"
SUBSCRIBES = {"resources": {"subscribe": True}, "tools": {}}
UPDATED = "notifications/resources/updated"
SUBSCRIBING = Request(1, "resources/subscribe")


class Watched(ScriptedServer):
    """A server that notes what it is asked to watch: `+` and `-` with the URI in `log`, and what holds in `subscribed`.
    It takes `delay` seconds for each, and refuses what is in `refuses`."""

    def __init__(self, id: str = "a", *, delay: float = 0.0, **more: Any) -> None:
        more.setdefault("capabilities", SUBSCRIBES)
        super().__init__(id, tools=["x"], resources=[D, E, F], **more)
        self.log: list[str] = []
        self.asked_at: list[float] = []
        self._subscribed: set[str] = set()
        self.refuses_uris: set[str] = set()
        self.overlapped = False
        self.delay = delay
        self._busy: set[str] = set()
        self._seen = 0

    @property
    def subscribed(self) -> set[str]:
        """What holds on the latest connection."""
        if self._seen != self.connections:
            self._subscribed, self._busy, self._seen = set(), set(), self.connections
        return self._subscribed

    async def _answer(self, request: Request) -> Raw:
        if request.method not in ("resources/subscribe", "resources/unsubscribe"):
            return await super()._answer(request)
        on, uri = request.method == "resources/subscribe", json.loads(bytes(request.params or b""))["uri"]
        held = self.subscribed
        self.log.append(f"{'+' if on else '-'}{uri}")
        self.asked_at.append(trio.current_time())
        self.overlapped |= uri in self._busy
        self._busy.add(uri)
        await trio.sleep(self.delay)
        self._busy.discard(uri)
        if on and uri in self.refuses_uris:
            raise PeerError(ErrorBody(-32000, "not that one"))
        (held.add if on else held.discard)(uri)
        return Raw(b"{}")

    async def says_updated(self, *uris: str) -> None:
        for uri in uris:
            await self.notifies(UPDATED, {"uri": uri, "vendor": 1.50})
        await wait_all_tasks_blocked()


def watch(nursery: trio.Nursery, client: ScriptedClient, uri: str = D, prefix: str = "a+") -> Later:
    return later(nursery, client.request, "resources/subscribe", {"uri": prefix + uri})


async def unwatch(client: ScriptedClient, uri: str = D, prefix: str = "a+") -> None:
    assert await client.request("resources/unsubscribe", {"uri": prefix + uri}) == {}
    await wait_all_tasks_blocked()


async def listeners(world: World, nursery: trio.Nursery, count: int) -> list[ScriptedClient]:
    clients = [await world.client() for _ in range(count)]
    for client in clients:
        nursery.start_soon(client.listen_changes)
    await wait_all_tasks_blocked()
    return clients


@asynccontextmanager
async def listening(server: Watched, count: int) -> AsyncIterator[tuple[World, trio.Nursery, list[ScriptedClient]]]:
    """A world with so many clients that listen."""
    async with open_world(server) as world, trio.open_nursery() as nursery:
        yield world, nursery, await listeners(world, nursery, count)
        nursery.cancel_scope.cancel()


def updates(client: ScriptedClient) -> list[str]:
    return [params["uri"] for params in client.notifications_of(UPDATED)]


async def test_a_resource_is_subscribed_to_once_and_given_up_with_its_last_watcher() -> None:
    """(rule 88)"""
    server = Watched()
    async with listening(server, 3) as (_, nursery, [first, second, third]):
        for client in (first, second, second):
            assert await watch(nursery, client).comes() == {}
        assert server.log == [f"+{D}"]
        await server.says_updated(D)
        assert [updates(client) for client in (first, second, third)] == [[f"a+{D}"], [f"a+{D}"], []]
        assert first.notifications_of(UPDATED) == [{"uri": f"a+{D}", "vendor": 1.5}]
        await unwatch(first)
        await unwatch(third)
        await unwatch(third, E)
        assert server.log == [f"+{D}"]
        await server.says_updated(D)
        assert [len(updates(client)) for client in (first, second, third)] == [1, 2, 0]
        await unwatch(second)
        assert server.log == [f"+{D}", f"-{D}"]
        await server.says_updated(D)
        assert [len(updates(client)) for client in (first, second, third)] == [1, 2, 0]


async def test_clients_at_once_make_one_subscription(autojump_clock: MockClock) -> None:
    """(rule 88, rule 110)"""
    server = Watched(delay=1.0)
    async with listening(server, 5) as (_, nursery, clients):
        began = trio.current_time()
        for watching in [watch(nursery, client) for client in clients]:
            assert await watching.comes() == {}
        assert trio.current_time() - began == pytest.approx(1, abs=0.1)
        assert server.log == [f"+{D}"]


async def test_other_resources_wait_for_nobody(autojump_clock: MockClock) -> None:
    """(rule 110)"""
    server = Watched(delay=1.0)
    async with listening(server, 1) as (_, nursery, [client]):
        began = trio.current_time()
        for watching in [watch(nursery, client, uri) for uri in (D, E, F)]:
            assert await watching.comes() == {}
        assert trio.current_time() - began == pytest.approx(1, abs=0.1)


async def test_whoever_watches_while_the_server_is_told_to_stop_waits_for_the_new_subscription(
    autojump_clock: MockClock,
) -> None:
    """(rule 88, rule 110) And hears of it if there is none."""
    server = Watched(delay=1.0)
    async with listening(server, 2) as (_, nursery, [first, second]):
        await watch(nursery, first).comes()
        nursery.start_soon(first.request, "resources/unsubscribe", {"uri": f"a+{D}"})
        await wait_all_tasks_blocked()
        assert server.log == [f"+{D}", f"-{D}"]
        assert await watch(nursery, second).comes() == {}
        assert server.subscribed == {D}
        nursery.start_soon(second.request, "resources/unsubscribe", {"uri": f"a+{D}"})
        await wait_all_tasks_blocked()
        server.refuses_uris = {D}
        with pytest.raises(Refusal, match="-32000 not that one"):
            await watch(nursery, first).comes()
        assert not server.overlapped


async def test_a_refused_subscription_is_told_to_whoever_asked_and_tried_again_for_the_next(
    autojump_clock: MockClock,
) -> None:
    """(rule 88)"""
    server = Watched(delay=1.0)
    server.refuses_uris = {D}
    async with listening(server, 3) as (_, nursery, clients):
        for watching in [watch(nursery, client) for client in clients[:2]]:
            with pytest.raises(Refusal, match="-32000 not that one"):
                await watching.comes()
        assert server.log == [f"+{D}"]
        await server.says_updated(D)
        assert [updates(client) for client in clients] == [[], [], []]
        server.refuses_uris = set()
        assert await watch(nursery, clients[2]).comes() == {}
        assert server.log == [f"+{D}", f"+{D}"]
        await server.says_updated(D)
        assert [updates(client) for client in clients] == [[], [], [f"a+{D}"]]


async def test_a_server_that_does_not_answer_is_an_error_in_time(autojump_clock: MockClock) -> None:
    server = Watched(delay=1000.0, timeout=5.0)
    async with listening(server, 1) as (_, nursery, [client]):
        watching = watch(nursery, client)
        await watching.ended.wait()
        with pytest.raises(Refusal, match="504 a did not respond within 5 s"):
            await watching.comes()
        assert (await server.hears("notifications/cancelled"))["requestId"] is not None


async def test_after_a_reconnect_all_is_subscribed_to_again_and_counts_as_changed(autojump_clock: MockClock) -> None:
    """(rule 88, rule 32)"""
    server = Watched()
    async with listening(server, 2) as (_, nursery, [first, second]):
        for client, uri in ((first, D), (second, D), (second, E), (first, F)):
            await watch(nursery, client, uri).comes()
        await unwatch(first, F)
        server.log.clear()
        server.dies()
        await trio.sleep(2)
        assert server.connections == 2
        assert sorted(server.log) == [f"+{D}", f"+{E}"]
        assert updates(first) == [f"a+{D}"]
        assert sorted(updates(second)) == [f"a+{D}", f"a+{E}"]
        await server.says_updated(E)
        assert sorted(updates(second)) == [f"a+{D}", f"a+{E}", f"a+{E}"]


async def test_what_a_server_refused_when_it_came_back_is_asked_for_when_it_comes_back_again(
    autojump_clock: MockClock,
) -> None:
    """(rule 88) Whoever was told yes goes on watching."""
    server = Watched()
    async with listening(server, 1) as (_, nursery, [client]):
        await watch(nursery, client).comes()
        for refused in ({D}, set[str]()):
            server.refuses_uris = refused
            server.dies()
            await trio.sleep(5)
            assert server.subscribed == {D} - refused
        await server.says_updated(D)
        assert updates(client) == [f"a+{D}"] * 2  # when it was agreed to again, and now


async def test_what_is_given_up_while_the_server_is_away_is_not_asked_for_again(autojump_clock: MockClock) -> None:
    """(rule 88)"""
    server = Watched()
    async with listening(server, 2) as (_, nursery, [first, second]):
        await watch(nursery, first).comes()
        await watch(nursery, second, E).comes()
        server.log.clear()
        server.dies()
        await wait_all_tasks_blocked()
        second.session.end()
        await unwatch(first)
        await trio.sleep(2)
        assert server.connections == 2
        assert server.log == []


async def test_a_server_that_is_lost_in_between_is_an_error_for_whoever_asked(autojump_clock: MockClock) -> None:
    """(rule 107)"""
    server = Watched(delay=10.0)
    async with listening(server, 1) as (_, nursery, [client]):
        watching = watch(nursery, client)
        await wait_all_tasks_blocked()
        server.dies()
        with pytest.raises(Refusal, match="503 the connection to a was lost"):
            await watching.comes()
        with pytest.raises(Refusal, match="503 a is unavailable"):
            await watch(nursery, client, E).comes()
        await trio.sleep(2)
        assert (server.connections, server.log) == (2, [f"+{D}"])


async def test_a_client_that_calls_its_request_off_watches_nothing(autojump_clock: MockClock) -> None:
    """(rule 88, rule 45)"""
    server = Watched(delay=5.0)
    async with listening(server, 1) as (_, nursery, [first]):
        watching = later(nursery, first.request, "resources/subscribe", {"uri": f"a+{D}"}, "w")
        await wait_all_tasks_blocked()
        first.notifies("notifications/cancelled", {"requestId": "w"})
        await wait_all_tasks_blocked()
        assert watching.result is None
        await trio.sleep(20)
        assert server.log == [f"+{D}", f"-{D}"]


async def test_a_client_that_is_gone_watches_nothing() -> None:
    """(rule 88, rule 29)"""
    server = Watched()
    async with listening(server, 2) as (_, nursery, [first, second]):
        for client, uri in ((first, D), (first, E), (second, E)):
            await watch(nursery, client, uri).comes()
        first.session.end()
        await wait_all_tasks_blocked()
        assert server.log == [f"+{D}", f"+{E}", f"-{D}"]


@pytest.mark.few(2)
@pytest.mark.parametrize("turn", range(8))  # which of the two is taken first is left to chance
async def test_whoever_takes_back_what_was_not_asked_for_yet_is_answered_both_times(turn: int) -> None:
    """(rule 88, rule 110)"""
    server = Watched()
    async with listening(server, 1) as (_, nursery, [client]):
        taken = later(nursery, client.request, "resources/subscribe", {"uri": f"a+{D}"})
        given_back = later(nursery, client.request, "resources/unsubscribe", {"uri": f"a+{D}"})
        assert await taken.comes() == await given_back.comes() == {}


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ("file:///d", {"d"}),
        ("file:///d/x", {"d"}),
        ("file:///d?x", {"d"}),
        ("file:///d#x", {"d"}),
        ("file:///d/sub/x", {"d", "sub"}),
        ("file:///d/sub", {"d"}),
        ("file:///d/sub/", {"d", "sub"}),
        ("file:///dx", {"d", "sub", "db"}),
        ("odd:x", {"d", "sub", "db"}),
        ("db://w/a", {"db"}),
    ],
)
async def test_a_change_of_a_part_is_told_to_whoever_watches_the_whole(changed: str, told: set[str]) -> None:
    """(rule 66)"""
    server = Watched()
    watched = {"d": "file:///d", "sub": "file:///d/sub/", "db": "db://w/"}
    async with open_world(server) as world, trio.open_nursery() as nursery:
        clients = dict(zip(watched, await listeners(world, nursery, 3), strict=True))
        for name, uri in watched.items():
            await watch(nursery, clients[name], uri).comes()
        await server.says_updated(changed)
        assert {name: updates(client) for name, client in clients.items()} == {
            name: [f"a+{changed}"] if name in told else [] for name in watched
        }
        nursery.cancel_scope.cancel()


async def test_a_change_is_told_to_nobody_who_may_not_see_what_has_changed() -> None:
    """Who watches something else of the server hears of it, unless a rule hides it from this caller."""
    server = Watched(consent=Consent(resources=replace(kind(), deny=(Rule(E, callers=("robot",)),))))
    async with open_world(server) as world, trio.open_nursery() as nursery:
        world.gate.replace({"a": server.spec}, {"robot": CallerSpec("ci")})
        clients = [await world.client(identity=identity) for identity in ("ci", "laptop")]
        for client in clients:
            nursery.start_soon(client.listen_changes)
            await watch(nursery, client, D).comes()
        await server.says_updated(E, F)
        assert [updates(client) for client in clients] == [[f"a+{F}"], [f"a+{E}", f"a+{F}"]]
        nursery.cancel_scope.cancel()


PIECES = st.text(alphabet="ab/#?", min_size=1, max_size=8)


@pytest.mark.slow
@settings(max_examples=examples(200))
@given(st.sets(PIECES, max_size=6), PIECES)
def test_what_is_above_a_uri_is_it_without_some_of_its_last_pieces(watched: set[str], changed: str) -> None:
    """(rule 66)"""
    trio.run(_is_told_of_its_parts, watched, changed)


async def _is_told_of_its_parts(watched: set[str], changed: str) -> None:
    """Each URI is watched by somebody else, and by nobody at all in the end."""
    told: set[str] = set()
    server = Watched()
    async with open_world(server) as world, trio.open_nursery() as nursery:
        held = resource_watches.ResourceWatches("a", 60, lambda uri: True)
        nursery.start_soon(held.run_listening, _agree)

        async def watch(uri: str) -> Caller:
            caller = Caller(uri, SHARED)
            exchange = Exchange(SUBSCRIBING, {}, caller, NoClient())
            permit = world.gate.admit_watch(exchange, entry("a", Kind.RESOURCE, uri))
            assert permit is not None
            await held.watch(permit, lambda changed, notice: told.add(uri))
            return caller

        callers = {uri: await watch(uri) for uri in watched}
        held.on_updated(changed, {})
        above = {changed} | {
            changed[:at] for at in range(1, len(changed)) if changed[at] in "/#?" or changed[at - 1] in "/#?"
        }
        assert told == (watched & above or watched)
        told.clear()
        for uri, caller in callers.items():
            held.unwatch(uri, caller)
        held.on_updated(changed, {})
        assert not told
        nursery.cancel_scope.cancel()


async def _agree(uris: frozenset[str]) -> frozenset[str]:
    await trio.lowlevel.checkpoint()
    return uris


@pytest.mark.slow
@pytest.mark.parametrize("watched", [0, 1])
async def test_a_change_of_something_with_a_great_many_pieces_holds_nobody_up(watched: int) -> None:
    """(rule 5) Unbounded, or with a copy of every beginning, either of these takes a second and more."""
    server = Watched()
    async with listening(server, 1) as (world, nursery, [client]):
        if watched:
            await watch(nursery, client).comes()
        held = world.upstreams.by_id["a"].main.watches
        assert len(held) == watched

        async def longest_that_is_passed_on() -> None:
            for _ in range(100):
                held.on_updated("x:" + "/" * (MAX_LENGTH - 2), {})
            await trio.lowlevel.checkpoint()

        async def longer() -> None:
            await server.says_updated("x:" + "/" * 100_000)

        await assert_loop_responsive(longest_that_is_passed_on, 0.4)
        await assert_loop_responsive(longer, 0.4)


async def test_a_uri_that_is_too_long_is_no_resources() -> None:
    """(rule 5) Its server is heard of as one that says what means nothing; and nobody can watch it."""
    server = Watched()
    fits = D + "/" * (MAX_LENGTH - len(D))
    async with listening(server, 2) as (world, nursery, [client, other]):
        await watch(nursery, client).comes()
        await server.says_updated(fits, f"{fits}/")
        assert updates(client) == [f"a+{fits}"]
        assert world.journal.dropped["a"] == {"invalid message": 1}
        await watch(nursery, other, fits).comes()
        with pytest.raises(Refusal) as refused:
            await watch(nursery, other, f"{fits}/").comes()
        assert refused.value.code == -32002
        assert server.log == [f"+{D}", f"+{fits}"]


@pytest.mark.parametrize(("more", "passed_on"), [(0, True), (1, False)])
async def test_of_a_large_notice_only_the_uri_is_passed_on(more: int, passed_on: bool) -> None:
    """(rule 5)"""
    server = Watched()
    async with listening(server, 1) as (_, nursery, [client]):
        await watch(nursery, client).comes()
        params = {"uri": f"{D}/x", "vendor": "", "_meta": {"vendor": 1}}
        params["vendor"] = "x" * (MAX_UPDATE + more - len(Raw(json.dumps(params).encode())))
        await server.notifies(UPDATED, params)
        await wait_all_tasks_blocked()
        (heard,) = client.notifications_of(UPDATED)
        assert heard == {**(params if passed_on else {}), "uri": f"a+{D}/x"}


async def test_of_what_changed_while_nobody_listens_little_is_kept_and_charged() -> None:
    """(rule 5, rule 22) However many notices a server sends, and whatever they hold."""
    server = Watched()
    async with open_client(server, identity="ada") as (world, client, _):
        assert await client.request("resources/subscribe", {"uri": f"a+{D}"}) == {}
        for n in range(20):
            for uri in (D, f"{D}/x"):
                await server.notifies(UPDATED, {"uri": uri, "n": n, "vendor": "x" * (100_000 if n % 2 else 100)})
        await wait_all_tasks_blocked()
        assert 0 < world.memory.by_owner()["client", "ada"] == world.memory.by_use()["streams"] < 1000
        with client.session.standing.attached(client._hear):
            assert client.notifications_of(UPDATED) == [{"uri": f"a+{D}"}, {"uri": f"a+{D}/x"}]
        assert world.memory.by_use()["streams"] == 0


async def test_a_change_is_told_by_the_name_under_which_it_is_watched() -> None:
    """(rule 65) At the server's own endpoint by its own; and what is denied is told to nobody."""
    server = Watched(consent=Consent(resources=kind(deny=("file:///d/secret",))))
    async with open_client(server, endpoint="a") as (_, client, nursery):
        nursery.start_soon(client.listen_changes)
        await watch(nursery, client, prefix="").comes()
        with pytest.raises(Refusal, match="-32002"):
            await watch(nursery, client, "file:///d/secret", prefix="").comes()
        await server.says_updated(D, "file:///d/secret", "file:///d/open")
        assert updates(client) == [D, "file:///d/open"]
        nursery.cancel_scope.cancel()


async def test_servers_do_not_hear_of_each_others_watches() -> None:
    """(rule 101)"""
    servers = [Watched("a"), Watched("b")]
    async with open_world(*servers) as world, trio.open_nursery() as nursery:
        (client,) = await listeners(world, nursery, 1)
        await watch(nursery, client).comes()
        assert (servers[0].log, servers[1].log) == ([f"+{D}"], [])
        await servers[1].says_updated(D)
        assert updates(client) == []
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("capability", [{}, {"subscribe": False}, {"subscribe": "true"}])
async def test_a_server_that_cannot_be_watched_is_not_asked(capability: dict[str, Any]) -> None:
    """(rule 89)"""
    server = Watched(capabilities={"resources": capability})
    async with open_client(server) as (_, client, nursery):
        with pytest.raises(Refusal, match="-32601 a has no resource subscriptions"):
            await watch(nursery, client).comes()
        await unwatch(client)
        assert server.log == []


async def test_only_so_many_resources_of_a_server_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_watches, "MAX_WATCHED", 2)
    server = Watched()
    async with listening(server, 2) as (_, nursery, [first, second]):
        for uri in (D, E):
            await watch(nursery, first, uri).comes()
        with pytest.raises(Refusal, match="429 2 resources of a are watched already"):
            await watch(nursery, second, F).comes()
        await watch(nursery, second, E).comes()
        await unwatch(first, D)
        await watch(nursery, second, F).comes()


async def test_a_dedicated_instance_is_watched_by_its_own_client_and_kept_for_it(autojump_clock: MockClock) -> None:
    """(rule 88) Lost, it is started again, since nobody else would tell of changes."""
    server = Watched(isolation=Isolation.PER_CLIENT, idle_timeout=30.0)
    async with listening(server, 2) as (world, nursery, [first, second]):
        shared = server.link
        await watch(nursery, first).comes()
        assert server.link is not shared
        await trio.sleep(500)
        assert (server.connections, server.log) == (2, [f"+{D}"])
        await server.says_updated(D)
        server.dies()
        await trio.sleep(2)
        assert (server.connections, server.log) == (3, [f"+{D}", f"+{D}"])
        assert updates(first) == [f"a+{D}", f"a+{D}"]
        assert updates(second) == []
        assert len(world.instances("a")) == 1
        await unwatch(first)
        assert server.log == [f"+{D}", f"+{D}", f"-{D}"]
        await trio.sleep(31)
        assert len(world.instances("a")) == 0


async def test_where_every_call_has_its_own_instance_the_one_that_lists_is_watched() -> None:
    """(rule 88)"""
    server = Watched(isolation=Isolation.PER_CALL)
    async with listening(server, 2) as (_, nursery, [first, second]):
        for client in (first, second):
            await watch(nursery, client).comes()
        assert (server.connections, server.log) == (1, [f"+{D}"])


async def test_who_watches_just_that_takes_nothing_from_who_watches_the_whole() -> None:
    """(rule 66) And whoever watches both is told once."""
    server = Watched()
    async with listening(server, 3) as (_, nursery, [whole, part, both]):
        for client, uri in ((whole, "file:///d/"), (part, "file:///d/x"), (both, "file:///d/"), (both, "file:///d/x")):
            await watch(nursery, client, uri).comes()
        await server.says_updated("file:///d/x")
        assert [updates(client) for client in (whole, part, both)] == [["a+file:///d/x"]] * 3
        await server.says_updated("file:///d/y")
        assert [len(updates(client)) for client in (whole, part, both)] == [2, 1, 2]


async def test_what_a_server_refused_when_it_came_back_is_asked_for_again_before_long(
    autojump_clock: MockClock,
) -> None:
    """(rule 88) Its watcher hears nothing of that, but hears of changes again."""
    server = Watched()
    async with listening(server, 1) as (_, nursery, [client]):
        await watch(nursery, client).comes()
        server.refuses_uris = {D}
        server.dies()
        await trio.sleep(10)
        assert (server.connections, server.subscribed) == (2, set())
        _, *asked = server.asked_at
        assert [later - each for each, later in pairwise(asked)] == pytest.approx(
            [resource_watches.INITIAL_RETRY_DELAY, 2 * resource_watches.INITIAL_RETRY_DELAY], abs=0.1
        )
        server.refuses_uris = set()
        await trio.sleep(10)
        assert (server.connections, server.subscribed, server.log) == (2, {D}, [f"+{D}"] * 5)
        told = len(updates(client))
        await server.says_updated(D)
        assert len(updates(client)) == told + 1
        await trio.sleep(2 * resource_watches.MAX_RETRY_DELAY)
        assert len(server.log) == 5


async def test_of_two_requests_of_one_client_the_other_still_watches(autojump_clock: MockClock) -> None:
    """(rule 45, rule 88) Whichever of the two is called off."""
    for gone, stays in ("vw", "wv"):
        server = Watched(delay=5.0)
        async with listening(server, 1) as (_, nursery, [client]):
            watching = {
                id: later(nursery, client.request, "resources/subscribe", {"uri": f"a+{D}"}, id) for id in (gone, stays)
            }
            await wait_all_tasks_blocked()
            client.notifies("notifications/cancelled", {"requestId": gone})
            assert await watching[gone].comes() is None
            await watching[stays].ended.wait()
            assert await watching[stays].comes() == {}
            await trio.sleep(20)
            assert (server.log, server.subscribed) == ([f"+{D}"], {D})
            await server.says_updated(D)
            assert updates(client) == [f"a+{D}"]


async def test_a_request_that_is_called_off_in_the_breath_of_its_answer_leaves_no_watcher() -> None:
    """(rule 45, rule 88) The server has agreed long ago, for another; whoever was told yes before watches on."""
    server = Watched()
    told: list[str] = []
    async with listening(server, 1) as (world, nursery, [client]):
        await watch(nursery, client).comes()
        held = world.upstreams.by_id["a"].main.watches

        async def called_off(exchange: Exchange) -> None:
            permit = world.gate.admit_watch(exchange, entry("a", Kind.RESOURCE, D))
            assert permit is not None
            with trio.CancelScope() as scope:
                scope.cancel()
                await held.watch(permit, lambda uri, notice: told.append(uri))
            assert scope.cancelled_caught

        second = Exchange(SUBSCRIBING, {}, Caller("second", SHARED), NoClient())
        await called_off(second)
        await server.says_updated(D)
        assert (updates(client), told) == ([f"a+{D}"], [])
        first = Exchange(second.request, {}, client.session._caller, NoClient())
        await called_off(first)
        await server.says_updated(D)
        assert told == [D]
        assert server.log == [f"+{D}"]
        await unwatch(client)
        assert server.log == [f"+{D}", f"-{D}"]


@pytest.mark.slow
async def test_thousands_of_watches_cost_little(autojump_clock: MockClock) -> None:
    """Each costs about the same however many there are: when they are made, and when all of them are made again. If
    each looked at all of them, ten times as many would cost ten times as much each; a busy machine may double it."""
    gc.collect()
    gc.freeze()  # what earlier tests of this process left would be looked through again and again
    try:
        few = [await _seconds_for_each_of(200) for _ in range(3)]
        many = [await _seconds_for_each_of(2000) for _ in range(2)]
    finally:
        gc.unfreeze()
    assert min(made for made, _ in many) < 5 * min(made for made, _ in few)
    assert min(made_again for _, made_again in many) < 5 * min(made_again for _, made_again in few)


async def _seconds_for_each_of(count: int) -> tuple[float, float]:
    """The processor's time for each of so many watches made at once, and made again after a reconnect."""
    server = Watched()
    async with listening(server, 1) as (_, _, [client]):
        began = time.process_time()
        async with trio.open_nursery() as asking:
            for n in range(count):
                asking.start_soon(client.request, "resources/subscribe", {"uri": f"a+file:///{n}"})
        assert len(server.subscribed) == count
        made = time.process_time()
        server.dies()
        await trio.sleep(5)
        made_again = time.process_time()
        assert (server.connections, len(server.log), len(server.subscribed)) == (2, 2 * count, count)
    return (made - began) / count, (made_again - made) / count


Step = tuple[str, int, str, float]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["watch", "watch", "unwatch", "cancel", "end", "die", "refuse", "allow"]),
        st.integers(0, 2),
        st.sampled_from([D, E]),
        st.sampled_from([0.0, 0.0, 0.3, 1.0, 3.0]),
    ),
    max_size=30,
)


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(STEPS)
def test_whatever_the_order_the_server_has_in_the_end_what_is_wanted(steps: list[Step]) -> None:
    """(rule 88, rule 110) One request at a time for each resource, and whoever was told yes has a subscription."""
    trio.run(play, steps, clock=MockClock(autojump_threshold=0))


async def play(steps: Sequence[Step]) -> None:
    server = Watched(delay=0.5)
    async with open_world(server) as world, trio.open_nursery() as nursery:
        clients = await listeners(world, nursery, 3)
        wanted: dict[tuple[int, str], bool] = {}
        last: dict[tuple[int, str], int] = {}

        async def ask(client: int, uri: str, number: int) -> None:
            said_yes = False
            connection = server.connections
            with suppress(Refusal):
                said_yes = await clients[client].request("resources/subscribe", {"uri": f"a+{uri}"}, number) is not None
            if last[client, uri] == number:
                wanted[client, uri] = said_yes
                last[client, uri] = number if said_yes else -1
                if said_yes and connection == server.connections and not clients[client].session.ended.is_set():
                    assert uri in server.subscribed

        for number, (what, client, uri, pause) in enumerate(steps):
            ended = clients[client].session.ended.is_set()
            if what == "watch" and not ended and last.get((client, uri), -1) < 0:
                last[client, uri] = number
                nursery.start_soon(ask, client, uri, number)
                for _ in range(2):  # it is taken before the next thing that this client says
                    await trio.lowlevel.checkpoint()
            elif what == "unwatch" and not ended:
                last[client, uri] = -1
                wanted[client, uri] = False
                await clients[client].request("resources/unsubscribe", {"uri": f"a+{uri}"}, number)
            elif what == "cancel" and last.get((client, uri), -1) >= 0:
                clients[client].notifies("notifications/cancelled", {"requestId": last[client, uri]})
            elif what == "end":
                clients[client].session.end()
                wanted.update({(client, each): False for each in (D, E)})
                last.update({(client, each): -1 for each in (D, E)})
            elif what == "die":
                server.dies()
            elif what in ("refuse", "allow"):
                server.refuses_uris = {uri} if what == "refuse" else set()
            await trio.sleep(pause)
        server.refuses_uris = set()
        await trio.sleep(100)
        held = {uri for (_, uri), still in wanted.items() if still}
        assert not server.overlapped
        assert server.subscribed <= held
        assert server.subscribed == held
        nursery.cancel_scope.cancel()


# A server that is told of everything at once


async def test_whoever_wants_what_was_just_refused_to_another_is_answered_too(nursery: trio.Nursery) -> None:
    """Although nothing else is wanted than before (rule 110)."""
    server = Watched()
    with open_gate({"a": server.spec}) as gate:
        held = resource_watches.ResourceWatches("a", 5.0, lambda uri: True)
        refused: list[str] = []
        waiting = [str(n) for n in range(20)]

        async def want(name: str) -> None:
            permit = gate.admit_watch(
                Exchange(SUBSCRIBING, {}, Caller(name, SHARED), NoClient()), entry("a", Kind.RESOURCE, D)
            )
            assert permit is not None
            with suppress(ServerErrorResponse):
                await held.watch(permit, lambda uri, notice: None)
            refused.append(name)

        async def agree(uris: frozenset[str]) -> frozenset[str]:
            await trio.lowlevel.checkpoint()
            if waiting and uris:  # it comes in the very moment in which the former hears that it was refused
                nursery.start_soon(want, waiting.pop())
            return frozenset()

        nursery.start_soon(held.run_listening, agree)
        await wait_all_tasks_blocked()
        nursery.start_soon(want, "first")
        await wait_all_tasks_blocked()
        assert (waiting, len(refused), len(held)) == ([], 21, 0)
        nursery.cancel_scope.cancel()


# What may not be known any more


@pytest.mark.parametrize("watched", ["/", "/?#"])
async def test_only_so_many_beginnings_of_a_uri_are_looked_up(watched: str) -> None:
    """The longest ones: a server may write a URI of nothing but `/`."""
    held = resource_watches.ResourceWatches("a", 5.0, lambda uri: True)
    told: list[str] = []
    uris = ["x:" + watched * count for count in range(1, resource_watches.MAX_PREFIXES + 2)]

    def tell(uri: str, changed: str, notice: dict[str, Raw]) -> None:
        told.append(uri)

    with open_gate({"a": Watched().spec}) as gate:
        for uri in uris:
            permit = gate.admit_watch(
                Exchange(SUBSCRIBING, {}, Caller(uri, SHARED), NoClient()), entry("a", Kind.RESOURCE, uri)
            )
            assert permit is not None
            watcher = resource_watches._Watcher(permit, partial(tell, uri))
            held._watchers[uri] = {permit.exchange.caller: watcher}
            held._lengths[len(uri)] += 1
        held.on_updated(uris[-1], {})
    assert told == uris[:0:-1]


async def test_what_was_watched_by_a_grant_is_watched_no_more_without_it() -> None:
    """Also by whoever the rule lets watch it only with a person's consent by now."""
    asking = Watched(consent=Consent(resources=kind(ask=(D, E)))).spec
    told: list[str] = []
    with open_gate({"a": asking}) as gate:
        held = resource_watches.ResourceWatches("a", 5.0, lambda uri: True)

        async def watched(uri: str) -> None:
            exchange = Exchange(SUBSCRIBING, {}, Caller("desk", SHARED, "desk"), NoClient())
            with auto_answering(gate, ConfirmationAnswer.ALWAYS):
                await gate.admit(exchange, entry("a", Kind.RESOURCE, uri))
            permit = gate.admit_watch(exchange, entry("a", Kind.RESOURCE, uri))
            assert permit is not None
            await held.watch(permit, lambda changed, notice: told.append(changed))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(held.run_listening, _agree)
            await watched(D)
            await watched(E)
            held.on_updated(D, {})
            for grant in gate.authorizer.grants.all():
                if grant.subject.item.name == D:
                    awaited(gate.authorizer.revoke_grant(grant.id, "console"))
            held.on_updated(D, {})
            held.on_updated(E, {})
            assert told == [D, E]
            awaited(held.drop_hidden())
            assert len(held) == 1
            gate.replace({"a": Watched(consent=Consent(resources=kind(ask=(F,)))).spec}, {})
            held.on_updated(E, {})
            gate.replace({"a": Watched(consent=Consent(resources=kind(ask=("file:///**",)))).spec}, {})
            held.on_updated(E, {})
            awaited(held.drop_hidden())
            assert (told, len(held)) == ([D, E, E], 0)
            nursery.cancel_scope.cancel()


async def test_what_rules_deny_some_callers_they_hear_of_no_more() -> None:
    server, callers = Watched(), {"ci": CallerSpec("one"), "web": CallerSpec("two")}
    async with open_world(server, callers=callers) as world, trio.open_nursery() as nursery:
        clients = [await world.client(identity=identity) for identity in ("one", "two", None)]
        for client in clients:
            nursery.start_soon(client.listen_changes)
            await watch(nursery, client).comes()
        deny = (UriRule(D, callers=("ci",)),)
        world.configures(Watched(consent=Consent(resources=KindConsent(deny=deny))), callers=callers)
        await server.says_updated(D)
        assert [updates(client) for client in clients] == [[], [f"a+{D}"], [f"a+{D}"]]
        with pytest.raises(Refusal, match="not found"):
            await watch(nursery, clients[0]).comes()
        nursery.cancel_scope.cancel()


async def test_of_many_who_hear_of_a_change_it_is_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Watched()
    async with listening(server, 5) as (world, nursery, clients):
        for client in clients:
            await watch(nursery, client).comes()
        evaluated: list[str] = []
        shows = server_watches(world).is_visible

        def counted(uri: str) -> bool:
            evaluated.append(uri)
            return shows(uri)

        monkeypatch.setattr(server_watches(world), "is_visible", counted)
        await server.says_updated(f"{D}/x")
        assert [updates(client) for client in clients] == [[f"a+{D}/x"]] * 5
        assert evaluated == [f"{D}/x"]


def server_watches(world: World) -> resource_watches.ResourceWatches:
    return world.upstreams.by_id["a"].main.watches


async def test_what_is_watched_is_evaluated_again_in_steps_and_told_to_nobody_meanwhile() -> None:
    """Thousands of URIs take seconds. Their server is told that they are watched no more."""
    server = Watched()
    async with listening(server, 1) as (world, nursery, [client]):
        for uri in (D, E, F):
            await watch(nursery, client, uri).comes()
        denied = Watched(consent=Consent(resources=kind(deny=(D,)))).spec
        held = server_watches(world)
        world.gate.replace({"a": denied}, {})
        held.on_updated(D, {})
        held.on_updated(E, {})
        assert sum(1 for _ in Paused(held.drop_hidden())) == 3
        assert (len(held), held.is_visible(D)) == (2, False)
        await wait_all_tasks_blocked()
        assert updates(client) == [f"a+{E}"]
        assert server.subscribed == {E, F}


@pytest.mark.parametrize("changed", [{"title": "Another"}, {"command": (Secret("another"),)}])
async def test_what_is_watched_on_is_evaluated_in_the_era_of_the_server_that_runs_now(
    changed: dict[str, Any], autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in that of the former one, whether the server was restarted as it is or is another one."""
    old, new = Watched(), Watched(revision="2026-07-28")
    new.spec = replace(new.spec, **changed)
    async with open_world(old) as world, trio.open_nursery() as nursery:
        (client,) = await listeners(world, nursery, 1)
        await watch(nursery, client).comes()
        held = server_watches(world)
        world.configures(new, restart=["a"])
        await trio.sleep(DRAIN_TIMEOUT)
        assert isinstance(world.upstreams["a"].main.state, Ready)
        assert (server_watches(world), len(held)) == (held, 1)
        evaluated: list[EntryRef] = []
        monkeypatch.setattr(world.gate.definitions, "is_visible_to_any", evaluated.append)
        held.on_updated(D, {})
        assert evaluated == [EntryRef(Source("a", STATELESS), Kind.RESOURCE, D)]
        nursery.cancel_scope.cancel()


async def test_whoever_reloads_need_not_wait_for_what_is_watched() -> None:
    server = Watched()
    async with listening(server, 1) as (world, nursery, [client]):
        for uri in (D, E, F):
            await watch(nursery, client, uri).comes()
        world.gate.replace({"a": Watched(consent=Consent(resources=kind(deny=(D, E)))).spec}, {})
        world.upstreams.reevaluate(["a", "of which nothing is known"])
        assert len(server_watches(world)) == 3
        await wait_all_tasks_blocked()
        assert server.subscribed == {F}
