"""Renaming of resource URIs in results and definitions, at the places where the protocol has them and nowhere else.

The places (2025-11-25, "Tool Result", "Resource Contents", "PromptMessage"; MCP Apps 2026-01-26): `uri` of a
`resource_link`, `resource.uri` of an embedded `resource`, `contents[].uri`, and the page that a tool names in
`_meta.ui.resourceUri` or `_meta["ui/resourceUri"]`. Text and structured content are never searched.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Raw

from host.jsonrpc.raw import (
    change_at,
    encode,
    encode_object,
    is_object,
    may_contain_word,
    members,
    members_if_object,
    string,
    text_at,
)

PAGE = "ui://"
"""Scheme of the URIs of pages (MCP Apps)."""

_URI = '"uri"'
PAGE_KEYS = ("ui/resourceUri", "openai/outputTemplate")
"""Members of `_meta` whose value is the URI of a page: the one of an earlier MCP Apps, and the one of another host."""
_OF_PAGES = ("esourceUri", "openai/outputTemplate")
"""Words that text with a page contains. `esourceUri` is common to `resourceUri` and `ui/resourceUri`."""

Rename = Callable[[str], str]
"""Maps a URI of one side to the URI of the other side."""


def rename_in_result(result: Raw, places: tuple[tuple[str, ...], ...], rename: Rename, outlined: Raw) -> Raw:
    """The result with every resource URI at `places` and every page in its `_meta` renamed, all other bytes unchanged.

    Args:
        outlined: the outline of the result.

    Raises:
        ValueError: the result is not an object.
    """
    if not may_contain_word(outlined, _URI, *_OF_PAGES):  # most results have no URI and are not decoded
        if not is_object(result):
            raise ValueError("expected an object")
        return result
    found = members(result)
    changed = False
    for head, *rest in places:
        if head in found:
            before = found[head]
            found[head] = change_at(before, tuple(rest), lambda content: rename_in_content(content, rename))
            changed = changed or found[head] is not before
    changed = rename_page(found, rename) or changed
    return encode_object(found) if changed else result


def rename_in_content(content: Raw, rename: Rename) -> Raw:
    """One content block or one resource content, renamed; a value of any other shape is returned unchanged."""
    found = members_if_object(content)
    changed = _rename_member(found, "uri", rename)
    inner = members_if_object(found.get("resource"))
    if _rename_member(inner, "uri", rename):
        found["resource"] = encode_object(inner)
        changed = True
    return encode_object(found) if changed else content


def rename_page(found: dict[str, Raw], rename: Rename) -> bool:
    """Rename the page that a tool's definition or result names in its `_meta`, in place. Returns whether it had one."""
    if "_meta" not in found or not may_contain_word(found["_meta"], *_OF_PAGES):
        return False
    meta = members_if_object(found["_meta"])
    changed = False
    for name in PAGE_KEYS:
        changed = _rename_member(meta, name, rename) or changed
    ui = members_if_object(meta.get("ui"))
    if _rename_member(ui, "resourceUri", rename):
        meta["ui"] = encode_object(ui)
        changed = True
    if changed:
        found["_meta"] = encode_object(meta)
    return changed


def without_page(raw: Raw) -> Raw:
    """A tool's definition or result without the pages that its `_meta` names; `raw` itself if it names none.

    Raises:
        ValueError: `raw` is not an object.
    """
    if not may_contain_word(raw, *_OF_PAGES, '"ui"'):
        return raw
    found = members(raw)
    if "_meta" not in found or not is_object(found["_meta"]):
        return raw
    meta = {name: each for name, each in members(found["_meta"]).items() if name not in ("ui", *PAGE_KEYS)}
    return encode_object({**found, "_meta": encode_object(meta)})


def without_pages(result: Raw, places: tuple[tuple[str, ...], ...]) -> Raw:
    """A result without the pages that its `_meta` names. Pages that its content at `places` contains or links to are
    replaced by a text that says so.

    Raises:
        ValueError: `result` is not an object.
    """
    result = without_page(result)
    return change_at(result, places[0], _without_page_blocks) if may_contain_word(result, _URI) else result


def _without_page_blocks(content: Raw) -> Raw:
    try:
        found = members(content)
        named = [members(found["resource"])] if "resource" in found else [found]
        pages = [each for each in named if string(each["uri"])[: len(PAGE)].lower() == PAGE]
    except (ValueError, KeyError):
        return content
    if not pages:
        return content
    left_out = encode("[a page that is not shown, since its server is untrusted]")
    if "type" in found:
        return encode_object({"type": encode("text"), "text": left_out})
    return encode_object({"uri": found["uri"], "text": left_out})


def _rename_member(found: dict[str, Raw], name: str, rename: Rename) -> bool:
    uri = text_at(found, name)
    renamed = None if uri is None else rename(uri)
    if renamed is None or renamed == uri:
        return False
    found[name] = encode(renamed)
    return True
