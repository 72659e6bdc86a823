"""The desktop of the user, over the session bus (D-Bus): a notification, and a page in the default browser.

Any process of the user can take a name on the bus, a server too. So the process behind a name is looked at before it
is told anything, and signals count only from that process.
"""

from __future__ import annotations

import html
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from jeepney import DBusAddress, DBusErrorResponse, HeaderFields, MatchRule, new_method_call
from jeepney.bus_messages import message_bus
from jeepney.io.trio import DBusRouter, open_dbus_connection
from jeepney.low_level import Message
from jeepney.wrappers import unwrap_msg

TIMEOUT = 5.0
"""Seconds for each answer of the bus, or of a service on it."""
_NOTIFICATIONS = DBusAddress(
    "/org/freedesktop/Notifications", "org.freedesktop.Notifications", "org.freedesktop.Notifications"
)
_PORTAL = DBusAddress(
    "/org/freedesktop/portal/desktop", "org.freedesktop.portal.Desktop", "org.freedesktop.portal.OpenURI"
)


class NoDesktop(Exception):
    """There is no notification service that may be told, or it does not answer."""


@asynccontextmanager
async def open_desktop(address: str, why_not: Callable[[int], str | None]) -> AsyncIterator[Desktop]:
    """The notification service at a session bus, for the block.

    Args:
        why_not: why a process, given by its id, may not be told anything; None if it may.

    Raises:
        NoDesktop: there is none, also in a group.
        ExceptionGroup: the bus is lost during the block.
    """
    try:
        with trio.fail_after(TIMEOUT):
            connection = await open_dbus_connection(address, enable_fds=True)
    except (OSError, ValueError, RuntimeError, LookupError, trio.TooSlowError, trio.BrokenResourceError) as problem:
        raise NoDesktop("the session bus cannot be reached") from problem
    async with connection, connection.router() as router:
        yield await Desktop.find(_Bus(router, why_not))


class _Bus:
    def __init__(self, router: DBusRouter, why_not: Callable[[int], str | None]) -> None:
        self.router = router
        self._why_not = why_not

    async def call(self, message: Message) -> tuple[Any, ...]:
        """The body of the answer. Raises NoDesktop."""
        try:
            with trio.fail_after(TIMEOUT):
                body: tuple[Any, ...] = unwrap_msg(await self.router.send_and_get_reply(message))
        except trio.TooSlowError:
            raise NoDesktop(f"the desktop did not answer within {TIMEOUT:.0f} s") from None
        except DBusErrorResponse as problem:
            raise NoDesktop(f"the desktop refused: {problem.name}") from None
        return body

    async def owner(self, name: str) -> str:
        """The unique name of the connection behind a name, which is started if it can be. Raises NoDesktop."""
        (has_owner,) = await self.call(message_bus.NameHasOwner(name))
        if not has_owner:
            await self.call(message_bus.StartServiceByName(name))
        (owner,) = await self.call(message_bus.GetNameOwner(name))
        (pid,) = await self.call(message_bus.GetConnectionUnixProcessID(owner))
        if why := self._why_not(pid):
            raise NoDesktop(f"{name} belongs to a process that may not be told anything: {why}")
        return str(owner)

    async def has(self, name: str) -> bool:
        """Whether a name has an owner, or can be started."""
        (has_owner,) = await self.call(message_bus.NameHasOwner(name))
        (startable,) = await self.call(message_bus.ListActivatableNames())
        return has_owner or name in startable


class Desktop:
    """One notification, which is replaced when it is shown again."""

    def __init__(self, bus: _Bus, signals: trio.MemoryReceiveChannel[Message], abilities: list[str]) -> None:
        self._bus = bus
        self._signals = signals
        self._has_markup = "body-markup" in abilities
        self._has_actions = "actions" in abilities
        self._id = 0
        """That of the notification; 0 while none is shown."""
        self._showing = trio.Lock()

    @classmethod
    async def find(cls, bus: _Bus) -> Desktop:
        """The desktop at a bus. Raises NoDesktop."""
        rule = MatchRule(
            type="signal",
            sender=await bus.owner(str(_NOTIFICATIONS.bus_name)),
            interface=_NOTIFICATIONS.interface,
            path=_NOTIFICATIONS.object_path,
        )
        send, signals = trio.open_memory_channel[Message](16)
        # Never closed: a filter that closes while the bus is lost breaks the router's own loop over its filters.
        bus.router.filter(rule, channel=send)
        await bus.call(message_bus.AddMatch(rule))
        (abilities,) = await bus.call(new_method_call(_NOTIFICATIONS, "GetCapabilities"))
        has_portal = await bus.has(str(_PORTAL.bus_name))
        return cls(bus, signals, [each for each in abilities if has_portal or each != "actions"])

    @property
    def is_shown(self) -> bool:
        return self._id != 0

    async def show(self, title: str, text: str, *, has_page: bool) -> None:
        """Show the notification. `has_page`: pressing it leads to a page. Raises NoDesktop."""
        body = html.escape(text, quote=False) if self._has_markup else text
        actions = ["default", "Answer"] if has_page and self._has_actions else []
        async with self._showing:
            values = ("Colonnade", self._id, "dialog-question", title, body, actions, {"urgency": ("y", 1)}, 0)
            (self._id,) = await self._bus.call(new_method_call(_NOTIFICATIONS, "Notify", "susssasa{sv}i", values))

    async def close(self) -> None:
        """Take the notification away. Raises NoDesktop."""
        if self._id:
            id, self._id = self._id, 0
            await self._bus.call(new_method_call(_NOTIFICATIONS, "CloseNotification", "u", (id,)))

    async def presses(self) -> AsyncIterator[None]:
        """Each press of the notification, until cancelled."""
        async for signal in self._signals:
            async with self._showing:  # a press may come together with the answer that says the id
                is_of_ours = bool(signal.body) and signal.body[0] == self._id
            member = signal.header.fields.get(HeaderFields.member)
            if is_of_ours and member == "NotificationClosed":
                self._id = 0
            elif is_of_ours and member == "ActionInvoked":
                yield

    async def open_page(self, path: Path) -> None:
        """Have the default browser open this file. The file goes along open, so that no name of it, nor what is in it,
        stands on a command line but the browser's own. Raises NoDesktop, or OSError."""
        await self._bus.owner(str(_PORTAL.bus_name))
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            await self._bus.call(new_method_call(_PORTAL, "OpenFile", "sha{sv}", ("", descriptor, {})))
        finally:
            os.close(descriptor)
