"""The text for Prometheus."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from trio.testing import MockClock

from config import Trust
from host.journal import RequestCompleted
from host.telemetry import names
from host.telemetry.counts import HostCounts, cumulative
from host.telemetry.metrics import SHARED_FOR, Metrics, Rows
from host.telemetry.names import Metric
from tests.kit.awaited import Paused
from tests.kit.world import ScriptedServer, World, open_client, open_world

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(text: bytes) -> Samples:
    return {
        (each.name, tuple(sorted(each.labels.items()))): each.value
        for family in text_string_to_metric_families(text.decode())
        for each in family.samples
    }


def metrics_of(world: World, counts: HostCounts, **more: Any) -> Metrics:
    audit, store = world.gate.decision_log._audit, world.gate.definitions.pins._db
    return Metrics(counts, world.runtime, world.upstreams, world.memory, audit, store, **more)


@pytest.mark.parametrize("tools", [False, True])
async def test_every_metric_is_told(autojump_clock: MockClock, tools: bool) -> None:
    server = ScriptedServer("a", tools=["x", "y"], prompts=["p"])
    async with open_world(server, ScriptedServer("off", disabled=True)) as world:
        counts = HostCounts(world.journal, tools=tools)
        await world.settled()
        for method, error in (("tools/call", ""), ("tools/call", "-32601"), ("ping", "_OTHER")):
            observed = ("a", method, error, "2025-11-25", "x")
            counts.client_operations.observe(observed[: 5 if tools else 4], 0.3)
            counts.server_operations.observe((method, error, "2025-11-25", "pipe"), 0.3)
        world.gate.policies.meter("a")._too_many_requests("may not", 1.0)
        world.gate.decision_log.denied["a"] += 2
        shown = {"sessions": lambda: {"http": 3}, "streams": lambda: {"listen": 4}}
        metrics = metrics_of(world, counts, **shown, parked=lambda: 2)
        text, media_type = await metrics.text("")
        told = samples(text)
    assert media_type.startswith("text/plain")
    families = {line.split()[2]: line.split()[3] for line in text.decode().splitlines() if line.startswith("# TYPE")}
    ours = {name: kind for name, kind in families.items() if not name.startswith("process_")}
    assert ours == {each.shown: each.kind for each in names.METRICS}
    assert "process_cpu_seconds_total" in families
    assert told["colonnade_server_state", (("server", "a"), ("state", "ready"))] == 1
    assert told["colonnade_server_state", (("server", "a"), ("state", "failed"))] == 0
    assert told["colonnade_server_state", (("server", "off"), ("state", "disabled"))] == 1
    assert told["colonnade_server_entries", (("kind", "tools"), ("server", "a"))] == 2
    assert told["colonnade_server_definition_tokens", (("server", "a"),)] > 10
    assert told["colonnade_sessions", (("transport", "http"),)] == 3
    assert told["colonnade_parked_calls", ()] == 2
    assert told["colonnade_audit_works", ()] == 1
    assert told["colonnade_audit_lag_seconds", ()] >= 0
    assert told["colonnade_limit_refusals_total", (("server", "a"),)] == 1
    assert told["colonnade_calls_denied_total", (("server", "a"),)] == 2
    assert told["colonnade_calls_queued", (("server", "a"),)] == 0
    assert told["colonnade_store_commit_duration_seconds_count", ()] > 0
    assert told["colonnade_streams", (("kind", "listen"),)] == 4
    assert told["colonnade_held_definitions", (("server", "a"),)] == 0
    tool = {"gen_ai_tool_name": "x"} if tools else {}
    for method, error, code, operation in (
        ("tools/call", "", "", "execute_tool"),
        ("tools/call", "-32601", "-32601", "execute_tool"),
        ("ping", "_OTHER", "", ""),
    ):
        labels = {"mcp_method_name": method, "error_type": error, "rpc_response_status_code": code, "le": "0.5"}
        labels |= {"gen_ai_operation_name": operation, "mcp_protocol_version": "2025-11-25"}
        at_server, here = {"server": "a", "network_transport": "", **tool}, {"network_transport": "pipe"}
        for name, more in (("client", at_server), ("server", here)):
            key = f"mcp_{name}_operation_duration_seconds_bucket", tuple(sorted((labels | more).items()))
            assert told[key] == 1


async def test_a_removed_server_is_told_no_more_and_begins_at_0_when_it_comes_back(autojump_clock: MockClock) -> None:
    async def answer(_: dict[str, Any]) -> object:
        return {"content": []}

    servers = [ScriptedServer(id, tools=["x"], answers={"tools/call": answer}) for id in ("a", "b")]
    async with open_client(*servers) as (world, client, _):
        counts = world.journal.observer = HostCounts(world.journal)
        metrics = metrics_of(world, counts)
        counts.keep_only({"a", "b"})
        world.configures(*servers, restart=("a", "b"))
        await world.settled()

        async def told() -> dict[str, float]:
            """The sum of the counters of each server."""
            await trio.sleep(SHARED_FOR)
            found: dict[str, float] = defaultdict(float)
            for (name, labels), value in samples((await metrics.text(""))[0]).items():
                if (server := dict(labels).get("server")) and name.endswith("_total"):
                    found[server] += value
            return dict(found)

        for name in ("a__x", "b__x", "b__x"):
            await client.call(name)
        world.gate.decision_log.denied["b"] += 1
        before = await told()
        counts.keep_only({"a"})  # before the servers are others, as in `LiveConfig`
        world.configures(servers[0])
        world.journal.note(RequestCompleted("b", "tool", "x", "", "allow", "answered", 0.1, method="tools/call"))
        assert await told() == {"a": before["a"]}
        counts.keep_only({"a", "b"})
        world.configures(*servers)
        await world.settled()
        assert await told() == {"a": before["a"], "b": 1}  # its start


async def test_many_that_ask_get_one_text(mock_clock: MockClock) -> None:
    async with open_world(ScriptedServer("a", tools=["x"])) as world:
        metrics = metrics_of(world, HostCounts(world.journal))
        first, _ = await metrics.text("")
        openmetrics, media_type = await metrics.text("application/openmetrics-text; version=1.0.0")
        assert (await metrics.text(""))[0] is first
        assert openmetrics.endswith(b"# EOF\n")
        assert media_type.startswith("application/openmetrics-text")
        for version in ("1.0.7", "2", "abc", "1.x", "", "0.0.1", "1.0.0;q=0.0"):
            for space in ("", " "):
                accept = f"application/openmetrics-text{space};{space}version={space}{version}"
                assert (await metrics.text(accept))[0] is first
        for accept in (
            "application/openmetrics-text",
            "application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1",
            'Application/OpenMetrics-Text; escaping=underscores; version="1.0.0"; q=0.05',
            "application/openmetrics-text;version=0.0.1,application/openmetrics-text;version=1.0.0",
        ):
            assert (await metrics.text(f"text/html, {accept}"))[0] is openmetrics
        mock_clock.jump(SHARED_FOR)
        assert (await metrics.text(""))[0] is not first


async def test_a_text_is_written_beside_the_loop(mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for all who ask meanwhile."""
    threads: list[threading.Thread] = []

    def encode(registry: Collector) -> bytes:
        threads.append(threading.current_thread())
        return f"{len(list(registry.collect()))}".encode()

    monkeypatch.setattr("host.telemetry.metrics.choose_encoder", lambda _: (encode, "text/plain"))
    async with open_world(ScriptedServer("a", tools=["x"])) as world, trio.open_nursery() as nursery:
        metrics = metrics_of(world, HostCounts(world.journal))
        for _ in range(3):
            nursery.start_soon(metrics.text, "")
    (thread,) = threads
    assert thread is not threading.main_thread()


async def test_held_definitions_are_counted_by_server_until_a_person_approves(mock_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x", "y"], trust=Trust.UNTRUSTED)
    async with open_world(server, ScriptedServer("b", tools=["x"])) as world:
        metrics = metrics_of(world, HostCounts(world.journal))

        async def held() -> dict[str, float]:
            mock_clock.jump(SHARED_FOR)
            told = samples((await metrics.text(""))[0])
            return {dict(labels)["server"]: n for (name, labels), n in told.items() if name == names.HELD.name}

        await world.settled()
        before = await held()
        assert (before["a"] >= 2, before["b"]) == (True, 0)
        world.approves()
        assert await held() == {"a": 0, "b": 0}


async def test_rows_are_read_in_slices_and_each_is_of_one_moment() -> None:
    """All durations are of a second, so a sum that is not their number is of another moment."""
    async with open_world(ScriptedServer("a", tools=["x"])) as world:
        counts = HostCounts(world.journal)
        rows = [("a", f"m{number}", "", "") for number in range(300)]
        read: list[tuple[Metric, Rows]] = []

        async def read_all() -> None:
            read.extend([each async for each in metrics_of(world, counts)._read()])

        for labels in rows:
            counts.client_operations.observe(labels, 1.0)
        work, pauses = Paused(read_all()), 0
        for _ in work:
            pauses += 1
            for labels in (*rows, ("a", f"later{pauses}", "", "")):
                counts.client_operations.observe(labels, 1.0)
    assert pauses > 300
    found = dict(read)[names.CLIENT_OPERATION]
    assert len(found) == 300
    assert all(cumulative(row)[-1] == row[0] for _, row in found)
    assert len({row[0] for _, row in found}) > 100
