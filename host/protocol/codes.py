"""What servers mean by their error codes, which differ between revisions and between libraries.

Source: 2025-11-25, "Resources / Error Handling"; JSON-RPC 2.0, section 5.1. The libraries' habits were read off the
answers of servers in the field: an unknown resource is -32002 by the specification, -32602 by the TypeScript library, 0
by the Python one, -32603 by the Kotlin one.
"""

from __future__ import annotations

import re

from msgspec import Raw

from host.errors import Refused, ResourceNotFound
from host.jsonrpc.messages import INTERNAL_ERROR, INVALID_PARAMS
from host.jsonrpc.raw import members, string

_HOP_LOCAL = range(-32029, -32019)
"""Between two neighbours only, in a later revision: headers, capabilities, versions. A client that got one from behind
us would believe that it is at odds with us, and might begin anew for ever."""
_NO_CODE = 0
_NOT_FOUND = re.compile(r"\b(not found|unknown resource|no such|does not exist)\b", re.IGNORECASE)


def means_not_found(refusal: Refused, uri: str) -> bool:
    """Whether a server's refusal to read says that there is no such resource. -32002 says so by definition; with
    -32602 only the URI in it tells; with codes that say nothing, its words must."""
    if refusal.code == ResourceNotFound.code:
        return True
    names_it = uri in refusal.message or uri_in(refusal.data) == uri
    if refusal.code == INVALID_PARAMS:
        return names_it
    return refusal.code in (_NO_CODE, INTERNAL_ERROR) and _NOT_FOUND.search(refusal.message) is not None


def relayed(refusal: Refused) -> Refused:
    """The refusal as a client may have it: what it says about the hop behind us becomes an internal error."""
    if refusal.code in _HOP_LOCAL:
        return Refused(refusal.server, INTERNAL_ERROR, refusal.message, refusal.data)
    return refusal


def uri_in(data: Raw | None) -> str | None:
    """The URI that the data of an error names, if it does."""
    try:
        return None if data is None else string(members(data)["uri"])
    except (ValueError, KeyError):
        return None
