"""Renaming of resource URIs in results and definitions, at the places where the protocol has them and nowhere else.

The places (2025-11-25, "Tool Result", "Resource Contents", "PromptMessage"; MCP Apps 2026-01-26): `uri` of a
`resource_link`, `resource.uri` of an embedded `resource`, `contents[].uri`, and the page that a tool names in
`_meta.ui.resourceUri` or `_meta["ui/resourceUri"]`. Text and structured content are never searched.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import is_

from msgspec import Raw

from host.jsonrpc.raw import encode, encode_object, is_object, items, may_contain_word, members, string

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
            found[head] = _change_at(before, tuple(rest), lambda content: rename_in_content(content, rename))
            changed = changed or found[head] is not before
    changed = rename_page(found, rename) or changed
    return encode_object(found) if changed else result


def rename_in_content(content: Raw, rename: Rename) -> Raw:
    """One content block or one resource content, renamed; a value of any other shape is returned unchanged."""
    try:
        found = members(content)
    except ValueError:
        return content
    changed = _rename_member(found, "uri", rename)
    if "resource" in found:
        try:
            inner = members(found["resource"])
        except ValueError:
            return encode_object(found) if changed else content
        if _rename_member(inner, "uri", rename):
            found["resource"] = encode_object(inner)
            changed = True
    return encode_object(found) if changed else content


def _change_at(raw: Raw, place: tuple[str, ...], change: Callable[[Raw], Raw]) -> Raw:
    """`raw` with the value at `place` changed; `raw` itself, not a copy, if nothing changed."""
    if not place:
        return change(raw)
    head, *rest = place
    try:
        if head == "*":
            before = items(raw)
            after = [_change_at(item, tuple(rest), change) for item in before]
            return raw if all(map(is_, before, after)) else encode(after)
        found = members(raw)
    except ValueError:
        return raw
    if head not in found:
        return raw
    inner = _change_at(found[head], tuple(rest), change)
    if inner is found[head]:
        return raw
    found[head] = inner
    return encode_object(found)


def rename_page(found: dict[str, Raw], rename: Rename) -> bool:
    """Rename the page that a tool's definition or result names in its `_meta`, in place. Returns whether it had one."""
    if "_meta" not in found or not may_contain_word(found["_meta"], *_OF_PAGES):
        return False
    try:
        meta = members(found["_meta"])
    except ValueError:
        return False
    changed = False
    for name in PAGE_KEYS:
        changed = _rename_member(meta, name, rename) or changed
    if "ui" in meta and is_object(meta["ui"]):
        ui = members(meta["ui"])
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
    return _change_at(result, places[0], _without_page_blocks) if may_contain_word(result, _URI) else result


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
    if name not in found:
        return False
    try:
        uri = string(found[name])
    except ValueError:
        return False
    renamed = rename(uri)
    if renamed == uri:
        return False
    found[name] = encode(renamed)
    return True
