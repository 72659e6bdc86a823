"""Trace context as peers write it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from host.jsonrpc.raw import encode, members
from host.protocol.trace_context import (
    KEYS,
    MAX_BAGGAGE,
    MAX_TRACESTATE,
    TraceContext,
    baggage_in,
    context_in,
    read_context,
    with_context,
)

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
CONTEXT = TraceContext(TRACE, SPAN, True, "a=1", "user=x")


@pytest.mark.parametrize(
    ("written", "sampled"),
    [
        (PARENT, True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"01-{TRACE}-{SPAN}-01-x", True),
    ],
)
def test_what_has_the_form_is_read(written: str, sampled: bool) -> None:
    assert read_context(written, "a=1", "user=x") == replace(CONTEXT, sampled=sampled)


@pytest.mark.parametrize(
    "written",
    [
        None,
        "",
        "00-aa-bb-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"{PARENT}-more",
        f"{PARENT}\n",
        f"01-{TRACE}-{SPAN}-01-{'x' * 600}",
        f"00-{TRACE}-{SPAN}-٠١",
    ],
)
def test_nothing_else_is(written: str | None) -> None:
    assert read_context(written, "a=1", "user=x") is None


@pytest.mark.parametrize("text", ["a=1\r\nX: y", "ä=1", "", "x" * 10_000, "a=\x00"])
def test_what_is_wrong_beside_it_is_left_out(text: str) -> None:
    found = read_context(PARENT, text, text)
    assert found is not None
    assert (found.state, found.baggage) == ("", "")
    assert (len(CONTEXT.state) < MAX_TRACESTATE, len(CONTEXT.baggage) < MAX_BAGGAGE) == (True, True)


@given(st.text(), st.text(), st.text())
def test_nothing_that_is_read_breaks_a_header(traceparent: str, tracestate: str, baggage: str) -> None:
    for parent in (traceparent, PARENT):
        found = read_context(parent, tracestate, baggage)
        for name, text in () if found is None else found.headers():
            assert name.isascii()
            assert text.isascii()
            assert text.isprintable()


def test_a_context_stands_in_meta_and_replaces_what_was_there() -> None:
    params = {"name": Raw(b'"x"'), "_meta": Raw(b'{"v/k":1.50,"traceparent":"junk","tracestate":"b=2","baggage":"c"}')}
    changed = with_context(params, replace(CONTEXT, baggage=""))
    assert context_in(changed) == replace(CONTEXT, baggage="")
    assert bytes(members(changed["_meta"])["v/k"]) == b"1.50"
    assert params["_meta"] == Raw(b'{"v/k":1.50,"traceparent":"junk","tracestate":"b=2","baggage":"c"}')


def test_params_of_any_form_take_one() -> None:
    for params in (None, Raw(b"{}"), {}, {"_meta": Raw(b"{}")}):
        assert context_in(with_context(params, CONTEXT)) == CONTEXT
    assert with_context({"_meta": Raw(b"7")}, CONTEXT) == {"_meta": Raw(b"7")}


OWN = replace(CONTEXT, state="", baggage="")


def _objects(values: st.SearchStrategy[object]) -> st.SearchStrategy[dict[str, object]]:
    names = st.text() | st.sampled_from((*KEYS, "a\\", "}", "progressToken"))
    return st.dictionaries(names, values, max_size=4)


VALUES = st.recursive(
    st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | _objects(inner), max_leaves=5
)


@pytest.mark.parametrize("context", [CONTEXT, OWN])
@given(_objects(VALUES), st.booleans(), st.sampled_from(("", " ", "\n\t")))
def test_all_else_in_meta_stays_as_it_is(
    context: TraceContext, meta: dict[str, object], is_ascii: bool, space: str
) -> None:
    text = json.dumps(meta, ensure_ascii=is_ascii, separators=(f"{space},{space}", f"{space}:{space}"))
    text = f"{{{space}{text[1:-1]}{space}}}"
    changed = with_context({"_meta": Raw(text.encode(errors="surrogatepass"))}, context)["_meta"]
    kept = {name: each for name, each in meta.items() if name not in KEYS}
    assert json.loads(bytes(changed)) == kept | dict(context.headers())


@pytest.mark.parametrize("key", [b"trace\\u0070arent", b"traceparent"])
def test_no_other_spelling_of_a_context_goes_on(key: bytes) -> None:
    changed = with_context({"_meta": Raw(b'{"%b":"junk","a":1}' % key)}, OWN)["_meta"]
    assert bytes(changed) == b'{"a":1,"traceparent":"%b"}' % PARENT.encode()


@pytest.mark.parametrize(
    "meta", [b"7", b'{"traceparent":7}', b'{"traceparent":null}', b"null", b'{"a":"\\"traceparent\\""}']
)
def test_a_meta_without_one_says_none(meta: bytes) -> None:
    assert context_in({"_meta": Raw(meta)}) is None
    assert context_in(None) is None
    assert context_in({"x": encode("traceparent")}) is None
    assert baggage_in({"_meta": Raw(meta.replace(b"traceparent", b"baggage"))}) == baggage_in(None) == ""
