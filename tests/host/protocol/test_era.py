"""Era of a message, for every combination of headers and body."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host.errors import HeaderMismatch, InvalidParams, UnsupportedVersion
from host.protocol.era import EraHeaders, era_over_http, era_over_stdio
from host.protocol.versions import LATEST, LATEST_LEGACY, LEGACY, MODERN, SERVED, Era
from tests.kit.examples import examples

OLD, NEW = LATEST_LEGACY.name, LATEST.name
FIRST = next(iter(LEGACY))
UNKNOWN = "2099-01-01"
CALL = "tools/call"


def way(
    *versions: str,
    method: str | None = CALL,
    session: bool = False,
    names_method: bool = False,
    envelope: str | None = None,
) -> Era:
    headers = EraHeaders(versions, session=session, names_method=names_method)
    return era_over_http(method, headers, lambda: envelope)


# HTTP: initialize


@pytest.mark.parametrize("versions", [(), *((name,) for name in SERVED)])
@pytest.mark.parametrize("session", [False, True])
def test_a_handshake_opens_a_session_under_any_version_that_is_served(versions: tuple[str, ...], session: bool) -> None:
    """(rules 8, 21)"""
    assert way(*versions, method="initialize", session=session) is Era.SESSION
    assert way(*versions, method="initialize", session=session, names_method=True) is Era.SESSION


def test_a_handshake_under_a_version_that_is_not_served_is_refused() -> None:
    """(rule 21)"""
    with pytest.raises(UnsupportedVersion):
        way(UNKNOWN, method="initialize")


def test_a_handshake_with_an_envelope_is_a_request_like_any_other() -> None:
    assert way(NEW, method="initialize", envelope=NEW) is Era.STATELESS
    with pytest.raises(HeaderMismatch, match="missing"):
        way(method="initialize", envelope=NEW)
    with pytest.raises(HeaderMismatch):
        way(OLD, method="initialize", envelope=NEW)
    with pytest.raises(UnsupportedVersion):
        way(UNKNOWN, method="initialize", envelope=UNKNOWN)


# HTTP: everything else


@pytest.mark.parametrize("name", LEGACY)
def test_a_version_with_a_handshake_belongs_to_a_session(name: str) -> None:
    """Whether the session exists is decided elsewhere."""
    for session in (False, True):
        assert way(name, session=session) is Era.SESSION
        assert way(name, session=session, method=None) is Era.SESSION
        assert way(name, session=session, names_method=True) is Era.SESSION


def test_an_envelope_of_the_same_version_means_nothing_to_a_session() -> None:
    assert way(OLD, envelope=OLD, session=True) is Era.SESSION
    assert way(FIRST, envelope=FIRST) is Era.SESSION


@pytest.mark.parametrize("envelope", [NEW, FIRST, UNKNOWN, ""])
def test_a_body_of_another_version_than_its_header_is_refused(envelope: str) -> None:
    """(rule 27)"""
    with pytest.raises(HeaderMismatch, match="another protocol version"):
        way(OLD, envelope=envelope, session=True)


@pytest.mark.parametrize("method", [CALL, "ping", "notifications/cancelled", None])
@pytest.mark.parametrize("envelope", [None, NEW, OLD, UNKNOWN])
@pytest.mark.parametrize("session", [False, True])
def test_under_a_stateless_version_the_message_speaks_for_itself(
    method: str | None, envelope: str | None, session: bool
) -> None:
    """Also without an envelope, which is then refused as stateless, and with any session id (rule 26)."""
    assert way(NEW, method=method, envelope=envelope, session=session) is Era.STATELESS


@pytest.mark.parametrize("version", [UNKNOWN, "", "latest", "2025-11-25x", f"{NEW}, {NEW}"])
@pytest.mark.parametrize("session", [False, True])
def test_a_version_that_is_not_served_is_refused(version: str, session: bool) -> None:
    """The error names the supported versions (rule 21)."""
    with pytest.raises(UnsupportedVersion) as caught:
        way(version, session=session)
    assert json.loads(bytes(caught.value.data or b"")) == {"supported": list(SERVED), "requested": version}
    with pytest.raises(UnsupportedVersion):
        way(version, session=session, envelope=version)


def test_that_body_and_header_differ_is_said_before_that_neither_is_served() -> None:
    with pytest.raises(HeaderMismatch):
        way(UNKNOWN, envelope=NEW)


def test_without_the_header_a_session_decides() -> None:
    """Clients of the first revisions never send it (rule 21)."""
    assert way(session=True) is Era.SESSION
    assert way(session=True, method=None) is Era.SESSION
    assert way() is Era.SESSION
    assert way(session=True, envelope=NEW, names_method=True) is Era.SESSION


def test_what_can_only_be_stateless_must_have_the_header() -> None:
    """(rule 27)"""
    with pytest.raises(HeaderMismatch, match="missing"):
        way(envelope=NEW)
    with pytest.raises(HeaderMismatch, match="missing"):
        way(names_method=True)


def test_blanks_around_a_value_are_none_of_it() -> None:
    assert way(f" {NEW}\t") is Era.STATELESS
    assert way(f"\t{OLD} ") is Era.SESSION
    with pytest.raises(UnsupportedVersion):
        way(f"\xa0{NEW}")


@pytest.mark.parametrize("versions", [(NEW, OLD), (OLD, NEW), (NEW, UNKNOWN), (UNKNOWN, ""), (OLD, FIRST, NEW)])
@pytest.mark.parametrize("method", [CALL, "initialize"])
def test_two_versions_are_none(versions: tuple[str, ...], method: str) -> None:
    with pytest.raises(HeaderMismatch, match="expected one"):
        way(*versions, method=method, session=True)


def test_two_versions_of_sessions_are_for_the_session_to_refuse() -> None:
    assert way(OLD, FIRST, session=True) is Era.SESSION
    with pytest.raises(HeaderMismatch):
        way(OLD, FIRST, session=True, envelope=OLD)


VERSIONS = st.sampled_from([*SERVED, UNKNOWN, ""])


@settings(max_examples=examples(400))
@given(
    method=st.sampled_from(["initialize", "ping", CALL, "server/discover", "notifications/initialized", "x", None]),
    versions=st.lists(VERSIONS, max_size=3),
    session=st.booleans(),
    names_method=st.booleans(),
    envelope=st.none() | VERSIONS,
)
def test_every_message_has_one_way_or_one_reason(
    method: str | None, versions: list[str], session: bool, names_method: bool, envelope: str | None
) -> None:
    """(rules 26, 27)"""
    try:
        headers = EraHeaders(versions, session=session, names_method=names_method)
        found = era_over_http(method, headers, lambda: envelope)
    except UnsupportedVersion:
        assert set(versions) - set(SERVED)
        return
    except HeaderMismatch:
        # Never the traffic of a session: that has no header, or one of its own kind, and no other envelope.
        assert len(set(versions)) > 1 or envelope is not None or (names_method and not session)
        assert versions or not session
        return
    assert set(versions) <= set(SERVED)
    if found is Era.STATELESS:
        assert len(set(versions)) == 1
        assert versions[0] in MODERN
    else:
        greets = method == "initialize" and envelope is None
        assert greets or not set(versions) & set(MODERN)
        assert greets or versions or session or (envelope is None and not names_method)


# stdio


@pytest.mark.parametrize("envelope", [False, True])
@pytest.mark.parametrize("greeted", [False, True])
def test_a_handshake_is_always_taken_over_stdio(envelope: bool, greeted: bool) -> None:
    """A client whose probe timed out can still send `initialize` (rule 114)."""
    assert era_over_stdio("initialize", envelope=envelope, initialized=greeted) is Era.SESSION


@pytest.mark.parametrize("greeted", [False, True])
def test_both_doors_stay_open_over_stdio(greeted: bool) -> None:
    assert era_over_stdio(CALL, envelope=True, initialized=greeted) is Era.STATELESS
    assert era_over_stdio("ping", envelope=True, initialized=greeted) is Era.STATELESS
    assert era_over_stdio("ping", envelope=False, initialized=greeted) is Era.SESSION


def test_after_a_handshake_a_request_needs_no_envelope() -> None:
    assert era_over_stdio(CALL, envelope=False, initialized=True) is Era.SESSION


@pytest.mark.parametrize("method", [CALL, "server/discover", "tools/list", ""])
def test_a_request_that_nothing_went_before_must_say_what_it_is_of(method: str) -> None:
    """The error names the supported versions (rule 12)."""
    with pytest.raises(InvalidParams) as caught:
        era_over_stdio(method, envelope=False, initialized=False)
    assert all(version in caught.value.message for version in SERVED)
