"""Who holds the other end of a TCP connection: in a /proc of the test, and with real sockets."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from host.wire import tcp_peer
from host.wire.descent import PeerProcess, announce_host
from host.wire.tcp_peer import Address, Holders, SearchTooLong, find_holders, refuse_sender

CLIENT, SERVER = ("127.0.0.1", 50_000), ("127.0.0.1", 8808)
HERE, THERE = "0100007F:C350", "0100007F:2268"
MAPPED = "0000000000000000FFFF0000"
OWN = os.geteuid()

pytestmark = pytest.mark.skipif(sys.byteorder != "little", reason="the tables have the order of the machine")


def row(local: str, remote: str, uid: int, inode: int) -> str:
    return f"   0: {local} {remote} 01 00000000:00000000 00:00000000 00000000 {uid:5} 0 {inode} 1 0000000000000000 20\n"


def proc_of(folder: Path, rows: Sequence[str], rows6: Sequence[str] = (), **descriptors: Sequence[str]) -> Path:
    """A /proc with these sockets, and these processes (`p7`) with their descriptors."""
    (folder / "net").mkdir(parents=True)
    for name, lines in (("tcp", rows), ("tcp6", rows6)):
        (folder / "net" / name).write_text("  sl  local_address rem_address   st ...\n" + "".join(lines))
    for pid, targets in descriptors.items():
        fd = folder / pid[1:] / "fd"
        fd.mkdir(parents=True)
        for number, target in enumerate(targets):
            (fd / str(number)).symlink_to(target)
    return folder


def test_all_processes_with_a_descriptor_of_the_socket_are_found(tmp_path: Path) -> None:
    rows = [row(THERE, HERE, OWN, 4), row("0100007F:C351", THERE, OWN, 6), row(HERE, THERE, 1234, 5)]
    proc = proc_of(tmp_path, rows, p7=["socket:[5]", "socket:[4]"], p8=["/x", "socket:[55]"], p9=["socket:[5]"])
    (proc / "self").mkdir()
    (proc / "5").mkdir()  # it has just ended
    (proc / "6").mkdir()
    (proc / "6" / "fd").touch()  # it hides them
    assert find_holders(CLIENT, SERVER, proc) == Holders(1234, [7, 9], "socket:[5]")


@pytest.mark.parametrize(
    ("client", "server", "local", "remote"),
    [
        (CLIENT, SERVER, MAPPED + HERE, MAPPED + THERE),  # a socket for IPv6 that is connected over IPv4
        (("::ffff:127.0.0.1", 50_000), SERVER, MAPPED + HERE, MAPPED + THERE),
        (("::1", 50_000), ("::1", 8808), f"{'0' * 24}01000000:C350", f"{'0' * 24}01000000:2268"),
    ],
)
def test_sockets_of_ipv6_are_found(tmp_path: Path, client: Address, server: Address, local: str, remote: str) -> None:
    proc = proc_of(tmp_path, [], [row(local, remote, OWN, 5)], p7=["socket:[5]"])
    assert find_holders(client, server, proc) == Holders(OWN, [7], "socket:[5]")


def test_a_socket_of_another_machine_or_an_unknown_one_is_let_in(tmp_path: Path) -> None:
    proc = proc_of(tmp_path / "proc", [row(THERE, HERE, OWN, 4)], p7=["socket:[4]"])
    assert find_holders(CLIENT, SERVER, proc) is None
    for where in (proc, tmp_path / "nothing"):
        assert refuse_sender(CLIENT, SERVER, tmp_path, where) is None
    assert refuse_sender(None, SERVER, tmp_path, proc) is None
    assert refuse_sender(CLIENT, None, tmp_path, proc) is None


def test_a_socket_that_nobody_seems_to_hold_is_refused(tmp_path: Path) -> None:
    for uid, inode in ((OWN, 5), (0, 0)):  # hidden; closed
        proc = proc_of(tmp_path / str(inode), [row(HERE, THERE, uid, inode)], p7=["socket:[4]", "socket:[0]"])
        found = refuse_sender(CLIENT, SERVER, tmp_path, proc)
        assert found is not None
        assert found[0].audit_fields() == {"pid": 0, "uid": OWN}
        assert "cannot be determined" in found[1]


def process(proc: Path, pid: int, uid: int = OWN, *, hides: bool = False, **descriptors: str) -> None:
    """A process with these descriptors (`d3`), each with what it is, and after a line break what is said of it."""
    thread = proc / str(pid) / "task" / str(pid)
    (thread / "fdinfo").mkdir(parents=True)
    (proc / str(pid) / "status").write_text(f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    for fd in (proc / str(pid) / "fd", thread / "fd"):
        fd.touch() if hides else fd.mkdir()
    for number, said in descriptors.items():
        target, _, info = said.partition("\n")
        (thread / "fd" / number[1:]).symlink_to(target)
        (thread / "fdinfo" / number[1:]).write_text(f"pos:\t0\n{info}\n")


@pytest.mark.parametrize(
    ("server", "refused"),
    [
        ({}, False),
        ({"d3": "socket:[9]\nscm_fds:\t0", "d4": "/dev/null"}, False),
        ({"d3": "socket:[9]\nscm_fds:\t1"}, True),
        ({"d3": "socket:[9]\nscm_fds: 12"}, True),
        ({"d3": "anon_inode:[io_uring]"}, True),
        ({"d3": "socket:[5]"}, True),  # of a thread with a table of its own
        ({"hides": True}, True),
    ],
)
def test_a_socket_of_a_process_that_hides_its_descriptors_is_let_in_if_no_server_may_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: dict[str, Any], refused: bool
) -> None:
    """As of sshd, which forwards the port of the console."""
    monkeypatch.setattr(tcp_peer, "refusal_reason", lambda peer, hosts: "a server" if peer.pid == 8 else None)
    monkeypatch.setattr(tcp_peer, "examine_process", lambda pid: PeerProcess(pid, OWN))
    proc = proc_of(tmp_path, [row(HERE, THERE, OWN, 5)])
    process(proc, 6)
    process(proc, 9, OWN + 1, hides=True)  # another user's
    process(proc, 8, **server)
    assert refuse_sender(CLIENT, SERVER, tmp_path, proc) is not None
    process(proc, 7, hides=True)
    assert (refuse_sender(CLIENT, SERVER, tmp_path, proc) is not None) is refused


def test_another_users_socket_is_refused_and_one_of_root_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found = refuse_sender(CLIENT, SERVER, tmp_path, proc_of(tmp_path / "other", [row(HERE, THERE, 1001, 5)]))
    assert found is not None
    assert found[0].uid == 1001
    assert "only the user" in found[1]
    assert refuse_sender(CLIENT, SERVER, tmp_path, proc_of(tmp_path / "root", [row(HERE, THERE, 0, 5)])) is None


@pytest.mark.parametrize("name", ["MAX_ROWS", "MAX_DESCRIPTORS"])
def test_a_search_that_would_take_too_long_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    proc = proc_of(tmp_path, [row(HERE, THERE, OWN, 5)], p7=["/a", "/b", "/c"])
    monkeypatch.setattr(tcp_peer, name, 1)
    with pytest.raises(SearchTooLong):
        find_holders(CLIENT, SERVER, proc)
    assert "cannot be determined" in str(refuse_sender(CLIENT, SERVER, tmp_path, proc))


@pytest.mark.parametrize(
    ("family", "address"), [("AF_INET", "127.0.0.1"), ("AF_INET6", "::ffff:127.0.0.1"), ("AF_INET6", "::1")]
)
def test_a_real_holder_is_judged_by_its_descent(tmp_path: Path, family: str, address: str) -> None:
    local = "::1" if address == "::1" else "127.0.0.1"
    with (
        socket.create_server(
            (local, 0), family=getattr(socket, "AF_INET6" if ":" in local else "AF_INET")
        ) as listening,
        socket.socket(getattr(socket, family)) as client,
    ):
        client.connect((address, listening.getsockname()[1]))
        accepted, peer = listening.accept()
        with accepted:
            ends: tuple[Address, Address] = peer[:2], accepted.getsockname()[:2]
            holders = find_holders(*ends)
            assert holders is not None
            assert (holders.uid, holders.pids) == (OWN, [os.getpid()])
            assert refuse_sender(*ends, tmp_path) is None
            with announce_host(tmp_path, tmp_path / "c"):
                refused = refuse_sender(*ends, tmp_path)
                assert refused is not None
                assert refused[0].pid == os.getpid()
                assert "may not decide" in refused[1]
