"""The stdio link over two real pipes, with a scripted server at the far ends and no process at all."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing
from msgspec import Raw

from host.jsonrpc.conversation import cancel_notification
from host.jsonrpc.messages import Malformed, Notification, Request, Success
from host.memory import Budget, HoldingFactory, Use, client_owner, uncharged
from host.memory import server_owner as of_server
from host.protocol.versions import LATEST, LEGACY, MODERN
from host.wire.framing import DISCARD_WINDOW, MAX_LINE
from host.wire.link import LinkLost, Parcel, ReceivedMessage
from host.wire.pipe import STALL_TIMEOUT
from host.wire.stdio import LAST_OUTPUT_WAIT, StdioLink
from host.wire.turns import PASS_BUDGET, Turns


@dataclass
class Server:
    """The far side: what it hears, and what it says."""

    link: StdioLink
    stdin: int
    stdout: int
    ended: trio.Event = field(default_factory=trio.Event)
    status: str = "it ended with status 3"
    arrived: list[ReceivedMessage] = field(default_factory=list)
    lost: str | None = None
    over: trio.Event = field(default_factory=trio.Event)
    texts: list[bytes] = field(default_factory=list)

    def says(self, data: bytes) -> None:
        assert os.write(self.stdout, data) == len(data)

    async def hears(self, count: int = 65536) -> bytes:
        await trio.lowlevel.wait_readable(self.stdin)
        return os.read(self.stdin, count)

    def closes_stdout(self) -> None:
        os.close(self.stdout)
        self.stdout = -1

    def closes_stdin(self) -> None:
        os.close(self.stdin)
        self.stdin = -1

    def ends(self) -> None:
        self.ended.set()

    async def wait_lost(self) -> str:
        await self.over.wait()
        assert self.lost is not None
        return self.lost

    async def run(self) -> None:
        try:
            await self.link.run(self.arrived.append)
        except LinkLost as problem:
            self.lost = str(problem)
        self.over.set()


@asynccontextmanager
async def serving(
    turns: Turns | None = None, max_message: int | None = None, hold: HoldingFactory = uncharged
) -> AsyncIterator[Server]:
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    for fd in (theirs_in, ours_out):
        os.set_blocking(fd, False)
    async with trio.lowlevel.FdStream(ours_in) as output:
        status: list[Callable[[], Awaitable[str]]] = []
        texts: list[bytes] = []
        link = StdioLink(
            output,
            ours_out,
            lambda: status[0](),
            on_text=texts.append,
            turns=turns,
            max_message=max_message,
            hold=hold,
        )
        server = Server(link, theirs_in, theirs_out, texts=texts)

        async def ended() -> str:
            await server.ended.wait()
            return server.status

        status.append(ended)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run)
            await trio.testing.wait_all_tasks_blocked()
            yield server
            nursery.cancel_scope.cancel()
    os.close(ours_out)
    for fd in (server.stdin, server.stdout):
        if fd >= 0:
            os.close(fd)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as made:
        yield made


async def test_a_message_is_one_line(server: Server) -> None:
    """Line ends of a payload are taken out (rule 1)."""
    await server.link.send(Parcel(Request(1, "m", Raw(b'{"a":\r\n1.0,"b":"\\n"}'))))
    assert await server.hears() == b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":  1.0,"b":"\\n"}}\n'


async def test_what_it_writes_arrives_line_by_line(server: Server) -> None:
    server.says(b'{"jsonrpc":"2.0","method":"a"}\n\n{"jsonrpc":"2.0",')
    await trio.testing.wait_all_tasks_blocked()
    assert server.arrived == [ReceivedMessage(Notification("a"))]
    server.says(b'"method":"b"}\r\n')
    await trio.testing.wait_all_tasks_blocked()
    assert server.arrived[1:] == [ReceivedMessage(Notification("b"))]


async def test_a_byte_order_mark_before_the_first_line_is_nothing(server: Server) -> None:
    server.says(b'\xef\xbb\xbf{"jsonrpc":"2.0","method":"a"}\n')
    await trio.testing.wait_all_tasks_blocked()
    assert (server.arrived, server.texts) == ([ReceivedMessage(Notification("a"))], [])


async def test_lines_that_are_no_messages_are_reported_as_text(server: Server) -> None:
    server.says(b'listening\n{"level":30}\n{"jsonrpc":"2.0","method":"a"}\n{"jsonrpc":"2.0","id":1,"error":5}\n')
    await trio.testing.wait_all_tasks_blocked()
    assert server.texts == [b"listening", b'{"level":30}']


async def test_what_is_no_message_arrives_as_such_and_the_link_lives_on(server: Server) -> None:
    """A banner ends nothing (rule 1)."""
    server.says(b'hello\n{"jsonrpc":"2.0","id":1,"result":"\xff"}\n{"jsonrpc":"2.0","id":1,"result":{}}\n')
    await trio.testing.wait_all_tasks_blocked()
    kinds = [type(arrival.message) for arrival in server.arrived]
    assert kinds == [Malformed, Malformed, Success]


async def test_a_payload_arrives_byte_for_byte(server: Server) -> None:
    """Also with what some take for a line end (rule 2)."""
    result = '{"z":1.0,"a":"\u2028\\/\\ud83d","n":10000000000000000000001,"z":[ ]}'.encode()
    server.says(b'{"jsonrpc":"2.0","id":1,"result":' + result + b"}\n")
    await trio.testing.wait_all_tasks_blocked()
    (arrival,) = server.arrived
    assert isinstance(arrival.message, Success)
    assert bytes(arrival.message.result) == result


@pytest.mark.parametrize(
    ("revision", "kinds"),
    [
        ("2025-03-26", [Notification, Malformed, Success]),
        ("2025-06-18", [Malformed]),
        (LATEST.name, [Malformed]),
    ],
)
async def test_each_message_of_a_batch_arrives_by_itself_where_the_revision_has_batches(
    server: Server, revision: str, kinds: list[type]
) -> None:
    """Elsewhere an array is no message (rule 6)."""
    server.link.settle({**LEGACY, **MODERN}[revision])
    server.says(b'[{"jsonrpc":"2.0","method":"a"},[],{"jsonrpc":"2.0","id":1,"result":{}}]\n')
    await trio.testing.wait_all_tasks_blocked()
    assert [type(arrival.message) for arrival in server.arrived] == kinds


async def test_calling_off_sends_the_notice(server: Server) -> None:
    await server.link.send_cancel(7, cancel_notification(7, "gone"))
    assert await server.hears() == (
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7,"reason":"gone"}}\n'
    )


async def test_calling_off_with_nobody_left_to_tell_is_quiet(server: Server) -> None:
    server.closes_stdin()
    await server.link.send_cancel(7, cancel_notification(7, None))


async def test_sending_to_a_server_that_closed_its_input_says_so(server: Server) -> None:
    server.closes_stdin()
    with pytest.raises(LinkLost, match="it closed its standard input, or has ended"):
        await server.link.send(Parcel(Notification("m")))


async def test_the_status_says_more_than_the_end_of_output(server: Server) -> None:
    server.closes_stdout()
    await trio.testing.wait_all_tasks_blocked()
    server.ends()
    assert await server.wait_lost() == "it ended with status 3"


@pytest.mark.parametrize(
    ("end", "why"), [("closes_stdout", "it closed its standard output"), ("ends", "it ended with status 3")]
)
async def test_closed_output_or_an_end_whose_output_a_grandchild_holds_is_said_after_a_grace(
    end: str, why: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with serving() as server:
        begun = trio.current_time()
        getattr(server, end)()
        assert await server.wait_lost() == why
        assert trio.current_time() - begun == pytest.approx(LAST_OUTPUT_WAIT)


async def test_last_words_are_still_read(server: Server) -> None:
    server.says(b'{"jsonrpc":"2.0","method":"a"}\n{"jsonrpc":"2.0","method":"b"}')
    server.ends()
    server.closes_stdout()
    assert await server.wait_lost() == "it ended with status 3"
    assert [arrival.message for arrival in server.arrived] == [Notification("a"), Notification("b")]


class Breaking(trio.abc.ReceiveStream):
    """Output that begins a line and breaks."""

    def __init__(self) -> None:
        self._left = [b'{"jsonrpc":"2.0","method":"a"}']

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        if not self._left:
            raise trio.BrokenResourceError
        return self._left.pop()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_output_that_breaks_is_output_that_ends() -> None:
    async def ended() -> str:
        await trio.lowlevel.checkpoint()
        return "it was killed"

    arrived: list[ReceivedMessage] = []
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with pytest.raises(LinkLost, match="it was killed"):
        await StdioLink(Breaking(), nowhere, ended).run(arrived.append)
    os.close(nowhere)
    assert arrived == [ReceivedMessage(Notification("a"))]


async def test_a_line_without_an_end_ends_the_link(server: Server) -> None:
    """A line is bounded (rule 5)."""
    os.set_blocking(server.stdout, False)
    left = MAX_LINE + 1
    while left:
        await trio.lowlevel.wait_writable(server.stdout)
        left -= os.write(server.stdout, b"x" * min(left, 65536))
    await trio.testing.wait_all_tasks_blocked()
    server.ends()
    assert await server.wait_lost() == f"it wrote a line of more than {MAX_LINE} bytes"
    assert server.arrived == []


async def test_a_server_that_never_reads_loses_the_link(autojump_clock: trio.testing.MockClock) -> None:
    async with serving() as server:
        begun = trio.current_time()
        await server.link.send(Parcel(Notification("m", Raw(b'"' + b"x" * 1_000_000 + b'"'))))
        assert "does not read its standard input" in await server.wait_lost()
        assert trio.current_time() - begun == pytest.approx(STALL_TIMEOUT)


async def test_a_message_longer_than_the_pipe_gets_through(server: Server) -> None:
    await server.link.send(Parcel(Notification("m", Raw(b'"' + b"x" * 1_000_000 + b'"'))))
    await server.link.send(Parcel(Notification("n")))
    got = b""
    while got.count(b"\n") < 2:
        got += await server.hears()
    assert got.endswith(b'x"}\n{"jsonrpc":"2.0","method":"n"}\n')
    assert len(got) > 1_000_000


class Dear:
    """A clock by which every message uses the share of a pass up."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 2 * PASS_BUDGET
        return self.now


async def test_messages_of_one_read_are_delivered_in_turns() -> None:
    """None is lost or doubled, and others run in between."""
    async with serving(turns=Turns(Dear())) as server:
        passes = 0

        async def count() -> None:
            nonlocal passes
            while True:
                await trio.lowlevel.checkpoint()
                passes += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            server.says(b"".join(b'{"jsonrpc":"2.0","method":"%d"}\n' % each for each in range(1000)))
            with trio.fail_after(10):
                while len(server.arrived) < 1000:
                    await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert [arrival.message for arrival in server.arrived] == [Notification(str(each)) for each in range(1000)]
        assert passes >= 990  # a pass between every two messages; the counter may start some passes late


async def writes(server: Server, data: bytes) -> None:
    os.set_blocking(server.stdout, False)
    view = memoryview(data)
    while view:
        await trio.lowlevel.wait_writable(server.stdout)
        view = view[os.write(server.stdout, view[:65536]) :]


async def test_an_answer_over_the_limit_is_passed_over_and_the_next_message_arrives() -> None:
    async with serving(max_message=100_000) as server:
        await writes(server, b'{"jsonrpc":"2.0","result":{"x":"' + b"x" * 150_000 + b'","id":8},"id":7}\n')
        await writes(server, b'{"jsonrpc":"2.0","method":"a"}\n')
        with trio.fail_after(5):
            while len(server.arrived) < 2:  # noqa: ASYNC110
                await trio.sleep(0.001)
        first, second = (arrival.message for arrival in server.arrived)
        why = "the message has more than 100000 bytes (limits.message)"
        assert first == Malformed(413, why, 7, answers=True, size=150_049)
        assert second == Notification("a")


async def test_a_message_over_the_limit_must_end_in_time(autojump_clock: trio.testing.MockClock) -> None:
    async with serving(max_message=10_000) as server:
        begun = trio.current_time()
        server.says(b'{"id":1,"result":"' + b"x" * 20_000)
        await trio.sleep(DISCARD_WINDOW - 1)
        server.says(b"x")
        assert server.lost is None
        await trio.sleep(1.5)
        server.ends()
        assert await server.wait_lost() == "it wrote a line of more than 10000 bytes, and did not end it in time"
        assert trio.current_time() - begun < DISCARD_WINDOW + 2


def holding(total: int) -> tuple[Budget, HoldingFactory]:
    budget = Budget(total)
    return budget, lambda drop: budget.hold(of_server("a"), Use.MESSAGES, drop=drop)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "fits"), [(999, True), (1000, True), (1001, False)])
async def test_a_message_that_comes_is_charged_until_it_is_whole(size: int, fits: bool) -> None:
    budget, hold = holding(1000)
    async with serving(hold=hold) as server:
        server.says(b" " * size)
        await trio.testing.wait_all_tasks_blocked()
        if fits:
            assert budget.used == size
            server.says(b"\n")
            await trio.testing.wait_all_tasks_blocked()
            assert (budget.used, server.over.is_set()) == (0, False)
        else:
            await server.over.wait()
            assert server.lost == "there is no memory for its message (memory)"
    assert budget.by_owner() == {}


@pytest.mark.slow
async def test_a_message_whose_memory_is_needed_elsewhere_ends_the_link() -> None:
    budget, hold = holding(1000)
    async with serving(hold=hold) as server:
        server.says(b" " * 900)
        await trio.testing.wait_all_tasks_blocked()
        budget.hold(client_owner(None), Use.REQUESTS, 400, lambda: None)
        await server.over.wait()
        assert server.lost == "there is no memory for its message (memory)"
        assert budget.used == 400
