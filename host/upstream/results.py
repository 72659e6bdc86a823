"""Checks of results of servers: preparing the result of a call for clients, and splitting a page of a list.

Both may be as long as a message, so these functions also run in other processes (`host/worker.py`). This file therefore
imports little.
"""

from __future__ import annotations

from contextlib import suppress

from msgspec import Raw, Struct
from msgspec.json import Decoder

from host.jsonrpc.outline import outline
from host.jsonrpc.raw import DECODE_ERRORS, encode, encode_object, items, members, pick, unless_null, value
from host.jsonrpc.readable import why_unreadable_result
from host.jsonrpc.strict import LIGHT_TOKENS, count_tokens_outside_strings, has_more_tokens, is_heavy
from host.sanitize import is_light, sanitize_json

MAX_UNSTRUCTURED_TOKENS = 10_000
"""Structural characters of a result, not counting `structuredContent`, which is never decoded here."""
MAX_PAGE_TOKENS = 1_000_000
"""Structural characters of a page."""
MAX_PAGE_REST = 64 * 1024
"""Bytes of a page, not counting its entries."""

_STRUCTURED = frozenset({"structuredContent"})


def prepare_at_once(result: Raw, outlined: Raw, *, sanitizes: bool) -> tuple[str | None, bytes | None] | None:
    """`prepare_result`; None if it may take more than a few milliseconds. `outlined`: the outline of the result."""
    if (len(outlined) > LIGHT_TOKENS and is_heavy(outlined)) or (sanitizes and not is_light(bytes(result))):
        return None
    return _prepared(result, outlined, sanitizes)


def prepare_result(result: Raw, *, sanitizes: bool) -> tuple[str | None, bytes | None]:
    """Check and sanitize a result.

    Args:
        sanitizes: remove invisible characters from its texts.

    Returns:
        The reason why the result cannot be passed on, or None; and the changed result, or None if it is unchanged.
    """
    return _prepared(result, outline(result), sanitizes)


def _prepared(result: Raw, outlined: Raw, sanitizes: bool) -> tuple[str | None, bytes | None]:
    why = why_unreadable_result(outlined)
    if why is None and len(outlined) > MAX_UNSTRUCTURED_TOKENS and _has_too_many_tokens(bytes(outlined)):
        why = f"it has more than {MAX_UNSTRUCTURED_TOKENS} structural characters besides structuredContent"
    if why is not None or not sanitizes:
        return why, None
    try:
        sanitized = sanitize_json(bytes(result))
    except ValueError as problem:
        return str(problem), None
    return None, None if sanitized == bytes(result) else sanitized


def _has_too_many_tokens(result: bytes) -> bool:
    if not has_more_tokens(result, MAX_UNSTRUCTURED_TOKENS):
        return False
    structured = pick(result, _STRUCTURED).get("structuredContent", b"")
    return (
        count_tokens_outside_strings(result) - count_tokens_outside_strings(bytes(structured)) > MAX_UNSTRUCTURED_TOKENS
    )


class _ToolResult(Struct, gc=False, rename="camel"):
    is_error: object = False


_tool_result = Decoder(_ToolResult)


def is_error(result: Raw) -> bool:
    """Whether the result of a tool, or its outline, says that the call failed. One that is no object says nothing."""
    try:
        return _tool_result.decode(result).is_error is True
    except DECODE_ERRORS:  # also half of a surrogate pair, which is passed on
        with suppress(ValueError):
            return bytes(members(result).get("isError", b"")).strip() == b"true"
        return False


def text_in(result: Raw) -> str:
    """The blocks of text in the result of a tool, on lines of their own; empty if it has none that can be read."""
    try:
        blocks = value(members(result)["content"])
    except (KeyError, ValueError):
        return ""
    texts = (each.get("text") for each in blocks if isinstance(each, dict)) if isinstance(blocks, list) else ()
    return "\n".join(each for each in texts if isinstance(each, str))


def with_text(result: Raw, text: str) -> Raw:
    """The result of a tool with one more block of text at the end of its content; unchanged if it has no content."""
    found = members(result)
    try:
        blocks: list[object] = list(items(found["content"]))
    except (KeyError, ValueError):
        return result
    return encode_object({**found, "content": encode([*blocks, {"type": "text", "text": text}])})


def split_page(page: Raw, member: str, max_entries: int) -> tuple[list[bytes] | None, bytes]:
    """The entries in the member `member` of a page, at most `max_entries`, and an object of all other members. None if
    the page has no such member, or null, which Go writes for an empty list.

    Raises:
        ValueError: the page is not an object, the member is not an array, or a limit is exceeded.
    """
    if has_more_tokens(bytes(page), MAX_PAGE_TOKENS):
        raise ValueError(f"a page has more than {MAX_PAGE_TOKENS} structural characters")
    page_members = members(page)
    found = unless_null(page_members.pop(member, None))
    entries = None if found is None else items(found)
    rest = bytes(encode_object(page_members))
    if len(rest) > MAX_PAGE_REST:
        raise ValueError(f"a page has more than {MAX_PAGE_REST} bytes besides its entries")
    return None if entries is None else [bytes(each) for each in entries[:max_entries]], rest
