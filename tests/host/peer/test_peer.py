"""A peer against a far end that the test plays by hand."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from msgspec import Raw
from trio.testing import MockClock, wait_all_tasks_blocked

from host.errors import TOO_LARGE
from host.jsonrpc import strict
from host.jsonrpc.envelope import Envelope
from host.jsonrpc.glance import LongMessage
from host.jsonrpc.messages import ErrorBody, Failure, Id, Malformed, Notification, Request, Success
from host.peer.outstanding import AnswerTooLong, BrokenAnswer, PeerError
from host.peer.peer import (
    MAX_ANSWERS,
    MAX_ERROR_DATA,
    MAX_ERROR_MESSAGE,
    MAX_INCOMING,
    MAX_NOTIFICATION,
    MAX_NOTIFICATION_TOKENS,
    MAX_SCANNED,
    MAX_SENDERS,
    MAX_TOKENS,
    REPLY_TIMEOUT,
    InFlight,
    Peer,
    Work,
    open_peer,
)
from host.wire.link import LinkLost, Parcel, ReceivedMessage
from tests.kit.memory import MemoryLink, memory_links
from tests.kit.passes import LoopPasses
from tests.kit.world import later


class Listener:
    """A handler that notes what comes, and answers when told to."""

    def owner_of(self, subject: str) -> str:
        return f"of {subject}"

    def __init__(self) -> None:
        self.notices: list[str] = []
        self.behind: list[tuple[list[str], set[Hashable], bool]] = []
        """What each notification and each request may belong to, in the order of their coming."""
        self.complaints: list[str] = []
        self.may_answer = trio.Event()
        self.cancelled = 0
        self.dropped: list[tuple[str, bytes]] = []
        """Why each dropped message is no response, and the beginning of a text that is no message."""

    def on_request(self, peer: Peer[str], request: Request, in_flight: InFlight[str]) -> Work | Raw | ErrorBody:
        self.behind.append((in_flight.subjects, in_flight.abandoned_owners, in_flight.exact))
        return ErrorBody(-32601, "no") if request.method == "at once" else partial(self._answer, request)

    async def _answer(self, request: Request) -> Raw:
        if request.method == "refused":
            raise PeerError(ErrorBody(-32601, "no"))
        try:
            await self.may_answer.wait()
        except trio.Cancelled:
            self.cancelled += 1
            raise
        return Raw(b'{"served":true}')

    def on_notification(self, notice: Notification, in_flight: InFlight[str]) -> None:
        self.behind.append((in_flight.subjects, in_flight.abandoned_owners, in_flight.exact))
        self.notices.append(notice.method)

    def refuses(self, method: str) -> ErrorBody | None:
        return ErrorBody(-32601, "never") if method == "never" else None

    def on_dropped(
        self, what: str, detail: str, size: int = 0, *, awaited: bool = False, answers: str = "", text: bytes = b""
    ) -> None:
        self.complaints.append(what)
        self.dropped.append((answers, text))


class FarEnd:
    def __init__(self, link: MemoryLink) -> None:
        self.link = link

    async def hears(self) -> Any:
        with trio.fail_after(5):
            data, _ = await self.link._incoming.receive()
            return json.loads(data)

    def hears_nothing(self) -> None:
        with pytest.raises(trio.WouldBlock):
            self.link._incoming.receive_nowait()

    def says(self, *, about: Id | None = None, **message: Any) -> None:
        self.link.write_bytes(json.dumps({"jsonrpc": "2.0", **message}).encode(), about)


@asynccontextmanager
async def open_pair() -> AsyncIterator[tuple[Peer[str], FarEnd, Listener]]:
    near, far = memory_links()
    listener = Listener()
    async with open_peer(near, listener) as peer:
        yield peer, FarEnd(far), listener


async def test_an_answer_ends_its_own_request_whatever_the_order() -> None:
    """(rule 41)"""
    async with open_pair() as (peer, far, _), trio.open_nursery() as nursery:
        got: dict[str, bytes] = {}

        async def ask(method: str) -> None:
            got[method] = bytes(await peer.request(method))

        for method in ("a", "b", "c"):
            nursery.start_soon(ask, method)
            await wait_all_tasks_blocked()
        asked = {each["method"]: each["id"] for each in [await far.hears() for _ in range(3)]}
        for method in ("c", "a", "b"):
            far.says(id=asked[method], result={"to": method})
        await wait_all_tasks_blocked()
        assert {method: json.loads(result) for method, result in got.items()} == {m: {"to": m} for m in "abc"}


async def test_a_refusal_a_broken_answer_and_a_lost_link_are_three_errors() -> None:
    async with open_pair() as (peer, far, listener), trio.open_nursery() as nursery:
        errors: list[Exception] = []

        async def ask() -> None:
            try:
                await peer.request("x")
            except (PeerError, BrokenAnswer, LinkLost) as problem:
                errors.append(problem)

        for _ in range(3):
            nursery.start_soon(ask)
        ids = [(await far.hears())["id"] for _ in range(3)]
        far.says(id=ids[0], error={"code": 5, "message": "m"})
        far.says(id=ids[1], result={}, error={"code": 5, "message": "m"})
        await wait_all_tasks_blocked()
        far.link.close()
    assert [type(problem) for problem in errors] == [PeerError, BrokenAnswer, LinkLost]
    assert listener.complaints == ["invalid message"]


async def test_a_requests_headers_go_to_the_link_with_it() -> None:
    """And with no other message; who asks does not know of them."""

    sent: list[tuple[str, tuple[tuple[str, str], ...]]] = []

    class Noting(MemoryLink):
        async def send(self, parcel: Parcel) -> None:
            assert isinstance(parcel.message, Request | Notification)
            sent.append((parcel.message.method, parcel.headers))
            await super().send(parcel)

    near, _ = memory_links()
    async with open_peer(Noting(near._outgoing, near._incoming), Listener()) as peer, trio.open_nursery() as nursery:
        nursery.start_soon(partial(peer.request, "a", headers=(("Mcp-Method", "a"),)))
        await wait_all_tasks_blocked()
        await peer.notify("b")
        nursery.start_soon(peer.request, "c")
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert sent == [("a", (("Mcp-Method", "a"),)), ("b", ()), ("c", ())]


async def test_a_notice_may_name_the_request_it_is_about() -> None:
    """Whatever the transport says; one that is over, or never was, has no subject."""

    class Finder(Listener):
        def on_notification(self, notice: Notification, in_flight: InFlight[str]) -> None:
            found.append([in_flight.subject_of(id) for id in (1, 2, 3, "1", "2")])

    found: list[list[str | None]] = []
    near, link = memory_links()
    far = FarEnd(link)
    async with open_peer(near, Finder()) as peer, trio.open_nursery() as nursery:
        for subject in ("one", "two"):
            nursery.start_soon(peer.request, "x", None, subject)
            await wait_all_tasks_blocked()
        far.says(method="n")
        far.says(method="n", about=1)
        far.says(id=1, result={})
        far.says(method="n")
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert found == [["one", "two", None, None, None]] * 2 + [[None, "two", None, None, None]]


@pytest.mark.parametrize("id", ["1", 1.0])
@pytest.mark.parametrize("body", [{"result": {}}, {"result": {"text": "x" * 200_000}}])
async def test_an_id_may_come_back_as_text_or_as_a_number_with_a_point(id: object, body: dict[str, Any]) -> None:
    """As of servers that keep ids as text, or whose language has one type of numbers. No other request can be meant:
    ours have whole numbers. An error too, and an answer that is late (rule 7)."""
    async with open_pair() as (peer, far, listener), trio.open_nursery() as nursery:
        call = later(nursery, peer.request, "x")
        await wait_all_tasks_blocked()
        other = later(nursery, peer.request, "y")
        await wait_all_tasks_blocked()
        far.says(id=id, **body)
        assert json.loads(bytes(await call.comes())) == body["result"]
        assert not other.done
        refused = later(nursery, _fails, peer, PeerError)
        await wait_all_tasks_blocked()
        far.says(id="3", error={"code": -1, "message": "no"})
        assert await refused.comes() == "no"
        with trio.CancelScope() as scope:
            scope.cancel()
            await peer.request("z")
        far.says(id="4", result={})
        far.says(id="2", result={})
        await other.comes()
        assert listener.complaints == []


@pytest.mark.parametrize("id", ["01", "1.0", " 1", 1.5, True, None, 2, "2", -1])
async def test_an_answer_to_another_id_ends_nothing(id: object) -> None:
    """Nor one in another spelling (rule 7)."""
    async with open_pair() as (peer, far, listener), trio.open_nursery() as nursery:
        done = trio.Event()

        async def ask() -> None:
            await peer.request("x")
            done.set()

        nursery.start_soon(ask)
        assert (await far.hears())["id"] == 1
        far.says(id=id, result={})
        await wait_all_tasks_blocked()
        assert not done.is_set()
        assert len(listener.complaints) == 1
        far.says(id=1, result={})
        far.says(id=1, result={})
        await wait_all_tasks_blocked()
        assert done.is_set()
        assert listener.complaints[1:] == ["unknown id"]


async def test_what_was_dropped_comes_with_its_text_and_whether_it_may_be_an_answer() -> None:
    no_json = b"Listening" + b"!" * 2000
    other = b'{"jsonrpc":"2.0","id":{},"result":{}}'
    async with open_pair() as (_, far, listener):
        for text in (no_json, other, b"5", b'{"jsonrpc":"2.0","id":9,"result":{}}', b'{"jsonrpc":"2.0","method":"n"}'):
            far.link.write_bytes(text)
        await wait_all_tasks_blocked()
    assert listener.dropped == [
        ("", no_json[:1024]),
        ("the id is neither a string nor an integer", other),
        ("a JSON-RPC message is one object", b"5"),
        ("an id that no request has", b""),
    ]


async def test_whoever_stops_waiting_calls_the_request_off_with_the_reason() -> None:
    """In the id of this hop; the answer may be on its way already (rule 45)."""
    async with open_pair() as (peer, far, listener), trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def ask() -> None:
            with scope:
                await peer.request("x")

        nursery.start_soon(ask)
        asked = await far.hears()
        scope.cancel("the user went home")
        params = {"requestId": asked["id"], "reason": "the user went home"}
        assert await far.hears() == {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
        far.says(id=asked["id"], result={})
        await wait_all_tasks_blocked()
        assert listener.complaints == []  # it may have answered before it heard
        far.says(id=asked["id"], result={})
        await wait_all_tasks_blocked()
        assert listener.complaints == ["unknown id"]


async def test_initialize_is_never_called_off() -> None:
    """(rule 46)"""
    async with open_pair() as (peer, far, _):
        with trio.move_on_after(0.01):
            await peer.request("initialize")
        await far.hears()
        far.hears_nothing()


async def test_an_answer_that_came_first_beats_the_cancel() -> None:
    """(rule 47)"""
    async with open_pair() as (peer, far, _), trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def ask() -> None:
            with scope:
                await peer.request("x")

        nursery.start_soon(ask)
        asked = await far.hears()
        far.says(id=asked["id"], result={})
        await trio.lowlevel.checkpoint()
        scope.cancel()
        await wait_all_tasks_blocked()
        far.hears_nothing()


async def test_a_link_that_takes_nothing_holds_a_cancelled_caller_no_longer_than_the_grace(
    autojump_clock: MockClock,
) -> None:
    class Stuck(MemoryLink):
        async def send_cancel(self, id: Id, notice: Notification) -> None:
            await trio.sleep_forever()

    near, _far = memory_links()
    near.__class__ = Stuck
    async with open_peer(near, Listener()) as peer:
        began = trio.current_time()
        with trio.move_on_after(1):
            await peer.request("x")
        assert trio.current_time() - began == pytest.approx(3)


async def test_whoever_waits_in_another_task_is_told_when_the_peer_is_given_up() -> None:
    async with trio.open_nursery() as nursery:
        near, far = memory_links()

        async def ask(peer: Peer[str]) -> None:
            with pytest.raises(LinkLost, match="the connection was closed"):
                await peer.request("x")

        async with open_peer(near, Listener()) as peer:
            nursery.start_soon(ask, peer)
            await FarEnd(far).hears()


async def test_a_peer_that_is_as_good_as_gone_is_gone() -> None:
    async with open_pair() as (peer, far, _), trio.open_nursery() as nursery:

        async def ask() -> None:
            with pytest.raises(LinkLost, match="no sign of life"):
                await peer.request("x")

        nursery.start_soon(ask)
        await far.hears()
        peer.connection_lost(LinkLost("no sign of life"))
        peer.connection_lost(LinkLost("and again"))
        assert peer.ended.is_set()


async def test_requests_after_the_end_fail_at_once_with_its_reason() -> None:
    async with open_pair() as (peer, far, _):
        far.link.close()
        await peer.ended.wait()
        with pytest.raises(LinkLost, match="the other end was closed"):
            await peer.request("x")


async def test_progress_goes_to_its_own_token_while_it_is_watched() -> None:
    """(rule 42)"""
    async with open_pair() as (peer, far, listener):
        reports: list[bytes] = []
        with peer.progress_token(lambda found: reports.append(bytes(found["progress"]))) as token:
            for each in (token, token + 1, str(token), True, None):
                far.says(method="notifications/progress", params={"progressToken": each, "progress": 1.50})
            far.says(method="notifications/progress", params=[])
            await wait_all_tasks_blocked()
        far.says(method="notifications/progress", params={"progressToken": token, "progress": 2})
        await wait_all_tasks_blocked()
        assert reports == [b"1.5"]
        assert listener.complaints == ["unknown progress token"] * 4 + ["invalid message", "unknown progress token"]


async def test_the_other_sides_requests_are_served_refused_and_called_off() -> None:
    async with open_pair() as (_, far, listener):
        far.says(id="s", method="served")
        far.says(id=2, method="refused")
        far.says(id=3, method="served")
        assert (await far.hears())["error"]["code"] == -32601
        far.says(method="notifications/cancelled", params={"requestId": 3})
        await wait_all_tasks_blocked()
        assert listener.cancelled == 1
        listener.may_answer.set()
        assert await far.hears() == {"jsonrpc": "2.0", "id": "s", "result": {"served": True}}
        far.hears_nothing()


async def test_too_many_requests_of_the_other_side_are_refused() -> None:
    """(rule 5)"""
    async with open_pair() as (_, far, _):
        for id in range(MAX_INCOMING):
            far.says(id=id, method="served")
        far.says(id="more", method="served")
        await wait_all_tasks_blocked()
        refused = await far.hears()
        assert (refused["id"], refused["error"]["code"]) == ("more", 429)


async def test_a_request_that_comes_twice_is_served_once() -> None:
    """An error under its id would be taken for the answer to the first; a stream that is resumed may repeat it."""
    async with open_pair() as (_, far, listener):
        for _ in range(2):
            far.says(id=1, method="served")
        await wait_all_tasks_blocked()
        assert listener.complaints == ["request repeated"]
        assert len(listener.behind) == 1


async def test_what_is_no_message_is_dropped_and_the_next_one_taken() -> None:
    """(rule 1)"""
    async with open_pair() as (_, far, listener):
        for junk in (b"", b"hello", b"{}", b"[]", b"\xff", b'{"jsonrpc":"2.0"}', b"[" * 5000):
            far.link.write_bytes(junk)
        far.says(method="notifications/x")
        await wait_all_tasks_blocked()
        assert listener.complaints == ["invalid message"] * 7
        assert listener.notices == ["notifications/x"]


async def test_a_flood_of_requests_is_refused_and_then_dropped() -> None:
    """What a link that takes nothing could pile up is bounded (rule 5)."""

    class Stuck(MemoryLink):
        async def send(self, parcel: Parcel) -> None:
            await trio.sleep_forever()

    near, far = memory_links()
    near.__class__ = Stuck
    listener = Listener()
    async with open_peer(near, listener):
        for id in range(2 * MAX_ANSWERS):
            FarEnd(far).says(id=id, method="at once")
        await wait_all_tasks_blocked()
        taken = len(listener.behind)
        assert MAX_ANSWERS <= taken <= MAX_ANSWERS + MAX_SENDERS
        assert listener.complaints == ["too many requests"] * (2 * MAX_ANSWERS - taken)


async def test_each_of_many_requests_at_once_is_answered(autojump_clock: MockClock) -> None:
    """A server may ask for each of its calls in one breath. An answer by HTTP takes as long as its POST: one that is
    slow to be taken keeps the others from nobody."""

    class Slow(MemoryLink):
        async def send(self, parcel: Parcel) -> None:
            await trio.sleep(1)
            await super().send(parcel)

    near, far = memory_links()
    near.__class__ = Slow
    async with open_peer(near, Listener()):
        for id in range(10 * MAX_SENDERS):
            FarEnd(far).says(id=id, method="at once")
        began = trio.current_time()
        answered = {(await FarEnd(far).hears())["id"] for _ in range(10 * MAX_SENDERS)}
        assert answered == set(range(10 * MAX_SENDERS))
        assert trio.current_time() == began + 10


async def test_what_a_message_may_belong_to_is_what_was_open_when_it_came(autojump_clock: MockClock) -> None:
    """Or the one request that the link says it came with, and then nothing else, even if that is over (rule 71)."""
    async with open_pair() as (peer, far, listener), trio.open_nursery() as nursery:
        with trio.move_on_after(1):
            await peer.request("m", None, "gone")
        for subject in ("first", "second"):
            nursery.start_soon(peer.request, "m", None, subject)
            await wait_all_tasks_blocked()
        far.says(method="n")
        for id in (1, 2, 3, 4, "2"):
            far.says(about=id, method="n")
        far.says(id=2, result={})
        far.says(id="q", method="served")
        far.says(about=2, id="r", method="served")
        await wait_all_tasks_blocked()
        assert listener.behind == [
            (["first", "second"], {"of gone"}, False),
            ([], set(), True),
            (["first"], set(), True),
            (["second"], set(), True),
            ([], set(), True),
            ([], set(), True),
            (["second"], {"of gone"}, False),
            ([], set(), True),
        ]
        nursery.cancel_scope.cancel()


async def test_an_answer_goes_with_the_request_that_the_question_came_with() -> None:
    class Noting(MemoryLink):
        sent: list[Parcel]

        async def send(self, parcel: Parcel) -> None:
            self.sent.append(parcel)

    near, far = memory_links()
    near.__class__ = Noting
    assert isinstance(near, Noting)
    near.sent = []
    async with open_peer(near, Listener()) as peer:
        FarEnd(far).says(about=7, id=1, method="refused")
        FarEnd(far).says(id=2, method="refused")
        await wait_all_tasks_blocked()
        await peer.notify("n", None, 7)
        await peer.notify("n")
    assert [parcel.about for parcel in near.sent] == [7, None, 7, None]


@pytest.mark.parametrize("id", [3, "4", None, 3.0, True, "", [3], "missing"])
async def test_a_cancel_that_names_nothing_in_flight_stops_nothing(id: object) -> None:
    """It may be about a request of ours: the handler is told (rule 47)."""
    async with open_pair() as (_, far, listener):
        far.says(id="3", method="served")
        far.says(id=4, method="served")
        params = {} if id == "missing" else {"requestId": id}
        far.says(method="notifications/cancelled", params=params)
        far.says(method="notifications/cancelled")
        await wait_all_tasks_blocked()
        assert (listener.cancelled, listener.notices) == (0, ["notifications/cancelled"] * 2)
        listener.may_answer.set()
        assert {(await far.hears())["id"] for _ in range(2)} == {"3", 4}


async def test_after_a_cancel_nothing_is_said_for_that_id() -> None:
    """Not even an error (rule 47)."""
    async with open_pair() as (_, far, listener):
        far.says(id=1, method="served")
        far.says(method="notifications/cancelled", params={"requestId": 1})
        listener.may_answer.set()
        await wait_all_tasks_blocked()
        far.hears_nothing()
        far.says(id=1, method="served")  # it is free again
        assert (await far.hears())["result"] == {"served": True}


async def test_an_answer_that_was_discarded_for_its_length_fails_its_own_request() -> None:
    async with open_pair() as (peer, far, listener), trio.open_nursery() as nursery:
        other = later(nursery, peer.request, "other")
        await wait_all_tasks_blocked()
        failed = later(nursery, _fails, peer, AnswerTooLong)
        await wait_all_tasks_blocked()
        peer._on_message(ReceivedMessage(Malformed(TOO_LARGE, "it is too long", 2, True)))
        assert await failed.comes() == "it is too long"
        assert not other.done
        far.says(id=1, result={})
        assert bytes(await other.comes()) == b"{}"
        assert listener.complaints == ["message too long"]


async def test_a_request_that_was_discarded_for_its_length_is_refused_and_a_notification_is_not() -> None:
    async with open_pair() as (peer, far, listener):
        peer._on_message(ReceivedMessage(Malformed(TOO_LARGE, "too long", "q", False)))
        assert await far.hears() == {"jsonrpc": "2.0", "id": "q", "error": {"code": 413, "message": "too long"}}
        peer._on_message(ReceivedMessage(Malformed(TOO_LARGE, "too long", None, False)))
        await wait_all_tasks_blocked()
        far.hears_nothing()
        assert listener.complaints == ["message too long"] * 2


async def test_an_answer_with_neither_result_nor_error_fails_its_request_at_once() -> None:
    """And no other one."""
    async with open_pair() as (peer, far, listener), trio.open_nursery() as nursery:
        other = later(nursery, peer.request, "other")
        await wait_all_tasks_blocked()
        broken = later(nursery, _fails, peer, BrokenAnswer)
        for _ in range(2):
            await far.hears()
        far.says(id=2)
        assert "the message has no method, result or error" in await broken.comes()
        far.says(id="01")  # another spelling is another request
        far.says(id=1, method="ping")  # a request of its own
        await wait_all_tasks_blocked()
        assert not other.done
        far.says(id=1, result={})
        assert bytes(await other.comes()) == b"{}"
        listener.may_answer.set()


async def _fails(peer: Peer[str], kind: type[Exception]) -> str:
    with pytest.raises(kind) as failed:
        await peer.request("x")
    return str(failed.value)


async def test_once_the_connection_is_lost_nothing_more_is_taken() -> None:
    async with open_pair() as (peer, far, listener):
        far.says(method="a")
        await wait_all_tasks_blocked()
        peer.connection_lost(LinkLost("enough"))
        far.says(method="b")
        await wait_all_tasks_blocked()
        assert listener.notices == ["a"]
        assert (peer.received_count, peer.unasked_count) == (2, 2)


async def test_immediate_answers_are_sent_one_in_each_pass_and_each_must_be_taken_in_time(
    autojump_clock: MockClock,
) -> None:
    """A flood of requests must not take more of a pass by its answers than by its reading (rule 5)."""
    sent: list[Id | None] = []
    passes: list[int] = []

    class Slow(MemoryLink):
        async def send(self, parcel: Parcel) -> None:
            assert isinstance(parcel.message, Success | Failure)
            sent.append(parcel.message.id)
            passes.append(loop.count)
            if parcel.message.id == "stuck":
                await trio.sleep_forever()

    near, far = memory_links()
    near.__class__ = Slow
    loop = LoopPasses()
    trio.lowlevel.add_instrument(loop)
    async with open_peer(near, Listener()):
        for id in range(4):
            FarEnd(far).says(id=id, method="at once")
        await wait_all_tasks_blocked()
        assert sent == [0, 1, 2, 3]
        assert len(set(passes)) == 4
        for name in ("next", *["stuck"] * MAX_SENDERS, "last"):
            FarEnd(far).says(id=name, method="at once")
        await trio.sleep(REPLY_TIMEOUT - 1)
        assert sent[4:] == ["next", *["stuck"] * MAX_SENDERS]
        await trio.sleep(2)
        assert sent[-1] == "last"


# What would take long to open


@pytest.mark.parametrize(
    ("envelope", "complaint"),
    [
        (Envelope(None, False, "notifications/x"), "notification too large"),
        (Envelope(7, True), "unknown id"),
        (Envelope("7", True), "unknown id"),
        (Envelope(7, False, "x"), "invalid message"),
        (Envelope(7, False, "never"), "request too large"),
    ],
)
async def test_a_long_message_is_read_only_if_somebody_may_wait_for_it(envelope: Envelope, complaint: str) -> None:
    async with open_pair() as (peer, _, listener):
        peer._on_message(ReceivedMessage(LongMessage(b"read, this would be no message", envelope)))
        assert listener.complaints == [complaint]


WIDE = {"x": [0] * MAX_NOTIFICATION_TOKENS}
LONG = {"x": "x" * MAX_NOTIFICATION}
PROSE = {"x": "a, b, " * (MAX_NOTIFICATION // 8)}


@pytest.mark.parametrize("method", ["notifications/x", "notifications/progress", "notifications/cancelled"])
async def test_a_notification_that_is_large_is_dropped(method: str) -> None:
    async with open_pair() as (_, far, listener):
        far.says(method=method, params=WIDE)
        far.says(method=method, params=LONG)
        await wait_all_tasks_blocked()
        assert listener.complaints == ["notification too large"] * 2
        far.says(method="notifications/y", params=PROSE)
        await wait_all_tasks_blocked()
        assert listener.notices == ["notifications/y"], "commas in a text are no members"


async def test_a_request_with_very_many_members_is_refused() -> None:
    async with open_pair() as (_, far, listener):
        listener.may_answer.set()
        far.says(id=1, method="x", params={"x": [0] * (MAX_TOKENS + 1)})
        assert (await far.hears())["error"] == {
            "code": -32602,
            "message": f"params hold more than {MAX_TOKENS} structural characters",
        }
        assert listener.complaints == ["request too large"]
        far.says(id=2, method="x", params={"x": "a, b, " * (MAX_SCANNED // 7)})
        assert (await far.hears())["result"] == {"served": True}, "commas in a text are no members"
        far.says(id=3, method="x", params={"x": "a" * 2_000_000})
        assert (await far.hears())["result"] == {"served": True}, "it may hold an image"


async def test_long_params_of_a_request_are_not_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strict, "pieces", None)
    async with open_pair() as (_, far, listener):
        far.says(id=1, method="x", params={"x": "," * MAX_SCANNED})
        assert (await far.hears())["error"]["code"] == -32602
        assert listener.complaints == ["request too large"]


@pytest.mark.parametrize("data", [{"x": [0] * MAX_TOKENS}, {"x": "x" * MAX_ERROR_DATA}])
async def test_an_error_keeps_its_code_and_no_more_data_than_can_be_opened(data: object) -> None:
    refusals: list[ErrorBody] = []
    async with open_pair() as (peer, far, _), trio.open_nursery() as nursery:

        async def ask() -> None:
            try:
                await peer.request("x")
            except PeerError as refusal:
                refusals.append(refusal.error)

        nursery.start_soon(ask)
        id = (await far.hears())["id"]
        far.says(id=id, error={"code": 5, "message": "m" * (MAX_ERROR_MESSAGE + 1), "data": data})
    assert refusals == [ErrorBody(5, "m" * MAX_ERROR_MESSAGE)]
