"""What is passed on of long results, and what is kept of long pages."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Raw

from host import sanitize
from host.jsonrpc.outline import MAX_OBJECTS, outline_soon
from host.jsonrpc.strict import is_heavy
from host.upstream.results import (
    MAX_PAGE_REST,
    MAX_PAGE_TOKENS,
    MAX_UNSTRUCTURED_TOKENS,
    is_error,
    prepare_at_once,
    prepare_result,
    split_page,
)

INVISIBLE = "\u200b"


def raw(thing: Any) -> Raw:
    return Raw(json.dumps(thing).encode())


def plainly(thing: Any) -> Raw:
    """As encoders of servers write it, so that it is outlined."""
    return Raw(json.dumps(thing, separators=(",", ":")).encode())


MANY = {str(number): 1 for number in range(MAX_UNSTRUCTURED_TOKENS + 1)}


@pytest.mark.parametrize(
    ("result", "cleans", "heavy"),
    [
        ({"content": []}, True, False),
        ({"content": [{"text": "x" * 100_000}]}, True, False),
        ({"content": [{"text": "x" * 140_000}]}, False, True),
        ({"content": [0] * 5001}, False, True),
        ({"content": [{"text": INVISIBLE * 20_000}]}, True, True),
        ({"content": [{"text": INVISIBLE * 20_000}]}, False, False),
        ({"content": [INVISIBLE] * 1001}, True, True),
    ],
)
def test_which_results_are_heavy(result: Any, cleans: bool, heavy: bool) -> None:
    assert (prepare_at_once(raw(result), outline_soon(raw(result)), sanitizes=cleans) is None) is heavy


@pytest.mark.parametrize(
    ("text", "heavy"),
    [
        ("x" * 1_000_000, False),
        ("if (a[0], b) {" * 1000, False),
        ("{" * (MAX_OBJECTS // 3), False),
        ("{" * 200_000, True),
    ],
)
def test_a_long_text_is_light_unless_it_may_be_full_of_objects(text: str, heavy: bool) -> None:
    result = plainly({"content": [{"type": "text", "text": text}], "structuredContent": {"result": text}})
    assert prepare_at_once(result, outline_soon(result), sanitizes=False) == (None if heavy else (None, None))


@pytest.mark.parametrize(
    ("result", "why"),
    [
        ({"content": []}, None),
        (MANY, "it has more than 10000 structural characters besides structuredContent"),
        ({"_meta": MANY}, "it has more than 10000 structural characters besides structuredContent"),
        (
            {"content": [{}] * (MAX_UNSTRUCTURED_TOKENS // 2 + 1)},
            "it has more than 10000 structural characters besides",
        ),
        ({"structuredContent": MANY, "content": []}, None),
        ({"content": [{"type": "text", "text": "," * 3 * MAX_UNSTRUCTURED_TOKENS}]}, None),
        ({"content": [{"type": "text", "text": "\ud800"}]}, "an escape stands for half a surrogate pair"),
    ],
)
@pytest.mark.parametrize("cleans", [True, False])
@pytest.mark.parametrize("written", [raw, plainly])
def test_which_results_are_passed_on(written: Callable[[Any], Raw], result: Any, why: str | None, cleans: bool) -> None:
    said, fit = prepare_result(written(result), sanitizes=cleans)
    assert fit is None
    assert said is None if why is None else said is not None and said.startswith(why)


def test_a_result_is_cleaned_where_that_is_wanted() -> None:
    result = raw({"content": [{"type": "text", "text": f"a{INVISIBLE}b"}]})
    assert prepare_result(result, sanitizes=False) == (None, None)
    why, fit = prepare_result(result, sanitizes=True)
    assert why is None
    assert fit is not None
    assert json.loads(fit) == {"content": [{"type": "text", "text": "ab"}]}


def test_a_page_is_opened() -> None:
    entries, beside = split_page(raw({"tools": [{"name": "a"}, 1, "x"], "nextCursor": "2", "ttlMs": 5}), "tools", 2)
    assert entries is not None
    assert list(map(json.loads, entries)) == [{"name": "a"}, 1]
    assert json.loads(beside) == {"nextCursor": "2", "ttlMs": 5}
    assert split_page(raw({"tools": None}), "tools", 2) == (None, b"{}")
    assert split_page(raw({"nextCursor": None}), "tools", 2) == (None, b'{"nextCursor":null}')


@pytest.mark.parametrize(
    ("page", "why"),
    [
        (Raw(b"[]"), "expected an object"),
        (raw({"tools": {}}), "expected an array"),
        (Raw(b'{"tools":[%b1]}' % (b"1," * MAX_PAGE_TOKENS)), "more than 1000000 structural characters"),
        (raw({"tools": [], "x": "x" * MAX_PAGE_REST}), "more than 65536 bytes besides its entries"),
    ],
)
def test_what_is_no_page(page: Raw, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        split_page(page, "tools", 10)


def test_which_pages_are_heavy() -> None:
    assert not is_heavy(raw({"tools": [0] * 1000}))
    assert is_heavy(raw({"tools": [0] * 5001}))
    assert is_heavy(raw({"tools": ["x" * 140_000]}))


@pytest.mark.parametrize(("more", "reason"), [(0, None), (1, "more than 50 texts of it hold characters")])
def test_only_so_many_texts_of_a_result_are_cleaned(more: int, reason: str | None, monkeypatch: Any) -> None:
    """Each takes some 20 microseconds, and a result may hold a million of them."""
    monkeypatch.setattr(sanitize, "MAX_CHANGED", 50)
    result = raw({"content": [], "structuredContent": ["a", *["\u200b"] * (50 + more)]})
    why, fit = prepare_result(result, sanitizes=True)
    assert (why or "")[: len(reason or "")] == (reason or "")
    assert fit == (None if reason else bytes(raw({"content": [], "structuredContent": ["a", *[""] * 50]})))
    assert prepare_result(result, sanitizes=False) == (None, None)


@pytest.mark.parametrize(
    ("result", "failed"),
    [
        (b'{"content":[],"isError":true}', True),
        (b'{"content":[],"isError":false}', False),
        (b'{"content":[{"isError":true}]}', False),
        (b"null", False),
        (b'["isError"]', False),
        (b'{"\\u0069sError":true}', True),
        (b'{"text":"\\u00e9"}', False),
        (b'{"text":"\\ud800","isError":true}', True),
        (b"{", False),
    ],
)
def test_a_tool_failed_only_if_its_result_is_an_object_that_says_so(result: bytes, failed: bool) -> None:
    assert is_error(Raw(result)) is failed
