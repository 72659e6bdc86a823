"""Who is a member, for how long, and what holds while the directory is away."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from msgspec import structs

from host.fleet.members import (
    HEARTBEAT,
    LEASE,
    MAX_ABSENT,
    OWN_LEASE,
    PATIENCE,
    SOONEST,
    DirectoryAway,
    FleetMember,
    Membership,
    open_members,
)
from tests.kit.fleet import MemoryDirectory

pytestmark = pytest.mark.virtual_time

A, B = FleetMember("a", "10.0.0.1:8443"), FleetMember("b", "10.0.0.2:8443")
LEAVES = FleetMember("c", "10.0.0.3:8443")


member_of = partial(Membership, now=trio.current_time)
joins = partial(open_members, now=trio.current_time)


def found(member: FleetMember | None) -> str:
    return "" if member is None else member.address


async def test_members_find_each_other_until_one_leaves() -> None:
    directory = MemoryDirectory()
    async with joins(directory, lambda: A) as of_a:
        async with joins(directory, lambda: B) as of_b:
            assert found(await of_b.find("a")) == A.address
            assert found(await of_a.find("b")) == B.address  # came after the list that A has
            assert {each.boot for each in of_a.present} == {"a", "b"}
        await of_a.wait_list()
        assert await of_a.find("b") is None
        before = trio.current_time()
        assert await of_a.find("b") is None
        assert trio.current_time() == before, "what is known to be gone is not waited for"


async def test_one_that_dies_is_there_until_its_lease_is_over() -> None:
    directory = MemoryDirectory()
    dead = member_of(directory, lambda: B)
    await dead.renew()
    async with joins(directory, lambda: A) as of_a:
        await trio.sleep(LEASE - 0.01)
        assert found(await of_a.find("b")) == B.address
        await trio.sleep(HEARTBEAT + 0.02)
        assert await of_a.find("b") is None
        assert not dead.is_current


async def test_who_waits_for_the_end_of_a_lease_hears_of_it_soon() -> None:
    """And not for longer than it wants, of one that lives."""
    directory = MemoryDirectory()
    async with joins(directory, lambda: A) as of_a:
        dead = member_of(directory, lambda: B)
        await dead.renew()
        renewed = trio.current_time()
        await of_a.wait_list()
        await of_a.wait_gone("b", 10)
        assert LEASE <= trio.current_time() - renewed <= LEASE + SOONEST
        assert not of_a.has("b")
        begun = trio.current_time()
        await of_a.wait_gone("a", 1)
        assert trio.current_time() - begun == pytest.approx(1)


async def test_a_process_believes_its_lease_for_a_shorter_time_than_the_others() -> None:
    """From the start of the renewal, however long its answer took."""
    directory = MemoryDirectory()
    slow = member_of(directory, lambda: B)
    directory.delay = 1.5
    begun = trio.current_time()
    await slow.renew()
    directory.delay = 0.0
    async with joins(directory, lambda: A) as of_a:
        while slow.is_current:
            await of_a.wait_list()
            assert found(await of_a.find("b")) == B.address
    assert OWN_LEASE <= trio.current_time() - begun <= OWN_LEASE + HEARTBEAT


async def test_a_decision_holds_nowhere_else_once_all_have_taken_it_over_or_are_gone() -> None:
    """Also one that came after the last list. Who is behind for long is named."""
    directory, of_b = MemoryDirectory(), structs.replace(B, grants=3)
    async with joins(directory, lambda: A) as of_a, joins(directory, lambda: of_b):
        assert [each.boot for each in await of_a.wait_taken_over(grants=4)] == ["b"]
        begun = trio.current_time()
        of_b = structs.replace(B, grants=4)
        assert await of_a.wait_taken_over(grants=4) == []
        assert trio.current_time() - begun <= 2 * HEARTBEAT
    dead = member_of(directory, lambda: structs.replace(B, grants=3))
    await dead.renew()
    async with joins(directory, lambda: A) as of_a:
        assert await of_a.wait_taken_over(grants=4) == [], "its lease is over by then"
        assert not dead.is_current
        directory.away = True
        assert await of_a.wait_taken_over(grants=4) == []
        assert not of_a.is_current


async def test_what_outlives_a_lease_is_waited_for_until_it_has_ended_or_its_process_has_left() -> None:
    """Definitions hold at a process that does not reach the database for longer than its lease."""
    directory = MemoryDirectory()
    silent = member_of(directory, lambda: structs.replace(B, definitions=3))
    await silent.renew()
    async with joins(directory, lambda: A), joins(directory, lambda: LEAVES):
        await trio.sleep(LEASE + HEARTBEAT)
    async with joins(directory, lambda: A) as of_a:
        behind = await of_a.wait_taken_over(definitions=4, outlives_lease=60)
        assert [each.boot for each in behind] == ["b"], "and not the one that has left"
        assert await of_a.wait_taken_over(grants=4) == []
        await trio.sleep(60)
        begun = trio.current_time()
        assert await of_a.wait_taken_over(definitions=4, outlives_lease=60) == []
        assert trio.current_time() - begun <= HEARTBEAT


async def test_who_has_taken_over_something_says_so_before_its_lease_is_due() -> None:
    """And who waits for that looks often."""
    directory, of_b = MemoryDirectory(), structs.replace(B, definitions=3)
    async with joins(directory, lambda: A) as of_a, joins(directory, lambda: of_b) as members_of_b:
        await trio.sleep(SOONEST)
        begun = trio.current_time()
        of_b = structs.replace(B, definitions=4)
        members_of_b.wake()
        assert await of_a.wait_taken_over(definitions=4) == []
        assert trio.current_time() - begun < HEARTBEAT
        await trio.sleep(HEARTBEAT)
        beats = directory.beats
        await trio.sleep(10 * HEARTBEAT)
        assert directory.beats - beats <= 22, "each renews its lease as often as is needed, while nothing happens"


async def test_without_the_directory_the_last_list_counts_and_nobody_is_taken_for_gone() -> None:
    directory = MemoryDirectory()
    async with joins(directory, lambda: A) as of_a, joins(directory, lambda: B):
        await of_a.wait_list()
        assert await of_a.find("gone") is None
        directory.away = True
        await trio.sleep(60)
        assert not of_a.is_current
        assert found(await of_a.find("b")) == B.address
        for unknown in ("new", "gone"):
            asked = trio.current_time()
            with pytest.raises(DirectoryAway):
                await of_a.find(unknown)
            assert trio.current_time() == asked + PATIENCE
        directory.away = False
        assert await of_a.find("new") is None
        assert of_a.is_current


async def test_nobody_is_taken_for_gone_just_after_the_directory_was_away() -> None:
    """The leases of all are over by then, and one renews its own first. Who is really gone is so a lease later."""
    directory = MemoryDirectory()
    of_a, of_b, of_c = (member_of(directory, lambda of=of: of) for of in (A, B, FleetMember("c", "10.0.0.3:8443")))  # type: ignore[misc]
    for each in (of_c, of_b, of_a):
        await each.renew()
    await trio.sleep(60)
    await of_a.renew()
    assert {each.boot for each in of_a.present} == {"a", "b", "c"}
    await trio.sleep(HEARTBEAT)
    await of_b.renew()
    while of_a.has("c"):
        await trio.sleep(HEARTBEAT)
        await of_b.renew()
        await of_a.renew()
        assert of_a.has("b")
    assert trio.current_time() < 60 + LEASE + 3 * HEARTBEAT


async def test_one_that_was_gone_and_comes_back_is_found() -> None:
    """A process that was stopped for a while."""
    directory = MemoryDirectory()
    paused = member_of(directory, lambda: B)
    async with joins(directory, lambda: A) as of_a:
        assert await of_a.find("b") is None
        await paused.renew()
        await of_a.wait_list()
        assert found(await of_a.find("b")) == B.address


@pytest.mark.slow
async def test_the_absent_are_bounded() -> None:
    async with joins(MemoryDirectory(), lambda: A) as of_a:
        async with trio.open_nursery() as nursery:
            for number in range(MAX_ABSENT + 5):
                nursery.start_soon(of_a.find, f"{number}")
        assert len(of_a._absent) == MAX_ABSENT


async def test_a_process_does_not_start_without_the_directory() -> None:
    directory = MemoryDirectory()
    directory.away = True
    with pytest.raises(DirectoryAway):
        async with joins(directory, lambda: A):
            pass


async def test_leaving_takes_no_longer_than_its_limit_while_the_directory_is_away() -> None:
    directory = MemoryDirectory()
    async with joins(directory, lambda: A):
        directory.away = True
    assert directory.beats == 1


async def test_a_process_whose_machine_slept_believes_no_lease_until_it_is_renewed() -> None:
    """The clock of the event loop stood still, and others may have adopted its sessions."""
    slept = [0.0]
    async with open_members(MemoryDirectory(), lambda: A, lambda: trio.current_time() + sum(slept)) as of_a:
        believed = [of_a.is_current]
        slept.append(1.5 * OWN_LEASE)
        assert [*believed, of_a.is_current] == [True, False]
        await of_a.wait_list()
        assert (of_a.is_current, of_a.returns) == (True, 1)


async def test_nobody_is_taken_for_gone_because_the_clock_of_the_engine_is_set_forward() -> None:
    """As after a failover to another machine. All may have been adopted by one that came then, and look."""
    directory = MemoryDirectory()
    async with joins(directory, lambda: A) as of_a, joins(directory, lambda: B) as of_b:
        await of_a.wait_list()
        directory.ahead = 60.0
        for _ in range(10):
            await of_a.wait_list()
            assert of_a.has("b")
        await of_b.wait_list()
        assert (of_a.returns, of_b.returns) == (1, 1)


async def test_who_ends_after_the_clock_of_the_engine_was_set_back_is_gone_with_its_lease() -> None:
    directory = MemoryDirectory()
    other = member_of(directory, lambda: B)
    async with joins(directory, lambda: A) as of_a:
        await other.renew()
        await of_a.wait_list()
        directory.ahead = -3600.0
        await of_a.wait_list()
        await other.renew()
        await of_a.wait_list()
        assert of_a.has("b")
        await trio.sleep(LEASE)
        await of_a.wait_list()
        assert not of_a.has("b")


async def test_a_decision_waits_for_the_lease_that_a_process_believes_whatever_the_clock_of_the_engine_does() -> None:
    directory = MemoryDirectory()
    cut_off = member_of(directory, lambda: structs.replace(B, grants=3))
    async with joins(directory, lambda: A) as of_a:
        await cut_off.renew()
        await of_a.wait_list()
        directory.ahead = 60.0
        assert await of_a.wait_taken_over(grants=4) == []
        assert not cut_off.is_current
        await of_a.wait_list()
        assert not of_a.has("b")
