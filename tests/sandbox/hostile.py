"""The hostile children: each function tries one escape, and returns whether it got out. Run as
`python -c SOURCE NAME WORLD`; imports the standard library alone, since nothing else need be there.

`WORLD` is a JSON object with what is outside (tests/sandbox/world.py). Nothing here does harm: what is read is a
marker, and what is written a file of a temporary folder.
"""

from __future__ import annotations

import ctypes
import json
import os
import pty
import select
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

W: dict[str, Any] = {}
MARKER = "harmless marker"
_ESCAPES: dict[str, Callable[[], object]] = {}
_BESIDE_NAMES: dict[str, Callable[[], object]] = {}
"""Escapes of programs that may connect to one host, which is 127.0.0.1 at the port W["permitted"]."""
_libc = ctypes.CDLL(None, use_errno=True)


def escape(function: Callable[[], object]) -> Callable[[], object]:
    _ESCAPES[function.__name__] = function
    return function


def beside_names(function: Callable[[], object]) -> Callable[[], object]:
    _BESIDE_NAMES[function.__name__] = function
    return escape(function)


def has_marker(path: str) -> bool:
    with open(path) as file:
        return MARKER in file.read()


# Files


@escape
def a_key() -> object:
    return has_marker(W["key"])


@escape
def a_key_by_a_link_that_is_there() -> object:
    return has_marker(W["read"] + "/link")


@escape
def a_key_by_a_link_of_its_own() -> object:
    link = W["write"] + "/link"
    with suppress(FileNotFoundError):
        os.unlink(link)
    os.symlink(W["key"], link)
    return has_marker(link)


@escape
def a_key_by_a_hard_link() -> object:
    link = W["write"] + "/hard"
    with suppress(FileNotFoundError):
        os.unlink(link)
    os.link(W["key"], link)
    return has_marker(link)


@escape
def a_key_by_the_root_of_itself() -> object:
    return has_marker("/proc/self/root" + W["key"])


@escape
def a_key_by_the_root_of_its_parent() -> object:
    return has_marker(f"/proc/{os.getppid()}/root{W['key']}")


@escape
def a_key_by_the_root_of_another() -> object:
    return has_marker(f"/proc/{W['sibling']}/root{W['key']}")


@escape
def a_key_by_the_folder_of_another() -> object:
    return has_marker(f"/proc/{W['sibling']}/cwd/marker")


@escape
def a_key_by_going_up() -> object:
    os.chdir("/")
    for _ in range(20):
        os.chdir("..")
    return has_marker("." + W["key"])


@escape
def a_key_by_a_descriptor() -> object:
    for descriptor in range(3, 256):
        with suppress(OSError):
            return bool(os.read(os.open("marker", os.O_RDONLY, dir_fd=descriptor), 9))
    return False


@escape
def a_key_by_renaming_its_folder() -> object:
    os.rename(os.path.dirname(W["key2"]), W["write"] + "/taken")
    return has_marker(W["write"] + "/taken/marker")


@escape
def a_key_of_the_kernel() -> object:
    """One in the keyring of the session, which a process has from its parent."""
    found = _libc.syscall(W["keyctl"], 10, ctypes.c_long(-3), b"user", W["kernel key"].encode(), 0)
    text = ctypes.create_string_buffer(64)
    return found >= 0 and _libc.syscall(W["keyctl"], 11, found, text, 64) > 0 and text.value == MARKER.encode()


@escape
def a_list_of_the_home() -> object:
    return os.listdir(W["home"])


@escape
def whether_a_file_is_there() -> object:
    return os.path.exists(W["key"])


@escape
def the_files_of_another_server() -> object:
    return has_marker(W["other"])


@escape
def the_state_of_the_host() -> object:
    return has_marker(W["state"])


@escape
def a_list_of_the_state() -> object:
    return "run" in os.listdir(os.path.dirname(W["state"]))


@escape
def the_configuration() -> object:
    return has_marker(W["config"])


@escape
def a_new_file() -> object:
    with open(W["outside"] + "/new", "w") as file:
        return file.write(MARKER)


@escape
def a_new_file_in_what_it_may_read() -> object:
    with open(W["read"] + "/new", "w") as file:
        return file.write(MARKER)


@escape
def a_file_moved_out() -> object:
    with open(W["write"] + "/moves", "w") as file:
        file.write(MARKER)
    os.rename(W["write"] + "/moves", W["outside"] + "/moved")
    return True


@escape
def a_file_cut_short() -> object:
    os.truncate(W["victim"], 1)
    return True


@escape
def a_file_deleted() -> object:
    os.unlink(W["outside"] + "/doomed")
    return True


@escape
def a_file_made_open_to_all() -> object:
    os.chmod(W["victim"], 0o666)
    return True


@escape
def a_program_from_outside() -> object:
    return os.spawnv(os.P_WAIT, W["program"], [W["program"]]) == 0


@escape
def shared_memory_by_name() -> object:
    return has_marker(W["memory file"])


@escape
def shared_memory_by_number() -> object:
    return _libc.shmget(W["memory"], 0, 0) >= 0


# Other processes


@escape
def a_view_of_another_process() -> object:
    with open(f"/proc/{W['sibling']}/cmdline", "rb") as file:
        return b"sibling" in file.read()


@escape
def the_environment_of_another_process() -> object:
    with open(f"/proc/{W['sibling']}/environ", "rb") as file:
        return MARKER.encode() in file.read()


@escape
def the_memory_of_another_process() -> object:
    with open(f"/proc/{W['sibling']}/maps") as maps:
        start = int(maps.readline().partition("-")[0], 16)
    with open(f"/proc/{W['sibling']}/mem", "rb") as memory:
        memory.seek(start)
        return memory.read(4) == b"\x7fELF"


@escape
def ptrace() -> object:
    return _libc.ptrace(16, W["sibling"], None, None) == 0 and os.waitpid(W["sibling"], 0x40000000)


@escape
def a_descriptor_of_another_process() -> object:
    process = _libc.syscall(434, W["sibling"], 0)
    return process >= 0 and _libc.syscall(438, process, 0, 0) >= 0


@escape
def a_signal_to_another_process() -> object:
    os.kill(W["sibling"], 0)
    return True


@escape
def a_signal_by_a_descriptor() -> object:
    process = os.pidfd_open(W["sibling"])
    return _libc.syscall(424, process, 0, None, 0) == 0


@escape
def another_priority() -> object:
    os.setpriority(os.PRIO_PROCESS, W["sibling"], 19)
    return True


# Networks and sockets


def _connects(family: int, address: object, kind: int = socket.SOCK_STREAM) -> bool:
    with socket.socket(family, kind) as made:
        made.settimeout(2)
        made.connect(address)  # type: ignore[arg-type]
        made.send(b"hello")
        return made.recv(64) == MARKER.encode()


@escape
def tcp() -> object:
    return _connects(socket.AF_INET, ("127.0.0.1", W["tcp"]))


@escape
def tcp_by_ipv6() -> object:
    return _connects(socket.AF_INET6, ("::1", W["tcp6"]))


@escape
def udp() -> object:
    return _connects(socket.AF_INET, ("127.0.0.1", W["udp"]), socket.SOCK_DGRAM)


@escape
def dns() -> object:
    """A question to the name server of this world."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.settimeout(2)
        question = struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + b"\x06marker\x04test\0" + struct.pack("!2H", 1, 1)
        made.sendto(question, ("127.0.0.1", W["udp"]))
        return made.recv(512)


@escape
def a_view_of_the_network() -> object:
    with open("/proc/net/tcp") as file:
        return f":{W['tcp']:04X} " in file.read()


@escape
def a_raw_socket_in_a_namespace() -> object:
    """Possible where an ordinary user may have one."""
    if _libc.unshare(0x50000000) != 0:
        return False
    return socket.socket(socket.AF_PACKET, socket.SOCK_RAW).fileno() >= 0


@escape
def a_socket_to_what_runs_this_machine() -> object:
    return socket.socket(40, socket.SOCK_STREAM).fileno() >= 0


@escape
def a_raw_socket() -> object:
    return socket.socket(socket.AF_PACKET, socket.SOCK_RAW).fileno() >= 0


@escape
def the_admin_socket() -> object:
    return _connects(socket.AF_UNIX, W["admin"])


@escape
def the_socket_of_a_desk() -> object:
    return _connects(socket.AF_UNIX, W["desk"])


@escape
def an_abstract_socket() -> object:
    return _connects(socket.AF_UNIX, W["abstract"])


@escape
def a_descriptor_over_a_socket() -> object:
    with socket.socket(socket.AF_UNIX) as made:
        made.settimeout(2)
        made.connect(W["giver"])
        _, found, _, _ = socket.recv_fds(made, 64, 1)
        return bool(os.read(os.open("marker", os.O_RDONLY, dir_fd=found[0]), 9))


# Past the hosts that are permitted. Without a sandbox there is no proxy, and a connection needs none.


def what_is_permitted() -> object:
    """No escape: without this, all of the following would be held by a network that leads nowhere."""
    return _asks("127.0.0.1", W["permitted"]) and _asks_proxy("127.0.0.1", W["permitted"])


def _asks(host: str, port: int) -> bytes:
    with socket.create_connection((host, port), 2) as made:
        made.sendall(b"hello")
        return made.makefile("rb").read()


def _asks_proxy(host: str, port: int) -> bytes:
    """The answer of a host through the proxy, if there is one."""
    if not os.environ.get("HTTPS_PROXY"):
        return _asks(host, port)
    with _proxy() as made:
        made.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\n\r\nhello".encode())
        head, _, said = made.makefile("rb").read().partition(b"\r\n\r\n")
        return said if b" 200 " in head else b""


def _proxy() -> socket.socket:
    host, _, port = os.environ["HTTPS_PROXY"].removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), 2)


@beside_names
def another_port() -> object:
    return MARKER.encode() in _asks("127.0.0.1", W["tcp"])


@beside_names
def another_port_by_the_proxy() -> object:
    return MARKER.encode() in _asks_proxy("127.0.0.1", W["tcp"])


@beside_names
def another_address() -> object:
    return MARKER.encode() in _asks("127.0.0.2", W["permitted"])


@beside_names
def another_address_by_the_proxy() -> object:
    return MARKER.encode() in _asks_proxy("127.0.0.2", W["permitted"])


@beside_names
def another_name() -> object:
    return MARKER.encode() in _asks("localhost", W["tcp"])


@beside_names
def another_name_by_the_proxy() -> object:
    return MARKER.encode() in _asks_proxy("localhost", W["tcp"])


@beside_names
def the_machine_as_no_address() -> object:
    return MARKER.encode() in _asks("0.0.0.0", W["tcp"])


@beside_names
def another_host_after_a_permitted_one() -> object:
    """A second request on a connection of the proxy, which is for another host than the first one."""
    if not os.environ.get("HTTPS_PROXY"):
        return MARKER.encode() in _asks("127.0.0.1", W["tcp"])
    with _proxy() as made:
        for port in (W["permitted"], W["tcp"]):
            made.sendall(f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\nConnection: keep-alive\r\n\r\n".encode())
        return MARKER.encode() in made.makefile("rb").read()


@beside_names
def ipv6_beside_names() -> object:
    return MARKER.encode() in _asks("::1", W["tcp6"])


@beside_names
def udp_beside_names() -> object:
    return udp()


@beside_names
def dns_beside_names() -> object:
    return dns()


@beside_names
def a_view_of_the_network_beside_names() -> object:
    return a_view_of_the_network()


@beside_names
def an_abstract_socket_beside_names() -> object:
    return an_abstract_socket()


# Privileges and limits


@escape
def set_user_id_programs() -> object:
    return _libc.prctl(39, 0, 0, 0, 0) == 0


@escape
def a_set_user_id_program() -> object:
    """One that waits for a password."""
    program = next((each for each in ("/usr/bin/su", "/bin/su") if os.path.exists(each)), "/bin/su")
    os.stat(program)
    child, terminal = pty.fork()
    if not child:
        os.execv(program, ["su"])
    try:
        for _ in range(100):
            select.select([], [], [], 0.01)
            with open(f"/proc/{child}/status") as file:
                found = dict(line.split(":\t", 1) for line in file if ":\t" in line)
            if found["Name"].strip() == "su":
                return found["Uid"].split()[1] == "0"
        return False
    finally:
        os.close(terminal)


@escape
def a_new_user_namespace() -> object:
    return _libc.unshare(0x10000000) == 0


@escape
def a_mount() -> object:
    return _libc.unshare(0x10020000) == 0 and _libc.mount(b"none", b"/", b"tmpfs", 0, None) == 0


@escape
def a_setting_of_the_kernel() -> object:
    return os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY) >= 0


@escape
def a_fork_storm() -> object:
    with _children(150, 0):
        return True


@escape
def much_memory() -> object:
    return len(bytearray(768 * 1024**2))


@escape
def much_memory_in_parts() -> object:
    """No process has too much by itself. A control group may end one alone."""
    with _children(4, 100) as made:
        return not any(os.waitpid(each, os.WNOHANG)[0] for each in made)


@contextmanager
def _children(count: int, mebibytes: int) -> Iterator[list[int]]:
    """So many, each with so much memory, for as long as somebody may take to see that."""
    made = []
    try:
        for _ in range(count):
            child = os.fork()
            if not child:
                kept = b"x" * (mebibytes * 1024**2)
                select.select([], [], [], 8)
                os._exit(len(kept) % 2)
            made.append(child)
        select.select([], [], [], 3)
        yield made
    finally:
        for child in made:
            with suppress(ProcessLookupError):
                os.kill(child, 9)


@escape
def a_full_temporary_folder() -> object:
    path = f"/tmp/colonnade-test-{os.getpid()}"
    try:
        with open(path, "wb") as file:
            return all(file.write(bytes(1024**2)) for _ in range(100))
    finally:
        with suppress(OSError):
            os.unlink(path)


@escape
def many_files() -> object:
    return [os.open("/dev/null", os.O_RDONLY) for _ in range(500)]


@escape
def a_child_that_outlives() -> object:
    """Whether it does is for the one outside to see."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for descriptor in range(3):
                os.close(descriptor)
            os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", "import time; time.sleep(20)", W["token"]])
        os._exit(0)
    os.wait()
    select.select([], [], [], 0.2)
    return True


if __name__ == "__main__":
    W = json.loads(sys.argv[2])
    try:
        got_out = bool(globals()[sys.argv[1]]())
        print("out" if got_out else "held", flush=True)
    except (OSError, MemoryError) as refused:
        print(f"held: {refused}", flush=True)
