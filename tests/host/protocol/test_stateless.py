"""The envelope of stateless requests and the additional members of results, on both sides and in every spelling."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp_types.methods import CACHEABLE_METHODS, validate_client_request, validate_server_result
from msgspec import Raw

from host.errors import InvalidParams, UnsupportedVersion
from host.jsonrpc.raw import encode_object, members
from host.protocol.abilities import abilities_of
from host.protocol.stateless import (
    CACHEABLE,
    MAX_TTL,
    STALE,
    Freshness,
    StatedEnvelope,
    common_freshness,
    complete_result,
    discover_params,
    discover_result,
    freshness_of,
    has_envelope,
    read_discovery,
    result_type_of,
    strip_hop_fields,
    take_stated,
    version_of,
    with_envelope,
    with_server_info,
)
from host.protocol.versions import LATEST, LEGACY, SERVED
from tests.kit.examples import examples

IO = "io.modelcontextprotocol/"
VERSION, CAPABILITIES, CLIENT, LEVEL = (
    f"{IO}{name}" for name in ("protocolVersion", "clientCapabilities", "clientInfo", "logLevel")
)
SERVER = f"{IO}serverInfo"
US = {"name": "colonnade", "title": "Colonnade", "version": "1.2"}
META: dict[str, object] = {VERSION: LATEST.name, CAPABILITIES: {}}


def raw(thing: object) -> Raw:
    return Raw(json.dumps(thing).encode())


def params(**found: object) -> dict[str, Raw]:
    return members(raw(found))


def read(raw: Raw) -> Any:
    return json.loads(bytes(raw))


# Whether there is an envelope


@pytest.mark.parametrize(
    ("text", "there"),
    [
        (b'{"_meta":{"io.modelcontextprotocol/protocolVersion":"x"}}', True),
        (b'{"_meta":{"io.modelcontextprotocol\\/protocolVersion":"x"}}', True),
        (b'{"_meta":{"\\u0069o.modelcontextprotocol/protocolVersion":"x"}}', True),
        (b'{"\\u005fmeta":{"io.modelcontextprotocol\\u002fprotocolVersion":"x"}}', True),
        (b'{"_meta":{"io.modelcontextprotocol/protocolVersion":null}}', True),
        (b'{"_meta":{"io.modelcontextprotocol/clientCapabilities":{}}}', False),
        (b'{"arguments":{"_meta":{"io.modelcontextprotocol/protocolVersion":"x"}}}', False),
        (b'{"_meta":{"a":{"io.modelcontextprotocol/protocolVersion":"x"}}}', False),
        (b'{"_meta":["io.modelcontextprotocol/protocolVersion"]}', False),
        (b'{"_meta":{"a":"\\u0000"}}', False),
        (b"{}", False),
        (b"[]", False),
        (b'["\\n"]', False),
        (b"null", False),
    ],
)
def test_an_envelope_is_seen_however_it_is_spelled(text: bytes, there: bool) -> None:
    assert has_envelope(Raw(text)) is there
    try:
        opened = members(text)
    except ValueError:
        return
    assert has_envelope(opened) is there


def test_without_params_there_is_no_envelope() -> None:
    assert not has_envelope(None)
    assert version_of(None) is None


@pytest.mark.parametrize(
    ("version", "text"), [("2025-06-18", "2025-06-18"), ("", ""), (1, None), (None, None), ({}, None), ("\ud800", None)]
)
def test_the_version_of_a_request_is_known_before_it_is_evaluated(version: object, text: str | None) -> None:
    assert version_of(raw({"_meta": {VERSION: version}})) == text


def test_an_envelope_without_a_version_has_none() -> None:
    assert version_of(raw({"_meta": {CAPABILITIES: {}}})) is None


# What it says


def test_a_request_says_what_it_is_and_who_it_is_from() -> None:
    meta = {**META, CLIENT: {"name": "desk", "version": "1.0"}, LEVEL: "warning", "progressToken": 1}
    found = take_stated(params(_meta=meta, name="x"))
    assert found == StatedEnvelope(LATEST.name, Raw(b"{}"), Raw(b'"warning"'), "desk 1.0")
    opened = found.checked
    assert opened.level == "warning"
    assert opened.abilities == abilities_of(LATEST, Raw(b"{}"))


def test_what_is_passed_on_stays_in_the_meta_of_a_request() -> None:
    """The progress token stays too: the next connection gets another one in its place."""
    kept = {"progressToken": 1, "vendor/key": {"a": "\ud800"}, "traceparent": "00-0"}
    stated = params(_meta={**META, "traceparent": "00-0", LEVEL: "warning", f"{IO}new": 1, **kept}, name="x")
    take_stated(stated)
    assert json.loads(bytes(stated["_meta"])) == kept
    assert stated["name"] == raw("x")
    bare = params(_meta=META)
    take_stated(bare)
    assert bytes(bare["_meta"]) == b"{}"


def test_what_a_request_may_be_asked_is_what_it_declares() -> None:
    """Earlier requests do not matter (rules 11, 26)."""
    declared: dict[str, object] = {"roots": {}, "elicitation": {}, "extensions": {f"{IO}tasks": {}}}
    found = take_stated(params(_meta={**META, CAPABILITIES: declared})).checked.abilities
    assert (found.roots, found.form, found.url, found.sampling, found.tasks) == (True, True, False, False, True)
    assert found.retries


def test_without_a_level_there_is_no_log() -> None:
    """(rule 83)"""
    assert take_stated(params(_meta=META)).checked.level is None


@pytest.mark.parametrize("info", [None, 1, "desk", [], {}, {"name": 1}, {"name": "\ud800"}])
def test_nobody_has_to_say_who_they_are(info: object) -> None:
    """`clientInfo` may also be invalid (rule 11)."""
    assert take_stated(params(_meta={**META, CLIENT: info})) == take_stated(params(_meta=META))


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ({}, "needs _meta"),
        ({"_meta": {}}, "protocolVersion"),
        ({"_meta": {VERSION: LATEST.name}}, "clientCapabilities"),
        ({"_meta": {CAPABILITIES: {}}}, "protocolVersion"),
        ({"_meta": []}, "_meta is not an object"),
        ({"_meta": None}, "_meta is not an object"),
        ({"_meta": {**META, VERSION: 1}}, "protocolVersion is not a string"),
        ({"_meta": {**META, VERSION: None}}, "protocolVersion is not a string"),
        ({"_meta": {**META, VERSION: "\ud800"}}, "protocolVersion is not a string"),
        ({"_meta": {**META, CAPABILITIES: []}}, "clientCapabilities is not an object"),
        ({"_meta": {**META, CAPABILITIES: None}}, "clientCapabilities is not an object"),
        ({"_meta": {**META, CAPABILITIES: True}}, "clientCapabilities is not an object"),
    ],
)
def test_an_envelope_that_lacks_something_is_the_callers_mistake(found: dict[str, object], why: str) -> None:
    with pytest.raises(InvalidParams, match=why):
        take_stated(params(**found))


@pytest.mark.parametrize("version", ["2099-01-01", "", "2026-07-28 ", *LEGACY])
def test_a_version_that_needs_a_handshake_or_is_not_known_is_not_served(version: str) -> None:
    with pytest.raises(UnsupportedVersion) as caught:
        _ = take_stated(params(_meta={**META, VERSION: version})).checked
    assert caught.value.data is not None
    assert read(caught.value.data) == {"supported": list(SERVED), "requested": version}


@pytest.mark.parametrize("level", ["trace", "INFO", "", 1, ["info"]])
def test_a_level_that_there_is_not_is_the_callers_mistake(level: object) -> None:
    found = take_stated(params(_meta={**META, LEVEL: level}))
    with pytest.raises(InvalidParams, match="'level' is not one of"):
        _ = found.checked


def test_a_level_that_is_null_is_missing() -> None:
    """As for the Python SDK's server."""
    assert take_stated(params(_meta={**META, LEVEL: None})).checked.level is None


# What we say


def wrapped(found: dict[str, Raw], **more: Any) -> Any:
    given = {"level": None, "client_version": "1.2", "token": None, **more}
    return read(encode_object(with_envelope(found, LATEST, {"roots": {}}, **given)))


def test_our_requests_say_what_is_required() -> None:
    """(rule 11)"""
    found = wrapped(params(name="x"), level="info", token="7")
    assert found["_meta"] == {
        VERSION: LATEST.name,
        CAPABILITIES: {"roots": {}},
        CLIENT: US,
        LEVEL: "info",
        "progressToken": "7",
    }
    found["arguments"] = {}
    validate_client_request("tools/call", LATEST.name, found)
    assert set(wrapped({})["_meta"]) == {VERSION, CAPABILITIES, CLIENT}


def test_nothing_of_one_hop_is_said_on_the_next() -> None:
    """Vendor members and the trace context are passed on (rules 51, 53)."""
    theirs = {
        VERSION: "2099-01-01",
        CAPABILITIES: {"sampling": {}},
        CLIENT: {"name": "desk"},
        LEVEL: "debug",
        f"{IO}subscriptionId": 1,
        f"{IO}related-task": {"taskId": "1"},
        "progressToken": "theirs",
        "traceparent": "00-1",
        "com.example/x": 1.0,
    }
    before = params(_meta=theirs, name="x")
    found = wrapped(before)
    assert found == {
        "_meta": {
            VERSION: LATEST.name,
            CAPABILITIES: {"roots": {}},
            CLIENT: US,
            "traceparent": "00-1",
            "com.example/x": 1.0,
        },
        "name": "x",
    }
    assert read(before["_meta"]) == theirs, "the caller's own params stay as they were"


def test_other_params_keep_their_bytes() -> None:
    """(rules 3, 4)"""
    found = members(b'{"arguments":{"a": 1.0,"b":"\\/","c":1e400},"_meta":{"x": 1.0,"\\ud83d":1}}')
    sent = with_envelope(found, LATEST, {}, level=None, client_version="1", token=None)
    assert sent["arguments"] == found["arguments"]
    assert b'"x":1.0' in bytes(sent["_meta"])
    assert b'"\\ud83d":1' in bytes(sent["_meta"])


def test_meta_that_is_no_object_goes_nowhere() -> None:
    with pytest.raises(InvalidParams, match="_meta"):
        with_envelope(params(_meta=1), LATEST, {}, level=None, client_version="1", token=None)


@settings(max_examples=examples(100))
@given(
    st.dictionaries(st.sampled_from(["progressToken", VERSION, CLIENT, LEVEL, "b", "é", "\ud800"]), st.integers()),
    st.booleans(),
)
def test_what_we_send_is_what_we_would_take(meta: dict[str, int], escaped: bool) -> None:
    try:
        text = json.dumps({"_meta": meta}, ensure_ascii=escaped).encode()
    except UnicodeEncodeError:
        text = json.dumps({"_meta": meta}).encode()
    sent = with_envelope(members(text), LATEST, {}, level="error", client_version="1", token=5)
    assert has_envelope(sent)
    assert has_envelope(encode_object(sent))
    opened = take_stated(sent).checked
    assert opened.level == "error"
    kept = {name: each for name, each in meta.items() if name in ("b", "é", "\ud800")}
    assert {name: each for name, each in read(sent["_meta"]).items() if name in ("b", "é", "\ud800")} == kept


# Caching hints of a result


@pytest.mark.parametrize(
    ("result", "ttl", "public"),
    [
        ({"ttlMs": 1000, "cacheScope": "public"}, 1000, True),
        ({"ttlMs": 1000, "cacheScope": "private"}, 1000, False),
        ({"ttlMs": 1000}, 1000, False),
        ({"cacheScope": "public"}, 0, True),
        ({"ttlMs": -1, "cacheScope": "Public"}, 0, False),
        ({"ttlMs": "1000", "cacheScope": True}, 0, False),
        ({"ttlMs": True}, 0, False),
        ({"ttlMs": 1.5}, 0, False),
        ({"ttlMs": None, "cacheScope": None}, 0, False),
        ({"ttlMs": 10**400}, MAX_TTL, False),
        ({"ttlMs": 10**20}, MAX_TTL, False),
        ({}, 0, False),
        ([], 0, False),
        (None, 0, False),
    ],
)
def test_what_a_server_says_of_its_result_is_taken_the_careful_way(result: object, ttl: int, public: bool) -> None:
    """(rule 95)"""
    assert freshness_of(raw(result)) == Freshness(ttl, public)


def test_what_is_no_json_number_is_no_time() -> None:
    assert freshness_of(Raw(b'{"ttlMs":1e400,"cacheScope":"public"}')) == Freshness(0, True)


def test_what_is_made_of_several_is_as_fresh_as_the_stalest() -> None:
    """(rule 95)"""
    assert common_freshness([]) == STALE == Freshness(0, False)
    assert common_freshness([Freshness(5, True)]) == Freshness(5, True)
    assert common_freshness(iter([Freshness(5, True), Freshness(3, True)])) == Freshness(3, True)
    assert common_freshness([Freshness(5, True), Freshness(9, False)]) == Freshness(5, False)
    assert common_freshness([Freshness(5, True), STALE]) == STALE


# Members of a result


def test_these_methods_say_how_long_their_results_stay_true() -> None:
    assert CACHEABLE == CACHEABLE_METHODS
    assert len(CACHEABLE) == 6


@pytest.mark.parametrize(
    ("result", "whole"),
    [
        (b"{}", b"{%s}"),
        (b" { } ", b"{%s}"),
        (b'{"content":[ 1.0 ]}', b'{%s,"content":[ 1.0 ]}'),
        (b'\n{ "content": [{"text":"\\n\\/"}]\n}\n', b'{%s,"content": [{"text":"\\n\\/"}]\n}'),
        (b'{"structuredContent":1e400}', b'{%s,"structuredContent":1e400}'),
    ],
)
def test_a_completed_result_keeps_its_bytes(result: bytes, whole: bytes) -> None:
    """(rules 3, 4)"""
    stamp = b'"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"colonnade","title":"Colonnade","version":"1.2"}}'
    head = b'"resultType":"complete",'
    assert bytes(complete_result("tools/call", Raw(result), "1.2")) == whole.replace(b"%s", head + stamp)
    hints = b'"ttlMs":7,"cacheScope":"public",'
    listed = complete_result("tools/list", Raw(result), "1.2", Freshness(7, True))
    assert bytes(listed) == whole.replace(b"%s", head + hints + stamp)
    assert bytes(with_server_info(Raw(result), "1.2")) == whole.replace(b"%s", stamp)


@pytest.mark.parametrize("name", ["ResultType", "resulttype", "resultType\0", "_Meta"])
def test_a_complete_result_is_not_taken_for_one_that_requires_input(name: str) -> None:
    """Some readers ignore case, and take the last of equal names."""
    questions = {"q": {"method": "elicitation/create", "params": {"mode": "url", "url": "https://evil.example/"}}}
    result = {"content": [], name: "input_required", "inputRequests": questions, "Other": 1.5}
    found = read(complete_result("tools/call", Raw(json.dumps(result).encode()), "1.2"))
    assert set(found) == {"resultType", "_meta", "content", "inputRequests", "Other"}
    assert found["resultType"] == "complete"


def test_a_stamp_of_another_is_replaced_and_the_rest_kept() -> None:
    """(rules 51, 95)"""
    result = raw(
        {
            "content": [],
            "_meta": {SERVER: {"name": "gh"}, "com.example/x": 1},
            "resultType": "partial",
            "ttlMs": 5,
            "cacheScope": "public",
        }
    )
    assert read(complete_result("resources/read", result, "1.2")) == {
        "resultType": "complete",
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {SERVER: US, "com.example/x": 1},
        "content": [],
    }
    assert read(with_server_info(result, "1.2"))["resultType"] == "partial"


def test_what_only_looks_like_a_hint_stays() -> None:
    result = raw({"content": [], "ttlMs": 5, "_meta": 1})
    assert read(complete_result("tools/call", result, "1.2")) == {
        "resultType": "complete",
        "_meta": {SERVER: US},
        "content": [],
        "ttlMs": 5,
    }


@pytest.mark.parametrize("result", [b'{"\\u005fmeta":{"a":1}}', b'{"result\\u0054ype":"x","_meta":{"a":1}}'])
def test_no_member_is_there_twice_however_it_is_spelled(result: bytes) -> None:
    pairs = json.loads(bytes(complete_result("tools/call", Raw(result), "1.2")), object_pairs_hook=list)
    assert [name for name, _ in pairs] == ["resultType", "_meta"]
    assert [name for name, _ in pairs[1][1]] == ["a", SERVER]


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        (b"{}", "complete"),
        (b'{"resultType":"complete"}', "complete"),
        (b'{"resultType":"input_required"}', "input_required"),
        (b'{"result\\u0054ype":"task"}', "task"),
        (b'{"content":[{"resultType":"task"}]}', "complete"),
        (b'{"content":"\\u0000"}', "complete"),
        (b'{"resultType":""}', ""),
        (b'{"resultType":1}', ""),
        (b'{"resultType":null}', ""),
        (b'["resultType"]', "complete"),
    ],
)
def test_the_kind_of_a_result(result: bytes, kind: str) -> None:
    assert result_type_of(Raw(result)) == kind


@pytest.mark.parametrize(
    ("result", "inside"),
    [
        (b"{}", b"{}"),
        (b'{"content":[ 1.0 ]}', b'{"content":[ 1.0 ]}'),
        (b'{"content":["\\\\"], "_meta":{"a": 1.0}}', b'{"content":["\\\\"],"_meta":{"a":1.0}}'),
        (b'{"resultType":"complete","content":[ 1.0 ]}', b'{"content":[ 1.0 ]}'),
        (b'{"ttlMs":1,"tools":[],"cacheScope":"public","resultType":"complete"}', b'{"tools":[]}'),
        (b'{"_meta":{"io.modelcontextprotocol/serverInfo":{}},"a":1}', b'{"a":1}'),
        (b'{"_meta":{"io.modelcontextprotocol\\/serverInfo":{},"x":1},"a":1}', b'{"_meta":{"x":1},"a":1}'),
        (b'{"resultType":"complete","_meta":{"x": 1}}', b'{"_meta":{"x": 1}}'),
        (b'{"resultType":"complete","_meta":{}}', b'{"_meta":{}}'),
        (b'{"resultType":"complete","_meta":null}', b'{"_meta":null}'),
        (b'{"result\\u0054ype":"complete"}', b"{}"),
    ],
)
def test_on_the_inside_a_result_carries_nothing_of_that(result: bytes, inside: bytes) -> None:
    """(rules 4, 51, 54)"""
    assert read(strip_hop_fields(Raw(result))) == json.loads(inside)


MEMBERS = st.dictionaries(
    st.sampled_from(["content", "structuredContent", "isError", "é", "\ud83d", "a/b"]),
    st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)),
)


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(
    MEMBERS,
    st.none() | st.dictionaries(st.sampled_from(["a", "b/c", "\ud83d"]), st.integers(), min_size=1),
    st.sampled_from(sorted(CACHEABLE | {"tools/call", "prompts/get"})),
    st.booleans(),
)
def test_what_is_put_on_comes_off_again(
    found: dict[str, Any], meta: dict[str, int] | None, method: str, escaped: bool
) -> None:
    if meta is not None:
        found = {**found, "_meta": meta}
    try:
        text = json.dumps(found, ensure_ascii=escaped).encode()
    except UnicodeEncodeError:
        text = json.dumps(found).encode()
    whole = complete_result(method, Raw(text), "1.2", Freshness(5, True))
    assert next(iter(read(whole))) == "resultType"
    assert read(whole)["_meta"] == {**(meta or {}), SERVER: US}
    assert result_type_of(whole) == "complete"
    assert freshness_of(whole) == (Freshness(5, True) if method in CACHEABLE else STALE)
    assert read(strip_hop_fields(whole)) == found


# Discovery


def test_colonnade_says_what_it_is() -> None:
    """(rule 14)"""
    whole = read(complete_result("server/discover", discover_result("1.2", "Be kind."), "1.2"))
    assert whole == {
        "resultType": "complete",
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {SERVER: US},
        "supportedVersions": list(SERVED),
        "capabilities": {
            "tools": {"listChanged": True},
            "resources": {"listChanged": True, "subscribe": True},
            "prompts": {"listChanged": True},
            "completions": {},
            "logging": {},
            "extensions": {f"{IO}tasks": {}, f"{IO}ui": {}},
        },
        "instructions": "Be kind.",
    }
    validate_server_result("server/discover", LATEST.name, whole)


def test_tasks_are_named_as_nothing_but_an_extension() -> None:
    """(rule 92)"""
    found = read(discover_result("1.2", None))
    assert "instructions" not in found
    assert "tasks" not in found["capabilities"]
    assert f"{IO}tasks" in found["capabilities"]["extensions"]


def test_we_ask_as_it_is_meant() -> None:
    found = read(encode_object(discover_params(LATEST, {"elicitation": {"form": {}}}, "1.2")))
    assert found == {"_meta": {VERSION: LATEST.name, CAPABILITIES: {"elicitation": {"form": {}}}, CLIENT: US}}
    validate_client_request("server/discover", LATEST.name, found)


def test_a_discovery_is_an_offer() -> None:
    found = read_discovery(
        raw(
            {
                "resultType": "complete",
                "supportedVersions": [LATEST.name, "2025-11-25"],
                "capabilities": {"tools": {"listChanged": True}, "extensions": {f"{IO}tasks": {}}},
                "instructions": "Read first.",
                "_meta": {SERVER: {"name": "gh", "version": "3"}},
            }
        )
    )
    assert found.versions == (LATEST.name, "2025-11-25")
    assert found.negotiated is not None
    assert (found.negotiated.revision, found.negotiated.server, found.negotiated.instructions) == (
        LATEST,
        "gh 3",
        "Read first.",
    )
    assert found.negotiated.runs_tasks
    assert not found.negotiated.has_completions
    assert found.negotiated.list_changed == {"tools"}


def test_a_discovery_without_a_shared_version_is_none() -> None:
    found = read_discovery(raw({"supportedVersions": ["2025-11-25"], "capabilities": {}}))
    assert (found.negotiated, found.versions) == (None, ("2025-11-25",))


@pytest.mark.parametrize(
    "result",
    [
        {},
        [],
        None,
        {"capabilities": {}},
        {"supportedVersions": [LATEST.name]},
        {"supportedVersions": LATEST.name, "capabilities": {}},
        {"supportedVersions": [1], "capabilities": {}},
        {"supportedVersions": [LATEST.name], "capabilities": []},
        {"supportedVersions": [LATEST.name], "capabilities": {}, "resultType": "task"},
    ],
)
def test_what_is_no_discovery_is_a_value_error(result: object) -> None:
    with pytest.raises(ValueError):
        read_discovery(raw(result))
