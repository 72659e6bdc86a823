"""The certificates that the configuration names, read before anything is opened."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from host.cli.exit_codes import WRONG

if TYPE_CHECKING:
    from pathlib import Path

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
    return _read(config, ("listen", "tls"), tls.cert, tls.key)


def check_inner(config: Config) -> None:
    """Read the certificate of the inner listener of a fleet, if there is one, as `read_certificate` does that of the
    endpoint."""
    inner = None if config.fleet is None else config.fleet.inner
    if inner is not None:
        _read(config, ("fleet", "inner"), inner.cert, inner.key, inner.ca)


def _read(config: Config, place: tuple[str, str], *files: Path) -> Certificate:
    from host.wire.certificate import Certificate, CertificateError

    where = ".".join(place)
    try:
        certificate = Certificate(*files)
    except CertificateError as problem:
        from config.load import place_of, read_file

        document, _ = read_file(place_of(config.source))
        found = document.places[place]
        document.add(found.key or found.value, str(problem), where)
        print(document.problems[-1], file=sys.stderr)
        raise click.exceptions.Exit(WRONG) from None
    if notice := certificate.notice:
        print(f"{config.source}: {where}: {notice}", file=sys.stderr)
    return certificate
