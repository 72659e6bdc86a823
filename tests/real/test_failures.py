"""Servers that fail, each in its own way, and the sentence that a person reads about it in four places.

One host runs all of them. The table below is the documentation: a kind of failure, how it is made, and the sentence. It
stands in the output of `serve`, in `colonnade list` (with `--json` too), in the admin API, which the console shows, and
in the response to a call. What a client sees (the call, and `list`, which reads `/status`) names no directory of this
machine; no secret is anywhere.
"""

from __future__ import annotations

import http.server
import json
import re
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from host.cli.admin_client import find_hosts
from tests.kit.ports import free_port
from tests.kit.stateless import stateless_request
from tests.kit.web_server import answering
from tests.real.running import BARE_PYTHON, STOP, Running, colonnade, serving, until, write_config

SECRET = "s3cr3t-5f0c1d"
SLOW = 2
"""Seconds of `start_timeout` of servers that never respond."""


@dataclass(frozen=True)
class Kind:
    """A way to fail. Exactly one of these is the server: `code` of Python, `says` (what a program writes before it
    exits with `status`), `file` (a program that is no usable one), `answer` (the HTTP response to each request), or
    `spec` (a configuration).

    Args:
        sentence: the reason for the person who runs the host.
        told: the reason for a client, if it is another one.
        lasting: only a person can mend it, so the sentence ends with the command that tries again.
        state: the state of the server then.
    """

    sentence: str
    code: str = ""
    says: str = ""
    status: int = 1
    file: str | None = None
    answer: tuple[int, dict[str, str]] | None = None
    spec: Mapping[str, object] = field(default_factory=dict)
    told: str | None = None
    lasting: bool = False
    state: str = "failed"


OLD = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    answer = {"jsonrpc": "2.0", "id": message.get("id")}
    if message["method"] == "initialize":
        answer["result"] = {"protocolVersion": "1999-01-01", "capabilities": {}, "serverInfo": {}}
    else:
        answer["error"] = {"code": -32601, "message": "unknown"}
    print(json.dumps(answer), flush=True)
"""

KINDS = {
    # The program cannot be started.
    "missing": Kind(
        'the program "no-such-program" was not found on PATH: install it, or correct the command, or write its path',
        spec={"command": ["no-such-program", f"--token={SECRET}"]},
        lasting=True,
    ),
    "misplaced": Kind(
        'the program "server" was not found at "/no/such/folder/server": install it, or correct the command',
        told='the program "server" was not found at "…/server": install it, or correct the command',
        spec={"command": ["/no/such/folder/server"]},
        lasting=True,
    ),
    "plain": Kind(
        'the program "plain" is not executable: make it so (chmod +x), or put its interpreter before it in the command',
        file="print('hello')\n",
        lasting=True,
    ),
    "uninterpreted": Kind(
        'the program "uninterpreted" names an interpreter in its first line (#!) that is not there: install it, or '
        "correct the line",
        file="#!/no/such/interpreter\n",
        lasting=True,
    ),
    "homeless": Kind(
        'the program "sh" cannot be started in the folder "/no/such/folder": make that folder, or name another one',
        told='the program "sh" cannot be started in the folder "…/folder": make that folder, or name another one',
        spec={"command": ["sh"], "cwd": "/no/such/folder"},
        lasting=True,
    ),
    # It ends at once.
    "python": Kind(
        "it exited with status 1: ModuleNotFoundError: No module named 'missing'",
        code="import missing",
    ),
    "pydantic": Kind(
        "it exited with status 1: api_key Field required [type=missing, input_value={}, input_type=dict]",
        says="Traceback (most recent call last):\n"
        '  File "/srv/server.py", line 9, in <module>\n'
        "    settings = Settings()\n"
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for Settings\n"
        "api_key\n"
        "  Field required [type=missing, input_value={}, input_type=dict]\n"
        "    For further information visit https://errors.pydantic.dev/2.10/v/missing\n",
    ),
    "node": Kind(
        "it exited with status 1: TypeError: GITHUB_TOKEN is required",
        says="/srv/index.js:3\n"
        '  throw new TypeError("GITHUB_TOKEN is required");\n'
        "  ^\n\n"
        "TypeError: GITHUB_TOKEN is required\n"
        "    at Object.<anonymous> (/srv/index.js:3:9)\n\n"
        "Node.js v20.11.0\n",
    ),
    "module": Kind(
        "it exited with status 1: Error: Cannot find module '/srv/server/index.js'",
        told="it exited with status 1: Error: Cannot find module '…/index.js'",
        says="node:internal/modules/cjs/loader:1148\n"
        "  throw err;\n"
        "  ^\n\n"
        "Error: Cannot find module '/srv/server/index.js'\n"
        "    at Module._resolveFilename (node:internal/modules/cjs/loader:1145:15) {\n"
        "  code: 'MODULE_NOT_FOUND',\n"
        "  requireStack: []\n"
        "}\n\n"
        "Node.js v20.11.0\n",
    ),
    "docker": Kind(
        "it exited with status 125: docker: Error response from daemon: pull access denied for mcp/none, repository "
        "does not exist or may require 'docker login'.",
        says="Unable to find image 'mcp/none:latest' locally\n"
        "docker: Error response from daemon: pull access denied for mcp/none, repository does not exist or may "
        "require 'docker login'.\n\n"
        "Run 'docker run --help' for more information\n",
        status=125,
    ),
    "npx": Kind(
        "it exited with status 1: npm error 404  'mcp-none@*' is not in this registry.",
        says="npm error code E404\n"
        "npm error 404 Not Found - GET https://registry.npmjs.org/mcp-none - Not found\n"
        "npm error 404\n"
        "npm error 404  'mcp-none@*' is not in this registry.\n"
        "npm error A complete log of this run can be found in: /home/me/.npm/_logs/x.log\n",
    ),
    "uvx": Kind(
        "it exited with status 1: No solution found when resolving tool dependencies: Because mcp-none was not found "
        "in the package registry and you require mcp-none, we can conclude that your requirements are unsatisfiable.",
        says="  × No solution found when resolving tool dependencies:\n"
        "  ╰─▶ Because mcp-none was not found in the package registry and you require\n"
        "      mcp-none, we can conclude that your requirements are unsatisfiable.\n",
    ),
    "printing": Kind(
        "it exited with status 2: Error: API_KEY is not set",
        code="print('Error: API_KEY is not set'); raise SystemExit(2)",
    ),
    "telling": Kind(
        "it exited with status 1: the key *** is not valid",
        code="import os, sys; sys.exit(f'the key {os.environ[\"KEY\"]} is not valid')",
        spec={"env": {"KEY": SECRET}},
    ),
    "saturated": Kind(
        "it exited with status 1: OSError: [Errno 24] Too many open files: '/dev/null'",
        told="it exited with status 1: OSError: [Errno 24] Too many open files: '…/null'",
        code="import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))\n"
        "files = [open('/dev/null') for _ in range(9)]",
    ),
    "finished": Kind(
        "it exited with status 0, as if it had finished: over stdio a server runs until its standard input is closed",
        code="pass",
    ),
    "silent": Kind("it exited with status 3 and gave no reason", code="raise SystemExit(3)"),
    "killed": Kind(
        "it was ended by signal 9, SIGKILL (by a person, or by the system because memory ran out)",
        code="import os, sys; print('Error: chatter', file=sys.stderr, flush=True); os.kill(os.getpid(), 9)",
    ),
    "crashed": Kind(
        "it crashed with signal 6, SIGABRT: FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of "
        "memory",
        code="import os, sys\n"
        "print('FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory', file=sys.stderr)\n"
        "sys.stderr.flush()\nos.abort()",
    ),
    # It never responds.
    "deaf": Kind(
        f"it did not finish its start within {SLOW} s: if it needs longer, raise start_timeout; its standard error "
        'ends with "Please log in first"',
        code="import sys, time; print('Please log in first', file=sys.stderr, flush=True); time.sleep(600)",
        spec={"start_timeout": f"{SLOW}s"},
    ),
    "babbling": Kind(
        f'it did not finish its start within {SLOW} s: its standard output is no JSON-RPC but begins "Listening on '
        'port 3000"; it may need an option for stdio',
        code="import time; print('Listening on port 3000', flush=True); time.sleep(600)",
        spec={"start_timeout": f"{SLOW}s"},
    ),
    "ancient": Kind(
        "no protocol revision in common: it selected 1999-01-01, Colonnade supports only 2026-07-28, 2025-11-25, "
        "2025-06-18, 2025-03-26, 2024-11-05: update the server",
        code=OLD,
        lasting=True,
    ),
    # It cannot be reached at its URL, or refuses.
    "refused": Kind(
        "it cannot be reached: connection refused: start the server, or correct its url",
        spec={"url": "http://127.0.0.1:{closed}/mcp?key=" + SECRET},
    ),
    "unnamed": Kind(
        "it cannot be reached: name not found: correct the host in its url, or look at the network",
        spec={"url": "http://no-such-host.invalid/mcp"},
    ),
    "unencrypted": Kind(
        "it cannot be reached: TLS: the handshake failed: if the server speaks no TLS, begin its url with http://",
        spec={"url": "https://127.0.0.1:{port}/mcp"},
    ),
    "oauth": Kind(
        "the server wants a login (HTTP 401): colonnade login oauth",
        answer=(401, {"www-authenticate": 'Bearer resource_metadata="{url}/.well-known/metadata"'}),
        state="needs login",
    ),
    "expired": Kind(
        "the server refused the configured Authorization (HTTP 401): correct it under headers",
        answer=(401, {"www-authenticate": 'Bearer error="invalid_token"'}),
        spec={"headers": {"Authorization": f"Bearer {SECRET}"}},
        lasting=True,
    ),
    "secured": Kind(
        "the server wants credentials (HTTP 401): colonnade login secured, or set them under headers",
        answer=(401, {}),
        state="needs login",
    ),
    "basic": Kind(
        "the server wants credentials (HTTP 401): set them under headers",
        answer=(401, {"www-authenticate": 'Basic realm="x"'}),
        lasting=True,
    ),
    "forbidden": Kind(
        "the server refuses access (HTTP 403): set headers that may use it",
        answer=(403, {}),
        lasting=True,
    ),
    "elsewhere": Kind(
        "the server does not serve MCP there (HTTP 404): correct the path in its url",
        answer=(404, {}),
        lasting=True,
    ),
    "misdirected": Kind(
        "the server does not answer for the host name in its url (HTTP 421): correct the host there, or add the name "
        "at the server",
        answer=(421, {}),
        lasting=True,
    ),
    "website": Kind(
        "it responded with a web page, and not with JSON or an event stream: correct the path in its url",
        answer=(200, {"content-type": "text/html"}),
    ),
    "broken": Kind(
        "the server failed (HTTP 500): its own log says more; if it fails at server/discover alone, write protocol: "
        "legacy",
        answer=(500, {}),
    ),
}

CRASHING = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    answer = {"jsonrpc": "2.0", "id": message.get("id")}
    if message["method"] == "initialize":
        answer["result"] = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                            "serverInfo": {"name": "x", "version": "1"}}
    elif message["method"] == "tools/list":
        answer["result"] = {"tools": [{"name": "read", "inputSchema": {"type": "object"}}]}
    elif message["method"] == "tools/call":
        open("/no/such/folder/file")
    else:
        answer["error"] = {"code": -32601, "message": "unknown"}
    if "id" in message:
        print(json.dumps(answer), flush=True)
"""
IN_A_CALL = "it exited with status 1: FileNotFoundError: [Errno 2] No such file or directory: "


class _Website(http.server.BaseHTTPRequestHandler):
    """Answers each request as the kind in its path does."""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        assert isinstance(self.server, _Server)
        url = f"http://127.0.0.1:{self.server.server_port}"
        kind = KINDS.get(self.path.strip("/"))
        assert kind is not None
        assert kind.answer is not None
        (status, headers), body = kind.answer, b""
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name, text.replace("{url}", url))
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_DELETE = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        return


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """A handshake of TLS is no request."""


@contextmanager
def website() -> Iterator[int]:
    with answering(_Server(("127.0.0.1", 0), _Website)) as port:
        yield port


def specification(name: str, kind: Kind, folder: Path, port: int, closed: int) -> dict[str, object]:
    """The configuration of the server that fails in this way."""
    spec = {
        key: value.format(port=port, closed=closed) if key == "url" and isinstance(value, str) else value
        for key, value in kind.spec.items()
    }
    if kind.code:
        return {"command": [*BARE_PYTHON, "-c", kind.code], **spec}
    if kind.says:
        script = folder / name
        script.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{kind.says}END\nexit {kind.status}\n")
        script.chmod(0o755)
        return {"command": [str(script)], **spec}
    if kind.file is not None:
        (folder / name).write_text(kind.file)
        (folder / name).chmod(0o755 if kind.file.startswith("#!") else 0o644)
        return {"command": [str(folder / name)], **spec}
    if kind.answer is not None:
        return {"url": f"http://127.0.0.1:{port}/{name}", **spec}
    return spec


@dataclass
class Seen:
    """What was read about each server, in each place."""

    host: Running
    folder: Path
    listed: dict[str, str]
    listed_as_json: dict[str, dict[str, Any]]
    in_console: dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    folder = tmp_path_factory.mktemp("failures")
    with website() as port:
        servers = {name: specification(name, kind, folder, port, free_port()) for name, kind in KINDS.items()}
        servers["crashing"] = {"command": [*BARE_PYTHON, "-c", CRASHING]}
        file = write_config(folder, servers)
        with serving(file, "crashing") as host:
            for name in KINDS:
                until(partial(host.state_lines, name, KINDS[name].state.split()[0]), f"{name} fails")
            printed = colonnade("list", "--url", host.url).stdout
            as_json = json.loads(colonnade("list", "--json", "--url", host.url).stdout)
            (running,) = find_hosts(folder / "state")
            yield Seen(
                host,
                folder,
                {line.split()[0]: line for line in printed.splitlines() if line.strip()},
                {each["id"]: each for each in as_json["servers"]},
                {each["id"]: each for each in running.get("state")["servers"]},
            )


def call(url: str, tool: str) -> str:
    """The text with which a call of a stateless client fails."""
    headers, body = stateless_request("tools/call", {"name": tool, "arguments": {}})
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=STOP) as answer:
        result = json.load(answer)["result"]
    assert result["isError"] is True
    (block,) = result["content"]
    text: str = block["text"]
    return text


def expected(name: str, *, told: bool) -> str:
    kind = KINDS[name]
    sentence = kind.told if told and kind.told is not None else kind.sentence
    return sentence + (f"; then colonnade restart {name}" if kind.lasting else "")


@pytest.mark.parametrize("name", KINDS)
def test_the_person_who_starts_the_host_reads_why(seen: Seen, name: str) -> None:
    state = KINDS[name].state
    first = seen.host.state_lines(name, state.split()[0])[0]
    if state != "failed":
        assert first.split(state, 1)[1].strip() == expected(name, told=False)
        return
    said, _, delay = first.rpartition("; next attempt in ")
    assert said.split("failed", 1)[1].strip() == expected(name, told=False)
    # 15 s, and minutes later, for what only a person can mend.
    assert (float(delay.removesuffix(" s")) >= 12) is KINDS[name].lasting


@pytest.mark.parametrize("name", KINDS)
def test_the_list_says_the_same_without_directories(seen: Seen, name: str) -> None:
    assert expected(name, told=True) in seen.listed[name]
    assert expected(name, told=True) in seen.listed_as_json[name]["detail"]


@pytest.mark.parametrize("name", KINDS)
def test_the_console_says_the_same(seen: Seen, name: str) -> None:
    row = seen.in_console[name]
    assert row["state"] in (KINDS[name].state, "starting")
    assert expected(name, told=False) in row["detail"]


@pytest.mark.parametrize("name", KINDS)
def test_a_call_is_told_the_same_without_directories(seen: Seen, name: str) -> None:
    """A call to a server that is being tried again waits for the outcome."""
    assert expected(name, told=True) in call(seen.host.url, f"{name}__anything")


def test_a_crash_in_the_middle_of_a_call_is_told_everywhere(seen: Seen) -> None:
    told = f"the connection to crashing was lost during the request: {IN_A_CALL}'…/file'"
    assert told in call(seen.host.url, "crashing__read")
    (line,) = until(lambda: seen.host.state_lines("crashing", "failed"), "the failure is told")
    assert f"{IN_A_CALL}'/no/such/folder/file'" in line


def test_what_a_server_wrote_is_in_its_log(seen: Seen) -> None:
    """With times; text on standard output is marked."""
    state = {"COLONNADE_STATE": str(seen.folder / "state")}
    lines = {
        name: colonnade("logs", name, cwd=seen.folder, **state).stdout.splitlines()
        for name in ("docker", "printing", "telling")
    }
    assert any(
        re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d stderr: docker: Error response .+", line)
        for line in lines["docker"]
    )
    assert lines["printing"][0].endswith(" stdout: Error: API_KEY is not set")
    assert lines["telling"][0].endswith(" stderr: the key *** is not valid")


def test_no_secret_and_no_directory_leaves(seen: Seen) -> None:
    told = json.dumps([seen.listed, seen.listed_as_json], ensure_ascii=False)
    everything = told + json.dumps(seen.in_console) + "\n".join(seen.host.said) + seen.host.errors
    assert SECRET not in everything
    for directory in (str(seen.folder), "/no/such", "/srv/", "/home/"):
        assert directory not in told


def test_a_locale_without_the_characters_of_a_server_loses_no_line(seen: Seen) -> None:
    done = colonnade("list", "--url", seen.host.url, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert done.returncode == 0
    assert "Cannot find module '\\u2026/index.js'" in done.stdout
