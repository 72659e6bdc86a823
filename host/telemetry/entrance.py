"""The metrics and traces of a host, if it has them. Their modules and packages are imported only then."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from config import Config
from host.attempts import Attempt
from host.audit.writer import Audit
from host.journal import Journal
from host.memory import Budget
from host.storage.sql import Store
from host.storage.store import StateError, not_installed
from host.upstream.runtime import Runtime
from host.upstream.upstreams import Upstreams
from host.wire.asgi import ASGIApp

if TYPE_CHECKING:
    from host.telemetry.counts import HostCounts


@asynccontextmanager
async def open_telemetry(config: Config, journal: Journal, *, metrics: bool = True) -> AsyncIterator[HostCounts | None]:
    """Observe the requests for the block as the configuration says, with what counts them for metrics. Must be opened
    before the first server is connected.

    Args:
        metrics: there is an address for them, if the configuration has one.

    Raises:
        StateError: a package that is needed is not installed, or a variable for traces is wrong.
    """
    counts, traces = None, None
    require_packages(config, metrics=metrics)
    if metrics and config.listen.metrics is not None:
        from host.telemetry.counts import HostCounts

        journal.observer = counts = HostCounts(journal, tools=config.metrics.tools)
    if config.traces is not None:
        from host.telemetry.both import Both
        from host.telemetry.traces import Traces

        try:
            traces = Traces(content=config.traces.content)
        except (ValueError, RuntimeError) as problem:
            raise StateError(f"traces: a variable OTEL_* has a value that the SDK refuses: {problem}") from None
        journal.observer = traces if counts is None else Both(counts, traces)
    try:
        yield counts
    finally:
        journal.observer = None
        if traces is not None:
            await traces.close()


def require_packages(config: Config, *, metrics: bool = True) -> None:
    """Raises StateError if a package is not installed that the metrics or traces of the configuration need."""
    if metrics and config.listen.metrics is not None:
        _require("listen.metrics", "prometheus_client", "prometheus-client", "metrics")
    if config.traces is not None:
        _require("traces", "opentelemetry.exporter.otlp.proto.http", "opentelemetry-exporter-otlp-proto-http", "otel")


def _require(key: str, module: str, package: str, extra: str) -> None:
    try:
        import_module(module)
    except ImportError as problem:
        raise not_installed(key, package, extra, problem) from None


def metrics_app(
    counts: HostCounts,
    config: Config,
    runtime: Runtime,
    upstreams: Upstreams,
    memory: Budget,
    audit: Audit,
    store: Store,
    record_attempt: Callable[[Attempt], None],
    *,
    sessions: Callable[[], Mapping[str, int]],
    streams: Callable[[], Mapping[str, int]],
    parked: Callable[[], int],
    tasks: Callable[[], int],
) -> ASGIApp:
    """The app at `listen.metrics`; see `Metrics` and `endpoint.metrics_app`."""
    from host.telemetry.endpoint import app_of
    from host.telemetry.metrics import Metrics

    metrics = Metrics(
        *(counts, runtime, upstreams, memory, audit, store),
        sessions=sessions,
        streams=streams,
        parked=parked,
        tasks=tasks,
    )
    return app_of(config.listen, config.metrics, metrics.text, record_attempt)
