"""The endpoint for clients over HTTP, in the process of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.kit.asgi import Connection, open_http_app


@pytest.fixture
async def connection() -> AsyncIterator[Connection]:
    """A client of an endpoint with one server, `a`, that has one tool, `x`."""
    async with open_http_app() as (_, opened):
        yield opened
