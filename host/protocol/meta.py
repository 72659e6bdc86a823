"""`_meta`: which of its members are passed on and which belong to one connection (2025-11-25, "General fields /
_meta").

Each connection has its own progress tokens. Members under `io.modelcontextprotocol/` describe one connection in
2026-07-28 and are never passed on. Everything else, such as vendor keys, is passed on unchanged, and so is trace
context, unless the host takes part in traces (`trace_context.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Raw

from host.errors import InvalidParams
from host.jsonrpc.messages import Id
from host.jsonrpc.raw import (
    EMPTY_OBJECT,
    NULL,
    encode,
    encode_object,
    is_object,
    may_contain_word,
    members,
    value,
)
from host.jsonrpc.twins import fold_name
from host.protocol.links import PAGE_KEYS

META = "_meta"
PROGRESS_TOKEN = "progressToken"
HOP_PREFIX = "io.modelcontextprotocol/"
OWN_PREFIX = "colonnade/"
"""Prefix of the keys that Colonnade itself sets."""
_FOLDED_TOKEN = fold_name(PROGRESS_TOKEN)
_PAGES = frozenset(map(fold_name, ("ui", *PAGE_KEYS)))
"""Keys that name a page of MCP Apps."""
_OF_ANOTHER_RESULT = ("resultType", "inputRequests", "requestState")
"""Members that make a result a request to the client, for a reader that does not look at its type (2026-07-28)."""
_HOP_WORDS = (_FOLDED_TOKEN.encode(), HOP_PREFIX.encode())


def progress_token(params: Mapping[str, Raw]) -> Id | None:
    """The progress token of a request, or None if the requester wants no progress.

    Raises:
        InvalidParams: the token is neither a string nor an integer, or `_meta` is not an object.
    """
    meta = params.get(META)
    # A stateless request has an empty one, if its envelope was all.
    if meta is None or meta == EMPTY_OBJECT or not may_contain_word(meta, PROGRESS_TOKEN):
        return None
    try:
        found = members(meta).get(PROGRESS_TOKEN)
        token = None if found is None else value(found)
    except ValueError:
        raise InvalidParams("_meta is not an object") from None
    if found is None:
        return None
    if type(token) is int or isinstance(token, str):
        return token
    raise InvalidParams("the progress token is neither a string nor an integer")


def increased_progress(report: Mapping[str, Raw], last: float) -> float | None:
    """The value of a report of progress, if it is a number greater than that of the last report under its token, as it
    must be (2025-11-25, "Progress Flow"); otherwise None."""
    try:
        progress = value(report["progress"])
    except (ValueError, KeyError):
        return None
    if isinstance(progress, bool) or not isinstance(progress, int | float) or progress <= last:
        return None
    return progress


def prepare_for_next_hop(params: dict[str, Raw], token: Id | None) -> None:
    """Replace the progress token in `params` by `token` (None removes it), and remove the members of the connection
    that they came by, also what only some readers take for a progress token.

    Raises:
        InvalidParams: `_meta` is not an object.
    """
    meta = params.get(META)
    if meta is None or meta == NULL:  # as for the Python SDK's server
        params.pop(META, None)
        if token is not None:
            params[META] = encode({PROGRESS_TOKEN: token})
        return
    if not is_object(meta):
        raise InvalidParams("_meta is not an object")
    if token is None and not _may_have_hop_fields(bytes(meta)):
        return
    kept = end_to_end_fields(params)
    if token is not None:
        kept[PROGRESS_TOKEN] = encode(token)
    params[META] = encode_object(kept)


def with_progress_token(params: Raw | None, token: int | None) -> Raw | None:
    """The params of a request of Colonnade's own, with a progress token unless that is None."""
    if token is None:
        return params
    changed = members(params or EMPTY_OBJECT)
    prepare_for_next_hop(changed, token)
    return encode_object(changed)


def without_hop_fields(params: Mapping[str, Raw]) -> dict[str, Raw]:
    """The params of a server request without the members of `_meta` that belong to the server's connection, and without
    `_meta` if it has no others: for a client that gets the server request later than the server sent it.

    Raises:
        InvalidParams: `_meta` is not an object.
    """
    adapted = dict(params)
    prepare_for_next_hop(adapted, None)
    if META in adapted and not members(adapted[META]):
        del adapted[META]
    return adapted


def end_to_end_fields(params: Mapping[str, Raw]) -> dict[str, Raw]:
    """The members of `_meta` that are passed on.

    Raises:
        InvalidParams: `_meta` is not an object.
    """
    try:
        found = members(params.get(META, EMPTY_OBJECT))
    except ValueError:
        raise InvalidParams("_meta is not an object") from None
    return {name: each for name, each in found.items() if not _is_hop_field(name)}


def _is_ours(folded: str) -> bool:
    return folded in _PAGES or folded.startswith(OWN_PREFIX)


def unknown_members(found: Mapping[str, Raw], known: Collection[str]) -> dict[str, Raw]:
    """The members of a server's result that are passed on where Colonnade makes the result anew: those that it does not
    know, and of `_meta` those that belong to no connection, are not under a key of Colonnade's, and name no page of
    MCP Apps, whose URIs have no meaning there. Nothing that some readers take for a known member, or for a request to
    the client, which no rule has admitted here.

    Args:
        known: the names of the members that are made anew.
    """
    folded = {fold_name(each) for each in (META, *_OF_ANOTHER_RESULT, *known)}
    kept = {name: each for name, each in found.items() if fold_name(name) not in folded}
    meta = found.get(META, EMPTY_OBJECT)
    if is_object(meta):
        fields = end_to_end_fields({META: meta}).items()
        if passed := {name: each for name, each in fields if not _is_ours(fold_name(name))}:
            kept[META] = encode_object(passed)
    return kept


def _is_hop_field(name: str) -> bool:
    """Whether the name belongs to the connection. A server that took another member for the progress token, as some
    readers do, would report to the call of another client."""
    return name.startswith(HOP_PREFIX) or fold_name(name) == _FOLDED_TOKEN


def _may_have_hop_fields(meta: bytes) -> bool:
    text = meta.lower()
    return any(word in text for word in _HOP_WORDS) or b"\\" in text or not text.isascii()
