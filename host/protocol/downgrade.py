"""Translation of results and definitions for clients of earlier revisions.

Clients ignore members that they do not know, but refuse a whole result with an unknown content type. So content types
are translated, structured content becomes text if the result has no text, and everything else keeps its bytes. Sources:
"ContentBlock", "CallToolResult", "PromptMessage" and "Tool" of the schemas of 2024-11-05 to 2026-07-28.
"""

from __future__ import annotations

import re

from msgspec import Raw

from host.jsonrpc.raw import (
    NULL,
    change_at,
    encode,
    encode_object,
    is_object,
    items,
    may_contain_word,
    members,
    members_if_object,
    text_at,
    text_below,
    unless_null,
)
from host.protocol.abilities import Abilities
from host.protocol.methods import PROMPTS_GET, TARGETED, TOOLS_CALL

_EMPTY = re.compile(rb"\[\s*\]")


def downgrade_result(method: str, result: Raw, abilities: Abilities, outlined: Raw) -> Raw:
    """The result of `method`, an object, translated for a client with these abilities; `result` itself if the client
    can read it unchanged.

    URIs must already have their outward form, because the URIs that are made here (`audio:1`) belong to no server.

    Args:
        outlined: the outline of the result, with URIs in any form.
    """
    if abilities.needs_no_downgrade:
        return result
    if method == TOOLS_CALL.name and not abilities.free_structure and may_contain_word(outlined, "structuredContent"):
        result = _with_known_structure(result, abilities)
    if abilities.audio and abilities.resource_links:
        return result
    if not may_contain_word(outlined, *(f'"{kind}"' for kind, known in _kinds(abilities) if not known)):
        return result
    if method not in (TOOLS_CALL.name, PROMPTS_GET.name):
        return result
    (place,) = TARGETED[method].links
    return change_at(result, place, _Blocks(abilities).downgrade)


def downgrade_definition(raw: bytes, *, icons: bool, structured: bool = True, tasks: bool = True) -> bytes:
    """A definition, an object, without the members that a client cannot use; `raw` itself if it has none.

    Args:
        icons: the revision has icons. Some clients of the revision before refuse a list with `sizes` in them (measured:
            TypeScript SDK 1.18).
        structured: of a tool: the client reads structured content; otherwise `outputSchema` is left out.
        tasks: of a tool: the client is served tasks; otherwise `execution` is left out.
    """
    wanted = {"icons": icons, "outputSchema": structured, "execution": tasks}
    unwanted = [name for name, is_wanted in wanted.items() if not is_wanted]
    if not unwanted or not may_contain_word(raw, *(f'"{name}"' for name in unwanted)):
        return raw
    found = members(raw)
    kept = {name: each for name, each in found.items() if name not in unwanted}
    return raw if len(kept) == len(found) else bytes(encode_object(kept))


def _kinds(abilities: Abilities) -> tuple[tuple[str, bool], ...]:
    """The content types that not every revision has, and whether this client has them."""
    return ("audio", abilities.audio), ("resource_link", abilities.resource_links)


class _Blocks:
    """Translator of the content blocks of one result. Counts the audio blocks, each of which gets its own URI."""

    def __init__(self, abilities: Abilities) -> None:
        self._abilities = abilities
        self._made = 0

    def downgrade(self, block: Raw) -> Raw:
        found = members_if_object(block)
        kind = text_at(found, "type")
        if kind == "resource_link" and not self._abilities.resource_links:
            return _link_as_text(block, found)
        if kind == "audio" and not self._abilities.audio:
            return self._audio_as_resource(block, found)
        return block

    def _audio_as_resource(self, block: Raw, found: dict[str, Raw]) -> Raw:
        if "data" not in found:
            return _text_block(_json_of(block), found)
        self._made += 1
        inner = {"uri": encode(f"audio:{self._made}")}
        if "mimeType" in found:
            inner["mimeType"] = found["mimeType"]
        inner["blob"] = found["data"]
        return encode_object({"type": encode("resource"), "resource": encode_object(inner), **_common_members(found)})


def _link_as_text(block: Raw, found: dict[str, Raw]) -> Raw:
    name, uri, mime_type = text_at(found, "name"), text_at(found, "uri"), text_at(found, "mimeType")
    if name is None or uri is None:
        return _text_block(_json_of(block), found)
    return _text_block(f"{name}: {uri} ({mime_type})" if mime_type else f"{name}: {uri}", found)


def _with_known_structure(result: Raw, abilities: Abilities) -> Raw:
    """A tool's result without the structured content that the client cannot read. A text block with its JSON is added
    if the result has no text; if the client can read it, only if the result has no content at all: many show content
    alone, and servers should have said it there too (2025-06-18, "Structured Content")."""
    found = members_if_object(result)
    structured = found.get("structuredContent")
    if structured is None:
        return result
    is_known = abilities.structured_content and is_object(structured)
    content = unless_null(found.get("content"))
    if is_known and content is not None and _EMPTY.fullmatch(content) is None:
        return result
    if not is_known:
        del found["structuredContent"]
    try:
        blocks = [] if content is None else items(content)
    except ValueError:
        return encode_object(found)
    if structured != NULL and not any(_is_text(block) for block in blocks):
        found["content"] = encode([*blocks, _text_block(_json_of(structured), {})])
    return encode_object(found)


def _is_text(block: Raw) -> bool:
    return text_below(block, "type") == "text"


def _text_block(text: str, original: dict[str, Raw]) -> Raw:
    return encode_object({"type": encode("text"), "text": encode(text), **_common_members(original)})


def _common_members(found: dict[str, Raw]) -> dict[str, Raw]:
    """The members that content blocks of every type may have."""
    return {name: found[name] for name in ("annotations", "_meta") if name in found}


def _json_of(raw: Raw) -> str:
    return bytes(raw).decode()
