"""The certificate that a configuration names, when the endpoint is opened."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click
import pytest

from config import Config, Listen, load
from host.cli.endpoint_certificate import read_certificate
from host.cli.exit_codes import WRONG
from tests.kit.certificates import write_certificate


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
