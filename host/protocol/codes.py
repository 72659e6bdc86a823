"""What servers mean by their error codes, which differ between revisions and between libraries, and which of them a
client may get.

Sources: 2025-11-25, "Resources / Error Handling"; 2026-07-28, "Error Codes"; JSON-RPC 2.0, section 5.1. The libraries'
habits were read off the answers of servers in the field: an unknown resource is -32002 by the specification, -32602 by
the TypeScript library, 0 by the Python one, -32603 by the Kotlin one.
"""

from __future__ import annotations

import re

from msgspec import Raw

from host.errors import ColonnadeError, MissingAbility, ResourceNotFound, ServerErrorResponse
from host.jsonrpc.messages import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, ErrorBody
from host.jsonrpc.raw import encode, is_object, members, string

_HOP_LOCAL = range(-32029, -32019)
"""Between two neighbours only, in the stateless revision: headers, capabilities, versions. A client that got one from
behind us would believe that it is at odds with us, and might begin anew for ever."""
_ASSIGNED = range(-32099, -32019)
"""What the stateless revision keeps for itself. Of all that it says, only what capability is missing is for whoever
stands behind us too: the capabilities that a server is told are the client's."""
_NO_CODE = 0
_NOT_FOUND = re.compile(r"\b(not found|unknown resource|no such|does not exist)\b", re.IGNORECASE)


def means_not_found(refusal: ServerErrorResponse, uri: str) -> bool:
    """Whether a server's refusal to read says that there is no such resource. -32002 says so by definition; with
    -32602 only the URI in it tells; with codes that say nothing, its words must."""
    if refusal.code == ResourceNotFound.code:
        return True
    names_it = uri in refusal.message or uri_in(refusal.data) == uri
    if refusal.code == INVALID_PARAMS:
        return names_it
    return refusal.code in (_NO_CODE, INTERNAL_ERROR) and _NOT_FOUND.search(refusal.message) is not None


def as_relayed(refusal: ServerErrorResponse) -> ServerErrorResponse:
    """The refusal as a client of a session may have it: what it says about the hop behind us becomes an internal error,
    with the data that says what it was."""
    if refusal.code in _HOP_LOCAL:
        return ServerErrorResponse(refusal.server, INTERNAL_ERROR, refusal.message, refusal.data)
    return refusal


def as_stateless_error(error: ColonnadeError) -> ErrorBody:
    """An error as a client of the stateless revision may have it. What a server says in codes that this revision has no
    place for, or that would be about us, becomes an internal error whose data holds the server's code (`upstreamCode`)
    and data (`upstream`)."""
    if isinstance(error, ResourceNotFound):
        return ErrorBody(INVALID_PARAMS, error.message, error.data)
    if isinstance(error, ServerErrorResponse):
        if error.code == METHOD_NOT_FOUND:  # we serve the method: what is missing is its server's part in it
            return ErrorBody(INTERNAL_ERROR, f"not supported by {error.server}", _wrapped(error))
        says_what = error.code == MissingAbility.code and _requires(error.data)
        if error.code == ResourceNotFound.code or (error.code in _ASSIGNED and not says_what):
            return ErrorBody(INTERNAL_ERROR, error.message, _wrapped(error))
    return ErrorBody(error.code, error.message, error.data)


def _requires(data: Raw | None) -> bool:
    """Whether the data of an error says which capabilities are required."""
    try:
        return is_object(members(data or b"")["requiredCapabilities"])
    except (ValueError, KeyError):
        return False


def _wrapped(refusal: ServerErrorResponse) -> Raw:
    made: dict[str, object] = {"upstreamCode": refusal.code}
    if refusal.data is not None:
        made["upstream"] = refusal.data
    return encode(made)


def uri_in(data: Raw | None) -> str | None:
    """The URI that the data of an error names, if it does."""
    try:
        return None if data is None else string(members(data)["uri"])
    except (ValueError, KeyError):
        return None
