"""A real host with its audit on standard output: nothing else is there, no call goes unrecorded, and commands say where
the records are."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from host.audit.records import parse
from tests.real.clients import by_hand
from tests.real.running import (
    ADDRESS,
    COLONNADE,
    STOP,
    beside,
    colonnade,
    heard_method,
    recorder,
    until,
    write_config,
)


class Container:
    """A host whose standard output is a pipe to us."""

    def __init__(self, process: subprocess.Popen[bytes], errors: Path) -> None:
        assert process.stdout is not None
        self.process = process
        self.output = process.stdout.fileno()
        self._errors = errors

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def url(self) -> str:
        return str(until(lambda: ADDRESS.search(self.errors), "an address")[0])

    def read(self) -> bytes:
        """What the pipe holds now."""
        os.set_blocking(self.output, False)
        found = b""
        while True:
            try:
                piece = os.read(self.output, 1 << 20)
            except BlockingIOError:
                return found
            if not piece:
                return found
            found += piece


@contextmanager
def container(file: Path, *options: str) -> Iterator[Container]:
    errors = file.parent / "stderr"
    with (
        errors.open("w") as stderr,
        subprocess.Popen(
            [COLONNADE, "serve", str(file), *options], stdout=subprocess.PIPE, stderr=stderr, env=beside(file)
        ) as host,
    ):
        try:
            yield Container(host, errors)
        finally:
            host.kill()


async def test_what_its_reader_leaves_no_room_for_is_not_sent(tmp_path: Path) -> None:
    """The loop of the host goes on meanwhile, and calls too once the lines are read again."""
    log = tmp_path / "a.log"
    file = write_config(tmp_path, {"a": recorder(log)}, audit={"to": "stdout"})
    state = str(tmp_path / "state")
    with container(file) as host:
        async with by_hand(host.url()) as client:
            said = b""

            async def call() -> bool:
                answer = await client.ask("tools/call", {"name": "a__echo", "arguments": {"n": 1}})
                if "error" not in answer:
                    return True
                assert "the audit cannot be written (nobody reads standard output" in answer["error"]["message"]
                return False

            await client.ask("tools/list", {})
            for _ in range(3):
                assert await call()
            said += host.read()
            sent = heard_method(log, "tools/call")
            decisions = [line for line in map(parse, said.splitlines()) if line and line.record["kind"] == "decision"]
            assert len(decisions) == len(sent) == 3
            fcntl.fcntl(host.output, fcntl.F_SETPIPE_SZ, 4096)
            passed = 0
            while await call():
                passed += 1
            refused = [await call() for _ in range(20)]
            assert not any(refused)
            assert (await client.ask("tools/list", {}))["result"]["tools"], "all else goes on"
            before = len(heard_method(log, "tools/call"))
            assert before == 3 + passed
            said += host.read()
            assert await call()
            where = colonnade("audit", COLONNADE_STATE=state)
            assert (where.returncode, where.stdout) == (0, "")
            assert f"of {file} (process {host.process.pid}) writes its audit to standard output" in where.stderr
            assert "audit:          on its standard output" in colonnade("status", COLONNADE_STATE=state).stdout
        host.process.terminate()
        assert host.process.wait(STOP) == 0
        said += host.read()
        assert host.errors.startswith("Colonnade ")
        assert f"tail -f {file.parent}" not in host.errors
    lines = [parse(line) for line in said.splitlines()]
    assert all(lines), "nothing else is on standard output"
    counted = sum(line is not None and line.record["kind"] == "decision" for line in lines)
    assert counted == len(heard_method(log, "tools/call")) == 4 + passed
    collected = tmp_path / "collected"
    collected.write_bytes(said)
    done = colonnade("audit", "verify", str(collected), COLONNADE_STATE=state)
    assert (done.returncode, f": ok, {len(lines)} records\n" in done.stdout) == (0, True), done
    assert not list((tmp_path / "state" / "audit").glob("*.jsonl"))


def test_a_log_in_json_beside_it_is_json_alone_and_has_each_state(tmp_path: Path) -> None:
    """Standard error has both the log and the states then, and a collector reads each line."""
    servers = {"a": recorder(tmp_path / "a.log"), "gone": {"command": ["false"]}}
    file = write_config(tmp_path, servers, audit={"to": "stdout"})
    with container(file, "--log-format", "json", "--log-level", "info") as host:
        until(lambda: "server_ready" in host.errors and "server_failed" in host.errors, "both states")
        host.process.terminate()
        assert host.process.wait(STOP) == 0
        lines = [json.loads(line) for line in host.errors.splitlines()]
    assert {"server_ready", "server_failed"} <= {line.get("event") for line in lines}
    assert any("serves 2 servers at http://" in line["message"] for line in lines)


def test_over_stdio_it_is_an_error(tmp_path: Path) -> None:
    """With a host of its own, and in the one that a relay starts: standard output is the protocol's."""
    file = write_config(tmp_path, {"a": recorder(tmp_path / "a.log")}, audit={"to": "stdout"})
    for options in (["--stdio", "--own"], ["--daemon"]):
        done = colonnade("serve", *options, str(file), COLONNADE_STATE=str(tmp_path / "state"))
        assert (done.returncode, done.stdout) == (2, "")
        assert "audit.to: with serve --stdio, standard output is the protocol's" in done.stderr


def test_a_command_with_a_host_of_its_own_prints_its_result_alone(tmp_path: Path) -> None:
    """Its records are in a file."""
    file = write_config(tmp_path, {"a": recorder(tmp_path / "a.log")}, audit={"to": "stdout"})
    done = colonnade("call", "a__echo", '{"n": 1}', "--config", str(file), COLONNADE_STATE=str(tmp_path / "state"))
    assert (done.returncode, "sha256" in done.stdout) == (0, False), done
    (path,) = (tmp_path / "state" / "audit").glob("*.jsonl")
    assert '"kind":"decision"' in path.read_text()
