"""The authorization request, and the answers to it that are good, foreign or false."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from config import Zone
from host.oauth.authorization import MAX_ANSWER, AuthorizationRequest, ForeignAnswer, challenge_of, choose_scopes
from host.oauth.documents import read_issuer
from host.oauth.problem import OAuthProblem
from tests.host.oauth.test_documents import ISSUER, METADATA, REDIRECT, dump


def request(**more: object) -> AuthorizationRequest:
    issuer = read_issuer(dump({**METADATA, **more}), ISSUER, Zone.PUBLIC)
    return AuthorizationRequest(
        issuer=issuer,
        client_id="client",
        redirect_uri=REDIRECT,
        resource="https://mcp.example/v1/mcp",
        scopes=("a", "b"),
    )


def test_the_url_has_all_that_the_specification_wants() -> None:
    made = request()
    query = parse_qs(urlsplit(made.url).query)
    assert made.url.startswith("https://login.example/authorize?")
    assert query == {
        "response_type": ["code"],
        "client_id": ["client"],
        "redirect_uri": [REDIRECT],
        "state": [made.state],
        "code_challenge": [challenge_of(made.verifier)],
        "code_challenge_method": ["S256"],
        "resource": ["https://mcp.example/v1/mcp"],
        "scope": ["a b"],
    }


def test_the_query_of_an_endpoint_is_kept() -> None:
    made = request(authorization_endpoint="https://login.example/authorize?tenant=1")
    assert made.url.startswith("https://login.example/authorize?tenant=1&response_type=code")


def test_no_scope_is_requested_if_none_is_known() -> None:
    assert "scope=" not in replace(request(), scopes=()).url


def test_offline_access_asks_for_consent() -> None:
    assert "prompt=consent" in replace(request(), scopes=("offline_access",)).url
    assert "prompt" not in request().url


def test_parameters_of_the_configuration_are_added() -> None:
    """Google gives a refresh token with `access_type=offline` only; a page may refuse `prompt=consent`."""
    made = replace(request(), scopes=("offline_access",), extra={"access_type": "offline"})
    query = parse_qs(urlsplit(made.url).query, keep_blank_values=True)
    assert (query["access_type"], query["prompt"]) == (["offline"], ["consent"])
    assert "prompt=select_account" in replace(made, extra={"prompt": "select_account"}).url
    assert "prompt" not in replace(made, extra={"prompt": ""}).url


def test_no_parameter_replaces_one_of_ours() -> None:
    """Even if one got past the configuration, the answer comes to us, for this request."""
    made = request()
    bad = dict.fromkeys(("state", "redirect_uri", "code_challenge", "client_id", "response_type", "resource"), "evil")
    assert parse_qs(urlsplit(replace(made, extra=bad).url).query) == parse_qs(urlsplit(made.url).query)


def test_the_challenge_is_that_of_the_standard() -> None:
    """The example of RFC 7636, appendix B."""
    assert challenge_of("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk") == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"


def test_each_request_has_secrets_of_its_own_that_are_not_shown() -> None:
    one, other = request(), request()
    assert one.state != other.state
    assert one.verifier != other.verifier
    assert 43 <= len(one.verifier) <= 128
    assert one.state not in repr(one)
    assert one.verifier not in repr(one)


def test_a_good_answer_gives_its_code() -> None:
    made = request()
    assert made.read_answer(urlencode({"code": "c", "state": made.state})) == "c"
    assert made.read_answer(urlencode({"code": "c", "state": made.state, "iss": ISSUER, "session_state": "x"})) == "c"


@pytest.mark.parametrize(
    "iss",
    [
        "https://evil.example",
        f"{ISSUER}/",
        ISSUER.upper(),
        ISSUER.replace("login.example", "login.example:443"),
        ISSUER.replace("tenant", "%74enant"),
        "",
    ],
)
@pytest.mark.parametrize("promised", [True, False])
@pytest.mark.parametrize("member", ["code", "error"])
def test_an_answer_of_another_issuer_is_refused(iss: str, promised: bool, member: str) -> None:
    """Also an error, whose text is not shown (2026-07-28, "Authorization Response Validation")."""
    made = request(authorization_response_iss_parameter_supported=promised)
    with pytest.raises(OAuthProblem, match="of another issuer"):
        made.read_answer(urlencode({member: "access_denied", "state": made.state, "iss": iss}))


@pytest.mark.parametrize("member", ["code", "error"])
def test_a_promised_issuer_must_be_there(member: str) -> None:
    made = request(authorization_response_iss_parameter_supported=True)
    with pytest.raises(OAuthProblem, match="does not name its issuer"):
        made.read_answer(urlencode({member: "access_denied", "state": made.state}))


@pytest.mark.parametrize(
    "query",
    [
        "code=c",
        "code=c&state=",
        "code=c&state=other",
        "code=c&state={state}x",
        "code=%FF&state={state}",
        "&".join(f"a{n}=1" for n in range(40)) + "&code=c&state={state}",
        "",
    ],
)
def test_an_answer_to_another_request_is_foreign(query: str) -> None:
    made = request()
    with pytest.raises(ForeignAnswer):
        made.read_answer(query.replace("{state}", made.state))


@pytest.mark.parametrize("twice", ["code=c&code=d", "state={state}", "iss=a&iss=b", "error=a&error=b"])
def test_a_parameter_that_is_there_twice_is_refused(twice: str) -> None:
    """Two parsers could read it differently (RFC 6749, 3.1)."""
    made = request()
    with pytest.raises(ForeignAnswer, match="more than once"):
        made.read_answer(f"{twice}&state={{state}}".replace("{state}", made.state))


def test_a_client_id_and_a_scope_add_nothing_to_the_request() -> None:
    """Both are what the issuer or the server said."""
    evil = "c&redirect_uri=https://evil.example/&code_challenge_method=plain&state=x#"
    made = replace(request(), client_id=evil, scopes=(evil,), resource=evil)
    query = parse_qs(urlsplit(made.url).query)
    assert query["client_id"] == query["scope"] == query["resource"] == [evil]
    assert (query["redirect_uri"], query["code_challenge_method"]) == ([REDIRECT], ["S256"])
    assert query["state"] == [made.state]


def test_a_long_answer_is_foreign() -> None:
    made = request()
    with pytest.raises(ForeignAnswer):
        made.read_answer(urlencode({"code": "c" * MAX_ANSWER, "state": made.state}))


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({"error": "access_denied", "error_description": "<b>call 555</b>"}, "the login was denied"),
        ({"error": "invalid_scope"}, r"\(invalid_scope\): it does not give the client .* set oauth.scopes to those"),
        ({"error": "server_error", "error_description": "555"}, r"refused the login \(server_error\)$"),
        ({"error": "call 555 now"}, r"refused the login \(for a reason of its own\)"),
        ({"code": ""}, "no authorization code"),
        ({"code": "a\nb"}, "no authorization code"),
        ({}, "no authorization code"),
    ],
)
def test_an_answer_without_a_code_says_why_in_our_words(members: dict[str, str], why: str) -> None:
    made = request()
    with pytest.raises(OAuthProblem, match=why) as caught:
        made.read_answer(urlencode({**members, "state": made.state}))
    assert "555" not in str(caught.value)
    said = caught.value.said
    assert said == members.get("error_description", members["error"] if "call" in members.get("error", "") else "")


def test_scopes_are_those_of_the_challenge_before_those_of_the_resource() -> None:
    assert choose_scopes((), ("a",), ("b",), ()) == ("a",)
    assert choose_scopes((), (), ("b",), ()) == ("b",)
    assert choose_scopes((), (), None, ("x",)) == ()
    assert choose_scopes(("c",), ("a",), ("b",), ("offline_access",)) == ("c",)
    assert choose_scopes((), ("a",), None, ("offline_access", "x")) == ("a", "offline_access")
    assert choose_scopes((), ("b", "c"), None, (), ("a", "b")) == ("a", "b", "c")
