"""Event streams that are kept, resumed and forgotten."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import trio
from msgspec import Raw, structs
from trio.testing import MockClock, wait_all_tasks_blocked

from host.downstream.charge import RequestCharge
from host.downstream.http import replies
from host.downstream.http.replies import (
    KEEP_FINISHED,
    MAX_FINISHED,
    MAX_KEPT,
    MAX_SHARED,
    STREAM_DEADLINE,
    STREAM_DELAY,
    EventStream,
    History,
    Replies,
)
from host.downstream.http.request import HttpRequest
from host.downstream.http.security import CheckedHead
from host.jsonrpc.messages import ErrorBody, Failure, Notification, Request, Success, write
from host.jsonrpc.raw import encode
from host.memory import Budget, Use, client_owner
from host.source import SHARED
from host.wire import client_socket
from host.wire.asgi import CHUNK, Event, Headers, Immediate, Receive, Scope, Send, immediate
from host.wire.client_socket import Buffer, ClientSocket
from host.wire.deadlines import CallScope
from host.wire.sse import EventParser, SseEvent
from tests.host.wire.sites import everything, read_to, serving


def request_of(send: Send, receive: Receive | None = None) -> HttpRequest:
    """A request whose response is sent by `send`."""
    charge = RequestCharge(Budget(), client_owner(None))
    head = CheckedHead(Headers([]), {})
    return HttpRequest("POST", SHARED, "", "", head, None, receive or _nothing_more, send, charge)


async def _nothing_more() -> Event:
    raise AssertionError


def stream_of(name: str | None, *, primes: bool) -> EventStream:
    return EventStream(name, Budget(), client_owner(None), primes=primes)


class Taker:
    """An ASGI `send` that notes what it gets, and takes nothing while `held`."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self.data = b""
        self.ended = False
        self.held: trio.Event | None = None

    async def __call__(self, event: Event) -> None:
        if self.held is not None:
            await self.held.wait()
        await trio.lowlevel.checkpoint()
        if event["type"] == "http.response.start":
            self.started.append(event["status"])
        else:
            self.data += event["body"]
            self.ended = not event["more_body"]

    @property
    def messages(self) -> list[object]:
        return [json.loads(e.data) for e in EventParser().feed(self.data) if isinstance(e, SseEvent) and e.data]


async def test_a_later_reader_takes_the_stream_over_and_nothing_comes_twice() -> None:
    stream = stream_of("1", primes=True)
    first, second = Taker(), Taker()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.write_events, first, -1)
        stream.add(b"1")
        await wait_all_tasks_blocked()
        nursery.start_soon(stream.write_events, second, 1)
        await wait_all_tasks_blocked()
        assert first.ended
        stream.add(b"2")
        stream.end()
    assert first.messages == [1]
    assert second.messages == [2]
    assert second.ended


async def test_a_reader_that_is_replaced_while_it_sends_takes_nothing_more() -> None:
    """Not even at once, when it has sent its event before the one that replaces it has sent all that is due."""

    class AtOnce:
        def __init__(self, taker: Taker) -> None:
            self.taker = taker
            self.woken = trio.Event()

        def send_part(self, body: bytes) -> bool:
            self.taker.data += body
            return True

        async def wait_client(self, seconds: float, sign: bytes) -> bool:
            await self.woken.wait()
            self.woken = trio.Event()
            return True

        def wake(self) -> None:
            self.woken.set()

    stream = stream_of("1", primes=True)
    first, second = Taker(), Taker()
    first.held, second.held = trio.Event(), trio.Event()
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            for taker, after in ((first, -1), (second, 0)):
                stream.add(b"%d" % after)
                nursery.start_soon(stream.write_events, taker, after, cast("Immediate", AtOnce(taker)))
                await wait_all_tasks_blocked()
            first.held.set()
            await wait_all_tasks_blocked()
            stream.add(b"1")
            second.held.set()
            await wait_all_tasks_blocked()
            stream.end()
    assert first.messages == []
    assert second.messages == [-1, 0, 1]
    assert first.ended
    assert second.ended


@pytest.mark.parametrize("size", [10, 2 * MAX_SHARED])
async def test_streams_get_the_same_message_each_under_its_own_id(size: int) -> None:
    streams = [stream_of(name, primes=False) for name in ("1", "1", "2", "1")]
    streams[3].add(b"0")
    notices = [Notification(method, encode(method * size)) for method in "ab"]
    for notice in notices:
        for stream in streams:
            assert stream.enqueue(notice)
    takers = [Taker() for _ in streams]
    for stream, taker in zip(streams, takers, strict=True):
        stream.end()
        await stream.write_events(taker, -1)
        assert taker.messages[-2:] == [json.loads(write(notice)) for notice in notices]
    ids = [[event.id for event in EventParser().feed(taker.data) if isinstance(event, SseEvent)] for taker in takers]
    assert ids == [["1-0", "1-1"], ["1-0", "1-1"], ["2-0", "2-1"], ["1-0", "1-1", "1-2"]]


async def test_a_stream_that_grows_too_large_loses_its_oldest_events() -> None:
    stream = stream_of("1", primes=False)
    for n in range(12):
        stream.add(json.dumps([n, "x" * (MAX_KEPT // 10)]).encode())
    assert stream.size <= MAX_KEPT
    assert not stream.has_after(0)
    stream.end()
    taker = Taker()
    await stream.write_events(taker, -1)
    assert [message[0] for message in taker.messages] == list(range(12 - len(taker.messages), 12))  # type: ignore[index]


def test_positions_that_can_be_resumed_after() -> None:
    stream = stream_of("1", primes=False)
    for _ in range(3):
        stream.add(b"0")
    assert [stream.has_after(number) for number in (-1, 0, 2, 3, 100)] == [True, True, True, False, False]
    stream.forget_one()
    stream.forget_one()
    assert [stream.has_after(number) for number in (-1, 0, 1, 2)] == [False, False, True, True]


async def test_history_forgets_what_is_old_but_never_what_still_runs(autojump_clock: MockClock) -> None:
    history = History(Budget(), client_owner(None))
    running = history.begin(resumes=True, primes=True)
    history.begin(resumes=True, primes=True).end()
    assert history.resume("2-0") is not None
    await trio.sleep(KEEP_FINISHED + 1)
    history.sweep()
    assert history.resume("2-0") is None
    assert history.resume("1-0") == (running, 0)


@pytest.mark.parametrize(("each", "kept"), [(MAX_KEPT // 4, 3), (10, MAX_FINISHED)])
async def test_history_keeps_so_much_and_so_many_and_no_more(each: int, kept: int, autojump_clock: MockClock) -> None:
    """Held to with every new stream, not only once a minute."""
    history = History(Budget(), client_owner(None))
    streams = []
    for _ in range(MAX_FINISHED + 50):
        stream = history.begin(resumes=True, primes=True)
        stream.add(b'"' + b"x" * each + b'"')
        stream.end()
        streams.append(stream)
    history.begin(resumes=True, primes=True)
    found = [history.resume(f"{n}-0") is not None for n in range(1, len(streams) + 1)]
    assert found == [False] * (len(streams) - kept) + [True] * kept


def test_a_stream_of_a_revision_without_resuming_has_no_ids() -> None:
    stream = History(Budget(), client_owner(None)).begin(resumes=False, primes=False)
    stream.add(b"1")
    assert stream._events[0] == b"data: 1\n\n"


async def test_a_quick_answer_is_json_and_a_late_one_a_stream(autojump_clock: MockClock) -> None:
    crashes: list[Exception] = []
    async with trio.open_nursery() as nursery:
        replies = Replies(nursery, crashes.append)
        nursery.start_soon(replies.run)
        for delay, streams in ((STREAM_DELAY / 2, False), (STREAM_DELAY * 2, True), (STREAM_DELAY / 2, False)):
            taker = Taker()
            reply = replies.begin(request_of(taker), {}, lambda: stream_of("1", primes=True))
            await trio.sleep(delay)
            await reply.finish(Success(1, Raw(b"{}")))
            replies.end(reply)
            assert taker.started == [200]
            assert taker.ended
            assert taker.data.startswith(b"id: 1-0") == streams
        nursery.cancel_scope.cancel()


async def test_a_stream_that_nobody_resumes_keeps_nothing_that_was_read() -> None:
    """(rule 5)"""
    stream, taker = stream_of(None, primes=False), Taker()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.write_events, taker, -1)
        for number in range(3):
            stream.add(b"%d" % number)
            await wait_all_tasks_blocked()
            assert (stream.size, stream.unread) == (0, 0)
        held = taker.held = trio.Event()
        for number in range(3, 6):
            stream.add(b"%d" % number)
        await wait_all_tasks_blocked()
        assert stream.size == stream.unread > 0
        held.set()
        stream.end()
    assert taker.messages == list(range(6))
    assert stream.size == 0


async def test_a_reply_may_be_begun_later_than_others(autojump_clock: MockClock) -> None:
    """So that an error still gets a status of its own."""
    async with trio.open_nursery() as nursery:
        replies = Replies(nursery, _unexpected)
        nursery.start_soon(replies.run)
        patient, other = Taker(), Taker()
        reply = replies.begin(request_of(patient), {}, lambda: stream_of(None, primes=False), STREAM_DEADLINE)
        replies.begin(request_of(other), {}, lambda: stream_of(None, primes=False))
        await trio.sleep(STREAM_DEADLINE - 1)
        assert (patient.started, other.started) == ([], [200])
        replies.end(reply)
        await reply.finish(Failure(ErrorBody(1, "no"), 1), 400)
        assert patient.started == [400]
        late = replies.begin(request_of(patient), {}, lambda: stream_of(None, primes=False), STREAM_DEADLINE)
        await trio.sleep(STREAM_DEADLINE + STREAM_DELAY)
        await late.finish(Failure(ErrorBody(1, "no"), 1), 400)
        assert patient.started == [400, 200]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("begun", [False, True])
async def test_a_client_that_is_gone_gets_nothing_more(begun: bool) -> None:
    """Whether its stream was just opened or is waiting for it to read (rule 47)."""
    async with trio.open_nursery() as nursery:
        taker = Taker()
        taker.held = trio.Event()
        reply = Replies(nursery, _unexpected).begin(request_of(taker), {}, lambda: stream_of(None, primes=False))
        assert reply.enqueue(Notification("x", None))
        if begun:
            await wait_all_tasks_blocked()
        reply.client_gone()
        assert not reply.enqueue(Notification("y", None))
        taker.held.set()
        await wait_all_tasks_blocked()
        assert (taker.started, taker.data) == ([], b"")


def _unexpected(problem: Exception) -> None:
    raise problem


async def test_one_replys_trouble_is_its_own(autojump_clock: MockClock) -> None:
    async def broken(event: Event) -> None:
        raise ValueError("no such state")

    crashes: list[Exception] = []
    async with trio.open_nursery() as nursery:
        replies = Replies(nursery, crashes.append)
        reply = replies.begin(request_of(broken), {}, lambda: stream_of(None, primes=False))
        reply.enqueue(Notification("x"))
        await reply.finish(Success(1, Raw(b"{}")))
        assert str(crashes[0]) == "no such state"


async def test_nothing_is_said_after_the_answer() -> None:
    crashes: list[Exception] = []
    async with trio.open_nursery() as nursery:
        taker = Taker()
        reply = Replies(nursery, crashes.append).begin(request_of(taker), {}, lambda: stream_of(None, primes=False))
        reply.enqueue(Notification("before"))
        await wait_all_tasks_blocked()
        taker.held = trio.Event()
        nursery.start_soon(reply.finish, Success(1, Raw(b"{}")))
        await wait_all_tasks_blocked()
        reply.enqueue(Notification("after"))
        taker.held.set()
    assert [message.get("method", "answer") for message in taker.messages] == ["before", "answer"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("answer", [None, Success(1, Raw(b"{}"))])
async def test_a_reply_ends_once_whatever_its_form(answer: Success | None) -> None:
    crashes: list[Exception] = []
    async with trio.open_nursery() as nursery:
        taker = Taker()
        reply = Replies(nursery, crashes.append).begin(request_of(taker), {}, lambda: stream_of(None, primes=False))
        await reply.finish(answer)
        assert (taker.started, taker.ended) == ([200], True)


async def test_what_a_reader_has_not_taken_is_counted_and_what_it_has_is_not() -> None:
    stream = stream_of("1", primes=False)
    taker = Taker()
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            stream.add(b"0")
        assert stream.unread == stream.size
        nursery.start_soon(stream.write_events, taker, 0)
        await wait_all_tasks_blocked()
        assert (stream.unread, stream.size > 0, taker.messages) == (0, True, [0, 0])
        taker.held = trio.Event()
        for _ in range(3):
            stream.add(b"0")
        await wait_all_tasks_blocked()
        assert stream.unread == stream.size // 3  # of three, one is on its way
        for _ in range(6):
            stream.forget_one()
        assert (stream.unread, stream.size) == (0, 0)
        stream.end()
        taker.held.set()


@pytest.mark.parametrize("name", ["1", None])
async def test_an_event_stays_charged_until_its_slow_reader_has_all_of_it(name: str | None) -> None:
    """Also after newer events displaced it, so that a client that reads slowly holds no memory that is not counted."""
    budget = Budget()
    stream = EventStream(name, budget, client_owner(None), primes=True)
    reader = Taker()
    reader.held = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.write_events, reader, -1)
        stream.add(b'"' + b"x" * MAX_KEPT + b'"')
        reader.held.set()
        await wait_all_tasks_blocked()  # a priming event is behind
        reader.held = trio.Event()
        stream.add(b'"' + b"y" * MAX_KEPT + b'"')
        await wait_all_tasks_blocked()
        stream.add(b"0")
        stream.forget_read()
        assert budget.used >= MAX_KEPT
        reader.held.set()
        await wait_all_tasks_blocked()
        stream.forget_read()
        assert budget.used == 0
        stream.end()
    assert reader.messages[1:] == ["y" * MAX_KEPT, 0]


async def test_readers_of_an_event_that_needs_memory_are_disconnected() -> None:
    """A stream that can be resumed does not forget the event that is on its way, and keep the connection."""
    budget = Budget(5 * MAX_KEPT // 2)
    stream = EventStream("1", budget, client_owner("greedy"), primes=True)
    former, present = Taker(), Taker()
    former.held = present.held = trio.Event()
    async with trio.open_nursery() as nursery:
        stream.add(b'"' + b"x" * 2 * MAX_KEPT + b'"')
        nursery.start_soon(stream.write_events, former, 0)
        nursery.start_soon(stream.write_events, present, 0)
        await wait_all_tasks_blocked()
        with budget.hold(client_owner("other"), Use.REQUESTS, MAX_KEPT, drop=lambda: None):
            assert budget.used == MAX_KEPT
            await wait_all_tasks_blocked()
            assert not nursery.child_tasks
    assert not former.data
    assert not present.data
    assert budget.used == 0


async def test_a_stream_that_ended_is_idle_once_its_reader_has_everything() -> None:
    """Until then it is dropped no sooner than others: its client is reading."""
    budget = Budget(4 * MAX_KEPT, now=lambda: 0.0)
    stream = EventStream("1", budget, client_owner("greedy"), primes=True)
    reader = Taker()
    reader.held = trio.Event()
    kept = budget.hold(client_owner("greedy"), Use.STREAMS, MAX_KEPT, drop=lambda: kept.release())
    kept.idle = True
    async with trio.open_nursery() as nursery:
        stream.add(b'"' + b"x" * 2 * MAX_KEPT + b'"')
        nursery.start_soon(stream.write_events, reader, 0)
        await wait_all_tasks_blocked()
        stream.end()
        with budget.hold(client_owner("other"), Use.REQUESTS, MAX_KEPT, drop=lambda: None):
            assert kept.dropped
            reader.held.set()
    assert reader.messages == ["x" * 2 * MAX_KEPT]


async def test_a_reader_from_further_back_has_more_to_read() -> None:
    stream = stream_of("1", primes=False)
    for _ in range(4):
        stream.add(b"0")
    for after, left in ((-1, 4), (1, 2), (3, 0)):
        taker = Taker()
        taker.held = trio.Event()
        with trio.move_on_after(0):
            await stream.write_events(taker, after)
        assert stream.unread == stream.size // 4 * max(left - 1, 0)


async def test_several_answers_wait_for_a_reader_and_for_nobody_who_is_gone() -> None:
    """Answers are not pushed out of a stream; when nobody takes them any more, it does not hold up its work."""
    crashes: list[Exception] = []
    answer = Success(1, Raw(b'"' + b"x" * (MAX_KEPT // 2) + b'"'))
    async with trio.open_nursery() as nursery:
        taker = Taker()
        taker.held = trio.Event()
        reply = Replies(nursery, crashes.append).begin(request_of(taker), {}, lambda: stream_of("1", primes=True))

        async def add_all() -> None:
            for _ in range(5):
                await reply.add(answer)
            await reply.finish(None)

        nursery.start_soon(add_all)
        await wait_all_tasks_blocked()
        assert reply.open().unread < MAX_KEPT
        taker.held.set()
        await wait_all_tasks_blocked()
        assert (len(taker.messages), taker.ended) == (5, True)

    async def gone(event: Event) -> None:
        await hang.wait()
        raise OSError("gone")

    hang = trio.Event()
    async with trio.open_nursery() as nursery:
        reply = Replies(nursery, crashes.append).begin(request_of(gone), {}, lambda: stream_of("1", primes=True))
        nursery.start_soon(add_all)
        await wait_all_tasks_blocked()
        hang.set()
    assert [str(each) for each in crashes] == ["gone"]


async def test_notices_push_no_answer_and_no_question_out_that_is_not_read_yet() -> None:
    """When there is room again, they are said again."""
    crashes: list[Exception] = []
    notice = Notification("notifications/message", Raw(b'{"data":"' + b"x" * (MAX_KEPT // 20) + b'"}'))
    async with trio.open_nursery() as nursery:
        taker = Taker()
        held = taker.held = trio.Event()
        reply = Replies(nursery, crashes.append).begin(request_of(taker), {}, lambda: stream_of("1", primes=False))
        assert reply.enqueue(notice)
        await reply.add(Success(1, Raw(b"{}")))
        assert reply.enqueue(Request("q", "roots/list", None))
        said = [reply.enqueue(each) for each in (notice, Notification("x", None)) for _ in range(2000)]
        assert (said[0], said[-1]) == (True, False)
        assert reply.enqueue(Request("r", "roots/list", None))  # room is kept for it
        held.set()
        await wait_all_tasks_blocked()
        assert [each["id"] for each in _dicts(taker) if "id" in each] == [1, "q", "r"]
        assert sum("method" in each and "id" not in each for each in _dicts(taker)) == 1 + said.count(True)
        assert reply.enqueue(notice)
        await reply.finish(None)
    assert crashes == []


def _dicts(taker: Taker) -> list[dict[str, Any]]:
    return [each for each in taker.messages if isinstance(each, dict)]


@pytest.mark.parametrize("is_read_before", [False, True])
async def test_a_disconnect_noticed_after_the_reply_ended_cancels_nothing(is_read_before: bool) -> None:
    """The scope is that of the connection's next request by then. A listener says at the end of a request that nothing
    more comes for it."""
    ended = trio.Event()

    async def receive() -> Event:
        if is_read_before:
            await ended.wait()
        return {"type": "http.disconnect"}

    async with trio.open_nursery() as nursery:
        replies, scope = Replies(nursery, _unexpected), CallScope()
        request = request_of(Taker(), receive)
        reply = replies.begin(request, {}, lambda: stream_of(None, primes=False), STREAM_DEADLINE, scope)
        reply.watch_client()
        if is_read_before:
            await wait_all_tasks_blocked()
        ended.set()
        replies.end(reply)
        await wait_all_tasks_blocked()
        assert not scope.cancel_called


@asynccontextmanager
async def reading(stream: EventStream) -> AsyncIterator[trio.SocketStream]:
    """A client that reads a stream whose reader waits, over a real listener."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = structs.replace(request_of(send, receive), at_once=immediate(scope))
        await request.go_on(stream.reader(request, {}, -1))

    async with serving(app) as site, await site.connect() as client:
        await client.send_all(b"GET / HTTP/1.0\r\nHost: a\r\n\r\n")
        await read_to(client, b"text/event-stream")
        await wait_all_tasks_blocked()
        yield client


async def told(client: trio.SocketStream) -> list[object]:
    """All messages that come until the stream ends."""
    body = (await everything(client)).split(b"\r\n\r\n")[-1]
    return [json.loads(each.data) for each in EventParser().feed(body) if isinstance(each, SseEvent)]


@pytest.mark.parametrize("name", [None, "1"])
async def test_what_follows_an_event_that_is_too_long_for_one_step_comes_after_it(name: str | None) -> None:
    """The reader waits when both are added, and runs after that."""
    stream, sent = stream_of(name, primes=False), ["short", "x" * CHUNK, "shorter", "y" * CHUNK, "last"]
    async with reading(stream) as client:
        for text in sent:
            stream.add(json.dumps(text).encode())
        stream.end()
        assert await told(client) == sent


@pytest.mark.parametrize("passes", [0, 5])
@pytest.mark.parametrize("name", [None, "1"])
async def test_what_is_added_when_a_sign_of_life_is_not_taken_whole_comes_after_it(
    name: str | None, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its reader has run, or while that sends the rest. It is charged until the client has it."""
    write_now, is_torn, goes_on = ClientSocket._write_now, trio.Event(), trio.Event()

    def tear(connection: ClientSocket, data: Buffer, more: bytes = b"") -> int:
        if goes_on.is_set() or b"working" not in bytes(data):
            return write_now(connection, data, more)
        size = 0 if is_torn.is_set() else 2
        is_torn.set()
        return write_now(connection, data[:size])

    monkeypatch.setattr(ClientSocket, "_write_now", tear)
    monkeypatch.setattr(client_socket, "ALARMS_A_SECOND", 100)
    monkeypatch.setattr(replies, "HEARTBEAT_INTERVAL", 0.05)
    memory = Budget()
    stream = EventStream(name, memory, client_owner(None), primes=False)
    async with reading(stream) as client:
        await is_torn.wait()
        for _ in range(passes):
            await trio.lowlevel.checkpoint()
        for number in range(3):
            stream.add(b"%d" % number)
        assert memory.used > 0
        goes_on.set()
        stream.end()
        assert await told(client) == [0, 1, 2]
    stream.close()
    assert memory.used == 0


@pytest.mark.parametrize("name", [None, "1"])
async def test_nothing_comes_after_an_event_that_was_discarded(name: str | None) -> None:
    """The client would not know that it has missed one."""
    stream = stream_of(name, primes=False)
    async with reading(stream) as client:
        stream.add(b'"' + b"x" * CHUNK + b'"')
        stream.discard()
        for number in range(20):
            await trio.lowlevel.checkpoint()
            stream.add(b"%d" % number)
        assert await told(client) == []
