"""What the attacks on boundaries share: their hosts, the good client beside them, and what was found."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from .figures import Calls, Outcome
from .phases import Scale
from .processes import GoodClient, Host

CALLS, RATE = 100, 100.0


class Boundary:
    """One attack on a boundary: the host, what was found, and the good client beside it."""

    def __init__(self, name: str, scale: Scale, stack: ExitStack) -> None:
        self.name = name
        self.crossed: list[str] = []
        self.broken: list[str] = []
        self.remarks: list[str] = []
        self._scale = scale
        self._stack = stack
        self._hosts: list[Host] = []

    def host(self, host: Host) -> Host:
        host.start()
        self._stack.callback(host.kill)
        self._hosts.append(host)
        return host

    @contextmanager
    def good_calls(self, url: str, *options: str) -> Iterator[list[Calls]]:
        """The good client makes its calls for the block; they are in the list after it."""
        client = GoodClient(url, "good__echo", *options)
        self._stack.callback(client.close)
        calls: list[Calls] = []
        calling = threading.Thread(
            target=lambda: calls.append(client.phase(CALLS, RATE, CALLS / RATE * 2, self._scale.timeout))
        )
        calling.start()
        try:
            yield calls
        finally:
            calling.join()

    def outcome(self, calls: Sequence[Calls]) -> Outcome:
        """Everything that was found. All hosts must be there still, and end in order."""
        exits = []
        for host in self._hosts:
            status = host.running.process.poll()
            exits += [f"a host has ended with status {status}"] if status is not None else []
            if status is None and (status := host.stop()) != 0:
                exits.append(f"SIGTERM ended a host with status {status}")
        return Outcome(
            self.name,
            CALLS,
            beside=calls[0] if calls else Calls([], ["no call was made"]),
            exits=exits,
            tracebacks=sum(host.tracebacks() for host in self._hosts),
            crossed=self.crossed,
            broken=self.broken,
            remarks=self.remarks,
        )
