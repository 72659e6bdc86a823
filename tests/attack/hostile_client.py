"""Hostile clients, one attack each; a script that needs the standard library alone.

    python3 -I -S hostile_client.py ATTACK URL '{"option": …}'

It prints `in force` once the attack is, goes on until its standard input ends, and then prints what it did as one JSON
object. Connections that the host ends are opened again.

    call       calls of one tool, one after the other, on each connection
    bodies     the four bodies that are slow to check, on each connection
    mutated    requests with bytes changed, cut, repeated and inserted
    idle       connections that are idle after their first request
    slow heads connections that send a byte of a head every second
    streams    sessions with a standing stream each
    stalled    calls with large answers that are never read
    withheld   bodies that lack their last byte
    kept       sessions with a finished answer that can be fetched again
"""

from __future__ import annotations

import http.client
import json
import os
import random
import resource
import selectors
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

Message = dict[str, Any]

REVISION = "2025-11-25"
LARGEST = 4 * 1024 * 1024
"""Bytes of the largest body that the host takes."""
PAUSE = 0.02
"""Seconds between two attempts where the host refuses or ends a connection."""
LONGEST_START = 10.0
"""Seconds after which an attack is in force, whatever the host has refused."""
SETTLED = 1.0
"""Seconds in which a host has accepted all connections that were opened at once: it is those which stay that attack."""
TROUBLE = (OSError, http.client.HTTPException, ValueError, KeyError)
ACCEPT = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}

stopped = threading.Event()
done: Counter[str] = Counter()
"""Counts of what the attack did; several threads count here, and a lost count is none that matters."""


class Target:
    """The host, and whose client this is."""

    def __init__(self, url: str, token: str | None) -> None:
        place = urlsplit(url)
        assert place.hostname is not None
        assert place.port is not None
        self.address = place.hostname, place.port
        self.netloc, self.path = place.netloc, place.path
        self.headers = {**ACCEPT, **({"Authorization": f"Bearer {token}"} if token else {})}

    def open(self, timeout: float = 30, capabilities: Message | None = None) -> Session:
        return Session(self, timeout, capabilities or {})


class Session:
    """A handshake, and requests on one connection."""

    def __init__(self, target: Target, timeout: float, capabilities: Message) -> None:
        self.target = target
        self.connection = http.client.HTTPConnection(target.netloc, timeout=timeout)
        info = {"name": "hostile client", "version": "1"}
        params = {"protocolVersion": REVISION, "capabilities": capabilities, "clientInfo": info}
        self.headers = dict(target.headers)
        answer, _ = self.post(message("initialize", params))
        self.headers |= {"Mcp-Session-Id": answer.headers["Mcp-Session-Id"], "MCP-Protocol-Version": REVISION}
        self.post(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')

    def post(self, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        self.connection.request("POST", self.target.path, body, self.headers)
        answer = self.connection.getresponse()
        data = answer.read()
        done[f"status {answer.status}"] += 1
        return answer, data

    def delete(self) -> None:
        self.connection.request("DELETE", self.target.path, headers=self.headers)
        self.connection.getresponse().read()

    def close(self) -> None:
        self.connection.close()

    def raw(self, body: bytes, *, announced: int | None = None) -> bytes:
        """A POST as bytes, for a socket of its own."""
        length = len(body) if announced is None else announced
        fields = {"Host": self.target.netloc, **self.headers, "Content-Length": str(length)}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return f"POST {self.target.path} HTTP/1.1\r\n{head}\r\n".encode() + body


def message(method: str, params: Message, id: int = 1) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode()


def in_force() -> None:
    print("in force", flush=True)


def at_once(count: int, work: Callable[[int], None]) -> list[threading.Thread]:
    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    return threads


# Requests


def call(
    target: Target, tool: str, arguments: Message, connections: int, token: bool = False, pause: float = 0
) -> None:
    params: Message = {"name": tool, "arguments": arguments}

    def work(number: int) -> None:
        if token:
            params["_meta"] = {"progressToken": "noise"}
        _repeat(target, message("tools/call", params), pause)

    at_once(connections, work)
    in_force()


def bodies(target: Target, which: str, tool: str, connections: int) -> None:
    body = body_of(which, tool)
    assert len(body) <= LARGEST
    at_once(connections, lambda number: _repeat(target, body, 0))
    in_force()


def _repeat(target: Target, body: bytes, pause: float) -> None:
    """The same body on one connection, again and again."""
    session = None
    while not stopped.is_set():
        try:
            session = session or target.open()
            session.post(body)
            done["requests"] += 1
            stopped.wait(pause)
        except TROUBLE as problem:
            done[type(problem).__name__] += 1
            if session is not None:
                session.close()
            session = None
            stopped.wait(PAUSE)


def body_of(which: str, tool: str) -> bytes:
    """A call that is legal, and slow to check for a reader that is not careful."""
    before = f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{tool}","arguments":{{'
    room = LARGEST - len(before) - 16
    inner = {
        "members": lambda: ",".join(f'"m{number}":1' for number in range(190_000)),
        "objects": lambda: '"list":[' + ",".join(['{"a":1,"b":2}'] * 66_000) + "]",
        "integers": lambda: '"list":[' + ",".join(["7" * 4_200] * 900) + "]",
        "escapes": lambda: '"text":"' + "\\u0041" * (room // 6 - 2) + '"',
    }[which]()
    return f"{before}{inner}}}}}}}".encode()


def mutated(target: Target, connections: int, seed: int) -> None:
    session = target.open()
    sound = session.raw(message("tools/list", {}))

    def work(number: int) -> None:
        chance = random.Random(seed * 1000 + number)
        while not stopped.is_set():
            with suppress(OSError), socket.create_connection(target.address, timeout=0.05) as connection:
                connection.sendall(mutation(sound, chance))
                done["connections"] += 1
                if chance.random() < 0.5:
                    connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass

    at_once(connections, work)
    in_force()


def mutation(sound: bytes, chance: random.Random) -> bytes:
    """A request with one to six changes, or several requests in one."""
    data = bytearray(sound * chance.choice((1, 1, 1, 2, 3)))
    for _ in range(chance.randint(1, 6)):
        place = chance.randrange(len(data) + 1)
        match chance.randrange(6):
            case 0:
                del data[place : place + chance.randint(1, 30)]
            case 1:
                data[place:place] = data[place : place + chance.randint(1, 80)]
            case 2:
                data[place : place + 1] = bytes([chance.randrange(256)])
            case 3:
                data[place:place] = chance.choice(
                    (b"\r\n", b"\n", b"\0", b"\xff\xfe", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 0\r\n",
                     b"Expect: 100-continue\r\n", b"9" * 300, b"X: " + b"a" * 9000 + b"\r\n", b'"\\ud800"', b"[" * 70)
                )  # fmt: skip
            case 4:
                del data[place:]
            case _:
                data[place:place] = chance.randbytes(chance.randint(1, 40))
    return bytes(data)


# Connections


class Held:
    """Many connections in one thread. Each is opened again when the host has ended it.

    Args:
        first: what each sends at first.
        each_second: what each sends every second from then on.
        deaf: nothing that the host sends is read.
        again: how many of those that the host ended are opened again in a second. More would be another attack,
            which any program that accepts connections has to bear.
        settle: seconds from the moment at which all were opened, and have sent what they had to, until the attack is
            in force.
    """

    def __init__(
        self,
        target: Target,
        count: int,
        first: bytes,
        *,
        each_second: bytes = b"",
        deaf: bool = False,
        again: float = 20,
        settle: float = 0,
    ) -> None:
        self._target, self._count, self._first = target, count, first
        self._again, self._ended, self._settle = again, 0, settle
        self._starting: set[socket.socket] = set()
        self._each_second, self._deaf = each_second, deaf
        self._selector = selectors.DefaultSelector()
        self._unsent: dict[socket.socket, memoryview] = {}
        self._quiet: set[socket.socket] = set()

    def run(self) -> None:
        for _ in range(self._count):
            self._starting.add(self._open())
        began = looked = opened = time.monotonic()
        settled: float | None = None
        announced = False
        while not stopped.is_set():
            for key, events in self._selector.select(0.02):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                try:
                    self._serve(connection, events)
                except OSError:
                    self._lose(connection)
            now = time.monotonic()
            while self._ended and now - opened >= 1 / self._again:
                opened = max(opened + 1 / self._again, now - 1)
                self._ended -= 1
                self._open()
            if settled is None and (not self._starting or now - began > LONGEST_START):
                settled = now + self._settle
            if not announced and settled is not None and now >= settled:
                announced = True
                in_force()
            if now - looked >= 1:
                looked = now
                self._look_after()

    def _open(self) -> socket.socket:
        connection = socket.socket()
        if self._deaf:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        connection.connect_ex(self._target.address)
        done["connections"] += 1
        self._unsent[connection] = memoryview(self._first)
        self._selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
        return connection

    def _serve(self, connection: socket.socket, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            rest = self._unsent[connection]
            if rest:
                self._unsent[connection] = rest = rest[connection.send(rest[: 1 << 20]) :]
            if not rest:
                del self._unsent[connection]
                self._starting.discard(connection)
                self._quiet.add(connection)
                if self._deaf:
                    self._selector.unregister(connection)
                else:
                    self._selector.modify(connection, selectors.EVENT_READ)
        elif events & selectors.EVENT_READ:
            data = connection.recv(65536)
            if data.startswith(b"HTTP/1.1 "):
                done[f"status {data[9:12].decode()}"] += 1
            if not data:
                self._lose(connection)

    def _look_after(self) -> None:
        """Once a second: the next byte of each head, and an end of the connections on which nothing is read."""
        for connection in list(self._quiet):
            if self._each_second:
                with suppress(OSError):
                    connection.send(self._each_second)
            if self._deaf and _is_reset(connection):
                self._lose(connection)

    def _lose(self, connection: socket.socket) -> None:
        if connection in self._selector.get_map():
            self._selector.unregister(connection)
        self._unsent.pop(connection, None)
        self._starting.discard(connection)
        self._quiet.discard(connection)
        connection.close()
        done["ended by the host"] += 1
        self._ended += 1


def _is_reset(connection: socket.socket) -> bool:
    """Whether the kernel has a connection as one that is over (tcp(7), TCP_INFO: the state is the first byte)."""
    established = 1
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != established


def idle(target: Target, count: int) -> None:
    """Each is idle after an answered request, which needs no token: a connection that never said anything would be
    ended as one whose head does not come."""
    request = f"GET /healthz HTTP/1.1\r\nHost: {target.netloc}\r\n\r\n"
    Held(target, count, request.encode(), settle=2 * SETTLED).run()


def slow_heads(target: Target, count: int) -> None:
    Held(
        target,
        count,
        f"POST {target.path} HTTP/1.1\r\nX-Slow: ".encode(),
        each_second=b"a",
        again=count / 5,
        settle=2 * SETTLED,  # as long as a host lets heads that come slowly stand, and a second more
    ).run()


def withheld(target: Target, count: int) -> None:
    session = target.open()
    body = message("tools/call", {"name": "none", "arguments": {"text": ""}})
    body = body.replace(b'""', b'"' + b"w" * (LARGEST - len(body)) + b'"')
    Held(target, count, session.raw(body[:-1], announced=LARGEST)).run()


def stalled(target: Target, count: int, tool: str, size: int) -> None:
    request = target.open().raw(message("tools/call", {"name": tool, "arguments": {"bytes": size}}))
    Held(target, count, request, deaf=True).run()


def streams(target: Target, count: int) -> None:
    """Half as many again are tried for as are to be had, over and over."""
    ready = threading.Barrier(9)
    shares = [range(number, count, 8) for number in range(8)]

    def work(number: int) -> None:
        open_: list[Session] = []
        for _ in shares[number]:
            with suppress(*TROUBLE):
                open_.append(_stream(target))
        ready.wait()
        while not stopped.wait(PAUSE * 10):
            with suppress(*TROUBLE):
                _stream(target).close()

    at_once(8, work)
    ready.wait()
    in_force()


def _stream(target: Target) -> Session:
    session = target.open()
    headers = {**session.headers, "Accept": "text/event-stream"}
    session.connection.request("GET", target.path, headers=headers)
    done[f"stream {session.connection.getresponse().status}"] += 1
    return session


def kept(target: Target, count: int, tool: str, size: int) -> None:
    sessions: list[Session] = []
    params = {"name": tool, "arguments": {"bytes": size}, "_meta": {"progressToken": 1}}

    def work(number: int) -> None:
        for _ in range(number, count, 4):
            if stopped.is_set():
                return
            with suppress(*TROUBLE):
                session = target.open()
                sessions.append(session)
                session.post(message("tools/call", params))

    threads = at_once(4, work)
    if count > 8:
        stopped.wait(0.5)  # the good client is to be there while they are made, too
    in_force()
    for thread in threads:
        thread.join()
    while not stopped.wait(0.1):
        pass
    for session in sessions:
        with suppress(*TROUBLE):
            session.delete()
        session.close()


ATTACKS: dict[str, Callable[..., None]] = {
    each.__name__.replace("_", " "): each
    for each in (call, bodies, mutated, idle, slow_heads, withheld, stalled, streams, kept)
}


def main(arguments: Iterable[str]) -> None:
    attack, url, text = arguments
    options = json.loads(text)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    target = Target(url, options.pop("auth", None))
    attacking = threading.Thread(target=ATTACKS[attack], args=(target,), kwargs=options, daemon=True)
    attacking.start()
    while sys.stdin.read(1):
        pass
    stopped.set()
    attacking.join(5)
    print(json.dumps(done), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
