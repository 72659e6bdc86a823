"""A login that begins at a client: the official SDK's client is shown a page in the middle of its call, a person logs
in there, and the call goes on. The issuer is oidc-provider, the server one of the official SDK."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp.client.stdio import StdioServerParameters
from mcp.types import ElicitRequestParams, ElicitRequestURLParams, ElicitResult, TextContent

from host.audit.read import records
from tests.real.oauth.browser import Browser
from tests.real.oauth.fixtures import Provider, protected_server, running_provider

from .clients import PATIENCE, SDK_LEAKS, over_stdio
from .running import serving, until, write_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), SDK_LEAKS]  # npm may have to install the issuer

MODES = ("legacy", "auto")
"""A client that begins with a handshake, and one that speaks 2026-07-28 to Colonnade."""


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with running_provider() as provider:
        yield provider


@pytest.fixture(scope="module")
def protected(provider: Provider) -> Iterator[str]:
    with protected_server(provider.issuer, "notes") as url:
        yield url


@pytest.fixture
def file(protected: str, tmp_path: Path) -> Path:
    """A configuration with the protected server, which may send people to pages."""
    return write_config(tmp_path, {"notes": {"url": protected, "consent": {"elicitation": {"url": "allow"}}}})


class Person:
    """A person at the client, with a browser, who logs in or declines."""

    def __init__(self, *, logs_in: bool = True) -> None:
        self.shown: list[str] = []
        self._logs_in = logs_in

    def at(self, server: str | StdioServerParameters, mode: str) -> Client:
        return Client(server, mode=mode, cache=None, read_timeout_seconds=PATIENCE, elicitation_callback=self.answer)

    async def answer(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        assert isinstance(params, ElicitRequestURLParams)
        assert params.message == "notes needs a login. This page shows at which issuer, and leads there."
        self.shown.append(params.url)
        if not self._logs_in:
            return ElicitResult(action="decline")
        trio.lowlevel.spawn_system_task(trio.to_thread.run_sync, partial(self._log_in, params.url))
        return ElicitResult(action="accept")

    def _log_in(self, url: str) -> None:
        last = Browser().go_on(url)
        assert (last.status, "You are logged in." in last.text) == (200, True), last


async def said(client: Client, text: str) -> str:
    result = await client.call_tool("notes__note", {"text": text})
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


@pytest.mark.parametrize("mode", MODES)
async def test_a_call_goes_on_after_the_login(mode: str, file: Path, provider: Provider) -> None:
    with serving(file) as host:
        until(lambda: host.status()["notes"]["state"] == "needs login", "the server needs a login")
        person = Person()
        async with person.at(host.url, mode) as client:
            assert await said(client, "hello") == "noted: hello"
            assert len(person.shown) == 1
            assert await said(client, "again") == "noted: again"
            assert len(person.shown) == 1
        assert not host.state_lines("notes", "failed")
    audit = file.parent / "state" / "audit"
    (offer,), (login,) = list(records(audit, kind="login_offer")), list(records(audit, kind="login"))
    assert offer["server"] == "notes"
    assert (login["issuer"], login["scopes"], login["by"]) == (provider.issuer, ["notes"], "client")


@pytest.mark.parametrize(("end", "mode"), [("it expires", "legacy"), ("it is revoked", "auto")])
async def test_the_call_that_loses_the_login_goes_on_after_another_one(
    end: str, mode: str, file: Path, provider: Provider
) -> None:
    """The first call after the end: without a refresh token, or with one that is refused."""
    person = Person()
    expires = end == "it expires"
    provider.set(lifetime=12 if expires else 3600, refresh=not expires)
    try:
        with serving(file) as host:
            async with person.at(host.url, mode) as client:
                assert await said(client, "first") == "noted: first"
                provider.set(lifetime=3600, revoke_all=not expires)
                if expires:
                    await trio.sleep(14)  # by the clock of the issuer
                assert host.status()["notes"]["state"] == "ready", "nobody has noticed"
                assert await said(client, "second") == "noted: second"
                assert len(person.shown) == 2
            assert not host.state_lines("notes", "failed")
    finally:
        provider.set(lifetime=3600, refresh=True)


async def test_a_call_over_stdio_goes_on_after_the_login(file: Path) -> None:
    person = Person()
    async with person.at(over_stdio(file), "legacy") as client:
        assert await said(client, "hello") == "noted: hello"
        assert len(person.shown) == 1


@pytest.mark.parametrize("mode", MODES)
async def test_a_declined_login_ends_the_call(mode: str, file: Path, provider: Provider) -> None:
    before = len(provider.events())
    with serving(file) as host:
        until(lambda: host.status()["notes"]["state"] == "needs login", "the server needs a login")
        person = Person(logs_in=False)
        async with person.at(host.url, mode) as client:
            declined = "notes needs a login, which was declined; it can be done later: colonnade login notes"
            assert await said(client, "hello") == declined
            for _ in range(5):
                assert "colonnade login notes" in await said(client, "again")
            assert len(person.shown) == 1, "nobody is asked again at once"
        assert len(provider.events()) == before, "nothing was sent to the issuer"


async def test_many_clients_are_one_login(file: Path, provider: Provider) -> None:
    before = provider.count(grant="authorization_code")
    with serving(file) as host:
        until(lambda: host.status()["notes"]["state"] == "needs login", "the server needs a login")
        people = [Person() if number == 0 else Onlooker() for number in range(4)]
        results: list[str] = []

        async def calls(person: Person, mode: str) -> None:
            async with person.at(host.url, mode) as client, trio.open_nursery() as nursery:
                for number in range(5):
                    nursery.start_soon(call, client, f"{number}")

        async def call(client: Client, text: str) -> None:
            results.append(await said(client, text))

        async with trio.open_nursery() as nursery:
            for number, person in enumerate(people):
                nursery.start_soon(calls, person, MODES[number % 2])
        assert sorted(results) == sorted(f"noted: {number}" for number in range(5) for _ in people)
        assert len({url for person in people for url in person.shown}) == 1
        assert provider.count(grant="authorization_code") - before == 1


class Onlooker(Person):
    """Somebody who is shown the page and leaves it to the other one."""

    def _log_in(self, url: str) -> None:
        return
