"""Only a host of a fleet imports what a fleet needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from config import Config
from host.fleet.entrance import open_fleet
from host.seal import Seal
from host.storage.store import Revisions


@pytest.mark.slow
def test_a_host_without_a_fleet_imports_nothing_of_it() -> None:
    script = (
        "import sys, host.app\n"
        "known = {'host.fleet', 'host.fleet.entrance'}\n"
        "print(*(each for each in sys.modules if each.startswith(('host.fleet', 'psycopg')) and each not in known))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


async def test_without_a_fleet_there_is_no_member() -> None:
    async with open_fleet(Config(servers={}), Seal(bytes(32)), Revisions) as process:
        assert process is None
