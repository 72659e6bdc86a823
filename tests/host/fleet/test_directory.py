"""The directory in PostgreSQL: leases by its clock, and what an engine that is away leaves."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest
import trio
import trio.lowlevel
import trio.testing
from msgspec.structs import replace

from host.fleet.directory import PostgresDirectory
from host.fleet.members import LEASE, NOBODY, DirectoryAway, FleetMember, open_members
from host.storage.postgres import StoreConnection
from tests.host.fleet.conftest import StoredFleet
from tests.kit.postgres import needs_postgres

pytestmark = [needs_postgres, pytest.mark.slow]

A = FleetMember("a" * 16, "10.0.0.1:8443", 3, 4, "digest", "1.0")
B = FleetMember("b" * 16, "10.0.0.2:8443", 5, 6, "digest", "1.1", "draining", True)


async def test_each_member_sees_the_others_as_they_said_themselves_last(stored_fleet: StoredFleet) -> None:
    of_a, of_b = (PostgresDirectory(stored_fleet.of_process()) for _ in range(2))
    try:
        assert [each.boot for each in await of_a.beat(A)] == [A.boot]
        (own, other) = await of_b.beat(B)
        assert own == B
        assert other.left < LEASE
        assert (other.boot, other.address, other.definitions, other.grants) == (A.boot, A.address, 3, 4)
        (_, seen) = await of_a.beat(A)
        assert (seen.rules_digest, seen.version, seen.status) == ("digest", "1.1", "draining")
        await trio.sleep(LEASE + 0.1)
        (_, over) = await of_a.beat(A)
        assert over.left < 0, "it is shown as one whose lease is over"
        await of_b.beat(B)
        (_, again) = await of_a.beat(A)
        assert 0 < again.left <= LEASE
        await of_b.leave(B.boot)
        assert [each.boot for each in await of_a.beat(A)] == [A.boot]
    finally:
        await of_a.aclose()
        await of_b.aclose()


async def test_a_process_is_told_that_its_lease_was_over(stored_fleet: StoredFleet) -> None:
    """By the clock of the database, by which another one may have adopted its sessions."""
    directory = PostgresDirectory(stored_fleet.of_process())
    try:
        for over in ("0", "60"):
            (own,) = await directory.beat(A)
            assert 0 < own.left <= LEASE
            stored_fleet.server.execute(
                f"UPDATE colonnade.member SET until = until - make_interval(secs => {over})",
                database=stored_fleet.database,
            )
        (own,) = await directory.beat(A)
        assert own.left < 0
    finally:
        await directory.aclose()


async def test_fleets_in_one_database_do_not_see_each_other(stored_fleet: StoredFleet) -> None:
    other = stored_fleet.server.fleet(stored_fleet.database, "other")
    of_a, of_other = PostgresDirectory(stored_fleet.of_process()), PostgresDirectory(other)
    try:
        await of_a.beat(A)
        assert [each.boot for each in await of_other.beat(B)] == [B.boot]
    finally:
        await of_a.aclose()
        await of_other.aclose()


async def test_a_backend_that_ends_or_stops_is_left_and_the_lease_renewed_by_the_next(
    stored_fleet: StoredFleet,
) -> None:
    """Over another connection, while the stopped one is still there."""
    fleet = stored_fleet.of_process()
    directory = PostgresDirectory(fleet)
    find = "SELECT pid FROM pg_stat_activity WHERE application_name = 'colonnade' AND datname = current_database()"
    try:
        async with open_members(directory, lambda: A, trio.current_time) as members:
            (row,) = await trio.to_thread.run_sync(
                lambda: stored_fleet.server.execute(find, database=stored_fleet.database)
            )
            os.kill(row[0], signal.SIGSTOP)
            try:
                for _ in range(2):
                    await members.wait_list()
                assert members.is_current
            finally:
                os.kill(row[0], signal.SIGCONT)
            ended = find.replace("SELECT pid", "SELECT pg_terminate_backend(pid)")  # other tests use the same engine
            await trio.to_thread.run_sync(lambda: stored_fleet.server.execute(ended, database=stored_fleet.database))
            await members.wait_list()
            assert members.is_current
    finally:
        await directory.aclose()


async def test_a_session_is_adopted_by_one_of_several_and_only_from_a_home_that_is_gone(
    stored_fleet: StoredFleet,
) -> None:
    directories = [PostgresDirectory(stored_fleet.of_process()) for _ in range(4)]
    (of_a, of_b, *_), name = directories, stored_fleet.of_process().name
    made = f"INSERT INTO colonnade.session (config, id, sealed, touched) VALUES ('{name}', 'k1', '', 0)"
    stored_fleet.server.execute(made, database=stored_fleet.database)
    homes: list[str | None] = []

    async def claim(directory: PostgresDirectory, by: str) -> None:
        homes.append(await directory.claim(["k0", "k1"], A.boot, by))

    try:
        await of_a.beat(A)
        assert await of_b.claim(["k0", "k1"], A.boot, B.boot) == A.boot, "its home has a lease"
        assert await of_b.claim(["k2"], A.boot, B.boot) is None
        assert await of_b.adopters(["k1", "k2"]) == {"k1": ""}
        await of_a.leave(A.boot)
        boots = [f"{n}" * 16 for n in range(4)]
        for directory, boot in zip(directories, boots, strict=True):
            await directory.beat(replace(B, boot=boot))
        async with trio.open_nursery() as nursery:
            for directory, boot in zip(directories, boots, strict=True):
                nursery.start_soon(claim, directory, boot)
        (adopter,) = set(homes)
        assert adopter in boots
        assert await of_a.adopters(["k0", "k1"]) == {"k1": adopter}
    finally:
        for directory in directories:
            await directory.aclose()


async def test_sessions_that_are_claimed_together_are_adopted_in_few_turns(
    stored_fleet: StoredFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each turn waits for a busy event loop. One whose request is given up takes no other one with it."""
    directory, name = PostgresDirectory(stored_fleet.of_process()), stored_fleet.of_process().name
    rows = ", ".join(f"('{name}', 'k{n}', '', 0)" for n in range(30))
    made = f"INSERT INTO colonnade.session (config, id, sealed, touched) VALUES {rows}"
    stored_fleet.server.execute(made, database=stored_fleet.database)
    turns, carry_out, found = list[object](), directory._claims.carry_out, dict[int, str | None]()

    async def count(work: Callable[[StoreConnection], object]) -> object:
        turns.append(work)
        return await carry_out(work)

    async def claim(n: int) -> None:
        found[n] = await directory.claim([f"k{n}"], A.boot, B.boot)

    monkeypatch.setattr(directory._claims, "carry_out", count)
    try:
        with trio.CancelScope() as given_up:
            async with trio.open_nursery() as nursery:
                for n in range(31):
                    nursery.start_soon(claim, n)
                await trio.lowlevel.checkpoint()
                given_up.cancel()
        assert directory._wanted == []
        async with trio.open_nursery() as nursery:
            for n in range(31):
                nursery.start_soon(claim, n)
        assert found == dict.fromkeys(range(30), B.boot) | {30: None}
        assert len(turns) <= 4
    finally:
        await directory.aclose()


async def test_a_session_that_is_given_away_is_for_whoever_claims_it(stored_fleet: StoredFleet) -> None:
    """Its former home has a lease. Nobody gives away what is another one's."""
    of_a, of_b = (PostgresDirectory(stored_fleet.of_process()) for _ in range(2))
    name = stored_fleet.of_process().name
    made = f"INSERT INTO colonnade.session (config, id, sealed, touched) VALUES ('{name}', 'k1', '', 0)"
    stored_fleet.server.execute(made, database=stored_fleet.database)
    try:
        for directory, member in ((of_a, A), (of_b, B)):
            await directory.beat(member)
        assert await of_a.release(["k1", "k2"], A.boot) == {"k1": NOBODY}
        assert await of_a.release(["k1"], A.boot) == {"k1": NOBODY}
        assert await of_b.claim(["k1"], A.boot, B.boot) == B.boot
        assert await of_a.release(["k1"], A.boot) == {"k1": B.boot}
        assert await of_a.claim(["k1"], A.boot, A.boot) == B.boot
        assert await of_b.release(["k1"], B.boot) == {"k1": NOBODY}
    finally:
        for each in (of_a, of_b):
            await each.aclose()


@pytest.mark.parametrize(
    "address",
    ["", "10.0.0.2", "10.0.0.2:https", "10.0.0.2:0", "10.0.0.2:65536", "1.2.3:4", "a.example:1", "[::1%\r\n]:1"],
)
async def test_who_has_an_address_that_no_member_writes_is_none(stored_fleet: StoredFleet, address: str) -> None:
    of_a, of_b = (PostgresDirectory(stored_fleet.of_process()) for _ in range(2))
    try:
        await of_b.beat(replace(B, address=address))
        assert [each.boot for each in await of_a.beat(A)] == [A.boot]
        await of_b.beat(replace(B, boot="c" * 16, address="[fd00::2]:8443"))
        assert [each.boot for each in await of_a.beat(A)] == [A.boot, "c" * 16]
    finally:
        await of_a.aclose()
        await of_b.aclose()


async def test_who_waits_behind_an_engine_that_is_stopped_is_told_so(
    stored_fleet: StoredFleet, autojump_clock: trio.testing.MockClock
) -> None:
    directory = PostgresDirectory(stored_fleet.of_process())
    is_over = threading.Event()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(directory._claims.carry_out, lambda link: is_over.wait(60))
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(DirectoryAway):
                await directory.claim(["k"], A.boot, B.boot)
            is_over.set()
        assert await directory.claim(["k"], A.boot, B.boot) is None, "the next one has its turn"
    finally:
        await directory.aclose()
