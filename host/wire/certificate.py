"""The certificate with which a listener serves TLS, from files that are renewed while it serves.

With the file of an authority it is one of a group, whose members serve each other alone: each side shows a certificate
that this authority has signed, and that has a name in common with the other side's own. An authority may sign for
others too, so its signature alone makes no member.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from config.read import MAX_FILE_BYTES, read_bytes

PROTOCOLS = ("http/1.1", "h2")
"""The protocols that listeners speak over TLS, as ALPN names them. Each offers its own only."""
STREAMS = "colonnade-streams/1"
"""The protocol that members of a group prefer (host/fleet/streams.py). Its context offers HTTP/1.1 besides, which is
what an earlier version of Colonnade speaks."""

_DATE = "%Y-%m-%d %H:%M UTC"


class CertificateError(Exception):
    """The files hold no certificate that can be used; the text names the file and says why."""


class Certificate:
    """The certificate that new connections get.

    Args:
        cert: a file with the certificate, and those of the authorities between, in PEM format.
        key: a file with its private key, without a password.
        ca: a file with the authority of a group, in PEM format; clients need no certificate without it.
        name: that of this member of a group. Whoever asks for another one by a server name, since that had this address
            before, is refused in the handshake.

    Raises:
        CertificateError: the files cannot be used.
    """

    def __init__(self, cert: Path, key: Path, ca: Path | None = None, *, name: str = "") -> None:
        self._cert = cert
        self._key = key
        self._ca = ca
        self._name = name
        self._read: tuple[bytes, ...] = ()
        self._names: frozenset[str] = frozenset()
        self.contexts: Mapping[str, ssl.SSLContext] = {}
        """The context for new connections of each protocol."""
        self.outgoing: ssl.SSLContext | None = None
        """The context for connections to others of the group, which `accepts` must examine after the handshake."""
        self.accepts: Callable[[Mapping[str, Any]], bool] | None = None if ca is None else self._is_of_group
        """Whether the other side of a connection, whose certificate `SSLObject.getpeercert` returned, is of the group.
        None if clients need no certificate."""
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
        found = _read(cert), _read(key), *([] if self._ca is None else [_read(self._ca)])
        if found == self._read:
            self._cert, self._key = cert, key
            return False
        try:
            protocols = PROTOCOLS if self._ca is None else (*PROTOCOLS, STREAMS)
            contexts = {
                protocol: _context(cert, key, self._ca, ssl.PROTOCOL_TLS_SERVER, protocol) for protocol in protocols
            }
            outgoing, names = None, self._names
            if self._ca is not None:
                outgoing = _context(cert, key, self._ca, ssl.PROTOCOL_TLS_CLIENT, STREAMS)
                names = _names(found[0])
                contexts[STREAMS].sni_callback = self._refuse_other
                _shake_hands(outgoing, contexts[PROTOCOLS[0]])
        except ssl.SSLCertVerificationError as problem:
            raise CertificateError(
                f"others with the authority in {self._ca} refuse {cert} ({problem.verify_message}); expected one that "
                "this authority has signed, for serverAuth and clientAuth if it limits its use"
            ) from None
        except (OSError, ValueError) as problem:
            why = getattr(problem, "reason", None) or problem
            beside = "" if self._ca is None else f", with its authority in {self._ca}"
            raise CertificateError(
                f"{cert} and {key} are no certificate with its key{beside} ({why}); expected files in PEM "
                "format, the key without a password"
            ) from None
        self._cert, self._key = cert, key
        self.outgoing, self._names = outgoing, names
        self._read, self.contexts, self.notice = found, contexts, _notice(found[0])
        return True

    def _refuse_other(self, connection: object, name: str | None, context: object) -> int | None:
        """Implements `SSLContext.sni_callback`. An earlier version of Colonnade names nobody."""
        return None if name is None or name == self._name else ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME

    def _is_of_group(self, peer: Mapping[str, Any]) -> bool:
        return not self._names.isdisjoint(_name(kind, text) for kind, text in peer.get("subjectAltName", ()))


_OF_DATES = (9, 10)
"""X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED."""


def _shake_hands(outgoing: ssl.SSLContext, incoming: ssl.SSLContext) -> None:
    """Connect to ourselves in memory: one of a group whose certificate the others refuse would look like one of them,
    and not be reached. Dates are told by a notice, since the clients of this process can go on without the others.

    Raises:
        ssl.SSLCertVerificationError: a side refuses the certificate.
    """
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [outgoing.wrap_bio(back, there), incoming.wrap_bio(there, back, server_side=True)]
    while sides:
        try:
            sides[0].do_handshake()
            sides.pop(0)
        except ssl.SSLWantReadError:
            sides.reverse()
        except ssl.SSLCertVerificationError as problem:
            if problem.verify_code not in _OF_DATES:
                raise
            return


def _context(cert: Path, key: Path, ca: Path | None, side: int, protocol: str) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    if ca is not None:
        context.check_hostname = False  # `accepts` compares names that do not depend on addresses
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(ca)
    # TLS 1.0 and 1.1 are deprecated (RFC 8996). A client of 1.2 could have keys agreed upon again and again.
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols([protocol, PROTOCOLS[0]] if protocol == STREAMS else [protocol])
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


def _names(pem: bytes) -> frozenset[str]:
    """The names of a certificate, as `_name` writes them.

    Raises:
        ValueError: it has none.
    """
    from cryptography import x509  # as above

    try:
        found = x509.load_pem_x509_certificate(pem).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        raise ValueError("it has no subject alternative name, which those of its group have in common") from None
    names = found.value.get_values_for_type(x509.DNSName)
    addresses = found.value.get_values_for_type(x509.IPAddress)
    return frozenset([*(_name("DNS", name) for name in names), *(_name("IP Address", f"{each}") for each in addresses)])


def _name(kind: str, text: str) -> str:
    """A name of a certificate in one spelling."""
    if kind == "DNS":
        return f"DNS {text.lower()}"
    try:
        return f"IP {ip_address(text.strip())}" if kind == "IP Address" else ""
    except ValueError:
        return ""


def _read(file: Path) -> bytes:
    try:
        return read_bytes(file, MAX_FILE_BYTES)
    except OSError as problem:
        raise CertificateError(f"{file} cannot be read: {problem.strerror}") from None
