"""The metrics of a running host, as text for Prometheus (the package prometheus-client). What happens is counted as it
happens (counts.py); what *is*, such as states, sizes and memory, is read when it is asked for.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Container, Iterable, Iterator, Mapping
from typing import Any, get_args

import trio
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from host.admin.schema import ServerState
from host.admin.status import server_status
from host.audit.writer import Audit
from host.memory import Budget
from host.protocol.definitions import model_tokens
from host.protocol.methods import Kind
from host.slices import pause
from host.storage.sql import Store
from host.telemetry import names
from host.telemetry.counts import BUCKETS, HostCounts, Labels, cumulative
from host.telemetry.names import Metric
from host.upstream.runtime import Runtime
from host.upstream.upstreams import Upstreams
from host.version import VERSION

SHARED_FOR = 1.0
"""Seconds for which a text is given again: many programs that ask cost as much as one."""
_OPENMETRICS = "application/openmetrics-text; version=1.0.0"
_EXCLUDES_OPENMETRICS = re.compile(r"version *=(?! *\"?1\.0\.0\"?$)|q *= *0(\.0*)?$")
"""A parameter with which the media type is another version, or not wanted (RFC 9110, 12.4.2)."""
_STATES: tuple[ServerState, ...] = get_args(ServerState)
_FAMILIES: dict[str, Any] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
    "summary": SummaryMetricFamily,
}
_LIMITS = (*(f"{float(each)}" for each in BUCKETS), "+Inf")

Rows = list[tuple[Labels, Any]]
"""The rows of a metric: the values of its labels, and a number; of a histogram as `Durations` has it, of a summary how
many there were and their sum."""


def _wants_openmetrics(accept: str) -> bool:
    for each in accept.lower().split(","):
        kind, *parameters = map(str.strip, each.split(";"))
        if kind == _OPENMETRICS.partition(";")[0] and not any(map(_EXCLUDES_OPENMETRICS.match, parameters)):
            return True
    return False


class _Families(Collector):
    """The families of the metrics with these rows, made while they are collected. Rows of other servers than these are
    left out: a call of one that a reload has removed may have ended since."""

    def __init__(self, rows: Iterable[tuple[Metric, Rows]], counts: HostCounts, servers: Container[str]) -> None:
        self._rows, self._counts, self._servers = rows, counts, servers

    def collect(self) -> Iterator[Family]:
        for metric, rows in self._rows:
            labels = metric.labels_with(tools=self._counts.names_tools)
            family = _FAMILIES[metric.kind](metric.name, metric.help, labels=labels)
            for values, row in rows:
                if metric.of_servers and values[0] not in self._servers:
                    continue
                if isinstance(family, HistogramMetricFamily):
                    buckets = list(zip(_LIMITS, cumulative(row), strict=True))
                    family.add_metric(self._counts.labels_of(metric, values), buckets, row[0])
                elif isinstance(family, SummaryMetricFamily):
                    family.add_metric(values, *row)
                else:
                    family.add_metric(values, row)
            yield family


class Metrics:
    """The metrics of a host.

    Args:
        sessions: returns the number of open sessions of clients by their transport.
        streams: returns the number of their open streams by kind.
        parked, tasks: see `CallStore`.
    """

    def __init__(
        self,
        counts: HostCounts,
        runtime: Runtime,
        upstreams: Upstreams,
        memory: Budget,
        audit: Audit,
        store: Store,
        *,
        sessions: Callable[[], Mapping[str, int]] = dict,
        streams: Callable[[], Mapping[str, int]] = dict,
        parked: Callable[[], int] = int,
        tasks: Callable[[], int] = int,
    ) -> None:
        self._counts, self._runtime, self._upstreams, self._memory = counts, runtime, upstreams, memory
        self._audit, self._store = audit, store
        self._sessions, self._streams, self._parked, self._tasks = sessions, streams, parked, tasks
        self._process = ProcessCollector(registry=None)
        self._held: tuple[object, Counter[str]] = None, Counter()
        """The held definitions of each server, and the state of the rules and definitions then."""
        self._text: dict[str, tuple[float, bytes]] = {}
        """By media type, of which there are two, the last text and when it was made."""
        self._making = trio.Lock()

    async def text(self, accept: str) -> tuple[bytes, str]:
        """All of it, in the form that the `Accept` header wants, and the media type."""
        # The library takes any version from the header itself: one that is no number raises, and each has its own text.
        encode, media_type = choose_encoder(_OPENMETRICS if _wants_openmetrics(accept) else "")
        async with self._making:
            made, text = self._text.get(media_type, (float("-inf"), b""))
            if (now := trio.current_time()) - made >= SHARED_FOR:
                # In a thread: of 20,000 lines the families take 35 ms, and the text 0.1 s.
                registry = CollectorRegistry(auto_describe=False)
                rows = [each async for each in self._read()]
                registry.register(_Families(rows, self._counts, self._upstreams.by_id))
                registry.register(self._process)
                text = await trio.to_thread.run_sync(encode, registry)
                self._text[media_type] = now, text
        return text, media_type

    async def _read(self) -> AsyncIterator[tuple[Metric, Rows]]:
        """The rows of every metric of names.py, read in slices; each row is of one moment."""
        counts, gate, memory = self._counts, self._runtime.gate, self._memory
        for metric, durations in (
            (names.SERVER_OPERATION, counts.server_operations),
            (names.CLIENT_OPERATION, counts.client_operations),
            (names.SERVER_SESSION, counts.server_sessions),
            (names.CLIENT_SESSION, counts.client_sessions),
            (names.WAITS, counts.waits),
        ):
            rows: Rows = []
            for labels, row in list(durations.rows.items()):
                rows.append((labels, row.copy()))  # a thread reads it while the next duration is added
                await pause()
            yield metric, rows
        meters = gate.policies.meters
        sampled = {
            names.DENIED: Counter({(server,): n for server, n in gate.decision_log.denied.items()}),
            names.LIMITED: Counter({(server,): meter.refused for server, meter in meters.items()}),
        }
        for metric, counter in (counts.counts | sampled).items():
            yield metric, list(counter.items())
            await pause()
        gauges: dict[Metric, Mapping[Any, Any]] = {
            names.COMMITS: {(): (self._store.commits, self._store.commit_seconds)},
            names.QUEUED: {(server,): meter.waiting for server, meter in meters.items()},
            names.AUDIT_LAG: {(): self._audit.lag},
            names.BUILD: {(VERSION,): 1},
            names.IN_FLIGHT: {(server,): n for server, n in gate.decision_log.in_flight.items()},
            names.PENDING: {(): len(gate.authorizer.confirmations.list_all())},
            names.AUDIT_WORKS: {(): not gate.decision_log.problem},
            names.SESSIONS: {(transport,): n for transport, n in self._sessions().items()},
            names.STREAMS: {(kind,): n for kind, n in self._streams().items()},
            names.PARKED: {(): self._parked()},
            names.TASKS: {(): self._tasks()},
            names.MEMORY_LIMIT: {(): memory.total},
            names.MEMORY: {(use,): size for use, size in memory.by_use().items()},
        }
        for metric, values in (gauges | await self._of_servers()).items():
            yield metric, list(values.items())

    async def _of_servers(self) -> dict[Metric, Mapping[Any, Any]]:
        catalog, journal = self._runtime.catalog, self._runtime.journal
        held = await self._count_held()
        found: dict[Metric, dict[Any, Any]] = {
            metric: {}
            for metric in (names.SERVER_STATE, names.ENTRIES, names.DEFINITION_TOKENS, names.HELD, names.INSTANCES)
        }
        for id, server in list(self._upstreams.by_id.items()):
            row = server_status(server, catalog, journal)
            found[names.SERVER_STATE] |= {(id, state): row["state"] == state for state in _STATES}
            found[names.ENTRIES] |= {(id, kind): count for kind, count in row["entries"].items()}
            found[names.DEFINITION_TOKENS][id,] = self._tokens_of(id)
            found[names.HELD][id,] = held[id]
            found[names.INSTANCES][id,] = row["instances"]
            await pause()
        return {**found}

    async def _count_held(self) -> Counter[str]:
        """The number of held definitions of each server, looked at again if something has changed."""
        gate = self._runtime.gate
        state = gate.policies.epoch, gate.definitions.pins.changes
        if self._held[0] != state:
            self._held = state, Counter(each.item.server for each in await gate.definitions.held())
        return self._held[1]

    def _tokens_of(self, server: str) -> int:
        tools = self._runtime.catalog.entries_of(server, Kind.TOOL)
        return model_tokens(sum(len(each.exported) for each in tools))
