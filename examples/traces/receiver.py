"""A receiver of traces that prints them: python examples/traces/receiver.py [PORT]

It takes OTLP over HTTP (protobuf) at http://127.0.0.1:4318/v1/traces, as a collector does, and prints each trace as a
tree of spans, a moment after its last span has come. It keeps nothing. Its packages come with `pip install '.[otel]'`.
"""

from __future__ import annotations

import gzip
import sys
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

PORT = 4318
PAUSE = 1.0
"""Seconds without a new span after which what has come is printed."""
KINDS = {2: "server", 3: "client"}


class Span(NamedTuple):
    """A span as it came, with ids in hexadecimal and times in nanoseconds."""

    service: str
    name: str
    kind: int
    trace: str
    id: str
    parent: str
    began: int
    ended: int
    attributes: dict[str, str]


def spans_in(body: bytes) -> Iterator[Span]:
    """The spans of a request of OTLP."""
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        service = next(each.value.string_value for each in resource.resource.attributes if each.key == "service.name")
        for span in (span for scope in resource.scope_spans for span in scope.spans):
            yield Span(
                service,
                span.name,
                span.kind,
                span.trace_id.hex(),
                span.span_id.hex(),
                span.parent_span_id.hex(),
                span.start_time_unix_nano,
                span.end_time_unix_nano,
                {each.key: each.value.string_value or str(each.value.int_value) for each in span.attributes},
            )


def tree(spans: Iterable[Span]) -> Iterator[str]:
    """The lines of a trace: each span below the one that called it, in the order in which they began."""
    ordered = sorted(spans, key=lambda span: span.began)
    known = {span.id for span in ordered}
    below: dict[str, list[Span]] = defaultdict(list)
    for span in ordered:
        below[span.parent if span.parent in known else ""].append(span)

    def lines(parent: str, depth: int) -> Iterator[str]:
        for span in below[parent]:
            took = (span.ended - span.began) / 1e6
            kind = KINDS.get(span.kind, "")
            told = " ".join(f"{name}={text!r}" for name, text in sorted(span.attributes.items()))
            service = span.service if span.service.isprintable() else repr(span.service)
            yield f"{'  ' * depth}{service} {kind} {span.name!r} {took:.1f} ms  {told}"
            yield from lines(span.id, depth + 1)

    return lines("", 1)


class Receiver(ThreadingHTTPServer):
    """The receiver, as a server of HTTP. `spans`: those that have come so far."""

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Request)
        self.spans: list[Span] = []
        self.arrived = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def print_traces(self) -> None:
        """Print what comes, without end."""
        while True:
            self.arrived.wait()
            while self.arrived.is_set():
                self.arrived.clear()
                self.arrived.wait(PAUSE)
            spans, self.spans = self.spans, []
            traces: dict[str, list[Span]] = defaultdict(list)
            for span in spans:
                traces[span.trace].append(span)
            for trace, its in traces.items():
                print(trace, *tree(its), sep="\n", flush=True)


class _Request(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        status = 404
        if self.path == "/v1/traces":
            # A web page of another site cannot send this type.
            status = 200 if self.headers.get("content-type") == "application/x-protobuf" else 415
        if status == 200:
            self.server.spans.extend(spans_in(body))
            self.server.arrived.set()
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing of requests."""


def main() -> None:
    with Receiver(int(sys.argv[1]) if len(sys.argv) > 1 else PORT) as receiver:
        threading.Thread(target=receiver.serve_forever, daemon=True).start()
        print(f"Traces are taken; start the host with OTEL_EXPORTER_OTLP_ENDPOINT={receiver.url}", flush=True)
        with suppress(KeyboardInterrupt):
            receiver.print_traces()


if __name__ == "__main__":
    main()
