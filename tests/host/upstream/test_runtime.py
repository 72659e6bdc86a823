"""What is shared in one host stays what it is for as long as the host runs."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from host.journal import Journal
from tests.kit.world import open_world


async def test_nobody_gives_a_running_host_another_part() -> None:
    async with open_world() as world:
        with pytest.raises(FrozenInstanceError):
            world.runtime.journal = Journal()  # type: ignore[misc]  # the point of the test


async def test_two_hosts_do_not_share_the_log_levels_of_their_callers() -> None:
    async with open_world() as one, open_world() as other:
        assert one.runtime.log_levels is not other.runtime.log_levels
