"""Checks of server requests before a person or client sees them. By the server's trust level they refuse or change
forms that ask for secrets, pages whose address is misleading, and sampling requests for more than text.

Source: 2025-11-25, "Elicitation / Security Considerations" (a form MUST NOT ask for sensitive information, clients MUST
show the full URL and highlight its domain) and "Sampling / Security Considerations".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from urllib.parse import urlsplit

from msgspec import Raw

from config import Trust
from host.jsonrpc.messages import INVALID_PARAMS
from host.jsonrpc.raw import encode, members, string
from host.protocol.server_requests import ServerRequest, ServerRequestRejected

MAX_TEXT = 4096
"""Characters of one text in a definition or request of an untrusted server; longer texts are cut."""
MAX_SERVER_REQUEST = 64 * 1024
"""Bytes of a request of a server that is not trusted."""

_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_SECRETS = frozenset(
    [
        "password",
        "passwd",
        "passphrase",
        "pwd",
        "secret",
        "secrets",
        "token",
        "apikey",
        "privatekey",
        "credential",
        "credentials",
        "cvv",
        "cvc",
        "pin",
        "otp",
        "seed",
        "mnemonic",
        "ssn",
        "creditcard",
        "cardnumber",
        "iban",
        "bearer",
        "cookie",
        "sessionid",
        "accesskey",
        "secretkey",
        "authcode",
        "mfa",
        "totp",
        "passwort",
        "kennwort",
    ]
)
_INNOCENT = frozenset({("max", "token"), ("max", "tokens"), ("token", "count"), ("token", "limit")})


def check_server_request(request: ServerRequest, params: Mapping[str, Raw], trust: Trust) -> dict[str, Raw]:
    """The params of a request as they may be forwarded for a server of this trust level.

    Raises:
        ServerRequestRejected: the request may not be forwarded.
    """
    found = dict(params)
    if trust is Trust.TRUSTED:
        return found
    if sum(len(each) for each in found.values()) > MAX_SERVER_REQUEST:
        raise ServerRequestRejected(INVALID_PARAMS, f"a request to the client is at most {MAX_SERVER_REQUEST} bytes")
    if request is ServerRequest.SAMPLING:
        if "tools" in found or "toolChoice" in found:
            raise ServerRequestRejected(INVALID_PARAMS, "its trust level does not let it give the client's model tools")
    elif request is ServerRequest.FORM:
        field = _secret_field(found)
        if field is not None:
            why = f"a form may not ask for secrets, as the field {field[:40]!r} does; a page (mode url) may"
            raise ServerRequestRejected(INVALID_PARAMS, why)
    elif request is ServerRequest.URL:
        try:
            found["message"] = encode(_with_address(string(found["message"]), string(found["url"])))
        except (KeyError, ValueError):
            raise ServerRequestRejected(INVALID_PARAMS, "the address of the page cannot be read") from None
    return found


def _secret_field(params: Mapping[str, Raw]) -> str | None:
    """The name of a form field whose name or title suggests a secret."""
    try:
        fields = members(members(params["requestedSchema"])["properties"])
    except (KeyError, ValueError):
        return None
    for name, schema in fields.items():
        titles = [name]
        try:
            titles += [string(each) for member, each in members(schema).items() if member == "title"]
        except ValueError:
            return name  # a field that cannot be parsed is refused
        if any(names_secret(title) for title in titles):
            return name
    return None


def names_secret(title: str) -> bool:
    """Whether a field of this name asks for a secret, which must not be typed into a form: `apiKey`,
    `user_password`."""
    words = [word.lower() for word in _WORDS.findall(title)]
    pairs = list(pairwise(words))
    if any(pair in _INNOCENT for pair in pairs):
        return False
    joined = [first + second for first, second in pairs]
    return any(word in _SECRETS or word.removesuffix("s") in _SECRETS for word in (*words, *joined))


def _with_address(message: str, url: str) -> str:
    """The message with the page's address, and its host in ASCII form. Raises ValueError if the address is invalid."""
    labels = (urlsplit(url).hostname or "").split(".")
    if all(label.isascii() and not label.startswith("xn--") for label in labels):
        return message
    # Label by label (RFC 3492): the codec for whole names refuses some that browsers take.
    plain = ".".join(each if each.isascii() else f"xn--{each.encode('punycode').decode()}" for each in labels)
    return f"{message}\n(Careful: the host of this page is written with letters that may look like others: {plain})"
