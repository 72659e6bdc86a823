"""One session on one ordered channel: what is taken, what is refused, and in which order it is answered."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from host.downstream import sessions
from host.downstream.duplex import DuplexSession
from host.downstream.sessions import Say, Session
from host.jsonrpc.messages import MAX_BATCH, Failure, Message, Notification, Request, Success, receive, write
from host.source import SHARED
from host.wire.deadlines import CallScope
from tests.kit.world import Refusal as Refused
from tests.kit.world import ScriptedServer, World, later, open_world


class Attentive(Session):
    """Notes how its last request could be spoken to."""

    async def answer(self, request: Request, scope: CallScope, say: Say, address: str = "") -> Success | Failure | None:
        self.say = say
        return await super().answer(request, scope, say, address)


class End:
    """The client's end. While `full`, nothing fits that does not wait."""

    def __init__(self, world: World, nursery: trio.Nursery) -> None:
        self.heard: list[dict[str, Any]] = []
        self.room = trio.Event()
        self.room.set()
        self.session = Attentive("test", SHARED, world.router, world.journal, memory=world.memory)
        self._channel = DuplexSession(self.session, self._say, self._send, nursery)

    def says(self, *messages: object) -> None:
        for message in messages:
            self._channel.on_received(receive(message if isinstance(message, bytes) else json.dumps(message).encode()))

    async def hears(self) -> dict[str, Any]:
        await wait_all_tasks_blocked()
        assert self.heard
        return self.heard.pop(0)

    async def opens(self, revision: str) -> None:
        params = {"protocolVersion": revision, "capabilities": {"roots": {}}}
        self.says(request("initialize", params, 0), {"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert "result" in await self.hears()

    def _say(self, message: Message) -> bool:
        if self.room.is_set():
            self.heard.append(json.loads(write(message)))
        return self.room.is_set()

    async def _send(self, message: Message) -> None:
        await self.room.wait()
        self.heard.append(json.loads(write(message)))


def request(method: str, params: object = None, id: object = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}


CALL = request("tools/call", {"name": "a__x"}, 7)


@asynccontextmanager
async def open_end(revision: str | None = "2025-03-26") -> AsyncIterator[tuple[ScriptedServer, End]]:
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world, trio.open_nursery() as nursery:
        await world.settled()
        end = End(world, nursery)
        if revision is not None:
            await end.opens(revision)
        yield server, end
        nursery.cancel_scope.cancel()


async def test_each_request_of_a_batch_is_answered_by_itself() -> None:
    """Never with a batch; what is broken is refused, what asks nothing is taken (rule 6)."""
    async with open_end() as (_, end):
        mixed = [
            request("ping"),
            request("ping", id="1"),
            {"jsonrpc": "2.0", "method": "x"},
            request("no/such", id=3),
            5,
        ]
        end.says(mixed)
        await wait_all_tasks_blocked()
        assert all(isinstance(each, dict) for each in end.heard)
        assert {repr(each.get("id")): each.get("error", {}).get("code") for each in end.heard} == {
            "1": None,
            "'1'": None,
            "3": -32601,
            "None": -32600,
        }


@pytest.mark.parametrize("body", [[], [{"jsonrpc": "2.0", "method": "x"}] * (MAX_BATCH + 1)])
async def test_a_batch_that_is_empty_or_too_long_is_one_error(body: list[object]) -> None:
    """(rule 6)"""
    async with open_end() as (_, end):
        end.says(body)
        assert (await end.hears())["error"]["code"] == -32600
        assert end.heard == []


async def test_a_batch_of_notices_is_answered_with_nothing() -> None:
    """(rule 6)"""
    async with open_end() as (_, end):
        end.says([{"jsonrpc": "2.0", "method": "x"}, {"jsonrpc": "2.0", "id": 1, "result": {}}])
        await wait_all_tasks_blocked()
        assert end.heard == []


@pytest.mark.parametrize("revision", [None, "2024-11-05", "2025-06-18", "2025-11-25"])
async def test_a_batch_of_another_revision_or_before_any_is_one_error(revision: str | None) -> None:
    """Nothing in it is looked at, `initialize` least of all (rule 6)."""
    async with open_end(revision) as (server, end):
        end.says([CALL, request("initialize", {"protocolVersion": "2025-03-26"})])
        answer = await end.hears()
        assert (answer["error"]["code"], "id" in answer) == (-32600, False)
        assert end.heard == []
        server.hears_nothing_more()
        assert (end.session.opening is None) == (revision is None)


async def test_initialize_in_a_batch_is_refused_and_the_rest_served() -> None:
    """(rules 6 and 13)"""
    async with open_end() as (_, end):
        end.says([request("initialize", {"protocolVersion": "2024-11-05"}, 5), request("ping", id=6)])
        await wait_all_tasks_blocked()
        assert {each["id"]: each.get("error", {}).get("code") for each in end.heard} == {5: -32600, 6: None}
        assert end.session.opening is not None
        assert end.session.opening.revision.name == "2025-03-26"


async def test_an_id_in_flight_is_refused_also_within_a_batch() -> None:
    """Another type is another id (rule 7)."""
    async with open_end() as (server, end):
        end.says([CALL, CALL, {**CALL, "id": "7"}])
        assert (await end.hears())["error"]["message"] == "a request with this id is still in flight; use a new id"
        for _ in range(2):
            server.says((await server.hears("tools/call"))["id"], {"content": []})
        await wait_all_tasks_blocked()
        assert sorted(repr(each["id"]) for each in end.heard) == ["'7'", "7"]


async def test_a_cancel_behind_its_request_in_the_same_batch_is_heeded() -> None:
    """(rule 47)"""
    async with open_end() as (server, end):
        end.says([CALL, {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}])
        await wait_all_tasks_blocked()
        assert end.heard == []
        server.hears_nothing_more()


async def test_more_requests_at_once_than_may_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_IN_FLIGHT", 2)
    async with open_end() as (server, end):
        end.says([{**CALL, "id": n} for n in range(4)])
        assert [(each["id"], each["error"]["code"]) for each in (await end.hears(), await end.hears())] == [
            (2, 429),
            (3, 429),
        ]
        server.says((await server.hears("tools/call"))["id"], {"content": []})
        await end.hears()
        end.says(request("ping", id=9))
        assert (await end.hears())["result"] == {}


async def test_answers_that_do_not_fit_wait_and_what_must_not_wait_is_dropped() -> None:
    async with open_end() as (server, end):
        end.room = trio.Event()
        token = {"_meta": {"progressToken": "t"}}
        end.says({**CALL, "params": {"name": "a__x", **token}}, request("ping"))
        asked = await server.hears("tools/call")
        progress = {"progressToken": asked["_meta"]["progressToken"], "progress": 1}
        await server.notifies("notifications/progress", progress)
        server.says(asked["id"], {"content": []})
        await wait_all_tasks_blocked()
        assert end.heard == []
        end.room.set()
        await wait_all_tasks_blocked()
        assert sorted(each["id"] for each in end.heard) == [1, 7]


async def test_a_question_that_does_not_fit_is_an_error_for_the_server_at_once() -> None:
    """It is not held (rule 22)."""
    async with open_end() as (server, end), trio.open_nursery() as nursery:
        end.says(CALL)
        asked = await server.hears("tools/call")
        end.room = trio.Event()
        question = later(nursery, lambda: server.asks("roots/list", about=asked["id"]))
        with pytest.raises(Refused, match="does not listen"):
            await question.comes()
        end.room.set()
        await wait_all_tasks_blocked()
        assert end.heard == []


@pytest.mark.parametrize(
    "answer",
    [{"id": 1, "result": []}, {"id": 1, "error": "no"}, {"id": 1, "result": {}, "error": {"code": 1, "message": ""}}],
)
async def test_a_broken_answer_ends_its_question_and_is_answered_with_nothing(answer: dict[str, Any]) -> None:
    async with open_end() as (server, end), trio.open_nursery() as nursery:
        end.says(CALL)
        asked = await server.hears("tools/call")
        question = later(nursery, lambda: server.asks("roots/list", about=asked["id"]))
        assert (await end.hears())["id"] == 1
        end.says({"jsonrpc": "2.0", **answer})
        with pytest.raises(Refused):
            await question.comes()
        assert end.heard == []


async def test_what_a_line_holds_is_known_as_a_batch_only_where_there_are_batches() -> None:
    async with open_end() as (_, end):
        ping = json.dumps(request("ping")).encode()
        assert end.session.messages_in(receive(ping))[1] is False
        batch = b" [" + ping + b"]"
        found, batched = end.session.messages_in(receive(batch))
        assert (len(found), batched) == (1, True)
        assert end.session.messages_in(receive(b"{"))[1] is False


async def test_nothing_is_said_of_a_request_after_its_answer() -> None:
    """(rule 104)"""
    async with open_end() as (_, end):
        end.says(request("ping"))
        assert (await end.hears())["result"] == {}
        assert not end.session.say(Notification("late"))
        assert end.heard == []
