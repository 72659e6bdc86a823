"""How people are told what waits: what is said, how often, and what becomes of a call when nobody can be told."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock, wait_all_tasks_blocked

from config import AskSpec, Channel, Notice, Secret
from host.client_process import ClientProcess
from host.errors import Unconfirmed
from host.journal import Event, Journal
from host.notify.notices import PAGE_LIFE, PAUSE, RETRY, Notifier, NotTold, as_data, as_text, session_bus
from host.policy.confirmations import ConfirmationAnswer, ConfirmationContext, PendingConfirmation
from host.wire.process import Keeper, open_keeper
from tests.host.policy.test_confirmations import ABOUT, ACCESS, Client, Table, queues
from tests.kit.desktop import NEEDS_DBUS, FakeDesktop, desktop_at, running_bus
from tests.kit.gates import altered

WEBHOOK = Notice(webhook=Secret("https://h.example/secret-path"), headers=MappingProxyType({"X-Key": Secret("k")}))
DESKTOP = Notice()
COMMAND = Notice(command=(Secret("tell"),))
BOTH = (Channel.CONSOLE, Channel.TERMINAL)
LINK = "http://127.0.0.1:1/console#code"


def pending(about: ConfirmationContext = ABOUT, **more: Any) -> PendingConfirmation:
    return PendingConfirmation("q", altered(ACCESS, **more), about, 0.0, 1.0)


# What is said


def test_one_call_is_told_by_its_names_alone() -> None:
    """No arguments, and nothing that holds what arguments hold."""
    assert as_text([pending()]) == ("A call waits for you", "create of gh, for laptop")
    told = json.dumps(as_data([pending()]))
    assert "acme" not in told
    for kind, name, said in (
        ("resource", "file:///home/me/secret", "a resource"),
        ("url", "https://h/?code=1", "a page to visit"),
        ("sampling", "sampling", "the client's model"),
        ("prompt", "greet", "greet"),
    ):
        assert as_data([pending(kind=kind, name=name)])["waiting"] == [
            {"server": "gh", "kind": kind, "name": said, "client": "laptop"}
        ]


def test_a_program_is_named_before_a_token_and_nobody_as_nobody() -> None:
    about = replace(ABOUT, process=ClientProcess("claude", 7, "/home/me/work"))
    assert as_text([pending(about)])[1] == "create of gh, for claude"
    assert "/home" not in json.dumps(as_data([pending(about)]))
    assert as_text([pending(caller=None)])[1] == "create of gh, for a client without a name"


def test_several_calls_are_one_line() -> None:
    rows = [pending(), pending(name="b"), pending(server="git")]
    assert as_text(rows) == ("3 calls wait for you", "of gh, git")
    assert as_data(rows)["text"] == "3 calls wait for you: of gh, git"


def test_a_name_is_shown_as_text_and_not_at_any_length() -> None:
    said = as_text([pending(name="x\u202e\x1b[2J" + "y" * 500)])[1]
    assert "\u202e" not in said
    assert "\x1b" not in said
    assert len(said) < 130


def test_the_session_bus_is_found_without_its_variable(tmp_path: Path) -> None:
    assert session_bus({"DBUS_SESSION_BUS_ADDRESS": "unix:path=/x", "XDG_RUNTIME_DIR": str(tmp_path)}) == "unix:path=/x"
    assert session_bus({"XDG_RUNTIME_DIR": str(tmp_path)}) == ""
    (tmp_path / "bus").write_text("no socket")
    assert session_bus({"XDG_RUNTIME_DIR": str(tmp_path)}) == ""
    (tmp_path / "bus").unlink()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "bus"))
        assert session_bus({"XDG_RUNTIME_DIR": str(tmp_path)}) == f"unix:path={tmp_path}/bus"


# When it is said


class Recorded(Notifier):
    """Keeps what it would send. `fails`: nothing can be sent."""

    sent: list[tuple[float, Notice, dict[str, Any]]]
    fails = False

    async def _deliver(self, way: Notice, data: bytes) -> None:
        if self.fails:
            await trio.sleep(1)
            raise NotTold("the webhook answered with HTTP 500")
        self.sent.append((trio.current_time(), way, json.loads(data)))

    _post = _start = _deliver


class Told(Table):
    notifier: Recorded
    events: list[Event]

    def names(self) -> list[list[str]]:
        return [[row["name"] for row in data["waiting"]] for _, _, data in self.notifier.sent]


@asynccontextmanager
async def telling(
    *ways: Notice,
    run: Path = Path("/nowhere"),
    bus: str = "",
    keeper: Keeper | None = None,
    make: Callable[..., Notifier] = Recorded,
    answers: tuple[Channel, ...] = BOTH,
    why_not: Path = Path("/nowhere"),
) -> AsyncIterator[Told]:
    events: list[Event] = []
    journal = Journal()
    journal.subscribe(events.append)

    def new_link(confirmation: str, life: float) -> str:
        return f"{LINK}.{confirmation}.{life:.0f}"

    with queues(AskSpec(answers, 50.0, ways), lambda what, pending, said: None) as queue:
        async with trio.open_nursery() as nursery:
            notifier = make(queue, cast(Keeper, keeper), journal, why_not, run, new_link, lambda: bus)
            found = Told(queue, [], nursery)
            found.notifier, found.events = cast(Recorded, notifier), events
            found.notifier.sent = []
            nursery.start_soon(notifier.run)
            yield found
            nursery.cancel_scope.cancel()


async def test_a_call_waits_for_people_who_can_be_told(autojump_clock: MockClock) -> None:
    async with telling(WEBHOOK) as table:
        asked = await table.asks()
        assert (asked.refusal, table.names()) == (None, [["create"]])
        await table.answers(ConfirmationAnswer.ONCE)
        assert table.goes(asked)


@pytest.mark.parametrize("way", [None, Notice()])
async def test_where_nobody_can_be_told_it_is_refused_at_once(way: Notice | None) -> None:
    """Also where the desktop is named, and there is no session bus."""
    async with telling(*([] if way is None else [way])) as table:
        asked = await table.asks()
        assert "nobody is there who could answer" in str(asked.refusal)


async def test_whoever_is_told_and_may_not_answer_is_not_told(autojump_clock: MockClock) -> None:
    async with telling(WEBHOOK, answers=(Channel.CLIENT,)) as table:
        assert isinstance((await table.asks()).refusal, Unconfirmed)
        assert (await table.asks(client=Client())).refusal is None
        assert table.names() == []


async def test_what_comes_at_once_is_one_notice_and_so_is_what_comes_in_a_pause(autojump_clock: MockClock) -> None:
    async with telling(WEBHOOK, COMMAND) as table:
        for name in ("b", "c"):
            table._nursery.start_soon(table.asks, altered(ACCESS, name=name))
        await wait_all_tasks_blocked()
        assert [sorted(names) for names in table.names()] == [["b", "c"]] * 2
        begun = trio.current_time()
        await table.asks(altered(ACCESS, name="d"))
        await table.asks(altered(ACCESS, name="e"))
        await trio.sleep(PAUSE + 1)
        assert table.names()[2:] == [["d", "e"]] * 2
        assert {at for at, *_ in table.notifier.sent[2:]} == {begun + PAUSE}
        await trio.sleep(60)
        assert len(table.notifier.sent) == 4


async def test_an_equal_call_is_not_told_twice_and_a_later_one_is(autojump_clock: MockClock) -> None:
    async with telling(WEBHOOK) as table:
        first = await table.asks()
        await table.asks()
        await trio.sleep(100)
        assert isinstance(first.refusal, Unconfirmed)
        assert len(table.notifier.sent) == 1
        await table.asks()
        assert len(table.notifier.sent) == 2


async def test_where_telling_fails_the_call_is_refused_then_and_later_ones_at_once(autojump_clock: MockClock) -> None:
    async with telling(WEBHOOK) as table:
        table.notifier.fails = True
        begun = trio.current_time()
        asked = await table.asks()
        form = await table.asks(altered(ACCESS, name="other"), Client())
        await trio.sleep(10)
        assert isinstance(asked.refusal, Unconfirmed)
        assert asked.ended_at == begun + 1
        assert form.refusal is None  # its own client can still answer
        assert isinstance((await table.asks()).refusal, Unconfirmed)
        said = "ask.notify[0]: nobody could be told what waits: the webhook answered with HTTP 500"
        assert [str(each) for each in table.events] == [said]
        await trio.sleep(RETRY)
        assert (await table.asks()).refusal is None
        await trio.sleep(RETRY * 2)
        assert len(table.events) == 1  # told once
        table.notifier.fails = False
        assert (await table.asks()).refusal is None
        assert table.names() == [["create"]]


async def test_one_way_that_works_is_enough_and_an_open_page_too(autojump_clock: MockClock) -> None:
    class Half(Recorded):
        async def _start(self, way: Notice, data: bytes) -> None:
            raise NotTold("the program could not be started")

    async with telling(COMMAND, WEBHOOK, make=Half) as table:
        asked = await table.asks()
        await trio.sleep(10)
        assert asked.refusal is None
    async with telling(COMMAND, make=Half) as table:
        with table.queue.attach(Channel.CONSOLE):
            asked = await table.asks()
            await trio.sleep(10)
            assert asked.refusal is None


async def test_a_mistake_of_ours_in_telling_ends_nothing_else(autojump_clock: MockClock) -> None:
    class Broken(Recorded):
        async def _post(self, way: Notice, data: bytes) -> None:
            raise KeyError("x")

    async with telling(WEBHOOK, make=Broken) as table:
        assert isinstance((await table.asks()).refusal, Unconfirmed)
        assert [type(each).__name__ for each in table.events] == ["InternalError"]


# A webhook


@asynccontextmanager
async def answering(*heads: str) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A URL at which each request is answered with the next head, and what came there."""
    came: list[bytes] = []
    left = list(heads)

    async def serve(stream: trio.SocketStream) -> None:
        data = b""
        while b"}]}" not in data and (piece := await stream.receive_some()):
            data += piece
        came.append(data)
        await stream.send_all(f"HTTP/1.1 {left.pop(0)}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        port = listeners[0].socket.getsockname()[1]
        yield f"http://127.0.0.1:{port}/hook?key=hidden", came
        nursery.cancel_scope.cancel()


async def until(holds: Callable[[], object]) -> None:
    with trio.fail_after(20):
        while not holds():  # noqa: ASYNC110 - a file, or the end of a process
            await trio.sleep(0.01)


async def test_a_webhook_gets_the_notice_with_its_headers() -> None:
    async with answering("204 Done") as (url, came):
        way = Notice(webhook=Secret(url), headers=MappingProxyType({"X-Key": Secret("k")}))
        async with telling(way, make=Notifier) as table:
            await table.asks()
            await until(lambda: came)
            head, _, body = came[0].partition(b"\r\n\r\n")
            assert head.startswith(b"POST /hook?key=hidden HTTP/1.1\r\n")
            assert b"X-Key: k" in head
            assert json.loads(body)["text"] == "A call waits for you: create of gh, for laptop"
            assert b"acme" not in came[0]
            assert table.events == []


@pytest.mark.parametrize("answer", ["302 Found\r\nLocation: /other", "500 No", "404 No"])
async def test_a_webhook_that_refuses_or_leads_elsewhere_has_failed(answer: str) -> None:
    async with answering(answer, answer) as (url, came):
        async with telling(Notice(webhook=Secret(url)), make=Notifier) as table:
            asked = await table.asks()
            await until(lambda: asked.refusal)
            assert len(came) == 1
            (event,) = table.events
            assert str(event).endswith(f"answered with HTTP {answer[:3]}")
            assert "hidden" not in str(event)


async def test_a_webhook_that_is_not_there_has_failed() -> None:
    async with telling(Notice(webhook=Secret("http://127.0.0.1:1/secret-path")), make=Notifier) as table:
        asked = await table.asks()
        await until(lambda: asked.refusal)
        (event,) = table.events
        assert "gave no answer" in str(event)
        assert "secret-path" not in str(event)


# A program


@pytest.fixture
async def keeper() -> AsyncIterator[Keeper]:
    async with open_keeper() as opened:
        yield opened


def program(folder: Path, text: str) -> Notice:
    return Notice(command=(Secret(sys.executable), Secret("-c"), Secret(text)), folder=folder)


@pytest.mark.slow
async def test_a_program_reads_the_notice_and_gets_few_variables(
    keeper: Keeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", "hidden")
    text = "import os, sys; open('told', 'w').write(sys.stdin.read() + repr(sorted(os.environ)) + repr(sys.argv))"
    async with telling(program(tmp_path, text), make=Notifier, keeper=keeper) as table:
        await table.asks()
        await until(lambda: (tmp_path / "told").exists() and (tmp_path / "told").read_text().endswith("]"))
        told = (tmp_path / "told").read_text()
        assert json.loads(told.partition("\n")[0])["waiting"][0]["name"] == "create"
        assert "A_KEY" not in told
        assert told.endswith("['-c']")
        assert table.events == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "why"),
    [("import sys; sys.exit(3)", "the program exited with status 3"), (None, "could not be started")],
)
async def test_a_program_that_fails_has_told_nobody(keeper: Keeper, tmp_path: Path, text: str | None, why: str) -> None:
    way = Notice(command=(Secret("./none"),), folder=tmp_path) if text is None else program(tmp_path, text)
    async with telling(way, make=Notifier, keeper=keeper) as table:
        asked = await table.asks()
        await until(lambda: asked.refusal)
        assert why in str(table.events[0])


@pytest.mark.slow
async def test_a_program_that_takes_too_long_is_ended(
    keeper: Keeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("host.notify.notices.TIMEOUT", 1.0)
    text = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(600)"
    async with telling(program(tmp_path, text), make=Notifier, keeper=keeper) as table:
        asked = await table.asks()
        await until(lambda: asked.refusal)
        assert "it took longer than 1 s" in str(table.events[0])
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)


# The desktop


@pytest.fixture(scope="module")
def bus() -> Iterator[str]:
    with running_bus() as address:
        yield address


@asynccontextmanager
async def on_desktop(
    bus: str, folder: Path, way: Notice = DESKTOP, **more: Any
) -> AsyncIterator[tuple[Told, FakeDesktop]]:
    (folder / "hosts").mkdir(exist_ok=True)
    async with desktop_at(bus, **more) as desktop:
        async with telling(way, make=Notifier, bus=bus, run=folder, why_not=folder / "hosts") as table:
            yield table, desktop


@pytest.mark.slow
@NEEDS_DBUS
async def test_a_notification_stands_as_long_as_something_waits(bus: str, tmp_path: Path) -> None:
    async with on_desktop(bus, tmp_path) as (table, desktop):
        first = await table.asks()
        await desktop.until("shown", 1)
        assert desktop.shown == [(1, "A call waits for you", "create of gh, for laptop", ["default", "Answer"])]
        second = await table.asks(altered(ACCESS, name="other", digest="sha256:8"))
        await desktop.until("shown", 2)
        assert desktop.shown[1][:3] == (1, "2 calls wait for you", "of gh")
        await table.answers(ConfirmationAnswer.ONCE)
        await desktop.until("shown", 3)
        assert desktop.shown[2][:3] == (1, "A call waits for you", "other of gh, for laptop")
        assert desktop.closed == []
        await table.answers(ConfirmationAnswer.DENY)
        await desktop.until("closed", 1)
        assert desktop.closed == [1]
        assert first.grant is not None
        assert second.refusal is not None
        assert table.events == []


@pytest.mark.slow
@NEEDS_DBUS
async def test_one_that_a_person_closed_comes_back_with_the_next_call_only(bus: str, tmp_path: Path) -> None:
    async with on_desktop(bus, tmp_path) as (table, desktop):
        await table.asks()
        await desktop.until("shown", 1)
        await table.asks(altered(ACCESS, name="b"))
        await desktop.until("shown", 2)
        await desktop.dismiss(1)
        await trio.sleep(0.2)
        shown = len(desktop.shown)
        await table.answers(ConfirmationAnswer.ONCE)
        await trio.sleep(1.5)
        assert len(desktop.shown) == shown
        await table.asks(altered(ACCESS, name="c"))
        await desktop.until("shown", shown + 1)


@pytest.mark.slow
@NEEDS_DBUS
async def test_a_press_opens_the_console_at_the_confirmation_by_a_file_that_is_soon_gone(
    bus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("host.notify.notices.PAGE_LIFE", 1.0)
    async with on_desktop(bus, tmp_path) as (table, desktop):
        await table.asks()
        await desktop.until("shown", 1)
        await desktop.press(1)
        await desktop.until("opened", 1)
        (pending,) = table.queue.list_all()
        (link,) = re.findall(r'content="0;url=([^"]*)"', desktop.opened[0])
        assert link == f"{LINK}.{pending.id}.1"
        await until(lambda: not list(tmp_path.glob("*.html")))
        desktop.refuses_pages = True
        await desktop.press(1)
        await until(lambda: table.events)
        assert "the page cannot be opened" in str(table.events[0])
        await until(lambda: not list(tmp_path.glob("*.html")))
        assert desktop.closed == []
    assert PAGE_LIFE == 30


@pytest.mark.slow
@NEEDS_DBUS
@pytest.mark.parametrize("is_open", [False, True])
async def test_the_console_opens_by_itself_only_where_the_file_says_so_and_no_page_is_open(
    bus: str, tmp_path: Path, is_open: bool
) -> None:
    async with on_desktop(bus, tmp_path, Notice(opens_page=True)) as (table, desktop):
        with table.queue.attach(Channel.CONSOLE) if is_open else nullcontext():
            await table.asks()
            await desktop.until("shown", 1)
            if is_open:
                await wait_all_tasks_blocked(0.2)
                assert desktop.opened == []
                return
            await desktop.until("opened", 1)
            await table.asks(altered(ACCESS, name="other", digest="sha256:8"))
            await desktop.until("shown", 2)
            await wait_all_tasks_blocked(0.2)
            assert len(desktop.opened) == 1, "one page shows all that waits"


@pytest.mark.slow
@NEEDS_DBUS
async def test_without_a_console_nothing_can_be_pressed(bus: str, tmp_path: Path) -> None:
    async with on_desktop(bus, tmp_path) as (table, desktop):
        table.queue.has_console = False
        await table.asks()
        await desktop.until("shown", 1)
        assert desktop.shown[0][3] == []


@pytest.mark.slow
@NEEDS_DBUS
async def test_without_a_notification_service_nobody_is_there_and_nothing_is_said(bus: str, tmp_path: Path) -> None:
    async with telling(Notice(), make=Notifier, bus=bus, run=tmp_path, why_not=tmp_path) as table:
        asked = await table.asks()
        await until(lambda: asked.refusal)
        assert isinstance((await table.asks()).refusal, Unconfirmed)
        assert table.events == []
