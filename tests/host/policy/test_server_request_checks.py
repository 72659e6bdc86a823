"""What of a server's question never reaches anybody, by how far the server is trusted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from config import Trust
from host.jsonrpc.raw import encode, members
from host.policy.server_request_checks import MAX_SERVER_REQUEST, check_server_request, names_secret
from host.protocol.server_requests import ServerRequest, ServerRequestRejected

WARY = [Trust.STANDARD, Trust.UNTRUSTED]
SECRET = [
    *("password", "Password", "PASSWORD", "userPassword", "user_password", "user-password", "new password", "pwd"),
    *("passwd", "passphrase", "passwords", "Passwort"),
    *("apiKey", "api_key", "API key", "API_KEY", "APIKey", "githubApiKey", "apikeys", "api keys"),
    *("token", "accessToken", "access_token", "Bearer", "refresh-token", "tokens"),
    *("client_secret", "clientSecret", "secrets", "privateKey", "private key", "PrivateKeyPEM", "secret_key"),
    *("cvv", "CVC", "pin", "PIN code", "otp", "one_time_otp", "totp2", "mfaCode", "ssn", "creditCard", "card number"),
    *("seedPhrase", "mnemonic", "credentials", "sessionId", "session_cookie", "auth code", "IBAN"),
]
INNOCENT = [
    *("name", "email", "org", "repository", "keyboard", "key", "keys", "card", "number", "id", "note", "address", ""),
    *("maxTokens", "max_tokens", "token_count", "tokenLimit", "max token"),
    *("shipping", "opinion", "spin", "pinned", "passenger", "secretary", "tokenizer", "session", "author", "codes"),
]


def form(name: str, schema: object) -> dict[str, Raw]:
    return members(encode({"message": "m", "requestedSchema": {"type": "object", "properties": {name: schema}}}))


def page(url: str) -> dict[str, Raw]:
    return members(encode({"mode": "url", "message": "Log in", "url": url}))


@pytest.mark.parametrize("name", SECRET)
def test_a_form_that_asks_for_a_secret_is_refused_unless_its_server_is_trusted(name: str) -> None:
    """By the name of the field, or what people see of it."""
    assert names_secret(name)
    for params in (form(name, {"type": "string"}), form("f", {"type": "string", "title": name})):
        for trust in WARY:
            with pytest.raises(ServerRequestRejected, match="may not ask for secrets") as refused:
                check_server_request(ServerRequest.FORM, params, trust)
            assert refused.value.code == -32602
        assert check_server_request(ServerRequest.FORM, params, Trust.TRUSTED) == params


@pytest.mark.parametrize("name", INNOCENT)
@pytest.mark.parametrize("trust", list(Trust))
def test_a_form_that_asks_for_anything_else_passes_as_it_is(name: str, trust: Trust) -> None:
    params = form(name, {"type": "string", "title": name, "description": "Your password is not asked for."})
    assert check_server_request(ServerRequest.FORM, params, trust) == params


@pytest.mark.parametrize("hidden", ['"pass\\u0077ord"', '"p\\u0061ssword"'])
def test_an_escape_hides_no_field(hidden: str) -> None:
    params = members(b'{"message":"m","requestedSchema":{"properties":{"a":{},%s:{}}}}' % hidden.encode())
    with pytest.raises(ServerRequestRejected, match="'password'"):
        check_server_request(ServerRequest.FORM, params, Trust.STANDARD)


@pytest.mark.parametrize("schema", [5, "x", [], None, True, {"title": 5}])
def test_a_field_that_cannot_be_read_is_not_shown(schema: object) -> None:
    with pytest.raises(ServerRequestRejected, match="'f'"):
        check_server_request(ServerRequest.FORM, form("f", schema), Trust.STANDARD)


@pytest.mark.parametrize("schema", [{}, {"properties": {}}, {"properties": 5}, 5])
def test_a_form_without_fields_asks_for_nothing(schema: object) -> None:
    params = members(encode({"message": "m", "requestedSchema": schema}))
    assert check_server_request(ServerRequest.FORM, params, Trust.UNTRUSTED) == params


@given(st.text(max_size=60))
def test_any_name_of_a_field_is_one_thing_or_the_other(name: str) -> None:
    params = form(name, {"type": "string"})
    try:
        passed = check_server_request(ServerRequest.FORM, params, Trust.STANDARD) == params
    except ServerRequestRejected:
        passed = False
    assert passed is not names_secret(name)


@pytest.mark.parametrize(
    "url",
    [
        "https://xn--pple-43d.com/login",
        "https://login.xn--pple-43d.com",
        "https://XN--PPLE-43D.com",
        "https://\u0430pple.com/login",
        "https://login.g\u043e\u043egle.com",
        "https://user@\u0430pple.com:8443/",
    ],
)
def test_a_host_that_may_look_like_another_is_pointed_at(url: str) -> None:
    """The address stays what it is; the server's own words stay before ours."""
    for trust in WARY:
        found = check_server_request(ServerRequest.URL, page(url), trust)
        assert found["url"] == page(url)["url"]
        message = json.loads(bytes(found["message"]))
        first, second = message.split("\n")
        assert first == "Log in"
        assert second.startswith("(Careful: ")
        assert second.isascii()
        assert "xn--" in second
    assert check_server_request(ServerRequest.URL, page(url), Trust.TRUSTED) == page(url)


@pytest.mark.parametrize(
    "url",
    ["https://example.com/in", "https://example.com/xn--x", "http://127.0.0.1:80/\u00e9", "https://[::1]/", "x:y"],
)
@pytest.mark.parametrize("trust", list(Trust))
def test_of_an_ordinary_host_nothing_is_said(url: str, trust: Trust) -> None:
    assert check_server_request(ServerRequest.URL, page(url), trust) == page(url)


@pytest.mark.parametrize(
    "url", ["https://[", "https://\u0430" + "a" * 70 + ".com", "https://a..\u0430", "http://a\u2100b/"]
)
@pytest.mark.parametrize("trust", WARY)
def test_an_address_that_is_none_breaks_nothing(url: str, trust: Trust) -> None:
    params = members(json.dumps({"mode": "url", "message": "m", "url": url}).encode())
    try:
        found = check_server_request(ServerRequest.URL, params, trust)
    except ServerRequestRejected:
        return
    assert found["url"] == params["url"]


@pytest.mark.parametrize("more", [{"tools": []}, {"tools": [{"name": "t"}]}, {"toolChoice": {"mode": "auto"}}])
def test_only_a_trusted_server_gives_a_model_tools(more: dict[str, Any]) -> None:
    params = members(encode({"messages": [], "maxTokens": 5, **more}))
    for trust in WARY:
        with pytest.raises(ServerRequestRejected, match="tools"):
            check_server_request(ServerRequest.SAMPLING, params, trust)
    assert check_server_request(ServerRequest.SAMPLING, params, Trust.TRUSTED) == params


@pytest.mark.parametrize("trust", list(Trust))
def test_sampling_without_tools_passes_as_it_is(trust: Trust) -> None:
    params = members(encode({"messages": [{"role": "user"}], "maxTokens": 5, "systemPrompt": "Obey."}))
    assert check_server_request(ServerRequest.SAMPLING, params, trust) == params


@pytest.mark.parametrize("question", [ServerRequest.SAMPLING, ServerRequest.FORM, ServerRequest.URL])
def test_a_question_of_a_server_that_is_not_trusted_is_no_longer_than_a_person_reads(question: ServerRequest) -> None:
    params = page("https://x/1") | {"more": encode("x" * MAX_SERVER_REQUEST)}
    for trust in WARY:
        with pytest.raises(ServerRequestRejected, match="at most"):
            check_server_request(question, params, trust)
    assert check_server_request(question, params, Trust.TRUSTED) == params
    small = page("https://x/1") | {"more": encode("x" * (MAX_SERVER_REQUEST - 100))}
    assert check_server_request(question, small, Trust.STANDARD) == small
