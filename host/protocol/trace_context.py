"""Trace context in messages: `traceparent`, `tracestate` and `baggage` of `_meta`, and headers of the same names (W3C
Trace Context level 1, W3C Baggage; MCP's SEP-414 has them in `_meta` without a prefix).

A peer writes what it likes there, so only what has the right form, and is short, is read or passed on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Raw, Struct

from host.jsonrpc.conversation import Params
from host.jsonrpc.raw import EMPTY_OBJECT, encode, encode_object, is_object, members, text_at
from host.protocol.meta import META

TRACEPARENT, TRACESTATE, BAGGAGE = "traceparent", "tracestate", "baggage"
KEYS = (TRACEPARENT, TRACESTATE, BAGGAGE)
MAX_TRACESTATE = 512
"""Characters that a `tracestate` may have; those that pass it on must keep at least as many ("tracestate Limits")."""
MAX_BAGGAGE = 8192
"""Bytes that a `baggage` may have ("Limits")."""
SAMPLED = 1
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_TRACESTATE = re.compile(r"[\x20-\x7e]+(?<! )")
_BAGGAGE = re.compile(r"[\x20-\x7e]+")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16
_BEGIN, _END, _QUOTE, _BACKSLASH = b'{}"\\'


class TraceContext(Struct, frozen=True, gc=False):
    """A place in a trace: of the span that called, or is to be called from. The ids are hexadecimal, in lower case."""

    trace_id: str
    span_id: str
    sampled: bool
    state: str = ""
    baggage: str = ""

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"

    def as_members(self) -> bytes:
        """As members of an object of JSON."""
        if not self.state and not self.baggage:
            return f'"{TRACEPARENT}":"00-{self.trace_id}-{self.span_id}-{"01" if self.sampled else "00"}"'.encode()
        return bytes(encode_object({name: encode(text) for name, text in self.headers()}))[1:-1]

    def headers(self) -> tuple[tuple[str, str], ...]:
        """As headers of a request of HTTP."""
        found = (TRACEPARENT, self.traceparent), (TRACESTATE, self.state), (BAGGAGE, self.baggage)
        return tuple(each for each in found if each[1])


def read_context(traceparent: str | None, tracestate: str | None, baggage: str | None) -> TraceContext | None:
    """The context that these texts of a peer say; None if they say none. What is wrong in the others is left out."""
    found = _TRACEPARENT.fullmatch(traceparent or "")
    if found is None or len(found[0]) > 512:
        return None
    version, trace_id, span_id, flags, rest = found.groups()
    if version == "ff" or trace_id == _NO_TRACE or span_id == _NO_SPAN or (version == "00" and rest):
        return None
    state = tracestate if tracestate and len(tracestate) <= MAX_TRACESTATE and _TRACESTATE.fullmatch(tracestate) else ""
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & SAMPLED), state, read_baggage(baggage))


def read_baggage(baggage: str | None) -> str:
    """The baggage of a peer, which needs no trace (W3C Baggage); empty if it is wrong."""
    return baggage if baggage and len(baggage) <= MAX_BAGGAGE and _BAGGAGE.fullmatch(baggage) else ""


def context_in(params: Mapping[str, Raw] | None) -> TraceContext | None:
    """The context in the `_meta` of a request."""
    meta = (params or {}).get(META)
    if meta is None or bytes(meta).find(b'"traceparent"') < 0 or not is_object(meta):
        return None
    found = members(meta)
    return read_context(*(text_at(found, key) for key in KEYS))


def baggage_in(params: Mapping[str, Raw] | None) -> str:
    """The baggage in the `_meta` of a request; empty if there is none."""
    meta = (params or {}).get(META)
    if meta is None or bytes(meta).find(b'"baggage"') < 0 or not is_object(meta):
        return ""
    return read_baggage(text_at(members(meta), BAGGAGE))


def without_context(params: Mapping[str, Raw]) -> dict[str, Raw]:
    """The params without the context that is read in their `_meta`, and without a `_meta` that has nothing else."""
    changed, context = dict(params), context_in(params)
    if context is not None:
        read = dict(context.headers())
        if kept := {name: each for name, each in members(changed.pop(META)).items() if name not in read}:
            changed[META] = encode_object(kept)
    return changed


def with_context(params: Params, context: TraceContext) -> dict[str, Raw]:
    """The params of a request that is called from there, and from nowhere else."""
    if type(params) is not dict:  # asked first, for speed
        params = members(params or EMPTY_OBJECT) if params is None or isinstance(params, Raw) else params
    changed = {**params}
    meta = bytes(changed[META]) if META in changed else b"{}"
    # Every call with traces passes here, so that what is there is not read, but joined, unless it may say a context,
    # maybe in an escaped form, or has not the ends of an object.
    is_short = meta[0] == _BEGIN and meta[-1] == _END and _BACKSLASH not in meta
    if not is_short or meta.find(b'"trace') >= 0 or meta.find(b'"baggage"') >= 0:
        if not is_object(meta):
            return changed
        meta = bytes(encode_object({name: each for name, each in members(meta).items() if name not in KEYS}))
    comma = b"," if meta[1] == _QUOTE or meta[1:-1].strip() else b""
    changed[META] = Raw(meta[:-1] + comma + context.as_members() + b"}")
    return changed
