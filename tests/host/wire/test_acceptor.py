"""Connections that come, go and make room, over real sockets."""

from __future__ import annotations

import errno
import gc
import os
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from host.wire.acceptor import (
    BESIDE_HTTP2,
    DEFAULT_LIMITS,
    HTTP2_LIMITS,
    MAX_CONNECTIONS,
    OTHER_DESCRIPTORS,
    ListenerLimits,
    TooFewFiles,
    affordable_connections,
    check_open_files,
)
from host.wire.asgi import Receive, Scope, Send, claim
from host.wire.port import bind
from host.wire.slots import EXTRA, INCOMPLETE_TIMEOUT, RESERVED

from .sites import (
    FLOOD,
    GET,
    SOON,
    Flood,
    Site,
    ask,
    begin,
    clients,
    everything,
    finish,
    get,
    hello,
    lives_on,
    part,
    read_to,
    reset,
    serving,
    until_gone,
)

STAYS = 0.1
"""Seconds for which a connection that must stay is watched."""


# Stopping


async def test_stop_answers_who_has_just_connected_and_waits_for_nobody_who_is_silent() -> None:
    """Also a client whose connection waits to be accepted: to it, that is one that disconnects without a response."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await finish(send)

    async with serving(app, grace=60) as site, await site.connect() as late, await site.connect() as silent:
        await trio.testing.wait_all_tasks_blocked()
        with socket.create_connection(("127.0.0.1", site.port)) as waiting:  # the loop has not run since
            waiting.sendall(GET)
            site.stop.set()
            with suppress(OSError):  # until nobody can connect any more
                while True:
                    await (await site.connect()).aclose()
            await late.send_all(GET)
            assert b"done" in await everything(late)
            assert b"done" in await trio.to_thread.run_sync(waiting.recv, 65536)
        assert await everything(silent) == b""
        with trio.fail_after(SOON):
            await site.ended.wait()


async def test_stop_answers_one_more_request_on_a_connection_that_was_used_lately() -> None:
    """And says that it is the last. A client that sends none has its connection closed."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await finish(send)

    async with serving(app) as site, await site.connect() as used, await site.connect() as silent:
        for connection in (used, silent):
            await connection.send_all(GET)
            await read_to(connection, b"done")
        site.stop.set()
        await trio.testing.wait_all_tasks_blocked()
        await used.send_all(GET)
        answer = await everything(used)
        assert answer.endswith(b"done")
        assert b"connection: close" in answer
        assert await everything(silent) == b""
        with trio.fail_after(SOON):
            await site.ended.wait()


async def test_a_listener_that_leaves_goes_on_with_one_response_for_each_connection() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await finish(send)

    async with serving(app) as site, await site.connect() as idle:
        await idle.send_all(GET)
        assert b"connection: close" not in await read_to(idle, b"done")
        site.leaving.set()
        async with await site.connect() as new:
            for connection in (idle, new):
                await connection.send_all(GET)
                answer = await everything(connection)
                assert answer.endswith(b"done")
                assert b"connection: close" in answer


async def test_stop_lets_a_request_end_and_closes_the_rest_at_once() -> None:
    ready, go = trio.Event(), trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/slow":
            ready.set()
            await go.wait()
        await finish(send)

    async with serving(app, grace=5) as site, await site.connect() as idle, await site.connect() as busy:
        await idle.send_all(GET)
        await read_to(idle, b"done")
        await busy.send_all(GET.replace(b"/ ", b"/slow "))
        await ready.wait()
        site.stop.set()
        assert await everything(idle) == b""
        with pytest.raises(OSError, match="all attempts to connect"):
            await site.connect()
        assert not site.ended.is_set()
        go.set()
        answer = await everything(busy)
        assert answer.endswith(b"done")
        assert b"connection: close" in answer
        with trio.fail_after(SOON):
            await site.ended.wait()


@pytest.mark.slow
async def test_stop_cuts_what_does_not_end_within_the_grace() -> None:
    flood = Flood()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/flood":
            await flood(scope, receive, send)
        await begin(send)
        await part(send, b"one")
        await trio.sleep_forever()

    async with serving(app, grace=0.5, write_timeout=60) as site:
        async with await site.connect() as stalled, await site.connect() as silent:
            await stalled.send_all(FLOOD)
            await silent.send_all(GET)
            await read_to(silent, b"one")
            await flood.stuck()
            started = trio.current_time()
            site.stop.set()
            with trio.fail_after(SOON):
                await site.ended.wait()
            assert trio.current_time() - started > 0.4
            await everything(silent)


async def test_cancelling_ends_everything_at_once() -> None:
    app = Flood()
    async with serving(app, write_timeout=60) as site:
        async with await site.connect() as stalled, await site.connect() as idle:
            await stalled.send_all(FLOOD)
            await idle.send_all(GET)
            await app.stuck()
            started = trio.current_time()
            site.scope.cancel()
            with trio.CancelScope(shield=True), trio.fail_after(SOON):
                await app.ended.wait()
            assert trio.current_time() - started < SOON


# Accepting


async def by_name(scope: Scope, receive: Receive, send: Send) -> None:
    """Serves those who name themselves in the query, and others where there is room; /slow holds its request until its
    client leaves."""
    name = scope["query_string"].decode() or None
    if not claim(scope, name, reserved=scope["path"] == "/console"):
        await send({"type": "http.response.start", "status": 503, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"full"})
    elif scope["path"] == "/slow":
        await begin(send)
        await part(send, b"begun")
        await until_gone(receive)
    else:
        await hello(scope, receive, send)


async def is_closed(stream: trio.SocketStream, patience: float = SOON) -> bool:
    """Whether the server closes the connection within so many seconds."""
    with trio.move_on_after(patience):
        return await everything(stream) == b""
    return False


async def test_the_longest_idle_connection_makes_room_and_none_that_is_in_use() -> None:
    """A connection with a stream stays open, and one whose request has arrived but was not read yet."""
    async with serving(by_name, max_connections=4) as site, clients(site) as connect:
        streaming = await connect(get("/slow"), b"begun")
        first, second, silent = await connect(get("/")), await connect(get("/")), await connect()
        await connect(get("/"))
        assert await is_closed(first)
        assert not await is_closed(silent, STAYS)
        await connect()
        assert (await ask(site, get("/"))).endswith(b"got    0")
        assert await is_closed(second)
        assert not await is_closed(streaming, STAYS)


async def test_a_request_that_arrives_as_its_connection_is_chosen_is_served() -> None:
    """All of them send at once with as many newcomers; whoever is closed had sent nothing."""
    async with serving(by_name, max_connections=8) as site, clients(site) as connect:
        for _ in range(5):
            old = [await connect() for _ in range(8)]
            for each in old[::2]:
                each.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await trio.testing.wait_all_tasks_blocked(0.01)
            # Both without a checkpoint: the listener finds the requests and the newcomers in one pass of the loop.
            for each in old[::2]:
                assert os.write(each.socket.fileno(), GET) == len(GET)
            new = [_connect_now(site) for _ in range(4)]
            for each in old[::2]:
                await read_to(each, b"got    0")
            for newcomer in new:
                newcomer.close()


def _connect_now(site: Site) -> socket.socket:
    """A connection that is in the backlog when this returns."""
    return socket.create_connection(("127.0.0.1", site.port))


async def test_pipelined_requests_hold_no_anonymous_connection_open_while_the_listener_is_nearly_full() -> None:
    async with serving(by_name, max_connections=2) as site, clients(site) as connect:
        await connect()
        for target, answered in (("/", 1), ("/?laptop", 3)):
            stream = await connect()
            last = get(target).replace(b"a\r\n", b"a\r\nConnection: close\r\n")
            await stream.send_all(get(target) + get(target) + last)
            answers = await everything(stream)
            assert answers.count(b"got    0") == answered
            assert answers.lower().count(b"connection: close") == 1


async def test_anonymous_connections_of_a_nearly_full_listener_end_with_their_answer() -> None:
    async with serving(by_name, max_connections=10) as site, clients(site) as connect:
        for _ in range(8):
            await connect()
        ninth = await connect(get("/"))
        await ninth.send_all(get("/"))
        assert b"connection: close" not in await read_to(ninth, b"got    0")
        tenth = await connect()
        await tenth.send_all(get("/"))
        assert b"connection: close" in await everything(tenth)
        named = await connect(get("/?laptop"))
        await named.send_all(get("/?laptop"))
        assert b"connection: close" not in await read_to(named, b"got    0")


async def test_a_listener_whose_connections_are_all_in_use_refuses_who_has_no_name_and_serves_who_has() -> None:
    async with serving(by_name, max_connections=4) as site, clients(site) as connect:
        for _ in range(4):
            await connect(get("/slow?greedy"), b"begun")
        assert (await ask(site, get("/"))).startswith(b"HTTP/1.1 503 ")
        assert (await ask(site, get("/?greedy"))).startswith(b"HTTP/1.1 503 ")
        answer = await ask(site, get("/?laptop"))
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close" in answer
        assert (await ask(site, get("/console"))).startswith(b"HTTP/1.1 200 ")


@pytest.mark.slow
async def test_silent_connections_beyond_the_limit_keep_nobody_out() -> None:
    """Every slot is in use, and the extra ones are taken by clients that send nothing, or one byte."""
    async with serving(by_name, max_connections=4, head_timeout=120) as site, clients(site) as connect:
        for _ in range(4):
            await connect(get("/slow?greedy"), b"begun")
        for _ in range(2 * EXTRA):
            await connect()
        assert (await ask(site, get("/?laptop"), 30)).startswith(b"HTTP/1.1 200 ")
        for _ in range(2 * EXTRA):
            await (await connect()).send_all(b"G")
        assert (await ask(site, get("/?laptop"), 30)).startswith(b"HTTP/1.1 200 ")


@pytest.mark.slow
async def test_incomplete_requests_keep_nobody_out() -> None:
    """Heads that do not end, and bodies that do not come: after a second they make room."""
    body = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n1"
    for sent in (GET[:-2], body):
        async with serving(by_name, max_connections=40, head_timeout=120) as site, clients(site) as connect:
            incomplete = [await connect() for _ in range(40 + EXTRA)]
            for each in incomplete:
                with suppress(trio.BrokenResourceError):
                    await each.send_all(sent)
            await trio.sleep(INCOMPLETE_TIMEOUT)  # the slowness is the attack
            for _ in range(10):
                assert (await ask(site, get("/"), 30)).startswith(b"HTTP/1.1 200 "), (
                    "long before the deadline of a head"
                )


async def test_a_refused_client_that_still_sends_gets_its_answer() -> None:
    async with serving(by_name, max_connections=1) as site, clients(site) as connect:
        await connect(get("/slow"), b"begun")
        stream = await connect()
        await stream.send_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2000000\r\n\r\n" + b"x" * 1_500_000)
        assert (await everything(stream)).endswith(b"full")


async def test_a_client_behind_many_others_is_accepted_after_a_few_passes_of_the_loop() -> None:
    passes = 0

    async def count() -> None:
        nonlocal passes
        while True:
            await trio.lowlevel.checkpoint()
            passes += 1

    async with serving(by_name) as site, trio.open_nursery() as nursery:
        nursery.start_soon(count)
        before = [_connect_now(site) for _ in range(200)]
        async with trio.SocketStream(trio.socket.from_stdlib_socket(_connect_now(site))) as last:
            await last.send_all(get("/"))
            passes = 0
            await read_to(last, b"got    0")
        for each in before:
            each.close()
        assert passes < 100
        nursery.cancel_scope.cancel()


@pytest.fixture
def many_files() -> Iterator[None]:
    """Both ends of a thousand connections are open in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@asynccontextmanager
async def flood(site: Site) -> AsyncIterator[Callable[[int], Awaitable[list[socket.socket]]]]:
    """Opens many connections, from a thread of its own, and closes them at the end of the block."""
    attack: list[socket.socket] = []

    async def connect(count: int) -> list[socket.socket]:
        more = await trio.to_thread.run_sync(lambda: [_connect_now(site) for _ in range(count)])
        attack.extend(more)
        return more

    try:
        yield connect
    finally:
        for each in attack:
            each.close()


@pytest.mark.slow
@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize("sent", [b"", GET[:-2]])
async def test_more_than_a_thousand_connections_that_send_no_request_keep_nobody_out(sent: bytes) -> None:
    async with serving(by_name, head_timeout=120) as site, flood(site) as attack:
        for each in await attack(MAX_CONNECTIONS + 2 * EXTRA):
            with suppress(OSError):
                each.send(sent)
        if sent:
            await trio.sleep(INCOMPLETE_TIMEOUT + 0.5)  # a head counts as slow so long after it has been read
        async with await site.connect() as anybody:
            await anybody.send_all(get("/"))
            answer = await read_to(anybody, b"got    0")
        assert (b"connection: close" in answer) is not bool(sent), (
            "full of those that sent nothing; the others are gone"
        )
        async with await site.connect() as good:
            for _ in range(3):
                await good.send_all(get("/?laptop"))
                await read_to(good, b"got    0")


@pytest.mark.usefixtures("many_files")
async def test_clients_are_served_while_an_attacker_connects_again_and_again() -> None:
    """Three times as many connections as there are slots. A named client keeps its connection all the time."""
    async with serving(by_name, max_connections=200) as site, clients(site) as connect, flood(site) as attack:
        named = await connect(get("/?laptop"))
        for _ in range(6):
            await attack(100)
            assert (await ask(site, get("/").replace(b"a\r\n", b"a\r\nConnection: close\r\n"), 30)).endswith(
                b"got    0"
            )
            await named.send_all(get("/?laptop"))
            assert b"connection: close" not in await read_to(named, b"got    0")


@pytest.mark.parametrize(
    ("files", "connections"),
    [(resource.RLIM_INFINITY, 1000), (20_000, 1000), (1304, 1000), (1303, 999), (1024, 720), (256, 64)],
)
def test_a_process_that_may_open_few_files_has_fewer_connections(files: int, connections: int) -> None:
    assert affordable_connections(MAX_CONNECTIONS, files) == connections


@pytest.mark.parametrize("limits", [DEFAULT_LIMITS, BESIDE_HTTP2])
def test_a_number_that_was_chosen_and_cannot_be_had_is_refused_with_the_files_that_it_needs(
    monkeypatch: pytest.MonkeyPatch, limits: ListenerLimits
) -> None:
    needed = 20_000 + limits.other_descriptors + EXTRA + RESERVED
    monkeypatch.setattr(resource, "getrlimit", lambda _: (needed, needed))
    check_open_files(replace(limits, max_connections=20_000), "capacity.connections")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (needed - 1, needed))
    with pytest.raises(TooFewFiles, match=rf"^capacity.connections: 20000 .* raise that limit to {needed} "):
        check_open_files(replace(limits, max_connections=20_000), "capacity.connections")


def test_connections_of_http2_use_up_no_descriptors_of_the_rest() -> None:
    """Each takes four."""
    beside = affordable_connections(BESIDE_HTTP2.max_connections, 1024, BESIDE_HTTP2.other_descriptors)
    taken = beside + EXTRA + RESERVED + 4 * (HTTP2_LIMITS.max_connections + EXTRA + RESERVED)
    assert (beside, 1024 - taken) == (272, OTHER_DESCRIPTORS)


async def test_idle_connections_give_back_their_descriptors_when_there_are_no_more() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with serving(by_name) as site, clients(site) as connect:
        idle = [await connect(get("/")) for _ in range(10)]
        good = socket.socket()
        good.setblocking(False)
        try:
            highest = max(int(name) for name in os.listdir("/proc/self/fd"))
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
            spare = _fill_up()
            assert good.connect_ex(("127.0.0.1", site.port)) == errno.EINPROGRESS
            assert await is_closed(idle[0])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for fd in spare:
                os.close(fd)
            good.close()
        for stream in idle[5:]:
            await stream.send_all(get("/"))
            await read_to(stream, b"got    0")


@pytest.mark.slow
async def test_running_out_of_file_descriptors_is_survived_without_spinning(caplog: pytest.LogCaptureFixture) -> None:
    gc.collect()  # what earlier tests left behind must give no descriptor back while there are none
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with serving(hello) as site:
        clients = [socket.socket() for _ in range(30)]  # more than what the tests before may give back meanwhile
        try:
            highest = max(int(name) for name in os.listdir("/proc/self/fd"))
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
            spare = _fill_up()
            for client in clients:
                client.setblocking(False)
                assert client.connect_ex(("127.0.0.1", site.port)) == errno.EINPROGRESS
            used = resource.getrusage(resource.RUSAGE_SELF).ru_utime
            await trio.sleep(0.5)  # accept fails all that time
            assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - used < 0.2
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for fd in spare:
                os.close(fd)
            for client in clients:
                client.close()
        await trio.sleep(0.15)  # the listener pauses so long before it tries again
        await lives_on(site)
    assert "EMFILE" in caplog.text


def _fill_up() -> list[int]:
    taken: list[int] = []
    while True:
        try:
            taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            return taken


async def test_many_clients_that_reset_leave_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(hello) as site:
        await lives_on(site)
        before = len(os.listdir("/proc/self/fd"))
        for sent in (b"", GET[:9], GET, GET + GET):
            for _ in range(30):
                stream = await site.connect()
                await stream.send_all(sent)
                reset(stream)
        await lives_on(site)
        await trio.sleep(0.1)  # the kernel reports the last resets in its own time
        assert len(os.listdir("/proc/self/fd")) <= before
    assert caplog.records == []


async def test_the_port_is_free_after_the_block() -> None:
    async with serving(hello) as site:
        await lives_on(site)
        port = site.port
    with bind("127.0.0.1", port) as again:
        assert again.getsockname()[1] == port
