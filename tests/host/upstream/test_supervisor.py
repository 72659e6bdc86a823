"""Which connection of a server serves whom."""

from __future__ import annotations

from trio.testing import MockClock

from config import Isolation
from host.exchange import Caller
from host.protocol.era import SESSION, STATELESS
from host.protocol.methods import Kind
from host.source import Source
from host.upstream.state import Disabled, Ready, Stopped
from host.upstream.supervisor import describe_counts
from tests.host.upstream.test_upstreams import both
from tests.kit.world import ScriptedServer, open_world

IN_SESSION, WITHOUT = Caller("a", None, era=SESSION), Caller("b", None, era=STATELESS)


async def test_a_server_of_one_era_serves_all_callers_over_its_connection() -> None:
    async with open_world(ScriptedServer("a", tools=["x"])) as world:
        await world.settled()
        server = world.upstreams.by_id["a"]
        assert server.session is None
        assert server.connection(IN_SESSION) is server.connection(WITHOUT) is server.main
        assert server.main.source == Source("a", SESSION)
        assert server.connections == (server.main,)
        assert server.instances is None


async def test_a_stateless_server_of_both_eras_has_a_session_for_those_who_have_one(autojump_clock: MockClock) -> None:
    async with open_world(both()) as world:
        await world.settled()
        server = world.upstreams.by_id["a"]
        assert server.session is not None
        states = [type(server.session.state)]
        assert server.connection(IN_SESSION) is server.session
        assert server.connection(WITHOUT) is server.main
        assert server.main.source == Source("a", STATELESS)
        assert server.begin(SESSION) is server.session  # a list of a client opens it
        await server.session.life.wait_started()
        states.append(type(server.session.state))
        assert states == [Stopped, Ready]
        assert server.session.source == Source("a", SESSION)


async def test_a_server_that_has_to_go_has_nobody_wait_for_it(autojump_clock: MockClock) -> None:
    async with open_world(both()) as world:
        await world.settled()
        server = world.upstreams.by_id["a"]
        server.give_way()
        assert isinstance(server.main.state, Ready)
        assert server.session is not None
        assert isinstance(server.session.state, Disabled)


async def test_only_a_server_that_is_not_shared_has_instances() -> None:
    one = ScriptedServer("a", tools=["x"], isolation=Isolation.PER_CALL)
    async with open_world(one) as world:
        assert world.upstreams.by_id["a"].instances is not None


def test_entries_are_counted_in_words() -> None:
    assert describe_counts([(Kind.TOOL, 1), (Kind.PROMPT, 2), (Kind.RESOURCE, 0)]) == "1 tool, 2 prompts"
    assert describe_counts([]) == "no entries"
