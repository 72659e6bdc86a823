"""A host without metrics and traces imports nothing for them; one with them says what it needs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from config import Address, Config, Listen, Secret, StdioServer, TracesSpec
from host.journal import Journal
from host.storage.store import StateError
from host.telemetry.both import Both
from host.telemetry.counts import HostCounts
from host.telemetry.entrance import open_telemetry
from host.telemetry.traces import Traces

WITHOUT = Config(servers={"a": StdioServer(id="a", command=(Secret("x"),))})
METRICS = replace(WITHOUT, listen=Listen(metrics=Address("127.0.0.1", 9464)))
TRACES = replace(WITHOUT, traces=TracesSpec())
PROBE = "import host.app, sys; print(*(name for name in sys.modules if name.startswith({!r})))"


@pytest.mark.parametrize(
    ("config", "observer"),
    [(METRICS, HostCounts), (TRACES, Traces), (replace(METRICS, traces=TracesSpec()), Both)],
    ids=["metrics", "traces", "both"],
)
async def test_requests_are_observed_as_the_file_says(
    config: Config, observer: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    journal = Journal()
    async with open_telemetry(WITHOUT, journal) as counts:
        assert (counts, journal.observer) == (None, None)
    async with open_telemetry(config, journal) as counts:
        assert isinstance(journal.observer, observer)
        assert (counts is None) == (config is TRACES)
    assert journal.observer is None
    async with open_telemetry(config, journal, metrics=False) as counts:
        assert counts is None
        assert isinstance(journal.observer, Traces) == (config.traces is not None)


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT must be .* got many"),
        ("OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER", "'many' not found"),
    ],
)
async def test_a_wrong_variable_is_a_sentence(variable: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "many")
    with pytest.raises(StateError, match=rf"OTEL_\* .*{said}"):
        async with open_telemetry(TRACES, Journal()):
            pass


@pytest.mark.parametrize(
    ("config", "module", "said", "extra"),
    [
        (METRICS, "prometheus_client", r"listen\.metrics needs the package prometheus-client ", "metrics"),
        (TRACES, "opentelemetry.exporter.otlp.proto.http", "traces needs the package opentelemetry-", "otel"),
    ],
)
async def test_a_missing_package_is_named(
    config: Config, module: str, said: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(StateError, match=rf"{said}.* -e '\.\[{extra}\]' .*uv tool install '\.\[{extra}\]'"):
        async with open_telemetry(config, Journal()):
            pass


@pytest.mark.slow
def test_a_host_imports_nothing_for_them() -> None:
    names = ("prometheus_client", "opentelemetry", "host.telemetry.counts", "host.telemetry.metrics")
    root = Path(__file__).parents[3]
    found = subprocess.run([sys.executable, "-c", PROBE.format(names)], capture_output=True, text=True, cwd=root)
    assert (found.stdout.strip(), found.stderr) == ("", "")
