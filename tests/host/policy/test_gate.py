"""The gate gives permits by the consent of each server, and nobody else can make one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from config import Consent, HttpServer, KindConsent, Trust
from config.interpolate import Secret
from host.exchange import Caller, Exchange, Nobody
from host.jsonrpc.messages import Request
from host.policy.gate import Gate, Permit
from host.protocol.abilities import ALL_ABILITIES, NO_ABILITIES
from host.protocol.methods import Kind
from host.protocol.questions import Question

EXCHANGE = Exchange(Request(1, "tools/call"), {}, Caller("desk", None), Nobody())
STRICT = Consent(tools=KindConsent(allow=("get_*",), deny=("get_secret",)))
HARMLESS = (Question.FORM, Question.ROOTS)


def gate() -> Gate:
    url = Secret("https://x/mcp")
    return Gate(
        {
            "open": HttpServer(id="open", url=url),
            "strict": HttpServer(id="strict", url=url, consent=STRICT),
            "trusted": HttpServer(id="trusted", url=url, consent=STRICT, trust=Trust.TRUSTED),
            "untrusted": HttpServer(id="untrusted", url=url, trust=Trust.UNTRUSTED),
        }
    )


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


def test_trust_opens_no_door_that_consent_closes() -> None:
    assert gate().admit(EXCHANGE, "trusted", Kind.TOOL, "get_secret") is None


@pytest.mark.parametrize("question", list(Question))
def test_a_server_that_is_not_trusted_asks_only_what_costs_nothing(question: Question) -> None:
    assert gate().lets_ask("trusted", question)
    for server in ("open", "strict"):
        assert gate().lets_ask(server, question) is (question in HARMLESS)


@pytest.mark.parametrize("question", list(Question))
@pytest.mark.parametrize("server", ["untrusted", "stranger"])
def test_an_untrusted_server_asks_nothing(server: str, question: Question) -> None:
    """Nor does one that nobody configured."""
    assert not gate().lets_ask(server, question)


@pytest.mark.parametrize("server", ["open", "strict", "trusted", "untrusted", "stranger"])
def test_only_of_a_server_with_some_trust_are_pages_shown_and_instructions_passed_on(server: str) -> None:
    """Without trust neither reaches a client; with the standard one both do (rule 101)."""
    some = server in ("open", "strict", "trusted")
    assert (gate().shows_apps(server), gate().speaks(server)) == (some, some)


def test_an_untrusted_server_may_still_be_used() -> None:
    """Consent is another matter."""
    assert gate().shows("untrusted", Kind.TOOL, "x")
    assert gate().admit(EXCHANGE, "untrusted", Kind.TOOL, "x") is not None


def test_of_a_clients_abilities_a_server_may_use_what_it_may_ask_for() -> None:
    """Nothing is added to what the client can, and what belongs to no question stays as it is."""
    assert gate().askable("trusted", ALL_ABILITIES) == ALL_ABILITIES
    assert gate().askable("open", ALL_ABILITIES) == replace(ALL_ABILITIES, sampling=False, url=False)
    nothing = replace(ALL_ABILITIES, roots=False, sampling=False, form=False, url=False, apps=False)
    assert gate().askable("untrusted", ALL_ABILITIES) == nothing
    for server in ("open", "trusted", "untrusted"):
        assert gate().askable(server, NO_ABILITIES) == NO_ABILITIES
