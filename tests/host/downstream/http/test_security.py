"""What is turned away at the door, by its headers alone."""

from __future__ import annotations

import pytest

from config import Address, Auth, Listen, Secret
from host.attempts import Reason
from host.downstream.http import security
from host.downstream.http.security import MAX_BODY, Refusal, RequestGuard, refuse_accept, refuse_body
from host.wire.asgi import Headers

JSON = "application/json"
EVENTS = "text/event-stream"
LISTEN = Listen(origins=("https://app.example", "http://dev.example:3000"), hosts=("tools.example", "lan.example:9000"))


def headers(*pairs: tuple[str, str]) -> Headers:
    return Headers((name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs)


def status(found: Refusal | None) -> int | None:
    return None if found is None else found.status


def at_the_door(*pairs: tuple[str, str], listen: Listen = LISTEN) -> int | None:
    return status(RequestGuard(listen).check(headers(*pairs)))


# Host


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8808",
        "127.0.0.1",
        "127.0.0.1:1",
        "[::1]",
        "[::1]:8808",
        "tools.example",
        "TOOLS.Example:443",
        "lan.example:9000",
    ],
)
def test_a_host_of_ours_comes_in(host: str) -> None:
    assert at_the_door(("Host", host)) is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.com",
        "evil.com:8808",
        "127.0.0.1.evil.com",
        "localhost.evil.com",
        "localhost.",
        "127.0.0.1.",
        "tools.example.",
        "x.tools.example",
        "lan.example",
        "lan.example:9001",
        "127.0.0.2",
        "127.1",
        "0.0.0.0",
        "2130706433",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[0:0:0:0:0:0:0:1]",
    ],
)
def test_the_host_of_another_is_misdirected(host: str) -> None:
    assert at_the_door(("Host", host)) == 421


@pytest.mark.parametrize(
    "host",
    [
        "",
        "a/?x=",
        "a#",
        "a@b",
        "user@localhost",
        "[::1]garbage",
        "[::1",
        "::1",
        "localhost:",
        "localhost:port",
        "localhost:123456",
        "localhost:80:80",
        "localhost,evil.com",
        "localhost evil.com",
        "localhost\\",
        "localhost\x00",
        "localhost\n",
        "http://localhost",
        "lôcalhost",
        "*",
    ],
)
def test_what_is_no_host_is_a_bad_request(host: str) -> None:
    assert at_the_door(("Host", host)) == 400


def test_there_is_exactly_one_host() -> None:
    assert at_the_door() == 400
    assert at_the_door(("Host", "localhost"), ("host", "localhost")) == 400


@pytest.mark.parametrize(
    ("address", "host", "answer"),
    [
        ("192.168.1.2", "192.168.1.2", None),
        ("192.168.1.2", "192.168.1.2:8808", None),
        ("192.168.1.2", "localhost:8808", None),
        ("192.168.1.2", "192.168.1.3", 421),
        ("127.9.9.9", "127.9.9.9:1", None),
        ("2001:DB8:0::1", "[2001:db8::1]:8808", None),
        ("2001:DB8:0::1", "[2001:DB8:0::1]", None),
        ("2001:db8::1", "[2001:db8::2]", 421),
        ("2001:db8::1", "2001:db8::1", 400),
        ("0.0.0.0", "0.0.0.0:8808", 421),
        ("0.0.0.0", "192.168.1.2", 421),
        ("::", "[::]", 421),
        ("::", "127.0.0.1", None),
    ],
)
def test_the_address_we_listen_at_is_ours_unless_it_stands_for_all(address: str, host: str, answer: int | None) -> None:
    assert at_the_door(("Host", host), listen=Listen(address=Address(address, 8808))) == answer


# Origin


def from_page(*origins: str, listen: Listen = LISTEN) -> int | None:
    return at_the_door(("Host", "localhost"), *(("Origin", origin) for origin in origins), listen=listen)


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost",
        "http://localhost:3000",
        "https://127.0.0.1:1",
        "http://[::1]:80",
        "HTTP://LOCALHOST",
        "https://app.example",
        "https://APP.example",
        "http://dev.example:3000",
    ],
)
def test_a_page_that_may_ask_comes_in(origin: str) -> None:
    assert from_page(origin) is None


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.com",
        "null",
        "",
        "http://localhost/path",
        "http://localhost/",
        "ftp://localhost",
        "file://",
        "http://[::1].evil",
        "http://[::1]evil",
        "http://localhost.evil.com",
        "http://evil.com#localhost",
        "http://user@localhost",
        "http://localhost:80:80",
        "http://app.example",
        "https://app.example:443",
        "https://app.example.evil.com",
        "https://xapp.example",
        "http://dev.example",
        "localhost",
        "http://localhost, http://evil.com",
        "http://localhost\n",
    ],
)
def test_any_other_page_is_forbidden(origin: str) -> None:
    assert from_page(origin) == 403
    assert RequestGuard(LISTEN).cross_origin(headers(("Origin", origin))) == {}


def test_whoever_is_no_page_comes_in() -> None:
    assert from_page() is None


@pytest.mark.parametrize("second", ["http://localhost", "http://evil.com", ""])
def test_two_origins_are_forbidden(second: str) -> None:
    assert from_page("http://localhost", second) == 403
    assert from_page("https://app.example", second) == 403


def test_a_wrong_host_is_not_mended_by_a_good_origin() -> None:
    assert at_the_door(("Host", "evil.com"), ("Origin", "https://app.example")) == 421


def test_lists_in_any_case_are_held_in_lower_case() -> None:
    listen = Listen(origins=("HTTPS://App.Example",), hosts=("Tools.Example",))
    assert at_the_door(("Host", "tools.example"), ("Origin", "https://app.example"), listen=listen) is None


# What a page may read, and what it may ask


def test_a_listed_page_may_read_the_answer_and_only_that_page() -> None:
    found = RequestGuard(LISTEN).cross_origin(headers(("Origin", "https://APP.example")))
    assert found["access-control-allow-origin"] == "https://APP.example"
    assert found["vary"] == "Origin"
    assert "mcp-session-id" in found["access-control-expose-headers"]
    assert "access-control-allow-credentials" not in found


def test_without_a_page_there_is_nobody_to_tell() -> None:
    assert RequestGuard(LISTEN).cross_origin(headers()) == {}


@pytest.mark.parametrize("origin", ["http://evil.com", "null", "http://localhost:3000"])
def test_a_page_that_is_not_listed_may_not_even_ask(origin: str) -> None:
    found = RequestGuard(LISTEN).preflight(headers(("Origin", origin)))
    assert isinstance(found, Refusal)
    assert found.status == 403
    assert not any(name.startswith("access-control") for name in found.headers)


def test_a_listed_page_learns_what_it_may_send() -> None:
    found = RequestGuard(LISTEN).preflight(headers(("Origin", "https://app.example")))
    assert isinstance(found, dict)
    assert "content-type" in found["access-control-allow-headers"]
    assert "POST" in found["access-control-allow-methods"]
    assert "access-control-allow-private-network" not in found


def test_a_listed_page_may_reach_into_the_private_network_if_it_asks() -> None:
    asked = headers(("Origin", "https://app.example"), ("Access-Control-Request-Private-Network", "true"))
    found = RequestGuard(LISTEN).preflight(asked)
    assert isinstance(found, dict)
    assert found["access-control-allow-private-network"] == "true"


def test_what_the_checks_say_of_a_head_is_kept_together() -> None:
    guard = RequestGuard(GUARDED)
    good = guard.examine(headers(("Host", "localhost"), ("Authorization", f"Bearer {DESK}"), ("Content-Type", JSON)))
    assert (good.refusal, good.identity, good.cors_headers, good.refused_post) == (None, "desk", {}, None)
    bad = guard.examine(headers(("Host", "evil.com"), ("Origin", "https://app.example"), ("Accept", "text/html")))
    assert isinstance(bad.identity, Refusal)
    assert (status(bad.refusal), bad.identity.status, status(bad.refused_post)) == (421, 401, 415)
    assert bad.cors_headers["access-control-allow-origin"] == "https://app.example"
    not_accepted = headers(("Content-Type", JSON), ("Accept", "application/json"))
    assert status(guard.examine(not_accepted).refused_post) == 406


# Tokens

LAPTOP, DESK = "laptop-0123456789abcdef", 'desk-!"#%&~0123456789'
GUARDED = Listen(auth=Auth({"laptop": Secret(LAPTOP), "desk": Secret(DESK)}), origins=("https://app.example",))


def who(*authorization: str, listen: Listen = GUARDED, more: tuple[tuple[str, str], ...] = ()) -> str | Refusal | None:
    pairs = [("Authorization", each) for each in authorization]
    return RequestGuard(listen).authenticate(headers(*pairs, *more))


@pytest.mark.parametrize("authorization", [[], ["Bearer x"], [f"Bearer {LAPTOP}"], ["Basic eDp5"], ["a", "b"], [""]])
def test_without_tokens_nobody_is_asked(authorization: list[str]) -> None:
    assert who(*authorization, listen=LISTEN) is None


@pytest.mark.parametrize(
    ("authorization", "name"),
    [
        (f"Bearer {LAPTOP}", "laptop"),
        (f"bearer {LAPTOP}", "laptop"),
        (f"BEARER   {DESK}", "desk"),
        (f" Bearer {DESK}\t", "desk"),
    ],
)
def test_a_known_token_gives_its_name(authorization: str, name: str) -> None:
    assert who(authorization) == name


@pytest.mark.parametrize(
    "authorization",
    [
        *("", "Bearer", "Bearer ", LAPTOP, f"Bearer{LAPTOP}", f"Bearer\t{LAPTOP}", f"Bearer={LAPTOP}"),
        *("Basic bGFwdG9wOnB3", f"Basic {LAPTOP}", f"Token {LAPTOP}", f"Digest Bearer {LAPTOP}"),
    ],
)
def test_without_a_bearer_token_one_is_asked_for(authorization: str) -> None:
    found = who(authorization)
    assert isinstance(found, Refusal)
    assert (found.status, found.headers) == (401, {"www-authenticate": 'Bearer realm="colonnade"'})


def test_no_authorization_at_all_is_asked_for_one() -> None:
    """Neither is a token taken from any other header."""
    found, other = who(), who("Basic x")
    assert found == who(more=(("Cookie", LAPTOP), ("X-Api-Key", LAPTOP)))
    assert isinstance(found, Refusal)
    assert isinstance(other, Refusal)
    assert (other.status, other.why, other.headers) == (found.status, found.why, found.headers)
    assert (found.attempt, other.attempt) == (Reason.NO_TOKEN, Reason.WRONG_TOKEN)


@pytest.mark.parametrize(
    "token",
    [
        *("x", LAPTOP[:-1], LAPTOP + "x", LAPTOP.upper(), f"{LAPTOP} {LAPTOP}", f"{LAPTOP},", f'"{LAPTOP}"'),
        *(f"{LAPTOP}, Bearer {DESK}", "laptop", "é" * 20, "\xff", "x" * 15_000, f"{LAPTOP}\x00"),
    ],
)
def test_an_unknown_token_is_refused_without_being_repeated(token: str) -> None:
    found = who(f"Bearer {token}")
    assert isinstance(found, Refusal)
    assert found.status == 401
    assert found.headers == {"www-authenticate": 'Bearer realm="colonnade", error="invalid_token"'}
    assert found == who("Bearer another-0123456789abc")


@pytest.mark.parametrize("second", [f"Bearer {LAPTOP}", f"Bearer {DESK}", "Basic x", ""])
def test_two_authorization_headers_are_refused(second: str) -> None:
    for given in ((f"Bearer {LAPTOP}", second), (second, f"Bearer {LAPTOP}")):
        found = who(*given)
        assert isinstance(found, Refusal)
        assert found.status == 401
        assert LAPTOP not in f"{found}"


def test_every_token_is_compared_whichever_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Always as many comparisons, always of as many bytes: neither a name nor a length shows in the time."""
    compared: list[tuple[int, int]] = []

    def compare(known: bytes, given: bytes) -> bool:
        compared.append((len(known), len(given)))
        return known == given

    monkeypatch.setattr(security, "compare_digest", compare)
    for token in (LAPTOP, DESK, "x", "x" * 1000):
        compared.clear()
        who(f"Bearer {token}")
        assert compared == [(32, 32), (32, 32)]


def test_the_door_does_not_keep_the_tokens() -> None:
    assert LAPTOP not in repr(vars(RequestGuard(GUARDED)))


def test_a_page_may_ask_without_a_token_and_send_one_later() -> None:
    """A browser's preflight cannot carry one; what the page may send and read includes what tokens need."""
    allowed = RequestGuard(GUARDED).preflight(headers(("Origin", "https://app.example")))
    assert isinstance(allowed, dict)
    assert "authorization" in allowed["access-control-allow-headers"]
    assert "www-authenticate" in allowed["access-control-expose-headers"]


# The body


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "APPLICATION/JSON",
        "application/json; charset=UTF-8",
        "application/json;charset=utf8",
        'application/json ; charset = "utf-8"',
        "application/json;",
        "application/json; profile=x",
    ],
)
def test_json_in_any_spelling_is_read(content_type: str) -> None:
    assert refuse_body(headers(("Content-Type", content_type))) is None


@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "text/plain",
        "text/plain; application/json",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "application/jsonp",
        "application/json-patch+json",
        "application/vnd.api+json",
        "application/json;charset=utf-16",
        "application/json; charset=utf-8; charset=utf-16",
        "application/json; charset",
        "application/json, text/plain",
        "json",
    ],
)
def test_anything_but_json_is_an_unsupported_type(content_type: str) -> None:
    assert status(refuse_body(headers(("Content-Type", content_type)))) == 415


def test_the_type_must_stand_there_once() -> None:
    assert status(refuse_body(headers())) == 415
    assert status(refuse_body(headers(("Content-Type", JSON), ("Content-Type", JSON)))) == 415


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "identity, gzip", "GZIP", ""])
def test_a_compressed_body_is_not_unpacked(coding: str) -> None:
    assert status(refuse_body(headers(("Content-Type", JSON), ("Content-Encoding", coding)))) == 415


def test_a_body_coded_as_itself_is_read() -> None:
    assert refuse_body(headers(("Content-Type", JSON), ("Content-Encoding", "Identity"))) is None
    twice = headers(("Content-Type", JSON), ("Content-Encoding", "identity"), ("Content-Encoding", "gzip"))
    assert status(refuse_body(twice)) == 415


@pytest.mark.parametrize(
    ("length", "answer"),
    [
        ("0", None),
        (str(MAX_BODY - 1), None),
        (str(MAX_BODY), None),
        (str(MAX_BODY + 1), 413),
        ("0" * 20 + "12", None),
        ("0" * 20 + str(MAX_BODY + 1), 413),
        ("9" * 13, 413),
        ("9" * 5000, 413),
        ("0" * 5000, None),
        # No lengths at all: whoever frames the request judges them, and the body is counted as it comes.
        ("-1", None),
        ("+5", None),
        ("1e9", None),
        ("٣" * 9, None),
        ("", None),
    ],
)
def test_a_body_that_says_it_is_too_long_is_not_read(length: str, answer: int | None) -> None:
    found = Headers([(b"content-type", JSON.encode()), (b"content-length", length.encode())])
    assert status(refuse_body(found)) == answer


# What the client can read


@pytest.mark.parametrize(
    "accept",
    [
        [],
        ["application/json, text/event-stream"],
        ["text/event-stream", "application/json"],
        ["APPLICATION/JSON;q=0.5 , Text/Event-Stream; q=1.0"],
        ["*/*"],
        ["text/html, */*;q=0.1"],
        ["application/*, text/*"],
        ["application/json, text/*;q=0.01"],
        ["application/json;q=1, text/event-stream, */*;q=0"],
    ],
)
def test_a_client_that_takes_both_answers_is_served(accept: list[str]) -> None:
    assert refuse_accept(headers(*(("Accept", each) for each in accept)), JSON, EVENTS) is None


@pytest.mark.parametrize(
    "accept",
    [
        [""],
        ["application/json"],
        ["text/event-stream"],
        ["application/json, text/html"],
        ["application/json;q=0, text/event-stream"],
        ["application/json;q=0.000, text/event-stream"],
        ["application/json, text/event-stream; q = 0"],
        ["application/json;q=0, */*"],
        ["text/*;q=0, */*"],
        ["*/*;q=0"],
        ["image/*, application/json"],
        ["application/jsonp, text/event-stream"],
        [","],
    ],
)
def test_a_client_that_could_not_read_the_answer_is_told_so(accept: list[str]) -> None:
    found = refuse_accept(headers(*(("Accept", each) for each in accept)), JSON, EVENTS)
    assert found is not None
    assert found.status == 406
    assert JSON in found.why
    assert EVENTS in found.why


def test_only_what_is_wanted_must_be_taken() -> None:
    assert refuse_accept(headers(("Accept", EVENTS)), EVENTS) is None
