"""The upstream, the load generator and the sketch: in C and in Python they do the same."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.bench.build import FIXED, compiler, made
from tests.bench.processes import Run, loading, serving

pytestmark = pytest.mark.slow

MESSAGES = [
    {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}},
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
    {"jsonrpc": "2.0", "id": "d1", "method": "server/discover", "params": {}},
    {"id": 3, "params": {"arguments": {"size": 4, "text": 'say "a"\\'}, "name": "echo"}, "method": "tools/call"},
    {"jsonrpc": "2.0", "id": 4, "method": "tools/call", "params": {"name": "echo", "arguments": {"text": "[{"}}},
    {"jsonrpc": "2.0", "id": 5, "method": "tools/list"},
    {"jsonrpc": "2.0", "id": 6, "method": "ping"},
    {"jsonrpc": "2.0", "id": 7, "method": "resources/list"},
]


def commands(name: str) -> list[list[str]]:
    """The program in Python, and the compiled one where there is a compiler."""
    return [[sys.executable, str(FIXED / f"{name}.py")], *([made(name)] if compiler() else [])]


@pytest.mark.parametrize("era", ["handshake", "stateless"])
def test_both_upstreams_answer_the_same(era: str) -> None:
    lines = "".join(json.dumps(message) + "\n" for message in MESSAGES)
    said = [
        subprocess.run([*command, era, "stdio", "3"], input=lines, capture_output=True, text=True, check=True).stdout
        for command in commands("upstream")
    ]
    answers = [[json.loads(line) for line in each.splitlines()] for each in said]
    assert all(each == answers[0] for each in answers)
    results = {answer["id"]: answer.get("result") for answer in answers[0]}
    assert results[3]["content"] == [{"type": "text", "text": 'say "a"\\xxxx'}]
    assert [tool["name"] for tool in results[5]["tools"]] == ["echo", "tool_001", "tool_002"]
    assert results[7] is None
    assert [results[1] is None, results["d1"] is None] == [era == "stateless", era == "handshake"]


@contextmanager
def upstream(folder: Path, command: list[str], era: str) -> Iterator[str]:
    with serving([*command, era, "http", "3"], folder) as program:
        yield program.url


def calls(command: list[str], url: str, era: str, *options: str) -> Run:
    with loading([*command, url, era, "4", *options]) as load:
        load.run(0.1)
        return load.run(0.1)


@pytest.mark.parametrize("era", ["handshake", "stateless"])
def test_both_load_generators_call_both_upstreams(era: str, tmp_path: Path) -> None:
    for server in commands("upstream"):
        with upstream(tmp_path, server, era) as url:
            for client in commands("load"):
                for options in ((), ("--size", "300000"), ("--list", "3"), ("--tool", "s#__echo", "--servers", "3")):
                    run = calls(client, url, era, *options)
                    assert (run.errors, run.calls > 0) == (0, True), (server, client, options)
                    assert 0 < run.p50 <= run.p99 <= run.seconds * 1e6


def test_both_load_generators_see_a_wrong_answer(tmp_path: Path) -> None:
    with upstream(tmp_path, commands("upstream")[0], "handshake") as url:
        for client in commands("load"):
            run = calls(client, url, "handshake", "--list", "4")
            assert run.calls == 0
            assert run.errors > 0


@pytest.mark.parametrize("era", ["handshake", "stateless"])
def test_the_sketch_forwards_over_both_transports(era: str, tmp_path: Path) -> None:
    server = commands("upstream")[-1]
    with upstream(tmp_path, server, era) as url:
        for target in (["http", url], ["stdio", *server, era, "stdio", "3"]):
            with serving([sys.executable, str(FIXED / "sketch.py"), *target], tmp_path) as sketch:
                for options in ((), ("--size", "300000"), ("--list", "3")):
                    run = calls(commands("load")[-1], sketch.url, era, *options)
                    assert (run.errors, run.calls > 0) == (0, True), (target, options)
