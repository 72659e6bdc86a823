"""`serve --stdio` as a relay: real processes, and clients by hand."""

from __future__ import annotations

import fcntl
import json
import os
import queue
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from host.relay import connect, log_path, socket_path
from tests.real.clients import LineClient, initialize, line_client
from tests.real.running import (
    BARE_PYTHON,
    COLONNADE,
    beside,
    colonnade,
    host_of,
    recorder,
    serving,
    until,
    write_config,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@contextmanager
def configured(folder: Path, trust: str = "trusted", **more: Any) -> Iterator[Path]:
    """A configuration with one server; its host must end by itself after the block."""
    servers = {"rec": {**recorder(folder / "server.log"), "trust": trust}}
    file = write_config(folder, servers, **({"daemon": {"idle": "1s"}, "console": "off"} | more))
    try:
        yield file
        until(lambda: not host_of(file), "no host is left")
    finally:
        if pid := host_of(file):
            os.kill(pid, signal.SIGKILL)


@contextmanager
def relay(file: Path) -> Iterator[LineClient]:
    with line_client(file, "--stdio") as client:
        yield client


def request(id: int, method: str, **params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode()


def call(client: LineClient, id: int, tool: str = "echo") -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(client.answer(request(id, "tools/call", name=f"rec__{tool}", arguments={})))
    assert answer["id"] == id
    return answer


def requests_of_servers(folder: Path, method: str) -> int:
    return (folder / "server.log").read_bytes().count(f'"{method}"'.encode())


def test_clients_share_one_host_and_its_servers(tmp_path: Path) -> None:
    with configured(tmp_path) as file, relay(file) as one, relay(file) as two:
        one.open()
        two.open()
        first = host_of(file)
        assert first not in (0, one.process.pid, two.process.pid)
        assert "result" in call(one, 1)
        assert "result" in call(two, 1)
        assert one.leave() == 0
        assert "result" in call(two, 2)
        assert requests_of_servers(tmp_path, "initialize") == 1
        two.process.kill()
        two.process.wait()


def test_a_host_that_is_killed_is_followed_by_another_one(tmp_path: Path) -> None:
    """Its client is told what became of its call, nothing is sent twice, and it goes on in a session of its own."""
    with configured(tmp_path) as file, relay(file) as client:
        client.open()
        listed = json.loads(client.answer(request(1, "tools/list")))
        assert b'"error"' in client.answer(request(5, "no/such"))  # and not once more when the host has ended
        client.say(request(2, "tools/call", name="rec__hang", arguments={}))
        until(lambda: requests_of_servers(tmp_path, "hang"), "the server has the call")
        first = host_of(file)
        os.kill(first, signal.SIGKILL)
        lost = json.loads(client.hear())
        assert (lost["id"], lost["error"]["code"]) == (2, 502)
        assert "outcome is unknown" in lost["error"]["message"]
        assert "result" in call(client, 3)
        assert host_of(file) not in (0, first)
        assert json.loads(client.answer(request(4, "tools/list")))["result"] == listed["result"]
        assert requests_of_servers(tmp_path, "hang") == 1
        assert client.leave() == 0


def test_commands_use_the_host_in_the_background(tmp_path: Path) -> None:
    def said(*words: str, code: int = 0) -> str:
        done = colonnade(*words, COLONNADE_STATE=str(tmp_path / "state"))
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    with configured(tmp_path) as file:
        with relay(file) as client:
            client.open()
            first = host_of(file)
            assert "rec__echo" in said("list")
            assert "rec__echo" in said("list", "rec", "--running", str(file))
            assert "rec__echo" in said("list", "rec", "--config", str(file))
            assert said("call", "rec__echo", '{"a": 1}')
            assert "did you mean rec__echo?" in said("call", "rec__ecko", code=1)
            status = said("status")
            assert "serves relays, in the background" in status
            assert "1 s after its last client has left" in status
            log = log_path(str(tmp_path / "state"), str(file))
            assert f"log:            {log}\n" in status
            assert Path(log).read_text().endswith(f" process {first} serves {file}\n")
            assert requests_of_servers(tmp_path, "initialize") == 1
            assert f"process {first} has ended; the relays of 1 client start another one" in said("stop")
            assert "result" in call(client, 1)
            assert client.leave() == 0


def names(client: LineClient, id: int) -> list[str]:
    return [each["name"] for each in json.loads(client.answer(request(id, "tools/list")))["result"]["tools"]]


def test_each_client_and_command_has_the_view_that_it_names(tmp_path: Path) -> None:
    """Also before a host runs. A default_view is for those that come later."""
    views: dict[str, Any] = {
        "one": {"servers": {"rec": {"tools": "echo"}}},
        "plain": {"names": {"style": "plain"}},
    }

    def said(*words: str) -> subprocess.CompletedProcess[str]:
        return colonnade(*words, "--view", "plain", COLONNADE_STATE=str(tmp_path / "state"))

    with configured(tmp_path, views=views) as file:
        with line_client(file, "--stdio", "--view", "one") as one, relay(file) as every:
            one.open()
            every.open()
            assert names(one, 1) == ["rec__echo"]
            assert len(names(every, 1)) > 2
            assert "result" in call(one, 2)
            assert call(one, 3, "hang")["error"]["code"] == -32602
            with line_client(file, "--stdio", "--view", "other") as stranger:
                assert stranger.hear() == b""
                assert stranger.process.wait(30) == 2
            assert "has no view other" in (tmp_path / "stdio.stderr").read_text()
            assert "rec__" not in said("list").stdout
            assert [said("call", name, "{}").returncode for name in ("echo", "rec__echo")] == [0, 1]
            document = json.loads(file.read_text())
            file.write_text(json.dumps({**document, "default_view": "plain"}))
            assert colonnade("reload", "--yes", COLONNADE_STATE=str(tmp_path / "state")).returncode == 0
            with relay(file) as newer:
                newer.open()
                assert "echo" in names(newer, 1)
                assert newer.leave() == 0
            assert "rec__echo" in names(every, 4)
            assert names(one, 4) == ["rec__echo"]
            assert one.leave() == every.leave() == 0
        until(lambda: not host_of(file), "the host has ended")
        with line_client(file, "--stdio", "--view", "one") as one:
            one.open()
            assert names(one, 1) == ["rec__echo"]
            assert one.leave() == 0


def test_a_file_that_cannot_be_served_is_said_as_without_a_relay(tmp_path: Path) -> None:
    with configured(tmp_path) as file:
        file.write_text("servers: {a: {comand: x}}\n")
        with relay(file) as client:
            assert client.hear() == b""
            assert client.process.wait(30) == 2
        assert 'did you mean "command"?' in (tmp_path / "stdio.stderr").read_text()


def test_the_first_value_of_a_variable_starts_its_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client with another value is refused by that server alone; so it is if its host was started with a value."""

    def said(client: LineClient, id: int, server: str = "keyed") -> str:
        answer = json.loads(client.answer(request(id, "tools/call", name=f"{server}__echo", arguments={})))
        return json.dumps(answer)

    with configured(tmp_path) as file:
        written = json.loads(file.read_text())
        keyed = {**recorder(tmp_path / "keyed.log"), "env": {"WORD": "${env:RELAY_TEST_WORD}"}, "trust": "trusted"}
        file.write_text(json.dumps(written | {"servers": {**written["servers"], "keyed": keyed}}))
        with ExitStack() as clients:
            opened: list[LineClient] = []
            for value in (None, "one", "two"):
                if value is not None:
                    monkeypatch.setenv("RELAY_TEST_WORD", value)
                opened.append(clients.enter_context(relay(file)))
                opened[-1].open()
                if value is None:
                    assert "RELAY_TEST_WORD is not set" in said(opened[0], 1)
            without, first, other = opened
            assert "runs with another value of the environment variable RELAY_TEST_WORD" in said(other, 2)
            assert '"isError": true' not in said(other, 3, "rec")
            for each in (without, first):
                assert "isError" not in said(each, 4) or '"isError": false' in said(each, 5)
            assert (tmp_path / "keyed.log").read_bytes().count(b'"initialize"') == 1
            for client in opened:
                assert client.leave() == 0
        until(lambda: not host_of(file), "no host is left")
        with ExitStack() as clients:
            first = clients.enter_context(relay(file))
            first.open()
            assert '"isError": true' not in said(first, 6)
            monkeypatch.setenv("RELAY_TEST_WORD", "three")
            other = clients.enter_context(relay(file))
            other.open()
            assert "runs with another value" in said(other, 7)
            assert first.leave() == 0

            def is_served() -> bool:
                with relay(file) as again:
                    again.open()
                    return '"isError": true' not in said(again, 8)

            until(is_served, "the host knows that the first has left, and takes the new value")


@contextmanager
def stopped_starts(file: Path) -> Iterator[None]:
    """No host can be started in the block: another process has the right to start one."""
    lock = os.open(f"{socket_path(str(file.parent / 'state'), str(file))}.start", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def ended_host(file: Path) -> None:
    """Serve one client, so that a host leaves its first answers and ends."""
    with relay(file) as client:
        client.open()
        client.answer(request(1, "tools/list"))
        until(lambda: list(file.parent.glob("state/configs/*/first-answers")), "it has left them")
        client.leave()
    until(lambda: not host_of(file), "it has ended")


def test_the_first_lists_are_read_to_their_end_after_the_last_client(tmp_path: Path) -> None:
    log, late = tmp_path / "late.log", str(Path(__file__).parents[1] / "kit" / "servers" / "folder.py")
    program = f"import runpy, time; open({str(log)!r}, 'a').write('s'); time.sleep(6); runpy.run_path({late!r})"
    with configured(tmp_path) as file:
        servers = {"late": {"command": [*BARE_PYTHON, "-c", program], "trust": "trusted"}}
        write_config(tmp_path, servers, daemon={"idle": "1s"}, console="off")
        with relay(file) as client:
            client.say(initialize("2025-11-25"))
            until(log.exists, "the server starts")
            client.leave()
        until(lambda: not host_of(file), "it has ended")
        with stopped_starts(file), relay(file) as client:
            client.open()
            assert b"late__x" in client.answer(request(1, "tools/list"))


def test_lists_are_answered_before_a_host_runs(tmp_path: Path) -> None:
    """And they are those that a host answers."""
    stateless_revision = "2026-07-28"

    def params(revision: str) -> dict[str, Any]:
        meta = {"io.modelcontextprotocol/protocolVersion": revision, "io.modelcontextprotocol/clientCapabilities": {}}
        return {"_meta": meta} if revision == stateless_revision else {}

    def ask(client: LineClient, revision: str) -> list[bytes]:
        sent = params(revision)
        heard = [client.answer(request(7, "server/discover", **sent) if sent else initialize(revision, 7))]
        if not sent:
            client.say(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
        return [*heard, *(client.answer(request(8, f"{kind}/list", **sent)) for kind in ("tools", "prompts"))]

    with configured(tmp_path) as file, ExitStack() as clients:
        ended_host(file)
        cold = {each: clients.enter_context(relay(file)) for each in ("2024-11-05", "2025-11-25", "2026-07-28", "1.0")}
        with stopped_starts(file):
            found = {revision: ask(client, revision) for revision, client in cold.items()}
            for revision, client in cold.items():
                client.say(request(9, "tools/call", name="rec__echo", arguments={}, **params(revision)))
            assert not host_of(file)
        for revision, client in cold.items():
            assert b'"result"' in client.hear()
            with relay(file) as warm:
                assert ask(warm, revision) == found[revision]


def test_what_does_not_fit_is_not_answered(tmp_path: Path) -> None:
    """Such as what was decided since. What else there is: tests/host/test_relay_start.py."""
    with configured(tmp_path, "standard") as file:
        ended_host(file)
        revoke = [COLONNADE, "definitions", "revoke", "rec", "tool", "echo", "--config", str(file)]
        subprocess.run(revoke, env=beside(file), check=True, capture_output=True)
        with relay(file) as client:
            with stopped_starts(file):
                client.say(initialize("2025-11-25"))
                with pytest.raises(queue.Empty):
                    client.hear(0.5)
            assert b'"result"' in client.hear()
            assert b"rec__echo" not in client.answer(request(2, "tools/list"))


def test_the_lists_are_known_before_the_very_first_host(tmp_path: Path) -> None:
    """`connect` has tried the servers, and left what the relay of the desktop host answers."""
    with configured(tmp_path) as file:
        (tmp_path / ".gemini").mkdir()
        (tmp_path / ".gemini" / "settings.json").write_text("{}")
        command = [COLONNADE, "connect", "gemini", "--yes", "--config", str(file)]
        environment = {**beside(file), "HOME": str(tmp_path)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert "rec                  10 tools" in done.stdout
        with relay(file) as client:
            with stopped_starts(file):
                client.open()
                assert b"rec__echo" in client.answer(request(1, "tools/list"))
            assert "result" in call(client, 2)


def test_a_host_at_a_url_takes_the_relays_when_the_one_in_the_background_has_ended(tmp_path: Path) -> None:
    with configured(tmp_path) as file:
        with relay(file) as first:
            first.open()
            with serving(file) as running:
                assert f"process {running.process.pid} serves" not in (tmp_path / "stdio.stderr").read_text()
                assert first.leave() == 0
                path = socket_path(str(tmp_path / "state"), str(file))

                def taker() -> int:
                    found = connect(path)
                    if found is None:
                        return 0
                    with found:
                        return found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED)

                until(lambda: taker() == running.process.pid, "it serves the relays")
                with relay(file) as second:
                    second.open()
                    assert "result" in call(second, 1)
                    assert second.leave() == 0
                assert f"process {running.process.pid} serves" in (tmp_path / "stdio.stderr").read_text()
