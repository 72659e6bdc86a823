"""When a session counts as over, and how often that is checked, without any server."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from host.wire.session_check import CHECK_TIMEOUT, MAX_CHECK_WAIT, MAX_REFUSED, SessionCheck, speaks_of_session


@pytest.mark.parametrize(
    ("message", "speaks"),
    [
        ("Bad Request: No valid session ID provided", True),
        ("Session not found", True),
        ("Invalid sessionId", True),
        ("Mcp-Session-Id header is required", True),
        ("Bad Request: Server not initialized", True),
        ("Received request before it was not yet initialised", True),
        ("Invalid params: name is missing", False),
        ("Internal error", False),
        ("", False),
        ("x" * 2000 + "session", False),
    ],
)
def test_errors_that_speak_of_a_session(message: str, speaks: bool) -> None:
    assert speaks_of_session(message) is speaks


class Asked:
    """The two requests of a check: what they find, and when they were sent."""

    def __init__(self, ping: bool | None, initialize: bool | None = None) -> None:
        self.ping, self.initialize = ping, initialize
        self.pings: list[float] = []
        self.initializes: list[float] = []
        self.check = SessionCheck(self._ping, self._initialize)

    async def _ping(self) -> bool | None:
        self.pings.append(trio.current_time())
        await trio.sleep(0.1)
        return self.ping

    async def _initialize(self) -> bool | None:
        self.initializes.append(trio.current_time())
        await trio.sleep(0.1)
        return self.initialize


@pytest.mark.parametrize(
    ("ping", "initialize", "over"),
    [
        (False, True, True),
        (False, False, False),
        (False, None, False),
        (True, True, False),
        (None, True, False),  # it is not known whether the server knows the session
    ],
)
async def test_a_session_is_over_if_its_ping_is_refused_and_another_session_opens(
    ping: bool | None, initialize: bool | None, over: bool, autojump_clock: MockClock
) -> None:
    asked = Asked(ping, initialize)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(asked.check.run)
        found: list[bool] = []

        async def find() -> None:
            found.append(await asked.check.finds_over())

        async with trio.open_nursery() as finding:
            for _ in range(3):
                finding.start_soon(find)
        assert found == [over] * 3
        assert await asked.check.finds_over() is over
        nursery.cancel_scope.cancel()


async def test_while_a_server_opens_no_session_either_it_is_asked_less_and_less_and_then_no_more(
    autojump_clock: MockClock,
) -> None:
    asked = Asked(False, False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(asked.check.run)
        for _ in range(3000):
            asked.check.doubt()
            await trio.sleep(0.1)
            if len(asked.pings) == 3:
                # A refused request does not wait for a check that is far away.
                before = trio.current_time()
                await asked.check.finds_over()
                assert trio.current_time() - before < MAX_CHECK_WAIT + 0.5
    gaps = [later - earlier for earlier, later in zip(asked.pings, asked.pings[1:], strict=False)]
    assert [round(gap) for gap in gaps] == [2, 4, 8]
    assert len(asked.initializes) == MAX_REFUSED
    assert not asked.check.is_over


async def test_a_refusal_during_a_check_waits_for_one_whose_ping_is_later(autojump_clock: MockClock) -> None:
    """The ping of the first one was answered before the session was lost."""
    asked = Asked(True, True)
    found: list[bool] = []

    async def find() -> None:
        found.append(await asked.check.finds_over())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(asked.check.run)
        nursery.start_soon(find)
        await trio.sleep(0.05)
        nursery.start_soon(find)
        await trio.sleep(0.1)
        asked.ping = False
    assert found == [False, True]


async def test_refusals_during_a_check_do_not_have_an_earlier_one_wait(autojump_clock: MockClock) -> None:
    asked = Asked(True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(asked.check.run)

        async def refuse() -> None:
            while True:
                asked.check.doubt()
                await trio.sleep(0.01)

        nursery.start_soon(refuse)
        for _ in range(3):
            before = trio.current_time()
            assert not await asked.check.finds_over()
            assert trio.current_time() - before < MAX_CHECK_WAIT + 0.5
        nursery.cancel_scope.cancel()


async def test_a_server_that_does_not_answer_ends_no_session(autojump_clock: MockClock) -> None:
    async def silent() -> bool:
        await trio.sleep(1000)
        return False

    check = SessionCheck(silent, silent)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(check.run)
        before = trio.current_time()
        assert not await check.finds_over()
        assert trio.current_time() - before == CHECK_TIMEOUT
        nursery.cancel_scope.cancel()


async def test_nobody_waits_for_a_check_of_a_link_that_is_over(autojump_clock: MockClock) -> None:
    asked = Asked(True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(asked.check.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert not await asked.check.finds_over()
