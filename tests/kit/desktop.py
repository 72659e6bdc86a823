"""A session bus of its own, and a small desktop on it: a notification service, and the portal that opens files."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import trio
from jeepney import DBusAddress, HeaderFields, MessageType, new_error, new_method_return, new_signal
from jeepney.bus_messages import message_bus
from jeepney.io.trio import DBusConnection, open_dbus_connection

NEEDS_DBUS = pytest.mark.skipif(shutil.which("dbus-run-session") is None, reason="needs dbus-run-session (dbus)")
_PATH = DBusAddress("/org/freedesktop/Notifications", interface="org.freedesktop.Notifications")
_NAMES = ["org.freedesktop.Notifications", "org.freedesktop.portal.Desktop"]


@contextmanager
def running_bus() -> Iterator[str]:
    """The address of a session bus that runs for the block."""
    with subprocess.Popen(
        ["dbus-run-session", "--", "sh", "-c", "echo $DBUS_SESSION_BUS_ADDRESS; exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdout.readline().decode().strip()
        process.stdin.close()


class FakeDesktop:
    """A desktop that notes what was shown, closed and opened."""

    def __init__(self, connection: DBusConnection, abilities: list[str]) -> None:
        self._connection = connection
        self._abilities = abilities
        self.shown: list[tuple[int, str, str, list[str]]] = []
        """Notifications, each with its id, title, text and actions."""
        self.closed: list[int] = []
        self.opened: list[str] = []
        """The content of the files that a browser was to open."""
        self.refuses_pages = False
        self._changed = trio.Event()

    async def serve(self) -> None:
        while True:
            message = await self._connection.receive()
            if message.header.message_type is not MessageType.method_call:
                continue
            member = message.header.fields[HeaderFields.member]
            if member == "GetCapabilities":
                answer = new_method_return(message, "as", (self._abilities,))
            elif member == "Notify":
                _, replaced, _, title, text, actions, _, _ = message.body
                self.shown.append((replaced or len(self.shown) + 1, title, text, actions))
                answer = new_method_return(message, "u", (self.shown[-1][0],))
            elif member == "CloseNotification":
                self.closed.append(message.body[0])
                answer = new_method_return(message)
            elif self.refuses_pages:
                message.body[1].close()
                answer = new_error(message, "org.freedesktop.portal.Error.NotAllowed")
            else:
                self._open(message.body)
                answer = new_method_return(message, "o", ("/request",))
            await self._connection.send(answer)
            self._changed.set()
            self._changed = trio.Event()

    def _open(self, body: Any) -> None:
        parent, file, _ = body
        assert parent == ""
        with file.to_file("r") as opened:
            status = os.fstat(opened.fileno())
            assert (status.st_mode & 0o777, status.st_uid) == (0o600, os.geteuid())
            self.opened.append(opened.read())

    async def until(self, what: str, count: int) -> None:
        """Wait until so many were `shown`, `closed` or `opened`."""
        with trio.fail_after(20):
            while len(getattr(self, what)) < count:
                await self._changed.wait()

    async def press(self, id: int) -> None:
        await self._connection.send(new_signal(_PATH, "ActionInvoked", "us", (id, "default")))

    async def dismiss(self, id: int) -> None:
        await self._connection.send(new_signal(_PATH, "NotificationClosed", "uu", (id, 2)))


@asynccontextmanager
async def desktop_at(
    address: str, abilities: tuple[str, ...] = ("actions", "body-markup"), *, has_portal: bool = True
) -> AsyncIterator[FakeDesktop]:
    """The desktop at a bus, for the block."""
    connection = await open_dbus_connection(address, enable_fds=True)
    async with connection:
        async with connection.router() as router:
            for name in _NAMES if has_portal else _NAMES[:1]:
                await router.send_and_get_reply(message_bus.RequestName(name))
        desktop = FakeDesktop(connection, list(abilities))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(desktop.serve)
            yield desktop
            nursery.cancel_scope.cancel()
