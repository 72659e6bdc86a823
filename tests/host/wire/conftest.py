"""Both HTTP servers: a test that asks for `serving` holds for each of them."""

from __future__ import annotations

from functools import partial
from types import ModuleType

import pytest

from host.wire import hypercorn_listener, listener

from .sites import Serving, serve_at_port

SERVERS = [pytest.param(listener, id="own"), pytest.param(hypercorn_listener, id="hypercorn", marks=pytest.mark.slow)]


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> ModuleType:
    """The module of a server."""
    module: ModuleType = request.param
    return module


@pytest.fixture
def serving(server: ModuleType) -> Serving:
    return partial(serve_at_port, server.serve_http)
