"""The certificate of the endpoint, and its renewal."""

from __future__ import annotations

import os
import re
import ssl
from contextlib import nullcontext
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from host.wire.certificate import Certificate, CertificateError
from tests.kit.certificates import Authority, write_certificate


def test_a_renewed_certificate_is_for_new_connections(tmp_path: Path) -> None:
    certificate = Certificate(*write_certificate(tmp_path))
    before = certificate.contexts
    assert not certificate.read()
    assert certificate.contexts is before
    write_certificate(tmp_path)
    assert certificate.read()
    assert certificate.contexts is not before


def test_other_files_can_take_their_place_if_they_can_be_used(tmp_path: Path) -> None:
    certificate = Certificate(*write_certificate(tmp_path))
    before = certificate.contexts
    other = tmp_path / "other"
    other.mkdir()
    cert, key = write_certificate(other)
    with pytest.raises(CertificateError, match="cannot be read"):
        certificate.read(tmp_path / "nothing.pem", key)
    with pytest.raises(CertificateError, match="are no certificate with its key"):
        certificate.read(tmp_path / "cert.pem", key)
    assert not certificate.read()
    assert certificate.contexts is before
    assert certificate.read(cert, key)
    assert certificate.contexts is not before
    write_certificate(other)
    assert certificate.read()


def test_files_that_cannot_be_used_are_named_and_the_former_certificate_stays(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    certificate = Certificate(cert, key)
    before = certificate.contexts
    other = tmp_path / "other"
    other.mkdir()
    key.write_bytes(write_certificate(other)[1].read_bytes())
    with pytest.raises(CertificateError, match=r"cert\.pem and .*key\.pem are no certificate with its key"):
        certificate.read()
    key.unlink()
    with pytest.raises(CertificateError, match=r"key\.pem cannot be read: No such file"):
        certificate.read()
    assert certificate.contexts is before


@pytest.mark.parametrize("text", ["", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"])
def test_a_file_with_something_else_is_refused(tmp_path: Path, text: str) -> None:
    cert, key = write_certificate(tmp_path)
    cert.write_text(text)
    with pytest.raises(CertificateError, match="expected files in PEM format"):
        Certificate(cert, key)


def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    read = serialization.load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(
        read.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"pw")
        )
    )
    with pytest.raises(CertificateError, match="without a password"):
        Certificate(cert, key)


@pytest.mark.parametrize(
    ("begin", "end", "notice"),
    [
        (-1, 1, ""),
        (-2, -1, r"the certificate expired on [0-9-]{10} [0-9:]{5} UTC: clients will refuse it"),
        (1, 2, r"the certificate is not valid before [0-9-]{10} [0-9:]{5} UTC: until then clients will refuse it"),
    ],
)
def test_a_certificate_that_clients_refuse_for_its_dates_can_be_used_with_a_notice(
    begin: int, end: int, notice: str, tmp_path: Path
) -> None:
    assert re.fullmatch(notice, Certificate(*write_certificate(tmp_path, begin=begin, end=end)).notice)


def test_the_notice_is_about_the_certificate_that_was_read_last(tmp_path: Path) -> None:
    certificate = Certificate(*write_certificate(tmp_path, begin=-2, end=-1))
    write_certificate(tmp_path)
    certificate.read()
    assert certificate.notice == ""


def test_a_pipe_in_the_place_of_a_key_is_not_waited_for(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    key.unlink()
    os.mkfifo(key)
    with pytest.raises(CertificateError, match=r"key\.pem cannot be read: it is not a regular file"):
        Certificate(cert, key)


def test_a_group_has_an_authority_and_a_name_in_common(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    mine = Certificate(*authority.sign("mine", "Acme.internal", "10.0.0.1", "::1"), authority.ca)
    assert mine.accepts is not None
    assert mine.outgoing is not None
    assert mine.contexts["http/1.1"].verify_mode is mine.outgoing.verify_mode is ssl.CERT_REQUIRED
    for names, is_of_group in (
        ((("DNS", "b.internal"), ("DNS", "acme.INTERNAL")), True),
        ((("IP Address", "0:0:0:0:0:0:0:1"),), True),
        ((("DNS", "10.0.0.1"), ("DNS", "internal"), ("DNS", "*.internal"), ("URI", "acme.internal")), False),
        ((("IP Address", "10.0.0.2"), ("IP Address", "nonsense"), ("email", "")), False),
        ((), False),
    ):
        assert mine.accepts({"subjectAltName": names}) is is_of_group, names
    assert not mine.accepts({})
    nameless = authority.sign("nameless")
    with pytest.raises(CertificateError, match="have in common"):
        Certificate(*nameless, authority.ca)
    server, client = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
    for uses in ([server], [client], [server, client]):
        files = authority.sign("limited", "acme.internal", uses=uses)
        with nullcontext() if len(uses) == 2 else pytest.raises(CertificateError, match=r"refuse .*purpose"):
            Certificate(*files, authority.ca)
    other = Authority(tmp_path / "other")
    with pytest.raises(CertificateError, match=r"others with the authority in .*/other/ca\.pem refuse .*mine\.pem \("):
        Certificate(tmp_path / "mine.pem", tmp_path / "mine-key.pem", other.ca)
    expired = Certificate(*authority.sign("expired", "acme.internal", begin=-2, end=-1), authority.ca)
    assert "expired" in expired.notice
    authority.ca.unlink()
    with pytest.raises(CertificateError, match=r"ca\.pem cannot be read"):
        mine.read()
