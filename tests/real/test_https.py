"""An endpoint with TLS of its own, called by real clients over HTTP/1.1, and over HTTP/2 at its address of its own."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from mcp import Client

from host.cli.exit_codes import DONE, FAILED
from tests.kit.certificates import write_certificate
from tests.kit.ports import free_port
from tests.kit.stateless import stateless_request

from .clients import PATIENCE, SDK_LEAKS
from .running import Running, colonnade, recorder, serving, write_config
from .test_reload import reload

HEADERS, CALL = stateless_request("tools/call", {"name": "a__together", "arguments": {"of": 1, "note": "n"}})


def with_tls(folder: Path, **more: Any) -> Path:
    write_certificate(folder)
    listen = {"address": "127.0.0.1:0", "tls": {"cert": "cert.pem", "key": "key.pem"}, **more}
    return write_config(folder, {"a": recorder(folder / "a.log")}, listen=listen)


@dataclass
class Setting:
    """A host with both addresses; `second` is the URL over HTTP/2."""

    host: Running
    second: str
    certificate: Path


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    folder, port = tmp_path_factory.mktemp("https"), free_port()
    with serving(with_tls(folder, http2=f"127.0.0.1:{port}"), "a") as host:
        yield Setting(host, f"https://127.0.0.1:{port}/mcp", folder / "cert.pem")


@SDK_LEAKS
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_sdks_client_calls_over_tls(mode: str, here: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    assert here.host.url.startswith("https://127.0.0.1:")
    monkeypatch.setenv("SSL_CERT_FILE", str(here.certificate))
    async with Client(here.host.url, mode=mode, cache=None, read_timeout_seconds=PATIENCE) as client:
        result = await client.call_tool("a__together", {"of": 1, "note": "n"})
    assert not result.is_error


def test_calls_share_one_connection_of_http_2(here: Setting) -> None:
    async def run() -> None:
        context = ssl.create_default_context(cafile=here.certificate)
        async with httpx.AsyncClient(http2=True, verify=context) as client:

            async def call(number: int) -> None:
                params = {"name": "a__together", "arguments": {"of": 5, "note": str(number)}}
                headers, message = stateless_request("tools/call", params, id=number)
                response = await client.post(here.second, json=message, headers=headers)
                assert (response.status_code, response.http_version) == (200, "HTTP/2")
                assert (response.json()["id"], "isError" in response.json()["result"]) == (number, False)

            async with trio.open_nursery() as nursery:
                for number in range(5):
                    nursery.start_soon(call, number)

    trio.run(run)
    reload(here.host, "nothing has changed")
    assert f"HTTP/2 is served at {here.second}" in here.host.said


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("version", ["1.1", "2"])
def test_curl_calls_over_both_versions(version: str, here: Setting) -> None:
    """It offers both at each address."""
    headers = [part for name, value in HEADERS.items() for part in ("-H", f"{name}: {value}")]
    url = here.second if version == "2" else here.host.url
    done = subprocess.run(
        [
            *("curl", "-sS", "--max-time", "20", "--http2", "--cacert", str(here.certificate), *headers),
            *("-d", json.dumps(CALL), "-w", "\n%{http_version} %{http_code}", url),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    body, _, told = done.stdout.rpartition("\n")
    assert told == f"{version} 200"
    assert "isError" not in json.loads(body)["result"]


def test_a_renewed_certificate_is_served_after_a_reload_and_a_broken_one_is_not(tmp_path: Path) -> None:
    with serving(with_tls(tmp_path), "a") as host:
        first = _certificate(host)
        write_certificate(tmp_path)
        assert _certificate(host) == first
        reload(host, "new connections get the new certificate")
        second = _certificate(host)
        assert second != first
        (tmp_path / "key.pem").write_text("no key")
        reload(host, "are no certificate with its key", "the former certificate stays")
        assert _certificate(host) == second
        # A program that renews certificates runs the command, and goes by its exit code.
        state = str(tmp_path / "state")
        done = colonnade("reload", COLONNADE_STATE=state)
        assert (done.returncode, done.stdout) == (FAILED, "")
        assert done.stderr.count("the former certificate stays") == 1
        write_certificate(tmp_path)
        done = colonnade("reload", COLONNADE_STATE=state)
        assert (done.returncode, done.stderr) == (DONE, "")
        assert _certificate(host) != second
        write_certificate(tmp_path, begin=-2, end=-1)
        reload(host, "new connections get the new certificate: the certificate expired on ")


def _certificate(host: Running) -> str:
    port = int(host.url.partition("127.0.0.1:")[2].partition("/")[0])
    return ssl.get_server_certificate(("127.0.0.1", port), timeout=20)


def test_the_paths_of_a_certificate_change_by_a_reload_if_it_can_be_used(tmp_path: Path) -> None:
    file = with_tls(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    write_certificate(other)
    state = str(tmp_path / "state")
    with serving(file, "a") as host:
        first = _certificate(host)
        file.write_text(file.read_text().replace('"cert.pem"', '"nothing.pem"'))
        done = colonnade("reload", COLONNADE_STATE=state)
        assert (done.returncode, done.stdout) == (FAILED, "")
        assert "nothing.pem cannot be read" in done.stderr
        assert _certificate(host) == first
        text = json.loads(file.read_text())
        text["listen"]["tls"] = {"cert": "other/cert.pem", "key": "other/key.pem"}
        file.write_text(json.dumps(text))
        done = colonnade("reload", COLONNADE_STATE=state)
        assert (done.returncode, done.stderr) == (DONE, "")
        assert "new connections get the new certificate" in done.stdout
        assert _certificate(host) != first


def test_the_console_beside_an_endpoint_with_tls_has_an_address_of_its_own(here: Setting) -> None:
    context = ssl.create_default_context(cafile=here.certificate)
    with httpx.Client(verify=context) as client:
        base = here.host.url.rpartition("/")[0]
        assert client.get(f"{base}/console").status_code == 404
        assert client.get(f"{base}/", headers={"Accept": "text/html"}).text.count(here.host.url) > 0
        assert client.get(f"{base}/healthz").text == "ok\n"


def test_a_host_whose_certificate_cannot_be_used_does_not_start(tmp_path: Path) -> None:
    file = with_tls(tmp_path)
    (tmp_path / "cert.pem").unlink()
    for command in ("serve", "check"):
        done = colonnade(command, str(file))
        assert done.returncode == 2
        assert done.stdout == ""
        assert f"listen.tls: {tmp_path}/cert.pem cannot be read: No such file or directory" in done.stderr


def test_plain_http_at_the_port_of_tls_is_no_way_in(here: Setting) -> None:
    port = int(here.host.url.partition("127.0.0.1:")[2].partition("/")[0])
    with socket.create_connection(("127.0.0.1", port), timeout=20) as plain:
        plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200" not in plain.recv(1000)


def test_clients_of_http_2_reach_no_console_and_keep_to_the_rules_of_tokens_and_hosts(tmp_path: Path) -> None:
    port = free_port()
    token = "0123456789abcdef"
    listen = {"address": "127.0.0.1:0", "http2": f"127.0.0.1:{port}", "auth": {"tokens": {"laptop": token}}}
    file = write_config(tmp_path, {"a": recorder(tmp_path / "a.log")}, listen=listen)
    with serving(file, "a") as host, httpx.Client(http1=False, http2=True, trust_env=False) as client:
        base = f"http://127.0.0.1:{port}"
        own_port = host.url.partition("127.0.0.1:")[2].partition("/")[0]
        given = {"authorization": f"Bearer {token}"}
        assert client.get(f"{base}/healthz").text == "ok\n"
        assert client.get(f"{base}/status").status_code == 401
        assert client.get(f"{base}/status", headers=given).status_code == 200
        assert client.get(f"{base}/console", headers={**given, "host": f"127.0.0.1:{own_port}"}).status_code == 404
        assert client.get(f"{base}/status", headers={**given, "host": "evil.example"}).status_code == 421
        assert client.get(f"{base}/status", headers={**given, "origin": "https://evil.example"}).status_code == 403
        assert client.post(f"{base}/mcp", headers=HEADERS, json=CALL).status_code == 401
        assert client.post(f"{base}/mcp", headers={**HEADERS, **given}, json=CALL).status_code == 200
