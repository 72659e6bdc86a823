"""The gate gives permits by the consent of each server, and nobody else can make one."""

from __future__ import annotations

import pytest

from config import Consent, KindConsent
from host.exchange import Caller, Exchange
from host.jsonrpc.messages import Request
from host.policy.gate import Gate, Permit
from host.protocol.methods import Kind

EXCHANGE = Exchange(Request(1, "tools/call"), {}, Caller("desk", None), lambda _: None)


def gate() -> Gate:
    return Gate({"open": Consent(), "strict": Consent(tools=KindConsent(allow=("get_*",), deny=("get_secret",)))})


def test_a_permit_says_what_may_reach_what() -> None:
    permit = gate().admit(EXCHANGE, "strict", Kind.TOOL, "get_issue")
    assert permit is not None
    assert (permit.exchange, permit.server, permit.kind, permit.target) == (EXCHANGE, "strict", Kind.TOOL, "get_issue")


@pytest.mark.parametrize("name", ["get_secret", "delete", "", "GET_x", "strict__get_x"])
def test_what_is_denied_gets_no_permit(name: str) -> None:
    assert gate().admit(EXCHANGE, "strict", Kind.TOOL, name) is None


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("name", ["get_x", "get_secret", "delete", "x://y"])
@pytest.mark.parametrize("server", ["open", "strict"])
def test_what_is_listed_is_what_may_be_reached(server: str, kind: Kind, name: str) -> None:
    assert gate().shows(server, kind, name) == (gate().admit(EXCHANGE, server, kind, name) is not None)


def test_the_consent_of_one_server_is_not_that_of_another() -> None:
    assert gate().shows("open", Kind.TOOL, "get_secret")
    assert not gate().shows("strict", Kind.TOOL, "get_secret")


def test_an_unknown_server_has_no_consent_to_fall_back_on() -> None:
    with pytest.raises(KeyError):
        gate().admit(EXCHANGE, "stranger", Kind.TOOL, "x")


@pytest.mark.parametrize("forged", [None, object(), "gate", True])
def test_nobody_else_makes_a_permit(forged: object) -> None:
    with pytest.raises(TypeError, match="only the gate"):
        Permit(EXCHANGE, "strict", Kind.TOOL, "delete", forged)
