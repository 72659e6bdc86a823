"""The error of logins: one type, so that callers need no other."""

from __future__ import annotations

from host.oauth.authorization import ForeignAnswer
from host.oauth.documents import TokenRefused
from host.oauth.problem import OAuthProblem
from host.wire.issuer_http import IssuerUnreachable


def test_all_that_fails_in_a_login_is_one_kind_of_error() -> None:
    assert all(issubclass(each, OAuthProblem) for each in (ForeignAnswer, TokenRefused, IssuerUnreachable))
