"""Servers that run once per folder of a client, behind relays of programs that work in these folders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.real.clients import LineClient
from tests.real.running import BARE_PYTHON, COLONNADE, SERVERS, beside, host_of, until, write_config
from tests.real.test_relay import request

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@contextmanager
def desktop_host(file: Path, folder: Path, *options: str) -> Iterator[LineClient]:
    """A client behind a program that works in a folder and starts `serve --stdio`, as a relay or with these options."""
    script = file.parent / "desk.py"
    script.write_text("import subprocess, sys\nsys.exit(subprocess.call(sys.argv[1:]))\n")
    with (file.parent / "desk.stderr").open("a") as stderr:
        process = subprocess.Popen(
            [sys.executable, str(script), COLONNADE, "serve", str(file), "--stdio", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=beside(file),
            cwd=folder,
        )
    with process:
        client = LineClient(process)
        client.open()
        yield client
        assert client.leave() == 0


def programs(token: str) -> int:
    """The number of processes with this argument."""
    found = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            found += token in Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        except OSError:
            continue
    return found


def lists_all(client: LineClient) -> bool:
    return len(json.loads(client.answer(request(1, "tools/list")))["result"]["tools"]) == 11


def test_eleven_servers_for_clients_in_two_folders_are_thirteen_programs(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    token = f"of {tmp_path}"
    shared = {"command": [*BARE_PYTHON, str(SERVERS / "folder.py"), token], "trust": "trusted"}
    servers = {f"s{n}": shared for n in range(9)} | {id: {**shared, "cwd": "${client:folder}"} for id in ("a", "b")}
    file = write_config(tmp_path, servers, daemon={"idle": "1s"}, console="off")
    with ExitStack() as stack:
        clients = [
            (folder, stack.enter_context(desktop_host(file, folder))) for folder in (*folders, *folders, folders[0])
        ]
        ran: dict[tuple[str, Path], set[int]] = {}
        for folder, client in clients:
            until(partial(lists_all, client), "all tools")
            for server in ("s0", "a", "b"):
                answer = json.loads(client.answer(request(2, "tools/call", name=f"{server}__x", arguments={})))
                cwd, pid = json.loads(answer["result"]["content"][0]["text"])
                assert cwd == str(tmp_path if server == "s0" else folder)
                ran.setdefault((server, Path(cwd)), set()).add(pid)
        assert [len(pids) for pids in ran.values()] == [1] * 5
        assert programs(token) == 13
    until(lambda: not host_of(file), "no host is left")
    assert programs(token) == 0


def test_without_a_relay_the_folder_is_that_of_the_program_that_started_it(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    command = [*BARE_PYTHON, str(SERVERS / "folder.py")]
    file = write_config(tmp_path, {"a": {"command": command, "trust": "trusted", "cwd": "${client:folder}"}})
    with desktop_host(file, tmp_path / "one", "--own") as client:
        answer = json.loads(client.answer(request(1, "tools/call", name="a__x", arguments={})))
        assert json.loads(answer["result"]["content"][0]["text"])[0] == str(tmp_path / "one")


def test_a_command_has_a_folder(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    command = [*BARE_PYTHON, str(SERVERS / "folder.py")]
    file = write_config(tmp_path, {"a": {"command": command, "trust": "trusted", "cwd": "${client:folder}"}})

    def run(*arguments: str) -> str:
        words = [COLONNADE, *arguments, "--config", str(file)]
        return subprocess.run(
            words, cwd=tmp_path / "one", env=beside(file), capture_output=True, text=True, check=True
        ).stdout

    assert "a__x" in run("list")
    assert json.loads(run("call", "a__x"))[0] == str(tmp_path / "one")
