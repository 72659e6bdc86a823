"""A peer against a far end that the test plays by hand."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from msgspec import Raw
from trio.testing import MockClock, wait_all_tasks_blocked

from host.jsonrpc.messages import ErrorBody, Id, Notification, Request
from host.peer import MAX_SERVED, BrokenAnswer, Peer, PeerError, open_peer
from host.wire.link import LinkLost
from tests.kit.memory import MemoryLink, memory_links


class Listener:
    """A handler that notes what comes, and answers when told to."""

    def __init__(self) -> None:
        self.notices: list[str] = []
        self.complaints: list[str] = []
        self.may_answer = trio.Event()
        self.cancelled = 0

    async def answer(self, request: Request, about: Id | None) -> Raw:
        if request.method == "refused":
            raise PeerError(ErrorBody(-32601, "no"))
        try:
            await self.may_answer.wait()
        except trio.Cancelled:
            self.cancelled += 1
            raise
        return Raw(b'{"served":true}')

    def told(self, notice: Notification, about: Id | None) -> None:
        self.notices.append(notice.method)

    def dropped(self, what: str, detail: str) -> None:
        self.complaints.append(what)


class FarEnd:
    def __init__(self, link: MemoryLink) -> None:
        self.link = link

    async def hears(self) -> Any:
        with trio.fail_after(5):
            return json.loads(await self.link._incoming.receive())

    def hears_nothing(self) -> None:
        with pytest.raises(trio.WouldBlock):
            self.link._incoming.receive_nowait()

    def says(self, **message: Any) -> None:
        self.link.put(json.dumps({"jsonrpc": "2.0", **message}).encode())


@asynccontextmanager
async def open_pair() -> AsyncIterator[tuple[Peer, FarEnd, Listener]]:
    near, far = memory_links()
    listener = Listener()
    async with open_peer(near, listener) as peer:
        yield peer, FarEnd(far), listener


async def test_an_answer_ends_its_own_request_whatever_the_order() -> None:
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


@pytest.mark.parametrize("id", ["1", 1.0, True, None, 2, -1])
async def test_an_answer_to_another_id_ends_nothing(id: object) -> None:
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


async def test_whoever_stops_waiting_calls_the_request_off_with_the_reason() -> None:
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
        assert listener.complaints == ["unknown id"]


async def test_initialize_is_never_called_off() -> None:
    async with open_pair() as (peer, far, _):
        with trio.move_on_after(0.01):
            await peer.request("initialize")
        await far.hears()
        far.hears_nothing()


async def test_an_answer_that_came_first_beats_the_cancel() -> None:
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
        async def call_off(self, id: Id, notice: Notification) -> None:
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

        async def ask(peer: Peer) -> None:
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
        peer.lose(LinkLost("no sign of life"))
        peer.lose(LinkLost("and again"))
        assert peer.ended.is_set()


async def test_requests_after_the_end_fail_at_once_with_its_reason() -> None:
    async with open_pair() as (peer, far, _):
        far.link.close()
        await peer.ended.wait()
        with pytest.raises(LinkLost, match="the other end was closed"):
            await peer.request("x")


async def test_progress_goes_to_its_own_token_while_it_is_watched() -> None:
    async with open_pair() as (peer, far, listener):
        reports: list[bytes] = []
        with peer.progress(lambda found: reports.append(bytes(found["progress"]))) as token:
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


async def test_too_many_requests_of_the_other_side_and_a_reused_id_are_refused() -> None:
    async with open_pair() as (_, far, _):
        for id in range(MAX_SERVED):
            far.says(id=id, method="served")
        far.says(id=0, method="served")
        far.says(id="more", method="served")
        await wait_all_tasks_blocked()
        refused = [await far.hears() for _ in range(2)]
        assert {(each["id"], each["error"]["code"]) for each in refused} == {(0, -32600), ("more", 429)}


async def test_what_is_no_message_is_dropped_and_the_next_one_taken() -> None:
    async with open_pair() as (_, far, listener):
        for junk in (b"", b"hello", b"{}", b"[]", b"\xff", b'{"jsonrpc":"2.0"}', b"[" * 5000):
            far.link.put(junk)
        far.says(method="notifications/x")
        await wait_all_tasks_blocked()
        assert listener.complaints == ["invalid message"] * 7
        assert listener.notices == ["notifications/x"]
