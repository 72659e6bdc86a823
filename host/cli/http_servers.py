"""The choice of what serves HTTP. Only the chosen server is imported."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from host.cli.exit_codes import WRONG, CommandFailed

if TYPE_CHECKING:
    from config import Listen
    from host.app import HttpServers
    from host.wire.acceptor import ServeHttp
    from host.wire.certificate import Certificate


def read_certificate(listen: Listen) -> Certificate | None:
    """The certificate that is in the files of the configuration now, if it names any.

    Raises:
        CommandFailed: it cannot be used.
    """
    if listen.tls is None:
        return None
    from host.wire.certificate import Certificate, CertificateError

    try:
        return Certificate(listen.tls.cert, listen.tls.key)
    except CertificateError as problem:
        raise CommandFailed(f"listen.tls: {problem}", WRONG) from None


def choose_servers(listen: Listen, certificate: Certificate | None) -> HttpServers:
    """The servers that the configuration asks for."""
    from host.app import HttpServers

    plain = choose_plain_server(listen)
    if certificate is None:
        return HttpServers(plain, plain)
    from host.wire.hypercorn_tls import serve_https

    return HttpServers(plain, partial(serve_https, certificate), certificate)


def choose_plain_server(listen: Listen) -> ServeHttp:
    """The server for everything without TLS."""
    from config import HttpServerChoice

    if listen.server is HttpServerChoice.HYPERCORN:
        from host.wire import hypercorn_listener

        return hypercorn_listener.serve_http
    from host.wire import listener

    return listener.serve_http
