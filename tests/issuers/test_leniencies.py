"""Issuers that are peculiar in documented ways. Each leniency towards them has its attack: a hostile server or issuer
gains nothing by it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from config import HttpServer, OAuth
from config.references import Secret
from host.oauth.documents import same_issuer
from host.oauth.problem import OAuthProblem
from host.upstream.credentials import LoginUnavailable
from host.wire.issuer_http import Answer
from tests.issuers.kit import use
from tests.kit.logins import present, processes
from tests.kit.peculiar_issuer import EVIL, OPENID_APPENDED, Peculiar, log_in, network

PLAIN = Peculiar()
EVIL_ISSUER = Peculiar(name="evil", server=f"{EVIL}/mcp", issuer=EVIL)
TWO_NAMES = ("https://mcp.slack.example", "https://slack.example")
FLIPS = Peculiar(name="two names", issuer=TWO_NAMES[0], says=(TWO_NAMES[1], TWO_NAMES[0]), endpoints=TWO_NAMES[1])


def spec(of: Peculiar, **oauth: Any) -> HttpServer:
    return HttpServer(id="notes", url=Secret(of.server), oauth=OAuth(**oauth) if oauth else None)


async def test_an_issuer_by_the_letter() -> None:
    """The kit itself: a login, two refreshes, and the end of the grant."""
    with network(PLAIN) as net:
        async with processes() as (process,):
            made = await log_in(net, spec(PLAIN), process.store)
            assert made.access_token in net.issuer.tokens
            for _ in range(2):
                assert await use(process, spec(PLAIN)) in net.issuer.tokens
            net.issuer.lives = False
            assert await use(process, spec(PLAIN)) == ""
            assert net.strays == []


# An issuer with two names


async def test_an_issuer_that_flips_between_its_names_keeps_its_login() -> None:
    """The registration is used again, and nothing of the former login is revoked: it is the same grant."""
    server = spec(FLIPS, issuers=TWO_NAMES)
    with network(FLIPS) as net:
        async with processes() as (process,):
            first = await log_in(net, server, process.store)
            assert await use(process, server) in net.issuer.tokens
            second = await log_in(net, server, process.store)
            assert (first.issuer, second.issuer) == (TWO_NAMES[1], TWO_NAMES[0])
            assert first.client == second.client
            assert await use(process, server) in net.issuer.tokens
            assert net.strays == []
            assert not [each for each in net.sent if each.url.endswith("/revoke")]


@pytest.mark.parametrize("names", [(), TWO_NAMES[:1], TWO_NAMES[1:]])
async def test_an_issuer_has_the_names_that_a_person_wrote(names: tuple[str, ...]) -> None:
    server = spec(FLIPS, issuers=names) if names else spec(FLIPS)
    with network(FLIPS) as net:
        async with processes() as (process,):
            with pytest.raises(OAuthProblem, match=r"those of another issuer|none of oauth\.issuers"):
                await log_in(net, server, process.store)
            assert {each.method for each in net.sent} == {"GET"}


async def test_a_server_names_no_issuer_beside_those_of_the_configuration() -> None:
    """Neither in its metadata, nor as its own; and an issuer elsewhere cannot say that it is one of them."""
    for hostile in (
        replace(FLIPS, issuer=EVIL, says=TWO_NAMES[1:], endpoints=""),
        replace(FLIPS, issuer=EVIL, says=(), endpoints=""),
        replace(FLIPS, issuer="", says=TWO_NAMES[:1], endpoints=""),
    ):
        with network(hostile) as net:
            async with processes() as (process,):
                with pytest.raises(OAuthProblem, match=r"none of oauth\.issuers"):
                    await log_in(net, spec(FLIPS, issuers=TWO_NAMES), process.store)
                assert {each.method for each in net.sent} == {"GET"}


async def test_a_name_of_an_issuer_does_not_stand_for_another_one() -> None:
    """A former login elsewhere is another one's, and a person accepts the change."""
    assert same_issuer(*TWO_NAMES, names=[f"{name}/" for name in TWO_NAMES])
    assert not same_issuer(TWO_NAMES[0], EVIL, TWO_NAMES)
    assert not same_issuer(TWO_NAMES[0], f"{TWO_NAMES[1]}/a", TWO_NAMES)


# Clients


LIES = replace(PLAIN, name="lies", secret_by=("client_secret_post",))
"""It registers a client as `none`, hands it a secret, and then demands that."""


async def test_a_method_of_authentication_that_is_not_the_one_that_was_said() -> None:
    with network(LIES) as net:
        async with processes() as (process,):
            made = await log_in(net, spec(LIES), process.store)
            assert made.client.auth_method == "client_secret_post"
            assert ["client_secret" in form for form in net.forms("authorization_code")] == [False, True]
            assert await use(process, spec(LIES)) in net.issuer.tokens
            assert net.strays == []


@pytest.mark.parametrize("methods", [("client_secret_basic",), None])
async def test_a_secret_of_the_configuration_that_is_taken_in_the_form_only(methods: tuple[str, ...] | None) -> None:
    of = replace(LIES, client=("mine", "s3cret-of-mine"), auth_methods=methods)
    server = spec(of, client_id=Secret("mine"), client_secret=Secret("s3cret-of-mine"))
    with network(of) as net:
        async with processes() as (process,):
            await log_in(net, server, process.store)
            assert await use(process, server) in net.issuer.tokens
            assert net.strays == []


async def test_a_secret_goes_to_the_token_endpoint_of_its_issuer_alone() -> None:
    """An issuer that refuses each client gets the secret that it gave, at most twice, and no one else does."""
    of = replace(LIES, secret_by=("private_key_jwt",))
    with network(of, EVIL_ISSUER) as net:
        async with processes() as (process,):
            with pytest.raises(OAuthProblem, match="colonnade logout notes forgets it"):
                await log_in(net, spec(of), process.store)
            assert len(net.forms("authorization_code")) == 2
            assert net.strays == []
            assert net.issuers[1].asked == []
            assert present(process.store) is None


async def test_a_registration_that_the_issuer_has_forgotten() -> None:
    """The sentence says what to do; the tokens of the login that is there are not touched."""
    with network(PLAIN) as net:
        async with processes() as (process,):
            first = await log_in(net, spec(PLAIN), process.store)

            def forgets(query: str) -> str:
                net.issuer.clients.clear()
                return query

            with pytest.raises(OAuthProblem, match=r"may not know it any more: colonnade logout notes"):
                await log_in(net, spec(PLAIN), process.store, answer=forgets)
            assert present(process.store) == first


# Answers


async def test_a_refusal_that_says_nothing_keeps_the_login_and_names_the_remedy() -> None:
    with network(PLAIN) as net:
        async with processes() as (process,):
            await log_in(net, spec(PLAIN), process.store)
            net.issuer.says_only = Answer(400, b"no")
            for _ in range(20):
                with pytest.raises(LoginUnavailable, match="if that goes on, colonnade login notes"):
                    await use(process, spec(PLAIN))
            net.issuer.says_only = None
            assert await use(process, spec(PLAIN)) in net.issuer.tokens


FORMS = replace(PLAIN, name="forms", form_encoded="always", scope_between=",", errors_status=200, scopes=("a", "b"))


async def test_an_issuer_that_answers_with_forms() -> None:
    with network(FORMS) as net:
        async with processes() as (process,):
            made = await log_in(net, spec(FORMS), process.store)
            assert made.scopes == ("a", "b")
            assert await use(process, spec(FORMS)) in net.issuer.tokens
            net.issuer.outage = 503
            with pytest.raises(LoginUnavailable):
                await use(process, spec(FORMS))
            net.issuer.outage = 0
            assert await use(process, spec(FORMS)) in net.issuer.tokens
            net.issuer.lives = False
            assert await use(process, spec(FORMS)) == ""
            assert net.strays == []


async def test_a_token_of_a_person_one_level_deeper() -> None:
    of = replace(PLAIN, name="nested", nested="authed_user", token={"token_type": "user", "expires_in": "43200"})
    with network(of) as net:
        async with processes() as (process,):
            made = await log_in(net, spec(of), process.store)
            assert made.access_token in net.issuer.tokens
            assert await use(process, spec(of)) in net.issuer.tokens


async def test_parameters_that_an_issuer_wants() -> None:
    of = replace(PLAIN, name="offline", parameters={"access_type": "offline"})
    with network(of) as net:
        async with processes() as (process,):
            made = await log_in(net, spec(of), process.store)
            assert made.refresh_token is None
            made = await log_in(net, spec(of, parameters={"access_type": "offline"}), process.store)
            assert made.refresh_token is not None


async def test_a_refresh_has_the_scope_that_was_asked_for_where_another_was_granted() -> None:
    of = replace(PLAIN, name="granted", scope_at_refresh=True, token={"token_type": "Bearer", "scope": "granted"})
    server = spec(of, scopes=("asked",))
    with network(of) as net:
        async with processes() as (process,):
            made = await log_in(net, server, process.store)
            assert (made.scopes, made.requested) == (("granted",), ("asked",))
            assert await use(process, server) in net.issuer.tokens
            assert [form.get("scope") for form in net.forms("refresh_token")] == [None, "asked"]


async def test_a_tenant_that_only_the_login_decides() -> None:
    of = replace(
        PLAIN,
        name="tenants",
        issuer="https://login.example/common/v2.0",
        says=("https://login.example/{tenantid}/v2.0",),
        places=(OPENID_APPENDED,),
    )
    with network(of) as net:
        async with processes() as (process,):
            made = await log_in(net, spec(of), process.store)
            assert made.issuer == of.issuer
            with pytest.raises(OAuthProblem, match="of another issuer"):
                await log_in(net, spec(of), process.store, answer=lambda query: f"{query}&iss={EVIL}")
