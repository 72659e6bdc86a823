"""The directory of members in the fleet's database: one row for each process, renewed over a connection of its own, so
that a heartbeat waits for no decision that is being stored.

A renewal is one statement, and is not waited for until it is on the disk: after a crash of the engine each process
renews its row within HEARTBEAT seconds, and a row that was lost is that of a process which does so too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Any, TypeVar

import psycopg
import trio
from msgspec.structs import replace

from config import Fleet
from host.fleet.members import LEASE, NOBODY, PATIENCE, DirectoryAway, FleetMember
from host.fleet.rates import PLACES, POOL, Account, Leased, Wish, settle
from host.storage.postgres import StoreConnection, Watchdog, connect
from host.storage.store import StateError

T = TypeVar("T")

MOST_CLAIMED = 100
"""Sessions that are claimed in one turn."""
FORGET_AFTER = "1 hour"
"""How long after the end of a lease its row is kept, so that `status` shows who is missing."""

_ADDRESS = re.compile(r"([0-9.]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")
_COLUMNS = "boot, address, definitions, grants, rules_digest, version, status, attended"
# The reading sees the table as it was before the statement, and so whether the lease of this process was over.
_BEAT = f"""WITH renewed AS (
    INSERT INTO member (config, {_COLUMNS}, until)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, clock_timestamp() + make_interval(secs => {LEASE}))
    ON CONFLICT (config, boot) DO UPDATE SET until = excluded.until, definitions = excluded.definitions,
        grants = excluded.grants, rules_digest = excluded.rules_digest, status = excluded.status,
        attended = excluded.attended
) SELECT {_COLUMNS}, extract(epoch FROM until - clock_timestamp())::float8 FROM member WHERE config = ?"""
_FORGET = f"DELETE FROM member WHERE config = ? AND until < clock_timestamp() - interval '{FORGET_AFTER}'"
# Several that try at once wait for each other, and each then looks at what the one before has written.
_CLAIM = """UPDATE session SET home = ? WHERE config = ? AND id = ANY(?) AND home <> ? AND NOT EXISTS (
    SELECT 1 FROM member WHERE member.config = session.config AND until > clock_timestamp()
        AND boot <> ? AND boot = CASE session.home WHEN '' THEN ? ELSE session.home END
)"""
_RELEASE = f"UPDATE session SET home = '{NOBODY}' WHERE config = ? AND id = ANY(?) AND home IN ('', ?)"
_HOME = "SELECT home FROM session WHERE config = ? AND id = ANY(?)"
_ADOPTERS = "SELECT id, home FROM session WHERE config = ? AND id = ANY(?)"
_CHOSEN = "config = ? AND (server, kind) IN (SELECT * FROM unnest(?::text[], ?::text[]))"
# Each pool is locked, in one order, before anything of its budget is read.
_MAKE_POOLS = f"""INSERT INTO budget (config, server, kind, member, amount, at)
    SELECT ?, server, kind, '{POOL}', amount, extract(epoch FROM clock_timestamp())::float8
    FROM unnest(?::text[], ?::text[], ?::float8[]) AS new (server, kind, amount) ORDER BY server, kind
    ON CONFLICT DO NOTHING"""
_LOCK_POOLS = f"SELECT 1 FROM budget WHERE {_CHOSEN} AND member = '{POOL}' ORDER BY server, kind FOR UPDATE"
_ACCOUNTS = f"""SELECT server, kind, member, amount, at, extract(epoch FROM clock_timestamp())::float8
    FROM budget WHERE {_CHOSEN}"""
_PUT_ACCOUNT = """INSERT INTO budget (config, server, kind, member, amount, at) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (config, server, kind, member) DO UPDATE SET amount = excluded.amount, at = excluded.at"""
_DROP_ACCOUNT = "DELETE FROM budget WHERE config = ? AND server = ? AND kind = ? AND member = ?"
_LEAVE = "DELETE FROM member WHERE config = ? AND boot = ?"
# Its calls have ended. What it has leased of rates counts as used.
_GIVE_PLACES = f"DELETE FROM budget WHERE config = ? AND member = ? AND kind = '{PLACES}'"


class _Line:
    """One connection, made anew after each failure, and used by one worker thread at a time."""

    def __init__(self, fleet: Fleet, watchdog: Watchdog) -> None:
        self._fleet = fleet
        self._watchdog = watchdog
        self._link: StoreConnection | None = None
        self._turns = trio.Lock()

    async def carry_out(self, work: Callable[[StoreConnection], T]) -> T:
        """Raises DirectoryAway, too, if its turn does not come within PATIENCE seconds: with an engine that is stopped
        each turn takes seconds, and hundreds may wait."""
        with trio.move_on_after(PATIENCE) as waiting:
            await self._turns.acquire()
        if waiting.cancelled_caught:
            raise DirectoryAway
        try:
            return await trio.to_thread.run_sync(self._in_thread, work)
        finally:
            self._turns.release()

    def _in_thread(self, work: Callable[[StoreConnection], T]) -> T:
        try:
            if self._link is None:
                self._link = connect(self._fleet, self._watchdog)
                self._link.execute("SET synchronous_commit = off")
            return work(self._link)
        except (psycopg.Error, OSError, StateError):
            self.close()
            raise DirectoryAway from None

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None


class _Claim:
    """A claim of a session. `found`: as `claim` returns it, once it is done."""

    __slots__ = ("by", "found", "home", "is_done", "is_over", "keys")

    def __init__(self, keys: list[str], home: str, by: str) -> None:
        self.keys, self.home, self.by = keys, home, by
        self.found: str | None = None
        self.is_done = self.is_over = False


class PostgresDirectory:
    """Implements `members.Directory`. `aclose` must follow."""

    def __init__(self, fleet: Fleet) -> None:
        self._name = fleet.name
        self._watchdog = Watchdog()
        self._beats, self._claims, self._budgets = (_Line(fleet, self._watchdog) for _ in range(3))
        self._has_forgotten = False
        self._wanted: list[_Claim] = []
        self._is_claiming = False
        self._claimed = trio.lowlevel.ParkingLot()

    async def beat(self, own: FleetMember) -> Sequence[FleetMember]:
        return await self._beats.carry_out(lambda link: self._beat(link, own))

    async def leave(self, boot: str) -> None:
        def leave(link: StoreConnection) -> None:
            link.execute(_LEAVE, (self._name, boot))
            link.execute(_GIVE_PLACES, (self._name, boot))

        await self._beats.carry_out(leave)

    async def claim(self, keys: Sequence[str], home: str, by: str) -> str | None:
        claim = _Claim(list(keys), home, by)
        self._wanted.append(claim)
        try:
            with trio.move_on_after(PATIENCE):
                while not claim.is_over:
                    await (self._claimed.park() if self._is_claiming else self._claim_wanted())
        finally:
            if claim in self._wanted:
                self._wanted.remove(claim)
        if not claim.is_done:
            raise DirectoryAway
        return claim.found

    async def _claim_wanted(self) -> None:
        """Carry out the claims that are wanted now in one turn: hundreds come when a process is gone, and each turn
        takes two passes of a busy event loop."""
        batch, self._wanted = self._wanted[:MOST_CLAIMED], self._wanted[MOST_CLAIMED:]
        self._is_claiming = True
        try:
            with trio.CancelScope(shield=True):  # the others wait for this one
                await self._claims.carry_out(lambda link: self._claim(link, batch))
        finally:
            self._is_claiming = False
            for each in batch:
                each.is_over = True
            self._claimed.unpark_all()

    def _claim(self, link: StoreConnection, batch: Sequence[_Claim]) -> None:
        for each in batch:
            if link.execute(_CLAIM, (each.by, self._name, each.keys, each.by, each.by, each.home)).rowcount:
                each.found = each.by
            elif (row := link.execute(_HOME, (self._name, each.keys)).fetchone()) is not None:
                each.found = row[0] or each.home
            each.is_done = True

    async def release(self, keys: Sequence[str], by: str) -> Mapping[str, str]:
        def release(link: StoreConnection) -> Mapping[str, str]:
            link.execute(_RELEASE, (self._name, list(keys), by))
            return dict(link.execute(_ADOPTERS, (self._name, list(keys))).fetchall())

        return await self._claims.carry_out(release)

    async def adopters(self, keys: Sequence[str]) -> Mapping[str, str]:
        return dict(
            await self._claims.carry_out(lambda link: link.execute(_ADOPTERS, (self._name, list(keys))).fetchall())
        )

    async def lease(self, wishes: Sequence[Wish], boot: str) -> Sequence[Leased]:
        """Implements `rates.Ledger`."""
        return await self._budgets.carry_out(lambda link: self._lease(link, wishes, boot))

    def _lease(self, link: StoreConnection, wishes: Sequence[Wish], boot: str) -> list[Leased]:
        servers, kinds = [each.server for each in wishes], [each.kind for each in wishes]
        chosen = (self._name, servers, kinds)
        link.execute("BEGIN")
        # After a crash of the engine, what was leased must not be there once more.
        link.execute("SET LOCAL synchronous_commit = on")
        link.execute(_MAKE_POOLS, (*chosen, [float(each.rate.count) for each in wishes]))
        link.execute(_LOCK_POOLS, chosen)
        found: dict[tuple[str, str], dict[str, Account]] = {}
        now = 0.0
        for server, kind, member, amount, at, now in link.execute(_ACCOUNTS, chosen).fetchall():  # noqa: B007
            found.setdefault((server, kind), {})[member] = Account(amount, at)
        leased, changed, gone = [], [], []
        for wish in wishes:
            before = found[wish.server, wish.kind]
            after = settle(wish, boot, before, now)
            key = (self._name, wish.server, wish.kind)
            changed += [(*key, who, each.amount, each.at) for who, each in after.items() if each != before.get(who)]
            gone += [(*key, who) for who in before if who not in after]
            held = after.get(boot)
            leased.append(Leased(0 if held is None else int(held.amount), after[POOL].amount))
        link.executemany(_PUT_ACCOUNT, changed)
        link.executemany(_DROP_ACCOUNT, gone)
        link.execute("COMMIT")
        return leased

    async def aclose(self) -> None:
        """Close the connections."""
        for line in (self._beats, self._claims, self._budgets):
            await trio.to_thread.run_sync(line.close)
        self._watchdog.end()

    def _beat(self, link: StoreConnection, own: FleetMember) -> list[FleetMember]:
        if not self._has_forgotten:
            link.execute(_FORGET, (self._name,))
            self._has_forgotten = True
        said = (own.definitions, own.grants, own.rules_digest, own.version, own.status, own.attended)
        rows: list[Any] = link.execute(_BEAT, (self._name, own.boot, own.address, *said, self._name)).fetchall()
        members = [each for each in (FleetMember(*row) for row in rows) if _is_address(each.address)]
        left = next((each.left for each in members if each.boot == own.boot), LEASE)
        return [replace(own, left=left), *(each for each in members if each.boot != own.boot)]


def _is_address(text: str) -> bool:
    """Whether requests can be sent there. Whoever can write the database, and has no key, could write any text."""
    found = _ADDRESS.fullmatch(text)
    with suppress(ValueError):
        return found is not None and 0 < int(found[2]) < 2**16 and bool(ip_address(found[1].strip("[]")))
    return False
