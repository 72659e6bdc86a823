"""Clients and servers that try to fill the memory of a real host: it stays within its budget, and comes back.

An attack holds what it got for as long as it can. Beside it a good client calls a small tool; each of its calls must
succeed. The memory of the host is what the kernel says of the process: VmRSS now, VmHWM at its peak.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from .clients import HandClient, by_hand
from .running import BARE_PYTHON, SERVERS, Running, memory_of, recorder, serving, write_config

MIB = 1024 * 1024
SETTLE = 20.0
"""Seconds in which memory must have come back after an attack."""


@dataclass
class Figures:
    """Bytes of resident memory, and what became of the calls of the good client."""

    idle: int = 0
    peak: int = 0
    after: int = 0
    calls: int = 0
    errors: list[str] = field(default_factory=list)
    charged: dict[str, Any] = field(default_factory=dict)
    """What `/status` says of memory at the end."""

    def __str__(self) -> str:
        memory = ", ".join(f"{name} {getattr(self, name) / MIB:.0f}" for name in ("idle", "peak", "after"))
        return f"MiB: {memory}; good calls {self.calls}, errors {len(self.errors)} {self.errors[:3]}; {self.charged}"

    def judge(self, budget: int) -> None:
        """Hold the figures against what is promised for a budget of so many bytes."""
        assert self.calls, str(self)
        assert not self.errors, str(self)
        assert self.peak <= (self.idle + budget) * 1.25, str(self)
        assert self.came_back, str(self)

    @property
    def came_back(self) -> bool:
        return self.after <= max(self.idle * 1.3, self.idle + 40 * MIB)


READ = 40.0
"""Seconds after which long lists are given up."""

Attack = Callable[[Running, ExitStack], Awaitable[None]]
"""Does its worst; what it opens is held by the stack until the attack is over."""


async def attacked(folder: Path, attacks: Iterable[Attack], servers: Mapping[str, object], **config: object) -> Figures:
    """The figures of a host beside which the attacks ran. `servers` are hostile ones, beside a good one."""
    found = Figures()
    ours = {each: recorder(folder / f"{each}.log") for each in ("a", "good")}
    file = write_config(folder, {**ours, **servers}, **config)
    with serving(file, "a", "good") as host:
        status = host.url.rpartition("/")[0] + "/status"
        async with by_hand(host.url) as good:
            for n in range(20):
                await good.ask("tools/call", {"name": "good__echo", "arguments": {"n": n}})
            found.idle = memory_of(host.process.pid, "VmRSS")
            async with trio.open_nursery() as nursery:
                over = trio.Event()
                nursery.start_soon(call_on, good, found, over)
                for attack in attacks:
                    with ExitStack() as held:
                        await attack(host, held)
                over.set()
            with trio.move_on_after(SETTLE):
                while True:
                    found.after = memory_of(host.process.pid, "VmRSS")
                    if found.came_back:
                        break
                    await trio.sleep(0.2)
            found.peak = memory_of(host.process.pid, "VmHWM")
            found.charged = (await good.http.get(status, timeout=20)).json().get("memory", {})
            assert "result" in await good.ask("ping")
    assert "Traceback" not in host.errors, host.errors[-2000:]
    return found


async def call_on(good: HandClient, found: Figures, over: trio.Event) -> None:
    """Call a small tool again and again, on one connection, until it is over."""
    while not over.is_set():
        try:
            answer = await good.ask("tools/call", {"name": "good__echo", "arguments": {"n": found.calls}})
            if "result" not in answer or answer["result"].get("isError"):
                found.errors.append(str(answer)[:300])
        except Exception as problem:  # noqa: BLE001 - whatever it is counts as an error of the good client
            found.errors.append(repr(problem)[:300])
        found.calls += 1
        await trio.sleep(0.01)


def connection(host: Running, held: ExitStack) -> trio.SocketStream:
    """A connection whose client takes little before it reads."""
    stream = trio.SocketStream(trio.socket.socket())
    held.callback(stream.socket.close)
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    return stream


async def post(host: Running, held: ExitStack, headers: dict[str, str], body: bytes, length: int) -> trio.SocketStream:
    """Send a POST that announces `length` bytes of body, and this much of it."""
    stream = connection(host, held)
    address, _, path = host.url.removeprefix("http://").partition("/")
    name, _, port = address.partition(":")
    await stream.socket.connect((name, int(port)))
    lines = {**headers, "host": address, "content-length": str(length)}
    head = f"POST /{path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items()) + "\r\n"
    await stream.send_all(head.encode())
    await stream.send_all(body)
    return stream


def call(tool: str, arguments: object) -> bytes:
    """A request that calls a tool."""
    params = {"name": tool, "arguments": arguments}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()


def stalled_readers(count: int, size: int, seconds: float = 0.5) -> Attack:
    """Clients that ask for large answers and read nothing of them."""

    async def attack(host: Running, held: ExitStack) -> None:
        async with by_hand(host.url) as client:
            body = call("a__much", {"size": size})
            for _ in range(count):
                await post(host, held, client.headers, body, len(body))
            small = call("a__echo", {})  # its server answers in order: when this comes, everything before it has come
            await client.http.post(client.url, content=small, headers=client.headers, timeout=60)
            await trio.sleep(seconds)

    return attack


def withheld_bodies(count: int, size: int, seconds: float = 0.5) -> Attack:
    """Clients that send all but the last byte of a large request."""

    body = b" " * (size - 1)

    async def attack(host: Running, held: ExitStack) -> None:
        async def one(headers: dict[str, str]) -> None:
            try:
                await post(host, held, headers, body, size)
            except trio.BrokenResourceError:
                return  # it was cut off: that is what a budget is for

        async with by_hand(host.url) as client:
            with trio.move_on_after(60):
                async with trio.open_nursery() as nursery:
                    for _ in range(count):
                        nursery.start_soon(one, client.headers)
            await trio.sleep(seconds)

    return attack


def kept_answers(count: int, size: int) -> Attack:
    """Sessions that each have a large answer kept for them, on a stream that could be resumed: the answer to a batch is
    one from its start."""
    body = b"[" + call("a__much", {"size": size}) + b"]"

    async def attack(host: Running, held: ExitStack) -> None:
        left = iter(range(count))

        async def some() -> None:
            for _ in left:
                async with by_hand(host.url, "2025-03-26") as client:
                    heard = await client.post(body)
                    assert b'"result"' in heard[-1] or b'"error"' in heard[-1], heard[-1][:300]

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(some)

    return attack


def many_pages(pages: int, size: int) -> dict[str, object]:
    """A server whose list of tools is as long as that."""
    return {"b": {"command": [*BARE_PYTHON, str(SERVERS / "many_pages.py"), str(pages), str(size)]}}


async def lists_are_read(host: Running, held: ExitStack) -> None:
    """Wait until the hostile server is ready, or has failed: its lists are read by then."""
    deadline = trio.current_time() + READ
    while not (host.state_lines("b", "ready") or host.state_lines("b", "failed")):
        if trio.current_time() > deadline:
            return
        await trio.sleep(0.1)
    await trio.sleep(1)


async def test_the_memory_of_a_host_stays_within_its_budget_and_comes_back(tmp_path: Path) -> None:
    """All four one after the other, in an eighth of the usual budget and of the size at which a host without one was
    seen to fail; `make attack` has each in full."""
    attacks = (stalled_readers(20, 2 * MIB), withheld_bodies(25, 4 * MIB), kept_answers(20, 2 * MIB), lists_are_read)
    (await attacked(tmp_path, attacks, many_pages(12, 4 * MIB), memory="32MiB")).judge(32 * MIB)
