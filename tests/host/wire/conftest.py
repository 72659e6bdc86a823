"""The fixture that runs a test over both HTTP clients."""

from __future__ import annotations

import pytest

from tests.host.wire.http_servers import Chosen


@pytest.fixture(params=["builtin", "httpx"])
def client(request: pytest.FixtureRequest) -> str:
    """The name of the client that the test is about."""
    Chosen.client = request.param
    return Chosen.client
