"""The command `status`: what it prints of a host, and its exit codes."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from host.cli.admin_client import AdminClientError, RunningHost
from host.cli.command_line import run
from host.cli.exit_codes import DONE, INTERRUPTED, UNREACHED
from host.cli.status import _duration, _fitting, _show
from host.cli.terminal import Terminal
from tests.kit.admin import client, server
from tests.real.running import colonnade, recorder, serving, write_config

from .conftest import Stopped, host_at

HOST: dict[str, Any] = {
    "colonnade": "0.1.0",
    "config": "/home/me/colonnade.yaml",
    "pid": 4711,
    "stdio": False,
    "endpoint": "http://127.0.0.1:8808/mcp",
    "uptime": 11_520.0,
    "process": {"memory": 80 << 20, "memory_peak": 96 << 20},
    "servers": [server("time"), server("bad", state="failed", detail="it exited with status 1: \x1b[31mno key")],
    "confirmations": 0,
    "held": 0,
    "waiting_changes": [],
    "problems": [],
}


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    state = str(tmp_path_factory.mktemp("status") / "state")
    with host_at(state):
        yield state


@pytest.mark.slow
def test_what_waits_for_a_person_is_named_with_its_command(state: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--state", state]) == DONE
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Colonnade 0.1.0 serves at http://127.0.0.1:8808/mcp"
    assert "  host:           process 4711, up 3 h 12 min, 80 MiB of memory, at most 96 MiB so far" in lines
    assert "  confirmations:  2 waiting (colonnade ask)" in lines
    assert "  definitions:    1 held (colonnade definitions)" in lines
    assert "  changes:        1 change of the file waiting (colonnade reload)" in lines
    assert "                  time: command changed" in lines
    assert "  problem:        the audit log cannot be written" in lines


def test_the_members_of_a_fleet_are_told_with_what_is_special_about_each(capsys: pytest.CaptureFixture[str]) -> None:
    def member(at: int, **special: object) -> dict[str, object]:
        usual = {"version": "0.1.0", "status": "serving", "lease": 1.84, "equal_rules": True, "behind": False}
        return {"boot": f"b{at}", "address": f"10.0.0.{at}:8443", **usual, **special}

    members = [member(1), member(2, status="draining", equal_rules=False), member(3, behind=True)]
    fleet = {"name": "acme", "boot": "b1", "is_current": True, "members": members}
    _show(Terminal(io.StringIO()), {**HOST, "fleet": fleet, "draining": True, "drain": 30.0, "held": 1})
    lines = capsys.readouterr().out.splitlines()
    assert "  drains:         ends with what is under way, within 30 s" in lines
    below = lines.index("  fleet:          acme, 3 members") + 1
    assert [line.strip() for line in lines[below : below + 3]] == [
        "b1 at 10.0.0.1:8443, serving, Colonnade 0.1.0, this host",
        "b2 at 10.0.0.2:8443, draining, Colonnade 0.1.0, a lease of 1.8 s, other servers, rules or views",
        "b3 at 10.0.0.3:8443, serving, Colonnade 0.1.0, a lease of 1.8 s, has decisions to take over",
    ]
    _show(Terminal(io.StringIO()), {**HOST, "fleet": {**fleet, "is_current": False}})
    assert "acme, 3 members, as of the last answer of its database" in capsys.readouterr().out


@pytest.mark.slow
def test_the_state_as_json(state: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--json", "--state", state]) == DONE
    (host,) = json.loads(capsys.readouterr().out)
    assert (host["pid"], host["confirmations"], host["waiting_changes"]) == (4711, 2, ["time: command changed"])


@pytest.mark.slow
def test_it_is_shown_again_until_it_is_interrupted(
    state: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal in place of what stood there, as much as fits."""
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("host.cli.status.time.sleep", sleep)
    assert run(["status", "--watch", "--json", "--state", state]) == INTERRUPTED
    assert [json.loads(line)[0]["pid"] for line in capsys.readouterr().out.splitlines()] == [4711] * 2
    looks.clear()
    assert run(["status", "--watch", "0.5", "--state", state]) == INTERRUPTED
    assert looks == [0.5, 0.5]
    assert capsys.readouterr().out.count("\n\nColonnade 0.1.0 serves at") == 1
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((80, 6)))
    looks.clear()
    assert run(["status", "--watch", "--state", state]) == INTERRUPTED
    _, *shown = capsys.readouterr().out.split("\x1b[H\x1b[2J")
    assert [len(each.splitlines()) for each in shown] == [4, 4]
    assert all(re.fullmatch(r"… \d+ more lines", each.splitlines()[-1]) for each in shown)


def test_what_does_not_fit_into_the_terminal_is_counted() -> None:
    """By the rows that lines take there, without their colours."""
    text = f"\x1b[32m{'a' * 10}\x1b[0m\n{'b' * 11}\n\nlast\n"
    assert _fitting(text, 10, 5) == text
    assert _fitting(text, 10, 4) == f"\x1b[32m{'a' * 10}\x1b[0m\n{'b' * 11}\n… 2 more lines\n"
    assert _fitting(text, 10, 3) == f"\x1b[32m{'a' * 10}\x1b[0m\n… 3 more lines\n"


def test_a_host_that_is_gone_is_waited_for(
    stopped: Stopped, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def sleep(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("host.cli.status.time.sleep", sleep)
    assert stopped.run("status", "--watch") == INTERRUPTED
    assert capsys.readouterr().out == "No host of yours runs.\n\n"


@pytest.mark.slow
def test_a_host_that_goes_while_it_is_asked_does_not_end_the_watch(
    state: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(host: RunningHost, path: str) -> None:
        raise AdminClientError("it has ended")

    def sleep(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("host.cli.status.time.sleep", sleep)
    monkeypatch.setattr(RunningHost, "get", refuse)
    assert run(["status", "--state", state]) != INTERRUPTED
    assert run(["status", "--watch", "--state", state]) == INTERRUPTED
    captured = capsys.readouterr()
    assert captured.out == "No host of yours runs.\n\n"
    assert "colonnade: the host of process 4711: it has ended" in captured.err


@pytest.mark.slow
def test_the_clients_of_a_running_host(state: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "--clients", "--state", state]) == DONE
    head, line = capsys.readouterr().out.splitlines()
    assert head == "1 client of process 4711, which serves /home/me/colonnade.yaml"
    assert line.startswith("claude               relay  process 4712; in /home/me/work;")
    assert run(["list", "--clients", "--json", "--state", state]) == DONE
    (host,) = json.loads(capsys.readouterr().out)
    assert (host["pid"], host["clients"]) == (4711, [client()])


def test_without_a_host_the_exit_code_says_so(stopped: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    assert stopped.run("status", "--json") == UNREACHED
    assert capsys.readouterr().out == ""


def test_servers_have_their_state_and_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is said of what does not wait, and nothing of a server moves the cursor."""
    _show(Terminal(io.StringIO()), HOST)
    said = capsys.readouterr().out
    assert "1 of 2 ready" in said
    traffic = "12 calls, 1 failed, 2 tool errors; p50 38.1 ms, p95 76.2 ms; 2 restarts"
    assert f"  time                 ready    2025-11-25; {traffic}\n" in said
    assert f"  bad                  failed   it exited with status 1: \\x1b[31mno key; {traffic}\n" in said
    assert "colonnade ask" not in said
    flaps = server("flaps", calls=0, failed=0, tool_errors=0, p50_ms=None, p95_ms=None)
    _show(Terminal(io.StringIO()), {**HOST, "servers": [flaps]})
    assert capsys.readouterr().out.endswith("  flaps                ready    2025-11-25; 2 restarts\n")
    served = {"session": "handshake clients use\x1b a session"}
    _show(Terminal(io.StringIO()), {**HOST, "servers": [{**each, **served} for each in HOST["servers"]]})
    said_too = capsys.readouterr().out
    assert "  time                 ready    2025-11-25; handshake clients use\\x1b a session; " in said_too
    assert "no key; handshake clients use" in said_too
    _show(Terminal(io.StringIO()), {**HOST, "stdio": True, "endpoint": "", "process": {"memory": None}}, "code")
    said = capsys.readouterr().out
    assert "serves over standard input and output\n" in said
    assert "  started by:     code\n" in said
    assert "memory" not in said


@pytest.mark.parametrize(
    ("after", "left", "words"),
    [
        (600.0, None, "10 min after its last client has left, or by colonnade stop"),
        (0.0, None, "when its last client has left, or by colonnade stop"),
        (600.0, 590.0, "in 9 min 50 s unless a client comes, or by colonnade stop"),
        (None, None, "by colonnade stop"),
    ],
)
def test_a_host_in_the_background_says_when_it_ends(
    after: float | None, left: float | None, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _show(Terminal(io.StringIO()), {**HOST, "endpoint": "", "clients": 2, "ends_after": after, "ends_in": left})
    said = capsys.readouterr().out
    assert "serves relays, in the background\n" in said
    assert "  clients:        2\n" in said
    assert f"  ends:           {words}\n" in said


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (3600, "1 h"), (90_061, "1 d 1 h"), (86_400, "1 d")],
)
def test_times_in_words(seconds: float, words: str) -> None:
    assert _duration(seconds) == words


@pytest.mark.slow
def test_a_real_host(tmp_path: Path) -> None:
    file = write_config(tmp_path, {"a": recorder(tmp_path / "a.log"), "gone": {"command": [str(tmp_path / "gone")]}})
    with serving(file, "a") as host:
        done = colonnade("status", COLONNADE_STATE=str(tmp_path / "state"))
        assert (done.returncode, done.stderr) == (DONE, "")
        assert f"serves at {host.url}\n" in done.stdout
        assert f"process {host.process.pid}, up " in done.stdout
        assert "1 of 2 ready" in done.stdout
        assert f'the program "gone" was not found at "{tmp_path}/gone"' in done.stdout
