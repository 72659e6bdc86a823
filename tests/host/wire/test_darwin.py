"""Processes of macOS, with a fake of its system library: what is read from which call, and what happens without."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from host.client_process import ClientProcess
from host.wire import darwin
from host.wire.client_program import find_client
from host.wire.descent import (
    HostRecord,
    PeerProcess,
    ancestry,
    announce_host,
    credentials,
    refusal_reason,
    relay_refusal,
    running_hosts,
)

PROCESSES: dict[int, tuple[str, int, int]] = {  # name, seconds of its start (0: another user's), parent
    1: ("launchd", 0, 0),
    20: ("login", 0, 1),
    30: ("zsh", 300, 20),
    40: ("node", 400, 30),
    50: ("python3.12", 500, 40),
}
COMMANDS = {
    30: ["-zsh"],
    40: ["node", "/opt/bin/gemini"],
    50: ["/v/bin/python3.12", "/v/bin/colonnade", "serve", "--stdio"],
}
PATHS = {30: "/bin/zsh", 40: "/opt/bin/node", 50: "/v/bin/python3.12"}


class FakeSystem:
    """libSystem, with the layouts of sys/proc_info.h."""

    def proc_pidinfo(self, pid: int, sort: int, _: object, buffer: Any, size: int) -> int:
        if pid not in PROCESSES:
            return 0
        name, started, parent = PROCESSES[pid]
        if sort == 3 and started:
            data = struct.pack("=5I", 0, 2, 0, pid, parent) + bytes(28) + name.encode()[:15].ljust(16, b"\0")
            data += name.encode().ljust(32, b"\0") + bytes(24) + struct.pack("=QQ", started, 7)
        elif sort == 13:
            data = struct.pack("=4I", pid, parent, pid, 2) + name.encode()[:15].ljust(16, b"\0") + bytes(32)
        elif sort == 9 and started:
            data = bytes(152) + f"/work/{pid}".encode().ljust(1024, b"\0") + bytes(1176)
        else:
            return 0
        assert len(data) == size == {3: 136, 13: 64, 9: 2352}[sort]
        buffer.raw = data
        return size

    def proc_pidpath(self, pid: int, buffer: Any, size: int) -> int:
        path = PATHS.get(pid, "").encode()
        buffer.value = path
        return len(path)

    def sysctl(self, names: Any, count: int, buffer: Any, size: Any, *_: object) -> int:
        first, second, pid = names[:count]
        assert (first, second) == (1, 49)
        if pid not in COMMANDS:
            return -1
        words = b"".join(word.encode() + b"\0" for word in COMMANDS[pid])
        data = struct.pack("=i", len(COMMANDS[pid])) + PATHS[pid].encode() + bytes(5) + words + b"SECRET=x\0"
        buffer[: len(data)] = data
        size._obj.value = len(data)
        return 0


class FakeSocket:
    """A connected Unix socket."""

    def __init__(self, version: int = 0) -> None:
        self._version = version

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        assert level == 0
        groups = struct.pack("=hxx16I", 1, 20, *[0] * 15)
        found = {2: struct.pack("=i", 50), 1: struct.pack("=II", self._version, os.geteuid()) + groups}[option]
        assert len(found) == size
        return found


@pytest.fixture(autouse=True)
def macos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(darwin, "_system", FakeSystem)


def test_the_other_end_of_a_socket() -> None:
    assert credentials(FakeSocket()) == (50, os.geteuid())  # type: ignore[arg-type]
    with pytest.raises(OSError, match="unknown form"):
        credentials(FakeSocket(version=1))  # type: ignore[arg-type]


def test_the_ancestry_goes_through_processes_of_other_users() -> None:
    line = ancestry(50)
    assert [(each.pid, each.name) for each in line] == [
        (pid, name) for pid, (name, _, _) in reversed(PROCESSES.items())
    ]
    assert [each.started for each in line] == [500_000_007, 400_000_007, 300_000_007, 0, 0]


def test_a_host_whose_start_is_not_told_is_announced_all_the_same(tmp_path: Path) -> None:
    with announce_host(tmp_path, tmp_path / "c"):
        (record,) = running_hosts(tmp_path)
    assert (record.pid, record.started) == (os.getpid(), 0)


def test_a_process_that_is_gone_has_none() -> None:
    with pytest.raises(OSError, match="does not tell"):
        darwin.process(99)


def test_the_program_behind_a_relay() -> None:
    peer = PeerProcess(50, os.geteuid(), ancestry(50))
    assert find_client(peer) == ClientProcess("gemini", 40, "/work/40")
    assert darwin.facts(20) == ([], "", "")


def test_relays_are_served_and_nobody_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server can hide where it comes from: there are no subreapers, so one that forks twice is a child of launchd."""
    line = ancestry(50)
    peer = PeerProcess(50, os.geteuid(), line)
    monkeypatch.setattr("host.wire.descent.running_hosts", lambda folder: list[HostRecord]())
    assert relay_refusal(peer, tmp_path) is None
    assert "decide on the console" in str(refusal_reason(peer, tmp_path))
    monkeypatch.setattr("host.wire.descent.running_hosts", lambda folder: [HostRecord("c", 40, line[1].started)])
    assert "only a server whose command" in str(relay_refusal(peer, tmp_path))
