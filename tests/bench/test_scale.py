"""The model of docs/scale.md, and what the page says of it."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import DEFAULT_CAPACITY, Capacity
from tests.bench.scale import PAGE, Load, Size, bounds, read_units, report, shared, with_report
from tests.bench.units import FILE, WORDS

MIB = 1024**2
UNITS = {
    "host_memory": 50 * MIB,
    "session_memory": 4096.0,
    "stream_memory": 12288.0,
    "remembered_server_memory": 100 * 1024.0,
    "connected_server_memory": 200 * 1024.0,
    "remembered_server_processor": 0.002,
    "connected_server_processor": 0.007,
    "session_processor": 0.0005,
    "call_processor": 250e-6,
    "forwarded_processor": 100e-6,
    "engine_process": 0.001,
    "engine_session": 0.0003,
}
HOST = Path(__file__).parents[2] / "host"
SAYING = (
    *("audit/stream.py", "audit/writer.py", "downstream/stateless.py", "policy/confirmations.py", "wire/acceptor.py"),
    *("fleet/adoption.py", "fleet/forwarding.py", "fleet/process.py", "policy/limits.py", "wire/port.py"),
)
"""The files that say what people see when parts fail."""


def test_the_limits_of_a_desk_come_first() -> None:
    """Half of 800 streams may be those of sessions."""
    first, second, *_ = bounds(Load(10**6, 100, 1000.0, 1.0), Size(DEFAULT_CAPACITY, 4096 * MIB), UNITS)
    assert (first.resource, first.sessions) == ("capacity.streams", 400)
    assert (second.resource, second.sessions) == ("capacity.sessions", 1000)


@pytest.mark.parametrize(
    ("load", "first"),
    [
        (Load(10**6, 100, 100.0, 0.0), "capacity.sessions"),
        (Load(10**6, 100, 10**6, 0.0), "processor"),
        (Load(10**6, 2 * 10**4, 100.0, 1.0), "memory"),
    ],
)
def test_each_resource_may_come_first(load: Load, first: str) -> None:
    size = Size(Capacity(sessions=10_000, connections=50_000), 2048 * MIB)
    assert bounds(load, size, UNITS)[0].resource == first


def test_memory_that_the_servers_alone_need_holds_no_session() -> None:
    load = Load(10**6, 10**5, 100.0, 1.0)
    first, *_ = bounds(load, Size(DEFAULT_CAPACITY, 4096 * MIB), UNITS)
    assert (first.resource, first.sessions) == ("memory", 0)
    assert any("no number of" in line for line in report(load, 1000, 4096 * MIB, UNITS))


@given(
    st.builds(Load, st.integers(1, 10**7), st.integers(1, 10**4), st.floats(0, 10**6), st.floats(0, 1)),
    st.floats(1.1, 10),
)
def test_more_of_anything_never_lets_a_process_hold_more(load: Load, factor: float) -> None:
    size = Size(DEFAULT_CAPACITY, 4096 * MIB)

    def most(of: Load) -> float:
        return bounds(of, size, UNITS)[0].sessions

    assert most(load._replace(servers=int(load.servers * factor) + 1)) <= most(load)
    assert most(load._replace(calls=load.calls * factor)) <= most(load)
    assert most(load._replace(streams=min(1.0, load.streams * factor))) <= most(load)
    assert bounds(load, size, UNITS, lazy=False)[0].sessions <= most(load)


def test_what_all_processes_need_together() -> None:
    told = dict(shared(Load(10**6, 1000, 10_000.0, 1.0), 50, UNITS))
    assert told["calls"] == "10,000 a second, 2.5 processors; 3.5 without affinity"
    assert told["connections at each server"] == "50 if each process uses it; 50,000 in all"
    assert told["a start of one process"] == "7 s of its processor if it connects; 2 s with start: lazy"
    assert told["PostgreSQL"].startswith("6.0% of one processor (processes 5.0%, sessions 1.0%)")


def test_the_page_has_what_the_program_prints() -> None:
    """`make scale` writes both parts."""
    assert set(json.loads(FILE.read_text())["units"]) == set(WORDS)
    lines = list(report(Load(1_000_000, 10_000, 10_000.0, 1.0), 20_000, 4096.0 * MIB, read_units()))
    page = PAGE.read_text()
    assert with_report(page, lines) == page


def test_sentences_of_the_page_are_those_of_the_host() -> None:
    """In the table of failures; `…` stands for what differs, and commands are no sentences."""
    said = [
        node.value
        for name in SAYING
        for node in ast.walk(ast.parse((HOST / name).read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    table = PAGE.read_text().partition("## When parts fail")[2]
    sentences = [text for text in re.findall(r"`([^`]+)`", table) if text.count(" ") >= 3 and text[:5] != "make "]
    assert len(sentences) > 8
    pieces = [piece.strip() for text in sentences for piece in re.split(r"[…()]", text)]
    missing = [piece for piece in pieces if len(piece) > 3 and not any(piece in text for text in said)]
    assert not [piece for piece in missing if piece != "Broken pipe"], "the last is the system's"
