"""The namespaces of a confined program, seen from inside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from config.sandbox import Network, Sandbox
from tests.host.sandbox.kit import PYTHON, said_by
from tests.kit.kernel import needs_namespaces

pytestmark = [needs_namespaces, pytest.mark.disk]
KINDS = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")


@pytest.mark.parametrize("network", Network)
async def test_each_is_its_own(tmp_path: Path, network: Network) -> None:
    """But for the network, if it says so."""
    _, said = await said_by(
        tmp_path, "sh", "-c", "readlink /proc/self/ns/*; hostname", sandbox=Sandbox(network=network)
    )
    found = {line.partition(":")[0]: line for line in said.splitlines()}
    assert said.splitlines()[-1] == "sandbox"
    same = {kind for kind in KINDS if os.readlink(f"/proc/self/ns/{kind}") == found[kind]}
    assert same == ({"net"} if network is Network.ALL else set())


async def test_nothing_of_the_machine_in_proc_can_be_written(tmp_path: Path) -> None:
    """User 0 owns what is there, and some of it asks for no capability. net is the program's own."""
    code = """
import os
for folder, folders, files in os.walk("/proc"):
    if folder == "/proc":
        folders[:] = [name for name in folders if not name.isdigit() and name not in ("net", "self", "thread-self")]
    for name in files:
        try:
            os.close(os.open(f"{folder}/{name}", os.O_WRONLY))
            print(folder, name)
        except OSError:
            pass
"""
    assert await said_by(tmp_path, *PYTHON, code) == (0, "")


async def test_its_root_has_what_it_is_given_and_cannot_be_written(tmp_path: Path) -> None:
    """User 0 of the machine is the owner of what is in /proc/sys, so that is read-only too."""
    code = (
        "for each in /home /root /var /run /sys; do ls $each && exit 3; done; cat /etc/passwd | wc -l; touch /x; echo 1"
    )
    status, said = await said_by(
        tmp_path, "sh", "-c", f"{code} > /proc/sys/kernel/printk; echo $?; grep -c processor /proc/cpuinfo"
    )
    counts = said.splitlines()
    assert (status, counts[0]) == (0, "1")
    assert counts[1] != "0"


async def test_devices(tmp_path: Path) -> None:
    code = "echo x > /dev/null; head -c 4 /dev/zero | wc -c; head -c 4 /dev/urandom | wc -c; ls /dev | tr '\\n' ' '"
    _, said = await said_by(tmp_path, "sh", "-c", code)
    assert said.splitlines() == ["4", "4", "fd full null random shm stderr stdin stdout urandom zero"]


async def test_only_its_own_processes(tmp_path: Path) -> None:
    _, said = await said_by(tmp_path, "sh", "-c", "cd /proc; echo [0-9]* | wc -w; echo $$")
    count, own = said.split()
    assert int(count) <= 4
    assert int(own) < 10
