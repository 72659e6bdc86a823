from __future__ import annotations

import math
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from host.errors import Unavailable
from host.upstream.state import (
    Absent,
    Connecting,
    Failed,
    Held,
    NeedsFolder,
    NeedsLogin,
    Stopped,
    describe_for_people,
    describe_session,
    describe_state,
)
from tests.kit.world import ScriptedServer, open_world


async def test_states_in_words(autojump_clock: MockClock) -> None:
    async def slow(params: dict[str, Any]) -> object:
        await trio.sleep(10)
        return {}

    async with open_world(
        ScriptedServer("slow", answers={"initialize": slow}), ScriptedServer("off", disabled=True)
    ) as world:
        upstreams = world.upstreams.by_id
        assert describe_state(upstreams["slow"].main.state) == "it is still starting"
        assert describe_state(upstreams["off"].main.state) == "it is disabled, in the file or by colonnade disable"
        with pytest.raises(Unavailable, match="off is unavailable: it is disabled"):
            world.upstreams["off"].main.ready_client()
        await upstreams["slow"].main.life.settled.wait()
        assert "next attempt in" in describe_state(upstreams["slow"].main.state)
        await trio.sleep(1)
        assert "it is reconnecting after a failure" in describe_state(upstreams["slow"].main.state)


async def test_each_state_without_a_connection_has_its_words(autojump_clock: MockClock) -> None:
    await trio.sleep(5)
    now = trio.current_time()
    assert describe_state(Stopped(0.0)) == "it is stopped; its next use starts it"
    assert describe_state(Stopped(0.0, at_url=True)) == "it is not connected; its next use connects it"
    assert "waits for a client's folder" in describe_state(NeedsFolder(0.0))
    assert "its command is another one" in describe_state(Held(0.0, "is another one"))
    assert describe_state(Failed(now, "it ended", now + 2.5)) == "it ended; next attempt in 2.5 s"
    assert describe_state(Failed(now, "it ended", now - 1)) == "it ended; next attempt in 0.0 s"
    assert describe_state(Failed(now, "it cannot be read", math.inf)) == "it cannot be read"
    assert describe_state(Absent(now, "it was refused", is_reached=True)) == "it was refused"


async def test_people_are_shown_what_the_server_says() -> None:
    said = 'the server says: "no"'
    for state in (
        Failed(0.0, "it ended", math.inf, said),
        NeedsLogin(0.0, "it ended", said),
        Absent(0.0, "it ended", is_reached=True, said=said),
    ):
        assert (describe_state(state), describe_for_people(state)) == ("it ended", f"it ended; {said}")
    assert describe_for_people(Connecting(0.0, "it ended", said)).endswith(f"it ended; {said}")
    assert describe_for_people(Held(0.0, "is another one")) == describe_state(Held(0.0, "is another one"))
    assert str(describe_session(Absent(0.0, "it ended", is_reached=True, said=said))).endswith(said)


def test_a_session_is_told_while_it_matters_to_clients() -> None:
    assert describe_session(Stopped(0.0)) is None
    assert describe_session(Connecting(0.0, None)) == "handshake clients wait until their session is open"
    absent = Absent(0.0, "its session was refused", is_reached=True)
    assert describe_session(absent) == (
        "handshake clients use the stateless connection, because its session was refused"
    )
