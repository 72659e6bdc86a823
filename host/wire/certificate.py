"""The certificate with which the endpoint serves TLS, from files that are renewed while it serves."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from config.read import MAX_FILE_BYTES, read_bytes

PROTOCOLS = ("http/1.1", "h2")
"""The protocols that listeners speak over TLS, as ALPN names them. Each offers its own only."""

_DATE = "%Y-%m-%d %H:%M UTC"


class CertificateError(Exception):
    """The files hold no certificate that can be used; the text names the file and says why."""


class Certificate:
    """The certificate that new connections get.

    Args:
        cert: a file with the certificate, and those of the authorities between, in PEM format.
        key: a file with its private key, without a password.

    Raises:
        CertificateError: the files cannot be used.
    """

    def __init__(self, cert: Path, key: Path) -> None:
        self._cert = cert
        self._key = key
        self._read: tuple[bytes, bytes] = (b"", b"")
        self.contexts: Mapping[str, ssl.SSLContext] = {}
        """The context for new connections of each protocol."""
        self.notice = ""
        """A sentence if clients refused the certificate because of its dates when it was read; otherwise empty."""
        self.read()

    def read(self, cert: Path | None = None, key: Path | None = None) -> bool:
        """Read the files, or others in their place. If what is in them has changed, new connections get it. Returns
        whether it has. Waits for the disk.

        Raises:
            CertificateError: the files cannot be used; the former certificate and files stay.
        """
        cert, key = cert or self._cert, key or self._key
        found = _read(cert), _read(key)
        if found == self._read:
            self._cert, self._key = cert, key
            return False
        try:
            contexts = {protocol: _context(cert, key, protocol) for protocol in PROTOCOLS}
        except (OSError, ValueError) as problem:
            why = getattr(problem, "reason", None) or problem
            raise CertificateError(
                f"{cert} and {key} are no certificate with its key ({why}); expected two files in PEM "
                "format, the key without a password"
            ) from None
        self._cert, self._key = cert, key
        self._read, self.contexts, self.notice = found, contexts, _notice(found[0])
        return True


def _context(cert: Path, key: Path, protocol: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # TLS 1.0 and 1.1 are deprecated (RFC 8996). A client of 1.2 could have keys agreed upon again and again.
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols([protocol])
    # A password would be asked for on the terminal.
    context.load_cert_chain(cert, key, password=lambda: "")
    return context


def _notice(pem: bytes) -> str:
    """A sentence if clients refuse the certificate now because of its dates; otherwise empty."""
    from cryptography import x509  # takes 20 ms, and most hosts serve no TLS

    try:
        # Of several certificates, OpenSSL too takes the first as that of the endpoint.
        certificate = x509.load_pem_x509_certificate(pem)
    except ValueError:  # OpenSSL accepts some forms that this library does not
        return ""
    begin, end, now = certificate.not_valid_before_utc, certificate.not_valid_after_utc, datetime.now(UTC)
    if end < now:
        return f"the certificate expired on {end:{_DATE}}: clients will refuse it"
    if now < begin:
        return f"the certificate is not valid before {begin:{_DATE}}: until then clients will refuse it"
    return ""


def _read(file: Path) -> bytes:
    try:
        return read_bytes(file, MAX_FILE_BYTES)
    except OSError as problem:
        raise CertificateError(f"{file} cannot be read: {problem.strerror}") from None
