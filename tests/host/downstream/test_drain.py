"""The drain of a host, on its HTTP face: what is told to balancers, what is served meanwhile, and when it is over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from config import AskSpec, Channel, Consent, Trust
from host.downstream.drain import FETCH, NOTICE, SETTLE, Drain
from host.wire.acceptor import GRACE
from tests.kit.asgi import Connection, open_http_app, open_session
from tests.kit.gates import kind
from tests.kit.tasks import EXTENSION, begins, extension_server, extension_status
from tests.kit.world import ScriptedServer

pytestmark = pytest.mark.virtual_time

OPENING = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
OK: dict[str, Any] = {"content": []}


def calling(connection: Connection, id: object = 1) -> Any:
    body = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "a__x"}}
    return connection.another(connection.session).send("POST", body=body)


class Draining:
    """A drain that has begun. `took` is how long it lasted, None while it does."""

    def __init__(self, drain: Drain) -> None:
        self._drain = drain
        self._over = trio.Event()
        self.took: float | None = None

    async def run(self, *, by_person: bool) -> None:
        begun = trio.current_time()
        await self._drain.run(by_person=by_person)
        self.took = trio.current_time() - begun
        self._over.set()

    async def over(self) -> float:
        await self._over.wait()
        assert self.took is not None
        return self.took


@asynccontextmanager
async def draining(connection: Connection, *, by_person: bool = True) -> AsyncIterator[Draining]:
    async with trio.open_nursery() as nursery:
        found = Draining(connection.drain)
        nursery.start_soon(lambda: found.run(by_person=by_person))
        await wait_all_tasks_blocked()
        yield found
        nursery.cancel_scope.cancel()


async def readiness(connection: Connection) -> tuple[int, bytes]:
    answer = await connection.get("GET", "/readyz")
    return answer.status, answer.body


async def test_a_host_that_can_record_nothing_is_not_ready() -> None:
    async with open_session() as (world, connection):
        connection.drain.ready.set()
        world.gate.decision_log._audit.close()
        world.gate.decision_log.record("revoke", grant="g1")
        assert await readiness(connection) == (503, b"the audit cannot be written\n")


async def test_a_host_is_ready_until_it_drains_and_healthy_all_the_time() -> None:
    async with open_session() as (_, connection):
        assert await readiness(connection) == (503, b"starting: the lists of servers are not known yet\n")
        connection.drain.ready.set()
        assert await readiness(connection) == (200, b"ok\n")
        assert (await connection.get("HEAD", "/readyz")).status == 200
        assert (await connection.get("POST", "/readyz")).status == 404
        async with draining(connection, by_person=False) as drain:
            assert await readiness(connection) == (503, b"stopping\n")
            assert (await connection.get("GET", "/healthz")).status == 200
            assert await drain.over() == NOTICE


@pytest.mark.parametrize("asked", [None, 59.0, 61.0])
async def test_balancers_that_look_have_time_to_notice(asked: float | None) -> None:
    """Meanwhile they send new clients, which are served."""
    async with open_http_app() as (_, connection):
        if asked is not None:
            await readiness(connection)
            await trio.sleep(asked)
        async with draining(connection, by_person=False) as drain:
            notices = asked == 59.0
            answer = await connection.get("POST", body=OPENING)
            assert answer.status == (200 if notices else 503)
            assert await drain.over() == (NOTICE if notices else 0.0)
            refused = await connection.get("POST", body=OPENING)
            assert (refused.status, refused.headers["retry-after"]) == (503, "5")
            assert refused.messages()[0]["error"]["message"] == "this server is stopping; try again in a moment"
            assert (await connection.get("GET", "/sse", headers={"accept": "text/event-stream"})).status == 503


async def test_what_is_under_way_ends_and_later_requests_are_answered() -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_session(server) as (_, connection):
        standing = connection.another(connection.session).send("GET")
        first, stateless = calling(connection), connection.another().start("tools/call", {"name": "a__x"})
        heard = [await server.hears("tools/call") for _ in range(2)]
        async with draining(connection) as drain:
            for each in heard:
                assert drain.took is None
                await trio.sleep(3)
                server.says(each["id"], OK)
            later = calling(connection, 2)
            await server.hears("tools/call")
            assert await drain.over() == pytest.approx(6 + SETTLE, abs=0.1), "it is not waited for longer than others"
            assert connection.drain.rest() == pytest.approx(22, abs=0.1)
            assert [each.complete.is_set() for each in (first, stateless, later)] == [True, True, False]
            assert standing.started.is_set()
            assert not standing.complete.is_set(), "its client would open it again at a host that is about to end"


async def test_what_does_not_end_has_its_time() -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_session(server, drain=7.0) as (_, connection):
        calling(connection)
        await server.hears("tools/call")
        async with draining(connection) as drain:
            assert await drain.over() == 7.0
            assert connection.drain.rest() == GRACE
            assert (await connection.another().get("POST", body=OPENING)).status == 503


async def test_a_host_that_may_not_drain_ends_at_once() -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_session(server, drain=0.0) as (_, connection):
        await readiness(connection)
        calling(connection)
        await server.hears("tools/call")
        async with draining(connection, by_person=False) as drain:
            assert await drain.over() == 0.0


async def test_a_call_that_waits_for_a_person_is_told_and_not_sent() -> None:
    server = ScriptedServer("a", tools=["x"], consent=Consent(tools=kind(ask=["x"])))
    async with open_session(server, ask=AskSpec(timeout=50.0)) as (world, connection):
        with world.gate.authorizer.confirmations.attach(Channel.CONSOLE):
            waiting = calling(connection)
            await wait_all_tasks_blocked()
            async with draining(connection) as drain:
                assert await drain.over() < 1
                later = await calling(connection, 2).ended()
            for answer in (await waiting.ended(), later):
                (message,) = answer.messages()
                text = message["result"]["content"][0]["text"]
                assert "Colonnade is stopping, so that nobody can answer now; nothing was sent" in text
                assert message["result"]["isError"]
        server.hears_nothing_more()
        (kept,) = world.gate.authorizer.confirmations.list_all()
        assert kept.refused


async def test_a_task_ends_and_its_result_can_be_fetched() -> None:
    """So is a call that waits for its client to answer what the server asks."""
    ends_at = trio.current_time() + 10

    async def reply(params: dict[str, Any]) -> object:
        done = trio.current_time() >= ends_at
        return extension_status("completed", result=OK) if done else extension_status()

    server = extension_server(answers={"tasks/get": reply})
    async with open_http_app(server) as (_, connection):
        capabilities: dict[str, Any] = {"extensions": {EXTENSION: {}}}
        answer = connection.start("tools/call", {"name": "a__x"}, capabilities=capabilities)
        await begins(server)
        task = (await answer.ended()).outcome("tools/call")["taskId"]
        async with draining(connection) as drain:
            assert await drain.over() == pytest.approx(10 + FETCH, abs=1)
            asked: dict[str, Any] = {"capabilities": capabilities, "headers": {"mcp-name": task}}
            (told,) = (await connection.start("tasks/get", {"taskId": task}, **asked).ended()).messages()
            assert told["result"]["status"] == "completed"


async def test_a_parked_call_waits_for_its_client() -> None:
    server = ScriptedServer("a", tools=["x"], trust=Trust.TRUSTED)
    async with open_http_app(server) as (_, connection), trio.open_nursery() as nursery:
        first = connection.start("tools/call", {"name": "a__x"}, capabilities={"elicitation": {"form": {}}})
        call = await server.hears("tools/call")
        form = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}
        nursery.start_soon(server.asks, "elicitation/create", form)
        parked = (await first.ended()).outcome("tools/call")
        async with draining(connection) as drain:
            await trio.sleep(5)
            assert drain.took is None
            (key,) = parked["inputRequests"]
            again = {
                "name": "a__x",
                "requestState": parked["requestState"],
                "inputResponses": {key: {"action": "accept", "content": {}}},
            }
            last = connection.start("tools/call", again, capabilities={"elicitation": {"form": {}}})
            await wait_all_tasks_blocked()
            server.says(call["id"], OK)
            assert (await last.ended()).outcome("tools/call")["content"] == []
            assert await drain.over() < 6
