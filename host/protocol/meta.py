"""`_meta`: which of its members are passed on and which belong to one connection (2025-11-25, "General fields /
_meta").

Each connection has its own progress tokens. Members under `io.modelcontextprotocol/` describe one connection in
2026-07-28 and are never passed on. Everything else, such as vendor keys and trace context, is passed on unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Raw

from host.errors import InvalidParams
from host.jsonrpc.messages import Id
from host.jsonrpc.raw import EMPTY_OBJECT, encode, encode_object, is_object, may_contain_word, members, value
from host.jsonrpc.twins import fold_name

META = "_meta"
PROGRESS_TOKEN = "progressToken"
HOP_PREFIX = "io.modelcontextprotocol/"
_FOLDED_TOKEN = fold_name(PROGRESS_TOKEN)
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


def prepare_for_next_hop(params: dict[str, Raw], token: Id | None) -> None:
    """Replace the progress token in `params` by `token` (None removes it), and remove the members of the connection
    that they came by, also what only some readers take for a progress token.

    Raises:
        InvalidParams: `_meta` is not an object.
    """
    meta = params.get(META)
    if meta is None:
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


def _is_hop_field(name: str) -> bool:
    """Whether the name belongs to the connection. A server that took another member for the progress token, as some
    readers do, would report to the call of another client."""
    return name.startswith(HOP_PREFIX) or fold_name(name) == _FOLDED_TOKEN


def _may_have_hop_fields(meta: bytes) -> bool:
    text = meta.lower()
    return any(word in text for word in _HOP_WORDS) or b"\\" in text or not text.isascii()
