"""A login from its beginning to the stored tokens, against an issuer that the test scripts."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import msgspec
import pytest
import trio

from config import HttpServer, OAuth, OAuthGrant, Pkce
from config.references import Secret
from host.oauth.authorization import ForeignAnswer
from host.oauth.challenge import Challenge
from host.oauth.documents import ClientRegistration
from host.oauth.problem import OAuthProblem
from host.storage.sqlite import SqliteStore
from host.upstream import login as module
from host.upstream.login import (
    MAX_STEP_UPS,
    AnswerBox,
    PendingLogin,
    TooManyStepUps,
    begin,
    bind_callback,
    finish,
    obtain_own,
    probe,
    propose,
    revoke,
)
from host.url import Url
from host.wire.issuer_http import IssuerUnreachable
from tests.host.oauth.test_assertion import EC, claims, pem
from tests.host.upstream.test_vault import LOGIN
from tests.kit.folders import folder
from tests.kit.gates import store_opener
from tests.kit.issuer import ISSUER_METADATA, RESOURCE_METADATA, Issuer, open_issuer
from tests.kit.logins import NOTES, VAULT, login, present, put
from tests.kit.ports import free_port


@asynccontextmanager
async def beginning(
    issuer: Issuer, stored: Any = None, challenge: Challenge | None = None
) -> AsyncIterator[tuple[PendingLogin, SqliteStore]]:
    """A login that has begun, for the block."""
    with folder() as made, store_opener(made / "state") as opens, bind_callback() as bound:
        store = opens()
        if stored is not None:
            client = stored.client
            if client.redirect_uri == "here":
                here = f"http://127.0.0.1:{bound.getsockname()[1]}/oauth/callback"
                stored = msgspec.structs.replace(stored, client=msgspec.structs.replace(client, redirect_uri=here))
            put(store, stored)
        yield await begin(await propose(issuer.spec, store, VAULT, bound, challenge)), store


async def fails(issuer: Issuer, why: str, *args: Any, error: type[OAuthProblem] = OAuthProblem, **more: Any) -> None:
    """The beginning of a login fails for this reason."""
    with pytest.raises(error, match=why):
        async with beginning(issuer, *args, **more):
            pass


def metadata(issuer: Issuer) -> dict[str, Any]:
    found: dict[str, Any] = issuer.documents[ISSUER_METADATA]
    return found


async def test_a_whole_login(issuer: Issuer) -> None:
    async with beginning(issuer) as (pending, store):
        query = parse_qs(urlsplit(pending.request.url).query)
        assert pending.request.url.startswith(f"{issuer.id}/authorize?")
        assert query["resource"] == [issuer.url]
        assert query["client_id"] == ["client-1"]
        (registered,) = issuer.paths("/register")
        wanted = json.loads(registered.body)
        assert (wanted["application_type"], wanted["redirect_uris"]) == ("native", query["redirect_uri"])
        assert not issuer.paths("/token")
        assert present(store) is None, "nothing is stored before the answer"

        issuer.tokens = [{"access_token": "t0ken", "refresh_token": "r", "expires_in": 60, "scope": "a"}]
        made = await finish(pending, "c0de", store, VAULT)
        (asked,) = issuer.paths("/token")
        assert asked.form == {
            "grant_type": "authorization_code",
            "code": "c0de",
            "redirect_uri": pending.request.redirect_uri,
            "code_verifier": pending.request.verifier,
            "resource": issuer.url,
            "client_id": "client-1",
        }
        assert present(store) == made
        assert (made.access_token, made.issuer, made.scopes) == ("t0ken", issuer.id, ("a",))
        assert made.client.is_dynamic


@pytest.mark.parametrize(
    "answer", [{"error": "invalid_grant"}, {"access_token": "a b"}, (200, {}, b"no"), (302, {}, b"")]
)
async def test_a_code_that_is_refused_stores_nothing(issuer: Issuer, answer: Any) -> None:
    async with beginning(issuer) as (pending, store):
        issuer.tokens = [answer]
        with pytest.raises(OAuthProblem):
            await finish(pending, "c0de", store, VAULT)
        assert present(store) is None


async def test_what_an_issuer_says_about_a_code_is_told_without_secrets(issuer: Issuer) -> None:
    async with beginning(issuer) as (pending, store):
        words = f"code c0de-c0de with {pending.request.verifier} for {pending.request.state} is used up"
        issuer.tokens = [(400, {}, json.dumps({"error": "invalid_grant", "error_description": words}).encode())]
        with pytest.raises(OAuthProblem) as caught:
            await finish(pending, "c0de-c0de", store, VAULT)
        assert str(caught.value) == "the issuer refused the request (invalid_grant)"
        assert caught.value.told == f'{caught.value}; the issuer says: "code *** with *** for *** is used up"'


# Codes of others, and for others


async def test_a_code_goes_to_the_issuer_that_was_asked(issuer: Issuer, other: Issuer) -> None:
    """Although the metadata name another token endpoint by the time the answer comes."""
    async with beginning(issuer) as (pending, store):
        metadata(issuer)["token_endpoint"] = f"{other.id}/token"
        issuer.documents[RESOURCE_METADATA]["authorization_servers"] = [other.id]
        issuer.tokens = [{"access_token": "t"}]
        await finish(pending, "c0de", store, VAULT)
        assert issuer.paths("/token")[0].form["code"] == "c0de"
        assert other.asked == []


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_neither_a_code_nor_a_token_goes_along_a_redirect(issuer: Issuer, other: Issuer, status: int) -> None:
    async with beginning(issuer) as (pending, store):
        for path in ("/token", "/revoke"):
            issuer.documents[path] = (status, {"location": f"{other.id}{path}"}, b"")
        with pytest.raises(OAuthProblem, match="the issuer refused the request"):
            await finish(pending, "c0de", store, VAULT)
        with pytest.raises(OAuthProblem, match="did not revoke"):
            await revoke(login(issuer), Url.parse(issuer.url))
        assert other.asked == []


@pytest.mark.parametrize("status", [301, 307, 308])
async def test_a_registration_goes_along_no_redirect(issuer: Issuer, other: Issuer, status: int) -> None:
    issuer.documents["/register"] = (status, {"location": f"{other.id}/register"}, b"")
    await fails(issuer, "refused to register")
    assert other.asked == []


async def test_an_answer_to_another_login_is_foreign() -> None:
    """Two at once, at two issuers: neither takes the answer of the other, and each still takes its own."""
    async with open_issuer() as one, open_issuer() as two, beginning(one) as (first, _), beginning(two) as (second, _):
        boxes = {pending.request.state: AnswerBox(pending.request) for pending in (first, second)}
        for state in boxes:
            for other, box in boxes.items():
                if other != state:
                    with pytest.raises(ForeignAnswer):
                        box.take(urlencode({"code": "evil", "state": state}))
        for state, box in boxes.items():
            box.take(urlencode({"code": state[:5], "state": state}))
            assert await box.code() == state[:5]


async def test_an_answer_to_a_former_login_is_foreign(issuer: Issuer) -> None:
    async with beginning(issuer) as (former, _):
        answer = urlencode({"code": "c", "state": former.request.state})
    async with beginning(issuer) as (pending, _):
        with pytest.raises(ForeignAnswer):
            AnswerBox(pending.request).take(answer)
        assert pending.request.verifier != former.request.verifier


# Scopes


async def test_the_scopes_are_those_of_the_challenge(issuer: Issuer) -> None:
    issuer.challenge = 'Bearer scope="b"'
    issuer.documents[RESOURCE_METADATA]["scopes_supported"] = ["a"]
    async with beginning(issuer) as (pending, _):
        assert pending.request.scopes == ("b",)
    async with beginning(issuer, challenge=Challenge(scopes=("c",))) as (pending, _):
        assert pending.request.scopes == ("c",)
    issuer.challenge = "Bearer"
    async with beginning(issuer) as (pending, _):
        assert pending.request.scopes == ("a",)


async def test_missing_scopes_are_added_to_those_of_the_login(issuer: Issuer) -> None:
    issuer.challenge = 'Bearer scope="a"'
    async with beginning(issuer, login(issuer, scopes=("a", "z"), missing=("b",))) as (pending, store):
        assert pending.request.scopes == ("a", "z", "b")
        issuer.tokens = [{"access_token": "t"}]
        made = await finish(pending, "c", store, VAULT)
        assert (made.step_ups, made.missing, made.scopes) == (1, (), ("a", "z", "b"))


async def test_scopes_grow_a_few_times_only(issuer: Issuer) -> None:
    with pytest.raises(TooManyStepUps, match="wants more scopes after each of 2 logins"):
        async with beginning(issuer, login(issuer, missing=("b",), step_ups=MAX_STEP_UPS)):
            pass
    async with beginning(issuer, login(issuer, step_ups=MAX_STEP_UPS)) as (pending, _):
        assert pending.request.scopes == ("a",)


async def test_scopes_of_another_issuer_are_not_taken_along(issuer: Issuer) -> None:
    former = login(issuer, issuer="https://former.example", missing=("b",))
    async with beginning(issuer, former) as (pending, _):
        assert pending.request.scopes == ()


# Registrations


async def test_a_registration_is_used_again_at_its_port(issuer: Issuer) -> None:
    former = login(issuer, client=ClientRegistration("known", redirect_uri="here", is_dynamic=True))
    async with beginning(issuer, former) as (pending, _):
        assert pending.client.client_id == "known"
        assert not issuer.paths("/register")


@pytest.mark.parametrize(
    ("registered", "missing", "client_id"),
    [
        (("a",), (), "known"),
        (("a", "b", "c"), ("b",), "known"),
        (("a",), ("b",), "client-1"),
        (None, (), "known"),  # the login has its scopes by it
        (None, ("b",), "client-1"),
    ],
)
async def test_a_registration_is_used_for_its_scopes_only(
    issuer: Issuer, registered: tuple[str, ...] | None, missing: tuple[str, ...], client_id: str
) -> None:
    """Many issuers refuse others with invalid_scope."""
    issuer.challenge = 'Bearer scope="a"'
    client = ClientRegistration("known", redirect_uri="here", is_dynamic=True, scopes=registered)
    async with beginning(issuer, login(issuer, client=client, missing=missing)) as (pending, store):
        assert (pending.client.client_id, pending.request.client_id) == (client_id, client_id)
        for asked in issuer.paths("/register"):
            assert json.loads(asked.body)["scope"] == "a b"
        issuer.tokens = [{"access_token": "t"}]
        made = await finish(pending, "c", store, VAULT)
        assert made.client.scopes == (registered if client_id == "known" else ("a", "b"))


async def test_scopes_that_were_configured_later_are_registered_too(issuer: Issuer) -> None:
    configure(issuer, OAuth(scopes=("a", "x")))
    client = ClientRegistration("known", redirect_uri="here", is_dynamic=True, scopes=("a",))
    async with beginning(issuer, login(issuer, client=client)) as (pending, _):
        assert (pending.client.client_id, pending.client.scopes) == ("client-1", ("a", "x"))


@pytest.mark.parametrize("indicator", ["", "api://notes"])
async def test_a_resource_that_is_not_the_servers_or_none(issuer: Issuer, indicator: str) -> None:
    """In each request; the login stays that of the server."""
    issuer.oauth = OAuth(resource=indicator)
    async with beginning(issuer) as (pending, store):
        issuer.tokens = [{"access_token": "t"}]
        made = await finish(pending, "c", store, VAULT)
        sent = [parse_qs(urlsplit(pending.request.url).query), parse_qs(issuer.paths("/token")[0].body.decode())]
        assert [each.get("resource") for each in sent] == [[indicator] if indicator else None] * 2
        assert (made.resource, made.named_resource) == (issuer.url, indicator)
        assert any("oauth.resource" in notice for notice in pending.proposed.notices)


async def test_an_issuer_that_does_not_say_whether_it_knows_pkce(issuer: Issuer) -> None:
    """With pkce: assume the challenge is sent; one that says that it knows none stays refused."""
    del metadata(issuer)["code_challenge_methods_supported"]
    await fails(issuer, r"set oauth\.pkce: assume")
    issuer.oauth = OAuth(pkce=Pkce.ASSUME)
    async with beginning(issuer) as (pending, _):
        assert "code_challenge_method=S256" in pending.request.url
        assert any("oauth.pkce" in notice for notice in pending.proposed.notices)
    metadata(issuer)["code_challenge_methods_supported"] = ["plain"]
    await fails(issuer, r"without which a login is not safe$")


async def test_a_token_request_with_a_scope_too_many_says_what_to_do(issuer: Issuer) -> None:
    configure(issuer, CONFIDENTIAL)
    metadata(issuer)["token_endpoint_auth_methods_supported"] = ["client_secret_post"]
    async with beginning(issuer) as (pending, store):
        issuer.tokens = [{"error": "invalid_scope"}]
        with pytest.raises(OAuthProblem, match=r"\(invalid_scope\): it does not give the client these scopes"):
            await finish(pending, "c", store, VAULT)


@pytest.mark.parametrize(
    "client",
    [
        ClientRegistration("known", redirect_uri="http://127.0.0.1:1/oauth/callback", is_dynamic=True),
        ClientRegistration("known", "s", "client_secret_post", "here", secret_expires=5, is_dynamic=True),
    ],
)
async def test_a_registration_for_another_port_or_time_is_made_anew(issuer: Issuer, client: ClientRegistration) -> None:
    async with beginning(issuer, login(issuer, client=client)) as (pending, _):
        assert pending.client.client_id == "client-1"
        assert pending.client.redirect_uri == pending.request.redirect_uri


async def test_a_registration_is_never_used_at_another_issuer(issuer: Issuer, other: Issuer) -> None:
    """And the person is told that it is another one."""
    former = login(issuer, client=ClientRegistration("known", "s3cret", "client_secret_post", "here", is_dynamic=True))
    issuer.documents[RESOURCE_METADATA]["authorization_servers"] = [other.id]
    async with beginning(issuer, former) as (pending, store):
        assert pending.proposed.is_other_issuer
        assert pending.client.client_id == "client-1"
        assert b"known" not in b"".join(each.body for each in other.asked)
        assert present(store) == msgspec.structs.replace(
            former, client=msgspec.structs.replace(former.client, redirect_uri=pending.request.redirect_uri)
        ), "the former login stays until the new one is done"
        other.tokens = [{"access_token": "new"}]
        made = await finish(pending, "c", store, VAULT)
        assert present(store) == made
        assert made.issuer == other.id


@pytest.mark.parametrize("stored", ["", "/"])
async def test_a_login_under_the_other_spelling_of_its_issuer_is_good(issuer: Issuer, stored: str) -> None:
    """Its client and its scopes are used again, nobody is asked about another issuer, and nothing is revoked."""
    issuer.documents[RESOURCE_METADATA]["authorization_servers"] = [f"{issuer.id}/"]
    metadata(issuer)["issuer"] = issuer.id if stored else f"{issuer.id}/"
    client = ClientRegistration("known", redirect_uri="here", is_dynamic=True)
    async with beginning(issuer, login(issuer, issuer=issuer.id + stored, client=client)) as (pending, store):
        assert not pending.proposed.is_other_issuer
        assert (pending.client.client_id, pending.request.scopes) == ("known", ("a",))
        issuer.tokens = [{"access_token": "t"}]
        made = await finish(pending, "c", store, VAULT)
        assert made.issuer == metadata(issuer)["issuer"]
        assert not issuer.paths("/revoke")


async def test_the_issuer_of_an_answer_has_the_text_of_the_metadata(issuer: Issuer) -> None:
    issuer.documents[RESOURCE_METADATA]["authorization_servers"] = [f"{issuer.id}/"]
    async with beginning(issuer) as (pending, _):
        good = {"code": "c", "state": pending.request.state}
        with pytest.raises(OAuthProblem, match="another issuer"):
            pending.request.read_answer(urlencode({**good, "iss": f"{issuer.id}/"}))
        assert pending.request.read_answer(urlencode({**good, "iss": issuer.id})) == "c"


async def test_what_a_configuration_may_lack_is_said_before_the_login(issuer: Issuer) -> None:
    metadata(issuer)["scopes_supported"] = ["a", "offline_access"]
    async with beginning(issuer) as (pending, _):
        assert pending.request.scopes == ("offline_access",)
        assert list(pending.proposed.notices) == []
    issuer.oauth = OAuth(client_id=Secret("mine"), scopes=("a",))
    async with beginning(issuer) as (pending, _):
        assert pending.request.scopes == ("a",)
        redirect, refresh = pending.proposed.notices
        assert f"must permit the redirect {pending.request.redirect_uri}" in redirect
        assert refresh.startswith("oauth.scopes has no offline_access")
    issuer.oauth = OAuth(scopes=("a", "offline_access"))
    async with beginning(issuer) as (pending, _):
        assert list(pending.proposed.notices) == []


@pytest.mark.parametrize("reply", [(200, {}, b""), (503, {}, b"")])
async def test_a_login_at_another_issuer_has_the_former_one_revoked(issuer: Issuer, other: Issuer, reply: Any) -> None:
    """With the tokens that are stored then; that the issuer fails does not fail the login."""
    issuer.documents[RESOURCE_METADATA]["authorization_servers"] = [other.id]
    issuer.documents["/revoke"] = reply
    async with beginning(issuer, login(issuer)) as (pending, store):
        put(store, login(issuer, refresh_token="refresh-2"))
        other.tokens = [{"access_token": "new"}]
        made = await finish(pending, "c", store, VAULT)
        assert present(store) == made
        tried = [each.form["token"] for each in issuer.paths("/revoke")]
        assert tried == ["refresh-2", "access-1"][: 2 if reply[0] == 200 else 1]
        assert not other.paths("/revoke")


@pytest.mark.parametrize("client_id", ["client-1", "former"])
async def test_a_login_of_the_same_client_leaves_the_former_one(issuer: Issuer, client_id: str) -> None:
    """It may be the same grant, which would end with a token of it. That of another client is another grant."""
    former = login(issuer, client=ClientRegistration(client_id, is_dynamic=True))
    async with beginning(issuer, former) as (pending, store):
        issuer.tokens = [{"access_token": "new"}]
        await finish(pending, "c", store, VAULT)
        assert [each.form["client_id"] for each in issuer.paths("/revoke")] == ["former"] * (
            0 if client_id == "client-1" else 2
        )


async def test_an_issuer_that_does_not_answer_a_revocation_delays_no_login(
    issuer: Issuer, other: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REVOKE_TIMEOUT", 0.05)
    other.before_token = trio.Event()
    stored = login(other, resource=issuer.url, revocation_endpoint=f"{other.id}/token")
    async with beginning(issuer, stored) as (pending, store):
        issuer.tokens = [{"access_token": "new"}]
        made = await finish(pending, "c", store, VAULT)
        assert present(store) == made
        assert len(other.paths("/token")) == 1
        other.before_token.set()


async def test_the_same_issuer_is_no_other_one(issuer: Issuer) -> None:
    async with beginning(issuer, login(issuer)) as (pending, _):
        assert not pending.proposed.is_other_issuer


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"redirect_uris": ["https://evil.example/"]}, "another redirect"),
        ({"client_id": ""}, "invalid"),
        ({"token_endpoint_auth_method": "private_key_jwt"}, "not supported"),
    ],
)
async def test_a_registration_that_is_changed_is_refused(issuer: Issuer, change: dict[str, Any], why: str) -> None:
    issuer.registration = change
    await fails(issuer, why)


async def test_an_issuer_that_refuses_to_register(issuer: Issuer) -> None:
    issuer.documents["/register"] = (400, {}, b'{"error": "invalid_redirect_uri", "error_description": "<b>"}')
    with pytest.raises(OAuthProblem, match=r"refused to register Colonnade \(invalid_redirect_uri\)") as caught:
        async with beginning(issuer):
            pass
    assert caught.value.told == f'{caught.value}; the issuer says: "<b>"'
    del metadata(issuer)["registration_endpoint"]
    await fails(issuer, r"registers no clients by itself: .* set oauth.client_id")


CLIENT = OAuth(client_id=Secret("mine"))
CONFIDENTIAL = OAuth(client_id=Secret("mine"), client_secret=Secret("s3cret"))


def configure(issuer: Issuer, oauth: OAuth) -> None:
    """Put this into the configuration of the server."""
    issuer.oauth = oauth


@pytest.mark.parametrize(
    ("oauth", "methods", "method"),
    [
        (CLIENT, ["none"], "none"),
        (CLIENT, ["client_secret_basic"], "none"),
        (CONFIDENTIAL, ["client_secret_post", "client_secret_basic"], "client_secret_basic"),
        (CONFIDENTIAL, ["client_secret_post"], "client_secret_post"),
    ],
)
async def test_a_configured_client_comes_before_all_others(
    issuer: Issuer, oauth: OAuth, methods: list[str], method: str
) -> None:
    configure(issuer, replace(oauth, client_metadata_url="https://me.example/colonnade.json"))
    metadata(issuer).update(token_endpoint_auth_methods_supported=methods, client_id_metadata_document_supported=True)
    async with beginning(issuer) as (pending, store):
        assert (pending.client.client_id, pending.client.auth_method) == ("mine", method)
        assert not issuer.paths("/register")
        issuer.tokens = [{"access_token": "t"}]
        await finish(pending, "c", store, VAULT)
        (asked,) = issuer.paths("/token")
        assert (asked.headers.one("authorization") is not None) == (method == "client_secret_basic")


async def test_an_issuer_that_takes_no_secret(issuer: Issuer) -> None:
    configure(issuer, CONFIDENTIAL)
    metadata(issuer)["token_endpoint_auth_methods_supported"] = ["private_key_jwt"]
    await fails(issuer, "does not take a client_secret")


async def test_a_client_with_a_private_key_signs(issuer: Issuer) -> None:
    configure(issuer, OAuth(client_id=Secret("mine"), private_key=Secret(pem(EC))))
    await fails(issuer, "does not take a private_key")
    metadata(issuer)["token_endpoint_auth_methods_supported"] = ["private_key_jwt"]
    async with beginning(issuer) as (pending, store):
        issuer.tokens = [{"access_token": "t"}]
        await finish(pending, "c", store, VAULT)
        (asked,) = issuer.paths("/token")
        assert claims(asked.form["client_assertion"])["aud"] == issuer.id
        assert b"PRIVATE" not in asked.body


@pytest.mark.parametrize("supported", [True, False])
async def test_a_metadata_document_is_used_where_the_issuer_takes_one(issuer: Issuer, supported: bool) -> None:
    configure(issuer, OAuth(client_metadata_url="https://me.example/colonnade.json"))
    metadata(issuer)["client_id_metadata_document_supported"] = supported
    async with beginning(issuer) as (pending, _):
        wanted = "https://me.example/colonnade.json" if supported else "client-1"
        assert pending.client.client_id == wanted


async def test_configured_scopes_are_the_only_ones(issuer: Issuer) -> None:
    configure(issuer, OAuth(scopes=("x",)))
    issuer.challenge = 'Bearer scope="everything"'
    async with beginning(issuer) as (pending, _):
        assert pending.request.scopes == ("x",)


# Servers of 2025-03-26


async def test_a_login_at_the_endpoints_of_2025_03_26(issuer: Issuer) -> None:
    issuer.documents.clear()
    async with beginning(issuer) as (pending, store):
        assert pending.request.url.startswith(f"{issuer.id}/authorize?")
        assert parse_qs(urlsplit(pending.request.url).query)["code_challenge_method"] == ["S256"]
        assert ["/authorize, /token" in each for each in pending.proposed.notices] == [True]
        issuer.tokens = [{"access_token": "t"}]
        assert (await finish(pending, "c", store, VAULT)).issuer == issuer.id
        assert issuer.paths("/token")[0].form["code_verifier"] == pending.request.verifier


async def test_a_server_that_wants_no_login_at_all_is_told_from_one_that_refuses(issuer: Issuer) -> None:
    issuer.documents = {"/register": (404, {}, b"not found")}
    with pytest.raises(
        OAuthProblem, match=r"no metadata about a login, .* \(/register: HTTP 404\)\. It may want an API"
    ):
        async with beginning(issuer):
            pass


@asynccontextmanager
async def elsewhere() -> AsyncIterator[tuple[Issuer, Issuer]]:
    """A server whose own metadata name another issuer, which has the same endpoints."""
    async with open_issuer() as server, open_issuer() as other:
        del server.documents[RESOURCE_METADATA]
        metadata(other).update(
            authorization_endpoint=f"{server.id}/authorize",
            token_endpoint_auth_methods_supported=["none", "client_secret_post"],
        )
        server.documents[ISSUER_METADATA] = metadata(other)
        yield server, other


async def test_an_issuer_elsewhere_is_shown_and_gets_a_client_of_its_own() -> None:
    async with elsewhere() as (server, other), beginning(server) as (pending, store):
        assert pending.proposed.purpose["issuer"] == other.id
        assert pending.proposed.purpose["page"] == server.id
        assert (len(other.paths("/register")), server.paths("/register")) == (1, [])
        other.tokens = [{"access_token": "t"}]
        made = await finish(pending, "c", store, VAULT)
        assert (made.issuer, made.token_endpoint) == (other.id, f"{other.id}/token")


async def test_an_issuer_elsewhere_gets_no_client_of_the_configuration() -> None:
    """Nor its secret: any server could name it."""
    async with elsewhere() as (server, other):
        configure(server, CONFIDENTIAL)
        with pytest.raises(OAuthProblem, match=r"the client of oauth\.client_id is not used there"):
            async with beginning(server):
                pass
        configure(server, OWN)
        with pytest.raises(OAuthProblem, match=r"the client of oauth\.client_id is not used there"):
            await obtain_own(server.spec, None, "", 5.0)
        assert {each.path for each in other.asked} == {ISSUER_METADATA}
        assert not server.paths("/token")


# Colonnade itself


OWN = replace(CONFIDENTIAL, grant=OAuthGrant.CLIENT_CREDENTIALS, scopes=("a",))


async def test_a_client_gets_a_token_for_itself(issuer: Issuer) -> None:
    configure(issuer, OWN)
    metadata(issuer)["token_endpoint_auth_methods_supported"] = ["client_secret_post"]
    issuer.tokens = [{"access_token": "own", "expires_in": 60}]
    made = await obtain_own(issuer.spec, None, "", 5.0)
    (asked,) = issuer.paths("/token")
    assert asked.form == {
        "grant_type": "client_credentials",
        "resource": issuer.url,
        "scope": "a",
        "client_id": "mine",
        "client_secret": "s3cret",
    }
    assert (made.access_token, made.expires, made.refresh_token) == ("own", 65.0, None)


async def test_the_secret_of_a_client_goes_to_the_issuer_of_the_first_time_only(issuer: Issuer, other: Issuer) -> None:
    configure(issuer, OWN)
    issuer.documents[RESOURCE_METADATA]["authorization_servers"] = [other.id]
    with pytest.raises(OAuthProblem, match=r"names the issuer .* now"):
        await obtain_own(issuer.spec, login(issuer), issuer.id, 5.0)
    assert not other.paths("/token")


async def test_the_secret_of_a_client_is_not_sent_to_a_usual_path(issuer: Issuer) -> None:
    """The metadata may be missing for a moment only, and no person sees where it would go."""
    configure(issuer, OWN)
    issuer.documents.clear()
    issuer.tokens = [{"access_token": "own"}]
    for former in ("", issuer.id):
        with pytest.raises(OAuthProblem, match="is not sent to a guess"):
            await obtain_own(issuer.spec, None, former, 5.0)
    assert not issuer.paths("/token")


async def test_the_secret_of_a_client_goes_to_either_spelling_of_its_issuer(issuer: Issuer) -> None:
    configure(issuer, OWN)
    metadata(issuer)["token_endpoint_auth_methods_supported"] = ["client_secret_post"]
    issuer.tokens = [{"access_token": "own"}]
    assert (await obtain_own(issuer.spec, None, f"{issuer.id}/", 5.0)).issuer == issuer.id


async def test_an_issuer_without_pkce_is_refused_before_anything_is_sent_to_it(issuer: Issuer) -> None:
    metadata(issuer)["code_challenge_methods_supported"] = ["plain"]
    await fails(issuer, "PKCE")
    assert {each.path for each in issuer.asked} == {"/mcp", RESOURCE_METADATA, ISSUER_METADATA}


# The server


@pytest.mark.parametrize(
    ("challenge", "found"),
    [
        ('Bearer scope="a b"', Challenge(scopes=("a", "b"))),
        ("Basic realm=x", None),
        (None, None),
    ],
)
async def test_a_server_is_asked_for_its_challenge(
    issuer: Issuer, challenge: str | None, found: Challenge | None
) -> None:
    issuer.challenge = challenge
    spec = replace(issuer.spec, headers={"X-Tenant": Secret("t")})
    assert await probe(spec) == found
    assert issuer.asked[0].headers.one("x-tenant") == "t"
    assert issuer.asked[0].headers.one("authorization") is None


async def test_a_server_with_a_stream_at_its_address_is_asked_too(issuer: Issuer) -> None:
    issuer.documents["/mcp"] = (405, {"www-authenticate": "Bearer scope=a"}, b"")
    assert await probe(issuer.spec) is None
    assert [each.method for each in issuer.asked] == ["POST", "GET"]


async def test_a_server_that_is_not_there() -> None:
    with pytest.raises(IssuerUnreachable, match="connection refused"):
        await probe(HttpServer(id="a", url=Secret(f"http://127.0.0.1:{free_port()}/mcp")))


# The answer


async def test_an_answer_is_taken_once(issuer: Issuer) -> None:
    async with beginning(issuer) as (pending, _):
        box = AnswerBox(pending.request)
        good = urlencode({"code": "c", "state": pending.request.state})
        with pytest.raises(ForeignAnswer):
            box.take(urlencode({"code": "evil", "state": "guess"}))
        box.take(good)
        assert await box.code() == "c"
        for replayed in (good, urlencode({"code": "d", "state": pending.request.state})):
            with pytest.raises(OAuthProblem, match="has had its answer already"):
                box.take(replayed)
        assert await box.code() == "c"


async def test_a_denied_login_is_told(issuer: Issuer) -> None:
    async with beginning(issuer) as (pending, _):
        box = AnswerBox(pending.request)
        with pytest.raises(OAuthProblem, match="denied"):
            box.take(urlencode({"error": "access_denied", "state": pending.request.state}))
        with pytest.raises(OAuthProblem, match="denied"):
            await box.code()


@pytest.mark.parametrize("form", ["{redirect}?{query}", " {redirect}?{query}#x \n", "{query}"])
async def test_an_address_can_be_pasted(issuer: Issuer, form: str) -> None:
    async with beginning(issuer) as (pending, _):
        box = AnswerBox(pending.request)
        query = urlencode({"code": "c", "state": pending.request.state})
        box.take_address(form.format(redirect=pending.request.redirect_uri, query=query))
        assert await box.code() == "c"


@pytest.mark.parametrize("text", ["", "hello", "http://[", "http://127.0.0.1/oauth/callback?code=c", "\x00"])
async def test_another_text_is_no_answer(issuer: Issuer, text: str) -> None:
    async with beginning(issuer) as (pending, _):
        box = AnswerBox(pending.request)
        with pytest.raises(ForeignAnswer):
            box.take_address(text)


def test_a_port_that_is_taken_is_replaced() -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        taken = bound.getsockname()[1]
        client = ClientRegistration("c", redirect_uri=f"http://127.0.0.1:{taken}/oauth/callback")
        former = msgspec.structs.replace(LOGIN, client=client)
        with bind_callback(None, former) as other:
            assert other.getsockname()[1] != taken
        with pytest.raises(OSError, match=r"cannot listen .*; it is oauth\.redirect_port of the server"):
            bind_callback(OAuth(redirect_port=taken), former)
    for configured, known in ((None, former), (OAuth(redirect_port=taken), None)):
        with bind_callback(configured, known) as same:
            assert same.getsockname() == ("127.0.0.1", taken)


# The end


async def test_both_tokens_are_revoked_at_the_issuer(issuer: Issuer) -> None:
    assert await revoke(login(issuer), Url.parse(issuer.url))
    assert [each.form["token"] for each in issuer.paths("/revoke")] == ["refresh-1", "access-1"]
    assert not await revoke(login(issuer, revocation_endpoint=None), Url.parse(issuer.url))
    issuer.documents["/revoke"] = (400, {}, b"")
    with pytest.raises(OAuthProblem, match="did not revoke"):
        await revoke(login(issuer), Url.parse(issuer.url))


async def test_what_is_left_in_memory_is_not_shown(issuer: Issuer) -> None:
    async with beginning(issuer) as (pending, _):
        await trio.lowlevel.checkpoint()
        for secret in (pending.request.state, pending.request.verifier):
            assert secret not in repr(pending)
        assert NOTES.server == "notes"
