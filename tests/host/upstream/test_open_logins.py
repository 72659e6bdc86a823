"""Logins at a running host: one for each server, begun by a person, and over by themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from config import HttpServer, OAuth
from config.references import Secret
from host.errors import AuditUnavailable
from host.journal import Event, InternalError, LoggedIn, LoginFailed
from host.oauth.problem import OAuthProblem
from host.upstream import open_logins as module
from host.upstream.login import TIME_LIMIT, ProposedLogin
from host.upstream.open_logins import BEGUN_WINDOW, MAX_BEGUN, OFFER_PAUSE, OpenLogin, OpenLogins, open_logins
from host.upstream.vault import Login
from tests.host.upstream.test_callback import Page, Seen
from tests.kit.issuer import ISSUER_METADATA, RESOURCE_METADATA, Issuer, open_issuer
from tests.kit.logins import NOTES, VAULT, Process, login, present, processes

NOWHERE = Issuer("http://127.0.0.1:9")
"""A server that nothing is to be sent to."""


class Desk:
    """The open logins of a host, with what they report."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.logins: OpenLogins
        self.events: list[Event] = []
        self.recorded: list[tuple[str, str, str]] = []
        self.problem: Exception | None = None

    def record(self, made: Login, server: str, by: str) -> None:
        if self.problem is not None:
            raise self.problem
        self.recorded.append((server, made.issuer, by))

    def failures(self) -> list[str]:
        return [event.why for event in self.events if isinstance(event, LoginFailed)]


@asynccontextmanager
async def opened(*, stored: Login | None = None, may_offer: bool = True) -> AsyncIterator[Desk]:
    async with processes(stored=stored) as (process,):
        desk = Desk(process)
        async with open_logins(
            process.store,
            VAULT,
            process.credentials,
            desk.record,
            desk.events.append,
            may_offer=may_offer,
        ) as desk.logins:
            yield desk


class Person:
    """A person with a browser."""

    def __init__(self, login: OpenLogin) -> None:
        self._page = Page(login.callback, [])
        self._callback = login.callback
        self.cookie = ""

    async def look(self) -> Seen:
        return await self._page.get(self._callback.login_url.removeprefix(self._callback.origin))

    async def start(self) -> dict[str, str]:
        """Follow the link; the parameters of the issuer's page."""
        seen = await self._page.get(self._callback.start_url.removeprefix(self._callback.origin))
        assert seen.status == 303, seen
        self.cookie = seen.headers["set-cookie"].partition(";")[0]
        return {name: texts[0] for name, texts in parse_qs(urlsplit(seen.headers["location"]).query).items()}

    async def come_back(self, **answer: str) -> Seen:
        return await self._page.get(f"/oauth/callback?{urlencode(answer)}", cookie=self.cookie)

    async def log_in(self) -> Seen:
        asked = await self.start()
        return await self.come_back(code="c0de", state=asked["state"])


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with opened() as made:
        yield made


async def test_a_whole_login(desk: Desk, issuer: Issuer) -> None:
    issuer.tokens = [{"access_token": "t0ken", "refresh_token": "r", "expires_in": 600}]
    credential = desk.process.of(issuer)
    begun, proposed = await desk.logins.connect(issuer.spec, "console")
    assert isinstance(proposed, ProposedLogin)
    assert (proposed.issuer.id, proposed.resource) == (issuer.id, issuer.url)
    assert not issuer.paths("/register"), "nothing leaves before the person goes on"
    person = Person(begun)
    seen = await person.log_in()
    assert (seen.status, "You are logged in." in seen.text) == (200, True)
    await begun.ended.wait()
    stored = present(desk.process.store)
    assert stored is not None
    assert stored.access_token == "t0ken"
    assert credential.login_id == stored.id, "the host uses it at once"
    assert desk.recorded == [("notes", issuer.id, "console")]
    assert desk.events == [LoggedIn("notes", issuer.id, "console")]
    assert desk.logins.why_failed("notes") == ""
    with pytest.raises(OSError, match=r"127\.0\.0\.1"):
        await person.look()


async def test_a_link_that_is_only_shown_begins_nothing(desk: Desk, issuer: Issuer) -> None:
    issuer.tokens = [{"access_token": "t0ken"}]
    begun = await desk.logins.offer(issuer.spec, "client")
    await wait_all_tasks_blocked()
    assert issuer.asked == []
    person = Person(begun)
    assert (await person._page.get(begun.callback.start_url.removeprefix(begun.callback.origin))).status == 400
    assert issuer.asked == [], "nobody was shown what the login is for"


async def test_the_page_of_a_link_shows_what_it_is_for(issuer: Issuer) -> None:
    former = login(NOWHERE, issuer="https://former.example")
    async with opened(stored=former) as desk:
        issuer.tokens = [{"access_token": "t0ken"}]
        begun = await desk.logins.offer(issuer.spec, "client")
        person = Person(begun)
        seen = await person.look()
        for shown in ("notes", issuer.id, issuer.url, "http://127.0.0.1:", "https://former.example"):
            assert shown in seen.text
        assert not issuer.paths("/register")
        assert "You are logged in." in (await person.log_in()).text
        await begun.ended.wait()
        assert desk.recorded == [("notes", issuer.id, "client")]


async def test_there_is_one_login_for_each_server(desk: Desk, issuer: Issuer) -> None:
    first = await desk.logins.offer(issuer.spec, "client")
    for _ in range(3):
        assert await desk.logins.offer(issuer.spec, "client") is first
    again, _ = await desk.logins.connect(issuer.spec, "console")
    assert (again, again.by) == (first, "console")
    other = await desk.logins.offer(replace(issuer.spec, id="other"), "client")
    assert other.callback.origin != first.callback.origin


async def test_a_person_can_begin_anew_where_a_browser_was_lost(desk: Desk, issuer: Issuer) -> None:
    first, _ = await desk.logins.connect(issuer.spec, "console")
    await Person(first).start()
    assert await desk.logins.offer(issuer.spec, "client") is first
    second, _ = await desk.logins.connect(issuer.spec, "console")
    assert first.ended.is_set()
    assert desk.failures() == ["another login was begun"]
    assert second is not first
    issuer.tokens = [{"access_token": "t0ken"}]
    assert (await Person(second).log_in()).status == 200


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"error": "access_denied"}, "the login was denied"),
        ({"error": "access_denied", "error_description": "no"}, 'the login was denied; the issuer says: "no"'),
        ({"code": "c0de"}, "the issuer refused the request (invalid_grant)"),
    ],
)
async def test_a_login_that_fails_says_why_and_ends(
    desk: Desk, issuer: Issuer, answer: dict[str, str], why: str
) -> None:
    begun, _ = await desk.logins.connect(issuer.spec, "console")
    person = Person(begun)
    asked = await person.start()
    seen = await person.come_back(state=asked["state"], **answer)
    assert f"The login failed: {why}" in seen.text
    await begun.ended.wait()
    (failed,) = desk.failures()
    assert failed.startswith(why)
    assert desk.logins.why_failed("notes") == failed
    assert (present(desk.process.store), desk.recorded) == (None, [])
    await desk.logins.connect(issuer.spec, "console")
    assert desk.logins.why_failed("notes") == "", "another one is open"


async def test_a_login_that_cannot_be_recorded_is_not_stored(desk: Desk, issuer: Issuer) -> None:
    issuer.tokens = [{"access_token": "t0ken"}]
    desk.problem = AuditUnavailable("the disk is full")
    begun, _ = await desk.logins.connect(issuer.spec, "console")
    assert "The login failed: the disk is full" in (await Person(begun).log_in()).text
    await begun.ended.wait()
    assert present(desk.process.store) is None


async def test_a_mistake_of_ours_ends_the_login_only(desk: Desk, issuer: Issuer) -> None:
    issuer.tokens = [{"access_token": "t0ken"}]
    desk.problem = ZeroDivisionError()
    begun, _ = await desk.logins.connect(issuer.spec, "console")
    assert "The login failed. " in (await Person(begun).log_in()).text
    await begun.ended.wait()
    assert [type(event) for event in desk.events] == [InternalError, LoginFailed]
    assert desk.failures() == ["an internal error"]


@pytest.mark.parametrize("by_page", [False, True])
async def test_a_login_that_cannot_begin_ends(desk: Desk, issuer: Issuer, by_page: bool) -> None:
    issuer.documents[ISSUER_METADATA]["code_challenge_methods_supported"] = ["plain"]
    if by_page:
        begun = await desk.logins.offer(issuer.spec, "client")
        assert "There can be no login: " in (await Person(begun).look()).text
        await begun.ended.wait()
    else:
        with pytest.raises(OAuthProblem, match="PKCE"):
            await desk.logins.connect(issuer.spec, "console")
    await wait_all_tasks_blocked()
    (why,) = desk.failures()
    assert "PKCE" in why
    del issuer.documents[ISSUER_METADATA]["code_challenge_methods_supported"]
    issuer.documents[ISSUER_METADATA]["code_challenge_methods_supported"] = ["S256"]
    await desk.logins.connect(issuer.spec, "console")


async def test_a_registration_that_fails_is_told_in_the_browser(desk: Desk, issuer: Issuer) -> None:
    issuer.documents["/register"] = (403, {}, b"this client_name is not allowed")
    begun, _ = await desk.logins.connect(issuer.spec, "console")
    page = Page(begun.callback, [])
    seen = await page.get(begun.callback.start_url.removeprefix(begun.callback.origin))
    assert (seen.status, "refused to register Colonnade" in seen.text) == (400, True)
    await begun.ended.wait()
    (why,) = desk.failures()
    assert why.endswith('(HTTP 403); the issuer says: "this client_name is not allowed"')
    assert f"{why}." in seen.text


async def test_a_port_that_is_taken_is_told() -> None:
    async with opened() as desk, open_issuer() as other:
        port = int(other.id.rpartition(":")[2])
        spec = HttpServer(id="notes", url=Secret(NOWHERE.url), oauth=OAuth(redirect_port=port))
        with pytest.raises(OAuthProblem, match=r"could not come back: .* port \d+: Address already in use"):
            await desk.logins.connect(spec, "console")


async def test_a_stop_of_the_host_leaves_nothing_behind(issuer: Issuer) -> None:
    async with opened() as desk:
        begun, _ = await desk.logins.connect(issuer.spec, "console")
        person = Person(begun)
        await person.start()
    assert begun.ended.is_set()
    assert desk.events == []
    with pytest.raises(OSError, match=r"127\.0\.0\.1"):
        await person.look()


# Time


async def test_a_login_ends_by_itself(desk: Desk, autojump_clock: MockClock) -> None:
    began = trio.current_time()
    begun = await desk.logins.offer(NOWHERE.spec, "client")
    await begun.ended.wait()
    assert trio.current_time() == began + TIME_LIMIT
    assert desk.failures() == ["nobody logged in within 15 min"]


async def test_clients_are_offered_a_login_now_and_then_only(desk: Desk, autojump_clock: MockClock) -> None:
    assert desk.logins.is_offered("notes")
    begun = await desk.logins.offer(NOWHERE.spec, "client")
    assert desk.logins.is_offered("notes"), "an open one is offered to all"
    begun.end("the person declined it")
    await begun.ended.wait()
    assert not desk.logins.is_offered("notes")
    assert desk.logins.is_offered("other")
    await trio.sleep(OFFER_PAUSE)
    assert desk.logins.is_offered("notes")


async def test_a_host_for_other_machines_offers_no_links_to_this_one() -> None:
    async with opened(may_offer=False) as desk:
        assert not desk.logins.is_offered("notes")


async def test_persons_begin_so_many_logins_in_a_time(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> ProposedLogin:
        await trio.lowlevel.checkpoint()
        raise OAuthProblem("no answer")

    monkeypatch.setattr(module, "propose", fail)
    async with opened() as desk:
        for _ in range(MAX_BEGUN):
            with pytest.raises(OAuthProblem, match="no answer"):
                await desk.logins.connect(NOWHERE.spec, "console")
        with pytest.raises(OAuthProblem, match=f"{MAX_BEGUN} logins were begun in a short time"):
            await desk.logins.connect(NOWHERE.spec, "console")
        with pytest.raises(OAuthProblem, match="no answer"):
            await desk.logins.connect(replace(NOWHERE.spec, id="other"), "console")
        await trio.sleep(BEGUN_WINDOW)
        with pytest.raises(OAuthProblem, match="no answer"):
            await desk.logins.connect(NOWHERE.spec, "console")


# The configuration


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: {},
        lambda spec: {"notes": replace(spec, disabled=True)},
        lambda spec: {"notes": replace(spec, url=Secret("http://127.0.0.1:9/other"))},
        lambda spec: {"notes": replace(spec, oauth=OAuth(redirect_port=4711))},
    ],
)
async def test_a_login_ends_with_its_server(desk: Desk, change: Any) -> None:
    begun = await desk.logins.offer(NOWHERE.spec, "client")
    desk.logins.keep_only({"notes": NOWHERE.spec})
    await wait_all_tasks_blocked()
    assert not begun.ended.is_set()
    desk.logins.keep_only(change(NOWHERE.spec))
    await begun.ended.wait()
    assert desk.failures() == ["the server was changed in the configuration"]


async def test_the_former_login_stays_until_the_new_one_is_made(issuer: Issuer) -> None:
    former = login(issuer)
    async with opened(stored=former) as desk:
        begun, _ = await desk.logins.connect(issuer.spec, "console")
        await Person(begun).start()
        assert present(desk.process.store, NOTES) == former


async def test_another_issuer_is_told(issuer: Issuer, other: Issuer) -> None:
    async with opened(stored=login(issuer)) as desk:
        issuer.documents[RESOURCE_METADATA]["authorization_servers"] = [other.id]
        _, proposed = await desk.logins.connect(issuer.spec, "console")
        assert (proposed.is_other_issuer, proposed.former_issuer) == (True, issuer.id)
        assert not other.paths("/register")
