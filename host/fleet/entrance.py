"""The way into a fleet: most hosts are in none, and import nothing of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from config import Config
from host.seal import Seal
from host.storage.store import Revisions

if TYPE_CHECKING:
    from host.fleet.process import FleetProcess


@asynccontextmanager
async def open_fleet(
    config: Config, seal: Seal, revisions: Callable[[], Revisions]
) -> AsyncIterator[FleetProcess | None]:
    """Be a member of the fleet of the configuration for the block; None if its file has none whose processes reach each
    other.

    Args:
        revisions: the decisions that this process has taken over.

    Raises:
        StateError: this process cannot join.
    """
    if config.fleet is None or config.fleet.inner is None:
        yield None
        return
    from host.fleet.process import open_process

    async with open_process(config, config.fleet, config.fleet.inner, seal, revisions) as process:
        yield process
