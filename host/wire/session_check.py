"""Whether a server still knows a session: a check that follows a refused request.

By the letter, a server says with 404 that it has forgotten a session (2025-11-25, "Session Management"). Many say so
with 400, balancers with 503, and some with an error in a response of status 200. Each of these may as well be about one
request. So the server is asked: the session is over if a `ping` of it is refused, too, while `initialize` without a
session is accepted. That takes two requests, which do nothing at the server.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

import trio

CHECK_PAUSE = 1.0
"""Seconds between two checks of a session that the server knows."""
MAX_REFUSED = 4
"""Checks in a row in which the server refuses `initialize` too, each twice as long after the one before; then the
connection ends. Another kind of server may have taken its place, and a new connection begins with the first question.
"""
CHECK_TIMEOUT = 10.0
"""Seconds for the response to each of the two requests of a check."""
MAX_CHECK_WAIT = 2.0
"""Seconds to the next check for which a refused request waits."""
_MAX_SEARCHED = 1024
"""Characters of an error's message in which the session is looked for."""
_SPEAKS = re.compile(r"session|not\W+(?:\w+\W+)?initiali[sz]ed", re.IGNORECASE)

Ask = Callable[[], Awaitable[bool | None]]
"""Sends a request of the check. Returns whether the server accepted it; None if that is not known."""


def speaks_of_session(message: str) -> bool:
    """Whether the text of an error may say that the server does not know the session."""
    return _SPEAKS.search(message[:_MAX_SEARCHED]) is not None


class SessionCheck:
    """The checks of one session. Refusals that come together have one check.

    Args:
        ping: sends a `ping` in the session.
        initialize: sends an `initialize` without a session.
    """

    def __init__(self, ping: Ask, initialize: Ask) -> None:
        self._ping = ping
        self._initialize = initialize
        self._doubted = trio.Event()
        self._checked = trio.Event()
        self._next_at = 0.0
        self._begun = self._ended = 0
        self.is_over = False

    def doubt(self) -> None:
        """Have the session checked, at once or after the pause since the last check."""
        self._doubted.set()

    async def finds_over(self) -> bool:
        """Have the session checked, and wait for that if it happens soon. Returns whether the session is over."""
        self._doubted.set()
        wanted = self._begun + 1  # the ping of a check that is running may have been answered before the refusal
        while self._ended < wanted and self._next_at <= trio.current_time() + MAX_CHECK_WAIT:
            await self._checked.wait()
        return self.is_over

    async def run(self) -> None:
        """Check the session when it is doubted. Returns when it `is_over`, or when the server has refused everything
        for a while."""
        refused_in_a_row = 0
        try:
            while True:
                await self._doubted.wait()
                await trio.sleep_until(self._next_at)
                self._doubted = trio.Event()  # what is refused from now on may be later than the ping
                self._begun += 1
                is_refused = await self._ask(self._ping) is False
                if is_refused and await self._ask(self._initialize):
                    self.is_over = True
                    return
                refused_in_a_row = refused_in_a_row + 1 if is_refused else 0
                if refused_in_a_row == MAX_REFUSED:
                    return
                self._next_at = trio.current_time() + CHECK_PAUSE * 2.0**refused_in_a_row
                self._ended = self._begun
                self._checked.set()
                self._checked = trio.Event()
        finally:
            self._next_at = float("inf")  # nobody waits any more
            self._checked.set()

    async def _ask(self, ask: Ask) -> bool | None:
        with trio.move_on_after(CHECK_TIMEOUT):
            return await ask()
        return None
