"""A host's process with nothing but an office and its control socket: `control_host.py RUN_FOLDER [PROGRAM]`.

It starts the program, if one is given, below a process that plays the keeper and adopts what loses its parent. It
prints `ready PATH` once it can be asked, `present …` whenever somebody comes or goes, and ends with its standard input.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from config import Channel
from host.console.control import open_control
from host.wire.keeper import become_subreaper
from tests.kit.office import MemoryOffice, held, question

KEEPER = """
import subprocess, sys
from host.wire.keeper import become_subreaper
become_subreaper()
sys.stdin.readline()
subprocess.run([sys.executable, "-c", *sys.argv[1:]])
sys.stdin.read()
"""


class LoudOffice(MemoryOffice):
    @contextmanager
    def attach(self, channel: Channel) -> Iterator[None]:
        self.present.append(channel.value)
        print("present", *self.present, flush=True)
        try:
            yield
        finally:
            self.present.remove(channel.value)
            print("present", *self.present, flush=True)


def start_keeper(programs: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", KEEPER, *programs], stdin=subprocess.PIPE)


async def main(folder: Path, programs: list[str]) -> None:
    become_subreaper()
    keeper = start_keeper(programs) if programs else None
    office = LoudOffice(questions=[question(), question("q2")], held=[held()])

    def crashed(problem: Exception) -> None:
        print("crashed", repr(problem), flush=True)

    async with open_control(office, folder, lambda: keeper.pid if keeper else 0, crashed) as path:
        print("ready", path, flush=True)
        if keeper is not None and keeper.stdin is not None:
            keeper.stdin.write(b"\n")
            keeper.stdin.flush()
        stdin = trio.lowlevel.FdStream(sys.stdin.fileno())
        async for words in stdin:
            if words == b"break\n":
                office.breaks = True
            else:
                office.put("questions", question(words.decode().strip()))
    if keeper is not None and keeper.stdin is not None:
        keeper.stdin.close()
        keeper.wait()


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), sys.argv[2:])
