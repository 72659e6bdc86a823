"""Confined programs that may connect to some hosts by name: real clients, with the names and the proxy that they find
inside. Outside, the names of the tests lead to servers on loopback, which the file permits by its address."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio

from config.sandbox import Destination, Means, Sandbox, SandboxFiles
from host.journal import Journal, SandboxRefused
from host.upstream.refusals import Refusals
from host.wire.process import NotConfined
from tests.host.sandbox.kit import PYTHON, confined, outcome_of, said_by
from tests.host.wire.processes import carrying, new_token, until
from tests.kit.certificates import server_settings
from tests.kit.kernel import NOT_HERE, needs_namespaces

pytestmark = [needs_namespaces, pytest.mark.slow]
NAMES = {"api.test": ["127.0.0.1"], "b.wild.test": ["127.0.0.1"]}


def look_up(host: str) -> list[str]:
    if host not in NAMES:
        raise socket.gaierror
    return NAMES[host]


@dataclass(frozen=True)
class Outside:
    """Servers of this machine, over TLS and without it."""

    https: int
    http: int
    trust: Path

    @property
    def sandbox(self) -> Sandbox:
        names = [
            f"{host}:{port}" for port in (self.https, self.http) for host in ("api.test", "*.wild.test", "127.0.0.1")
        ]
        files = SandboxFiles(read=(str(self.trust.parent), sys.prefix, sys.base_prefix))
        return Sandbox(files=files, network=tuple(map(Destination, names)))


async def _answer(stream: trio.abc.Stream) -> None:
    head = b""
    try:
        while b"\r\n\r\n" not in head:
            head += await stream.receive_some() or b"\r\n\r\n"
        body = b"0" * 40 + b"\trefs/heads/there\n"  # what git asks for
        await stream.send_all(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
            % (len(body), body)
        )
        await stream.aclose()
    except (trio.BrokenResourceError, ssl.SSLError):
        return


@asynccontextmanager
async def outside(folder: Path) -> AsyncIterator[Outside]:
    settings, trust = server_settings(folder, "api.test", "b.wild.test", "127.0.0.1")
    async with trio.open_nursery() as nursery:
        tls = await trio.open_ssl_over_tcp_listeners(0, settings, host="127.0.0.1", https_compatible=True)
        plain = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, _answer, [*tls, *plain])
        below = tls[0].transport_listener
        assert isinstance(below, trio.SocketListener)
        https, http = below.socket.getsockname()[1], plain[0].socket.getsockname()[1]
        yield Outside(https, http, trust)
        nursery.cancel_scope.cancel()


NODE = shutil.which("node") or "node"
ASK = r"GET / HTTP/1.1\r\n\r\n"
CLIENTS = {
    "node: net": f"require('net').connect(HTTP, HOST).on('data', d => console.log(`${{d}}`)).end('{ASK}')",
    "node: tls": "require('tls').connect({port: HTTPS, host: HOST, ca: CA})"
    f".on('data', d => console.log(`${{d}}`)).end('{ASK}')",
    "node: https": "require('https').get({port: HTTPS, host: HOST, ca: CA}, r => r.pipe(process.stdout))",
    "node: http": "require('http').get({port: HTTP, host: HOST}, r => r.pipe(process.stdout))",
    "node: fetch": "fetch(`http://${HOST}:${HTTP}/`).then(r => r.text()).then(console.log)",
    "python: socket": f"import socket; s = socket.create_connection((HOST, HTTP), 9); s.sendall(b'{ASK}');"
    "print(s.makefile().read())",
    "python: urllib": "import ssl, urllib.request as u; t = ssl.create_default_context(cafile=CA);"
    "print(u.urlopen(f'https://{HOST}:{HTTPS}/', context=t).read(), u.urlopen(f'http://{HOST}:{HTTP}/').read())",
    "python: http.client": "import ssl, http.client as h; t = ssl.create_default_context(cafile=CA);"
    "c = h.HTTPSConnection(HOST, HTTPS, context=t); c.request('GET', '/'); print(c.getresponse().read())",
    "python: httpx": "import httpx; print(httpx.get(f'https://{HOST}:{HTTPS}/', verify=CA).text)",
    "python: httpx, http": "import httpx; print(httpx.get(f'http://{HOST}:{HTTP}/').text)",
    "python: requests": "import requests; print(requests.get(f'https://{HOST}:{HTTPS}/', verify=CA).text)",
    "curl": "curl -sS --cacert TRUST https://HOST:HTTPS/",
    "curl, http": "curl -sS http://HOST:HTTP/",
    "curl, past the proxy": "curl -sS --noproxy * --cacert TRUST https://HOST:HTTPS/",
    "git": "git -c http.sslCAInfo=TRUST ls-remote https://HOST:HTTPS/r",
    "git, http": "git ls-remote http://HOST:HTTP/r",
}
"""HOST stands for a permitted one, with both ports."""
BY_THE_PROXY = ("python: urllib", "python: httpx", "python: httpx, http", "python: requests", "curl", "git")


def _words(client: str, there: Outside, host: str) -> tuple[str, ...]:
    text = CLIENTS[client]
    if client.startswith("node"):
        begin = f"const [HOST, HTTP, HTTPS] = ['{host}', {there.http}, {there.https}];"
        return NODE, "-e", f"{begin}const CA = require('fs').readFileSync('{there.trust}'); {text}"
    if client.startswith("python"):
        return (
            sys.executable,
            "-c",
            f"HOST, HTTP, HTTPS, CA = {host!r}, {there.http}, {there.https}, '{there.trust}'\n{text}",
        )
    for word, value in {"HOST": host, "HTTPS": there.https, "HTTP": there.http, "TRUST": there.trust}.items():
        text = text.replace(word, str(value))
    return tuple(text.split(" "))


@pytest.fixture
def client(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """One of CLIENTS, whose program is there."""
    if shutil.which(_words(request.param, Outside(1, 2, tmp_path), "")[0]) is None:
        pytest.skip(f"{NOT_HERE}this client")
    name: str = request.param
    return name


async def _assert_reaches(folder: Path, client: str, host: str, **more: Any) -> None:
    async with outside(folder) as there:
        status, said = await said_by(folder, *_words(client, there, host), sandbox=there.sandbox, **more)
        assert (status, "refs/heads/there" in said) == (0, True), said


@pytest.mark.parametrize("client", CLIENTS, indirect=True)
async def test_a_permitted_name_is_reached(tmp_path: Path, client: str) -> None:
    await _assert_reaches(tmp_path, client, "api.test", look_up=look_up)


@pytest.mark.parametrize("client", BY_THE_PROXY, indirect=True)
async def test_a_name_below_a_wildcard_is_reached_by_the_proxy(tmp_path: Path, client: str) -> None:
    await _assert_reaches(tmp_path, client, "b.wild.test", look_up=look_up)


@pytest.mark.parametrize("client", ["node: net", "python: socket", "python: http.client"], indirect=True)
async def test_a_permitted_address_needs_no_name(tmp_path: Path, client: str) -> None:
    await _assert_reaches(tmp_path, client, "127.0.0.1")


@pytest.fixture
def own() -> str:
    """The address of this machine on its way to others."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            any_socket.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip(f"{NOT_HERE}an address beside loopback")
        address: str = any_socket.getsockname()[0]
    return address


async def test_an_address_that_is_not_one_of_loopback_is_reached_as_it_is(tmp_path: Path, own: str) -> None:
    """It stands on the loopback inside, and the one next to it leads nowhere."""
    code = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 9) as made:
    made.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
    print(made.makefile().read().splitlines()[0])
try:
    socket.create_connection(("192.0.2.1", 22), 3)
except OSError as problem:
    print(problem.strerror)
"""
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host=own)
        nursery.start_soon(trio.serve_listeners, _answer, [listener])
        port = listener.socket.getsockname()[1]
        words = (*PYTHON, code, own, str(port))
        _, said = await said_by(tmp_path, *words, sandbox=Sandbox(network=(Destination(f"{own}:{port}"),)))
        nursery.cancel_scope.cancel()
    assert said.splitlines() == ["HTTP/1.1 200 OK", "Network is unreachable"]


async def test_the_loopback_is_its_own_beside_the_names(tmp_path: Path) -> None:
    """It may serve there, at any address and port that the file does not name, and is not led to the proxy."""
    code = """
import http.server, os, threading, urllib.request
server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.handle_request).start()
print(urllib.request.urlopen(f"http://localhost:{server.server_port}/").status)
"""
    assert await said_by(tmp_path, *PYTHON, code, sandbox=Sandbox(network=(Destination("api.test:443"),))) == (0, "200")


async def test_what_is_not_permitted_is_refused_and_told(tmp_path: Path) -> None:
    code = """
import urllib.request
try:
    urllib.request.urlopen("https://other.test/")
except OSError as problem:
    print(problem)
"""
    told: list[SandboxRefused] = []
    journal = Journal()
    journal.subscribe(told.append, SandboxRefused)
    sandbox = Sandbox(network=(Destination("api.test:443"),))
    _, said = await said_by(tmp_path, *PYTHON, code, sandbox=sandbox, refusals=Refusals("a", journal))
    assert "403 Forbidden" in said
    line = 'sandbox: {network: ["api.test:443", "other.test:443"]}'
    assert told == [SandboxRefused("a", "a connection to other.test:443", line, certain=True)]


async def test_landlock_alone_knows_no_names(tmp_path: Path) -> None:
    out = tmp_path / "started"
    sandbox = Sandbox(network=(Destination("api.test:443"),), accept=Means.LANDLOCK)
    nowhere = str(tmp_path / "nowhere")  # so namespaces cannot be had
    outcome = await outcome_of(tmp_path, "touch", str(out), sandbox=sandbox, base=nowhere)
    assert isinstance(outcome, NotConfined)
    assert outcome.step in ("a network of its own", "Landlock 6")
    assert not out.exists()


@pytest.mark.parametrize("how", ["ends", "is killed", "is stopped with its host"])
async def test_nothing_is_left_of_its_network(tmp_path: Path, how: str) -> None:
    """Neither a descriptor, nor a socket in use, nor a process."""
    token = new_token()
    code = """
import socket, sys
made = [socket.create_connection((sys.argv[1], int(sys.argv[2]))) for _ in range(9)]
print("up", flush=True)
sys.stdin.read()
"""
    before = len(os.listdir("/proc/self/fd"))
    async with outside(tmp_path) as there:
        words = (*PYTHON, code, "api.test", str(there.http), token)
        async with confined(tmp_path, *words, sandbox=there.sandbox, look_up=look_up) as child:
            await child.stdout.receive_some()
            if how == "ends":
                child.close_stdin()
                await child.wait()
            elif how == "is killed":
                for pid in carrying(token):
                    os.kill(pid, 9)
                await child.wait()
    await until(lambda: not carrying(token), 3)
    await until(lambda: len(os.listdir("/proc/self/fd")) <= before, 3)
