"""Mutated connections to a running host: raw HTTP to every path, and lines to `serve --stdio`.

Connection number N is made of a valid exchange by random changes that follow from the seed and N alone, so a connection
that broke something can be made again (`--seed`, `--first`, `--connections 1`). Meanwhile a good client calls a tool,
and must never see an error. At the end the host must be alive, must have logged neither a traceback nor an error, and
must hold no more descriptors and hardly more memory than when the attack was warm.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import h2.connection
import trio

from tests.fuzz.explore import ROOT, seeds
from tests.fuzz.mutations import mutate
from tests.kit.ports import free_port
from tests.kit.stateless import stateless_request
from tests.real.running import COLONNADE, beside, serving, until, write_config

AT_ONCE = 12
"""Connections at a time."""
READ_FOR = 0.25
"""Seconds in which a connection waits for an answer before it is closed."""
WARM = 0.1
"""The share of the connections after which memory and descriptors are taken for the first time."""
MORE_MEMORY = 40 * 1024 * 1024
MORE_DESCRIPTORS = 40
GOOD_EVERY = 200
"""Connections between two calls of the good client."""

SERVED = {"good": {"command": ["python3", str(ROOT / "examples" / "quickstart" / "words.py")]}}
HEADERS, CALL = stateless_request("tools/call", {"name": "good__count", "arguments": {"text": "well said"}})


@dataclass
class Outcome:
    """The result of an attack; `faults` are sentences, and empty if every promise held."""

    tried: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)


def attack_http(connections: int, seconds: float, seed: int, first: int = 0, *, http2: bool = False) -> Outcome:
    """Open so many mutated connections to a host, or as many as fit into the time. `http2`: to its address of HTTP/2,
    while the good client uses HTTP/1.1."""
    outcome = Outcome()
    with tempfile.TemporaryDirectory() as folder:
        port = free_port() if http2 else 0
        listen = {"http2": f"127.0.0.1:{port}"} if http2 else {}
        with serving(write_config(Path(folder), SERVED, listen=listen), "good") as host:
            began = time.monotonic()
            pid = host.process.pid
            attack = _Attack(host.url, pid, seed, first, connections, began + seconds, port)
            trio.run(attack.run)
            outcome.tried, outcome.seconds = attack.done, time.monotonic() - began
            outcome.faults += attack.faults
            if host.process.poll() is not None:
                outcome.faults.append(f"the host ended with status {host.process.returncode}")
            else:
                outcome.faults += attack.grown()
            outcome.faults += _in_log(host.errors)
    return outcome


class _Attack:
    """One run of many connections against one host."""

    def __init__(
        self, url: str, pid: int, seed: int, first: int, connections: int, deadline: float, http2_port: int
    ) -> None:
        self.done = 0
        self.faults: list[str] = []
        self._url = url
        self._pid = pid
        self._seed = seed
        self._next = first
        self._last = first + connections
        self._warm_at = first + int(connections * WARM)
        self._deadline = deadline
        self._seeds = [*_frames()] if http2_port else seeds("http")
        self._port = http2_port or int(url.partition("127.0.0.1:")[2].partition("/")[0])
        self._warm = (_memory(pid), _descriptors(pid))

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(AT_ONCE):
                nursery.start_soon(self._connect_on)

    async def _connect_on(self) -> None:
        while self._next < self._last and time.monotonic() < self._deadline and not self.faults:
            number, self._next = self._next, self._next + 1
            if number == self._warm_at:
                self._warm = (_memory(self._pid), _descriptors(self._pid))
            if number % GOOD_EVERY == 0:
                await trio.to_thread.run_sync(self._good_call)
            await self._one(number)
            self.done += 1

    async def _one(self, number: int) -> None:
        random = Random(f"{self._seed}/{number}")
        data = mutate(random.choice(self._seeds), random, self._seeds)
        data = data.replace(b"{PORT}", str(self._port).encode())
        cut = random.randint(0, len(data)) if random.random() < 0.2 else len(data)
        leaves = random.random() < 0.15
        with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            stream = await trio.open_tcp_stream("127.0.0.1", self._port)
            async with stream:
                await stream.send_all(data[:cut])
                if cut < len(data):
                    await trio.sleep(0.001)
                    await stream.send_all(data[cut:])
                if leaves:
                    return
                if random.random() < 0.7:
                    await stream.send_eof()
                with trio.move_on_after(READ_FOR):
                    while await stream.receive_some(65536):
                        pass

    def _good_call(self) -> None:
        request = urllib.request.Request(self._url, json.dumps(CALL).encode(), HEADERS)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                body = answer.read()
        except OSError as error:
            self.faults.append(f"the good client failed before connection {self._next}: {error!r}")
            return
        if b"2 words" not in body:
            self.faults.append(f"the good client was answered {body[:200]!r}")

    def grown(self) -> list[str]:
        """What has grown since the attack was warm, after a moment without connections."""
        until(lambda: _descriptors(self._pid) <= self._warm[1] + MORE_DESCRIPTORS, "descriptors are closed", 120)
        memory, descriptors = _memory(self._pid), _descriptors(self._pid)
        print(f"  memory {self._warm[0] >> 20} -> {memory >> 20} MiB, descriptors {self._warm[1]} -> {descriptors}")
        if memory > self._warm[0] + MORE_MEMORY:
            return [f"memory grew from {self._warm[0]} to {memory} bytes"]
        return []


def _frames() -> Iterator[bytes]:
    """The bytes that clients of HTTP/2 send, each for one connection."""
    body = json.dumps(CALL).encode()
    for path in ("/mcp", "/status", "/nothing"):
        client = h2.connection.H2Connection()
        client.initiate_connection()
        for stream in (1, 3, 5):
            fields = [(":method", "POST"), (":path", path), (":scheme", "http"), (":authority", "localhost")]
            client.send_headers(stream, [*fields, *((name.lower(), value) for name, value in HEADERS.items())])
            client.send_data(stream, body, end_stream=stream != 5)
        client.ping(b"12345678")
        client.reset_stream(5)
        yield client.data_to_send()


def attack_stdio(lines: int, seconds: float, seed: int) -> Outcome:
    """Write so many mutated lines to `colonnade serve --stdio`, then end its input: it must end with status 0."""
    outcome = Outcome()
    corpus = [line for line in seeds("json") if b"\n" not in line]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file = write_config(Path(folder), SERVED)
        errors = Path(folder, "stderr")
        with errors.open("wb") as stderr:
            host = subprocess.Popen(
                [COLONNADE, "serve", "--stdio", "--own", str(file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env=beside(file),
            )
        try:
            assert host.stdin is not None
            for number in range(lines):
                random = Random(f"{seed}/{number}")
                line = mutate(random.choice(corpus), random, corpus).replace(b"\n", b" ")
                host.stdin.write(line + b"\n")
                outcome.tried += 1
                if time.monotonic() - began > seconds:
                    break
            host.stdin.close()
            status = host.wait(60)
            if status != 0:
                outcome.faults.append(f"the host ended with status {status}")
        except (BrokenPipeError, subprocess.TimeoutExpired) as error:
            outcome.faults.append(f"the host did not read to the end: {error!r}")
        finally:
            host.kill()
            host.wait()
        outcome.faults += _in_log(errors.read_text(errors="replace"))
    outcome.seconds = time.monotonic() - began
    return outcome


def _in_log(log: str) -> list[str]:
    return ["the log holds a traceback:\n" + log[-3000:]] if "Traceback" in log or "internal error" in log else []


def _memory(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def _descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
