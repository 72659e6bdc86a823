"""Both HTTP clients and both HTTP servers: a test that asks for `client` or `serving` holds for each of them."""

from __future__ import annotations

from functools import partial
from types import ModuleType

import pytest

from host.wire import hypercorn_listener, listener
from tests.host.wire.http_servers import Chosen
from tests.host.wire.sites import Serving, serve_at_port

SERVERS = [pytest.param(listener, id="own"), pytest.param(hypercorn_listener, id="hypercorn", marks=pytest.mark.slow)]


@pytest.fixture(params=["built-in", pytest.param("httpx", marks=pytest.mark.slow)])
def client(request: pytest.FixtureRequest) -> str:
    """The name of the client that the test is about."""
    Chosen.client = request.param
    return Chosen.client


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> ModuleType:
    """The module of a server."""
    module: ModuleType = request.param
    return module


@pytest.fixture
def serving(server: ModuleType) -> Serving:
    return partial(serve_at_port, server.serve_http)
