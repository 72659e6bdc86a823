"""Refused attempts: what somebody asked for in vain, folded to a count per caller, name and minute. Pure.

An attempt costs one entry of a dictionary, so that a flood of them is counted and not written. The number of rows of a
minute is bounded, in all and for one caller; attempts beyond are counted by their reason.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

MAX_ROWS = 100
"""Rows of a minute for callers that were let in."""
MAX_ROWS_OF_CALLER = 40
"""Rows of a minute for one of them: a token's name, or without tokens an address."""
MAX_ROWS_OF_STRANGERS = 40
"""Rows of a minute for requests that no caller is known for; they take none of the others' place."""
LONGEST_NAME = 120
"""Characters of a name that are kept."""


class Reason(StrEnum):
    """The reason of a refusal, as it is recorded. The caller does not get it: the first three have one response."""

    DENIED = "denied"
    """The rules deny the entry."""
    HELD = "held"
    """The entry's definition, or its server's program, is not approved."""
    MISSING = "missing"
    """There is no such entry."""
    UNCONFIRMED = "unconfirmed"
    """A person would have to confirm it, and nobody is asked for such a request."""
    UNAVAILABLE = "unavailable"
    """The server is not there, or did not start in time: the request was permitted, and not sent."""
    LIMITED = "limited"
    """A limit is reached: the request was permitted, and not sent."""
    AMBIGUOUS = "ambiguous"
    """Readers of the message may take it for different ones."""
    NO_TOKEN = "no token"
    WRONG_TOKEN = "wrong token"
    HOST = "foreign host"
    ORIGIN = "foreign origin"
    SESSION = "foreign session"
    """The session belongs to another caller or endpoint."""
    CONSOLE = "console"
    """A request for the web console that its own page did not send, or whose session or link is not valid."""


SENTENCES = {
    Reason.DENIED: "the rules deny it",
    Reason.HELD: "its definition is held",
    Reason.MISSING: "there is none",
    Reason.UNCONFIRMED: "it needs a person's consent",
    Reason.UNAVAILABLE: "its server is unavailable",
    Reason.LIMITED: "a limit is reached",
    Reason.AMBIGUOUS: "the message can be read in two ways",
    Reason.NO_TOKEN: "no access token",
    Reason.WRONG_TOKEN: "an unknown token",
    Reason.HOST: "a Host that is not allowed",
    Reason.ORIGIN: "an Origin that is not allowed",
    Reason.SESSION: "the session is another caller's",
    Reason.CONSOLE: "not a request of an open console",
}

_STRANGE = frozenset((Reason.NO_TOKEN, Reason.WRONG_TOKEN, Reason.HOST, Reason.ORIGIN, Reason.CONSOLE))
"""Reasons for which a request is refused before its caller is known."""


class Attempt(Struct, frozen=True):
    """One attempt; equal ones are folded. Texts are as the caller sent them, cut by `cut`."""

    reason: Reason
    kind: str
    """The kind of the entry; `path` for a request that was refused before its message was read."""
    name: str
    """The name as it was asked for: of an entry, or the path."""
    address: str
    """The caller's IP address, or `stdio`; empty if it is not known."""
    principal: str = ""
    """The name of the caller's access token; empty if it has none."""
    client: str = ""
    """The caller as the log names it."""
    server: str = ""
    """The server that the name belongs to; empty if it belongs to none."""


class Folded(NamedTuple):
    """An attempt, how often it was made, and when first (Unix time)."""

    attempt: Attempt
    times: int
    first: float


def cut(name: str) -> str:
    """A name of bounded length. Names that differ only beyond it, and not in length, are not told apart."""
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}... ({len(name)} characters)"


class Attempts:
    """The attempts of the present minute. `fresh`: those that were not there when it was emptied last."""

    def __init__(self) -> None:
        self.fresh: list[Attempt] = []
        self._rows: dict[Attempt, list[float]] = {}
        """Count and first time of each row."""
        self._of_caller: Counter[tuple[str, str]] = Counter()
        """Number of rows of each caller that was let in."""
        self._others: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return bool(self._rows or self._others)

    def add(self, attempt: Attempt, now: float) -> None:
        """Count an attempt at Unix time `now`."""
        row = self._rows.get(attempt)
        if row is not None:
            row[0] += 1
        elif self._has_room(attempt):
            self._rows[attempt] = [1, now]
            self.fresh.append(attempt)
        else:
            self._others[attempt.reason.value] += 1

    def _has_room(self, attempt: Attempt) -> bool:
        if attempt.reason in _STRANGE:
            return len(self._rows) - self._of_caller.total() < MAX_ROWS_OF_STRANGERS
        caller = attempt.principal, "" if attempt.principal else attempt.address
        if self._of_caller[caller] >= MAX_ROWS_OF_CALLER or self._of_caller.total() >= MAX_ROWS:
            return False
        self._of_caller[caller] += 1
        return True

    def take(self) -> tuple[list[Folded], dict[str, int]]:
        """The rows of the minute in the order of their first attempts, and the number of all others by reason. Begins
        the next minute."""
        rows = [Folded(attempt, int(count), first) for attempt, (count, first) in self._rows.items()]
        others = dict(self._others)
        for each in (self.fresh, self._rows, self._of_caller, self._others):
            each.clear()
        return rows, others
