"""What every way in over HTTP shares: reading a body, and noticing that a client has left."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from host.downstream.charge import RequestCharge
from host.downstream.http.request import HttpRequest, Rejected, read_charged_body, read_message, with_body
from host.downstream.http.security import MAX_BODY, CheckedHead
from host.downstream.reading import MessageReader
from host.errors import TooManyRequests
from host.journal import InternalError
from host.jsonrpc.messages import ParsedInput
from host.memory import Budget, client_owner
from host.source import SHARED
from host.wire.asgi import BODY_TIMEOUT, CHUNK, ClientGone, Event, Headers, Immediate, Receive, Send
from tests.kit.asgi import Connection, open_session
from tests.kit.bodies import call
from tests.kit.world import ScriptedServer


def _request(receive: Receive, send: Send, at_once: Immediate | None = None) -> HttpRequest:
    head = CheckedHead(Headers([]), {"c": "d"})
    charge = RequestCharge(Budget(), client_owner(None))
    return HttpRequest("POST", SHARED, "", "", head, None, receive, send, charge, at_once)


async def _nothing() -> Event:
    raise AssertionError


async def _unsent(event: Event) -> None:
    raise AssertionError


async def test_a_body_over_the_limit_is_refused_while_it_comes(connection: Connection) -> None:
    answer = await connection.get("POST", pieces=[b" " * MAX_BODY, b" "])
    assert answer.status == 413


async def test_a_body_that_does_not_come_is_given_up(connection: Connection, autojump_clock: MockClock) -> None:
    began = trio.current_time()
    answer = await connection.get("POST", pieces=[b'{"jsonrpc"'])
    assert answer.status == 408
    assert trio.current_time() - began == pytest.approx(BODY_TIMEOUT, abs=0.1)


async def test_a_body_that_is_read_once_more_is_charged_once() -> None:
    async def receive() -> Event:
        await trio.lowlevel.checkpoint()
        return {"type": "http.request", "body": b"a" * 100, "more_body": False}

    http_request = _request(receive, _unsent)
    body = await read_charged_body(receive, http_request.charge)
    size = http_request.charge._held.size
    again = with_body(http_request, body)
    assert await read_charged_body(again.receive, again.charge) == body
    assert http_request.charge._held.size == size > 0


async def test_a_body_is_put_together_from_its_parts() -> None:
    events: list[Event] = [
        {"type": "http.request", "body": b"a", "more_body": True},
        {"type": "http.request", "more_body": True},
        {"type": "http.request", "body": b"b", "more_body": True},
        {"type": "http.request", "body": b"c", "more_body": False},
    ]

    async def receive() -> Event:
        await trio.lowlevel.checkpoint()
        return events.pop(0)

    assert await read_charged_body(receive, RequestCharge(Budget(), client_owner(None))) == b"abc"


async def test_a_client_that_leaves_while_it_sends_is_gone() -> None:
    events: list[Event] = [{"type": "http.request", "body": b"a", "more_body": True}, {"type": "http.disconnect"}]

    async def receive() -> Event:
        await trio.lowlevel.checkpoint()
        return events.pop(0)

    with pytest.raises(ClientGone):
        await read_charged_body(receive, RequestCharge(Budget(), client_owner(None)))


@pytest.mark.parametrize(("size", "fits"), [(MAX_BODY, True), (MAX_BODY + 1, False)])
async def test_a_body_has_a_largest_size(size: int, fits: bool) -> None:
    """(rule 5)"""
    parts = [b"x" * (size // 2), b"x" * (size - size // 2)]

    async def receive() -> Event:
        await trio.lowlevel.checkpoint()
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    if fits:
        assert len(await read_charged_body(receive, RequestCharge(Budget(), client_owner(None)))) == size
        return
    with pytest.raises(Rejected) as refused:
        await read_charged_body(receive, RequestCharge(Budget(), client_owner(None)))
    assert (refused.value.refusal.status, refused.value.refusal.headers) == (413, {"connection": "close"})


async def test_a_body_that_trickles_has_no_more_time_than_one_that_does_not_come(autojump_clock: MockClock) -> None:
    async def receive() -> Event:
        await trio.sleep(BODY_TIMEOUT / 4)
        return {"type": "http.request", "body": b" ", "more_body": True}

    began = trio.current_time()
    with pytest.raises(Rejected) as refused:
        await read_charged_body(receive, RequestCharge(Budget(), client_owner(None)))
    assert refused.value.refusal.status == 408
    assert trio.current_time() - began == pytest.approx(BODY_TIMEOUT)


async def test_a_refusal_echoes_the_id_where_there_is_one(connection: Connection) -> None:
    answer = await connection.get("POST", body={"jsonrpc": "2.0", "id": "mine", "method": "ping"})
    assert (answer.status, answer.messages()[0]["id"]) == (400, "mine")
    answer = await connection.get("POST", body=b"{")
    assert (answer.status, "id" in answer.messages()[0]) == (400, False)
    assert answer.headers["content-type"] == "application/json"


async def test_a_client_that_leaves_before_it_has_said_anything_is_answered_with_nothing() -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_session(server) as (world, connection):
        answer = connection.send("POST", pieces=[b'{"jsonrpc"'])
        await wait_all_tasks_blocked()
        connection.leaves.set()
        await wait_all_tasks_blocked()
        assert not answer.started.is_set()
        assert not any(isinstance(event, InternalError) for event in world.events)


async def test_a_client_that_leaves_ends_the_reading_of_its_message() -> None:
    gone = trio.Event()
    heavy = call(b"[" + b"1," * 20_000 + b"1]")
    events: list[Event] = [{"type": "http.request", "body": heavy, "more_body": False}, {"type": "http.disconnect"}]

    class Endless(MessageReader):
        async def read(self, data: bytes, patience: float = 10.0, identity: str | None = None) -> ParsedInput:
            await trio.sleep_forever()
            raise AssertionError

    async def receive() -> Event:
        await trio.lowlevel.checkpoint()
        if len(events) == 1:
            await gone.wait()
        return events.pop(0)

    async with trio.open_nursery() as nursery:

        async def read() -> None:
            with pytest.raises(ClientGone):
                await read_message(_request(receive, _unsent), Endless())

        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        gone.set()


async def test_too_many_large_messages_are_refused_with_a_status(autojump_clock: MockClock) -> None:
    class Full(MessageReader):
        async def read(self, data: bytes, patience: float = 10.0, identity: str | None = None) -> ParsedInput:
            raise TooManyRequests("too many")

    events: list[Event] = [{"type": "http.request", "body": call(b"[" + b"1," * 20_000 + b"1]"), "more_body": False}]

    async def receive() -> Event:
        if not events:
            await trio.sleep_forever()
        return events.pop(0)

    with pytest.raises(Rejected) as caught:
        await read_message(_request(receive, _unsent), Full())
    assert (caught.value.refusal.status, caught.value.code) == (503, 429)


@pytest.mark.parametrize("is_immediate", [True, False])
async def test_an_answer_is_sent_at_once_if_the_listener_can(is_immediate: bool) -> None:
    given: list[object] = []

    class Listener:
        """Any other step of Immediate fails."""

        def begin_response(
            self, status: int, headers: tuple[tuple[str, str], ...], body: bytes, moves: Callable[[], object]
        ) -> None:
            given.append((status, headers, len(body)))
            moves()

    async def send(event: Event) -> None:
        await trio.lowlevel.checkpoint()
        given.append(event["type"])

    at_once, size = cast("Immediate", Listener()) if is_immediate else None, CHUNK + 1
    rest = _request(_nothing, send, at_once).begin_response(201, {"a": "b"}, b"x" * size)
    if rest is not None:
        await rest
    headers = (("c", "d"), ("a", "b"))
    body = "http.response.body"
    assert given == ([(201, headers, size)] if is_immediate else ["http.response.start", body, body])
