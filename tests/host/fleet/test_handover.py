"""A process that drains hands its sessions over while it is still there, and no client of it notices."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from host.downstream.charge import NO_MEMORY_MESSAGE
from host.downstream.drain import FETCH, Stage
from host.fleet.handover import LOOK
from host.memory import Use
from host.wire.sse import EventParser
from tests.host.fleet.test_forwarding import CALL, FORM, Pair, answering, begin, call, open_pair, saying
from tests.kit.asgi import Response
from tests.kit.fleet import FleetFiles, FleetSite, open_site
from tests.kit.tasks import begins, completes, handshake_server
from tests.kit.world import ScriptedServer, later

pytestmark = pytest.mark.slow

A, B, C = "a" * 16, "b" * 16, "c" * 16
LISTEN = {"accept": "text/event-stream"}
OPENING = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}


class Draining:
    """A drain that has begun."""

    def __init__(self, site: FleetSite) -> None:
        self.site = site
        self.over = site.client.drain.over

    async def keeps(self, session: str | None) -> None:
        """Wait until the session would be gone if it could go."""
        await trio.sleep(10 * LOOK)
        assert session in self.site.sessions.ids


@asynccontextmanager
async def draining(site: FleetSite) -> AsyncIterator[Draining]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: site.client.drain.run(by_person=True))
        yield Draining(site)
        nursery.cancel_scope.cancel()


async def ended(answer: Response) -> dict[str, Any]:
    with trio.fail_after(5):
        await answer.ended()
    found: dict[str, Any] = answer.messages()[-1]
    return found


def text(message: dict[str, Any]) -> str:
    return str(message["result"]["content"][0]["text"])


async def test_idle_sessions_go_to_whoever_is_asked_next(tmp_path: Path) -> None:
    files = FleetFiles(tmp_path)
    servers = [ScriptedServer("s", tools=["x"], answers={"tools/call": saying(which)}) for which in "abc"]
    async with (
        open_site(files, A, servers[0]) as a,
        open_site(files, B, servers[1]) as b,
        open_site(files, C, servers[2]) as c,
    ):
        clients = [a.client.another() for _ in range(3)]
        for client in clients:
            await client.open()
        await a.members.wait_list()
        async with draining(a) as drain:
            for client in clients:
                await drain.site.wait_gone(client.session)
            first, second, third = (client.session for client in clients)
            assert [await call(site, first) for site in (b, c, a, b)] == ["b"] * 4
            assert [await call(site, second) for site in (c, b, a, c)] == ["c"] * 4
            found = await call(a, third)
            assert found in ("b", "c"), "it comes in at the one that drains, which adopts nothing"
            assert [await call(site, third) for site in (a, b, c)] == [found] * 3
            with trio.fail_after(5):
                await drain.over.wait()
        assert a.unknown == b.unknown == c.unknown == []


async def test_a_standing_stream_ends_in_order_and_opens_at_another_process(tmp_path: Path) -> None:
    """So does one that the process passes on for another one."""
    async with open_pair(tmp_path) as pair:
        await pair.a.client.open()
        await pair.b.client.open()
        session = pair.a.client.session
        at_home = pair.b.client.another(session).send("GET", headers=LISTEN)
        passed_on = pair.a.client.another(pair.b.client.session).send("GET", headers=LISTEN)
        for stream in (at_home, passed_on):
            await stream.started.wait()
        async with draining(pair.a) as drain:
            with trio.fail_after(5):
                await at_home.ended()
                await passed_on.ended()
            await drain.site.wait_gone(session)
            again = pair.b.client.another(session).send("GET", headers=LISTEN)
            (notice,) = await again.wait_messages(1)
            assert notice["method"] == "notifications/tools/list_changed"
            assert await call(pair.a, session) == "b"


async def test_what_is_in_flight_ends_first_and_what_begins_meanwhile_waits_for_that(tmp_path: Path) -> None:
    async with open_pair(tmp_path, waits=True) as pair:
        await pair.a.client.open()
        session = pair.a.client.session
        first = begin(pair.b, session)
        heard = await pair.at_a.hears("tools/call")
        async with draining(pair.a) as drain:
            await drain.keeps(session)
            later = [begin(site, session) for site in (pair.a, pair.b)]
            ping = await pair.b.client.another(session).request("ping")
            assert ping["result"] == {}
            await drain.keeps(session)
            pair.at_a.hears_nothing_more()
            pair.at_a.says(heard["id"], {"content": [{"type": "text", "text": "a"}]})
            assert text(await ended(first)) == "a"
            for _ in later:
                pair.at_b.says(
                    (await pair.at_b.hears("tools/call"))["id"], {"content": [{"type": "text", "text": "b"}]}
                )
            assert [text(await ended(each)) for each in later] == ["b", "b"]
            with trio.fail_after(5):
                await drain.over.wait()
        assert pair.a.unknown == pair.b.unknown == []
        pair.at_a.hears_nothing_more()


async def test_what_waits_for_the_end_of_a_call_gives_its_memory_up(tmp_path: Path) -> None:
    """Not only at the end of the drain. Nothing was sent."""
    async with open_pair(tmp_path, waits=True) as pair:
        await pair.a.client.open()
        session = pair.a.client.session
        begin(pair.b, session)
        await pair.at_a.hears("tools/call")
        async with draining(pair.a) as drain:
            await drain.keeps(session)
            before = pair.a.world.memory.holdings(Use.REQUESTS)
            later = begin(pair.a, session)
            await drain.keeps(session)
            (held,) = pair.a.world.memory.holdings(Use.REQUESTS) - before
            assert held.drop is not None
            held.drop()
            with trio.fail_after(5):
                await later.ended()
            assert (later.status, later.messages()[0]["error"]["message"]) == (503, NO_MEMORY_MESSAGE)
            await drain.keeps(session)
        pair.at_a.hears_nothing_more()
        pair.at_b.hears_nothing_more()


async def asked_in_a_call(pair: Pair, nursery: trio.Nursery) -> tuple[Response, Any, Any]:
    """A call of a session at the first member, in which its server asks for sampling."""
    await pair.a.client.open(capabilities={"sampling": {}})
    calling = begin(pair.b, pair.a.client.session)
    heard = await pair.at_a.hears("tools/call")
    nursery.start_soon(pair.at_a.asks, "sampling/createMessage", {"messages": [], "maxTokens": 1})
    (question,) = await calling.wait_messages(1)
    return calling, heard, question


async def test_a_client_that_is_asked_something_may_begin_what_it_needs_for_the_answer(tmp_path: Path) -> None:
    async with open_pair(tmp_path, waits=True) as pair, trio.open_nursery() as nursery:
        calling, heard, question = await asked_in_a_call(pair, nursery)
        session = pair.a.client.session
        async with draining(pair.a) as drain:
            needed = begin(pair.b, session)
            inner = await pair.at_a.hears("tools/call")
            pair.at_a.says(inner["id"], {"content": [{"type": "text", "text": "needed"}]})
            assert text(await ended(needed)) == "needed"
            result = {"role": "assistant", "content": {"type": "text", "text": "!"}, "model": "m"}
            at_b = pair.b.client.another(session)
            assert await at_b.notify({"id": question["id"], "result": result}) == 202
            pair.at_a.says(heard["id"], {"content": [{"type": "text", "text": "a"}]})
            assert text(await ended(calling)) == "a"
            await drain.site.wait_gone(session)


async def test_a_task_ends_where_it_began_and_its_result_is_fetched_there(tmp_path: Path) -> None:
    files = FleetFiles(tmp_path)
    gone, other = handshake_server("optional"), handshake_server("optional")
    async with open_site(files, B, other) as b, open_site(files, A, gone) as a:
        await a.client.open(capabilities={"tasks": {}})
        session = a.client.session
        at_b = b.client.another(session)
        begun = a.client.send("POST", body={**CALL, "params": {"name": "a__x", "task": {}}})
        await begins(gone)
        task = {"taskId": (await ended(begun))["result"]["task"]["taskId"]}
        await b.members.wait_list()
        async with draining(a) as drain:
            await drain.keeps(session)
            assert (await at_b.request("tasks/get", task))["result"]["status"] == "working"
            await completes(gone)
            await drain.keeps(session)
            result = await at_b.request("tasks/result", task)
            assert result["result"]["content"]
            await drain.site.wait_gone(session)
            with trio.fail_after(FETCH):
                await drain.over.wait()
        other.hears_nothing_more()


async def test_a_client_that_lost_its_connection_gets_the_rest_of_its_stream(tmp_path: Path) -> None:
    async with open_pair(tmp_path, waits=True) as pair:
        await pair.a.client.open()
        session = pair.a.client.session
        leaver = pair.a.client.another(session)
        calling = leaver.send("POST", body=CALL)
        heard = await pair.at_a.hears("tools/call")
        await calling.started.wait()
        while not calling.body:  # noqa: ASYNC110 - by looks
            await trio.sleep(LOOK)
        parser = EventParser()
        list(parser.feed(calling.body))
        leaver.reads = trio.Event()  # what is sent to it gets lost
        async with draining(pair.a) as drain:
            pair.at_a.says(heard["id"], {"content": [{"type": "text", "text": "a"}]})
            await drain.keeps(session)
            again = pair.b.client.another(session).send("GET", headers={**LISTEN, "last-event-id": parser.last_id})
            assert text(await ended(again)) == "a"
            await drain.site.wait_gone(session)


async def test_new_clients_and_stateless_calls_go_to_another_process(tmp_path: Path) -> None:
    async with open_pair(tmp_path) as pair:
        async with draining(pair.a) as drain:
            with trio.fail_after(5):
                await drain.over.wait()
            opened = await pair.a.client.get("POST", body=OPENING)
            assert opened.status == 200
            assert await call(pair.b, opened.headers["mcp-session-id"]) == "b"
            result = await pair.a.client.another().result("tools/call", {"name": "s__x", "arguments": {}})
            assert result["content"][0]["text"] == "b"


async def test_a_parked_call_goes_on_at_the_process_that_drains(tmp_path: Path) -> None:
    able: dict[str, Any] = {"capabilities": {"elicitation": {}}}
    async with open_pair(tmp_path, waits=True) as pair, trio.open_nursery() as asking:
        first = pair.a.client.start("tools/call", {"name": "s__x", "arguments": {}}, **able)
        asked = await pair.at_a.hears("tools/call")
        answered = later(asking, pair.at_a.asks, "elicitation/create", FORM)
        parked = (await first.ended()).outcome("tools/call")
        async with draining(pair.a) as drain:
            await trio.sleep(10 * LOOK)
            assert not drain.over.is_set()
            second = pair.b.client.start("tools/call", answering(parked, "decline"), **able)
            await answered.ended.wait()
            pair.at_a.says(asked["id"], {"content": []})
            with trio.fail_after(5):
                assert (await second.ended()).outcome("tools/call")["content"] == []
                await drain.over.wait()
        pair.at_b.hears_nothing_more()


@pytest.mark.parametrize("is_of_a", [True, False], ids=["its own", "adopted"])
async def test_a_session_that_was_given_up_for_others_is_adopted_before_its_home_has_ended(
    tmp_path: Path, is_of_a: bool
) -> None:
    async with open_pair(tmp_path) as pair:
        await pair.a.client.open()
        session = pair.a.client.session
        assert session is not None
        await pair.a.wait_stored()
        if not is_of_a:
            for key in pair.a.stored.digests(session):
                pair.files.directory.adopted[key] = A
        pair.a.sessions.give_up(session)
        async with draining(pair.a) as drain:
            with trio.fail_after(5):
                await drain.over.wait()
                assert [await call(site, session) for site in (pair.b, pair.a, pair.b)] == ["b"] * 3
            assert pair.a.sessions.ids == []


def _goes_on_a_dedicated_server(pair: Pair) -> None:
    (session,) = pair.a.sessions
    session._on_dedicated()


def _cuts_the_database_off(pair: Pair) -> None:
    pair.files.directory.away = True


@pytest.mark.parametrize("happens", [_cuts_the_database_off, _goes_on_a_dedicated_server])
async def test_a_session_stays_while_the_database_is_away_or_if_nobody_else_could_go_on_with_it(
    tmp_path: Path, happens: Callable[[Pair], None]
) -> None:
    async with open_pair(tmp_path) as pair:
        await pair.a.client.open()
        session = pair.a.client.session
        await pair.a.wait_stored()
        happens(pair)
        async with draining(pair.a) as drain:
            with trio.fail_after(5):
                await drain.over.wait()
            assert [await call(site, session) for site in (pair.a, pair.b)] == ["a", "a"]


async def test_where_no_other_process_goes_on_sessions_stay_to_the_end(tmp_path: Path) -> None:
    async with open_pair(tmp_path) as pair:
        await pair.a.client.open()
        session = pair.a.client.session
        async with draining(pair.b):
            with trio.fail_after(5):
                while all(each.status == Stage.SERVING for each in pair.a.members.present):
                    await pair.a.members.wait_list()
            async with draining(pair.a) as drain:
                await drain.keeps(session)
                assert [await call(site, session) for site in (pair.a, pair.b)] == ["a", "a"]


async def test_a_session_that_another_process_has_adopted_is_dropped(tmp_path: Path) -> None:
    """This one was cut off for a while, and had not noticed yet."""
    async with open_pair(tmp_path) as pair:
        await pair.a.client.open()
        session = pair.a.client.session
        await pair.a.wait_stored()
        stored = pair.a.stored
        for key in stored.digests(session or ""):
            pair.files.directory.adopted[key] = B
        async with draining(pair.a) as drain:
            await drain.site.wait_gone(session)
            assert [await call(site, session) for site in (pair.a, pair.b)] == ["b", "b"]
