"""A call of a server that needs a login: its client is offered the login, and the call goes on by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from config import Consent, Elicitation, Isolation, Listen, Trust
from host.audit.read import records
from host.journal import LoggedIn, LoginFailed
from host.jsonrpc.messages import Request
from host.protocol.versions import LATEST, LATEST_LEGACY
from host.router.prepare import MAX_ATTEMPTS
from host.upstream.login import TIME_LIMIT
from host.upstream.open_logins import OFFER_PAUSE
from host.upstream.state import NeedsLogin
from host.upstream.upstreams import MAX_WAITING_REQUESTS
from host.upstream.vault import Login
from host.wire.http_errors import AuthNeeded
from host.wire.link import Link, Parcel
from tests.host.downstream.test_stateless import DESK, LAPTOP, TOKENS
from tests.host.upstream.test_open_logins import NOWHERE, Desk, Person
from tests.host.upstream.test_open_logins import opened as opened_desk
from tests.host.upstream.test_supervised import BEARER, Protected
from tests.kit.asgi import Connection, open_http_app
from tests.kit.gates import kind
from tests.kit.issuer import Issuer, open_issuer
from tests.kit.logins import login, put
from tests.kit.world import Later, Refusal, ScriptedClient, World, later, open_world, tool

pytestmark = pytest.mark.virtual_time

ELICIT = "elicitation/create"
COMPLETE = "notifications/elicitation/complete"
URL: dict[str, Any] = {"elicitation": {"url": {}}}
TODAY = "notes is unavailable: the server wants a login (HTTP 401): colonnade login notes"
DECLINED = "notes needs a login, which was declined; it can be done later: colonnade login notes"
CALL: dict[str, Any] = {"name": "notes__x", "arguments": {}}
OK = {"content": [{"type": "text", "text": "done"}]}


async def done(params: dict[str, Any]) -> object:
    return OK


class Hosting:
    """A host with one server, which needs a login."""

    def __init__(self, desk: Desk, world: World, nursery: trio.Nursery, issuer: Issuer, server: Expiring) -> None:
        self.server = server
        self.desk = desk
        self.world = world
        self.logins = desk.logins
        self._nursery = nursery
        self._issuer = issuer

    async def client(self, capabilities: Mapping[str, Any] = URL, **more: Any) -> ScriptedClient:
        return await self.world.client(capabilities=capabilities, **more)

    def begins(self, client: ScriptedClient, name: str = "notes__x") -> Later:
        return later(self._nursery, client.call, name)

    async def logs_in(self) -> None:
        """A person logs in elsewhere."""
        put(self.desk.process.store, login(self._issuer))
        await self.desk.process.credentials.reload()

    async def is_logged_out(self) -> None:
        """The login is over."""
        over = login(self._issuer, id="login-2", access_token=None, refresh_token=None)
        put(self.desk.process.store, over)
        await self.desk.process.credentials.reload()
        while not isinstance(self.world.upstreams.by_id["notes"].main.state, NeedsLogin):  # noqa: ASYNC110 - no event
            await trio.sleep(0.1)

    def page(self) -> str:
        """The page of the open login."""
        return self.logins._open["notes"].callback.login_url


class Expiring(Protected):
    """A server at which so many calls (`losses`) find their login to be over. Before each answer, `follows` is stored:
    nothing that is good, unless the test says otherwise."""

    def __init__(self, desk: Desk, issuer: Issuer) -> None:
        super().__init__(desk.process.of(issuer))
        self._process = desk.process
        self.losses = self.refused = 0
        self.follows: Callable[[], Login] = lambda: login(issuer, id="over", access_token=None, refresh_token=None)

    @asynccontextmanager
    async def open_link(self) -> AsyncIterator[Link]:
        async with super().open_link() as link:
            whole = link.send

            async def send(parcel: Parcel) -> None:
                message = parcel.message
                if not (self.losses and isinstance(message, Request) and message.method == "tools/call"):
                    return await whole(parcel)
                self.losses, self.refused = self.losses - 1, self.refused + 1
                put(self._process.store, self.follows())
                await self._process.credentials.reload()
                what, remedy = "the server wants a login", self._credential.remedy
                raise AuthNeeded(401, what, remedy, BEARER, needs_login=True, lost_login=True)

            link.send = send  # type: ignore[method-assign]
            yield link


def text(result: Any) -> str:
    assert result["isError"], result
    found: str = result["content"][0]["text"]
    return found


def protected(desk: Desk, issuer: Issuer, **spec: Any) -> Expiring:
    """A server that needs a login."""
    server = Expiring(desk, issuer)
    server.spec = replace(server.spec, **{"trust": Trust.TRUSTED, "timeout": 30.0, **spec})
    server.answers["tools/call"] = done
    return server


@asynccontextmanager
async def hosting(
    issuer: Issuer = NOWHERE,
    trust: Trust = Trust.TRUSTED,
    consent: Consent | None = None,
    tools: Sequence[str] = ("x",),
    isolation: Isolation = Isolation.SHARED,
    revision: str = LATEST_LEGACY.name,
    **more: Any,
) -> AsyncIterator[Hosting]:
    async with opened_desk(**more) as desk, trio.open_nursery() as nursery:
        server = protected(desk, issuer, trust=trust, consent=consent or Consent(), isolation=isolation)
        server.lists["tools"] = [tool(name) for name in tools]
        server.revision, server.stateless = revision, revision == LATEST.name
        async with open_world(server, credentials=desk.process.credentials, logins=desk.logins) as world:
            await world.settled()
            yield Hosting(desk, world, nursery, issuer, server)
        nursery.cancel_scope.cancel()


@pytest.fixture
async def host() -> AsyncIterator[Hosting]:
    async with hosting() as opened:
        yield opened


async def test_a_call_goes_on_when_the_person_has_logged_in() -> None:
    async with open_issuer() as issuer, hosting(issuer) as host:
        issuer.tokens = [{"access_token": "t0ken"}]
        client = await host.client()
        call = host.begins(client)
        asked = await client.is_asked(ELICIT)
        assert issuer.asked == [], "nothing begins before the page is opened"
        assert asked["mode"] == "url"
        assert asked["message"] == "notes needs a login. This page shows at which issuer, and leads there."
        assert asked["url"] == host.page()
        client.replies(asked["id"], {"action": "accept"})
        person = Person(host.logins._open["notes"])
        assert issuer.id in (await person.look()).text
        await wait_all_tasks_blocked()
        assert not call.done
        assert "You are logged in." in (await person.log_in()).text
        assert await call.comes() == OK
        assert client.notifications_of(COMPLETE) == [{"elicitationId": asked["elicitationId"]}]
        assert host.desk.recorded == [("notes", issuer.id, "client")]
        assert [event for event in host.desk.events if isinstance(event, LoggedIn)]
        assert await client.call("notes__x") == OK


async def test_a_login_elsewhere_lets_the_call_go_on_and_withdraws_the_question(host: Hosting) -> None:
    client = await host.client()
    call = host.begins(client)
    asked = await client.is_asked(ELICIT)
    await host.logs_in()
    assert await call.comes() == OK
    (withdrawn,) = client.notifications_of("notifications/cancelled")
    assert withdrawn["requestId"] == asked["id"]


async def test_a_call_goes_on_after_a_login_to_the_restarted_server(host: Hosting) -> None:
    client = await host.client()
    call = host.begins(client)
    await client.is_asked(ELICIT)
    host.world.upstreams.apply({"notes": host.world.upstreams.by_id["notes"].spec}, {"notes"})
    await client.is_asked(ELICIT, 1)
    await host.logs_in()
    assert await call.comes() == OK


@pytest.mark.parametrize("isolation", [Isolation.PER_CLIENT, Isolation.PER_CALL])
async def test_a_dedicated_instance_waits_for_the_login_too(isolation: Isolation) -> None:
    async with hosting(isolation=isolation, stored=login(NOWHERE)) as host:
        assert await (await host.client()).call("notes__x") == OK
        await host.is_logged_out()
        before = host.world.servers["notes"].connections
        client = await host.client()
        call = host.begins(client)
        await client.is_asked(ELICIT)
        assert host.world.servers["notes"].connections == before, "no instance was tried"
        await host.logs_in()
        assert await call.comes() == OK


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_declined_login_ends_the_call_with_a_clear_error(host: Hosting, action: str) -> None:
    client = await host.client()
    call = host.begins(client)
    asked = await client.is_asked(ELICIT)
    client.replies(asked["id"], {"action": action})
    assert text(await call.comes()) == DECLINED
    await wait_all_tasks_blocked()
    assert host.logins._open == {}
    assert host.desk.failures() == ["the person at the client declined it"]
    # A model that calls again bothers the person no more for a while.
    for _ in range(20):
        assert text(await client.call("notes__x")) == TODAY
    assert len(client.server_requests) == 1
    await trio.sleep(OFFER_PAUSE)
    host.begins(client)
    await client.is_asked(ELICIT, 1)


async def test_a_login_that_takes_too_long_ends_the_call_but_not_the_login(host: Hosting) -> None:
    client = await host.client()
    call = host.begins(client)
    asked = await client.is_asked(ELICIT)
    await trio.sleep(120)  # time that the person takes to answer is no time of the call
    assert not call.done
    client.replies(asked["id"], {"action": "accept"})
    began = trio.current_time()
    with trio.fail_after(100):
        await call.ended.wait()
    assert trio.current_time() - began == 30.0
    assert text(call.result) == TODAY
    page = host.page()
    second = host.begins(client)
    assert (await client.is_asked(ELICIT, 1))["url"] == page
    await host.logs_in()
    assert await second.comes() == OK


async def test_a_link_that_nobody_answers_ends_with_its_login(host: Hosting) -> None:
    client = await host.client()
    call = host.begins(client)
    await client.is_asked(ELICIT)
    await trio.sleep(TIME_LIMIT + 1)
    assert text(await call.comes()) == TODAY
    assert [type(event) for event in host.desk.events] == [LoginFailed]


async def test_many_calls_are_one_login(host: Hosting) -> None:
    """One call of a client asks the person; each client asks its own."""
    clients = [await host.client() for _ in range(3)]
    calls = [host.begins(client) for client in clients for _ in range(20)]
    await wait_all_tasks_blocked()
    links = [(await client.is_asked(ELICIT))["url"] for client in clients]
    assert links == [host.page()] * 3
    assert [len(client.server_requests) for client in clients] == [1, 1, 1]
    client = clients[0]
    client.replies((await client.is_asked(ELICIT))["id"], {"action": "decline"})
    assert [text(await call.comes()) for call in calls[:20]] == [DECLINED] * 20
    assert not calls[20].done, "the login is open to the others"
    assert text(await client.call("notes__x")) == TODAY
    assert len(client.server_requests) == 1, "nobody is asked again at once"
    await host.logs_in()
    assert [await call.comes() for call in calls[20:]] == [OK] * 40


async def test_so_many_calls_of_one_owner_wait(host: Hosting) -> None:
    client = await host.client()
    for _ in range(MAX_WAITING_REQUESTS):
        host.begins(client)
    await client.is_asked(ELICIT)
    with pytest.raises(Exception, match="429 100 requests wait for servers that are not ready"):
        await client.call("notes__x")


ALLOWED = Elicitation(url=kind(allow=["http://127.0.0.1/**"], default="deny"))


@pytest.mark.parametrize(
    ("trust", "elicitation"), [(Trust.TRUSTED, None), (Trust.STANDARD, ALLOWED), (Trust.UNTRUSTED, ALLOWED)]
)
async def test_consent_that_allows_the_page_offers_the_login(trust: Trust, elicitation: Elicitation | None) -> None:
    consent = Consent() if elicitation is None else Consent(elicitation=elicitation)
    async with hosting(trust=trust, consent=consent) as host:
        client = await host.client()
        host.begins(client)
        await client.is_asked(ELICIT)


@pytest.mark.parametrize(
    ("trust", "elicitation", "client"),
    [
        (Trust.STANDARD, None, {}),  # its consent is to ask a person, who can as well log in at once
        (Trust.UNTRUSTED, None, {}),
        (Trust.TRUSTED, Elicitation(url=kind(deny=["**"])), {}),
        (Trust.TRUSTED, Elicitation(url=kind(ask=["**"])), {}),
        (Trust.TRUSTED, None, {"capabilities": {"elicitation": {"form": {}}}}),
        (Trust.TRUSTED, None, {"capabilities": {}}),
        (Trust.TRUSTED, None, {"revision": "2025-06-18"}),  # which has no mode url
    ],
)
async def test_otherwise_the_error_says_what_to_do(
    trust: Trust, elicitation: Elicitation | None, client: dict[str, Any]
) -> None:
    consent = Consent() if elicitation is None else Consent(elicitation=elicitation)
    async with hosting(trust=trust, consent=consent) as host:
        caller = await host.client(**client)
        said = text(await caller.call("notes__x"))
        assert said == ("notes is unavailable: it is not connected" if trust is Trust.UNTRUSTED else TODAY)
        assert (caller.server_requests, host.logins._open) == ([], {})


async def test_a_host_for_other_machines_offers_no_login() -> None:
    async with hosting(may_offer=False) as host:
        client = await host.client()
        assert text(await client.call("notes__x")) == TODAY


async def test_a_client_that_cannot_be_asked_gets_the_error(host: Hosting) -> None:
    client = await host.client()
    for action in ("error", "nonsense"):
        call = host.begins(client)
        asked = await client.is_asked(ELICIT, len(client.server_requests))
        if action == "error":
            client.declines(asked["id"], -32603, "no browser")
        else:
            client.replies(asked["id"], {"content": {}})
        assert text(await call.comes()) == TODAY


async def test_what_is_denied_offers_nothing() -> None:
    """Neither what the rules deny, nor what a person has to confirm while none is there."""
    consent = Consent(
        tools=kind(allow=["x"], ask=["y"], deny=["z"]), elicitation=Elicitation(url=kind(allow=["http://**"]))
    )
    async with hosting(consent=consent, stored=login(NOWHERE), tools=["x", "y", "z"]) as host:
        client = await host.client()
        assert await client.call("notes__x") == OK
        await host.is_logged_out()
        with pytest.raises(Refusal, match="Unknown tool: notes__z"):
            await client.call("notes__z")
        assert "needs a person's consent" in text(await client.call("notes__y"))
        assert (client.server_requests, host.logins._open) == ([], {})
        call = host.begins(client)
        await client.is_asked(ELICIT)
        await host.logs_in()
        assert await call.comes() == OK


async def test_a_confirmation_is_good_for_the_call_after_the_login() -> None:
    """The person is asked once for one call."""
    consent = Consent(tools=kind(ask=["x"]), elicitation=Elicitation(url=kind(allow=["http://**"])))
    async with hosting(consent=consent, stored=login(NOWHERE)) as host:
        client = await host.client()
        await host.is_logged_out()
        with host.world.auto_answering() as confirmed:
            call = host.begins(client)
            await client.is_asked(ELICIT)
            await host.logs_in()
            assert await call.comes() == OK
            assert len(confirmed) == 1


async def test_a_call_that_its_client_cancels_waits_no_longer(host: Hosting) -> None:
    client = await host.client()
    call = later(host._nursery, client.request, "tools/call", {"name": "notes__x", "arguments": {}}, 77)
    await client.is_asked(ELICIT)
    client.notifies("notifications/cancelled", {"requestId": 77})
    await call.ended.wait()
    assert call.result is None
    assert host.logins._open["notes"].offered_to == {}, "the login stays for the next call"


async def test_an_offer_is_recorded(host: Hosting) -> None:
    client = await host.client(identity="laptop")
    host.begins(client)
    await client.is_asked(ELICIT)
    audit = host.world.gate.decision_log._audit
    assert audit.path is not None
    (record,) = records([audit.path], kind="login_offer")
    assert (record["server"], record["principal"], record["client"]) == ("notes", "laptop", "test")
    assert "127.0.0.1" not in str(record)


async def test_a_login_that_is_over_again_is_not_waited_for_without_end(host: Hosting) -> None:
    client = await host.client()
    call = host.begins(client)
    for number in range(3):
        await client.is_asked(ELICIT, number)
        put(host.desk.process.store, login(NOWHERE, id=f"login-{number}", access_token=None, refresh_token=None))
        await host.desk.process.credentials.reload()
        await host.logins.offer(NOWHERE.spec, "client")
        host.logins._open["notes"].end("the test has seen enough")
        await trio.sleep(OFFER_PAUSE)
        if call.done:
            break
    assert text(await call.comes()) == TODAY


# The call that finds its login to be over


@pytest.mark.parametrize("isolation", list(Isolation))
async def test_the_call_that_loses_its_login_is_offered_one_and_is_executed_once(isolation: Isolation) -> None:
    async with hosting(isolation=isolation, stored=login(NOWHERE)) as host:
        executed: list[dict[str, Any]] = []

        async def execute(params: dict[str, Any]) -> object:
            executed.append(params)
            return OK

        host.server.answers["tools/call"] = execute
        client = await host.client()
        host.server.losses = 1
        call = host.begins(client)
        await client.is_asked(ELICIT)
        assert executed == []
        await host.logs_in()
        assert await call.comes() == OK
        assert (len(executed), host.server.refused, len(client.server_requests)) == (1, 1, 1)


async def test_the_call_that_loses_its_login_says_what_to_do() -> None:
    async with hosting(stored=login(NOWHERE)) as host:
        client = await host.client(capabilities={})
        host.server.losses = 1
        assert text(await client.call("notes__x")) == TODAY
        assert host.world.upstreams.by_id["notes"].main.life.needs_login


async def test_the_call_that_loses_its_login_goes_on_with_another_one() -> None:
    """Somebody has logged in at the same moment. It does so a few times only, if each login is over at once."""
    async with hosting(stored=login(NOWHERE)) as host:
        client, server = await host.client(), host.server
        server.losses, server.follows = 1, lambda: login(NOWHERE, id=f"login-{server.refused + 1}")
        assert await client.call("notes__x") == OK
        assert (server.refused, client.server_requests) == (1, [])
        server.losses = 100
        assert text(await client.call("notes__x")) == "notes keeps changing; the call was not sent"
        assert (server.refused, client.server_requests) == (1 + MAX_ATTEMPTS, [])


async def test_a_confirmation_is_good_for_the_call_that_loses_its_login() -> None:
    consent = Consent(tools=kind(ask=["x"]), elicitation=Elicitation(url=kind(allow=["http://**"])))
    async with hosting(consent=consent, stored=login(NOWHERE)) as host:
        client = await host.client()
        with host.world.auto_answering() as confirmed:
            host.server.losses = 1
            call = host.begins(client)
            await client.is_asked(ELICIT)
            await host.logs_in()
            assert await call.comes() == OK
            assert len(confirmed) == 1
            assert await client.call("notes__x") == OK
            assert len(confirmed) == 2, "it is good for one call"


async def test_a_call_that_has_begun_is_not_sent_anew() -> None:
    """Its second round finds the login to be over; what the first one did is not known."""
    async with hosting(revision=LATEST.name, stored=login(NOWHERE)) as host:
        executed: list[dict[str, Any]] = []

        async def execute(params: dict[str, Any]) -> object:
            executed.append(params)
            host.server.losses = 1
            return {"resultType": "input_required", "requestState": "s"}

        host.server.answers["tools/call"] = execute
        client = await host.client()
        assert text(await client.call("notes__x")) == (
            "notes failed during the request: the server wants a login (HTTP 401): colonnade login notes; the tool may "
            "have run"
        )
        assert (len(executed), host.server.refused, client.server_requests) == (1, 1, [])


# Stateless clients


@asynccontextmanager
async def stateless(
    listen: Listen | None = None, *, losses: int = 0, revision: str = LATEST_LEGACY.name, **more: Any
) -> AsyncIterator[tuple[Desk, Connection]]:
    async with opened_desk(**more) as desk:
        credentials, server = desk.process.credentials, protected(desk, NOWHERE)
        server.losses, server.revision, server.stateless = losses, revision, revision == LATEST.name
        async with open_http_app(server, listen=listen, credentials=credentials, logins=desk.logins) as (_, connection):
            yield desk, connection


async def log_in_elsewhere(desk: Desk) -> None:
    put(desk.process.store, login(NOWHERE))
    await desk.process.credentials.reload()


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_stateless_client_gets_the_link_as_input_that_is_required(is_known: bool) -> None:
    async with stateless(stored=login(NOWHERE) if is_known else None) as (desk, connection):
        if is_known:  # its lists are
            assert (await connection.result("tools/call", CALL))["content"] == OK["content"]
            put(desk.process.store, login(NOWHERE, id="over", access_token=None, refresh_token=None))
            await desk.process.credentials.reload()
            await trio.sleep(1)
        result = await connection.result("tools/call", CALL, capabilities=URL)
        assert result["resultType"] == "input_required"
        ((key, asked),) = result["inputRequests"].items()
        link = desk.logins._open["notes"].callback.login_url
        message = "notes needs a login. This page shows at which issuer, and leads there."
        assert asked == {"method": ELICIT, "params": {"mode": "url", "message": message, "url": link}}
        more = {"inputResponses": {key: {"action": "accept"}}, "requestState": result["requestState"]}
        call = connection.another().start("tools/call", {**CALL, **more}, capabilities=URL)
        await wait_all_tasks_blocked()
        assert not call.complete.is_set()
        await log_in_elsewhere(desk)
        with trio.fail_after(5):
            await call.complete.wait()
        assert call.outcome("tools/call")["content"] == OK["content"]


@pytest.mark.parametrize("revision", [LATEST_LEGACY.name, LATEST.name])
async def test_a_stateless_client_whose_call_loses_the_login_gets_the_link(revision: str) -> None:
    async with stateless(stored=login(NOWHERE), losses=1, revision=revision) as (desk, connection):
        result = await connection.result("tools/call", CALL, capabilities=URL)
        assert result["resultType"] == "input_required"
        answers = {key: {"action": "accept"} for key in result["inputRequests"]}
        again = {**CALL, "inputResponses": answers, "requestState": result["requestState"]}
        call = connection.another().start("tools/call", again, capabilities=URL)
        await log_in_elsewhere(desk)
        with trio.fail_after(5):
            await call.complete.wait()
        assert call.outcome("tools/call")["content"] == OK["content"]


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_stateless_client_that_declines_gets_the_error(action: str) -> None:
    async with stateless() as (desk, connection):
        result = await connection.result("tools/call", CALL, capabilities=URL)
        answers = {key: {"action": action} for key in result["inputRequests"]}
        again = {**CALL, "inputResponses": answers, "requestState": result["requestState"]}
        assert text(await connection.another().result("tools/call", again, capabilities=URL)) == DECLINED
        assert text(await connection.another().result("tools/call", CALL, capabilities=URL)) == TODAY
        assert desk.failures() == ["the person at the client declined it"]


async def test_a_stateless_client_that_declined_is_not_asked_again_while_others_wait() -> None:
    async with stateless(listen=TOKENS) as (desk, connection):
        one, other = connection.another(), connection.another()
        one.headers.update(DESK)
        other.headers.update(LAPTOP)
        await other.result("tools/call", CALL, capabilities=URL)
        result = await one.result("tools/call", CALL, capabilities=URL)
        answers = {key: {"action": "decline"} for key in result["inputRequests"]}
        again = {**CALL, "inputResponses": answers, "requestState": result["requestState"]}
        assert text(await one.result("tools/call", again, capabilities=URL)) == DECLINED
        for _ in range(5):
            assert text(await one.result("tools/call", CALL, capabilities=URL)) == TODAY
        assert desk.failures() == [], "the other one may still log in"


async def test_a_stateless_client_without_pages_gets_the_error() -> None:
    async with stateless() as (desk, connection):
        kinds: list[dict[str, Any]] = [{}, {"elicitation": {"form": {}}}]
        for capabilities in kinds:
            assert text(await connection.another().result("tools/call", CALL, capabilities=capabilities)) == TODAY
        assert desk.logins._open == {}
