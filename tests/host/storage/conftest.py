"""The stores that the tests of their common interface run over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.folders import folder
from tests.kit.postgres import PostgresServer, needs_postgres
from tests.kit.stores import FleetStores, SqliteStores, Stores


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=[pytest.mark.slow, needs_postgres])])
def stores(request: pytest.FixtureRequest) -> Iterator[Stores]:
    if request.param == "sqlite":
        with folder() as made:
            yield SqliteStores(made / "state")
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    with server.database() as name:
        yield FleetStores(server, name)
