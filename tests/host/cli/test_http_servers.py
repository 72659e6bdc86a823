"""The server that a configuration asks for, and that no other one is imported."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import click
import pytest

from config import Config, HttpServerChoice, Listen, load
from host.cli.exit_codes import WRONG
from host.cli.http_servers import choose_plain_server, choose_servers, read_certificate
from host.wire import hypercorn_listener, listener
from host.wire.hypercorn_tls import serve_https
from tests.kit.certificates import write_certificate

ROOT = Path(__file__).parents[3]
LOADED = """
import json, sys
from config import HttpServerChoice, Listen
from host.cli.http_servers import choose_servers
choose_servers(Listen(server=HttpServerChoice(sys.argv[1])), None)
print(json.dumps(sorted(sys.modules)))
"""


@pytest.mark.parametrize(
    ("server", "loaded", "absent"),
    [
        ("built-in", {"host.wire.listener", "httptools"}, {"hypercorn", "wsproto", "priority"}),
        pytest.param(
            *("hypercorn", {"host.wire.hypercorn_listener", "hypercorn"}),
            {"host.wire.listener", "host.wire.hypercorn_tls"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_only_the_chosen_server_is_imported(server: str, loaded: set[str], absent: set[str]) -> None:
    """All of the host is there, and no part of it imports the other one."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, server], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    names = set(json.loads(done.stdout))
    assert names >= loaded | {"trio", "host"}
    assert not names & absent


def test_the_endpoint_has_tls_if_there_is_a_certificate_and_the_rest_has_not(tmp_path: Path) -> None:
    config = with_tls(tmp_path)
    write_certificate(tmp_path)
    certificate = read_certificate(config)
    listen = config.listen
    servers = choose_servers(listen, certificate)
    assert servers.plain is listener.serve_http
    assert isinstance(servers.endpoint, partial)
    assert servers.endpoint.func is serve_https
    assert servers.endpoint.args == (certificate,)
    assert servers.certificate is certificate


def test_without_tls_one_server_serves_everything() -> None:
    for choice, module in (
        (HttpServerChoice.BUILT_IN, listener),
        (HttpServerChoice.HYPERCORN, hypercorn_listener),
    ):
        servers = choose_servers(Listen(server=choice), None)
        assert servers.plain is servers.endpoint is choose_plain_server(Listen(server=choice)) is module.serve_http


def with_tls(folder: Path) -> Config:
    file = folder / "colonnade.yaml"
    file.write_text("servers: {a: {command: cat}}\nlisten:\n  tls: {cert: cert.pem, key: key.pem}\n")
    return load(file)


def test_a_certificate_that_cannot_be_used_is_a_problem_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = with_tls(tmp_path)
    with pytest.raises(click.exceptions.Exit) as caught:
        read_certificate(config)
    assert caught.value.exit_code == WRONG
    why = f"{tmp_path}/cert.pem cannot be read: No such file or directory"
    assert capsys.readouterr().err == f"{config.source}:3:3: listen.tls: {why}\n"


def test_a_certificate_that_expired_is_used_with_a_notice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = with_tls(tmp_path)
    write_certificate(tmp_path, begin=-2, end=-1)
    assert read_certificate(config) is not None
    assert capsys.readouterr().err.startswith(f"{config.source}: listen.tls: the certificate expired on ")
    write_certificate(tmp_path)
    assert read_certificate(config) is not None
    assert capsys.readouterr().err == ""


def test_without_tls_no_certificate_is_read(tmp_path: Path) -> None:
    assert read_certificate(dataclasses.replace(with_tls(tmp_path), listen=Listen())) is None
