"""Tokens in use: refreshed ahead of their expiry and once after a refusal, by one task of one process; the new ones on
disk before they are used; and a login that is over is over once."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.lowlevel
from trio.testing import wait_all_tasks_blocked

from config import OAuth, OAuthGrant
from config.references import Secret
from host.journal import InternalError, Journal, TokenNotRefreshed
from host.oauth.challenge import MAX_SCOPES
from host.oauth.documents import ClientRegistration
from host.storage.store import CredentialKey, StateError
from host.upstream import credentials as module
from host.upstream.connect import secrets_of
from host.upstream.credentials import (
    FAILURE_PAUSE,
    LEASE,
    REFUSAL_WINDOW,
    RETRY_PAUSE,
    LoginUnavailable,
    open_credentials,
)
from host.upstream.server_secrets import ServerSecrets
from host.upstream.vault import Login, Vault
from host.wire.http_pool import Pool, PooledResponse
from host.wire.http_transport import Header, open_origin
from host.wire.turns import Turns
from tests.host.oauth.test_assertion import EC, pem
from tests.host.upstream.test_connection import CHILD
from tests.kit.cost import counted_calls
from tests.kit.folders import folder
from tests.kit.gates import locked, store_opener
from tests.kit.issuer import ISSUER_METADATA, RESOURCE_METADATA, Issuer, open_issuer
from tests.kit.logins import NOTES, START, VAULT, Process, login, present, processes, put


def bearer(token: str) -> Header:
    return b"Authorization", f"Bearer {token}".encode()


def renewed(number: int, **more: Any) -> dict[str, Any]:
    return {"access_token": f"access-{number}", "refresh_token": f"refresh-{number}", "expires_in": 600, **more}


async def until(true: Callable[[], object]) -> None:
    with trio.fail_after(5):
        while not true():  # noqa: ASYNC110 - an answer comes through the operating system
            await trio.sleep(0.001)


@pytest.fixture
async def process(issuer: Issuer) -> AsyncIterator[Process]:
    """A process that has a login at the issuer."""
    async with processes(stored=login(issuer)) as (opened,):
        yield opened


async def test_a_valid_token_is_given_at_once_and_the_same_each_time(issuer: Issuer, process: Process) -> None:
    credential = process.of(issuer)
    assert credential.current() == bearer("access-1")
    assert credential.current() is credential.current()
    assert not credential.is_absent
    assert process.of(issuer) is credential
    assert issuer.asked == []


async def test_a_server_without_a_login_has_no_token(issuer: Issuer) -> None:
    async with processes() as (process,):
        credential = process.of(issuer)
        assert credential.is_absent
        assert (credential.current(), await credential.renew(None), credential.login_id) == (None, None, "")


async def test_a_token_is_refreshed_ahead_of_its_expiry_while_it_is_used(issuer: Issuer, process: Process) -> None:
    issuer.tokens = [renewed(2)]
    credential = process.of(issuer)
    process.clock.time = START + 539
    assert credential.current() == bearer("access-1")
    assert issuer.asked == []
    process.clock.time = START + 541
    for _ in range(100):
        assert credential.current() == bearer("access-1")
    await until(lambda: credential.current() == bearer("access-2"))
    (asked,) = issuer.asked
    assert asked.form == {
        "grant_type": "refresh_token",
        "refresh_token": "refresh-1",
        "resource": issuer.url,
        "client_id": "client",
    }
    stored = present(process.store)
    assert stored is not None
    assert (stored.access_token, stored.refresh_token, stored.expires) == ("access-2", "refresh-2", START + 1141)
    assert stored.id == credential.login_id == "login-1"


async def test_an_expired_token_is_waited_for_and_asked_for_once(issuer: Issuer, process: Process) -> None:
    issuer.tokens, issuer.before_token = [renewed(2)], trio.Event()
    credential = process.of(issuer)
    process.clock.time = START + 601
    assert credential.current() is None
    found: list[Header | None] = []

    async def ask() -> None:
        found.append(await credential.renew(None))

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(ask)
        await until(lambda: issuer.asked)
        issuer.before_token.set()
    assert found == [bearer("access-2")] * 50
    assert len(issuer.asked) == 1


async def test_a_refused_token_is_replaced_once_for_all_that_were_refused(issuer: Issuer) -> None:
    async with processes(stored=login(issuer, expires=None)) as (process,):
        issuer.tokens = [renewed(2)]
        credential = process.of(issuer)
        refused = credential.current()
        assert refused is not None
        assert await credential.renew(refused) == bearer("access-2")
        assert await credential.renew(refused) == bearer("access-2")
        assert len(issuer.asked) == 1


async def test_without_a_lifetime_a_token_is_used_until_it_is_refused(issuer: Issuer) -> None:
    async with processes(stored=login(issuer, expires=None)) as (process,):
        process.clock.time = START + 1e9
        assert process.of(issuer).current() == bearer("access-1")
        assert issuer.asked == []


async def test_an_issuer_that_does_not_rotate_keeps_the_refresh_token(issuer: Issuer, process: Process) -> None:
    issuer.tokens = [{"access_token": "access-2", "scope": "a b"}]
    process.clock.time = START + 601
    assert await process.of(issuer).renew(None) == bearer("access-2")
    stored = present(process.store)
    assert stored is not None
    assert (stored.refresh_token, stored.scopes, stored.expires) == ("refresh-1", ("a", "b"), None)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ("invalid_grant", 400),
        ("invalid_client", 401),
        ("unauthorized_client", 400),
        ("invalid_grant", 200),
        ("bad_refresh_token", 200),
        ("incorrect_client_credentials", 200),
        ("invalid_refresh_token", 200),
        ("token_expired", 200),
    ],
)
async def test_a_refused_refresh_ends_the_login_once(issuer: Issuer, error: str, status: int) -> None:
    async with processes(2, stored=login(issuer)) as (process, other):
        issuer.tokens = [(status, {}, f'{{"error": "{error}"}}'.encode())] * 5
        credential = process.of(issuer)
        changed = trio.Event()

        async def watch() -> None:
            await credential.wait_changed("login-1")
            changed.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            process.clock.time = START + 601
            for _ in range(20):
                assert await credential.renew(None) is None
            await changed.wait()
        assert await other.of(issuer).renew(None) is None
        assert len(issuer.asked) == 1
        stored = present(process.store)
        assert stored is not None
        assert stored.is_over
        assert stored.secrets() == []
        assert stored.client.client_id == "client", "the registration is good for the next login"
        for each in (credential, other.of(issuer)):
            assert each.problem == f"the login is over, because the issuer gave no other token ({error})"
        put(process.store, login(issuer, id="login-2"))
        await process.credentials.reload()
        assert credential.problem == ""


def invalid(description: str = "") -> Any:
    return (400, {}, json.dumps({"error": "invalid_request", "error_description": description}).encode())


async def test_an_issuer_that_demands_the_scope_gets_the_one_that_was_asked_for(issuer: Issuer) -> None:
    """As Entra. What it took is remembered, also by another process; the scope that it granted may be another one."""
    stored = {"scopes": ("granted",), "requested": ("a", "offline_access")}
    async with processes(2, stored=login(issuer, **stored)) as hosts:
        issuer.tokens = [invalid("AADSTS90009"), renewed(2, scope="granted"), renewed(3)]
        hosts[0].clock.time = START + 601
        assert await hosts[0].of(issuer).renew(None) == bearer("access-2")
        hosts[0].clock.time += 601
        await hosts[1].credentials.reload()
        assert await hosts[1].of(issuer).renew(None) == bearer("access-3")
        sent = [(each.form.get("scope"), each.form.get("resource")) for each in issuer.asked]
        assert sent == [(None, issuer.url), ("a offline_access", issuer.url), ("a offline_access", issuer.url)]


async def test_an_issuer_that_refuses_the_resource_in_a_refresh_gets_none(issuer: Issuer, process: Process) -> None:
    issuer.tokens = [invalid("resource is not supported"), renewed(2), invalid(), renewed(3)]
    credential = process.of(issuer)
    for number in (2, 3):
        process.clock.time += 601
        assert await credential.renew(None) == bearer(f"access-{number}")
    sent = [(each.form.get("scope"), each.form.get("resource")) for each in issuer.asked]
    assert sent == [(None, issuer.url), ("a", None), ("a", None), (None, issuer.url)]


@pytest.mark.parametrize("second", [invalid(), {"error": "invalid_scope"}, {"error": "slow_down"}, (403, {}, b"no")])
async def test_a_refresh_that_is_invalid_in_both_forms_ends_the_login(
    issuer: Issuer, process: Process, second: Any
) -> None:
    """Some issuers say so of a refresh token that is dead. It is not sent a third time."""
    issuer.tokens = [invalid("refresh_token is invalid"), second, renewed(2)]
    credential = process.of(issuer)
    process.clock.time = START + 601
    for _ in range(20):
        assert await credential.renew(None) is None
    assert len(issuer.asked) == 2
    assert credential.problem == "the login is over, because the issuer gave no other token (invalid_request)"


async def test_what_an_issuer_says_about_a_refresh_is_for_people_without_secrets(issuer: Issuer) -> None:
    """It says that the login is over, and later it fails for a while. No client sees its words."""
    words = "refresh-1 of client s3cret is dead; call 555"
    body = json.dumps({"error": "slow_down", "error_description": words}).encode()
    client = ClientRegistration("client", "s3cret", "client_secret_post")
    async with processes(stored=login(issuer, client=client)) as (process,):
        issuer.tokens = [(400, {}, body), (400, {}, body.replace(b"slow_down", b"invalid_grant"))]
        credential = process.of(issuer)
        process.clock.time = START + 601
        with pytest.raises(LoginUnavailable) as caught:
            await credential.renew(None)
        assert "555" not in str(caught.value)
        assert (caught.value.said, caught.value.speaker) == (
            "slow_down: *** of client *** is dead; call 555",
            "the issuer",
        )
        assert process.reported == [
            TokenNotRefreshed(
                "notes",
                "the issuer refused the request (for a reason of its own); "
                "if that goes on, colonnade login notes; "
                'the issuer says: "slow_down: *** of client *** is dead; call 555"',
            )
        ]
        process.clock.time += FAILURE_PAUSE
        assert await credential.renew(None) is None
        assert credential.problem == "the login is over, because the issuer gave no other token (invalid_grant)"
        assert credential.said == 'the issuer says: "*** of client *** is dead; call 555"'
        put(process.store, login(issuer, id="login-2"))
        await process.credentials.reload()
        assert credential.said == ""


@pytest.mark.parametrize(
    ("second", "why"),
    [
        ((503, {}, b""), "HTTP 503"),
        ({"error": "temporarily_unavailable"}, "temporarily_unavailable"),
        ((200, {}, b'{"error": "server_error"}'), "server_error"),
    ],
)
async def test_an_issuer_that_fails_at_the_other_form_keeps_the_login(
    issuer: Issuer, process: Process, second: Any, why: str
) -> None:
    issuer.tokens = [invalid(), second, invalid(), renewed(2)]
    credential = process.of(issuer)
    process.clock.time = START + 601
    with pytest.raises(LoginUnavailable, match=why):
        await credential.renew(None)
    process.clock.time += FAILURE_PAUSE
    assert await credential.renew(None) == bearer("access-2")


@pytest.mark.parametrize("error", ["invalid_grant", "invalid_target", "invalid_scope", "unauthorized_client"])
async def test_no_other_refusal_is_tried_in_another_form(issuer: Issuer, process: Process, error: str) -> None:
    issuer.tokens = [{"error": error}, renewed(2)]
    process.clock.time = START + 601
    with suppress(LoginUnavailable):
        await process.of(issuer).renew(None)
    assert len(issuer.asked) == 1


@pytest.mark.parametrize(
    ("is_refused", "why"),
    [(False, "its token has expired, and the issuer gave none"), (True, "the server refused its token, and the")],
)
async def test_a_login_without_a_refresh_says_how_it_ended(issuer: Issuer, is_refused: bool, why: str) -> None:
    async with processes(stored=login(issuer, refresh_token=None)) as (process,):
        credential = process.of(issuer)
        token = credential.current()
        process.clock.time = START + (1 if is_refused else 601)
        assert await credential.renew(token if is_refused else None) is None
        assert credential.problem.startswith(f"the login is over, because {why}")
        assert issuer.asked == []


@pytest.mark.parametrize(
    "answer",
    [
        {"error": "server_error"},
        {"error": "slow_down"},
        (503, {}, b""),
        (200, {}, b"<html>login</html>"),
        (200, {}, b'{"ok": false}'),
    ],
)
async def test_another_failure_is_tried_again_later(issuer: Issuer, process: Process, answer: Any) -> None:
    issuer.tokens = [answer, renewed(2)]
    credential = process.of(issuer)
    process.clock.time = START + 601
    with pytest.raises(LoginUnavailable, match="its token could not be obtained") as caught:
        await credential.renew(None)
    assert str(caught.value).endswith("colonnade login notes") == (answer != (503, {}, b""))
    assert credential.login_id == "login-1"
    for _ in range(100):
        with pytest.raises(LoginUnavailable, match="its token could not be obtained"):
            await credential.renew(None)
    assert (len(process.reported), len(issuer.asked)) == (1, 1), "calls in a loop do not ask the issuer as often"
    process.clock.time += FAILURE_PAUSE
    assert await credential.renew(None) == bearer("access-2")
    assert len(process.reported) == 1


@pytest.mark.parametrize(("client_id", "sent"), [("mine", "new"), ("another", "old")])
async def test_a_client_has_the_secret_of_the_configuration(issuer: Issuer, client_id: str, sent: str) -> None:
    """It may be another one than at the login. That of another client is not used for it."""
    known = ClientRegistration("mine", "old", "client_secret_post")
    async with processes(stored=login(issuer, client=known)) as (process,):
        issuer.oauth = OAuth(client_id=Secret(client_id), client_secret=Secret("new"))
        issuer.tokens = [renewed(2)]
        process.clock.time = START + 601
        await process.of(issuer).renew(None)
        assert issuer.asked[0].form["client_secret"] == sent


@pytest.mark.parametrize("method", ["none", "client_secret_basic", "client_secret_post", "private_key_jwt"])
async def test_a_private_key_of_the_configuration_signs_whatever_the_login_had(issuer: Issuer, method: str) -> None:
    """A client that had a secret has a key by now. The issuer sees no part of it, also if it takes no client."""
    key = pem(EC)
    known = ClientRegistration("mine", None if method == "none" else "old", method)
    async with processes(stored=login(issuer, client=known)) as (process,):
        issuer.oauth = OAuth(client_id=Secret("mine"), private_key=Secret(key))
        issuer.tokens = [{"error": "unauthorized_client"}]
        process.clock.time = START + 601
        await process.of(issuer).renew(None)
        (asked,) = issuer.asked
        assert {"client_assertion", "client_assertion_type"} <= asked.form.keys()
        assert "client_secret" not in asked.form
        assert asked.headers.one("authorization") is None


async def test_a_client_that_signed_has_a_secret_by_now(issuer: Issuer) -> None:
    known = ClientRegistration("mine", pem(EC), "private_key_jwt")
    async with processes(stored=login(issuer, client=known)) as (process,):
        issuer.oauth = OAuth(client_id=Secret("mine"), client_secret=Secret("new"))
        issuer.tokens = [{"error": "invalid_client"}, renewed(2)]
        process.clock.time = START + 601
        assert await process.of(issuer).renew(None) == bearer("access-2")
        assert issuer.asked[0].headers.one("authorization") == f"Basic {b64encode(b'mine:new').decode()}"
        assert issuer.asked[1].form["client_secret"] == "new"
        stored = present(process.store)
        assert stored is not None
        assert stored.client == ClientRegistration("mine", "new", "client_secret_post"), "it is revoked with that"


async def test_a_client_that_the_issuer_has_forgotten_is_registered_anew() -> None:
    known = ClientRegistration("client", redirect_uri="http://127.0.0.1:5/oauth/callback", is_dynamic=True)
    for error, kept in (("invalid_client", ""), ("bad_client_secret", ""), ("invalid_grant", known.redirect_uri)):
        async with open_issuer() as issuer, processes(stored=login(issuer, client=known)) as (process,):
            issuer.tokens = [{"error": error}]
            process.clock.time = START + 601
            assert await process.of(issuer).renew(None) is None
            stored = present(process.store)
            assert stored is not None
            assert (stored.is_over, stored.client.redirect_uri) == (True, kept)


async def test_an_issuer_that_is_down_for_a_minute_does_not_stop_a_valid_token(
    issuer: Issuer, process: Process
) -> None:
    """It is asked every few seconds meanwhile, and no call waits for it."""
    issuer.tokens = [(503, {}, b"")] * 100
    credential = process.of(issuer)
    for second in range(60):
        process.clock.time = START + 540 + second
        for _ in range(20):
            assert credential.current() == bearer("access-1")
        await until(lambda: credential._attempt is None)
    assert 60 / (RETRY_PAUSE + 1) <= len(issuer.asked) <= 60 / RETRY_PAUSE
    issuer.tokens = [renewed(2)]
    process.clock.time = START + 601
    assert await credential.renew(None) == bearer("access-2")


async def test_a_token_that_expires_before_it_comes_does_not_end_the_login(issuer: Issuer, process: Process) -> None:
    """The issuer is slow, or the machine sleeps meanwhile."""
    issuer.tokens, issuer.before_token = [renewed(2), renewed(3)], trio.Event()
    credential = process.of(issuer)
    process.clock.time = START + 601

    async def ask() -> None:
        with pytest.raises(LoginUnavailable, match="not valid any more"):
            await credential.renew(None)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await until(lambda: issuer.asked)
        process.clock.time += 601
        issuer.before_token.set()
    assert await credential.renew(None) == bearer("access-3")


async def test_without_a_refresh_token_an_expired_login_is_over(issuer: Issuer) -> None:
    async with processes(stored=login(issuer, refresh_token=None)) as (process,):
        credential = process.of(issuer)
        process.clock.time = START + 599
        assert credential.current() == bearer("access-1")
        process.clock.time = START + 601
        assert (credential.current(), await credential.renew(None), credential.login_id) == (None, None, "")
        assert issuer.asked == []


async def test_a_server_that_refuses_every_token_ends_the_login(issuer: Issuer, process: Process) -> None:
    """Otherwise each call would cost a refresh."""
    issuer.tokens = [renewed(n) for n in range(2, 10)]
    credential = process.of(issuer)
    second = await credential.renew(credential.current())
    assert second == bearer("access-2")
    assert await credential.renew(second) is None
    assert credential.login_id == ""
    assert "the server refuses the tokens that its issuer gives" in credential.problem
    assert len(issuer.asked) == 1


async def test_short_tokens_that_end_early_are_refreshed_each_time(issuer: Issuer, process: Process) -> None:
    """Their lifetime begins at the issuer, and an answer takes its time."""
    issuer.tokens = [renewed(n, expires_in=3) for n in range(2, 10)]
    credential = process.of(issuer)
    token = credential.current()
    for number in range(2, 10):
        token = await credential.renew(token)
        assert token == bearer(f"access-{number}")
        process.clock.time += 2.9


async def test_a_token_that_is_refused_much_later_is_refreshed(issuer: Issuer, process: Process) -> None:
    issuer.tokens = [renewed(2), renewed(3)]
    credential = process.of(issuer)
    second = await credential.renew(credential.current())
    process.clock.time += REFUSAL_WINDOW + 1
    assert await credential.renew(second) == bearer("access-3")


async def test_missing_scopes_are_kept_for_the_next_login(issuer: Issuer, process: Process) -> None:
    credential = process.of(issuer)
    credential.note_missing(["b", "c"])
    await until(lambda: (stored := present(process.store)) is not None and stored.missing == ("b", "c"))
    await until(lambda: credential.login is not None and credential.login.missing == ("b", "c"))
    revision = process.store.poll()
    credential.note_missing(["c"])
    await wait_all_tasks_blocked(0.01)
    assert process.store.poll() == revision
    assert (credential.login_id, credential.current()) == ("login-1", bearer("access-1"))
    assert credential.remedy == "colonnade login notes"


async def test_missing_scopes_do_not_grow_for_ever(issuer: Issuer, process: Process) -> None:
    """A server that names others in each answer has only so many of them written down."""
    credential, revisions = process.of(issuer), set()
    for number in range(3 * MAX_SCOPES):
        credential.note_missing([f"scope-{number}"])
        await wait_all_tasks_blocked()
        revisions.add(process.store.poll())
    wanted = tuple(f"scope-{number}" for number in range(MAX_SCOPES))
    await until(lambda: (stored := present(process.store)) is not None and stored.missing == wanted)
    assert len(revisions) <= MAX_SCOPES


async def test_each_new_token_is_redacted_and_the_former_ones_stay_so(issuer: Issuer, process: Process) -> None:
    issuer.tokens = [renewed(2)]
    spec = issuer.spec
    credential = process.credentials.of(spec)
    process.clock.time = START + 601
    await credential.renew(None)
    text = "access-1 refresh-1 access-2 refresh-2"
    assert ServerSecrets(spec).redact(text) == "*** *** *** ***"
    again = issuer.spec  # the configuration was read again
    process.credentials.of(again)
    assert ServerSecrets(again).redact(text) == "*** *** *** ***"


async def test_an_open_connection_withholds_each_new_token_also_after_the_configuration_was_read_again(
    issuer: Issuer,
    process: Process,
) -> None:
    issuer.tokens = [renewed(2)]
    secrets = secrets_of(issuer.spec, process.credentials, Journal())
    assert secrets.withheld is not None
    assert {"access-1", "refresh-1"} <= set(secrets.withheld.texts)
    process.clock.time = START + 601
    await process.credentials.of(issuer.spec).renew(None)
    assert {"access-1", "refresh-1", "access-2", "refresh-2"} <= set(secrets.withheld.texts)


async def test_the_name_of_a_login_stays_when_it_is_over(issuer: Issuer) -> None:
    """So what its server offered last is still known."""
    over = {"access_token": None, "refresh_token": None}
    for changes, name in (({}, "login-1"), (over, "login-1")):
        async with open_issuer() as issuer, processes(stored=login(issuer, **changes)) as (process,):
            assert process.credentials.name_of(issuer.spec) == name
            assert process.credentials.name_of(CHILD) == ""
    async with processes() as (process,):
        assert process.credentials.name_of(issuer.spec) == ""


# Several processes


async def test_processes_refresh_once_together(issuer: Issuer) -> None:
    """The second use of a refresh token would end the login."""
    async with processes(3, stored=login(issuer)) as hosts:
        issuer.tokens, issuer.before_token = [renewed(2)], trio.Event()
        hosts[0].clock.time = START + 601
        found: list[Header | None] = []

        async def ask(process: Process) -> None:
            found.append(await process.of(issuer).renew(None))

        async with trio.open_nursery() as nursery:
            for process in hosts * 3:
                nursery.start_soon(ask, process)
            await until(lambda: issuer.asked)
            await trio.sleep(0.15)  # the others look at the lease meanwhile
            issuer.before_token.set()
        assert found == [bearer("access-2")] * 9
        assert len(issuer.asked) == 1


async def test_a_refresh_by_another_process_is_taken_over_before_one_is_made(issuer: Issuer) -> None:
    async with processes(2, stored=login(issuer)) as (one, other):
        issuer.tokens = [renewed(2)]
        one.clock.time = START + 601
        assert await one.of(issuer).renew(None) == bearer("access-2")
        assert await other.of(issuer).renew(None) == bearer("access-2")
        assert len(issuer.asked) == 1


async def test_the_lease_of_a_process_that_was_killed_ends(issuer: Issuer) -> None:
    async with processes(2, stored=login(issuer)) as (one, other):
        issuer.tokens = [renewed(2)]
        one.clock.time = START + 601
        until_then = one.clock.time + LEASE
        assert await one.store.write(lambda transaction: transaction.lease_credential(NOTES, "killed", LEASE))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other.of(issuer).renew, None)
            await trio.sleep(0.15)  # it looks at the lease twice
            assert issuer.asked == []
            one.clock.time = until_then
        assert other.of(issuer).current() == bearer("access-2")


async def test_a_process_that_was_stopped_as_it_got_the_lease_asks_for_it_again(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the time it runs again, another process may have the lease, and has used the refresh token."""
    async with processes(2, stored=login(issuer)) as (one, other):
        issuer.tokens = [renewed(2)]
        one.clock.time = START + 601
        write, stopped = one.store.write, [LEASE]

        async def stops(change: Any) -> Any:
            found = await write(change)
            if stopped:
                one.clock.time += stopped.pop()
                assert await other.of(issuer).renew(None) == bearer("access-2")
            return found

        monkeypatch.setattr(one.store, "write", stops)
        assert await one.of(issuer).renew(None) == bearer("access-2")
        assert len(issuer.asked) == 1


@pytest.mark.parametrize("seen", [False, True])
async def test_a_login_during_a_refresh_wins(issuer: Issuer, seen: bool) -> None:
    async with processes(2, stored=login(issuer)) as (one, other):
        issuer.tokens, issuer.before_token = [renewed(2)], trio.Event()
        one.clock.time = START + 601
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.of(issuer).renew, None)
            await until(lambda: issuer.asked)
            put(other.store, login(issuer, id="login-2", access_token="new", expires=None))
            if seen:
                await one.credentials.reload()
            issuer.before_token.set()
        assert one.of(issuer).current() == bearer("new")
        assert one.of(issuer).login_id == "login-2"
        assert present(one.store) == login(issuer, id="login-2", access_token="new", expires=None)


async def test_a_login_that_was_lost_before_its_refresh_began_is_not_refreshed(
    issuer: Issuer, process: Process
) -> None:
    """Somebody has stored another one, with another key."""
    credential = process.of(issuer)
    process.clock.time = START + 601
    async with trio.open_nursery() as nursery:
        async with credential._writing:
            nursery.start_soon(credential.renew, None)
            await wait_all_tasks_blocked()
            sealed = Vault(b"k" * 32).close(NOTES, login(issuer))
            await process.store.write(lambda each: each.put_credential(NOTES, sealed))
            await process.credentials.reload()
    assert (credential.current(), process.reported, issuer.asked) == (None, [], [])


@pytest.mark.parametrize("is_readable", [True, False])
async def test_what_is_seen_while_another_process_refreshes_is_not_refreshed(
    issuer: Issuer, process: Process, is_readable: bool
) -> None:
    """A new token needs no refresh, and there is none for a login that somebody stored with another key."""
    credential, new = process.of(issuer), login(issuer, access_token="new", expires=None)
    process.clock.time = START + 601
    assert await process.store.write(lambda each: each.lease_credential(NOTES, "x", 99))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(credential.renew, None)
        await trio.sleep(0.05)  # it has looked at the lease, and will again
        sealed = (VAULT if is_readable else Vault(b"k" * 32)).close(NOTES, new)
        await process.store.write(lambda each: each.put_credential(NOTES, sealed))
        await process.credentials.reload()
    assert credential.current() == (bearer("new") if is_readable else None)
    assert issuer.asked == []


@pytest.mark.parametrize("seen", [False, True])
async def test_a_logout_during_a_refresh_stays_one(issuer: Issuer, seen: bool) -> None:
    async with processes(2, stored=login(issuer)) as (one, other):
        issuer.tokens, issuer.before_token = [renewed(2)], trio.Event()
        one.clock.time = START + 601
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.of(issuer).renew, None)
            await until(lambda: issuer.asked)
            await other.store.write(lambda transaction: transaction.remove_credential(NOTES))
            if seen:
                await one.credentials.reload()
            issuer.before_token.set()
        assert one.of(issuer).current() is None
        assert present(other.store) is None


@pytest.mark.parametrize("seen", [False, True])
async def test_a_logout_ends_the_wait_for_another_process(issuer: Issuer, process: Process, seen: bool) -> None:
    process.clock.time = START + 601
    assert await process.store.write(lambda each: each.lease_credential(NOTES, "x", 9999))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(process.of(issuer).renew, None)
        await trio.sleep(0.05)  # it has looked at the lease, and will again
        await process.store.write(lambda transaction: transaction.remove_credential(NOTES))
        if seen:
            await process.credentials.reload()
        await until(lambda: process.of(issuer)._attempt is None)
    assert issuer.asked == []


@pytest.mark.slow
async def test_what_other_processes_store_is_seen() -> None:
    with folder() as state, store_opener(state / "state") as opens:
        async with open_issuer() as issuer, open_credentials(opens(), VAULT, print) as credentials:
            credential = credentials.of(issuer.spec)
            other = opens()
            for number in (1, 2):
                put(other, login(issuer, id=f"login-{number}", expires=time.time() + 600))
                with trio.fail_after(5):
                    await credential.wait_changed("" if number == 1 else "login-1")
                assert credential.login_id == f"login-{number}"
            await other.write(lambda transaction: transaction.remove_credential(NOTES))
            with trio.fail_after(5):
                await credential.wait_changed("login-2")
            assert credential.current() is None


# Durability


@pytest.mark.slow
async def test_a_rotated_token_is_not_used_before_it_is_stored() -> None:
    """And it is not lost: the next attempt stores it, without another request."""
    with folder() as made:
        state = made / "state"
        async with open_issuer() as issuer, processes(state=state, stored=login(issuer)) as (process,):
            issuer.tokens, issuer.before_token = [renewed(2)], trio.Event()
            credential = process.of(issuer)
            process.clock.time = START + 601

            async def fail() -> None:
                with pytest.raises(LoginUnavailable, match="cannot be read or stored at the moment") as refused:
                    await credential.renew(None)
                assert str(made) not in str(refused.value), "clients see it"

            async with trio.open_nursery() as nursery:
                nursery.start_soon(fail)
                await until(lambda: issuer.asked)
                with locked(state):
                    issuer.before_token.set()
                    await until(lambda: credential._attempt is None)
            assert credential.current() is None
            process.clock.time += LEASE
            assert await credential.renew(None) == bearer("access-2")
            assert len(issuer.asked) == 1


async def test_a_refresh_is_finished_although_nobody_waits_for_it_any_more(issuer: Issuer) -> None:
    """The call that needed it was cancelled, and then the host stops: the answer may be the only good token."""
    async with processes(stored=login(issuer)) as (process,):
        issuer.tokens, issuer.before_token = [renewed(2)], trio.Event()
        process.clock.time = START + 601
        with trio.CancelScope() as call:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(process.of(issuer).renew, None)
                await until(lambda: issuer.asked)
                call.cancel()
        process.of(issuer)._nursery.cancel_scope.cancel()
        issuer.before_token.set()
        with trio.CancelScope(shield=True):
            await until(lambda: (stored := present(process.store)) is not None and stored.access_token == "access-2")


async def test_a_refresh_that_takes_too_long_is_given_up(
    issuer: Issuer, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REFRESH_TIMEOUT", 0.05)
    issuer.before_token = trio.Event()
    process.clock.time = START + 601
    with pytest.raises(LoginUnavailable, match="did not answer"):
        await process.of(issuer).renew(None)


# Colonnade itself


OWN = OAuth(client_id=Secret("mine"), client_secret=Secret("s3cret"), grant=OAuthGrant.CLIENT_CREDENTIALS)


@asynccontextmanager
async def own(*tokens: Any) -> AsyncIterator[tuple[Issuer, Process]]:
    """A server for which Colonnade gets tokens by itself."""
    async with open_issuer() as issuer, processes() as (process,):
        issuer.documents[ISSUER_METADATA]["token_endpoint_auth_methods_supported"] = ["client_secret_post"]
        issuer.oauth, issuer.tokens = OWN, list(tokens)
        yield issuer, process


async def test_colonnade_gets_its_own_token_when_it_is_needed() -> None:
    async with own({"access_token": "own-1", "expires_in": 600}, {"access_token": "own-2"}) as (issuer, process):
        credential = process.of(issuer)
        assert not credential.is_absent
        assert credential.current() is None
        assert await credential.renew(None) == bearer("own-1")
        login_id = credential.login_id
        process.clock.time = START + 545
        assert credential.current() == bearer("own-1")
        await until(lambda: credential.current() == bearer("own-2"))
        assert credential.login_id == login_id
        assert len(issuer.paths("/token")) == 2
        stored = present(process.store)
        assert stored is not None
        assert stored.access_token == "own-2"


async def test_an_own_token_that_is_refused_is_replaced_once() -> None:
    async with own(*({"access_token": f"own-{n}"} for n in range(9))) as (issuer, process):
        credential = process.of(issuer)
        first = await credential.renew(None)
        second = await credential.renew(first)
        assert second == bearer("own-1")
        with pytest.raises(LoginUnavailable, match="the server refuses the tokens"):
            await credential.renew(second)
        assert len(issuer.paths("/token")) == 2


async def test_a_refused_client_is_told_and_lasts() -> None:
    async with own({"error": "invalid_client"}) as (issuer, process):
        credential = process.of(issuer)
        with pytest.raises(LoginUnavailable, match=r"\(invalid_client\)") as caught:
            await credential.renew(None)
        assert caught.value.lasting
        assert credential.remedy == "correct oauth of the server in the configuration"


async def test_the_issuer_of_a_login_that_cannot_be_read_is_the_one_that_gets_the_secret() -> None:
    """The key of the stored logins is another one by now, and the server names another issuer. With another url it is
    another server, whose first issuer it is."""
    async with own({"access_token": "own"}) as (issuer, process), open_issuer() as evil:
        sealed = VAULT.close(CredentialKey("other"), login(issuer))
        await process.store.write(lambda transaction: transaction.put_credential(NOTES, sealed))
        await process.credentials.reload()
        issuer.documents[RESOURCE_METADATA]["authorization_servers"] = [evil.id]
        with pytest.raises(LoginUnavailable, match=r"names the issuer .* now"):
            await process.of(issuer).renew(None)
        assert not evil.paths("/token")
        evil.oauth, evil.tokens = OWN, [{"access_token": "evil"}]
        evil.documents[ISSUER_METADATA]["token_endpoint_auth_methods_supported"] = ["client_secret_post"]
        assert await process.of(evil).renew(None) == bearer("evil")


# Logins stored for another place


async def test_a_mistake_of_ours_does_not_end_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> Login:
        raise ZeroDivisionError

    async with own({"access_token": "own-1"}) as (issuer, process):
        with monkeypatch.context() as patched:
            patched.setattr(module, "obtain_own", fail)
            with pytest.raises(LoginUnavailable, match="an internal error"):
                await process.of(issuer).renew(None)
        assert [type(event) for event in process.reported] == [InternalError]
        corrected = replace(issuer.spec, timeout=5.0)
        assert await process.credentials.of(corrected).renew(None) == bearer("own-1"), "it is tried at once"


async def test_an_issuer_that_the_server_names_meanwhile_gets_nothing(
    issuer: Issuer, process: Process, other: Issuer
) -> None:
    """A host follows the login that a person made, and looks for no other issuer, not even when that one ends it."""
    issuer.documents[RESOURCE_METADATA]["authorization_servers"] = [other.id]
    issuer.documents[ISSUER_METADATA] = other.documents[ISSUER_METADATA]
    issuer.challenge = f'Bearer resource_metadata="{issuer.id}{RESOURCE_METADATA}"'
    issuer.tokens = [renewed(2)]
    credential = process.of(issuer)
    process.clock.time = START + 601
    assert await credential.renew(None) == bearer("access-2")
    process.clock.time = START + 1300
    assert await credential.renew(None) is None
    assert [each.path for each in issuer.asked] == ["/token"] * 2
    assert other.asked == []


async def test_another_server_at_the_same_url_has_no_token(issuer: Issuer, process: Process) -> None:
    assert process.of(issuer).current() == bearer("access-1")
    other = process.credentials.of(replace(issuer.spec, id="other"))
    assert (other.current(), other.is_absent) == (None, True)


async def test_a_token_does_not_follow_another_url(issuer: Issuer, process: Process, other: Issuer) -> None:
    """The configuration has another URL by now, at another origin or path."""
    assert process.of(issuer).current() == bearer("access-1")
    assert process.of(other).current() is None
    assert process.of(issuer).current() == bearer("access-1")


async def test_a_login_under_another_key_needs_a_new_one(issuer: Issuer) -> None:
    async with processes() as (process,):
        sealed = VAULT.close(CredentialKey("other"), login(issuer))
        await process.store.write(lambda transaction: transaction.put_credential(NOTES, sealed))
        await process.credentials.reload()
        credential = process.of(issuer)
        assert credential.current() is None
        assert "cannot be read with the present key" in credential.problem


@pytest.mark.slow
async def test_a_store_that_cannot_be_read_is_a_problem_at_the_start() -> None:
    with folder() as made, store_opener(made / "state") as opens:
        store = opens()
        with locked(made / "state"), pytest.raises(ExceptionGroup) as caught:
            async with open_credentials(store, VAULT, print):
                pass
        assert caught.group_contains(StateError)


class _Answered(PooledResponse):
    has_length = True

    def __init__(self) -> None:
        self.status = 200

    def header(self, name: str) -> None:
        return None

    def is_repeated(self, name: str) -> bool:
        return False

    def take_whole(self) -> bytes:
        return b"{}"

    async def read(self) -> bytes:
        return b""

    def close(self) -> None:
        pass


class _Answering(Pool):
    """Answers at once, so that what is measured is the way to it."""

    async def request(self, *_: object, **__: object) -> PooledResponse:
        return _Answered()


async def test_a_call_with_a_login_needs_a_few_functions_more() -> None:
    """Than one with a header of the configuration."""
    issuer = Issuer("https://mcp.example")
    async with (
        processes(stored=login(issuer)) as (process,),
        open_origin(issuer.url, {"Authorization": "Bearer x"}, _Answering(Turns())) as configured,
        open_origin(issuer.url, {}, _Answering(Turns()), authorization=process.of(issuer)) as logged_in,
    ):
        counts = []
        for origin in (configured, logged_in):
            headers = origin.headers([("Accept", "*/*")])
            await origin.request("POST", headers, b"{}")
            with counted_calls() as called:
                await origin.request("POST", headers, b"{}")
            counts.append(len(called))
    assert counts[1] - counts[0] <= 10, counts
