"""Whether a server may be launched: its command must resolve to the program that was approved."""

from __future__ import annotations

import trio

from config import ServerSpec
from host.policy.definitions import Definitions
from host.policy.fingerprint import launch_of
from host.slices import complete

LAUNCH_CHECK_INTERVAL = 5.0
"""Seconds between two checks of the program of a held server."""


async def may_launch(spec: ServerSpec, definitions: Definitions) -> bool:
    """Look up the program of a server. Returns whether it is approved; a server at a URL has none."""
    return await complete(definitions.observe_launch(spec.id, launch_of(spec)))


async def wait_until_launchable(spec: ServerSpec, definitions: Definitions) -> None:
    """Wait until the program of a server is approved, or the approved one is restored."""
    while not await may_launch(spec, definitions):
        with trio.move_on_after(LAUNCH_CHECK_INTERVAL):
            await definitions.wait_until_launchable(spec.id)
