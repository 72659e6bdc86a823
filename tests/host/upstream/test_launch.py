"""A command that resolves to another program than the approved one: its server is held."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from config import Secret, Trust
from host.errors import Unavailable
from host.slices import run_inline
from host.upstream.state import Held, Ready, describe_state
from tests.kit.world import ScriptedServer, World, open_world


class Programs:
    """Two programs, and a command that is the first of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in ("one", "two"):
            (folder / name).touch(0o755)
        self.is_now("one")

    def is_now(self, name: str) -> None:
        (self._folder / "command").unlink(missing_ok=True)
        (self._folder / "command").symlink_to(name)

    def server(self, trust: Trust = Trust.STANDARD) -> ScriptedServer:
        made = ScriptedServer("a", tools=["x"], answers={"tools/call": _ok}, trust=trust)
        made.spec = replace(made.spec, command=(Secret(str(self._folder / "command")),))
        return made


def present(world: World) -> type:
    """What kind of state the server is in."""
    return type(world.upstreams.by_id["a"].main.state)


async def _ok(params: dict[str, Any]) -> object:
    return {"content": []}


async def test_a_server_whose_command_is_another_program_now_is_not_started_before_a_person_approves(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """It is not listed meanwhile, and a caller is told why (rule 102)."""
    programs = Programs(tmp_path)
    server = programs.server()
    async with open_world(server) as world:
        client = await world.client()
        assert await client.names() == ["a__x"]
        programs.is_now("two")
        await trio.sleep(60)
        assert present(world) is Ready  # what runs is what was approved
        server.dies()
        await trio.sleep(60)
        assert present(world) is Held
        assert "another program" in describe_state(world.upstreams.by_id["a"].main.state)
        assert server.connections == 1
        assert await client.names() == []
        result = await client.call("a__x")
        assert result["isError"]
        assert "resolves to another program" in result["content"][0]["text"]
        with pytest.raises(Unavailable, match="colonnade definitions"):
            world.upstreams["a"].main.ready_client()
        (held,) = world.gate.definitions.pins.held()
        run_inline(world.gate.definitions.reject(held.item, held.fingerprint, "console"))
        await trio.sleep(60)
        assert server.connections == 1
        world.approves()
        await trio.sleep(1)
        assert present(world) is Ready
        assert server.connections == 2
        assert await client.names() == ["a__x"]
        assert await client.call("a__x") == {"content": []}


async def test_another_start_of_the_host_starts_no_other_program(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Nobody waits for it, either; with the program of before it is started."""
    programs = Programs(tmp_path)
    state = tmp_path / "state"
    for name, connections in (("one", 1), ("two", 0), ("one", 1)):
        programs.is_now(name)
        server = programs.server()
        async with open_world(server, state=state) as world:
            began = trio.current_time()
            await world.settled()
            assert trio.current_time() - began < 1
            assert present(world) is (Ready if connections else Held)
            assert server.connections == connections


async def test_whatever_a_trusted_servers_command_is_is_started(tmp_path: Path, autojump_clock: MockClock) -> None:
    programs = Programs(tmp_path)
    server = programs.server(Trust.TRUSTED)
    async with open_world(server) as world:
        await world.settled()
        programs.is_now("two")
        server.dies()
        await trio.sleep(60)
        assert isinstance(world.upstreams.by_id["a"].main.state, Ready)
        assert server.connections == 2
