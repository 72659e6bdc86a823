"""Traces through two hosts at a collector of ours."""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from examples.traces.receiver import Receiver, Span, tree
from tests.kit.stateless import stateless_request

from .running import BARE_PYTHON, SERVERS, Running, listening, recorder, serving, until, write_config

pytestmark = pytest.mark.slow

CALLER = "00f067aa0ba902b7"
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


@dataclass
class Setting:
    receiver: Receiver
    outer: Running
    logs: dict[str, Path]
    """What each server with a handshake got."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    """One host behind the other."""
    parent = tmp_path_factory.mktemp("telemetry")
    logs = {server: parent / f"{server}.log" for server in ("pipe", "web")}
    command = [*recorder(logs["web"])["command"], "--http", "0"]
    with collector() as receiver, listening(*command, folder=parent) as (_, url):
        servers: dict[str, Any] = {
            "pipe": recorder(logs["pipe"]),
            "web": {"url": url},
            "stateless": {"command": [*ANY, "2026-07-28"]},
        }
        variables = {"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}
        inner_file = write_config(folder(parent, "inner"), servers, traces="on")
        with serving(inner_file, *servers, variables=variables | {"OTEL_SERVICE_NAME": "inner"}) as inner:
            outer_file = write_config(
                folder(parent, "outer"), {"b": {"url": inner.url, "trust": "trusted"}}, traces="on"
            )
            with serving(outer_file, "b", variables=variables | {"OTEL_SERVICE_NAME": "outer"}) as outer:
                yield Setting(receiver, outer, logs)


@pytest.mark.parametrize("at", ["meta", "headers"])
@pytest.mark.parametrize("server", ["pipe", "web", "stateless"])
def test_one_call_through_two_hosts_is_one_trace(server: str, at: str, here: Setting) -> None:
    """The client's, a span of each host for the request, and one for the request that it sends."""
    trace, tool = secrets.token_hex(16), f"{server}__{'echo' if server == 'stateless' else 'together'}"
    headers, message = stateless_request("tools/call", {"name": f"b__{tool}", "arguments": {"of": 1, "note": "n"}})
    parent = {"traceparent": f"00-{trace}-{CALLER}-01", "tracestate": "v=1"}
    if at == "meta":
        message["params"]["_meta"] |= parent
    else:
        headers |= parent
    answer = httpx.post(here.outer.url, headers=headers, json=message, trust_env=False, timeout=30)
    assert "isError" not in answer.json()["result"], answer.text

    def of_call() -> list[Span]:
        found = [each for each in list(here.receiver.spans) if each.trace == trace]
        return found if len(found) >= 4 else []

    found = sorted(until(of_call, "all spans are there"), key=lambda span: span.began)
    assert [(each.service, each.kind, each.name) for each in found] == [
        ("outer", 2, f"tools/call b__{tool}"),
        ("outer", 3, f"tools/call b__{tool}"),
        ("inner", 2, f"tools/call {tool}"),
        ("inner", 3, f"tools/call {tool}"),
    ]
    assert [each.parent for each in found] == [CALLER, *(each.id for each in found[:3])]
    printed = [line.split(" ms ")[0].rsplit(" ", 1)[0] for line in tree(reversed(found))]
    assert printed == [
        f"  outer server 'tools/call b__{tool}'",
        f"    outer client 'tools/call b__{tool}'",
        f"      inner server 'tools/call {tool}'",
        f"        inner client 'tools/call {tool}'",
    ]
    for above, below in itertools.pairwise(found):
        assert above.began <= below.began <= below.ended <= above.ended
    if server != "stateless":
        assert f"00-{trace}-{found[3].id}-01" in here.logs[server].read_text(errors="replace")
