"""States of a connection that change, and who waits for them."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import replace

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from config import Secret, StdioServer, Trust
from host.errors import LoginNeeded, Unavailable
from host.upstream.lifecycle import ABSENT_FOR, RETRY_WAIT, Lifecycle
from host.upstream.state import Absent, Connecting, Disabled, Failed, Held, Installing, NeedsLogin, State, Stopped

Wait = Callable[[], Awaitable[None]]

ABSENT = Absent(0.0, "it accepts no session: no", is_reached=True)
SPEC = StdioServer(id="a", command=(Secret("/bin/true"),))


def lifecycle(state: State) -> Lifecycle:
    return Lifecycle(state, lambda: None)


class Waiting:
    """Whether waits have ended."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self.ended: list[Wait] = []

    async def begin(self, wait: Wait) -> None:
        async def waits() -> None:
            await wait()
            self.ended.append(wait)

        self._nursery.start_soon(waits)
        await wait_all_tasks_blocked()

    async def has_ended(self, wait: Wait) -> bool:
        await wait_all_tasks_blocked()
        return wait in self.ended


async def test_what_begins_as_something_else_than_starting_is_known_at_once() -> None:
    for state in (Disabled(), Failed(0.0, "gone", 1.0)):
        life = lifecycle(state)
        assert life.recalled.is_set()
        assert life.listed.is_set()
        assert life.settled.is_set()
        assert life.started.is_set()
        assert not life.is_starting
    for starting in (Connecting(0.0, None), Stopped(0.0)):
        life = lifecycle(starting)
        assert not life.recalled.is_set()
        assert not life.listed.is_set()
        assert life.is_starting


async def test_each_change_is_told() -> None:
    told: list[State] = []
    life = Lifecycle(Connecting(0.0, None), lambda: told.append(life.state))
    life.state = Held(1.0, "changed")
    life.state = Connecting(2.0, None)
    assert told == [Held(1.0, "changed"), Connecting(2.0, None)]


async def test_whoever_waits_for_the_start_opens_a_stopped_connection() -> None:
    life = lifecycle(Stopped(0.0))
    async with trio.open_nursery() as nursery:
        waiting = Waiting(nursery)
        await waiting.begin(life.wait_used)
        await waiting.begin(life.wait_started)
        assert await waiting.has_ended(life.wait_used)
        life.state = Connecting(1.0, None)
        assert not await waiting.has_ended(life.wait_started)
        life.state = Failed(2.0, "gone", 3.0)
        assert await waiting.has_ended(life.wait_started)
        life.state = Stopped(4.0)  # another use is needed
        again = Waiting(nursery)
        await again.begin(life.wait_used)
        assert not await again.has_ended(life.wait_used)
        nursery.cancel_scope.cancel()


async def test_an_absent_connection_is_due_after_a_while_and_opened_by_its_next_use(autojump_clock: MockClock) -> None:
    life = lifecycle(ABSENT)
    async with trio.open_nursery() as nursery:
        waiting = Waiting(nursery)
        await waiting.begin(life.wait_used)
        due = [life.is_due]
        await trio.sleep(ABSENT_FOR + 1)
        due.append(life.is_due)
        assert not await waiting.has_ended(life.wait_used)
        life.use()
        assert await waiting.has_ended(life.wait_used)
        assert [*due, life.is_due] == [False, True, False]


async def test_the_first_use_for_lists_begins_the_time_that_they_are_waited_for(autojump_clock: MockClock) -> None:
    life = lifecycle(Stopped(0.0))
    await trio.sleep(10)
    life.use_first()
    assert life.created_at == trio.current_time()
    await life.wait_used()
    before = life.created_at
    await trio.sleep(10)
    life.use_first()  # it is in use
    life.state = Connecting(0.0, None)
    life.use_first()
    assert life.created_at == before


async def test_a_call_waits_for_the_next_attempt_only_if_it_is_near(autojump_clock: MockClock) -> None:
    life = lifecycle(Failed(0.0, "gone", trio.current_time() + RETRY_WAIT + 1))
    await life.wait_retried()
    life.state = Failed(0.0, "gone", trio.current_time() + RETRY_WAIT - 1)
    with trio.move_on_after(60) as waiting:
        await life.wait_retried()
    assert waiting.cancelled_caught


async def test_a_login_is_waited_for() -> None:
    life = lifecycle(Connecting(0.0, None))
    await life.wait_logged_in()
    life.state = NeedsLogin(1.0, "the server wants a login")
    async with trio.open_nursery() as nursery:
        waiting = Waiting(nursery)
        await waiting.begin(life.wait_logged_in)
        assert not await waiting.has_ended(life.wait_logged_in)
        life.state = Connecting(2.0, None)
        assert await waiting.has_ended(life.wait_logged_in)


async def test_a_connection_without_a_client_says_why() -> None:
    """That of an untrusted server to nobody if its text may be in it."""
    life = lifecycle(Failed(0.0, "it says: look at /home/me/x", 1.0))
    assert life.client is None
    assert str(life.unavailable(SPEC)).startswith("a is unavailable: it says: look at")
    untrusted = StdioServer(id="a", command=SPEC.command, trust=Trust.UNTRUSTED)
    assert str(life.unavailable(untrusted)) == "a is unavailable: it is not connected"
    problem = "the environment variable TOKEN is not set"
    life.state = Failed(trio.current_time(), problem, math.inf)
    assert str(life.unavailable(replace(untrusted, problem=problem))) == f"a is unavailable: {problem}"
    life.state = Held(1.0, "installs packages, which a person approves first")
    held = "a is unavailable: its command installs packages, which a person approves first; see colonnade definitions"
    assert str(life.unavailable(untrusted)) == held
    life.state = Installing(trio.current_time())
    assert "its packages are being installed" in str(life.unavailable(untrusted))
    assert type(life.unavailable(SPEC)) is Unavailable
    life.state = NeedsLogin(1.0, "the server wants a login")
    assert type(life.unavailable(SPEC)) is LoginNeeded
    assert str(life.unavailable(SPEC)) == "a is unavailable: the server wants a login"
