"""A server below a real host, whose program may connect to hosts that the file names: what it reaches, what people are
told, another list, and what is left when it ends."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio

from tests.kit.kernel import needs_namespaces
from tests.kit.ports import free_port

from .clients import HandClient, by_hand
from .running import BARE_PYTHON, SERVERS, Running, beside, colonnade, serving, until, write_config

pytestmark = needs_namespaces


class Outside:
    """A server of this machine that answers `there`, and counts the connections that it has."""

    def __init__(self, listener: socket.socket) -> None:
        self.port: int = listener.getsockname()[1]
        self.open = 0
        self.taken = 0
        self._lock = threading.Lock()
        self._listener = listener
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                made, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(made,), daemon=True).start()

    def _answer(self, made: socket.socket) -> None:
        with self._lock:
            self.open += 1
            self.taken += 1
        with made:
            try:
                if made.recv(64) == b"hello":
                    made.sendall(b"there")
            except OSError:
                pass
        with self._lock:
            self.open -= 1


@contextmanager
def outside() -> Iterator[Outside]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield Outside(listener)
        listener.shutdown(socket.SHUT_RDWR)


def caller(*network: str) -> dict[str, Any]:
    return {"command": [*BARE_PYTHON, str(SERVERS / "caller.py")], "sandbox": {"network": list(network)}}


async def called(client: HandClient, tool: str, host: str, port: int) -> str:
    answer = await client.ask("tools/call", {"name": f"a__{tool}", "arguments": {"host": host, "port": port}})
    found: str = (answer.get("result") or {"content": [answer["error"]]})["content"][0].get("text", "failed")
    return found


async def test_what_its_file_names_is_reached_and_people_see_what_that_is(tmp_path: Path) -> None:
    nobody = free_port()
    with outside() as there:
        file = write_config(tmp_path, {"a": caller(f"127.0.0.1:{there.port}", f"localhost:{nobody}")})
        with serving(file, "a") as host:
            async with by_hand(host.url) as client:
                assert await called(client, "ask", "127.0.0.1", there.port) == "there"
                assert "ConnectionRefused" in await called(client, "ask", "127.0.0.1", there.port + 1)
                assert "unreachable" in await called(client, "ask", "192.0.2.1", 443)
                assert "gaierror" in await called(client, "ask", "other.test", 443)
                assert "ConnectionReset" in await called(client, "ask", "localhost", nobody)
            state = beside(file)["COLONNADE_STATE"]
            for words in (("list",), ("explain", "--server", "a")):
                said = colonnade(*words, "--config", str(file), COLONNADE_STATE=state)
                assert f"network to 127.0.0.1:{there.port}, localhost:{nobody}" in said.stdout, said
            said = colonnade("logs", "a", "--config", str(file), COLONNADE_STATE=state)
            failed = f"a connection to localhost:{nobody}, which is permitted and failed: Connection refused"
            assert failed in said.stdout, said


async def test_another_list_waits_for_a_person(tmp_path: Path) -> None:
    with outside() as first, outside() as second:
        names = [f"127.0.0.1:{each.port}" for each in (first, second)]
        file = write_config(tmp_path, {"a": caller(names[0])}, watch="on")
        with serving(file, "a") as host:
            await trio.to_thread.run_sync(host.wait_watching, tmp_path)
            write_config(tmp_path, {"a": caller(*names)}, watch="on")
            await trio.to_thread.run_sync(_until_said, host, "a: sandbox has changed")
            async with by_hand(host.url) as client:
                assert "ConnectionRefused" in await called(client, "ask", "127.0.0.1", second.port)
                host.process.send_signal(signal.SIGHUP)
                await trio.to_thread.run_sync(_until_said, host, "a restarts")
                await trio.to_thread.run_sync(until, lambda: len(host.state_lines("a", "ready")) > 1, "it is ready")
                assert await called(client, "ask", "127.0.0.1", second.port) == "there"


def _until_said(host: Running, text: str) -> None:
    until(lambda: any(text in line for line in host.said), f"it says {text}: {host.said} {host.errors}")


def _is_socket(descriptor: str) -> bool:
    try:
        return os.readlink(descriptor).startswith("socket:")
    except FileNotFoundError:  # it was closed meanwhile
        return False


async def test_nothing_is_left_when_it_crashes_is_taken_out_and_when_the_host_ends(tmp_path: Path) -> None:
    """Each time with connections that are open: no connection at the other end, no socket in the host."""
    with outside() as there:
        file = write_config(tmp_path, {"a": caller(f"127.0.0.1:{there.port}")})
        with serving(file, "a") as host:
            folder = f"/proc/{host.process.pid}/fd"

            def sockets() -> int:  # files come and go: a transaction of the store has a journal
                return sum(_is_socket(f"{folder}/{each}") for each in os.listdir(folder))

            async with by_hand(host.url) as client:
                ready = sockets()
                assert await called(client, "ask", "127.0.0.1", there.port) == "there"
                await trio.to_thread.run_sync(until, lambda: sockets() == ready, "its connection is closed")
                for starts in (2, 3):
                    assert await called(client, "hold", "127.0.0.1", there.port) == "20 held"
                    await trio.to_thread.run_sync(until, lambda: there.open == 20, "they are open")
                    assert sockets() >= ready + 40
                    await called(client, "crash", "", 0)
                    await trio.to_thread.run_sync(until, lambda: there.open == 0, "they are closed")
                    await trio.to_thread.run_sync(
                        until, lambda n=starts: len(host.state_lines("a", "ready")) >= n, "it is there again"
                    )
                assert await called(client, "hold", "127.0.0.1", there.port) == "20 held"
                await trio.to_thread.run_sync(until, lambda: sockets() == ready + 40, "no others are open")
                write_config(tmp_path, {"b": caller(f"127.0.0.1:{there.port}")})
                host.process.send_signal(signal.SIGHUP)
                await trio.to_thread.run_sync(_until_said, host, "a removed")
                await trio.to_thread.run_sync(until, lambda: there.open == 0, "they are closed")
                await trio.to_thread.run_sync(until, lambda: sockets() <= ready, "nothing is left of it")
        assert there.taken == 61
