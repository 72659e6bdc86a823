"""The look of a call whether another process has decided something meanwhile, over both kinds of store."""

from __future__ import annotations

import tempfile
from pathlib import Path
from timeit import timeit

from tests.bench.figures import Figure
from tests.kit.postgres import own_server, programs
from tests.kit.stores import FleetStores, SqliteStores

LOOKS = 20_000
MOST = 1.0


def looks(count: int) -> list[Figure]:
    """The time of a look at the store of a fleet, in looks at that of SQLite; none without PostgreSQL."""
    if programs() is None:
        return []
    with tempfile.TemporaryDirectory(prefix="colonnade-looks-") as folder, own_server() as server:
        with (
            server.database() as database,
            FleetStores(server, database).opened() as shared,
            SqliteStores(Path(folder)).opened() as alone,
        ):

            def ratio() -> float:
                return timeit(shared.poll, number=LOOKS) / timeit(alone.poll, number=LOOKS)

            values = [ratio() for _ in range(count)]
    return [Figure("a look at what other processes decided, PostgreSQL", "looks of SQLite", MOST, values)]
