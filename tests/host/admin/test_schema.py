"""The requests of the admin API: which there are, and which bodies they take."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from config import Channel
from host.admin.schema import (
    MAX_GRANT_SECONDS,
    REQUESTS,
    STORED_REQUESTS,
    AdminError,
    MalformedRequest,
    read_request,
)
from tests.kit.admin import FakeAdminApi, change, confirmation, held
from tests.kit.awaited import awaited
from tests.test_layers import SOURCES, imports, nodes

DECISION = {"server": "github", "kind": "tool", "name": "get_issue", "fingerprint": "sha256:get_issue"}


def ask(admin: FakeAdminApi, path: str, **given: Any) -> Any:
    return awaited(read_request(REQUESTS, path, json.dumps(given).encode()).carry_out(admin, Channel.CONSOLE))


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
async def test_answers_reach_the_admin(given: dict[str, Any], reaches: tuple[Any, ...]) -> None:
    admin = FakeAdminApi(confirmations=[confirmation()])
    assert ask(admin, "confirmations/answer", id="q1", **given)["done"]
    assert admin.requests == [("answer", "q1", *reaches, "console")]


async def test_all_of_a_server_that_was_shown_is_denied() -> None:
    admin = FakeAdminApi(confirmations=[confirmation(), confirmation("q2"), confirmation("q3")])
    assert ask(admin, "confirmations/deny-all", server="github", ids=["q1", "q3"])["done"]
    assert admin.requests == [("deny_all", "github", ["q1", "q3"], "console")]
    assert [each["id"] for each in admin.section("confirmations")] == ["q2"]


async def test_a_reload_reaches_the_admin_with_what_was_shown() -> None:
    admin = FakeAdminApi(configuration=[change()])
    ask(admin, "configuration/reload", apply=False)
    ask(admin, "configuration/reload", shown="c1")
    assert admin.requests == [("reload", False, None), ("reload", True, "c1")]


async def test_decisions_reach_the_admin() -> None:
    admin = FakeAdminApi(held=[held(), held("b"), held("c")])
    ask(admin, "definitions/decide", **DECISION, decision="reject")
    ask(admin, "definitions/decide-all", server="github", fingerprints=["sha256:b", "sha256:c"])
    assert admin.section("held") == []
    with pytest.raises(AdminError, match="changed meanwhile"):
        ask(admin, "definitions/decide", **DECISION, decision="approve")
    with pytest.raises(AdminError):
        ask(admin, "grants/revoke", id="g9")
    assert ask(admin, "explain", server="github", kind="tool", name="x", arguments={"a": 1})["verdict"] == "ask"
    assert [each[0] for each in admin.requests] == ["decide", "decide_all", "decide", "revoke", "explain"]


@pytest.mark.parametrize(
    ("path", "given"),
    [
        ("confirmations/answer", {}),
        ("confirmations/answer", {"id": "q1"}),
        ("confirmations/answer", {"id": "q1", "answer": "yes"}),
        ("confirmations/answer", {"id": 1, "answer": "deny"}),
        ("confirmations/answer", {"id": "q" * 129, "answer": "deny"}),
        ("confirmations/answer", {"id": "q1", "answer": "deny", "more": 1}),
        ("confirmations/answer", {"id": "q1", "answer": "time"}),
        ("confirmations/answer", {"id": "q1", "answer": "time", "seconds": 0}),
        ("confirmations/answer", {"id": "q1", "answer": "time", "seconds": 1.5}),
        ("confirmations/answer", {"id": "q1", "answer": "time", "seconds": True}),
        ("confirmations/answer", {"id": "q1", "answer": "time", "seconds": MAX_GRANT_SECONDS + 1}),
        ("confirmations/answer", {"id": "q1", "answer": "once", "seconds": 60}),
        ("confirmations/answer", {"id": "q1", "answer": "once", "arguments": "all"}),
        ("confirmations/answer", {"id": "q1", "answer": "once", "arguments": []}),
        ("confirmations/deny-all", {"server": "github"}),
        ("confirmations/deny-all", {"server": "github", "ids": []}),
        ("confirmations/deny-all", {"server": "github", "ids": "q1"}),
        ("definitions/decide", {**DECISION, "decision": "allow"}),
        ("definitions/decide", {**DECISION, "decision": "approve", "command": ["sh"]}),
        ("definitions/decide", {"server": "github", "decision": "approve"}),
        ("definitions/decide-all", {"server": "github", "fingerprints": []}),
        ("definitions/decide-all", {"server": "github", "fingerprints": ["a"], "decision": "revoke"}),
        ("grants/revoke", {}),
        ("explain", {"server": "github", "kind": "tool", "name": "x", "arguments": [1]}),
        ("history/list", {"since": 1e12}),
        ("history/list", {"since": -1}),
        ("history/list", {"beyond": 2**63}),
        ("history/call", {"id": "747d7391", "place": 2**63}),
    ],
)
async def test_what_is_no_request_reaches_nobody(path: str, given: dict[str, Any]) -> None:
    admin = FakeAdminApi(confirmations=[confirmation()], held=[held()])
    with pytest.raises(MalformedRequest):
        ask(admin, path, **given)
    assert admin.requests == []


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b'{"id": "q1"', b"\xff", b"[" * 100_000])
def test_what_is_no_object_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedRequest):
        read_request(REQUESTS, "grants/revoke", data)


@pytest.mark.parametrize("path", sorted(REQUESTS.keys() - STORED_REQUESTS.keys()))
def test_where_no_host_runs_nothing_is_asked_of_one(path: str) -> None:
    with pytest.raises(AdminError, match="no host of this configuration runs"):
        read_request(STORED_REQUESTS, path, b"{}")


def test_no_request_names_what_runs() -> None:
    """Nothing that can be sent here defines or changes a server, or names a file."""
    fields = {path: set(request.__struct_fields__) for path, request in REQUESTS.items()}
    assert fields.keys() == {
        "confirmations/answer",
        "confirmations/deny-all",
        "definitions/list",
        "definitions/decide",
        "definitions/decide-all",
        "grants/revoke",
        "servers/sandbox",
        "explain",
        "callers/view",
        "history/list",
        "history/call",
        "servers/log",
        "servers/traffic",
        "servers/control",
        "servers/login",
        "configuration/reload",
    }
    forbidden = {"command", "args", "argv", "env", "environment", "cwd", "url", "headers", "program", "config", "path"}
    assert not set().union(*fields.values()) & forbidden
    for path, request in REQUESTS.items():
        with pytest.raises(MalformedRequest):
            read_request(REQUESTS, path, json.dumps({"command": ["sh"]}).encode())
        assert request.__struct_config__.forbid_unknown_fields


@pytest.mark.slow
def test_nothing_of_the_admin_api_reaches_what_starts_programs() -> None:
    """The modules that answer requests import nothing, at any distance, that can start a program: they know the API by
    its protocol. Its implementation gets what it may do, and calls nothing that starts one."""
    starters = {"host.wire.process", "host.wire.keeper", "host.upstream.connect", "host.upstream.supervised"}
    own = [name for name in SOURCES if name.startswith("host.admin")]
    seen: set[str] = set()
    coming = [f"host.admin.{name}" for name in ("web", "socket", "api", "schema", "login", "openapi")]
    while coming:
        name = coming.pop()
        seen.add(name)
        found = {target for _, target in imports(nodes(name), name)}
        coming += [target for target in found if target.startswith("host") and target in SOURCES and target not in seen]
    assert seen & starters == set()
    assert "host.wire.asgi" in seen
    for name in own:
        tree = ast.parse(Path(SOURCES[name]).read_text("utf-8"))
        modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        assert not modules & {"subprocess", "multiprocessing", "pty", "ctypes"}
        called = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert not called & {"open_child", "open_process", "run_process", "fork", "execv", "execve", "posix_spawn"}
