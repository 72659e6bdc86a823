"""A server at one URL that changes its eras, its capabilities, its lists and its definitions between calls, with
clients of both eras connected all the time: no call is lost, none is executed twice, and none is answered by the side
of the other era. What a person approved stays approved on its side, and nothing else is usable."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from typing import Any

import pytest
import trio
from msgspec import Raw
from trio.testing import MockClock, wait_all_tasks_blocked

from config import Eras
from host.errors import ColonnadeError
from host.exchange import Answered
from host.jsonrpc.messages import ErrorBody, Request
from host.jsonrpc.raw import value
from host.peer.outstanding import PeerError
from host.protocol.methods import Kind
from host.protocol.versions import LATEST, LATEST_LEGACY
from tests.kit.world import Refusal, ScriptedClient, ScriptedServer, World, open_world, tool

CHANGES = int(os.environ.get("COLONNADE_ERA_CHANGES", "60"))
"""Changes of one run; `make era-changes` makes 1000."""
SIDES = ("handshake", "stateless")
MODES = {"both": SIDES, "stateless": ("stateless",), "handshake": ("handshake",)}
"""The sides that a server has in each mode."""
SETTLED = 70.0
"""Seconds after which a change has been noticed: absent sessions are tried again after 60, and pings come all 30."""


class ChangingServer(ScriptedServer):
    """`mode` says which sides it has. Each side has a tool `x`, described by its version, and one of its own."""

    def __init__(self) -> None:
        super().__init__("a", eras=Eras.BOTH, revision=LATEST.name)
        self.mode = "both"
        self.versions = dict.fromkeys(SIDES, 0)
        self.has_prompts = True
        self.executed: list[tuple[str, str, str]] = []
        """Side, tool and key of each call."""
        self.become("both")

    def become(self, mode: str) -> None:
        self.mode = mode
        self.stateless = "stateless" in MODES[mode]
        self.session_revision = LATEST_LEGACY.name if "handshake" in MODES[mode] else None
        lists = {side: [tool("x", description=self.description(side)), tool(f"only_{side}")] for side in SIDES}
        prompts = [{"name": "p"}] if self.has_prompts else []
        self.lists = {**self.lists, "tools": lists["stateless"], "prompts": prompts}
        self.session_lists = {**self.lists, "tools": lists["handshake"]}

    def description(self, side: str) -> str:
        return f"{side} {self.versions[side]}"

    def drops_connections(self) -> None:
        for link in list(self.open_links):
            link.close()

    async def _answer(self, request: Request) -> Raw:
        side = "handshake" if self._answering in self._sessions else "stateless"
        if request.method not in ("initialize", "server/discover") and side not in MODES[self.mode]:
            raise PeerError(ErrorBody(-32022 if side == "handshake" else -32600, "not in this era"))
        if request.method != "tools/call":
            return await super()._answer(request)
        params = json.loads(bytes(request.params or b"{}"))
        key = params["arguments"]["key"]
        self.executed.append((side, params["name"], key))
        await trio.sleep(0.01)
        result: dict[str, Any] = {"content": [{"type": "text", "text": f"{side} {key}"}]}
        return Raw(json.dumps({"resultType": "complete", **result} if side == "stateless" else result).encode())


class Run:
    """One server, clients of both eras, and what is expected of each side."""

    def __init__(self, world: World, server: ChangingServer, order: random.Random, client: ScriptedClient) -> None:
        self.world = world
        self.server = server
        self.order = order
        self.client = client
        self.approved = dict.fromkeys(SIDES, "")
        self.listed = dict.fromkeys(SIDES, "")
        self.calls = 0
        self.seen = Counter[str]()

    async def change(self) -> None:
        """Change something, as a server does that is deployed anew or reconfigured."""
        server, order = self.server, self.order
        mode = order.choice([server.mode, *MODES])
        for side in SIDES:
            server.versions[side] += order.random() < 0.3
        server.has_prompts = order.random() < 0.5
        server.become(mode)
        if order.random() < 0.5:
            server.drops_connections()
        print(self.server.mode, server.versions)
        await self.call_at_once()
        await trio.sleep(SETTLED)
        await self.announce()
        await self.client.names()
        await trio.sleep(SETTLED)
        await self.announce()
        for side in self.sides():
            self.listed[side] = server.description(side)
            self.approved[side] = self.approved[side] or self.listed[side]
        if order.random() < 0.5:
            self.world.approves()
            self.approved = {**self.approved, **{side: said for side, said in self.listed.items() if said}}

    async def announce(self) -> None:
        """Have all lists read again, as after a `list_changed`."""
        upstream = self.world.upstreams.by_id["a"]
        for each in upstream.connections:
            for kind in (Kind.TOOL, Kind.PROMPT):
                each.lists.refresh(kind)
        await trio.sleep(20)

    async def call_at_once(self) -> None:
        """Right after a change a call may fail, as if the client were connected directly; it says so, and is not sent
        twice."""
        for stateless in (False, True):
            key = self.key()
            outcome = await self.outcome(stateless, "x", key)
            executed = [side for side, _, each in self.server.executed if each == key]
            assert len(executed) <= 1, outcome
            if outcome in (f"{side} {key}" for side in SIDES):
                assert executed == [outcome.partition(" ")[0]]
            self.seen["at once, answered" if executed else "at once, refused"] += 1

    def key(self) -> str:
        self.calls += 1
        return str(self.calls)

    async def outcome(self, stateless: bool, name: str, key: str) -> str:
        """The text of the answer, or of the refusal."""
        params = {"name": f"a__{name}", "arguments": {"key": key}}
        try:
            if not stateless:
                result = await self.client.request("tools/call", params)
            else:
                answer = await self.world.mrtr_round("tools/call", params)
                assert isinstance(answer, Answered)
                result = value(answer.result)
        except (Refusal, ColonnadeError) as refusal:
            return f"refused: {refusal.message}"
        return str(result["content"][0]["text"])

    def sides(self) -> tuple[str, ...]:
        """The sides that are used. A server that takes up a second era beside sessions goes on with these."""
        return MODES[self.server.mode] if self.world.upstreams.by_id["a"].main.is_stateless else ("handshake",)

    async def check(self) -> None:
        """Each client is served by the right side, with that side's definitions."""
        sides = self.sides()
        for stateless in (False, True):
            own = SIDES[stateless]
            side = own if own in sides else sides[0]
            names = {"x"} if self.approved[side] == self.server.description(side) else set()
            assert await self.names(stateless) == names | {f"only_{side}"}
            for name in ("x", "only_handshake", "only_stateless"):
                key = self.key()
                outcome = await self.outcome(stateless, name, key)
                executed = [each for each in self.server.executed if each[2] == key]
                if name in names | {f"only_{side}"}:
                    assert (outcome, executed) == (f"{side} {key}", [(side, name, key)])
                    self.seen[f"{own} client, {side} side"] += 1
                else:
                    assert executed == []
                    held = name == "x"
                    assert outcome.startswith("refused: Unknown tool") is not held
                    assert ("is not the one that was approved" in outcome) is held
                    self.seen["held" if held else "unknown"] += 1

    async def names(self, stateless: bool) -> set[str]:
        if not stateless:
            return {name.removeprefix("a__") for name in await self.client.names()}
        answer = await self.world.mrtr_round("tools/list", {})
        assert isinstance(answer, Answered)
        found: Any = value(answer.result)
        return {each["name"].removeprefix("a__") for each in found["tools"]}


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(2))
async def test_calls_survive_changes_of_eras_capabilities_and_lists(seed: int, autojump_clock: MockClock) -> None:
    server, order = ChangingServer(), random.Random(seed)
    async with open_world(server) as world:
        run = Run(world, server, order, await world.client())
        await run.client.names()
        await wait_all_tasks_blocked()
        run.listed = {side: server.description(side) for side in SIDES}
        run.approved = dict(run.listed)
        await run.check()
        for _ in range(CHANGES):
            await run.change()
            await run.check()
        keys = Counter(key for _, _, key in server.executed)
        assert set(keys.values()) == {1}
        for kind in ("handshake client, handshake side", "handshake client, stateless side"):
            assert run.seen[kind]
            assert run.seen[kind.replace("handshake client", "stateless client")]
        for kind in ("held", "unknown", "at once, answered"):
            assert run.seen[kind]
