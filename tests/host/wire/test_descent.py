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

from host.relay import TRAIL_VARIABLE
from host.wire import descent
from host.wire.descent import (
    KEEPER_NAME,
    LINK_NAME,
    SUBREAPER_NAME,
    DescentUnknown,
    HostRecord,
    PeerProcess,
    Process,
    Trail,
    ancestry,
    announce_host,
    credentials,
    descends_from_host,
    examine_peer,
    is_served_above,
    refusal_reason,
    relay_refusal,
    running_hosts,
    this_process,
    trail_refusal,
)
from tests.kit.processes import state_of

ANNOUNCER = """
import sys
from pathlib import Path
from host.wire.descent import announce_host
with announce_host(Path(sys.argv[1]), Path(sys.argv[2])):
    print("held", flush=True)
    sys.stdin.read()
"""
ROOT = Path(__file__).parents[3]


def refusal(peer: PeerProcess, hosts: Path, source: str, trail: list[str] | None) -> str | None:
    """Why a relay is not served, as the socket decides it."""
    return relay_refusal(peer, hosts) or trail_refusal(peer, source, trail)


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
    assert state_of(line[-1].pid).parent == 0


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


# Who may be a client at the socket for relays

HOST, NESTED = HostRecord("c", 20, 2), HostRecord("d", 30, 3)
_LETTERS = {"K": KEEPER_NAME, "S": SUBREAPER_NAME, "L": LINK_NAME, "p": "program"}


def _lineage(letters: str) -> list[Process]:
    """Processes from the top down: init, then H and N for the hosts, K, S and L for the names, p for others."""
    found = [Process(1, 0, "init")]
    for place, letter in enumerate(letters.replace(" ", ""), 100):
        host = {"H": HOST, "N": NESTED}.get(letter)
        found.append(Process(host.pid, host.started, "x") if host else Process(place, place, _LETTERS[letter]))
    return found[::-1]


@pytest.mark.parametrize(
    ("letters", "passes"),
    [
        ("p p", True),  # a relay that a desktop host started
        ("p H K L p p", True),  # a relay that a host started as its server
        ("H L p", True),  # its keeper was killed
        ("K L p", True),  # its host was killed, or has another state directory
        ("H K L N K L p", True),  # through two hosts
        ("H K L N L p", True),
        ("H K S p", False),  # a server
        ("H S p", False),
        ("S p", False),
        ("K S p", False),
        ("H K S L p", False),  # a server that gave itself the name
        ("H S L p", False),  # and killed the keeper
        ("S L p", False),  # and the host
        ("H K S K L p", False),  # or plays a whole host
        ("H K S H K L p", False),
        ("H K L N K S p", False),  # a server of the second host
        ("H K L N p", False),  # another child of it
        ("H K L N", False),  # the host itself
        ("H K L p K p", False),
        ("H K p", False),  # its subreaper was killed just now
        ("H K K L p", False),
        ("H p K L p", False),
        ("H p", False),
        ("H", False),
        ("H K", False),
        ("L p", False),  # a name that nothing above it gave
        ("p L", False),
        ("H K L L p", False),
    ],
)
def test_which_lineages_may_be_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, letters: str, passes: bool
) -> None:
    monkeypatch.setattr(descent, "running_hosts", lambda folder: [HOST, NESTED])
    peer = PeerProcess(200, os.geteuid(), _lineage(letters))
    why = refusal(peer, tmp_path, "/b.yaml", ["/a.yaml"])
    assert why is None if passes else "only a server whose command is colonnade itself may" in str(why)
    decides = refusal_reason(peer, tmp_path)
    assert decides is None if letters == "p p" else "may not decide" in str(decides)
    marked = PeerProcess(200, os.geteuid(), peer.lineage, is_marked=True)
    assert "only a server" in str(refusal(marked, tmp_path, "/b.yaml", ["/a.yaml"]))
    assert "may not decide" in str(refusal_reason(marked, tmp_path))


def test_a_link_names_the_configurations_from_which_it_descends_and_none_of_them_twice(tmp_path: Path) -> None:
    link = PeerProcess(200, os.geteuid(), _lineage("K L p"))
    own = PeerProcess(200, os.geteuid(), _lineage("p p"))
    trails: list[list[str] | None] = [None, []]
    for trail in trails:
        assert f"needs the variable {TRAIL_VARIABLE}" in str(refusal(link, tmp_path, "/b.yaml", trail))
        assert refusal(own, tmp_path, "/b.yaml", trail) is None
    for peer in (link, own):
        assert refusal(peer, tmp_path, "/b.yaml", ["/a.yaml"]) is None
        why = str(refusal(peer, tmp_path, "/b.yaml", ["/a.yaml", "/b.yaml", "/c.yaml"]))
        assert why.startswith("/b.yaml would be served to itself")


def test_another_user_and_a_process_of_unknown_descent_are_no_clients(tmp_path: Path) -> None:
    line = tuple(ancestry(os.getpid()))
    other = PeerProcess(os.getpid(), os.geteuid() + 1, line)
    assert "only the user" in str(refusal(other, tmp_path, "/b.yaml", None))
    assert "cannot be determined" in str(refusal(PeerProcess(9, os.geteuid()), tmp_path, "/b.yaml", None))
    with announce_host(tmp_path, tmp_path / "c"):
        (record,) = tmp_path.iterdir()
        record.write_text("no record")
        own = PeerProcess(os.getpid(), os.geteuid(), line)
        assert "cannot be read" in str(refusal(own, tmp_path, "/b.yaml", ["/a.yaml"]))


def test_links_are_told_again_when_a_trail_comes_that_they_do_not_know(tmp_path: Path) -> None:
    trail = Trail(tmp_path / "own", {})
    with trail.joined(["/a"]):
        assert not trail.has_grown()  # there are none yet
        assert trail.tell() == ["/a", str(tmp_path / "own")]
        with trail.joined(["/a"]):
            assert not trail.has_grown()
        with trail.joined(["/b"]):
            assert trail.has_grown()
            assert not trail.has_grown()
    assert not trail.has_grown()


def test_the_trail_of_a_host_ends_with_its_own_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    own = str(tmp_path / "file")
    assert Trail(tmp_path / "link", {}).paths() == [own]
    assert Trail(tmp_path / "file", {TRAIL_VARIABLE: '["/a", "/b"]'}).paths() == ["/a", "/b", own]
    for broken in ("", "no JSON", "3", '{"/a": 1}', "[1, null]"):
        assert Trail(tmp_path / "file", {TRAIL_VARIABLE: broken}).paths() == [own]


HOST_OF_PEERS = """
import sys, trio
from pathlib import Path
from host.wire.descent import announce_host
from host.wire.process import become_subreaper, open_keeper

async def main(records, is_link, *command):
    become_subreaper()
    with announce_host(Path(records), Path(records, "c")):
        async with open_keeper() as keeper:
            async with keeper.open_child(command, env={}, cwd="/", grace=0.1, is_link=is_link == "link") as child:
                print(keeper.pid, child._subreaper, flush=True)
                await trio.sleep_forever()

trio.run(main, *sys.argv[1:])
"""
PEER = """
import ctypes, os, signal, socket, sys, time

def parent(pid):
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[1])

path, *steps = sys.argv[1:]
own = os.getpid()
subreaper = os.getppid()
keeper = parent(subreaper)
above = {"keeper": keeper, "subreaper": subreaper, "host": parent(keeper)}
while not os.path.exists(path):  # until the host has learnt that this program runs
    time.sleep(0.01)
for step in steps:
    if step == "name":  # takes the name of a link's subreaper, and has a child below it
        ctypes.CDLL(None).prctl(15, b"colonnade-link", 0, 0, 0)
        if os.fork():
            os.wait()
    elif step == "daemon":
        if os.fork():
            os.wait()
            time.sleep(3600)  # when the program ends, its subreaper ends all below it
        os.setsid()
        if os.fork():
            os._exit(0)
    else:
        word, who = step.split("-")
        os.kill(above[who], getattr(signal, "SIG" + word.upper()))
        while word == "kill" and (parent(own) == above[who] or parent(subreaper) == above[who]):
            time.sleep(0.01)
connection = socket.socket(socket.AF_UNIX)
connection.connect(path)
connection.recv(1)
"""


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("sort", "steps"),
    [
        ("link", []),
        ("link", ["daemon"]),
        ("link", ["kill-keeper"]),
        ("server", []),
        ("server", ["daemon"]),
        ("server", ["name"]),
        ("server", ["kill-keeper", "name"]),
        ("server", ["stop-keeper", "kill-subreaper", "name"]),  # its own parent is then the keeper
        ("server", ["stop-host", "stop-keeper", "kill-subreaper", "kill-keeper", "name"]),  # the host
        ("server", ["stop-host", "stop-keeper", "kill-subreaper", "kill-keeper", "kill-host"]),  # none of them
    ],
)
def test_only_what_a_host_started_as_colonnade_may_be_a_client(tmp_path: Path, sort: str, steps: list[str]) -> None:
    """Real processes. The servers try what a process of the same user can do to its ancestors and to its name."""
    records, path = tmp_path / "hosts", str(tmp_path / "s")
    records.mkdir()
    peer_command = [sys.executable, "-I", "-S", "-c", PEER, path, *steps]
    with socket.socket(socket.AF_UNIX) as listening:
        command = [sys.executable, "-c", HOST_OF_PEERS, str(records), sort, *peer_command]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as host:
            assert host.stdout is not None
            above = [*map(int, host.stdout.readline().split()), host.pid]
            listening.bind(f"{path}.new")
            listening.listen()
            listening.settimeout(30)
            os.rename(f"{path}.new", path)
            try:
                connection, _ = listening.accept()
                with connection:
                    peer = examine_peer(connection)
                    why = refusal(peer, records, "/b.yaml", ["/a.yaml"])
                    decides = refusal_reason(peer, records)
            finally:
                for pid in above:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)
                host.kill()
    assert peer.lineage
    assert "may not decide" in str(decides)
    assert why is None if sort == "link" else "only a server whose command" in str(why)
    assert peer.is_marked is (sort == "server")


LOWERED = """
import os, resource
from host.wire.descent import this_process
LOCKS = 10
marked = [this_process().is_marked]
resource.prlimit(os.getpid(), LOCKS, (9, 9))
print(*marked, this_process().is_marked)
"""


def test_a_server_that_lowers_the_limit_of_its_host_stays_below_it() -> None:
    """Any process of the user may lower it; what has the lowered one, as that server, is a server still."""
    answer = subprocess.run([sys.executable, "-c", LOWERED], capture_output=True, text=True, cwd=ROOT, check=True)
    assert answer.stdout.split() == ["False", "True"]


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


@pytest.mark.slow
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
