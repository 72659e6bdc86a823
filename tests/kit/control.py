"""A `HostControl` that notes what is asked of it."""

from __future__ import annotations

from collections.abc import Callable

from config import Config, Listen
from host.journal import ConfigReloaded
from host.policy.rows import ChangeRow
from tests.kit.gates import SOURCE
from tests.kit.world import World


class FakeControl:
    """Nothing is done. `accepts`: whether the configuration file can be taken over; `complete`: with all that belongs
    to it."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.waiting_changes: list[ChangeRow] = []
        self.file_problem = ""
        self.accepts = self.complete = True
        self.done: list[object] = []
        self._readers: list[tuple[Callable[[], None], Callable[[], None]]] = []

    def subscribe(self, on_waiting_changes: Callable[[], None], on_file_problem: Callable[[], None]) -> None:
        self._readers.append((on_waiting_changes, on_file_problem))

    def set_waiting_changes(self, changes: list[ChangeRow]) -> None:
        self.waiting_changes = changes
        for on_waiting_changes, _ in self._readers:
            on_waiting_changes()

    def set_file_problem(self, problem: str) -> None:
        self.file_problem = problem
        for _, on_file_problem in self._readers:
            on_file_problem()

    def restart(self, server: str) -> None:
        self.done.append(("restart", server))

    def set_disabled(self, server: str, *, disabled: bool) -> None:
        self.done.append(("set_disabled", server, disabled))

    async def reload(self, *, shown: str | None) -> ConfigReloaded:
        self.done.append(("reload", shown))
        changes = "gh restarts" if self.accepts else "line 1: no"
        return ConfigReloaded(changes, accepted=self.accepts, complete=self.complete)

    async def settle(self) -> None:
        self.done.append("settle")

    async def compare(self) -> ConfigReloaded | None:
        self.done.append("compare")
        return None if self.accepts else ConfigReloaded("line 1: no", accepted=False)


def control_of(world: World) -> FakeControl:
    """The control of a host with the servers of the world."""
    servers = {id: server.spec for id, server in world.servers.items()}
    return FakeControl(Config(source=SOURCE, listen=Listen(), start_grace=3.0, servers=servers))
