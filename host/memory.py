"""The memory budget of the host: bytes held for clients and servers, charged to their owners.

A `Holding` stands for memory of one owner: a client's access token (all callers without one are one owner), a server,
or an index of tools. A charge fits if the total does. If it does not, holdings of the owner with the most bytes are
dropped, as long as that is more than an equal share: those with the highest cost first, where the cost is bytes times
the seconds without movement. A stalled megabyte is therefore dropped before an active one, and a small holding last. If
the requesting holding itself has the highest cost, it is refused.

A holding that is kept as long as its owner exists is firm: other charges do not drop it. Firm holdings have half of the
budget, and one owner a quarter, so that at least half can always be taken back. Other holdings may borrow the firm
half. If the half does not suffice for a firm charge, the owner that would keep most loses its largest holding; if that
owner is the requesting one, it is refused and nothing is dropped. An owner that keeps no more than an equal share of
the half is thus never refused and never loses anything, whatever the order of arrival. Holdings are dropped only for an
owner with strictly less, so that two large owners do not displace each other in turns.

This module counts. It does not know the contents, and frees nothing: the holder frees its memory when told to.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Hashable
from enum import StrEnum
from types import TracebackType

from msgspec import Struct, field

from config.model import DEFAULT_MEMORY

MIN_IDLE = 0.1
"""Minimum of seconds without movement that every holding counts with, so that size matters among moving ones."""
MAX_IDLE = 10.0
"""Maximum of seconds without movement that count: small holdings stay cheap, whatever their age."""


class Use(StrEnum):
    """The purpose of a holding."""

    REQUESTS = "requests"
    """Requests of clients over HTTP: bodies, calls in progress, responses not yet taken."""
    STREAMS = "streams"
    """Events that wait for their reader, and events kept for resuming a stream."""
    PARKED = "parked"
    """Calls that wait for their client, and their results."""
    TASKS = "tasks"
    """Tasks, and their results."""
    MESSAGES = "messages"
    """Messages from servers while they arrive, and messages to servers that are not read yet."""
    LISTS = "lists"
    """Definitions of servers, and what a search holds of them."""


Owner = tuple[str, Hashable]
"""Kind and name: one server, the clients of one access token, or the index of one viewer."""


def client_owner(identity: str | None) -> Owner:
    """The owner for all clients with this access token; None: clients without a token."""
    return "client", identity


def server_owner(id: str) -> Owner:
    return "server", id


HoldingFactory = Callable[[Callable[[], None]], "Holding"]
"""Makes a holding of one owner for one use. Its argument drops the holding, see `Budget.hold`."""


def uncharged(drop: Callable[[], None]) -> Holding:
    """A holding with an unlimited budget of its own, for use without a host."""
    return Budget(sys.maxsize).hold(client_owner(None), Use.MESSAGES, drop=drop)


class OverBudget(Exception):
    """The charge does not fit, or the holding was dropped. Nothing was charged."""


class Holding(Struct, eq=False):
    """Bytes held for one owner; see `Budget.hold`. As a context manager it is released at the end."""

    _budget: Budget
    _account: _Account
    use: Use
    drop: Callable[[], None] | None
    of: Hashable
    firm: bool
    touched_at: float
    size: int = 0
    dropped: bool = False
    """Whether it was dropped, and can hold nothing more."""
    revoked: str = ""
    """The reason for which it was dropped by `Budget.revoke`; empty if it was not."""
    idle: bool = False
    """Whether it is kept only for a possible later request; it then counts as not moving."""

    def resize(self, size: int) -> None:
        """Set the size in bytes.

        Raises:
            OverBudget: they do not fit; the size stays as it was.
        """
        self.grow(size - self.size)

    def grow(self, more: int) -> None:
        """Change the size by so many bytes, which counts as movement.

        Raises:
            OverBudget: they do not fit; the size stays as it was.
        """
        budget = self._budget
        if self.dropped:
            if more > 0:
                raise OverBudget
            return
        if more <= 0:
            budget.released -= more
        elif self.firm or budget.used + more > budget.total or budget._firm > budget.total // 2:
            budget._make_room(self, more)
        self.size += more
        self._account.used += more
        budget.used += more
        if self.firm:
            self._account.firm += more
            budget._firm += more
        self.touched_at = budget.now()

    def touch(self) -> None:
        """Record movement: its reader took a part of it."""
        self.touched_at = self._budget.now()

    def release(self) -> None:
        """Release everything; further calls have no effect."""
        account = self._account
        if self in account.holdings:
            if self.size:
                self.grow(-self.size)
            self.dropped = True
            # The holder and its holding refer to each other; without this they would wait for the garbage collector
            self.drop = None
            account.holdings.discard(self)
            if not account.holdings:
                del self._budget._accounts[account.owner]

    def __enter__(self) -> Holding:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class _Account(Struct, eq=False):
    """The holdings of one owner. `firm`: the part of `used` that is firm."""

    owner: Owner
    used: int = 0
    firm: int = 0
    holdings: set[Holding] = field(default_factory=set)


class Budget:
    """A number of bytes, shared among owners.

    Args:
        total: can be changed at any time; existing holdings stay until the next charge.
        now: clock in seconds, with any origin.
    """

    def __init__(self, total: int = DEFAULT_MEMORY, now: Callable[[], float] = time.monotonic) -> None:
        self.total = total
        self.now = now
        self.used = 0
        self.released = 0
        """Bytes released so far."""
        self._firm = 0
        self._accounts: dict[Owner, _Account] = {}

    def hold(
        self,
        owner: Owner,
        use: Use,
        size: int = 0,
        drop: Callable[[], None] | None = None,
        *,
        firm: bool = False,
        of: Hashable = None,
    ) -> Holding:
        """Charge `owner` with a holding.

        Args:
            drop: gives the memory up, and has released or shrunk the holding when it returns; the memory itself may
                follow a step of the loop later. It may charge nothing. None if the memory cannot be given up: then the
                holding is firm.
            firm: the holding is kept, and is dropped only if all firm holdings exceed their half.
            of: the part of the owner that it is for; see `revoke`.

        Raises:
            OverBudget: they do not fit.
        """
        account = self._accounts.get(owner)
        if account is None:
            account = self._accounts[owner] = _Account(owner)
        holding = Holding(self, account, use, drop, of, firm or drop is None, self.now())
        account.holdings.add(holding)
        try:
            if size:
                holding.grow(size)
        except OverBudget:
            holding.release()
            raise
        return holding

    def revoke(self, reason: Callable[[Hashable], str]) -> None:
        """Drop what is held for those who are no longer served: each holding for whose part of an owner there is a
        reason. Later holdings are not affected."""
        for account in tuple(self._accounts.values()):
            for holding in tuple(account.holdings):
                if why := reason(holding.of):
                    holding.revoked = why
                    if holding.drop is not None:
                        holding.drop()

    def holdings(self, use: Use) -> set[Holding]:
        """The holdings that there are for this use, also those of no bytes."""
        return {each for account in self._accounts.values() for each in account.holdings if each.use is use}

    def by_use(self) -> dict[str, int]:
        """Bytes held now, for each use."""
        sizes: Counter[Use] = Counter()
        for account in self._accounts.values():
            for holding in account.holdings:
                sizes[holding.use] += holding.size
        return {use.value: sizes[use] for use in Use}

    def by_owner(self) -> dict[Owner, int]:
        """Bytes held now, for each owner that has a holding."""
        return {owner: account.used for owner, account in self._accounts.items()}

    def _make_room(self, asker: Holding, more: int) -> None:
        if asker.firm and asker._account.firm + more > self.total // 4:
            raise OverBudget
        for holding in self._displaced(asker._account, more if asker.firm else 0):
            if holding.drop is not None:
                holding.drop()
        if not asker.firm and asker.size + more > self.total - self._firm:
            raise OverBudget  # not even dropping everything else would suffice
        if self.used + more <= self.total:
            return
        # A little more than needed is taken back, so that one ranking serves several charges.
        enough = self.total - more - self.total // 32
        candidates: dict[_Account, list[Holding]] = {}
        while self.used > enough:
            victim = self._most_expensive(asker, more, candidates)
            if victim is None or victim is asker:
                break
            assert victim.drop is not None
            victim.drop()
        if self.used + more > self.total:
            raise OverBudget

    def _displaced(self, asker: _Account, more: int) -> list[Holding]:
        """The holdings to drop so that all firm ones, with `more` bytes of this owner, fit their half. Without `more`:
        those that no longer fit a smaller total.

        Raises:
            OverBudget: this owner itself would keep most, or the holdings of the others cannot be dropped.
        """
        over = self._firm + more - self.total // 2
        if over <= 0:
            return []
        found: list[Holding] = []
        keeps = {account: account.firm for account in self._accounts.values() if account.firm or account is asker}
        keeps[asker] += more
        kept: dict[_Account, list[Holding]] = {}
        while over > 0 and keeps:
            account = max(keeps, key=lambda each: (keeps[each], each is asker))
            if account is asker and more:
                raise OverBudget
            if account not in kept:
                firm = (each for each in account.holdings if each.firm and each.size and each.drop is not None)
                kept[account] = sorted(firm, key=lambda each: each.size)
            if not kept[account]:
                del keeps[account]
                continue
            found.append(kept[account].pop())
            keeps[account] -= found[-1].size
            over -= found[-1].size
        if over > 0 and more:
            raise OverBudget
        return found

    def _most_expensive(self, asker: Holding, more: int, candidates: dict[_Account, list[Holding]]) -> Holding | None:
        """The next holding to drop: one of the owner that would hold most, and more than its share. A firm charge
        ignores shares, because its room was only borrowed. None if there is none."""

        def would_hold(account: _Account) -> int:
            return account.used + (more if account is asker._account else 0)

        for account in sorted(self._accounts.values(), key=would_hold, reverse=True):
            if not asker.firm and would_hold(account) * len(self._accounts) <= self.total:
                return None
            if account not in candidates:
                candidates[account] = self._ranked(account, asker, more)
            while ranked := candidates[account]:
                holding = ranked.pop()
                if holding is asker or holding.size:  # it may have been released together with another
                    return holding
        return None

    def _ranked(self, account: _Account, asker: Holding, more: int) -> list[Holding]:
        """The droppable holdings of this owner, the cheapest first."""
        now = self.now()

        def cost(holding: Holding) -> float:
            if holding is asker:  # it is moving at this moment
                return (holding.size + more) * MIN_IDLE
            return holding.size * (MIN_IDLE + (MAX_IDLE if holding.idle else min(now - holding.touched_at, MAX_IDLE)))

        droppable = (each for each in account.holdings if not each.firm)
        return sorted(droppable, key=lambda each: (cost(each), each is not asker))
