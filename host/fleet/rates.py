"""Limits of servers that hold for all processes of a fleet together.

The rest of each budget is in the store (the pool). A process leases a part of it ahead, and works that off in memory:
no call waits for the store. What all processes have leased and what is left in the pool is together never more than the
configured amount, and grows by nothing but time at the configured rate. So in any time, all processes together let pass
no more than one would alone.

The places of calls at once are divided among the processes that are there. What a process has of its part is leased,
too: so a process that comes has none until those that were there have given them back, and they do so as calls end.

A process that hears nothing of the store has what it leased, for OWN_LIFE; that is over before the store, after LIFE,
takes it for spent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, final
from weakref import WeakValueDictionary

import trio
from msgspec import Struct

from config import Rate
from host.fleet.members import DirectoryAway

LIFE = 15.0
"""Seconds of what a process has leased, by the clock of the store."""
OWN_LIFE = 14.0
"""Seconds for which a process uses it, from the start of the question that was answered; see `members.OWN_LEASE`."""
RENEWAL = 5.0
"""Seconds after which a process leases anew what it did not use."""
SOONEST = 0.05
"""Seconds between the starts of two questions at least."""
RETRY = 1.0
"""Seconds before the next question if the store does not answer, or has less than is wanted."""
LOOK = 0.25
"""Seconds between two looks whether the part of the places has changed, and before the next question if a process has
not all of its part, or more."""
PATIENCE = 1.0
"""Seconds that a request of a server waits for a lease; its calls wait for none."""
_SHARE = 2
"""The processes together lease ahead an amount divided by this. The rest is for whoever needs more."""
_ROUNDING = 1e-6
_AT_ONCE = 1e-9
"""Seconds in which all places are there again that were given back."""

PLACES = "concurrent"
"""The kind of the places of calls at once."""
POOL = ""
"""The name of the pool among those of the processes."""


class Account(Struct, frozen=True):
    """A part of a budget. `at`: Unix time, of the amount if it is the pool's, else at which the lease ends."""

    amount: float
    at: float


class Wish(Struct, frozen=True):
    """The request of a process.

    Attributes:
        kind: calls, sampling, tokens, or PLACES.
        rate: that of the configuration; the pool of a new budget is full.
        held: what it has of its lease, if that is not over, and has not used.
        wanted: how much of it is to have.
        is_whole: less than that is of no use.
        in_use: what it goes on to use, also if its lease was over.
    """

    server: str
    kind: str
    rate: Rate
    held: int
    wanted: int
    is_whole: bool = False
    in_use: int = 0


class Leased(Struct, frozen=True):
    """The amount that a process has from now on, and what is left in the pool."""

    held: int
    left: float


def settle(wish: Wish, boot: str, accounts: Mapping[str, Account], now: float) -> dict[str, Account]:
    """The accounts of a budget once the process `boot` has got of it what it can have. A lease that is over was spent
    at its end, as far as anybody knows."""
    count, per_second = wish.rate.count, wish.rate.count / wish.rate.seconds
    pool = accounts.get(POOL, Account(count, now))
    left, at = pool.amount, pool.at
    leases = {name: account for name, account in accounts.items() if name != POOL}

    def grow(until: float) -> None:
        """Pool and leases together never exceed the whole. What was used of them counts as used when it is told."""
        nonlocal left, at
        grown = left + max(until - at, 0.0) * per_second
        left = min(grown, count - sum(account.amount for account in leases.values()))
        at = max(at, until)

    for name, account in sorted(leases.items(), key=lambda each: each[1].at):
        if account.at <= now:
            grow(account.at)
            del leases[name]
    grow(now)
    own = leases.pop(boot, None)
    held = 0 if own is None else min(int(own.amount), wish.held)
    left -= max(wish.in_use - held, 0)
    held = max(wish.in_use, held)
    more = wish.wanted - held
    if more > 0:
        available = max(math.floor(left + _ROUNDING), 0)
        more = min(more, available) if not wish.is_whole or available >= more else 0
    if held + more > 0:
        leases[boot] = Account(held + more, now + LIFE)
    return leases | {POOL: Account(left - more, at)}


class Ledger(Protocol):
    """Where the accounts are."""

    async def lease(self, wishes: Sequence[Wish], boot: str) -> Sequence[Leased]:
        """Settle each wish.

        Raises:
            DirectoryAway: no answer came in time; they may have been settled.
        """


@final
class LeasedBudget:
    """Implements `host.policy.limits.Allowance`: a part of a budget that all processes share."""

    def __init__(self, server: str, kind: str, rate: Rate, rates: Rates) -> None:
        self.server, self.kind, self.rate = server, kind, rate
        self._rates = rates
        self._held = 0
        self._until = self._due = -math.inf
        self._left = 0.0
        self._leased = 0
        """The leases that the store knows, used or not."""
        self._demand = 0
        """The amount that a refused or waiting request wants."""

    @property
    def held(self) -> int:
        return self._held if self._rates.now() < self._until else 0

    def seconds_until(self, wanted: int) -> float:
        if wanted <= self.held:
            return 0.0
        self._demand = max(self._demand, wanted)
        self._rates.wake()
        return max((wanted - self.held - self._left) * self.rate.seconds / self.rate.count, SOONEST)

    def take(self, count: int) -> None:
        if count > 0:  # what was taken may be reported as used by now
            self._held -= count
            if self._held <= self._kept // 2:
                self._rates.wake()

    def has_one(self) -> bool:
        return self.held > 0

    def with_rate(self, rate: Rate | None) -> LeasedBudget | None:
        if rate is None:
            return None
        self.rate, self._held = rate, min(self._held, rate.count)
        return self

    async def prepare(self, wanted: int) -> bool:
        if not self.held < wanted <= self.rate.count:
            return False
        with trio.move_on_after(PATIENCE):
            while self.held < wanted:  # another request may have taken what was leased for this one
                self._demand = max(self._demand, wanted)
                await self._rates.wait_round()
                if self.held + self._left < wanted:
                    break
        return self.held >= wanted

    @property
    def _kept(self) -> int:
        """The amount that is leased ahead: calls do not wait, and requests of servers do."""
        if self.kind != "calls":
            return 0
        return max(self.rate.count // (_SHARE * self._rates.processes()), 1)

    def due(self) -> float:
        """The time at which the store is to be asked."""
        if self._demand > self.held or self.held <= self._kept // 2 < self._kept:
            return self._due
        if self._kept:
            return self._due + RENEWAL
        return self._due + RETRY if self._leased else math.inf

    def wish(self) -> tuple[Wish, int]:
        """The amount to ask for, and the one that is held meanwhile."""
        held = self.held
        wanted = min(max(self._kept, self._demand), self.rate.count)
        wish = Wish(self.server, self.kind, self.rate, held, wanted, is_whole=self.kind != "calls")
        self._held = min(held, wanted)  # what is given back is not used meanwhile
        return wish, self._held

    def settle(self, wish: Wish, before: int, leased: Leased, until: float) -> None:
        """Have what was leased, less what was used meanwhile of what was held before."""
        self._held = leased.held - (before - self._held)
        self._until, self._left, self._leased = until, leased.left, leased.held
        if self._demand <= wish.wanted:
            self._demand = 0
        lacks = leased.held < wish.wanted
        self._due = self._rates.now() + (min(self.rate.seconds / self.rate.count, RETRY) if lacks else 0.0)

    def fail(self) -> None:
        self._due, self._demand, self._left = self._rates.now() + RETRY, 0, 0.0


@final
class LeasedPlaces:
    """Implements `host.policy.limits.Places`: a part of those that all processes share."""

    kind = PLACES

    def __init__(self, server: str, rates: Rates) -> None:
        self.server = server
        self.count = 0
        self.running: Callable[[], int] = lambda: 0
        self._rates = rates
        self._leased = 0
        self._until = self._due = -math.inf

    @property
    def share(self) -> int:
        """Where there are more processes than places, the first ones have one each."""
        place, number = self._rates.place()
        return self.count // number + (place < self.count % number)

    @property
    def held(self) -> int:
        return min(self._leased, self.share) if self._rates.now() < self._until else 0

    def due(self) -> float:
        """The time at which the store is to be asked."""
        if not self._leased == self.share == self.held:
            return self._due
        return self._due + RENEWAL if self._leased else math.inf

    def wish(self) -> tuple[Wish, int]:
        """The wish to be asked for, and the number of places that are had meanwhile."""
        running = self.running()
        self._leased = max(self.held, running)
        rate = Rate(self.count, _AT_ONCE)
        wanted = max(self.share, running)
        return Wish(self.server, self.kind, rate, self._leased, wanted, in_use=running), self._leased

    def settle(self, wish: Wish, before: int, leased: Leased, until: float) -> None:
        """Have what was leased."""
        self._leased, self._until = leased.held, until
        self._due = self._rates.now() + (LOOK if leased.held != self.share else 0.0)

    def fail(self) -> None:
        self._due = self._rates.now() + RETRY


@final
class Rates:
    """Implements `host.policy.limits.Shares` for the process `boot`. `run` must run beside it.

    Args:
        place: the place of this process among all, from 0, and the number of all.
        now: seconds of a clock that goes on while the machine is suspended.

    Attributes:
        on_leased: called when there may be more than before.
    """

    def __init__(
        self, ledger: Ledger, boot: str, place: Callable[[], tuple[int, int]], now: Callable[[], float]
    ) -> None:
        self.on_leased: Callable[[], None] = lambda: None
        self.now = now
        self._ledger = ledger
        self._boot = boot
        self.place = place
        self._budgets: WeakValueDictionary[tuple[str, str], LeasedBudget] = WeakValueDictionary()
        self._places: WeakValueDictionary[str, LeasedPlaces] = WeakValueDictionary()
        """Those of the meters that there are."""
        self._woken = trio.Event()
        self._rounds = trio.lowlevel.ParkingLot()
        self._begun = self._ended = 0
        """Numbers of the last round that has begun, and that has ended."""

    def budget(self, server: str, kind: str, rate: Rate) -> LeasedBudget:
        found = self._budgets.get((server, kind))
        if found is None:
            self._budgets[server, kind] = found = LeasedBudget(server, kind, rate, self)
            self.wake()
        found.rate = rate
        return found

    def places(self, server: str, count: int, running: Callable[[], int]) -> LeasedPlaces:
        found = self._places.get(server)
        if found is None:
            self._places[server] = found = LeasedPlaces(server, self)
        found.count, found.running = count, running
        self.wake()
        return found

    def processes(self) -> int:
        return self.place()[1]

    def _shared(self) -> list[LeasedBudget | LeasedPlaces]:
        return [*self._budgets.values(), *self._places.values()]

    def wake(self) -> None:
        self._woken.set()

    async def wait_round(self) -> None:
        """Wait until the store was asked for what is wanted now."""
        self.wake()
        number = self._begun + 1
        while self._ended < number:
            await self._rounds.park()

    async def run(self) -> None:
        """Lease, until cancelled."""
        while True:
            self._woken = trio.Event()
            begun = self.now()
            await self._lease([each for each in self._shared() if each.due() <= begun], begun)
            await trio.sleep(SOONEST)
            due = min((each.due() for each in self._shared()), default=math.inf)
            with trio.move_on_after(min(max(due - self.now(), 0.0), LOOK if self._places else math.inf)):
                await self._woken.wait()

    async def _lease(self, budgets: Sequence[LeasedBudget | LeasedPlaces], begun: float) -> None:
        self._begun += 1
        # In one order at all processes: each locks the accounts of several budgets.
        asking = sorted(budgets, key=lambda each: (each.server, each.kind))
        wishes = [each.wish() for each in asking]
        try:
            leased = await self._ledger.lease([wish for wish, _ in wishes], self._boot) if wishes else []
        except DirectoryAway:
            for budget in asking:
                budget.fail()
        else:
            for budget, (wish, before), each in zip(asking, wishes, leased, strict=True):
                budget.settle(wish, before, each, begun + OWN_LIFE)
            if asking:
                self.on_leased()
        self._ended = self._begun
        self._rounds.unpark_all()
