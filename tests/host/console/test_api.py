"""What may be asked of the office: which requests there are, what is taken of them, and what an onlooker hears."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
import trio

from config import Channel
from host.console.api import (
    MAX_GRANT_SECONDS,
    REQUESTS,
    AdminError,
    MalformedRequest,
    StateFeed,
    carry_out,
    encode,
)
from host.slices import run_inline
from tests.kit.admin import SECTIONS, FakeAdminApi, confirmation, held
from tests.test_layers import SOURCES, imports, parsed

DECISION = {"server": "github", "kind": "tool", "name": "get_issue", "fingerprint": "sha256:get_issue"}


def ask(office: FakeAdminApi, verb: str, **given: Any) -> Any:
    return run_inline(carry_out(office, verb, json.dumps(given).encode(), Channel.CONSOLE))


@pytest.mark.parametrize(
    ("given", "reaches"),
    [
        ({"answer": "deny"}, ("deny", None, "exact")),
        ({"answer": "once"}, ("once", None, "exact")),
        ({"answer": "session", "arguments": "any"}, ("session", None, "any")),
        ({"answer": "time", "seconds": 900}, ("time", 900, "exact")),
        ({"answer": "always", "arguments": {"owner": {"in": ["acme"]}}}, ("always", None, {"owner": {"in": ["acme"]}})),
    ],
)
async def test_answers_reach_the_office(given: dict[str, Any], reaches: tuple[Any, ...]) -> None:
    office = FakeAdminApi(questions=[confirmation()])
    assert ask(office, "answer", id="q1", **given)["done"]
    assert office.requests == [("answer", "q1", *reaches, "console")]


async def test_decisions_reach_the_office() -> None:
    office = FakeAdminApi(held=[held(), held("b"), held("c")])
    ask(office, "decide", **DECISION, decision="reject")
    ask(office, "decide_all", server="github", fingerprints=["sha256:b", "sha256:c"])
    assert office.section("held") == []
    with pytest.raises(AdminError, match="changed meanwhile"):
        ask(office, "decide", **DECISION, decision="approve")
    with pytest.raises(AdminError):
        ask(office, "revoke", id="g9")
    assert ask(office, "explain", server="github", kind="tool", name="x", arguments={"a": 1})["verdict"] == "ask"
    assert [each[0] for each in office.requests] == ["decide", "decide_all", "decide", "revoke", "explain"]


@pytest.mark.parametrize(
    ("verb", "given"),
    [
        ("answer", {}),
        ("answer", {"id": "q1"}),
        ("answer", {"id": "q1", "answer": "yes"}),
        ("answer", {"id": 1, "answer": "deny"}),
        ("answer", {"id": "q" * 129, "answer": "deny"}),
        ("answer", {"id": "q1", "answer": "deny", "more": 1}),
        ("answer", {"id": "q1", "answer": "time"}),
        ("answer", {"id": "q1", "answer": "time", "seconds": 0}),
        ("answer", {"id": "q1", "answer": "time", "seconds": 1.5}),
        ("answer", {"id": "q1", "answer": "time", "seconds": True}),
        ("answer", {"id": "q1", "answer": "time", "seconds": MAX_GRANT_SECONDS + 1}),
        ("answer", {"id": "q1", "answer": "once", "seconds": 60}),
        ("answer", {"id": "q1", "answer": "once", "arguments": "all"}),
        ("answer", {"id": "q1", "answer": "once", "arguments": []}),
        ("decide", {**DECISION, "decision": "allow"}),
        ("decide", {**DECISION, "decision": "approve", "command": ["sh"]}),
        ("decide", {"server": "github", "decision": "approve"}),
        ("decide_all", {"server": "github", "fingerprints": []}),
        ("decide_all", {"server": "github", "fingerprints": ["a"], "decision": "revoke"}),
        ("revoke", {}),
        ("explain", {"server": "github", "kind": "tool", "name": "x", "arguments": [1]}),
    ],
)
async def test_what_is_no_request_reaches_nobody(verb: str, given: dict[str, Any]) -> None:
    office = FakeAdminApi(questions=[confirmation()], held=[held()])
    with pytest.raises(MalformedRequest):
        ask(office, verb, **given)
    assert office.requests == []


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b'{"id": "q1"', b"\xff", b"[" * 100_000])
def test_what_is_no_object_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedRequest):
        carry_out(FakeAdminApi(), "revoke", data, Channel.CONSOLE)


def test_no_request_names_what_runs() -> None:
    """Nothing that can be sent here defines, changes or starts a server."""
    fields = {verb: set(request.__struct_fields__) for verb, request in REQUESTS.items()}
    assert fields.keys() == {"answer", "decide", "decide_all", "revoke", "explain"}
    forbidden = {"command", "args", "argv", "env", "environment", "cwd", "url", "headers", "program", "config", "path"}
    assert not set().union(*fields.values()) & forbidden
    for verb, request in REQUESTS.items():
        with pytest.raises(MalformedRequest):
            carry_out(FakeAdminApi(), verb, json.dumps({"command": ["sh"]}).encode(), Channel.CONSOLE)
        assert request.__struct_config__.forbid_unknown_fields


def test_nothing_of_the_console_reaches_what_starts_programs() -> None:
    """What answers requests imports nothing, at any distance, that can start a program: it knows the office by its
    protocol. What stands behind that is handed what it may do, and calls nothing that starts one."""
    starters = {"host.wire.process", "host.wire.keeper", "host.upstream.connect", "host.upstream.supervisor"}
    own = [name for name in SOURCES if name.startswith("host.console")]
    seen: set[str] = set()
    coming = [f"host.console.{name}" for name in ("web", "control", "api", "login")]
    while coming:
        name = coming.pop()
        seen.add(name)
        found = {target for _, target in imports(parsed(SOURCES[name]), name)}
        coming += [target for target in found if target.startswith("host") and target in SOURCES and target not in seen]
    assert seen & starters == set()
    assert "host.wire.asgi" in seen
    for name in own:
        tree = ast.parse(Path(SOURCES[name]).read_text("utf-8"))
        modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        assert not modules & {"subprocess", "multiprocessing", "pty", "ctypes"}
        called = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert not called & {"open_child", "open_process", "run_process", "fork", "execv", "execve", "posix_spawn"}


async def test_an_onlooker_hears_everything_then_what_changes(autojump_clock: trio.testing.MockClock) -> None:
    office = FakeAdminApi()
    feed = StateFeed(office)
    first = await feed.next()
    assert set(SECTIONS) < set(first)
    office.add("questions", confirmation())
    office.add("problems", "the audit cannot be written")
    heard = await feed.next()
    assert heard.keys() == {"questions", "problems"}
    assert [each["id"] for each in heard["questions"]] == ["q1"]


async def test_news_is_not_lost_by_whoever_stops_waiting(autojump_clock: trio.testing.MockClock) -> None:
    office = FakeAdminApi()
    feed = StateFeed(office)
    await feed.next()
    with trio.move_on_after(60) as waiting:
        await feed.next()
    assert waiting.cancelled_caught
    office.add("grants", {"id": "g"})
    assert (await feed.next()).keys() == {"grants"}


def test_text_that_is_no_unicode_goes_out_all_the_same() -> None:
    assert json.loads(encode({"a": "half \ud800"})) == {"a": "half \ud800"}
    assert encode({"a": "é", "b": [1, None, True]}) == '{"a":"é","b":[1,null,true]}'.encode()
