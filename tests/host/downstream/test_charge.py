"""What one request is charged with, from its first byte to its answer; and what clients see over HTTP when the memory
of the host is used up."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from host.downstream.charge import COPIES, TOKEN_WITHDRAWN, RequestCharge, answer_too_large
from host.downstream.http.security import MAX_BODY
from host.memory import Budget, OverBudget, Use, client_owner
from tests.kit.asgi import Connection, open_http_app, open_session
from tests.kit.world import ScriptedServer

MIB = 1024 * 1024


def one(total: int) -> tuple[Budget, RequestCharge]:
    budget = Budget(total)
    return budget, RequestCharge(budget, client_owner(None))


def test_a_request_is_charged_by_its_bytes_then_its_copies_then_with_its_answer() -> None:
    budget, charge = one(1000)
    with charge:
        charge.add_request_bytes(30)
        charge.add_request_bytes(70)
        assert budget.used == 100
        charge.begin_processing()
        assert budget.used == COPIES * 100
        charge.set_answer_size(500)
        assert budget.by_use()[Use.REQUESTS] == 600
    assert budget.used == 0


@pytest.mark.parametrize(("size", "fits"), [(899, True), (900, True), (901, False)])
def test_an_answer_fits_beside_its_request_or_not(size: int, fits: bool) -> None:
    budget, charge = one(1000)
    charge.add_request_bytes(100)
    if fits:
        charge.set_answer_size(size)
    else:
        with pytest.raises(OverBudget):
            charge.set_answer_size(size)
    assert budget.used == 100 + (size if fits else 0)


async def test_the_block_that_runs_is_cancelled_when_its_memory_is_needed() -> None:
    budget, charge = one(1000)
    charge.add_request_bytes(900)
    with trio.fail_after(5), charge.droppable() as dropping:
        budget.hold(client_owner("ada"), Use.REQUESTS, 400, lambda: None)
        await trio.sleep(math.inf)
    assert dropping.cancelled_caught
    assert charge.dropped


async def test_what_was_dropped_between_two_blocks_cancels_the_next_one() -> None:
    budget, charge = one(1000)
    charge.add_request_bytes(900)
    with charge.droppable():
        pass
    budget.hold(client_owner("ada"), Use.REQUESTS, 400, lambda: None)
    with charge.droppable() as dropping:
        await trio.sleep(math.inf)
    assert dropping.cancelled_caught


def test_the_error_in_place_of_an_answer_is_charged_anew() -> None:
    budget, charge = one(1000)
    charge.add_request_bytes(300)
    charge.begin_processing()
    budget.hold(client_owner("ada"), Use.REQUESTS, 400, lambda: None)
    assert charge.dropped
    charge.set_answer_size(50)
    assert (charge.dropped, budget.by_owner()[client_owner(None)]) == (False, 350)
    charge.release()


def test_errors_say_how_far_the_request_came() -> None:
    assert (answer_too_large(1, 7).id, answer_too_large(1, 7).error.code) == (1, 413)
    assert "was carried out" in answer_too_large(1, 7).error.message
    budget, charge = one(1000)
    charge.add_request_bytes(10)
    said = charge.cancelled(2).error
    assert (said.code, "may have carried it out" in said.message, "memory" in said.message) == (503, True, True)
    budget.revoke(lambda of: TOKEN_WITHDRAWN)
    said = charge.cancelled(2).error
    assert (said.code, "token was withdrawn" in said.message, "memory" in said.message) == (503, True, False)


@pytest.mark.parametrize("early", [True, False])
async def test_a_request_ends_when_its_owner_is_no_longer_served(early: bool) -> None:
    """Whether it waits already or is about to. A later request of the same owner is charged as ever."""
    budget, charge = one(1000)
    if early:
        budget.revoke(lambda of: TOKEN_WITHDRAWN)
    with charge.droppable() as scope:
        if not early:
            budget.revoke(lambda of: TOKEN_WITHDRAWN)
        await trio.lowlevel.checkpoint()
    assert (scope.cancelled_caught, charge.revoked, budget.used) == (True, TOKEN_WITHDRAWN, 0)
    with pytest.raises(OverBudget):
        charge.begin_processing(5)
    with RequestCharge(budget, client_owner(None)) as later:
        later.begin_processing(5)
        assert not later.revoked


# Over HTTP


def text(size: int) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": "x" * size}]}


async def much(params: dict[str, Any]) -> dict[str, Any]:
    await trio.lowlevel.checkpoint()
    return text(params["arguments"]["size"])


def call(size: int, id: int = 1) -> dict[str, Any]:
    params = {"name": "a__x", "arguments": {"size": size}}
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}


def server() -> ScriptedServer:
    return ScriptedServer("a", tools=["x"], answers={"tools/call": much})


async def small_calls_work(connection: Connection, times: int = 3) -> None:
    other = connection.another()
    await other.open()
    for n in range(times):
        assert "result" in await other.request("tools/call", {"name": "a__x", "arguments": {"size": 10}}, id=n)


async def test_bodies_that_are_withheld_give_way_to_small_requests(autojump_clock: MockClock) -> None:
    """Two hundred bodies but for their last byte: what is over the budget is refused, and nothing of it is kept."""
    async with open_http_app(server()) as (world, connection):
        world.memory.total = 32 * MIB
        piece = b" " * (MAX_BODY - 1)
        withheld = [connection.another().send("POST", pieces=[piece]) for _ in range(200)]
        await wait_all_tasks_blocked()
        assert world.memory.used <= world.memory.total
        refused = [answer for answer in withheld if answer.status]
        assert len(refused) >= 192
        heads = {(each.status, each.headers["retry-after"], each.headers["connection"]) for each in refused}
        assert heads == {(503, "1", "close")}
        assert "nothing was carried out" in refused[0].messages()[0]["error"]["message"]
        await small_calls_work(connection)
        await trio.sleep(11)
        assert world.memory.by_use()["requests"] == 0


@pytest.mark.slow
async def test_answers_that_are_not_taken_give_way(autojump_clock: MockClock) -> None:
    """Sixty readers of a megabyte that read nothing: those that stand still longest are cut off; small calls work."""
    async with open_http_app(server()) as (world, connection):
        world.memory.total = 5 * MIB
        stalled = []
        for n in range(60):
            other = connection.another()
            await other.open()
            other.reads = trio.Event()
            stalled.append(other.send("POST", body=call(MIB, n)))
            await trio.sleep(0.1)  # long results are passed on at a pace
            assert world.memory.used <= world.memory.total
            if n % 10 == 9:
                await small_calls_work(connection, 1)
        assert world.memory.by_owner()[client_owner(None)] > 3 * MIB
        assert not any(answer.complete.is_set() for answer in stalled)


async def test_an_answer_without_memory_says_that_the_call_was_carried_out() -> None:
    async with open_http_app(server()) as (world, connection):
        world.memory.total = 4 * MIB
        await connection.open()
        answer = await connection.request("tools/call", {"name": "a__x", "arguments": {"size": 5 * MIB}})
        # It did not fit while it was looked through, when it was still the server's.
        assert answer["result"]["isError"]
        assert "a executed the request" in answer["result"]["content"][0]["text"]
        await small_calls_work(connection)
        assert world.memory.by_use()["requests"] == 0


@pytest.mark.parametrize(("size", "code"), [(100 * 1024 - 400, None), (100 * 1024, 413)])
async def test_an_answer_may_take_all_of_the_budget_and_no_more(size: int, code: int | None) -> None:
    async with open_session(server()) as (world, connection):
        world.memory.total = 100 * 1024
        answer = await connection.request("tools/call", {"name": "a__x", "arguments": {"size": size}})
        assert answer.get("error", {}).get("code") == code


async def test_a_call_under_way_is_called_off_for_its_memory_and_says_so(autojump_clock: MockClock) -> None:
    a = ScriptedServer("a", tools=["x"])
    async with open_http_app(a) as (world, connection):
        world.memory.total = 160 * 1024
        await connection.open()
        large = call(1)
        large["params"]["arguments"]["padding"] = "p" * 30 * 1024
        waiting = connection.send("POST", body=large)
        await a.hears("tools/call")
        await trio.sleep(5)
        taken = [connection.another().send("POST", pieces=[b" " * 40 * 1024]) for _ in range(4)]
        with trio.fail_after(5):
            await waiting.complete.wait()
        error = waiting.messages()[-1]["error"]
        assert (error["code"], "may have carried it out" in error["message"]) == (503, True)
        assert (await a.hears("notifications/cancelled"))["requestId"] is not None
        del taken


@pytest.mark.slow
async def test_kept_answers_are_forgotten_where_memory_is_needed(autojump_clock: MockClock) -> None:
    """Three hundred sessions that each keep a large answer."""
    async with open_http_app(server()) as (world, connection):
        world.memory.total = MIB
        for n in range(300):
            session = connection.another()
            await session.open(revision="2025-03-26")
            kept = await session.get("POST", body=[call(32 * 1024, n)])
            assert "result" in kept.messages()[-1]
            assert world.memory.used <= world.memory.total
        assert world.memory.by_use()["streams"] > MIB // 2
        await small_calls_work(connection)


async def test_an_open_stream_that_is_not_read_is_cut_off(autojump_clock: MockClock) -> None:
    """And its session goes on."""
    async with open_http_app(server()) as (world, connection):
        world.memory.total = 120 * 1024
        await connection.open(revision="2025-03-26")
        stuck = connection.another(connection.session)
        await stuck.get("POST", body={"jsonrpc": "2.0", "id": 7, "method": "ping"})
        stuck.reads = trio.Event()
        answer = stuck.send("POST", body=[call(70 * 1024)])
        await wait_all_tasks_blocked()
        assert world.memory.by_use()["streams"] > 70 * 1024
        await trio.sleep(1)
        other = connection.another()
        await other.open()
        assert "result" in await other.request("tools/call", {"name": "a__x", "arguments": {"size": 70 * 1024}})
        assert not answer.complete.is_set()
        assert world.memory.by_use()["streams"] == 0
        assert (await connection.request("ping"))["result"] == {}


@pytest.mark.slow
async def test_whatever_clients_do_the_budget_comes_to_rest(autojump_clock: MockClock) -> None:
    """Two thousand requests, whose clients leave, stall, withhold, or read: in the end nothing is charged for them."""
    chance = random.Random(11)
    async with open_http_app(server()) as (world, connection):
        world.memory.total = 128 * 1024
        sessions = [connection.another() for _ in range(4)]
        for session in sessions:
            await session.open(revision=chance.choice(["2025-03-26", "2025-11-25"]))
        begun: list[Connection] = []
        for n in range(2000):
            other = connection.another(chance.choice(sessions).session)
            begun.append(other)
            size = chance.choice([1, 100, 1000, 5000, 30_000, 200_000])
            if chance.random() < 0.3:
                other.reads = trio.Event()
            if chance.random() < 0.2:
                other.send("POST", pieces=[b" " * chance.randrange(128 * 1024)])
            else:
                other.send("POST", body=call(size, n))
            if chance.random() < 0.5:
                await trio.lowlevel.checkpoint()
            for _ in range(chance.randrange(3)):
                chance.choice(begun).leaves.set()
            if n % 100 == 0:
                await wait_all_tasks_blocked()
                assert world.memory.used <= world.memory.total
                await small_calls_work(connection, 1)
        for other in begun:
            other.leaves.set()
            other.reads.set()
        await trio.sleep(400)
        assert world.memory.by_use()["requests"] == 0
        for session in sessions:
            assert (await session.get("DELETE")).status == 204
        assert world.memory.by_use() == {each.value: 0 for each in Use} | {"lists": world.memory.by_use()["lists"]}
