"""The spans of a request, and the context that goes on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from msgspec import Raw
from msgspec.structs import replace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode
from trio.testing import MockClock

from config import Consent, Elicitation, Limits, Verdict
from host.client_process import ClientProcess
from host.journal import ConfirmationRequested, DecisionMade, RequestCompleted, ServerRequestRefused
from host.jsonrpc.messages import ErrorBody, ParsedInput, Request
from host.peer.outstanding import PeerError
from host.policy.confirmations import ConfirmationAnswer as Answering
from host.protocol.trace_context import KEYS, TraceContext, context_in, with_context
from host.telemetry.traces import Traces
from host.wire.asgi import Headers
from tests.kit.asgi import LATEST, Connection, open_http_app
from tests.kit.gates import kind
from tests.kit.world import Refusal, ScriptedServer, World, later, open_client

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
UNSAMPLED = PARENT[:-1] + "0"
OFF = {"OTEL_TRACES_SAMPLER": "parentbased_always_off"}


async def answer(params: dict[str, Any]) -> object:
    if params["name"] == "breaks":
        raise PeerError(ErrorBody(-32603, "it broke"))
    if params["name"] == "waits":
        await trio.sleep(10)
    return {"content": [], "isError": params["name"] == "fails"}


def traces_in(environ: Mapping[str, str], **settings: Any) -> Traces:
    """Traces that are made while these variables are set."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        return Traces(**settings)


class Traced:
    def __init__(self, world: World, client: Connection, traces: Traces, exporter: InMemorySpanExporter) -> None:
        self.world, self.client = world, client
        self.heard: list[dict[str, Any]] = []
        """The params of the calls that the server got."""
        self._traces, self._exporter = traces, exporter

    def spans(self) -> list[ReadableSpan]:
        """Those that have ended, in the order of their begin."""
        self._traces._provider.force_flush()
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    async def call(
        self, name: str = "a__x", meta: Mapping[str, object] | None = None, **headers: str
    ) -> dict[str, Any]:
        params = {"name": name, "arguments": {"secret": 1}, "_meta": dict(meta or {})}
        body = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
        (message,) = (await self.client.get("POST", body=body, headers=headers)).messages()
        return message


@asynccontextmanager
async def traced(
    environ: Mapping[str, str] | None = None, *, content: bool = False, **server: Any
) -> AsyncIterator[Traced]:
    exporter = InMemorySpanExporter()
    traces = traces_in(environ or {}, content=content, exporter=exporter)
    heard: list[dict[str, Any]] = []

    async def hear(params: dict[str, Any]) -> object:
        heard.append(params)
        return await answer(params)

    a = ScriptedServer("a", tools=["x", "fails", "breaks", "waits"], answers={"tools/call": hear}, **server)
    async with open_http_app(a, observer=traces) as (world, client):
        await client.open(capabilities={"elicitation": {}, "sampling": {}})
        traces._provider.force_flush()
        exporter.clear()
        host = Traced(world, client, traces, exporter)
        host.heard = heard
        yield host
        traces._provider.shutdown()


@pytest.mark.parametrize("parent", [PARENT, UNSAMPLED])
async def test_the_log_has_the_trace_of_a_call(parent: str) -> None:
    """Sampled or not: the lines of several programs are found by it."""
    events: list[ConfirmationRequested | DecisionMade | RequestCompleted] = []
    async with traced(consent=Consent(tools=kind(ask=["x"]))) as host:
        host.world.journal.subscribe(events.append, ConfirmationRequested, DecisionMade, RequestCompleted)
        with host.world.auto_answering(Answering.ONCE):
            await host.call(meta={"traceparent": parent})
    caller = events[-1].caller
    assert caller
    assert [(event.caller, event.trace_id) for event in events] == [(caller, TRACE)] * 3


async def test_a_call_is_a_span_with_that_of_the_server_below() -> None:
    async with traced() as host:
        await host.call(meta={"traceparent": PARENT, "tracestate": "v=1", "baggage": "b=2"})
        above, below = host.spans()
    assert (above.name, above.kind, below.name, below.kind) == (
        "tools/call a__x",
        SpanKind.SERVER,
        "tools/call a__x",
        SpanKind.CLIENT,
    )
    for span, name in ((above, "a__x"), (below, "x")):
        assert span.context is not None
        assert f"{span.context.trace_id:032x}" == TRACE
        found = dict(span.attributes or {})
        assert (found["mcp.method.name"], found["gen_ai.tool.name"]) == ("tools/call", name)
        assert found["gen_ai.operation.name"] == "execute_tool"
        assert span.status.status_code is StatusCode.UNSET
        assert "secret" not in span.to_json()
    assert above.parent is not None
    assert below.parent is not None
    assert above.parent.span_id == 0x00F067AA0BA902B7
    assert below.parent.span_id == above.context.span_id
    sent = context_of(host)
    ids = f"{below.context.trace_id:032x}", f"{below.context.span_id:016x}"
    assert (sent.trace_id, sent.span_id) == ids
    assert (sent.sampled, sent.state, sent.baggage) == (True, "v=1", "b=2")


def context_of(host: Traced) -> TraceContext:
    """The context with which the last call came to the server."""
    found = context_in({"_meta": Raw(_json(host.heard[-1]["_meta"]))})
    assert found is not None
    return found


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


async def test_headers_say_the_context_if_meta_does_not() -> None:
    other = PARENT.replace("4bf9", "aaaa")
    async with traced() as host:
        await host.call(traceparent=PARENT, tracestate="v=1")
        assert (context_of(host).trace_id, context_of(host).state) == (TRACE, "v=1")
        await host.call(meta={"traceparent": other}, traceparent=PARENT)
        linked = host.spans()[2]
        assert linked.parent is not None
        assert f"{linked.parent.trace_id:032x}" == other.split("-")[1]
        assert [f"{link.context.trace_id:032x}" for link in linked.links] == [TRACE]


@pytest.mark.parametrize("environ", [{}, OFF])
async def test_baggage_goes_on_without_a_trace(environ: dict[str, str]) -> None:
    async with traced(environ) as host:
        for meta, headers, expected in (
            ({"baggage": "user=x"}, {"baggage": "user=y"}, "user=x"),
            ({"traceparent": "00-made-up-01"}, {"baggage": "user=y"}, "user=y"),
            ({"baggage": "\x00"}, {}, ""),
            ({}, {"traceparent": PARENT}, ""),
        ):
            await host.call(meta=meta, **headers)
            assert context_of(host).baggage == expected


async def test_lists_in_several_headers_are_one() -> None:
    traces = traces_in(OFF, exporter=InMemorySpanExporter())
    request = Request(1, "ping")
    names = "traceparent", "tracestate", "baggage", "tracestate", "baggage"
    values = UNSAMPLED, "a=1", "k=v", "b=2", "l=w"
    headers = Headers((name.encode(), value.encode()) for name, value in zip(names, values, strict=True))
    traces.received(ParsedInput(request, None), headers)
    context = traces.answering(request).context
    assert (context.trace_id, context.state, context.baggage) == (TRACE, "a=1,b=2", "k=v,l=w")
    await traces.close()


@pytest.mark.parametrize(
    "meta", [{}, {"traceparent": UNSAMPLED, "tracestate": "v=1"}, {"traceparent": "00-made-up-01"}]
)
async def test_what_is_not_sampled_has_no_spans_and_goes_on(meta: dict[str, str]) -> None:
    async with traced(OFF) as host:
        await host.call(meta=meta)
        assert host.spans() == []
        sent = context_of(host)
        assert not sent.sampled
        assert sent.trace_id
        assert (sent.trace_id == TRACE) == (sent.state == "v=1") == (meta.get("traceparent") == UNSAMPLED)


@pytest.mark.parametrize(
    ("sampler", "argument", "of_own", "of_sampled"),
    [
        ("always_on", "", True, True),
        ("always_off", "", False, False),
        ("parentbased_always_off", "", False, True),
        ("parentbased_traceidratio", "0", False, True),
        ("traceidratio", "0", False, False),
        ("traceidratio", "1", True, True),
        ("traceidratio", "much", True, True),
        ("made up", "", True, True),
        ("", "", True, True),
    ],
)
async def test_the_variables_say_what_is_sampled(sampler: str, argument: str, of_own: bool, of_sampled: bool) -> None:
    traces = traces_in(
        {"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": argument}, exporter=InMemorySpanExporter()
    )
    parent = TraceContext("5" * 32, "6" * 16, True)
    asked = Request(1, "ping", Raw(bytes(_json({"_meta": {"traceparent": parent.traceparent}}))))
    assert (traces.answering(Request(1, "ping")).span is not None) is of_own
    assert (traces.answering(asked).span is not None) is of_sampled
    await traces.close()


async def test_each_new_trace_has_ids_of_its_own() -> None:
    traces = traces_in({"OTEL_TRACES_SAMPLER": "always_off"}, exporter=InMemorySpanExporter())
    found = [traces.answering(Request(number, "ping")).context for number in range(250)]
    assert len({each.trace_id for each in found}) == len({each.span_id for each in found}) == 250
    assert {(len(each.trace_id), len(each.span_id)) for each in found} == {(32, 16)}
    await traces.close()


@pytest.mark.parametrize("ratio", [0.25, 0.5, 1e-19])
async def test_a_ratio_samples_the_traces_that_the_sdk_samples(ratio: float) -> None:
    """By the last half of the id, whatever the first one is."""
    environ = {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": str(ratio)}
    traces, bound = (
        traces_in(environ, exporter=InMemorySpanExporter()),
        TraceIdRatioBased.get_bound_for_rate(ratio),
    )
    for trace_id in (*(2**64 + each for each in (0, bound - 1, bound, 2**64 - 1) if each >= 0), 2**128 - 1, bound or 1):
        parent = TraceContext(f"{trace_id:032x}", "6" * 16, False)
        asked = Request(1, "ping", Raw(bytes(_json({"_meta": {"traceparent": parent.traceparent}}))))
        said = TraceIdRatioBased(ratio).should_sample(None, trace_id, "x").decision
        assert (traces.answering(asked).span is not None) is (said is Decision.RECORD_AND_SAMPLE)
    await traces.close()


async def test_a_switched_off_sdk_makes_no_spans_and_lets_contexts_pass() -> None:
    """It adds none: a server would record nothing in a trace that is not sampled."""
    async with traced({"OTEL_SDK_DISABLED": "True"}) as host:
        assert "result" in await host.call(meta={"traceparent": PARENT})
        assert context_of(host).traceparent == PARENT
        assert "result" in await host.call(meta={"baggage": "user=x"})
        assert host.heard[-1]["_meta"].keys() & set(KEYS) == {"baggage"}
        assert host.spans() == []
    traces = traces_in({"OTEL_SDK_DISABLED": "true"}, exporter=InMemorySpanExporter())
    for params in ({}, with_context({}, TraceContext(TRACE, "00f067aa0ba902b7", True))):
        asking = traces.asking("a", "2025-11-25", "roots/list", params, 3, Request(1, "tools/call"))
        assert asking.sent(params) == {}  # nor does it take the word of a server for one
    await traces.close()


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({}, "colonnade"),
        ({"OTEL_SERVICE_NAME": "", "OTEL_RESOURCE_ATTRIBUTES": "service.name=gateway,service.namespace=n"}, "gateway"),
        ({"OTEL_SERVICE_NAME": "edge", "OTEL_RESOURCE_ATTRIBUTES": "service.name=gateway"}, "edge"),
    ],
)
async def test_the_variables_name_the_service(environ: dict[str, str], name: str) -> None:
    traces = traces_in(environ, exporter=InMemorySpanExporter())
    assert traces._provider.resource.attributes["service.name"] == name
    await traces.close()


async def test_another_exporter_or_protocol_is_told(caplog: pytest.LogCaptureFixture) -> None:
    wanted = {"OTEL_TRACES_EXPORTER": "console", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    for environ in (wanted, {"OTEL_TRACES_EXPORTER": "None", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}):
        traces = traces_in(environ)
        await traces.close()
    assert caplog.messages == [
        "OTEL_TRACES_EXPORTER: 'console' is not known; spans are sent by OTLP, as http/protobuf",
        "OTEL_EXPORTER_OTLP_PROTOCOL: 'grpc' is not known; spans are sent by OTLP, as http/protobuf",
    ]


async def test_one_in_a_hundred_is_one_in_a_hundred() -> None:
    traces = traces_in(
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.01"}, exporter=InMemorySpanExporter()
    )
    sampled = sum(traces.answering(Request(1, "ping")).span is not None for _ in range(5000))
    assert 10 < sampled < 120
    await traces.close()


async def test_failures_are_told_by_their_kind(autojump_clock: MockClock) -> None:
    async with traced() as host, trio.open_nursery() as nursery:
        for name in ("a__fails", "a__breaks", "a__made_up"):
            await host.call(name)
        body = {"jsonrpc": "2.0", "id": 8, "method": "tools/call", "params": {"name": "a__waits"}}
        host.client.send("POST", body=body)
        await trio.sleep(1)
        note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 8}}
        await host.client.get("POST", body=note)
        await trio.sleep(1)
        told = [(span.name, span.kind.name, (span.attributes or {}).get("error.type")) for span in host.spans()]
        nursery.cancel_scope.cancel()
    assert told == [
        ("tools/call a__fails", "SERVER", "tool_error"),
        ("tools/call a__fails", "CLIENT", "tool_error"),
        ("tools/call a__breaks", "SERVER", "-32603"),
        ("tools/call a__breaks", "CLIENT", "-32603"),
        ("tools/call", "SERVER", "-32602"),
        ("tools/call a__waits", "SERVER", "cancelled"),
        ("tools/call a__waits", "CLIENT", "cancelled"),
    ]


async def test_arguments_and_results_are_told_only_if_the_file_says_so() -> None:
    async with traced(content=True) as host:
        await host.call()
        _, below = host.spans()
    found = dict(below.attributes or {})
    async with traced(content=True) as host:
        await host.call("a__breaks")
        assert [span.status.description for span in host.spans()] == [None, "it broke"]
    async with traced() as host:
        await host.call("a__breaks")
        assert [span.status.description for span in host.spans()] == [None, None]
    assert found["gen_ai.tool.call.arguments"] == '{"secret": 1}'
    assert '"content"' in str(found["gen_ai.tool.call.result"])


async def test_what_a_request_waits_for_is_an_event(autojump_clock: MockClock) -> None:
    async with traced(limits=Limits(concurrent=1)) as host, trio.open_nursery() as nursery:
        slow = later(nursery, host.call, "a__waits")
        await trio.sleep(1)
        await host.call("a__x")
        await slow.comes()
        found = {span.name: span for span in host.spans() if span.kind is SpanKind.SERVER}
    (event,) = found["tools/call a__x"].events
    assert event.name == "waited for slot"
    assert (event.attributes or {})["colonnade.wait.duration"] == pytest.approx(9)


async def test_a_server_goes_on_with_the_trace_that_it_is_in_and_with_no_other() -> None:
    """Its own context reaches a client only then: a stranger's trace would be its choice."""
    traces = traces_in(OFF, exporter=InMemorySpanExporter())
    request = Request(1, "tools/call", Raw(_json({"name": "x", "_meta": {"traceparent": UNSAMPLED}})))
    inside = traces.answering(request).context
    own = replace(inside, span_id="9" * 16, sampled=True)
    strange = TraceContext("7" * 32, "8" * 16, True, "s=1", "b=1")

    def sent(said: TraceContext | None, during: Request | None) -> TraceContext:
        params = {} if said is None else with_context({}, said)
        found = context_in(traces.asking("a", "2025-11-25", "roots/list", params, 3, during).sent(params))
        assert found is not None
        return found

    assert sent(own, request) == replace(own, sampled=False)
    assert sent(strange, request) == sent(None, request) == inside
    outside = sent(strange, None)
    assert outside.trace_id not in (strange.trace_id, inside.trace_id)
    assert (outside.sampled, outside.state, outside.baggage) == (False, "", "")
    await traces.close()


FORM = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}
CAN: dict[str, Any] = {"elicitation": {"form": {}}}


def questioner(revision: str) -> ScriptedServer:
    """A server that puts a form to the client of each call, and says its context as it was called."""

    async def answer(params: dict[str, Any]) -> object:
        form = {**FORM, "_meta": {"traceparent": params["_meta"]["traceparent"]}}
        if revision == LATEST and "inputResponses" not in params:
            asked = {"method": "elicitation/create", "params": form}
            return {"resultType": "input_required", "inputRequests": {"q": asked}}
        if revision != LATEST:
            await server.asks("elicitation/create", form)
        return {"content": []}

    server = ScriptedServer("a", tools=["x"], answers={"tools/call": answer}, revision=revision)
    return server


@pytest.mark.parametrize("client_revision", ["2025-11-25", LATEST])
@pytest.mark.parametrize("server_revision", ["2025-11-25", LATEST])
async def test_a_request_of_a_server_is_a_span_in_the_trace_of_its_call_and_its_context_goes_on(
    server_revision: str, client_revision: str
) -> None:
    exporter = InMemorySpanExporter()
    traces = Traces(exporter=exporter)
    call, meta = {"name": "a__x", "arguments": {}}, {"traceparent": PARENT}
    async with open_http_app(questioner(server_revision), observer=traces) as (_, client):
        if client_revision == LATEST:
            result = (await client.start("tools/call", call, capabilities=CAN, meta=meta).ended()).outcome("tools/call")
            put = result["inputRequests"]["q" if server_revision == LATEST else next(iter(result["inputRequests"]))]
        else:
            await client.open(capabilities=CAN)
            params = {**call, "_meta": meta}
            begun = client.send("POST", body={"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params})
            (put,) = await begun.wait_messages(1)
            said = {"jsonrpc": "2.0", "id": put["id"], "result": {"action": "accept", "content": {}}}
            await client.get("POST", body=said)
            await begun.ended()
    await traces.close()
    sent = context_in({"_meta": Raw(_json(put["params"]["_meta"]))})
    assert sent is not None
    spans = exporter.get_finished_spans()
    at_server = next(each for each in spans if each.name == "tools/call a__x" and each.kind is SpanKind.CLIENT)
    above, below = sorted(
        (each for each in spans if each.name == "elicitation/create"), key=lambda each: each.kind is SpanKind.CLIENT
    )
    assert (above.kind, below.kind) == (SpanKind.SERVER, SpanKind.CLIENT)
    for span, parent, revision, transport in (
        (above, at_server, server_revision, "pipe"),
        (below, above, client_revision, "tcp"),
    ):
        assert span.context is not None
        assert span.parent is not None
        assert parent.context is not None
        assert f"{span.context.trace_id:032x}" == TRACE
        assert span.parent.span_id == parent.context.span_id
        found = dict(span.attributes or {})
        assert (found["mcp.protocol.version"], found["network.transport"]) == (revision, transport)
        assert ("colonnade.server" in found, found.get("network.protocol.name")) == (
            (True, None) if span is above else (False, "http")
        )
        assert ("jsonrpc.request.id" in found) == (span is above and server_revision != LATEST)
    assert below.context is not None
    assert (sent.trace_id, sent.span_id, sent.sampled) == (TRACE, f"{below.context.span_id:016x}", True)


async def test_a_request_of_a_server_that_a_person_refuses_has_no_span_below() -> None:
    exporter = InMemorySpanExporter()
    traces, consent = Traces(exporter=exporter), Consent(elicitation=Elicitation(form=Verdict.ASK))
    server = ScriptedServer("a", tools=["x"], consent=consent)
    async with open_client(server, capabilities=CAN, observer=traces) as (world, client, nursery):
        call = later(nursery, client.call, "a__x")
        asked = await server.hears("tools/call")
        with world.auto_answering(Answering.DENY), pytest.raises(Refusal):
            await server.asks("elicitation/create", FORM)
        server.says(asked["id"], {"content": []})
        await call.comes()
        told = [each for each in world.events if isinstance(each, ConfirmationRequested | DecisionMade)]
        (refused,) = (event for event in world.events if isinstance(event, ServerRequestRefused))
    await traces.close()
    (span,) = (each for each in exporter.get_finished_spans() if each.name == "elicitation/create")
    assert (span.kind, span.status.status_code) == (SpanKind.SERVER, StatusCode.ERROR)
    assert [event.name for event in span.events] == ["waited for person"]
    assert span.context is not None
    of_span = "test", f"{span.context.trace_id:032x}"
    assert [(each.caller, each.trace_id) for each in (*told, refused)] == [of_span] * 3


async def test_a_grant_for_a_request_of_a_server_holds_in_every_trace() -> None:
    """What a person allows has nothing of the context with which it is sent."""
    traces, consent = (
        Traces(exporter=InMemorySpanExporter()),
        Consent(elicitation=Elicitation(form=Verdict.ASK)),
    )
    server = ScriptedServer("a", tools=["x"], consent=consent)
    async with open_client(server, capabilities=CAN, observer=traces) as (world, client, nursery):
        said: list[str] = []
        with world.auto_answering(Answering.ALWAYS) as consents:
            for nth in range(2):
                call = later(nursery, client.call, "a__x")
                asked = await server.hears("tools/call")
                question = later(nursery, server.asks, "elicitation/create", FORM)
                put = await client.is_asked("elicitation/create", nth)
                said.append(put["_meta"]["traceparent"])
                client.replies(put["id"], {"action": "decline"})
                await question.comes()
                server.says(asked["id"], {"content": []})
                await call.comes()
        assert len(consents) == 1
        assert len(set(said)) == 2
    await traces.close()


async def test_a_client_over_stdio_gets_the_context_too() -> None:
    exporter = InMemorySpanExporter()
    traces, server = Traces(exporter=exporter), ScriptedServer("a", tools=["x"])
    program = ClientProcess("claude", 7)
    async with open_client(server, capabilities=CAN, process=program, observer=traces) as (_, client, nursery):
        call = later(nursery, client.call, "a__x")
        asked = await server.hears("tools/call")
        question = later(nursery, server.asks, "elicitation/create", FORM)
        put = await client.is_asked("elicitation/create")
        client.replies(put["id"], {"action": "decline"})
        assert await question.comes() == {"action": "decline"}
        server.says(asked["id"], {"content": []})
        await call.comes()
    await traces.close()
    spans = [each for each in exporter.get_finished_spans() if each.name == "elicitation/create"]
    (below,) = (each for each in spans if each.kind is SpanKind.CLIENT)
    sent = context_in({"_meta": Raw(_json(put["_meta"]))})
    assert sent is not None
    assert below.context is not None
    ids = f"{below.context.trace_id:032x}", f"{below.context.span_id:016x}"
    assert (sent.trace_id, sent.span_id) == ids
    assert (below.attributes or {})["network.transport"] == "pipe"


async def test_spans_say_revision_transport_and_id() -> None:
    exporter = InMemorySpanExporter()
    traces, server = Traces(exporter=exporter), ScriptedServer("a", tools=["x"])
    program = ClientProcess("claude", 7)
    async with open_client(server, process=program, observer=traces) as (_, client, nursery):
        call = later(nursery, client.request, "tools/call", {"name": "a__x"}, id="mine")
        asked = await server.hears("tools/call")
        server.says(asked["id"], {"content": []})
        await call.comes()
    await traces.close()
    spans = [each for each in exporter.get_finished_spans() if each.name == "tools/call a__x"]
    for span, id in zip(spans, (str(asked["id"]), "mine"), strict=True):
        found = dict(span.attributes or {})
        assert (found["mcp.protocol.version"], found["network.transport"]) == ("2025-11-25", "pipe")
        assert found["jsonrpc.request.id"] == id


async def test_unknown_methods_are_not_named() -> None:
    async with traced() as host:
        with pytest.raises(KeyError):
            (await host.client.request("made/up"))["result"]
        (span,) = host.spans()
    assert span.name == "_OTHER"


async def test_denied_tools_are_not_named() -> None:
    async with traced(consent=Consent(tools=kind(deny=["x"]))) as host:
        await host.call()
        (span,) = host.spans()
    assert span.name == "tools/call"
