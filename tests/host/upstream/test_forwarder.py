"""The forwarder of a confined program: what it connects, what it refuses and tells, and what is left of it. The sockets
in the program's network are ordinary ones here; tests/sandbox/test_named_network.py has real confined programs."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest
import trio
import trio.testing

from config.sandbox import Destination, Sandbox
from host.journal import Journal, SandboxRefused
from host.sandbox.destinations import place
from host.upstream.forwarder import CONNECT_TIMEOUT, HEAD_TIMEOUT, MAX_CONNECTIONS, Forwarder
from host.upstream.refusals import Refusals
from host.wire.tunnel import receive, send_whole
from host.wire.turns import Turns
from tests.host.wire.processes import until

NAMES = {
    "inside.test": ["10.0.0.5"],
    "here.test": ["127.0.0.1"],
    "cloud.test": ["169.254.169.254"],
    "both.test": ["10.0.0.5", "127.0.0.1"],
    "a.wild.test": ["127.0.0.1"],
}


def look_up(host: str) -> list[str]:
    if host == "slow.test":
        select.select([], [], [], 0.05)
    if host not in NAMES:
        raise socket.gaierror
    return NAMES[host]


@dataclass
class Net:
    """The sockets of a program, by destination; `proxy` is None."""

    inside: dict[str | None, socket.socket]
    told: list[str]

    async def ask(self, to: str | None, data: bytes) -> bytes:
        """The answer to this, up to its end."""
        with await self.connect(to) as made:
            await send_whole(made, data)
            made.shutdown(socket.SHUT_WR)
            answer = b""
            while piece := await receive(made):
                answer += piece
            return answer

    async def connect(self, to: str | None) -> socket.socket:
        made = socket.create_connection(self.inside[to].getsockname())
        made.setblocking(False)
        return made

    async def tunnel(self, authority: str) -> bytes:
        return await self.ask(None, f"CONNECT {authority} HTTP/1.1\r\n\r\nhello".encode())


@asynccontextmanager
async def forwarding(*destinations: Destination | str) -> AsyncIterator[Net]:
    """A forwarder for these destinations, for the block."""
    sandbox = Sandbox(network=tuple(Destination(each) if isinstance(each, str) else each for each in destinations))
    told: list[str] = []
    journal = Journal()
    journal.subscribe(lambda event: told.append(f"{event.what}; {event.allow}".removesuffix("; ")), SandboxRefused)
    with ExitStack() as stack:
        placed = [None if each is None else each.to for each in place(sandbox.destinations).listeners.values()]
        inside = {to: stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=200)) for to in placed}
        forwarder = Forwarder([*inside.values()], sandbox, Refusals("a", journal), Turns(), look_up)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(forwarder.run)
            yield Net(inside, told)
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def answering(text: bytes = b"there") -> AsyncIterator[int]:
    """A server of this machine that answers with what it got, at the end of that; its port."""

    async def answer(stream: trio.SocketStream) -> None:
        async with stream:
            got = b"".join([piece async for piece in stream])
            await stream.send_all(text + b" " + got)

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, answer, [listener])
        yield listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def test_a_destination_is_reached_at_its_socket() -> None:
    async with answering() as port, forwarding(f"127.0.0.1:{port}", f"localhost:{port + 1}") as net:
        assert await net.ask(f"127.0.0.1:{port}", b"hello") == b"there hello"
        assert net.told == []


async def test_a_destination_is_reached_by_the_proxy() -> None:
    async with answering() as port, forwarding(f"127.0.0.1:{port}", f"localhost:{port}") as net:
        connected = b"HTTP/1.1 200 Connection established\r\n\r\nthere hello"
        assert await net.tunnel(f"127.0.0.1:{port}") == connected
        assert await net.tunnel(f"LocalHost:{port}") == connected
        asked = await net.ask(None, b"GET http://localhost:%d/x HTTP/1.1\r\nHost: h\r\n\r\nmore" % port)
        assert asked == b"there GET /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\nmore"
        assert net.told == []


async def test_what_the_file_does_not_name_is_refused_and_told() -> None:
    async with answering() as port, forwarding(f"localhost:{port}") as net:
        for authority in (f"localhost:{port + 1}", f"127.0.0.1:{port}", f"[::1]:{port}", f"a.wild.test:{port}"):
            said = await net.tunnel(authority)
            assert said.startswith(b"HTTP/1.1 403 Forbidden\r\n")
            assert f"{authority} is not among the hosts that its sandbox permits".encode() in said
            list_of = f'["localhost:{port}", "{authority}"]'
            assert net.told.pop() == f"a connection to {authority}; sandbox: {{network: {list_of}}}"


@pytest.mark.parametrize("head", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\n\n", b"x" * 20_000])
async def test_what_is_no_request_to_a_proxy(head: bytes) -> None:
    async with forwarding("localhost:1") as net:
        assert (await net.ask(None, head)).startswith(b"HTTP/1.1 400 Bad Request\r\n")


@pytest.mark.parametrize(
    ("destination", "kind", "allow"),
    [
        ("inside.test:{}", "a private address (10.0.0.5)", '{{to: "inside.test:{}", private: true}}'),
        ("here.test:{}", "an address of this machine (127.0.0.1)", '"here.test:{0}", "127.0.0.1:{0}"'),
        (
            "cloud.test:{}",
            "a link-local, reserved or cloud metadata address (169.254.169.254); only the address itself in network "
            "permits that",
            None,
        ),
    ],
)
async def test_a_name_that_leads_inside(destination: str, kind: str, allow: str | None) -> None:
    """It is refused at its socket and by the proxy, and the line that permits it is told, if one does."""
    async with answering() as port:
        name = destination.format(port)
        async with forwarding(name) as net:
            line = "" if allow is None else f"; sandbox: {{network: [{allow.format(port)}]}}"
            with pytest.raises(ConnectionResetError):
                await net.ask(name, b"hello")
            assert net.told == [f"a connection to {name}, which is at {kind}{line}"]
            assert (await net.tunnel(name)).startswith(b"HTTP/1.1 403 Forbidden\r\n")


async def test_only_an_address_that_was_checked_is_connected() -> None:
    """The others of the name are not tried."""
    async with answering() as port, forwarding(f"both.test:{port}", f"127.0.0.1:{port}") as net:
        assert await net.ask(f"both.test:{port}", b"") == b"there "


async def test_a_name_is_looked_up_once_for_each_connection() -> None:
    """The address that was checked is connected, whatever the name leads to a moment later."""
    async with answering() as port:
        name = f"turns.test:{port}"
        answers = iter([["127.0.0.1"], ["10.0.0.5"], ["169.254.169.254"]])
        NAMES["turns.test"] = ["never"]
        sandbox = Sandbox(network=(Destination(name), Destination(f"127.0.0.1:{port}")))
        with ExitStack() as stack:
            inside = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
            forwarder = Forwarder(inside, sandbox, Refusals("a", Journal()), Turns(), lambda _: next(answers))
            net = Net({name: inside[1]}, [])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(forwarder.run)
                assert await net.ask(name, b"") == b"there "
                for _ in range(2):
                    with pytest.raises(ConnectionResetError):
                        await net.ask(name, b"")
                nursery.cancel_scope.cancel()


async def test_names_below_a_wildcard_are_reached_by_the_proxy() -> None:
    async with answering() as port, forwarding(f"*.wild.test:{port}", f"127.0.0.1:{port}") as net:
        assert (await net.tunnel(f"a.wild.test:{port}")).endswith(b"there hello")
        assert (await net.tunnel(f"b.wild.test:{port}")).startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
        assert net.told == [
            f"a connection to b.wild.test:{port}, which is permitted and failed: its name cannot be looked up"
        ]
        assert (await net.tunnel(f"wild.test:{port}")).startswith(b"HTTP/1.1 403 Forbidden\r\n")


async def test_a_server_that_is_not_there() -> None:
    async with answering() as port:
        pass
    async with forwarding(f"127.0.0.1:{port}") as net:
        with pytest.raises(ConnectionResetError):
            await net.ask(f"127.0.0.1:{port}", b"hello")
        assert net.told == [f"a connection to 127.0.0.1:{port}, which is permitted and failed: Connection refused"]
        assert (await net.tunnel(f"127.0.0.1:{port}")).startswith(b"HTTP/1.1 502 Bad Gateway\r\n")


async def test_a_connection_that_does_not_come_ends_in_time(autojump_clock: trio.testing.MockClock) -> None:
    """The queue of the server is full."""
    with socket.socket() as full, ExitStack() as stack:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        port = full.getsockname()[1]
        async with forwarding(f"127.0.0.1:{port}") as net:
            began = trio.current_time()
            assert (await net.tunnel(f"127.0.0.1:{port}")).startswith(b"HTTP/1.1 50")
            assert CONNECT_TIMEOUT - 0.1 < trio.current_time() - began < CONNECT_TIMEOUT + 0.1


async def test_a_client_that_says_nothing_to_the_proxy(autojump_clock: trio.testing.MockClock) -> None:
    async with forwarding("localhost:1") as net:
        with await net.connect(None) as made:
            began = trio.current_time()
            assert (await receive(made)).startswith(b"HTTP/1.1 400 ")
            assert HEAD_TIMEOUT - 0.1 < trio.current_time() - began < HEAD_TIMEOUT + 0.1


async def test_a_program_has_so_many_connections_at_once_and_the_next_ones_wait() -> None:
    async with answering() as port, forwarding(f"127.0.0.1:{port}") as net:
        to = f"127.0.0.1:{port}"
        with ExitStack() as stack:
            held = [stack.enter_context(await net.connect(to)) for _ in range(MAX_CONNECTIONS)]
            more = stack.enter_context(await net.connect(to))
            await send_whole(more, b"more")
            more.shutdown(socket.SHUT_WR)
            await until(lambda: bool(net.told), 5)
            assert net.told == [f"more than {MAX_CONNECTIONS} connections at once: further ones wait"]
            with trio.move_on_after(0.1) as waited:
                await receive(more)
            assert waited.cancelled_caught
            held[0].shutdown(socket.SHUT_WR)
            assert await receive(more) == b"there more"


async def test_nothing_is_left_of_it() -> None:
    """Neither a descriptor nor a task, whatever each of its connections was doing."""
    async with answering() as port:
        before = len(os.listdir("/proc/self/fd"))
        async with forwarding(f"127.0.0.1:{port}", f"slow.test:{port}") as net:
            with ExitStack() as stack:
                for to in (f"127.0.0.1:{port}", f"slow.test:{port}", None):
                    made = stack.enter_context(await net.connect(to))
                    await send_whole(made, b"CONN")
                await trio.testing.wait_all_tasks_blocked()
        await until(lambda: len(os.listdir("/proc/self/fd")) <= before, 3)
