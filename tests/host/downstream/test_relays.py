from __future__ import annotations

import json
import math
import os
import re
import socket
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from host.client_process import ClientProcess
from host.downstream.relays import HELLO_TIMEOUT, MAX_UNKNOWN, RelayClient, Relays, open_relay_claim
from host.relay import socket_path
from host.source import SHARED, Endpoint
from host.storage.directory import State, open_state
from host.storage.store import StateError
from host.version import VERSION
from host.wire.client_program import find_client
from host.wire.descent import PeerProcess, Trail, this_process

ACCEPTED = {"accepted": True, "process": os.getpid()}
SOURCE = "/c/colonnade.yaml"


class Desk:
    """Relays of a host whose clients are only counted: each leaves at once."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.refused: list[str] = []
        self.clients: list[tuple[str, ClientProcess]] = []
        self.endpoints = {"": SHARED, "coding": Endpoint(view="coding")}
        self.at: list[Endpoint] = []
        self.trails: list[list[str]] = []
        self.trail = Trail(Path(SOURCE), {})
        self.relays = Relays(Path(SOURCE), state.hosts, self.trail, self._open, self.endpoints.get, self._refuse)

    def _refuse(self, peer: PeerProcess, why: str) -> None:
        self.refused.append(why)

    @asynccontextmanager
    async def _open(self, name: str, endpoint: Endpoint, process: ClientProcess) -> AsyncIterator[RelayClient]:
        self.at.append(endpoint)
        self.clients.append((name, process))
        self.trails.append(self.trail.paths())
        if self.clients:
            raise ConnectionError
        yield  # type: ignore[misc]

    async def hello(self, folder_sent: str | None = None, /, **members: object) -> dict[str, object] | None:
        """The answer to the first line, with which a descriptor of a folder may be sent."""
        async with await trio.open_unix_socket(socket_path(str(self.state.path), SOURCE)) as stream:
            line = json.dumps({"colonnade": VERSION, "config": SOURCE} | members).encode() + b"\n"
            if folder_sent is not None:
                folder = os.open(folder_sent, os.O_RDONLY)
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [folder]))]
                await stream.socket.sendmsg([line[:1]], rights)
                os.close(folder)
                line = line[1:]
            await stream.send_all(line)
            line = await stream.receive_some()
        answer: dict[str, object] | None = json.loads(line) if line else None
        return answer


@asynccontextmanager
async def serving(state: State) -> AsyncIterator[Desk]:
    made = Desk(state)
    async with trio.open_nursery() as nursery:
        with open_relay_claim(state, Path(SOURCE)) as claim:
            assert claim is not None
            await nursery.start(made.relays.serve, claim)
            yield made
            nursery.cancel_scope.cancel()


async def serve(state: State) -> None:
    with open_relay_claim(state, Path(SOURCE)) as claim:
        assert claim is not None
        await Desk(state).relays.serve(claim)


@pytest.fixture
def state(tmp_path: Path) -> State:
    return open_state(tmp_path / "state")


PLANTED: dict[str, Callable[[Path], object]] = {
    "a folder": lambda path: path.mkdir(),
    "a named pipe": os.mkfifo,
    "a link": lambda path: path.symlink_to(path.parent.parent.parent / "precious"),
    "a file": lambda path: path.write_text("planted"),
}


@pytest.mark.parametrize("ending", [".relay", ".new", ".lock"])
@pytest.mark.parametrize("what", PLANTED)
async def test_what_is_planted_is_replaced_or_named(state: State, ending: str, what: str) -> None:
    """And nothing is written to where a link leads. Where it stands in the way, a host at a URL goes on without
    relays."""
    precious, path = state.path.parent / "precious", Path(socket_path(str(state.path), SOURCE)).with_suffix(ending)
    precious.write_text("precious")
    PLANTED[what](path)
    if what == "a folder" or (what, ending) == ("a link", ".lock"):
        with pytest.raises(StateError, match=f"^{re.escape(str(path))} cannot be used: .+ unless it is removed"):
            await serve(state)
    else:
        async with serving(state) as here:
            assert await here.hello() == ACCEPTED
    assert precious.read_text() == "precious"


async def test_a_relay_is_a_client_with_the_values_that_it_hands_over(state: State) -> None:
    async with serving(state) as here:
        assert await here.hello(environment={"A": "1"}, unknown=2) == ACCEPTED
        [(name, process)] = here.clients
        assert name == f"{process.program} ({process.pid})"
        assert process.environment == {"A": "1"}


async def test_a_client_is_at_the_endpoint_of_its_view(state: State) -> None:
    async with serving(state) as here:
        assert await here.hello() == ACCEPTED
        assert await here.hello(view="coding") == ACCEPTED
        assert await here.hello(view="coding", command="list") == ACCEPTED
        assert here.at == [SHARED, Endpoint(view="coding"), Endpoint(view="coding")]
        answer = await here.hello(view="x\x1b[31m" + "y" * 500)
        assert answer is not None
        assert "\x1b" not in str(answer["refused"])
        assert str(answer["refused"]).startswith("this Colonnade has no view x")
        assert len(str(answer["refused"])) < 200
        assert len(here.at) == 3


async def test_a_command_is_the_client_itself_and_shows_its_folder(state: State, tmp_path: Path) -> None:
    """By a descriptor: what it says alone is not taken for its folder. It is told with the program that started it, and
    takes the place of no host of another version."""
    me = find_client(this_process()).program
    async with serving(state) as here:
        for folder, opened, found in (
            (str(tmp_path), str(tmp_path), str(tmp_path)),
            (str(tmp_path), "/", ""),
            (str(tmp_path), None, ""),
            ("", str(tmp_path), ""),
            ("\0", str(tmp_path), ""),
        ):
            members = {"command": "call", "colonnade": "0", "environment": {"A": "1"}}
            assert await here.hello(opened, folder=folder, **members) == ACCEPTED
            name, process = here.clients.pop()
            assert (process.program, process.pid) == (f"colonnade call of {me}", os.getpid())
            assert (name, process.folder) == (f"colonnade call of {me} ({os.getpid()})", found)
            assert (process.environment, process.is_command) == ({"A": "1"}, True)
        assert await here.hello(command="rm") is None


async def test_descriptors_that_a_client_sends_are_closed(state: State) -> None:
    async with serving(state) as here:
        before = os.listdir("/dev/fd")
        for _ in range(3):
            assert await here.hello("/") == ACCEPTED
        await trio.testing.wait_all_tasks_blocked()
        assert len(os.listdir("/dev/fd")) == len(before)
        assert [process.is_command for _, process in here.clients] == [False] * 3


async def test_the_configurations_above_a_relay_go_along_to_servers_that_are_colonnade(state: State) -> None:
    async with serving(state) as here:
        assert await here.hello(trail=["/c/above.yaml"]) == ACCEPTED
        await trio.testing.wait_all_tasks_blocked()
        assert here.trails == [["/c/above.yaml", SOURCE]]
        assert here.trail.paths() == [SOURCE]
        answer = await here.hello(trail=["/c/above.yaml", SOURCE])
        assert answer is not None
        assert "would be served to itself" in str(answer["refused"])


async def test_another_configuration_is_refused(state: State) -> None:
    async with serving(state) as here:
        answer = await here.hello(config="/c/other.yaml")
        assert answer == {"refused": f"this Colonnade serves {SOURCE}, not /c/other.yaml"}


async def test_a_relay_of_another_version_gets_another_host(state: State) -> None:
    """And so do all that come later: the socket is free for it."""
    async with serving(state) as here:
        assert await here.hello(colonnade="0") == {"leaves": True}
        await trio.testing.wait_all_tasks_blocked()
        assert not await trio.Path(socket_path(str(state.path), SOURCE)).exists()
        async with serving(state) as next_one:
            assert await next_one.hello() == ACCEPTED


async def test_one_process_serves_the_relays_of_a_configuration(state: State) -> None:
    async with serving(state) as here:
        with open_relay_claim(state, Path(SOURCE)) as claim:
            assert claim is None
        assert await here.hello() == ACCEPTED


async def test_a_socket_that_a_killed_host_left_is_replaced(state: State) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(socket_path(str(state.path), SOURCE))
        async with serving(state) as here:
            assert await here.hello() == ACCEPTED


@pytest.mark.parametrize("line", [b"\n", b"GET / HTTP/1.1\r\n", b"[]\n", b'{"colonnade":1}\n', b"x" * 2_000_000])
async def test_what_is_no_relay_is_left_without_a_word(state: State, line: bytes) -> None:
    async with serving(state) as here:
        async with await trio.open_unix_socket(socket_path(str(state.path), SOURCE)) as stream:
            try:
                await stream.send_all(line)
                assert await stream.receive_some() == b""
            except trio.BrokenResourceError:
                pass  # closed with bytes that nobody has read
        assert await here.hello() == ACCEPTED


async def test_a_connection_that_says_nothing_ends(state: State, autojump_clock: trio.testing.MockClock) -> None:
    async with serving(state) as here:
        async with await trio.open_unix_socket(socket_path(str(state.path), SOURCE)) as stream:
            assert await stream.receive_some() == b""
        assert trio.current_time() == HELLO_TIMEOUT
        assert await here.hello() == ACCEPTED


async def test_half_open_connections_keep_nobody_waiting(state: State, mock_clock: trio.testing.MockClock) -> None:
    """The clock stands still: no time runs out."""
    async with serving(state) as here:
        path = socket_path(str(state.path), SOURCE)
        streams = [await trio.open_unix_socket(path) for _ in range(3 * MAX_UNKNOWN)]
        assert await here.hello() == ACCEPTED
        assert await streams[0].receive_some() == b""
        for each in streams:
            await each.aclose()


async def test_a_process_that_may_not_decide_is_no_client(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = PeerProcess(1, os.geteuid() + 1)
    monkeypatch.setattr("host.downstream.relays.examine_peer", lambda connection: peer)
    async with serving(state) as here:
        answer = await here.hello()
        assert answer is not None
        assert [answer["refused"]] == here.refused
        assert here.clients == []


async def test_it_ends_when_no_relay_came_for_a_while(state: State, autojump_clock: trio.testing.MockClock) -> None:
    busy = iter([True, True, False])
    async with serving(state) as here:
        await here.relays.wait_idle(lambda: 600.0, lambda: next(busy))
        assert 602 <= trio.current_time() < 610


async def test_it_says_when_it_will_end(state: State, autojump_clock: trio.testing.MockClock) -> None:
    async with serving(state) as here, trio.open_nursery() as nursery:
        assert here.relays.ends_in() is None
        idle = [600.0]
        nursery.start_soon(here.relays.wait_idle, lambda: idle[0], lambda: False)
        await trio.sleep(100)
        assert here.relays.ends_in() == 500
        assert await here.hello() == ACCEPTED
        await trio.sleep(1)
        assert here.relays.ends_in() == 599  # since the client has left
        idle[0] = math.inf
        await trio.sleep(10)
        assert here.relays.ends_in() is None
        nursery.cancel_scope.cancel()


async def test_a_reload_changes_the_time_that_runs(state: State, autojump_clock: trio.testing.MockClock) -> None:
    idle = [600.0]

    async def reload() -> None:
        await trio.sleep(100)
        idle[0] = 60.0

    async with serving(state) as here, trio.open_nursery() as nursery:
        nursery.start_soon(reload)
        await here.relays.wait_idle(lambda: idle[0], lambda: False)
        assert 100 <= trio.current_time() < 110
