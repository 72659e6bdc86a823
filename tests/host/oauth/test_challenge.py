"""Challenges: those of real servers, several in one header, and what is no challenge."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.oauth.challenge import MAX_SCOPE, MAX_SCOPES, Challenge, bearer_challenge, split_scopes

METADATA = "https://a.example/.well-known/oauth-protected-resource"


@pytest.mark.parametrize(
    ("header", "challenge"),
    [
        ("Bearer", Challenge()),
        ("bearer", Challenge()),
        ("BEARER realm=x", Challenge()),
        (f'Bearer resource_metadata="{METADATA}"', Challenge(METADATA)),
        (f"Bearer resource_metadata={METADATA}", Challenge(METADATA)),
        (f'Bearer realm="a, b", RESOURCE_METADATA = "{METADATA}"', Challenge(METADATA)),
        ('Bearer error="insufficient_scope", scope="a:read  b"', Challenge("", ("a:read", "b"), "insufficient_scope")),
        ('Basic realm="x", Bearer scope="a"', Challenge("", ("a",))),
        ('Basic realm="Bearer scope=\\"z\\"", Bearer scope="a"', Challenge("", ("a",))),
        ('Bearer scope="a", Basic scope="b"', Challenge("", ("a",))),
        ('Bearer scope="a", scope="b"', Challenge("", ("a",))),
        (r'Bearer error="x\"y", scope="a"', Challenge("", ("a",), 'x"y')),
        ("Negotiate YWJj==, Bearer scope=a", Challenge("", ("a",))),
        (", , Bearer ,, scope=a", Challenge("", ("a",))),
    ],
)
def test_a_bearer_challenge_is_found(header: str, challenge: Challenge) -> None:
    assert bearer_challenge(header) == challenge


@pytest.mark.parametrize(
    "header", ["", 'Basic realm="x"', "BearerToken", 'Basic realm="Bearer"', "Digest bearer=1", "é"]
)
def test_other_headers_have_none(header: str) -> None:
    assert bearer_challenge(header) is None


def test_only_a_missing_scope_is_one() -> None:
    assert Challenge(error="insufficient_scope").lacks_scope
    assert not Challenge(error="invalid_token").lacks_scope


@given(st.text())
def test_any_text_is_read(header: str) -> None:
    found = bearer_challenge(header)
    assert found is None or all(" " not in scope for scope in found.scopes)


@pytest.mark.parametrize(
    "header", ["," * 30_000, 'Bearer a="' + "\\" * 30_000, "Bearer " + "a=b," * 10_000, "a " * 20_000]
)
def test_a_long_header_takes_no_time(header: str) -> None:
    began = time.process_time()
    bearer_challenge(header)
    assert time.process_time() - began < 0.5


def test_scopes_are_valid_few_and_each_once() -> None:
    assert split_scopes('a b a  c"d e\\f g\x00h é') == ("a", "b")
    assert split_scopes("x" * (MAX_SCOPE + 1)) == ()
    assert len(split_scopes(" ".join(map(str, range(1000))))) == MAX_SCOPES
