"""The trial of servers: what is started, what comes of it, and what is remembered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from msgspec import structs
from trio.testing import MockClock

from config import Config, Listen
from host import trial
from host.jsonrpc.messages import ErrorBody
from host.peer.outstanding import PeerError
from host.storage.directory import State
from host.trial import TRIAL_TIMEOUT, Trial, try_servers
from tests.host.upstream.test_supervisor import Programs
from tests.kit.gates import SOURCE
from tests.kit.world import ScriptedServer, World, open_world

INFO = (("name", "a"), ("version", "1"))

Tried = tuple[list[str], dict[str, Trial]]


class Recorder:
    """Writes down the tools that a client is shown."""

    def __init__(self, world: World, wrote: list[str]) -> None:
        self._world = world
        self._wrote = wrote

    async def write(self) -> None:
        self._wrote += ["first answers:", *await (await self._world.client()).names()]


async def trying(
    state: Path,
    monkeypatch: pytest.MonkeyPatch,
    *servers: ScriptedServer,
    says: bool = True,
    only: tuple[str, ...] = (),
    wrote: list[str] | None = None,
    offered: dict[str, list[tuple[str, str, bool]]] | None = None,
) -> Tried:
    """The servers that the person was shown, and what came of each that was tried. `only`: the ids of those to try, if
    not all; `wrote` gets what relays may answer, and `offered` the definitions that are told, each with whether its
    claims count."""
    shown: list[str] = []
    outcomes: dict[str, Trial] = {}
    specs = {server.id: replace(server.spec, disabled=False) for server in servers}

    def may_try(unknown: list[str]) -> bool:
        assert not any(server.connections for server in servers)
        shown.extend(unknown)
        return says

    def tell(outcome: Trial) -> None:
        if offered is not None:
            offered[outcome.server] = [(row["kind"], row["name"], row["counts"]) for row in outcome.definitions]
        if not outcome.is_known:
            outcomes[outcome.server] = structs.replace(outcome, definitions=())

    for server in servers:
        server.spec = replace(server.spec, disabled=True)
    async with open_world(*servers, state=state) as world:

        @asynccontextmanager
        async def open_host(*_: object, **__: object) -> AsyncIterator[object]:
            await trio.lowlevel.checkpoint()
            answers = Recorder(world, [] if wrote is None else wrote)
            live = SimpleNamespace(config=config)
            yield SimpleNamespace(runtime=world.runtime, upstreams=world.upstreams, first_answers=answers, live=live)

        monkeypatch.setattr(trial, "open_host", open_host)
        config = Config(source=SOURCE, listen=Listen(), servers=specs)
        ids = only or list(specs)
        await try_servers(config, cast(State, None), world.journal, ids, may_try, tell, str(state))
    return shown, outcomes


async def refuse(params: dict[str, Any]) -> object:
    raise PeerError(ErrorBody(-32603, "no key given"))


async def hang(params: dict[str, Any]) -> object:
    await trio.sleep_forever()


async def test_each_server_is_tried_at_the_same_time_and_at_most_thirty_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    servers = (
        ScriptedServer("well", tools=["x", "y"], prompts=["p"]),
        ScriptedServer("refusing", answers={"initialize": refuse}),
        ScriptedServer("slow", answers={"initialize": hang}),
        ScriptedServer("slower", answers={"initialize": hang}),
    )
    shown, outcomes = await trying(tmp_path, monkeypatch, *servers)
    assert shown == ["well", "refusing", "slow", "slower"]
    assert outcomes["well"] == Trial("well", offers="2 tools, 1 prompt", info=(("name", "well"), ("version", "1")))
    assert outcomes["refusing"].has_failed
    assert "no key given" in outcomes["refusing"].problem
    assert outcomes["slow"].has_failed
    assert outcomes["slow"].problem.startswith("it is still starting after 30 s, and a host waits 60 s: ")
    assert trio.current_time() == pytest.approx(TRIAL_TIMEOUT, abs=1)


async def test_what_was_listed_is_remembered_and_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    server = ScriptedServer("a", tools=["x"])
    assert await trying(tmp_path, monkeypatch, server, says=False) == (["a"], {})
    assert (server.connections, server.asked) == (0, [])
    assert await trying(tmp_path, monkeypatch, server) == (
        ["a"],
        {"a": Trial("a", offers="1 tool", info=INFO)},
    )
    again = ScriptedServer("a", tools=["x"])
    assert await trying(tmp_path, monkeypatch, again, ScriptedServer("b", tools=["y"])) == (
        ["b"],
        {"b": Trial("b", offers="1 tool", info=(("name", "b"), ("version", "1")))},
    )
    assert again.asked == []
    async with open_world(ScriptedServer("a", tools=["x"], answers={"initialize": hang}), state=tmp_path) as world:
        client = await world.client()
        assert await client.names() == ["a__x"]
        assert trio.current_time() < 1


async def test_a_server_that_runs_in_the_folder_of_its_client_is_tried_in_the_folder_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    server = ScriptedServer("a", tools=["x"], cwd=Path("${client:folder}"))
    assert await trying(tmp_path, monkeypatch, server) == (
        ["a"],
        {"a": Trial("a", offers="1 tool", info=INFO)},
    )
    assert server.started_in == [str(tmp_path)]
    again = ScriptedServer("a", tools=["x"], cwd=Path("${client:folder}"))
    assert await trying(tmp_path, monkeypatch, again) == ([], {})
    failing = ScriptedServer("b", answers={"initialize": refuse}, cwd=Path("${client:folder}"))
    _, outcomes = await trying(tmp_path, monkeypatch, failing)
    assert "no key given" in outcomes["b"].problem


async def test_what_servers_offer_is_told_also_of_those_that_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    offered: dict[str, list[tuple[str, str, bool]]] = {}
    expected = [("tool", "x", False), ("prompt", "p", False)]
    await trying(tmp_path, monkeypatch, ScriptedServer("a", tools=["x"], prompts=["p"]), offered=offered)
    assert sorted(offered.pop("a")) == sorted(expected)
    again, other = ScriptedServer("a", tools=["x"], prompts=["p"]), ScriptedServer("b", answers={"initialize": refuse})
    assert (await trying(tmp_path, monkeypatch, again, other, offered=offered))[0] == ["b"]
    assert (sorted(offered["a"]), offered["b"]) == (sorted(expected), [])


async def test_another_program_than_the_approved_one_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    programs, state = Programs(tmp_path), tmp_path / "state"
    programs.is_now("one")
    assert (await trying(state, monkeypatch, programs.server()))[1] == {"a": Trial("a", offers="1 tool", info=INFO)}
    programs.is_now("two")
    server = programs.server()
    shown, outcomes = await trying(state, monkeypatch, server)
    assert (shown, server.connections) == (["a"], 0)
    assert "another program than the approved one; see colonnade definitions" in outcomes["a"].problem
    assert not outcomes["a"].has_failed


async def test_relays_can_answer_if_all_servers_are_known_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """Those that were known before are listed, and not started."""

    def servers() -> tuple[ScriptedServer, ...]:
        lost = ScriptedServer("lost", answers={"initialize": refuse})
        return ScriptedServer("a", tools=["x"]), ScriptedServer("b", tools=["y"]), lost

    wrote: list[str] = []
    await trying(tmp_path, monkeypatch, *servers(), only=("a",), wrote=wrote)
    assert wrote == []
    again = servers()
    shown, _ = await trying(tmp_path, monkeypatch, *again, wrote=wrote)
    assert shown == ["b", "lost"]
    assert wrote == ["first answers:", "a__x", "b__y"]
    assert again[0].connections == 0


async def test_a_server_that_lacks_a_variable_is_named_and_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    server = ScriptedServer("a", tools=["x"])
    server.spec = replace(server.spec, problem="the environment variable KEY is not set")
    shown, outcomes = await trying(tmp_path, monkeypatch, server)
    assert (shown, server.connections) == (["a"], 0)
    assert outcomes["a"] == Trial("a", problem="the environment variable KEY is not set", has_failed=True)
