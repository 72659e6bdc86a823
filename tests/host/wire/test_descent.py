"""Descent of processes, with real processes; and the records of running hosts, with real locks."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from host.wire import descent
from host.wire.descent import (
    KEEPER_NAME,
    DescentUnknown,
    HostRecord,
    PeerProcess,
    Process,
    ancestry,
    announce_host,
    credentials,
    descends_from_host,
    examine_peer,
    is_served_above,
    refusal_reason,
    running_hosts,
    this_process,
)

ANNOUNCER = """
import sys
from pathlib import Path
from host.wire.descent import announce_host
with announce_host(Path(sys.argv[1]), Path(sys.argv[2])):
    print("held", flush=True)
    sys.stdin.read()
"""
ROOT = Path(__file__).parents[3]


@contextmanager
def announcing(folder: Path, config: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds a host record."""
    process = subprocess.Popen(
        [sys.executable, "-c", ANNOUNCER, str(folder), str(config)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


# Processes


def test_the_ancestry_of_a_process_begins_with_itself_and_ends_with_one_that_has_no_parent() -> None:
    line = ancestry(os.getpid())
    assert [each.pid for each in line[:2]] == [os.getpid(), os.getppid()]
    assert line[0].name == Path("/proc/self/comm").read_text().rstrip("\n")
    assert Path(f"/proc/{line[-1].pid}/stat").read_text().rpartition(")")[2].split()[1] == "0"


def test_a_name_that_looks_like_the_fields_after_it_deceives_nobody() -> None:
    renames = "import pathlib, sys; pathlib.Path('/proc/self/comm').write_text(') S 1 (x')"
    program = f"{renames}; print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        line = ancestry(process.pid)
        assert line[0].name == ") S 1 (x"
        assert line[1].pid == os.getpid()
        process.kill()


def test_an_ancestry_that_changes_while_it_is_read_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parent that ended meanwhile, whose id another process got, makes a line that never was."""
    init, self, other = Process(1, 0, "init"), Process(9, 1, "x"), Process(5, 1, "y")
    lines = iter([[self, other], [self, init], [self, init]])
    monkeypatch.setattr(descent, "_read_lineage", lambda pid: next(lines))
    assert ancestry(9) == [self, init]
    restless = iter(range(100))
    monkeypatch.setattr(descent, "_read_lineage", lambda pid: [Process(9, next(restless), "x")])
    with pytest.raises(DescentUnknown):
        ancestry(9)


def test_the_other_end_of_a_socket() -> None:
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other:
        assert credentials(one) == (os.getpid(), os.geteuid())
        peer = examine_peer(one)
    assert peer == this_process()
    assert peer.audit_fields() == {
        "pid": os.getpid(),
        "uid": os.geteuid(),
        "name": ancestry(os.getpid())[0].name,
        "exe": os.path.realpath(sys.executable),
    }


def test_a_peer_that_ended_has_no_ancestry_though_its_process_can_still_be_read(tmp_path: Path) -> None:
    """The child is a zombie until it is reaped: its id is taken, as it would be by another process."""
    program = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({str(tmp_path / 's')!r})"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        child = subprocess.Popen([sys.executable, "-c", program])
        connection, _ = listening.accept()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        with connection:
            if descent._peer_handle(connection) is None:
                pytest.skip("this kernel gives no handle of a peer")
            assert ancestry(child.pid)
            assert examine_peer(connection) == PeerProcess(child.pid, os.geteuid())
        child.wait()


# Running hosts


def test_running_hosts_are_those_that_hold_their_record(tmp_path: Path) -> None:
    config = tmp_path / "colonnade.yaml"
    assert running_hosts(tmp_path) == []
    with announce_host(tmp_path, config), announcing(tmp_path, config) as other:
        own = ancestry(os.getpid())[0]
        expected = {HostRecord(str(config), own.pid, own.started)}
        expected.add(HostRecord(str(config), other.pid, ancestry(other.pid)[0].started))
        assert set(running_hosts(tmp_path)) == expected
    assert running_hosts(tmp_path) == []


def test_the_record_of_a_killed_host_is_removed(tmp_path: Path) -> None:
    with announcing(tmp_path, tmp_path / "c") as other:
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert len(list(tmp_path.iterdir())) == 1
        assert running_hosts(tmp_path) == []
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [
        "",
        "no JSON",
        "[]",
        "{}",
        '{"config": "x", "pid": null, "started": 1}',
        '{"config": "x", "pid": Infinity, "started": 1}',
        "[" * 60_000,
    ],
)
def test_a_record_that_is_held_and_cannot_be_read_refuses_everybody(tmp_path: Path, content: str) -> None:
    with announce_host(tmp_path, tmp_path / "c"):
        (path,) = tmp_path.iterdir()
        path.write_text(content)
        with pytest.raises(DescentUnknown):
            running_hosts(tmp_path)
        why = refusal_reason(this_process(), tmp_path)
        assert why is not None
        assert "cannot be determined" in why
        assert repr(path.name) in why
        assert "remove the file" in why


def test_a_record_that_may_not_be_opened_refuses_everybody_and_is_named_in_printable_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "1\x1b]0;x\u202e.json").touch()

    def forbidden(*_: object) -> int:  # the superuser may open every file
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", forbidden)
    why = refusal_reason(this_process(), tmp_path)
    assert why is not None
    assert r"'1\x1b]0;x\u202e.json'" in why
    assert "(Permission denied)" in why


def test_what_is_no_regular_file_of_this_user_is_no_record_and_stays(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "1.json")
    (tmp_path / "2.json").symlink_to("/etc/passwd")
    (tmp_path / "3.json").symlink_to(tmp_path / "nowhere")
    (tmp_path / "4.json").symlink_to("4.json")
    (tmp_path / "5.json").mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "6.json"))
    if os.geteuid() == 0:
        (tmp_path / "7.json").touch()
        os.chown(tmp_path / "7.json", 12345, 12345)
    before = sorted(tmp_path.iterdir())
    assert running_hosts(tmp_path) == []
    assert refusal_reason(this_process(), tmp_path) is None
    assert sorted(tmp_path.iterdir()) == before
    with announce_host(tmp_path, tmp_path / "c"):
        assert "may not decide" in str(refusal_reason(this_process(), tmp_path))


# Who may decide


def test_a_process_below_a_running_host_is_refused_and_its_siblings_are_not(tmp_path: Path) -> None:
    own = ancestry(os.getpid())
    host = HostRecord("c", own[1].pid, own[1].started)
    assert descends_from_host(own, [host])
    assert descends_from_host(own, [HostRecord("c", own[0].pid, own[0].started)])
    assert not descends_from_host(own, [])
    assert not descends_from_host(own, [HostRecord("c", own[1].pid, own[1].started + 1)])  # its id was used again
    assert refusal_reason(this_process(), tmp_path) is None
    with announcing(tmp_path, tmp_path / "c"):
        assert refusal_reason(this_process(), tmp_path) is None
    with announce_host(tmp_path, tmp_path / "c"):
        assert "may not decide" in str(refusal_reason(this_process(), tmp_path))


def test_a_process_below_a_keeper_is_refused_though_no_record_says_whose(tmp_path: Path) -> None:
    line = (Process(9, 5, "x"), Process(8, 4, KEEPER_NAME), Process(1, 0, "init"))
    assert "may not decide" in str(refusal_reason(PeerProcess(9, os.geteuid(), line), tmp_path))
    assert refusal_reason(PeerProcess(9, os.geteuid(), (line[0], line[2])), tmp_path) is None


def test_a_process_of_another_user_or_of_unknown_descent_is_refused(tmp_path: Path) -> None:
    line = tuple(ancestry(os.getpid()))
    assert "only the user" in str(refusal_reason(PeerProcess(os.getpid(), os.geteuid() + 1, line), tmp_path))
    assert "cannot be determined" in str(refusal_reason(PeerProcess(os.getpid(), os.geteuid()), tmp_path))
    gone = subprocess.Popen(["true"])
    gone.wait()
    for pid in (gone.pid, 0, -1):
        with contextlib.suppress(DescentUnknown):
            assert ancestry(pid) == []


def test_the_record_says_what_the_audit_names(tmp_path: Path) -> None:
    with announce_host(tmp_path, tmp_path / "c"):
        (path,) = tmp_path.iterdir()
        assert json.loads(path.read_text()).keys() == {"config", "pid", "started"}
        assert path.stat().st_mode & 0o777 == 0o600


ASKER = """
import sys
from pathlib import Path
from host.wire.descent import is_served_above
print(*(is_served_above(Path(each), Path(sys.argv[1])) for each in sys.argv[2:]))
"""


def test_a_file_that_an_ancestor_serves_is_served_above(tmp_path: Path) -> None:
    """By whatever link, and whatever stands in between. A host is not above itself, nor above its neighbours."""
    records, served, link = tmp_path / "hosts", tmp_path / "served", tmp_path / "link"
    records.mkdir()
    link.symlink_to(served)
    files = [str(served), str(link), str(tmp_path / "other"), str(tmp_path / "beside")]
    command = ["sh", "-c", 'exec env -i "$@"; true', "sh", sys.executable, "-c", ASKER, str(records), *files]
    with announce_host(records, served), announcing(records, tmp_path / "beside"):
        assert not is_served_above(served, records)
        answer = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout
        assert answer.split() == ["True", "True", "False", "False"]
    answer = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert answer.split() == ["False"] * 4


def test_where_no_record_can_be_read_no_file_is_served_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(folder: Path) -> list[HostRecord]:
        raise DescentUnknown

    monkeypatch.setattr(descent, "running_hosts", fails)
    assert not is_served_above(tmp_path / "served", tmp_path)
