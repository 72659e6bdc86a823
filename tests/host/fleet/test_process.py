"""Processes of a fleet over its database, and what keeps one from joining."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from config import Config, Fleet, Inner, Secret
from config.written import rules_digest
from host.admin.schema import FleetStatus
from host.fleet.entrance import open_fleet
from host.fleet.members import LEASE
from host.seal import Seal
from host.storage.postgres import ANSWER_LIMIT, open_postgres
from host.storage.store import LOCKED_LIMIT, Revisions, StateError
from tests.host.fleet.conftest import StoredFleet
from tests.kit.black_hole import open_way
from tests.kit.fleet import KEY
from tests.kit.passes import ATTEMPTS, measure_holds, measure_passes
from tests.kit.postgres import needs_postgres

pytestmark = [needs_postgres, pytest.mark.slow]


def inner_of(fleet: Fleet) -> Inner:
    assert fleet.inner is not None
    return fleet.inner


def special(fleet: FleetStatus) -> dict[str, tuple[str, bool, bool]]:
    """By the id of each process, what sets it apart."""
    return {each["boot"]: (each["status"], each["equal_rules"], each["behind"]) for each in fleet["members"]}


async def test_processes_find_each_other_and_say_when_they_drain(stored_fleet: StoredFleet) -> None:
    fleets = [stored_fleet.of_process() for _ in range(2)]
    seals = [Seal(KEY) for _ in fleets]
    configs = [Config(servers={}, fleet=fleet, digest="d") for fleet in fleets]
    async with (
        open_fleet(configs[0], seals[0], lambda: Revisions(7, 8, 9)) as a,
        open_fleet(configs[1], seals[1], Revisions) as b,
    ):
        assert a is not None
        assert b is not None
        found = await b.members.find(seals[0].boot)
        assert found is not None
        assert found.address == f"127.0.0.1:{inner_of(fleets[0]).address.port}"
        assert (found.definitions, found.grants, found.status) == (7, 8, "starting")
        assert found.rules_digest == rules_digest({})
        assert not b.seal.has_ended(seals[0].boot)
        a.stage = lambda: "draining"
        await a.members.wait_list()
        await b.members.wait_list()
        again = await b.members.find(seals[0].boot)
        assert again is not None
        assert again.status == "draining"
        b.follow(replace(configs[1], written={"a": Secret('{"command": "other"}')}))
        told = b.status()
        assert (told["name"], told["boot"], told["is_current"]) == (fleets[1].name, seals[1].boot, True)
        assert special(told) == {seals[0].boot: ("draining", False, False), seals[1].boot: ("starting", False, False)}
        await b.members.wait_list()
        await a.members.wait_list()
        assert special(a.status()) == {
            seals[0].boot: ("draining", True, False),
            seals[1].boot: ("starting", False, True),
        }
    assert b.seal.has_ended("of nobody")


async def refused(config: Config, said: str) -> None:
    with pytest.raises(StateError, match=said):
        async with open_fleet(config, Seal(KEY), Revisions):
            pass


async def test_a_process_that_cannot_join_says_why(stored_fleet: StoredFleet, tmp_path: Path) -> None:
    fleet = stored_fleet.of_process()
    inner = inner_of(fleet)
    nothing = tmp_path / "nothing.pem"
    for wrong in (replace(inner, cert=nothing), replace(inner, ca=nothing)):
        await refused(
            Config(servers={}, fleet=replace(fleet, inner=wrong)), r"fleet\.inner: .*nothing\.pem cannot be read"
        )
    with socket.create_server((inner.listen.host, inner.listen.port)):
        await refused(
            Config(servers={}, fleet=fleet),
            r"inner\.listen: cannot listen on 127\.0\.0\.1 port \d+: Address already",
        )
    stored_fleet.server.execute("ALTER TABLE colonnade.member RENAME TO gone", database=stored_fleet.database)
    await refused(Config(servers={}, fleet=fleet), "the fleet's database does not answer")


async def test_a_fleet_of_one_process_needs_no_inner_listener(stored_fleet: StoredFleet) -> None:
    alone = replace(stored_fleet.of_process(), inner=None)
    async with open_fleet(Config(servers={}, fleet=alone), Seal(KEY), Revisions) as process:
        assert process is None
    await trio.lowlevel.checkpoint()


LONGEST_PASS = 0.02
"""Seconds of its processor that a pass of the loop may take."""
LONGEST_HOLD = 0.9 * ANSWER_LIMIT
"""Seconds for which it may be blocked. A wait for an answer in it takes the whole limit; a machine whose processors are
shared out holds a thread for half a second at times, by way of another one that has the interpreter's lock."""


async def test_a_blocked_loop_is_seen() -> None:
    """In one of a few looks: once, the kernel had counted a whole sleep as time in the queue of a processor."""
    longest: list[float] = []
    while len(longest) < ATTEMPTS and max(longest, default=0) <= LONGEST_HOLD:
        with measure_holds() as found:
            threading.Event().wait(1.5 * LONGEST_HOLD)
            await trio.sleep(0.01)
        longest.append(found.longest)
    assert longest[-1] > LONGEST_HOLD


async def test_no_pass_of_the_loop_waits_for_a_database_behind_a_black_hole(stored_fleet: StoredFleet) -> None:
    """Neither the heartbeat, nor a look at the feed, nor whoever wants to read or store. When it is back, the process
    is a member again."""
    with open_way(stored_fleet.server.socket) as way:
        url = f"postgresql://postgres@127.0.0.1:{way.port}/{stored_fleet.database}"
        fleet = replace(stored_fleet.of_process(), store=Secret(url))
        with open_postgres(fleet) as store:

            async def use() -> None:
                while True:
                    store.poll()
                    with suppress(StateError):
                        await store.read_credentials()
                    await trio.sleep(0.01)

            async with (
                open_fleet(Config(servers={}, fleet=fleet, digest="d"), Seal(KEY), store.poll) as process,
                trio.open_nursery() as nursery,
            ):
                assert process is not None
                nursery.start_soon(use)
                await trio.sleep(0.5)
                with way.black_hole(), measure_holds() as holds, measure_passes() as passes:  # iptables is waited for
                    await trio.sleep(max(LEASE, LOCKED_LIMIT) + 1)
                    believed = store.is_reliable, process.members.is_current
                with trio.fail_after(20):
                    await process.members.wait_list()
                    while not store.is_reliable:  # noqa: ASYNC110
                        await trio.sleep(0.01)
                nursery.cancel_scope.cancel()
    assert believed == (False, False)
    assert holds.longest < LONGEST_HOLD
    assert passes.longest < LONGEST_PASS
