"""What clients called while hosts ended and came back, and whether that is what happened. Pure: no clock, no sockets.

Each attempt at a call has an id of its own, which its server writes down. An id is used again only if nothing of the
attempt can have been sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

MOST_SHOWN = 20
SOME = 10
"""Questions of which one at least must have been answered in time."""


class End(StrEnum):
    """The end of an attempt, as its client saw it."""

    DONE = "done"
    REFUSED = "refused"
    """There was no connection, so nothing was sent."""
    TOLD = "told as lost"
    """An error of ours says that its outcome is not known."""
    BROKEN = "broken"
    """The connection broke, so that its outcome is not known."""
    UNSENT = "told as unsent"
    """An error of ours says that nothing was sent to the server, since no person was there or had room for it."""


class Ending(StrEnum):
    """How a host ended."""

    KILLED = "SIGKILL"
    TOLD = "SIGTERM"


@dataclass
class Outage:
    """A host that ended. `at` is when that began, `back` when clients could connect again."""

    how: Ending
    at: float
    back: float

    def touches(self, begun: float, ended: float) -> bool:
        return begun <= self.back and ended >= self.at


@dataclass(frozen=True)
class Attempt:
    id: str
    client: str
    begun: float
    ended: float
    end: End
    said: str = ""
    worked: float = 0.0
    """Seconds of it for which its server was told to take."""


class Again(NamedTuple):
    """A call after an outage: when it was begun and answered, in seconds since the outage began. What its server was
    told to take does not count."""

    asked: float
    answered: float


class Doubt(NamedTuple):
    """A problem that a machine without a processor for it explains as well as a defect does, and when it was."""

    text: str
    begun: float
    ended: float


@dataclass
class Book:
    """Everything that was seen. `answered`: the ids that a person allowed, of the tool that needs it."""

    attempts: list[Attempt] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)
    answered: set[str] = field(default_factory=set)
    count: Counter[str] = field(default_factory=Counter)
    """What else was counted, by name."""
    problems: list[str] = field(default_factory=list)
    doubts: list[Doubt] = field(default_factory=list)
    inconclusive: list[Doubt] = field(default_factory=list)
    """The doubts: what could not be judged, also when it was tried again."""

    def doubt(self, text: str, begun: float, ended: float) -> None:
        """Add what is a problem unless the machine was starved then."""
        self.doubts.append(Doubt(text, begun, ended))

    def settle(self, waited: Callable[[float, float], float], most: float) -> list[Doubt]:
        """Make problems of the doubts, but for those at whose time the machine gave no processor for `most` seconds,
        which are returned, with how long that was."""
        found: list[Doubt] = []
        for each in self.doubts:
            if (seconds := waited(each.begun, each.ended)) >= most:
                found.append(each._replace(text=f"no processor for {seconds:.1f} s, and {each.text}"))
            else:
                self.blame(each.text)
        self.doubts = []
        return found

    def add(self, other: Book) -> None:
        """Add all of another run."""
        self.attempts += other.attempts
        self.outages += other.outages
        self.asked |= other.asked
        self.answered |= other.answered
        self.count += other.count
        self.problems += other.problems

    def blame(self, text: str) -> None:
        self.count["problems"] += 1
        if len(self.problems) < MOST_SHOWN:
            self.problems.append(text)

    def ends(self) -> dict[End, int]:
        found = Counter(attempt.end for attempt in self.attempts)
        return {end: found[end] for end in End}

    def answers_again(self, outage: Outage) -> dict[str, Again]:
        """By client, its first result of a call that it began since an outage did, and that no person had to allow."""
        began: dict[str, float] = {}
        for each in self.attempts:
            began.setdefault(each.id, each.begun)
        found: dict[str, Again] = {}
        for each in sorted(self.attempts, key=lambda each: each.ended):
            if each.end is End.DONE and each.id not in self.asked and began[each.id] >= outage.at:
                found.setdefault(each.client, Again(began[each.id] - outage.at, each.ended - each.worked - outage.at))
        return found

    def deaf_after(self, outage: Outage, clients: set[str]) -> set[str]:
        """Those of the clients that had no result of a call that they began since the outage did."""
        return clients - {each.client for each in self.attempts if each.end is End.DONE and each.begun >= outage.at}

    def judge(self, ledger: Iterable[str]) -> None:
        """Hold the attempts against the ids that servers have written down, and add what is wrong to `problems`."""
        carried_out = Counter(ledger)
        allowed = len(carried_out.keys() & self.answered)
        self.count["carried out since a person allowed it"] = allowed
        if len(self.asked) >= SOME and not allowed:
            self.blame(f"of {len(self.asked)} calls that a person was asked for, none was carried out")
        for id, times in carried_out.items():
            if times > 1:
                self.count["doubled"] += 1
                self.blame(f"{id} was carried out {times} times")
        for id in sorted((carried_out.keys() & self.asked) - self.answered):
            self.count["without consent"] += 1
            self.blame(f"{id} was carried out, and nobody had allowed it")
        by_id: dict[str, list[Attempt]] = {}
        for attempt in self.attempts:
            by_id.setdefault(attempt.id, []).append(attempt)
        for id in carried_out.keys() - by_id.keys():
            self.blame(f"{id} was carried out, and no client knows its end")
        for id, attempts in by_id.items():
            self._judge_call(id, attempts, carried_out[id])

    def _judge_call(self, id: str, attempts: list[Attempt], times: int) -> None:
        last = attempts[-1]
        if any(each.end not in (End.REFUSED, End.UNSENT) for each in attempts[:-1]):
            self.blame(f"{id} was tried again although it may have been carried out")
        if last.end is End.DONE and not times:
            self.blame(f"{last.client} got a result of {id}, which was not carried out")
        if last.end in (End.REFUSED, End.UNSENT) and times:
            self.blame(f"{id} was carried out, and {last.client} was told that it was not: {last.said}")
        for each in attempts:
            kinds = {outage.how for outage in self.outages if outage.touches(each.begun, each.ended)}
            if each.end in (End.DONE, End.UNSENT) or Ending.KILLED in kinds:
                continue
            if not kinds:
                said = f"{each.client}: {id} was {each.end} while the host served: {each.said}"
                self.doubt(said, each.begun, each.ended)
            elif each.end in (End.TOLD, End.BROKEN):
                self.count["lost at a drain"] += 1
                self.blame(f"{each.client}: {id} was {each.end} although the host had time for it: {each.said}")
