"""Certificates for tests, signed by themselves, for localhost and 127.0.0.1."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_SIGNS = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
"""For digital signatures, of certificates and of lists of revoked ones: Python wants it from 3.13 on."""


def write_certificate(folder: Path, name: str = "localhost", *, begin: int = -1, end: int = 24) -> tuple[Path, Path]:
    """A new certificate and its key in the folder; the files of a former one are replaced. It is valid from `begin` to
    `end`, in hours from now."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(hours=begin))
        .not_valid_after(now + datetime.timedelta(hours=end))
        .add_extension(names, critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return cert_file, key_file


def server_settings(folder: Path, *names: str) -> tuple[ssl.SSLContext, Path]:
    """The settings of a server with a certificate for these names, and the file to trust."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    alternatives = [_general(each) for each in names]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_SIGNS, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = folder / "certificate.pem"
    pem = made.public_bytes(serialization.Encoding.PEM)
    file.write_bytes(pem)
    whole = folder / "server.pem"
    whole.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + pem
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(whole)
    return context, file


class Authority:
    """An authority that signs certificates of a group, in files below a folder. `ca` is its own certificate."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        now = datetime.datetime.now(datetime.UTC)
        made = (
            self._builder(self._name, self._key.public_key(), now)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_SIGNS, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        folder.mkdir(parents=True, exist_ok=True)
        self.ca = folder / "ca.pem"
        self.ca.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def _builder(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        now: datetime.datetime,
        begin: int = -1,
        end: int = 24,
    ) -> x509.CertificateBuilder:
        return x509.CertificateBuilder(
            self._name,
            subject,
            key,
            x509.random_serial_number(),
            now + datetime.timedelta(hours=begin),
            now + datetime.timedelta(hours=end),
        )

    def sign(
        self, file: str, *names: str, uses: Sequence[x509.ObjectIdentifier] = (), begin: int = -1, end: int = 24
    ) -> tuple[Path, Path]:
        """A certificate for these names or IP addresses, and its key, in files that begin with this word. `uses`: those
        to which it is limited. `begin`, `end`: its dates, in hours from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, file)])
        builder = self._builder(subject, key.public_key(), datetime.datetime.now(datetime.UTC), begin, end)
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(signer, critical=False)
        if uses:
            builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        if names:
            alternatives = x509.SubjectAlternativeName([_general(each) for each in names])
            builder = builder.add_extension(alternatives, critical=False)
        made = builder.sign(self._key, hashes.SHA256())
        cert_file, key_file = self._folder / f"{file}.pem", self._folder / f"{file}-key.pem"
        cert_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return cert_file, key_file


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
