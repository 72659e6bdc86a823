"""Traces through two hosts at a collector of ours."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from examples.traces.receiver import Receiver, Span, tree
from tests.kit.stateless import stateless_request

from .running import BARE_PYTHON, SERVERS, listening, recorder, serving, until, write_config

pytestmark = pytest.mark.slow

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
ANY = [*BARE_PYTHON, str(SERVERS / "any_revision.py"), "--transport", "stdio", "--revision"]


@contextmanager
def collector() -> Iterator[Receiver]:
    """The receiver of the examples."""
    with Receiver() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_the_receiver_takes_nothing_of_web_pages_and_prints_nothing_that_a_terminal_obeys() -> None:
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "\x1b[2J"
    resource.scope_spans.add().spans.add(name="\x1b[2J", trace_id=b"1" * 16, span_id=b"1" * 8)
    with collector() as receiver:

        def send(media_type: str) -> int:
            headers = {"content-type": media_type}
            body = request.SerializeToString()
            return httpx.post(f"{receiver.url}/v1/traces", headers=headers, content=body, trust_env=False).status_code

        assert [send(each) for each in ("text/plain", "application/x-protobuf")] == [415, 200]
        (span,) = receiver.spans
    assert all(line.isprintable() for line in tree([span]))


def folder(parent: Path, name: str) -> Path:
    made = parent / name
    made.mkdir()
    return made


@pytest.mark.parametrize("at", ["meta", "headers"])
@pytest.mark.parametrize("server", ["handshake", "handshake at a URL", "stateless"])
def test_one_call_through_two_hosts_is_one_trace(
    server: str, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's, a span of each host for the request, and one for the request that it sends."""
    log = tmp_path / "server.log"
    upstream: dict[str, Any] = recorder(log) if server == "handshake" else {"command": [*ANY, "2026-07-28"]}
    tool = "echo" if server == "stateless" else "together"
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    with collector() as receiver, ExitStack() as stack:
        if server == "handshake at a URL":
            command = [*BARE_PYTHON, str(SERVERS / "recorder.py"), str(log), "--http", "0"]
            upstream = {"url": stack.enter_context(listening(*command, folder=tmp_path))[1]}
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "inner")
        with serving(write_config(folder(tmp_path, "inner"), {"a": upstream}, traces="on"), "a") as inner:
            monkeypatch.setenv("OTEL_SERVICE_NAME", "outer")
            servers = {"b": {"url": inner.url, "trust": "trusted"}}
            with serving(write_config(folder(tmp_path, "outer"), servers, traces="on"), "b") as outer:
                headers, message = stateless_request("tools/call", {"name": f"b__a__{tool}", "arguments": {"of": 1}})
                parent = {"traceparent": f"00-{TRACE}-{CALLER}-01", "tracestate": "v=1"}
                if at == "meta":
                    message["params"]["_meta"] |= parent
                else:
                    headers |= parent
                answer = httpx.post(outer.url, headers=headers, json=message, trust_env=False, timeout=30)
                assert "result" in answer.json(), answer.text

                def of_call() -> list[Span]:
                    found = [each for each in list(receiver.spans) if each.trace == TRACE]
                    return found if len(found) >= 4 else []

                found = sorted(until(of_call, "all spans are there"), key=lambda span: span.began)
    assert [(each.service, each.kind, each.name) for each in found] == [
        ("outer", 2, f"tools/call b__a__{tool}"),
        ("outer", 3, f"tools/call b__a__{tool}"),
        ("inner", 2, f"tools/call a__{tool}"),
        ("inner", 3, f"tools/call a__{tool}"),
    ]
    assert [each.parent for each in found] == [CALLER, *(each.id for each in found[:3])]
    printed = [line.split(" ms ")[0].rsplit(" ", 1)[0] for line in tree(reversed(found))]
    assert printed == [
        f"  outer server 'tools/call b__a__{tool}'",
        f"    outer client 'tools/call b__a__{tool}'",
        f"      inner server 'tools/call a__{tool}'",
        f"        inner client 'tools/call a__{tool}'",
    ]
    for above, below in itertools.pairwise(found):
        assert above.began <= below.began <= below.ended <= above.ended
    if server != "stateless":
        assert f"00-{TRACE}-{found[3].id}-01" in log.read_text(errors="replace")
