"""The examples of a proxy with TLS: the official SDK's client calls through Caddy and nginx, as in examples/tls."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kit.ports import answers_at, free_port

from .running import COLONNADE, ROOT, beside, serving, until

TOKEN = "a-token-of-some-length"
EXAMPLE = ROOT / "examples" / "tls"

# It prints the tools, the answer of a call, the status of a request without a token, and that of the console.
CLIENT = """
import sys, httpx2, anyio
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
url, token = sys.argv[1:]

async def main():
    async with httpx2.AsyncClient(headers={"Authorization": "Bearer " + token}) as http:
        async with Client(streamable_http_client(url, http_client=http), mode="legacy", cache=None) as client:
            print([tool.name for tool in (await client.list_tools()).tools])
            print((await client.call_tool("clock__now", {})).is_error)
    async with httpx2.AsyncClient() as http:
        print((await http.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "ping"})).status_code)
        print((await http.get(url.rpartition("/")[0] + "/console")).status_code)

anyio.run(main)
"""


def write_certificate(folder: Path) -> tuple[Path, Path]:
    certificate, key = folder / "tools.pem", folder / "tools.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost"),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key


def caddy(folder: Path, endpoint: int, port: int) -> list[str]:
    certificate, key = write_certificate(folder)
    text = (EXAMPLE / "Caddyfile").read_text().replace("127.0.0.1:8808", f"127.0.0.1:{endpoint}")
    text = text.replace(
        "tools.example.com {", f"https://localhost:{port} {{\n\tbind 127.0.0.1\n\ttls {certificate} {key}"
    )
    (folder / "Caddyfile").write_text("{\n\tadmin off\n\tauto_https disable_redirects\n}\n" + text)
    return ["caddy", "run", "--config", str(folder / "Caddyfile")]


def nginx(folder: Path, endpoint: int, port: int) -> list[str]:
    certificate, key = write_certificate(folder)
    text = (EXAMPLE / "nginx.conf").read_text().replace("127.0.0.1:8808", f"127.0.0.1:{endpoint}")
    text = text.replace("listen 443 ssl", f"listen 127.0.0.1:{port} ssl").replace("tools.example.com;", "localhost;")
    text = re.sub(r"ssl_certificate .*;", f"ssl_certificate {certificate};", text)
    text = re.sub(r"ssl_certificate_key .*;", f"ssl_certificate_key {key};", text)
    scratch = "".join(
        f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off;\npid {folder}/pid;\nerror_log {folder}/log;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{scratch}{text}\n}}\n"
    )
    return ["nginx", "-c", str(folder / "nginx.conf"), "-e", str(folder / "log")]


@contextmanager
def running(command: list[str], folder: Path, port: int) -> Iterator[None]:
    environment = {**os.environ, "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "HOME": str(folder)}
    with (folder / "proxy.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        until(lambda: answers_at(port) or process.poll() is not None, f"{command[0]} listens")
        assert process.poll() is None, (folder / "proxy.log").read_text()
        yield
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("proxy", [caddy, nginx])
def test_a_client_calls_through_a_proxy_with_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proxy: Callable[[Path, int, int], list[str]]
) -> None:
    if shutil.which(proxy.__name__) is None:
        pytest.skip(f"{proxy.__name__} is not installed")
    endpoint, port = free_port(), free_port()
    text = (EXAMPLE / "colonnade.yaml").read_text()
    text = text.replace("127.0.0.1:8808", f"127.0.0.1:{endpoint}").replace("127.0.0.1:8809", "127.0.0.1:0")
    text = text.replace("tools.example.com", f"localhost:{port}").replace("python3", sys.executable)
    file = tmp_path / "colonnade.yaml"
    file.write_text(text.replace("../quickstart", str(ROOT / "examples" / "quickstart")))
    command = proxy(tmp_path, endpoint, port)
    monkeypatch.setenv("LAPTOP_TOKEN", TOKEN)
    with serving(file, "clock"), running(command, tmp_path, port):
        url = f"https://localhost:{port}/mcp"
        trusted = {**beside(file), "SSL_CERT_FILE": str(tmp_path / "tools.pem")}
        seen = subprocess.run(
            [sys.executable, "-c", CLIENT, url, TOKEN], env=trusted, capture_output=True, text=True, timeout=60
        )
        assert seen.stdout.splitlines() == ["['clock__now', 'clock__countdown']", "False", "401", "404"], seen.stderr
        ours = subprocess.run(
            [COLONNADE, "list", "--url", url, "--header", f"Authorization: Bearer {TOKEN}"],
            env=trusted,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert "clock__now" in ours.stdout, ours.stderr
