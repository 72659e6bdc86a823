"""Traces: a span for each request of a client, and one below it for each request to a server; and so the other way
round, for each request of a server to a client (OpenTelemetry's conventions for MCP, names.py `CONVENTIONS`, "Spans").
They are sent to a collector by OTLP over HTTP.

The context comes from `_meta` of the request, or else from the headers of HTTP, and goes on in `_meta`, and if it is
sampled in the headers to servers at URLs. Whether a trace is sampled is decided here, since the SDK takes 20 µs for a
span that is not sampled: such a request has no span, and its context goes on.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import trio
from msgspec import Raw, Struct
from msgspec.structs import replace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Span, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, TraceIdRatioBased
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from config import HttpServer, ServerSpec
from host.journal import UNKNOWN_HOP, Hop
from host.jsonrpc.conversation import Params
from host.jsonrpc.messages import Failure, Id, ParsedInput, Request, Success
from host.jsonrpc.raw import string
from host.peer.outstanding import PeerError
from host.peer.peer import Peer, SendRequest
from host.protocol.meta import META
from host.protocol.methods import PROMPTS_GET, TARGETED, TOOLS_CALL
from host.protocol.trace_context import (
    BAGGAGE,
    TRACEPARENT,
    TRACESTATE,
    TraceContext,
    baggage_in,
    context_in,
    read_baggage,
    read_context,
    with_context,
    without_context,
)
from host.telemetry.counts import CANCELLED, EXECUTE_TOOL, KNOWN_METHODS, OTHER, TOOL_ERROR, transport_to
from host.upstream.results import is_error
from host.url import Url
from host.version import VERSION
from host.wire.asgi import Headers

if TYPE_CHECKING:
    from host.upstream.call import UpstreamCall

MAX_CONTENT = 16 * 1024
"""Characters of a name in a span; and of arguments, of a result or of a URI, if the configuration has them there."""
FLUSH_TIMEOUT = 5.0
"""Seconds that a host which ends waits for its last spans to be sent."""
_TRACED, _OF_HTTP, _BAGGAGE = "traced", "http_context", "http_baggage"
"""Keys of what is kept with a request: a `TracedAnswer`, and the context of its headers, or their baggage alone."""
_LENGTH, _MADE = 32 + 16, 100
"""Characters of the ids of a trace and of a span in it, and how many of such are made at once."""
_LIMIT = 2**64
_EMPTY = Context()
_NO_TRACE = TraceContext("", "", False)
_PROTOCOL = "http/protobuf"
_LOG = logging.getLogger("colonnade")
_OF_HTTP_TRANSPORT = {"network.protocol.name": "http"}
_NAMED = {TOOLS_CALL.name: "gen_ai.tool.name", PROMPTS_GET.name: "gen_ai.prompt.name"}


class _Sampler:
    """Decides by `OTEL_TRACES_SAMPLER` and `OTEL_TRACES_SAMPLER_ARG`, as the SDK does."""

    def __init__(self) -> None:
        name = os.environ.get("OTEL_TRACES_SAMPLER", "").strip().lower() or "parentbased_always_on"
        self.follows_parent = name.startswith("parentbased_")
        root = name.removeprefix("parentbased_")
        if root not in ("always_on", "always_off", "traceidratio"):
            _LOG.warning("OTEL_TRACES_SAMPLER: %r is not known; every trace is sampled", name)
            self.follows_parent, root = True, "always_on"
        ratio = float(root == "always_on")
        if root == "traceidratio":
            try:
                ratio = min(max(float(os.environ.get("OTEL_TRACES_SAMPLER_ARG", "1")), 0.0), 1.0)
            except ValueError:
                ratio = 1.0
        bound = TraceIdRatioBased.get_bound_for_rate(ratio)
        self.bound = "g" if bound >= _LIMIT else f"{bound:016x}"
        """Traces are sampled whose ids end with less, as texts."""
        self.begins_traces = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() != "true"
        """Otherwise what has no context gets none: one that is not sampled would have servers record nothing."""
        if not self.begins_traces:
            self.follows_parent, self.bound = False, ""


def _has_exporter() -> bool:
    """Whether spans are sent. They are sent by OTLP, as protobuf over HTTP; what else the variables want is told."""
    for name, known in (
        ("OTEL_TRACES_EXPORTER", ("otlp", "none")),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", (_PROTOCOL,)),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", (_PROTOCOL,)),
    ):
        if (wanted := os.environ.get(name, "").strip().lower()) and wanted not in known:
            _LOG.warning("%s: %r is not known; spans are sent by OTLP, as %s", name, wanted, _PROTOCOL)
    return os.environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() != "none"


class _Ids(RandomIdGenerator):
    """Gives the trace id for which sampling was decided to the span that is made next."""

    def __init__(self) -> None:
        self.next_trace_id = 0

    def generate_trace_id(self) -> int:
        return self.next_trace_id


class TracedAnswer(Struct, gc=False):
    """A request of a client while it is answered. Implements `host.journal.Answering`.

    Attributes:
        hop: To the client.
        span: None if the trace is not sampled.
        context: What requests to servers are called from. Without a trace it has no ids.
    """

    trace_id: str
    method: str
    hop: Hop
    span: Span | None
    context: TraceContext

    def on_wait(self, what: str, seconds: float) -> None:
        if self.span is not None:
            began = time.time_ns() - int(seconds * 1e9)
            self.span.add_event(f"waited for {what}", {"colonnade.wait.duration": seconds}, began)

    def end(self, answer: Success | Failure | None) -> None:
        if self.span is not None:
            _end_with(self.span, self.method, answer)


class TracedAsking(TracedAnswer):
    """A request of a server to a client. Implements `host.journal.Asking`.

    Attributes:
        start: Begins a span.
        below: That of the request to the client, once it is sent.
    """

    start: Callable[[str, TraceContext | None, SpanKind, Mapping[str, str]], Span]
    below: Span | None = None

    def sent(self, params: dict[str, Raw]) -> dict[str, Raw]:
        context = self.context
        if self.span is not None:
            if self.below is not None:  # it was in vain, and is sent another way
                _fail(self.below, OTHER)
            attributes = {"mcp.method.name": self.method, **_of_hop(self.hop)}
            self.below = self.start(self.method, context, SpanKind.CLIENT, attributes)
            context = _context_of(self.below, context)
        return with_context(params, context) if context.trace_id else without_context(params)

    def end(self, answer: Success | Failure | None) -> None:
        if self.below is not None:
            _end_with(self.below, self.method, answer)
        super().end(answer)


def _of_hop(hop: Hop) -> dict[str, str]:
    """The attributes of spans of requests over this hop."""
    found = {"mcp.protocol.version": hop.revision} if hop.revision else {}
    if hop.transport:
        found["network.transport"] = hop.transport
    return found | _OF_HTTP_TRANSPORT if hop.transport == "tcp" else found


def _end_with(span: Span, method: str, answer: Success | Failure | None) -> None:
    if isinstance(answer, Success):
        _end(span, method, answer.result)
    elif answer is None:
        _fail(span, CANCELLED)
    else:
        _fail(span, str(answer.error.code), code=str(answer.error.code))


def _end(span: Span, method: str, result: Raw) -> None:
    if method == TOOLS_CALL.name and is_error(result):
        _fail(span, TOOL_ERROR)
    else:
        span.end()


def _fail(span: Span, error_type: str, said: str = "", code: str = "") -> None:
    span.set_attribute("error.type", error_type)
    if code:
        span.set_attribute("rpc.response.status_code", code)
    span.set_status(Status(StatusCode.ERROR, said[:200].encode(errors="replace").decode() or None))
    span.end()


class Traces:
    """Traces from now on. Implements `host.journal.Observer`.

    Args:
        content: spans have the arguments and results of tools.
        exporter: sends the spans; by default to `OTEL_EXPORTER_OTLP_ENDPOINT`.
    """

    def __init__(
        self,
        *,
        content: bool = False,
        exporter: SpanExporter | None = None,
    ) -> None:
        self._content = content
        self._sampler = _Sampler()
        self._ids = _Ids()
        self._random, self._at = "", 0
        """Digits for ids, and the number of those that are not used yet."""
        self._transports: dict[str, Literal["tcp", "pipe"]] = {}
        """By server, the transport to it."""
        name = OTELResourceDetector().detect().attributes.get(SERVICE_NAME) or "colonnade"
        resource = Resource.create({SERVICE_NAME: name, SERVICE_VERSION: VERSION})
        # Sampling was decided when it is asked.
        self._provider = TracerProvider(ALWAYS_ON, resource, shutdown_on_exit=False, id_generator=self._ids)
        if exporter is not None or _has_exporter():
            self._provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("colonnade", VERSION)

    async def close(self) -> None:
        """Send what is not sent yet, for FLUSH_TIMEOUT seconds at most."""
        with trio.move_on_after(FLUSH_TIMEOUT, shield=True):
            await trio.to_thread.run_sync(self._provider.shutdown, abandon_on_cancel=True)

    def received(self, parsed: ParsedInput, headers: Headers) -> None:
        """Keep the context that the headers of a message have."""
        message = parsed.message
        if type(message) is Request and (headers.all(TRACEPARENT) or headers.all(BAGGAGE)):
            # Lists may stand in several headers (RFC 9110, 5.3).
            state, baggage = (",".join(headers.all(name)) for name in (TRACESTATE, BAGGAGE))
            context = read_context(headers.one(TRACEPARENT), state, baggage)
            if context is not None:
                message.__dict__[_OF_HTTP] = context
            elif alone := read_baggage(baggage):
                message.__dict__[_BAGGAGE] = alone

    def answering(self, request: Request, hop: Hop = UNKNOWN_HOP) -> TracedAnswer:
        found, kept = request.params_members, request.__dict__
        in_meta = context_in(found) if found and META in found else None
        in_headers: TraceContext | None = kept.get(_OF_HTTP)
        parent = in_meta or in_headers
        if parent is None and not self._sampler.begins_traces:
            return TracedAnswer("", request.method, hop, None, _NO_TRACE)
        method, span, context = request.method, None, self._unsampled(parent)
        if context is None:
            name = method if method in KNOWN_METHODS else OTHER
            attributes = {"mcp.method.name": name, "jsonrpc.request.id": str(request.id), **_of_hop(hop)}
            links = [Link(_span_context(in_headers))] if in_meta is not None and in_headers is not None else None
            span = self._start(name, parent, SpanKind.SERVER, attributes, links)
            context = _context_of(span, parent)
        if parent is None:
            baggage = baggage_in(found) if found and META in found else ""
            if baggage or _BAGGAGE in kept:
                context = replace(context, baggage=baggage or kept[_BAGGAGE])
        traced = kept[_TRACED] = TracedAnswer(context.trace_id, method, hop, span, context)
        return traced

    def _unsampled(self, parent: TraceContext | None) -> TraceContext | None:
        """The context that goes on where no spans are made; None if the trace is sampled, for the span that is made
        next."""
        sampler = self._sampler
        if parent is None:
            if not (at := self._at):
                at, self._random = _LENGTH * _MADE, os.urandom(_LENGTH * _MADE // 2).hex()
            self._at = at = at - _LENGTH
            ids = self._random[at : at + _LENGTH]  # one is 0 in one of 2**64 only
            if ids[16:32] >= sampler.bound:
                return TraceContext(ids[:32], ids[32:], False)
            self._ids.next_trace_id = int(ids[:32], 16)
        elif not (parent.sampled if sampler.follows_parent else parent.trace_id[16:] < sampler.bound):
            return parent
        else:
            self._ids.next_trace_id = int(parent.trace_id, 16)
        return None

    def sending(self, spec: ServerSpec, peer: Peer[Any], send: SendRequest) -> SendRequest:
        is_http = isinstance(spec, HttpServer)
        transport = self._transports[spec.id] = transport_to(spec)
        attributes: dict[str, str | int] = {"colonnade.server": spec.id}
        if isinstance(spec, HttpServer):
            url = Url.parse(str(spec.url))
            attributes |= {"server.address": url.host, "server.port": url.connect_port}

        def traced(
            method: str,
            params: Params = None,
            subject: UpstreamCall | None = None,
            headers: tuple[tuple[str, str], ...] = (),
            on_late_result: object = None,
            keep_outline: object = None,
        ) -> Awaitable[Raw]:
            if subject is None or _TRACED not in (kept := subject.exchange.request.__dict__):
                return send(method, params, subject, headers, on_late_result, keep_outline)
            answer: TracedAnswer = kept[_TRACED]
            if answer.span is None:
                # Not in headers, too: with other ones for each request, their heads would have to be made anew.
                params = with_context(params, answer.context)
                return send(method, params, subject, headers, on_late_result, keep_outline)
            return sampled(answer, method, params, subject, headers, on_late_result, keep_outline)

        async def sampled(
            answer: TracedAnswer,
            method: str,
            params: Params,
            subject: UpstreamCall,
            headers: tuple[tuple[str, str], ...],
            *more: Any,
        ) -> Raw:
            name = _name_in(answer, subject)
            of_request = {"mcp.method.name": method, "jsonrpc.request.id": str(peer.next_id)}
            found = {**attributes, **of_request, **_of_hop(Hop(peer.revision, transport))}
            span = self._start(f"{method} {name}".strip(), answer.context, SpanKind.CLIENT, found)
            self._describe(span, method, params)
            context = _context_of(span, answer.context)
            if is_http:
                headers += context.headers()
            try:
                result = await send(method, with_context(params, context), subject, headers, *more)
            except PeerError as refusal:
                said = refusal.error.message if self._content else ""  # it may repeat arguments
                _fail(span, str(refusal.error.code), said, str(refusal.error.code))
                raise
            except Exception as problem:
                _fail(span, type(problem).__name__)
                raise
            except BaseException:
                _fail(span, CANCELLED)
                raise
            if self._content and method == TOOLS_CALL.name:
                span.set_attribute("gen_ai.tool.call.result", _text(result))
            _end(span, method, result)
            return result

        return traced

    def asking(
        self, server: str, revision: str, method: str, params: Mapping[str, Raw], id: Id | None, during: Request | None
    ) -> TracedAsking:
        """A request of a server, with a span for it and one below for its way to the client. What the server says of a
        trace holds if it goes on with the one that it was called in. Another one would be the server's choice, which
        could join the traces of strangers."""
        traced: TracedAnswer | None = None if during is None else during.__dict__.get(_TRACED)
        parent, said = None if traced is None else traced.context, context_in(params)
        if said is not None and parent is not None and said.trace_id == parent.trace_id:
            parent = replace(said, sampled=parent.sampled)
        if parent is None and not self._sampler.begins_traces:
            return TracedAsking("", method, UNKNOWN_HOP, None, _NO_TRACE, self._start)
        span, context = None, self._unsampled(parent)
        if context is None:
            attributes = {"mcp.method.name": method, "colonnade.server": server}
            if id is not None:
                attributes["jsonrpc.request.id"] = str(id)
            attributes |= _of_hop(Hop(revision, self._transports.get(server, "")))
            span = self._start(method, parent, SpanKind.SERVER, attributes)
            context = _context_of(span, parent)
        hop = UNKNOWN_HOP if traced is None else traced.hop
        return TracedAsking(context.trace_id, method, hop, span, context, self._start)

    def _start(
        self,
        name: str,
        parent: TraceContext | None,
        kind: SpanKind,
        attributes: Mapping[str, str | int],
        links: list[Link] | None = None,
    ) -> Span:
        context = _EMPTY if parent is None else set_span_in_context(NonRecordingSpan(_span_context(parent)), _EMPTY)
        span = self._tracer.start_span(name, context, kind, attributes, links)
        assert isinstance(span, Span), "ALWAYS_ON samples"
        return span

    def _describe(self, span: Span, method: str, params: Params) -> None:
        """Name what the request is for, as its server has it. A URI is an argument."""
        row = TARGETED.get(method)
        if row is None or not isinstance(params, Mapping):
            return
        if method == TOOLS_CALL.name:
            span.set_attribute("gen_ai.operation.name", EXECUTE_TOOL)
        if (key := _NAMED.get(method)) is not None:
            span.set_attribute(key, string(params[row.target])[:MAX_CONTENT])
        elif self._content:
            span.set_attribute("mcp.resource.uri", string(params[row.target])[:MAX_CONTENT])
        if self._content and "arguments" in params:
            span.set_attribute("gen_ai.tool.call.arguments", _text(params["arguments"]))


def _name_in(answer: TracedAnswer, subject: UpstreamCall) -> str:
    """The name of the tool or prompt of an admitted request, as its client has it; the span of its answer has it, too,
    from now on: before, it was a word of the client."""
    exchange = subject.exchange
    key, target = _NAMED.get(exchange.request.method), exchange.target
    if key is None or target is None or answer.span is None:
        return ""
    answer.span.update_name(f"{exchange.request.method} {target.asked}")
    answer.span.set_attribute(key, target.asked)
    if exchange.request.method == TOOLS_CALL.name:
        answer.span.set_attribute("gen_ai.operation.name", EXECUTE_TOOL)
    return target.asked


def _text(raw: Raw) -> str:
    return bytes(raw).decode(errors="replace")[:MAX_CONTENT]


def _span_context(context: TraceContext) -> SpanContext:
    state = TraceState.from_header([context.state]) if context.state else None
    ids = int(context.trace_id, 16), int(context.span_id, 16)
    return SpanContext(*ids, True, TraceFlags(context.sampled), state)


def _context_of(span: Span, parent: TraceContext | None) -> TraceContext:
    """The context of what is called from this span. State and baggage go on as they came."""
    made = span.get_span_context()
    assert made is not None
    state, baggage = ("", "") if parent is None else (parent.state, parent.baggage)
    return TraceContext(f"{made.trace_id:032x}", f"{made.span_id:016x}", True, state, baggage)
