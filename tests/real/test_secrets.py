"""Twenty secrets, planted wherever a host is given one, and everything made to fail that can: none of them is found in
what it logs, answers, shows, writes down, or starts its helpers with."""

from __future__ import annotations

import http.server
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from host.audit.records import files
from host.cli.admin_client import find_hosts
from tests.kit.stateless import stateless_request
from tests.kit.web_server import answering
from tests.real.running import BARE_PYTHON, colonnade, pids_below, recorder, serving, until, write_config

COUNT = 20
SECRETS = [f"s3cr3t-{at:02}-{os.urandom(6).hex()}" for at in range(COUNT)]

# A server that answers what it must, and fails at every call.
LOUD = """
import json, os, sys
own = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "x", "version": "1"}}
tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("fail", "held")]
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message or "method" not in message:
        continue
    answer = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] == "initialize":
        answer["result"] = own
    elif message["method"] == "tools/list":
        answer["result"] = {"tools": tools}
    else:
        answer["error"] = {"code": -32601, "message": "it did not work"}
    print(json.dumps(answer), flush=True)
"""


class _Refusing(http.server.BaseHTTPRequestHandler):
    """Answers every request with a refusal."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(401)
        self.send_header("content-length", "0")
        self.end_headers()

    do_GET = do_DELETE = do_POST  # noqa: N815

    def log_message(self, *_: Any) -> None:
        return


@contextmanager
def refusing() -> Iterator[str]:
    with answering(http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Refusing)) as port:
        yield f"http://127.0.0.1:{port}"


def configuration(folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each secret in a place of its own."""
    secrets = iter(SECRETS)
    (folder / "file.secret").write_text(next(secrets))
    (folder / "loud.py").write_text(LOUD)
    for at in range(1, 5):
        monkeypatch.setenv(f"PLANTED_{at}", SECRETS[at])
        next(secrets)
    given = list(secrets)
    monkeypatch.setenv("PLANTED_PATH", given[9])
    servers = {
        "loud": {
            "command": [*BARE_PYTHON, str(folder / "loud.py"), "${env:PLANTED_1}", "${file:file.secret}"],
            "env": {"TOKEN": "${env:PLANTED_2}", "PASSWORD": given[0], "API_KEY": f"Bearer {given[1]}"},
            "consent": {"tools": {"allow": ["fail"], "ask": ["held"]}},
        },
        "gone": {
            "command": ["/nowhere/program", given[2], "--token=${env:PLANTED_3}"],
            "env": {"TOKEN": given[3]},
        },
        "broken": {"command": [*BARE_PYTHON, "-c", "import sys; sys.exit(3)", given[4]], "env": {"KEY": given[5]}},
        "refused": {
            "url": f"{url}/mcp?key={given[6]}&more=${{env:PLANTED_4}}",
            "headers": {"Authorization": f"Bearer {given[7]}", "X-Api-Key": given[8]},
        },
        "unreachable": {
            "url": f"http://127.0.0.1:9/${{env:PLANTED_PATH}}/mcp?token={given[10]}",
            "headers": {"Cookie": f"session={given[11]}"},
        },
        "recorder": recorder(folder / "recorder.log"),
    }
    listen = {"address": "127.0.0.1:0", "auth": {"tokens": {"laptop": given[12]}}}
    return write_config(folder, servers, listen=listen)


def test_twenty_planted_secrets_are_found_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for at in range(1, 5):
        monkeypatch.setenv(f"PLANTED_{at}", "")
    monkeypatch.setenv("COLONNADE_STATE", str(tmp_path / "state"))
    with refusing() as url:
        file = configuration(tmp_path, url, monkeypatch)
        token, argument, elicited = SECRETS[17], SECRETS[18], SECRETS[19]
        seen: dict[str, str] = {}
        with serving(file, "loud") as host:
            until(
                lambda: all(
                    host.said and any(line.split()[:1] == [id] for line in host.said[1:])
                    for id in ("gone", "broken", "refused", "unreachable")
                ),
                "all have been tried",
            )
            said = []
            for name in ("loud__fail", "loud__held", "gone__x", "broken__x", "refused__x", "unreachable__x", "none__x"):
                arguments = {"password": argument, "answer": elicited}
                said.append(_ask(host.url, token, "tools/call", {"name": name, "arguments": arguments}))
            for method in ("tools/list", "resources/list", "prompts/list", "nonsense/method"):
                said.append(_ask(host.url, token, method, {}))
            said.append(_ask(host.url, f"{token}x", "tools/list", {}))
            said.append(_ask(f"{host.url}?key={token}", "wrong", "tools/list", {}))
            seen["answers"] = "\n".join(said)
            seen["status"] = _status(host.url, token) + _status(host.url, f"{token}x")
            (admin,) = find_hosts(tmp_path / "state")
            shown = admin.get("state")
            # What a call was given is shown to the person who is asked about it, and to nobody else.
            (question,) = [each for each in shown["confirmations"] if each["name"] == "held"]
            assert argument in question["arguments"]
            question["arguments"] = ""
            seen["admin"] = json.dumps(shown)
            for command in ("list", "check"):
                ran = colonnade(command, str(file))
                seen[f"colonnade {command}"] = ran.stdout + ran.stderr
            for words in (["definitions"], ["grants"], ["explain", "--server", "loud", "--tool", "held"], ["audit"]):
                ran = colonnade(*words, COLONNADE_STATE=str(tmp_path / "state"))
                seen[f"colonnade {' '.join(words)}"] = ran.stdout + ran.stderr
            # What the owner wrote into a command is in that command's line; nothing else's.
            below = pids_below(host.process.pid)
            started = (" ".join([*BARE_PYTHON, str(tmp_path / "loud.py")]), " ".join([*BARE_PYTHON, "-c import sys;"]))
            lines = {pid: line for pid, line in below.items() if not line.startswith(started)}
            assert len(lines) < len(below)
            seen["processes"] = "\n".join(lines.values())
            seen["own process"] = Path(f"/proc/{host.process.pid}/cmdline").read_bytes().decode()
        seen["stdout"] = "\n".join(host.said)
        seen["stderr"] = host.errors
    for path in files(tmp_path / "state" / "audit"):
        seen[path.name] = path.read_text()
    for path in (tmp_path / "state" / "configs").rglob("*.json"):
        seen[str(path)] = path.read_text()
    assert any('"decision"' in text for text in seen.values())
    found = [(at, where) for at, secret in enumerate(SECRETS) for where, text in seen.items() if secret in text]
    assert found == []


def _status(url: str, token: str) -> str:
    request = urllib.request.Request(url.rpartition("/")[0] + "/status", headers={"authorization": f"Bearer {token}"})
    return _opened(request)


def _ask(url: str, token: str, method: str, params: dict[str, Any]) -> str:
    """One stateless request: what came back, head and body."""
    headers, body = stateless_request(method, params)
    request = urllib.request.Request(url, json.dumps(body).encode(), {**headers, "authorization": f"Bearer {token}"})
    return _opened(request)


def _opened(request: urllib.request.Request) -> str:
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return f"{answer.headers}{answer.read().decode()}"
    except urllib.error.HTTPError as refused:
        return f"{refused.headers}{refused.read().decode()}"
