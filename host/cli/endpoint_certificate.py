"""The certificate of the endpoint, read before the endpoint is opened."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from host.cli.exit_codes import WRONG

if TYPE_CHECKING:
    from config import Config
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
        from config.load import place_of, read_file

        document, _ = read_file(place_of(config.source))
        place = document.places[("listen", "tls")]
        document.add(place.key or place.value, str(problem), "listen.tls")
        print(document.problems[-1], file=sys.stderr)
        raise click.exceptions.Exit(WRONG) from None
    if notice := certificate.notice:
        print(f"{config.source}: listen.tls: {notice}", file=sys.stderr)
    return certificate
