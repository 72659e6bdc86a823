"""A fleet of two processes on one PostgreSQL, for the lanes of forwarded calls.

    fleet.py FILE     serves the configuration of FILE, at its address and, with the same port, at 127.0.0.2

It prints the first URL. A session that was opened at one of the two is forwarded by the other one to its home.
PostgreSQL runs beside it, and is not measured.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from tests.bench.processes import pause
from tests.kit.ports import free_port
from tests.kit.postgres import own_server
from tests.kit.replicas import fleet_keys
from tests.real.running import COLONNADE

FIRST, SECOND = "127.0.0.1", "127.0.0.2"
"""The addresses of the two, on one port."""
START = 60.0


def main() -> None:
    file = Path(sys.argv[1])
    folder = file.parent
    written = json.loads(file.read_text())
    port = free_port()
    signal.signal(signal.SIGTERM, _leave)
    with ExitStack() as stack:
        postgres = stack.enter_context(own_server())
        store = postgres.url(stack.enter_context(postgres.database()))
        processes = []
        for address, fleet in zip((FIRST, SECOND), fleet_keys(folder, store, 2), strict=True):
            own = folder / address
            own.mkdir()
            served = own / "colonnade.yaml"
            served.write_text(json.dumps(written | {"listen": {"address": f"{address}:{port}"}, "fleet": fleet}))
            environment = {**os.environ, "COLONNADE_STATE": str(own / "state")}
            log = stack.enter_context((own / "log").open("w"))
            process = subprocess.Popen([COLONNADE, "serve", str(served)], env=environment, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            processes.append((process, own / "log"))
        for process, output in processes:
            _wait_serving(process, output)
        print(f"http://{FIRST}:{port}/mcp", flush=True)
        signal.pause()


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(0)


def _wait_serving(process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START
    while "http://127.0.0." not in log.read_text(errors="replace"):
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"a process of the fleet does not serve: {log.read_text(errors='replace')[-2000:]}")
        pause(0.02)


if __name__ == "__main__":
    main()
