"""Error codes of servers: their meaning, which differs between revisions and libraries, and their translation for
clients.

Sources: 2025-11-25, "Resources / Error Handling"; 2026-07-28, "Error Codes"; JSON-RPC 2.0, section 5.1. Servers in the
field return four codes for an unknown resource: -32002 by the specification, -32602 from the TypeScript library, 0 from
the Python one, -32603 from the Kotlin one.
"""

from __future__ import annotations

import re

from msgspec import Raw

from host.errors import ColonnadeError, MissingAbility, ResourceNotFound, ServerErrorResponse
from host.jsonrpc.messages import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, ErrorBody
from host.jsonrpc.raw import encode, is_object, members_if_object, text_below

_HOP_LOCAL = range(-32029, -32019)
"""Codes of 2026-07-28 about one connection: headers, capabilities, versions. A client that got such a code of a server
would take it for an error of its own connection to Colonnade, and might negotiate again without end."""
_ASSIGNED = range(-32099, -32019)
"""Codes that 2026-07-28 reserves for itself. Only a missing capability is passed on to stateless clients, because the
capabilities in a request to a server are those of its client."""
_NO_CODE = 0
_NOT_FOUND = re.compile(r"\b(not found|unknown resource|no such|does not exist)\b", re.IGNORECASE)


def means_not_found(refusal: ServerErrorResponse, uri: str) -> bool:
    """Whether an error of a server means that the resource does not exist: by its code (-32002), by the URI in it
    (-32602), or by its text (0 and -32603, which libraries use for any error)."""
    if refusal.code == ResourceNotFound.code:
        return True
    names_it = uri in refusal.message or uri_in(refusal.data) == uri
    if refusal.code == INVALID_PARAMS:
        return names_it
    return refusal.code in (_NO_CODE, INTERNAL_ERROR) and _NOT_FOUND.search(refusal.message) is not None


def as_relayed(refusal: ServerErrorResponse) -> ServerErrorResponse:
    """The error for a client with a session. A code that concerns only the connection to the server becomes an internal
    error with the same message and data."""
    if refusal.code in _HOP_LOCAL:
        return ServerErrorResponse(refusal.server, INTERNAL_ERROR, refusal.message, refusal.data)
    return refusal


def as_stateless_error(error: ColonnadeError) -> ErrorBody:
    """The error for a stateless client. A server's code that 2026-07-28 reserves, or that would be read as an error of
    Colonnade, becomes an internal error whose data has the server's code (`upstreamCode`) and data (`upstream`)."""
    if isinstance(error, ResourceNotFound):
        return ErrorBody(INVALID_PARAMS, error.message, error.data)
    if isinstance(error, ServerErrorResponse):
        # Over HTTP, -32601 has the status 404, which would say that Colonnade does not have the method (2026-07-28,
        # "Streamable HTTP").
        if error.code == METHOD_NOT_FOUND:
            return ErrorBody(INTERNAL_ERROR, f"not supported by {error.server}: {error.message}", _wrapped(error))
        names_capability = error.code == MissingAbility.code and required_capabilities(error.data) is not None
        if error.code == ResourceNotFound.code or (error.code in _ASSIGNED and not names_capability):
            return ErrorBody(INTERNAL_ERROR, error.message, _wrapped(error))
    return ErrorBody(error.code, error.message, error.data)


def required_capabilities(data: Raw | None) -> Raw | None:
    """The capabilities that the data of an error requires of a client, or None."""
    required = members_if_object(data).get("requiredCapabilities")
    return required if required is not None and is_object(required) else None


def _wrapped(refusal: ServerErrorResponse) -> Raw:
    made: dict[str, object] = {"upstreamCode": refusal.code}
    if refusal.data is not None:
        made["upstream"] = refusal.data
    return encode(made)


def uri_in(data: Raw | None) -> str | None:
    """The URI that the data of an error names, or None."""
    return text_below(data, "uri")
