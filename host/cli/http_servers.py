"""The choice of what serves HTTP. Only the chosen server is imported."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

import click

from host.cli.exit_codes import WRONG

if TYPE_CHECKING:
    from config import Config, Listen
    from host.app import HttpServers
    from host.wire.acceptor import ServeHttp
    from host.wire.certificate import Certificate


def read_certificate(config: Config) -> Certificate | None:
    """The certificate that is in the files of the configuration now, if it names any, with a notice on standard error
    if clients will refuse it. If it cannot be used, the problem is printed as those of the configuration are, and the
    command ends.
    """
    tls = config.listen.tls
    if tls is None:
        return None
    from host.wire.certificate import Certificate, CertificateError

    try:
        certificate = Certificate(tls.cert, tls.key)
    except CertificateError as problem:
        from config.hosts import place_of
        from config.load import read_file

        document, _ = read_file(place_of(config.source))
        place = document.places[("listen", "tls")]
        document.add(place.key or place.value, str(problem), "listen.tls")
        print(document.problems[-1], file=sys.stderr)
        raise click.exceptions.Exit(WRONG) from None
    if notice := certificate.notice:
        print(f"{config.source}: listen.tls: {notice}", file=sys.stderr)
    return certificate


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
