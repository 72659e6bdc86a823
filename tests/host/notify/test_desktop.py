"""The desktop over a real session bus: what it is shown, which presses count, and who may be told nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from host.notify.desktop import Desktop, NoDesktop, open_desktop
from host.wire.descent import examine_process, refusal_reason
from host.wire.process import open_keeper
from tests.kit.desktop import NEEDS_DBUS, desktop_at, running_bus

pytestmark = [pytest.mark.slow, NEEDS_DBUS]


@pytest.fixture(scope="module")
def bus() -> Iterator[str]:
    with running_bus() as address:
        yield address


@asynccontextmanager
async def opened(address: str, forbidden: int = 0) -> AsyncIterator[Desktop]:
    def why_not(pid: int) -> str | None:
        return "it is a server" if pid == forbidden else None

    async with open_desktop(address, why_not) as desktop:
        yield desktop


async def test_a_notification_is_shown_replaced_and_taken_away(bus: str) -> None:
    async with desktop_at(bus) as fake, opened(bus) as desktop:
        await desktop.show("A call waits for you", "a <b> & c", has_page=True)
        assert desktop.is_shown
        await desktop.show("2 calls wait for you", "of x", has_page=False)
        await desktop.close()
        await desktop.close()
        assert fake.shown == [
            (1, "A call waits for you", "a &lt;b&gt; &amp; c", ["default", "Answer"]),
            (1, "2 calls wait for you", "of x", []),
        ]
        assert fake.closed == [1]
        assert not desktop.is_shown


async def test_without_markup_actions_or_a_portal_the_text_is_plain_and_nothing_can_be_pressed(bus: str) -> None:
    async with desktop_at(bus, ("body",)) as fake, opened(bus) as desktop:
        await desktop.show("t", "a <b>", has_page=True)
        assert fake.shown == [(1, "t", "a <b>", [])]
    async with desktop_at(bus, has_portal=False) as fake, opened(bus) as desktop:
        await desktop.show("t", "x", has_page=True)
        assert fake.shown == [(1, "t", "x", [])]


async def test_a_press_counts_for_this_notification_and_of_this_service_alone(bus: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("hello")
    page.chmod(0o600)
    pressed: list[None] = []
    async with desktop_at(bus) as fake, opened(bus) as desktop, trio.open_nursery() as nursery:

        async def follow() -> None:
            async for _ in desktop.presses():
                pressed.append(None)
                await desktop.open_page(page)

        nursery.start_soon(follow)
        await desktop.show("t", "x", has_page=True)
        async with desktop_at(bus) as other:  # another process of the user, which has no name
            await other.press(1)
        await fake.press(7)
        await fake.press(1)
        await fake.until("opened", 1)
        await fake.dismiss(1)
        await desktop.show("t", "y", has_page=True)
        await fake.dismiss(1)
        await trio.sleep(0.1)
        await fake.press(1)
        await desktop.show("t", "z", has_page=True)
        assert len(pressed) == 1
        assert fake.opened == ["hello"]
        nursery.cancel_scope.cancel()


async def test_a_name_that_a_server_took_is_told_nothing(bus: str) -> None:
    async with desktop_at(bus) as fake:
        with pytest.RaisesGroup(NoDesktop, flatten_subgroups=True, allow_unwrapped=True):
            async with opened(bus, forbidden=os.getpid()):
                raise AssertionError("it is told")
        assert fake.shown == []


TAKES_NAME = """
import sys, time
from jeepney.bus_messages import message_bus
from jeepney.io.blocking import open_dbus_connection
connection = open_dbus_connection(sys.argv[1])
connection.send_and_get_reply(message_bus.RequestName("org.freedesktop.Notifications"))
print("ready", flush=True)
time.sleep(600)
"""


async def test_a_program_below_the_keeper_that_took_the_name_is_told_nothing(bus: str, tmp_path: Path) -> None:
    """As servers run, by the check that the host uses."""
    argv = [sys.executable, "-c", TAKES_NAME, bus]
    async with open_keeper() as keeper, keeper.open_child(argv, env={}, cwd="/", grace=0.1) as server:
        assert await server.stdout.receive_some() == b"ready\n"
        with pytest.RaisesGroup(
            pytest.RaisesExc(NoDesktop, match="processes that a Colonnade host started"), flatten_subgroups=True
        ):
            async with open_desktop(bus, lambda pid: refusal_reason(examine_process(pid), tmp_path)):
                raise AssertionError("it is told")


async def test_a_page_is_given_to_no_server_that_took_the_name_of_the_portal(bus: str, tmp_path: Path) -> None:
    async with desktop_at(bus) as fake:
        forbidden = False
        async with open_desktop(bus, lambda pid: "it is a server" if forbidden else None) as desktop:
            forbidden = True
            with pytest.raises(NoDesktop, match="may not be told anything: it is a server"):
                await desktop.open_page(tmp_path)
        assert fake.opened == []


async def test_where_no_service_is_there_is_no_desktop(bus: str, tmp_path: Path) -> None:
    for address in (bus, f"unix:path={tmp_path}/none", "tcp:host=localhost", "nonsense", "unix:tmpdir=/tmp"):
        with pytest.RaisesGroup(NoDesktop, flatten_subgroups=True, allow_unwrapped=True):
            async with opened(address):
                raise AssertionError("there is one")


async def test_a_bus_that_is_lost_ends_the_block() -> None:
    with running_bus() as address:
        async with desktop_at(address):
            pass
        with pytest.RaisesGroup(Exception, flatten_subgroups=True, allow_unwrapped=True):
            async with opened(address) as desktop:
                await desktop.close()
