"""The memory budget of the host: bytes that clients and servers make it hold, charged to whom they belong.

A `Holding` stands for memory with one owner: a client's access token (all callers without one are one owner) or a
server. Charges fit as long as the total does. When one does not fit, the owner that holds most gives way, as long as it
holds more than an equal share: of its holdings those that cost most, where the cost is bytes times the seconds since
they last moved. A stalled megabyte therefore goes before an active one, and a small holding goes last. If the holding
that asks for more is itself the most expensive one, it is refused.

A holding that is kept for as long as its owner is there is firm: no other load takes it back. Firm holdings have half
of the budget, and one owner a quarter, so that at least half can always be taken back; others only borrow that half.
Where the half does not suffice, the owner that would keep most gives way, of that its largest holding; if that is the
owner who asks, it is refused, and nothing gives way. So whoever keeps no more than an equal share of the half is never
refused and never gives way, whoever came first. Only for somebody who keeps strictly less does anybody give way, so two
large owners do not displace one another in turns.

This file counts. It does not know what the bytes are, and it frees nothing: whoever holds them does, when told to.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Hashable
from enum import StrEnum
from types import TracebackType

from config.model import DEFAULT_MEMORY

MIN_IDLE = 0.1
"""Seconds without movement that every holding is taken to have had, so that size counts among those that move."""
MAX_IDLE = 10.0
"""Seconds without movement beyond which more of them count no more: small holdings stay cheap however old they are."""


class Use(StrEnum):
    """The purpose of a holding."""

    REQUESTS = "requests"
    """Requests of clients over HTTP: bodies, calls under way, answers not yet taken."""
    STREAMS = "streams"
    """Events that wait for their reader, and those kept for clients that resume a stream."""
    PARKED = "parked"
    """Calls that wait for their client, and their results."""
    TASKS = "tasks"
    """Tasks, and their results."""
    MESSAGES = "messages"
    """Messages of servers while they arrive, and messages to servers that wait to be read."""
    LISTS = "lists"
    """Definitions of servers."""


Owner = tuple[str, Hashable]
"""Kind and name: one server, or the clients of one access token."""


def client_owner(identity: str | None) -> Owner:
    """The owner that all clients with this access token are; None: those without one."""
    return "client", identity


def server_owner(id: str) -> Owner:
    return "server", id


HoldingFactory = Callable[[Callable[[], None]], "Holding"]
"""Begins a holding of one owner for one use; takes what drops it, see `Budget.hold`."""


def uncharged(drop: Callable[[], None]) -> Holding:
    """A holding of a budget of its own, without an end: where there is no host whose memory is shared."""
    return Budget(sys.maxsize).hold(client_owner(None), Use.MESSAGES, drop=drop)


class OverBudget(Exception):
    """The charge does not fit, or the holding has been dropped. Nothing was charged."""


class Holding:
    """Bytes that are held for one owner; see `Budget.hold`. As a context manager it is released at the end."""

    __slots__ = ("_account", "_budget", "drop", "dropped", "firm", "idle", "size", "touched_at", "use")

    def __init__(
        self, budget: Budget, account: _Account, use: Use, drop: Callable[[], None] | None, *, firm: bool
    ) -> None:
        self.size = 0
        self.use = use
        self.drop = drop
        self.firm = firm
        self.dropped = False
        """Whether it was taken back, and can hold nothing more."""
        self.touched_at = budget.now()
        self.idle = False
        """Whether it is only kept for a possible later request; it then counts as idle."""
        self._budget = budget
        self._account = account

    def resize(self, size: int) -> None:
        """Hold so many bytes from now on.

        Raises:
            OverBudget: they do not fit; the size stays as it was.
        """
        self.grow(size - self.size)

    def grow(self, more: int) -> None:
        """Hold so many bytes more, or less. A holding that changes has moved.

        Raises:
            OverBudget: they do not fit; the size stays as it was.
        """
        if self.dropped:
            if more > 0:
                raise OverBudget
            return
        self._budget._charge(self, more)
        self.touched_at = self._budget.now()

    def touch(self) -> None:
        """Note that it is on its way: its reader took a part of it."""
        self.touched_at = self._budget.now()

    def release(self) -> None:
        """Hold nothing any more. Once is enough."""
        self._budget._release(self)

    def __enter__(self) -> Holding:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class _Account:
    """The holdings of one owner. `firm` is the part of `used` that is kept."""

    __slots__ = ("firm", "holdings", "owner", "used")

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.used = 0
        self.firm = 0
        self.holdings: set[Holding] = set()


class Budget:
    """So many bytes, shared among their owners.

    Args:
        total: can be changed at any time; what is held already stays until something is charged.
        now: the time in seconds, from any start.
    """

    def __init__(self, total: int = DEFAULT_MEMORY, now: Callable[[], float] = time.monotonic) -> None:
        self.total = total
        self.now = now
        self.used = 0
        self.released = 0
        """Bytes given back so far."""
        self._firm = 0
        self._uses: Counter[Use] = Counter()
        self._accounts: dict[Owner, _Account] = {}

    def hold(
        self, owner: Owner, use: Use, size: int = 0, drop: Callable[[], None] | None = None, *, firm: bool = False
    ) -> Holding:
        """Charge so many bytes to the owner.

        Args:
            drop: gives the memory up, and has released or shrunk the holding when it returns; the memory itself may
                follow a step of the loop later. It may charge nothing. None if the memory cannot be given up: then it
                is firm in any case.
            firm: it is kept, and gives way only where all that is kept is more than its half.

        Raises:
            OverBudget: they do not fit.
        """
        account = self._accounts.setdefault(owner, _Account(owner))
        holding = Holding(self, account, use, drop, firm=firm or drop is None)
        account.holdings.add(holding)
        try:
            if size:
                self._charge(holding, size)
        except OverBudget:
            self._release(holding)
            raise
        return holding

    def by_use(self) -> dict[str, int]:
        """Bytes held now, for each use."""
        return {use.value: self._uses[use] for use in Use}

    def by_owner(self) -> dict[Owner, int]:
        """Bytes held now, for each owner that has a holding."""
        return {owner: account.used for owner, account in self._accounts.items()}

    def _charge(self, holding: Holding, more: int) -> None:
        if more > 0:
            self._make_room(holding, more)
        else:
            self.released -= more
        account = holding._account
        holding.size += more
        account.used += more
        self.used += more
        self._uses[holding.use] += more
        if holding.firm:
            account.firm += more
            self._firm += more

    def _release(self, holding: Holding) -> None:
        account = holding._account
        if holding in account.holdings:
            self._charge(holding, -holding.size)
            holding.dropped = True
            holding.drop = None  # whoever holds this is held by it, and would wait for the garbage collector
            account.holdings.discard(holding)
            if not account.holdings:
                del self._accounts[account.owner]

    def _make_room(self, asker: Holding, more: int) -> None:
        if asker.firm and asker._account.firm + more > self.total // 4:
            raise OverBudget
        for holding in self._displaced(asker._account, more if asker.firm else 0):
            if holding.drop is not None:
                holding.drop()
        if not asker.firm and asker.size + more > self.total - self._firm:
            raise OverBudget  # it could not be had by dropping everything else
        if self.used + more <= self.total:
            return
        # A little more is taken back than is needed, so that ranking everything pays for more than one charge.
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
        """The holdings that give way so that all that is kept, with so much more of this owner, fits its half. Without
        `more`, those that a smaller total leaves no room for.

        Raises:
            OverBudget: it is the owner itself that would keep most, or what others keep cannot be given up.
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
        """The holding that gives way next: one of the owner that would hold most, and more than its share. For what is
        kept, no share counts: the room for that is only borrowed. None if there is nothing."""

        def would_hold(account: _Account) -> int:
            return account.used + (more if account is asker._account else 0)

        for account in sorted(self._accounts.values(), key=would_hold, reverse=True):
            if not asker.firm and would_hold(account) * len(self._accounts) <= self.total:
                return None
            if account not in candidates:
                candidates[account] = self._ranked(account, asker, more)
            while ranked := candidates[account]:
                holding = ranked.pop()
                if holding is asker or holding.size:  # it may have been released with another
                    return holding
        return None

    def _ranked(self, account: _Account, asker: Holding, more: int) -> list[Holding]:
        """The holdings of this owner that can be dropped, the cheapest first."""
        now = self.now()

        def cost(holding: Holding) -> float:
            if holding is asker:  # it is moving at this moment
                return (holding.size + more) * MIN_IDLE
            return holding.size * (MIN_IDLE + (MAX_IDLE if holding.idle else min(now - holding.touched_at, MAX_IDLE)))

        droppable = (each for each in account.holdings if not each.firm)
        return sorted(droppable, key=lambda each: (cost(each), each is not asker))
