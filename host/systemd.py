"""The protocols between a service and systemd: sockets that are passed on, and notifications of the service's state.

Sources: sd_listen_fds(3), sd_notify(3), sd_watchdog_enabled(3). Only the standard library is imported, as port.py does,
since a passed socket is looked for before the rest of the program is loaded.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import MutableMapping
from contextlib import suppress

FIRST_DESCRIPTOR = 3
"""SD_LISTEN_FDS_START."""


class NotOurs(Exception):
    """A passed descriptor is no socket that can be listened at."""


def take_sockets(environ: MutableMapping[str, str]) -> list[socket.socket]:
    """The listening TCP sockets that systemd has passed to this process; none if it passed none.

    They are taken out of the environment, and no child inherits them.

    Raises:
        NotOurs: one is not a listening TCP socket.
    """
    process, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    environ.pop("LISTEN_FDNAMES", None)
    if process != str(os.getpid()) or not count.isdecimal():
        return []  # left over from a parent, for which they were
    found = []
    for descriptor in range(FIRST_DESCRIPTOR, FIRST_DESCRIPTOR + int(count)):
        try:
            os.set_inheritable(descriptor, False)
            passed = socket.socket(fileno=descriptor)
            is_listening = passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        except OSError as problem:
            raise NotOurs(f"systemd passes the descriptor {descriptor}: {problem.strerror}") from problem
        if passed.family not in (socket.AF_INET, socket.AF_INET6) or not is_listening:
            passed.close()
            raise NotOurs(
                f"systemd passes a socket of another kind ({passed.family.name}); expected ListenStream=IP:PORT"
            )
        found.append(passed)
    return found


class ServiceManager:
    """Notifications to the systemd that has started this process; none are sent where there is none.

    Attributes:
        watchdog: seconds after which systemd takes a service that says nothing for one that hangs; infinite if it does
            not.
    """

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._address = environ.pop("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):  # the abstract namespace of Linux
            self._address = "\0" + self._address[1:]
        limit, process = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", str(os.getpid()))
        is_ours = self._address and process == str(os.getpid()) and limit.isdecimal() and int(limit)
        self.watchdog = int(limit) / 1e6 if is_ours else math.inf

    def ready(self) -> None:
        """Start-up, or a reload, has finished."""
        self._notify("READY=1", "STATUS=serves")

    def reloading(self) -> None:
        """The configuration is being read; `ready` says that it was."""
        self._notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}", "STATUS=reads its file again")

    def stopping(self, limit: float) -> None:
        """The service has begun to end, for which it may need so many seconds, whatever TimeoutStopSec= says."""
        microseconds = math.ceil(limit * 1e6)
        self._notify("STOPPING=1", f"EXTEND_TIMEOUT_USEC={microseconds}", "STATUS=waits for what is under way")

    def alive(self) -> None:
        """Keep the watchdog from its bite for `watchdog` seconds more."""
        self._notify("WATCHDOG=1")

    def _notify(self, *assignments: str) -> None:
        if not self._address:
            return
        # A manager that is gone, or has no room for the message, is no reason to stop serving.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sending:
            sending.setblocking(False)
            sending.sendto("\n".join(assignments).encode(), self._address)
