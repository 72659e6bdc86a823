#!/usr/bin/env bash
# A request of httpx on trio that is cancelled in the TLS handshake leaves its socket open.
#
# Packages: PyPI httpx 0.28.1, httpcore 1.0.9, trio 0.35.0. Needs Python 3.11 with venv.
#
# Expected: a request that is given up closes what it has opened, wherever it was: on trio a cancelled block leaves
# nothing behind.
#
# Seen on 2026-11-29: given up while it waits for the response, a request closes its socket. Given up while the server
# has not answered the first message of TLS yet, it leaves the socket open, also after the client is closed: it is
# closed when Python collects its garbage, at some later time or not at all where that is off. The trio backend of
# httpcore closes the stream for an Exception, and trio.Cancelled is none.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check httpx==0.28.1 httpcore==1.0.9 trio==0.35.0 2>/dev/null

cat >check.py <<'PY'
import gc
import os
import socket

import httpx
import trio


def sockets() -> int:
    found = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{number}").startswith("socket:")
        except FileNotFoundError:  # the descriptor of the listing itself
            pass
    return found


async def give_up(url: str) -> int:
    """The number of sockets that a request leaves which is given up after half a second."""
    before = sockets()
    async with httpx.AsyncClient(trust_env=False, timeout=None) as client:
        with trio.move_on_after(0.5):
            await client.get(url)
    await trio.sleep(0.1)
    return sockets() - before


async def main() -> None:
    gc.disable()
    with socket.socket() as server:  # it takes connections, and never says anything
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        print("waiting for the response:", await give_up(f"http://127.0.0.1:{port}/"))
        print("waiting in the handshake:", await give_up(f"https://127.0.0.1:{port}/"))
        before = sockets()
        gc.collect()
        print("closed by the garbage collector:", before - sockets())


trio.run(main)
PY
seen=$(venv/bin/python -W ignore check.py)
echo "$seen"
[ "$seen" = 'waiting for the response: 0
waiting in the handshake: 1
closed by the garbage collector: 1' ]
