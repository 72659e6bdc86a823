"""The command as people and scripts use it: what it prints, and the exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from host.cli.exit_codes import DONE, UNREACHED
from tests.kit.certificates import write_certificate
from tests.kit.ports import answers_at, free_port
from tests.kit.servers.offering import offer

from .clients import initialize, line_client
from .running import (
    BARE_PYTHON,
    COLONNADE,
    ROOT,
    SERVERS,
    START,
    STOP,
    Running,
    beside,
    colonnade,
    heard_method,
    listening,
    pids_below,
    recorder,
    sdk_server,
    serving,
    until,
    write_config,
)

# Reads nothing, answers nothing, and heeds neither the end of its input nor TERM.
DEAF = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: time.sleep(60)"

COLOUR = "\x1b["


@dataclass
class Setting:
    host: Running
    file: Path


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    folder = tmp_path_factory.mktemp("cli")
    file = write_config(folder, {"a": recorder(folder / "a.log"), "off": {"command": "nothing", "disabled": True}})
    with serving(file, "a") as host:
        yield Setting(host, file)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server made with the SDK, which is no Colonnade."""
    folder = tmp_path_factory.mktemp("plain")
    port = free_port()
    command = [sys.executable, str(SERVERS / "sdk_server.py"), "--http", str(port)]
    with listening(*command, folder=folder) as (_, url):
        until(lambda: answers_at(port), "it listens")
        yield url


# check, schema


def test_check_says_what_would_be_served(here: Setting) -> None:
    """A right file: exit code 0, one line for each server, the disabled ones not counted, and nothing is
    started."""
    before = here.host.status()["a"]["attempts"]
    done = colonnade("check", str(here.file))
    assert (done.returncode, done.stderr) == (0, "")
    first, second, last = done.stdout.splitlines()
    assert first.startswith("a: ")
    assert second.startswith("off: ")
    assert second.endswith("(disabled)")
    assert last == f"{here.file}: ok, 1 server"
    assert here.host.status()["a"]["attempts"] == before


def test_an_interrupted_command_is_exit_code_130(tmp_path: Path) -> None:
    """Without a traceback, and its servers end with it."""
    file = tmp_path / "mute.yaml"
    file.write_text('servers: {mute: {command: [sleep, "100"]}}\n')
    with subprocess.Popen(
        [COLONNADE, "list", "--config", file],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=beside(file),
    ) as process:
        until(lambda: any("sleep" in line for line in pids_below(process.pid).values()), "its server runs")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (130, "", "")


# list, call


def test_list_shows_servers_and_entries(here: Setting) -> None:
    """Text for people; no colours, since nobody looks at a pipe."""
    done = colonnade("list", "--url", here.host.url)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["a", "ready", "stdio"] in [words[:3] for words in lines]
    assert ["off", "disabled"] in [words[:2] for words in lines]
    assert ["tool", "a__echo"] in [words[:2] for words in lines]
    assert COLOUR not in done.stdout


def test_list_as_json_at_a_host_that_is_started_for_it(here: Setting) -> None:
    """One object that holds the servers and the definitions of each kind."""
    done = colonnade("list", "--config", str(here.file), "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert {server["id"]: server["state"] for server in told["servers"]} == {"a": "ready", "off": "disabled"}
    assert {"name": "a__echo", "inputSchema": {"type": "object"}} in told["tools"]
    assert (told["resources"], told["resourceTemplates"], told["prompts"]) == ([], [], [])


def test_list_of_a_server_that_is_no_colonnade(plain: str) -> None:
    """Any server over Streamable HTTP can be looked at; it has no servers to show."""
    done = colonnade("list", "--url", plain)
    assert done.returncode == 0, done.stderr
    words = [line.split()[:2] for line in done.stdout.splitlines()]
    assert ["tool", "weather"] in words
    assert ["resource", "memo://first"] in words
    assert ["prompt", "paint"] in words
    told = json.loads(colonnade("list", "--url", plain, "--json").stdout)
    assert told["servers"] is None
    assert "weather" in [tool["name"] for tool in told["tools"]]


def test_call_of_a_server_that_is_no_colonnade(plain: str) -> None:
    done = colonnade("call", "weather", '{"city": "Wien"}', "--url", plain, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["structuredContent"] == {"city": "Wien", "degrees": 21.5}


def test_call_prints_what_the_tool_says(here: Setting) -> None:
    """The text alone; the arguments went to the tool as they were written."""
    done = colonnade("call", "a__echo", '{"price": 1.10}', "--url", here.host.url)
    assert done.returncode == 0, done.stderr
    assert '"arguments":{"price": 1.10}' in done.stdout


def test_call_as_json(here: Setting) -> None:
    done = colonnade("call", "a__steps", '{"count": 0, "note": "n"}', "--url", here.host.url, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"content": [{"type": "text", "text": "n"}]}


def test_a_tool_that_fails_is_exit_code_1(here: Setting) -> None:
    """What it says is shown, with nothing in it that could steer a terminal."""
    done = colonnade("call", "a__fail", "--url", here.host.url)
    assert done.returncode == 1
    assert done.stdout == "It did not work.\n\\x1b[31mred\\x1b[0m\n"


def test_an_unknown_tool_is_exit_code_1(here: Setting) -> None:
    done = colonnade("call", "echo", "--url", here.host.url)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Unknown tool: echo; did you mean a__echo?" in done.stderr


def test_a_server_that_is_not_there_is_said_by_a_call(tmp_path: Path) -> None:
    """The failure of the server behind the tool, in words, is the answer; exit code 1."""
    done = colonnade("call", "gone__any", "--config", str(write_config(tmp_path, {"gone": {"command": ["/no/such"]}})))
    assert done.returncode == 1
    assert "gone is unavailable" in done.stdout + done.stderr


def test_a_reader_that_has_seen_enough_is_no_error(here: Setting) -> None:
    """`colonnade list | head -1` ends without a traceback."""
    command = f"'{COLONNADE}' list --url {here.host.url} --json | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, timeout=30, check=False, env=beside(here.file))
    assert done.stdout == b"{\n"
    assert done.stderr == b""


# The own host, by its socket


FOLDER = {"command": [*BARE_PYTHON, str(SERVERS / "folder.py")], "trust": "trusted"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    """A host with TLS and access tokens. Its servers are of both eras."""
    folder = tmp_path_factory.mktemp("guarded")
    write_certificate(folder)
    file = write_config(
        folder,
        {
            "old": recorder(folder / "old.log"),
            "new": sdk_server(),
            "own": {**recorder(folder / "own.log"), "isolation": "per-client"},
            "here": {**FOLDER, "cwd": "${client:folder}"},
            "asks": {**recorder(folder / "asks.log"), "consent": {"tools": "ask"}},
        },
        listen={"tls": {"cert": "cert.pem", "key": "key.pem"}, "auth": {"tokens": {"laptop": "0123456789" * 4}}},
    )
    with serving(file, "old", "new", "own", "asks") as host:
        yield Setting(host, file)


def test_the_owner_needs_no_token_and_knows_no_certificate(guarded: Setting, tmp_path: Path) -> None:
    """The servers are of both eras; a server of each client runs for the command alone, and one of a folder in that of
    the command, not in that of the shell which started it."""
    state = beside(guarded.file)["COLONNADE_STATE"]

    def done(*words: str) -> str:
        found = without_waits(colonnade(*words, cwd=tmp_path, COLONNADE_STATE=state))
        assert (found.returncode, found.stderr) == (0, "")
        return found.stdout

    told = json.loads(done("list", "--json"))
    assert {"old__echo", "own__echo", "new__weather"} <= {tool["name"] for tool in told["tools"]}
    revisions = {server["id"]: server["revision"] for server in told["servers"]}
    assert (revisions["old"], revisions["new"]) == ("2025-11-25", "2026-07-28")
    assert '"arguments":{"price": 1.10}' in done("call", "old__echo", '{"price": 1.10}')
    assert "Wien" in done("call", "new__weather", '{"city": "Wien"}')
    assert '"arguments":{}' in done("call", "own__echo")
    assert json.loads(done("call", "here__x"))[0] == str(tmp_path)
    refused = colonnade("list", "--url", guarded.host.url)
    assert (refused.returncode, refused.stdout) == (3, "")


def test_a_call_that_a_person_confirms_says_so_while_it_waits(guarded: Setting) -> None:
    """The confirmation names the command, and so does the audit."""
    environment = beside(guarded.file)
    state = environment["COLONNADE_STATE"]
    with ExitStack() as stack:

        def start(*words: str) -> subprocess.Popen[str]:
            process = stack.enter_context(
                subprocess.Popen(
                    [COLONNADE, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
                )
            )
            stack.callback(process.kill)
            return process

        def asked() -> tuple[subprocess.Popen[str], str] | None:
            """The call and the id of its confirmation; None if it is refused, since nobody was there yet."""
            call = start("call", "asks__echo", "--json")
            assert call.stderr is not None
            found = re.fullmatch(
                r"colonnade: waiting for a person to confirm: colonnade ask (\w+), or colonnade console\n",
                call.stderr.readline(),
            )
            return None if found is None else (call, found[1])

        start("ask", "--follow")
        call, id = until(asked, "it waits")
        shown = colonnade("ask", id, COLONNADE_STATE=state).stdout
        assert re.search(rf"program: +colonnade call of .* \(process {call.pid}\) in {re.escape(os.getcwd())}\n", shown)
        done = colonnade("ask", id, "session", COLONNADE_STATE=state)
        assert "no session" in done.stderr, "it ends with the call"
        assert colonnade("ask", id, "once", COLONNADE_STATE=state).returncode == 0
        out, err = call.communicate(timeout=30)
    assert (call.returncode, err) == (0, "")
    assert "content" in json.loads(out)
    told = colonnade("audit", "--kind", "decision", COLONNADE_STATE=state).stdout
    record = json.loads(told.splitlines()[-1])
    assert record["process"]["pid"] == call.pid
    assert record["client"].startswith("colonnade call of ")


def test_a_server_that_starts_is_said(tmp_path: Path) -> None:
    """On standard error alone."""
    slow = {"command": ["sh", "-c", f"sleep 6; exec {sys.executable} {SERVERS / 'folder.py'}"]}
    done = colonnade("list", "--config", str(write_config(tmp_path, {"slow": slow})), "--json")
    assert done.returncode == 0
    assert done.stderr.startswith("colonnade: waiting for slow to start\n")
    assert json.loads(done.stdout)["servers"][0]["state"] == "ready"


# read, prompt, and content that is no text


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    folder = tmp_path_factory.mktemp("everything")
    program = [sys.executable, str(ROOT / "examples" / "servers" / "everything.py")]
    file = write_config(
        folder,
        {"e": {"command": program, "consent": {"tools": {"deny": ["test_error_*"]}}}, "bad": {"command": BAD}},
    )
    with serving(file, "e") as host:
        until(lambda: host.status()["bad"]["state"] == "failed", "one fails")
        yield Setting(host, file)


BAD = [*BARE_PYTHON, "-c", "import sys; sys.exit('no API key given')"]


@pytest.fixture(params=["running", "--url", "--config"])
def asked(request: pytest.FixtureRequest, everything: Setting) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command at the running host, found by itself or by its address, and at one started for it."""
    if request.param == "--config":
        return lambda *words: without_waits(colonnade(*words, "--config", str(everything.file)))
    return at_running(everything, *(["--url", everything.host.url] if request.param == "--url" else []))


@pytest.fixture
def running(everything: Setting) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command at the running host, for what does not depend on how that was found."""
    return at_running(everything)


def at_running(everything: Setting, *where: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    state = str(everything.file.parent / "state")
    return lambda *words: without_waits(colonnade(*words, *where, COLONNADE_STATE=state))


def without_waits(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """Without the lines of a command that waits, as on a busy machine."""
    done.stderr = re.sub(r"^colonnade: waiting for .*\n", "", done.stderr, flags=re.MULTILINE)
    return done


Asked = Callable[..., subprocess.CompletedProcess[str]]


def test_images_are_written_to_files(running: Asked, tmp_path: Path) -> None:
    for file in ("e__test_image_content.png", "e__test_image_content-2.png"):
        done = running("call", "e__test_image_content", "-o", str(tmp_path))
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"{tmp_path / file} (image/png, 70 bytes)\n"
        assert (tmp_path / file).read_bytes().startswith(b"\x89PNG")
    assert '"data": "iVBOR' in running("call", "e__test_image_content", "--json").stdout
    missing = running("call", "e__test_image_content", "-o", str(tmp_path / "none"))
    assert missing.returncode == 2
    assert "does not exist" in missing.stderr


def test_resources_are_read(running: Asked, tmp_path: Path) -> None:
    done = running("read", "e+test://static-text")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "This is the content of the static text resource.\n"
    assert running("read", "e+test://template/7/data").returncode == 0
    done = running("read", "e+test://static-binary", "-o", str(tmp_path))
    assert done.stdout == f"{tmp_path}/static-binary.png (image/png, 70 bytes)\n"
    told = json.loads(running("read", "e+test://static-text", "--json").stdout)
    assert told["contents"][0]["mimeType"] == "text/plain"
    missing = running("read", "e+test://static-txt")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "did you mean e+test://static-text?" in missing.stderr


def test_prompts_are_got(running: Asked, tmp_path: Path) -> None:
    done = running("prompt", "e__test_prompt_with_arguments", '{"arg1": "one", "arg2": "two"}')
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("user:\n")
    assert "one" in done.stdout
    assert json.loads(running("prompt", "e__test_simple_prompt", "--json").stdout)["messages"][0]["role"] == "user"
    done = running("prompt", "e__test_prompt_with_image", "-o", str(tmp_path))
    assert f"{tmp_path}/e__test_prompt_with_image.png (image/png, 70 bytes)\n" in done.stdout
    missing = running("prompt", "e__test_simple_promt")
    assert missing.returncode == 1
    assert "did you mean e__test_simple_prompt?" in missing.stderr


def test_one_server_is_listed_with_what_it_hides(running: Asked) -> None:
    done = running("list", "e")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"; 37 shown, 1 denied; ~[0-9,]+ tokens$", done.stdout.splitlines()[0])
    assert "\ntool e__test_simple_text\n  Returns a text.\n" in done.stdout
    assert "\n    arg1  string, required\n" in done.stdout
    assert "test_error_handling  denied by tools.deny: test_error_*" in done.stdout


def test_the_owner_sees_what_is_hidden_and_why_another_server_failed(asked: Asked) -> None:
    told = json.loads(asked("list", "--json").stdout)
    shown = {server["id"]: (server["shown"], server["denied"], server["held"]) for server in told["servers"]}
    assert shown == {"e": (37, 1, 0), "bad": (0, 0, 0)}
    listed = told["tools"] + told["prompts"] + told["resources"] + told["resourceTemplates"]
    size = sum(len(json.dumps(each, separators=(",", ":"), ensure_ascii=False)) for each in listed)
    assert told["servers"][0]["tokens"] == pytest.approx(size / 4, rel=0.1)
    assert "no API key given" in [line["line"] for line in told["servers"][1]["log"]]


def test_the_owner_hears_why_an_entry_is_hidden(running: Asked) -> None:
    done = running("call", "e__test_error_handling")
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        "Unknown tool: e__test_error_handling; clients do not see it: denied by tools.deny: test_error_*" in done.stderr
    )


def test_progress_is_shown_on_a_terminal_alone(everything: Setting) -> None:
    call = ["call", "e__test_tool_with_progress", "--url", everything.host.url]
    state = {"COLONNADE_STATE": beside(everything.file)["COLONNADE_STATE"]}
    said = at_a_terminal(call, state)
    assert "100%  Completed 100 of 100" in said
    assert said.endswith("\r\x1b[KTool with progress executed successfully\r\n")
    done = without_waits(colonnade(*call))
    assert (done.stdout, done.stderr) == ("Tool with progress executed successfully\n", "")
    own = ["call", "e__test_tool_with_progress", "--config", str(everything.file)]
    assert "100%  Completed 100 of 100" in at_a_terminal(own, {"COLONNADE_STATE": f"{state['COLONNADE_STATE']}-own"})


# serve


def test_serve_prints_its_address_and_the_states(here: Setting) -> None:
    """Address first, with the port that was taken; then, without a terminal, how to get to the console, but no link,
    since a file may be others' to read; then a line for each server that became ready. No colours."""
    said = here.host.said
    assert re.fullmatch(r"Colonnade \S+ serves 1 server at http://127\.0\.0\.1:[1-9]\d*/mcp", said[0])
    assert said[1] == "The console opens with the link that colonnade console prints"
    assert re.fullmatch(r"  a +ready +\(10 tools, [0-9.]+ s\)", said[2])
    assert COLOUR not in "".join(said)


@pytest.mark.parametrize("command", [["serve"], ["serve", "--stdio", "--own"]])
def test_what_was_imported_is_left_out_of_garbage_collections(command: list[str], tmp_path: Path) -> None:
    """A full collection of all of it would hold up everybody for more than 100 ms."""
    program = """
import atexit, gc, os, sys
atexit.register(lambda: print("frozen", os.getpid(), gc.get_freeze_count(), file=sys.stderr))
from host.__main__ import main
main()
"""
    file = write_config(tmp_path, {"a": recorder(tmp_path / "a.log")})
    with subprocess.Popen(
        [sys.executable, "-c", program, *command, str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=beside(file),
    ) as host:
        until(lambda: (tmp_path / "a.log").exists(), "its server is asked")
        host.send_signal(signal.SIGTERM)
        _, errors = host.communicate(timeout=STOP)
    frozen = re.search(rf"^frozen {host.pid} (\d+)$", errors, re.MULTILINE)  # its children freeze, too
    assert frozen, errors
    assert int(frozen[1]) > 10_000


def test_a_desktop_hosts_file_is_served_with_notices(tmp_path: Path) -> None:
    """`mcpServers` as other hosts have it: what is renamed is said, and a server that cannot be used fails alone."""
    command = recorder(tmp_path / "a.log")["command"]
    server = {"command": command[0], "args": command[1:], "timeout": 60}
    odd = {"command": "x", "iconSet": "a.png"}
    file = tmp_path / "desktop.json"
    file.write_text(json.dumps({"mcpServers": {"My_Notes": server, "odd": odd}, "listen": {"address": "127.0.0.1:0"}}))
    with serving(file, "my-notes") as host:
        assert "My_Notes is served as my-notes" in host.errors
        assert "read as a mcpServers file" in host.errors
        (failed,) = host.state_lines("odd", "failed")
        assert 'its key "iconSet" is not known here' in failed
        done = colonnade("call", "my-notes__echo", "--url", host.url)
        assert done.returncode == 0, done.stderr


def test_modules_in_the_current_directory_are_not_ours(tmp_path: Path) -> None:
    """A folder with a `config.py` and a `host.py` of its own is as good a place to start from as any."""
    for name in ("config", "host", "trio", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    file = write_config(tmp_path, {"a": recorder(tmp_path / "a.log")})
    with serving(file, "a", cwd=tmp_path) as host:
        done = colonnade("call", "a__echo", "--url", host.url, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert colonnade("check", file.name, cwd=tmp_path).returncode == 0


def test_list_and_call_find_the_running_host(tmp_path: Path) -> None:
    """By the socket of its admin API. Without one they say how to have one."""
    state = str(tmp_path / "state")
    missing = colonnade("list", COLONNADE_STATE=state)
    assert (missing.returncode, "no host of yours runs" in missing.stderr) == (UNREACHED, True)
    file = write_config(tmp_path, {"a": recorder(tmp_path / "a.log")})
    with serving(file, "a"):
        assert "a__echo" in colonnade("list", COLONNADE_STATE=state).stdout
        assert colonnade("call", "a__echo", '{"x": 1}', COLONNADE_STATE=state).returncode == DONE


def test_the_port_listens_at_once_whatever_the_servers_do(tmp_path: Path) -> None:
    """The host takes connections while one server hangs for ever in its handshake and another one does not exist; the
    third can be called meanwhile."""
    port = free_port()
    servers: dict[str, Any] = {
        "a": recorder(tmp_path / "a.log"),
        "hangs": {"command": [*BARE_PYTHON, "-c", "import time; time.sleep(600)"]},
        "gone": {"command": [str(tmp_path / "nowhere")]},
    }
    file = write_config(tmp_path, servers, listen={"address": f"127.0.0.1:{port}"}, start_grace="500ms")
    with ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(
                [COLONNADE, "serve", str(file)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=ROOT,
                env=beside(file),
            )
        )
        stack.callback(process.kill)
        until(lambda: answers_at(port), "it listens", 10)
        url = f"http://127.0.0.1:{port}/mcp"
        until(lambda: colonnade("call", "a__echo", "--url", url).returncode == 0, "a can be called", 10)
        listed = json.loads(colonnade("list", "--url", url, "--json").stdout)
        states = {server["id"]: server["state"] for server in listed["servers"]}
        assert (states["a"], states["hangs"]) == ("ready", "starting")
        assert states["gone"] in ("failed", "starting")
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_sigterm_ends_everything_in_time(tmp_path: Path) -> None:
    """With a child that heeds neither the end of its input nor TERM, a client that does not read its stream and a call
    that never ends: gone within ten seconds, exit code 0, and no child is left."""
    log = tmp_path / "a.log"
    deaf = {"command": [*BARE_PYTHON, "-c", DEAF]}
    with serving(write_config(tmp_path, {"a": recorder(log), "deaf": deaf}), "a", stop=False) as host:
        with ExitStack() as stack:
            session = open_session(host.url)
            stack.enter_context(send(host.url, "GET", b"", session))
            hang = {"name": "a__hang", "_meta": {"progressToken": 1}}
            call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": hang}
            stack.enter_context(send(host.url, "POST", json.dumps(call).encode(), session))
            until(lambda: heard_method(log, "tools/call"), "the call is at its server")
            below = pids_below(host.process.pid)
            assert any("SIG_IGN" in command for command in below.values())
            host.stop()
        assert [command for pid, command in below.items() if Path(f"/proc/{pid}").exists()] == []


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["steps", "hang"])
def test_a_stop_lets_a_call_end_unless_it_is_told_again(tmp_path: Path, tool: str) -> None:
    """Meanwhile the host says so to balancers, to people, and in its status."""
    file = write_config(tmp_path, {"a": sdk_server()}, drain="60s")
    with serving(file, "a", stop=False) as host, ThreadPoolExecutor() as threads:
        base, state = host.url.removesuffix("/mcp"), beside(file)["COLONNADE_STATE"]

        def answers(path: str) -> tuple[int, bytes]:
            try:
                with urllib.request.urlopen(base + path, timeout=5) as answer:
                    return answer.status, answer.read()
            except HTTPError as refused:
                return refused.code, refused.read()

        assert until(lambda: answers("/readyz")[0] == 200, "it is ready")
        call = threads.submit(colonnade, "call", f"a__{tool}", '{"count": 200}', "--url", host.url)
        until(
            lambda: "1 call in progress" in colonnade("status", COLONNADE_STATE=state).stdout, "the call is in progress"
        )
        host.process.send_signal(signal.SIGINT if tool == "steps" else signal.SIGTERM)
        until(lambda: answers("/readyz") == (503, b"stopping\n"), "it is stopping")
        assert answers("/healthz") == (200, b"ok\n")
        assert json.loads(answers("/status")[1])["draining"]
        assert (
            "problem:        the host is stopping: it ends with what is under way"
            in colonnade("status", COLONNADE_STATE=state).stdout
        )
        assert host.process.poll() is None
        if tool == "hang":
            host.process.send_signal(signal.SIGTERM)
        assert host.process.wait(START) == 0  # the steps take ten seconds
        assert (call.result().returncode == 0) is (tool == "steps")


def open_session(url: str) -> str:
    with send(url, "POST", initialize("2025-11-25"), None) as connection:
        head = connection.recv(65536).decode()
    found = re.search(r"mcp-session-id: (\S+)", head, re.IGNORECASE)
    assert found, head
    return found[1]


def send(url: str, method: str, body: bytes, session: str | None) -> socket.socket:
    """A connection on which a request was sent and nothing is read. Whoever gets it closes it."""
    address, _, path = url.removeprefix("http://").partition("/")
    name, _, port = address.partition(":")
    accept = "text/event-stream" if method == "GET" else "application/json, text/event-stream"
    headers = {"host": address, "accept": accept, "content-type": "application/json", "content-length": str(len(body))}
    if session is not None:
        headers["mcp-session-id"] = session
    head = f"{method} /{path} HTTP/1.1\r\n" + "".join(f"{key}: {value}\r\n" for key, value in headers.items())
    connection = socket.create_connection((name, int(port)), timeout=10)
    connection.sendall(head.encode() + b"\r\n" + body)
    return connection


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_every_stop_signal_ends_the_stdio_face(tmp_path: Path, number: signal.Signals) -> None:
    """Exit code 0, also while the client's end is open."""
    with line_client(write_config(tmp_path, {"a": recorder(tmp_path / "a.log")})) as client:
        client.open()
        client.process.send_signal(number)
        assert client.process.wait(10) == 0


@pytest.mark.parametrize("ends_by", ["end of input", signal.SIGTERM])
def test_the_first_lists_are_read_to_the_end_although_the_client_leaves(
    tmp_path: Path, ends_by: str | signal.Signals
) -> None:
    """Unless a signal stops the host. The next host then knows them before it has started the server."""
    offer(tmp_path / "offered.json", tools=[{"name": "t", "inputSchema": {"type": "object"}}])
    gate, log = tmp_path / "gate", tmp_path / "log"
    waiting = 'echo started >>"$1"; while ! [ -e "$0" ]; do sleep 0.05; done; shift; exec "$@"'
    server = [*BARE_PYTHON, str(SERVERS / "offering.py"), str(tmp_path / "offered.json")]
    file = write_config(tmp_path, {"slow": {"command": ["sh", "-c", waiting, str(gate), str(log), *server]}})
    with line_client(file) as client:
        client.open()
        until(log.exists, "the server was started")
        if isinstance(ends_by, signal.Signals):
            client.process.send_signal(ends_by)
            assert client.process.wait(STOP) == 0
        else:
            assert client.process.stdin is not None
            client.process.stdin.close()
            gate.touch()
            assert client.process.wait(START) == 0
            gate.unlink()
    with line_client(file) as client:
        client.open()
        if isinstance(ends_by, signal.Signals):
            gate.touch()
        listed = json.loads(client.answer(b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'))
        assert [each["name"] for each in listed["result"]["tools"]] == ["slow__t"]


def test_colours_only_where_somebody_looks(here: Setting) -> None:
    """At a terminal there are colours, unless NO_COLOR is set."""
    state = {"COLONNADE_STATE": beside(here.file)["COLONNADE_STATE"]}
    assert COLOUR in at_a_terminal(["list", "--url", here.host.url], state)
    assert COLOUR not in at_a_terminal(["list", "--url", here.host.url], {**state, "NO_COLOR": "1"})


def at_a_terminal(arguments: list[str], environment: dict[str, str]) -> str:
    """What the command prints where its output is a terminal."""
    ours, theirs = os.openpty()
    try:
        env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        process = subprocess.Popen(
            [COLONNADE, *arguments], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env={**env, **environment}
        )
        os.close(theirs)
        said = bytearray()
        while True:
            try:
                data = os.read(ours, 65536)
            except OSError:  # Linux: all who had the other end have closed it
                break
            if not data:
                break
            said += data
        assert process.wait(30) == 0
    finally:
        os.close(ours)
    return said.decode()
