"""`_meta`: which of its members cross Colonnade and which belong to one hop (2025-11-25, "General fields / _meta").

The progress token is the asker's; each hop has its own. Members under `io.modelcontextprotocol/` describe one hop of
the stateless revision and are never passed on. Everything else, vendor keys and trace context alike, passes untouched.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Raw

from host.errors import InvalidParams
from host.jsonrpc.messages import Id
from host.jsonrpc.raw import EMPTY_OBJECT, encode, encode_object, is_object, may_contain_word, members, value

META = "_meta"
PROGRESS_TOKEN = "progressToken"
HOP_PREFIX = "io.modelcontextprotocol/"


def progress_token(params: Mapping[str, Raw]) -> Id | None:
    """The token the asker wants progress under, or None if it wants none.

    Raises:
        InvalidParams: the token is neither a string nor an integer, or `_meta` is no object.
    """
    meta = params.get(META)
    if meta is None or not may_contain_word(meta, PROGRESS_TOKEN):
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
    """Make `params` fit for the server: its own progress token (or none), and nothing of the hop it came from.

    Raises:
        InvalidParams: `_meta` is no object.
    """
    meta = params.get(META)
    if meta is None:
        if token is not None:
            params[META] = encode({PROGRESS_TOKEN: token})
        return
    if not is_object(meta):
        raise InvalidParams("_meta is not an object")
    if token is None and not may_contain_word(meta, PROGRESS_TOKEN, HOP_PREFIX):
        return
    kept = end_to_end_fields(params)
    if token is not None:
        kept[PROGRESS_TOKEN] = encode(token)
    params[META] = encode_object(kept)


def without_hop_fields(params: Mapping[str, Raw]) -> dict[str, Raw]:
    """The params of a question for a client that is asked outside of any request of the server's: without what belongs
    to that request, and without a `_meta` that holds nothing else.

    Raises:
        InvalidParams: `_meta` is no object.
    """
    fitted = dict(params)
    prepare_for_next_hop(fitted, None)
    if META in fitted and not members(fitted[META]):
        del fitted[META]
    return fitted


def end_to_end_fields(params: Mapping[str, Raw]) -> dict[str, Raw]:
    """The members of `_meta` that do not end with the hop they came on.

    Raises:
        InvalidParams: `_meta` is no object.
    """
    try:
        found = members(params.get(META, EMPTY_OBJECT))
    except ValueError:
        raise InvalidParams("_meta is not an object") from None
    return {name: each for name, each in found.items() if name != PROGRESS_TOKEN and not name.startswith(HOP_PREFIX)}
