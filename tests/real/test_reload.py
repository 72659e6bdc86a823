"""A host that is told to read its configuration again, by SIGHUP, while it is used."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import termios
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from host.cli.admin_client import find_hosts
from host.cli.exit_codes import CommandFailed

from .clients import HandClient, by_hand, line_client
from .running import COLONNADE, ROOT, Running, beside, heard_method, pid_of, recorder, serving, until, write_config

IN_FLIGHT = 100


def reload(host: Running, *said: str) -> None:
    """Have it read its file again, and wait for what it says to that."""
    before = len(told(host.said))
    host.process.send_signal(signal.SIGHUP)
    line = until(lambda: told(host.said)[before:], f"it says something; {host.errors}")[0]
    assert all(each in line for each in said), line


def told(lines: list[str]) -> list[str]:
    return [line for line in lines if line.strip().startswith("configuration ")]


async def called(client: HandClient, name: str, arguments: dict[str, Any], id: int = 1) -> dict[str, Any]:
    answer: dict[str, Any] = await client.ask("tools/call", {"name": name, "arguments": arguments}, id)
    return answer


async def tools(client: HandClient) -> set[str]:
    return {tool["name"] for tool in (await client.ask("tools/list"))["result"]["tools"]}


async def eventually_ready(host: Running, *servers: str) -> None:
    def ready() -> bool:
        status = host.status()
        return all(status.get(server, {}).get("state") == "ready" for server in servers)

    await trio.to_thread.run_sync(until, ready, f"{servers} are ready")


async def test_only_what_is_configured_otherwise_begins_anew(tmp_path: Path) -> None:
    """What is not goes on in the same process, and what is in flight there is answered (rule 113, row K10)."""
    logs = {id: tmp_path / f"{id}.log" for id in ("same", "other", "gone", "new")}
    servers = {id: recorder(log) for id, log in logs.items()}
    first = {id: servers[id] for id in ("same", "other", "gone")}
    file = write_config(tmp_path, first)
    with serving(file, *first) as host:
        pids = {id: pid_of(host.process.pid, logs[id].name) for id in first}
        async with by_hand(host.url) as client, trio.open_nursery() as nursery:
            answers: list[dict[str, Any]] = []

            async def wait(number: int) -> None:
                answers.append(await called(client, "same__together", {"of": 2, "note": str(number)}, number))

            nursery.start_soon(wait, 1)
            await trio.to_thread.run_sync(until, lambda: heard_method(logs["same"], "tools/call"), "it is called")
            other = {**servers["other"], "env": {"NEW": "1"}}
            second = {"same": servers["same"], "other": other, "new": servers["new"]}
            write_config(tmp_path, second)
            await trio.to_thread.run_sync(reload, host, "read again", "new added", "gone removed", "other restarts")
            await eventually_ready(host, "same", "other", "new")
            await trio.to_thread.run_sync(until, lambda: not Path(f"/proc/{pids['gone']}").exists(), "gone is gone")
            nursery.start_soon(wait, 2)
        assert [each["id"] for each in answers if "isError" not in each["result"]] in ([1, 2], [2, 1])
        assert pid_of(host.process.pid, logs["same"].name) == pids["same"]
        assert pid_of(host.process.pid, logs["other"].name) != pids["other"]
        assert len(heard_method(logs["same"], "initialize")) == 1
        assert list(host.status()) == ["same", "other", "new"]


@pytest.mark.parametrize("broken", ["servers: {a: {command: [x]", "servers: {a: {comand: [x]}}", "servers: []", None])
async def test_a_broken_file_changes_nothing_and_says_why(tmp_path: Path, broken: str | None) -> None:
    """(row K9)"""
    log = tmp_path / "a.log"
    file = write_config(tmp_path, {"a": {**recorder(log), "consent": {"tools": {"deny": ["odd"]}}}})
    kept = file.read_text()
    with serving(file, "a") as host:
        pid = pid_of(host.process.pid, log.name)
        if broken is None:
            file.unlink()
        else:
            file.write_text(broken)
        reload(host, "configuration kept", str(file) if broken is None else "colonnade.yaml")
        await trio.to_thread.run_sync(until, lambda: "configuration kept" in host.errors, "the log says it", 5)
        async with by_hand(host.url) as client:
            assert "a__echo" in await tools(client)
            assert "a__odd" not in await tools(client)
            assert "result" in await called(client, "a__echo", {"n": 1})
        assert pid_of(host.process.pid, log.name) == pid
        file.write_text(kept)
        reload(host, "read again", "nothing has changed")
        assert pid_of(host.process.pid, log.name) == pid


def test_a_saved_file_narrows_at_once_and_widens_only_for_a_person(tmp_path: Path) -> None:
    """Other servers go on as the same processes."""
    logs = {name: tmp_path / f"{name}.log" for name in ("a", "b")}
    servers: dict[str, Any] = {name: recorder(log) for name, log in logs.items()}
    watched = {"watch": "on"}
    file = write_config(tmp_path, servers, **watched)
    with serving(file, "a", "b") as host:

        def save(servers: dict[str, Any], *said: str) -> None:
            before = len(told(host.said))
            write_config(tmp_path, servers, **watched)
            line = until(lambda: told(host.said)[before:], f"it says something; {host.errors}")[0]
            assert all(each in line for each in said), line

        host.wait_watching(tmp_path)
        pids = {name: pid_of(host.process.pid, log.name) for name, log in logs.items()}
        stricter = {**servers, "a": {**servers["a"], "consent": {"tools": {"deny": ["echo"]}}}}
        save(stricter, "a has new rules or limits")
        save({**stricter, "evil": recorder(tmp_path / "evil.log")}, "waits for a person", "evil: it is new")
        save({**stricter, "b": {**servers["b"], "trust": "trusted"}}, "b: trust rises from standard to trusted")
        assert {name: pid_of(host.process.pid, log.name) for name, log in logs.items()} == pids
        assert not (tmp_path / "evil.log").exists()
        (admin,) = find_hosts(tmp_path / "state")
        (change,) = admin.get("state")["configuration"]
        assert (change["server"], change["widens"]) == ("b", ["trust rises from standard to trusted"])
        assert "trusted" in "".join(piece["text"] for piece in change["diff"] if piece["op"] == "added")
        # A change that came after a person has looked is not applied with it, whether the watch has seen it or not.
        write_config(tmp_path, {**stricter, "b": {**servers["b"], "trust": "trusted", "timeout": "5s"}}, **watched)
        with pytest.raises(CommandFailed, match="look at them again"):
            admin.post("configuration/reload", shown=change["id"])
        assert {name: pid_of(host.process.pid, log.name) for name, log in logs.items()} == pids
        admin.post("configuration/reload", apply=False)
        (again,) = admin.get("state")["configuration"]
        assert "b restarts" in admin.post("configuration/reload", shown=again["id"])["done"]
        assert admin.get("state")["configuration"] == []


async def test_calls_in_flight_keep_their_verdict_and_new_ones_are_evaluated_by_the_new_rules(tmp_path: Path) -> None:
    """(row P15)"""
    log = tmp_path / "a.log"
    file = write_config(tmp_path, {"a": recorder(log)})
    with serving(file, "a") as host:
        pid = pid_of(host.process.pid, log.name)
        answers: list[dict[str, Any]] = []
        async with by_hand(host.url) as client, trio.open_nursery() as nursery:

            async def wait(number: int) -> None:
                given = {"of": IN_FLIGHT + 1, "note": "old"}
                answers.append(await called(client, "a__together", given, number))

            for number in range(IN_FLIGHT):
                nursery.start_soon(wait, number)
            await trio.to_thread.run_sync(
                until, lambda: len(heard_method(log, "tools/call")) == IN_FLIGHT, "all are called"
            )
            deny = {"tools": {"deny": ["echo", {"name": "together", "when": {"note": {"in": ["old", "new"]}}}]}}
            write_config(tmp_path, {"a": {**recorder(log), "consent": deny}})
            await trio.to_thread.run_sync(reload, host, "a has new rules or limits")
            assert "a__echo" not in await tools(client)
            for note in ("old", "new"):
                refused = await called(client, "a__together", {"of": IN_FLIGHT + 1, "note": note}, 1000)
                assert refused["result"]["isError"]
                assert "not allowed with these arguments" in refused["result"]["content"][0]["text"]
            assert (await called(client, "a__echo", {}, 1001))["error"]["code"] == -32602
            assert answers == []
            last = await called(client, "a__together", {"of": IN_FLIGHT + 1, "note": "last"}, 1002)
            assert "error" not in last
        assert len(answers) == IN_FLIGHT
        assert all("isError" not in each["result"] for each in answers)
        assert len(heard_method(log, "tools/call")) == IN_FLIGHT + 1
        assert pid_of(host.process.pid, log.name) == pid


async def test_its_log_goes_on_in_a_new_file(tmp_path: Path) -> None:
    """As programs that rotate logs expect. The lines of calls name their callers, and lead to the audit."""
    log, rotated = tmp_path / "log", tmp_path / "log.1"
    file = write_config(tmp_path, {"a": recorder(tmp_path / "a.log")})
    options = ["--log-format", "json", "--log-file", str(log), "--log-level", "error,calls=info"]
    with serving(file, "a", options=options) as host:
        async with by_hand(host.url) as client:
            await called(client, "a__echo", {"n": 1})
            until(lambda: "request_completed" in log.read_text(), "the call is logged")
            log.rename(rotated)
            reload(host)
            until(log.exists, "the log is opened again")
            await called(client, "a__echo", {"n": 2})
            until(log.read_text, "the second call is logged")
    (first,), (second,) = ([json.loads(line) for line in each.read_text().splitlines()] for each in (rotated, log))
    assert (first["event"], first["name"], first["outcome"]) == ("request_completed", "echo", "answered")
    assert first["caller"] == second["caller"] != ""
    assert first["audit"] < second["audit"]
    assert host.errors == ""


def test_a_host_that_serves_over_stdio_reads_its_file_again_too(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    with line_client(write_config(tmp_path, {"a": recorder(log)})) as client:
        client.open()
        names = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'
        assert b"a__odd" in client.answer(names)
        write_config(tmp_path, {"a": {**recorder(log), "consent": {"tools": {"deny": ["odd"]}}}})
        client.process.send_signal(signal.SIGHUP)
        until(lambda: b"a__odd" not in client.answer(names), "the tool is gone")
        assert client.leave() == 0


def test_a_host_whose_terminal_is_closed_ends(tmp_path: Path) -> None:
    """It is the same signal; while the terminal is there, it means that the file is to be read again."""
    log = tmp_path / "a.log"
    file = write_config(tmp_path, {"a": recorder(log)})
    ours, theirs = os.openpty()
    try:
        process = subprocess.Popen(
            [COLONNADE, "serve", str(file)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=ROOT,
            env=beside(file),
            start_new_session=True,
            preexec_fn=take_terminal,
        )
        os.close(theirs)
        try:
            shown = Screen(ours)
            until(lambda: shown.has(b"ready"), "it is ready")
            child = pid_of(process.pid, log.name)
            process.send_signal(signal.SIGHUP)
            until(lambda: shown.has(b"nothing has changed"), "it has read its file again")
            assert process.poll() is None
            os.close(ours)
            ours = -1
            assert process.wait(10) == 0
            assert not Path(f"/proc/{child}").exists()
        finally:
            process.kill()
            process.wait()
    finally:
        if ours >= 0:
            os.close(ours)


def take_terminal() -> None:
    """Make standard input the terminal of this session, whose end is heard also where the tests run under `nohup`."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Screen:
    """What was shown at a terminal so far."""

    def __init__(self, terminal: int) -> None:
        os.set_blocking(terminal, False)
        self._terminal = terminal
        self._shown = bytearray()

    def has(self, text: bytes) -> bool:
        with suppress(BlockingIOError):
            self._shown += os.read(self._terminal, 65536)
        return text in self._shown
