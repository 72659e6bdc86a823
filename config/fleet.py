"""The section `fleet`: the processes that share one store."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Annotated
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import AfterValidator, BeforeValidator, ValidationInfo, WithJsonSchema

from config.address_zones import is_loopback
from config.keys import Strict, desc
from config.references import Expanded, Secret
from config.types import Address, AddressText, EachOnce, FilePath, FleetName, InvalidValue, expected, fill_in

_A_STORE = "a URL such as postgresql://colonnade@db.example/colonnade?sslmode=verify-full"


def _read_store(value: object, info: ValidationInfo) -> Secret:
    return checked_store(fill_in(value, info, _A_STORE))


def checked_store(url: Expanded) -> Secret:
    """The URL of a PostgreSQL database, in the form of its own client library (libpq, "Connection URIs").

    Nothing of it is repeated, since it may hold a password anywhere. Who listens beyond this machine must prove to be
    the server: rows of it are decisions. Raises InvalidValue.
    """
    if not url.text.isascii() or not url.text.isprintable() or " " in url.text:
        raise InvalidValue(f"expected {_A_STORE}; percent-encode spaces and what is not printable ASCII")
    try:
        parts = urlsplit(url.text)
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        raise InvalidValue(f"expected {_A_STORE}; this one cannot be read") from None
    if parts.scheme not in ("postgresql", "postgres"):
        raise InvalidValue(f"expected {_A_STORE}")
    if "service" in options:
        raise InvalidValue("a service file may name another server than what is checked here; name the host instead")
    named = unquote(parts.netloc.rpartition("@")[2])
    places = [options[key] for key in ("host", "hostaddr") if key in options]
    hosts = [_without_port(each) for place in (places or [named]) for each in place.split(",")]
    if not all(hosts):
        raise InvalidValue(f"expected {_A_STORE}, with a host; for a Unix socket, ?host= and its folder")
    if options.get("sslmode") != "verify-full" and not all(map(_is_this_machine, hosts)):
        raise InvalidValue(
            "a database on another machine has to prove who it is; add sslmode=verify-full to the URL, and "
            "sslrootcert= with the file of its authority (or sslrootcert=system)"
        )
    return Secret(url.text, filled=url.filled, kept=url.kept)


def _without_port(place: str) -> str:
    found = re.fullmatch(r"\[(.*)\](?::[0-9]*)?|([^:]*)(?::[0-9]*)?", place)
    return place if found is None else found[1] or found[2] or ""


def _is_this_machine(host: str) -> bool:
    if host.startswith("/") or host == "localhost":
        return True
    try:
        return is_loopback(host)
    except ValueError:
        return False


_TO_STANDARD = str.maketrans("-_", "+/")
"""From the letters of Base64 for URLs (RFC 4648, 5)."""


def _read_key(value: object, info: ValidationInfo) -> Secret:
    """The key in hexadecimal digits."""
    text = fill_in(value, info, "a key of 32 bytes").text.strip()
    try:
        if re.fullmatch("[0-9A-Fa-f]{64}", text):
            raw = bytes.fromhex(text)
        else:
            raw = base64.b64decode(text.translate(_TO_STANDARD) + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        raw = b""
    if len(raw) != 32:
        raise InvalidValue(
            "expected a key of 32 bytes in hexadecimal digits or Base64; `openssl rand -hex 32` makes one"
        )
    return Secret(raw.hex())


def _at_least_one_key(keys: tuple[Secret, ...]) -> tuple[Secret, ...]:
    if not keys:
        raise expected("at least one key", "an empty list", "`openssl rand -hex 32` makes one")
    return keys


_StoreUrl = Annotated[
    Secret,
    BeforeValidator(_read_store),
    WithJsonSchema({"type": "string", "pattern": r"^postgres(?:ql)?://[!-~]+$|\$\{"}),
]
_Key = Annotated[
    Secret,
    BeforeValidator(_read_key),
    WithJsonSchema({"type": "string", "pattern": r"^(?:[0-9A-Fa-f]{64}|[A-Za-z0-9+/_-]{43}=?)$|\$\{"}),
]


def _only_reachable(address: Address) -> Address:
    """An address to connect to is neither every address of this machine nor whichever port is free."""
    if address.port == 0 or ip_address(address.host.partition("%")[0]).is_unspecified:
        raise expected(
            "the IP address and port at which the others reach this process, such as 10.0.0.7:8443",
            f'"{address.host}", port {address.port}',
            "listen may be every address, and this one may not",
        )
    return address


@dataclass(frozen=True)
class Inner(Strict):
    """The listener through which the processes of a fleet hand requests to each other, with mutual TLS.

    `address` is where the others reach it. The certificate is for both directions."""

    listen: Annotated[AddressText, desc("host:port at which the other processes of the fleet are served.")]
    address: Annotated[
        AddressText, AfterValidator(_only_reachable), desc("host:port at which they reach this process, an IP address.")
    ]
    cert: Annotated[FilePath, desc("File with this process's certificate, in PEM format.")]
    key: Annotated[FilePath, desc("File with its private key, in PEM format and without a password.")]
    ca: Annotated[FilePath, desc("File with the authority that signs the certificates of the fleet, in PEM format.")]


@dataclass(frozen=True)
class Fleet(Strict):
    """The processes that share decisions, logins and sessions through one store.

    `store` is a URL of PostgreSQL. `keys` are 64 hexadecimal digits each, however the file writes them."""

    name: Annotated[FleetName, desc("The name of the fleet, the same in all its processes.")]
    store: Annotated[_StoreUrl, desc("URL of the PostgreSQL database: postgresql://USER:PASSWORD@HOST/DATABASE.")]
    keys: Annotated[
        EachOnce[_Key],
        AfterValidator(_at_least_one_key),
        desc(
            "Keys of 32 bytes in hexadecimal digits or Base64. The first one seals, all of them open.",
            minItems=1,
            uniqueItems=True,
        ),
    ]
    inner: Annotated[
        Inner | None, desc("Where the processes reach each other. Default: they do not; the fleet is one process.")
    ] = None

    @property
    def secrets(self) -> tuple[bytes, ...]:
        """The bytes of the keys."""
        return tuple(bytes.fromhex(key.reveal()) for key in self.keys)
