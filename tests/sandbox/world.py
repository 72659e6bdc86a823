"""The world outside of the sandbox: files with a marker, services at sockets of every kind, and another process."""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import trio

from config import StdioServer
from config.references import Secret
from config.sandbox import Destination, Means, Sandbox, SandboxFiles
from host.journal import Journal
from host.sandbox.plan import confined_environment, make_plan
from host.upstream.forwarder import Forwarder
from host.upstream.refusals import Refusals
from host.wire.process import Keeper, NotConfined
from host.wire.turns import Turns
from tests.sandbox import hostile

PYTHON = os.path.realpath(sys.executable)
SOURCE = Path(hostile.__file__).read_text()
SIBLING = """
import ctypes, os, sys, time
ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)
print("up", flush=True)
time.sleep(600)
"""
NOT_STARTED = "held: not started"


@dataclass(frozen=True)
class World:
    """The folders, and what a hostile child is told of them."""

    base: Path
    told: dict[str, Any]

    def run_unconfined(self, escape: str) -> str:
        """Have a hostile child try an escape without a sandbox; `out`, or what it says."""
        self.restore()
        token = secrets.token_hex(8)
        ended = subprocess.run(
            self._words(escape, token),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | dict.fromkeys(("HTTPS_PROXY", "https_proxy"), ""),
            close_fds=False,
            start_new_session=True,
            check=False,
        )
        return _outcome(escape, ended.stdout, ended.returncode, token)

    async def run(self, keeper: Keeper, escape: str, accept: Means) -> str:
        """Have a hostile child below a keeper try an escape; `out`, or `held` with what it met."""
        self.restore()
        files = SandboxFiles(read=(self.told["read"],), write=(self.told["write"],))
        sandbox = Sandbox(files=files, memory=256 * 1024**2, accept=accept)
        if escape in hostile._BESIDE_NAMES or escape == hostile.what_is_permitted.__name__:
            sandbox = replace(sandbox, network=(Destination(f"127.0.0.1:{self.told['permitted']}"),))
        spec = StdioServer(id="hostile", command=(Secret(PYTHON),), cwd=self.base, sandbox=sandbox)
        state = Path(self.told["state"]).parent
        folder = state / "configs" / "own" / "sandbox" / "hostile"
        env = confined_environment(sandbox, {}, {}, folder)
        plan = make_plan(spec, env, folder, state)
        token = secrets.token_hex(8)
        words = self._words(escape, token)
        try:
            async with (
                keeper.open_child(words, env=env, cwd="/", grace=0.1, sandbox=plan) as child,
                trio.open_nursery() as nursery,
            ):
                child.close_stdin()
                nursery.start_soon(_drain, child.stderr)
                if child.listeners:
                    forwarder = Forwarder(child.listeners, sandbox, Refusals("hostile", Journal()), Turns())
                    nursery.start_soon(forwarder.run)
                text = b"".join([piece async for piece in child.stdout])
                status = await child.wait()
                nursery.cancel_scope.cancel()
        except NotConfined as problem:
            return f"{NOT_STARTED}, {problem.step}"
        return f"held: ended for its {child.over}" if child.over else _outcome(escape, text, status, token)

    def _words(self, escape: str, token: str) -> list[str]:
        return [PYTHON, "-I", "-S", "-c", SOURCE, escape, json.dumps({**self.told, "token": token})]

    def restore(self) -> None:
        """Put back what escapes change."""
        for name in ("new", "moved"):
            (self.base / "outside" / name).unlink(missing_ok=True)
        for name in ("doomed", "victim"):
            (self.base / "outside" / name).write_text(hostile.MARKER)
            (self.base / "outside" / name).chmod(0o600)
        (self.base / "read" / "new").unlink(missing_ok=True)
        taken = self.base / "write" / "taken"
        if taken.exists():
            taken.rename(self.base / "home" / "keys2")


async def _drain(stream: trio.abc.ReceiveStream) -> None:
    async for _ in stream:
        pass


def _outcome(escape: str, output: bytes, status: int, token: str) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    said = lines[-1] if lines else f"nothing, and ended with {status}"
    if escape == "a_child_that_outlives" and said == "out":
        return "out" if _end_those_with(token) else "held"
    return said


def _end_those_with(token: str) -> bool:
    """Kill what still runs with this word in its command line. Returns whether there was something."""
    found = False
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if token.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                os.kill(int(name), 9)
                found = True
        except OSError:
            continue
    return found


@contextmanager
def open_world(base: Path) -> Iterator[World]:
    """Make everything outside below this folder, for the block."""
    with ExitStack() as stack:
        told: dict[str, Any] = {"home": str(base / "home"), "outside": str(base / "outside")}
        for name in (
            "home/keys",
            "home/keys2",
            "outside",
            "read",
            "write",
            "state/run",
            "state/configs/x/sandbox/other",
        ):
            (base / name).mkdir(parents=True, exist_ok=True)
        places = {
            "key": "home/keys/marker",
            "key2": "home/keys2/marker",
            "other": "state/configs/x/sandbox/other/marker",
            "state": "state/state.db",
            "config": "colonnade.yaml",
            "victim": "outside/victim",
        }
        for name, place in places.items():
            (base / place).write_text(hostile.MARKER)
            told[name] = str(base / place)
        told |= {"read": str(base / "read"), "write": str(base / "write"), "program": str(base / "outside" / "program")}
        (base / "read" / "link").symlink_to(base / places["key"])
        (base / "outside" / "program").write_text("#!/bin/sh\nexit 0\n")
        (base / "outside" / "program").chmod(0o755)
        told |= _serve(base, stack)
        told |= _share_memory(stack)
        told |= _keep_a_key(stack)
        folder = os.open(base / "home" / "keys", os.O_RDONLY | os.O_DIRECTORY)
        stack.callback(os.close, folder)
        os.set_inheritable(folder, True)
        sibling = stack.enter_context(
            subprocess.Popen(
                [PYTHON, "-I", "-S", "-c", SIBLING, "sibling"],
                env={"TOKEN": hostile.MARKER},
                cwd=base / "home" / "keys",
                stdout=subprocess.PIPE,
            )
        )
        stack.callback(sibling.kill)
        assert sibling.stdout is not None
        sibling.stdout.readline()
        yield World(base, {**told, "sibling": sibling.pid})


def _serve(base: Path, stack: ExitStack) -> dict[str, Any]:
    """Services that answer with the marker, at sockets of every kind, and one that gives a descriptor away."""
    made = {name: socket.create_server(("127.0.0.1", 0)) for name in ("tcp", "permitted")}
    made["next to it"] = socket.create_server(("127.0.0.2", made["permitted"].getsockname()[1]))
    with suppress(OSError):
        made["tcp6"] = socket.create_server(("::1", 0), family=socket.AF_INET6)
    told: dict[str, Any] = {name: each.getsockname()[1] for name, each in made.items()}
    paths = {"admin": "state/run/admin", "desk": "state/run/desk", "giver": "outside/giver"}
    addresses = {name: str(base / place) for name, place in paths.items()}
    addresses["abstract"] = f"\0colonnade-test-{secrets.token_hex(8)}"
    for name, address in addresses.items():
        made[name] = socket.socket(socket.AF_UNIX)
        made[name].bind(address)
        made[name].listen()
    answers = {"giver": partial(_give, base / "home" / "keys"), "permitted": partial(_answer, text="permitted")}
    for name, each in made.items():
        stack.callback(each.close)
        stack.callback(each.shutdown, socket.SHUT_RDWR)  # wakes its thread
        answer = answers.get(name, _answer)
        threading.Thread(target=_accept, args=(each, answer), daemon=True).start()
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("127.0.0.1", 0))
    stack.callback(datagrams.close)
    threading.Thread(target=_echo, args=(datagrams,), daemon=True).start()
    return told | addresses | {"udp": datagrams.getsockname()[1]}


def _accept(listener: socket.socket, answer: Callable[[socket.socket], None]) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            answer(connection)


def _answer(connection: socket.socket, text: str = hostile.MARKER) -> None:
    connection.recv(64)
    connection.sendall(text.encode())


def _give(folder: Path, connection: socket.socket) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    socket.send_fds(connection, [b"x"], [descriptor])
    os.close(descriptor)


def _echo(datagrams: socket.socket) -> None:
    while True:
        try:
            _, sender = datagrams.recvfrom(2048)
        except OSError:
            return
        datagrams.sendto(hostile.MARKER.encode(), sender)


def _keep_a_key(stack: ExitStack) -> dict[str, Any]:
    add_key, keyctl = (248, 250) if os.uname().machine == "x86_64" else (217, 219)
    libc, name, session = ctypes.CDLL(None), f"colonnade-{secrets.token_hex(8)}", ctypes.c_long(-3)
    key = libc.syscall(add_key, b"user", name.encode(), hostile.MARKER.encode(), len(hostile.MARKER), session)
    stack.callback(libc.syscall, keyctl, 9, key, session)  # unlink
    return {"kernel key": name, "keyctl": keyctl}


def _share_memory(stack: ExitStack) -> dict[str, Any]:
    key = secrets.randbelow(2**30) + 1
    libc = ctypes.CDLL(None)
    made = libc.shmget(key, 4096, 0o1600)
    stack.callback(libc.shmctl, made, 0, None)
    path = Path("/dev/shm") / f"colonnade-{secrets.token_hex(8)}"
    with suppress(OSError):
        path.write_text(hostile.MARKER)
        stack.callback(path.unlink)
    return {"memory": key, "memory file": str(path)}
