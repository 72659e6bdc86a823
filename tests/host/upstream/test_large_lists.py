"""Lists as long as they may be, from a server that changes all of it: nobody waits for it, and nobody sees half."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec import Raw
from trio.testing import MockClock

from config import Config, Listen, Trust
from host.console.office import HostOffice
from host.exchange import Caller
from host.policy.audit import files, records, verify
from host.policy.pins import Standing
from host.protocol.methods import Kind
from host.upstream import listing
from tests.kit.passes import passes
from tests.kit.world import ScriptedServer, World, open_world, tool

PAGE = 100
LONGEST = 0.1
"""Seconds of processor time that a pass may take here. Before, it was 2 s for new tools and 54 s for renamed ones."""


class Renaming:
    """The list of a server that renames all of its tools at each `turn`."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.turn = 0
        self._pages: dict[int, list[bytes]] = {}

    def make(self, turn: int) -> None:
        """Write the pages of a turn before anybody asks for them: what the test takes for that is not measured."""
        definitions = [
            json.dumps(tool(f"t{turn}_{number}", description=f"Does {number} things")).encode()
            for number in range(self.count)
        ]
        starts = range(0, self.count, PAGE)
        self._pages[turn] = [
            b'{"tools":[%b]%b}'
            % (
                b",".join(definitions[at : at + PAGE]),
                b',"nextCursor":"%d"' % (at // PAGE + 1) if at + PAGE < self.count else b"",
            )
            for at in starts
        ]

    async def answer(self, params: dict[str, Any]) -> Raw:
        return Raw(self._pages[self.turn][int(params.get("cursor", "0"))])

    def server(self, **more: Any) -> ScriptedServer:
        self.make(0)
        return ScriptedServer("big", tools=["x"], answers={"tools/list": self.answer}, **more)


def listed(world: World, server: str = "big") -> list[str]:
    return [entry.inward for entry in world.catalog.shelf(Kind.TOOL).by_server.get(server, ())]


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(100_000):
        if condition():
            return
        await trio.sleep(0.01)


async def changed(world: World, big: Renaming, turn: int) -> None:
    """The server says that its list has changed, and Colonnade has read it."""
    big.turn = turn
    await world.servers["big"].notifies("notifications/tools/list_changed")
    await until(lambda: listed(world)[:1] == [f"t{turn}_0"])


async def test_a_server_that_renames_all_its_tools_holds_nobody_up(capsys: Any) -> None:
    """From the second turn on more is offered than is kept of a server: each new name was once held against all."""
    big = Renaming(listing.MAX_ENTRIES - 1)
    turns = (1, 2)
    for turn in turns:
        big.make(turn)
    async with open_world(big.server(start_timeout=600.0), ScriptedServer("good", tools=["x"])) as world:
        await world.settled()
        client = await world.client()
        with passes() as found:
            for turn in turns:
                await changed(world, big, turn)
            everything = await client.names()
        with capsys.disabled():
            print(f"\n{found.count} passes, {found.total:.2f} s, the longest {found.longest * 1000:.0f} ms")
        assert found.longest < LONGEST
        assert everything == ["big__t2_0", "good__x"], "the others are held back: no more is kept"


async def test_what_a_list_takes_grows_with_its_length_and_no_faster() -> None:
    took: list[float] = []
    for count in (2000, 4000):
        big = Renaming(count)
        big.make(1)
        async with open_world(big.server(trust=Trust.UNTRUSTED)) as world:
            await world.settled()
            with passes() as found:
                await changed(world, big, 1)
            took.append(found.total)
    assert took[1] < 3 * took[0]


@pytest.mark.parametrize("pages", [1, 3])
async def test_no_page_takes_a_list_beyond_its_limit(pages: int) -> None:
    """Not even the last one."""
    each = 22_000 // pages

    async def answer(params: dict[str, Any]) -> Raw:
        page = int(params.get("cursor", "0"))
        entries = ",".join(f'{{"name":"t{page}_{number}"}}' for number in range(each))
        more = f',"nextCursor":"{page + 1}"' if page + 1 < pages else ""
        return Raw(f'{{"tools":[{entries}]{more}}}'.encode())

    async with open_world(ScriptedServer("big", tools=["x"], answers={"tools/list": answer})) as world:
        await world.settled()
        assert len(listed(world)) == listing.MAX_ENTRIES


@pytest.mark.parametrize("count", [listing.MAX_ENTRIES - 1, listing.MAX_ENTRIES, listing.MAX_ENTRIES + 1])
async def test_a_list_is_cut_at_its_limit_and_not_before(count: int) -> None:
    async def answer(params: dict[str, Any]) -> Raw:
        return Raw(f'{{"tools":[{",".join(f"""{{"name":"t{number}"}}""" for number in range(count))}]}}'.encode())

    async with open_world(ScriptedServer("big", tools=["x"], answers={"tools/list": answer})) as world:
        await world.settled()
        assert len(listed(world)) == min(count, listing.MAX_ENTRIES)
        assert any("the rest is left out" in str(event) for event in world.events) == (count > listing.MAX_ENTRIES)


# Half of a list


async def test_a_list_is_swapped_in_one_step() -> None:
    """Whoever looks at any moment sees the former list or the new one, whole, and what the gate says fits it."""
    big = Renaming(3000)
    big.make(1)
    seen: set[tuple[str, int, bool]] = set()
    async with open_world(big.server()) as world:
        await world.settled()

        async def look() -> None:
            while True:
                names = listed(world)
                known = world.gate.standing("big", Kind.TOOL, "t1_2999") is Standing.APPROVED
                seen.add((names[0].split("_")[0], len(names), known))
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            await changed(world, big, 1)
            await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    assert seen == {("t0", 3000, False), ("t1", 3000, True)}


Meanwhile = Callable[[World], None]


def revokes(world: World) -> None:
    world.gate.revoke("big", "tool", "t0_7", "", "console")


def denies(world: World) -> None:
    world.configures(world.servers["big"])  # by rules that are others, whatever they say


def trusts_less(world: World) -> None:
    server = world.servers["big"]
    server.spec = type(server.spec)(**{**_fields(server.spec), "trust": Trust.UNTRUSTED})
    world.configures(server)


def _fields(spec: object) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in spec.__dataclass_fields__}  # type: ignore[attr-defined]


@pytest.mark.parametrize(("meanwhile", "hidden"), [(revokes, {"t0_7"}), (denies, set()), (trusts_less, None)])
@pytest.mark.parametrize("after", [1, 20, 60])
async def test_what_is_decided_while_a_list_is_made_holds_for_it(
    meanwhile: Meanwhile, hidden: set[str] | None, after: int
) -> None:
    """An approval taken back, other rules, less trust: at no moment is anything listed that may not be seen by then."""
    big = Renaming(1500)
    async with open_world(big.server()) as world:
        await world.settled()
        # The same names, and one description that is another, so that something is to be made.
        big.make(1)
        big._pages[1] = [page.replace(b"t1_", b"t0_").replace(b"Does 9 ", b"Does nine ") for page in big._pages[1]]
        big.turn = 1
        wrong: list[str] = []
        decided = False

        async def look() -> None:
            while True:
                view = await world.router.view(Caller("t", None), Kind.TOOL)
                names = {json.loads(each)["name"].removeprefix("big__") for each in view.definitions}
                if decided:
                    wrong.extend(names if hidden is None else names & hidden)
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            lister = world.roster.upstreams["big"]._lister
            assert lister is not None
            nursery.start_soon(lister.read, Kind.TOOL)
            for _ in range(after):
                await trio.lowlevel.checkpoint()
            meanwhile(world)
            decided = True
            nursery.start_soon(look)
            await until(lambda: world.gate.standing("big", Kind.TOOL, "t0_9") is not Standing.APPROVED)
            for _ in range(50):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert wrong == []
        shown = world.catalog.shelf(Kind.TOOL).entries
        assert {entry.inward for entry in shown} == (
            set() if hidden is None else {f"t0_{number}" for number in range(1500)} - {"t0_9"} - hidden
        )


# What is written down


async def test_churn_costs_little_in_the_audit(tmp_path: Path) -> None:
    """9,999 tools renamed are one record with their count, the first of them, and a digest over all."""
    big = Renaming(listing.MAX_ENTRIES - 1)
    big.make(1)
    async with open_world(big.server(trust=Trust.UNTRUSTED, start_timeout=600.0), state=tmp_path / "state") as world:
        await world.settled()
        folder = tmp_path / "state" / "audit"
        before = sum(path.stat().st_size for path in files(folder))
        await changed(world, big, 1)
        grown = sum(path.stat().st_size for path in files(folder)) - before
        assert 0 < grown < 20_000
        _, record = records(folder, kind="definitions")
        assert (record["server"], record["prim"]) == ("big", "tool")
        assert record["counts"] == {"new": 9999}
        names = record["items"]
        assert isinstance(names, list)
        assert names[:2] == ["t1_0", "t1_1"]
        assert len(names) == 20
    (path,) = files(folder)
    assert verify(path).soundness == "ok"


async def test_a_list_that_flaps_for_an_hour_is_read_some_forty_times(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world:
        await world.settled()
        server.asked.clear()
        for turn in range(3600):
            server.lists["tools"] = [tool(f"x{turn}")]
            await server.notifies("notifications/tools/list_changed")
            await trio.sleep(1)
        assert 5 < server.asked.count("tools/list") < 60
        await trio.sleep(3 * 3600)
        server.asked.clear()
        server.lists["tools"] = [tool("calm")]
        await server.notifies("notifications/tools/list_changed")
        await trio.sleep(1)
        assert server.asked.count("tools/list") == 1, "once it is quiet, it is read at once again"


async def test_an_honest_server_is_heard_at_once(autojump_clock: MockClock) -> None:
    """Some tools more, now and then: clients are told within a second or two."""
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world:
        await world.settled()
        client = await world.client()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.hear_changes)
            for turn in range(8):
                server.lists["tools"].append(tool(f"y{turn}"))
                await server.notifies("notifications/tools/list_changed")
                await trio.sleep(2)
                assert len(client.heard("notifications/tools/list_changed")) == turn + 1
                await trio.sleep(600)
            nursery.cancel_scope.cancel()


# Who looks while it is long


async def test_the_console_and_a_judge_hold_nobody_up_either() -> None:
    """Ten thousand held definitions, shown and explained."""
    big = Renaming(listing.MAX_ENTRIES - 1)
    async with open_world(big.server(trust=Trust.UNTRUSTED, start_timeout=600.0)) as world:
        await world.settled()
        config = Config(Path("/nowhere"), Listen(), 3.0, {"big": world.servers["big"].spec})
        office = HostOffice(lambda: config, world.roster, world.catalog, world.gate, world.journal, stdio=False)
        with passes() as found:
            state = await office.state(["servers", "catalog", "held"])
            said = office.explain("big", "tool", "t0_5", None)
        assert (state["servers"][0]["held"], len(state["catalog"]), len(state["held"])) == (9999, 9999, 500)
        assert said["standing"] == "new"
        assert found.longest < LONGEST
