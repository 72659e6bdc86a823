"""The metrics are for those who may have them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from config import Address, Listen, MetricsSpec, Secret
from host.attempts import Attempt, Reason
from host.telemetry.endpoint import app_of
from tests.kit.asgi import Connection

TOKEN = "scraper-0123456789abcdef"
BEYOND = Listen(metrics=Address("10.0.0.7", 9464), hosts=("gateway.example.com",))


@asynccontextmanager
async def asking(
    listen: Listen | None = None, token: str | None = None
) -> AsyncIterator[tuple[Connection, list[Attempt]]]:
    attempts: list[Attempt] = []
    listen = listen or Listen(metrics=Address("127.0.0.1", 9464))
    spec = MetricsSpec(token=None if token is None else Secret(token))

    async def text(accept: str) -> tuple[bytes, str]:
        return f"a {accept}".encode(), "text/plain"

    app = app_of(listen, spec, text, attempts.append)
    async with trio.open_nursery() as nursery:
        yield Connection(app, nursery), attempts


async def test_on_loopback_everyone_gets_them() -> None:
    async with asking() as (client, attempts):
        answer = await client.get("GET", "/metrics", headers={"accept": "text/plain"})
        assert (answer.status, answer.body) == (200, b"a text/plain")
        assert answer.headers["cache-control"] == "no-store"
        assert (await client.get("HEAD", "/metrics")).status == 200
    assert attempts == []


@pytest.mark.parametrize("request_line", ["GET /", "GET /mcp", "GET /metrics/", "POST /metrics"])
async def test_nothing_else_is_there(request_line: str) -> None:
    async with asking() as (client, _):
        assert (await client.get(*request_line.split())).status == 404


@pytest.mark.parametrize("headers", [{"host": "evil.example"}, {"origin": "https://evil.example"}])
async def test_pages_of_other_sites_do_not(headers: dict[str, str]) -> None:
    async with asking() as (client, attempts):
        assert (await client.get("GET", "/metrics", headers=headers)).status in (403, 421)
    assert [each.reason for each in attempts] == [Reason.HOST if "host" in headers else Reason.ORIGIN]


@pytest.mark.parametrize(
    ("given", "status"), [(None, 401), (f"Bearer {TOKEN}", 200), ("Bearer wrong", 401), (f"Basic {TOKEN}", 401)]
)
async def test_a_token_opens_them_and_is_no_token_of_the_endpoint(given: str | None, status: int) -> None:
    headers = {"host": "gateway.example.com", "authorization": given}
    async with asking(BEYOND, TOKEN) as (client, attempts):
        answer = await client.get("GET", "/metrics", headers=headers)
    assert answer.status == status
    assert len(attempts) == (status == 401)
    if status == 401:
        assert b"metrics.token" in answer.body
        assert answer.headers["www-authenticate"].startswith("Bearer")
