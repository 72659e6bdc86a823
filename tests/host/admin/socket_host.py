"""A host's process with nothing but an admin API and its socket: `socket_host.py RUN_FOLDER [PROGRAM]`.

It starts the program, if one is given, below a process that plays the keeper and adopts what loses its parent. It
prints `ready PATH` once it can be asked, `present …` whenever somebody comes or goes, `refused NAME PID UNRECORDED` for
a request that was refused, and ends with its standard input.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from config import Channel
from host.admin.socket import open_admin_socket
from host.wire.descent import PeerProcess, announce_host
from host.wire.keeper import become_subreaper
from tests.kit.admin import FakeAdminApi, arguments, confirmation, held

KEEPER = """
import subprocess, sys
from host.wire.keeper import become_subreaper
become_subreaper()
sys.stdin.readline()
subprocess.run([sys.executable, "-c", *sys.argv[1:]])
sys.stdin.read()
"""


class PrintingAdminApi(FakeAdminApi):
    @contextmanager
    def attach(self, channel: Channel) -> Iterator[None]:
        self.present.append(channel.value)
        print("present", *self.present, flush=True)
        try:
            yield
        finally:
            self.present.remove(channel.value)
            print("present", *self.present, flush=True)

    def record_refused_peer(self, peer: PeerProcess, why: str, unrecorded: int) -> None:
        super().record_refused_peer(peer, why, unrecorded)
        print("refused", peer.lineage[0].name, peer.pid, unrecorded, flush=True)


def start_keeper(programs: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", KEEPER, *programs], stdin=subprocess.PIPE)


async def main(folder: Path, programs: list[str]) -> None:
    become_subreaper()
    keeper = start_keeper(programs) if programs else None
    edit = arguments(path="a.py", old_string="x = 1\ny", new_string="x = 2\ny", note="two\n| lines")
    admin = PrintingAdminApi(confirmations=[confirmation(), confirmation("q2", **edit)], held=[held()])

    def crashed(problem: Exception) -> None:
        print("crashed", repr(problem), flush=True)

    hosts = folder.parent / f"{folder.name}-hosts"
    hosts.mkdir(exist_ok=True)
    with announce_host(hosts, Path("/home/me/colonnade.yaml")):
        await serve(admin, folder, hosts, keeper, crashed)
    if keeper is not None and keeper.stdin is not None:
        keeper.stdin.close()
        keeper.wait()


async def serve(
    admin: PrintingAdminApi,
    folder: Path,
    hosts: Path,
    keeper: subprocess.Popen[bytes] | None,
    crashed: Callable[[Exception], None],
) -> None:
    async with open_admin_socket(admin, folder, hosts, crashed) as path:
        print("ready", path, flush=True)
        if keeper is not None and keeper.stdin is not None:
            keeper.stdin.write(b"\n")
            keeper.stdin.flush()
        stdin = trio.lowlevel.FdStream(sys.stdin.fileno())
        async for words in stdin:
            if words == b"break\n":
                admin.fails = True
            elif words == b"refusals\n":
                print("refusals", flush=True)
            else:
                id, *refused = words.decode().split()
                more = {"state": "refused", "why": "nobody was there to answer"} if refused else {}
                admin.add("confirmations", confirmation(id, **more))


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), sys.argv[2:])
