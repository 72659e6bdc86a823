"""Open streams are shared among identities: one never has so many that another has none."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager

import pytest
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from config import Auth, Capacity, Listen, Secret
from host.downstream.http.open_streams import OpenStreams, StreamKind
from host.downstream.http.replies import MAX_FINISHED, EventStream
from host.downstream.http.request import Rejected
from host.memory import client_owner
from host.source import SHARED
from tests.kit.asgi import Connection, Response, open_http_app
from tests.kit.cost import counted_calls
from tests.kit.examples import examples
from tests.kit.world import ScriptedServer

MAX_TOTAL = Capacity().most_streams
MAX_STREAMS = MAX_TOTAL // 2
TOKENS = Listen(auth=Auth({"laptop": Secret("l" * 32), "desk": Secret("d" * 32)}))


class Opened:
    """A stream that leaves when it is told to, or by itself."""

    def __init__(self, streams: OpenStreams, kind: StreamKind, identity: str | None, *, in_use: bool = False):
        self.identity = identity
        self.kind = kind
        self.ended = False
        self._place: AbstractContextManager[None] = streams.slot(
            kind, SHARED, identity, self._end, in_use=lambda: in_use, id=7
        )
        self._place.__enter__()

    def _end(self) -> None:
        self.ended = True

    def leave(self) -> None:
        self._place.__exit__(None, None, None)


def test_one_identity_has_all_until_another_comes_and_then_they_share() -> None:
    streams = OpenStreams(MAX_TOTAL)
    laptop = [Opened(streams, StreamKind.LISTEN, "laptop") for _ in range(MAX_STREAMS)]
    with pytest.raises(Rejected) as rejected:
        Opened(streams, StreamKind.LISTEN, "laptop")
    assert (rejected.value.refusal.status, rejected.value.id) == (503, 7)
    desk = [Opened(streams, StreamKind.LISTEN, "desk") for _ in range(MAX_STREAMS // 2)]
    with pytest.raises(Rejected):
        Opened(streams, StreamKind.LISTEN, "desk")
    assert [each.ended for each in laptop] == [True] * len(desk) + [False] * (MAX_STREAMS - len(desk)), "oldest first"
    assert not any(each.ended for each in desk)
    with pytest.raises(Rejected):
        Opened(streams, StreamKind.LISTEN, "laptop")
    Opened(streams, StreamKind.SSE, "laptop")


def test_all_transports_together_leave_connections_for_messages() -> None:
    streams = OpenStreams(MAX_TOTAL)
    laptop = [Opened(streams, StreamKind.SSE, "laptop") for _ in range(MAX_STREAMS)]
    laptop += [Opened(streams, StreamKind.STREAMABLE, "laptop") for _ in range(MAX_TOTAL - MAX_STREAMS)]
    with pytest.raises(Rejected):
        Opened(streams, StreamKind.LISTEN, "laptop")
    Opened(streams, StreamKind.LISTEN, "desk")
    assert sum(each.ended for each in laptop) == 1
    assert len(streams) == MAX_TOTAL
    others = MAX_TOTAL - MAX_STREAMS
    assert streams.count() == {"standing": others, "sse": MAX_STREAMS - 1, "listen": 1}


async def test_whoever_looks_at_the_clients_sees_how_many_streams_are_open() -> None:
    async with open_http_app() as (_, client):
        await client.open()
        client.send("GET")
        await trio.testing.wait_all_tasks_blocked()
        assert client.clients.streams() == {"standing": 1, "sse": 0, "listen": 0}


def test_a_stream_with_calls_goes_last() -> None:
    streams = OpenStreams(8)
    laptop = [Opened(streams, StreamKind.SSE, "laptop", in_use=n < 3) for n in range(4)]
    Opened(streams, StreamKind.SSE, "desk")
    assert [each.ended for each in laptop] == [False, False, False, True]
    Opened(streams, StreamKind.SSE, "desk")
    assert [each.ended for each in laptop] == [True, False, False, True]


def test_without_tokens_all_are_one_identity() -> None:
    streams = OpenStreams(MAX_TOTAL)
    opened = [Opened(streams, StreamKind.SSE, None) for _ in range(MAX_STREAMS)]
    with pytest.raises(Rejected):
        Opened(streams, StreamKind.SSE, None)
    opened[0].leave()
    Opened(streams, StreamKind.SSE, None)


def test_a_newcomer_costs_the_same_however_many_streams_are_open() -> None:
    costs = []
    for count in (20, 200):
        streams = OpenStreams(2 * count)
        for _ in range(count):
            Opened(streams, StreamKind.SSE, "laptop")
        Opened(streams, StreamKind.SSE, "desk")
        with counted_calls() as calls:
            Opened(streams, StreamKind.SSE, "desk")
        costs.append(len(calls))
    assert costs[0] == costs[1]


@settings(max_examples=examples(50))
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(StreamKind), st.booleans()), max_size=80))
def test_whoever_comes_in_any_order_the_limits_hold_and_nobody_with_few_loses_or_lacks_one(
    steps: list[tuple[str, StreamKind, bool]],
) -> None:
    streams, opened = OpenStreams(12), list[Opened]()
    for identity, kind, leaves in steps:
        present = [each for each in opened if not each.ended]
        mine = [each for each in present if each.identity == identity]
        if leaves and mine:
            mine[0].leave()
            opened.remove(mine[0])
            continue
        try:
            opened.append(Opened(streams, kind, identity))
        except Rejected:
            assert len([each for each in mine if each.kind is kind]) >= 1 or len(mine) >= 2
        for lost in [each for each in present if each.ended]:
            before = sum(each.identity == lost.identity for each in present)
            assert before >= 2, "the last stream of an identity is never taken"
        left = [each for each in opened if not each.ended]
        assert len(left) == len(streams) <= 12
        assert all(sum(each.kind is one for each in left) <= 6 for one in StreamKind)


# Over the transports


def client_of(connection: Connection, name: str) -> Connection:
    client = connection.another()
    client.headers["authorization"] = f"Bearer {name[0] * 32}"
    return client


async def open_standing(client: Connection) -> Response:
    """Whatever the stream of a session says, it says on a connection of its own."""
    await client.open()
    answer = client.another(client.session).send("GET")
    await answer.started.wait()
    return answer


async def resume_standing(client: Connection) -> Response:
    """After its first event."""
    answer = client.another(client.session).send("GET", headers={"last-event-id": "1-0"})
    await answer.started.wait()
    return answer


async def give_up_place(connection: Connection) -> tuple[Connection, Connection]:
    """A client that has left its standing stream, and another one, whose own took the place."""
    first, second = connection.another(), connection.another()
    await first.open()
    reader = first.another(first.session)
    answer = reader.send("GET")
    await answer.started.wait()
    reader.leaves.set()
    assert (await open_standing(second)).status == 200
    return first, second


async def open_sse(client: Connection) -> Response:
    answer = client.send("GET", "/sse")
    await answer.started.wait()
    return answer


async def open_listen(client: Connection) -> Response:
    answer = client.start("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    await answer.started.wait()
    return answer


OPENING = [open_standing, open_sse, open_listen]


@pytest.mark.parametrize("open_one", OPENING)
async def test_a_second_token_gets_its_stream_and_one_of_the_first_ends_in_order(
    autojump_clock: MockClock, open_one: Callable[[Connection], Awaitable[Response]]
) -> None:
    async with open_http_app(ScriptedServer("a", tools=["x"]), capacity=Capacity(streams=6), listen=TOKENS) as (
        _,
        connection,
    ):
        laptop = [await open_one(client_of(connection, "laptop")) for _ in range(4)]
        assert [answer.status for answer in laptop] == [200, 200, 200, 503]
        assert laptop[3].headers["retry-after"] == "5"
        desk = await open_one(client_of(connection, "desk"))
        assert desk.status == 200
        await laptop[0].complete.wait()
        assert [answer.complete.is_set() for answer in (*laptop[1:3], desk)] == [False] * 3
        if open_one is open_listen:
            assert "result" in laptop[0].messages()[-1]


@pytest.mark.slow
async def test_four_hundred_streams_of_one_token_leave_one_for_the_other(autojump_clock: MockClock) -> None:
    async with open_http_app(ScriptedServer("a", tools=["x"]), listen=TOKENS) as (_, connection):
        laptop, desk = client_of(connection, "laptop"), client_of(connection, "desk")
        answers = [await open_listen(laptop) for _ in range(MAX_STREAMS + 10)]
        assert [answer.status for answer in answers] == [200] * MAX_STREAMS + [503] * 10
        assert (await open_listen(desk)).status == 200


async def test_a_stream_that_is_resumed_needs_a_place_like_any_other(autojump_clock: MockClock) -> None:
    async with open_http_app(ScriptedServer("a", tools=["x"]), capacity=Capacity(streams=2)) as (_, connection):
        first, second = await give_up_place(connection)
        assert (await resume_standing(first)).status == 503
        assert (await resume_standing(second)).status == 200, "it takes over the place that its session has"


@pytest.mark.parametrize("open_one", OPENING)
async def test_a_stream_for_which_there_is_no_place_leaves_nothing_behind(
    autojump_clock: MockClock, open_one: Callable[[Connection], Awaitable[Response]]
) -> None:
    async with open_http_app(ScriptedServer("a", tools=["x"]), capacity=Capacity(streams=2), listen=TOKENS) as (
        world,
        connection,
    ):
        assert (await open_one(client_of(connection, "laptop"))).status == 200
        desk = client_of(connection, "desk")
        assert (await open_one(desk)).status == 503
        if desk.session is not None:
            assert (await desk.get("DELETE")).status == 204
        await trio.testing.wait_all_tasks_blocked()
        assert client_owner("desk") not in world.memory.by_owner()


async def test_a_session_keeps_no_standing_stream_for_which_there_was_no_place(autojump_clock: MockClock) -> None:
    """But one that can be resumed."""
    async with open_http_app(ScriptedServer("a", tools=["x"]), capacity=Capacity(streams=2)) as (_, connection):
        first, second = await give_up_place(connection)
        before = kept_streams()
        for _ in range(MAX_FINISHED + 1):
            assert (await first.get("GET")).status == 503
        assert kept_streams() == before
        await second.get("DELETE")
        resumed = await resume_standing(first)
        assert resumed.status == 200
        assert b"id: 1-0" not in resumed.body


def kept_streams() -> int:
    gc.collect()
    return sum(type(each) is EventStream for each in gc.get_objects())
