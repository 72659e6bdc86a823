"""What a server works for: the clock of a call, and what keeps a question open."""

from __future__ import annotations

import trio
from msgspec import Raw
from trio.testing import MockClock

from host.exchange import Caller, Exchange, NoClient
from host.jsonrpc.messages import Request
from host.source import SHARED
from host.upstream.call import CallDeadline, PendingServerRequest, UpstreamCall
from host.wire.deadlines import CallScope


def origin() -> UpstreamCall:
    return UpstreamCall(Exchange(Request(1, "tools/call"), {}, Caller("a", SHARED), NoClient()), CallDeadline(10))


async def test_progress_puts_the_deadline_off_up_to_the_ceiling(autojump_clock: MockClock) -> None:
    """(rule 48)"""
    began = trio.current_time()
    patience = CallDeadline(100, 600)
    with patience.scope:
        while True:
            await trio.sleep(50)
            patience.extend()
    assert trio.current_time() - began == 600


async def test_the_clock_stands_still_while_a_person_is_asked(autojump_clock: MockClock) -> None:
    """However many questions there are, and whatever progress is reported meanwhile (rule 48)."""
    began = trio.current_time()
    patience = CallDeadline(10)
    with patience.scope:
        await trio.sleep(4)
        patience.pause()
        patience.pause()
        await trio.sleep(1000)
        patience.extend()
        patience.resume()
        await trio.sleep(1000)
        patience.resume()
        await trio.sleep_forever()
    assert trio.current_time() - began == 2010


async def test_a_question_lasts_until_all_that_it_may_belong_to_is_over(autojump_clock: MockClock) -> None:
    """(rule 50)"""
    first, second, third = origin(), origin(), origin()
    hold = PendingServerRequest([first, second, third], NoClient())
    assert hold.client is third.exchange.client
    open_after = []
    for one in (third, first, second):
        one.end()
        open_after.append(not hold.scope.cancel_called)
    assert open_after == [True, True, False]
    assert not (first.server_requests | second.server_requests | third.server_requests)


async def test_a_question_that_is_answered_keeps_nothing(autojump_clock: MockClock) -> None:
    one = origin()
    hold = PendingServerRequest([one], NoClient())
    hold.pause_deadlines()
    assert one.deadline.scope.deadline == float("inf")
    hold.release()
    assert one.deadline.scope.deadline == trio.current_time() + 10
    assert one.server_requests == set()


async def test_a_question_that_belongs_to_no_request_goes_to_where_its_client_listens() -> None:
    standing = NoClient()
    assert PendingServerRequest([], standing).client is standing


async def test_a_question_that_ends_after_its_call_moves_no_deadline_of_the_next(autojump_clock: MockClock) -> None:
    """Both calls have the scope of their connection."""
    with (scope := CallScope(stays=True)).take():
        former, present = CallDeadline(10, 60, scope=scope), CallDeadline(10, 60, scope=scope)
        with former:
            former.pause()
        with present:
            expected = scope.deadline = trio.current_time() + 10
            former.resume()
            former.extend()
            former.pause()
            former.remove()
            assert scope.deadline == expected
            await trio.sleep_forever()
        await trio.sleep(100)
    scope.close()


async def test_whether_the_tool_failed_is_looked_at_unless_that_was_done() -> None:
    """By the outline of a result, if that was made of this very result."""
    call, failed = origin(), Raw(b'{"isError":true}')
    assert call.look_at(failed) == (None, True)
    call.keep_outline(failed, Raw(b"{}"))
    assert call.look_at(failed) == (Raw(b"{}"), False)
    assert call.look_at(Raw(b'{"isError":true} ')) == (None, True)
    call.tool_error = False
    assert call.look_at(Raw(b'{"isError":true} ')) == (None, False)
    prompt = Exchange(Request(1, "prompts/get"), {}, Caller("a", SHARED), NoClient())
    assert UpstreamCall(prompt, CallDeadline(10)).look_at(failed) == (None, False)
