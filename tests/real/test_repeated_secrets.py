"""Servers that repeat the credential that they were given, as programs and at URLs, in both eras: no client, no person
and no file gets it."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from host.cli.admin_client import find_hosts
from host.jsonrpc.withheld import WITHHELD
from tests.kit.stateless import stateless_request
from tests.real.running import BARE_PYTHON, SERVERS, beside, colonnade, listening, serving, until, write_config

REPEATER = [*BARE_PYTHON, str(SERVERS / "repeater.py")]
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("tools/list", {}),
    ("prompts/list", {}),
    ("resources/list", {}),
    *(("tools/call", {"name": f"{id}__good", "arguments": {}}) for id in ("new", "old", "web-new", "web-old")),
    *(("tools/call", {"name": f"{id}__told", "arguments": {}}) for id in ("new", "web-old")),
    *(("prompts/get", {"name": f"{id}__p"}) for id in ("new", "old", "web-new", "web-old")),
    ("resources/read", {"uri": "old+memo:1"}),
]


def test_four_servers_that_repeat_their_credential_show_it_to_nobody(tmp_path: Path) -> None:
    secret = f"s3cr3t/{os.urandom(12).hex()}+=="
    state = Path(beside(tmp_path / "colonnade.yaml")["COLONNADE_STATE"])
    (tmp_path / "token").write_text(f"{secret}\n")
    seen: dict[str, str] = {}
    with ExitStack() as stack:
        urls = {
            id: stack.enter_context(listening(*REPEATER, era, "--http", folder=tmp_path))[1]
            for id, era in (("web-old", "handshake"), ("web-new", "stateless"))
        }
        servers: dict[str, object] = {
            id: {"command": [*REPEATER, era], "env": {"TOKEN": "${file:token}"}}
            for id, era in (("old", "handshake"), ("new", "stateless"))
        }
        for id, url in urls.items():
            servers[id] = {"url": url, "headers": {"Authorization": f"Bearer {secret}"}, "trust": "trusted"}
        file = write_config(tmp_path, servers)
        with serving(file, *servers) as host:
            said = [_stateless(host.url, method, params) for method, params in REQUESTS]
            said += _handshake(host.url)
            seen["clients"] = "\n".join(said)
            (admin,) = find_hosts(state)
            shown = until(lambda: _if_compared(admin.get("state")), "all held definitions have been compared")
            seen["console"] = json.dumps(shown)
            problems = {(each["server"], each["kind"]) for each in shown["held"] if each["problem"]}
            assert problems == {(id, kind) for id in servers for kind in ("tool", "prompt", "resource")}
            for words in (["definitions", "--show"], ["definitions", "approve", "--server", "old", "--yes"], ["audit"]):
                ran = colonnade(*words, COLONNADE_STATE=str(state))
                seen[f"colonnade {' '.join(words)}"] = ran.stdout + ran.stderr
            for id in servers:
                seen[f"logs {id}"] = colonnade("logs", id, COLONNADE_STATE=str(state)).stdout
            seen["list"] = colonnade("list", str(file), COLONNADE_STATE=str(state)).stdout
        seen["stdout"], seen["stderr"] = "\n".join(host.said), host.errors
    for path in (each for each in state.rglob("*") if each.is_file()):
        seen[str(path)] = path.read_bytes().decode(errors="replace")
    assert seen["clients"].count(WITHHELD) > 10
    assert "cannot be approved: it repeats a secret" in seen["colonnade definitions --show"]
    assert "it repeats a secret that it was given, in the result of tools/list" in seen["stderr"]
    assert any(path.endswith(".db") or "sqlite" in path for path in seen), list(seen)
    written = {secret, secret.replace("/", "\\/"), secret.split("/")[1]}
    assert {where for where, text in seen.items() if any(each in text for each in written)} == set()


def _if_compared(state: dict[str, Any]) -> dict[str, Any] | None:
    return state if all(each["ready"] for each in state["held"]) else None


def _stateless(url: str, method: str, params: dict[str, Any]) -> str:
    headers, body = stateless_request(method, params)
    return _opened(urllib.request.Request(url, json.dumps(body).encode(), headers))[1]


def _handshake(url: str) -> list[str]:
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    opening = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    said = []
    for method, params in [("initialize", opening), ("notifications/initialized", {}), *REQUESTS]:
        message = {"jsonrpc": "2.0", "method": method, "params": params, **({} if "notif" in method else {"id": 1})}
        session, body = _opened(urllib.request.Request(url, json.dumps(message).encode(), headers))
        if session:
            headers |= {"mcp-session-id": session, "mcp-protocol-version": "2025-11-25"}
        said.append(body)
    return said


def _opened(request: urllib.request.Request) -> tuple[str, str]:
    """The session id, if there is one, and all that came."""
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.headers.get("mcp-session-id", ""), f"{answer.headers}{answer.read().decode()}"
    except urllib.error.HTTPError as refused:
        return "", f"{refused.headers}{refused.read().decode()}"
