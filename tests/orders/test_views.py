"""Three callers with different views on one endpoint, two servers whose lists change, and edits of the file, over every
endpoint, era and transport: a second judge (view_judge.py) says of each request what it must give. Nobody ever sees,
completes, subscribes to or calls what its view does not have, and list_changed comes exactly where the own list
changed. `make views` does it over sockets, with 200 calls a second."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
from trio.testing import MockClock

from host.addresses import addresses_of
from host.live_config import LiveConfig
from tests.kit.asgi import open_http_app
from tests.orders.view_clients import FORMS
from tests.orders.view_judge import SERVERS, TOKENS
from tests.orders.view_run import PLACES, Run, Server, save_random_file

RUNS = int(os.environ.get("COLONNADE_VIEW_RUNS", "2"))
"""Random files; `make views` takes more."""
EDITS = int(os.environ.get("COLONNADE_VIEW_EDITS", "6"))
"""Changes of the file, and as many of the lists, in one run."""
CLIENTS = int(os.environ.get("COLONNADE_VIEW_CLIENTS", "1"))
"""Clients of each token at each place, all of other transports."""


@asynccontextmanager
async def opened(file: Path, order: Random) -> AsyncIterator[Run]:
    servers = {id: Server(id, order) for id in SERVERS}
    specs = {id: {"command": ["/bin/true"], "trust": "trusted"} for id in SERVERS}
    spec, config = save_random_file(file, order, specs)
    for id, server in servers.items():
        server.spec = config.servers[id]  # type: ignore[assignment]
    app = open_http_app(
        *servers.values(),
        listen=config.listen,
        views=config.views,
        callers=config.callers,
        default_view=config.default_view,
    )
    async with app as (world, connection):
        live = LiveConfig(config, world.runtime, world.upstreams, world.memory)
        live.follow(lambda config: connection.change_access(config.listen, addresses_of(config)))

        async def reload() -> str:
            outcome = await live.reload()
            return str(outcome) if outcome.failed else ""

        clients = [
            form(connection, token, place)
            for token in TOKENS
            for place in PLACES
            for form in order.sample(FORMS, CLIENTS)
        ]
        run = Run(file, spec, servers, clients, order, reload)
        await run.settle()
        yield run


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(RUNS))
async def test_nobody_gets_what_its_view_does_not_have(seed: int, tmp_path: Path, autojump_clock: MockClock) -> None:
    async with opened(tmp_path / "colonnade.yaml", Random(seed)) as run:
        for _ in range(EDITS):
            await run.edit()
            await run.change_lists()
    print(dict(run.seen))
