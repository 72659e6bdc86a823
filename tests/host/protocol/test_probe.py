"""Responses to `server/discover`: which mean stateless, which a handshake, and which end the connection."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from host.protocol import probe
from host.protocol.probe import (
    Handshake,
    Incompatible,
    RetryWith,
    StatelessServer,
    Verdict,
    verdict_of_error,
    verdict_of_result,
)
from host.protocol.stateless import discover_result
from host.protocol.versions import LATEST, LATEST_LEGACY, LEGACY, MODERN
from tests.kit.examples import examples

OLD, NEW = LATEST_LEGACY.name, LATEST.name
UNKNOWN = "2099-01-01"


def raw(thing: object) -> Raw:
    return Raw(json.dumps(thing).encode())


def answered(*versions: object, **found: object) -> Verdict:
    return verdict_of_result(raw({"supportedVersions": versions, "capabilities": {"tools": {}}, **found}))


def refused(*versions: object, asked: str = NEW) -> Verdict:
    return verdict_of_error(-32022, raw({"supported": versions, "requested": asked}), asked=asked)


def test_a_version_that_both_speak_is_the_end_of_asking() -> None:
    for versions in ((NEW,), (OLD, NEW), (UNKNOWN, NEW, OLD)):
        verdict = answered(*versions)
        assert isinstance(verdict, StatelessServer)
        assert verdict.negotiated.revision is LATEST
        assert verdict.negotiated.capabilities == {"tools"}


def test_colonnade_would_find_itself() -> None:
    verdict = verdict_of_result(discover_result("1.2", None))
    assert isinstance(verdict, StatelessServer)
    assert verdict.negotiated.server == "colonnade 1.2"


@pytest.mark.parametrize("name", LEGACY)
def test_a_server_that_says_it_wants_a_handshake_gets_one(name: str) -> None:
    assert answered(name) == Handshake()
    assert answered(UNKNOWN, name) == Handshake()
    assert refused(name) == Handshake()


def test_a_server_of_the_future_is_not_forced_into_a_handshake() -> None:
    for verdict in (answered(UNKNOWN), refused(UNKNOWN)):
        assert isinstance(verdict, Incompatible)
        assert UNKNOWN in verdict.why
        assert NEW in verdict.why


@pytest.mark.parametrize(
    "result",
    [
        {},
        [],
        None,
        {"supportedVersions": [NEW]},
        {"capabilities": {}},
        {"supportedVersions": NEW, "capabilities": {}},
        {"supportedVersions": [1], "capabilities": {}},
        {"supportedVersions": [NEW], "capabilities": []},
        {"supportedVersions": [], "capabilities": {}},
        {"supportedVersions": [NEW], "capabilities": {}, "resultType": "input_required"},
        {"protocolVersion": OLD, "capabilities": {}},
    ],
)
def test_an_answer_that_is_no_discovery_leads_to_a_handshake(result: object) -> None:
    assert verdict_of_result(raw(result)) == Handshake()


@pytest.mark.parametrize("code", [-32601, -32602, -32600, -32000, -32603, -32001, -32700, 0, 1, -32023])
@pytest.mark.parametrize("data", [None, b"{}", b'{"supported":["2026-07-28"]}'])
def test_any_other_error_leads_to_a_handshake(code: int, data: bytes | None) -> None:
    assert verdict_of_error(code, None if data is None else Raw(data), asked=NEW) == Handshake()


def test_a_version_that_both_speak_is_asked_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several stateless versions the newest is tried, but not the one that was refused just now."""
    newer = replace(LATEST, name=UNKNOWN)
    monkeypatch.setitem(MODERN, UNKNOWN, newer)
    monkeypatch.setattr(probe, "SERVED", (UNKNOWN, NEW, OLD))
    assert refused(NEW, asked=UNKNOWN) == RetryWith(LATEST)
    assert refused(OLD, NEW, UNKNOWN, asked=UNKNOWN) == RetryWith(LATEST)
    assert refused(OLD, NEW, UNKNOWN, asked=NEW) == RetryWith(newer)


def test_a_server_that_refuses_what_it_names_is_asked_in_it_once_more() -> None:
    """Servers that are still starting do this. The caller limits the number of retries."""
    assert refused(NEW) == RetryWith(LATEST)
    assert refused(NEW, OLD) == RetryWith(LATEST)
    supported = raw({"supported": [NEW]})
    assert verdict_of_error(-32022, supported, asked=NEW, may_retry=False) == Incompatible(
        "it refuses 2026-07-28, which it names as supported"
    )
    assert verdict_of_error(-32022, raw({"supported": [NEW, OLD]}), asked=NEW, may_retry=False) == Handshake()


@pytest.mark.parametrize("data", [None, b"{}", b"[]", b"1", b'{"supported":"2025-11-25"}', b'{"supported":[1]}'])
def test_a_refusal_that_names_nothing_is_the_end(data: bytes | None) -> None:
    """Only stateless servers return this error."""
    verdict = verdict_of_error(-32022, None if data is None else Raw(data), asked=NEW)
    assert verdict == Incompatible("it refuses 2026-07-28 and does not name the versions that it supports")


def test_other_refusals_of_a_stateless_server_say_what_it_refuses() -> None:
    verdict = verdict_of_error(-32020, None, asked=NEW)
    assert isinstance(verdict, Incompatible)
    assert "headers" in verdict.why
    verdict = verdict_of_error(-32021, raw({"requiredCapabilities": {"sampling": {}, "roots": {}}}), asked=NEW)
    assert isinstance(verdict, Incompatible)
    assert "'sampling', 'roots'" in verdict.why
    for data in (None, raw([]), raw({"requiredCapabilities": 1})):
        verdict = verdict_of_error(-32021, data, asked=NEW)
        assert isinstance(verdict, Incompatible)
        assert "some capability" in verdict.why


def test_what_a_server_says_is_cut_before_it_is_shown() -> None:
    verdict = refused(*(f"{number}\x1b\n" * 100 for number in range(100)))
    assert isinstance(verdict, Incompatible)
    assert len(verdict.why) < 1000
    assert verdict.why.isprintable()
    assert "and more" in verdict.why
    verdict = verdict_of_error(-32021, Raw(b'{"requiredCapabilities":{"\\ud800":{}}}'), asked=NEW)
    assert isinstance(verdict, Incompatible)
    assert verdict.why.isascii()


VERSIONS = st.sampled_from([NEW, OLD, UNKNOWN, ""])


@settings(max_examples=examples(150))
@given(st.integers(-32030, -32010) | st.integers(), st.none() | st.lists(VERSIONS, max_size=3), VERSIONS)
def test_only_a_stateless_servers_own_errors_keep_a_handshake_away(
    code: int, versions: list[str] | None, asked: str
) -> None:
    verdict = verdict_of_error(code, None if versions is None else raw({"supported": versions}), asked=asked)
    if code not in (-32020, -32021, -32022):
        assert verdict == Handshake()
    elif verdict == Handshake():
        assert OLD in (versions or [])
        assert NEW not in (versions or [])
    elif isinstance(verdict, RetryWith):
        assert verdict.revision.name in (versions or [])
    else:
        assert isinstance(verdict, Incompatible)
