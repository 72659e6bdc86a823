"""The programs that the benchmark adds to its fixed ones do what they say."""

from __future__ import annotations

import json
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from host.audit.records import files
from tests.bench.build import HERE, made
from tests.bench.contenders import HANDSHAKE, STATELESS, STDIO, Upstream
from tests.bench.lanes import COLONNADE, Calls, Lane
from tests.bench.processes import loading, serving
from tests.bench.rounds import Bench

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("era", [HANDSHAKE, STATELESS])
def test_each_stream_is_notified_of_each_change(era: str) -> None:
    lane = Lane(COLONNADE, Upstream(STDIO, changing=True), Calls(era, idle=3, notified=True))
    with ExitStack() as stack:
        load = Bench(stack).load(lane, stack)
        for _ in range(3):
            run = load.run(0.1)
            assert (run.calls, run.errors) == (3, 0)


def test_the_audited_sketch_writes_two_records_of_each_call(tmp_path: Path) -> None:
    sketch = [sys.executable, str(HERE / "peers" / "audited_sketch.py"), str(tmp_path / "audit")]
    with (
        serving([*made("upstream"), *"handshake", "http"], tmp_path) as server,
        serving([*sketch, server.url], tmp_path) as proxy,
        loading([*made("load"), proxy.url, HANDSHAKE, "4"]) as load,
    ):
        run = load.run(0.2)
    written = Counter(
        json.loads(line)["kind"] for file in files(tmp_path / "audit") for line in file.read_text().splitlines()
    )
    assert run.errors == 0
    assert written["decision"] == written["outcome"] == run.calls > 0
