"""The error of logins: one type, so that callers need no other."""

from __future__ import annotations

import pytest

from host.oauth.authorization import ForeignAnswer
from host.oauth.documents import TokenRefused, said_in
from host.oauth.problem import OAuthProblem
from host.wire.issuer_http import IssuerUnreachable


def test_all_that_fails_in_a_login_is_one_kind_of_error() -> None:
    assert all(issubclass(each, OAuthProblem) for each in (ForeignAnswer, TokenRefused, IssuerUnreachable))


def test_what_the_other_side_wrote_is_beside_our_words() -> None:
    problem = TokenRefused(b'{"error": "invalid_request", "error_description": "use a scope"}')
    assert (str(problem), problem.said) == ("the issuer refused the request (invalid_request)", "use a scope")
    problem.quote([])
    assert problem.told == 'the issuer refused the request (invalid_request); the issuer says: "use a scope"'
    assert OAuthProblem("nothing").told == "nothing"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error": "slow_down", "error_description": "later"}', "slow_down: later"),
        (b'{"error": "slow_down"}', "slow_down"),
        (b'{"error": "invalid_grant"}', ""),
        (b'{"error": {"code": 5}, "error_description": ["x"]}', ""),
        (b"client name not allowed", "client name not allowed"),
        (b"<html>no</html>", ""),
        (b'["no"]', ""),
        (b"", ""),
    ],
)
def test_what_an_issuer_said(body: bytes, said: str) -> None:
    assert said_in(body) == said


def test_what_an_issuer_said_is_cut_cleaned_marked_and_without_secrets() -> None:
    said = 'Your token r3fresh-r3fresh\x1b[2J is "dead"\n\n' + "x" * 300 + "r3fresh"
    problem = OAuthProblem("refused", said)
    problem.quote(["r3fresh", None, "", "r3fresh-r3fresh"])
    assert problem.told.startswith("refused; the issuer says: \"Your token *** is 'dead' xxx")
    assert len(problem.said) <= 200 + len('the issuer says: ""')
    assert "r3fresh" not in problem.told
