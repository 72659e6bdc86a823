"""A fleet with a database and certificates, for tests of what joins it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct

from config import Address, Fleet, Inner
from tests.kit.certificates import Authority
from tests.kit.ports import free_port
from tests.kit.postgres import PostgresServer


class StoredFleet(Struct):
    """Its database, and an authority with the certificate of all members."""

    server: PostgresServer
    database: str
    authority: Authority
    files: tuple[Path, Path]

    def of_process(self) -> Fleet:
        """The section of one process, with addresses of its own."""
        fleet = self.server.fleet(self.database)
        address = Address("127.0.0.1", free_port())
        return Fleet(fleet.name, fleet.store, fleet.keys, Inner(address, address, *self.files, self.authority.ca))


@pytest.fixture
def stored_fleet(postgres: PostgresServer, tmp_path: Path) -> Iterator[StoredFleet]:
    authority = Authority(tmp_path / "fleet")
    with postgres.database() as database:
        yield StoredFleet(postgres, database, authority, authority.sign("member", "acme.internal"))
